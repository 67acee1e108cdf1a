"""Times written as one number: digits of a date, a count since an epoch, a spreadsheet's serial number, a year."""

from __future__ import annotations

import re
from collections import Counter
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError

from .dateorder import evenness
from .look import Look, Times, named, spelled
from .timeparts import hhmm, with_clock
from .timetext import DAY, HOUR, MINUTE, SECOND, TimeText, civil_days, week_days
from .words import CLOCK_NAMES, DATE_NAMES, MOMENT_NAMES, PART_NAMES, PERIOD_NAMES

EXCEL_DAYS = 25_569
"""Days from a spreadsheet's day 0 (30 December 1899) to 1970."""
MATLAB_DAYS = 719_529
_EPOCHS = ((3e8, 4.2e9, 1_000_000, "seconds"), (3e11, 4.2e12, 1_000, "milliseconds"), (3e14, 4.2e15, 1, "microseconds"))
_NANOSECONDS = (3e17, 4.2e18)


ORDERS = {
    "ymd": ("year first", "%y%m%d", "%Y%m%d"),
    "dmy": ("day first", "%d%m%y", "%d%m%Y"),
    "mdy": ("month first", "%m%d%y", "%m%d%Y"),
    "ym": ("months", "%Y%m", ""),
    "yw": ("weeks", "%G%V", ""),
}
"""How six and eight digits make a date, in words and as strptime has it."""


def compact(look: Look) -> Times | None:
    """Dates written as one number: 20160131, 201601312359, 201601, 310116."""
    ranked = sorted(look.columns, key=lambda k: (not _told_as_date(look, k), k))
    for k in ranked:
        times = compact_one(look, k, sure=False)
        if times is not None:
            return with_clock(look, times, [j for j in look.columns if j != k]) if times.dateonly else times
    return None


def _told_as_date(look: Look, k: int) -> bool:
    """Whether the name of a column says that it holds dates."""
    name = look.name(k)
    return named(name, MOMENT_NAMES | DATE_NAMES, partly=True) or spelled(name) is not None


def compact_one(look: Look, k: int, sure: bool = True) -> Times | None:
    column = look.table.columns[k]
    if isinstance(column, pd.Series):
        if not pd.api.types.is_integer_dtype(column.dtype):
            return None
        column = pa.array([str(v) for v in column], pa.string())
    sample = [text.strip() for text in look.sample(k) or [text for text in column.slice(0, 200).to_pylist() if text]]
    digits = [text for text in sample if text.isdigit()]  # a header that comes again within the data holds none
    lengths = Counter(len(text) for text in digits)
    if not digits or len(digits) < 0.9 * len(sample):
        return None
    length = lengths.most_common(1)[0][0]
    if lengths[length] < 0.9 * len(digits) or length not in (6, 7, 8, 10, 12, 14, 17):
        return None
    if len(set(digits)) < 2 < len(digits) and not (length in (6, 8) and _clock_beside(look, k)):
        return None  # the same date in all rows, unless the clock stands beside it
    if length in (6, 8):
        return _bare_date(look, k, length, sure)
    known = sure or _told_as_date(look, k)
    text = TimeText(column)
    found = text.instants("ymd")
    if (length == 7 and not known) or not _plausible(found.wall, found.ok):
        return None
    if not known and not _regular(found.wall[found.ok]):
        return None
    return Times([k], found.wall, found.ok, f"{look.name(k)!r}", dateonly=not found.clock)


def _plausible(wall: np.ndarray, ok: np.ndarray) -> bool:
    if not ok.any() or ok.mean() <= 0.9:
        return False
    years = wall[ok].astype("datetime64[us]").astype("datetime64[Y]").astype(int) + 1970
    return bool(years.min() >= 1900 and years.max() <= 2100)


def _regular(wall: np.ndarray) -> bool:
    """Whether dates follow each other as a series has them, which numbers of stations do not."""
    times = np.unique(wall)
    return len(times) >= 3 and evenness(times)[0] >= 0.5


