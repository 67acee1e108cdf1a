"""The whole linear path of a model: the shared ridge, and the correction across channels where folds confirm it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from . import cross, ridge
from .cross import Cross
from .plan import Plan
from .selection import Block, judge, rolling_folds
from .windows import Windows, centre

__all__ = ["FOLDS", "LinearPath", "fit_linear", "refit_linear", "thin", "whole"]

MOST_WINDOWS = 400_000  # windows that the closed form looks at; beyond them origins are skipped evenly
FOLDS = 3


def whole(block: Block, horizon: int) -> Tensor:
    """The origins of a block whose first ``horizon`` future rows lie inside it; at least one."""
    return torch.arange(block[0], max(block[0] + 1, block[1] - horizon + 1))


def thin(origins: Tensor, series: int, most: int = MOST_WINDOWS) -> Tensor:
    """Every n-th origin, so that origins times series stays within ``most``."""
    return origins[:: max(1, -(-len(origins) * series // most))]


@dataclass
class LinearPath:
    """``weights`` ``(look_back, horizon)`` float64, shared by all channels, and a correction across channels."""

    weights: Tensor
    cross: Cross | None = None

    def forecast(self, past: Tensor, mask: Tensor) -> Tensor:
        """``(n, channels, horizon)`` relative to the centre, for float64 ``past`` ``(n, channels, look_back)``.

        Where there is a correction, the channels of the training come first and in their order; it leaves the
        others alone.
        """
        base = past @ self.weights
        if self.cross is not None:
            known = self.cross.weights.shape[1]
            base[:, :known] += self.cross.apply(past[:, :known], mask[:, :known])
        return base

    def tensors(self) -> dict[str, Tensor]:
        """What is saved of it."""
        if self.cross is None:
            return {"linear": self.weights}
        return {"linear": self.weights, "cross_mean": self.cross.mean, "cross_weights": self.cross.weights}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> LinearPath:
        """The inverse of :meth:`tensors`."""
        found = "cross_weights" in tensors
        return cls(tensors["linear"], Cross(tensors["cross_mean"], tensors["cross_weights"]) if found else None)


def fit_linear(
    windows: Windows, plan: Plan, *, channels: bool, penalties: tuple[float, ...] = (0.01, 0.1, 1.0)
) -> tuple[LinearPath, dict[str, Any]]:
    """Fit the linear path on the training block, choosing on rolling folds inside it and on validation.

    Args:
        windows: over the standardised rows before the test block.
        plan: the plan of the table.
        channels: whether a correction across channels may be tried; it is for 2 to 16 channels.
        penalties: tried for the shared ridge, in mean eigenvalues.

    Returns:
        The path, and what was tried.
    """
    horizon, trailing = windows.horizon, plan.trailing
    folds = rolling_folds(plan.train, folds=FOLDS, horizon=horizon)
    moments = _prefixes(windows, plan, [fold[0][1] for fold in folds] + [plan.train[1]])

    def weights(of: ridge.Moments, penalty: float) -> Tensor:
        each = [ridge.solve(of, look_back=length, penalty=penalty) for length in plan.look_backs]
        return torch.stack(each).mean(0)  # the mean of linear maps is a linear map

    rounds: list[tuple[Block, Block]] = [*folds, (plan.train, plan.validation)]
    trials = []
    for penalty in penalties:
        errors = []
        for of, (_, scored) in zip(moments, rounds, strict=True):
            origins = thin(whole(scored, horizon)[:: max(1, horizon // 48)], windows.series, 50_000)
            errors.append(ridge.error(weights(of, penalty), windows, origins, trailing=trailing))
        # Logarithms, so that each round counts alike, and both errors, since the penalty trades one for the other.
        known = [math.log(mse * mae) / 2 for mse, mae in errors if mse > 0]
        score = sum(known) / len(known) if known else 0.0
        trials.append({"penalty": penalty, "score": score, "mse": errors[-1][0], "mae": errors[-1][1]})
    best = min(trials, key=lambda trial: trial["score"])
    path = LinearPath(weights(moments[-1], best["penalty"]))
    facts: dict[str, Any] = {"penalty": best["penalty"], "look_backs": list(plan.look_backs), "trials": trials}

    if channels and 2 <= windows.series <= cross.MOST_CHANNELS:
        bases = [weights(of, best["penalty"]) for of in moments]
        path.cross, facts["cross"] = _fit_cross(windows, rounds, bases, trailing=trailing)
    return path, facts


def refit_linear(windows: Windows, plan: Plan, chosen: dict[str, Any]) -> LinearPath:
    """Fit the path on the training block of ``plan`` with the penalties that :func:`fit_linear` has chosen."""
    moments = _prefixes(windows, plan, [plan.train[1]])[-1]
    each = [ridge.solve(moments, look_back=length, penalty=chosen["penalty"]) for length in chosen["look_backs"]]
    path = LinearPath(torch.stack(each).mean(0))
    kept = [block for block in chosen.get("cross", []) if block["kept"]]
    if kept:
        origins = thin(whole(plan.train, windows.horizon)[::2], windows.series)
        sums = cross.accumulate(windows, path.weights, origins, trailing=plan.trailing)
        for block in kept:
            fitted = cross.solve(sums, channels=windows.series, penalty=block["penalty"])
            if path.cross is None:
                path.cross = Cross(fitted.mean, torch.zeros_like(fitted.weights))
            steps = slice(block["steps"][0] - 1, block["steps"][1])
            path.cross.weights[..., steps] = fitted.weights[..., steps]
    return path


def _prefixes(windows: Windows, plan: Plan, ends: list[int]) -> list[ridge.Moments]:
    """Moments of the training rows up to each end; each window is visited once, since moments add up."""
    horizon = windows.horizon
    stride = max(1, -(-(plan.train[1] - plan.train[0]) * windows.series // MOST_WINDOWS))
    sums: list[ridge.Moments] = []
    start = plan.train[0]
    for end in ends:
        stop = max(start + 1, end - horizon + 1)
        new = ridge.accumulate(windows, torch.arange(start, stop, stride), trailing=plan.trailing)
        sums.append(sums[-1] + new if sums else new)
        start = stop
    return sums


def blocks_of(horizon: int) -> list[tuple[int, int]]:
    """Steps 0 to 6, 6 to 12, 12 to 24 and so on: what holds for the next hours need not hold for next week."""
    edges = [0, 6]
    while edges[-1] < horizon:
        edges.append(edges[-1] * 2)
    return [(first, min(last, horizon)) for first, last in pairwise(edges) if first < horizon]


def _fit_cross(
    windows: Windows, rounds: list[tuple[Block, Block]], bases: list[Tensor], *, trailing: int
) -> tuple[Cross | None, list[dict[str, Any]]]:
    """The correction fitted on the last round's rows, decided for each block of the horizon by all rounds.

    A block takes the penalty whose mean gain over the rounds is largest, if that gain holds up, and else no
    correction.
    """
    horizon, channels = windows.horizon, windows.series
    gains: dict[float, list[Tensor]] = {penalty: [] for penalty in cross.PENALTIES}
    fitted: dict[float, Cross] = {}
    for (train, scored), base in zip(rounds, bases, strict=True):
        # Neighbouring origins share almost everything; every second one halves the time.
        origins = thin(whole(train, horizon)[::2], channels)
        moments = cross.accumulate(windows, base, origins, trailing=trailing)
        fitted = {penalty: cross.solve(moments, channels=channels, penalty=penalty) for penalty in gains}
        origins = thin(whole(scored, horizon)[:: max(1, min(horizon, 48) // 16)], channels, 100_000)
        before, after = _errors(windows, base, fitted, origins, trailing=trailing)
        for penalty, error in after.items():
            gains[penalty].append(1 - error / before)
    chosen: list[dict[str, Any]] = []
    weights = torch.zeros_like(fitted[cross.PENALTIES[0]].weights)
    for number, (first, last) in enumerate(blocks_of(horizon)):
        verdicts = {penalty: judge([float(gain[number]) for gain in each]) for penalty, each in gains.items()}
        penalty = max(verdicts, key=lambda choice: verdicts[choice].mean)
        verdict = verdicts[penalty]
        if verdict.kept:
            weights[..., first:last] = fitted[penalty].weights[..., first:last]
        chosen.append({"steps": [first + 1, last], "penalty": penalty} | asdict(verdict))
    if not bool(weights.any()):
        return None, chosen
    return Cross(fitted[cross.PENALTIES[0]].mean, weights), chosen


def _errors(
    windows: Windows, base: Tensor, corrections: dict[float, Cross], origins: Tensor, *, trailing: int
) -> tuple[Tensor, dict[float, Tensor]]:
    """Squared errors of ``base``, and of ``base`` with each correction, summed over each block of the horizon."""
    blocks = [slice(*block) for block in blocks_of(windows.horizon)]

    def by_block(gap: Tensor) -> Tensor:
        squares = torch.where(torch.isfinite(gap), gap, 0.0).square().sum((0, 1))
        return torch.stack([squares[block].sum() for block in blocks])

    before = torch.zeros(len(blocks), dtype=torch.float64)
    after = {penalty: before.clone() for penalty in corrections}
    for part in origins.split(256):
        past, future = windows.every_series(part)
        z, mask, level = centre(past.double(), trailing)
        gap = z @ base + level - future.double()
        before += by_block(gap)
        for penalty, correction in corrections.items():
            after[penalty] += by_block(gap + correction.apply(z, mask))
    return before, after
