"""What is known of a sensor before its data are read: the values that it can have, and that it counts.

A bound holds for everything that is forecast. A meter that only rises and now and then starts again at zero is
forecast by its increments, which repeat, and given back as the readings that they lead to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from mha_apps.errors import InputError

from .model import ForecastModel

__all__ = ["bound", "increments", "parse_bounds", "readings", "remember_limits"]


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


def remember_limits(model: ForecastModel, lower: np.ndarray, upper: np.ndarray, meters: Sequence[str]) -> None:
    """Put bounds and meters into the artifacts of ``model``; nothing where there are none."""
    if np.isfinite(lower).any() or np.isfinite(upper).any():
        model.artifacts["lower"], model.artifacts["upper"] = torch.from_numpy(lower), torch.from_numpy(upper)
    if meters:
        model.artifacts["meter"] = torch.tensor([name in meters for name in model.series])


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
