"""The forecaster for use from Python, in scikit-learn's manners."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from mha_apps.errors import InputError
from mha_apps.training import Run
from mha_apps.training.clock import counting_from

from .backtest import Backtest, evaluate, first_unseen
from .calendar import on_clock
from .covariates import assign
from .limits import keep_readings, later, readings_of, warn_of_silent_meters
from .model import ForecastModel, load_folder
from .predict import (
    History,
    ahead_of,
    as_read,
    continued,
    forecast_of,
    in_zone,
    informed,
    known_of,
    load_future,
    planned,
    rows_of,
    tail_of,
    times_in,
)
from .reading.zones import at_first
from .recipe import ForecastRecipe
from .trainer import checked, follow_rows, keep_tail, prepare

__all__ = ["Forecaster", "last_rows", "predict_frame", "to_wide"]

_PARAMETERS = "forecaster.json"


class Forecaster(BaseEstimator):
    """``Forecaster(horizon=48).fit(frame).predict()``.

    Args:
        horizon: rows to forecast.
        min, max: bounds of every forecast, such as ``("0", "humidity=100")``.
        counter: series that only rise and start again at zero, as meters do.
        target: columns to forecast; every column that is not named otherwise when empty.
        past: columns that inform the forecast, known up to its origin.
        future: columns that are known for the rows to forecast too.
        holidays: country whose holidays are known ahead, such as ``"DE"`` or ``"US-CA"``; needs the library holidays.
        static: path of a CSV of attributes, the name of the series in its first column.
        look_back: rows of the past that a forecast sees; from the data when None.
        attention: train the attention path; without it fitting takes seconds.
        trees: try gradient-boosted trees as a component of the forecast.
        channels: let the series help each other.
        holdout: share of the rows, at the end, on which :meth:`backtest` scores.
        validation, calibration: shares of the rows for the choices and for the intervals.
        refit: fit again on every row once everything is chosen.
        steps: optimiser steps of the attention path at most.
        dim, heads, layers, dropout, members: of the attention path.
        seed: same seed, same forecasts.
        device: auto, cpu, cuda or mps.

    Frames are wide (a ``DatetimeIndex``, one column per series) or long (``unique_id``, ``ds``, ``y``); missing rows
    and values stay missing.

    After :meth:`fit`: ``model_`` forecasts, ``held_out_`` is the same before it saw the last rows, ``facts_`` says
    what was chosen.
    """

    def __init__(
        self,
        *,
        horizon: int = 48,
        min: tuple[str, ...] = (),
        max: tuple[str, ...] = (),
        counter: tuple[str, ...] = (),
        target: tuple[str, ...] = (),
        past: tuple[str, ...] = (),
        future: tuple[str, ...] = (),
        holidays: str | None = None,
        static: str | None = None,
        look_back: int | None = None,
        attention: bool = True,
        trees: bool = True,
        channels: bool = True,
        holdout: float = 0.2,
        validation: float = 0.1,
        calibration: float = 0.1,
        refit: bool = True,
        steps: int = 300,
        dim: int = 32,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.1,
        members: int = 1,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.horizon = horizon
        self.min = min
        self.max = max
        self.counter = counter
        self.target = target
        self.past = past
        self.future = future
        self.holidays = holidays
        self.static = static
        self.look_back = look_back
        self.attention = attention
        self.trees = trees
        self.channels = channels
        self.holdout = holdout
        self.validation = validation
        self.calibration = calibration
        self.refit = refit
        self.steps = steps
        self.dim = dim
        self.heads = heads
        self.layers = layers
        self.dropout = dropout
        self.members = members
        self.seed = seed
        self.device = device

    @counting_from()
    def fit(self, frame: pd.DataFrame, y: Any = None) -> Forecaster:
        """Fit on ``frame``; what was fitted before is forgotten. ``y`` is there for scikit-learn and ignored."""
        wide = to_wide(frame)
        for name in ("min", "max", "counter", "target", "past", "future"):
            if isinstance(value := getattr(self, name), str):
                raise InputError(f"{name}={value!r}: give a tuple of names, ({value!r},)")
        recipe = ForecastRecipe(csv="", **self.get_params())
        recipe.check()
        roles = assign(wide, recipe, "the frame")
        series, limits, plan = checked(roles.frame[roles.series], recipe, "the frame")
        wide = roles.joined(series)
        with tempfile.TemporaryDirectory() as folder:
            run = Run.create(Path(folder) / "run", recipe, "forecast")
            self.facts_, model, held_out = prepare(wide, plan, recipe, run, limits, roles)
        self.model_: ForecastModel = model.eval()
        self.held_out_: ForecastModel = (held_out or model).eval()
        self._history = wide
        return self

    def predict(
        self,
        frame: pd.DataFrame | None = None,
        future: pd.DataFrame | None = None,
        *,
        levels: tuple[int, ...] = (80, 95),
        wide: bool = False,
    ) -> pd.DataFrame:
        """Forecast the ``horizon`` rows after the last one; nothing in the forecaster changes.

        Args:
            frame: rows to continue; those that were fitted, with what :meth:`update` added, when None. Rows behind
                the last measured one that hold future covariates alone say what is to come.
            future: the future covariates in the rows to forecast, wide; what it lacks is looked for in ``frame`` and
                in what was fitted. It fills their gaps in the history too.
            levels: intervals, of 80 and 95 percent.
            wide: give the mean of each series as a column, indexed by time, instead of the long table.

        Returns:
            Long: ``unique_id``, ``ds`` (in the zone of the rows to continue), ``mean``, ``median``, ``lo-80``,
            ``hi-80``, ``lo-95``, ``hi-95``.
        """
        model = self._fitted()
        table = predict_frame(model, frame, future, levels=levels)
        if not wide:
            return table
        order = table["unique_id"].unique()
        means = table.pivot(index="ds", columns="unique_id", values="mean")
        return means[order].rename_axis(index=None, columns=None)

    def update(self, frame: pd.DataFrame) -> Forecaster:
        """Add rows that have come in: the next forecast continues from them, and the intervals learn from them.

        Weights stay as they are. Rows that are already known are replaced.
        """
        model = self._fitted()
        given = in_zone(model, to_wide(frame))
        new, last = rows_of(model, given, "the frame")
        missing = [name for name in model.series if name not in new.columns]
        if missing:
            raise InputError(f"the frame: column {missing[0]!r} is missing; give every series that was fitted")
        tail = tail_of(model)
        names = model.series + model.covariates.columns
        if (new.index.tz is None) != (tail.index.tz is None):
            raise InputError("the frame: it has a time zone and the rows that were fitted have none, or the reverse")
        whole = new[names].combine_first(tail)[names]
        grid = pd.date_range(whole.index[0], whole.index[-1], freq=model.step)
        off = whole.index.difference(grid)
        if len(off):
            raise InputError(f"the frame: {off[0]} is off the grid of the rows that were fitted; resample it first")
        whole, ahead = informed(model, whole.reindex(grid), [planned(model, given, "the frame"), ahead_of(model)])
        read = later(last, readings_of(model))
        follow_rows(model, whole)
        keep_tail(model, whole, ahead)
        if read:
            keep_readings(model, read)
            warn_of_silent_meters(read, whole, "the frame")
        model.artifacts["known_until"] = model.artifacts["tail_end"].clone()
        return self

    def backtest(self, frame: pd.DataFrame | None = None) -> Backtest:
        """Score the model that never saw the last rows on them, beside the baselines.

        Args:
            frame: the frame that was fitted, or a longer one; needed after :meth:`load` only.
        """
        self._fitted()
        rows = None
        if frame is not None:
            rows = in_zone(self.held_out_, to_wide(frame))
            rows = rows[known_of(self.held_out_, rows, "the frame")]
            rows, _ = rows_of(self.held_out_, rows, "the frame")
        rows = getattr(self, "_history", None) if rows is None else rows
        if rows is None:
            raise InputError("backtest: a loaded forecaster does not hold the rows; give the frame")
        start = first_unseen(self.held_out_, rows, "the frame", "give newer rows or set holdout above 0")
        return evaluate(self.held_out_, rows, start)

    def save(self, path: str | Path) -> Path:
        """Write the forecaster to a folder: safetensors and json, no pickles. One that was saved there is replaced.

        Raises:
            InputError: the folder holds a model, and no forecaster: a run, or what somebody else put there.
        """
        self._fitted()
        folder = Path(path)
        other = next((folder / name for name in ("model", "heldout") if (folder / name).exists()), None)
        if other is not None and not (folder / _PARAMETERS).is_file():
            raise InputError(f"{other}: no forecaster was saved there; save into another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.model_.save_pretrained(folder / "model")
        self.held_out_.save_pretrained(folder / "heldout")
        content = {"parameters": self.get_params(), "facts": self.facts_}
        (folder / _PARAMETERS).write_text(json.dumps(content, indent=1), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Forecaster:
        """The inverse of :meth:`save`; forecasts are the same to the bit."""
        folder = Path(path)
        if not (folder / _PARAMETERS).is_file():
            raise InputError(f"{folder}: holds no forecaster ({_PARAMETERS} is missing); name a folder that save made")
        try:
            content = json.loads((folder / _PARAMETERS).read_text(encoding="utf-8"))
            parameters: dict[str, Any] = dict(content["parameters"])
            for name, value in parameters.items():
                parameters[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
            forecaster = cls(**parameters)
            forecaster.facts_ = content["facts"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{folder / _PARAMETERS}: cannot be read ({error}); save the forecaster again") from error
        forecaster.model_ = load_folder(folder / "model", "save the forecaster again")
        forecaster.held_out_ = load_folder(folder / "heldout", "save the forecaster again")
        return forecaster

    def _fitted(self) -> ForecastModel:
        if not hasattr(self, "model_"):
            raise NotFittedError("this Forecaster is not fitted; call fit(frame) first")
        return self.model_


def predict_frame(
    model: ForecastModel,
    frame: pd.DataFrame | None = None,
    future: pd.DataFrame | None = None,
    *,
    levels: tuple[int, ...] = (80, 95),
) -> pd.DataFrame:
    """:meth:`Forecaster.predict` for a model without a forecaster, such as one that was exported."""
    given = None if future is None else (load_future(model, in_zone(model, to_wide(future)), "future"), "future")
    if frame is None:
        rows, ahead = informed(model, tail_of(model), [ahead_of(model)], given)
        return forecast_of(model, History(rows, ahead=ahead, zone=model.zone), levels=levels)
    model = copy.deepcopy(model)
    return forecast_of(model, continued(model, to_wide(frame), "the frame", given), levels=levels)


def last_rows(model: ForecastModel) -> pd.DataFrame:
    """The last rows that training was given, as a table that :func:`predict_frame` reads: meters as their readings."""
    rows = tail_of(model)
    rows = rows.assign(**as_read(model, rows))
    return rows.set_axis(times_in(model, pd.DatetimeIndex(rows.index), model.zone))


def to_wide(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with a ``DatetimeIndex`` of fixed frequency and one float column per series, from a wide or a long one.

    Raises:
        InputError: no time, a time twice, or no numeric column.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"the frame: is a {type(frame).__name__}, not a DataFrame; a Series has .to_frame()")
    if {"unique_id", "ds", "y"} <= set(frame.columns):
        doubled = frame.duplicated(["unique_id", "ds"])
        if doubled.any():
            row = frame.loc[doubled].iloc[0]
            raise InputError(f"the frame: series {row['unique_id']!r} has {row['ds']} twice; keep one of the rows")
        order = frame["unique_id"].drop_duplicates().tolist()
        frame = frame.pivot(index="ds", columns="unique_id", values="y")[order].rename_axis(index=None, columns=None)
    if not isinstance(frame.index, pd.DatetimeIndex):
        raise InputError("the frame: its index is no DatetimeIndex; set_index the time, or give unique_id, ds and y")
    frame = frame.select_dtypes(["number", "bool"]).astype(float).rename(columns=str)
    if frame.shape[1] == 0 or len(frame) == 0:
        raise InputError("the frame: no numeric column with rows; give one column per series")
    if frame.index.has_duplicates:
        twice = frame.index[frame.index.duplicated()][0]
        raise InputError(f"the frame: {twice} is there twice; keep one of the rows")
    frame = frame.sort_index()
    if frame.index.freq is None:
        regular, step, lost = _in_steps(frame)
        if len(lost) and frame.index.tz is not None:  # days of a clock, say, are not all as long
            wall, _, off = _in_steps(frame.set_axis(on_clock(frame.index)))
            if not len(off):
                return wall.set_axis(at_first(wall.index, frame.index.tz))
        if len(lost):
            raise InputError(f"the frame: {lost[0]} is off the grid of {step}; resample it first")
        frame = regular
    return frame


def _in_steps(frame: pd.DataFrame) -> tuple[pd.DataFrame, Any, pd.DatetimeIndex]:
    """``frame`` with a row for each of its steps, the step, and the times that are beside them."""
    step: Any = pd.infer_freq(frame.index) if len(frame) > 2 else None
    if step is None and len(frame) > 1:
        steps, counts = np.unique(np.diff(frame.index.as_unit("ns").asi8), return_counts=True)
        step = pd.Timedelta(int(steps[counts.argmax()]), "ns")
    regular = frame.asfreq(step) if step is not None else frame
    return regular, step, frame.index.difference(regular.index)
