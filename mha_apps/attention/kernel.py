"""The ways to compute attention: pure functions on (batch, heads, length, head_dim) tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attention_weights", "explicit", "sdpa"]


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(query key^T / sqrt(head_dim) + bias) over the allowed keys, in float32 at least.

    Args:
        query: (batch, heads, query_length, head_dim), as are the weights' first axes.
        key: (batch, heads, key_length, head_dim).
        mask: boolean, broadcasts to (batch, heads, query_length, key_length); True means 'may attend'.
        bias: added to the scores, of the mask's shape.

    Returns:
        (batch, heads, query_length, key_length); a row that may attend to nothing is zero.
    """
    # Scaling the query before the product keeps float16 from overflowing on scores that the scale makes harmless.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if bias is not None:
        scores = scores + bias
    if mask is None and bias is None:
        return scores.softmax(dim=-1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    nothing = (scores == float("-inf")).all(dim=-1, keepdim=True)
    return scores.masked_fill(nothing, 0.0).softmax(dim=-1).masked_fill(nothing, 0.0)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Matrix product, softmax, matrix product: O(query_length x key_length) memory, readable, the reference."""
    weights = attention_weights(query, key, mask, bias).to(value.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ value


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``, with zeros for rows that may attend to nothing."""
    if bias is None and mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    if bias is None:
        added, nothing = mask, ~mask.any(dim=-1, keepdim=True)  # type: ignore[union-attr]
    else:
        added = bias.to(query.dtype)
        if mask is not None:
            added = added.masked_fill(~mask, float("-inf"))
        nothing = (added == float("-inf")).all(dim=-1, keepdim=True)
    # A row without any key is NaN in some backends: let it see everything, and take the result away.
    added = added | nothing if added.dtype == torch.bool else added.masked_fill(nothing, 0.0)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout)
    return out.masked_fill(nothing, 0.0)
