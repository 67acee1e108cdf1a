"""The ways to compute attention: functions of (batch, heads, length, head_dim) tensors that all take the same.

``explicit`` is the reference and gives the weights, ``sdpa`` is PyTorch's fused kernel, ``tiled`` (in ``tiled.py``)
computes the support of a mask only, under the names ``banded`` and ``strided``, and ``flex`` is FlexAttention on
CUDA. ``plan.py`` chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .compiled import tiles
from .mask import Causal, Grid, Mask, any_along
from .position import ScoreBias

__all__ = ["KERNELS", "attention_weights", "dense", "explicit", "flex", "sdpa", "sum_biases"]

Kernel = Callable[[Tensor, Tensor, Tensor, Mask | None, Sequence[ScoreBias], float], Tensor]


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(query key^T / sqrt(head_dim) + bias) over the allowed keys, in float32 at least.

    Args:
        query: (batch, heads, query_length, head_dim), as are the weights' first axes.
        key: (batch, heads, key_length, head_dim).
        mask: boolean, broadcasts to (batch, heads, query_length, key_length); True means 'may attend'.
        bias: added to the scores, of the mask's shape, finite.

    Returns:
        (batch, heads, query_length, key_length); a row that may attend to nothing is zero.
    """
    scores, nothing = _scores(query, key, mask, bias)
    weights = scores.softmax(dim=-1)
    return weights if nothing is None else weights.masked_fill(nothing, 0.0)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
) -> Tensor:
    """Matrix product, softmax, matrix product: O(query_length x key_length) memory, readable, the reference.

    NaN or Inf in a key or value that some queries may attend to and others may not makes the result of those that may
    NaN, and no other; it reaches no gradient of queries, keys and values, as long as all queries are finite.
    """
    dtype = query.dtype
    if dtype in HALF and not has_half_units(query.device):
        query, key, value = query.float(), key.float(), value.float()
    allowed, bias = dense(query, key, mask, biases)
    poisoned = None
    if allowed is not None:
        key, value, poisoned = _contain(key, value, allowed)
    scores, nothing = _scores(query, key, allowed, bias)
    weights = scores.softmax(dim=-1).to(value.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    out = weights @ value
    if nothing is not None:
        out = out.masked_fill(nothing, 0.0)
    if poisoned is not None:
        out = out.masked_fill(poisoned, float("nan"))
    return out.to(dtype)


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
) -> Tensor:
    """``F.scaled_dot_product_attention``, with zeros for rows that may attend to nothing."""
    dtype = query.dtype
    if dtype in HALF and not has_half_units(query.device) and torch.is_grad_enabled():
        # Without such units the backward pass in bfloat16 takes 3 to 9 times as long as that in float32.
        query, key, value = query.float(), key.float(), value.float()
        return sdpa(query, key, value, mask, biases, dropout).to(dtype)
    if not biases and (mask is None or is_plain_causal(mask, query.shape[2], key.shape[2])):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=mask is not None)
    allowed, bias = dense(query, key, mask, biases)
    added = None if bias is None else _in_range(bias, query.dtype)
    if allowed is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout)
    nothing = ~any_along(allowed, -1, keepdim=True)
    # A row without any key is NaN in some backends: let it see everything, and take the result away.
    allowed = allowed | nothing
    added = allowed if added is None else added.masked_fill(~allowed, float("-inf"))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout)
    return out.masked_fill(nothing, 0.0)


def flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
) -> Tensor:
    """FlexAttention (Dong et al. 2024): the mask and the biases are compiled into a fused CUDA kernel.

    On a CPU it runs uncompiled, forward only, which is of use to tests alone.

    Raises:
        ValueError: dropout, which FlexAttention does not have.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if dropout:
        raise ValueError(f"the flex kernel has no dropout, got {dropout}: use another kernel")
    lengths = query.shape[2], key.shape[2]
    if not (query.numel() and key.numel()):
        return explicit(query, key, value, mask, biases)
    heads_mask = None if mask is None else mask.for_heads(query.shape[1])

    def mask_mod(batch: Tensor, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        assert heads_mask is not None
        return heads_mask.allowed(Grid(query_index, key_index, *lengths, batch, head))

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        grid = Grid(query_index, key_index, *lengths, batch, head)
        for bias in biases:
            score = score + bias.read(grid)
        return score

    on_gpu = query.device.type == "cuda"
    block_mask = None
    if mask is not None:
        make = torch.compile(create_block_mask) if on_gpu else create_block_mask
        block_mask = make(mask_mod, query.shape[0], query.shape[1], *lengths, device=query.device.type)
    run = torch.compile(flex_attention) if on_gpu else flex_attention
    return run(query, key, value, score_mod=score_mod if biases else None, block_mask=block_mask)


KERNELS: dict[str, Kernel] = {
    "explicit": explicit, "sdpa": sdpa, "banded": tiles, "strided": tiles, "flex": flex,
}  # fmt: skip

HALF = (torch.float16, torch.bfloat16)
CPU_HAS_BF16_UNITS = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def is_plain_causal(mask: Mask, query_length: int, key_length: int) -> bool:
    """Whether the mask is what ``is_causal`` means, which is aligned to the upper left corner."""
    return isinstance(mask, Causal) and query_length == key_length


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Masked scores, and which rows have nothing to attend to (their scores are finite all the same)."""
    # Scaling the query before the product keeps float16 from overflowing where the scaled score would not.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    scores = scores.float() if scores.dtype in HALF else scores
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return scores, None
    nothing = ~any_along(mask, -1, keepdim=True)
    return scores.masked_fill(~(mask | nothing), float("-inf")), nothing


def sum_biases(biases: Sequence[ScoreBias], grid: Grid) -> Tensor | None:
    """The sum of the biases on a grid, broadcasting to (batch, heads, *grid)."""
    total: Tensor | None = None
    for bias in biases:
        total = bias.read(grid) if total is None else total + bias.read(grid)
    return total


def dense(
    query: Tensor, key: Tensor, mask: Mask | None, biases: Sequence[ScoreBias]
) -> tuple[Tensor | None, Tensor | None]:
    """The mask and the sum of the biases, broadcasting to (batch, heads, query_length, key_length)."""
    size = query.shape[2], key.shape[2], query.device
    allowed = None if mask is None else mask.materialize(*size, query.shape[1])
    return allowed, sum_biases(biases, Grid.of_all(*size))


def _in_range(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype in which finite numbers stay finite, as the least of float32 would not in float16."""
    largest = min(torch.finfo(x.dtype).max, torch.finfo(dtype).max)
    return x if x.dtype == dtype else x.clamp(-largest, largest).to(dtype)


def _contain(key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values with NaN and Inf taken out, and which queries may attend to one of those.

    A weight of zero does not keep NaN out of a product, in either direction.
    """
    finite = key.isfinite().all(dim=-1) & value.isfinite().all(dim=-1)  # (batch, heads, key_length)
    looking_is_free = key.device.type == "cpu" and not torch.compiler.is_compiling()
    if looking_is_free and bool(finite.all()):
        return key, value, None
    poisoned = (allowed & ~finite.unsqueeze(2)).any(dim=-1, keepdim=True)
    taken_out = ~finite.unsqueeze(-1)
    return key.masked_fill(taken_out, 0.0), value.masked_fill(taken_out, 0.0), poisoned


def has_half_units(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices are fast there: on CPUs they are emulated without such units."""
    return device.type != "cpu" or CPU_HAS_BF16_UNITS
