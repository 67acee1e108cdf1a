"""The whole linear path of a model: the shared ridge, and what is added to it where rolling folds confirm it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import cross, drivers, ridge
from .cross import Cross
from .drivers import CovariateTable, Drivers
from .plan import Plan
from .selection import Block, judge, rolling_folds
from .windows import Windows, centre

__all__ = ["FOLDS", "LinearPath", "fit_linear", "fit_rounds", "refit_linear", "rounds_of", "thin", "whole"]

MOST_WINDOWS = 400_000  # windows that the closed form looks at; beyond them origins are skipped evenly
MOST_SCORED = 4096  # windows of a round that the shape of the ridge is chosen on
FOLDS = 3
PENALTIES = (0.01, 0.1, 0.3, 1.0)
SHARE = 0.6  # of the seasonal mean that the weights may shrink to
RANK = 24  # patterns over the horizon
LARGEST = 2048  # rows of look-back and horizon up to which more than the penalty is tried
REVERSION = 3.0  # the penalty of the reversion, in units of the level's variance


def whole(block: Block, horizon: int) -> Tensor:
    """The origins of a block whose first ``horizon`` future rows lie inside it; at least one."""
    return torch.arange(block[0], max(block[0] + 1, block[1] - horizon + 1))


def thin(origins: Tensor, series: int, most: int = MOST_WINDOWS) -> Tensor:
    """Every n-th origin, so that origins times series stays within ``most``."""
    return origins[:: max(1, -(-len(origins) * series // most))]


@dataclass
class LinearPath:
    """Weights that all channels share, and what is added to them.

    Attributes:
        weights: ``(look_back, horizon)`` float64.
        cross: a correction across channels.
        reversion: ``(horizon,)`` float64, how far each step returns from the window's centre to the mean of the
            training rows, as a share of the way and negative.
        drivers: what covariates that are known ahead add.
    """

    weights: Tensor
    cross: Cross | None = None
    reversion: Tensor | None = None
    drivers: Drivers | None = None

    def forecast(
        self,
        past: Tensor,
        mask: Tensor,
        level: Tensor | None = None,
        *,
        covariates: CovariateTable | None = None,
        origins: Tensor | None = None,
        who: Tensor | None = None,
    ) -> Tensor:
        """``(n, channels, horizon)`` relative to the centre, for float64 ``past`` ``(n, channels, look_back)``.

        Where there is a correction, the channels of the training come first and in their order; it leaves the
        others alone. ``level`` ``(n, channels, 1)`` is the centre in standardised units, which a reversion needs.
        With covariates ``origins`` ``(n,)`` say where the windows are in their table, and ``who`` ``(channels,)`` or
        ``(n, channels)`` whose they are: identities, 0 for a series that training did not know.
        """
        base = past @ self.weights
        if self.reversion is not None:
            if level is None:
                raise ValueError("level is needed: this path returns to the mean")
            base = base + level * self.reversion
        if covariates is not None and origins is not None and who is not None:
            if self.drivers is not None:
                base = base + self.driven(covariates, origins, who)
            if self.cross is not None and self.cross.each:
                return base + self.cross.apply_each(covariates, origins, who)
        if self.cross is not None:
            known = self.cross.weights.shape[1]
            base[:, :known] += self.cross.apply(past[:, :known], mask[:, :known], covariates, origins)
        return base

    def driven(self, covariates: CovariateTable, origins: Tensor, who: Tensor) -> Tensor:
        """What the drivers add to the forecasts of the series ``who`` at ``origins``, ``(n, channels, horizon)``."""
        if self.drivers is None:
            return torch.zeros(1, 1, self.weights.shape[1], dtype=self.weights.dtype)
        use = (self.drivers.weights != 0).any(0).any(0)
        innovations = covariates.innovations(origins, self.weights, self.reversion, use)
        return self.drivers.apply(innovations, who, blocks_of(self.weights.shape[1]))

    def tensors(self) -> dict[str, Tensor]:
        """What is saved of it."""
        found = {"linear": self.weights}
        if self.cross is not None:
            found |= {"cross_mean": self.cross.mean, "cross_weights": self.cross.weights}
            if self.cross.each:
                found["cross_each"] = torch.tensor(True)
        if self.reversion is not None:
            found["reversion"] = self.reversion
        if self.drivers is not None:
            found["drivers"] = self.drivers.weights
        return found

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> LinearPath:
        """The inverse of :meth:`tensors`."""
        found = "cross_weights" in tensors
        correction = Cross(tensors["cross_mean"], tensors["cross_weights"], "cross_each" in tensors) if found else None
        driven = Drivers(tensors["drivers"]) if "drivers" in tensors else None
        return cls(tensors["linear"], correction, tensors.get("reversion"), driven)


@dataclass(frozen=True)
class Shape:
    """How the shared ridge is regularised; see :func:`mha_apps.forecast.ridge.solve`."""

    penalty: float
    share: float = 0.0
    rank: int | None = None


def solve_mean(moments: ridge.Moments, plan: Plan, shape: Shape) -> Tensor:
    """The mean of the ridges of all look-backs, ``(look_back, horizon)``: the mean of linear maps is a linear map."""
    horizon = moments.cross.shape[1]
    total = torch.zeros_like(moments.cross)
    for length in plan.look_backs:
        pull = ridge.seasonal_pull(length, horizon, plan.period, shape.share) if shape.share else None
        total += ridge.solve(
            moments, look_back=length, penalty=shape.penalty, unit=plan.trailing, pull=pull, rank=shape.rank
        )
    return total / len(plan.look_backs)


def rounds_of(plan: Plan, horizon: int) -> list[tuple[Block, Block]]:
    """What a choice is made on, as rows to train on and rows to score on: rolling folds, and validation last."""
    return [*rolling_folds(plan.train, folds=FOLDS, horizon=horizon), (plan.train, plan.validation)]


def fit_linear(
    windows: Windows,
    plan: Plan,
    *,
    channels: bool,
    penalties: tuple[float, ...] = PENALTIES,
    covariates: CovariateTable | None = None,
) -> tuple[LinearPath, dict[str, Any]]:
    """The last path of :func:`fit_rounds`, that of the whole training block, and what was tried."""
    paths, facts = fit_rounds(windows, plan, channels=channels, penalties=penalties, covariates=covariates)
    return paths[-1], facts


def fit_rounds(
    windows: Windows,
    plan: Plan,
    *,
    channels: bool,
    penalties: tuple[float, ...] = PENALTIES,
    covariates: CovariateTable | None = None,
) -> tuple[list[LinearPath], dict[str, Any]]:
    """Fit the linear path in every round of :func:`rounds_of`, all with what the rounds together have chosen.

    Args:
        windows: over the standardised rows before the test block.
        plan: the plan of the table.
        channels: whether a correction across channels may be tried; it is for 2 to 16 channels. One from covariates
            is tried in any case.
        penalties: tried for the shared ridge, in mean eigenvalues.
        covariates: of the table, if there are any.

    Returns:
        The path of each round, and what was tried.
    """
    horizon, trailing = windows.horizon, plan.trailing
    rounds = rounds_of(plan, horizon)
    moments = _prefixes(windows, plan, [train[1] for train, _ in rounds])

    shapes = [Shape(penalty) for penalty in penalties]
    if max(plan.look_back, horizon) <= LARGEST:
        shares = (0.0, SHARE) if plan.period > 1 else (0.0,)
        ranks = (None, RANK) if horizon > 2 * RANK else (None,)
        shapes = [Shape(*each) for each in product(penalties, shares, ranks)]
    errors = {shape: [] for shape in shapes}  # type: dict[Shape, list[tuple[float, float]]]
    for of, (_, scored) in zip(moments, rounds, strict=True):
        past, future = _scored(windows, scored, trailing)
        for shape in shapes:
            errors[shape].append(_error(past @ solve_mean(of, plan, shape), future))
    trials = []
    for shape, each in errors.items():
        # Logarithms, so that each round counts alike, and both errors, since a penalty trades one for the other.
        known = [math.log(mse * mae) / 2 for mse, mae in each if mse > 0]
        score = sum(known) / len(known) if known else 0.0
        trials.append(asdict(shape) | {"score": score, "mse": each[-1][0], "mae": each[-1][1]})
    best = shapes[min(range(len(shapes)), key=lambda number: trials[number]["score"])]
    bases = [solve_mean(of, plan, best) for of in moments]
    paths = [LinearPath(base) for base in bases]
    facts: dict[str, Any] = asdict(best) | {"look_backs": list(plan.look_backs), "trials": trials}

    reversions, facts["reversion"] = _fit_reversion(windows, rounds, bases, trailing=trailing)
    if facts["reversion"]["kept"]:
        for path, reversion in zip(paths, reversions, strict=True):
            path.reversion = reversion
    if covariates is not None and covariates.drivers.series:
        facts["drivers"] = _fit_drivers(windows, rounds, paths, covariates, trailing=trailing)
    helped = channels and 2 <= windows.series <= cross.MOST_CHANNELS
    columns = covariates.columns if covariates is not None else 0
    # A series alone is one of its own channels; each of several may be helped by the covariates alone.
    alone = not helped and windows.series > 1
    weights = windows.series * horizon * columns * len(cross.stretches(plan.look_back))
    if helped or (columns and (not alone or weights <= cross.MOST_EACH)):
        facts["cross"] = _fit_cross(windows, rounds, paths, trailing=trailing, covariates=covariates, each=alone)
        facts |= {"cross_each": True} if alone else {}
    return paths, facts


def refit_linear(
    windows: Windows, plan: Plan, chosen: dict[str, Any], covariates: CovariateTable | None = None
) -> LinearPath:
    """Fit the path on the training block of ``plan`` with what :func:`fit_linear` has chosen."""
    moments = _prefixes(windows, plan, [plan.train[1]])[-1]
    shape = Shape(chosen["penalty"], chosen.get("share", 0.0), chosen.get("rank"))
    path = LinearPath(solve_mean(moments, plan, shape))
    if chosen.get("reversion", {}).get("kept"):
        # The centre stays the scaler's, which the model keeps.
        nothing = np.zeros(windows.series)
        path.reversion = _reversion(windows, plan.train, path.weights, nothing, trailing=plan.trailing)
    blocks = chosen.get("drivers", [])
    if covariates is not None and any(block["kept"] for block in blocks):
        moments_of_drivers = _driver_moments(windows, plan.train, path, covariates, trailing=plan.trailing)
        path.drivers = drivers.refit(moments_of_drivers, covariates, blocks)
    blocks = chosen.get("cross", [])
    if any(block["kept"] for block in blocks):
        origins = thin(whole(plan.train, windows.horizon)[::2], _channels(windows, covariates))
        alone = chosen.get("cross_each", False)
        sums = _cross_moments(windows, path, origins, covariates, trailing=plan.trailing, each=alone)
        path.cross = _joined(lambda penalty: cross.solve(sums, channels=windows.series, penalty=penalty), blocks)
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


def _scored(windows: Windows, block: Block, trailing: int) -> tuple[Tensor, Tensor]:
    """Windows of a block to choose on: centred pasts, and futures relative to the centre, NaN after the block's end.

    Origins near the end count with the steps that they have left, since a block may be hardly longer than a horizon.
    """
    size = windows.look_back + windows.horizon
    most = max(16, min(MOST_SCORED, 20_000_000 // size))
    origins = thin(torch.arange(block[0], max(block[0] + 1, block[1] - 1)), windows.series, most)
    if len(origins) * windows.series > most:  # more series than windows
        series = torch.arange(0, windows.series, -(-windows.series // most))
    else:
        series = torch.arange(windows.series)
    batch = windows.at(series[:, None].expand(-1, len(origins)), origins.expand(len(series), -1))
    past, _, level = centre(batch.past.double().flatten(0, 1), trailing)
    future = batch.future.double().flatten(0, 1) - level
    ahead = batch.origin.flatten()[:, None] + torch.arange(windows.horizon)
    return past, torch.where(ahead < block[1], future, torch.nan)


def _error(forecast: Tensor, future: Tensor) -> tuple[float, float]:
    gap = forecast - future
    gap = gap[torch.isfinite(gap)]
    return (float(gap.square().mean()), float(gap.abs().mean())) if gap.numel() else (math.nan, math.nan)


def blocks_of(horizon: int) -> list[tuple[int, int]]:
    """Steps 0 to 6, 6 to 12, 12 to 24 and so on: what holds for the next hours need not hold for next week."""
    edges = [0, 6]
    while edges[-1] < horizon:
        edges.append(edges[-1] * 2)
    return [(first, min(last, horizon)) for first, last in pairwise(edges) if first < horizon]


def _levels(
    windows: Windows, block: Block, base: Tensor, mean: np.ndarray, *, trailing: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Centres as distances from ``mean`` ``(series,)``, ``(n, 1)``, and what ``base`` leaves over, ``(n, horizon)``."""
    middle = torch.from_numpy(mean)
    for batch in windows.chunks(thin(whole(block, windows.horizon)[::2], windows.series, 50_000), size=4096):
        past, mask, level = centre(batch.past.double(), trailing)
        keep = mask.mean(-1) >= ridge.OBSERVED
        residual = batch.future.double() - level - past @ base
        yield (level - middle[batch.series][:, None])[keep], residual[keep]


