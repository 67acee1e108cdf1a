"""Weights and masks from and to ``torch.nn.MultiheadAttention``.

Its boolean masks are True where a query may *not* look, the opposite of ours and of
``F.scaled_dot_product_attention``; this module is the only place that knows. ``replace.py`` builds on it to put the
core into other people's models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .mask import Causal, Dense, Mask, Padding
from .multihead import MultiHeadAttention

__all__ = ["from_torch", "mask_from_torch", "to_torch"]


def from_torch(host: nn.MultiheadAttention, *, kernel: str = "auto") -> MultiHeadAttention:
    """A ``MultiHeadAttention`` with a copy of the weights, the dropout and the mode of an ``nn.MultiheadAttention``.

    It is always batch first: transpose inputs where the host was not.

    Args:
        host: the module to copy; ``kdim`` and ``vdim`` become ``context_dim`` and ``value_dim``.
        kernel: see ``MultiHeadAttention``.

    Raises:
        ValueError: ``add_bias_kv`` or ``add_zero_attn``, which add a key that no position has; weights that are
            parametrized; a dropout of 1.
    """
    reason = why_not_torch(host)
    if reason is not None:
        raise ValueError(f"cannot convert {type(host).__name__}: {reason}")
    bias = host.in_proj_bias
    if host.in_proj_weight is not None:
        layers = split(host.in_proj_weight, bias)
    else:
        weights = (host.q_proj_weight, host.k_proj_weight, host.v_proj_weight)
        layers = [linear(w, b) for w, b in zip(weights, thirds(bias), strict=True)]
    output = linear(host.out_proj.weight, host.out_proj.bias)
    core = assemble(layers, output, heads=host.num_heads, dropout=host.dropout, kernel=kernel)
    return core.train(host.training)


def to_torch(attention: MultiHeadAttention, *, batch_first: bool = True) -> nn.MultiheadAttention:
    """An ``nn.MultiheadAttention`` with a copy of the weights, the dropout and the mode; inverse of ``from_torch``.

    Args:
        attention: the module to copy. A bias that only some of its projections have is zero in the others.
        batch_first: the layout of the result's inputs.

    Raises:
        ValueError: what the result could not compute: grouped heads, a head_dim other than dim / heads, normalized
            queries and keys, or positions.
    """
    dim, heads = attention.dim, attention.heads
    projections = (attention.query, attention.key, attention.value)
    obstacles = {
        f"kv_heads {attention.kv_heads} of heads {heads}": attention.kv_heads != heads,
        f"head_dim {attention.head_dim} where dim / heads is {dim / heads:g}": attention.head_dim * heads != dim,
        "qk_norm": not isinstance(attention.query_norm, nn.Identity),
        "a position": attention.position is not None,
        "an output that is no linear layer": not isinstance(attention.output, nn.Linear),
    }
    found = [what for what, there in obstacles.items() if there]
    if found:
        raise ValueError(f"nn.MultiheadAttention has no {', no '.join(found)}: to_torch cannot convert this module")
    layers = (*projections, attention.output)
    has_bias = any(layer.bias is not None for layer in layers)
    weight = attention.query.weight
    host = nn.MultiheadAttention(
        dim, heads, dropout=attention.dropout, bias=has_bias, batch_first=batch_first,
        kdim=attention.key.in_features, vdim=attention.value.in_features, device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    with torch.no_grad():
        if host.in_proj_weight is not None:
            host.in_proj_weight.copy_(torch.cat(tuple(layer.weight for layer in projections)))
        else:
            targets = (host.q_proj_weight, host.k_proj_weight, host.v_proj_weight)
            for target, layer in zip(targets, projections, strict=True):
                target.copy_(layer.weight)
        host.out_proj.weight.copy_(attention.output.weight)
        if has_bias:
            biases: list[Tensor] = [
                layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
            ]
            host.in_proj_bias.copy_(torch.cat(biases[:3]))
            host.out_proj.bias.copy_(biases[3])
    return host.train(attention.training)


def mask_from_torch(
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    *,
    heads: int | None = None,
    is_causal: bool = False,
) -> Mask | Tensor | None:
    """The masks of an ``nn.MultiheadAttention`` call as one mask for ``MultiHeadAttention``.

    Boolean masks become ``Padding`` and ``Dense``, joined by ``&``. So do float masks that hold only 0 and -inf,
    which is how ``nn.TransformerEncoder`` hands boolean ones on (looked at outside ``torch.compile`` only, and never
    where the mask is learned). Other float masks are added to the scores, with -inf for what a boolean one forbids.

    Args:
        key_padding_mask: (batch, key_length), or (key_length,) for a call without a batch. True or -inf: padding.
        attn_mask: (query_length, key_length) or (batch * heads, query_length, key_length). True or -inf: forbidden.
        heads: needed for an attn_mask of three axes.
        is_causal: the promise that attn_mask is the causal one. It is taken at its word where query and key length
            are equal, so that attn_mask is not looked at and may be left out.

    Returns:
        a ``Mask``; a float tensor that is added to the scores; or None where nothing is masked.

    Raises:
        ValueError: masks of wrong dtype or number of axes, or a first axis that is not batch * heads.
    """
    allowed, added = _padding(key_padding_mask)
    if is_causal and (attn_mask is None or attn_mask.shape[-2] == attn_mask.shape[-1]) and added is None:
        return Causal() if allowed is None else Causal() & allowed
    if is_causal and attn_mask is None:
        assert added is not None
        attn_mask = torch.ones(added.shape[-1], added.shape[-1], dtype=torch.bool, device=added.device).triu(1)
    pairs_allowed, pairs_added = _pairs(attn_mask, heads)
    if added is None and pairs_added is None:
        if allowed is None or pairs_allowed is None:
            return pairs_allowed if allowed is None else allowed
        return pairs_allowed & allowed
    total = added if pairs_added is None else pairs_added if added is None else added + pairs_added
    assert total is not None
    for part in (allowed, pairs_allowed):
        if isinstance(part, Padding):
            total = total.masked_fill(~part.real_keys[:, None, None, :], float("-inf"))
        elif isinstance(part, Dense):
            total = total.masked_fill(~part.mask, float("-inf"))
    return total


def why_not_torch(host: nn.MultiheadAttention) -> str | None:
    """What keeps the core from computing what this module does, if anything."""
    if hasattr(host, "parametrizations") or hasattr(host.out_proj, "parametrizations"):
        return "its weights are parametrized: remove the parametrization first"
    if host.bias_k is not None or host.bias_v is not None:
        return "add_bias_kv adds a learned key and value that stand at no position"
    if host.add_zero_attn:
        return "add_zero_attn adds a key and value of zeros that stand at no position"
    return why_not_dropout(host.dropout)


def why_not_dropout(dropout: float) -> str | None:
    return None if dropout < 1.0 else f"a dropout of {dropout:g} leaves nothing"


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with a copy of these tensors, trained where they are."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


def split(weight: Tensor, bias: Tensor | None) -> list[nn.Linear]:
    """The layers for queries, keys and values that are packed in one weight, (3 * out, in)."""
    return [linear(w, b) for w, b in zip(thirds(weight), thirds(bias), strict=True)]


def thirds(packed: Tensor | None) -> list[Any]:
    if packed is None:
        return [None] * 3
    return [part.detach().requires_grad_(packed.requires_grad) for part in packed.chunk(3)]


def assemble(
    projections: Sequence[nn.Linear],
    output: nn.Module,
    *,
    heads: int,
    dropout: float,
    kernel: str = "auto",
) -> MultiHeadAttention:
    """A ``MultiHeadAttention`` around these layers for queries, keys, values and the output.

    No random number is drawn.
    """
    query, key, value = projections
    with torch.device("meta"):
        core = MultiHeadAttention(
            query.in_features, heads, head_dim=query.out_features // heads, context_dim=key.in_features,
            value_dim=value.in_features, dropout=dropout, kernel=kernel,
        )  # fmt: skip
    core.query, core.key, core.value = query, key, value
    core.output = output  # type: ignore[assignment]
    return core


def _padding(mask: Tensor | None) -> tuple[Padding | None, Tensor | None]:
    """key_padding_mask as (which keys are real, what is added to the scores)."""
    if mask is None:
        return None, None
    if mask.dim() not in (1, 2):
        raise ValueError(f"key_padding_mask is (batch, key_length) or (key_length,), got shape {tuple(mask.shape)}")
    mask = mask.unsqueeze(0) if mask.dim() == 1 else mask
    forbidden = _forbidden(mask, "key_padding_mask")
    return (None, mask[:, None, None, :]) if forbidden is None else (Padding(~forbidden), None)


def _pairs(mask: Tensor | None, heads: int | None) -> tuple[Dense | None, Tensor | None]:
    """attn_mask as (which pairs are allowed, what is added to the scores)."""
    if mask is None:
        return None, None
    if mask.dim() not in (2, 3):
        raise ValueError(
            "attn_mask is (query_length, key_length) or (batch * heads, query_length, key_length), got shape "
            f"{tuple(mask.shape)}"
        )
    if mask.dim() == 3:
        if heads is None or mask.shape[0] % heads:
            raise ValueError(f"attn_mask of shape {tuple(mask.shape)} starts with batch * heads: got heads={heads}")
        mask = mask.unflatten(0, (-1, heads))
    forbidden = _forbidden(mask, "attn_mask")
    return (None, mask) if forbidden is None else (Dense(~forbidden), None)


def _forbidden(mask: Tensor, name: str) -> Tensor | None:
    """The boolean tensor that a mask is or stands for; None where it says more than that."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.dtype.is_floating_point:
        raise ValueError(f"{name} must be boolean (True = may not attend) or float, got {mask.dtype}: use .bool()")
    if mask.requires_grad or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    forbidden = mask == float("-inf")
    return forbidden if bool((forbidden | (mask == 0)).all()) else None
