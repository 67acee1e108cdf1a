"""What the other channels add to the linear path: one more ridge, on short summaries of every channel's past.

The shared ridge sees one channel at a time. Here its residuals are regressed on the mean of each channel over
stretches of the past that double in length, with weights for each pair of channels. Covariates are channels here
that are summarised too, but not forecast. It is a component like any other: it takes part only where rolling folds say
that it helps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .drivers import CovariateTable
from .windows import Windows, centre

__all__ = ["MOST_CHANNELS", "Cross", "CrossMoments", "accumulate", "solve", "summarise"]

MOST_CHANNELS = 16  # the weights grow with the square of the channels
CHUNK = 16_384  # channel windows at a time, where there are many
MOST_EACH = 2_000_000  # weights of covariates for each of many series
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)


def stretches(look_back: int) -> list[tuple[int, int]]:
    """The stretches of :func:`summarise`, as rows before the origin from and to."""
    edges = [0, 1, 3]
    while edges[-1] * 2 <= look_back:
        edges.append(edges[-1] * 2)
    return list(pairwise(edge for edge in edges if edge <= look_back))


def summarise(past: Tensor, mask: Tensor) -> Tensor:
    """Means over the last step, the two before it, the three before those, then six, twelve and so on.

    Args:
        past: ``(..., look_back)``, centred, zero where missing.
        mask: same shape, 1 where observed.

    Returns:
        ``(..., stretches)``; zero where a stretch has no observed value.
    """
    look_back = past.shape[-1]
    parts = []
    for near, far in stretches(look_back):
        stretch = slice(look_back - far, look_back - near)
        parts.append(past[..., stretch].sum(-1) / mask[..., stretch].sum(-1).clamp_min(1.0))
    return torch.stack(parts, -1)


def _features(
    past: Tensor, mask: Tensor, covariates: CovariateTable | None, origins: Tensor | None, each: bool
) -> Tensor:
    """The summaries at each origin ``(n, features)``: of all channels unless ``each``, then of the covariates."""
    parts = [] if each else [summarise(past, mask).flatten(1)]
    if covariates is not None and covariates.columns and origins is not None:
        parts.append(summarise_covariates(covariates, origins))
    return torch.cat(parts, 1)


def summarise_covariates(covariates: CovariateTable, origins: Tensor) -> Tensor:
    """The summaries of the covariates that are columns of the data, ``(n, features)``."""
    past, mask, _ = covariates.past(origins)
    return summarise(past[:, : covariates.columns], mask[:, : covariates.columns]).flatten(1)


@dataclass
class Cross:
    """``mean`` ``(features,)`` and ``weights`` ``(features, channels, horizon)``, float64.

    With ``each`` the features are of covariates alone, and each channel can be corrected without the others.
    """

    mean: Tensor
    weights: Tensor
    each: bool = False

    def apply(
        self, past: Tensor, mask: Tensor, covariates: CovariateTable | None = None, origins: Tensor | None = None
    ) -> Tensor:
        """Corrections ``(n, channels, horizon)`` for ``past`` and ``mask`` ``(n, channels, look_back)``.

        Args:
            past, mask: of all channels, in their order.
            covariates: of the table, where they were there in training.
            origins: ``(n,)``, needed for the covariates.
        """
        features = _features(past, mask, covariates, origins, self.each) - self.mean
        return torch.einsum("nf,fch->nch", features, self.weights)

    def apply_each(self, covariates: CovariateTable, origins: Tensor, who: Tensor) -> Tensor:
        """Corrections from the covariates alone, ``(n, channels, horizon)``.

        ``who`` are the identities of the series, ``(channels,)`` or ``(n, channels)``; an unknown one, 0, gets none.
        """
        features = summarise_covariates(covariates, origins) - self.mean
        weights = self.weights[:, (who - 1).clamp_min(0)] * (who > 0)[..., None]  # (features, [n,] channels, horizon)
        return torch.einsum("nf,fnch->nch" if who.ndim == 2 else "nf,fch->nch", features, weights)


@dataclass
class CrossMoments:
    """Sums of products over origins; those of disjoint sets of origins with one base map add up."""

    total: Tensor
    gram: Tensor
    cross: Tensor
    origins: float
    residual: Tensor
    targets: Tensor
    each: bool = False


def accumulate(
    windows: Windows,
    base: Tensor,
    origins: Tensor,
    *,
    trailing: int,
    reversion: Tensor | None = None,
    covariates: CovariateTable | None = None,
    driven: Callable[[Tensor], Tensor] | None = None,
    each: bool = False,
) -> CrossMoments:
    """Moments of the summaries and of what ``base`` ``(look_back, horizon)`` leaves over, at ``origins``.

    ``reversion`` ``(horizon,)`` is the part of the centre that the forecast adds to ``base`` besides, ``driven`` gives
    what covariates that are known ahead add at some origins, ``(n, channels, horizon)``. With ``each`` only covariates
    are summarised.
    """
    channels, horizon = windows.series, windows.horizon
    moments: CrossMoments | None = None
    for part in origins.split(max(1, min(512, CHUNK // channels))):
        past, future = windows.every_series(part)
        z, mask, level = centre(past.double(), trailing)
        features = _features(z, mask, covariates, part, each)
        known = torch.isfinite(future)
        # In float32: the residual needs no more than the targets hold.
        forecast = z.float() @ base.float() + level.float()
        if reversion is not None:
            forecast += level.float() * reversion.float()
        if driven is not None:
            forecast += driven(part)
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
                each=each,
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
    return Cross(mean, weights.reshape(size, channels, -1), moments.each)
