"""What is known of a sensor before its data are read: the values that it can have, and that it counts.

A bound holds for everything that is forecast. A meter that only rises and now and then starts again at zero is
forecast by its increments, which repeat, and given back as the readings that they lead to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from mha_apps.errors import InputError

from .model import ForecastModel
from .recipe import ForecastRecipe

__all__ = ["Limits", "bound", "increments", "last_values", "limited", "parse_bounds", "readings"]


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

    Raises:
        InputError: a sensor that is named is not there, or a lowest value is above the highest.
    """
    names = [str(name) for name in frame.columns]
    frame = frame.set_axis(names, axis=1)
    meters = counters(recipe.counter, names, source)
    lower = parse_bounds(recipe.min, "--min", names, source, -np.inf)
    upper = parse_bounds(recipe.max, "--max", names, source, np.inf)
    for name, low, high in zip(names, lower[:-1], upper[:-1], strict=True):
        if low > high:
            raise InputError(f"{source}: --min {low:g} is above --max {high:g} for {name!r}; exchange them")
    return increments(frame, meters), Limits(lower, upper, meters, last_values(frame))


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

    After a reset that is the new reading, since a meter starts again at zero. It is missing where this row or the one
    before is: what came through a gap belongs to no row of it.
    """
    if not meters:
        return frame
    frame = frame.copy()
    for name in meters:
        rise = frame[name].diff()
        frame[name] = rise.where(~(rise < 0), frame[name])
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


def bound(model: ForecastModel, names: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Forecasts ``(series, horizon, 6)`` in the sensors' own units, within their bounds."""
    if "lower" not in model.artifacts:
        return values
    place = {name: number for number, name in enumerate(model.series)}
    rows = [place.get(name, len(model.series)) for name in names]
    low, high = (model.artifacts[name].numpy()[rows][:, None, None] for name in ("lower", "upper"))
    return np.clip(values, low, high)
