"""What is known of a sensor before its data are read: the values that it can have, and that it counts.

A bound holds for everything that is forecast. A meter that only rises and now and then starts again at zero is
forecast by its increments, which repeat, and given back as the readings that they lead to. They count from the last
reading, with what it is expected to have risen by since, when that was rows ago.

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

from mha_apps.errors import InputError, nearest, warn

from .faults import named, without_spikes
from .model import ForecastModel
from .recipe import ForecastRecipe

__all__ = [
    "LastReading",
    "Limits",
    "believed",
    "bound",
    "increments",
    "is_before",
    "keep_readings",
    "last_readings",
    "later",
    "limited",
    "parse_bounds",
    "ranges",
    "readings_of",
    "warn_of_losses",
    "warn_of_silent_meters",
]

MOST_OUTSIDE = 0.1  # share of the values that may be clearly outside a bound: by a tenth of the deviation, or more
CLEARLY = 0.1
MOST_FALLS = 1 / 3  # share of a meter's changes; a meter of the day, read every six hours, starts again at one in four
MOST_LOSSES = 0.1  # share of a meter's changes that are falls but no new start


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
            model.artifacts["meter"] = torch.tensor([name in self.meters for name in model.series])
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
    frame = believed(frame, meters, source)
    lower = parse_bounds(recipe.min, "--min", names, source, -np.inf)
    upper = parse_bounds(recipe.max, "--max", names, source, np.inf)
    for name, low, high in zip(names, lower[:-1], upper[:-1], strict=True):
        if low > high:
            raise InputError(f"{source}: --min {low:g} is above --max {high:g} for {name!r}; exchange them")
    for name, low, high in zip(names, lower[:-1], upper[:-1], strict=True):
        _check_bound(frame[name], low, "--min", source)
        _check_bound(frame[name], high, "--max", source)
    for name in meters:
        _check_meter(frame[name], source)
    last = last_readings(frame, meters)
    warn_of_silent_meters(last, frame.index[-1], source)
    return increments(frame, meters), Limits(lower, upper, last)


def _check_bound(series: pd.Series, limit: float, flag: str, source: str) -> None:
    """Warn of the values beyond ``limit``; InputError where many are clearly so."""
    values = series.to_numpy(dtype=np.float64)
    values = values[np.isfinite(values)]
    beyond = limit - values if flag == "--min" else values - limit
    count = int((beyond > 0).sum())
    if not count:
        return
    side, to, furthest = ("below", "down to", values.min()) if flag == "--min" else ("above", "up to", values.max())
    said = f"{source}: {count:,} of {len(values):,} values of {series.name!r} are {side} {flag} {limit:g}"
    if (beyond > CLEARLY * values.std()).mean() > MOST_OUTSIDE:
        raise InputError(
            f"{said}, {to} {furthest:g}, and no forecast would ever be; give the bound of what it can read, or leave "
            f"{flag} out for it"
        )
    warn(f"{said}, {to} {furthest:g}; they stay as they are, and forecasts stay within the bound")


def _check_meter(series: pd.Series, source: str) -> None:
    """Warn of the falls of a meter that are no new start at zero; InputError where it falls all the time."""
    rises, starts, losses = _changes(series)
    changes = max(rises + starts + losses, 1)
    falls = f"{source}: --counter {series.name}: it falls at {starts + losses:,} of its {changes:,} changes"
    if (starts + losses) / changes > MOST_FALLS or losses / changes > MOST_LOSSES:
        raise InputError(f"{falls}, and a meter only rises and starts again at zero; leave --counter out for it")
    warn_of_losses(series, source)


def warn_of_losses(series: pd.Series, source: str) -> None:
    """Warn where a meter falls without starting again at zero."""
    losses = _changes(series)[2]
    if losses:
        what = "falls once" if losses == 1 else f"falls {losses:,} times"
        warn(
            f"{source}: the meter {series.name!r} {what} without starting again at zero; what it rose by in such a row "
            "is taken as missing"
        )


def _changes(series: pd.Series) -> tuple[int, int, int]:
    """How often a meter rises, starts again at zero, and falls otherwise."""
    before = series.shift()
    falls, starts = series < before, _starts_again(series, before)
    return int((series > before).sum()), int(starts.sum()), int((falls & ~starts).sum())


def _starts_again(reading: pd.Series, before: pd.Series) -> pd.Series:
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
        time = pd.Timestamp(int(at[place]), unit="ns", tz="UTC" if model.zone else None)
        found[name] = LastReading(float(value[place]), time.tz_convert(model.zone) if model.zone else time)
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


def warn_of_silent_meters(last: dict[str, LastReading], end: pd.Timestamp, source: str) -> None:
    """Warn of meters that were read before ``end``, the last row, and not there."""
    silent = [name for name, reading in last.items() if is_before(reading.at, end)]
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
    frame: pd.DataFrame, meters: Sequence[str], before: dict[str, LastReading] | None = None, freq: str | None = None
) -> pd.DataFrame:
    """``frame`` with the meters as what they rose by since the row before.

    After a reset that is the new reading, since a meter starts again at zero; a fall to more than half of the reading
    before is no reset but a correction or noise, after which nobody knows what was used, so it is missing. It is
    missing too where this row or the one before is: what came through a gap belongs to no row of it.

    Args:
        frame: of readings.
        meters: its columns that are meters.
        before: what they read last before ``frame``, which counts where that was one step, of ``freq``, before.
        freq: of the rows.
    """
    if not meters:
        return frame
    frame = frame.copy()
    for name in meters:
        reading, previous = frame[name], frame[name].shift()
        last = (before or {}).get(name)
        here = frame.index[0]
        if last is not None and is_before(last.at, here) and pd.date_range(last.at, periods=2, freq=freq)[1] == here:
            previous.iloc[0] = last.value
        rise = (reading - previous).mask(reading < previous)
        frame[name] = rise.mask(_starts_again(reading, previous), reading)
    return frame


def is_before(at: pd.Timestamp, time: pd.Timestamp) -> bool:
    """Whether ``at``, NaT for never, is a time before ``time`` in the same kind of zone."""
    return at is not pd.NaT and (at.tz is None) == (time.tz is None) and at < time


def believed(
    frame: pd.DataFrame,
    meters: Sequence[str],
    source: str,
    *,
    before: dict[str, LastReading] | None = None,
    freq: str | None = None,
    **compared: Any,
) -> pd.DataFrame:
    """``frame`` of readings without spikes; those of meters are absurd rises.

    A reading that is absurd shows as a rise, and as a new start after it, so it is the reading of the rise that is
    taken as missing. One below zero is none of a meter that starts at zero.

    Args:
        frame: of readings.
        meters: its columns that are meters.
        source: names the file in warnings.
        before: as for :func:`increments`.
        freq: as for :func:`increments`.
        **compared: with what, as :func:`mha_apps.forecast.faults.without_spikes` takes it, meters as increments.
    """
    replaced: dict[str, pd.Series] = {}
    for name in meters:
        highest = frame[name].cummax().ffill().shift()
        last = (before or {}).get(name)
        if last is not None and is_before(last.at, frame.index[0]):
            highest = highest.fillna(last.value)
        negative = (frame[name] < 0) & (highest >= 0)
        if negative.any():
            first = frame.index[negative.to_numpy()][0]
            warn(
                f"{source}: the meter {name!r} reads {frame[name][first]:g} at {first}; {int(negative.sum())} readings "
                "below zero are taken as missing"
            )
            replaced[name] = frame[name].mask(negative)
    frame = frame.assign(**replaced) if replaced else frame
    rises = increments(frame, meters, before, freq)
    clean = without_spikes(rises, source, rises=meters, **compared)
    for name in meters:
        absurd = rises[name].notna() & clean[name].isna()
        replaced[name] = frame[name].mask(absurd & ~absurd.shift(fill_value=False))
    return clean.assign(**replaced) if meters else clean


def meters_of(model: ForecastModel, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that are meters."""
    if "meter" not in model.artifacts:
        return []
    flags = dict(zip(model.series, model.artifacts["meter"].tolist(), strict=True))
    return [name for name in names if flags.get(name, False)]


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
        meters = np.isin(list(names), meters_of(model, names))
        low[meters], high[meters] = 0.0, np.inf
    return low, high


def bound(model: ForecastModel, names: Sequence[str], values: np.ndarray, *, rises: bool = False) -> np.ndarray:
    """Forecasts ``(..., series, horizon, 6)`` in the sensors' own units, within their :func:`ranges`."""
    low, high = ranges(model, names, rises=rises)
    return np.clip(values, low[:, None, None], high[:, None, None])
