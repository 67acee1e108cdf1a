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
from .engine import forecast_origins
from .inputs import Inputs
from .linear import thin, whole
from .plan import make_plan
from .recipe import ForecastRecipe
from .trainer import learn, load_frame, make_inputs
from .trees import MOST_ROWS, Trees

__all__ = ["HORIZONS", "benchmark"]

HORIZONS = (96, 192, 336, 720)
MONTHS = (12, 4, 4)
CHUNK = 256  # origins scored at a time
TREE_STRIDE = 16


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
        number of ``windows`` scored, ``look_back`` and what was chosen.
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
    frame = frame.iloc[:rows]
    recipe = replace(recipe or ForecastRecipe(csv=source), csv=source, horizon=longest)
    recipe.check()
    plan = make_plan(frame, recipe, source=source, blocks=[train, train + validation, train + validation, rows])
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", recipe, "forecast")
        model, facts, summary = learn(frame.iloc[: train + validation], plan, recipe, run)
    model.cpu()
    inputs = make_inputs(model, frame)

    scores: dict[str, dict[str, dict[str, float]]] = {}
    windows: dict[str, int] = {}
    sums: dict[tuple[str, int], Tensor] = {}
    for part in torch.arange(plan.test[0], rows).split(CHUNK):
        target, points = _forecasts(model, inputs, part)
        for horizon in horizons:
            counted = part <= rows - horizon
            windows[str(horizon)] = windows.get(str(horizon), 0) + int(counted.sum())
            for name, point in points.items():
                gap = (point - target)[counted, :, :horizon].double()
                gap = gap[torch.isfinite(gap)]
                new = torch.stack([gap.square().sum(), gap.abs().sum(), torch.tensor(float(gap.numel()))])
                sums[name, horizon] = sums.get((name, horizon), torch.zeros(3, dtype=torch.float64)) + new
    for (name, horizon), (square, absolute, count) in sums.items():
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


def _average(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in scores.values()) / len(scores) for name in ("mse", "mae")}