def _reversion(windows: Windows, block: Block, base: Tensor, mean: np.ndarray, *, trailing: int) -> Tensor:
    """The regression of what ``base`` leaves over on the distance of the centre from ``mean``, ``(horizon,)``."""
    product = torch.zeros(windows.horizon, dtype=torch.float64)
    power = torch.zeros(windows.horizon, dtype=torch.float64)
    for distance, residual in _levels(windows, block, base, mean, trailing=trailing):
        known = torch.isfinite(residual)
        product += (distance * torch.where(known, residual, 0.0)).sum(0)
        power += (distance.square() * known).sum(0)
    return product / (power * (1 + REVERSION)).clamp_min(1e-12)


def _fit_reversion(
    windows: Windows, rounds: list[tuple[Block, Block]], bases: list[Tensor], *, trailing: int
) -> tuple[list[Tensor], dict[str, Any]]:
    """The return to the mean fitted in each round, and whether all rounds confirm that it helps.

    The mean is that of the round's own training rows: later ones must not tell where a series will return to.
    """
    values = windows.table[:, windows.look_back : windows.look_back + windows.rows]
    gains, found = [], []
    for (train, scored), base in zip(rounds, bases, strict=True):
        mean = np.nan_to_num(values[:, train[0] : train[1]].double().nanmean(1).numpy())
        found.append(_reversion(windows, train, base, mean, trailing=trailing))
        before = after = 0.0
        for distance, residual in _levels(windows, scored, base, mean, trailing=trailing):
            before += float(residual.square().nansum())
            after += float((residual - distance * found[-1]).square().nansum())
        gains.append(1 - after / before if before else math.nan)
    return found, asdict(judge(gains))


