"""The grid that times lie on: its step, which times belong to which of its places, and what shares a place."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.tseries import offsets
from pandas.tseries.offsets import BaseOffset

from mha_apps.errors import InputError

from .account import Account
from .timetext import DAY, HOUR, MINUTE, SECOND
from .zones import Zone, at_first, put_back

MILLISECOND = 1000
NICE = tuple(
    [k * MILLISECOND for k in (1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500)]
    + [k * SECOND for k in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30)]
    + [k * MINUTE for k in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30)]
    + [k * HOUR for k in (1, 2, 3, 4, 6, 8, 12)]
    + [DAY, 7 * DAY]
)
"""Steps that loggers are set to."""


@dataclass
class Step:
    """A regular sequence of times: ``micros`` apart from ``origin`` on, or as a calendar and its clock have them.

    A day of the calendar may have 23 or 25 hours; hours that go by the clock, such as 0, 6, 12 and 18, are of it too.
    """

    offset: BaseOffset
    micros: int | None
    """Microseconds between two places (UTC); None where the calendar and the clock tell them."""
    origin: int
    """One place of the grid: UTC for a fixed step, the first time of a day for one of the calendar."""
    how: str
    """exact, jittered, irregular, calendar or stated"""

    @property
    def key(self) -> tuple[str, int]:
        if self.micros:
            return self.name, self.origin % self.micros
        return self.name, -1 - self.origin if isinstance(self.offset, offsets.Hour) else self.origin

    @property
    def name(self) -> str:
        return name_of(self.offset)

    @property
    def approximate(self) -> int:
        """About how many microseconds lie between two places."""
        if self.micros:
            return self.micros
        start = pd.Timestamp("2024-01-01")
        return max(1, int(((start + 12 * self.offset) - start).total_seconds() * 1e6 / 12))


def offset_of(name: str) -> BaseOffset:
    """The step of a name such as ``15min``, ``D``, ``W-SUN`` or, for the same day of each month, ``months=1``.

    Raises:
        ValueError: it is the name of none.
    """
    months = re.fullmatch(r"months=(\d+)", name)
    try:
        found = pd.DateOffset(months=int(months[1])) if months else pd.tseries.frequencies.to_offset(name)
    except TypeError as error:
        raise ValueError(f"Invalid frequency: {name}") from error
    if found is None:
        raise ValueError(f"Invalid frequency: {name}")
    return found


def name_of(offset: BaseOffset) -> str:
    """What :func:`offset_of` takes."""
    try:
        text = str(offset.freqstr)
    except (ValueError, AttributeError):
        text = str(offset)
    return text.strip("<>").removeprefix("DateOffset: ") if "DateOffset" in text else text


def tick(micros: int) -> BaseOffset:
    """The offset of a fixed step, in its largest unit."""
    if micros % DAY == 0:
        return offsets.Hour(micros // HOUR)
    for unit, offset in (
        (HOUR, offsets.Hour),
        (MINUTE, offsets.Minute),
        (SECOND, offsets.Second),
        (MILLISECOND, offsets.Milli),
    ):
        if micros % unit == 0:
            return offset(micros // unit)
    return offsets.Micro(micros)


def _mode(values: np.ndarray) -> int:
    likely = int(np.median(values[:: max(1, len(values) // 1001)]))
    if 2 * np.count_nonzero(values == likely) > len(values):
        return likely
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


def infer(utc: np.ndarray, wall: np.ndarray) -> Step | None:
    """The step of sorted, distinct times (in UTC, and on their clock); None for fewer than two."""
    if len(utc) < 2:
        return None
    told = put_back(utc, wall)
    clock = told % DAY
    days = told // DAY
    if clock[0] == clock[-1] and np.all(clock == clock[0]) and np.all(np.diff(days) > 0):
        return Step(_calendar(days), None, int(clock[0]), "calendar")
    return _by_clock(utc, told) or _fixed(utc, wall)


def _by_clock(utc: np.ndarray, wall: np.ndarray) -> Step | None:
    """The step of times that stay at the same hours of the day although the clock changes; None for others."""
    if wall[0] - utc[0] == wall[-1] - utc[-1] and np.all(wall - utc == wall[0] - utc[0]):
        return None
    step = _mode(np.diff(wall))
    if not 2 * HOUR <= step < DAY or DAY % step:
        return None
    phase = _mode(wall % step)
    if np.mean(wall % step == phase) < 0.98 or np.mean((utc - utc[0]) % step == 0) == 1.0:
        return None
    return Step(offsets.Hour(step // HOUR), None, phase, "calendar") if step % HOUR == 0 else None


def _calendar(days: np.ndarray) -> BaseOffset:
    """The calendar offset of ascending days since 1970."""
    steps = np.diff(days)
    weekday = (days + 3) % 7
    if steps.min() >= 28 and (monthly := _monthly(days)) is not None:
        return monthly
    usual = _mode(steps)
    if usual % 7 == 0 and np.mean(steps % 7 == 0) >= 0.9:
        weeks = int(np.gcd.reduce(steps[steps % 7 == 0])) // 7
        return offsets.Week(weeks, weekday=int(_mode(weekday)))
    over_weekend = int(np.sum((steps == 3) & (weekday[1:] == 0)))
    if usual == 1 and not np.any(weekday >= 5) and over_weekend:
        return offsets.BusinessDay()
    if np.mean(steps % usual == 0) >= 0.9:
        return offsets.Day(usual)
    return offsets.Day(1)


def _monthly(days: np.ndarray) -> BaseOffset | None:
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    number = months.astype(np.int64)
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    length = ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64)
    gaps = np.diff(number)
    if gaps.min() < 1:
        return None
    every = int(np.gcd.reduce(gaps))
    month = int(number[0] % 12) + 1
    if np.all(day == 1):
        if every % 12 == 0:
            return offsets.YearBegin(every // 12, month=month)
        if every % 3 == 0 and 12 % every == 0 and every == 3:
            return offsets.QuarterBegin(startingMonth=(month - 1) % 3 + 1)
        return offsets.MonthBegin(every)
    if np.all(day == length):
        if every % 12 == 0:
            return offsets.YearEnd(every // 12, month=month)
        if every == 3:
            return offsets.QuarterEnd(startingMonth=(month - 1) % 3 + 10)
        return offsets.MonthEnd(every)
    index = pd.DatetimeIndex(dates)
    if all(offsets.BMonthEnd().is_on_offset(stamp) for stamp in index):
        return offsets.BMonthEnd(every)
    if all(offsets.BMonthBegin().is_on_offset(stamp) for stamp in index):
        return offsets.BMonthBegin(every)
    if np.all(day == day[0]) and day[0] <= 28:
        return pd.DateOffset(months=every)
    return None


def _fixed(utc: np.ndarray, wall: np.ndarray) -> Step:
    steps = np.diff(utc)
    count, span = len(utc), int(utc[-1] - utc[0])
    usual = _mode(steps)
    residue = _mode((utc - utc[0]) % usual)
    on_grid = float(np.mean((utc - utc[0]) % usual == residue))
    origin = int(utc[0]) + residue
    if on_grid == 1.0 and span // usual <= 1000 * count + 100_000:
        return Step(tick(usual), usual, origin, "exact")
    found, counts = np.unique(steps, return_counts=True)
    common = found[counts >= max(2, 0.005 * count)]
    if len(common):
        finest = int(np.gcd.reduce(common))
        residue = _mode((utc - utc[0]) % finest)
        share = float(np.mean((utc - utc[0]) % finest == residue))
        # A finer grid that holds all times, as when a logger changes its step, unless it is mostly empty
        if share >= 0.98 and span // finest <= 20 * count:
            return Step(tick(finest), finest, int(utc[0]) + residue, "exact")
    if on_grid >= 0.9 or (count >= 5 and round(on_grid * count) == count - 1):
        return Step(tick(usual), usual, origin, "exact")
    return _jittered(utc, wall, steps, span)


def _jittered(utc: np.ndarray, wall: np.ndarray, steps: np.ndarray, span: int) -> Step:
    """Times that scatter about a grid, or follow none."""
    count = len(utc)
    median = float(np.median(steps))
    near = min(NICE, key=lambda nice: abs(np.log(nice / median)))
    choices = [near] if abs(np.log(near / median)) < 0.15 else []
    choices += [nice for nice in reversed(NICE) if nice < median * 1.15 and nice not in choices]
    fallback = near
    for k, nice in enumerate(choices):
        if span // nice > 20 * count + 1000:
            break
        origin = _origin(utc, wall, nice)
        places = (utc - origin + nice // 2) // nice
        sharing = 1 - len(np.unique(places)) / count
        scatter = np.abs(utc - origin - places * nice)
        if sharing <= (0.03 if nice == near else 0.05):
            how = (
                "jittered"
                if k == 0 and nice == near and float(np.quantile(scatter, 0.9)) <= 0.4 * nice
                else "irregular"
            )
            return Step(tick(nice), nice, origin, how)
        fallback = nice
    return Step(tick(fallback), fallback, _origin(utc, wall, fallback), "irregular")


def _origin(utc: np.ndarray, wall: np.ndarray, step: int) -> int:
    """A place of the grid: on the round times of the clock, unless the times cluster elsewhere."""
    angle = 2 * np.pi * (wall % step) / step
    centre = np.angle(np.mean(np.exp(1j * angle))) / (2 * np.pi) * step
    spread = abs(np.mean(np.exp(1j * angle)))
    shift = int(wall[0] - utc[0])
    base = (int(utc[0]) + shift) // step * step - shift
    if abs(centre) <= 0.25 * step or spread < 0.5:
        return base
    unit = next((u for u in (MINUTE, SECOND, MILLISECOND) if step >= 20 * u), 1)
    return base + round(float(centre) / unit) * unit


def stated(freq: str, utc: np.ndarray, wall: np.ndarray) -> Step:
    """The grid of a stated frequency, through the first of sorted times where that is possible.

    Raises:
        InputError: if ``freq`` is no frequency.
    """
    try:
        offset = offset_of(freq)
    except ValueError:
        offset = None
    if offset is None or getattr(offset, "n", 1) < 1:
        raise InputError(f"--freq {freq!r}: not a frequency; pass one such as 15min, 1h, D, W-SUN, MS or B")
    micros = _micros(offset)
    if micros is not None:
        if micros < 1:
            raise InputError(f"--freq {freq!r}: finer than a microsecond, which times are kept to; pass a longer one")
        return Step(offset, micros, _origin(utc, wall, micros), "stated")
    clock = int(_mode(wall % DAY)) if len(wall) else 0
    return Step(offset, None, clock, "stated")


def _micros(offset: BaseOffset) -> int | None:
    if isinstance(offset, offsets.Tick) and not isinstance(offset, offsets.Day):
        return int(pd.Timedelta(offset).value // 1000)
    return None


class Grid:
    """The places of a step over a span of local times, counted from 0."""

    def __init__(self, step: Step, utc: np.ndarray, wall: np.ndarray) -> None:
        self.step = step
        self._dates = _dates(step, wall) if step.micros is None else None

    @classmethod
    def spanning(cls, grids: list[Grid]) -> Grid:
        """One grid over the spans of several that have its step."""
        nothing = np.zeros(1, dtype=np.int64)
        walls = [grid._dates[[0, -1]] for grid in grids if grid._dates is not None]
        return cls(grids[0].step, nothing, np.concatenate(walls) if walls else nothing)

    def place_of(self, other: Grid) -> int:
        """The place here of the other's first."""
        if self._dates is not None and other._dates is not None:
            return int(np.searchsorted(self._dates, other._dates[0]))
        return (other.step.origin - self.step.origin) // (self.step.micros or 1)

    def places(self, utc: np.ndarray, wall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest place of each time, and how far off it is (microseconds)."""
        if self._dates is None:
            micros = self.step.micros or 1
            number = (utc - self.step.origin + micros // 2) // micros
            return number, utc - self.step.origin - number * micros
        wall = put_back(utc, wall)
        middle = self._dates[:-1] + np.diff(self._dates) // 2
        number = np.searchsorted(middle, wall, side="right")
        return number, wall - self._dates[number]

    def index(self, low: int, high: int, zone: Zone | None) -> pd.DatetimeIndex:
        """The times of the places ``low`` to ``high`` in the zone, with a ``freq``.

        Without one where they are regular on the clock and not as time passes.
        """
        offset, periods = self.step.offset, high - low + 1
        if self._dates is None:
            start = pd.Timestamp(self.step.origin + low * (self.step.micros or 1), unit="us")
            if zone is not None:
                start = start.tz_localize("UTC").tz_convert(zone)
            return pd.date_range(start, periods=periods, freq=offset, name="time", unit=UNIT)
        walls = self._dates[low : high + 1]
        start = pd.Timestamp(int(walls[0]), unit="us")
        if zone is None:
            return pd.date_range(start, periods=periods, freq=offset, name="time", unit=UNIT)
        try:
            made = pd.date_range(start.tz_localize(zone), periods=periods, freq=offset, name="time", unit=UNIT)
            if np.array_equal(made.tz_localize(None).as_unit("us").asi8, walls):
                return made
        except (ValueError, TypeError):
            pass
        # Steps by the clock are not all as long, and on the day of its change their time may not exist, or come twice
        return at_first(pd.DatetimeIndex(walls.view("datetime64[us]"), name="time").as_unit(UNIT), zone)


def _dates(step: Step, wall: np.ndarray) -> np.ndarray:
    """The dates of a calendar offset that cover local times, in microseconds."""
    clock = pd.Timedelta(microseconds=step.origin)
    first = (pd.Timestamp(int(wall.min()), unit="us") - clock).normalize()
    last = (pd.Timestamp(int(wall.max()), unit="us") - clock).normalize() + pd.Timedelta(days=1)
    begin = first if step.offset.is_on_offset(first) else step.offset.rollback(first)
    dates = pd.date_range(begin, last + step.offset + step.offset, freq=step.offset).as_unit("us").asi8 + step.origin
    needed = max(0, int(np.searchsorted(dates, wall.min(), side="right")) - 1)
    return dates[needed:]


UNIT = pd.date_range("2024-01-01", periods=2, freq="h").unit
"""The resolution that this version of pandas gives to a range of times."""


def far_off(utc: np.ndarray) -> tuple[int, int]:
    """The range of sorted times that belong together; those before and after lie far off and are few."""
    low, high = 0, len(utc)
    few = max(1, int(0.02 * len(utc)))
    if len(utc) < 20:
        return low, high
    steps = np.diff(utc)
    usual = max(float(np.median(steps)), 1.0)
    for _ in range(10):
        part = steps[low : high - 1]
        if len(part) < 10:
            break
        at = int(np.argmax(part))
        gap, left, right = int(part[at]), at + 1, len(part) - at
        larger = (utc[low + at] - utc[low]) if left > right else (utc[high - 1] - utc[low + at + 1])
        if min(left, right) > few or gap < 3 * larger or gap < 200 * usual or gap < 30 * DAY:
            break
        if left < right:
            low += left
        else:
            high -= right
    return low, high


def settle(
    account: Account,
    names: list[str],
    values: list[np.ndarray],
    order: np.ndarray,
    keys: np.ndarray,
    *,
    rule: str,
    same: str,
    other: str,
) -> tuple[int, int]:
    """Decides between rows that claim the same place.

    Rows that agree wherever both have a value are merged: what one lacks, another gives. Rows that disagree compete,
    and ``rule`` (last, first or mean) decides. A row that gives no cell is set aside.

    Args:
        account: receives what is set aside.
        names, values: of the columns.
        order: rows in use, sorted by ``keys`` and, within a key, as in the file.
        keys: of the rows in ``order``.
        rule: last, first or mean.
        same, other: the reasons for rows that add nothing, and for rows that lost.

    Returns:
        How many rows added nothing, and how many lost.
    """
    if len(keys) < 2:
        return 0, 0
    equal = keys[1:] == keys[:-1]
    if not equal.any():
        return 0, 0
    member = np.zeros(len(keys), dtype=bool)
    member[1:] |= equal
    member[:-1] |= equal
    rows, group_keys = order[member], keys[member]
    starts = np.flatnonzero(np.concatenate([[True], group_keys[1:] != group_keys[:-1]]))
    group = np.cumsum(np.concatenate([[False], group_keys[1:] != group_keys[:-1]]))
    ends = np.append(starts[1:], len(rows)) - 1
    conflict = np.zeros(len(starts), dtype=bool)
    with np.errstate(invalid="ignore"):
        for name, column in zip(names, values, strict=True):
            cells = np.where(account.cells[name].open[rows], column[rows], np.nan)
            low, high = np.fmin.reduceat(cells, starts), np.fmax.reduceat(cells, starts)
            conflict |= low < high
    # Of rows that agree the first stays, and the repeat is set aside
    winner = np.where(conflict & (rule != "first"), ends, starts)
    chosen_row = np.zeros(len(rows), dtype=bool)
    chosen_row[winner] = True
    here = np.arange(len(rows))
    twin = np.ones(len(rows), dtype=bool)
    supplier = np.zeros(len(rows), dtype=bool)
    empty = np.ones(len(starts), dtype=bool)
    for name, column in zip(names, values, strict=True):
        ledger = account.cells[name]
        present = ledger.open[rows] & np.isfinite(column[rows])
        mine, theirs = column[rows], column[rows[winner]][group]
        twin &= (mine == theirs) | (~np.isfinite(mine) & ~np.isfinite(theirs))
        if rule == "mean":
            best = np.maximum.reduceat(np.where(present, here, -1), starts)
            total = np.add.reduceat(np.where(present, column[rows], 0.0), starts)
            number = np.add.reduceat(present.astype(np.int64), starts)
            several = (best >= 0) & conflict
            column[rows[best[several]]] = total[several] / number[several]
        else:
            best = np.minimum.reduceat(np.where(present, here, len(rows)), starts)
            best = np.where(best == len(rows), -1, best)
            best = np.where(conflict, np.where(present[winner], winner, -1), best)
        gives = np.zeros(len(rows), dtype=bool)
        gives[best[best >= 0]] = True
        supplier |= gives
        empty &= best < 0
        ledger.set_aside(rows[present & ~gives], "duplicate")
    used = supplier | (chosen_row & (empty[group] | (conflict[group] & (rule != "mean"))))
    lost = ~used
    agree = lost & (~conflict[group] | twin)
    first = account.rows.set_aside(rows[agree], same)
    second = account.rows.set_aside(rows[lost & ~agree], other)
    return first, second
