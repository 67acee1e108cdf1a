"""Seeing where a model looks: attention maps of any model that holds the core, rollout and a plot of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .kernel import attention_weights, sum_biases
from .mask import Grid, Mask
from .multihead import MultiHeadAttention
from .position import ScoreBias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AttentionMaps", "plot_attention", "record_attention", "rollout"]


class AttentionMaps(dict[str, Tensor]):
    """Attention weights by the name of the layer, in the model's order: (batch, heads, query, key), float32.

    ``maps[0]`` is the first layer's, ``maps["blocks.0.attention"]`` the same by name. A layer that ran more than
    once holds its last call.
    """

    def __getitem__(self, layer: str | int) -> Tensor:
        return list(self.values())[layer] if isinstance(layer, int) else super().__getitem__(layer)


@contextmanager
def record_attention(
    model: nn.Module,
    layers: Sequence[int | str] | None = None,
    queries: Sequence[int] | slice | None = None,
    *,
    limit: int = 2**31,
) -> Iterator[AttentionMaps]:
    """Record the attention weights of every forward pass inside the ``with`` block.

    The model's output is what it would be without, whatever kernel it uses: the weights are computed beside it,
    without gradient and before dropout. The model is left as it was.

    Args:
        model: any module that holds ``MultiHeadAttention``.
        layers: which of them, by number or by name; all when left out.
        queries: query positions to keep; all when left out.
        limit: bytes that all maps together may take.

    Raises:
        ValueError: there is no such layer; or the maps would take more than ``limit``, with the estimate.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    names = list(found)
    if layers is not None:
        chosen = []
        for layer in layers:
            if (isinstance(layer, str) and layer not in found) or (isinstance(layer, int) and layer >= len(names)):
                raise ValueError(f"no attention layer {layer!r}: there are {names}")
            chosen.append(layer if isinstance(layer, str) else names[layer])
        names = [name for name in names if name in chosen]
    maps = AttentionMaps()
    before = {name: found[name].recorder for name in names}

    def recorder(name: str) -> Any:
        @torch.no_grad()
        def record(query: Tensor, key: Tensor, mask: Mask | None, biases: Sequence[ScoreBias]) -> None:
            length, key_length = query.shape[2], key.shape[2]
            rows = torch.arange(length, device=query.device)
            rows = rows if queries is None else rows[queries]
            shape = (*query.shape[:2], len(rows), key_length)
            estimate = len(names) * math.prod(shape) * 4
            if estimate > limit:
                raise ValueError(
                    f"attention maps of {len(names)} layers, each {shape}, take {estimate} bytes, more than the "
                    f"limit of {limit}: choose layers or queries, or raise limit"
                )
            columns = torch.arange(key_length, device=query.device)
            grid = Grid(rows.unsqueeze(1), columns.unsqueeze(0), length, key_length)
            allowed = None if mask is None else mask.at(rows, columns, length, key_length, query.shape[1])
            bias = sum_biases(biases, grid)
            maps[name] = attention_weights(query[:, :, rows], key, allowed, bias).float()

        return record

    try:
        for name in names:
            found[name].recorder = recorder(name)
        yield maps
    finally:
        for name in names:
            found[name].recorder = before[name]


def rollout(maps: AttentionMaps | Sequence[Tensor]) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020): how much of each input token is in each output token.

    Heads are averaged, half of the identity stands for the residual connection, and the layers are multiplied.

    Args:
        maps: the layers' weights in order, each (batch, heads, length, length).

    Returns:
        (batch, length, length); rows sum to 1 where every query may attend to something.
    """
    total: Tensor | None = None
    for weights in maps.values() if isinstance(maps, dict) else maps:
        if weights.shape[-2] != weights.shape[-1]:
            raise ValueError(f"rollout needs square maps of self-attention, got {tuple(weights.shape)}")
        mean = weights.float().mean(dim=1)
        identity = torch.eye(mean.shape[-1], device=mean.device)
        step = (mean + identity) / (mean + identity).sum(dim=-1, keepdim=True)
        total = step if total is None else step @ total
    if total is None:
        raise ValueError("rollout got no maps: was the model called inside record_attention?")
    return total


def plot_attention(
    maps: AttentionMaps | Tensor,
    *,
    sample: int = 0,
    labels: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw attention weights, one row per layer and one column per head.

    Args:
        maps: what ``record_attention`` gave, or one layer's (batch, heads, query, key).
        sample: which of the batch.
        labels: names of the positions.
        title: above the figure.

    Returns:
        a matplotlib figure (it is not shown).
    """
    from matplotlib.figure import Figure

    layers = {"attention": maps} if isinstance(maps, Tensor) else dict(maps)
    if not layers:
        raise ValueError("plot_attention got no maps: was the model called inside record_attention?")
    columns = max(weights.shape[1] for weights in layers.values())
    figure = Figure(figsize=(1.0 + 1.8 * columns, 0.6 + 1.9 * len(layers)), layout="constrained")
    axes = figure.subplots(len(layers), columns, squeeze=False)
    for row, (name, weights) in zip(axes, layers.items(), strict=True):
        for head, ax in enumerate(row):
            if head >= weights.shape[1]:
                ax.set_axis_off()
                continue
            ax.imshow(weights[sample, head].detach().float().cpu(), cmap="viridis", vmin=0.0, aspect="auto")
            ax.set_title(f"{name}\nhead {head}" if head == 0 else f"head {head}", fontsize=8)
            ax.tick_params(labelsize=6)
            if labels is not None and len(labels) == weights.shape[-1]:
                ax.set_xticks(range(len(labels)), labels, rotation=90)
            if labels is not None and len(labels) == weights.shape[-2]:
                ax.set_yticks(range(len(labels)), labels)
    if title:
        figure.suptitle(title)
    return figure
