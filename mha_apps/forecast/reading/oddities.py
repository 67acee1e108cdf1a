"""What a modeller should know of the columns: constant ones, counters of rows, meters, copies, mostly zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MOST_COLUMNS = 60
LONGEST_LAG = 48
FEWEST_RISES = 30
MOST_STARTS = 0.25  # share of a meter's changes; one of the day, read every six hours, starts again at one in four


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
    """Whether a series rises, by steps that differ, and falls to less than half alone, as a meter that starts again.

    The steps of an hour of the day, or of a time since the start, are all the same.
    """
    finite = values[np.isfinite(values)]
    steps = np.diff(finite)
    rises, falls = steps > 0, steps < 0
    if rises.sum() < FEWEST_RISES or falls.sum() > MOST_STARTS * (rises.sum() + falls.sum()):
        return False
    starts_again = bool(np.all((finite[1:][falls] >= 0) & (finite[1:][falls] <= finite[:-1][falls] / 2)))
    return starts_again and bool(np.ptp(steps[rises]) > 1e-6 * steps.max())


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
