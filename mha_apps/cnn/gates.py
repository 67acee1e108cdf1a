"""Gates: small modules that read a feature map and scale it, channel by channel or place by place.

Every gate takes and returns `(batch, channels, height, width)` and starts in one of two ways. `standard` is
`sigmoid(z)`, as in the papers: a fresh gate halves what passes, which is right when the whole network is trained
from scratch. `identity` is `2 * sigmoid(z)` with a zero last layer: a fresh gate is exactly 1, so that a pretrained
network computes, bit for bit, what it computed before. `surgery.py` puts gates into networks.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

__all__ = ["CBAM", "ChannelAttention", "EfficientChannelAttention", "Gate", "SpatialAttention", "SqueezeExcitation"]

Start = Literal["standard", "identity"]

# Narrower bottlenecks than this lose the channels' signal: 64 channels over 16 would leave 4, 8 over 16 none.
SMALLEST_HIDDEN = 8


class Gate(nn.Module):
    """What all gates share: the number of channels, the start, and a way to show what the gate does.

    Args:
        channels: channels of the feature map, at least 1.
        start: `standard` or `identity`, see the module's docstring.

    Raises:
        ValueError: `channels` is below 1, or `start` is unknown.
    """

    name: ClassVar[str]

    def __init__(self, channels: int, *, start: Start = "standard") -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"a gate needs at least one channel, got channels={channels}")
        if start not in ("standard", "identity"):
            raise ValueError(f"start={start!r} is unknown; use 'standard' or 'identity'")
        self.channels = channels
        self.start: Start = start

    @property
    def last_layer(self) -> nn.Module:
        """The layer whose zero weights make the gate the identity."""
        raise NotImplementedError

    def close_last_layer(self) -> None:
        """Zeroes the last layer if the gate starts as the identity; constructors end with it."""
        if self.start == "identity":
            for parameter in self.last_layer.parameters():
                nn.init.zeros_(parameter)

    def opened(self, logits: Tensor) -> Tensor:
        """Scores to factors: in (0, 1) for `standard`, in (0, 2) and exactly 1 at a score of 0 for `identity`."""
        factors = logits.sigmoid()
        return factors * 2 if self.start == "identity" else factors

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """What the gate does to `x` (batch, channels, height, width). Hooks of the gate ask for it while it is called,
        so that it may call `forward`, never the gate itself.

        Returns:
            `channel` (batch, channels) and `spatial` (batch, height, width), whichever the gate has.
        """
        raise NotImplementedError

    def macs(self, height: int, width: int) -> int:
        """Multiply-adds for one image of this resolution; reductions count one add an element."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Keyword arguments which, with the channels, make this gate again."""
        return {"start": self.start}

    def extra_repr(self) -> str:
        return f"{self.channels}, start={self.start!r}"


