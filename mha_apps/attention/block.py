"""Transformer blocks around the attention module, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .mask import Mask
from .multihead import MultiHeadAttention

__all__ = ["Encoder", "FeedForward", "TransformerBlock"]

Position = nn.Module | Callable[[], nn.Module] | None
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers around an activation; "swiglu" gates (Shazeer 2020) at the same number of parameters.

    Args:
        dim: channels in and out.
        mlp_ratio: hidden channels over dim. SwiGLU has two thirds of them, rounded up to a multiple of 8, since it has
            three matrices.
        activation: "gelu", "relu", "silu" or "swiglu".
        dropout: on the hidden channels.
        bias: give the layers a bias.
    """

    def __init__(
        self,
        dim: int,
        *,
        mlp_ratio: float = 4.0,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        hidden = int(dim * mlp_ratio)
        if activation == "swiglu":
            hidden = -(-hidden * 2 // 24) * 8
        self.gate = nn.Linear(dim, hidden, bias=bias) if activation == "swiglu" else None
        self.hidden = nn.Linear(dim, hidden, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, dim) to (batch, length, dim)."""
        activate = ACTIVATIONS[self.activation]
        hidden = activate(self.hidden(x)) if self.gate is None else activate(self.gate(x)) * self.hidden(x)
        return self.output(self.dropout(hidden))


class DropPath(nn.Module):
    """Drops a residual branch for whole samples in training (Huang et al. 2016), and scales up those that stay."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"drop_path must be in [0, 1), got {rate}")
        self.rate = rate

    def extra_repr(self) -> str:
        return f"{self.rate}"

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.shape[0], *(1,) * (x.dim() - 1), device=x.device) >= self.rate
        return x * (keep / (1.0 - self.rate)).to(x.dtype)


class LayerScale(nn.Module):
    """A learned scale per channel of a residual branch (Touvron et al. 2021), which starts at ``initial``."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.dtype)


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each in a residual branch.

    Args:
        dim: channels.
        heads: attention heads.
        mlp_ratio: hidden channels of the feed-forward over dim.
        norm: "pre" normalizes the input of a branch, "post" the sum (as in Vaswani et al. 2017).
        dropout: on attention weights, on the hidden channels of the feed-forward and on both branches.
        drop_path: probability with which a branch is dropped for a sample.
        layer_scale: where the learned scale of the branches starts; None for none.
        activation: of the feed-forward, see ``FeedForward``.
        kv_heads, head_dim, bias, qk_norm, position, kernel: see ``MultiHeadAttention``. A ``position`` that is not a
            module is called to make one.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        norm: Literal["pre", "post"] = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        activation: str = "gelu",
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        position: Position = None,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
        self.norm = norm
        if position is not None and not isinstance(position, nn.Module):
            position = position()
        self.attention = MultiHeadAttention(
            dim, heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias, dropout=dropout, qk_norm=qk_norm,
            position=position, kernel=kernel,
        )  # fmt: skip
        self.feed_forward = FeedForward(dim, mlp_ratio=mlp_ratio, activation=activation, dropout=dropout, bias=bias)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention_branch = _branch(dim, dropout, drop_path, layer_scale)
        self.feed_forward_branch = _branch(dim, dropout, drop_path, layer_scale)

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """(batch, length, dim) to (batch, length, dim)."""
        if self.norm == "pre":
            x = x + self.attention_branch(self.attention(self.attention_norm(x), mask=mask))
            return x + self.feed_forward_branch(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.attention_branch(self.attention(x, mask=mask)))
        return self.feed_forward_norm(x + self.feed_forward_branch(self.feed_forward(x)))


class Encoder(nn.Module):
    """``depth`` transformer blocks, and a final norm when they are pre-norm.

    Args:
        dim, heads: see ``TransformerBlock``, as is every other keyword.
        depth: number of blocks.
        drop_path: of the last block; it grows linearly from 0 at the first.
    """

    def __init__(self, dim: int, heads: int, depth: int, *, drop_path: float = 0.0, **block: object) -> None:
        super().__init__()
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, drop_path=rate, **block)  # type: ignore[arg-type]
            for rate in rates
        )
        self.norm = nn.LayerNorm(dim) if block.get("norm", "pre") == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """(batch, length, dim) to (batch, length, dim)."""
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


def _branch(dim: int, dropout: float, drop_path: float, layer_scale: float | None) -> nn.Sequential:
    """What the output of a residual branch goes through before it is added."""
    layers: list[nn.Module] = []
    if layer_scale is not None:
        layers.append(LayerScale(dim, layer_scale))
    if dropout:
        layers.append(nn.Dropout(dropout))
    if drop_path:
        layers.append(DropPath(drop_path))
    return nn.Sequential(*layers)
