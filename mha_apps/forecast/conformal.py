"""Intervals that hold: conformal calibration per series and step, which goes on adapting as truths come in.

Scores are those of conformalised quantile regression (Romano, Patterson and Candes 2019), one for each bound, in
units of the model's own interval, so a wide forecast is corrected more than a narrow one. The first correction is
their quantile on a block of rows that no other choice has seen. From then on each bound tracks its quantile with
the errors that were known at the origin (Angelopoulos, Candes and Tibshirani 2023, "Conformal PID Control for Time
Series Prediction", the quantile tracker), which keeps the share of misses right when the series drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .model import LEVELS

__all__ = ["Calibration", "as_far_ahead", "bounds", "half_width", "scores"]

BOUNDS = (0, 1, 3, 4)  # which of LEVELS are bounds of an interval
MISS = torch.tensor([LEVELS[i] if LEVELS[i] < 0.5 else 1 - LEVELS[i] for i in BOUNDS], dtype=torch.float64)
SIGN = torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
MOST_QUANTILES = 20_000
NARROWEST = 0.1  # of the model's own interval: a calibrated one of a sensor that never moved has no width at all
FINEST = 1e-5  # deviations of the sensor
ENOUGH = 200  # scores below which neighbouring steps are pooled: the 2.5% quantile then rests on five


def _unit(forecast: Tensor) -> Tensor:
    """Half the model's 80% interval, the unit of scores: ``(..., 6)`` to ``(..., 1)``."""
    return ((forecast[..., 4] - forecast[..., 2]) / 2).clamp_min(1e-9).unsqueeze(-1)


def scores(forecast: Tensor, target: Tensor) -> Tensor:
    """How far each bound was passed, in units of the interval; negative where the truth was inside.

    Args:
        forecast: ``(..., 6)``, the mean and the quantiles of ``LEVELS``.
        target: ``(...)``, NaN where unknown.

    Returns:
        ``(..., 4)`` float64 for the bounds at 2.5, 10, 90 and 97.5 percent; NaN where the target is.
    """
    quantiles = forecast.double()[..., [1 + i for i in BOUNDS]]
    return SIGN * (target.double().unsqueeze(-1) - quantiles) / _unit(forecast.double())


def bounds(forecast: Tensor, offset: Tensor) -> Tensor:
    """The forecast with its bounds moved by ``offset`` units; the 80% interval stays within the 95% one.

    Args:
        forecast: ``(..., 6)``.
        offset: broadcasts to ``(..., 4)``; positive widens.

    Returns:
        ``(..., 6)`` float64: mean, 2.5%, 10%, median, 90%, 97.5%.
    """
    forecast = forecast.double()
    moved = forecast[..., [1 + i for i in BOUNDS]] + SIGN * offset * _unit(forecast)
    median = forecast[..., 3]
    low, high = torch.minimum(moved[..., 1], median), torch.maximum(moved[..., 2], median)
    return torch.stack(
        [forecast[..., 0], torch.minimum(moved[..., 0], low), low, median, high, torch.maximum(moved[..., 3], high)],
        -1,
    )


def as_far_ahead(values: Tensor, silent: Tensor, sums: Tensor | None = None) -> Tensor:
    """Intervals of sensors that were last measured some rows before the origin, from which they are further ahead.

    Each reaches at least as far from the median as that of the step so many rows later, or as that of the last step.

    Args:
        values: ``(..., horizon, 6)``, as :func:`bounds` gives them.
        silent: ``(...,)`` int64, the rows before the origin without a value.
        sums: ``(...,)``, true where values add up from step to step, so that an interval goes on growing beyond the
            last one, with the number of steps: a forecast without anything recent errs to one side. Nowhere when None.
    """
    last = values.shape[-2] - 1
    ahead = torch.arange(last + 1, device=values.device) + silent.unsqueeze(-1)
    median = values[..., 3:4]
    reach = values - median
    later = reach.gather(-2, ahead.clamp(max=last).unsqueeze(-1).expand(values.shape))
    if sums is not None:
        growth = ((ahead + 1).to(values.dtype) / (last + 1)).clamp_min(1.0)
        later = later * torch.where(sums.unsqueeze(-1), growth, 1.0).unsqueeze(-1)
    wide = median + torch.where(reach < 0, torch.minimum(reach, later), torch.maximum(reach, later))
    wide = torch.cat([values[..., :1], wide[..., 1:]], -1)
    return torch.where(silent[..., None, None] > 0, wide, values)


def half_width(forecast: Tensor, calibrated: Tensor) -> Tensor:
    """Half the 80% interval, in which distances from a forecast are counted: never so narrow that they mean nothing.

    Args:
        forecast: ``(..., 6)``, of the model itself and standardised; its interval gives the floor.
        calibrated: ``(..., 6)``, the same after :func:`bounds`, before any bound of the sensor: an interval that a
            bound has cut off does not say how far errors go.

    Returns:
        ``(...)`` float64, above zero.
    """
    half = (calibrated[..., 4] - calibrated[..., 2]) / 2
    return torch.maximum(half, (NARROWEST * _unit(forecast.double())[..., 0]).clamp_min(FINEST))


