"""Choosing components in a way that does not fool itself: gains must repeat on folds that lie one after the other.

A fold trains on the rows before a cut and scores on the rows up to the next one. A component is kept if its mean
gain over the folds and the validation block exceeds one standard error and a tenth of a percent, and more than half
of them agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Verdict", "judge", "rolling_folds"]

Block = tuple[int, int]
LEAST = 1e-3  # a relative gain below a tenth of a percent is not worth a component


@dataclass(frozen=True)
class Verdict:
    """Whether a component is kept, and the relative gains that say so: one per fold, validation last."""

    kept: bool
    gains: tuple[float, ...]
    mean: float
    standard_error: float


def judge(gains: Sequence[float]) -> Verdict:
    """Decide from the gain on each fold, positive where the component helped; NaN folds do not count."""
    known = [gain for gain in gains if math.isfinite(gain)]
    if not known:
        return Verdict(False, tuple(gains), 0.0, math.inf)
    mean = sum(known) / len(known)
    if len(known) > 1:
        variance = sum((gain - mean) ** 2 for gain in known) / (len(known) - 1)
        error = math.sqrt(variance / len(known))
    else:
        error = math.inf
    agree = sum(gain > 0 for gain in known) * 2 > len(known)
    return Verdict(mean > max(error, LEAST) and agree, tuple(gains), mean, error)


def rolling_folds(train: Block, *, folds: int, horizon: int) -> list[tuple[Block, Block]]:
    """``folds`` pairs of (rows to train on, rows to score on) inside ``train``, each origin later than the last.

    The first fold trains on the first half. Fewer folds are given where a scored block could not hold one whole
    future.
    """
    start, end = train
    while folds > 0:
        first = start + (end - start) // 2
        cuts = [first + (end - first) * k // folds for k in range(folds + 1)]
        if min(b - a for a, b in pairwise(cuts)) > horizon:
            return [((start, a), (a, b)) for a, b in pairwise(cuts)]
        folds -= 1
    return []
