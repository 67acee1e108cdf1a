"""What every forecast is compared with: the last value, the same as one period ago, and trees on lags.

The functions take windows as :class:`mha_apps.forecast.windows.Windows` makes them, NaN where missing, and never
return NaN for a window with at least one observed value.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["last_value", "seasonal_naive"]


def last_value(past: Tensor, horizon: int) -> Tensor:
    """The last observed value, repeated. ``(..., look_back)`` to ``(..., horizon)``; NaN if nothing was observed."""
    position = torch.arange(past.shape[-1], device=past.device)
    last = torch.where(torch.isfinite(past), position, -1).amax(-1, keepdim=True)
    value = past.gather(-1, last.clamp_min(0))
    return torch.where(last >= 0, value, torch.nan).expand(*past.shape[:-1], horizon)


def seasonal_naive(past: Tensor, horizon: int, period: int) -> Tensor:
    """The value one period before each step, going back further periods where it is missing.

    Args:
        past: ``(..., look_back)``; NaN where missing.
        horizon: steps to forecast.
        period: rows in a season; 1 gives :func:`last_value`.

    Returns:
        ``(..., horizon)``; where no season of the window has the phase, the last observed value.
    """
    period = max(1, min(period, past.shape[-1]))
    seasons = past.shape[-1] // period
    by_phase = past[..., past.shape[-1] - seasons * period :].reshape(*past.shape[:-1], seasons, period)
    latest = last_value(by_phase.transpose(-1, -2), 1).squeeze(-1)  # (..., period)
    phase = torch.arange(horizon, device=past.device) % period
    return torch.where(torch.isfinite(latest[..., phase]), latest[..., phase], last_value(past, horizon))
