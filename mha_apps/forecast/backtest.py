"""How a trained forecaster does on rows that it has not seen, beside the forecasts that anyone can make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mha_apps.errors import InputError, collected, warn
from mha_apps.training import Run

from .baselines import last_value, seasonal_naive
from .calendar import extend
from .engine import forecast_origins
from .faults import named, since_unit_change
from .inputs import Inputs
from .limits import LastReading, bound, meters_of
from .linear import LinearPath, thin, whole
from .meters import readings, risen, since_origin, summed
from .model import LEVELS, ForecastModel
from .plot import plot_forecast, rows_before, save_each
from .predict import (
    MOST_PLOTS,
    after_tail,
    ahead_of,
    as_read,
    calibration_of,
    draw,
    forecast_frame,
    in_zone,
    known_of,
    load_model,
    load_rows,
    rows_of,
    tail_of,
    times_in,
    to_long,
)
from .recipe import ForecastRecipe
from .report import write_report
from .sample import resolve
from .trainer import align, make_inputs
from .trees import MOST_ROWS, Trees
from .windows import centre, spread

__all__ = ["Backtest", "backtest", "examine"]

MOST_CONTRIBUTING = 500  # origins at which each covariate is taken away
ROUNDING = 1e-4  # deviations: a value at a bound is inside, though float32 has rounded it and the sum of such values


@dataclass
class Backtest:
    """What a backtest found.

    Attributes:
        metrics: JSON-able; errors pooled over series are in units of each series' training deviation.
        series: one row per series, errors in the sensor's own unit.
        steps: one row per step of the horizon.
        figures: for each series, the forecast at the origin shown against what came.
    """

    metrics: dict[str, Any]
    series: pd.DataFrame
    steps: pd.DataFrame
    figures: dict[str, Figure]


def backtest(
    run: Run | str | Path, csv: str | Path | None = None, *, plots: bool = True, trees: bool = True
) -> dict[str, Any]:
    """What :func:`examine` finds, as one JSON-able dict: the metrics, and the rows of the tables by series and step."""
    found = examine(run, csv, plots=plots, trees=trees)
    return found.metrics | {"series": _records(found.series), "steps": _records(found.steps)}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts; what is unknown, such as the error of a series without a truth, is None and not NaN."""
    rows = table.reset_index().to_dict("records")
    return [{str(key): None if pd.isna(value) else value for key, value in row.items()} for row in rows]


def examine(
    run: Run | str | Path, csv: str | Path | None = None, *, plots: bool = True, trees: bool = False
) -> Backtest:
    """Forecast from every origin after the rows that training saw, and compare with what came.

    The intervals adapt as they would have in operation: at each origin with the truths of earlier rows only. Future
    covariates are taken as they were measured, which is hindsight where they are forecasts in operation. Errors of a
    meter are those of what it rises by in each row, so that none counts again in every row after it. Its intervals are
    of its readings, and so are their coverage, width and pinball loss: they are held against what it rose by since the
    origin, a row that is not known being left out of both.

    Args:
        run: a run or its folder.
        csv: the CSV that the run was trained on, or a longer one; the path in the run's recipe when None.
        plots: write ``plots/backtest-SERIES.png`` and ``report.html`` into the run.
        trees: fit gradient-boosted trees as one more baseline, which takes most of the time.

    Raises:
        InputError: the CSV has no row after those that training saw.
    """
    run, model = load_model(run, held_out=True)
    recipe = run.recipe(ForecastRecipe)
    source = str(csv) if csv is not None else recipe.csv
    if csv is None and not resolve(source).exists():
        raise InputError(
            f"{source}: the data of the run is not there any more; say where it is, as backtest RUN CSV does"
        )
    with collected() as told:
        frame = in_zone(model, load_rows(run, model, source), source)
        frame, start = _rows_to_score(run, model, frame, source, told=csv is None)
    whole = after_tail(model, frame)
    result = evaluate(model, whole, start + len(whole) - len(frame), trees=trees)
    if plots:
        save_each(result.figures, run.plots_dir, "backtest")
        final = load_model(run)[1]
        rows, ahead = tail_of(final), ahead_of(final)
        forecasts = draw(final, rows, forecast_frame(final, rows, ahead=ahead, strict=False))
        assumed = final.covariates.unknown(ahead, extend(rows.index, final.horizon))
        write_report(run, forecasts=forecasts, found=result, warnings=told, assumed=assumed)
    return result


