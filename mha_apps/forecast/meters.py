"""What a meter will read: the sum of what it rises by in the rows ahead, with intervals that are of the sum.

Bounds of single rises do not add up: rows err to one side together, as in a cold week, but not all of them do. So what
is calibrated, followed, scored and given of a meter is its rise since the origin of the forecast, up to each step.

Of a meter that is not read in every row the total over the rows between two readings is known. A table holds what it
rose by in each of them on average in the row of the reading alone (:func:`mha_apps.forecast.limits.increments`), and
windows in all of them, but for pasts that end before the reading. Sums are held against readings alone: between two of
them nobody knows how far a forecast is off.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .engine import forecast_origins
from .inputs import Inputs
from .model import ForecastModel

__all__ = ["add_up", "forecast_risen", "readings", "risen", "since_origin", "summed"]


def forecast_risen(model: ForecastModel, inputs: Inputs, origins: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`mha_apps.forecast.engine.forecast_origins` with meters as what they have risen by since each origin.

    A row without a target is left out of both sums, and the target of one without a reading is not known.
    """
    forecast, target = forecast_origins(model, inputs, origins)
    reached = inputs.windows.measured(risen(model, inputs, target), origins)
    return since_origin(model, inputs, forecast, torch.isfinite(target)), reached


def since_origin(model: ForecastModel, inputs: Inputs, forecast: Tensor, known: Tensor | None = None) -> Tensor:
    """Forecasts in which each meter is what it has risen by since the origin.

    The mean is the sum of the means. The quantiles are those of a sum of independent rises, by the first terms of the
    expansion of Cornish and Fisher: the squares of their distances from the median add up, and the median is as far
    from the mean as it is in single rows, those that vary most counting most. How far rows truly err together is for
    the conformal calibration to say.

    Args:
        model: says which series are meters.
        inputs: what the forecast was made from.
        forecast: ``(..., series, horizon, 6)``, standardised, of single rises, as the model gives it.
        known: ``(..., series, horizon)``, false for a row that is left out of the sums; every one counts when None.

    Returns:
        The same, of meters the rises since the origin, standardised as a single one is.
    """
    meters, mean, scale = _meters(model, inputs)
    return add_up(forecast, meters, mean, scale, known) if len(meters) else forecast


def add_up(forecast: Tensor, meters: Tensor, mean: Tensor, scale: Tensor, known: Tensor | None = None) -> Tensor:
    """:func:`since_origin` for the series ``meters`` ``(meters,)`` of this mean and this scale ``(meters, 1)``."""
    rise = forecast[..., meters, :, :].double() * scale.unsqueeze(-1) + mean.unsqueeze(-1)
    counts = torch.ones_like(rise[..., 0]) if known is None else known[..., meters, :].double()
    expected, median = rise[..., 0], rise[..., 3]
    total = (expected.clamp_min(0.0) * counts).cumsum(-1)
    variance = (rise[..., 4] - rise[..., 2]).square() * counts
    skew = ((median - expected) * variance).cumsum(-1) / variance.cumsum(-1).clamp_min(1e-300)
    distance = rise[..., 1:] - median.unsqueeze(-1)
    reach = distance.sign() * (distance.square() * counts.unsqueeze(-1)).cumsum(-2).sqrt()
    whole = torch.cat([total.unsqueeze(-1), (total + skew).unsqueeze(-1) + reach], -1)
    return forecast.double().index_copy(-3, meters, (whole - mean.unsqueeze(-1)) / scale.unsqueeze(-1))


def risen(model: ForecastModel, inputs: Inputs, target: Tensor) -> Tensor:
    """Targets ``(..., series, horizon)`` in which each meter is what it has risen by since the origin.

    Rows that are not known are left out of the sum, and stay NaN.
    """
    meters, mean, scale = _meters(model, inputs)
    if not len(meters):
        return target
    total = summed(target[..., meters, :].double() * scale + mean)
    return target.double().index_copy(-2, meters, (total - mean) / scale)


def summed(rises: Tensor) -> Tensor:
    """What a meter has risen by since before the first of ``rises`` ``(..., rows)``; NaN in rows that are not known."""
    return torch.where(torch.isfinite(rises), torch.nan_to_num(rises, nan=0.0).cumsum(-1), torch.nan)


def _meters(model: ForecastModel, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Which series of ``inputs`` are meters ``(meters,)``, their mean and their scale ``(meters, 1)``."""
    who = inputs.identities
    places = ((who > 0) & model.meters[(who - 1).clamp_min(0)]).nonzero()[:, 0]
    mean, scale = (torch.from_numpy(each)[places, None] for each in (inputs.scaler.mean, inputs.scaler.scale))
    return places, mean, scale


def readings(values: np.ndarray, last: float | np.ndarray = 0.0) -> np.ndarray:
    """What a meter reads after ``last``, from forecasts ``(..., horizon, 6)`` of its rise since then.

    No forecast and no bound ever falls, or is below ``last``, a number or ``(6,)``; NaN counts from zero.
    """
    return np.maximum.accumulate(np.maximum(values, 0.0), axis=-2) + np.nan_to_num(last)
