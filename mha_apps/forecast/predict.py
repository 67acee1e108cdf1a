"""Forecasts from a run: after the last row of a CSV, or after the rows that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.tseries.offsets import BaseOffset

from mha_apps.errors import InputError, warn
from mha_apps.training import Run

from .calendar import by_clock, elapses, extend, on_clock, step_of
from .conformal import Calibration, as_far_ahead, bounds
from .covariates import seen, warn_of_early_end, weighed
from .drivers import LATEST, MOST_BRIDGED
from .engine import forecast_origins
from .faults import named, rows_since, since_unit_change, warn_of_silence, without_sentinels
from .inputs import Inputs
from .limits import (
    LastReading,
    increments,
    increments_of_believed,
    is_before,
    last_readings,
    meters_of,
    ranges,
    readings_of,
    warn_of_bounds,
    warn_of_falls,
    warn_of_silent_meters,
)
from .meters import readings, since_origin
from .model import ForecastModel, load_folder
from .plot import plot_forecast, rows_before, safe_names, save_each
from .reading.report import seconds
from .reading.series import NoStepError
from .reading.zones import at_first
from .recipe import ForecastRecipe
from .trainer import HELD_OUT, align, follow_rows, load_frame, make_inputs, needs_all
from .windows import spread

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
    index = pd.date_range(end=model.time(int(model.artifacts["tail_end"])), periods=len(values), freq=model.step)
    names = list(model.series)
    if model.covariates.columns:
        values = np.concatenate([values, model.artifacts["tail_around"].numpy()], 1)
        names += model.covariates.columns
    return pd.DataFrame(values, index=index, columns=names)


def ahead_of(model: ForecastModel) -> pd.DataFrame | None:
    """The future covariates that training was given for the rows after its last one; None without any."""
    if "tail_ahead" not in model.artifacts:
        return None
    values = model.artifacts["tail_ahead"].numpy()
    end = model.time(int(model.artifacts["tail_end"]))
    index = pd.date_range(end, periods=len(values) + 1, freq=model.step)[1:]
    return pd.DataFrame(values, index=index, columns=list(model.covariates.future))


def in_zone(model: ForecastModel, frame: pd.DataFrame, source: str = "the frame") -> pd.DataFrame:
    """``frame`` on the clock of the rows that ``model`` was trained on, and on their grid.

    Rows beside the grid that go on from the training are moved onto it, by less than half a step, as they would be if
    one file held them all; that is told. Where they cannot be they stay, which is told too: they have none of the
    training in their past. A frame stays as it is where its step is another, or where it has a zone and the training
    none, or the reverse, unless the rows are regular by the clock: then the zone does not matter.
    """
    index = pd.DatetimeIndex(frame.index)
    if not len(index):
        return frame
    zone = model.zone or index.tz
    if index.tz is not None and model.zone is not None and str(index.tz) != model.zone:
        index = index.tz_convert(model.zone)
    aware, wanted = index, model.by_clock or (model.zone is None and not elapses(model.step))
    if wanted and index.tz is not None:
        wall = by_clock(index)
        index = index.tz_localize(None) if wall is None else wall
    frame = frame.set_axis(index)
    end = model.time(int(model.artifacts["tail_end"]))
    if (index.tz is None) != (end.tz is None) or not _as_far_apart(model, index):
        return frame
    grid = _grid_over(model, index)
    given = aware.as_unit("ns").asi8
    places = (at_first(grid, zone) if wanted and aware.tz is not None else grid).as_unit("ns").asi8
    number = np.searchsorted(places[:-1] + np.diff(places) // 2, given, side="right")
    off = np.abs(given - places[number])
    half = np.minimum(np.diff(places)[np.clip(number - 1, 0, None)], np.diff(places)[number.clip(max=len(places) - 2)])
    if off.any() and index[0] - end > pd.Timedelta(seconds=_step_seconds(model) * model.look_back):
        return frame  # nothing of the training is in their past
    if (2 * off >= half).any() or (np.diff(number) < 1).any():
        warn(
            f"{source}: its rows lie between those that training saw, so they do not go on from them; resample it to "
            f"{model.frequency} steps from {grid[0]} on"
        )
        return frame
    if off.any():
        most = seconds(off.max() / 1e9)
        warn(f"{source}: {np.count_nonzero(off):,} rows moved onto the steps of the training, by {most} at most")
    return frame.set_axis(grid[number]).reindex(grid[number[0] : number[-1] + 1])


def _as_far_apart(model: ForecastModel, index: pd.DatetimeIndex) -> bool:
    """Whether times are as far from each other as the rows of the training, or by the clock; a single one is."""
    steps = [step_of(index), step_of(on_clock(index))]
    return len(index) < 2 or bool(np.isclose(steps, _step_seconds(model), rtol=0.05).any())


def _step_seconds(model: ForecastModel) -> float:
    return step_of(pd.date_range("2001-01-01", periods=50, freq=model.step))


def _grid_over(model: ForecastModel, index: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """The steps of the training, as far on or back as to hold ``index`` and some more."""
    step, end, some = model.step, model.time(int(model.artifacts["tail_end"])), 3
    if elapses(step):
        length = pd.Timedelta(step)
        first, last = (index[0] - end) // length - some, (index[-1] - end) // length + some
        return pd.date_range(end + first * length, periods=last - first + 1, freq=step)
    later = pd.date_range(end, max(index[-1], end) + some * step, freq=step)
    back = max(0, round((end - index[0]) / pd.Timedelta(seconds=_step_seconds(model)) * 1.2)) + some
    grid = pd.date_range(end=end, periods=back + 1, freq=step)[:-1].append(later)
    first, last = np.searchsorted(grid, index[0]) - some, np.searchsorted(grid, index[-1]) + some
    return pd.DatetimeIndex(grid[max(0, first) : last], freq=step)


def times_in(model: ForecastModel, times: pd.DatetimeIndex, zone: tzinfo | str | None) -> pd.DatetimeIndex:
    """Times of rows as :func:`in_zone` has them in ``zone``, on whose clock they are read; as they are when None."""
    if zone is None:
        return times
    return (at_first(times, model.zone or zone) if times.tz is None else times).tz_convert(zone)


def check_frame(model: ForecastModel, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """``frame`` if the model can forecast it; InputError where its step is another than in training."""
    if not _as_far_apart(model, frame.index):
        raise InputError(
            f"{source}: its rows are {step_of(frame.index):.10g} s apart, those of the training "
            f"{_step_seconds(model):.10g} s; resample it or train on it"
        )
    if frame.empty or frame.shape[1] == 0:
        raise InputError(f"{source}: no numeric column to forecast; name one column per sensor")
    if len(frame) == 1:  # one row has no step of its own
        index = pd.date_range(frame.index[0], periods=1, freq=model.step)
        frame = frame.set_axis(index) if index[0] == frame.index[0] else frame
    return frame


def load_rows(run: Run, model: ForecastModel, csv: str | Path, **changes: Any) -> pd.DataFrame:
    """The frame of ``csv`` in its own zone, read as the run's data were but for ``changes``.

    A single row has the step of the model.
    """
    recipe = replace(run.recipe(ForecastRecipe), **changes)
    try:
        return load_frame(csv, recipe)
    except NoStepError:
        return load_frame(csv, replace(recipe, freq=model.frequency))


def known_of(model: ForecastModel, frame: pd.DataFrame, source: str) -> list[str]:
    """The columns of ``frame`` that training knew, covariates last; others, and missing ones, are named in warnings.

    Raises:
        InputError: it knew none of them.
    """
    covariates = model.covariates
    known = [name for name in map(str, frame.columns) if name in model.series]
    if not known:
        raise InputError(f"{source}: none of its columns is a sensor of the run; it has {', '.join(model.series[:8])}")
    frame = frame.rename(columns=str)
    unknown = [name for name in covariates.series(frame) if name not in model.series and frame[name].notna().any()]
    if unknown and not covariates.listed:
        warn(f"{source}: {named(unknown)} unknown to the run, as training saw no such sensor; left out")
    _warn_of_absent(model, frame, source)
    return known + [name for name in covariates.columns if name in frame.columns]


def _warn_of_absent(model: ForecastModel, frame: pd.DataFrame, source: str) -> None:
    columns = set(map(str, frame.columns))
    absent = [name for name in model.series if name not in columns]
    if absent:
        warn(f"{source}: {named(absent)} of the run not there, so nothing is said about it")


def rows_of(model: ForecastModel, frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, dict[str, LastReading]]:
    """``frame`` as the model reads it, meters as increments, and the last reading of each meter before that.

    What is forecast comes first, then the covariates; rows that only say what is to come are left out. Values that no
    forecast should rest on are missing: they are compared with the last rows of the training and with its deviations,
    as a short table does not tell what is far out.
    """
    frame = model.covariates.select(check_frame(model, frame.rename(columns=str), source), model.series, source)
    meters, known = meters_of(model, list(frame.columns)), readings_of(model)
    read, rises = _believed(model, frame, list(frame.columns), source)
    # A meter that reads nothing here goes on from what training saw.
    last = {name: known[name] if np.isnan(each.value) else each for name, each in last_readings(read, meters).items()}
    warn_of_bounds(model, model.covariates.forecast(read), source)
    return read.assign(**rises), last


def rows_to_judge(model: ForecastModel, frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """:func:`rows_of` in which series that are no meters keep every value, and the same with every reading of a meter.

    In the second, what is no reading of a meter has what it differs by from the last that is.
    """
    frame = model.covariates.select(check_frame(model, frame.rename(columns=str), source), model.series, source)
    meters = meters_of(model, list(frame.columns))
    doubted = [name for name in frame.columns if name not in model.series or name in meters]
    read, rises = _believed(model, frame, doubted, source)
    rows = read.assign(**rises)
    judged = increments(frame, meters, readings_of(model), model.step, believed=read)[meters]
    return rows, rows.assign(**judged)


def _believed(
    model: ForecastModel, frame: pd.DataFrame, doubted: list[str], source: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``frame`` without values of the columns ``doubted`` that no forecast should rest on; these with increments."""
    meters, known = meters_of(model, list(frame.columns)), readings_of(model)
    tail = tail_of(model)
    same = (frame.index.tz is None) == (tail.index.tz is None)
    usual = _seen(model)
    plain = [name for name in doubted if name in usual.index and name not in meters]
    clean = without_sentinels(frame[plain], usual, source)
    clean, rises = increments_of_believed(
        frame[doubted].assign(**clean) if clean is not None else frame[doubted],
        meters,
        source,
        before=known,
        freq=model.step,
        earlier=tail[tail.index < frame.index[0]] if same else tail,
        deviation=usual["deviation"].reindex(doubted, fill_value=0.0).to_numpy(),
    )
    read = frame.assign(**clean)
    for name in meters:
        warn_of_falls(read[name], source, known[name])
    return read, rises


