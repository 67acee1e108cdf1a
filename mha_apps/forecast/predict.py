"""Forecasts from a run: after the last row of a CSV, or after the rows that it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from mha_apps.errors import InputError
from mha_apps.training import Run

from .calendar import extend, step_of
from .conformal import Calibration, bounds
from .engine import forecast_origins
from .inputs import Inputs
from .limits import increments, last_values, meters_of, ranges, readings, warn_of_losses
from .model import ForecastModel, load_folder
from .plot import plot_forecast, save_each
from .recipe import ForecastRecipe
from .trainer import HELD_OUT, align, follow_rows, load_frame, make_inputs

MOST_PLOTS = 50  # series that are drawn; ten thousand pictures help nobody

__all__ = ["calibration_of", "load_model", "predict", "tail_of"]


def load_model(run: Run | str | Path, *, held_out: bool = False) -> tuple[Run, ForecastModel]:
    """The run and its model, in eval mode on the CPU; with ``held_out`` the one that never saw the test block."""
    run = run if isinstance(run, Run) else Run.open(run, kind="forecast")
    ended = run.model_dir / "artifacts.safetensors", run.path / "summary.json"  # the last that training writes
    if not all(path.is_file() for path in ended):
        raise InputError(f"{run.path}: its training has not ended; continue it with --resume {run.path}")
    folder = run.path / HELD_OUT
    folder = folder if held_out and folder.is_dir() else run.model_dir
    return run, load_folder(folder, "restore it or train again")


def tail_of(model: ForecastModel) -> pd.DataFrame:
    """The last rows that training was given, as a frame."""
    values = model.artifacts["tail"].numpy()
    end = pd.Timestamp(int(model.artifacts["tail_end"]), unit="ns", tz="UTC" if model.zone else None)
    if model.zone:
        end = end.tz_convert(model.zone)
    index = pd.date_range(end=end, periods=len(values), freq=model.frequency)
    return pd.DataFrame(values, index=index, columns=model.series)


def check_frame(model: ForecastModel, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """``frame`` if the model can forecast it; InputError where its step is another than in training."""
    trained = step_of(pd.date_range("2001-01-01", periods=50, freq=model.frequency))
    if len(frame) > 1 and not np.isclose(step_of(frame.index), trained, rtol=0.05):
        raise InputError(
            f"{source}: its rows are {step_of(frame.index):g} s apart, those of the training {trained:g} s; "
            "resample it or train on it"
        )
    if frame.empty or frame.shape[1] == 0:
        raise InputError(f"{source}: no numeric column to forecast; name one column per sensor")
    if len(frame) == 1:  # one row has no step of its own
        index = pd.date_range(frame.index[0], periods=1, freq=model.frequency)
        frame = frame.set_axis(index) if index[0] == frame.index[0] else frame
    return frame


def rows_of(model: ForecastModel, frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, np.ndarray]:
    """``frame`` as the model reads it, meters as increments, and the last value of each column before that."""
    frame = check_frame(model, frame.rename(columns=str), source)
    meters = meters_of(model, list(frame.columns))
    for name in meters:
        warn_of_losses(frame[name], source)
    return increments(frame, meters), last_values(frame)


def after_tail(model: ForecastModel, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the training's last rows before it, where it goes on from them: a week has a past, too.

    Where the rows are on another grid, or begin more than a look-back after the training's, they stand alone.
    """
    tail = tail_of(model)
    if (frame.index.tz is None) != (tail.index.tz is None) or frame.index[0] <= tail.index[0]:
        return frame
    before = tail[tail.index < frame.index[0]].reindex(columns=frame.columns)
    joined = pd.concat([before, frame])
    index = pd.date_range(joined.index[0], joined.index[-1], freq=model.frequency)
    if len(index) > len(joined) + model.look_back or not joined.index.isin(index).all():
        return frame
    return joined.reindex(index)


def rows_to_continue(run: Run, model: ForecastModel, csv: str | Path | None) -> tuple[pd.DataFrame, np.ndarray | None]:
    """The rows of ``csv``, which the intervals of ``model`` then have followed, or those at the end of the training.

    Meters are increments; beside them the last value of each column before that, None for the training's own.
    """
    if csv is None:
        return tail_of(model), None
    frame, last = rows_of(model, load_frame(csv, run.recipe(ForecastRecipe)), str(csv))
    frame = after_tail(model, frame)
    follow_rows(model, frame)
    return frame, last


def calibration_of(model: ForecastModel, inputs: Inputs) -> Calibration:
    """The saved calibration for the series of ``inputs``; an unknown series gets the mean over the known."""
    rows = inputs.identities - 1

    def pick(table: torch.Tensor) -> torch.Tensor:
        return torch.where((rows >= 0)[:, None, None], table[rows.clamp_min(0)], table.mean(0))

    return Calibration(pick(model.artifacts["offset"]), pick(model.artifacts["pace"]))


