"""Hours and periods that are numbered through the day, and whether days of 23 and 25 hours are numbered through too.

Markets number the hours from 1 to 24, to 23 on the day on which summer time begins, and to 25 on that on which it
ends. Read off a clock, all hours of these days after the change would be an hour off, so evidence decides: the zone's
days that have 23 and 25 hours where the zone is known, and otherwise the days in the file that are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np

from . import zones
from .timetext import DAY, HOUR
from .words import SUMMER_RULES


@dataclass
class Hours:
    """The day of each row, and the number of its hour or period."""

    day: np.ndarray
    """Microseconds at the start of the day."""
    number: np.ndarray
    ok: np.ndarray
    per_hour: int = 1
    """Numbers an hour: 1 for hours, 2 for half hours, 4 for quarters."""

    @property
    def least(self) -> int:
        return int(self.number[self.ok].min()) if self.ok.any() else 0

    @property
    def most(self) -> int:
        return int(self.number[self.ok].max()) if self.ok.any() else 0

    @property
    def ending(self) -> bool:
        """Whether hours run from 1 to 24 or 25, and so name the end of an hour; periods name their start."""
        return self.per_hour == 1 and self.least >= 1 and self.most >= 24

    def of(self, day: int) -> np.ndarray:
        """The numbers that a day has."""
        return np.unique(self.number[self.ok & (self.day == day)])

    def days_of(self, count: int) -> list[int]:
        """The days that have ``count`` hours without a gap, from the first number on."""
        first, rows = self.least, np.flatnonzero(self.ok)
        total = count * self.per_hour
        order = np.lexsort((self.number[rows], self.day[rows]))
        day, number = self.day[rows][order], self.number[rows][order]
        fresh = np.concatenate([[True], (day[1:] != day[:-1]) | (number[1:] != number[:-1])])
        day, number = day[fresh], number[fresh]
        days, start, length = np.unique(day, return_index=True, return_counts=True)
        last = number[start + length - 1]
        whole = (length == total) & (number[start] == first) & (last == first + total - 1)
        return [int(value) for value in days[whole]]

    def numbered_in(self, zone: zones.Zone) -> bool:
        """Whether the days on which the clock of ``zone`` changes are numbered through."""
        for_it = against = 0
        for change in zones.changes(zone, int(self.day.min()), int(self.day.max()) + DAY):
            low, high = change.walls
            size = (high - low) * self.per_hour // HOUR
            day = low // DAY * DAY
            has = self.of(day)
            if len(has) == 0 or size == 0:
                continue
            ordinary = self.least + 24 * self.per_hour
            skipped = self.least + (low - day) * self.per_hour // HOUR
            if change.spring:
                through = skipped in has and ordinary - size not in has and ordinary - 1 not in has
                by_clock = skipped not in has and ordinary - 1 in has
            else:
                through = ordinary in has and ordinary + size - 1 in has
                by_clock = ordinary not in has and ordinary - 1 in has
            for_it, against = for_it + through, against + by_clock
        return for_it > against

    def may_be_numbered(self) -> tuple[str, int] | None:
        """What in the file looks like days numbered through, where no zone is known: in words, and the day."""
        long = self.days_of(25)
        if self.least + 24 * self.per_hour in np.unique(self.number[self.ok]):
            # 24:00 closes a day on every day; a 25th hour is there in the night of the change alone
            for day in long if len(long) <= 1 + (int(self.day.max()) - int(self.day.min())) // (150 * DAY) else []:
                return f"the hours of {_shown(day)} count to 25", day
        short = [day for day in self.days_of(23) if day < int(self.day.max())]  # the last day may just be cut off
        if short and len(self.days_of(24)) > len(short):
            for _, name in SUMMER_RULES:
                changes = zones.changes(ZoneInfo(name), min(short), max(short) + DAY)
                if set(short) <= {change.walls[0] // DAY * DAY for change in changes if change.spring}:
                    return f"the hours of {_shown(short[0])} count to 23", short[0]
        return None


def _shown(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))
