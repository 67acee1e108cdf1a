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

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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


def _earlier(values: Tensor, first: int, last: int) -> Tensor:
    """Means over the rows ``first`` to ``last`` before each row of ``(..., rows)``; NaN where none is observed."""
    observed = torch.isfinite(values)

    def sums(table: Tensor) -> Tensor:
        before = functional.pad(table.cumsum(-1), (last, 0))
        return before[..., last - first : before.shape[-1] - first] - before[..., : table.shape[-1]]

    count = sums(observed.to(values.dtype))
    return torch.where(count > 0, sums(torch.where(observed, values, 0.0)) / count.clamp_min(1.0), torch.nan)


def _bridged(values: Tensor) -> Tensor:
    """``(..., rows)`` with gaps of up to ``MOST_BRIDGED`` rows between two values as the line between them.

    For the drivers alone: what the map forecasts from a window in which the latest rows are zero means nothing.
    """
    padded = functional.pad(values, (MOST_BRIDGED, MOST_BRIDGED), value=torch.nan)

    def nearest(side: int) -> tuple[Tensor, Tensor]:
        """The nearest value on one side, and how many rows away it is; NaN where it is further than a gap."""
        found, rows = torch.full_like(values, torch.nan), torch.zeros_like(values)
        for away in range(MOST_BRIDGED, 0, -1):
            first = MOST_BRIDGED + side * away
            there = padded[..., first : first + values.shape[-1]]
            known = torch.isfinite(there)
            found, rows = torch.where(known, there, found), torch.where(known, float(away), rows)
        return found, rows

    (before, since), (after, until) = nearest(-1), nearest(1)
    line = before + (after - before) * since / (since + until)
    return torch.where(torch.isfinite(values) | (since + until > MOST_BRIDGED + 1), values, line)


