"""Training a forecaster: the linear path in closed form, the attention path on what it leaves, then calibration."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_apps.training import Run, Task, fit, resolve_device, resolve_precision, seed_everything

from .conformal import Calibration, scores
from .engine import forecast_origins
from .inputs import Inputs
from .linear import LinearPath, fit_linear, thin, whole
from .model import LEVELS, ForecastModel
from .plan import Plan, make_plan
from .reading import read_sensor_csv
from .recipe import ForecastRecipe
from .sample import resolve
from .windows import Scaler, Windows

__all__ = ["load_frame", "train"]

VALIDATION_ORIGINS = 192  # origins in a validation during training; the choice afterwards uses every one


def load_frame(csv: str | Path) -> pd.DataFrame:
    """The frame of a CSV, or of the embedded sample for ``sample``."""
    frame, _ = read_sensor_csv(resolve(csv))
    return frame


def train(
    recipe: ForecastRecipe | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    resume: str | Path | None = None,
) -> Run:
    """Train on the CSV of ``recipe`` and return the run, whose ``model/`` predicts.

    The last ``recipe.holdout`` of the rows is never looked at here, but for the tail that :func:`predict` continues
    from. Everything that can be wrong with the input is found before the run folder is made.

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
    path = resolve(recipe.csv)
    frame = load_frame(path)
    plan = make_plan(frame, recipe, source=str(path))
    resolve_precision(recipe.precision, resolve_device(recipe.device))
    run = opened or Run.create(out, recipe, "forecast", force=force)

    seen = frame.iloc[: plan.test[0]]
    model, facts, summary = learn(seen, plan, recipe, run)
    model.cpu()
    calibrate(model, make_inputs(model, seen), plan)
    keep_tail(model, frame)
    model.save_pretrained(run.model_dir)
    run.write_summary(summary | facts)
    return run


def learn(
    frame: pd.DataFrame, plan: Plan, recipe: ForecastRecipe, run: Run
) -> tuple[ForecastModel, dict[str, Any], dict[str, Any]]:
    """Everything but the calibration: linear path, attention path, and the choice between them.

    Args:
        frame: the rows before the test block.
        plan: the plan of the whole table.
        recipe: the recipe.
        run: where the shared loop writes.

    Returns:
        The model, what was chosen, and the loop's summary.
    """
    model, facts = build(frame, plan, recipe)
    if not recipe.attention:
        model.attention_weight.zero_()
        return model, facts, {}
    inputs = make_inputs(model, frame)
    summary = fit(make_task(model, inputs, plan, recipe), recipe, run)
    facts["attention"] = select(model, inputs, plan)
    return model, facts, summary


def build(frame: pd.DataFrame, plan: Plan, recipe: ForecastRecipe) -> tuple[ForecastModel, dict[str, Any]]:
    """The model before any gradient: scaler and linear path from the training rows, spreads from validation.

    Args:
        frame: the rows before the test block.
        plan: the plan of the whole table.
        recipe: sizes of the attention path.

    Returns:
        The model and what is worth recording about it.
    """
    values = frame.to_numpy(dtype=np.float64)
    scaler = Scaler.fit(values[: plan.train[1]])
    windows = Windows(scaler.forward(values), look_back=plan.look_back, horizon=recipe.horizon)
    linear, chosen = fit_linear(windows, plan, channels=recipe.channels)
    seed_everything(recipe.seed)
    index = frame.index
    model = ForecastModel(
        series=[str(name) for name in frame.columns],
        look_back=plan.look_back,
        horizon=recipe.horizon,
        patch=plan.patch,
        period=plan.period,
        trailing=plan.trailing,
        cycles=list(plan.cycles),
        frequency=str(index.freqstr),
        zone=str(index.tz) if index.tz is not None else None,
        dim=recipe.dim,
        heads=recipe.heads,
        layers=recipe.layers,
        dropout=recipe.dropout,
        channels=recipe.channels,
        window=recipe.window,
        members=recipe.members,
    )
    model.artifacts = {
        **linear.tensors(),
        "mean": torch.from_numpy(scaler.mean),
        "scale": torch.from_numpy(scaler.scale),
        "known_until": torch.tensor(index[-1].as_unit("ns").value, dtype=torch.int64),
    }
    inputs = make_inputs(model, frame)
    model.attention_weight.zero_()
    forecast, target = forecast_origins(model, inputs, thin(whole(plan.validation, 1), windows.series, 20_000))
    model.attention_weight.fill_(1.0)
    model.set_spread(target - forecast[..., 0])
    facts = {
        "plan": asdict(plan),
        "series": list(model.series),
        "linear": chosen,
    }
    return model, facts


