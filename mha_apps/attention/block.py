"""Transformer blocks around the attention module, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import Cache
from .mask import Causal, Dense, Mask
from .multihead import MultiHeadAttention, without_unseen
from .position import Position

__all__ = ["Decoder", "Encoder", "FeedForward", "TransformerBlock"]

PositionLike = Position | Callable[[], Position] | None
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer)
    "silu": F.silu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers around an activation; "swiglu" gates (Shazeer 2020) at the same number of parameters.

    Args:
        dim: channels in and out.
        mlp_ratio: hidden channels over dim. SwiGLU has two thirds of them, rounded up to a multiple of 8, since
            it has three matrices.
        activation: "gelu", "relu", "relu2" (squared), "silu" or "swiglu".
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
    """Drops a residual branch for whole samples in training (Huang et al. 2016); those that stay are scaled up."""

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
    """Self-attention, cross-attention where there is a context, and feed-forward, each in a residual branch.

    Args:
        dim: channels.
        heads: attention heads.
        mlp_ratio: hidden channels of the feed-forward over dim.
        norm: "pre" normalizes the input of a branch, "post" the sum (as in Vaswani et al. 2017).
        dropout: on attention weights, on the hidden channels of the feed-forward and on the branches.
        drop_path: probability with which a branch is dropped for a sample.
        layer_scale: where the learned scale of the branches starts; None for none.
        activation: of the feed-forward, see ``FeedForward``.
        context_dim: channels of the context of a cross-attention; None for a block without one.
        kv_heads, head_dim, bias, qk_norm, position, kernel: see ``MultiHeadAttention``. A ``position`` that is not
            a module is called to make one. The cross-attention has none.
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
        context_dim: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        qk_norm: bool = False,
        position: PositionLike = None,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
        self.norm = norm
        if position is not None and not isinstance(position, Position):
            position = position()
        options: dict[str, Any] = dict(
            kv_heads=kv_heads, head_dim=head_dim, bias=bias, dropout=dropout, qk_norm=qk_norm, kernel=kernel
        )
        branch = (dim, dropout, drop_path, layer_scale)
        self.attention = MultiHeadAttention(dim, heads, position=position, **options)
        self.attention_norm, self.attention_branch = nn.LayerNorm(dim), _branch(*branch)
        self.cross_attention: MultiHeadAttention | None = None
        if context_dim is not None:
            self.cross_attention = MultiHeadAttention(dim, heads, context_dim=context_dim, **options)
            self.cross_attention_norm, self.cross_attention_branch = nn.LayerNorm(dim), _branch(*branch)
        self.feed_forward = FeedForward(dim, mlp_ratio=mlp_ratio, activation=activation, dropout=dropout, bias=bias)
        self.feed_forward_norm, self.feed_forward_branch = nn.LayerNorm(dim), _branch(*branch)

    def forward(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        *,
        context: Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(batch, length, dim) to (batch, length, dim); ``context_mask`` is that of the cross-attention."""
        x = self._add(x, "attention", lambda y: self.attention(y, mask=mask, cache=cache))
        if self.cross_attention is not None:
            if context is None:
                raise ValueError("this block has a cross-attention: pass context")
            cross = self.cross_attention
            x = self._add(x, "cross_attention", lambda y: cross(y, context, mask=context_mask))
        return self._add(x, "feed_forward", self.feed_forward)

    def _add(self, x: Tensor, name: str, layer: Callable[[Tensor], Tensor]) -> Tensor:
        norm, branch = getattr(self, f"{name}_norm"), getattr(self, f"{name}_branch")
        if self.norm == "pre":
            return x + branch(layer(norm(x)))
        return norm(x + branch(layer(x)))


class Encoder(nn.Module):
    """``depth`` transformer blocks, and a final norm when they are pre-norm.

    Args:
        dim, heads: see ``TransformerBlock``, as is every other keyword.
        depth: number of blocks.
        drop_path: of the last block; it grows linearly from 0 at the first.
    """

    def __init__(self, dim: int, heads: int, depth: int, *, drop_path: float = 0.0, **block: Any) -> None:
        super().__init__()
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, drop_path=rate, **block) for rate in rates)
        self.norm = nn.LayerNorm(dim) if block.get("norm", "pre") == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None, *, cache: Cache | None = None) -> Tensor:
        """(batch, length, dim) to (batch, length, dim).

        Positions that the mask hides from every query are zeroed on entry, so that NaN there goes no further.
        """
        x = _hide(x, mask, cache, self.blocks)
        for block in self.blocks:
            x = block(x, mask, cache=cache)
        return self.norm(x)


class Decoder(nn.Module):
    """``depth`` blocks of causal self-attention, cross-attention to a context, and feed-forward.

    Args:
        dim, heads: see ``TransformerBlock``, as is every other keyword.
        depth: number of blocks.
        context_dim: channels of the context; ``dim`` by default.
        drop_path: of the last block; it grows linearly from 0 at the first.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        depth: int,
        *,
        context_dim: int | None = None,
        drop_path: float = 0.0,
        **block: Any,
    ) -> None:
        super().__init__()
        context_dim = dim if context_dim is None else context_dim
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, drop_path=rate, context_dim=context_dim, **block) for rate in rates
        )
        self.norm = nn.LayerNorm(dim) if block.get("norm", "pre") == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(batch, length, dim) and (batch, context_length, context_dim) to (batch, length, dim).

        ``mask`` narrows the causal self-attention further, ``context_mask`` is that of the cross-attention.
        """
        if mask is None or isinstance(mask, Mask):
            narrowed = Causal() if mask is None else Causal() & mask
        elif mask.dtype == torch.bool:
            narrowed = Causal() & Dense(mask)
        else:
            raise ValueError(f"a decoder's mask is a Mask or a boolean tensor, got {mask.dtype}")
        x = _hide(x, narrowed, cache, self.blocks)
        for block in self.blocks:
            x = block(x, narrowed, context=context, context_mask=context_mask, cache=cache)
        return self.norm(x)


def _hide(x: Tensor, mask: Mask | Tensor | None, cache: Cache | None, blocks: Iterable[Any]) -> Tensor:
    """Zeros where the mask hides a position from every query, see ``MultiHeadAttention.forward``."""
    attention = next((block.attention for block in blocks), None)
    if mask is None or attention is None:
        return x
    if isinstance(mask, Tensor):
        mask = Dense(mask != float("-inf") if mask.dtype.is_floating_point else mask)
    key_length = x.shape[1] + (0 if cache is None else cache.layer_length(attention))
    mask.check((x.shape[0], attention.heads, x.shape[1], key_length))
    return without_unseen(x, None, None, mask, key_length, more_to_come=cache is not None)[0]


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
