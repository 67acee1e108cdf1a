"""Training a forecaster: the linear path in closed form, the attention path on what it leaves, then calibration."""

from __future__ import annotations

import copy
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_apps.errors import InputError, collected, warn
from mha_apps.training import (
    Interrupted,
    Run,
    Task,
    fit,
    processes,
    resolve_device,
    resolve_precision,
    seed_everything,
)
from mha_apps.training.clock import counting_from
from mha_apps.training.files import located

from .calendar import encode, extend, step_name, step_of
from .conformal import Calibration, scores
from .covariates import Covariates, Roles, assign, seen
from .drivers import LATEST, CovariateTable, find_knots
from .engine import forecast_origins
from .faults import FEWEST, since_unit_change, warn_of_faults, warn_of_short_calibration, without_empty
from .inputs import GROUP, Inputs
from .limits import Limits, are_meters, limited, meters_of
from .linear import FOLDS, LinearPath, fit_rounds, refit_linear, thin, whole
from .meters import forecast_risen
from .model import LEVELS, ForecastModel
from .plan import Plan, make_plan
from .reading import ReadOptions, read_sensor_csv
from .reading.report import seconds
from .recipe import ForecastRecipe
from .sample import locate, resolve
from .selection import judge, rolling_folds
from .stack import Blend, fit_blend, fit_trees
from .stages import Stages
from .windows import Scaler, Windows

__all__ = ["load_frame", "train"]

HELD_OUT = "heldout"
"""Folder in the run with the model that never saw the test block, which backtests use."""
ASIDE = "folds"
"""Folder in the run for trainings that only serve a choice; gone when training ends, or when it is resumed."""
GATE_RATE = 10.0
CLEARLY_OFF = 0.1  # of a step: rows moved onto the grid by more are told; the jitter of a logger is no news
MOST_FOLLOWED = 2000  # origins
MOST_TOGETHER = 2_000_000  # steps of all series and origins that are followed at a time
MOST_AHEAD = 100_000  # rows of known covariates that are kept, so that a model is small whatever comes with it
MOST_SILENT = 1_000_000  # numbers that are kept for meters that are silent, so that a model stays small
VALIDATION_ORIGINS = 192  # origins in a validation during training; the choice afterwards uses every one


def load_frame(csv: str | Path, options: ReadOptions | None = None) -> pd.DataFrame:
    """The frame of a CSV, or of the embedded sample for ``sample``; a recipe is the options to read with."""
    path = resolve(csv)
    frame, report = read_sensor_csv(path, options=options, layout="wide")
    if report.zone == "UTC" and (options is None or options.tz is None):
        found = " and ".join(report.offsets) if len(report.offsets) > 1 else ""
        if found or (isinstance(options, ForecastRecipe) and options.holidays):
            what = f"times carry the offsets {found} and no zone" if found else "times are in UTC"
            warn(
                f"{path}: {what}, so hours, days and holidays go by UTC; --tz, such as --tz Europe/Berlin, tells the "
                "sensor's own zone"
            )
    if report.moved and report.moved_most > CLEARLY_OFF * step_of(pd.DatetimeIndex(frame.index)):
        warn(f"{path}: {report.moved:,} rows moved onto the grid, by {seconds(report.moved_most)} at most")
    return frame