def _seen(model: ForecastModel) -> pd.DataFrame:
    """What training saw of each column: its ``low``, ``high`` and ``deviation``, of meters as what they rise by.

    The range of a covariate is that of all rows; of a series it is that of the last rows and three deviations from its
    mean.
    """
    held, names = model.artifacts, model.covariates.columns
    mean, scale = held["mean"].numpy(), held["scale"].numpy()
    last = seen(tail_of(model)[model.series])
    low, high = np.fmin(last["low"], mean - 3 * scale), np.fmax(last["high"], mean + 3 * scale)
    table = pd.DataFrame({"low": low, "high": high, "deviation": scale})
    if not names:
        return table
    around = {"low": held["around_low"], "high": held["around_high"], "deviation": held["around_scale"][: len(names)]}
    return pd.concat([table, pd.DataFrame({name: values.numpy() for name, values in around.items()}, names)])


def after_tail(model: ForecastModel, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the training's last rows before it, where it goes on from them: a week has a past, too.

    Where the rows are on another grid, or begin more than a look-back after the training's, they stand alone.
    """
    tail = tail_of(model)
    if (frame.index.tz is None) != (tail.index.tz is None) or frame.index[0] <= tail.index[0]:
        return frame
    before = tail[tail.index < frame.index[0]].reindex(columns=frame.columns)
    joined = pd.concat([before, frame])
    index = pd.date_range(joined.index[0], joined.index[-1], freq=model.step)
    if len(index) > len(joined) + model.look_back or not joined.index.isin(index).all():
        return frame
    return joined.reindex(index)


@dataclass
class History:
    """Rows to forecast from, as the model reads them: on its clock, meters as increments.

    Attributes:
        rows: what is forecast first, then the covariates.
        last: the last reading of each meter; those at the end of the training when None.
        ahead: the future covariates as far as they are known; None without any.
        zone: that of the rows as they were given, in which forecasts of them come; None for the times of ``rows``.
    """

    rows: pd.DataFrame
    last: dict[str, LastReading] | None = None
    ahead: pd.DataFrame | None = None
    zone: tzinfo | str | None = None


def rows_to_continue(
    run: Run, model: ForecastModel, csv: str | Path | None, future: str | Path | None = None
) -> History:
    """The rows of ``csv``, as :func:`continued` gives them, or those at the end of the training.

    Without ``csv`` what training warned of is said again: its forecast is the one that it warned of. What is known of
    the future covariates comes from the CSV ``future``, from the rows behind those of ``csv``, and from training; it
    fills their gaps in the history too.
    """
    given = None
    if future is not None:
        table = in_zone(model, load_rows(run, model, future, columns=()), str(future))
        given = load_future(model, table, str(future)), str(future)
    if csv is None:
        for told in run.summary().get("warnings", []):
            warn(told)
        rows, ahead = informed(model, tail_of(model), [ahead_of(model)], given)
        return History(rows, ahead=ahead, zone=model.zone)
    return continued(model, load_rows(run, model, csv), str(csv), given)


def continued(
    model: ForecastModel, frame: pd.DataFrame, source: str, given: tuple[pd.DataFrame, str] | None = None
) -> History:
    """New rows behind those of the training, in their own zone; the intervals of the model then have followed them.

    ``given`` are future covariates, and what to call them. Columns that training did not know, values that no forecast
    should rest on, and series without any, are named in warnings.
    """
    covariates, zone = model.covariates, pd.DatetimeIndex(frame.index).tz
    frame = in_zone(model, frame, source)
    covariates.require_history(frame, model.series, source)
    unknown = [name for name in covariates.series(frame) if name not in model.series]
    if unknown and not covariates.listed:
        warn(
            f"{source}: {named(unknown)} unknown to the run, as training saw no such sensor; forecast all the same, by "
            "what the others have taught"
        )
    _warn_of_absent(model, frame, source)
    rows, last = rows_of(model, frame, source)
    behind = planned(model, frame, source)
    rows, ahead = informed(model, after_tail(model, rows), [behind, ahead_of(model)], given)
    warn_of_silent_meters(last, rows, source)
    rows = since_unit_change(rows, source, skip=covariates.columns)
    measured = covariates.forecast(rows)
    measured = measured.drop(columns=meters_of(model, list(measured.columns)))
    warn_of_silence(measured, look_back=model.look_back, source=source)
    recent = rows[list(covariates.future)].iloc[-MOST_BRIDGED:]
    silent = [name for name in covariates.future if recent[name].isna().all()]
    if silent:
        warn(
            f"{source}: {named(silent)} without a value in the last rows of the history, so what is known ahead is "
            "compared with nothing, and the linear path does without it"
        )
    follow_rows(model, rows)
    warn_of_early_end(behind, model.horizon, source)
    return History(rows, last, ahead, zone)


def load_future(model: ForecastModel, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """``frame`` as future covariates of ``model``; InputError where it is about something else."""
    known = model.covariates.future
    if not known:
        raise InputError(f"{source}: the model was given no future covariate; train with --future, or leave it out")
    frame = frame.rename(columns=str)
    missing = [name for name in known if name not in frame.columns]
    if missing:
        raise InputError(f"{source}: column {missing[0]!r} is missing; give {', '.join(map(repr, known))}")
    return frame[list(known)]


def planned(model: ForecastModel, frame: pd.DataFrame, source: str) -> pd.DataFrame | None:
    """The future covariates in rows of ``frame`` behind its last measured one, held against what training saw."""
    ahead = model.covariates.ahead(frame.rename(columns=str), model.series)
    return None if ahead is None else weighed(ahead, _seen(model), source)


def informed(
    model: ForecastModel,
    rows: pd.DataFrame,
    known: list[pd.DataFrame | None],
    given: tuple[pd.DataFrame, str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """``rows`` with gaps of the future covariates filled by what else says them, and all that is known of them.

    Args:
        model: the model.
        rows: the history.
        known: tables of future covariates, the first that knows a value counting.
        given: one more, which counts first, and what to call it.

    Raises:
        InputError: the one that is given is of another step.
    """
    covariates = model.covariates
    if not covariates.future:
        return rows, None
    first = None
    if given is not None:
        table, source = given
        times = rows.index.append(extend(rows.index, model.horizon))
        covariates.require_step(table, times, source)
        first = weighed(table[(table.index >= times[0]) & (table.index <= times[-1])], _seen(model), source)
    whole = merged(first, *known)
    names = list(covariates.future)
    if (
        whole is not None
        and rows[names].isna().to_numpy().any()
        and (whole.index.tz is None) == (rows.index.tz is None)
    ):
        rows = rows.assign(**rows[names].fillna(covariates.at(whole, rows.index, "the covariates")))
    return rows, whole


def merged(*tables: pd.DataFrame | None) -> pd.DataFrame | None:
    """Tables of future covariates as one, the first that knows a value counting; None without any."""
    found: pd.DataFrame | None = None
    for table in tables:
        if table is None:
            continue
        if found is None:
            found = table
        elif (pd.DatetimeIndex(found.index).tz is None) == (pd.DatetimeIndex(table.index).tz is None):
            found = found.combine_first(table)
    return found


def calibration_of(model: ForecastModel, inputs: Inputs) -> Calibration:
    """The saved calibration for the series of ``inputs``; an unknown series gets the mean over the known."""
    rows = inputs.identities - 1

    def pick(table: torch.Tensor) -> torch.Tensor:
        return torch.where((rows >= 0)[:, None, None], table[rows.clamp_min(0)], table.mean(0))

    return Calibration(pick(model.artifacts["offset"]), pick(model.artifacts["pace"]))


def predict(
    run: Run | str | Path,
    csv: str | Path | None = None,
    *,
    future: str | Path | None = None,
    plots: bool = True,
    levels: tuple[int, ...] = (80, 95),
) -> pd.DataFrame:
    """Forecast every series for the run's horizon; the first forecast is one step after the last row.

    Args:
        run: a run or its folder.
        csv: rows to continue, ``sample`` for the embedded data; those that the run was trained on when None. Rows
            behind the last measured one that hold future covariates alone say what is to come.
        future: a CSV of the future covariates in the rows to forecast, for a run that was trained with any.
        plots: write ``forecast-SERIES.png`` into the folder of :func:`plots_of`: history, median and intervals.
        levels: intervals to give, of 80 and 95.

    Returns:
        Long: ``unique_id``, ``ds`` (in the zone of the rows to continue), ``mean``, ``median``, then ``lo-80``,
        ``hi-80`` and so on for each level.
    """
    run, model = load_model(run)
    history = rows_to_continue(run, model, csv, future)
    table = forecast_of(model, history, levels=levels, source=str(future or csv or run.path))
    if plots:
        save_each(draw(model, history.rows, table, history.last), plots_of(run, csv), "forecast")
    return table


def plots_of(run: Run, csv: str | Path | None) -> Path:
    """The folder of the pictures of a forecast: ``plots`` of the run, and in it one for rows of each other name."""
    if csv is None:
        return run.plots_dir
    name = Path(csv).absolute().stem
    return run.plots_dir / safe_names([name])[name]


def draw(
    model: ForecastModel, frame: pd.DataFrame, table: pd.DataFrame, last: dict[str, LastReading] | None = None
) -> dict[str, Figure]:
    """A figure per series: the last rows of ``frame``, as :func:`as_read` takes them, and then those of ``table``."""
    frame = as_read(model, frame, last)
    frame = frame.set_axis(times_in(model, pd.DatetimeIndex(frame.index), table["ds"].dt.tz))
    names = list(frame.columns)[:MOST_PLOTS]
    meters = meters_of(model, names)
    figures = {}
    for name in names:
        shown = rows_before(frame[name], model.horizon, meter=name in meters)
        figures[str(name)] = plot_forecast(shown, table[table["unique_id"] == str(name)], title=str(name))
    return figures


def as_read(model: ForecastModel, frame: pd.DataFrame, last: dict[str, LastReading] | None = None) -> pd.DataFrame:
    """The series of ``frame`` as they were read, for pictures: meters as readings, as if they had never been reset.

    ``last`` is as for :func:`forecast_frame`.
    """
    frame = model.covariates.forecast(frame)
    known = readings_of(model) if last is None else last
    read = {}
    for name in meters_of(model, list(frame.columns)):
        rises = frame[name]
        since = pd.Series(spread(torch.tensor(rises.to_numpy(dtype=np.float64))).numpy(), frame.index).fillna(0.0)
        since = since[::-1].cumsum()[::-1].shift(-1, fill_value=0.0)
        read[name] = (known[name].value - since).where(rises.notna())
    return frame.assign(**read) if read else frame


def forecast_frame(
    model: ForecastModel,
    frame: pd.DataFrame,
    *,
    levels: tuple[int, ...] = (80, 95),
    last: dict[str, LastReading] | None = None,
    ahead: pd.DataFrame | None = None,
    strict: bool = True,
    source: str = "the frame",
) -> pd.DataFrame:
    """:func:`predict` for a frame that is at hand, with a ``DatetimeIndex`` of fixed frequency.

    Meters are increments in ``frame``; ``last`` are the readings that they led to, those at the end of the training
    when None. ``ahead`` are the future covariates in the rows to come; with ``strict`` all of them must be
    known, else one that is missing is taken to be what its past says.
    """
    values, names, times = forecast_values(model, frame, last=last, ahead=ahead, strict=strict, source=source)
    return to_long(values, names, times, levels)


def forecast_of(
    model: ForecastModel, history: History, *, levels: tuple[int, ...] = (80, 95), source: str = "the frame"
) -> pd.DataFrame:
    """:func:`predict` for a history that is at hand."""
    table = forecast_frame(model, history.rows, levels=levels, last=history.last, ahead=history.ahead, source=source)
    return table.assign(ds=times_in(model, pd.DatetimeIndex(table["ds"]), history.zone))


def forecast_values(
    model: ForecastModel, frame: pd.DataFrame, **given: Any
) -> tuple[np.ndarray, list[str], pd.DatetimeIndex]:
    """The mean and the five quantiles ``(series, horizon, 6)`` after ``frame``, the series and the times."""
    values, (low, high), names, times = free_values(model, frame, **given)
    return np.clip(values, low[:, None, None], high[:, None, None]), names, times


def free_values(
    model: ForecastModel,
    frame: pd.DataFrame,
    *,
    last: dict[str, LastReading] | None = None,
    ahead: pd.DataFrame | None = None,
    strict: bool = True,
    source: str = "the frame",
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], list[str], pd.DatetimeIndex]:
    """What :func:`forecast_values` gives before it is brought within the bounds, and the bounds ``(series,)``.

    What lies beyond a bound says how likely the bound itself is. A meter never falls below its last reading, and counts
    from there: where that was rows ago, the model's forecasts of what it rose by since come in between, and its
    intervals are those of so many steps more.
    """
    names = model.covariates.series(frame)
    times = extend(frame.index, model.horizon)
    if strict:
        ahead = model.covariates.require(ahead, times, source)
    frame = align(model, frame)
    recent = frame.iloc[-(model.look_back + (LATEST if model.covariates.names else 0)) :]
    inputs = make_inputs(model, recent, ahead)
    forecast, _ = forecast_origins(model, inputs, torch.tensor([len(recent)]))
    meters = meters_of(model, names)
    known = readings_of(model) if last is None else last
    unread = {name: _rows_between(known[name].at, frame.index, model.step) for name in meters}
    columns = model.covariates.series(frame)  # in the order of the forecast, which may have more than asked for
    silent = [unread.get(name, rows) for name, rows in zip(columns, rows_since(recent[columns]), strict=True)]
    made = bounds(since_origin(model, inputs, forecast[0]), calibration_of(model, inputs).offset)
    made = as_far_ahead(made, torch.tensor(silent), torch.from_numpy(np.isin(columns, meters)))
    values = inputs.scaler.backward(made.numpy(), axis=0)
    values = values[[columns.index(name) for name in names]]
    low, high = ranges(model, names)
    since = _risen_since(model, frame, unread)
    for name in meters:
        number, reading = names.index(name), float(np.nan_to_num(known[name].value))
        values[number] = readings(values[number] + since.get(name, np.zeros(6)), reading)
        low[number] = min(max(low[number], reading), high[number])
    return values, (low, high), names, times


def _rows_between(at: pd.Timestamp, index: pd.DatetimeIndex, freq: BaseOffset) -> int:
    """How many rows after the time ``at`` the last of ``index`` is; 0 where ``at`` is none before it."""
    end = index[-1]
    if not is_before(at, end):
        return 0
    return len(pd.date_range(at.tz_convert(end.tz) if end.tz is not None else at, end, freq=index.freq or freq)) - 1


def _risen_since(model: ForecastModel, frame: pd.DataFrame, unread: dict[str, int]) -> dict[str, np.ndarray]:
    """What meters have risen by in their last ``unread`` rows, up to the last one: the mean and five medians ``(6,)``.

    It is what the model forecasts at the first row without a reading, a horizon later, and so on, the rows between
    being missing for it. Meters that were read in the last row are left out.
    """
    end, freq = frame.index[-1], frame.index.freq or model.step
    silent: dict[int, list[str]] = {}
    for name, rows in unread.items():
        if rows:
            silent.setdefault(rows, []).append(name)
    found: dict[str, np.ndarray] = {}
    for rows, names in silent.items():
        columns = model.series if needs_all(model) else names
        past = model.look_back + (LATEST if model.covariates.names else 0)
        part = frame.reindex(
            index=pd.date_range(end=end, periods=rows + past, freq=freq), columns=columns + model.covariates.columns
        )
        inputs = make_inputs(model, part)
        forecast, _ = forecast_origins(model, inputs, torch.arange(past, past + rows, model.horizon))
        made = inputs.scaler.backward(since_origin(model, inputs, forecast).numpy(), axis=1)
        last = (rows - 1) % model.horizon  # of the rows that the last of these forecasts counts for
        total = made[:-1, :, -1].sum(0) + made[-1, :, last]
        found |= {name: total[columns.index(name)][[0, 3, 3, 3, 3, 3]] for name in names}
    return found


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