def _rows_to_score(
    run: Run, model: ForecastModel, frame: pd.DataFrame, source: str, *, told: bool
) -> tuple[pd.DataFrame, int]:
    """The series of the run in ``frame``, and the first row that its training did not see.

    What is odd about them is told in warnings; with ``told`` what training warned of too.
    """
    for warning in run.summary().get("warnings", []) if told else []:
        warn(warning)
    frame = frame.rename(columns=str)
    frame, _ = rows_of(model, frame[known_of(model, frame, source)], source)
    start = first_unseen(model, frame, source, "give newer rows or train with --holdout 0.2")
    scored = model.covariates.forecast(frame)
    silent = ~np.isfinite(scored.to_numpy(dtype=np.float64)[start:]).any(0)
    if silent.any():
        names = named(map(str, scored.columns[silent]))
        warn(f"{source}: {names} without a value from {frame.index[start]} on, so there is nothing to score it by")
    return frame, start


def first_unseen(model: ForecastModel, frame: pd.DataFrame, source: str, remedy: str) -> int:
    """The first row of ``frame`` after those that ``model`` was fitted on; InputError when no value comes there."""
    start = model.rows_seen(frame.index)
    if start >= len(frame):
        raise InputError(f"{source}: no row after {frame.index[-1]}, the last that training saw; {remedy}")
    if not np.isfinite(model.covariates.forecast(frame).to_numpy(dtype=np.float64)[start:]).any():
        raise InputError(f"{source}: no value from {frame.index[start]} on, the rows that training never saw; {remedy}")
    return start


