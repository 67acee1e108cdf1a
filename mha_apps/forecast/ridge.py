"""The linear path: one ridge regression in closed form, shared over series, where every forecast starts.

On windows that are centred by their trailing slice, a ridge from the whole look-back to the whole horizon is the
strongest simple forecaster known here (compare Zeng et al. 2023, "Are Transformers Effective for Time Series
Forecasting?", and Toner and Darlow 2024, "An Analysis of Linear Time Series Forecasting Models", who show that the
linear forecasters of the literature are this regression with other centrings). It is fitted in float64 from sums of
products, one pass over the windows, so memory does not grow with their number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .windows import Windows, centre

__all__ = ["Moments", "accumulate", "error", "seasonal_pull", "solve"]

OBSERVED = 0.8  # a window with fewer of its inputs observed says too little about the covariance


@dataclass
class Moments:
    """Sums of products over windows: all that the regression needs to know of the data.

    ``gram`` is ``(look_back, look_back)``, ``cross`` ``(look_back, horizon)``, ``windows`` how many windows went in
    and ``targets`` ``(horizon,)`` how many observed targets per step. Moments of disjoint sets of windows add up.
    """

    gram: Tensor
    cross: Tensor
    windows: float
    targets: Tensor

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.windows + other.windows,
            self.targets + other.targets,
        )


def accumulate(windows: Windows, origins: Tensor, *, trailing: int, chunk: int = 8192) -> Moments:
    """The moments of all series at ``origins`` (int64); windows that are less than 80% observed are left out."""
    look_back, horizon = windows.look_back, windows.horizon
    gram = torch.zeros(look_back, look_back, dtype=torch.float64)
    cross = torch.zeros(look_back, horizon, dtype=torch.float64)
    targets = torch.zeros(horizon, dtype=torch.float64)
    count = 0.0
    for batch in windows.chunks(origins, size=chunk):
        past, mask, level = centre(batch.past.double(), trailing)
        keep = mask.mean(-1) >= OBSERVED
        if not bool(keep.any()):
            continue
        past, level, future = past[keep], level[keep], batch.future[keep].double()
        known = torch.isfinite(future)
        future = torch.where(known, future - level, 0.0)
        gram.addmm_(past.T, past)
        cross.addmm_(past.T, future)
        targets += known.sum(0)
        count += float(past.shape[0])
    return Moments(gram, cross, count, targets)


def seasonal_pull(look_back: int, horizon: int, period: int, share: float) -> Tensor:
    """What the weights shrink towards: ``share`` of the mean over earlier seasons, the nearer ones counting more.

    Season number j before the origin counts 1/j. Returns ``(look_back, horizon)``, zero where no season fits in.
    """
    pull = torch.zeros(look_back, horizon, dtype=torch.float64)
    seasons = torch.arange(1, look_back // period + 1, dtype=torch.float64)
    if not len(seasons):
        return pull
    step = torch.arange(horizon)
    for season, part in enumerate((share / seasons / (1 / seasons).sum()).tolist(), start=1):
        pull[look_back - season * period + step % period, step] = part
    return pull


def solve(
    moments: Moments,
    *,
    look_back: int,
    penalty: float,
    unit: int | None = None,
    pull: Tensor | None = None,
    rank: int | None = None,
) -> Tensor:
    """Weights ``(full look_back, horizon)`` that use the last ``look_back`` steps; the others are zero.

    The penalty is a multiple of the mean eigenvalue of the inputs' covariance, so it means the same for every unit
    and look-back. Missing targets are handled by available pairs: each step's covariance with the inputs is taken
    over the windows in which that step was observed.

    Args:
        moments: sums of products over windows.
        look_back: steps that are used.
        penalty: its mean over the steps.
        unit: rows after which a step's penalty has grown by the root of two, from there on with the root of its age:
            old values need more evidence. The same penalty everywhere when None.
        pull: ``(look_back, horizon)``, what the weights shrink towards; zero when None.
        rank: keep that many patterns over the horizon, those in which the fitted forecasts vary most (reduced-rank
            regression; Izenman 1975); neighbouring steps then share what they have in common.
    """
    full, horizon = moments.cross.shape
    weights = torch.zeros(full, horizon, dtype=torch.float64)
    if moments.windows == 0:
        return weights
    gram = moments.gram[-look_back:, -look_back:] / moments.windows
    cross = moments.cross[-look_back:] / moments.targets.clamp_min(1.0)
    mean_eigenvalue = gram.diagonal().mean().clamp_min(1e-12)
    profile = torch.ones(look_back, dtype=torch.float64)
    if unit is not None:
        profile = (1 + torch.arange(look_back - 1, -1, -1, dtype=torch.float64) / unit).sqrt()
    cost = penalty * mean_eigenvalue * profile / profile.mean()
    if pull is not None:
        cross = cross + cost[:, None] * pull
    gram = gram + torch.diag(cost)
    found = torch.linalg.solve(gram, cross)
    if rank is not None and rank < min(look_back, horizon):
        patterns = torch.linalg.eigh(found.T @ cross)[1][:, -rank:]  # found' gram found, without one more product
        found = found @ patterns @ patterns.T
    weights[-look_back:] = found
    return weights


def error(weights: Tensor, windows: Windows, origins: Tensor, *, trailing: int) -> tuple[float, float]:
    """Mean squared and mean absolute error of ``weights`` over the observed targets; NaN if there are none."""
    squares, absolutes, count = 0.0, 0.0, 0
    for batch in windows.chunks(origins):
        past, _, level = centre(batch.past.double(), trailing)
        gap = past @ weights + level - batch.future.double()
        gap = gap[torch.isfinite(gap)]
        squares += float(gap.square().sum())
        absolutes += float(gap.abs().sum())
        count += gap.numel()
    return (squares / count, absolutes / count) if count else (float("nan"), float("nan"))
