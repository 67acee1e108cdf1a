"""What is known of a sensor before its data are read: the values that it can have, and that it counts.

A bound holds for everything that is forecast. A meter that only rises and now and then starts again at zero is
forecast by its increments, which repeat, and given back as the readings that they lead to.

Data that contradict what is said of them are met by how much they do. A few values outside a bound, or a meter that
now and then falls, are usual, and are named in a warning. Where a tenth of the values are clearly outside, or a third
of a meter's changes are falls, the flag was meant otherwise, and a forecast that hides it would be wrong for good:
that is an error.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from mha_apps.errors import InputError, warn

from .model import ForecastModel
from .recipe import ForecastRecipe

__all__ = ["Limits", "bound", "increments", "last_values", "limited", "parse_bounds", "ranges", "readings"]

MOST_OUTSIDE = 0.1  # share of the values that may be clearly outside a bound: by a tenth of the deviation, or more
CLEARLY = 0.1
MOST_FALLS = 1 / 3  # share of a meter's changes; a meter of the day, read every six hours, starts again at one in four
MOST_LOSSES = 0.1  # share of a meter's changes that are falls but no new start


@dataclass
class Limits:
    """Bounds ``(series + 1,)``, the last for an unknown series; the meters, and their last readings."""

    lower: np.ndarray
    upper: np.ndarray
    meters: list[str]
    last: np.ndarray

    def keep(self, model: ForecastModel) -> None:
        """Put them into the artifacts of ``model``; nothing where there are none."""
        if np.isfinite(self.lower).any() or np.isfinite(self.upper).any():
            model.artifacts["lower"] = torch.from_numpy(self.lower)
            model.artifacts["upper"] = torch.from_numpy(self.upper)
        if self.meters:
            model.artifacts["meter"] = torch.tensor([name in self.meters for name in model.series])
            model.artifacts["tail_reading"] = torch.from_numpy(self.last)


def limited(frame: pd.DataFrame, recipe: ForecastRecipe, source: str) -> tuple[pd.DataFrame, Limits]:
    """``frame`` with meters as increments, and what the recipe says of its sensors.

    Values outside a bound stay as they are: they were measured, and only forecasts are bounded. A pyranometer that
    reads a little below 0 at night may thus have ``--min 0``, with a warning that counts these values.

    Raises:
        InputError: a sensor that is named is not there, a lowest value is above the highest, or the data contradict
            what is said of them; see the module's first lines.
    """
    names = [str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    meters = counters(recipe.counter, names, source)
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
    return increments(frame, meters), Limits(lower, upper, meters, last_values(frame))


def _check_bound(series: pd.Series, limit: float, flag: str, source: str) -> None:
    """Warn of the values beyond ``limit``; InputError where many are clearly so."""
    values = series.to_numpy(dtype=np.float64)
    values = values[np.isfinite(values)]
    beyond = limit - values if flag == "--min" else values - limit
    count = int((beyond > 0).sum())
    if not count:
        return
    side, furthest = ("below", values.min()) if flag == "--min" else ("above", values.max())
    said = f"{source}: {count:,} of {len(values):,} values of {series.name!r} are {side} {flag} {limit:g}"
    if (beyond > CLEARLY * values.std()).mean() > MOST_OUTSIDE:
        raise InputError(
            f"{said}, up to {furthest:g}, and no forecast would ever be; give the bound of what it can read, or leave "
            f"{flag} out for it"
        )
    warn(f"{said}, up to {furthest:g}; they stay as they are, and forecasts stay within the bound")


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


def last_values(frame: pd.DataFrame) -> np.ndarray:
    """The last observed value of each column, NaN where there is none."""
    return frame.ffill().iloc[-1].to_numpy(dtype=np.float64).copy()


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
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, names[:8]))}"
    raise InputError(f"{source}: no sensor {name!r}, which {flag} names; {hint}")


def counters(words: Sequence[str], names: Sequence[str], source: str) -> list[str]:
    """The sensors that ``--counter`` names; InputError when there is none of that name."""
    return [names[_place(word, names, "--counter", source)] for word in words]


def increments(frame: pd.DataFrame, meters: Sequence[str]) -> pd.DataFrame:
    """``frame`` with the meters as what they rose by since the row before.

    After a reset that is the new reading, since a meter starts again at zero; a fall to more than half of the reading
    before is no reset but a correction or noise, after which nobody knows what was used, so it is missing. It is
    missing too where this row or the one before is: what came through a gap belongs to no row of it.
    """
    if not meters:
        return frame
    frame = frame.copy()
    for name in meters:
        reading, before = frame[name], frame[name].shift()
        rise = (reading - before).mask(reading < before)
        frame[name] = rise.mask(_starts_again(reading, before), reading)
    return frame


def readings(values: np.ndarray, last: float) -> np.ndarray:
    """Forecasts ``(horizon, 6)`` of increments as readings after ``last``; NaN there counts from zero.

    Bounds add up as if all steps erred to the same side, so their intervals are rather too wide than too narrow.
    """
    return np.cumsum(np.maximum(values, 0.0), axis=0) + (last if math.isfinite(last) else 0.0)


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
