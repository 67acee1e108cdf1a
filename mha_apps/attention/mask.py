"""Which query may attend to which key: small objects that compose with ``&``, ``|`` and ``~``.

A mask is a predicate over index pairs (``allowed``). ``materialize`` evaluates it on the whole grid and is
the definition of the mask; kernels evaluate it on the tiles that they compute, and ask ``support`` where the
True entries can be at all. True means *may attend*, as in ``F.scaled_dot_product_attention``.

With more keys than queries, query ``i`` stands at key position ``key_length - query_length + i``: the queries
are the newest positions, as with a cache. The same formula holds with fewer keys.

``&`` and ``|`` are pointwise: ``(Window(8, 8) & padding) | Global([0])`` lets the global rows and columns see
padding again, so write ``(Window(8, 8) | Global([0])) & padding``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import pattern
from .pattern import Band, Cells, Columns, Pattern, Rows

__all__ = [
    "Causal", "Dense", "Dilated", "Global", "Mask", "Padding", "PerHead", "Segments", "Strided", "Window",
    "Window2d",
]  # fmt: skip

CONVENTION = "masks broadcast to (batch, heads, query_length, key_length) and True means 'may attend'"


@dataclass(frozen=True)
class Grid:
    """Index pairs on which a mask is evaluated.

    ``query`` and ``key`` are integer tensors that broadcast against each other, e.g. (query, 1) and (1, key);
    ``query`` counts from 0 and ``key`` is the absolute key position. A predicate's result broadcasts to
    (batch, heads, *grid), or to the grid alone where ``batch`` and ``head`` say which sample and head are meant
    (as FlexAttention asks).
    """

    query: Tensor
    key: Tensor
    query_length: int
    key_length: int
    batch: Tensor | None = None
    head: Tensor | None = None
    whole: bool = False  # all queries and all keys, in order: a tensor can be taken as it stands

    @classmethod
    def of_all(cls, query_length: int, key_length: int, device: torch.device | str | None = None) -> Grid:
        """Every pair, on a grid (query_length, key_length)."""
        query, key = (torch.arange(length, device=device) for length in (query_length, key_length))
        return cls(query.unsqueeze(1), key.unsqueeze(0), query_length, key_length, whole=True)

    @property
    def position(self) -> Tensor:
        """The key position at which each query stands."""
        return self.query + (self.key_length - self.query_length)

    @property
    def device(self) -> torch.device:
        return self.key.device

    @property
    def dims(self) -> int:
        return max(self.query.dim(), self.key.dim())


class Mask:
    """Base of every mask. Subclasses say which pairs are allowed, and what they know about their structure."""

    #: Whether the mask depends on ``key - position`` alone, so that all blocks of a band look the same.
    relative: bool = False
    #: Whether no query sees a key after its own position, which a cache needs.
    causal: bool = False
    #: The band that the mask equals, where it is one.
    band: Band | None = None
    #: How many heads the mask tells apart; 1 where it is the same for all.
    heads: int = 1
    #: (query_length, key_length) where the mask holds a tensor that says so.
    lengths: tuple[int | None, int | None] = (None, None)

    def allowed(self, grid: Grid) -> Tensor:
        """Boolean tensor that broadcasts to (batch, heads, *grid)."""
        raise NotImplementedError

    def materialize(
        self,
        query_length: int,
        key_length: int,
        device: torch.device | str | None = None,
        heads: int | None = None,
    ) -> Tensor:
        """The whole mask, a boolean tensor that broadcasts to (batch, query heads, query_length, key_length).

        ``heads`` matters to ``PerHead`` alone, which without it has one row per pattern, or as many as the masks
        beside it tell heads apart.
        """
        return self._on(Grid.of_all(query_length, key_length, device), heads)

    def at(self, query: Tensor, key: Tensor, query_length: int, key_length: int, heads: int | None = None) -> Tensor:
        """The rows and columns at the given indices, (batch or 1, heads or 1, rows, columns)."""
        return self._on(Grid(query.unsqueeze(1), key.unsqueeze(0), query_length, key_length), heads)

    def _on(self, grid: Grid, heads: int | None) -> Tensor:
        allowed = self.for_heads(self.heads if heads is None else heads).allowed(grid)
        allowed = allowed.reshape((1,) * (4 - allowed.dim()) + tuple(allowed.shape))
        return allowed.expand(allowed.shape[0], allowed.shape[1], grid.query.shape[0], grid.key.shape[1])

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        """Patterns that together hold every pair that this mask allows (and maybe more)."""
        return [Band() if self.band is None else self.band]

    def key_only(self, query_length: int) -> bool:
        """Whether all queries see the same keys, those of later calls with a cache too."""
        return False

    def seen(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        """Which keys some query may attend to in some head, (batch or 1, key_length); None: all of them."""
        seen = self.for_heads(self.heads).seen_by_head(query_length, key_length, device)
        return None if seen is None else seen.any(dim=1)

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        """``seen`` for each head, (batch or 1, heads or 1, key_length), after ``for_heads``."""
        if self.band is not None:
            return _seen_in_band(self.band, query_length, key_length, device)
        if torch.compiler.is_compiling():
            return any_along(self.materialize(query_length, key_length, device), 2)
        # Only the keys in reach of some queries are looked at, so that the cost grows with the window.
        left, right = _reach(self.support(query_length, key_length), key_length)
        rows = min(max(2**24 // max(key_length, 1), 1), max(left + right, 256))
        offset = key_length - query_length
        seen = None
        for start in range(0, max(query_length, 1), rows):
            stop = min(start + rows, query_length)
            low = min(max(start + offset - left, 0), key_length)
            high = max(min(stop + offset + right, key_length), low)
            query, key = torch.arange(start, stop, device=device), torch.arange(low, high, device=device)
            part = any_along(self.at(query, key, query_length, key_length), 2)
            if seen is None:
                seen = part.new_zeros(*part.shape[:2], key_length)
            seen[..., low:high] |= part
        return seen

    def real(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        """Which keys are no padding, (batch or 1, key_length); None: all.

        What this calls padding no query may attend to, nor will one of a later call with a cache.
        """
        return self.seen(query_length, key_length, device) if self.key_only(query_length) else None

    def for_heads(self, heads: int) -> Mask:
        """This mask with every ``PerHead`` in it spread over that many heads."""
        return self

    def check(self, shape: Shape) -> None:
        """Raise a ValueError unless the mask fits (batch, heads, query_length, key_length)."""

    def head_slice(self, start: int, stop: int) -> Mask:
        """This mask for heads from start to stop only, after ``for_heads``."""
        return self

    def head_groups(self) -> int:
        """Into how many equal groups the heads fall that have a pattern of their own."""
        return 1

    def __and__(self, other: Mask) -> Mask:
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)

    def __str__(self) -> str:
        """The mask drawn as text: one row per query, a filled square for each key that it may attend to."""
        query_length, key_length = self.lengths
        key_length = key_length or query_length or 16
        query_length = query_length or key_length
        query, key = torch.arange(min(query_length, 48)), torch.arange(min(key_length, 48))
        whole = self.at(query, key, query_length, key_length)
        lines = [repr(self)]
        for head in range(whole.shape[1]):
            if whole.shape[1] > 1:
                lines.append(f"head group {head}:")
            lines += ["".join("■" if pair else "·" for pair in row) for row in whole[0, head].tolist()]
        if whole.shape[0] > 1:
            lines.append(f"(the first of {whole.shape[0]} samples)")
        if len(query) < query_length or len(key) < key_length:
            lines.append(f"(the corner of {query_length} queries and {key_length} keys)")
        return "\n".join(lines)


@dataclass(frozen=True)
class Causal(Mask):
    """Keys up to and including the query's own position."""

    relative = True
    causal = True
    band = Band(None, 0)

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key <= grid.position


