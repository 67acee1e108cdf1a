"""Running a model over many origins, which training, calibration, prediction and backtests all do."""

from __future__ import annotations

import torch
from torch import Tensor

from mha_apps.training.device import autocast

from .inputs import Inputs
from .model import ForecastModel
from .stack import Blend

__all__ = ["forecast_origins"]

CHANNELS = 1024  # channel windows in one forward pass


@torch.no_grad()
def forecast_origins(
    model: ForecastModel,
    inputs: Inputs,
    origins: Tensor,
    *,
    device: torch.device | None = None,
    precision: str = "fp32",
) -> tuple[Tensor, Tensor]:
    """Forecasts of every series at ``origins`` (int64), in standardised units: the model's, blended with the others.

    Returns:
        The forecasts ``(origins, series, horizon, 6)`` float32 and the targets ``(origins, series, horizon)``, NaN
        where missing or after the last row.
    """
    model.eval()
    device = device or next(model.parameters()).device
    windows = inputs.windows
    blend = Blend.of(model)
    forecast = torch.empty(len(origins), windows.series, windows.horizon, 6)
    target = torch.empty(len(origins), windows.series, windows.horizon)
    done = 0
    for part in origins.split(max(1, CHANNELS // inputs.groups.shape[1])):
        here = slice(done, done + len(part))
        done += len(part)
        for number, group in enumerate(inputs.groups):  # inside, as they share what covariates do at these origins
            batch = inputs.batch(part, torch.full_like(part, number))
            with autocast(device, precision):
                output = model({name: value.to(device) for name, value in batch.items()})
            level = batch["level"]
            found = output.float().cpu() + level.unsqueeze(-1)
            if blend is not None:
                found += blend.shift(inputs, found[..., 0], part, group, model.period).unsqueeze(-1)
            forecast[here, group] = found
            known = batch["weight"] > 0
            target[here, group] = torch.where(known, batch["target"] + level, torch.nan)
    return forecast, target
