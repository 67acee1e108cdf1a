"""Attention over tiles: any mask, in time and memory of its support rather than of query x key.

A mask's support is a list of patterns, a pattern is a list of tiles, and a tile is blocks of queries with their
blocks of keys. The forward pass computes each tile as ``explicit`` would and merges it into the running result by
log-sum-exp (Milakov and Gimelshein 2018); patterns that overlap leave each pair to the first of them, so the merge
is exact whatever the tiles are: windows with global tokens, strides, groups of heads with a pattern each. The
backward pass computes the tiles' weights again from the log-sum-exp (Dao et al. 2022, algorithm 4) and adds up.
Nothing of size query x key is kept or made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .mask import Grid, Mask
from .pattern import Band, Part, Pattern, Tile, Tiling
from .position import ScoreBias

__all__ = ["step_sizes", "tiled", "tiled_backward", "tiled_forward", "tiling"]

# Scores of one step, and queries and keys of a block: measured on CPUs, where a step should stay in the caches.
# On a GPU steps are large, so that few kernels are launched.
STEP = {"cpu": 2**19, "cuda": 2**26}
ROWS = {"cpu": 64, "cuda": 128}
COLUMNS = {"cpu": 1024, "cuda": 4096}


def tiling(device: torch.device) -> Tiling:
    """How large the tiles are on a device."""
    kind = device.type if device.type in ROWS else "cuda"
    return Tiling(ROWS[kind], COLUMNS[kind])


def tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
) -> Tensor:
    """Attention by tiles of the mask's support, forward and backward.

    Args:
        query: (batch, heads, query_length, head_dim).
        key: (batch, heads, key_length, head_dim).
        value: (batch, heads, key_length, value_dim).
        mask: who may attend to whom; everyone to everyone when left out.
        biases: added to the scores.
        dropout: probability with which a weight is dropped.

    Returns:
        (batch, heads, query_length, value_dim); rows that may attend to nothing are zero.
    """
    seed = int(torch.randint(2**62, ())) if dropout else 0
    return _Tiled.apply(query, key, value, mask, biases, dropout, seed, *(bias.tensor for bias in biases))


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        biases: Sequence[ScoreBias],
        dropout: float,
        seed: int,
        *tensors: Tensor,
    ) -> Tensor:
        out, log_total = tiled_forward(query, key, value, mask, biases, dropout, seed)
        ctx.save_for_backward(query, key, value, out, log_total)
        ctx.settings = mask, biases, dropout, seed, [tensor.requires_grad for tensor in tensors]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, biases, dropout, seed, learned = ctx.settings
        query, key, value, out, log_total = ctx.saved_tensors
        grads = tiled_backward(grad, query, key, value, out, log_total, mask, biases, dropout, seed, learned)
        return *grads[:3], None, None, None, None, *grads[3:]


@torch.no_grad()
def tiled_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    biases: Sequence[ScoreBias],
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The result, and the log-sum-exp of each query's scores (batch, heads, query_length, 1)."""
    (batch, heads, length, _), dtype = query.shape, _compute_dtype(query)
    # Laid out as the output projection reads it, (batch, length, heads, dim).
    out = query.new_zeros(batch, length, heads, value.shape[-1], dtype=dtype).transpose(1, 2)
    log_total = query.new_full((batch, heads, length, 1), float("-inf"), dtype=dtype)
    with torch.autocast(query.device.type, enabled=False):
        for work in _works(query, key, mask, biases, dropout, seed):
            slices = work.heads
            q, k, v = query[:, slices], work.keys(key[:, slices]), work.keys(value[:, slices])
            q, o, total = (work.queries(x) for x in (q, out[:, slices], log_total[:, slices]))
            for step in work.steps():
                _forward_step(step, q, k, v, o, total)
            work.put_queries(out[:, slices], o)
            work.put_queries(log_total[:, slices], total)
    return out.to(query.dtype), log_total


def _forward_step(step: Step, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_total: Tensor) -> None:
    scores = step.scores(step.query_blocks(query), step.key_blocks(key))
    peak = scores.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    if step.keep is not None:
        weights.mul_(step.keep)
    part = torch.bmm(weights, step.key_blocks(value))
    out, log_total = step.query_view(out), step.query_view(log_total)
    part_total = (peak + total.log()).view(log_total.shape)
    if step.first:
        out.copy_(part.div_(total.clamp(min=torch.finfo(total.dtype).tiny)).view(out.shape))
        log_total.copy_(part_total)
        return
    merged = torch.logaddexp(log_total, part_total)
    finite = merged.clamp(min=torch.finfo(merged.dtype).min)
    out.mul_((log_total - finite).exp_())
    out.addcmul_(part.view(out.shape), (peak.view(finite.shape) - finite).exp_())
    log_total.copy_(merged)