def predict(
    run: Run | str | Path, csv: str | Path | None = None, *, plots: bool = True, levels: tuple[int, ...] = (80, 95)
) -> pd.DataFrame:
    """Forecast every series for the run's horizon; the first forecast is one step after the last row.

    Args:
        run: a run or its folder.
        csv: rows to continue, ``sample`` for the embedded data; those that the run was trained on when None.
        plots: write ``plots/forecast-SERIES.png`` into the run: history, median and intervals.
        levels: intervals to give, of 80 and 95.

    Returns:
        Long: ``unique_id``, ``ds`` (in the input's own zone), ``mean``, ``median``, then ``lo-80``, ``hi-80`` and so
        on for each level.
    """
    run, model = load_model(run)
    frame, last = rows_to_continue(run, model, csv)
    table = forecast_frame(model, frame, levels=levels, last=last)
    if plots:
        save_each(draw(frame, table, model.horizon), run.plots_dir, "forecast")
    return table


def draw(frame: pd.DataFrame, table: pd.DataFrame, horizon: int) -> dict[str, Figure]:
    """A figure per series: the last rows of ``frame``, and the forecasts of ``table`` after them."""
    figures = {}
    for name in list(frame.columns)[:MOST_PLOTS]:
        rows = table[table["unique_id"] == str(name)]
        figures[str(name)] = plot_forecast(frame[name].iloc[-4 * horizon :], rows, title=str(name))
    return figures


def forecast_frame(
    model: ForecastModel,
    frame: pd.DataFrame,
    *,
    levels: tuple[int, ...] = (80, 95),
    last: np.ndarray | None = None,
) -> pd.DataFrame:
    """:func:`predict` for a frame that is at hand, with a ``DatetimeIndex`` of fixed frequency.

    Meters are increments in ``frame``; ``last`` are the readings that they led to, by column, those at the end of the
    training when None.
    """
    values, names, times = forecast_values(model, frame, last=last)
    return to_long(values, names, times, levels)


def forecast_values(
    model: ForecastModel, frame: pd.DataFrame, *, last: np.ndarray | None = None
) -> tuple[np.ndarray, list[str], pd.DatetimeIndex]:
    """The mean and the five quantiles ``(series, horizon, 6)`` after ``frame``, the series and the times."""
    values, (low, high), names, times = free_values(model, frame, last=last)
    return np.clip(values, low[:, None, None], high[:, None, None]), names, times


def free_values(
    model: ForecastModel, frame: pd.DataFrame, *, last: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], list[str], pd.DatetimeIndex]:
    """What :func:`forecast_values` gives before it is brought within the bounds, and the bounds ``(series,)``.

    What lies beyond a bound says how likely the bound itself is. A meter never falls below its last reading.
    """
    names = [str(name) for name in frame.columns]
    frame = align(model, frame)
    recent = frame.iloc[-model.look_back :]
    inputs = make_inputs(model, recent)
    forecast, _ = forecast_origins(model, inputs, torch.tensor([len(recent)]))
    values = bounds(forecast[0], calibration_of(model, inputs).offset).numpy()
    values = inputs.scaler.backward(values, axis=0)
    place = [frame.columns.get_loc(name) for name in names]
    values = values[place]
    low, high = ranges(model, names)
    for name in meters_of(model, names):
        number = names.index(name)
        if last is None:
            reading = float(model.artifacts["tail_reading"][model.series.index(name)])
        else:
            reading = float(last[number])
        values[number] = readings(values[number], reading)
        low[number] = min(max(low[number], np.nan_to_num(reading)), high[number])
    return values, (low, high), names, extend(frame.index, model.horizon)


def to_long(values: np.ndarray, names: list[str], times: pd.DatetimeIndex, levels: tuple[int, ...]) -> pd.DataFrame:
    """``(series, horizon, 6)`` as a long frame, series by series."""
    place = {80: (2, 4), 95: (1, 5)}
    columns = {"mean": 0, "median": 3}
    for level in levels:
        if level not in place:
            raise InputError(f"level {level}: must be 80 or 95")
        columns[f"lo-{level}"], columns[f"hi-{level}"] = place[level]
    frame = pd.DataFrame({"unique_id": np.repeat(names, len(times)), "ds": np.tile(np.arange(len(times)), len(names))})
    frame["ds"] = times.as_unit("us").take(frame["ds"].to_numpy())
    for name, column in columns.items():
        frame[name] = values[:, :, column].reshape(-1)
    return frame