def _channels(windows: Windows, covariates: CovariateTable | None) -> int:
    """How many windows an origin costs."""
    return windows.series + (covariates.covariates + covariates.drivers.series if covariates is not None else 0)


def _driver_moments(
    windows: Windows, block: Block, path: LinearPath, covariates: CovariateTable, *, trailing: int
) -> drivers.DriverMoments:
    origins = thin(whole(block, windows.horizon), _channels(windows, covariates), drivers.MOST_WINDOWS)
    return drivers.accumulate(
        windows, covariates, path.weights, origins, blocks_of(windows.horizon), trailing=trailing,
        reversion=path.reversion,
    )  # fmt: skip


def _fit_drivers(
    windows: Windows,
    rounds: list[tuple[Block, Block]],
    paths: list[LinearPath],
    covariates: CovariateTable,
    *,
    trailing: int,
) -> list[dict[str, Any]]:
    """Give each path the drivers fitted on its round's rows, decided for each block of the horizon by all rounds."""
    trained, scored = [], []
    for (train, held), path in zip(rounds, paths, strict=True):
        trained.append(_driver_moments(windows, train, path, covariates, trailing=trailing))
        scored.append(_driver_moments(windows, held, path, covariates, trailing=trailing))
    found, facts = drivers.choose(trained, scored, covariates, blocks_of(windows.horizon))
    for path, each in zip(paths, found, strict=True):
        path.drivers = each
    return facts


