"""Clocks and zones: the zone of the times, the repeated and the missing hour, and clocks that hide a summer time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from mha_apps.errors import InputError

from .timetext import DAY, HOUR, MINUTE, NO_OFFSET
from .words import SUMMER_RULES, ZONE_OFFSETS, ZONE_PAIRS

Zone = tzinfo


def zone_of(name: str) -> Zone:
    """The zone of a name such as Europe/Berlin, UTC, CET or +01:00.

    Raises:
        InputError: if there is no such zone.
    """
    offset = re.fullmatch(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", name.strip(), re.I)
    if offset and int(offset[2]) < 16:
        return fixed((int(offset[2]) * 60 + int(offset[3] or 0)) * (-1 if offset[1] == "-" else 1))
    if name.strip().upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(name.strip())
    except (KeyError, ValueError, OSError):
        pass
    raise InputError(f"--tz {name!r}: no zone has this name; pass one such as Europe/Berlin, UTC or +01:00")


def fixed(minutes: int) -> Zone:
    return UTC if minutes == 0 else timezone(timedelta(minutes=minutes))


def label(zone: Zone | None) -> str | None:
    """The zone as it is shown: Europe/Berlin, UTC, UTC+01:00."""
    if zone is None:
        return None
    return getattr(zone, "key", None) or str(zone)


_STATED = re.compile(
    r"(?<![A-Za-z])(?P<base>UTC|GMT)\s*(?P<sign>[+-−])\s*(?P<hours>\d{1,2})(?::?(?P<minutes>[0-5]\d))?(?!\d)"
    r"|(?P<place>(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc|US)/[A-Za-z_]+(?:/[A-Za-z_]+)?)"
    r"|(?<![A-Za-z])(?P<bare>UTC|GMT)(?![A-Za-z+_-])",
    re.I,
)
_SHORT = re.compile(r"(?<![A-Za-z])([A-Z]{3,4})(?![A-Za-z])")
_ZONE_WORDS = re.compile(
    r"time.?zone|zeitzone|fuseau|fuso|huso|tijdzone|\btz\b|offset|\btimes?\b|zeit|uhrzeit|heure|hora|\bhours?\b", re.I
)


def stated_zone(names: Iterable[str], comments: Iterable[str]) -> tuple[str, str] | None:
    """The zone that the names of the time columns or the lines above the data state, and where it was found.

    Abbreviations count in the name of a time column, and above the data where the line speaks of zones.
    """
    for name in names:
        text = re.sub(r"(?<=[a-z])(UTC|GMT)$", r" \1", name.replace("_", " "))  # HourUTC
        if (found := _stated(text)) is not None:
            return found, f"column {name!r}"
        shorts = [short for short in _SHORT.findall(text) if short in ZONE_OFFSETS]
        if len(shorts) >= 2 and (pair := ZONE_PAIRS.get(frozenset(shorts[:2]))):
            return pair, f"column {name!r}"
        lowered = [
            word.upper() for word in re.split(r"[\W_]+", name) if word.upper() in ("CET", "CEST", "MEZ", "MESZ", "UTC")
        ]
        if pair := ZONE_PAIRS.get(frozenset(lowered)):
            return pair, f"column {name!r}"
        if shorts or (lowered and len(name) > len(lowered[0])):
            return (shorts or lowered)[0], f"column {name!r}"
    lines = list(comments)[:60]
    for before, line in zip(["", *lines], lines, strict=False):
        place = _STATED.search(line) if len(line) <= 200 else None
        # A value may stand below its name: timezone,abbreviation / GMT,GMT
        below = re.search(r"time.?zone", before, re.I) and not re.search(r"time.?zone", line, re.I)
        stated = place is not None and (place["place"] or below)
        if not stated and (len(line) > 200 or not _ZONE_WORDS.search(line)):
            continue
        if (found := _stated(line)) is not None:
            return found, f"the line {line[:60]!r}"
        zone_word = re.search(r"zone|fuseau|fuso|huso|\btz\b", line, re.I)
        shorts = [short for short in _SHORT.findall(line) if short in ZONE_OFFSETS]
        if zone_word and shorts:
            return ZONE_PAIRS.get(frozenset(shorts[:2]), shorts[0]), f"the line {line[:60]!r}"
        bare = re.search(r"(?:zone|offset)\D{0,12}([+-]\d{1,2}(?::?\d{2})?)(?!\d)", line, re.I)
        if bare and int(re.split(r"[:+-]", bare[1])[1][:2]) < 16:
            return bare[1], f"the line {line[:60]!r}"
    return None


def _stated(text: str) -> str | None:
    match = _STATED.search(text)
    if match is None:
        return None
    if match["place"]:
        try:
            return ZoneInfo(match["place"]).key
        except (KeyError, ValueError, OSError):
            return None
    if match["base"] and int(match["hours"]) < 16:
        return f"{'-' if match['sign'] in '-−' else '+'}{int(match['hours']):02d}:{match['minutes'] or '00'}"
    return "UTC" if match["bare"] else None


@dataclass(frozen=True)
class Change:
    """One change of a clock, in microseconds: the instant in UTC, and the offsets before and after it."""

    at: int
    before: int
    after: int

    @property
    def spring(self) -> bool:
        return self.after > self.before

    @property
    def walls(self) -> tuple[int, int]:
        """The hour on the clock that is missing in spring, and comes twice in autumn."""
        return self.at + min(self.before, self.after), self.at + max(self.before, self.after)


def at_first(times: pd.DatetimeIndex, zone: Zone | str) -> pd.DatetimeIndex:
    """Times of a clock in its zone: the first of a time that comes twice, the first after one that the clock skips."""
    return times.tz_localize(zone, ambiguous=np.ones(len(times), dtype=bool), nonexistent="shift_forward")


def put_back(utc: np.ndarray, wall: np.ndarray) -> np.ndarray:
    """Ascending times of a clock, those that it skips where they would have been.

    A row at such a time stands at the next one that there is, as :func:`at_first` has it; the hours of the other rows
    tell where it belongs, if they are two hours apart or more.

    Args:
        utc: microseconds.
        wall: the same on the clock.
    """
    shift = wall - utc
    jump = np.diff(shift, prepend=shift[:1])
    first = np.flatnonzero(jump > 0)  # the first rows after the clock was put forward
    if len(first) == 0:
        return wall
    step = min(int(np.median(np.diff(wall))), DAY)
    if step < 2 * HOUR or DAY % step:
        return wall
    phases, counts = np.unique(wall % step, return_counts=True)
    late = (wall[first] - phases[np.argmax(counts)]) % step
    told = wall.copy()
    told[first] -= np.where(late <= jump[first], late, 0)
    return told


def _offset(zone: Zone, at: int) -> int:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    shift = moment.astimezone(zone).utcoffset() or timedelta()
    return int(shift.total_seconds()) * 1_000_000


@lru_cache(maxsize=8192)
def _year_changes(name: str, year: int) -> tuple[Change, ...]:
    zone = ZoneInfo(name)
    found = []
    start, end = (
        int((datetime(each, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000
        for each in (year, year + 1)
    )
    edges = [*range(start, end, 3 * DAY), end]  # some clocks were changed twice within a week
    for low, high in itertools.pairwise(edges):
        before, after = _offset(zone, low), _offset(zone, high)
        if before == after:
            continue
        while high - low > MINUTE:
            middle = (low + high) // 2 // MINUTE * MINUTE
            if middle in (low, high):
                break
            if _offset(zone, middle) == before:
                low = middle
            else:
                high = middle
        found.append(Change(high, before, after))
    return tuple(found)


def changes(zone: Zone, first: int, last: int) -> list[Change]:
    """The changes of a zone's clock between two instants, and up to two days before and after them."""
    name = getattr(zone, "key", None)
    if name is None:
        return []
    years = range(1970 + int(first // (365.2425 * DAY)) - 1, 1970 + int(last // (365.2425 * DAY)) + 2)
    every = [change for year in years for change in _year_changes(name, year)]
    return [change for change in every if first - 2 * DAY <= change.at <= last + 2 * DAY]


def _offset_before(found: list[Change], zone: Zone, first: int) -> int:
    """The offset before the first of the changes ``found``; without any, that of all times around ``first``."""
    return found[0].before if found else _offset(zone, first)


def to_wall(utc: np.ndarray, zone: Zone | None) -> np.ndarray:
    """Microseconds on the clock of a zone."""
    if zone is None or len(utc) == 0:
        return utc
    if getattr(zone, "key", None) is None:
        return utc + _offset(zone, 0)
    first, last = int(utc.min()), int(utc.max())
    every = changes(zone, first, last)
    shift = np.full(len(utc), _offset_before(every, zone, first), dtype=np.int64)
    for change in every:
        shift[utc >= change.at] = change.after
    return utc + shift


@dataclass
class Localised:
    """Instants in UTC, and the rows whose local time names no instant."""

    utc: np.ndarray
    missing: np.ndarray
    """Rows at times that the clock skips; the next that there is stands for them."""
    ambiguous: np.ndarray
    """Rows at times that come twice, where nothing tells which; the first stands for them."""
    repeated: int = 0
    """Rows at times that come twice, told apart by their order."""


def localise(
    wall: np.ndarray, zone: Zone, groups: np.ndarray | None = None, usable: np.ndarray | None = None
) -> Localised:
    """Reads wall-clock times in a zone; rows are in the order of the file, which tells a repeated hour from the first.

    Args:
        wall: microseconds on the clock.
        groups: the sensor of each row; the order counts within each.
        usable: rows that count; the others get any value.
    """
    count = len(wall)
    usable = np.ones(count, dtype=bool) if usable is None else usable
    result = Localised(wall.copy(), np.zeros(count, dtype=bool), np.zeros(count, dtype=bool))
    if not usable.any():
        return result
    if getattr(zone, "key", None) is None:
        result.utc = wall - _offset(zone, 0)
        return result
    first, last = int(wall[usable].min()), int(wall[usable].max())
    every = changes(zone, first - DAY, last + DAY)
    shift = np.full(count, _offset_before(every, zone, first), dtype=np.int64)
    for change in every:
        low, high = change.walls
        shift[wall >= high] = change.after
        rows = np.flatnonzero((wall >= low) & (wall < high) & usable)
        if len(rows) == 0:
            continue
        if change.spring:
            result.missing[rows] = True
            shift[rows] = wall[rows] - change.at
            continue
        keys = groups[rows] if groups is not None else np.zeros(len(rows), dtype=np.int64)
        order = np.argsort(keys, kind="stable")
        bounds = np.flatnonzero(np.diff(keys[order])) + 1
        for part in np.split(order, bounds):
            mine = rows[part]
            second = _second_half(wall[mine], _descends(wall, groups, usable, mine))
            if second is None:
                result.ambiguous[mine] = True
            else:
                shift[mine] = np.where(second, change.after, change.before)
                result.repeated += len(mine)
    result.utc = wall - shift
    return result


def _descends(wall: np.ndarray, groups: np.ndarray | None, usable: np.ndarray, rows: np.ndarray) -> bool:
    """Whether the file runs backwards around these rows."""
    low, high = max(0, int(rows[0]) - 20), min(len(wall), int(rows[-1]) + 21)
    near = np.arange(low, high)
    near = near[usable[near]]
    if groups is not None:
        near = near[groups[near] == groups[rows[0]]]
    steps = np.diff(wall[near])
    return int(np.sum(steps < 0)) > int(np.sum(steps > 0))


def _second_half(wall: np.ndarray, descending: bool) -> np.ndarray | None:
    """Which of the rows within a repeated hour belong to its second pass; None where nothing tells."""
    if descending:
        told = _second_half(wall[::-1], False)
        return None if told is None else told[::-1]
    back = np.flatnonzero(np.diff(wall) <= 0)
    if len(back) == 1:
        second = np.zeros(len(wall), dtype=bool)
        second[back[0] + 1 :] = True
        return second
    # Sorted by the clock: each time stands twice, the first pass first
    order = np.argsort(wall, kind="stable")
    times, counts = np.unique(wall, return_counts=True)
    if len(times) and np.all(counts == 2):
        second = np.zeros(len(wall), dtype=bool)
        second[order[1::2]] = True
        return second
    return None


@dataclass
class Signature:
    """Marks of summer time in plain local times."""

    rule: str
    zone: str
    doubled: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    against: int = 0

    @property
    def sure(self) -> bool:
        return self.against == 0 and (len(self.doubled) >= 1 or len(self.skipped) >= 2)


def summer_signature(wall: np.ndarray) -> Signature | None:
    """Compares plain local times with the rules of summer time: an hour twice, and an hour missing, on their dates.

    Returns:
        The rule that the times agree with best, if they agree with one at all.
    """
    if len(wall) < 12:
        return None
    if np.all(wall[1:] > wall[:-1]):
        times, counts = wall, np.ones(len(wall), dtype=np.int64)
    else:
        times, counts = np.unique(wall, return_counts=True)
    if len(times) < 12:
        return None
    step = int(np.median(np.diff(times)))
    if not 0 < step <= HOUR:
        return None
    best: Signature | None = None
    for rule, name in SUMMER_RULES:
        signature = Signature(rule, name)
        for change in changes(ZoneInfo(name), int(times[0]), int(times[-1])):
            low, high = change.walls
            _weigh(signature, times, counts, low, high, change.spring, step)
        if not signature.doubled and not signature.skipped:
            continue
        rank = (signature.sure, len(signature.doubled) + len(signature.skipped), -signature.against)
        if best is None or rank > (best.sure, len(best.doubled) + len(best.skipped), -best.against):
            best = signature
    return best


def _weigh(
    signature: Signature, times: np.ndarray, counts: np.ndarray, low: int, high: int, spring: bool, step: int
) -> None:
    def within(start: int, end: int) -> tuple[int, int]:
        a, b = np.searchsorted(times, [start, end])
        return int(b - a), int(counts[a:b].sum())

    expected = max(1, (high - low) // step)
    before, before_rows = within(low - 2 * HOUR, low)
    after, after_rows = within(high, high + 2 * HOUR)
    # Unless the hours around it are there, and only once, the hour says nothing
    if min(before, after) < 0.7 * 2 * HOUR / step or max(before_rows, after_rows) > 1.3 * max(before, after):
        return
    inside, rows = within(low, high)
    if spring:
        if inside == 0:
            signature.skipped.append(low)
        elif inside > 0.5 * expected:
            signature.against += 1
    elif inside >= 0.7 * expected and rows >= 1.7 * inside:
        signature.doubled.append(low)
    elif rows < 1.3 * inside and inside > 0.5 * expected:
        signature.against += 1


def distinct(offset: np.ndarray, usable: np.ndarray) -> list[int]:
    """The offsets in minutes that stand with the times, each once."""
    return sorted({int(value) for value in np.unique(offset[usable]) if value != NO_OFFSET})


def of_offsets(found: list[int], zones: set[str]) -> tuple[Zone | None, str | None]:
    """The zone of times with the offsets ``found``: the one, a zone that their names state, or UTC where they differ.

    One offset in all rows is the sensor's own clock. Several belong to a place whose clock changes, and many places
    share the changes of a year, so nobody can tell which it is.
    """
    places = [name for name in zones if "/" in name and name.split("/")[0].upper() not in ZONE_OFFSETS]
    if len(places) == 1:
        return zone_of(places[0]), f"zone {places[0]} stands with the times"
    shorts = {part for name in zones for part in name.split("/") if part in ZONE_OFFSETS}
    if (pair := ZONE_PAIRS.get(frozenset(shorts))) is not None:
        return zone_of(pair), f"times are marked {' and '.join(sorted(shorts))}; read as {pair}"
    if len(found) == 1:
        return fixed(found[0]), None
    if found:
        shown = ", ".join(label(fixed(minutes)) or "" for minutes in found[:4])
        return UTC, f"times carry different offsets ({shown}) and no zone; kept as UTC (--tz names the zone)"
    return None, None
