"""How much of a training is used up: steps, or minutes from the begin of the work to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mha_apps.errors import InputError
from mha_apps.training import processes
from mha_apps.training.clock import seconds_counted

VALIDATION_SHARE = 0.05  # most of a budget in minutes that one validation may take
LEAST_VALIDATION = 200
# Of a budget in minutes, kept free beside what was timed: the process's own end, and a machine that others use too.
SPARE = 0.01


class Budget:
    """The budget of one training and what was charged to it.

    Args:
        unit: epochs, steps or minutes.
        amount: how many of them.
        epoch_steps: optimiser steps in an epoch.
        later_seconds: what the application needs after this training, of the minutes.
        later_share: of what start-up and that leave, the share that it needs beside.
    """

    def __init__(
        self, unit: str, amount: float, *, epoch_steps: int, later_seconds: float = 0.0, later_share: float = 0.0
    ) -> None:
        self.unit = unit
        self.timed = unit == "minutes"
        self.limit = amount * {"epochs": epoch_steps, "steps": 1, "minutes": 60.0}[unit]
        self.later_seconds, self.later_share = later_seconds, later_share
        self.closing: dict[str, float] = {}  # seconds of what comes after the last step, as last timed
        # Minutes cover start-up, which ended just now.
        self.charged = seconds_counted() if self.timed else 0.0
        self.since = time.monotonic()
        self.begun = self.charged

    @property
    def seconds(self) -> float:
        """Seconds charged so far, those of earlier processes that the run was resumed from included."""
        return self.charged + time.monotonic() - self.since

    def resume(self, seconds: float) -> None:
        """Charge what the run had used when its checkpoint was written; work that a kill lost is not charged."""
        self.charged += seconds

    @property
    def usable(self) -> float:
        """Steps, or seconds from the begin of the work, at which the last step ends."""
        if not self.timed:
            return self.limit
        closing = sum(self.closing.values()) + self.later_seconds + SPARE * self.limit
        return self.limit - closing - self.later_share * max(0.0, self.limit - closing - self.begun)

    @contextmanager
    def closes(self, part: str) -> Iterator[None]:
        """Time a part of what comes after the last step (validation, saving, report) wherever else it is done."""
        begun = time.monotonic()
        yield
        self.closing[part] = time.monotonic() - begun

    def used(self, step: int) -> float:
        """Share that is used, 0 to 1, the same in every process."""
        if not self.timed:
            return step / self.limit
        # Each process has timed for itself what comes later: the share is agreed on, not the seconds.
        return processes.most(min(1.0, self.seconds / max(self.usable, 1e-9)))[0]

    def seconds_left(self, step: int) -> float:
        """An estimate for people, after this many steps."""
        return self.limit - self.seconds if self.timed else self.seconds * (self.limit / max(step, 1) - 1)

    def validation_examples(self, every: int, seconds_each: float) -> int:
        """How many of ``every`` validation examples a validation takes: what fits into its share of the minutes."""
        if not self.timed:
            return every
        fitting = int(VALIDATION_SHARE * self.limit / max(seconds_each, 1e-9))
        return min(every, max(fitting, LEAST_VALIDATION))

    def refusal(self) -> InputError:
        """What to say when start-up and closing leave nothing to train in."""
        needed = self.seconds + self.limit - self.usable
        return InputError(
            f"--minutes {self.limit / 60:g}: start-up and the last validation take {needed:.0f} seconds here, so "
            f"nothing is left to train in; give {int(needed / 30) + 2} minutes or more"
        )
