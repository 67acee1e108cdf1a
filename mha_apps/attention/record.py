"""Seeing where a model looks: attention maps of any model that holds the core, rollout and a plot of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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

__all__ = [
    "AttentionMaps", "HeadStatistics", "head_statistics", "plot_attention", "record_attention", "rollout",
]  # fmt: skip


class AttentionMaps(dict[str, Tensor]):
    """Attention weights by the name of the layer, in the model's order: (batch, heads, query, key), float32.

    ``maps[0]`` is the first layer's, ``maps["blocks.0.attention"]`` the same by name. A layer that ran more than
    once holds its last call. With a cache the keys are those that the cache still holds, see ``key_positions``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The key position at which each query of a layer's map stands, (query,), by the name of the layer.
        self.positions: dict[str, Tensor] = {}
        #: The position of each key of a layer's map, (key,), by the name of the layer.
        self.key_positions: dict[str, Tensor] = {}

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
        queries: which queries of a call to keep, by number; all when left out.
        limit: bytes that all maps together may take.

    Raises:
        ValueError: there is no such layer, no such query, or no attention at all; or the maps would take more than
            ``limit``, with the estimate.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    if not found:
        raise ValueError(f"{type(model).__name__} holds no MultiHeadAttention: call replace_attention(model) first")
    names = list(found)
    if layers is not None:
        chosen = []
        for layer in layers:
            known = layer in found if isinstance(layer, str) else -len(names) <= layer < len(names)
            if not known:
                raise ValueError(f"no attention layer {layer!r}: there are {names}")
            chosen.append(layer if isinstance(layer, str) else names[layer])
        names = [name for name in names if name in chosen]
    maps = AttentionMaps()
    before = {name: found[name].recorder for name in names}

    def recorder(name: str) -> Any:
        outer = before[name]

        @torch.no_grad()
        def record(
            query: Tensor,
            key: Tensor,
            mask: Mask | None,
            biases: Sequence[ScoreBias],
            position: Tensor,
            key_position: Tensor,
        ) -> None:
            if outer is not None:
                outer(query, key, mask, biases, position, key_position)
            length, key_length = query.shape[2], key.shape[2]
            rows = torch.arange(length, device=query.device)
            if isinstance(queries, slice):
                rows = rows[queries]
            elif queries is not None:
                absent = [number for number in queries if not -length <= number < length]
                if absent:
                    raise ValueError(f"no query {absent[0]} to record: {name or 'the attention'} got {length} queries")
                rows = rows[list(queries)]
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
            maps.positions[name], maps.key_positions[name] = position[rows], key_position

        return record

    try:
        for name in names:
            found[name].recorder = recorder(name)
        yield maps
    finally:
        for name in names:
            found[name].recorder = before[name]


# A head is called ill from these numbers on, see ``head_statistics``.
ON_ONE_TOKEN = 0.9
UNIFORM = 0.99
COPIES = 0.95


class HeadStatistics(dict[str, Any]):
    """What ``head_statistics`` found: plain numbers and words, which ``json.dumps`` takes; printed, it is a table."""

    @property
    def ill(self) -> list[str]:
        """A sentence for each head that is ill."""
        return [
            f"{layer}, head {head['head']}: {word}"
            for layer, found in self.items()
            for head in found["heads"]
            for word in head["ill"]
        ]

    def __str__(self) -> str:
        """One row per head, 80 columns wide, and what is ill about each below."""
        lines = [f"{'layer':<26} head  entropy  largest mass (on)  distance  most like"]
        for layer, found in self.items():
            name = layer if len(layer) <= 26 else "…" + layer[-25:]
            for head in found["heads"]:
                if head["entropy"] is None:
                    lines.append(f"{name:<26} {head['head']:>4}  no query may attend to anything")
                    continue
                mass = f"{head['largest_mass']:.2f} ({head['token']})"
                near = "" if head["nearest"] is None else f"{head['nearest']} ({head['overlap']:.2f})"
                lines.append(
                    f"{name:<26} {head['head']:>4}  {head['entropy']:>7.2f}  {mass:>17}"
                    f"  {head['mean_distance']:>8.1f}  {near:>9}"
                )
        return "\n".join([*lines, "", *(self.ill or ["no head is ill"])])