def align(model: ForecastModel, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the model's series first and in its order, then those that it does not know.

    A correction across channels needs every channel: those that ``frame`` lacks are then empty columns.
    """
    frame = frame.rename(columns=str)
    known = [name for name in model.series if name in frame.columns or "cross_weights" in model.artifacts]
    others = [name for name in frame.columns if name not in model.series]
    return frame.reindex(columns=known + others)


def make_inputs(model: ForecastModel, frame: pd.DataFrame) -> Inputs:
    """Batches of windows over ``frame``, standardised as in training.

    A series that the model does not know gets the scale of its own rows and the unknown identity. The columns are
    as :func:`align` puts them.
    """
    values = frame.to_numpy(dtype=np.float64)
    place = {name: number for number, name in enumerate(model.series)}
    own = Scaler.fit(values)
    columns = [place.get(str(name)) for name in frame.columns]
    for number, known in enumerate(columns):
        if known is not None:
            own.mean[number] = float(model.artifacts["mean"][known])
            own.scale[number] = float(model.artifacts["scale"][known])
    windows = Windows(own.forward(values), look_back=model.look_back, horizon=model.horizon)
    return Inputs(
        windows,
        frame.index,
        linear=LinearPath.from_tensors(model.artifacts),
        patch=model.patch,
        trailing=model.trailing,
        cycles=model.cycles,
        identities=torch.tensor([0 if known is None else known + 1 for known in columns]),
        scaler=own,
    )


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
    )


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
        both.append((forecast[..., 0] - target).abs())
    known = torch.isfinite(both[0])
    gain = torch.where(known, both[0] - both[1], 0.0)
    block = (origins - origins[0]) // max(model.horizon, model.period)
    means = torch.stack([gain[block == b].sum() / known[block == b].sum().clamp_min(1) for b in block.unique()])
    mean = float(gain.sum() / known.sum().clamp_min(1))
    error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else float("inf")
    kept = mean > error
    model.attention_weight.fill_(float(kept))
    linear = float(torch.where(known, both[0], 0.0).sum() / known.sum().clamp_min(1))
    return {"kept": kept, "linear_mae": linear, "gain": mean, "standard_error": error, "blocks": len(means)}


@torch.no_grad()
def calibrate(model: ForecastModel, inputs: Inputs, plan: Plan) -> None:
    """Fit the intervals on the calibration block, which no choice has looked at."""
    origins = thin(whole(plan.calibration, 1), inputs.windows.series, 20_000)
    forecast, target = forecast_origins(model, inputs, origins)
    calibration = Calibration.fit(scores(forecast, target))
    model.artifacts["offset"], model.artifacts["pace"] = calibration.offset, calibration.pace


def keep_tail(model: ForecastModel, frame: pd.DataFrame) -> None:
    """Put the last rows of ``frame`` into the model, so that it forecasts on without a CSV."""
    tail = frame.iloc[-(model.look_back + model.horizon) :]
    model.artifacts["tail"] = torch.from_numpy(tail.to_numpy(dtype=np.float64).copy())
    model.artifacts["tail_end"] = torch.tensor(tail.index[-1].as_unit("ns").value, dtype=torch.int64)
