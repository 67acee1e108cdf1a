"""From the clock to instants: the zone told or stated, the repeated hour, and clocks that hide a summer time."""

from __future__ import annotations

import re

import numpy as np

from mha_apps.errors import InputError

from . import zones
from .options import ReadOptions
from .reading import Reading
from .timetext import DAY, HOUR, MINUTE, NO_OFFSET
from .words import MANY_ZONES, ZONE_OFFSETS, ZONE_PAIRS


def localise(reading: Reading, told: ReadOptions) -> None:
    """The instants of all rows in UTC (or on a clock without a zone), and the zone."""
    times, block, account, table = reading.times, reading.block, reading.table.account, reading.table
    wanted = zones.zone_of(told.tz) if told.tz else None
    wall = times.wall
    # Hours that run from 1 to 24 or 25 name the end of an hour; the clock is read at its start
    ending = HOUR if times.hours is not None and times.hours.ending else 0
    if times.utc:
        block.utc, block.zone = wall, wanted or (zones.zone_of(times.zone) if times.zone else None)
        return
    if times.offset is not None:
        found = zones.distinct(times.offset, account.rows.open)
        reading.offsets = [zones.label(zones.fixed(minutes)) or "" for minutes in found]
        zone, note = zones.of_offsets(found, times.zones)
        if zone is not None and (place := _place_of(reading, zone)) is not None:
            zone, note = place, None
        if note:
            table.notes.append(note)
        has = times.offset != NO_OFFSET
        if has.any():
            account.rows.set_aside(~has, "no offset, as the other times have")
            block.utc, block.zone = wall - np.where(has, times.offset, 0).astype(np.int64) * MINUTE, wanted or zone
            return
        if zone is not None:
            _read_clock(reading, wall, zone, ending)
            block.zone = wanted or zone
            return
    if wanted is None:
        _say_unclear(reading)
    stated = zones.stated_zone([table.names[k] for k in times.columns], table.comments)
    if stated is not None:
        zone = _zone_by_name(stated[0], wall[account.rows.open] - ending)
        table.notes.append(f"zone {zones.label(zone)} is stated by {stated[1]}")
        _read_clock(reading, wall, zone, ending)
        block.zone = wanted or zone
        return
    if wanted is not None:
        _read_clock(reading, wall, wanted, ending)
        block.zone = wanted
        return
    _check_clock(reading, ending)
    block.utc, block.zone = wall, None


def _place_of(reading: Reading, zone: zones.Zone) -> zones.Zone | None:
    """The place that the name of a time column states, where the offsets of the times are those of its clock."""
    stated = zones.stated_zone([reading.table.names[k] for k in reading.times.columns], [])
    if stated is None or "/" not in stated[0] or reading.times.offset is None or getattr(zone, "key", None) is not None:
        return None
    place, offset = zones.zone_of(stated[0]), reading.times.offset
    rows = np.flatnonzero(reading.table.account.rows.open & (offset != NO_OFFSET))
    shift = offset[rows].astype(np.int64) * MINUTE
    utc = reading.times.wall[rows] - shift
    return place if np.array_equal(zones.to_wall(utc, place) - utc, shift) else None


def _say_unclear(reading: Reading) -> None:
    """Says of an abbreviation such as IST, with the times or in their name, that it names several zones."""
    words = set(reading.times.unclear)
    for k in reading.times.columns:
        words |= set(re.findall(r"(?<![A-Za-z])([A-Z]{3})(?![A-Za-z])", reading.table.names[k])) & set(MANY_ZONES)
    for word in sorted(words):
        reading.table.notes.append(
            f"times are marked {word!r}, which names no one zone ({MANY_ZONES[word]}); they stay without a zone "
            "(--tz tells it)"
        )