@torch.no_grad()
def tiled_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_total: Tensor,
    mask: Mask | None,
    biases: Sequence[ScoreBias],
    dropout: float,
    seed: int,
    learned: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value and of the biases' tensors (None where it is not learned)."""
    dtype = _compute_dtype(query)
    grad_query, grad_key, grad_value = (x.new_zeros(x.shape, dtype=dtype) for x in (query, key, value))
    grad_biases = [
        bias.tensor.new_zeros(bias.tensor.shape, dtype=dtype) if learn else None
        for bias, learn in zip(biases, learned, strict=True)
    ]
    # sum_j p_ij dp_ij of the softmax's derivative is one number per query, known before any tile.
    inner = (out.to(dtype) * grad.to(dtype)).sum(dim=-1, keepdim=True)
    # A query without keys has log-sum-exp -inf; +inf makes its weights exp(-inf) = 0 instead of NaN.
    log_total = log_total.masked_fill(log_total == float("-inf"), float("inf"))
    with torch.autocast(query.device.type, enabled=False):
        for work in _works(query, key, mask, biases, dropout, seed):
            slices = work.heads
            grads_k, grads_v = grad_key[:, slices], grad_value[:, slices]
            k, v, gk, gv = (work.keys(x) for x in (key[:, slices], value[:, slices], grads_k, grads_v))
            q, g, total, inner_q, gq = (work.queries(x[:, slices]) for x in (query, grad, log_total, inner, grad_query))
            for step in work.steps():
                scores_grad = _backward_step(step, q, k, v, g, total, inner_q, gq, gk, gv)
                for bias, grad_bias in zip(work.biases, grad_biases, strict=True):
                    if grad_bias is not None:
                        bias.add_gradient(bias.of_heads(grad_bias, slices), step.grid, scores_grad, step.batch)
            work.put_queries(grad_query[:, slices], gq)
            work.put_keys(grads_k, gk)
            work.put_keys(grads_v, gv)
    grads: list[Tensor | None] = [
        x.to(y.dtype) for x, y in zip((grad_query, grad_key, grad_value), (query, key, value), strict=True)
    ]
    for bias, grad_bias in zip(biases, grad_biases, strict=True):
        grads.append(None if grad_bias is None else grad_bias.to(bias.tensor.dtype))
    return tuple(grads)


def _backward_step(
    step: Step,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad: Tensor,
    log_total: Tensor,
    inner: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
) -> Tensor:
    q, k, v, g = step.query_blocks(query), step.key_blocks(key), step.key_blocks(value), step.query_blocks(grad)
    weights = step.scores(q, k).sub_(step.query_blocks(log_total)).exp_()
    scores_grad = torch.bmm(g, v.transpose(1, 2))
    if step.keep is None:
        step.add_to_keys(grad_value, weights.transpose(1, 2), g)
    else:
        step.add_to_keys(grad_value, (weights * step.keep).transpose(1, 2), g)
        scores_grad.mul_(step.keep)
    scores_grad.sub_(step.query_blocks(inner)).mul_(weights)
    view = step.query_view(grad_query)
    view.add_(torch.bmm(scores_grad, k).view(view.shape), alpha=step.scale)
    step.add_to_keys(grad_key, scores_grad.transpose(1, 2), q, step.scale)
    return scores_grad.view(*step.shape)


