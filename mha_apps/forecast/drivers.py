"""What covariates add to the linear path: a regression of what it leaves over on what they do that nobody expected.

The shared ridge is a linear map of a centred window, so the same map forecasts a covariate. The part of the covariate
that this forecast misses, its innovation, is what the target's own past cannot have told. Regressing the residuals of
the targets on the innovations gives the weights that a regression on window and covariate together would give
(Frisch and Waugh 1933, Lovell 1963), and where a covariate is what its past said, nothing is added.

A driver is a covariate as it is, as it was in stretches of earlier rows, beyond a quantile, or at an hour of the day:
each is a covariate of its own with its own innovations, so effects that come late, that bend, and that the clock
changes are linear in them. Drivers take part where rolling folds say that they help, as every component does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .selection import Block, judge
from .windows import Windows, centre

__all__ = [
    "CovariateTable",
    "DriverMoments",
    "Drivers",
    "accumulate",
    "choose",
    "count_drivers",
    "find_knots",
    "refit",
    "solve",
]

STRETCHES = ((0, 1), (1, 2), (2, 3), (3, 6), (6, 12), (12, 24))  # rows before the step, from and to
LATEST = STRETCHES[-1][1]
"""Rows before a window that its drivers look back to."""
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
PENALTIES = (0.001, 0.01, 0.1, 1.0)
SHARED = 10.0  # one more for several series: what a penalty shrinks to is what all of them say
SHAPES = ("straight", "bent")
MOST_BRIDGED = 3  # rows of a gap that are taken as lying on the line between its ends
MOST_WINDOWS = 400_000  # windows of drivers and of targets in a round
MOST_GRAM = 20_000_000  # numbers in the products of each series; beyond them all series share one
CHUNK = 4096  # windows of drivers at a time


def find_knots(values: np.ndarray) -> np.ndarray:
    """Where the effect of each covariate ``(rows, covariates)`` may bend: ``(covariates, 5)``, NaN where nowhere.

    Quantiles of the observed values, those at the least and the most and doubles left out: what is 0 or 1 has none.
    """
    knots = np.full((values.shape[1], len(QUANTILES)), np.nan)
    for number, column in enumerate(values.T):
        observed = column[np.isfinite(column)]
        if len(observed):
            found = np.unique(np.quantile(observed, QUANTILES))
            found = found[(found > observed.min()) & (found < observed.max())]
            knots[number, : len(found)] = found
    return knots


def _earlier(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Means over the rows ``first`` to ``last`` before each row of ``(rows, columns)``; NaN where none is observed."""
    observed = np.isfinite(values)

    def sums(table: np.ndarray) -> np.ndarray:
        total = np.vstack([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
        row = np.arange(len(table)) + 1
        return total[np.maximum(row - first, 0)] - total[np.maximum(row - last, 0)]

    count = sums(observed.astype(np.float64))
    return np.where(count > 0, sums(np.where(observed, values, 0.0)) / np.maximum(count, 1.0), np.nan)


def _bridged(values: np.ndarray) -> np.ndarray:
    """``(rows, columns)`` with gaps of up to ``MOST_BRIDGED`` rows between two values as the line between them.

    For the drivers alone: what the map forecasts from a window in which the latest rows are zero means nothing.
    """
    answer = values.copy()
    for column in answer.T:
        known, missing = np.flatnonzero(np.isfinite(column)), np.flatnonzero(~np.isfinite(column))
        after = np.searchsorted(known, missing)
        inside = (after > 0) & (after < len(known))
        missing, after = missing[inside], after[inside]
        missing = missing[known[after] - known[after - 1] - 1 <= MOST_BRIDGED]
        if len(missing):
            column[missing] = np.interp(missing, known, column[known])
    return answer


def count_drivers(knots: Tensor, waves: int) -> int:
    """How many drivers a table with ``knots`` ``(known ones, 5)`` has, ``waves`` of them per covariate by the clock."""
    return len(knots) * (len(STRETCHES) + waves) + int(torch.isfinite(knots).sum())


class CovariateTable:
    """The covariates along the rows of a table, and the drivers made of those that are known ahead.

    Args:
        values: ``(rows + horizon, covariates)``, standardised, NaN where unknown; the last rows are those to come.
        known: for each covariate whether it is known for the horizon; those that are not come first.
        columns: how many of the covariates are columns of the data; holidays, which come last, are not.
        knots: ``(known ones, 5)``, where their effects may bend.
        waves: cosine and sine of the time of day ``(rows + horizon, 2)``; None where a row is a day or longer.
        look_back, horizon, trailing: of the windows.
    """

    def __init__(
        self,
        values: np.ndarray,
        *,
        known: Sequence[bool],
        columns: int,
        knots: np.ndarray,
        waves: np.ndarray | None,
        look_back: int,
        horizon: int,
        trailing: int,
    ) -> None:
        rows = len(values) - horizon
        self.known, self.columns, self.trailing = torch.tensor(known), columns, trailing
        self.windows = Windows(values[:rows], look_back=look_back, horizon=horizon, after=values[rows:])
        ahead = _bridged(values[:, np.asarray(known, dtype=bool)])
        parts, owners, bent = [], [], []
        place = np.flatnonzero(known)
        for first, last in STRETCHES:
            parts.append(_earlier(ahead, first, last) if last > 1 else ahead)
            owners.append(place)
            bent.append(np.zeros(len(place), dtype=bool))
        for knot in knots.T:
            there = np.isfinite(knot)
            parts.append(np.maximum(ahead[:, there] - knot[there], 0.0) + 0.0 * ahead[:, there])
            owners.append(place[there])
            bent.append(np.ones(int(there.sum()), dtype=bool))
        for wave in waves.T if waves is not None else ():
            parts.append(ahead * wave[:, None])
            owners.append(place)
            bent.append(np.ones(len(place), dtype=bool))
        drivers = np.concatenate([part.astype(np.float32) for part in parts], 1)
        self.owners = torch.from_numpy(np.concatenate(owners))
        self.bent = torch.from_numpy(np.concatenate(bent))
        self.drivers = Windows(drivers[:rows], look_back=look_back, horizon=horizon, after=drivers[rows:])
        gaps = (~torch.isfinite(self.drivers.table)).int().cumsum(1, dtype=torch.int32)
        self.gaps = torch.nn.functional.pad(gaps, (1, 0))  # missing values before each padded row
        self.hidden: int | None = None

    @property
    def covariates(self) -> int:
        return len(self.known)

    def without(self, covariate: int) -> CovariateTable:
        """The same as if one covariate were not known: a future one is what its past says, a past one is missing."""
        other = object.__new__(CovariateTable)
        other.__dict__ = self.__dict__ | {"hidden": covariate}
        return other

    def past(self, origins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centred pasts, masks ``(n, covariates, look_back)`` and centres ``(n, covariates, 1)`` in float64."""
        return centre(self.seen(origins).double(), self.trailing)

    def seen(self, origins: Tensor, rows: int | None = None) -> Tensor:
        """The last ``rows`` rows before the origins ``(n, covariates, rows)``, a look-back when None; NaN: missing."""
        past = self.windows.steps(origins, -(self.windows.look_back if rows is None else rows), 0)
        if self.hidden is not None and not bool(self.known[self.hidden]):
            past[:, self.hidden] = torch.nan
        return past

    def innovations(
        self, origins: Tensor, weights: Tensor, reversion: Tensor | None = None, use: Tensor | None = None
    ) -> Tensor:
        """What drivers do beyond the linear path's forecast, ``(n, drivers, horizon)`` in the dtype of ``weights``.

        Zero where a driver is unknown, or was unknown in any of the last rows before the origin or in half of those
        that windows are centred on: the forecast is then what it would be without it.

        Args:
            origins: ``(n,)``.
            weights: ``(look_back, horizon)``, the map.
            reversion: ``(horizon,)``, its share of the centre.
            use: which drivers are needed ``(drivers,)``; the others are left zero. All when None.
        """
        kind, look_back = weights.dtype, self.windows.look_back
        wanted = torch.ones_like(self.bent) if use is None else use.clone()
        if self.hidden is not None:
            wanted &= self.owners != self.hidden
        numbers = torch.nonzero(wanted)[:, 0]
        share = 1 - weights.sum(0) + (0 if reversion is None else reversion.to(kind))
        answer = torch.zeros(len(origins), self.drivers.series, self.drivers.horizon, dtype=kind)
        for part in torch.arange(len(origins)).split(max(1, CHUNK // max(len(numbers), 1))):
            both = self.drivers.at(numbers[None, :], origins[part, None])
            past, future = both.past.to(kind), both.future.to(kind)
            gaps = self.gaps[numbers][:, origins[part] + look_back] - self.gaps[numbers][:, origins[part]]
            if bool((gaps == 0).all()):  # nothing is missing: the centre is a sum, and need not be taken away first
                level = past[..., -self.trailing :].mean(-1, keepdim=True)
                expected = past @ weights + level * share
            else:
                z, _, level = centre(past, self.trailing)
                expected = z @ weights + level * (share + weights.sum(0))
            found = torch.where(torch.isfinite(future), future - expected, 0.0)
            if bool((gaps > 0).any()):
                observed = torch.isfinite(past)
                lately = observed[..., -MOST_BRIDGED:].all(-1)
                lately &= observed[..., -self.trailing :].to(kind).mean(-1) >= 0.5
                found = torch.where(lately[..., None], found, 0.0)
            answer[part[:, None], numbers] = found
        return answer

    def ahead(self, origins: Tensor, weights: Tensor) -> Tensor:
        """The covariates at the steps of the horizon ``(n, covariates, horizon)``, NaN where they are not known.

        One that is hidden is there as the linear map ``weights`` forecasts it.
        """
        future = torch.where(self.known[:, None], self.windows.steps(origins, 0, self.windows.horizon), torch.nan)
        if self.hidden is not None and bool(self.known[self.hidden]):
            z, _, level = centre(self.seen(origins)[:, self.hidden].double(), self.trailing)
            future[:, self.hidden] = (z @ weights + level).to(future.dtype)
        return future


@dataclass
class Drivers:
    """``weights`` ``(series + 1, blocks, drivers)`` float32; row 0 is for a series that training did not know."""

    weights: Tensor

    def apply(self, innovations: Tensor, who: Tensor, blocks: Sequence[Block]) -> Tensor:
        """What is added ``(n, channels, horizon)``.

        Args:
            innovations: ``(n, drivers, horizon)``.
            who: identities of the series ``(channels,)`` or ``(n, channels)``, 0 for an unknown one.
            blocks: of the horizon, first step and the one after the last.
        """
        weights = self.weights.to(innovations.dtype)
        parts = []
        for number, (first, last) in enumerate(blocks):
            own = weights[who, number]  # (channels, drivers) or (n, channels, drivers)
            parts.append(own @ innovations[..., first:last])
        return torch.cat(parts, -1)


@dataclass
class DriverMoments:
    """Sums of products over origins and the steps of each block.

    Attributes:
        gram: ``(series, blocks, drivers, drivers)``, or one for all series in which the share of the observed targets
            is not seen.
        cross: ``(series, blocks, drivers)``, with the residuals.
        square: ``(series, blocks)``, of the residuals.
        count: ``(series, blocks)``, observed targets.
        steps: ``(blocks,)``, steps that went in, observed or not.
    """

    gram: Tensor
    cross: Tensor
    square: Tensor
    count: Tensor
    steps: Tensor


@torch.no_grad()
def accumulate(
    windows: Windows,
    table: CovariateTable,
    base: Tensor,
    origins: Tensor,
    blocks: Sequence[Block],
    *,
    trailing: int,
    reversion: Tensor | None = None,
) -> DriverMoments:
    """Moments of the innovations and of what ``base`` ``(look_back, horizon)`` leaves over, at ``origins``."""
    series, count = windows.series, table.drivers.series
    own = series if series * len(blocks) * count**2 <= MOST_GRAM else 1
    sums = DriverMoments(
        gram=torch.zeros(own, len(blocks), count, count, dtype=torch.float64),
        cross=torch.zeros(series, len(blocks), count, dtype=torch.float64),
        square=torch.zeros(series, len(blocks), dtype=torch.float64),
        count=torch.zeros(series, len(blocks), dtype=torch.float64),
        steps=torch.zeros(len(blocks), dtype=torch.float64),
    )
    for part in origins.split(max(1, CHUNK // max(series, count))):
        past, future = windows.every_series(part)
        z, _, level = centre(past.float(), trailing)
        forecast = z @ base.float() + level
        if reversion is not None:
            forecast += level * reversion.float()
        known = torch.isfinite(future)
        residual = torch.where(known, future - forecast, 0.0).double()
        innovations = table.innovations(part, base.float(), reversion).double()
        for number, (first, last) in enumerate(blocks):
            e = innovations[..., first:last].transpose(0, 1).flatten(1)  # (drivers, n * steps)
            r = residual[..., first:last].transpose(0, 1).flatten(1)
            k = known[..., first:last].transpose(0, 1).flatten(1)
            whole = e @ e.T
            sums.gram[:, number] += whole
            if own == series:
                for lacking in torch.nonzero(~k.all(1))[:, 0].tolist():
                    gone = e[:, ~k[lacking]]
                    sums.gram[lacking, number] -= gone @ gone.T
            sums.cross[:, number] += r @ e.T
            sums.square[:, number] += r.square().sum(1)
            sums.count[:, number] += k.sum(1)
            sums.steps[number] += e.shape[1]
    return sums


def solve(moments: DriverMoments, *, penalty: float, use: Tensor) -> Tensor:
    """Weights ``(series + 1, blocks, drivers)`` of the drivers for which ``use`` is True; the others are zero.

    Row 0 is what all series say together, with as many times less penalty as there are series; the weights of a series
    are shrunk to it. The penalty is a multiple of each innovation's variance, so the unit of a covariate does not
    matter.
    """
    series = len(moments.cross)
    weights = torch.zeros(series + 1, *moments.cross.shape[1:], dtype=torch.float64)
    shared = len(moments.gram) != series
    count = moments.count.clamp_min(1.0)
    gram = moments.gram[:, :, use][..., use] / (moments.steps.clamp_min(1.0) if shared else count)[..., None, None]
    cross = moments.cross[..., use] / count[..., None]
    share = moments.count / moments.count.sum(0).clamp_min(1.0)
    both = gram[0] if shared else torch.einsum("sb,sbkl->bkl", share, gram)
    pooled = _ridge(both, torch.einsum("sb,sbk->bk", share, cross)[..., None], penalty / series)[..., 0]
    weights[0, :, use] = pooled
    if series == 1:
        weights[1, :, use] = pooled
        return weights
    rest = cross - torch.einsum("...bkl,bl->...bk", gram, pooled)
    if shared:
        own = _ridge(gram[0], rest.permute(1, 2, 0), penalty).permute(2, 0, 1)
    else:
        own = _ridge(gram, rest[..., None], penalty)[..., 0]
    weights[1:, :, use] = pooled + own
    return weights


def _ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    """Solutions ``(..., drivers, columns)`` for ``gram`` ``(..., drivers, drivers)``, each driver in its own unit."""
    deviation = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    # A driver that its past foretells, to the last digits, has nothing to say.
    inverse = torch.where(deviation > 1e-4, 1 / deviation.clamp_min(1e-12), 0.0)
    scaled = gram * inverse[..., None] * inverse[..., None, :]
    scaled = scaled + penalty * torch.eye(scaled.shape[-1], dtype=torch.float64)
    return torch.linalg.solve(scaled, cross * inverse[..., None]) * inverse[..., None]


def _use(table: CovariateTable, shape: str) -> Tensor:
    return torch.ones_like(table.bent) if shape == "bent" else ~table.bent


def gain(moments: DriverMoments, weights: Tensor) -> Tensor:
    """The share of the squared residuals that ``weights`` of :func:`solve` take away in each block; NaN without any."""
    before, weights = moments.square.sum(0), weights[1:]
    if len(moments.gram) == len(moments.cross):
        explained = torch.einsum("sbkl,sbl->sbk", moments.gram, weights)
    else:  # the share of the observed targets is taken to be that of all steps
        explained = torch.einsum("bkl,sbl->sbk", moments.gram[0], weights)
        explained = explained * (moments.count / moments.steps.clamp_min(1.0))[..., None]
    change = (weights * (explained - 2 * moments.cross)).sum((0, 2))
    return torch.where(before > 0, -change / before, torch.nan)


def choose(
    trained: list[DriverMoments], scored: list[DriverMoments], table: CovariateTable, blocks: Sequence[Block]
) -> tuple[list[Drivers | None], list[dict[str, Any]]]:
    """The drivers of each round, and for each block shape and penalty with the largest mean gain over the rounds.

    Args:
        trained: moments of the rows that each round trains on.
        scored: those of the rows that it scores on.
        table: of the covariates.
        blocks: of the horizon.

    Returns:
        The drivers of each round, None where no block keeps any, and what was decided for each block.
    """
    shapes = SHAPES if bool(table.bent.any()) else SHAPES[:1]
    penalties = PENALTIES if len(trained[0].cross) == 1 else (*PENALTIES, SHARED)
    fitted = {
        (shape, penalty): [solve(each, penalty=penalty, use=_use(table, shape)) for each in trained]
        for shape, penalty in product(shapes, penalties)
    }
    gains = {choice: [gain(held, w) for held, w in zip(scored, each, strict=True)] for choice, each in fitted.items()}
    facts: list[dict[str, Any]] = []
    for number, (first, last) in enumerate(blocks):
        verdicts = {choice: judge([float(found[number]) for found in each]) for choice, each in gains.items()}
        shape, penalty = max(verdicts, key=lambda choice: verdicts[choice].mean)
        facts.append(
            {"steps": [first + 1, last], "shape": shape, "penalty": penalty} | asdict(verdicts[shape, penalty])
        )
    rounds = range(len(trained))
    return [_joined(facts, lambda *choice, number=number: fitted[choice][number]) for number in rounds], facts


def refit(moments: DriverMoments, table: CovariateTable, facts: list[dict[str, Any]]) -> Drivers | None:
    """The drivers that :func:`choose` decided on, with the weights of other rows."""
    return _joined(facts, lambda shape, penalty: solve(moments, penalty=penalty, use=_use(table, shape)))


def _joined(facts: list[dict[str, Any]], fitted: Any) -> Drivers | None:
    weights: Tensor | None = None
    for number, block in enumerate(facts):
        if block["kept"]:
            found = fitted(block["shape"], block["penalty"])
            weights = torch.zeros_like(found) if weights is None else weights
            weights[:, number] = found[:, number]
    return None if weights is None else Drivers(weights.float())
