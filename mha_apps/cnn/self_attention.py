"""Gates made of the attention core: places that look at places, and channels that look at channels.

They add to the feature map instead of scaling it: `x + output(attention(norm(x)))`. With `start="identity"` the
output projection is zero, so that a fresh gate adds nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mha_apps.attention import MultiHeadAttention
from mha_apps.attention.kernel import sdpa
from mha_apps.attention.position import RelativeBias
from mha_apps.cnn.gates import Gate, Start

__all__ = ["ChannelSelfAttention", "SpatialSelfAttention"]

HEAD_DIM = 16


class SelfAttentionGate(Gate):
    """What both share: a norm over the channels, heads that are narrower than the feature map, and the sum.

    Args:
        channels: channels of the feature map.
        reduction: channels per channel of all heads together.
        heads: number of heads, of 16 channels each; by default as many as `reduction` leaves room for, at least one.
        start: `standard`, or `identity` for a zero output projection.

    Raises:
        ValueError: `heads` or `reduction` is below 1.
    """

    def __init__(
        self, channels: int, *, reduction: int = 8, heads: int | None = None, start: Start = "standard"
    ) -> None:
        super().__init__(channels, start=start)
        if reduction < 1 or (heads is not None and heads < 1):
            raise ValueError(f"reduction={reduction} and heads={heads} must be at least 1")
        self.heads = heads if heads is not None else max(1, channels // reduction // HEAD_DIM)
        self.norm = nn.LayerNorm(channels)

    @property
    def width(self) -> int:
        """Channels of all heads together."""
        return self.heads * HEAD_DIM

    def update(self, x: Tensor) -> Tensor:
        """What is added to `x` (batch, channels, height, width)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return x + self.update(x)

    def options(self) -> dict[str, Any]:
        return {"heads": self.heads, "start": self.start}


class SpatialSelfAttention(SelfAttentionGate):
    """Multi-head attention among the places of each window, with a learned bias for each difference of rows and
    columns (Liu et al. 2021, arXiv:2103.14030, eq. 4).

    Feature maps are padded to whole windows inside; the padding is attended to by nothing.

    Args:
        channels, reduction, heads, start: see `SelfAttentionGate`.
        window: side of a window in places, whatever the size of the feature map.

    Raises:
        ValueError: `window` is below 1.
    """

    name = "spatial-self"

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 8,
        heads: int | None = None,
        window: int = 7,
        start: Start = "standard",
    ) -> None:
        super().__init__(channels, reduction=reduction, heads=heads, start=start)
        if window < 1:
            raise ValueError(f"window={window} must be at least 1")
        self.window = window
        position = RelativeBias(self.heads, grid=(window, window))
        self.attention = MultiHeadAttention(channels, self.heads, head_dim=HEAD_DIM, position=position, kernel="sdpa")
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.attention.output

    def update(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        source, real, target = _windows(height, width, self.window, x.device)
        tokens = self.norm(rearrange(x, "b c h w -> b (h w) c"))
        windows = tokens.index_select(1, source).view(-1, self.window**2, self.channels)
        mask = real.view(-1, 1, 1, self.window**2).repeat(x.shape[0], 1, 1, 1)
        result = self.attention(windows, mask=mask).view(x.shape[0], -1, self.channels).index_select(1, target)
        return rearrange(result, "b (h w) c -> b c h w", h=height)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """`spatial`: the length of the vector at each place after the gate, over that before it."""
        return {"spatial": self.forward(x).norm(dim=1) / x.norm(dim=1).clamp_min(1e-12)}

    def macs(self, height: int, width: int) -> int:
        places = -(-height // self.window) * -(-width // self.window) * self.window**2
        return places * (4 * self.channels * self.width + 2 * self.window**2 * self.width + self.channels)

    def options(self) -> dict[str, Any]:
        return super().options() | {"window": self.window}


def _windows(height: int, width: int, side: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The places of a feature map in the order of windows of `side` by `side`, row by row, and back.

    Places are looked up rather than cut out with a reshape: whether there is one window or several then makes no
    difference to the graph, and an exported one works at any size. Looking up makes the padding, too.

    Returns:
        `source` (windows * side * side,), the place that each place of each window shows; `real`, of that length,
        False where it is padding; `target` (height * width,), where each place went.
    """
    columns = (width + side - 1) // side
    windows = (height + side - 1) // side * columns
    number = torch.arange(windows * side * side, device=device)
    window, inside = _divmod(number, side * side)
    (window_row, window_column), (row_inside, column_inside) = _divmod(window, columns), _divmod(inside, side)
    row, column = window_row * side + row_inside, window_column * side + column_inside
    source = row.clamp(max=height - 1) * width + column.clamp(max=width - 1)
    place = torch.arange(height * width, device=device)
    row_back, column_back = _divmod(place, width)
    (window_row, row_inside), (window_column, column_inside) = _divmod(row_back, side), _divmod(column_back, side)
    target = (window_row * columns + window_column) * side * side + row_inside * side + column_inside
    return source, (row < height) & (column < width), target


def _divmod(number: Tensor, by: int) -> tuple[Tensor, Tensor]:
    # The exporter to ONNX knows no remainder by a size that is dynamic.
    quotient = number // by
    return quotient, number - quotient * by


class ChannelSelfAttention(SelfAttentionGate):
    """Multi-head attention among channels: their products over all places, of unit vectors, say which channels mix
    (cross-covariance attention, El-Nouby et al. 2021, arXiv:2106.09681, section 3.2). Works at any resolution.

    Args:
        channels, reduction, heads, start: see `SelfAttentionGate`.
    """

    name = "channel-self"

    def __init__(
        self, channels: int, *, reduction: int = 8, heads: int | None = None, start: Start = "standard"
    ) -> None:
        super().__init__(channels, reduction=reduction, heads=heads, start=start)
        self.projection = nn.Linear(channels, 3 * self.width)
        self.temperature = nn.Parameter(torch.ones(self.heads, 1, 1))
        self.output = nn.Linear(self.width, channels)
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.output

    def update(self, x: Tensor) -> Tensor:
        tokens = self.norm(rearrange(x, "b c h w -> b (h w) c"))
        query, key, value = rearrange(
            self.projection(tokens), "b l (three n d) -> three b n d l", three=3, n=self.heads
        )
        # The kernel divides by the square root of the number of places, which unit vectors do not need.
        query = F.normalize(query, dim=-1) * (self.temperature * x[0, 0].numel() ** 0.5)
        mixed = sdpa(query, F.normalize(key, dim=-1), value)
        result = self.output(rearrange(mixed, "b n d l -> b l (n d)"))
        return rearrange(result, "b (h w) c -> b c h w", h=x.shape[2])

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """`channel`: the length of each channel over all places after the gate, over that before it."""
        return {"channel": self.forward(x).flatten(2).norm(dim=2) / x.flatten(2).norm(dim=2).clamp_min(1e-12)}

    def macs(self, height: int, width: int) -> int:
        return height * width * (4 * self.channels * self.width + 2 * HEAD_DIM * self.width + self.channels)