def make_drivers(ahead: Tensor, knots: np.ndarray, waves: Tensor | None) -> tuple[Tensor, list[tuple[int, bool]]]:
    """The drivers of covariates that are known ahead.

    Args:
        ahead: ``(..., covariates, rows)`` float64, standardised, NaN where unknown.
        knots: ``(covariates, 5)``, where their effects may bend, NaN where nowhere.
        waves: cosine and sine of the time of day ``(..., rows, 2)``; None where a row is a day or longer.

    Returns:
        ``(..., drivers, rows)`` float32, and for each driver the number of its covariate and whether it is bent.
    """
    ahead = _bridged(ahead)
    count = ahead.shape[-2]
    parts = [ahead if last == 1 else _earlier(ahead, first, last) for first, last in STRETCHES]
    kinds = [(number, False) for _ in STRETCHES for number in range(count)]
    for column in range(knots.shape[1]):
        for number in np.flatnonzero(np.isfinite(knots[:, column])).tolist():
            values = ahead[..., number : number + 1, :]
            bent = (values - float(knots[number, column])).clamp_min(0.0)
            parts.append(torch.where(torch.isfinite(values), bent, torch.nan))
            kinds.append((number, True))
    for wave in waves.unbind(-1) if waves is not None else ():
        parts.append(ahead * wave.unsqueeze(-2))
        kinds += [(number, True) for number in range(count)]
    return torch.cat([part.float() for part in parts], -2), kinds


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
        self.known, self.columns = torch.tensor(known), columns
        self.first = list(known).count(False)  # the first that is known ahead
        self.look_back, self.horizon, self.trailing = look_back, horizon, trailing
        self.windows = Windows(values[:rows], look_back=look_back, horizon=horizon, after=values[rows:])
        place = np.flatnonzero(known)
        ahead = torch.from_numpy(np.ascontiguousarray(values[:, place].T, dtype=np.float64))
        made, kinds = make_drivers(ahead, knots, None if waves is None else torch.from_numpy(waves))
        self.owners = torch.tensor([int(place[number]) for number, _ in kinds], dtype=torch.int64)
        self.bent = torch.tensor([bent for _, bent in kinds], dtype=torch.bool)
        table = made.numpy().T
        self.drivers = Windows(table[:rows], look_back=look_back, horizon=horizon, after=table[rows:])
        gaps = (~torch.isfinite(self.drivers.table)).int().cumsum(1, dtype=torch.int32)
        self.gaps = functional.pad(gaps, (1, 0))  # missing values before each padded row
        self.hidden: int | None = None
        self._last: dict[str, tuple[list[Any], Tensor]] = {}

    @property
    def covariates(self) -> int:
        return len(self.known)

    def without(self, covariate: int) -> CovariateTable:
        """The same as if one covariate were not known: a future one is what its past says, a past one is missing."""
        other = object.__new__(CovariateTable)
        other.__dict__ = self.__dict__ | {"hidden": covariate, "_last": {}}
        return other

    def _once(self, name: str, given: list[Any], make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives, or gave last for the same: every group of series asks for it at the same origins."""
        known = self._last.get(name)
        if known is None or not all(map(_same, known[0], given)):
            known = self._last[name] = given, make()
        return known[1]

    def past(self, origins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centred pasts, masks ``(n, covariates, look_back)`` and centres ``(n, covariates, 1)`` in float64."""
        return centre(self.seen(origins).double(), self.trailing)

    def seen(self, origins: Tensor, rows: int | None = None) -> Tensor:
        """The last ``rows`` rows before the origins ``(n, covariates, rows)``, a look-back when None; NaN: missing."""
        past = self.windows.steps(origins, -(self.look_back if rows is None else rows), 0)
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
        given = [origins, weights, reversion, use]
        return self._once("innovations", given, lambda: self._innovations(origins, weights, reversion, use))

    def _innovations(self, origins: Tensor, weights: Tensor, reversion: Tensor | None, use: Tensor | None) -> Tensor:
        kind, look_back = weights.dtype, self.look_back
        wanted = torch.ones_like(self.bent) if use is None else use.clone()
        if self.hidden is not None:
            wanted &= self.owners != self.hidden
        numbers = torch.nonzero(wanted)[:, 0]
        answer = torch.zeros(len(origins), self.drivers.series, self.horizon, dtype=kind)
        for part in torch.arange(len(origins)).split(max(1, CHUNK // max(len(numbers), 1))):
            both = self.drivers.at(numbers[None, :], origins[part, None])
            gaps = self.gaps[numbers][:, origins[part] + look_back] - self.gaps[numbers][:, origins[part]]
            answer[part[:, None], numbers] = _beyond(
                both.past.to(kind), both.future.to(kind), weights, reversion, self.trailing, bool((gaps > 0).any())
            )
        return answer

    def ahead(self, origins: Tensor, weights: Tensor) -> Tensor:
        """The covariates at the steps of the horizon ``(n, covariates, horizon)``, NaN where they are not known.

        One that is hidden is there as the linear map ``weights`` forecasts it.
        """
        future = torch.where(self.known[:, None], self.windows.steps(origins, 0, self.horizon), torch.nan)
        if self.hidden is not None and bool(self.known[self.hidden]):
            z, _, level = centre(self.seen(origins)[:, self.hidden].double(), self.trailing)
            future[:, self.hidden] = (z @ weights + level).to(future.dtype)
        return future


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (
        one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)
    )


def _beyond(
    past: Tensor, future: Tensor, weights: Tensor, reversion: Tensor | None, trailing: int, gaps: bool
) -> Tensor:
    """What drivers do in ``future`` ``(..., horizon)`` beyond the linear path's forecast from ``past``.

    ``gaps`` says whether any value of ``past`` may be missing.
    """
    share = 1 - weights.sum(0) + (0 if reversion is None else reversion.to(weights.dtype))
    if not gaps:  # the centre is a sum, and need not be taken away first
        expected = past @ weights + past[..., -trailing:].mean(-1, keepdim=True) * share
        return torch.where(torch.isfinite(future), future - expected, 0.0)
    z, _, level = centre(past, trailing)
    expected = z @ weights + level * (share + weights.sum(0))
    observed = torch.isfinite(past)
    lately = observed[..., -MOST_BRIDGED:].all(-1)
    lately &= observed[..., -trailing:].to(past.dtype).mean(-1) >= 0.5
    return torch.where(torch.isfinite(future) & lately[..., None], future - expected, 0.0)


class CovariateWindows(CovariateTable):
    """The same for windows that are at hand, in operations that a graph can hold.

    Window k has the origin ``k * stride``.

    Args:
        values: ``(n, covariates, LATEST + look_back + horizon)`` float64, standardised, NaN where unknown.
        known, columns, knots, look_back, horizon, trailing: as for :class:`CovariateTable`.
        waves: cosine and sine of the time of day in the last rows ``(n, look_back + horizon, 2)``, or None.
        stride: rows from one origin to the next.
    """

    def __init__(
        self,
        values: Tensor,
        *,
        known: Sequence[bool],
        columns: int,
        knots: np.ndarray,
        waves: Tensor | None,
        look_back: int,
        horizon: int,
        trailing: int,
        stride: int,
    ) -> None:
        self.known, self.columns, self.stride = torch.tensor(known), columns, stride
        self.look_back, self.horizon, self.trailing, self.hidden = look_back, horizon, trailing, None
        self.first = list(known).count(False)
        clock = None if waves is None else functional.pad(waves, (0, 0, LATEST, 0))
        self.made = make_drivers(values[:, self.first :], knots, clock)[0][..., LATEST:]
        values = values[..., LATEST:].float()
        self.values = torch.where(torch.isfinite(values), values, torch.nan)

    def seen(self, origins: Tensor, rows: int | None = None) -> Tensor:
        first = 0 if rows is None else self.look_back - rows
        return self.values[origins // self.stride, :, first : self.look_back]

    def innovations(
        self, origins: Tensor, weights: Tensor, reversion: Tensor | None = None, use: Tensor | None = None
    ) -> Tensor:
        both = self.made[origins // self.stride].to(weights.dtype)
        past, future = both[..., : self.look_back], both[..., self.look_back :]
        return _beyond(past, future, weights, reversion, self.trailing, True)

    def ahead(self, origins: Tensor, weights: Tensor) -> Tensor:
        return self.values[origins // self.stride, :, self.look_back :]


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
