"""What a modeller should know of the columns: constant ones, counters of rows, meters, copies, mostly zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MOST_COLUMNS = 60
LONGEST_LAG = 48
FEWEST_RISES = 100  # a temperature may rise all morning
MOST_STARTS = 0.25  # share of a meter's changes; one of the day, read every six hours, starts again at one in four
MOST_FAILED = 0.01  # falls to no start, one in so many rises: a reading that failed
LEAST_UNEVEN = 0.2  # share of a meter's readings that are not halfway where they would be if it rose evenly


def constant(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 1 and bool(np.all(finite == finite[0]))


def row_counter(values: np.ndarray) -> bool:
    """Whether whole numbers rise by one from row to row; in the order of the file."""
    if len(values) < 2 or np.mean(np.abs(np.diff(values[:200])) == 1) < 0.9:
        return False
    if not np.all(np.isfinite(values)) or np.any(values % 1):
        return False
    steps = np.diff(values)
    return bool(np.mean(steps == 1) >= 0.98) or bool(len(steps) > 10 and np.mean(steps == -1) >= 0.98)


def only_rises(values: np.ndarray) -> bool:
    """Whether a series rises unevenly and falls to less than half alone, as a meter that starts again.

    Clocks, calendars and smooth trends rise evenly, but for rounding; a table of the day repeats itself.
    """
    at = np.flatnonzero(np.isfinite(values))
    told = values[at]
    steps = np.diff(told)
    rises, falls = steps > 0, steps < 0
    starts = falls & (told[1:] >= 0) & (told[1:] <= told[:-1] / 2)
    few = rises.sum() < FEWEST_RISES or falls.sum() > MOST_STARTS * (rises.sum() + falls.sum())
    if few or (falls & ~starts).sum() > MOST_FAILED * rises.sum():
        return False
    return _uneven(at, told) and not _repeats(values, at[1:][falls])


def _uneven(at: np.ndarray, told: np.ndarray) -> bool:
    """Whether readings differ from those halfway between two others by more than rounding and a slow trend make.

    The two are so far apart that the rise between them is some twenty times as fine as the steps tell.
    """
    steps = np.diff(told)
    rises = steps[steps > 0]
    usual = np.median(rises)
    sizes = np.diff(np.unique(np.append(rises, 0.0)))
    fine = sizes[sizes > 1e-6 * usual].min(initial=usual)
    falls = np.concatenate([[0], np.cumsum(steps < 0)])
    longest = len(told) // (3 * (falls[-1] + 1))
    reach = int(np.clip(np.ceil(10 * fine / (usual * len(rises) / len(steps))), 1, max(1, longest)))
    first, middle, last = slice(None, -2 * reach), slice(reach, -reach), slice(2 * reach, None)
    whole = falls[first] == falls[last]
    rise = (told[last] - told[first])[whole]
    share = ((at[middle] - at[first]) / (at[last] - at[first]))[whole]
    off = np.abs((told[middle] - told[first])[whole] - share * rise)
    uneven = off > np.maximum(1.1 * fine, 0.05 * rise)
    return len(uneven) > 0 and bool(uneven.mean() >= LEAST_UNEVEN)


def _repeats(values: np.ndarray, starts: np.ndarray) -> bool:
    """Whether values are those of as many rows before as usually lie between two ``starts``."""
    if len(starts) < 3:
        return False
    period = int(np.median(np.diff(starts)))
    before, after = values[:-period], values[period:]
    both = np.isfinite(before) & np.isfinite(after)
    return bool(both.any() and np.mean(before[both] == after[both]) >= 0.9)


def zero_share(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.mean(finite == 0)) if len(finite) else 0.0


def rows_apart(values: np.ndarray) -> int:
    """How many rows lie from one value to the next, where a column has one at every n-th row only; else 1."""
    at = np.flatnonzero(np.isfinite(values))
    if len(at) < 4 or len(at) > 0.6 * len(values):
        return 1
    steps = np.diff(at)
    usual = int(np.median(steps))
    return usual if np.mean(steps % usual == 0) >= 0.95 and np.mean(steps == usual) >= 0.8 else 1


def alone(values: np.ndarray) -> np.ndarray:
    """Which values lie between two that are missing, so that a line does not show them."""
    present = np.pad(np.isfinite(values), 1)
    return present[1:-1] & ~present[:-2] & ~present[2:]


def lagged_copies(names: Sequence[str], values: Sequence[np.ndarray]) -> list[tuple[str, str, int]]:
    """Columns that repeat another one some steps later: (copy, original, lag). Lag 0 is a duplicate column."""
    names, values = list(names)[:MOST_COLUMNS], list(values)[:MOST_COLUMNS]
    found: list[tuple[str, str, int]] = []
    taken: set[str] = set()
    if not values or len(values[0]) < 20:
        return found
    count = len(values[0])
    longest = min(LONGEST_LAG, count // 4)
    for b, copy in enumerate(values):
        # Rows at which the column moves: a plateau matches many lags
        moving = np.flatnonzero(np.isfinite(copy[longest:]) & (copy[longest:] != copy[longest - 1 : -1])) + longest
        if len(moving) < 10:
            continue
        rows = moving[np.linspace(0, len(moving) - 1, min(200, len(moving))).astype(int)]
        for a, original in enumerate(values):
            if a == b or names[a] in taken:
                continue
            shifted = original[rows[None, :] - np.arange(longest + 1)[:, None]]
            share = np.mean(shifted == copy[rows], axis=1)
            lag = int(np.argmax(share))
            if share[lag] < 0.95 or (lag == 0 and a > b):
                continue
            mine, theirs = copy[lag:], original[: count - lag]
            both = np.isfinite(mine) & np.isfinite(theirs)
            if both.sum() >= 10 and np.mean(mine[both] == theirs[both]) > 0.99:
                found.append((names[b], names[a], lag))
                taken.add(names[b])
                break
    return found
