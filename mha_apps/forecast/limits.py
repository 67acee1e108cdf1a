"""What is known of a sensor before its data are read: the values that it can have, and that it counts.

A bound holds for everything that is forecast. A meter that only rises and now and then starts again at zero is
forecast by its increments, which repeat, and given back as the readings that they lead to. They count from the last
reading, with what it is expected to have risen by since, when that was rows ago. Readings that do not fit those before
and after them, such as zeros of a failed transmission, are found before (:func:`increments_of_believed`).

Data that contradict what is said of them are met by how much they do. A few values outside a bound, or a meter that
now and then falls, are usual, and are named in a warning. Where a tenth of the values are clearly outside, or a third
of a meter's changes are falls, the flag was meant otherwise, and a forecast that hides it would be wrong for good:
that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.tseries.offsets import BaseOffset

from mha_apps.errors import InputError, nearest, warn

from .faults import FEWEST, SPIKE_ROWS, named, without_spikes
from .model import ForecastModel
from .reading.oddities import only_rises
from .recipe import ForecastRecipe
from .windows import LONGEST_GAP

__all__ = [
    "LastReading",
    "Limits",
    "are_meters",
    "bound",
    "increments",
    "increments_of_believed",
    "is_before",
    "keep_readings",
    "last_readings",
    "later",
    "limited",
    "parse_bounds",
    "ranges",
    "readings_of",
    "warn_of_bounds",
    "warn_of_falls",
    "warn_of_silent_meters",
]

MOST_OUTSIDE = 0.1  # share of the values that may be clearly outside a bound: by a tenth of the deviation, or more
CLEARLY = 0.1
MOST_FALLS = 1 / 3  # share of a meter's changes; a meter of the day, read every six hours, starts again at one in four
MOST_LOSSES = 0.1  # share of a meter's changes that are falls but no new start
UNUSUAL = 2.0  # times the largest rises but a thousandth
STRAYS = 4  # readings in a row that can be faults though they differ; more of them count on
CLOSE = 0.25  # how far faults are away: the rise past them is at most this share of it


@dataclass(frozen=True)
class LastReading:
    """What a meter read last, and when; NaN and NaT where it never did."""

    value: float
    at: pd.Timestamp


@dataclass
class Limits:
    """Bounds ``(series + 1,)``, the last for an unknown series; the meters by their last readings."""

    lower: np.ndarray
    upper: np.ndarray
    meters: dict[str, LastReading]

    def keep(self, model: ForecastModel) -> None:
        """Put them into the artifacts of ``model``; nothing where there are none."""
        if np.isfinite(self.lower).any() or np.isfinite(self.upper).any():
            model.artifacts["lower"] = torch.from_numpy(self.lower)
            model.artifacts["upper"] = torch.from_numpy(self.upper)
        if self.meters:
            keep_readings(model, self.meters)


def limited(frame: pd.DataFrame, recipe: ForecastRecipe, source: str) -> tuple[pd.DataFrame, Limits]:
    """``frame`` without spikes and with meters as increments, and what the recipe says of its sensors.

    Values outside a bound stay as they are: they were measured, and only forecasts are bounded. A pyranometer that
    reads a little below 0 at night may thus have ``--min 0``, with a warning that counts these values.

    Raises:
        InputError: a sensor that is named is not there, a lowest value is above the highest, or the data contradict
            what is said of them; see the module's first lines.
    """
    names = [str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    meters = counters(recipe.counter, names, source)
    frame, rises = increments_of_believed(frame, meters, source)
    for name in meters:
        _check_meter(frame[name], source)
    if silent := [name for name in meters if rises[name].isna().all()]:
        told = f"{source}: --counter {_of_silent(frame[silent[0]])}"
        if len(silent) == frame.shape[1]:
            raise InputError(told)
        more = f"; {named(silent[1:])} are left out like it" if len(silent) > 1 else ""
        warn(f"{told}; no forecast is made of it{more}")
        frame, rises = frame.drop(columns=silent), rises.drop(columns=silent)
        names = [name for name in names if name not in silent]
        meters = [name for name in meters if name not in silent]
    if rising := [name for name in names if name not in meters and only_rises(frame[name].to_numpy(dtype=np.float64))]:
        warn(f"{source}: {named(rising)}: only rises, as a meter does; if it is one, add --counter {rising[0]!r}")
    lower = parse_bounds(recipe.min, "--min", names, source, -np.inf)
    upper = parse_bounds(recipe.max, "--max", names, source, np.inf)
    for name, low, high in zip(names, lower[:-1], upper[:-1], strict=True):
        if low > high:
            raise InputError(f"{source}: --min {low:g} is above --max {high:g} for {name!r}; exchange them")
    for name, low, high in zip(names, lower[:-1], upper[:-1], strict=True):
        _check_bound(frame[name], low, "--min", source)
        _check_bound(frame[name], high, "--max", source)
    last = last_readings(frame, meters)
    warn_of_silent_meters(last, frame, source)
    return rises, Limits(lower, upper, last)


def _of_silent(readings: pd.Series) -> str:
    """Why nothing is known of what a meter rises by, and what helps."""
    count = int(readings.notna().sum())
    has = "has one reading" if count == 1 else f"has {count:,} readings, none within {LONGEST_GAP} rows of another"
    return (
        f"{readings.name}: it {has}, so nothing tells what it rises by; give rows as far apart as its readings with "
        "--freq, such as --freq 1D, or leave it out with --target"
    )


def warn_of_bounds(model: ForecastModel, frame: pd.DataFrame, source: str) -> None:
    """Warn of the values in ``frame``, of readings, that are outside of what ``model`` forecasts."""
    names = [str(name) for name in frame.columns]
    for name, low, high in zip(names, *ranges(model, names), strict=True):
        _check_bound(frame[name], low, "--min", source, refuse=False)
        _check_bound(frame[name], high, "--max", source, refuse=False)


def _check_bound(series: pd.Series, limit: float, flag: str, source: str, *, refuse: bool = True) -> None:
    """Warn of the values beyond ``limit``; InputError where many are clearly so, and ``refuse``."""
    values = series.to_numpy(dtype=np.float64)
    values = values[np.isfinite(values)]
    beyond = limit - values if flag == "--min" else values - limit
    count = int((beyond > 0).sum())
    if not count:
        return
    side, to, furthest = ("below", "down to", values.min()) if flag == "--min" else ("above", "up to", values.max())
    said = f"{source}: {count:,} of {len(values):,} values of {series.name!r} are {side} {flag} {limit:g}"
    if refuse and (beyond > CLEARLY * values.std()).mean() > MOST_OUTSIDE:
        raise InputError(
            f"{said}, {to} {furthest:g}, and no forecast would ever be; give the bound of what it can read, or leave "
            f"{flag} out for it"
        )
    warn(f"{said}, {to} {furthest:g}; they stay as they are, and forecasts stay within the bound")


def _check_meter(series: pd.Series, source: str) -> None:
    """Warn of the falls of a meter that are no new start at zero; InputError where it falls all the time."""
    rises, starts, losses = _changes(series.dropna().to_numpy(dtype=np.float64))
    changes = max(rises + starts + losses, 1)
    falls = f"{source}: --counter {series.name}: it falls at {starts + losses:,} of its {changes:,} changes"
    if (starts + losses) / changes > MOST_FALLS or losses / changes > MOST_LOSSES:
        raise InputError(f"{falls}, and a meter only rises and starts again at zero; leave --counter out for it")
    warn_of_falls(series, source)


def warn_of_falls(series: pd.Series, source: str, last: LastReading | None = None) -> None:
    """Warn where a meter falls without starting again at zero, or to a zero that nothing after it confirms.

    Args:
        series: the readings.
        source: names the file.
        last: what it read last before.
    """
    readings = series.dropna().to_numpy(dtype=np.float64)
    if last is not None and np.isfinite(last.value) and is_before(last.at, series.index[0]):
        readings = np.concatenate([[last.value], readings])
    _, starts, losses = _changes(readings)
    if losses:
        what = "falls once" if losses == 1 else f"falls {losses:,} times"
        warn(
            f"{source}: the meter {series.name!r} {what} without starting again at zero; what it rose by in such a row "
            "is taken as missing"
        )
    above = np.flatnonzero(readings > 0)
    zeros = len(readings) - 1 - above[-1] if len(above) else 0
    if zeros and starts == 1:  # one that often starts again does so here
        ends = "its last reading is 0" if zeros == 1 else f"its last {zeros:,} readings are 0"
        warn(
            f"{source}: the meter {series.name!r} reads {readings[above[-1]]:.10g}, and {ends}: taken as a new start "
            "at zero; where nothing was transmitted, make them missing"
        )


def _changes(readings: np.ndarray) -> tuple[int, int, int]:
    """How often a meter rises, starts again at zero, and falls otherwise."""
    before, after = readings[:-1], readings[1:]
    falls, starts = after < before, _starts_again(after, before)
    return int((after > before).sum()), int(starts.sum()), int((falls & ~starts).sum())


def _starts_again(reading: Any, before: Any) -> Any:
    return (reading < before) & (reading >= 0) & (reading <= before / 2)


def last_readings(frame: pd.DataFrame, meters: Sequence[str]) -> dict[str, LastReading]:
    """The last reading of each of ``meters``."""
    found = {}
    for name in meters:
        at = frame[name].last_valid_index()
        found[name] = LastReading(np.nan if at is None else float(frame[name][at]), pd.NaT if at is None else at)
    return found


def readings_of(model: ForecastModel) -> dict[str, LastReading]:
    """The last readings that ``model`` keeps of its meters."""
    meters = meters_of(model, model.series)
    if not meters:
        return {}
    value = model.artifacts["tail_reading"]
    at = model.artifacts["tail_read_at"]
    found, places = {}, {name: place for place, name in enumerate(model.series)}
    for name in meters:
        place = places[name]
        found[name] = LastReading(float(value[place]), model.time(int(at[place])))
    return found


def keep_readings(model: ForecastModel, last: dict[str, LastReading]) -> None:
    """Put the last readings of the meters of ``model`` into it; those that ``last`` has none of stay."""
    known = readings_of(model) | last if "tail_reading" in model.artifacts else last
    each = [known.get(name, LastReading(np.nan, pd.NaT)) for name in model.series]
    model.artifacts["tail_reading"] = torch.tensor([reading.value for reading in each], dtype=torch.float64)
    model.artifacts["tail_read_at"] = torch.tensor([_nanoseconds(reading.at) for reading in each], dtype=torch.int64)


def _nanoseconds(time: pd.Timestamp) -> int:
    return int(np.iinfo(np.int64).min if time is pd.NaT else time.as_unit("ns").value)


def later(new: dict[str, LastReading], known: dict[str, LastReading]) -> dict[str, LastReading]:
    """For each meter of ``new`` the later of its two readings, the new one where they are of the same time."""
    found = {}
    for name, reading in new.items():
        old = known.get(name, LastReading(np.nan, pd.NaT))
        found[name] = old if _nanoseconds(old.at) > _nanoseconds(reading.at) else reading
    return found


def warn_of_silent_meters(last: dict[str, LastReading], frame: pd.DataFrame, source: str) -> None:
    """Warn of meters that were read before the last row of ``frame``, longer ago than from one reading to the next."""
    end = frame.index[-1]
    silent = [
        name
        for name, reading in last.items()
        if is_before(reading.at, end)
        and not (name in frame and frame[name].iloc[-_rows_apart(frame[name]) :].notna().any())
    ]
    if silent:
        first = last[silent[0]].at
        were = f"{'was' if len(silent) == 1 else 'were'} last read at {first}"
        were += "" if len({last[name].at for name in silent}) == 1 else " or later"
        warn(
            f"{source}: {named(silent)} {were}, before the last row {end}; what it rose by since is estimated, and the "
            "intervals are wider by that"
        )


def parse_bounds(words: Sequence[str], flag: str, names: Sequence[str], source: str, default: float) -> np.ndarray:
    """One bound for each of ``names``, then one for any other series.

    Args:
        words: ``"0"`` for every sensor, ``"flow=0"`` for one.
        flag: names the option in messages.
        names: of the series.
        source: names the file in messages.
        default: where no bound is given.

    Raises:
        InputError: a word is no number, or names no series.
    """
    bounds = np.full(len(names) + 1, default)
    for word in sorted(words, key=lambda text: "=" in text):  # those for one sensor win
        name, sign, number = word.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{flag} {word}: {number!r} is no number; give 0, or NAME=0 for one sensor")
        if sign:
            bounds[_place(name, names, flag, source)] = value
        else:
            bounds[:] = value
    return bounds


def _place(name: str, names: Sequence[str], flag: str, source: str) -> int:
    if name in names:
        return list(names).index(name)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(map(repr, names[:8]))}"
    raise InputError(f"{source}: no sensor {name!r}, which {flag} names; {hint}")


def counters(words: Sequence[str], names: Sequence[str], source: str) -> list[str]:
    """The sensors that ``--counter`` names; InputError when there is none of that name."""
    return [names[_place(word, names, "--counter", source)] for word in words]


def increments(
    frame: pd.DataFrame,
    meters: Sequence[str],
    before: dict[str, LastReading] | None = None,
    freq: str | BaseOffset | None = None,
    *,
    believed: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """``frame`` with the meters as what they rose by in each row since their reading before.

    That is the mean over the rows from one reading to the next, in the row of the later one; the rows between stay
    missing, as nobody knew of them then, and :class:`mha_apps.forecast.windows.Windows` gives it to them afterwards.
    Over more than ``LONGEST_GAP`` rows it is missing too.

    After a reset the rise is the new reading, since a meter starts again at zero; a fall to more than half of the
    reading before is no reset but a correction or noise, after which nobody knows what was used, so it is missing.

    Args:
        frame: of readings.
        meters: its columns that are meters.
        before: what they read last before ``frame``.
        freq: of the rows.
        believed: ``frame`` without the readings that cannot be believed, all being believed when None. Rises count from
            the last that can be, those to the others too, which may be below zero.
    """
    if not meters:
        return frame
    found = {}
    for name in meters:
        rows, reading = _readings(frame[name], (before or {}).get(name), freq)
        sure = np.ones(len(rows), dtype=bool)
        if believed is not None:
            sure = (rows < 0) | np.isfinite(believed[name].to_numpy(dtype=np.float64))[rows]
        since = np.maximum.accumulate(np.where(sure, np.arange(len(rows)), -1))[:-1]
        earlier, reading, sure = reading[since], reading[1:], sure[1:]
        gap = rows[1:] - rows[since]
        rise = np.where(sure & _starts_again(reading, earlier), reading, reading - earlier)
        rise[(sure & (rise < 0)) | (gap > LONGEST_GAP) | (since < 0)] = np.nan
        values = np.full(len(frame), np.nan)
        values[rows[1:]] = rise / np.where(gap > 0, gap, 1)
        found[name] = values
    return frame.assign(**found)


def _readings(
    series: pd.Series, last: LastReading | None = None, freq: str | BaseOffset | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of ``series`` with a reading, and these; first ``last``, in a row below zero, if it is not too old."""
    values = series.to_numpy(dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(values))
    readings = values[rows]
    here = series.index[0]
    if last is not None and np.isfinite(last.value) and is_before(last.at, here):
        later = pd.date_range(last.at, periods=LONGEST_GAP + 1, freq=freq)
        if here in later:
            rows = np.concatenate([[-later.get_loc(here)], rows])
            readings = np.concatenate([[last.value], readings])
    return rows, readings


