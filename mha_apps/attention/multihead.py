"""Multi-head attention: projections around a kernel.

The arithmetic is in ``kernel.py``, who may see whom in ``mask.py``, where things stand in ``position.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from . import kernel as kernels
from .mask import Causal, Mask, parse_mask

__all__ = ["MultiHeadAttention"]

KERNELS = ("auto", "explicit", "sdpa")


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2), grouped (Ainslie et al. 2023) with ``kv_heads``.

    Args:
        dim: channels of the input and of the output.
        heads: query heads.
        kv_heads: key and value heads, a divisor of ``heads``: 1 is multi-query attention. ``heads`` when left out.
        head_dim: channels of a head; ``dim / heads`` when left out.
        context_dim: channels of the keys' input; ``dim`` when left out.
        value_dim: channels of the values' input; ``context_dim`` when left out.
        bias: give the four projections a bias.
        dropout: probability with which a weight is dropped, in training only.
        qk_norm: normalize queries and keys per head (RMS).
        position: a module from ``position.py``.
        kernel: "auto", or the name of the kernel to use.

    Raises:
        ValueError: heads that do not divide dim or the like.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        context_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        qk_norm: bool = False,
        position: nn.Module | None = None,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if head_dim is None:
            if dim % heads:
                raise ValueError(f"dim {dim} is not a multiple of heads {heads}: pass head_dim")
            head_dim = dim // heads
        if heads % kv_heads:
            raise ValueError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
        context_dim = dim if context_dim is None else context_dim
        value_dim = context_dim if value_dim is None else value_dim
        self.dim, self.heads, self.kv_heads, self.head_dim = dim, heads, kv_heads, head_dim
        self.dropout, self.kernel, self.position = dropout, kernel, position
        self.query = nn.Linear(dim, heads * head_dim, bias=bias)
        self.key = nn.Linear(context_dim, kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(value_dim, kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(heads * head_dim, dim, bias=bias)
        self.query_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.recorder: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], None] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Variance 1 / fan-in, so that unit inputs give scores of unit variance; biases are zero."""
        for linear in (self.query, self.key, self.value, self.output):
            bound = (3.0 / linear.in_features) ** 0.5
            nn.init.uniform_(linear.weight, -bound, bound)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
            f"dropout={self.dropout}, kernel={self.kernel!r}"
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Attend from x to context.

        Args:
            x: queries' input, (batch, query_length, dim).
            context: keys' input, (batch, key_length, context_dim); x when left out.
            value: values' input, (batch, key_length, value_dim); context when left out.
            mask: a ``Mask``; a boolean tensor, True = may attend, (query, key) or 4-D; or a float tensor that is
                added to the scores.
            cache: keys and values of earlier calls.

        Returns:
            (batch, query_length, dim); queries that may attend to nothing get the output projection of zero.
        """
        parsed, bias = parse_mask(mask)
        context_given = context is not None
        context = x if context is None else context
        value = context if value is None else value
        causal = isinstance(parsed, Causal) and x.shape[1] == context.shape[1]
        allowed = None
        if parsed is not None:
            allowed = parsed.materialize(x.shape[1], context.shape[1], x.device, self.heads)
            seen = allowed.any(dim=2).any(dim=1).unsqueeze(-1)
            context, value = context.masked_fill(~seen, 0.0), value.masked_fill(~seen, 0.0)
            if not context_given:
                x = context
        query = self.query_norm(rearrange(self.query(x), "b l (h d) -> b h l d", h=self.heads))
        key = self.key_norm(rearrange(self.key(context), "b l (h d) -> b h l d", h=self.kv_heads))
        values = rearrange(self.value(value), "b l (h d) -> b h l d", h=self.kv_heads)
        if self.kv_heads != self.heads:
            key = key.repeat_interleave(self.heads // self.kv_heads, dim=1)
            values = values.repeat_interleave(self.heads // self.kv_heads, dim=1)
        if self.recorder is not None:
            self.recorder(query, key, allowed, bias)
        dropout = self.dropout if self.training else 0.0
        if self.kernel == "explicit":
            out = kernels.explicit(query, key, values, allowed, bias, dropout)
        else:
            out = kernels.sdpa(query, key, values, None if causal else allowed, bias, dropout, causal)
        return self.output(rearrange(out, "b h l d -> b l (h d)"))