def head_statistics(
    maps: AttentionMaps | Mapping[str, Tensor] | Sequence[Tensor], positions: Sequence[int] | Tensor | None = None
) -> HeadStatistics:
    """How each head spreads its attention, and which heads are ill.

    Queries that may attend to nothing are left out. All numbers are means over the other queries and the batch:

    - ``entropy`` of the weights over its maximum, the logarithm of the number of keys on which any head of the
      layer has weight, so that masked keys do not count (Ghader and Monz 2017 use it in nats). Queries with one
      such key have no choice, and are left out.
    - ``largest_mass``: the mean weight, over queries, of the key that gets most of it, and ``token``, that key's
      position in most samples (an attention sink, Xiao et al. 2024).
    - ``mean_distance`` of key and query in tokens, weighted by attention. It says nothing in cross-attention.
    - ``overlap`` with the ``nearest`` other head: the sum over keys of the smaller of the two weights, 1 for the
      same map and 0 for heads that share no key. ``similarity`` holds it for each pair.

    ``ill`` says in words what is wrong, if anything: all on one token (largest_mass at least 0.9, of two or more
    queries), uniform (entropy at least 0.99), a copy (overlap of at least 0.95 with an earlier head, neither being
    ill otherwise).

    Args:
        maps: what ``record_attention`` gave, or weights (batch, heads, query, key) by name or in order.
        positions: the key position at which each query of the maps stands, (query,), for maps of some queries that
            ``record_attention`` did not make; it remembers them. Without, queries are the last positions.

    Returns:
        by layer ``{"heads": [{"head", "entropy", "largest_mass", "token", "mean_distance", "nearest", "overlap",
        "ill"}, ...], "similarity": [[...], ...]}``; numbers are None where no query may attend to anything.

    Raises:
        ValueError: no maps; a map that is not 4-D, has no keys or holds NaN; positions that are not one per query.
    """
    layers = dict(maps) if isinstance(maps, Mapping) else {f"layer {i}": weights for i, weights in enumerate(maps)}
    if not layers:
        raise ValueError("head_statistics got no maps: was the model called inside record_attention?")
    known, keys = (maps.positions, maps.key_positions) if isinstance(maps, AttentionMaps) else ({}, {})
    statistics = HeadStatistics()
    for name, weights in layers.items():
        if weights.dim() != 4:
            raise ValueError(f"maps are (batch, heads, query, key), {name} is of shape {tuple(weights.shape)}")
        if bool(weights.isnan().any()):
            raise ValueError(f"the map of {name} holds NaN")
        length, key_length = weights.shape[2:]
        if not key_length:
            raise ValueError(f"the map of {name} has no keys, it is of shape {tuple(weights.shape)}")
        stands = known.get(name) if positions is None else torch.as_tensor(positions)
        stands = torch.arange(key_length - length, key_length) if stands is None else stands
        if stands.shape != (length,):
            raise ValueError(f"positions are one per query, got {tuple(stands.shape)} for {length} queries of {name}")
        key_stands = keys.get(name, torch.arange(key_length)).to(weights.device)
        statistics[name] = _layer_statistics(weights.detach().float(), stands.to(weights.device), key_stands)
    return statistics


