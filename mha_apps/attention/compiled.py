"""The tiled kernel as one operator, for ``torch.compile``.

Its loops over tiles are plain Python, which a compiler would unroll for one length. As an operator it stays whole at
any length. Operators take tensors and numbers only, so a mask travels as a program in prefix notation, numbers in one
list and tensors in another, and is put together again inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .mask import (
    And,
    Causal,
    Dense,
    Dilated,
    Global,
    Mask,
    Not,
    Or,
    Padding,
    PerHead,
    Segments,
    Strided,
    Window,
    Window2d,
)
from .position import ClippedDistance, Distance, GridDistance, ScoreBias, TableBias, TensorBias
from .tiled import tiled, tiled_backward, tiled_forward

__all__ = ["decode", "encode", "tiles"]

# Kinds of nodes, by their place here; the names of their numbers, in order.
NUMBERS: dict[type[Mask], tuple[str, ...]] = {
    Causal: (),
    Window: ("left", "right"),
    Strided: ("step",),
    Dilated: ("window", "dilation"),
    Window2d: ("rows", "cols", "height", "width", "shift", "prefix"),
}
TENSORS: dict[type[Mask], tuple[str, ...]] = {
    Padding: ("real_keys",),
    Segments: ("query_ids", "key_ids"),
    Dense: ("mask",),
}
KINDS: list[type[Mask]] = [*NUMBERS, *TENSORS, And, Or, Not, Global, PerHead]
ENTRIES: dict[type, tuple[str, ...]] = {
    Distance: (),
    ClippedDistance: ("limit",),
    GridDistance: ("columns", "row_reach", "column_reach", "prefix"),
}


def encode(mask: Mask | None, biases: Sequence[ScoreBias]) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """(program, the mask's tensors, the biases' tensors)."""
    program: list[int] = []
    tensors: list[Tensor] = []
    program.append(0 if mask is None else 1)
    if mask is not None:
        _encode_mask(mask, program, tensors)
    for bias in biases:
        if isinstance(bias, TableBias):
            entry: Any = bias.entry
            numbers = ENTRIES[type(entry)]
            program += [list(ENTRIES).index(type(entry)), *(getattr(entry, name) for name in numbers)]
        else:
            program.append(len(ENTRIES))
    return program, tensors, [bias.tensor for bias in biases]


def _encode_mask(mask: Mask, program: list[int], tensors: list[Tensor]) -> None:
    kind: Any = type(mask)
    program.append(KINDS.index(kind))
    if kind in NUMBERS:
        program += [getattr(mask, name) for name in NUMBERS[kind]]
    elif kind in TENSORS:
        tensors += [getattr(mask, name) for name in TENSORS[kind]]
    elif isinstance(mask, Global):
        program += [len(mask.tokens), *mask.tokens]
    elif isinstance(mask, Not):
        _encode_mask(mask.mask, program, tensors)
    elif isinstance(mask, PerHead):
        program += [len(mask.masks), mask.heads]
        for part in mask.masks:
            _encode_mask(part, program, tensors)
    elif isinstance(mask, And | Or):
        _encode_mask(mask.first, program, tensors)
        _encode_mask(mask.second, program, tensors)


def decode(
    program: Sequence[int], tensors: Sequence[Tensor], bias_tensors: Sequence[Tensor]
) -> tuple[Mask | None, list[ScoreBias]]:
    """The inverse of ``encode``."""
    numbers, held = iter(program), iter(tensors)
    mask = _decode_mask(numbers, held) if next(numbers) else None
    biases: list[ScoreBias] = []
    for tensor in bias_tensors:
        kind = next(numbers)
        if kind == len(ENTRIES):
            biases.append(TensorBias(tensor))
            continue
        entry = list(ENTRIES)[kind]
        made = entry(*(next(numbers) for _ in ENTRIES[entry]))
        biases.append(TableBias(tensor, made, relative=entry is not GridDistance))
    return mask, biases


def _decode_mask(numbers: Iterator[int], tensors: Iterator[Tensor]) -> Mask:
    kind: Any = KINDS[next(numbers)]
    if kind in NUMBERS:
        return kind(*(next(numbers) for _ in NUMBERS[kind]))
    if kind in TENSORS:
        return kind(*(next(tensors) for _ in TENSORS[kind]))
    if kind is Global:
        return Global([next(numbers) for _ in range(next(numbers))])
    if kind is Not:
        return Not(_decode_mask(numbers, tensors))
    if kind is PerHead:
        count, heads = next(numbers), next(numbers)
        return PerHead([_decode_mask(numbers, tensors) for _ in range(count)], heads)
    return kind(_decode_mask(numbers, tensors), _decode_mask(numbers, tensors))


def tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
) -> Tensor:
    """``tiled``, as one operator where a graph is being compiled."""
    if not torch.compiler.is_compiling():
        return tiled(query, key, value, mask, biases, dropout)
    program, tensors, bias_tensors = encode(mask, biases)
    seed = torch.randint(2**62, (1,))
    return _forward(query, key, value, bias_tensors, tensors, program, dropout, seed)[0]


@torch.library.custom_op("mha_apps::tiled", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_tensors: list[Tensor],
    tensors: list[Tensor],
    program: list[int],
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    mask, biases = decode(program, tensors, bias_tensors)
    return tiled_forward(query, key, value, mask, biases, dropout, int(seed))


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, heads, length, _ = query.shape
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    return out, query.new_empty(batch, heads, length, 1, dtype=exact)


@torch.library.custom_op("mha_apps::tiled_backward", mutates_args=())
def _backward(
    grad: Tensor,
    out: Tensor,
    log_total: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_tensors: list[Tensor],
    tensors: list[Tensor],
    program: list[int],
    dropout: float,
    seed: Tensor,
) -> list[Tensor]:
    mask, biases = decode(program, tensors, bias_tensors)
    learned = [True] * len(biases)
    grads = tiled_backward(grad, query, key, value, out, log_total, mask, biases, dropout, int(seed), learned)
    return [g for g in grads if g is not None]


@_backward.register_fake
def _(grad: Tensor, out: Tensor, log_total: Tensor, *inputs: Any) -> list[Tensor]:
    query, key, value, bias_tensors, *_ = inputs
    return [x.new_empty(x.shape) for x in (query, key, value, *bias_tensors)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bias_tensors, tensors, program, dropout, seed = inputs
    ctx.save_for_backward(query, key, value, *output, seed, *bias_tensors, *tensors)
    ctx.settings = len(bias_tensors), program, dropout


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    count, program, dropout = ctx.settings
    query, key, value, out, log_total, seed, *rest = ctx.saved_tensors
    grads = _backward(grad, out, log_total, query, key, value, rest[:count], rest[count:], program, dropout, seed)
    return *grads[:3], grads[3:], [None] * (len(rest) - count), None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)