@dataclass
class Calibration:
    """The offsets of the four bounds for every series and step, and how fast they adapt.

    ``offset`` and ``pace`` are ``(series, horizon, 4)`` float64 in units of the model's interval.
    """

    offset: Tensor
    pace: Tensor

    @classmethod
    def fit(cls, score: Tensor, *, rate: float = 0.03) -> Calibration:
        """Offsets from the scores ``(origins, series, horizon, 4)`` of a held-out block, NaN where unknown.

        With too few scores for a step its neighbours are pooled, then all steps of the series, then all series; a
        table with no score at all keeps the model's own quantiles.

        Args:
            score: what :func:`scores` gives.
            rate: how far one outcome moves a bound, as a share of the spread of its scores.
        """
        _, series, horizon, _ = score.shape
        offset = torch.zeros(series, horizon, 4, dtype=torch.float64)
        pace = torch.ones(series, horizon, 4, dtype=torch.float64)
        everything = _known(score)
        # Thousands of series: neighbouring steps then share a quantile, or sorting would take minutes.
        share = max(1, -(-series * horizon // MOST_QUANTILES))
        for s in range(series):
            own = score[:, s]
            counts = torch.isfinite(own[..., 0]).sum(0)
            total = int(counts.sum())
            for h in range(0, horizon, share):
                last = min(h + share, horizon)
                reach = 0
                while int(counts[max(0, h - reach) : last + reach].sum()) < ENOUGH and reach < horizon:
                    reach = 2 * reach + 1
                pool = _known(own[:, max(0, h - reach) : last + reach]) if total else everything
                if len(pool) < 20 and len(everything) > len(pool):
                    pool = everything
                if len(pool) == 0:
                    continue
                offset[s, h:last], pace[s, h:last] = _quantile(pool)
        return cls(offset, pace * rate)

    def apply(self, forecast: Tensor) -> Tensor:
        """:func:`bounds` of ``(..., series, horizon, 6)`` at the present offsets."""
        return bounds(forecast, self.offset)

    def follow(self, forecast: Tensor, target: Tensor, *, new: int | None = None) -> Tensor:
        """Go through consecutive origins, adapting to what has become known, and return the calibrated forecasts.

        Args:
            forecast: ``(origins, series, horizon, 6)`` at consecutive origins, one row apart.
            target: ``(origins, series, horizon)``, NaN where unknown.
            new: outcomes of this many rows, up to the last origin, are learned, those before having been; of all that
                there are when None.

        Returns:
            ``(origins, series, horizon, 6)`` float64. The offset used at an origin rests on targets of earlier rows
            only. Afterwards the calibration stands where the last origin left it.
        """
        score = scores(forecast, target)
        origins, series, horizon, _ = forecast.shape
        used = torch.empty(origins, series, horizon, 4, dtype=torch.float64)
        step = torch.arange(horizon)
        for origin in range(origins):
            # The row before this origin completes, for each step, the forecast made that many rows before it.
            made = origin - 1 - step
            seen = made >= 0
            if bool(seen.any()) and (new is None or origin >= origins - new):
                come = torch.full((series, horizon, 4), torch.nan, dtype=torch.float64)
                issued = self.offset.clone()
                come[:, seen] = score[made[seen], :, step[seen]].transpose(0, 1)
                issued[:, seen] = used[made[seen], :, step[seen]].transpose(0, 1)
                self.learn(come, issued)
            used[origin] = self.offset
        return bounds(forecast, used)

    def learn(self, score: Tensor, issued: Tensor) -> None:
        """Move each bound after one outcome per series and step; a NaN moves nothing.

        Args:
            score: ``(series, horizon, 4)``.
            issued: the offsets that the forecast was given with, same shape. Misses are counted against these: a
                bound then moves until its share of misses is right, however late outcomes come.
        """
        missed = (score > issued).double()
        step = self.pace * (missed - MISS)
        self.offset = self.offset + torch.where(torch.isfinite(score), step, 0.0)


def _known(score: Tensor) -> Tensor:
    flat = score.reshape(-1, 4)
    return flat[torch.isfinite(flat[:, 0])]


def _quantile(pool: Tensor) -> tuple[Tensor, Tensor]:
    """The conformal quantile of ``(n, 4)`` scores for each bound, and their spread (half the 80% range)."""
    ordered = pool.sort(0).values
    count = len(ordered)
    # ceil((n + 1)(1 - miss)) is the finite-sample rank; with too few scores it is the largest one.
    rank = torch.ceil((count + 1) * (1 - MISS)).long().clamp(1, count) - 1
    value = ordered.gather(0, rank[None])[0]
    low, high = ordered[int(0.1 * (count - 1))], ordered[int(0.9 * (count - 1))]
    return value, ((high - low) / 2).clamp_min(1e-3)
