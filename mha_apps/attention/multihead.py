"""Multi-head attention: projections around a kernel.

The arithmetic is in ``kernel.py``, who may see whom in ``mask.py``, where things stand in ``position.py``, and the
choice of the kernel in ``plan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from .cache import Cache
from .kernel import KERNELS
from .mask import Dense, Grid, Mask, parse_mask
from .plan import Plan, choose
from .position import Position, ScoreBias, TensorBias, in_full

__all__ = ["MultiHeadAttention"]

#: Gets query, key, mask, biases, and the absolute positions of queries (query_length,) and keys (key_length,).
Recorder = Callable[[Tensor, Tensor, Mask | None, Sequence[ScoreBias], Tensor, Tensor], None]


# Projections of one tensor become one product from this many rows per input channel on: it saves reading the rows
# again, and costs a copy of the weights.
PACKED_FROM = 4


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2); grouped (Ainslie et al. 2023) with ``kv_heads``.

    Args:
        dim: channels of the input and of the output.
        heads: query heads.
        kv_heads: key and value heads, a divisor of ``heads``; 1 is multi-query attention. ``heads`` by default.
        head_dim: channels of a head; ``dim / heads`` by default.
        context_dim: channels of the keys' input; ``dim`` by default.
        value_dim: channels of the values' input; ``context_dim`` by default.
        bias: give the four projections a bias.
        dropout: probability with which a weight is dropped, in training only.
        qk_norm: normalize queries and keys per head (RMS; Henry et al. 2020).
        position: ``Rotary``, ``RelativeBias`` or ``ALiBi``.
        kernel: "auto" for the fastest, or "explicit", "sdpa", "banded", "strided" or "flex" for that one. Banded
            and strided are two names of the tiled kernel, which takes every mask.

    Raises:
        ValueError: heads that do not divide dim, kv_heads that do not divide heads, or an unknown kernel.
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
        position: Position | None = None,
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
        if kernel != "auto" and kernel not in KERNELS:
            raise ValueError(f"kernel must be auto or one of {', '.join(KERNELS)}, got {kernel!r}")
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
        #: Called with what the kernel is about to get, except values; see ``record_attention``.
        self.recorder: Recorder | None = None
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
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend from x to context.

        NaN or Inf at a position that no query may attend to reaches no output and no gradient: it is replaced by
        zero before the projections, in self-attention also as a query. With a cache that holds for padding alone:
        what no query of this call may attend to, one of a later call may. Padding is what ``Padding`` says, or a
        tensor of one row for several queries. For a key that some queries may attend to and others may not, the
        explicit kernel keeps it from the output of those that may not; other kernels do not promise it, and none
        keeps it from gradients, since those of the projections are sums over all tokens.

        Args:
            x: queries' input, (batch, query_length, dim).
            context: keys' input, (batch, key_length, context_dim); x by default.
            value: values' input, (batch, key_length, value_dim); context by default.
            mask: a ``Mask``; a boolean tensor, True = may attend, (query, key) or 4-D; or a float tensor that is
                added to the scores, where -inf hides.
            cache: keys and values of earlier calls, to which this call's are appended. Needs a causal mask.

        Returns:
            (batch, query_length, dim); queries that may attend to nothing get the output projection of zero.

        Raises:
            ValueError: a mask of wrong type or shape; a cache without a causal mask.
        """
        start = 0 if cache is None else cache.layer_length(self)
        query_length, key_length = x.shape[1], start + (x if context is None else context).shape[1]
        biases: Sequence[ScoreBias]
        mask, biases = self._mask_and_biases(mask, x.shape[0], query_length, key_length)
        x, context, value = without_unseen(x, context, value, mask, key_length, more_to_come=cache is not None)
        query, key, values = self._project(x, context, value, key_length, cache is None)
        position: Tensor | None = None
        if cache is not None:
            key, values, position = cache.extend(self, key, values, mask)
            mask, biases = _at_kept(position, mask, biases, query_length, key_length, self.heads)
        if self.kv_heads != self.heads:
            key, values = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (key, values))
        if self.recorder is not None:
            own = _last(query_length, key_length, x.device)
            every = _last(key_length, key_length, x.device) if position is None else position
            self.recorder(query, key, mask, biases, own, every)
        kernel = self._plan(query, key, mask, biases).kernel
        out = KERNELS[kernel](query, key, values, mask, biases, self.dropout if self.training else 0.0)
        return self.output(rearrange(out, "b h l d -> b l (h d)"))

    def plan(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | Tensor | None = None) -> Plan:
        """Which kernel ``forward`` would use for these inputs; printed, it says why in a sentence."""
        key_length = (x if context is None else context).shape[1]
        mask, biases = self._mask_and_biases(mask, x.shape[0], x.shape[1], key_length)
        query = x.new_empty(x.shape[0], self.heads, x.shape[1], 0)
        return self._plan(query, x.new_empty(x.shape[0], self.heads, key_length, 0), mask, biases)

    def _plan(self, query: Tensor, key: Tensor, mask: Mask | None, biases: Sequence[ScoreBias]) -> Plan:
        if self.kernel != "auto":
            return Plan(self.kernel, "asked for")
        training = torch.is_grad_enabled()
        dropout = self.dropout if self.training else 0.0
        shape = (*query.shape[:3], key.shape[2])
        return choose(shape, query.device, query.dtype, mask, biases, dropout, training)

    def _mask_and_biases(
        self, mask: Mask | Tensor | None, batch: int, query_length: int, key_length: int
    ) -> tuple[Mask | None, list[ScoreBias]]:
        parsed, added = parse_mask(mask, (batch, self.heads, query_length, key_length))
        biases: list[ScoreBias] = [] if added is None else [TensorBias(in_full(added))]
        bias = None if self.position is None else self.position.score_bias(query_length, key_length)
        return parsed, biases if bias is None else [*biases, bias]

    def _project(
        self, x: Tensor, context: Tensor, value: Tensor, key_length: int, many: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        projected = _in_few_products((self.query, self.key, self.value), (x, context, value), many)
        query, key, values = (rearrange(y, "b l (h d) -> b h l d", d=self.head_dim) for y in projected)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.position is not None:
            query = self.position.rotate(query, _last(x.shape[1], key_length, x.device))
            key = self.position.rotate(key, _last(context.shape[1], key_length, x.device))
        return query, key, values


def _in_few_products(linears: Sequence[nn.Module], inputs: Sequence[Tensor], many: bool) -> list[Tensor]:
    """Each linear of its input; neighbours that read the very same tensor share one matrix product.

    Whatever is not a plain ``nn.Linear`` without hooks (an adapter, a quantized layer) is called as the module it is.

    Args:
        many: whether there may be enough rows for that to pay: no in decoding step by step.
    """
    outputs: list[Tensor] = []
    while len(outputs) < len(linears):
        first = len(outputs)
        source, last = inputs[first], first + 1
        while last < len(linears) and inputs[last] is source:
            last += 1
        group = linears[first:last]
        if many and last - first > 1 and _enough_rows(source) and _packable(group):
            weights: list[Tensor] = [y.weight for y in group]
            biases: list[Tensor] = [y.bias for y in group]
            packed = F.linear(source, torch.cat(weights), None if biases[0] is None else torch.cat(biases))
            outputs += packed.split([len(weight) for weight in weights], dim=-1)
        else:
            outputs += [linear(source) for linear in group]
    return outputs


def _enough_rows(x: Tensor) -> bool:
    # A graph stays valid for every batch size and length: nothing in it may depend on their product.
    return torch.compiler.is_compiling() or x.shape[:-1].numel() >= PACKED_FROM * x.shape[-1]


def _packable(linears: Sequence[nn.Module]) -> TypeGuard[Sequence[nn.Linear]]:
    """Whether calling these modules does nothing but one product each, of matrices that can be joined."""
    if _has_any_global_hook() or torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        return False
    first = linears[0]
    return all(
        type(linear) is nn.Linear
        and "forward" not in vars(linear)
        and not (linear._forward_hooks or linear._forward_pre_hooks)
        and not (linear._backward_hooks or linear._backward_pre_hooks)
        and type(linear.weight) in (nn.Parameter, Tensor)
        and (linear.bias is None) == (first.bias is None)
        and (linear.weight.dtype, linear.weight.device) == (first.weight.dtype, first.weight.device)
        for linear in linears
    )


def without_unseen(
    x: Tensor,
    context: Tensor | None,
    value: Tensor | None,
    mask: Mask | None,
    key_length: int,
    *,
    more_to_come: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs with zeros where nothing may look; ``where`` stops NaN in both directions, a product would not.

    Args:
        more_to_come: whether queries of later calls will look at these keys too, so that only padding is hidden.
    """
    own = x if context is None else context
    if mask is None:
        return x, own, own if value is None else value
    size = x.shape[1], key_length, x.device
    seen = mask.real(*size) if more_to_come else mask.seen(*size)
    if seen is None:
        return x, own, own if value is None else value
    seen = seen[:, key_length - own.shape[1] :].unsqueeze(-1)
    keys = torch.where(seen, own, 0.0)
    values = keys if value is None else torch.where(seen, value, 0.0)
    if context is not None:
        return x, keys, values
    if more_to_come or mask.key_only(x.shape[1]):
        return keys, keys, values
    # Padding is no query either. A real token that nothing looks at may look at others, unless it is broken.
    real = mask.real(*size)
    query = x if real is None else torch.where(real.unsqueeze(-1), x, 0.0)
    return torch.where(seen | query.isfinite(), query, 0.0), keys, values


def _last(length: int, total: int, device: torch.device) -> Tensor:
    """The last ``length`` of ``total`` positions."""
    return torch.arange(-length, 0, device=device) + total


def _at_kept(
    position: Tensor,
    mask: Mask | None,
    biases: Sequence[ScoreBias],
    query_length: int,
    key_length: int,
    heads: int,
) -> tuple[Mask | None, Sequence[ScoreBias]]:
    """The mask and biases for the keys that a cache still holds, at their absolute positions."""
    if len(position) == key_length or mask is None:
        return mask, biases
    query = torch.arange(query_length, device=position.device)
    grid = Grid(query.unsqueeze(1), position.unsqueeze(0), query_length, key_length)
    kept = Dense(mask.at(query, position, query_length, key_length, heads))
    read = (bias.read(grid) for bias in biases)
    return kept, [TensorBias(bias if bias.dim() != 3 else bias.unsqueeze(0)) for bias in read]