def _rows_apart(readings: pd.Series) -> int:
    """From how many rows to how many a meter is read; 1 where that is not known."""
    rows = np.flatnonzero(readings.notna())
    return int(np.median(np.diff(rows))) if len(rows) > 1 else 1


def is_before(at: pd.Timestamp, time: pd.Timestamp) -> bool:
    """Whether ``at``, NaT for never, is a time before ``time`` in the same kind of zone."""
    return at is not pd.NaT and (at.tz is None) == (time.tz is None) and at < time


def increments_of_believed(
    frame: pd.DataFrame,
    meters: Sequence[str],
    source: str,
    *,
    before: dict[str, LastReading] | None = None,
    freq: str | BaseOffset | None = None,
    earlier: pd.DataFrame | None = None,
    deviation: np.ndarray | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``frame`` without what cannot be believed, and the same with meters as :func:`increments`.

    Of other sensors those are spikes (:func:`mha_apps.forecast.faults.without_spikes`). Of a meter they are readings
    below zero, and readings between two others that fit each other and not them, such as zeros that a failed
    transmission left: a reset is not followed by the old level. An absurd rise that leads to a level at which the meter
    goes on is that of another device: only the rise is missing. Until the meter has gone on there, it is a fault.

    Args:
        frame: of readings.
        meters: its columns that are meters.
        source: names the file in warnings.
        before: as for :func:`increments`.
        freq: as for :func:`increments`.
        earlier: rows before these to compare with, meters as increments.
        deviation: of each column in training ``(columns,)``, of meters of their increments.
    """
    believed = {}
    for name in meters:
        last = (before or {}).get(name)
        readings = _without_negative(frame[name], last, source)
        usual = earlier[name].dropna().to_numpy() if earlier is not None and name in earlier else np.empty(0)
        believed[name] = _without_strays(readings, last, freq, usual, source)
    frame = frame.assign(**believed)
    raw = increments(frame, meters, before, freq)
    rises = without_spikes(raw, source, earlier=earlier, deviation=deviation, rises=meters)
    frame = rises.assign(**{name: frame[name] for name in meters})
    for name in meters:
        absurd = np.flatnonzero(raw[name].notna() & rises[name].isna())
        if not len(absurd):
            continue
        first = absurd[-1]
        if len(absurd) > 1 and absurd[-2] == first - 1:
            first -= 1  # two rows can be one spike
        since = frame[name].iloc[first:].dropna()
        rows, _ = _readings(frame[name], (before or {}).get(name), freq)
        gap = first - rows[rows < first][-1]  # who has waited for a level to be confirmed has none that comes later
        if (len(since) <= SPIKE_ROWS or since.nunique() == 1) and gap <= _rows_apart(frame[name]):
            for table in (frame, rises):
                table[name] = table[name].where(np.arange(len(frame)) < first)
    return frame, rises


def _without_negative(readings: pd.Series, last: LastReading | None, source: str) -> pd.Series:
    """``readings`` without those below zero of a meter that had one above: it starts at zero."""
    highest = readings.cummax().ffill().shift()
    if last is not None and is_before(last.at, readings.index[0]):
        highest = highest.fillna(last.value)
    negative = (readings < 0) & (highest >= 0)
    if not negative.any():
        return readings
    first = readings.index[negative.to_numpy()][0]
    warn(
        f"{source}: the meter {readings.name!r} reads {readings[first]:g} at {first}; {int(negative.sum())} readings "
        "below zero are taken as missing"
    )
    return readings.mask(negative)


def _without_strays(
    series: pd.Series, last: LastReading | None, freq: str | BaseOffset | None, usual: np.ndarray, source: str
) -> pd.Series:
    """``series`` without the readings that :func:`_strays` finds, which a warning counts."""
    rows, readings = _readings(series, last, freq)
    stray = _strays(rows, readings, usual)
    if not stray.any():
        return series
    found = rows[stray]
    place = int(np.flatnonzero(stray)[0])
    around = readings[:place][~stray[:place]][-1], readings[place:][~stray[place:]][0]
    count = "is taken as missing" if len(found) == 1 else f"and {len(found) - 1:,} more like it are taken as missing"
    warn(
        f"{source}: the meter {series.name!r} reads {readings[place]:g} at {series.index[found[0]]}, between "
        f"{around[0]:.10g} and {around[1]:.10g}, from one of which to the other it rises as usual; it {count}"
    )
    return series.mask(np.isin(np.arange(len(series)), found))


def _strays(rows: np.ndarray, readings: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Which of the ``readings`` ``(n,)`` in these ``rows`` do not fit those before and after them.

    From the one before to the one after them the meter rises as it usually does, by little beside how far away they
    are, and it reaches and leaves them by a fall, or by more than ``UNUSUAL`` times what it usually rises by. They are
    ``STRAYS`` at most, or one lower value all the time. What is usual are the ``usual`` rises per row, those before
    these readings, and those of these readings themselves that lead to or from no such stretch.
    """
    stray = np.zeros(len(readings), dtype=bool)
    rate = np.diff(readings) / np.diff(rows)
    falls = np.flatnonzero(rate < 0)
    if not len(falls):
        return stray

    def fit(first: int, after: int) -> bool:
        rise, other = readings[after] - readings[first], readings[first + 1 : after]
        away = readings[first] - other[0] if other[0] < readings[first] else other[0] - readings[after]
        stands = other[0] < readings[first] and not np.diff(other).any()
        return 0 <= rise <= CLOSE * away and (len(other) <= STRAYS or stands)

    plain = rate >= 0
    for fall in falls.tolist():
        stop = np.searchsorted(rows, rows[fall] + LONGEST_GAP, "right")
        back = fall + 1 + np.flatnonzero(readings[fall + 1 : stop] >= readings[fall])[:1]
        begin = np.searchsorted(rows, rows[fall + 1] - LONGEST_GAP)
        before = begin + np.flatnonzero(readings[begin:fall] <= readings[fall + 1])[-1:]
        plain[[after - 1 for after in back.tolist() if fit(fall, after)]] = False
        plain[[first for first in before.tolist() if fit(first, fall + 1)]] = False
    known = np.concatenate([usual, rate[plain]])
    if len(known) < FEWEST:
        return stray
    rank = max(3, len(known) // 1000) + 1
    most = UNUSUAL * np.partition(known, -rank)[-rank]
    odd = (rate < 0) | (rate > most)
    found: list[tuple[int, int]] = []
    for first in np.flatnonzero(odd).tolist():
        stop = np.searchsorted(rows, rows[first] + LONGEST_GAP, "right")
        risen = readings[first + 2 : stop] - readings[first]
        after = first + 2 + np.flatnonzero((risen >= 0) & (risen <= most * (rows[first + 2 : stop] - rows[first])))[:1]
        found += [(end - first, first) for end in after.tolist() if odd[end - 1] and fit(first, end)]
    for length, first in sorted(found):  # the shorter a stretch, the likelier it is a fault
        if not stray[first : first + length + 1].any():
            stray[first + 1 : first + length] = True
    return stray


def meters_of(model: ForecastModel, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that are meters."""
    meters = {name for name, meter in zip(model.series, model.meters.tolist(), strict=True) if meter}
    return [name for name in names if name in meters]


def are_meters(model: ForecastModel, names: Sequence[str]) -> np.ndarray:
    """Which of ``names`` are meters ``(names,)``."""
    return np.isin(list(names), meters_of(model, names))


def ranges(model: ForecastModel, names: Sequence[str], *, rises: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value that each of ``names`` can have, infinite where there is no bound.

    Bounds of a meter are of its readings; with ``rises`` the values are what it rises by, which is never below zero.
    """
    if "lower" in model.artifacts:
        place = {name: number for number, name in enumerate(model.series)}
        rows = [place.get(name, len(model.series)) for name in names]
        low, high = (model.artifacts[name].numpy()[rows].copy() for name in ("lower", "upper"))
    else:
        low, high = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    if rises:
        meters = are_meters(model, names)
        low[meters], high[meters] = 0.0, np.inf
    return low, high


def bound(model: ForecastModel, names: Sequence[str], values: np.ndarray, *, rises: bool = False) -> np.ndarray:
    """Forecasts ``(..., series, horizon, 6)`` in the sensors' own units, within their :func:`ranges`."""
    low, high = ranges(model, names, rises=rises)
    return np.clip(values, low[:, None, None], high[:, None, None])