def evaluate(model: ForecastModel, frame: pd.DataFrame, start: int, *, trees: bool = True) -> Backtest:
    """Backtest ``model`` on every origin from row ``start`` of ``frame`` on; observed truths only."""
    # What came before is seen as training saw it; a unit that changes later is not known yet.
    before = since_unit_change(frame.iloc[:start], skip=model.covariates.columns)
    frame = align(model, pd.concat([before, frame.iloc[start:]]).asfreq(frame.index.freq or model.step))
    inputs = make_inputs(model, frame)
    frame = model.covariates.forecast(frame)
    frame = frame.set_axis(times_in(model, frame.index, model.zone))
    names, horizon = list(frame.columns), model.horizon
    # The forecasts of the last origins before the block come true inside it; the intervals learn from them.
    lead = min(start, horizon)
    origins = torch.arange(start - lead, len(frame))
    raw, target = forecast_origins(model, inputs, origins)
    reached = inputs.windows.measured(risen(model, inputs, target), origins)
    followed = calibration_of(model, inputs).follow(since_origin(model, inputs, raw, torch.isfinite(target)), reached)
    target = inputs.windows.measured(target, origins)
    raw, target, reached, origins = raw[lead:], target[lead:], reached[lead:], origins[lead:]
    calibrated = within(model, inputs, names, followed[lead:], sums=True)
    point = within(model, inputs, names, raw[..., :1].double(), sums=False)[..., 0]
    points = {"model": point.float(), **baselines(model, inputs, origins)}
    if trees:
        earlier = thin(whole((0, start), horizon), len(model.series), MOST_ROWS)
        fitted = Trees(period=model.period, trailing=model.trailing).fit(inputs, earlier)
        points["trees"] = fitted.forecast(inputs, origins)
    metrics, per_series, per_step = summarize(points, target, calibrated, reached, inputs.scaler.scale, names)
    metrics |= {"origins": len(origins), "horizon": horizon, "period": model.period}
    metrics["first_origin"], metrics["last_row"] = str(frame.index[start]), str(frame.index[-1])
    if model.covariates.names:
        metrics |= {"covariates": hindsight(model), "contributions": contributions(model, inputs, origins)}

    # Shown: an origin in the middle of the block, so neither the easiest nor the hardest was picked.
    shown = max(0, (len(origins) - horizon) // 2)
    row = int(origins[shown])
    values = inputs.scaler.backward(calibrated[shown].numpy(), axis=0)
    times = frame.index[row : row + horizon]
    table = to_long(values[:, : len(times)], names, times, (80, 95))
    meters = meters_of(model, names)
    past = as_read(model, frame.iloc[:row], {name: LastReading(0.0, frame.index[row]) for name in meters})
    truth = frame.iloc[row : row + horizon].assign(
        **{name: _reached(frame[name], slice(row, row + horizon)) for name in meters}
    )
    figures = {
        str(name): plot_forecast(
            rows_before(past[name], horizon, meter=name in meters),
            table[table["unique_id"] == name],
            truth=truth[name],
            title=f"{name}, from the origin on" if name in meters else str(name),
        )
        for name in names[:MOST_PLOTS]
    }
    return Backtest(metrics, per_series, per_step, figures)


def _reached(rises: pd.Series, ahead: slice) -> pd.Series:
    """What a meter has risen by since before the rows ``ahead``, in those with a reading."""
    total = summed(spread(torch.tensor(rises.to_numpy(dtype=np.float64)))[ahead])
    return pd.Series(total.numpy(), rises.index[ahead]).where(rises.iloc[ahead].notna())


def within(model: ForecastModel, inputs: Inputs, names: list[str], values: Tensor, *, sums: bool) -> Tensor:
    """Forecasts ``(origins, series, horizon, any)`` within the bounds of their sensors, standardised as they were.

    With ``sums`` those of meters are rises since the origin, which never fall, else rises of single rows.
    """
    if "lower" not in model.artifacts and not model.meters.any():
        return values
    real = bound(model, names, inputs.scaler.backward(values.numpy(), axis=1), rises=True)
    if sums and (meters := [names.index(name) for name in meters_of(model, names)]):
        real[:, meters] = readings(real[:, meters])
    return torch.from_numpy(inputs.scaler.forward(real.swapaxes(1, 3)).swapaxes(1, 3).copy())


def hindsight(model: ForecastModel) -> dict[str, str]:
    """For each covariate in words what a backtest knows of it ahead."""
    covariates = model.covariates
    words = {name: "known up to each origin" for name in covariates.past}
    words |= {name: "known in hindsight: its measured values" for name in covariates.future}
    return words | {name: "known in truth" for name in covariates.names[len(covariates.columns) :]}


@torch.no_grad()
def contributions(model: ForecastModel, inputs: Inputs, origins: Tensor) -> dict[str, dict[str, float]]:
    """What each covariate is worth: the mean absolute error with and without it, in units of each series' deviation.

    A future covariate is taken away by what the linear path forecasts of it, a past one by being missing.
    ``contribution`` is the share by which the error is lower with it; origins are thinned to at most 500.
    """
    origins = origins[:: max(1, -(-len(origins) // MOST_CONTRIBUTING))]
    table = inputs.covariates
    assert table is not None

    def error() -> float:
        forecast, target = forecast_origins(model, inputs, origins)
        gap = forecast[..., 0] - target
        return float(gap[torch.isfinite(gap)].abs().double().mean())

    found: dict[str, dict[str, float]] = {}
    with_all = error()
    for number, name in enumerate(model.covariates.names):
        inputs.covariates = table.without(number)
        without = error()
        share = 1 - with_all / without if without else 0.0
        found[name] = {"mae": with_all, "mae_without": without, "contribution": share}
    inputs.covariates = table
    return found


@torch.no_grad()
def baselines(model: ForecastModel, inputs: Inputs, origins: Tensor) -> dict[str, Tensor]:
    """Point forecasts ``(origins, series, horizon)`` of the parts of the model and of what anyone can do.

    ``linear`` is the linear path alone, ``ridge`` that without what is added to it.
    """
    past, _ = inputs.windows.every_series(origins)
    # A past without any value has nothing to repeat: the mean of the training rows, zero here, stands in.
    naive = torch.nan_to_num(seasonal_naive(past, model.horizon, model.period), nan=0.0)
    last = torch.nan_to_num(last_value(past, model.horizon), nan=0.0)
    path = inputs.linear
    linear = linear_forecast(inputs, origins)
    inputs.linear = LinearPath(path.weights)
    plain = path.cross is None and path.reversion is None and path.drivers is None
    ridge = linear if plain else linear_forecast(inputs, origins)
    inputs.linear = path
    return {"linear": linear, "ridge": ridge, "seasonal_naive": naive, "last_value": last}


def linear_forecast(inputs: Inputs, origins: Tensor) -> Tensor:
    """Point forecasts ``(origins, series, horizon)`` of the linear path, in standardised units."""
    parts = []
    for part in origins.split(512):
        past, _ = inputs.windows.every_series(part)
        z, mask, level = centre(past.double(), inputs.trailing)
        series = torch.arange(inputs.windows.series)
        parts.append((inputs.linear_forecast(z, mask, level, part, series) + level).float())
    return torch.cat(parts)


def summarize(
    points: dict[str, Tensor],
    target: Tensor,
    intervals: Tensor,
    reached: Tensor,
    scale: np.ndarray,
    names: list[str],
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """Errors, skill and coverage: pooled, per series and per step.

    Args:
        points: point forecasts ``(origins, series, horizon)``, the first of which is the model's.
        target: what came instead ``(origins, series, horizon)``, NaN where unknown.
        intervals: ``(origins, series, horizon, 6)``.
        reached: what they are held against ``(origins, series, horizon)``, NaN where ``target`` is; another for meters.
        scale: the unit of each series.
        names: of the series.
    """
    known = torch.isfinite(target)

    def mean(values: Tensor, axes: tuple[int, ...]) -> Tensor:
        count = known.sum(axes).double()
        total = torch.where(known, values.double(), 0.0).sum(axes)
        return torch.where(count > 0, total / count.clamp_min(1), torch.nan)

    everything, by_series, by_step = (0, 1, 2), (0, 2), (0, 1)
    absolute = {name: (point - target).abs() for name, point in points.items()}
    inside = {
        level: (reached >= intervals[..., low] - ROUNDING) & (reached <= intervals[..., high] + ROUNDING)
        for level, low, high in ((80, 2, 4), (95, 1, 5))
    }
    gap = reached.double().unsqueeze(-1) - intervals[..., 1:]
    levels = torch.tensor(LEVELS, dtype=gap.dtype)
    pinball = torch.maximum(levels * gap, (levels - 1) * gap).mean(-1)
    width = intervals[..., 4] - intervals[..., 2]

    mae = {name: float(mean(error, everything)) for name, error in absolute.items()}
    metrics: dict[str, Any] = {
        "mae": mae["model"],
        "mse": float(mean((points["model"] - target).square(), everything)),
        "baselines": {name: value for name, value in mae.items() if name != "model"},
        "skill": {name: round(1 - mae["model"] / value, 6) for name, value in mae.items() if name != "model" and value},
        "coverage": {str(level): float(mean(hit.float(), everything)) for level, hit in inside.items()},
        "pinball": float(mean(pinball, everything)),
        "observed": int(known.sum()),
    }
    quarters = torch.arange(target.shape[-1]).chunk(4)
    metrics["coverage_by_quarter"] = {
        str(level): [
            float((hit[..., part] & known[..., part]).sum() / known[..., part].sum().clamp_min(1)) for part in quarters
        ]
        for level, hit in inside.items()
    }
    unit = torch.from_numpy(scale)
    series = pd.DataFrame(
        {f"mae {name}": mean(error, by_series) * unit for name, error in absolute.items()}
        | {f"coverage {level}%": mean(hit.float(), by_series) for level, hit in inside.items()}
        | {"pinball": mean(pinball, by_series) * unit, "width 80%": mean(width, by_series) * unit},
        index=pd.Index(names, name="series"),
    )
    steps = pd.DataFrame(
        {f"mae {name}": mean(error, by_step) for name, error in absolute.items()}
        | {f"coverage {level}%": mean(hit.float(), by_step) for level, hit in inside.items()},
        index=pd.RangeIndex(1, target.shape[-1] + 1, name="step"),
    )
    return metrics, series, steps
