"""Where a token stands: additive codes for inputs, rotations of queries and keys, biases of scores.

``Sinusoidal`` and ``Learned`` are added to a model's input. ``Rotary``, ``RelativeBias`` and ``ALiBi`` are passed to
``MultiHeadAttention(position=...)``: it calls ``rotate`` on queries and keys and ``score_bias`` once per forward.
Positions count from 0 at the first key; query i stands at ``key_length - query_length + i``, as for masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .mask import Grid, as_it_stands, check_lengths

__all__ = ["ALiBi", "Learned", "Position", "RelativeBias", "Rotary", "ScoreBias", "Sinusoidal"]


class ScoreBias:
    """Something that is added to the scores, which kernels read tile by tile.

    ``tensor`` holds its numbers, which are finite (who may not attend is up to the mask), and may be learned.
    """

    tensor: Tensor
    #: Whether it depends on key - position alone.
    relative: bool = False

    def read(self, grid: Grid) -> Tensor:
        """The bias on a grid of indices, broadcasting to (batch, heads, *grid)."""
        raise NotImplementedError

    def add_gradient(self, grad: Tensor, grid: Grid, scores_grad: Tensor, batch: slice) -> None:
        """Add to ``grad``, of the tensor's shape, what the scores of a grid of three axes pass back.

        ``scores_grad`` is (samples, heads, blocks, rows, columns) for the samples of ``batch``.
        """
        raise NotImplementedError

    def of_heads(self, tensor: Tensor, heads: slice) -> Tensor:
        """The part of the tensor, or of one of its shape, that those heads use."""
        raise NotImplementedError

    def head_slice(self, heads: slice) -> ScoreBias:
        """This bias for those heads only."""
        raise NotImplementedError


@dataclass(frozen=True)
class TableBias(ScoreBias):
    """A table (heads, entries), and for each pair the number of its entry."""

    tensor: Tensor
    entry: Callable[[Grid], Tensor]
    relative: bool = False

    def read(self, grid: Grid) -> Tensor:
        return self.tensor[slice(None) if grid.head is None else grid.head, self.entry(grid)]

    def add_gradient(self, grad: Tensor, grid: Grid, scores_grad: Tensor, batch: slice) -> None:
        entry = self.entry(grid)
        flat = scores_grad.sum(dim=0)  # (heads, blocks, rows, columns)
        flat = flat.sum(dim=1, keepdim=True) if entry.shape[0] == 1 else flat
        grad.index_add_(1, entry.expand(flat.shape[1:]).flatten(), flat.flatten(1).to(grad.dtype))

    def of_heads(self, tensor: Tensor, heads: slice) -> Tensor:
        return tensor[heads]

    def head_slice(self, heads: slice) -> ScoreBias:
        return replace(self, tensor=self.tensor[heads])


@dataclass(frozen=True)
class TensorBias(ScoreBias):
    """A tensor over (query, key), or 4-D broadcasting to (batch, heads, query, key), as it stands."""

    tensor: Tensor

    def _index(self, grid: Grid) -> tuple[Tensor, Tensor]:
        query = grid.query if self.tensor.shape[-2] > 1 else grid.query * 0
        return query, grid.key if self.tensor.shape[-1] > 1 else grid.key * 0

    def read(self, grid: Grid) -> Tensor:
        check_lengths(self.tensor, grid.query_length, grid.key_length)
        if grid.whole and as_it_stands(self.tensor, grid.key_length):
            return self.tensor
        if grid.batch is None or grid.head is None or self.tensor.dim() == 2:
            return self.tensor[(..., *self._index(grid))]
        batch = grid.batch if self.tensor.shape[0] > 1 else grid.batch * 0
        head = grid.head if self.tensor.shape[1] > 1 else grid.head * 0
        return self.tensor[(batch, head, *self._index(grid))]

    def add_gradient(self, grad: Tensor, grid: Grid, scores_grad: Tensor, batch: slice) -> None:
        query, key = torch.broadcast_tensors(*self._index(grid))
        if grad.dim() == 2:
            grad.index_put_((query, key), scores_grad.sum(dim=(0, 1)), accumulate=True)
            return
        if grad.shape[1] == 1:
            scores_grad = scores_grad.sum(dim=1, keepdim=True)
        if grad.shape[0] == 1:
            scores_grad, batch = scores_grad.sum(dim=0, keepdim=True), slice(0, 1)
        samples = torch.arange(batch.start, batch.stop, device=grad.device).view(-1, 1, 1, 1, 1)
        heads = torch.arange(grad.shape[1], device=grad.device).view(1, -1, 1, 1, 1)
        grad.index_put_((samples, heads, query, key), scores_grad, accumulate=True)

    def of_heads(self, tensor: Tensor, heads: slice) -> Tensor:
        return tensor[:, heads] if tensor.dim() == 4 and tensor.shape[1] > 1 else tensor

    def head_slice(self, heads: slice) -> ScoreBias:
        return TensorBias(self.of_heads(self.tensor, heads))


def in_full(tensor: Tensor) -> Tensor:
    """A learned tensor of half precision in float32: the gradient of a number is a sum over many pairs of tokens."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) and tensor.requires_grad else tensor