@dataclass
class Work:
    """One pattern of one group of heads."""

    heads: slice
    mask: Mask | None
    pattern: Pattern
    earlier: list[Pattern]
    alone: bool
    part: Part
    biases: list[ScoreBias]
    shape: tuple[int, int, int, int]  # batch, heads, query_length, key_length
    scale: float
    dtype: torch.dtype
    device: torch.device
    dropout: float
    generator: torch.Generator | None

    def queries(self, x: Tensor) -> Tensor:
        return x if self.part.queries is None else x[:, :, self.part.queries]

    def keys(self, x: Tensor) -> Tensor:
        return x if self.part.keys is None else x[:, :, self.part.keys]

    def put_queries(self, x: Tensor, gathered: Tensor) -> None:
        if self.part.queries is not None:
            x.index_copy_(2, self.part.queries, gathered)

    def put_keys(self, x: Tensor, gathered: Tensor) -> None:
        if self.part.keys is not None:
            x.index_copy_(2, self.part.keys, gathered)

    def steps(self) -> Iterator[Step]:
        """The tiles, cut or grouped so that a step's scores stay within ``STEP``."""
        batch, heads, _, _ = self.shape
        known: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None, Grid]] = {}
        for tile in self.part.tiles:
            samples, blocks = _cut(tile, batch, heads, self.device)
            for start in range(0, tile.count, blocks):
                moved = start * tile.shift
                piece = replace(
                    tile,
                    query=tile.query + moved,
                    key=tile.key + moved,
                    count=min(blocks, tile.count - start),
                )
                terms = self._terms(piece, known)
                for first in range(0, batch, samples):
                    yield self._step(piece, slice(first, min(first + samples, batch)), *terms)

    def _step(self, tile: Tile, batch: slice, added: Tensor | None, allowed: Tensor | None, grid: Grid) -> Step:
        count = batch.stop - batch.start
        shape = (count, self.shape[1], tile.count, tile.rows, tile.columns)
        keep = None
        if self.generator is not None:
            keep = torch.rand(
                (shape[0] * shape[1] * shape[2], *shape[3:]),
                generator=self.generator, device=self.device, dtype=self.dtype,
            )  # fmt: skip
            keep = (keep >= self.dropout).to(self.dtype).div_(1.0 - self.dropout)
        if added is not None and added.shape[0] > 1:
            added = added[batch]
        if allowed is not None and allowed.shape[0] > 1:
            allowed = allowed[batch]
        first = tile.first and not self.earlier
        return Step(tile, batch, shape, added, allowed, keep, grid, first, self.scale, self.dtype)

    def _terms(
        self, tile: Tile, known: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None, Grid]]
    ) -> tuple[Tensor | None, Tensor | None, Grid]:
        """What is added to a tile's scores and which of them are allowed, both 5-D, and the grid of its indices."""
        relative = (
            (self.mask is None or self.mask.relative)
            and all(isinstance(pattern, Band) for pattern in (self.pattern, *self.earlier))
            and all(bias.relative for bias in self.biases)
            and self.part.queries is None
            and self.part.keys is None
        )
        if not relative:
            return self._evaluate(self._grid(tile))
        # The same for every block at this distance of keys from queries.
        place = (tile.rows, tile.columns, tile.step, tile.key - tile.query)
        if place not in known:
            added, allowed, grid = self._evaluate(self._grid(replace(tile, count=1)))
            if allowed is not None:
                zero = torch.zeros((), dtype=self.dtype, device=self.device) if added is None else added
                added, allowed = zero.masked_fill(~allowed, float("-inf")), None
            while len(known) > 1:  # a causal mask has as many places as blocks, and none comes back
                known.pop(next(iter(known)))
            known[place] = added, allowed, grid
        return known[place]

    def _grid(self, tile: Tile) -> Grid:
        block = torch.arange(tile.count, device=self.device).view(-1, 1, 1) * tile.shift
        query = tile.query + block + torch.arange(tile.rows, device=self.device).view(1, -1, 1) * tile.step
        key = tile.key + block + torch.arange(tile.columns, device=self.device).view(1, 1, -1) * tile.step
        query = query if self.part.queries is None else self.part.queries[query]
        key = key if self.part.keys is None else self.part.keys[key]
        return Grid(query, key, *self.shape[2:])

    def _evaluate(self, grid: Grid) -> tuple[Tensor | None, Tensor | None, Grid]:
        allowed = None if self.mask is None else self.mask.allowed(grid)
        if not self.alone:
            inside = self.pattern.contains(grid)
            for pattern in self.earlier:
                inside = inside & ~pattern.contains(grid)
            allowed = inside if allowed is None else allowed & inside
        if allowed is not None:
            allowed = None if bool(allowed.all()) else _five(allowed)
        added = None
        for bias in self.biases:
            term = _five(bias.read(grid).to(self.dtype))
            added = term if added is None else added + term
        return added, allowed, grid