def _layer_statistics(weights: Tensor, positions: Tensor, key_positions: Tensor) -> dict[str, Any]:
    """One layer of ``head_statistics``; (batch, heads, query, key), (query,) and (key,)."""
    heads = weights.shape[1]
    present = weights.sum(dim=-1) > 0  # (batch, heads, query)
    choices = (weights > 0).any(dim=1).sum(dim=-1).unsqueeze(1).expand_as(present)
    entropy = torch.special.entr(weights).sum(dim=-1) / choices.clamp(min=2).log()
    distance = (key_positions - positions.unsqueeze(1)).abs().float()
    mass = weights.sum(dim=2) / present.sum(dim=2).clamp(min=1).unsqueeze(-1)  # (batch, heads, key)
    largest, column = mass.max(dim=-1)
    token = key_positions[column]
    overlap = torch.stack([_overlap(weights, weights[:, [head]]) for head in range(heads)])
    found: list[dict[str, Any]] = []
    for head in range(heads):
        rows, samples = present[:, head], present[:, head].any(dim=-1)
        if not bool(rows.any()):
            numbers = dict.fromkeys(("entropy", "largest_mass", "token", "mean_distance", "nearest", "overlap"))
            found.append({"head": head, **numbers, "ill": []})
            continue
        free = rows & (choices[:, head] > 1)
        others = [other for other in range(heads) if other != head and bool(present[:, other].any())]
        nearest = others[int(overlap[head, others].argmax())] if others else None
        found.append(
            {
                "head": head,
                "entropy": float(entropy[:, head][free].mean()) if bool(free.any()) else 0.0,
                "largest_mass": float(largest[samples, head].mean()),
                "token": int(token[samples, head].mode().values),
                "mean_distance": float((weights[:, head] * distance).sum(dim=-1)[rows].mean()),
                "nearest": nearest,
                "overlap": None if nearest is None else float(overlap[head, nearest]),
                "ill": [],
            }
        )
    _diagnose(found, overlap, several=bool((present.sum(dim=2) > 1).any()), choice=bool((choices > 1).any()))
    return {"heads": found, "similarity": overlap.tolist()}


def _overlap(weights: Tensor, other: Tensor) -> Tensor:
    """Per head, the mean over queries that both answer of what the two maps have in common, (heads,)."""
    common = torch.minimum(weights, other).sum(dim=-1)
    both = (weights.sum(dim=-1) > 0) & (other.sum(dim=-1) > 0)
    return common.sum(dim=(0, 2)) / both.sum(dim=(0, 2)).clamp(min=1)


def _diagnose(heads: list[dict[str, Any]], overlap: Tensor, *, several: bool, choice: bool) -> None:
    """Fill in ``ill``; with a single query or a single key there is nothing to be ill of."""
    answered = [head for head in heads if head["entropy"] is not None and choice]
    for head in answered:
        if several and head["largest_mass"] >= ON_ONE_TOKEN:
            head["ill"].append(f"all on one token, {head['largest_mass']:.0%} on token {head['token']}")
        if head["entropy"] >= UNIFORM:
            head["ill"].append(f"uniform, with {head['entropy']:.1%} of the largest entropy")
    well = [head for head in answered if not head["ill"]]
    for number, head in enumerate(well):
        for earlier in well[:number]:
            shared = float(overlap[head["head"], earlier["head"]])
            if shared >= COPIES:
                head["ill"].append(f"a copy of head {earlier['head']}, {shared:.0%} the same")
                break


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
        labels: names of the positions. Without, axes count positions, of which a cache may have dropped some.
        title: above the figure.

    Returns:
        a matplotlib figure (it is not shown).
    """
    from matplotlib.figure import Figure

    layers = {"attention": maps} if isinstance(maps, Tensor) else dict(maps)
    queries, keys = (maps.positions, maps.key_positions) if isinstance(maps, AttentionMaps) else ({}, {})
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
            _name_ticks(ax.xaxis, keys.get(name, torch.arange(weights.shape[-1])), labels, rotation=90)
            _name_ticks(ax.yaxis, queries.get(name, torch.arange(weights.shape[-2])), labels)
    if title:
        figure.suptitle(title)
    return figure


def _name_ticks(axis: Any, positions: Tensor, labels: Sequence[str] | None, **style: Any) -> None:
    """Label an axis that shows these positions in order."""
    shown = positions.tolist()
    if labels is not None and shown and len(labels) == shown[-1] + 1:
        axis.set_ticks(range(len(shown)), [labels[position] for position in shown], **style)
    elif shown != list(range(len(shown))):
        step = -(-len(shown) // 8)
        axis.set_ticks(range(0, len(shown), step), shown[::step])
