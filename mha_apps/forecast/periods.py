"""Which cycles a table of series has: proposed by the sampling step, confirmed by autocorrelation on the training rows.

No 24 is assumed to be hourly: a day is 144 rows of a ten-minute sensor and nothing at all for a weekly one.
"""

from __future__ import annotations

import numpy as np

from .calendar import DAY
from .windows import span

__all__ = ["autocorrelation", "find_periods", "natural_periods", "strength"]

CALENDAR = (3_600.0, DAY, 7 * DAY, 365.25 * DAY)
LONGEST = 10_000  # rows; a period beyond this is longer than any look-back
THRESHOLD = 0.1
MOST_SERIES = 64  # series looked at, evenly spread


def natural_periods(step: float) -> list[int]:
    """Rows in an hour, a day, a week and a year, where that is at least 4 and at most 10,000 rows."""
    return [rows for seconds in CALENDAR if 4 <= (rows := round(seconds / step)) <= LONGEST]


def detrend(values: np.ndarray, period: int) -> np.ndarray:
    """Each series without its moving average over one period, which holds the drift and none of the cycle.

    ``values`` is ``(rows, series)``, NaN where missing, and so is the result.
    """
    rows = len(values)
    observed = np.isfinite(values)

    def sums(table: np.ndarray) -> np.ndarray:
        total = np.vstack([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
        start = np.clip(np.arange(rows) - period // 2, 0, max(rows - period, 0))
        return total[np.minimum(start + period, rows)] - total[start]

    count = sums(observed.astype(float))
    return values - sums(np.where(observed, values, 0.0)) / np.maximum(count, 1.0)


def autocorrelation(values: np.ndarray, lag: int) -> np.ndarray:
    """Correlation of each series of ``(rows, series)`` with itself ``lag`` rows later, over the observed pairs."""
    first, second = values[:-lag], values[lag:]
    both = np.isfinite(first) & np.isfinite(second)
    first, second = np.where(both, first, 0.0), np.where(both, second, 0.0)
    power = np.sqrt((first**2).sum(0) * (second**2).sum(0))
    return np.where(power > 1e-12, (first * second).sum(0) / np.maximum(power, 1e-12), 0.0)


def strength(values: np.ndarray, period: int) -> float:
    """How much the series repeat after ``period`` rows: the autocorrelation there, less that half a period away.

    The mean over the half of the series that repeat most, so that a few sensors without the cycle do not hide it.
    """
    smooth = detrend(values, period)
    there = autocorrelation(smooth, period)
    half = autocorrelation(smooth, max(1, period // 2))
    score = np.sort(np.where(there > THRESHOLD, there - np.maximum(half, 0.0), 0.0))[::-1]
    return float(score[: max(1, (len(score) + 1) // 2)].mean())


def find_periods(values: np.ndarray, step: float) -> list[int]:
    """The periods, in rows, that the training rows confirm; the shortest first, empty if there is none.

    Natural periods are tried first. Where none is confirmed, the highest peak of the autocorrelation function is
    tried, so a machine with a cycle of its own is found too.

    Args:
        values: ``(rows, series)``, NaN where missing.
        step: seconds between rows.
    """
    # Five million rows say no more about a period than the last two hundred thousand.
    values = values[-200_000:, :: max(1, values.shape[1] // MOST_SERIES)]
    values = values / span(values)
    longest = min(len(values) // 3, LONGEST)
    found: list[int] = []
    for period in natural_periods(step):
        if period <= longest and strength(values, period) > THRESHOLD and _beats(values, period, found):
            found.append(period)
    if found or longest < 8:
        return found
    peak = _highest_peak(values, longest)
    return [peak] if peak and strength(values, peak) > 3 * THRESHOLD else []


def _beats(values: np.ndarray, period: int, shorter: list[int]) -> bool:
    """Whether the series repeat better after ``period`` rows than one of the shorter periods before and after.

    Days repeat after seven days in any case; a week must do better than six and eight of them.
    """
    smooth = detrend(values, period)

    def mean(lag: int) -> float:
        return float(autocorrelation(smooth, lag).mean())

    return all(
        mean(period) > max(mean(period - cycle), mean(period + cycle)) + THRESHOLD / 2
        for cycle in shorter
        if cycle < period
    )


def _highest_peak(values: np.ndarray, longest: int) -> int | None:
    smooth = np.nan_to_num(detrend(values, longest))
    size = 1 << int(np.ceil(np.log2(len(values) + longest + 1)))
    power = np.abs(np.fft.rfft(smooth, size, axis=0)) ** 2
    curve = np.fft.irfft(power, size, axis=0)[: longest + 1]
    curve = (curve / np.maximum(curve[:1], 1e-12)).mean(1)
    peaks = np.flatnonzero((curve[1:-1] > curve[:-2]) & (curve[1:-1] >= curve[2:])) + 1
    peaks = peaks[peaks >= 4]
    return int(peaks[np.argmax(curve[peaks])]) if len(peaks) else None
