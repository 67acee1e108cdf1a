"""Where a mask can be True at all, and how to cover that region with tiles.

``Mask.support`` answers with a list of patterns: bands (with a step), rows and columns of global tokens, cells of an
image. A pattern is a superset that is cheap to reason about; the exact mask is evaluated inside the tiles. Each
pattern cuts itself into ``Tile`` objects, which is all that the tiled kernel knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .mask import Grid, Window2d

__all__ = ["Band", "Cells", "Columns", "Part", "Pattern", "Rows", "Tile", "covered", "intersect", "union"]


@dataclass(frozen=True)
class Tile:
    """``count`` blocks of queries, each with its block of keys.

    Block t holds queries ``query + t * shift + i * step`` for i < rows and keys ``key + t * shift + j * step`` for
    j < columns.
    """

    query: int
    key: int
    rows: int
    columns: int
    count: int = 1
    shift: int = 0
    step: int = 1
    first: bool = True  # no earlier tile of the pattern holds these queries


@dataclass(frozen=True)
class Part:
    """Tiles over the queries and keys at the given indices (all of them, in order, where None)."""

    tiles: list[Tile]
    queries: Tensor | None = None
    keys: Tensor | None = None


@dataclass(frozen=True)
class Tiling:
    """How large the tiles are, chosen by the kernel for the device."""

    rows: int  # queries of a block
    columns: int  # keys of a block that has all of them

    def spans(self, length: int) -> Iterator[tuple[int, int]]:
        for start in range(0, length, self.rows):
            yield start, min(start + self.rows, length)


class Pattern:
    """A set of (query, key) pairs."""

    def contains(self, grid: Grid) -> Tensor:
        """Which pairs of the grid are in the set, broadcasting to the grid."""
        raise NotImplementedError

    def pairs(self, query_length: int, key_length: int) -> int:
        """About how many pairs there are."""
        raise NotImplementedError

    def part(self, query_length: int, key_length: int, tiling: Tiling, device: torch.device) -> Part:
        """Tiles that cover every pair of the set, each at most once."""
        raise NotImplementedError


@dataclass(frozen=True)
class Band(Pattern):
    """Keys from ``position - left`` to ``position + right`` at distances that ``step`` divides; None: no bound."""

    left: int | None = None
    right: int | None = None
    step: int = 1

    @property
    def everything(self) -> bool:
        return self.left is None and self.right is None and self.step == 1

    @property
    def empty(self) -> bool:
        return self.left is not None and self.right is not None and self.left + self.right < 0

    def contains(self, grid: Grid) -> Tensor:
        inside = grid.key % self.step == grid.position % self.step
        if self.left is not None:
            inside = inside & (grid.key >= grid.position - self.left)
        if self.right is not None:
            inside = inside & (grid.key <= grid.position + self.right)
        return inside

    def pairs(self, query_length: int, key_length: int) -> int:
        left = key_length if self.left is None else min(self.left, key_length)
        right = key_length if self.right is None else min(self.right, key_length)
        if (self.left is None) != (self.right is None):
            width = (key_length + min(left, right)) // 2  # a triangle
        else:
            width = min(left + right + 1, key_length)
        return query_length * max(width, 0) // self.step

    def holds(self, other: Band) -> bool:
        """Whether every pair of ``other`` is in this band."""
        left = self.left is None or (other.left is not None and other.left <= self.left)
        right = self.right is None or (other.right is not None and other.right <= self.right)
        return left and right and other.step % self.step == 0

    def intersect(self, other: Band) -> Band:
        left = self.left if other.left is None else other.left if self.left is None else min(self.left, other.left)
        right = (
            self.right if other.right is None else other.right if self.right is None else min(self.right, other.right)
        )
        return Band(left, right, common_multiple(self.step, other.step))

    def part(self, query_length: int, key_length: int, tiling: Tiling, device: torch.device) -> Part:
        tiles: list[Tile] = []
        for residue in range(min(self.step, query_length)):
            tiles += self._residue_tiles(residue, query_length, key_length, tiling)
        return Part(tiles)

    def _residue_tiles(self, residue: int, query_length: int, key_length: int, tiling: Tiling) -> Iterator[Tile]:
        """Tiles of the queries residue, residue + step, ..., a plain band among the keys at their distances."""
        step = self.step
        position = key_length - query_length + residue
        first_key = position % step
        offset = (position - first_key) // step  # counted in steps, query i stands at key i + offset
        queries = -(-(query_length - residue) // step)
        keys = max(-(-(key_length - first_key) // step), 0)
        left = None if self.left is None else self.left // step
        right = None if self.right is None else self.right // step
        run: Tile | None = None
        for start, stop in tiling.spans(queries):
            low = 0 if left is None else start + offset - left
            high = keys if right is None else stop + offset + right
            whole = left is not None and right is not None and low >= 0 and high <= keys
            low, high = max(low, 0), min(high, keys)
            if low >= high:
                continue
            if whole and stop - start == tiling.rows:  # all blocks inside look the same: one tile with a count
                count = 1 if run is None else run.count + 1
                begin, key = (start, low) if run is None else (run.query, run.key)
                run = Tile(begin, key, stop - start, high - low, count)
                continue
            width = high - low if high - low <= 2 * tiling.columns else tiling.columns
            for column in range(low, high, width):
                yield Tile(
                    residue + start * step,
                    first_key + column * step,
                    stop - start,
                    min(width, high - column),
                    step=step,
                    first=column == low,
                )
        if run is not None:
            yield Tile(
                residue + run.query * step,
                first_key + run.key * step,
                run.rows,
                run.columns,
                run.count,
                run.rows * step,
                step,
            )


@dataclass(frozen=True)
class Columns(Pattern):
    """All queries at the keys of these positions."""

    tokens: tuple[int, ...]

    def contains(self, grid: Grid) -> Tensor:
        return member(grid.key, self.tokens)

    def pairs(self, query_length: int, key_length: int) -> int:
        return query_length * len(self.tokens)

    def part(self, query_length: int, key_length: int, tiling: Tiling, device: torch.device) -> Part:
        keys = torch.tensor([token for token in self.tokens if token < key_length], dtype=torch.long, device=device)
        # Few keys: more queries in a block at the same size.
        rows = max(tiling.rows, tiling.rows * tiling.columns // max(len(keys), 1))
        tiling = Tiling(min(rows, 4096), tiling.columns)
        return Part(Band().part(query_length, len(keys), tiling, device).tiles, keys=keys)


@dataclass(frozen=True)
class Rows(Pattern):
    """The queries at these key positions with all keys."""

    tokens: tuple[int, ...]

    def contains(self, grid: Grid) -> Tensor:
        return member(grid.position, self.tokens)

    def pairs(self, query_length: int, key_length: int) -> int:
        return key_length * len(self.tokens)

    def part(self, query_length: int, key_length: int, tiling: Tiling, device: torch.device) -> Part:
        start = key_length - query_length
        inside = [token - start for token in self.tokens if 0 <= token - start < query_length]
        queries = torch.tensor(inside, dtype=torch.long, device=device)
        return Part(Band().part(len(inside), key_length, tiling, device).tiles, queries=queries)


@dataclass(frozen=True)
class Cells(Pattern):
    """Pairs of image tokens in the same window of a ``Window2d``; its prefix tokens are rows and columns apart."""

    mask: Window2d

    def contains(self, grid: Grid) -> Tensor:
        prefix = self.mask.prefix
        image = (grid.position >= prefix) & (grid.key >= prefix)
        return image & (self.mask.window(grid.position) == self.mask.window(grid.key))

    def pairs(self, query_length: int, key_length: int) -> int:
        return query_length * min(self.mask.height * self.mask.width, key_length)

    def part(self, query_length: int, key_length: int, tiling: Tiling, device: torch.device) -> Part:
        prefix = self.mask.prefix
        window = self.mask.window(torch.arange(prefix, self.mask.tokens))
        _, member_of, size = window.unique(return_inverse=True, return_counts=True)
        # Windows of one size side by side (the shift leaves smaller ones at the border): one tile for each size.
        order = torch.argsort(size[member_of] * (window.numel() + 1) + member_of, stable=True)
        tiles, start = [], 0
        for tokens, count in zip(*(part.tolist() for part in size.sort()[0].unique(return_counts=True)), strict=True):
            tiles.append(Tile(start, start, tokens, tokens, count, tokens))
            start += tokens * count
        order = (order + prefix).to(device)
        return Part(tiles, order, order)


def common_multiple(first: int, second: int) -> int:
    """The least one, by Euclid; ``math.lcm`` takes no symbolic number of a graph."""
    divisor, rest = first, second
    while rest:
        divisor, rest = rest, divisor % rest
    return first // divisor * second


def member(index: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Which entries of ``index`` are among the tokens."""
    inside = torch.zeros_like(index, dtype=torch.bool)
    for token in tokens:  # a handful; and no tensor is made, which keeps compilers happy
        inside = inside | (index == token)
    return inside


