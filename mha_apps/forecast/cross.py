"""What the other channels add to the linear path: one more ridge, on short summaries of every channel's past.

The shared ridge sees one channel at a time. Here its residuals are regressed on the mean of each channel over
stretches of the past that double in length, with weights for each pair of channels. It is a component like any
other: it takes part only where rolling folds say that it helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .windows import Windows, centre

__all__ = ["MOST_CHANNELS", "Cross", "CrossMoments", "accumulate", "solve", "summarise"]

MOST_CHANNELS = 16  # the weights grow with the square of the channels
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)


def summarise(past: Tensor, mask: Tensor) -> Tensor:
    """Means over the last step, the two before it, the three before those, then six, twelve and so on.

    Args:
        past: ``(..., look_back)``, centred, zero where missing.
        mask: same shape, 1 where observed.

    Returns:
        ``(..., stretches)``; zero where a stretch has no observed value.
    """
    look_back = past.shape[-1]
    edges = [0, 1, 3]
    while edges[-1] * 2 <= look_back:
        edges.append(edges[-1] * 2)
    edges = [edge for edge in edges if edge <= look_back]
    parts = []
    for near, far in pairwise(edges):
        stretch = slice(look_back - far, look_back - near)
        parts.append(past[..., stretch].sum(-1) / mask[..., stretch].sum(-1).clamp_min(1.0))
    return torch.stack(parts, -1)


@dataclass
class Cross:
    """``mean`` ``(features,)`` and ``weights`` ``(features, channels, horizon)``, float64."""

    mean: Tensor
    weights: Tensor

    def apply(self, past: Tensor, mask: Tensor) -> Tensor:
        """Corrections ``(n, channels, horizon)`` for ``past`` and ``mask`` ``(n, channels, look_back)``."""
        features = summarise(past, mask).flatten(1) - self.mean
        return torch.einsum("nf,fch->nch", features, self.weights)


@dataclass
class CrossMoments:
    """Sums of products over origins; those of disjoint sets of origins with one base map add up."""

    total: Tensor
    gram: Tensor
    cross: Tensor
    origins: float
    residual: Tensor
    targets: Tensor


def accumulate(
    windows: Windows, base: Tensor, origins: Tensor, *, trailing: int, reversion: Tensor | None = None
) -> CrossMoments:
    """Moments of the summaries and of what ``base`` ``(look_back, horizon)`` leaves over, at ``origins``.

    ``reversion`` ``(horizon,)`` is the part of the centre that the forecast adds to ``base`` besides.
    """
    channels, horizon = windows.series, windows.horizon
    moments: CrossMoments | None = None
    for part in origins.split(512):
        past, future = windows.every_series(part)
        z, mask, level = centre(past.double(), trailing)
        features = summarise(z, mask).flatten(1)
        known = torch.isfinite(future)
        # In float32: the residual needs no more than the targets hold.
        forecast = z.float() @ base.float() + level.float()
        if reversion is not None:
            forecast += level.float() * reversion.float()
        residual = torch.where(known, future - forecast, 0.0).double()
        if moments is None:
            size = features.shape[1]
            moments = CrossMoments(
                total=torch.zeros(size, dtype=torch.float64),
                gram=torch.zeros(size, size, dtype=torch.float64),
                cross=torch.zeros(size, channels * horizon, dtype=torch.float64),
                origins=0.0,
                residual=torch.zeros(channels * horizon, dtype=torch.float64),
                targets=torch.zeros(channels * horizon, dtype=torch.float64),
            )
        moments.total += features.sum(0)
        moments.gram.addmm_(features.T, features)
        moments.cross.addmm_(features.T, residual.flatten(1))
        moments.residual += residual.flatten(1).sum(0)
        moments.targets += known.flatten(1).sum(0)
        moments.origins += len(part)
    if moments is None:
        raise ValueError("origins is empty")
    return moments


def solve(moments: CrossMoments, *, channels: int, penalty: float) -> Cross:
    """The regression of the residuals on the summaries; ``penalty`` is in mean eigenvalues of their covariance."""
    mean = moments.total / moments.origins
    gram = moments.gram / moments.origins - torch.outer(mean, mean)
    count = moments.targets.clamp_min(1.0)
    # Missing targets add nothing to the sums; their share of the features' mean is taken as that of the others.
    cross = moments.cross / count - torch.outer(mean, moments.residual / count)
    size = len(mean)
    scale = gram.diagonal().mean().clamp_min(1e-12)
    weights = torch.linalg.solve(gram + penalty * scale * torch.eye(size, dtype=torch.float64), cross)
    return Cross(mean, weights.reshape(size, channels, -1))