def _zone_by_name(name: str, wall: np.ndarray) -> zones.Zone:
    """An abbreviation such as CET means a fixed offset, unless the clock shows summer time."""
    if name not in ZONE_OFFSETS or name in ("UTC", "GMT", "Z", "UT"):
        return zones.zone_of(name)
    pair = next((zone for names, zone in ZONE_PAIRS.items() if name in names), None)
    signature = zones.summer_signature(wall) if pair is not None else None
    if pair is not None and signature is not None and signature.sure:
        return zones.zone_of(pair)
    return zones.fixed(ZONE_OFFSETS[name])


def _read_clock(reading: Reading, wall: np.ndarray, zone: zones.Zone, ending: int) -> None:
    block, account = reading.block, reading.table.account
    usable = account.rows.open
    times = reading.times
    hours = times.hours
    if hours is not None and hours.ok[usable].any() and hours.numbered_in(zone):
        midnight = zones.localise(hours.day, zone, usable=usable)
        block.utc = midnight.utc + (wall - hours.day)
        ends = zones.localise(hours.day + DAY, zone, usable=usable).utc
        account.rows.set_aside(block.utc - ending >= ends, "hour that the day does not have")
        reading.table.notes.append("hours are numbered through the days on which the clock changes")
        return
    if hours is not None:
        account.rows.set_aside(hours.ok & (hours.number > 24 * hours.per_hour), "hour that the day does not have")
    local = zones.localise(wall - ending, zone, block.codes, usable)
    # No other row can be meant by the time that stands for it where rows are far apart; a date is its first moment
    if not (times.dateonly or _hours_apart(wall[usable])):
        if np.any(wall[usable] % DAY):
            account.rows.set_aside(local.missing, "local time that the clock skips")
        account.rows.set_aside(local.ambiguous, "local time that comes twice")
    block.utc, reading.repeated = local.utc + ending, local.repeated


def _hours_apart(wall: np.ndarray) -> bool:
    """Whether most of the times are two hours apart or more, so that a changing clock skips or repeats one at most."""
    times = np.unique(wall)
    return len(times) > 1 and float(np.median(np.diff(times))) >= 2 * HOUR


def _check_clock(reading: Reading, ending: int) -> None:
    """Stops where plain times hide a summer time: an hour would be lost, and half of the year be an hour off."""
    block, account = reading.block, reading.table.account
    rows = np.flatnonzero(account.rows.open)
    if block.codes is not None and len(rows):
        busiest = np.argmax(np.bincount(block.codes[rows]))
        rows = rows[block.codes[rows] == busiest]
    wall = reading.times.wall[rows] - ending
    hours = reading.times.hours
    if hours is not None and (found := hours.may_be_numbered()) is not None:
        row = int(rows[np.argmax(hours.day[rows] >= found[1])])
        raise InputError(
            f"{account.place(row)}: {found[0]}, as where hours are numbered through the day of a change of the clock; "
            "pass --tz, such as --tz Europe/Berlin (or --tz UTC, if it never changes)"
        )
    if hours is not None:
        account.rows.set_aside(hours.ok & (hours.number > 24 * hours.per_hour), "hour that the day does not have")
        rows = rows[account.rows.open[rows]]
        wall = reading.times.wall[rows] - ending
    signature = zones.summer_signature(wall)
    if signature is None:
        return
    if signature.sure:
        at = (signature.doubled or signature.skipped)[0]
        row = int(rows[np.argmin(np.abs(wall - at))])
        marks = [f"an hour comes twice on {_day(t)}" for t in signature.doubled[:1]]
        marks += [f"an hour is missing on {_day(t)}" for t in signature.skipped[:1]]
        raise InputError(
            f"{account.place(row)}: the times look like {signature.rule} rules of summer time ({', '.join(marks)}); "
            f"pass --tz, such as --tz {signature.zone}"
        )
    if signature.skipped and not signature.against:
        reading.table.notes.append(
            f"an hour is missing on {_day(signature.skipped[0])}, as under {signature.rule} rules of summer time; "
            f"if the clock is local, pass --tz, such as --tz {signature.zone}"
        )


def _day(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))