def hidden_width(channels: int, reduction: int, hidden: int | None) -> int:
    """Width of a bottleneck: `hidden` if given, else `channels / reduction` but never below 8."""
    if hidden is not None:
        if hidden < 1:
            raise ValueError(f"hidden={hidden} must be at least 1")
        return hidden
    if reduction < 1:
        raise ValueError(f"reduction={reduction} must be at least 1")
    return max(SMALLEST_HIDDEN, channels // reduction)


class SqueezeExcitation(Gate):
    """Scales each channel by a bottleneck over all channels' means (Hu et al. 2018, arXiv:1709.01507, eq. 2-4).

    Args:
        channels: channels of the feature map.
        reduction: channels per unit of the bottleneck.
        hidden: width of the bottleneck; overrides `reduction` and its lower limit of 8.
        bias: whether the two layers have biases.
        start: `standard` or `identity`.
    """

    name = "se"

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        hidden: int | None = None,
        bias: bool = True,
        start: Start = "standard",
    ) -> None:
        super().__init__(channels, start=start)
        self.fc1 = nn.Linear(channels, hidden_width(channels, reduction, hidden), bias=bias)
        self.fc2 = nn.Linear(self.fc1.out_features, channels, bias=bias)
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.fc2

    def weights(self, x: Tensor) -> Tensor:
        """Factors (batch, channels)."""
        return self.opened(self.fc2(self.fc1(x.mean((2, 3))).relu()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)[:, :, None, None]

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {"channel": self.weights(x)}

    def macs(self, height: int, width: int) -> int:
        return 2 * self.channels * self.fc1.out_features + 2 * self.channels * height * width

    def options(self) -> dict[str, Any]:
        return {"hidden": self.fc1.out_features, "bias": self.fc1.bias is not None, "start": self.start}


class EfficientChannelAttention(Gate):
    """Scales each channel by a 1-D convolution over its neighbours' means (Wang et al. 2020, arXiv:1910.03151).

    Args:
        channels: channels of the feature map.
        kernel_size: odd width of the convolution; by default the paper's eq. 12 with gamma 2 and b 1, the odd
            number next to `(log2(channels) + 1) / 2`, at least 3.
        start: `standard` or `identity`.

    Raises:
        ValueError: `kernel_size` is even or below 1.
    """

    name = "eca"

    def __init__(self, channels: int, *, kernel_size: int | None = None, start: Start = "standard") -> None:
        super().__init__(channels, start=start)
        if kernel_size is None:
            kernel_size = max(3, int((math.log2(channels) + 1) / 2) | 1)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={kernel_size} must be odd and positive")
        self.conv = nn.Conv1d(1, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.conv

    def weights(self, x: Tensor) -> Tensor:
        """Factors (batch, channels)."""
        return self.opened(self.conv(x.mean((2, 3)).unsqueeze(1)).squeeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)[:, :, None, None]

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {"channel": self.weights(x)}

    def macs(self, height: int, width: int) -> int:
        return self.channels * self.conv.kernel_size[0] + 2 * self.channels * height * width

    def options(self) -> dict[str, Any]:
        return {"kernel_size": self.conv.kernel_size[0], "start": self.start}


class ChannelAttention(Gate):
    """CBAM's first half: one bottleneck over the channels' means and over their maxima, summed (Woo et al. 2018,
    arXiv:1807.06521, eq. 2).

    Args:
        channels: channels of the feature map.
        reduction: channels per unit of the bottleneck.
        hidden: width of the bottleneck; overrides `reduction` and its lower limit of 8.
        bias: whether the two layers have biases; the paper's equation has none.
        start: `standard` or `identity`.
    """

    name = "channel"

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        hidden: int | None = None,
        bias: bool = False,
        start: Start = "standard",
    ) -> None:
        super().__init__(channels, start=start)
        self.fc1 = nn.Linear(channels, hidden_width(channels, reduction, hidden), bias=bias)
        self.fc2 = nn.Linear(self.fc1.out_features, channels, bias=bias)
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.fc2

    def weights(self, x: Tensor) -> Tensor:
        """Factors (batch, channels)."""
        hidden = self.fc1(x.mean((2, 3))).relu() + self.fc1(x.amax((2, 3))).relu()
        # The second layer is linear, so that one product with the sum does for both; its bias counts twice.
        scores = self.fc2(hidden)
        return self.opened(scores if self.fc2.bias is None else scores + self.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)[:, :, None, None]

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {"channel": self.weights(x)}

    def macs(self, height: int, width: int) -> int:
        return 3 * self.channels * self.fc1.out_features + 3 * self.channels * height * width

    def options(self) -> dict[str, Any]:
        return {"hidden": self.fc1.out_features, "bias": self.fc1.bias is not None, "start": self.start}


class SpatialAttention(Gate):
    """CBAM's second half: a convolution over the mean and the maximum of the channels at each place (Woo et al. 2018,
    arXiv:1807.06521, eq. 3).

    Args:
        channels: channels of the feature map; the gate's parameters do not depend on it.
        kernel_size: odd size of the convolution.
        batch_norm: normalise the scores over the batch, as some implementations do. Off by default: one image of
            one place could not be trained on, and a fresh gate would not be exactly 1 without care.
        start: `standard` or `identity`.

    Raises:
        ValueError: `kernel_size` is even or below 1.
    """

    name = "spatial"

    def __init__(
        self, channels: int, *, kernel_size: int = 7, batch_norm: bool = False, start: Start = "standard"
    ) -> None:
        super().__init__(channels, start=start)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={kernel_size} must be odd and positive")
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1) if batch_norm else None
        self.close_last_layer()

    @property
    def last_layer(self) -> nn.Module:
        return self.conv if self.norm is None else self.norm

    def weights(self, x: Tensor) -> Tensor:
        """Factors (batch, 1, height, width)."""
        scores = self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1))
        return self.opened(scores if self.norm is None else self.norm(scores))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {"spatial": self.weights(x)[:, 0]}

    def macs(self, height: int, width: int) -> int:
        return (2 * self.conv.kernel_size[0] ** 2 + 3 * self.channels) * height * width

    def options(self) -> dict[str, Any]:
        size, norm = self.conv.kernel_size[0], self.norm is not None
        return {"kernel_size": size, "batch_norm": norm, "start": self.start}


class CBAM(Gate):
    """Channel attention, then spatial attention on its result (Woo et al. 2018, arXiv:1807.06521, eq. 1).

    Args:
        channels: channels of the feature map.
        reduction, hidden, bias: see `ChannelAttention`.
        kernel_size, batch_norm: see `SpatialAttention`.
        start: `standard` or `identity`.
    """

    name = "cbam"

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        hidden: int | None = None,
        bias: bool = False,
        kernel_size: int = 7,
        batch_norm: bool = False,
        start: Start = "standard",
    ) -> None:
        super().__init__(channels, start=start)
        self.channel = ChannelAttention(channels, reduction=reduction, hidden=hidden, bias=bias, start=start)
        self.spatial = SpatialAttention(channels, kernel_size=kernel_size, batch_norm=batch_norm, start=start)

    @property
    def last_layer(self) -> nn.Module:
        return nn.ModuleList([self.channel.last_layer, self.spatial.last_layer])

    def forward(self, x: Tensor) -> Tensor:
        return self.spatial(self.channel(x))

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return self.channel.maps(x) | self.spatial.maps(self.channel(x))

    def macs(self, height: int, width: int) -> int:
        return self.channel.macs(height, width) + self.spatial.macs(height, width)

    def options(self) -> dict[str, Any]:
        return self.channel.options() | self.spatial.options()
