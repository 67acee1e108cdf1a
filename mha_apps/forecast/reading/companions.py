"""Columns that tell the same instants as the one that was found: UTC beside a local clock, a count beside a date.

A local clock repeats an hour and skips one, and its zone must be told; UTC does neither. So where both stand side by
side, UTC is read, and the other column shows how far the local clock is ahead.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from mha_apps.errors import InputError

from . import zones
from .look import Look, Times, named
from .timecolumns import text_one
from .timenumbers import counted_one
from .timeparts import with_clock
from .timetext import DAY, HOUR, MINUTE, NO_OFFSET, SECOND
from .words import PART_NAMES

MOST_AHEAD = 15 * HOUR
QUARTER = 15 * MINUTE


def with_companions(look: Look, times: Times) -> Times:
    """The same times read in UTC where another column has them so; counts of the same instants are no sensors."""
    if not times.ok.any():
        return times
    known = _in_utc(look, times)
    if known is None and times.dateonly:
        return times
    for k in look.columns:
        if k not in times.columns and _repeats_a_part(look, times, k):
            times.beside.append(k)
            continue
        if k in times.columns or (other := _read(look, k)) is None:
            continue
        instants = _in_utc(look, other)
        if instants is None:
            continue
        both = times.ok & other.ok
        if both.sum() < max(2, 0.99 * times.ok.sum()):
            continue
        ahead = _ahead((times.wall if known is None else known)[both] - instants[both])
        if ahead is None or (known is not None and ahead != [0]):
            continue
        if known is not None or look.options.time:
            times.beside.append(k)
            continue
        local = ", ".join(repr(look.name(j)) for j in times.columns)
        shown = " or ".join(f"{minutes / 60:+.4g} h" for minutes in ahead)
        said = [note for note in times.notes if not note.startswith("other columns of times")]
        other.notes += [*said, f"{local} beside {look.name(k)!r} is a local clock ({shown}); UTC was read"]
        other.zone = _place(look, times) or "UTC"
        other.utc, other.wall, other.offset = True, np.where(other.ok, instants, 0), None
        other.beside = [*times.beside, *times.columns]
        times, known = other, instants
    return times


def _repeats_a_part(look: Look, times: Times, k: int) -> bool:
    """Whether a column named year, month or day holds that of each time: 2024-05-30, and 2024 and 5 and 30 again."""
    part = next((part for part in ("year", "month", "day") if named(look.name(k), PART_NAMES[part])), None)
    if part is None or not look.numeric(k):
        return False
    days = (times.wall[times.ok] // DAY).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    expected = {
        "year": months.astype(np.int64) // 12 + 1970,
        "month": months.astype(np.int64) % 12 + 1,
        "day": (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
    }[part]
    return bool(np.array_equal(look.floats(k)[times.ok], expected))


def _read(look: Look, k: int) -> Times | None:
    """The times of a column, where it holds a date with a clock or a count since an epoch."""
    column = look.table.columns[k]
    try:
        if look.numeric(k):
            counted = counted_one(look, k) if _like_a_count(look.sample(k)) else None
            return counted if counted is not None and counted.utc else None
        if not isinstance(column, pa.Array) or look.date_share(k) < 0.5:
            return None
        if look.has_clock(k):
            return text_one(look, k)
        if _says_utc(look, k):  # Date GMT, Time GMT
            clocks = [j for j in look.columns if j != k and _says_utc(look, j) and look.clock_share(j) >= 0.6]
            times = text_one(look, k) if clocks else None
            return with_clock(look, times, clocks[:1]) if times is not None else None
    except InputError:  # the order of day and month is open there; this column is only looked at
        pass
    return None


def _says_utc(look: Look, k: int) -> bool:
    stated = zones.stated_zone([look.name(k)], [])
    return stated is not None and stated[0] in ("UTC", "GMT")


def _like_a_count(sample: list[str]) -> bool:
    """Whether the first cells have ten digits or more, as seconds since 1970 have."""
    return bool(sample) and all(re.match(r"\s*\d{9,19}(?:[.,]\d*)?\s*$", text) for text in sample[:20])


def _in_utc(look: Look, times: Times) -> np.ndarray | None:
    """The instants in UTC, where the times are marked so."""
    if times.utc:
        return times.wall
    if times.offset is not None:
        if np.any(times.offset[times.ok] == NO_OFFSET):
            return None
        return times.wall - times.offset.astype(np.int64) * MINUTE
    stated = zones.stated_zone([look.name(k) for k in times.columns], [])
    return times.wall if stated is not None and stated[0] in ("UTC", "GMT") else None


def _ahead(differences: np.ndarray) -> list[int] | None:
    """By how many minutes a clock is ahead of UTC; None where the columns do not tell the same instants."""
    rounded = np.round(differences / QUARTER).astype(np.int64) * QUARTER
    if np.any(np.abs(differences - rounded) > SECOND) or np.any(np.abs(rounded) > MOST_AHEAD):
        return None
    found = np.unique(rounded)
    return [int(value) // MINUTE for value in found] if len(found) <= 3 else None


def _place(look: Look, times: Times) -> str | None:
    stated = zones.stated_zone([look.name(k) for k in times.columns], [])
    return stated[0] if stated is not None and "/" in stated[0] else None