@dataclass
class Step:
    """Some blocks of some samples of a tile: what is computed at once."""

    tile: Tile
    batch: slice
    shape: tuple[int, int, int, int, int]  # samples, heads, blocks, rows, columns
    added: Tensor | None
    allowed: Tensor | None
    keep: Tensor | None
    grid: Grid
    first: bool
    scale: float
    dtype: torch.dtype

    def query_view(self, x: Tensor) -> Tensor:
        return _blocks(x[self.batch], self.tile.query, self.tile, self.tile.rows)

    def query_blocks(self, x: Tensor) -> Tensor:
        """(samples * heads * blocks, rows, dim) of (batch, heads, query_length, dim)."""
        return self.query_view(x).reshape(-1, self.tile.rows, x.shape[-1]).to(self.dtype)

    def key_blocks(self, x: Tensor) -> Tensor:
        """(samples * heads * blocks, columns, dim) of (batch, heads, key_length, dim)."""
        view = _blocks(x[self.batch], self.tile.key, self.tile, self.tile.columns)
        return view.reshape(-1, self.tile.columns, x.shape[-1]).to(self.dtype)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        key = key.transpose(1, 2)
        if self.added is None:
            scores = torch.bmm(query * self.scale, key)
        else:
            added = self.added.expand(self.shape).reshape(-1, *self.shape[3:])
            scores = torch.baddbmm(added, query, key, alpha=self.scale)
        if self.allowed is not None:
            scores.view(self.shape).masked_fill_(~self.allowed, float("-inf"))
        return scores

    def add_to_keys(self, x: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
        """Add ``scale * left @ right``, a block of keys per block, to x (batch, heads, key_length, dim)."""
        tile, x = self.tile, x[self.batch]
        if tile.count == 1:
            view = _blocks(x, tile.key, tile, tile.columns)
            if view.stride(0) == view.shape[1] * view.stride(1) or view.shape[0] == 1:
                view.flatten(0, 2).baddbmm_(left, right, alpha=scale)
                return
        part = torch.bmm(left, right).view(*self.shape[:3], tile.columns, -1)
        # Blocks of keys overlap: add every n-th of them at once, such that those do not.
        stagger = -(-tile.columns * tile.step // tile.shift) if tile.count > 1 and tile.shift >= tile.step else 1
        for phase in range(min(stagger, tile.count)):
            chosen = part[:, :, phase::stagger]
            where = replace(tile, count=chosen.shape[2], shift=tile.shift * stagger)
            view = _blocks(x, tile.key + phase * tile.shift, where, tile.columns)
            view.add_(chosen, alpha=scale)


def _works(
    query: Tensor, key: Tensor, mask: Mask | None, biases: Sequence[ScoreBias], dropout: float, seed: int
) -> Iterator[Work]:
    batch, heads, query_length, dim = query.shape
    key_length, device = key.shape[2], query.device
    generator = torch.Generator(device).manual_seed(seed) if dropout else None
    for where, own, pattern, patterns in _patterns(heads, query_length, key_length, mask):
        yield Work(
            heads=where,
            mask=own,
            pattern=pattern,
            earlier=patterns[: patterns.index(pattern)],
            alone=len(patterns) == 1,
            part=pattern.part(query_length, key_length, tiling(device), device),
            biases=[bias.head_slice(where) for bias in biases],
            shape=(batch, where.stop - where.start, query_length, key_length),
            scale=dim**-0.5,
            dtype=_compute_dtype(query),
            device=device,
            dropout=dropout,
            generator=generator,
        )


def _cut(tile: Tile, batch: int, heads: int, device: torch.device) -> tuple[int, int]:
    """How many samples and how many blocks of a tile make a step."""
    budget = STEP.get(device.type, STEP["cuda"])
    block = heads * tile.rows * tile.columns
    samples = min(max(budget // block, 1), max(batch, 1))
    return samples, min(max(budget // (block * samples), 1), tile.count)


def step_sizes(
    batch: int, heads: int, query_length: int, key_length: int, mask: Mask | None, device: torch.device
) -> Iterator[tuple[int, int, int, int, bool]]:
    """What a step of every tile holds.

    Yields:
        scores, queries and keys of the step; pairs of one block; whether blocks are copies of what they show.
    """
    for where, _, pattern, _ in _patterns(heads, query_length, key_length, mask):
        group = where.stop - where.start
        for tile in pattern.part(query_length, key_length, tiling(device), device).tiles:
            samples, blocks = _cut(tile, batch, group, device)
            count = samples * group * blocks
            pairs = tile.rows * tile.columns
            yield count * pairs, count * tile.rows, count * tile.columns, pairs, samples * blocks > 1


def _patterns(
    heads: int, query_length: int, key_length: int, mask: Mask | None
) -> Iterator[tuple[slice, Mask | None, Pattern, list[Pattern]]]:
    """(heads, their mask, one of its patterns, all of them) for every group of heads."""
    mask = None if mask is None else mask.for_heads(heads)
    group = heads if mask is None else heads // mask.head_groups()
    for start in range(0, heads, group):
        own = None if mask is None else mask.head_slice(start, start + group)
        patterns: list[Pattern] = [Band()] if own is None else own.support(query_length, key_length)
        for pattern in patterns:
            yield slice(start, start + group), own, pattern, patterns


def _blocks(x: Tensor, start: int, tile: Tile, size: int) -> Tensor:
    """A view of x (batch, heads, length, dim) as the tile's blocks, (batch, heads, blocks, size, dim)."""
    batch, heads, along, across = x.stride()
    return x.as_strided(
        (*x.shape[:2], tile.count, size, x.shape[-1]),
        (batch, heads, tile.shift * along, tile.step * along, across),
        x.storage_offset() + start * along,
    )


def _five(x: Tensor) -> Tensor:
    return x.reshape((1,) * (5 - x.dim()) + tuple(x.shape))


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