def _cross_moments(
    windows: Windows, path: LinearPath, origins: Tensor, covariates: CovariateTable | None, *, trailing: int, each: bool
) -> cross.CrossMoments:
    def driven(part: Tensor) -> Tensor:
        assert covariates is not None
        return path.driven(covariates, part, torch.arange(1, windows.series + 1))

    return cross.accumulate(
        windows, path.weights, origins, trailing=trailing, reversion=path.reversion, covariates=covariates,
        driven=driven if path.drivers is not None else None, each=each,
    )  # fmt: skip


def _fit_cross(
    windows: Windows,
    rounds: list[tuple[Block, Block]],
    paths: list[LinearPath],
    *,
    trailing: int,
    covariates: CovariateTable | None = None,
    each: bool = False,
) -> list[dict[str, Any]]:
    """Give each path the correction fitted on its round's rows, decided for each block of the horizon by all rounds.

    A block takes the penalty whose mean gain over the rounds is largest, if that gain holds up, and else no
    correction. Returns what was decided for each block.
    """
    horizon, channels = windows.horizon, windows.series
    gains: dict[float, list[Tensor]] = {penalty: [] for penalty in cross.PENALTIES}
    fitted: list[dict[float, Cross]] = []
    for (train, scored), path in zip(rounds, paths, strict=True):
        # Neighbouring origins share almost everything; every second one halves the time.
        origins = thin(whole(train, horizon)[::2], _channels(windows, covariates))
        moments = _cross_moments(windows, path, origins, covariates, trailing=trailing, each=each)
        fitted.append({penalty: cross.solve(moments, channels=channels, penalty=penalty) for penalty in gains})
        origins = whole(scored, horizon)[:: max(1, min(horizon, 48) // 16)]
        origins = thin(origins, _channels(windows, covariates), 100_000)
        before, after = _errors(windows, path, fitted[-1], origins, trailing=trailing, covariates=covariates)
        for penalty, error in after.items():
            gains[penalty].append(1 - error / before)
    chosen: list[dict[str, Any]] = []
    for number, (first, last) in enumerate(blocks_of(horizon)):
        verdicts = {penalty: judge([float(gain[number]) for gain in each]) for penalty, each in gains.items()}
        penalty = max(verdicts, key=lambda choice: verdicts[choice].mean)
        chosen.append({"steps": [first + 1, last], "penalty": penalty} | asdict(verdicts[penalty]))
    for path, corrections in zip(paths, fitted, strict=True):
        path.cross = _joined(corrections.__getitem__, chosen)
    return chosen


def _joined(fitted: Callable[[float], Cross], chosen: list[dict[str, Any]]) -> Cross | None:
    """The correction by penalty, joined from what was chosen for each block of the horizon; None if nothing was."""
    joined: Cross | None = None
    for block in chosen:
        if block["kept"]:
            found = fitted(block["penalty"])
            joined = joined or Cross(found.mean, torch.zeros_like(found.weights), found.each)
            steps = slice(block["steps"][0] - 1, block["steps"][1])
            joined.weights[..., steps] = found.weights[..., steps]
    return joined


def _errors(
    windows: Windows,
    path: LinearPath,
    corrections: dict[float, Cross],
    origins: Tensor,
    *,
    trailing: int,
    covariates: CovariateTable | None = None,
) -> tuple[Tensor, dict[float, Tensor]]:
    """Squared errors of ``path``, and of it with each correction, summed over each block of the horizon."""
    blocks = [slice(*block) for block in blocks_of(windows.horizon)]

    def by_block(gap: Tensor) -> Tensor:
        squares = torch.where(torch.isfinite(gap), gap, 0.0).square().sum((0, 1))
        return torch.stack([squares[block].sum() for block in blocks])

    before = torch.zeros(len(blocks), dtype=torch.float64)
    after = {penalty: before.clone() for penalty in corrections}
    for part in origins.split(max(1, min(256, cross.CHUNK // windows.series))):
        past, future = windows.every_series(part)
        z, mask, level = centre(past.double(), trailing)
        who = torch.arange(1, windows.series + 1)
        forecast = path.forecast(z, mask, level, covariates=covariates, origins=part, who=who)
        gap = forecast + level - future.double()
        before += by_block(gap)
        for penalty, correction in corrections.items():
            after[penalty] += by_block(gap + correction.apply(z, mask, covariates, part))
    return before, after
