"""The blend: convex weights over the linear forecast, the seasonal naive one and trees, decided on rolling folds.

Each component is taken only if it lowers the squared error of the linear forecast on folds that its weight was not
fitted on (stacking; Wolpert 1992, Breiman 1996). Weights are not negative and add up to at most one, the rest is the
linear forecast's (and the attention path's, which corrects it); they differ by block of the horizon and by series,
those of a series shrunk half way to what all series say.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .baselines import seasonal_naive
from .inputs import Inputs
from .linear import LinearPath, blocks_of, rounds_of, whole
from .model import ForecastModel
from .plan import Plan
from .selection import Block, judge
from .trees import Trees
from .windows import centre

__all__ = ["COMPONENTS", "Blend", "convex_weights", "fit_blend", "fit_trees"]

COMPONENTS = ("seasonal_naive", "trees")
MOST_SERIES = 64  # series that are scored; more of them share one set of weights
MOST_STEPS = 120_000  # forecasts of a component that are scored in a round
MOST_ROWS = 80_000  # that trees as a component learn from: they are grown once for every round


@dataclass
class Blend:
    """``weights`` ``(series + 1, blocks, components)``: row 0 is for a series that training did not know."""

    weights: Tensor
    trees: Trees | None = None

    def shift(self, inputs: Inputs, point: Tensor, origins: Tensor, series: Tensor, period: int) -> Tensor:
        """What the other components add to ``point`` ``(origins, len(series), horizon)``, standardised."""
        horizon = inputs.windows.horizon
        weights = self.expanded(horizon, inputs.identities[series])
        if not bool(weights.any()):
            return torch.zeros_like(point)
        both = others(inputs, origins, series, period, self.trees if bool(weights[..., 1].any()) else None)
        difference = torch.nan_to_num(both - point.unsqueeze(-1), nan=0.0)  # a window without a value repeats none
        return (difference * weights).sum(-1)

    def expanded(self, horizon: int, who: Tensor | None = None) -> Tensor:
        """The weights of each step for the identities ``who``, all when None, ``(identities, horizon, components)``."""
        sizes = torch.tensor([last - first for first, last in blocks_of(horizon)])
        return (self.weights if who is None else self.weights[who]).repeat_interleave(sizes, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """What is saved of it."""
        return {"blend": self.weights} | (self.trees.tensors() if self.trees is not None else {})

    @classmethod
    def of(cls, model: ForecastModel) -> Blend | None:
        """The blend that ``model`` holds among its artifacts, the inverse of :meth:`tensors`; None without any."""
        held = model.artifacts
        if "blend" not in held:
            return None
        grown = "tree_value" in held
        trees = Trees.from_tensors(held, period=model.period, trailing=model.trailing) if grown else None
        return cls(held["blend"], trees)


def others(inputs: Inputs, origins: Tensor, series: Tensor, period: int, trees: Trees | None) -> Tensor:
    """The components' forecasts ``(origins, series, horizon, components)``; NaN for trees that there are not."""
    horizon = inputs.windows.horizon
    past = inputs.windows.at(series.expand(len(origins), -1), origins[:, None].expand(-1, len(series))).past
    naive = seasonal_naive(past, horizon, period)
    grown = torch.full_like(naive, torch.nan) if trees is None else trees.forecast(inputs, origins, series)
    return torch.stack([naive, grown], -1)


def fit_trees(inputs: Inputs, plan: Plan, seed: int) -> Trees:
    """The tree component, fitted on the training block."""
    trees = Trees(period=plan.period, trailing=plan.trailing, seed=seed)
    return trees.fit(inputs, whole(plan.train, inputs.windows.horizon), most=MOST_ROWS)


@dataclass
class _Moments:
    """Sums over a round, by series and block: products of the components' differences from the linear forecast."""

    gram: np.ndarray  # (series, blocks, components, components)
    cross: np.ndarray  # (series, blocks, components)
    square: np.ndarray  # (series, blocks), of the linear forecast's errors
    count: np.ndarray  # (series, blocks)

    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """``gram`` and ``cross`` of each block, as means over what all series observed."""
        count = np.maximum(self.count.sum(0), 1.0)
        return self.gram.sum(0) / count[:, None, None], self.cross.sum(0) / count[:, None]


def fit_blend(
    inputs: Inputs, plan: Plan, paths: list[LinearPath], *, trees: bool, seed: int
) -> tuple[Blend | None, dict[str, Any]]:
    """Fit the weights on rolling folds and validation.

    Args:
        inputs: over the rows before the test block.
        plan: the plan of the table.
        paths: the linear path of each round, as :func:`mha_apps.forecast.linear.fit_rounds` gives them.
        trees: whether trees may take part.
        seed: of the trees.

    Returns:
        The blend, None where no component helps, and what was found for each component.
    """
    moments, grown = [], None
    for (train, scored), path in zip(rounds_of(plan, inputs.windows.horizon), paths, strict=True):
        part = replace(plan, train=train)
        grown = fit_trees(inputs, part, seed) if trees else None
        moments.append(_score(inputs, path, part, scored, grown))

    facts: dict[str, Any] = {}
    kept = []
    for number, name in enumerate(COMPONENTS):
        if name == "trees" and not trees:
            continue
        verdict = judge([_gain(moments, fold, [number]) for fold in range(len(moments))])
        facts[name] = asdict(verdict)
        kept += [number] if verdict.kept else []
    if not kept:
        return None, facts
    weights = _weights(moments, kept)
    for number, name in enumerate(COMPONENTS):
        if name in facts:
            facts[name]["weight"] = float(weights[0, :, number].mean())
    series = inputs.windows.series
    # Series that were not scored take what all say, which row 0 holds.
    whole_table = weights[:1].repeat(series + 1, axis=0) if len(weights) - 1 < series else weights
    blend = Blend(torch.from_numpy(whole_table).float(), grown if COMPONENTS.index("trees") in kept else None)
    return blend, facts