def intersect(first: list[Pattern], second: list[Pattern], query_length: int, key_length: int) -> list[Pattern]:
    """A superset of the pairs that are in some pattern of both lists."""
    return union([_intersect(a, b, query_length, key_length) for a in first for b in second], query_length, key_length)


def _intersect(a: Pattern, b: Pattern, query_length: int, key_length: int) -> Pattern:
    if isinstance(a, Band) and isinstance(b, Band):
        return a.intersect(b)
    if isinstance(a, Columns) and isinstance(b, Columns):
        return Columns(tuple(token for token in a.tokens if token in b.tokens))
    if isinstance(a, Rows) and isinstance(b, Rows):
        return Rows(tuple(token for token in a.tokens if token in b.tokens))
    return a if a.pairs(query_length, key_length) <= b.pairs(query_length, key_length) else b


def union(patterns: list[Pattern], query_length: int, key_length: int) -> list[Pattern]:
    """The same region with as few patterns as come cheap: bands first, then cells, columns and rows."""
    bands: list[Band] = []
    for band in (pattern for pattern in patterns if isinstance(pattern, Band)):
        if not band.empty:
            bands = _add(bands, band, query_length, key_length)
    columns = {token for p in patterns if isinstance(p, Columns) for token in p.tokens if token < key_length}
    start = key_length - query_length
    rows = {token for p in patterns if isinstance(p, Rows) for token in p.tokens if start <= token < key_length}
    cells = list(dict.fromkeys(pattern for pattern in patterns if isinstance(pattern, Cells)))
    kept: list[Pattern] = [*bands, *cells]
    if columns:
        kept.append(Columns(tuple(sorted(columns))))
    if rows:
        kept.append(Rows(tuple(sorted(rows))))
    if any(band.everything for band in bands) or covered(kept, query_length, key_length) >= query_length * key_length:
        return [Band()]
    return kept


def _add(bands: list[Band], band: Band, query_length: int, key_length: int) -> list[Band]:
    """The bands and one more, which is joined with another where their hull is hardly larger than both."""
    for other in bands:
        if other.holds(band):
            return bands
        if band.holds(other):
            return _add([b for b in bands if b is not other], band, query_length, key_length)
        if band.step == other.step:
            left = None if None in (band.left, other.left) else max(band.left, other.left)  # type: ignore[type-var]
            right = None if None in (band.right, other.right) else max(band.right, other.right)  # type: ignore[type-var]
            hull = Band(left, right, band.step)
            apart = band.pairs(query_length, key_length) + other.pairs(query_length, key_length)
            if 10 * hull.pairs(query_length, key_length) <= 11 * apart:
                return _add([b for b in bands if b is not other], hull, query_length, key_length)
    return [*bands, band]


def covered(patterns: list[Pattern], query_length: int, key_length: int) -> int:
    """About how many pairs all patterns together hold."""
    return sum(pattern.pairs(query_length, key_length) for pattern in patterns)