@counting_from()
def train(
    recipe: ForecastRecipe | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    resume: str | Path | None = None,
) -> Run:
    """Train on the CSV of ``recipe`` and return the run, whose ``model/`` predicts.

    Everything is chosen and calibrated without the last ``recipe.holdout`` of the rows; that model is kept in
    ``heldout/`` for :func:`backtest`. With ``recipe.refit`` the one in ``model/`` is then fitted again on every row,
    with what was chosen, and its intervals have followed the held-out rows.
    Everything that can be wrong with the input is found before the run folder is made.

    Args:
        recipe: data, model and training; the run's own when None and resuming.
        out: run folder; named by date under ``runs/`` when None.
        force: replace a run that ``out`` holds.
        resume: a run folder whose training was interrupted.

    Raises:
        InputError: the CSV or the recipe cannot be used.
    """
    opened = Run.open(resume, kind="forecast") if resume is not None else None
    if recipe is None:
        recipe = opened.recipe(ForecastRecipe) if opened is not None else ForecastRecipe(csv="sample")
    recipe.check()
    recipe = replace(recipe, csv=locate(recipe.csv))
    if recipe.static is not None:
        recipe = replace(recipe, static=located(recipe.static))
    path = resolve(recipe.csv)
    with collected() as told:
        roles = assign(load_frame(path, recipe), recipe, str(path))
        series, limits, plan = checked(roles.frame[roles.series], recipe, str(path))
    frame = roles.joined(series)
    resolve_precision(recipe.precision, resolve_device(recipe.device))
    run = opened or Run.create(out, recipe, "forecast", force=force)
    run.begin()
    _clear_aside(run)

    summary, model, held_out = prepare(frame, plan, recipe, run, limits, roles)
    summary["warnings"] = told
    processes.on_first(lambda: _finish(run, summary, model, held_out, frame, roles.ahead))
    Stages(run, recipe, frame).clear()
    return run


def checked(frame: pd.DataFrame, recipe: ForecastRecipe, source: str) -> tuple[pd.DataFrame, Limits, Plan]:
    """The series of ``frame`` that something can be learned from, what the recipe says of them, and the plan.

    Everything odd about them is told in warnings; see :mod:`mha_apps.forecast.faults`.

    Raises:
        InputError: the table or the recipe cannot be used.
    """
    if step_name(pd.DatetimeIndex(frame.index)) is None:
        raise InputError(f"{source}: its rows follow each other in no step that can be named; pass --freq, such as D")
    frame, limits = limited(without_empty(frame, source), recipe, source)
    plan = make_plan(frame, recipe, source=source)
    clean = since_unit_change(frame, source)
    warn_of_faults(clean, train_rows=plan.train[1], horizon=recipe.horizon, look_back=plan.look_back, source=source)
    end = len(frame) if recipe.refit else plan.calibration[1]  # after a refit the intervals have followed the rest too
    warn_of_short_calibration(
        clean.iloc[plan.calibration[0] : end],
        horizon=recipe.horizon,
        source=source,
        held_out=end > plan.calibration[1],
    )
    return frame, limits, plan


def _finish(
    run: Run,
    summary: dict[str, Any],
    model: ForecastModel,
    held_out: ForecastModel | None,
    frame: pd.DataFrame,
    ahead: pd.DataFrame | None,
) -> None:
    """Save the models, and write what was found; the first process does it."""
    from .predict import draw, forecast_frame  # they build on this module
    from .report import write_report

    if held_out is not None:
        run.save_model(held_out, HELD_OUT)
    run.save_model(model)
    run.write_summary(summary)
    rows = align(model, frame.iloc[-(model.look_back + model.horizon + LATEST) :])
    table = forecast_frame(model, rows, levels=(80, 95), ahead=ahead, strict=False)
    assumed = model.covariates.unknown(ahead, extend(rows.index, model.horizon))
    write_report(run, forecasts=draw(model, rows, table), assumed=assumed)


def prepare(
    frame: pd.DataFrame,
    plan: Plan,
    recipe: ForecastRecipe,
    run: Run,
    limits: Limits | None = None,
    roles: Roles | None = None,
) -> tuple[dict[str, Any], ForecastModel, ForecastModel | None]:
    """Learn, calibrate and refit on the whole of ``frame``, going on after the last stage that ``run`` has finished.

    ``roles`` say which of its columns are covariates, and what is known after its last row.

    Returns:
        A summary, the model that forecasts, and the one that never saw the test block, None if it is the same.
    """
    run.begin()
    stages = Stages(run, recipe, frame, more=roles.digest if roles is not None else "")
    covariates = roles.covariates.columns if roles is not None else []
    # A change of unit that comes later is not known yet.
    seen = since_unit_change(frame.iloc[: plan.test[0]], skip=covariates)
    frame = since_unit_change(frame, skip=covariates)

    def calibrated() -> tuple[ForecastModel, dict[str, Any]]:
        model, facts, summary = learn(seen, plan, recipe, run, stages, roles)
        model.cpu()
        if limits is not None:
            limits.keep(model)
        calibrate(model, make_inputs(model, seen), plan)
        keep_tail(model, frame, roles.ahead if roles is not None else None)
        return model, {"facts": facts, "summary": summary}

    def refitted() -> tuple[ForecastModel, dict[str, Any]]:
        final = copy.deepcopy(model)
        rescale(final, frame, plan)
        follow_rows(final, frame)
        refit(final, frame, plan, recipe, run, found["facts"], found["summary"])
        return final, {}

    model, found = _model(stages.once("calibration", calibrated))
    whole_summary = found["summary"] | found["facts"]
    if not recipe.refit:
        return whole_summary, model, None
    final, _ = _model(stages.once("refit", refitted))
    return whole_summary, final, model


