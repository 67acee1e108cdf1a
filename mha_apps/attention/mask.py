"""Which query may attend to which key: small objects that compose with ``&``, ``|`` and ``~``.

A mask is a predicate over index pairs (``allowed``). ``materialize`` evaluates it on the whole grid and is the
definition of the mask; kernels evaluate it on the tiles that they compute, and ask ``support`` where the True
entries can be at all. True means *may attend*, as in ``F.scaled_dot_product_attention``.

With more keys than queries, query ``i`` stands at key position ``key_length - query_length + i``: the queries are
the newest positions, as with a cache. The same formula holds with fewer keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Causal", "Dense", "Dilated", "Global", "Mask", "Padding", "PerHead", "Segments", "Strided", "Window", "Window2d",
]  # fmt: skip

CONVENTION = "masks broadcast to (batch, heads, query_length, key_length) and True means 'may attend'"


@dataclass(frozen=True)
class Grid:
    """Index pairs on which a mask is evaluated.

    ``query`` and ``key`` are integer tensors that broadcast against each other, e.g. (query, 1) and (1, key);
    ``query`` counts from 0 and ``key`` is the absolute key position. A predicate's result broadcasts to
    (batch, heads, *grid).
    """

    query: Tensor
    key: Tensor
    query_length: int
    key_length: int

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
    """Base of every mask. Subclasses say which pairs are allowed."""

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

        ``heads`` matters to ``PerHead`` alone, which has one row per pattern without it.
        """
        query = torch.arange(query_length, device=device).unsqueeze(1)
        key = torch.arange(key_length, device=device).unsqueeze(0)
        allowed = self.for_heads(heads).allowed(Grid(query, key, query_length, key_length))
        missing = 4 - allowed.dim()
        allowed = allowed.reshape((1,) * missing + tuple(allowed.shape))
        return allowed.expand(allowed.shape[0], allowed.shape[1], query_length, key_length)

    def for_heads(self, heads: int | None) -> Mask:
        """This mask with every ``PerHead`` in it spread over that many heads."""
        return self

    def __and__(self, other: Mask) -> Mask:
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True)
class Causal(Mask):
    """Keys up to and including the query's own position."""

    def allowed(self, grid: Grid) -> Tensor:
        return grid.key <= grid.position


@dataclass(frozen=True)
class Window(Mask):
    """Keys from ``position - left`` to ``position + right``, both included."""

    left: int
    right: int

    def allowed(self, grid: Grid) -> Tensor:
        distance = grid.key - grid.position
        return (distance >= -self.left) & (distance <= self.right)


@dataclass(frozen=True)
class Strided(Mask):
    """Keys whose distance from the query is a multiple of ``step``."""

    step: int

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"Strided step must be at least 1, got {self.step}")

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.key - grid.position) % self.step == 0


@dataclass(frozen=True)
class Dilated(Mask):
    """``window`` keys on each side of the query, ``dilation`` apart, and the query's own position."""

    window: int
    dilation: int

    def __post_init__(self) -> None:
        if self.window < 0 or self.dilation < 1:
            raise ValueError(
                f"Dilated needs window >= 0 and dilation >= 1, got {self.window} and {self.dilation}"
            )

    def allowed(self, grid: Grid) -> Tensor:
        distance = grid.key - grid.position
        return (distance.abs() <= self.window * self.dilation) & (distance % self.dilation == 0)


