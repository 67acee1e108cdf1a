"""The whole linear path of a model: the shared ridge, and the correction across channels where folds confirm it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import cross, ridge
from .cross import Cross
from .plan import Plan
from .selection import Block, Verdict, judge, rolling_folds
from .windows import Windows, centre

__all__ = ["LinearPath", "fit_linear", "thin", "whole"]

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
    validation = thin(whole(plan.validation, horizon), windows.series)
    folds = rolling_folds(plan.train, folds=FOLDS, horizon=horizon)
    moments = _prefixes(windows, plan, [fold[0][1] for fold in folds] + [plan.train[1]])

    def weights(of: ridge.Moments, penalty: float) -> Tensor:
        each = [ridge.solve(of, look_back=length, penalty=penalty) for length in plan.look_backs]
        return torch.stack(each).mean(0)  # the mean of linear maps is a linear map

    trials = [
        {"penalty": penalty, "mse": ridge.error(weights(moments[-1], penalty), windows, validation, trailing=trailing)}
        for penalty in penalties
    ]
    # NaN, where validation holds no value, loses to every number.
    best = min(trials, key=lambda trial: trial["mse"] if trial["mse"] == trial["mse"] else float("inf"))
    path = LinearPath(weights(moments[-1], best["penalty"]))
    facts: dict[str, Any] = {"penalty": best["penalty"], "look_backs": list(plan.look_backs), "trials": trials}

    if channels and 2 <= windows.series <= cross.MOST_CHANNELS:
        rounds: list[tuple[Block, Block]] = [*folds, (plan.train, plan.validation)]
        bases = [weights(of, best["penalty"]) for of in moments]
        found, verdict, penalty = _fit_cross(windows, rounds, bases, trailing=trailing)
        facts["cross"] = {"kept": verdict.kept, "penalty": penalty, "gains": list(verdict.gains)}
        facts["cross"] |= {"mean": verdict.mean, "standard_error": verdict.standard_error}
        if verdict.kept:
            path.cross = found
    return path, facts


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


def _fit_cross(
    windows: Windows, rounds: list[tuple[Block, Block]], bases: list[Tensor], *, trailing: int
) -> tuple[Cross, Verdict, float]:
    """The correction fitted on the last round's rows, with the penalty whose mean gain over all rounds is largest."""
    horizon, channels = windows.horizon, windows.series
    gains: dict[float, list[float]] = {penalty: [] for penalty in cross.PENALTIES}
    fitted: dict[float, Cross] = {}
    for (train, scored), base in zip(rounds, bases, strict=True):
        # Neighbouring origins share almost everything; every second one halves the time.
        origins = thin(whole(train, horizon)[::2], channels)
        moments = cross.accumulate(windows, base, origins, trailing=trailing)
        fitted = {penalty: cross.solve(moments, channels=channels, penalty=penalty) for penalty in gains}
        origins = thin(whole(scored, horizon)[:: max(1, horizon // 16)], channels, 100_000)
        before, after = _errors(windows, base, fitted, origins, trailing=trailing)
        for penalty, error in after.items():
            gains[penalty].append(1 - error / before if before > 0 else float("nan"))
    verdicts = {penalty: judge(each) for penalty, each in gains.items()}
    penalty = max(verdicts, key=lambda choice: verdicts[choice].mean)
    return fitted[penalty], verdicts[penalty], penalty


def _errors(
    windows: Windows, base: Tensor, corrections: dict[float, Cross], origins: Tensor, *, trailing: int
) -> tuple[float, dict[float, float]]:
    """Mean squared error of ``base`` and of ``base`` with each correction, over the observed targets."""
    count, before = 0, 0.0
    after = dict.fromkeys(corrections, 0.0)
    for part in origins.split(256):
        past, future = windows.every_series(part)
        z, mask, level = centre(past.double(), trailing)
        gap = z @ base + level - future.double()
        known = torch.isfinite(gap)
        count += int(known.sum())
        before += float(gap[known].square().sum())
        for penalty, correction in corrections.items():
            after[penalty] += float((gap + correction.apply(z, mask))[known].square().sum())
    count = max(count, 1)
    return before / count, {penalty: total / count for penalty, total in after.items()}
