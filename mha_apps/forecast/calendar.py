"""What the clock and the calendar say about a row: features that are known for the future too.

Each feature is one small function from timestamps to a phase in [0, 1) and the number of its discrete values. The
phase comes from the timestamp in the sensor's own zone, never from the row number, so gaps and daylight saving do
not shift it. Which features a model uses follows from the sampling step and from how much the training rows cover:
a cycle that was not seen twice cannot be told from a trend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.tseries import offsets
from pandas.tseries.offsets import BaseOffset

from .reading.grid import name_of, offset_of
from .reading.zones import put_back

__all__ = [
    "CYCLES",
    "Cycle",
    "by_clock",
    "choose",
    "elapses",
    "encode",
    "extend",
    "on_clock",
    "step_name",
    "step_of",
]

DAY = 86_400.0


@dataclass(frozen=True)
class Cycle:
    """A repeating feature of the calendar.

    Attributes:
        seconds: length of the cycle.
        resolution: seconds between two of its values; finer steps than this share a value.
        values: number of discrete values, for embeddings.
        phase: timestamps to positions in the cycle, float64 in [0, 1).
    """

    seconds: float
    resolution: float
    values: int
    phase: Callable[[pd.DatetimeIndex], np.ndarray]


def _minute_of_hour(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.minute + time.second / 60) / 60


def _hour_of_day(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.hour + _minute_of_hour(time)) / 24


def _day_of_week(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.dayofweek + _hour_of_day(time)) / 7


def _day_of_month(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.day - 1) / time.days_in_month


def _day_of_year(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.dayofyear - 1 + _hour_of_day(time)) / (365 + time.is_leap_year)


def _month(time: pd.DatetimeIndex) -> np.ndarray:
    return (time.month - 1) / 12


CYCLES: dict[str, Cycle] = {
    "minute": Cycle(3_600.0, 60.0, 60, _minute_of_hour),
    "hour": Cycle(DAY, 3_600.0, 24, _hour_of_day),
    "weekday": Cycle(7 * DAY, DAY, 7, _day_of_week),
    "monthday": Cycle(30.4375 * DAY, DAY, 31, _day_of_month),
    "yearday": Cycle(365.25 * DAY, DAY, 366, _day_of_year),
    "month": Cycle(365.25 * DAY, 30.4375 * DAY, 12, _month),
}


def step_of(index: pd.DatetimeIndex) -> float:
    """Seconds between two rows; the median, for calendar steps such as months."""
    if len(index) < 2:
        return DAY
    stamps = index.as_unit("ns").asi8
    return float(np.median(np.diff(stamps))) / 1e9


def elapses(step: BaseOffset) -> bool:
    """Whether a step is a span of time, as minutes are, and none of the calendar, as days are, of 23 hours too."""
    return isinstance(step, offsets.Tick) and not isinstance(step, offsets.Day)


def on_clock(index: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Times of a zone as its clock shows them, one that the clock skips where it would have been."""
    told = put_back(index.as_unit("us").asi8, index.tz_localize(None).as_unit("us").asi8)
    return pd.DatetimeIndex(told.view("datetime64[us]"), name=index.name).as_unit(index.unit)


def by_clock(index: pd.DatetimeIndex) -> pd.DatetimeIndex | None:
    """Times of a zone as its clock shows them, without the zone, where that is how they are regular; else None.

    Days, weeks and months are, and hours that stay where they are on the clock when it changes. Without the zone each
    is a step after the one before, and exists once; a time that the clock skips, for which the next one stands in
    ``index``, is back in its place. :func:`mha_apps.forecast.reading.zones.at_first` is the way back.
    """
    if index.tz is None or (index.freq is not None and elapses(index.freq)):
        return None
    told, utc = on_clock(index), index.asi8
    freq = index.freq if index.freq is not None or len(told) < 3 else pd.infer_freq(told)
    if freq is None or (index.freq is None and elapses(offset_of(freq)) and len(np.unique(np.diff(utc))) == 1):
        return None
    return pd.DatetimeIndex(told, freq=freq)


def step_name(index: pd.DatetimeIndex) -> str | None:
    """The name of the step of ``index``, of which :func:`offset_of` makes it again; None where there is none."""
    step = index.freq if index.freq is not None else pd.infer_freq(index) if len(index) > 2 else None
    if step is None:
        return None
    name = step if isinstance(step, str) else name_of(step)
    try:
        offset_of(name)
    except ValueError:
        return None
    return name


def choose(step: float, rows: int) -> list[str]:
    """The cycles that suit a sampling step of ``step`` seconds and ``rows`` training rows.

    A cycle must be longer than two steps, and the rows must cover it twice. Where a step is longer than a cycle's
    resolution the cycle's coarser sibling says the same (``month`` for monthly rows, ``yearday`` for finer ones).
    """
    chosen = [name for name, cycle in CYCLES.items() if cycle.seconds > 2 * step and rows * step >= 2 * cycle.seconds]
    if "yearday" in chosen and "month" in chosen:
        chosen.remove("month" if step < 28 * DAY else "yearday")
    return chosen


def encode(index: pd.DatetimeIndex, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Features of every timestamp.

    Returns:
        Cyclic features ``(rows, 2 * len(names))`` float32, cosine and sine of each phase, and discrete values
        ``(rows, len(names))`` int64, each in ``[0, CYCLES[name].values)``.
    """
    waves = np.zeros((len(index), 2 * len(names)), dtype=np.float32)
    bins = np.zeros((len(index), len(names)), dtype=np.int64)
    for column, name in enumerate(names):
        cycle = CYCLES[name]
        phase = np.asarray(cycle.phase(index), dtype=np.float64)
        waves[:, 2 * column] = np.cos(2 * np.pi * phase)
        waves[:, 2 * column + 1] = np.sin(2 * np.pi * phase)
        # The small shift keeps a phase such as 23/24 from falling into the bin below by rounding.
        bins[:, column] = np.minimum((phase * cycle.values + 1e-6).astype(np.int64), cycle.values - 1)
    return waves, bins


def extend(index: pd.DatetimeIndex, horizon: int) -> pd.DatetimeIndex:
    """The ``horizon`` timestamps after the last one; the first is one step after it, always."""
    freq = index.freq if index.freq is not None else pd.Timedelta(seconds=step_of(index))
    return pd.date_range(index[-1], periods=horizon + 1, freq=freq)[1:]