def rescale(model: ForecastModel, frame: pd.DataFrame, plan: Plan) -> None:
    """Give a series that had hardly a value among the training rows the mean and the deviation of all its rows."""
    values = model.covariates.forecast(frame).to_numpy(dtype=np.float64)
    new = np.isfinite(values[: plan.train[1]]).sum(0) < FEWEST
    if new.any():
        found = Scaler.fit(values)
        model.artifacts["mean"][torch.from_numpy(new)] = torch.from_numpy(found.mean[new])
        model.artifacts["scale"][torch.from_numpy(new)] = torch.from_numpy(found.scale[new])


def _model(stage: tuple[ForecastModel | None, dict[str, Any]]) -> tuple[ForecastModel, dict[str, Any]]:
    model, facts = stage
    assert model is not None
    return model, facts


def refit(
    model: ForecastModel,
    frame: pd.DataFrame,
    plan: Plan,
    recipe: ForecastRecipe,
    run: Run,
    facts: dict[str, Any],
    summary: dict[str, Any],
) -> None:
    """Fit ``model`` again on every row, with what was chosen; scaler, spreads and held-out calibration stay."""
    whole_plan = replace(plan, train=(0, len(frame)))
    values = model.covariates.forecast(frame).to_numpy(dtype=np.float64)
    values = (values - model.artifacts["mean"].numpy()) / model.artifacts["scale"].numpy()
    windows = Windows(values, look_back=model.look_back, horizon=model.horizon, means=are_meters(model, model.series))
    covariates = covariate_table(model, frame)
    model.artifacts |= refit_linear(windows, whole_plan, facts["linear"], covariates).tensors()
    refit_blend(model, frame, whole_plan, recipe.seed)
    model.artifacts["known_until"] = torch.tensor(frame.index[-1].as_unit("ns").value, dtype=torch.int64)
    if not bool(model.attention_weight):
        return
    # As many steps as were best, on more rows; the last validation then is the only one, and picks nothing.
    steps = max(1, int(summary["best_step"]))
    recipe = replace(
        recipe, steps=steps, epochs=None, minutes=None, patience=None, validate_steps=steps, seed=recipe.seed + 1
    )
    weight = float(model.attention_weight)
    model.attention_weight.fill_(1.0)  # the network learns the whole of what is left over
    _fit_aside(make_task(model, make_inputs(model, frame), whole_plan, recipe), recipe, run)
    model.attention_weight.fill_(weight)
    model.cpu()


def _fit_aside(task: Task, recipe: ForecastRecipe, run: Run) -> None:
    """Train in a folder that is gone afterwards; who is interrupted here resumes the run itself."""
    try:
        fit(task, recipe, Run.create(run.path / ASIDE, recipe, "forecast", force=True))
    except Interrupted:
        raise Interrupted(run, recipe.steps or 0) from None  # those of the training that came before
    except InputError as error:
        raise InputError(str(error).replace(str(run.path / ASIDE), str(run.path))) from error
    finally:
        _clear_aside(run)


def _clear_aside(run: Run) -> None:
    """Remove what a training aside has left, one that was killed too; under several processes the first does it."""
    if processes.is_first():
        shutil.rmtree(run.path / ASIDE, ignore_errors=True)


