"""The public benchmark's protocol, so that numbers can be laid beside those of the literature.

Rows are cut into 12, 4 and 4 months of 30 days (train, validation, test; rows after them are unused), standardised
on the training rows, and every test window counts: dropping the last batch is the known way to look better. One
point forecast is scored by both errors, nothing is refitted on validation, and one model serves all horizons.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.training import Run

from .backtest import baselines
from .calendar import DAY, step_of
from .covariates import assign
from .engine import forecast_origins
from .inputs import Inputs
from .linear import thin, whole
from .plan import make_plan
from .recipe import ForecastRecipe
from .trainer import learn, load_frame, make_inputs
from .trees import MOST_ROWS, Trees

__all__ = ["HORIZONS", "benchmark", "paired_gain"]

HORIZONS = (96, 192, 336, 720)
MONTHS = (12, 4, 4)
CHUNK = 256  # origins scored at a time
TREE_STRIDE = 16
SAMPLES = 2000  # of the bootstrap


def benchmark(
    csv: str | Path | pd.DataFrame,
    *,
    recipe: ForecastRecipe | None = None,
    horizons: Sequence[int] = HORIZONS,
    months: tuple[int, int, int] = MONTHS,
    trees: bool = True,
) -> dict[str, Any]:
    """Run the protocol on one CSV.

    Args:
        csv: a file such as ETTh1.csv, or its frame.
        recipe: how to train; its horizon and shares of rows are those of the protocol instead.
        horizons: steps ahead; one model is trained for the longest, and shorter ones are its first steps.
        months: of 30 days, for training, validation and test.
        trees: fit the tree baseline too, whether or not they are a component; it is scored on every 16th window, for
            the time that it takes.

    Returns:
        JSON-able: ``average`` and ``horizons`` with ``mse`` and ``mae``, the same of every baseline and part, the
        number of ``windows`` scored, ``look_back`` and what was chosen; ``gain_over_ridge``, the share of the ridge's
        error that the model takes away on the same windows, ``low`` and ``high`` between which it lies in 95% of the
        samples of a bootstrap over weeks. Future covariates, if the recipe names
        any, are known in hindsight here, which the literature's numbers are not.
    """
    frame = csv if isinstance(csv, pd.DataFrame) else load_frame(csv, recipe)
    source = "the frame" if isinstance(csv, pd.DataFrame) else str(csv)
    month = round(30 * DAY / step_of(frame.index))
    train, validation, test = (count * month for count in months)
    rows = train + validation + test
    longest = max(horizons)
    if len(frame) < rows or test < longest:
        raise InputError(
            f"{source}: {len(frame)} rows, and {sum(months)} months of 30 days are {rows}; "
            "the protocol needs them all, and a test block longer than the horizon"
        )
    unused = len(frame) - rows
    recipe = replace(recipe or ForecastRecipe(csv=source), csv=source, horizon=longest)
    recipe.check()
    roles = assign(frame.iloc[:rows], recipe, source)
    frame = roles.frame
    blocks = [train, train + validation, train + validation, rows]
    plan = make_plan(frame[roles.series], recipe, source=source, blocks=blocks)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", recipe, "forecast")
        model, facts, summary = learn(frame.iloc[: train + validation], plan, recipe, run, roles=roles)
    model.cpu()
    inputs = make_inputs(model, frame)

    scores: dict[str, dict[str, dict[str, float]]] = {}
    windows: dict[str, int] = {}
    by_origin: dict[tuple[str, int], list[Tensor]] = {}
    for part in torch.arange(plan.test[0], rows).split(CHUNK):
        target, points = _forecasts(model, inputs, part)
        for horizon in horizons:
            counted = part <= rows - horizon
            windows[str(horizon)] = windows.get(str(horizon), 0) + int(counted.sum())
            for name, point in points.items():
                by_origin.setdefault((name, horizon), []).append(_sums((point - target)[counted, :, :horizon]))
    errors = {key: torch.cat(parts) for key, parts in by_origin.items()}
    for (name, horizon), each in errors.items():
        square, absolute, count = each.sum(0)
        scores.setdefault(name, {})[str(horizon)] = {"mse": float(square / count), "mae": float(absolute / count)}
    ours = scores.pop("model")
    if trees:
        fitted = Trees(period=model.period, trailing=model.trailing, seed=recipe.seed)
        fitted.fit(inputs, thin(whole(plan.train, longest), inputs.windows.series, MOST_ROWS))
        scores["trees"] = {}
        for horizon in horizons:
            origins = torch.arange(plan.test[0], rows - horizon + 1)[::TREE_STRIDE]
            _, future = inputs.windows.every_series(origins)
            gap = (fitted.forecast(inputs, origins) - future)[..., :horizon].double()
            gap = gap[torch.isfinite(gap)]
            scores["trees"][str(horizon)] = {"mse": float(gap.square().mean()), "mae": float(gap.abs().mean())}
    return {
        "average": _average(ours),
        "horizons": ours,
        "baselines": {name: {"average": _average(each), "horizons": each} for name, each in scores.items()},
        "gain_over_ridge": _gains(errors, horizons, week=round(7 * DAY / step_of(frame.index)), seed=recipe.seed),
        "windows": windows,
        "tree_stride": TREE_STRIDE if trees else None,
        "look_back": model.look_back,
        "rows": {"train": train, "validation": validation, "test": test, "unused": unused},
        "seed": recipe.seed,
        "chosen": facts,
        "seconds": summary.get("seconds"),
    }


def _forecasts(model: Any, inputs: Inputs, origins: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    forecast, target = forecast_origins(model, inputs, origins)
    return target, {"model": forecast[..., 0], **baselines(model, inputs, origins)}


def _sums(gap: Tensor) -> Tensor:
    """Squared and absolute errors and their number, ``(origins, 3)`` float64; ``gap`` is NaN where unknown."""
    gap = gap.double().flatten(1)
    known = torch.isfinite(gap)
    gap = torch.where(known, gap, 0.0)
    return torch.stack([gap.square().sum(1), gap.abs().sum(1), known.sum(1).double()], 1)


def _gains(
    errors: dict[tuple[str, int], Tensor], horizons: Sequence[int], *, week: int, seed: int
) -> dict[str, dict[str, dict[str, float]]]:
    """The paired gain over the ridge for each horizon, and for the average over all of them.

    The average is over the origins of the longest horizon, which all horizons have.
    """
    pairs = {str(horizon): (errors["model", horizon], errors["ridge", horizon]) for horizon in horizons}
    common = min(len(ours) for ours, _ in pairs.values())

    def mean(name: str) -> Tensor:
        parts = [errors[name, horizon][:common] for horizon in horizons]
        each = [torch.cat([part[:, :2] / part[:, 2:].clamp_min(1), part[:, 2:].clamp_max(1)], 1) for part in parts]
        return torch.stack(each).mean(0)

    pairs["average"] = (mean("model"), mean("ridge"))
    return {name: paired_gain(*pair, block=week, seed=seed) for name, pair in pairs.items()}


def paired_gain(ours: Tensor, theirs: Tensor, *, block: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """``1 - ours / theirs`` with an interval from a moving block bootstrap (Kuensch 1989).

    Both errors are resampled together, in stretches of ``block`` origins: neighbouring origins share most of their
    errors, and are not evidence of their own.

    Args:
        ours: squared errors, absolute errors and their number, ``(origins, 3)``.
        theirs: the same of what is compared with.
        block: origins in a stretch.
        seed: of the resampling.

    Returns:
        ``mse`` and ``mae``, each with ``gain``, ``low`` and ``high``, the 2.5% and 97.5% quantiles.
    """
    origins = len(ours)
    block = max(1, min(block, origins))
    draws = torch.Generator().manual_seed(seed)
    count = -(-origins // block)
    starts = torch.randint(0, origins - block + 1, (SAMPLES, count), generator=draws)
    found: dict[str, dict[str, float]] = {}
    for column, name in enumerate(("mse", "mae")):
        totals = []
        for errors in (ours, theirs):
            sums = torch.cat([torch.zeros(1, dtype=torch.float64), errors[:, column].cumsum(0)])
            totals.append((sums[starts + block] - sums[starts]).sum(1))
        share = 1 - totals[0] / totals[1].clamp_min(1e-12)
        low, high = torch.quantile(share, torch.tensor([0.025, 0.975], dtype=share.dtype)).tolist()
        gain = 1 - float(ours[:, column].sum() / theirs[:, column].sum().clamp_min(1e-12))
        found[name] = {"gain": gain, "low": low, "high": high}
    return found


def _average(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in scores.values()) / len(scores) for name in ("mse", "mae")}
