"""From a frame of sensors to windows: what the model sees of the past, and what came after.

Everything after the reader works on one padded tensor of shape ``(series, rows)`` in which NaN means missing;
windows are views into it, so ten thousand series or five million rows cost no copies. The frame is never filled:
a missing input becomes a zero after centring, beside a mask that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["LONGEST_GAP", "Batch", "Scaler", "Windows", "centre", "span", "split_rows", "spread", "whole_patches"]

LONGEST_GAP = 96
"""Rows from a reading to the next at most, a day of quarters of an hour: a mean over more says nothing of its rows."""


def centre(window: Tensor, trailing: int) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract from each window the mean of its last observed values.

    Args:
        window: ``(..., look_back)``, NaN where missing.
        trailing: how many of the last steps the mean is taken over. A trailing slice with nothing observed falls
            back to the whole window, and a window with nothing observed to zero, which is the mean of the training
            rows once they are standardised.

    Returns:
        The centred window with zeros where it was missing, the mask (1 where observed) and the centre ``(..., 1)``,
        all in the dtype of ``window``.
    """
    observed = torch.isfinite(window)
    mask = observed.to(window.dtype)
    filled = torch.where(observed, window, 0.0)

    def mean(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        count = weights.sum(-1, keepdim=True)
        return values.sum(-1, keepdim=True) / count.clamp_min(1.0), count

    whole, count_whole = mean(filled, mask)
    tail, count_tail = mean(filled[..., -trailing:], mask[..., -trailing:])
    level = torch.where(count_tail > 0, tail, torch.where(count_whole > 0, whole, 0.0))
    return torch.where(observed, window - level, 0.0), mask, level


def whole_patches(steps: int, patch: int) -> int:
    """``steps`` rounded up to whole patches: so many rows of the future have a calendar."""
    return -(-steps // patch) * patch


def spread(rises: Tensor) -> Tensor:
    """What a meter rises by ``(..., rows)``, in which the rows between two readings have the mean that the later tells.

    What follows a gap of more than ``LONGEST_GAP`` rows, or of unknown length at the start, tells of its own row alone.
    """
    rows = rises.shape[-1]
    place = torch.arange(rows, device=rises.device)
    read = torch.isfinite(rises)
    previous = _highest(torch.where(read, place, -1), -1)
    following = -_highest(torch.where(read, -place, -rows).flip(-1), -rows).flip(-1)
    told = ~read & (previous >= 0) & (following < rows) & (following - previous <= LONGEST_GAP)
    return torch.where(told, rises.gather(-1, following.clamp(max=rows - 1)), rises)


def _highest(values: Tensor, least: int) -> Tensor:
    """The highest of the rows so far ``(..., rows)``, in operations that every runtime has."""
    rows, step = values.shape[-1], 1
    while step < rows:
        values, step = torch.maximum(values, functional.pad(values, (step, 0), value=least)[..., :rows]), 2 * step
    return values


def span(values: np.ndarray) -> np.ndarray:
    """For each series of ``(rows, series)`` a power of two to divide by before squares are summed.

    It is one unless the values are so large that their squares would overflow; dividing by it loses no digit.
    """
    peak = np.max(np.abs(values), axis=0, initial=0.0, where=np.isfinite(values))
    return np.where(peak > 1e100, np.exp2(np.floor(np.log2(np.maximum(peak, 1.0)))), 1.0)


@dataclass
class Scaler:
    """Mean and standard deviation of each series over the training rows; missing values are left out.

    A series that is constant or empty over these rows gets a scale of one, so nothing is ever divided by zero.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray) -> Scaler:
        """``values`` is ``(rows, series)``; NaN means missing."""
        observed = np.isfinite(values)
        unit = span(values)
        values = values / unit
        count = np.maximum(observed.sum(0), 1)
        mean = np.where(observed, values, 0.0).sum(0) / count
        deviation = np.where(observed, values - mean, 0.0)
        scale = np.sqrt((deviation**2).sum(0) / count)
        # A deviation at the level of float rounding is a constant series, not a very quiet one.
        quiet = scale <= 1e-9 * np.maximum(np.abs(mean), 1.0)
        return cls(mean=mean * unit, scale=np.where(quiet, 1.0, scale) * unit)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """Standardise ``(rows, series)``."""
        return (values - self.mean) / self.scale

    def backward(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        """Undo ``forward`` on an array whose dimension ``axis`` is the series."""
        shape = [1] * values.ndim
        shape[axis] = -1
        return values * self.scale.reshape(shape) + self.mean.reshape(shape)


@dataclass
class Batch:
    """Some windows: ``past`` ``(n, look_back)`` and ``future`` ``(n, horizon)``, NaN where missing; who and when."""

    past: Tensor
    future: Tensor
    series: Tensor
    origin: Tensor


class Windows:
    """Every window of a table of series, addressed by (series, origin).

    The origin is the row of the first future step: the past is the ``look_back`` rows before it, the future the
    ``horizon`` rows from it on. Rows before the first and after the last are missing, so every origin from 0 to
    ``rows`` is valid; origin ``rows`` is the forecast that continues the table.

    Args:
        values: ``(rows, series)``, NaN where missing.
        look_back: steps of the past that a window holds.
        horizon: steps of the future that a window holds.
        dtype: what the table is stored in.
        after: at most ``horizon`` rows that are known after the last one; no origin lies among them.
        means: ``(series,)``, true where a value is the mean over the rows since the one before, as of what a meter
            rises by. Every row between has it too, but in no past that ends before it was known, or begins after the
            one before.
    """

    def __init__(
        self,
        values: np.ndarray,
        *,
        look_back: int,
        horizon: int,
        dtype: torch.dtype = torch.float32,
        after: np.ndarray | None = None,
        means: np.ndarray | None = None,
    ) -> None:
        if values.ndim != 2:
            raise ValueError(f"values must be (rows, series), not {values.shape}")
        self.rows, self.series = values.shape
        self.look_back, self.horizon = look_back, horizon
        table = torch.full((self.series, look_back + self.rows + horizon), torch.nan, dtype=dtype)
        table[:, look_back : look_back + self.rows] = torch.from_numpy(np.ascontiguousarray(values.T)).to(dtype)
        if after is not None:
            first = look_back + self.rows
            table[:, first : first + len(after)] = torch.from_numpy(np.ascontiguousarray(after.T)).to(dtype)
        table[~torch.isfinite(table)] = torch.nan
        self._later: Tensor | None = None  # values that a later row told, as the view
        if means is not None and means.any():
            measured = torch.isfinite(table)
            table[torch.from_numpy(means)] = spread(table[torch.from_numpy(means)])
            later = torch.isfinite(table) & ~measured
            self._later = later.unfold(1, look_back + horizon, 1) if bool(later.any()) else None
        self.table = table
        self._view = table.unfold(1, look_back + horizon, 1)  # (series, rows + 1, look_back + horizon), no copy

    def at(self, series: Tensor, origin: Tensor) -> Batch:
        """The windows at ``series`` and ``origin``, int64 of one shape, to which the steps are appended."""
        both = self._view[series, origin]
        later = None if self._later is None else self._later[series, origin]
        return Batch(self._past(both, later), both[..., self.look_back :], series, origin)

    def every_series(self, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Past ``(n, series, look_back)`` and future ``(n, series, horizon)`` at the origins ``(n,)``."""
        both = self._view[:, origin].transpose(0, 1)
        later = None if self._later is None else self._later[:, origin].transpose(0, 1)
        return self._past(both, later), both[..., self.look_back :]

    def _past(self, both: Tensor, later: Tensor | None) -> Tensor:
        """The past of windows as it was known at their origins, and from its own rows alone."""
        past = both[..., : self.look_back]
        if later is None:
            return past
        told = later[..., : self.look_back].to(torch.int8)
        unknown = told.flip(-1).cumprod(-1).flip(-1) + told.cumprod(-1) > 0
        return torch.where(unknown, torch.nan, past)

    def measured(self, future: Tensor, origin: Tensor) -> Tensor:
        """Futures ``(n, series, horizon)``, or sums of them, as missing in rows without a value of their own."""
        if self._later is None:
            return future
        return torch.where(self._later[:, origin].transpose(0, 1)[..., self.look_back :], torch.nan, future)

    def steps(self, origin: Tensor, first: int, last: int) -> Tensor:
        """The rows from ``first`` to before ``last``, counted from the origins: ``(n, series, last - first)``."""
        return self._view[..., self.look_back + first : self.look_back + last][:, origin].transpose(0, 1)

    def chunks(self, origins: Tensor, *, size: int = 8192) -> Iterator[Batch]:
        """All series at all ``origins``, at most ``size`` windows at a time, series by series."""
        total = self.series * len(origins)
        for start in range(0, total, size):
            flat = torch.arange(start, min(start + size, total))
            yield self.at(flat // len(origins), origins[flat % len(origins)])


def split_rows(rows: int, *shares: float, horizon: int) -> list[tuple[int, int]]:
    """Cut ``rows`` into consecutive blocks with the given shares (the first block takes what is left over).

    Each later block gets at least ``horizon + 1`` rows where the table is long enough for the first to keep as
    many, so that it holds at least two whole futures. Returns the ``(start, end)`` rows of each block, first block
    first.
    """
    least = horizon + 1
    sizes = [max(round(rows * share), least) for share in shares]
    while sum(sizes) > rows - least and max(sizes) > 1:
        sizes = [max(1, size * 3 // 4) for size in sizes]
    first = max(rows - sum(sizes), 0)
    bounds = np.cumsum([0, first, *sizes])
    return [(int(a), int(min(b, rows))) for a, b in pairwise(bounds)]