def _bare_date(look: Look, k: int, length: int, sure: bool) -> Times | None:
    """Six or eight digits, whose order the name, the dates that exist, or the regular series tells."""
    name = look.name(k)
    values = look.floats(k)
    whole = np.isfinite(values) & (values % 1 == 0) & (values >= 0) & (values < 10**length)
    number = np.where(whole, values, 0).astype(np.int64)
    told = spelled(name)
    weekly = named(name, PART_NAMES["week"], partly=True) or re.search(r"week|ww$|kw$", name, re.I) is not None
    monthly = told == "ym" or named(name, PART_NAMES["month"] | PERIOD_NAMES, partly=True)
    known = sure or monthly or weekly or _told_as_date(look, k)
    orders = ["ymd", "dmy", "mdy"]
    if length == 6:
        orders += ["ym"] + ["yw"] * weekly
    if look.options.dayfirst is not None:
        orders.remove("mdy" if look.options.dayfirst else "dmy")
    read: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for way in orders:
        days, possible = _days_of(number, way, length)
        possible = possible & whole
        if possible.sum() >= 0.95 * max(1, whole.sum()) and _plausible(days * DAY, possible | ~whole):
            read[way] = days * DAY, possible
    if not read or whole.mean() < 0.9:
        return None
    order: str | None = _order_of(read, told, monthly, weekly, length)
    if order is None and known:
        _refuse_order(look, k, int(np.flatnonzero(whole)[0]), list(read), length)
    if order is None:
        return None
    wall, ok = read[order]
    steps = np.diff(np.unique(wall[ok] // DAY))
    if not known and not _convincing(look, k, order, length, wall[ok]):
        return None
    if order in ("ym", "yw") and len(steps) and steps.min() < 7:
        return None
    what = f"{name!r}" if (order, length) == ("ymd", 8) else f"{name!r}, {ORDERS[order][0]}"
    return Times([k], np.where(ok, wall, 0), ok, what, dateonly=True)


def _refuse_order(look: Look, k: int, row: int, orders: list[str], length: int) -> NoReturn:
    columns, clock = [look.name(k)], ""
    if _clock_beside(look, k):
        columns.append(look.name(k + 1))
        clock = " %H%M%S" if len(look.text(k + 1, row)) > 4 else " %H%M"
    ways = " or ".join(f"'{ORDERS[order][1 if length == 6 else 2]}{clock}' ({ORDERS[order][0]})" for order in orders)
    raise InputError(
        f"{look.table.account.place(row)}: {look.text(k, row)!r} in {columns[0]!r} may be a date in several ways; pass "
        f"--time {' '.join(repr(name) for name in columns)} with --time-format {ways}"
    )


def _convincing(look: Look, k: int, order: str, length: int, wall: np.ndarray) -> bool:
    """Whether digits are dates though no name says so: numbers of stations and devices have six or eight digits too."""
    if order in ("ym", "yw"):
        months = np.unique(wall).astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        even = len(months) >= 3 and len(np.unique(np.diff(months))) == 1
        return even and float(np.mean(np.diff(wall) >= 0)) >= 0.9
    if length == 8 and order == "ymd" and (k <= 2 or _regular(wall)):
        return True
    return _clock_beside(look, k)


def _days_of(number: np.ndarray, order: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970 of digits read in an order, and which of them exist."""
    if order == "ym":
        return civil_days(number // 100, number % 100, np.ones_like(number))
    if order == "yw":
        return week_days(number // 100, number % 100, np.ones_like(number))
    year_digits = length - 4
    if order == "ymd":
        year, rest = number // 10_000, number % 10_000
        month, day = rest // 100, rest % 100
    else:
        year, rest = number % 10**year_digits, number // 10**year_digits
        month, day = (rest % 100, rest // 100) if order == "dmy" else (rest // 100, rest % 100)
    if year_digits == 2:
        year = np.where(year < 70, year + 2000, year + 1900)
    return civil_days(year, month, day)


def _order_of(
    read: dict[str, tuple[np.ndarray, np.ndarray]], told: str | None, monthly: bool, weekly: bool, length: int
) -> str | None:
    """The order in which digits are a date; None where several are left."""
    for order, says in ((told, told is not None), ("yw", weekly), ("ym", monthly), ("ymd", length == 8)):
        if says and order in read:
            return order
    if len(read) == 1:
        return next(iter(read))
    full = {order: evenness(wall[ok]) for order, (wall, ok) in read.items()}
    ranked = sorted(read, key=lambda order: full[order], reverse=True)
    (fill, steady), (other_fill, other_steady) = full[ranked[0]], full[ranked[1]]
    clear = (fill >= 0.5 and other_fill <= 0.3 * fill) or (steady and not other_steady and fill >= other_fill)
    return ranked[0] if clear else None


def _clock_beside(look: Look, k: int) -> bool:
    """Whether the next column holds times of the day as HHMM or HHMMSS."""
    if k + 1 not in look.columns or not look.numeric(k + 1):
        return False
    if named(look.name(k + 1), CLOCK_NAMES | PART_NAMES["hhmm"]):
        return True
    return hhmm(look.floats(k + 1))


def counted(look: Look) -> Times | None:
    """Seconds since 1970 and their like, and days of a spreadsheet."""
    ranked = sorted(look.columns, key=lambda k: (not named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True), k))
    for k in ranked:
        known = named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True)
        if not look.numeric(k) or not (known or k <= 1):
            continue
        times = counted_one(look, k)
        if times is None:
            continue
        forward = np.diff(times.wall[times.ok])
        if known or (len(forward) and np.mean(forward > 0) > 0.9):
            return times
    return None


def counted_one(look: Look, k: int) -> Times | None:
    values = look.floats(k)
    ok = np.isfinite(values)
    if ok.sum() == 0:
        return None
    low, high = np.quantile(values[ok], [0.02, 0.98])
    for least, most, unit, word in _EPOCHS:
        if least <= low and high < most:
            ok &= (values >= least) & (values < most)
            wall = np.round(np.where(ok, values, 0) * unit).astype(np.int64)
            return Times([k], wall, ok, f"{look.name(k)!r}, {word} since 1970", utc=True, zone="UTC")
    if _NANOSECONDS[0] <= low and high < _NANOSECONDS[1]:
        ok &= (values >= _NANOSECONDS[0]) & (values < _NANOSECONDS[1])
        # A float64 holds nanoseconds since 1970 to 256 ns
        wall = np.round(np.where(ok, values, 0) / 1000).astype(np.int64)
        return Times([k], wall, ok, f"{look.name(k)!r}, nanoseconds since 1970", utc=True, zone="UTC")
    for zero, least, most, word in (
        (EXCEL_DAYS, 20_000, 80_000, "days of a spreadsheet"),
        (MATLAB_DAYS, 700_000, 780_000, "days since year 0"),
    ):
        if least <= low and high < most:
            ok &= (values >= least) & (values < most)
            wall = np.round((np.where(ok, values, zero) - zero) * 86_400_000).astype(np.int64) * 1000
            steps = np.diff(np.unique(wall[ok]))
            if len(steps) == 0 or np.median(steps) >= 10 * SECOND:
                wall = (wall + SECOND // 2) // SECOND * SECOND
            return Times([k], wall, ok, f"{look.name(k)!r}, {word}", dateonly=bool(np.all(wall[ok] % DAY == 0)))
    return None


_ELAPSED = re.compile(
    r"(?:x_value|elapsed(?:[\s_]time)?|(?:relative|rel\.|run|test)?[\s_]?time|t|zeit|laufzeit|temps|tiempo|tempo|seconds?|sec|hours)"
    r"\s*(?:[\[(/,]\s*(?P<unit>ms|milliseconds|s|sec|secs|seconds|sekunden|min|minutes|h|hr|hours|d|days)\.?\s*[\])]?)?",
    re.I,
)
_ELAPSED_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY, "s": SECOND}
_START = re.compile(r"(?P<label>[^\d]{2,40}?)[\s:=,;]+(?P<when>\d.*)")
_START_LABELS = re.compile(
    r"start|begin|date|time|datum|zeit|recorded|acquired|measured|created|aufnahme|messung", re.I
)


def elapsed(look: Look) -> Times | None:
    """Seconds and their like since a start that the lines above the data state, as instruments write them."""
    for k in look.columns:
        column_unit = (look.table.units[k] or "").strip("[]()") if k < len(look.table.units) else ""
        match = _ELAPSED.fullmatch(look.name(k).strip())
        unit = match["unit"] or column_unit if match else ""
        if match and not unit and look.name(k).lower() in ("x_value", "seconds", "sec"):
            unit = "s"
        if not unit or not look.numeric(k):
            continue
        size = 1000 if unit.lower().startswith(("ms", "mil")) else _ELAPSED_UNITS.get(unit[0].lower(), 0)
        values = look.floats(k)
        ok = np.isfinite(values) & (np.abs(values) < 1e12)
        start = _stated_start(look.table.comments)
        if start is None or not size or ok.sum() < 2 or np.mean(np.diff(values[ok]) > 0) < 0.98:
            continue
        wall = start[0] + np.round(np.where(ok, values, 0) * size).astype(np.int64)
        times = Times([k], np.where(ok, wall, 0), ok, f"{look.name(k)!r}, counted from {start[1]!r}")
        times.notes.append(f"times are counted from the start that stands above the data: {start[1]!r}")
        return times
    return None


def _stated_start(comments: list[str]) -> tuple[int, str] | None:
    """The start that a line states, or a line with its date and one with its clock; and what these lines say."""
    date: tuple[int, str] | None = None
    for line in comments:
        match = _START.match(line.strip().strip("#;,\"' "))
        if match is None or not _START_LABELS.search(match["label"]):
            continue
        words = re.split(r"[,;\t\"]", match["when"])[0].split()
        for end in range(len(words), 0, -1):
            when = TimeText(pa.array([" ".join(words[:end])]))
            found = when.instants("dmy")
            if found.ok[0] and when.share(dated=True, clock=True) and found.offset is None:
                return int(found.wall[0]), line
            if found.ok[0] and when.share(dated=True) and date is None:
                date = int(found.wall[0]), line
            clock = TimeText(pa.array([words[0]]), clocks=True)
            if date is not None and clock.share(dated=False, clock=True):
                return date[0] + int(clock.instants().wall[0]), f"{date[1]}, {line}"
    return date


def years(look: Look) -> Times | None:
    for k in look.columns:
        if (k == 0 or named(look.name(k), PART_NAMES["year"])) and (times := years_one(look, k)) is not None:
            return times
    return None


def years_one(look: Look, k: int) -> Times | None:
    values = look.floats(k)
    ok = np.isfinite(values) & (values % 1 == 0) & (values >= 1800) & (values <= 2200)
    if ok.sum() < max(2, 0.9 * len(values)) or len(np.unique(values[ok])) < 2 or np.any(np.diff(values[ok]) == 0):
        return None
    days, _ = civil_days(
        np.where(ok, values, 1970).astype(np.int64), np.ones(len(values), np.int64), np.ones(len(values), np.int64)
    )
    return Times([k], np.where(ok, days * DAY, 0), ok, f"{look.name(k)!r}, years", dateonly=True)
