"""Learning-rate schedules as functions of progress, so that the budget may be epochs, steps or minutes."""

from __future__ import annotations

import math


def multiplier(schedule: str, progress: float, warmup: float) -> float:
    """The factor on the peak learning rate.

    Args:
        schedule: ``cosine`` (Loshchilov and Hutter, 2017), ``inverse-sqrt`` (Vaswani et al., 2017, eq. 3, scaled to
            peak at 1) or ``constant``.
        progress: share of the budget that is used, 0 to 1.
        warmup: share of the budget over which the factor rises linearly, 0 <= warmup < 1.

    Returns:
        A factor from 0 to 1; defined everywhere, at progress 0 too.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
    if schedule == "inverse-sqrt":
        # Without a warm-up the original is unbounded at its start; there the first hundredth stands in.
        start = warmup or 0.01
        return math.sqrt(start / max(progress, start))
    if schedule == "constant":
        return 1.0
    raise ValueError(f"schedule must be cosine, inverse-sqrt or constant, not {schedule!r}")