class Position(nn.Module):
    """Base of what ``MultiHeadAttention(position=...)`` takes."""

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """Queries or keys (batch, heads, length, head_dim) standing at ``position`` (length,)."""
        return x

    def score_bias(self, query_length: int, key_length: int) -> ScoreBias | None:
        """What to add to the scores, if anything."""
        return None


class Rotary(Position):
    """Rotates pairs of channels by an angle that grows with position (Su et al. 2021, equation 34).

    Scores then depend on distances only, at any length. With ``grid`` the first half of the channels turns with the
    row of a token in an image and the second half with its column (axial, as in Heo et al. 2024).

    Args:
        base: longest wavelength over 2 pi.
        grid: (rows, columns) of an image whose tokens are in row-major order.
        prefix: class tokens and registers before the image, which are not rotated. With ``grid`` only.
    """

    def __init__(self, *, base: float = 10000.0, grid: tuple[int, int] | None = None, prefix: int = 0) -> None:
        super().__init__()
        if prefix and grid is None:
            raise ValueError("Rotary takes a prefix together with a grid only")
        self.base, self.grid, self.prefix = base, grid, prefix

    def extra_repr(self) -> str:
        return f"base={self.base}, grid={self.grid}, prefix={self.prefix}"

    def angle(self, position: Tensor, head_dim: int) -> Tensor:
        """(length, head_dim / 2) angles."""
        axes = 1 if self.grid is None else 2
        if head_dim % (2 * axes):
            raise ValueError(f"Rotary needs a head_dim that {2 * axes} divides, got {head_dim}")
        pairs = head_dim // (2 * axes)
        exponent = torch.arange(pairs, device=position.device, dtype=torch.float32) / pairs
        frequency = self.base**-exponent
        if self.grid is None:
            return position.float().unsqueeze(1) * frequency
        cell = (position - self.prefix).clamp(min=0)
        image = (position >= self.prefix).float()
        row, column = (image * (cell // self.grid[1]), image * (cell % self.grid[1]))
        return torch.cat([row.unsqueeze(1) * frequency, column.unsqueeze(1) * frequency], dim=1)

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        angle = self.angle(position, x.shape[-1])
        sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class RelativeBias(Position):
    """A learned number per head and distance, added to the scores.

    In one dimension distances beyond ``max_distance`` share the last number (Shaw et al. 2018, clipped as there), so
    any length works. With ``grid`` there is one number per difference of rows and of columns (Liu et al. 2021,
    equation 4), where ``max_distance`` may clip both.

    Args:
        heads: attention heads.
        max_distance: the largest distance with a number of its own; needed in one dimension.
        grid: (rows, columns) of an image whose tokens are in row-major order.
        prefix: class tokens and registers before the image: three more numbers stand for prefix to image, image to
            prefix and prefix to prefix.
    """

    def __init__(
        self,
        heads: int,
        *,
        max_distance: int | None = None,
        grid: tuple[int, int] | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        if max_distance is None and grid is None:
            raise ValueError("RelativeBias needs max_distance (1-D) or grid (2-D)")
        if prefix and grid is None:
            raise ValueError("RelativeBias takes a prefix together with a grid only")
        self.max_distance, self.grid, self.prefix = max_distance, grid, prefix
        if grid is None:
            assert max_distance is not None
            self.reach: tuple[int, ...] = (max_distance,)
        else:
            self.reach = tuple(side - 1 if max_distance is None else min(side - 1, max_distance) for side in grid)
        entries = math.prod(2 * reach + 1 for reach in self.reach) + (3 if prefix else 0)
        self.table = nn.Parameter(torch.empty(heads, entries))
        nn.init.trunc_normal_(self.table, std=0.02)

    def extra_repr(self) -> str:
        return f"heads={self.table.shape[0]}, max_distance={self.max_distance}, grid={self.grid}, prefix={self.prefix}"

    def score_bias(self, query_length: int, key_length: int) -> ScoreBias:
        if self.grid is None:
            return TableBias(in_full(self.table), ClippedDistance(*self.reach), relative=True)
        tokens = self.prefix + self.grid[0] * self.grid[1]
        if key_length > tokens:
            raise ValueError(
                f"RelativeBias of {self.grid} with prefix {self.prefix} has {tokens} positions, got {key_length} keys"
            )
        down, across = self.reach
        return TableBias(in_full(self.table), GridDistance(self.grid[1], down, across, self.prefix))


class ALiBi(Position):
    """Subtracts a slope per head times the distance from the scores (Press et al. 2022), at any length.

    Args:
        heads: attention heads. The slopes are a geometric sequence from 2^(-8 / heads) to 2^-8; where heads are no
            power of two, the missing ones come from between, as in the paper's code.
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        power = 2 ** (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def score_bias(self, query_length: int, key_length: int) -> ScoreBias:
        reach = max(query_length, key_length)
        table = -self.slopes.float().unsqueeze(1) * torch.arange(reach + 1, device=self.slopes.device)
        return TableBias(table, Distance(), relative=True)


@dataclass(frozen=True)
class Distance:
    """Entry number: the distance of key and query."""

    def __call__(self, grid: Grid) -> Tensor:
        return (grid.key - grid.position).abs()


@dataclass(frozen=True)
class ClippedDistance:
    """Entry number: key minus query, clipped, from 0."""

    limit: int

    def __call__(self, grid: Grid) -> Tensor:
        return (grid.key - grid.position).clamp(-self.limit, self.limit) + self.limit


@dataclass(frozen=True)
class GridDistance:
    """Entry number: difference of rows and of columns in an image, each clipped; the last three concern the prefix."""

    columns: int
    row_reach: int
    column_reach: int
    prefix: int

    def __call__(self, grid: Grid) -> Tensor:
        query, key = (grid.position - self.prefix).clamp(min=0), (grid.key - self.prefix).clamp(min=0)
        row = (key // self.columns - query // self.columns).clamp(-self.row_reach, self.row_reach)
        column = (key % self.columns - query % self.columns).clamp(-self.column_reach, self.column_reach)
        width = 2 * self.column_reach + 1
        entry = (row + self.row_reach) * width + column + self.column_reach
        if not self.prefix:
            return entry
        last = (2 * self.row_reach + 1) * width
        from_prefix, to_prefix = grid.position < self.prefix, grid.key < self.prefix
        outside = last + torch.where(from_prefix, torch.where(to_prefix, 2, 0), 1)
        return torch.where(from_prefix | to_prefix, outside, entry)


class Sinusoidal(nn.Module):
    """Adds the sinusoidal code of Vaswani et al. 2017, section 3.5, at any length.

    Args:
        dim: channels of the input; the first half of the code holds sines, the second half cosines.
        base: longest wavelength over 2 pi.
    """

    def __init__(self, dim: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"Sinusoidal needs an even dim, got {dim}")
        self.dim, self.base = dim, base

    def code(self, length: int, start: int = 0, device: torch.device | None = None) -> Tensor:
        """The code of ``length`` positions from ``start`` on, (length, dim)."""
        half = self.dim // 2
        frequency = self.base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        position = torch.arange(start, start + length, device=device, dtype=torch.float32)
        angle = position.unsqueeze(1) * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (batch, length, dim) plus the code of positions start, start + 1, ..."""
        return x + self.code(x.shape[1], start, x.device).to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector per position (Devlin et al. 2019).

    Args:
        length: the number of positions there are; longer inputs raise a ValueError.
        dim: channels of the input.
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, dim))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (batch, length, dim) plus the vectors of positions start, start + 1, ..."""
        stop = start + x.shape[1]
        if stop > self.weight.shape[0]:
            raise ValueError(f"Learned has {self.weight.shape[0]} positions, the input reaches position {stop - 1}")
        return x + self.weight[start:stop].to(x.dtype)
