"""What follows from a table of sensors before anything is fitted: its blocks of rows, period, look-back and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from mha_apps.errors import InputError

from .calendar import choose, step_of
from .periods import find_periods
from .recipe import ForecastRecipe
from .windows import split_rows

__all__ = ["Plan", "make_plan"]

LONGEST_LOOK_BACK = 1024  # rows of the linear path: its normal equations are of this size
MOST_TOKENS = 32
PERIODS = 21  # three weeks of days, the look-back where the rows allow it


@dataclass(frozen=True)
class Plan:
    """Blocks are (start, end) rows; ``test`` is empty when nothing is held out. The rest is in rows too."""

    train: tuple[int, int]
    validation: tuple[int, int]
    calibration: tuple[int, int]
    test: tuple[int, int]
    period: int
    periods: tuple[int, ...]
    look_back: int
    look_backs: tuple[int, ...]
    trailing: int
    patch: int
    cycles: tuple[str, ...]

    @property
    def far(self) -> int:
        """Rows between two tokens that a far head sees: the shortest period that is longer than a token."""
        return next((each for each in self.periods if each > self.patch and each % self.patch == 0), self.patch)


def make_plan(
    frame: pd.DataFrame, recipe: ForecastRecipe, *, source: str = "the frame", blocks: Sequence[int] | None = None
) -> Plan:
    """Work out the plan from the training rows of ``frame`` alone.

    Args:
        frame: the whole table.
        recipe: horizon, look-back and shares of the blocks.
        source: names the file in messages.
        blocks: the rows at which training, validation, calibration and test end, instead of the recipe's shares.

    Raises:
        InputError: there are too few rows or no series.
    """
    rows, horizon = len(frame), recipe.horizon
    if frame.shape[1] == 0:
        raise InputError(f"{source}: no numeric column to forecast; name one column per sensor")
    least = 4 * (horizon + 1) + 8
    if rows < least:
        raise InputError(
            f"{source}: {rows} rows are too few for --horizon {horizon}, which needs {least}; lower --horizon"
        )
    shares = [recipe.validation, recipe.calibration] + ([recipe.holdout] if recipe.holdout else [])
    parts = list(pairwise([0, *blocks])) if blocks is not None else split_rows(rows, *shares, horizon=horizon)
    train, validation, calibration = parts[:3]
    test = parts[3] if len(parts) > 3 else (rows, rows)
    if recipe.look_back is not None and recipe.look_back > train[1] - horizon:
        raise InputError(
            f"{source}: --look-back {recipe.look_back} is longer than the {train[1]} rows of training have room for; "
            f"with --horizon {horizon} it is {train[1] - horizon} at most"
        )
    values = frame.to_numpy(dtype=np.float64)[: train[1]]
    if not np.isfinite(values).any():
        raise InputError(f"{source}: the first {train[1]} rows hold no value to train on; check the file")

    step = step_of(frame.index)
    periods = tuple(find_periods(values, step))
    period = periods[0] if periods and periods[0] <= LONGEST_LOOK_BACK else 1
    longest = max(8, min(LONGEST_LOOK_BACK, train[1] // 4))
    wanted = recipe.look_back if recipe.look_back is not None else min(PERIODS * period, longest)
    if recipe.look_back is None and period == 1:
        wanted = min(LONGEST_LOOK_BACK // 2, longest)
    patch = _patch(period, wanted)
    look_back = max(patch, -(-wanted // patch) * patch if recipe.look_back is not None else wanted // patch * patch)
    return Plan(
        train=train,
        validation=validation,
        calibration=calibration,
        test=test,
        period=period,
        periods=periods,
        look_back=look_back,
        look_backs=(max(1, 2 * look_back // 3), look_back),
        trailing=period if 1 < period <= look_back else min(8, look_back),
        patch=patch,
        cycles=tuple(choose(step, train[1])),
    )


def _patch(period: int, look_back: int) -> int:
    """The smallest divisor of the period that keeps the past within 32 tokens, and is at least 4 where it can be."""
    period = period if period > 1 else 64
    least = min(max(4, -(-look_back // MOST_TOKENS)), look_back)
    divisors = [size for size in range(1, period + 1) if period % size == 0]
    fitting = [size for size in divisors if least <= size <= look_back]
    return fitting[0] if fitting else max(size for size in divisors if size <= look_back)