@torch.no_grad()
def _score(inputs: Inputs, linear: LinearPath, plan: Plan, scored: Block, trees: Trees | None) -> _Moments:
    windows, horizon = inputs.windows, inputs.windows.horizon
    count = min(windows.series, MOST_SERIES)
    series = torch.arange(windows.series)[:: -(-windows.series // count)]
    origins = torch.arange(scored[0], max(scored[0] + 1, scored[1] - 1))
    origins = origins[:: max(1, -(-len(origins) * len(series) * horizon // MOST_STEPS))]
    blocks = blocks_of(horizon)
    size = len(series), len(blocks), len(COMPONENTS)
    found = _Moments(np.zeros((*size, size[2])), np.zeros(size), np.zeros(size[:2]), np.zeros(size[:2]))
    # A correction across channels needs all of them; without one the series that are scored will do.
    joint = linear.cross is not None and not linear.cross.each
    needed = torch.arange(windows.series) if joint else series
    for part in origins.split(max(1, 2048 // len(needed))):
        batch = windows.at(needed.expand(len(part), -1), part[:, None].expand(-1, len(needed)))
        past, mask, level = centre(batch.past.double(), inputs.trailing)
        who = inputs.identities[needed]
        point = linear.forecast(past, mask, level, covariates=inputs.covariates, origins=part, who=who) + level
        ahead = part[:, None, None] + torch.arange(horizon)
        gap = torch.where(ahead < scored[1], batch.future.double() - point, torch.nan)
        difference = others(inputs, part, needed, plan.period, trees).double() - point.unsqueeze(-1)
        known = torch.isfinite(gap)
        gap = torch.where(known, gap, 0.0)
        difference = torch.nan_to_num(difference, nan=0.0) * known.unsqueeze(-1)
        for number, (first, last) in enumerate(blocks):
            d, g = difference[:, :, first:last], gap[:, :, first:last]
            found.gram[:, number] += torch.einsum("nshk,nshl->skl", d, d).numpy()
            found.cross[:, number] += torch.einsum("nshk,nsh->sk", d, g).numpy()
            found.square[:, number] += g.square().sum((0, 2)).numpy()
            found.count[:, number] += known[:, :, first:last].sum((0, 2)).numpy()
    return found


def _sum(moments: list[_Moments]) -> _Moments:
    """Rounds added up, each as means, so that a long round says no more than a short one."""
    sizes = [max(each.count.sum(), 1.0) for each in moments]
    return _Moments(
        *(
            sum(getattr(each, part.name) / size for each, size in zip(moments, sizes, strict=True))
            for part in fields(_Moments)
        )
    )


def _gain(moments: list[_Moments], fold: int, components: list[int]) -> float:
    """Relative gain in one round, with pooled weights from all other rounds; NaN where there is nothing to say."""
    rest = [each for number, each in enumerate(moments) if number != fold]
    here = moments[fold]
    before = here.square.sum()
    if not rest or not before:
        return float("nan")
    gram, cross = _sum(rest).pooled()
    change = 0.0
    for block in range(gram.shape[0]):
        w = convex_weights(gram[block], cross[block], components)
        change += w @ here.gram[:, block].sum(0) @ w - 2 * w @ here.cross[:, block].sum(0)
    return float(-change / before)


def _weights(moments: list[_Moments], components: list[int]) -> np.ndarray:
    """Weights ``(series + 1, blocks, components)``, row 0 pooled; those of a series half shrunk to the pooled."""
    total = _sum(moments)
    gram, cross = total.pooled()
    series, blocks, size = total.cross.shape
    weights = np.zeros((series + 1, blocks, size))
    for block in range(blocks):
        pooled = convex_weights(gram[block], cross[block], components)
        weights[0, block] = pooled
        for number in range(series):
            count = total.count[number, block]
            own_gram = total.gram[number, block] / count if count else np.zeros_like(gram[block])
            own_cross = total.cross[number, block] / count if count else np.zeros(size)
            # As much evidence again as the series has, in which the pooled weights are right.
            shrunk = own_gram + gram[block], own_cross + gram[block] @ pooled
            weights[number + 1, block] = convex_weights(*shrunk, components)
    return weights


def convex_weights(gram: np.ndarray, cross: np.ndarray, components: list[int] | None = None) -> np.ndarray:
    """The ``w`` with ``w >= 0`` and ``sum(w) <= 1`` that minimises ``w' gram w - 2 w' cross``.

    Found exactly by trying every set of components that may be above zero, with and without the sum at its bound:
    there are only a few components.

    Args:
        gram: ``(components, components)``, positive semi-definite.
        cross: ``(components,)``.
        components: those that may have weight; all when None.
    """
    size = len(cross)
    allowed = list(range(size)) if components is None else components
    best, least = np.zeros(size), 0.0
    ridge = 1e-9 * max(float(np.trace(gram)) / size, 1e-300)
    for count in range(1, len(allowed) + 1):
        for some in combinations(allowed, count):
            index = np.array(some)
            a, b = gram[np.ix_(index, index)] + ridge * np.eye(count), cross[index]
            free = np.linalg.solve(a, b)
            ones = np.linalg.solve(a, np.ones(count))
            bound = free + ones * (1 - free.sum()) / ones.sum()
            for candidate in (free, bound):
                if candidate.min() < -1e-12 or candidate.sum() > 1 + 1e-9:
                    continue
                value = float(candidate @ a @ candidate - 2 * candidate @ b)
                if value < least:
                    least, best = value, np.zeros(size)
                    best[index] = np.maximum(candidate, 0.0)
    return best