@dataclass(frozen=True)
class Window(Mask):
    """Keys from ``position - left`` to ``position + right``, both included."""

    left: int
    right: int

    relative = True

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.right <= 0

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(self.left, self.right)

    def allowed(self, grid: Grid) -> Tensor:
        # Comparing sums of one axis each makes no query x key tensor of integers.
        return (grid.key >= grid.position - self.left) & (grid.key <= grid.position + self.right)


@dataclass(frozen=True)
class Strided(Mask):
    """Keys whose distance from the query is a multiple of ``step``."""

    step: int

    relative = True

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"Strided step must be at least 1, got {self.step}")

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(None, None, self.step)

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key % self.step == grid.position % self.step


@dataclass(frozen=True)
class Dilated(Mask):
    """``window`` keys on each side of the query, ``dilation`` apart, and the query's own position."""

    window: int
    dilation: int

    relative = True

    def __post_init__(self) -> None:
        if self.window < 0 or self.dilation < 1:
            raise ValueError(f"Dilated needs window >= 0 and dilation >= 1, got {self.window} and {self.dilation}")

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(self.window * self.dilation, self.window * self.dilation, self.dilation)

    def allowed(self, grid: Grid) -> Tensor:
        return self.band.contains(grid)


@dataclass(frozen=True)
class Window2d(Mask):
    """Swin's partition of a ``rows`` x ``cols`` image of tokens into windows of ``height`` x ``width``.

    ``shift`` moves the partition down and right by that many tokens, without wrap-around: what the shift cuts
    off at the border stays a smaller window (Liu et al. 2021, section 3.2, after masking). The first ``prefix``
    tokens (class token, registers) see all and are seen by all.
    """

    rows: int
    cols: int
    height: int
    width: int
    shift: int = 0
    prefix: int = 0

    @property
    def tokens(self) -> int:
        return self.prefix + self.rows * self.cols

    @property
    def lengths(self) -> tuple[int, int]:  # type: ignore[override]
        return self.tokens, self.tokens

    def window(self, token: Tensor) -> Tensor:
        """Number of the window that each token is in, whatever it is for prefix tokens."""
        cell = (token - self.prefix).clamp(min=0)
        row, col = cell // self.cols, cell % self.cols
        # Adding (size - shift) puts a border at every position congruent to shift, and keeps quotients positive.
        row = (row + (self.height - self.shift % self.height)) // self.height
        col = (col + (self.width - self.shift % self.width)) // self.width
        return row * (self.cols // self.width + 3) + col

    def allowed(self, grid: Grid) -> Tensor:
        if grid.key_length != self.tokens or grid.query_length != self.tokens:
            raise ValueError(
                f"Window2d of {self.rows}x{self.cols} tokens and {self.prefix} prefix tokens needs length "
                f"{self.tokens}, got {grid.query_length} queries and {grid.key_length} keys"
            )
        same = self.window(grid.position) == self.window(grid.key)
        return same | (grid.position < self.prefix) | (grid.key < self.prefix)

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        prefix = tuple(range(self.prefix))
        return [Cells(self), Columns(prefix), Rows(prefix)] if prefix else [Cells(self)]

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> None:
        return None  # every token sees itself


class Global(Mask):
    """The rows and columns of these absolute key positions: they see all and are seen by all.

    Args:
        tokens: positions, counted from 0.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(sorted({int(token) for token in tokens}))
        if self.tokens and self.tokens[0] < 0:
            raise ValueError(f"Global positions are absolute and count from 0, got {self.tokens[0]}")

    def allowed(self, grid: Grid) -> Tensor:
        return pattern.member(grid.position, self.tokens) | pattern.member(grid.key, self.tokens)

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        return [Columns(self.tokens), Rows(self.tokens)]

    def __repr__(self) -> str:
        return f"Global({list(self.tokens)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Global) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash((Global, self.tokens))


class Padding(Mask):
    """Which keys are real.

    Args:
        real: the number of real keys of each sample, an integer tensor (batch,), the rest being padding on the
            right; or a boolean tensor (batch, key_length), True for real keys, which can say left padding too.
    """

    def __init__(self, real: Tensor | Sequence[int]) -> None:
        real = torch.as_tensor(real)
        if real.dtype == torch.bool:
            if real.dim() != 2:
                raise ValueError(f"Padding takes a boolean (batch, key_length), got shape {tuple(real.shape)}")
        elif real.dtype.is_floating_point or real.dtype.is_complex:
            raise ValueError(f"Padding takes lengths (integers) or a boolean tensor, got {real.dtype}")
        elif real.dim() != 1:
            raise ValueError(
                f"Padding takes lengths (batch,) or a boolean (batch, key_length), got {real.dtype} of shape "
                f"{tuple(real.shape)}: for a 0/1 tensor use .bool()"
            )
        self.real_keys = real

    @property
    def lengths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return None, int(self.real_keys.max()) if self.real_keys.dim() == 1 else self.real_keys.shape[1]

    def allowed(self, grid: Grid) -> Tensor:
        real = self.real_keys.to(grid.device)
        if real.dim() == 1:
            if grid.batch is not None:
                return grid.key < real[grid.batch]
            return grid.key < real.reshape(-1, *(1,) * (grid.dims + 1))
        if real.shape[1] != grid.key_length:
            raise ValueError(f"Padding is of shape {tuple(real.shape)} but there are {grid.key_length} keys")
        return real[grid.batch, grid.key] if grid.batch is not None else real[:, grid.key].unsqueeze(1)

    def key_only(self, query_length: int) -> bool:
        return True

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor:
        real = self.real_keys.to(device)
        if real.dim() == 1:
            real = torch.arange(key_length, device=device) < real.unsqueeze(1)
        return real.unsqueeze(1)

    def check(self, shape: Shape) -> None:
        batch, _, _, key_length = shape
        expected = (batch,) if self.real_keys.dim() == 1 else (batch, key_length)
        if self.real_keys.shape[0] not in (1, batch) or self.real_keys.shape[1:] != expected[1:]:
            raise ValueError(
                f"Padding of shape {tuple(self.real_keys.shape)} does not fit {expected}, which is "
                f"{'(batch,)' if len(expected) == 1 else '(batch, key_length)'}"
                " (with a cache, padding covers every key so far)"
            )

    def __repr__(self) -> str:
        return f"Padding({self.real_keys.tolist()})"


class Segments(Mask):
    """Query and key belong to the same segment (packed documents).

    Args:
        query_ids: integer tensor (batch, query_length).
        key_ids: integer tensor (batch, key_length); the query's when left out.
    """

    def __init__(self, query_ids: Tensor, key_ids: Tensor | None = None) -> None:
        self.query_ids = torch.as_tensor(query_ids)
        self.key_ids = self.query_ids if key_ids is None else torch.as_tensor(key_ids)
        for name, ids in (("query_ids", self.query_ids), ("key_ids", self.key_ids)):
            if ids.dim() != 2:
                raise ValueError(f"Segments {name} are (batch, length), got shape {tuple(ids.shape)}")

    @property
    def lengths(self) -> tuple[int, int]:  # type: ignore[override]
        return self.query_ids.shape[1], self.key_ids.shape[1]

    def allowed(self, grid: Grid) -> Tensor:
        query_ids, key_ids = self.query_ids.to(grid.device), self.key_ids.to(grid.device)
        if query_ids.shape[1] != grid.query_length or key_ids.shape[1] != grid.key_length:
            raise ValueError(
                f"Segments are of shapes {tuple(query_ids.shape)} and {tuple(key_ids.shape)} but there are "
                f"{grid.query_length} queries and {grid.key_length} keys"
            )
        if grid.batch is not None:
            return query_ids[grid.batch, grid.query] == key_ids[grid.batch, grid.key]
        return (query_ids[:, grid.query] == key_ids[:, grid.key]).unsqueeze(1)

    def check(self, shape: Shape) -> None:
        for ids, length in ((self.query_ids, shape[2]), (self.key_ids, shape[3])):
            if ids.shape[0] not in (1, shape[0]) or ids.shape[1] != length:
                raise ValueError(
                    f"Segments of shape {tuple(ids.shape)} do not fit {(shape[0], length)}, which is (batch, length)"
                )

    def __repr__(self) -> str:
        return f"Segments({self.query_ids.tolist()}, {self.key_ids.tolist()})"


class Dense(Mask):
    """A boolean tensor as it stands: (query, key), or 4-D broadcasting to (batch, heads, query, key)."""

    def __init__(self, mask: Tensor) -> None:
        if mask.dtype != torch.bool:
            raise ValueError(f"Dense takes a boolean tensor, got {mask.dtype}: use .bool()")
        check_dims(mask)
        self.mask = mask

    @property
    def heads(self) -> int:  # type: ignore[override]
        return self.mask.shape[1] if self.mask.dim() == 4 else 1

    @property
    def lengths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return tuple(length if length > 1 else None for length in self.mask.shape[-2:])  # type: ignore[return-value]

    def key_only(self, query_length: int) -> bool:
        # The row of a single query says nothing of the queries to come.
        return self.mask.shape[-2] == 1 and query_length > 1

    def allowed(self, grid: Grid) -> Tensor:
        mask = self.mask.to(grid.device)
        check_lengths(mask, grid.query_length, grid.key_length)
        if grid.whole and as_it_stands(mask, grid.key_length):
            return mask
        query = grid.query if mask.shape[-2] > 1 else grid.query * 0
        key = grid.key if mask.shape[-1] > 1 else grid.key * 0
        if grid.batch is None or grid.head is None or mask.dim() == 2:
            return mask[..., query, key]
        batch = grid.batch if mask.shape[0] > 1 else grid.batch * 0
        head = grid.head if mask.shape[1] > 1 else grid.head * 0
        return mask[batch, head, query, key]

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor:
        check_lengths(self.mask, query_length, key_length)
        seen = any_along(self.mask, -2).expand(*self.mask.shape[:-2], key_length).to(device)
        return seen if seen.dim() == 3 else seen[None, None]

    def check(self, shape: Shape) -> None:
        check_shape(self.mask, shape)

    def head_slice(self, start: int, stop: int) -> Mask:
        return Dense(self.mask[:, start:stop]) if self.mask.dim() == 4 and self.mask.shape[1] > 1 else self

    def __repr__(self) -> str:
        return f"Dense({tuple(self.mask.shape)})"


@dataclass(frozen=True)
class _Pair(Mask):
    """What ``And`` and ``Or`` have in common."""

    first: Mask
    second: Mask

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return self.first.relative and self.second.relative

    @property
    def heads(self) -> int:  # type: ignore[override]
        return pattern.common_multiple(self.first.heads, self.second.heads)

    @property
    def lengths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return _common_lengths(self.first, self.second)

    def key_only(self, query_length: int) -> bool:
        return self.first.key_only(query_length) and self.second.key_only(query_length)

    def for_heads(self, heads: int) -> Mask:
        return type(self)(self.first.for_heads(heads), self.second.for_heads(heads))

    def head_slice(self, start: int, stop: int) -> Mask:
        return type(self)(self.first.head_slice(start, stop), self.second.head_slice(start, stop))

    def check(self, shape: Shape) -> None:
        self.first.check(shape)
        self.second.check(shape)

    def head_groups(self) -> int:
        return pattern.common_multiple(self.first.head_groups(), self.second.head_groups())


@dataclass(frozen=True)
class And(_Pair):
    """Pairs that both masks allow."""

    def allowed(self, grid: Grid) -> Tensor:
        return self.first.allowed(grid) & self.second.allowed(grid)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal or self.second.causal

    @property
    def band(self) -> Band | None:  # type: ignore[override]
        a, b = self.first.band, self.second.band
        return None if a is None or b is None else a.intersect(b)

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        first, second = (mask.support(query_length, key_length) for mask in (self.first, self.second))
        return pattern.intersect(first, second, query_length, key_length)

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        first, second = self.first, self.second
        if self.band is not None or not (first.key_only(query_length) or second.key_only(query_length)):
            return super().seen_by_head(query_length, key_length, device)
        return _and(*(mask.seen_by_head(query_length, key_length, device) for mask in (first, second)))

    def real(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        if self.key_only(query_length):
            return super().real(query_length, key_length, device)
        return _and(*(mask.real(query_length, key_length, device) for mask in (self.first, self.second)))

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


@dataclass(frozen=True)
class Or(_Pair):
    """Pairs that either mask allows."""

    def allowed(self, grid: Grid) -> Tensor:
        return self.first.allowed(grid) | self.second.allowed(grid)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal and self.second.causal

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        first, second = (mask.support(query_length, key_length) for mask in (self.first, self.second))
        return pattern.union([*first, *second], query_length, key_length)

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        return _or(mask.seen_by_head(query_length, key_length, device) for mask in (self.first, self.second))

    def real(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        return _or(mask.real(query_length, key_length, device) for mask in (self.first, self.second))

    def __repr__(self) -> str:
        return f"({self.first!r} | {self.second!r})"


@dataclass(frozen=True)
class Not(Mask):
    """Pairs that the mask forbids."""

    mask: Mask

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return self.mask.relative

    @property
    def heads(self) -> int:  # type: ignore[override]
        return self.mask.heads

    @property
    def lengths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return self.mask.lengths

    def key_only(self, query_length: int) -> bool:
        return self.mask.key_only(query_length)

    def allowed(self, grid: Grid) -> Tensor:
        return ~self.mask.allowed(grid)

    def for_heads(self, heads: int) -> Mask:
        return Not(self.mask.for_heads(heads))

    def head_slice(self, start: int, stop: int) -> Mask:
        return Not(self.mask.head_slice(start, stop))

    def check(self, shape: Shape) -> None:
        self.mask.check(shape)

    def head_groups(self) -> int:
        return self.mask.head_groups()

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


class PerHead(Mask):
    """Groups of heads with a pattern each: some look near, some look far.

    Args:
        masks: one mask per group of heads; the heads are split into that many equal groups, in order.
    """

    def __init__(self, masks: Sequence[Mask], heads: int | None = None) -> None:
        self.masks = tuple(masks)
        self.heads = len(self.masks) if heads is None else heads
        if not self.masks or self.heads % len(self.masks):
            raise ValueError(f"{self.heads} heads cannot be split into {len(self.masks)} equal groups")
        if any(mask.heads > 1 for mask in self.masks):
            raise ValueError("a mask inside PerHead cannot itself differ between heads")

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return all(mask.causal for mask in self.masks)

    @property
    def lengths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        return _common_lengths(*self.masks)

    def key_only(self, query_length: int) -> bool:
        return all(mask.key_only(query_length) for mask in self.masks)

    def seen_by_head(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        parts = [mask.seen_by_head(query_length, key_length, device) for mask in self.masks]
        known = [part for part in parts if part is not None]
        if not known:
            return None
        shape = max(part.shape[0] for part in known), self.heads // len(self.masks), key_length
        whole = torch.ones(1, 1, key_length, dtype=torch.bool, device=device)
        return torch.cat([(whole if part is None else part).expand(shape) for part in parts], dim=1)

    def real(self, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
        return _or(mask.real(query_length, key_length, device) for mask in self.masks)

    def support(self, query_length: int, key_length: int) -> list[Pattern]:
        patterns = [p for mask in self.masks for p in mask.support(query_length, key_length)]
        return pattern.union(patterns, query_length, key_length)

    def for_heads(self, heads: int) -> Mask:
        return PerHead(self.masks, heads)

    def head_slice(self, start: int, stop: int) -> Mask:
        group = self.heads // len(self.masks)
        first, last = start // group, (stop - 1) // group
        return self.masks[first] if first == last else PerHead([self.masks[h // group] for h in range(start, stop)])

    def check(self, shape: Shape) -> None:
        if shape[1] % len(self.masks):
            raise ValueError(f"{shape[1]} heads cannot be split into {len(self.masks)} equal groups")
        for mask in self.masks:
            mask.check((shape[0], 1, *shape[2:]))

    def head_groups(self) -> int:
        return len(self.masks)

    def allowed(self, grid: Grid) -> Tensor:
        group = self.heads // len(self.masks)
        parts = [mask.allowed(grid) for mask in self.masks]
        if grid.head is not None:
            chosen = parts[0]
            for number, part in enumerate(parts[1:], start=1):
                chosen = torch.where(grid.head // group >= number, part, chosen)
            return chosen
        parts = [part.reshape((1,) * (grid.dims + 2 - part.dim()) + tuple(part.shape)) for part in parts]
        shape = torch.broadcast_shapes(*(part.shape for part in parts))
        return torch.cat([part.expand(shape).expand(-1, group, *shape[2:]) for part in parts], dim=1)

    def __repr__(self) -> str:
        return f"PerHead({list(self.masks)!r})"


Shape = tuple[int, int, int, int]


def parse_mask(mask: Mask | Tensor | None, shape: Shape) -> tuple[Mask | None, Tensor | None]:
    """What a caller passed as ``mask``, as (mask, tensor added to the scores).

    Args:
        mask: what was passed.
        shape: (batch, heads, query_length, key_length) that it must broadcast to.

    Returns:
        a mask for as many heads, which also says where a float tensor holds -inf; and that tensor with 0 there.

    Raises:
        ValueError: for integers, 3-D tensors, wrong shapes, and anything that is no mask.
    """
    if mask is None:
        return None, None
    if isinstance(mask, Mask):
        mask.check(shape)
        return mask.for_heads(shape[1]), None
    if not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a Mask or a tensor, got {type(mask).__name__}; {CONVENTION}")
    if mask.dtype == torch.bool:
        dense = Dense(mask)
        dense.check(shape)
        return dense, None
    if not mask.dtype.is_floating_point:
        raise ValueError(f"got an integer mask ({mask.dtype}): use .bool(), where True means 'may attend'")
    check_dims(mask)
    check_shape(mask, shape)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        hidden = mask == float("-inf")  # a graph cannot ask whether there are any
        return Dense(~hidden), mask.masked_fill(hidden, 0.0)
    least, most = torch.stack(mask.detach().aminmax()).tolist() if mask.numel() else (0.0, 0.0)
    if most == 1.0 and least in (0.0, 1.0) and bool(((mask == 0) | (mask == 1)).all()):
        warnings.warn(
            "a float mask is added to the scores, and this one holds only 0 and 1: was .bool() meant?",
            stacklevel=4,
        )
    if least != float("-inf"):
        return None, mask
    hidden = mask == float("-inf")
    if most <= 0.0 and not mask.requires_grad and bool((hidden | (mask == 0)).all()):
        return Dense(~hidden), None
    return Dense(~hidden), mask.masked_fill(hidden, 0.0)


def as_it_stands(mask: Tensor, key_length: int) -> bool:
    """Whether kernels can read a tensor's rows in place."""
    return mask.shape[-1] == key_length and mask.stride(-1) == 1


def any_along(mask: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """``mask.any(dim)``, which on CPUs takes 50 times as long as a maximum does."""
    tracing = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
    if mask.device.type == "cpu" and not tracing and mask.shape[dim]:
        return mask.view(torch.uint8).amax(dim, keepdim).view(torch.bool)
    return mask.any(dim, keepdim)


def check_dims(mask: Tensor) -> None:
    if mask.dim() not in (2, 4):
        raise ValueError(
            f"a mask tensor is (query, key) or 4-D, got shape {tuple(mask.shape)}: {CONVENTION}"
            + ("; write mask[:, None] if the first axis is the batch" if mask.dim() == 3 else "")
        )


def check_lengths(mask: Tensor, query_length: int, key_length: int) -> None:
    leading = mask.shape[:2] if mask.dim() == 4 else (1, 1)
    check_shape(mask, (*leading, query_length, key_length))


def check_shape(mask: Tensor, shape: Shape) -> None:
    """Raise a ValueError unless a 2-D or 4-D mask broadcasts to (batch, heads, query_length, key_length)."""
    expected = shape[-mask.dim() :]
    if any(size not in (1, wanted) for size, wanted in zip(mask.shape, expected, strict=True)):
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not broadcast to {tuple(shape)}: {CONVENTION}")


def _seen_in_band(band: Band, query_length: int, key_length: int, device: torch.device) -> Tensor | None:
    """Keys that some query of the band reaches: there is a position in reach that the step hits."""
    first, last = key_length - query_length, key_length - 1
    self_seen = (band.left is None or band.left >= 0) and (band.right is None or band.right >= 0)
    if self_seen and (first <= 0 or (band.step == 1 and band.left is None)):
        return None
    key = torch.arange(key_length, device=device)
    low = torch.full_like(key, first) if band.right is None else (key - band.right).clamp(min=first)
    high = torch.full_like(key, last) if band.left is None else (key + band.left).clamp(max=last)
    return (low + (key - low) % band.step <= high)[None, None]


def _reach(patterns: Sequence[Pattern], key_length: int) -> tuple[int, int]:
    """How far ``patterns`` reach to the left and to the right of a query, at most the whole length."""
    left = right = 0
    for each in patterns:
        band = each if isinstance(each, Band) else Band()
        left = max(left, key_length if band.left is None else min(band.left, key_length))
        right = max(right, key_length if band.right is None else min(band.right, key_length))
    return left, right


def _and(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both, where None stands for all True."""
    return second if first is None else first if second is None else first & second


def _or(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Any of them, where None stands for all True."""
    total: Tensor | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else total | part
    return total


def _common_lengths(*masks: Mask) -> tuple[int | None, int | None]:
    pairs = zip(*(mask.lengths for mask in masks), strict=True)
    query, key = (max((length for length in known if length), default=None) for known in pairs)
    return query, key