def follow_rows(model: ForecastModel, frame: pd.DataFrame) -> int:
    """Let the intervals adapt to the rows of ``frame`` after those that the model was fitted on.

    Returns the number of origins that were followed, at most ``MOST_FOLLOWED``: older ones no longer matter.
    """
    if any(name not in model.series for name in model.covariates.series(frame)):
        return 0
    frame = align(model, frame)
    names = model.covariates.series(frame)
    start = model.rows_seen(frame.index)
    start = max(start, len(frame) - MOST_FOLLOWED, model.horizon)
    if start >= len(frame):
        return 0
    more = LATEST if model.covariates.names else 0
    recent = frame.iloc[max(0, start - model.look_back - model.horizon - more) :]
    table = covariate_table(model, recent)
    # Series are followed each by itself; a correction across channels, for a few of them, needs them together.
    count = len(frame) - start + model.horizon
    size = len(names) if needs_all(model) else max(1, MOST_TOGETHER // (count * model.horizon * GROUP)) * GROUP
    offset = model.artifacts["offset"].clone()
    for first in range(0, len(names), size):
        inputs = make_inputs(model, recent[names[first : first + size] + model.covariates.columns], table=table)
        rows = inputs.windows.rows
        origins = torch.arange(max(0, rows - (len(frame) - start) - model.horizon), rows + 1)
        places = inputs.identities - 1
        calibration = Calibration(offset[places], model.artifacts["pace"][places])
        calibration.follow(*forecast_risen(model, inputs, origins), new=len(frame) - start)
        offset[places] = calibration.offset
    model.artifacts["offset"] = offset
    return len(frame) - start


def learn(
    frame: pd.DataFrame,
    plan: Plan,
    recipe: ForecastRecipe,
    run: Run,
    stages: Stages | None = None,
    roles: Roles | None = None,
) -> tuple[ForecastModel, dict[str, Any], dict[str, Any]]:
    """Everything but the calibration: linear path and blend, attention path, and the choice between them.

    Args:
        frame: the rows before the test block.
        plan: the plan of the whole table.
        recipe: the recipe.
        run: where the shared loop writes.
        stages: those that are finished; none when None.
        roles: which columns are covariates; none when None.

    Returns:
        The model, what was chosen, and the loop's summary.
    """
    stages = stages or Stages(None, recipe, frame)
    begun = time.monotonic()
    model, facts = _model(stages.once("ridge", lambda: build(frame, plan, recipe, roles=roles)))
    took = time.monotonic() - begun
    if not recipe.attention:
        model.attention_weight.zero_()
        return model, facts, {}

    def attended() -> tuple[ForecastModel, dict[str, Any]]:
        inputs = make_inputs(model, frame)
        task = make_task(model, inputs, plan, recipe)
        task.later_seconds = (FOLDS + 1) * took  # each fold is fitted like this, and every row at the end
        summary = fit(task, recipe, run)
        chosen = select(model, inputs, plan)
        return model.cpu(), {"summary": summary, "chosen": chosen}

    model, found = _model(stages.once("attention", attended))
    summary, chosen = found["summary"], found["chosen"]
    if chosen["kept"]:
        chosen |= confirm(
            frame, plan, recipe, run, steps=int(summary["steps"]), chosen=chosen, like=model, stages=stages
        )
        model.attention_weight.fill_(chosen["weight"] if chosen["kept"] else 0.0)
    facts["attention"] = chosen
    return model, facts, summary


def confirm(
    frame: pd.DataFrame,
    plan: Plan,
    recipe: ForecastRecipe,
    run: Run,
    *,
    steps: int,
    chosen: dict[str, Any],
    like: ForecastModel,
    stages: Stages,
) -> dict[str, Any]:
    """Train the attention path on rolling folds too: what validation liked counts only if it helps there as well.

    Its weight is the mean of the best ones on the folds and on validation. ``chosen`` is what :func:`select` found for
    the model ``like`` on validation.
    """
    short = replace(recipe, steps=steps, epochs=None, minutes=None)
    gains, weights = [], [chosen["weight"]]
    for number, (train_block, scored) in enumerate(rolling_folds(plan.train, folds=FOLDS, horizon=recipe.horizon)):
        part = replace(plan, train=train_block, validation=scored)
        rows = frame.iloc[: scored[1]]

        def gained(part: Plan = part, rows: pd.DataFrame = rows) -> tuple[None, dict[str, Any]]:
            model, _ = build(rows, part, short, like=like)
            inputs = make_inputs(model, rows)
            _fit_aside(make_task(model, inputs, part, short), short, run)
            return None, select(model, inputs, part)

        _, found = stages.once(f"selection-{number}", gained)
        gains.append(found["relative_gain"])
        weights.append(found["weight"])
    verdict = judge([*gains, chosen["relative_gain"]])
    weight = sum(weights) / len(weights)
    return {"kept": verdict.kept, "gains": list(verdict.gains), "gain_error": verdict.standard_error, "weight": weight}


def refit_blend(model: ForecastModel, frame: pd.DataFrame, plan: Plan, seed: int) -> None:
    """Grow the trees of the model's blend anew on the training rows of ``plan``; the weights stay."""
    blend = Blend.of(model)
    if blend is not None and blend.trees is not None:
        model.artifacts |= fit_trees(make_inputs(model, frame), plan, seed).tensors()


def build(
    frame: pd.DataFrame,
    plan: Plan,
    recipe: ForecastRecipe,
    *,
    like: ForecastModel | None = None,
    roles: Roles | None = None,
) -> tuple[ForecastModel, dict[str, Any]]:
    """The model before any gradient: scaler, linear path and blend from the training rows, spreads from validation.

    Args:
        frame: the rows before the test block.
        plan: the plan of the whole table.
        recipe: sizes of the attention path.
        like: a model whose weights of the blend are taken over; they are found on rolling folds when None.
        roles: which columns are covariates, those of ``like`` when that is given; none when both are None.

    Returns:
        The model and what is worth recording about it.
    """
    if like is not None:
        covariates, static = like.covariates, like.artifacts.get("static")
    else:
        covariates = roles.covariates if roles is not None else Covariates()
        static = torch.from_numpy(roles.static) if roles is not None and roles.static is not None else None
    names = covariates.series(frame)
    values = covariates.forecast(frame).to_numpy(dtype=np.float64)
    scaler = Scaler.fit(values[: plan.train[1]])
    meters = np.isin(names, list(recipe.counter))
    windows = Windows(scaler.forward(values), look_back=plan.look_back, horizon=recipe.horizon, means=meters)
    seed_everything(recipe.seed)
    index = frame.index
    if like is not None:
        zone = like.zone
    else:
        zone = roles.zone if roles is not None else None if index.tz is None else str(index.tz)
    frequency = step_name(index)
    assert frequency is not None  # checked refuses others
    model = ForecastModel(
        series=names,
        look_back=plan.look_back,
        horizon=recipe.horizon,
        patch=plan.patch,
        period=plan.period,
        trailing=plan.trailing,
        cycles=list(plan.cycles),
        frequency=frequency,
        zone=zone,
        by_clock=zone is not None and index.tz is None,
        dim=recipe.dim,
        heads=recipe.heads,
        layers=recipe.layers,
        dropout=recipe.dropout,
        channels=recipe.channels,
        window=recipe.window,
        far=plan.far,
        members=recipe.members,
        covariates=covariates.to_config(),
    )
    model.artifacts = _of_covariates(covariates, frame, plan) | ({"static": static} if static is not None else {})
    if meters.any():
        model.artifacts["meter"] = torch.from_numpy(meters)
    paths, chosen = fit_rounds(windows, plan, channels=recipe.channels, covariates=covariate_table(model, frame))
    model.artifacts |= {
        **paths[-1].tensors(),
        "mean": torch.from_numpy(scaler.mean),
        "scale": torch.from_numpy(scaler.scale),
        "known_until": torch.tensor(index[-1].as_unit("ns").value, dtype=torch.int64),
    }
    inputs = make_inputs(model, frame)
    blended: dict[str, Any] = {}
    if like is None:
        blend, blended = fit_blend(inputs, plan, paths, trees=recipe.trees, seed=recipe.seed)
    else:
        blend = Blend.of(like)
    model.artifacts |= blend.tensors() if blend is not None else {}
    if like is not None:
        refit_blend(model, frame, plan, recipe.seed)
    model.attention_weight.zero_()
    forecast, target = forecast_origins(model, inputs, thin(whole(plan.validation, 1), windows.series, 20_000))
    model.attention_weight.fill_(1.0)
    model.set_spread(target - forecast[..., 0])
    facts = {
        "plan": asdict(plan),
        "series": list(model.series),
        "linear": chosen,
        "blend": blended,
    }
    if covariates != Covariates():
        told = ("past", "future", "holidays", "attributes")
        facts["covariates"] = {name: value for name, value in asdict(covariates).items() if name in told}
    return model, facts


def _of_covariates(covariates: Covariates, frame: pd.DataFrame, plan: Plan) -> dict[str, Tensor]:
    """The scale of the covariates on the training rows, and where the effects of those known ahead may bend."""
    if not covariates.names:
        return {}
    nothing = frame.iloc[:0].reindex(columns=list(covariates.future))
    values = covariates.table(frame.iloc[: plan.train[1]], nothing)
    scaler = Scaler.fit(values)
    return {
        "around_mean": torch.from_numpy(scaler.mean),
        "around_scale": torch.from_numpy(scaler.scale),
        "knots": torch.from_numpy(find_knots(scaler.forward(values)[:, covariates.known])),
    }


def needs_all(model: ForecastModel) -> bool:
    """Whether the series inform each other, so that none can be forecast without the others."""
    return "cross_weights" in model.artifacts and "cross_each" not in model.artifacts


def align(model: ForecastModel, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the model's series first and in its order, then those that it does not know, then covariates.

    A correction across channels needs every channel: those that ``frame`` lacks are then empty columns.
    """
    frame = frame.rename(columns=str)
    known = [name for name in model.series if name in frame.columns or needs_all(model)]
    others = [name for name in model.covariates.series(frame) if name not in model.series]
    return frame.reindex(columns=known + others + model.covariates.columns)


def covariate_table(
    model: ForecastModel, frame: pd.DataFrame, ahead: pd.DataFrame | None = None
) -> CovariateTable | None:
    """The covariates of ``model`` along the rows of ``frame`` and the horizon after them; None if it has none.

    ``ahead`` is what is known of them after the last row.
    """
    covariates = model.covariates
    if not covariates.names:
        return None
    times = extend(frame.index, model.horizon)
    values = covariates.table(frame, covariates.at(ahead, times, "the covariates"))
    values = (values - model.artifacts["around_mean"].numpy()) / model.artifacts["around_scale"].numpy()
    return CovariateTable(
        values,
        known=covariates.known,
        columns=len(covariates.columns),
        knots=model.artifacts["knots"].numpy(),
        waves=encode(frame.index.append(times), ["hour"])[0] if "hour" in model.cycles else None,
        look_back=model.look_back,
        horizon=model.horizon,
        trailing=model.trailing,
    )


def make_inputs(
    model: ForecastModel,
    frame: pd.DataFrame,
    ahead: pd.DataFrame | None = None,
    *,
    table: CovariateTable | None = None,
) -> Inputs:
    """Batches of windows over ``frame``, standardised as in training.

    A series that the model does not know gets the scale of its own rows and the unknown identity. The columns are
    as :func:`align` puts them; ``ahead`` are the future covariates after the last row. ``table`` holds the covariates
    of ``frame``, where :func:`covariate_table` has made it already.
    """
    names = model.covariates.series(frame)
    values = model.covariates.forecast(frame).to_numpy(dtype=np.float64)
    place = {name: number for number, name in enumerate(model.series)}
    own = Scaler.fit(values)
    columns = [place.get(name) for name in names]
    for number, known in enumerate(columns):
        if known is not None:
            own.mean[number] = float(model.artifacts["mean"][known])
            own.scale[number] = float(model.artifacts["scale"][known])
    meters = are_meters(model, names)
    windows = Windows(own.forward(values), look_back=model.look_back, horizon=model.horizon, means=meters)
    return Inputs(
        windows,
        frame.index,
        linear=LinearPath.from_tensors(model.artifacts),
        patch=model.patch,
        trailing=model.trailing,
        cycles=model.cycles,
        identities=torch.tensor([0 if known is None else known + 1 for known in columns]),
        scaler=own,
        covariates=covariate_table(model, frame, ahead) if table is None else table,
        static=static_of(model, names),
    )


def static_of(model: ForecastModel, names: list[str]) -> Tensor | None:
    """The attributes of the series ``names``, zero for one that is not described; None for a model without any."""
    if "static" not in model.artifacts:
        return None
    place = {name: number for number, name in enumerate(model.covariates.described)}
    table = torch.cat([model.artifacts["static"], torch.zeros(1, len(model.covariates.attributes))])
    return table[[place.get(name, len(place)) for name in names]]


def loss(forecast: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Huber loss of the mean plus pinball losses of the quantiles, per element.

    Args:
        forecast: ``(..., horizon, 6)``.
        target: ``(..., horizon)``.
        weight: 0 where the target is missing.
    """
    point = F.huber_loss(forecast[..., 0], target.expand_as(forecast[..., 0]), reduction="none")
    gap = target.unsqueeze(-1) - forecast[..., 1:]
    levels = torch.tensor(LEVELS, device=gap.device, dtype=gap.dtype)
    pinball = torch.maximum(levels * gap, (levels - 1) * gap).mean(-1)
    return (point + pinball) * weight


def make_task(model: ForecastModel, inputs: Inputs, plan: Plan, recipe: ForecastRecipe) -> Task:
    """What the shared loop needs: an example is one group of series at one origin of the training rows."""
    horizon, groups = recipe.horizon, len(inputs.groups)
    table = inputs.windows.table
    observed = torch.isfinite(table).any(0)  # by padded row

    def with_target(origins: Tensor) -> Tensor:
        ahead = observed.unfold(0, horizon, 1)[origins + plan.look_back]
        return origins[ahead.any(-1)]

    # A window whose past is mostly before the first row teaches nothing about the rest.
    start = min(plan.look_back // 2, plan.train[1] // 2)
    origins = with_target(whole((start, plan.train[1]), horizon))
    held = with_target(whole(plan.validation, horizon))
    held = held[:: max(1, len(held) * groups // VALIDATION_ORIGINS)]

    def at(indices: Tensor, of: Tensor) -> dict[str, Tensor]:
        return inputs.batch(of[indices // groups], indices % groups)

    def batch_loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        each = loss(net(batch), batch["target"], batch["weight"])
        members = each.numel() / batch["weight"].numel()
        return each.sum() / (members * batch["weight"].sum().clamp_min(1.0))

    def evaluate(net: nn.Module, indices: Tensor) -> dict[str, Tensor]:
        device = next(net.parameters()).device
        batch = {name: value.to(device) for name, value in at(indices, held).items()}
        forecast, weight = net(batch).float(), batch["weight"]
        error = forecast[..., 0] - batch["target"]
        count = weight.sum((1, 2)).clamp_min(1.0)
        return {
            "loss": loss(forecast, batch["target"], weight).sum((1, 2)) / count,
            "mae": (error.abs() * weight).sum((1, 2)) / count,
            "mse": (error.square() * weight).sum((1, 2)) / count,
        }

    return Task(
        model=model,
        examples=len(origins) * groups,
        batch=lambda indices, epoch: at(indices, origins),
        loss=batch_loss,
        validation_examples=len(held) * groups,
        evaluate=evaluate,
        words={name: f"{name} of standardised values" for name in ("mae", "mse")},
        parameters=parameter_groups(model, recipe),
        ends_run=False,
        # Each fold takes as many steps as the training before it, and the fit on every row no more than that.
        later_share=(FOLDS + 1) / (FOLDS + 2),
    )


def parameter_groups(model: ForecastModel, recipe: ForecastRecipe) -> list[dict[str, Any]]:
    """Decay for matrices alone, and a larger learning rate for the gates, which start at zero and have far to go."""
    gates: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        (gates if name.endswith("gate") else decayed if weight.ndim > 1 else plain).append(weight)
    return [
        {"params": decayed},
        {"params": plain, "weight_decay": 0.0},
        {"params": gates, "weight_decay": 0.0, "lr": GATE_RATE * recipe.learning_rate},
    ]


@torch.no_grad()
def select(model: ForecastModel, inputs: Inputs, plan: Plan) -> dict[str, Any]:
    """Keep the attention path only if its gain on validation exceeds one standard error; else switch it off.

    Gains are averaged over blocks as long as the horizon, since neighbouring origins share most of their errors.
    """
    device = next(model.parameters()).device
    origins = thin(whole(plan.validation, 1), inputs.windows.series, 20_000)
    both = []
    for weight in (0.0, 1.0):
        model.attention_weight.fill_(weight)
        forecast, target = forecast_origins(model, inputs, origins, device=device)
        both.append(forecast[..., 0] - target)
    known = torch.isfinite(both[0])
    # The weight that would have been best: how much of the correction the error of the linear path holds.
    change = torch.where(known, both[1] - both[0], 0.0).double()
    fitting = float(-(change * torch.where(known, both[0], 0.0)).sum() / change.square().sum().clamp_min(1e-12))
    both = [gap.abs() for gap in both]
    gain = torch.where(known, both[0] - both[1], 0.0)
    block = (origins - origins[0]) // max(model.horizon, model.period)
    means = torch.stack([gain[block == b].sum() / known[block == b].sum().clamp_min(1) for b in block.unique()])
    mean = float(gain.sum() / known.sum().clamp_min(1))
    error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else float("inf")
    kept = mean > error
    model.attention_weight.fill_(float(kept))
    linear = float(torch.where(known, both[0], 0.0).sum() / known.sum().clamp_min(1))
    return {
        "kept": kept,
        "linear_mae": linear,
        "gain": mean,
        "standard_error": error,
        "blocks": len(means),
        "relative_gain": mean / linear if linear else 0.0,
        "weight": min(max(fitting, 0.0), 1.0),
    }


@torch.no_grad()
def calibrate(model: ForecastModel, inputs: Inputs, plan: Plan) -> None:
    """Fit the intervals on the calibration block, which no choice has looked at.

    Errors of a meter grow with the horizon in their own way, so meters and other series lend each other no scores.
    """
    origins = thin(whole(plan.calibration, 1), inputs.windows.series, 100_000)
    score = scores(*forecast_risen(model, inputs, origins))
    offset, pace = torch.empty_like(score[0]), torch.empty_like(score[0])
    for alike in (model.meters, ~model.meters):
        calibration = Calibration.fit(score[:, alike])
        offset[alike], pace[alike] = calibration.offset, calibration.pace
    # How fast offsets move needs fewer digits, and of ten thousand series they take megabytes.
    model.artifacts["offset"], model.artifacts["pace"] = offset, pace.float()


def keep_tail(model: ForecastModel, frame: pd.DataFrame, ahead: pd.DataFrame | None = None) -> None:
    """Put the last rows of ``frame``, and what is known after them, into the model: it forecasts on without a CSV."""
    more = LATEST if model.covariates.names else 0
    frame = frame.rename(columns=str)
    if meters := meters_of(model, model.series):  # what they rose by since their last reading is forecast from there
        silent = int(frame[meters].notna()[::-1].cummax().eq(False).sum().max())
        more += min(silent, model.look_back, MOST_SILENT // len(model.series))
    rows = frame.iloc[-(model.look_back + model.horizon + more) :]
    tail = rows[model.series]
    model.artifacts["tail"] = torch.from_numpy(tail.to_numpy(dtype=np.float64).copy())
    model.artifacts["tail_end"] = torch.tensor(tail.index[-1].as_unit("ns").value, dtype=torch.int64)
    model.artifacts.pop("tail_ahead", None)
    covariates = model.covariates
    if covariates.columns:
        around = rows.reindex(columns=covariates.columns).to_numpy(dtype=np.float64)
        model.artifacts["tail_around"] = torch.from_numpy(around.copy())
        found = seen(frame[covariates.columns])
        for side, widest in (("low", np.fmin), ("high", np.fmax)):
            name, values = f"around_{side}", found[side].to_numpy(dtype=np.float64)
            model.artifacts[name] = torch.from_numpy(
                widest(values, model.artifacts.get(name, torch.tensor(values)).numpy())
            )
    if ahead is not None and len(ahead):
        times = pd.date_range(tail.index[-1], ahead.index[-1], freq=model.step)[1 : MOST_AHEAD + 1]
        known = covariates.at(ahead, times, "the covariates")
        if len(known):
            model.artifacts["tail_ahead"] = torch.from_numpy(known.to_numpy(dtype=np.float64).copy())