@dataclass(frozen=True)
class Window2d(Mask):
    """Swin's partition of a ``rows`` x ``cols`` image of tokens into windows of ``height`` x ``width``.

    ``shift`` moves the partition down and right by that many tokens, without wrap-around: what the shift cuts off at
    the border stays a smaller window (Liu et al. 2021, section 3.2, after masking). The first ``prefix`` tokens (class
    token, registers) see all and are seen by all.
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

    def _window(self, token: Tensor) -> Tensor:
        cell = (token - self.prefix).clamp(min=0)
        row, col = cell // self.cols, cell % self.cols
        # Adding (size - shift) puts a border at every position congruent to shift, and keeps the quotient positive.
        row = (row + (self.height - self.shift % self.height)) // self.height
        col = (col + (self.width - self.shift % self.width)) // self.width
        return row * (self.cols // self.width + 3) + col

    def allowed(self, grid: Grid) -> Tensor:
        if grid.key_length != self.tokens or grid.query_length != self.tokens:
            raise ValueError(
                f"Window2d of {self.rows}x{self.cols} tokens and {self.prefix} prefix tokens needs length {self.tokens}, "
                f"got {grid.query_length} queries and {grid.key_length} keys"
            )
        same = self._window(grid.position) == self._window(grid.key)
        return same | (grid.position < self.prefix) | (grid.key < self.prefix)


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
        tokens = torch.tensor(self.tokens, dtype=torch.long, device=grid.device)
        return torch.isin(grid.position, tokens) | torch.isin(grid.key, tokens)

    def __repr__(self) -> str:
        return f"Global({list(self.tokens)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Global) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash((Global, self.tokens))


class Padding(Mask):
    """Which keys are real.

    Args:
        real: the number of real keys of each sample, an integer tensor (batch,), the rest being padding on the right;
            or a boolean tensor (batch, key_length), True for real keys, which can say left padding too.
    """

    def __init__(self, real: Tensor | Sequence[int]) -> None:
        real = torch.as_tensor(real)
        if real.dtype == torch.bool:
            if real.dim() != 2:
                raise ValueError(
                    f"Padding takes a boolean (batch, key_length), got shape {tuple(real.shape)}"
                )
        elif real.dtype.is_floating_point or real.dtype.is_complex:
            raise ValueError(f"Padding takes lengths (integers) or a boolean tensor, got {real.dtype}")
        elif real.dim() != 1:
            raise ValueError(
                f"Padding takes lengths (batch,) or a boolean (batch, key_length), got {real.dtype} of shape "
                f"{tuple(real.shape)}: for a 0/1 tensor use .bool()"
            )
        self.real = real

    def allowed(self, grid: Grid) -> Tensor:
        real = self.real.to(grid.device)
        if real.dtype != torch.bool:
            return grid.key < real.reshape(-1, *(1,) * (grid.dims + 1))
        if real.shape[1] != grid.key_length:
            raise ValueError(
                f"Padding is of shape {tuple(real.shape)} but there are {grid.key_length} keys "
                "(with a cache, padding covers every key so far)"
            )
        return real[:, grid.key].unsqueeze(1)

    def __repr__(self) -> str:
        return f"Padding({self.real.tolist()})"


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

    def allowed(self, grid: Grid) -> Tensor:
        query_ids, key_ids = self.query_ids.to(grid.device), self.key_ids.to(grid.device)
        if query_ids.shape[1] != grid.query_length or key_ids.shape[1] != grid.key_length:
            raise ValueError(
                f"Segments are of shapes {tuple(query_ids.shape)} and {tuple(key_ids.shape)} but there are "
                f"{grid.query_length} queries and {grid.key_length} keys"
            )
        return (query_ids[:, grid.query] == key_ids[:, grid.key]).unsqueeze(1)

    def __repr__(self) -> str:
        return f"Segments({self.query_ids.tolist()}, {self.key_ids.tolist()})"


class Dense(Mask):
    """A boolean tensor as it stands: (query, key), or 4-D broadcasting to (batch, heads, query, key)."""

    def __init__(self, mask: Tensor) -> None:
        if mask.dtype != torch.bool:
            raise ValueError(f"Dense takes a boolean tensor, got {mask.dtype}: use .bool()")
        _check_dims(mask)
        self.mask = mask

    def allowed(self, grid: Grid) -> Tensor:
        mask = self.mask.to(grid.device)
        _check_lengths(mask, grid.query_length, grid.key_length)
        query = grid.query if mask.shape[-2] > 1 else grid.query * 0
        key = grid.key if mask.shape[-1] > 1 else grid.key * 0
        return mask[..., query, key]

    def __repr__(self) -> str:
        return f"Dense({tuple(self.mask.shape)})"


@dataclass(frozen=True)
class And(Mask):
    """Pairs that both masks allow."""

    first: Mask
    second: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return self.first.allowed(grid) & self.second.allowed(grid)

    def for_heads(self, heads: int | None) -> Mask:
        return And(self.first.for_heads(heads), self.second.for_heads(heads))

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


@dataclass(frozen=True)
class Or(Mask):
    """Pairs that either mask allows."""

    first: Mask
    second: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return self.first.allowed(grid) | self.second.allowed(grid)

    def for_heads(self, heads: int | None) -> Mask:
        return Or(self.first.for_heads(heads), self.second.for_heads(heads))

    def __repr__(self) -> str:
        return f"({self.first!r} | {self.second!r})"


@dataclass(frozen=True)
class Not(Mask):
    """Pairs that the mask forbids."""

    mask: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return ~self.mask.allowed(grid)

    def for_heads(self, heads: int | None) -> Mask:
        return Not(self.mask.for_heads(heads))

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

    def for_heads(self, heads: int | None) -> Mask:
        return PerHead(self.masks, heads)

    def allowed(self, grid: Grid) -> Tensor:
        dims = grid.dims
        parts = [mask.allowed(grid) for mask in self.masks]
        parts = [part.reshape((1,) * (dims + 2 - part.dim()) + tuple(part.shape)) for part in parts]
        if any(part.shape[1] > 1 for part in parts):
            raise ValueError("a mask inside PerHead cannot itself differ between heads")
        shape = torch.broadcast_shapes(*(part.shape for part in parts))
        group = self.heads // len(self.masks)
        return torch.cat([part.expand(shape).expand(-1, group, *shape[2:]) for part in parts], dim=1)

    def __repr__(self) -> str:
        return f"PerHead({list(self.masks)!r})"


def parse_mask(mask: Mask | Tensor | None) -> tuple[Mask | None, Tensor | None]:
    """What a caller passed as ``mask``, as (mask, tensor added to the scores).

    Raises:
        ValueError: for integers, 3-D tensors, and anything that is no mask.
    """
    if mask is None or isinstance(mask, Mask):
        return mask, None
    if not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a Mask or a tensor, got {type(mask).__name__}; {CONVENTION}")
    if mask.dtype == torch.bool:
        return Dense(mask), None
    if not mask.dtype.is_floating_point:
        raise ValueError(f"got an integer mask ({mask.dtype}): use .bool(), where True means 'may attend'")
    _check_dims(mask)
    if (
        not torch.compiler.is_compiling()
        and mask.numel()
        and bool(((mask == 0) | (mask == 1)).all())
        and bool(mask.any())
    ):
        warnings.warn(
            "a float mask is added to the scores, and this one holds only 0 and 1: was .bool() meant?",
            stacklevel=3,
        )
    return None, mask


def _check_dims(mask: Tensor) -> None:
    if mask.dim() not in (2, 4):
        raise ValueError(
            f"a mask tensor is (query, key) or 4-D, got shape {tuple(mask.shape)}: {CONVENTION}"
            + ("; write mask[:, None] if the first axis is the batch" if mask.dim() == 3 else "")
        )


def _check_lengths(mask: Tensor, query_length: int, key_length: int) -> None:
    if mask.shape[-2] not in (1, query_length) or mask.shape[-1] not in (1, key_length):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to (batch, heads, {query_length}, {key_length}): "
            f"{CONVENTION}"
        )
