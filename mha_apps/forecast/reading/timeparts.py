"""Times in several columns: a date and its clock, hour or period; year, month and day; the arrays of older loggers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from .hours import Hours
from .layout import codes_of
from .look import Look, Times, named
from .timetext import DAY, HOUR, MINUTE, SECOND, TimeText, civil_days, week_days, year_days
from .words import CLOCK_NAMES, MONTHS, PART_NAMES, PERIOD_NAMES, SERIES_NAMES


def with_clock(look: Look, times: Times, others: Sequence[int]) -> Times:
    """Adds the time of the day that stands in another column, as text or as numbers."""
    date_name = look.name(times.columns[0])
    if not look.options.time and _daily(
        look, times, others
    ):  # sunrise or the hour of a peak are values of a day, not its clock
        others = [k for k in others if named(look.name(k), _PLAIN_CLOCKS) or _same_clock(look, k)]
    clocks = [k for k in others if look.clock_share(k) >= 0.6 and not isinstance(look.table.columns[k], pd.Series)]
    clocks.sort(key=lambda k: (not named(look.name(k), CLOCK_NAMES, partly=True), abs(k - times.columns[0])))
    if clocks:
        k = clocks[0]
        text = TimeText(look.table.columns[k], clocks=True)
        found = text.instants()
        if found.offset is not None:
            times.offset, times.zones = found.offset, times.zones | found.zones
        times.unclear |= found.unclear
        if any(layout.interval for layout, _, _ in text.groups):
            times.notes.append("times are intervals; each row stands at the start of its own")
        times.wall, times.ok = times.wall + found.wall, times.ok & found.ok
        times.columns.append(k)
        times.what += f" and {look.name(k)!r}"
        times.dateonly = False
        return with_milliseconds(look, times)
    numeric = [k for k in others if look.numeric(k)]
    period = next((k for k in numeric if named(look.name(k), PERIOD_NAMES)), None)
    if period is not None and _add_periods(look, times, period):
        return times
    hour = next((k for k in numeric if named(look.name(k), PART_NAMES["hhmm"])), None)
    hour = hour if hour is not None else look.part("hour", times.columns)
    if hour is None or hour not in others:
        hour = next((k for k in numeric if named(look.name(k), CLOCK_NAMES, partly=True)), None)
    if hour is None and (look.options.time or len(np.unique(times.wall[times.ok])) < 0.75 * times.ok.sum()):
        # No name tells: numbers that run through the hours, the periods or the minutes of each date
        near = sorted(numeric, key=lambda k: (k < times.columns[0], abs(k - times.columns[0])))
        hour = next((k for k in near if look.options.time or _cycles(times, look.floats(k))), None)
        if (
            hour is not None
            and not look.options.time
            and look.floats(hour)[times.ok].max() > 25
            and _add_periods(look, times, hour)
        ):
            return times
    if hour is None:
        labelled = next((k for k in others if named(look.name(k), CLOCK_NAMES | PART_NAMES["hour"], partly=True)), None)
        return _lettered(look, times, labelled) if labelled is not None else times
    return _add_hours(look, times, hour, date_name)


def with_milliseconds(look: Look, times: Times) -> Times:
    """Adds the milliseconds that stand in a column next to the clock."""
    k = max(times.columns) + 1
    if k in look.columns and look.name(k).strip().lower() in ("ms", "msec", "millisecond", "milliseconds", "millis"):
        values = look.floats(k) if look.numeric(k) else np.array([np.nan])
        good = np.isfinite(values) & (values >= 0) & (values < 1000) & (values % 1 == 0)
        if good[times.ok].all() if len(good) == len(times.ok) else False:
            times.wall = times.wall + np.where(times.ok, values, 0).astype(np.int64) * (SECOND // 1000)
            times.columns.append(k)
            times.what += f" and {look.name(k)!r}"
    return times


_PLAIN_CLOCKS = (CLOCK_NAMES | PART_NAMES["hour"] | PART_NAMES["hhmm"]) - frozenset(
    {"hours", "hrs", "stunden", "heures", "horas", "ore"}
)
"""Names of a clock and of nothing else; the plural counts hours of something."""


def _daily(look: Look, times: Times, others: Sequence[int]) -> bool:
    """Whether dates alone make a series, or one for each sensor that another column names."""
    rows = np.flatnonzero(times.ok)
    if _once_a_day(times.wall[rows], np.zeros(len(rows), dtype=np.int64)):
        return True
    for k in others:
        if (look.numeric(k) and not named(look.name(k), SERIES_NAMES)) or look.date_share(k) > 0:
            continue
        codes, found = codes_of(look.table.columns[k])
        if 2 <= len(found) <= len(rows) / 3 and (codes[rows] >= 0).all() and _once_a_day(times.wall[rows], codes[rows]):
            return True
    return False


def _once_a_day(days: np.ndarray, sensors: np.ndarray) -> bool:
    """Whether each day occurs once for a sensor, and most follow the day before."""
    order = np.lexsort((days, sensors))
    days, sensors = days[order], sensors[order]
    gaps = np.diff(days)[sensors[1:] == sensors[:-1]]
    return len(gaps) > 1 and bool((gaps > 0).all()) and bool(np.median(gaps) == DAY)


def _same_clock(look: Look, k: int) -> bool:
    """Whether a column that is named as a clock in part holds one time of the day throughout."""
    return (
        named(look.name(k), CLOCK_NAMES, partly=True)
        and look.clock_share(k) >= 0.6
        and len({text.strip() for text in look.sample(k)}) == 1
    )


def _add_periods(look: Look, times: Times, k: int) -> bool:
    """Adds half hours or quarters of an hour that are numbered through the day; the number 1 starts it."""
    values = look.floats(k)
    ok = times.ok & (values >= 1) & (values <= 100) & (values % 1 == 0)
    most = float(values[ok].max()) if ok.any() else 0.0
    minutes = 30 if 46 <= most <= 50 else 15 if 92 <= most <= 100 else None
    if minutes is None or ok.sum() < 0.9 * times.ok.sum():
        return False
    times.hours = Hours(times.wall.copy(), np.where(ok, values, 0).astype(np.int64), ok, 60 // minutes)
    times.wall = np.where(ok, times.wall + (np.where(ok, values, 1).astype(np.int64) - 1) * minutes * MINUTE, 0)
    times.ok = ok
    times.columns.append(k)
    times.what += f" and {look.name(k)!r} of {minutes} minutes"
    times.dateonly = False
    return True


def hhmm(values: np.ndarray) -> bool:
    """Whether numbers are times of the day as HHMM or HHMMSS."""
    found = values[np.isfinite(values)]
    if len(found) < 2 or np.any(found % 1) or found.min() < 0 or found.max() > 240_000:
        return False
    if found.max() > 2400:
        return bool(found.max() >= 10_000 and np.all(found // 100 % 100 < 60) and np.all(found % 100 < 60))
    return bool(found.max() > 59 and np.all(found % 100 < 60) and len(np.unique(found)) > 1)


def _cycles(times: Times, values: np.ndarray) -> bool:
    """Whether numbers run through the hours, the periods or the minutes of each date, and tell its rows apart."""
    ok = times.ok & np.isfinite(values)
    if ok.sum() < 24 or not np.all((values[ok] >= 0) & (values[ok] % 1 == 0)):
        return False
    most, distinct = values[ok].max(), len(np.unique(values[ok]))
    hours = most <= 25 and distinct >= 20
    periods = values[ok].min() == 1 and most in (48, 50, 96, 100) and distinct >= 0.9 * most
    if not (hours or periods or (distinct >= 20 and hhmm(values[ok]))):
        return False
    keys = times.wall[ok] // DAY * 1_000_000 + values[ok].astype(np.int64)
    return len(np.unique(keys)) >= 0.98 * len(keys)


def _lettered(look: Look, times: Times, k: int) -> Times:
    """Hours such as 3A and 3B, as markets write the repeated hour."""
    column = look.table.columns[k]
    if not isinstance(column, pa.Array):
        return times
    texts = column.to_pylist()
    matches = [re.fullmatch(r"\s*(\d{1,2})\s*([AaBbXx*]?)\s*", text or "") for text in texts]
    if sum(match is not None for match in matches) < 0.9 * len(matches):
        return times
    look.put(k, np.array([float(match[1]) if match else np.nan for match in matches]))
    return _add_hours(look, times, k, look.name(times.columns[0]))


def _add_hours(look: Look, times: Times, k: int, date_name: str) -> Times:
    """Adds hours, hours and minutes as one number, or a fraction of the day; with minutes and seconds beside."""
    values = look.floats(k)
    ok = times.ok & (np.abs(values) < 240_000)
    # A few wrong cells do not turn hours into HHMM
    most = float(np.quantile(values[ok], 0.98, method="higher")) if ok.any() else 0.0
    most = float(np.quantile(values[ok], 0.98, method="lower")) if most > 25 >= np.quantile(values[ok], 0.9) else most
    least = float(values[ok].min()) if ok.any() else 0.0
    times.columns.append(k)
    times.what += f" and {look.name(k)!r}"
    times.dateonly = False
    values = np.where(ok, values, 0.0)
    if most <= 1.0 and bool(np.any(values % 1)) and not named(look.name(k), PART_NAMES["hour"]):
        clock = np.round(values * 86_400).astype(np.int64) * SECOND
        ok &= (values >= 0) & (values <= 1)
    elif most > 25:
        if most > 2400:  # HHMMSS
            hour, minute, second = values // 10_000, values // 100 % 100, values % 100
        else:
            hour, minute, second = values // 100, values % 100, 0 * values
        ok &= (hour >= 0) & (hour <= 24) & (minute < 60) & (second < 60)
        clock = (hour * HOUR + minute * MINUTE + second * SECOND).astype(np.int64)
    else:
        ok &= (values >= 0) & (values <= 25)
        values = np.where(ok, values, 0.0)
        times.hours = Hours(times.wall.copy(), values.astype(np.int64), ok & (values % 1 == 0))
        clock = np.round(values * HOUR).astype(np.int64)
        for part, unit in (("minute", MINUTE), ("second", SECOND)):
            j = look.part(part, times.columns)
            if j is None:
                break
            more = np.where(np.abs(look.floats(j)) < 1e6, look.floats(j), np.nan)
            if np.any(more[ok & np.isfinite(more)] >= 61) or np.any(more[ok & np.isfinite(more)] < 0):
                break
            ok &= np.isfinite(more)
            clock = clock + np.round(np.where(ok, more, 0.0) * unit).astype(np.int64)
            times.columns.append(j)
        if (within := _part_of_hour(look, times, k, ok)) is not None:
            return within
        if least >= 1 and most == 24:
            times.notes.append(f"hours run from 1 to 24; 24 is the midnight that ends the day ({look.name(k)!r})")
    times.wall, times.ok = np.where(ok, times.wall + clock, 0), ok
    return times


def _part_of_hour(look: Look, times: Times, hour: int, ok: np.ndarray) -> Times | None:
    """Quarters and their like that are numbered within the hour: hour 1 to 24, interval 1 to 4."""
    if len(times.columns) and any(named(look.name(j), PART_NAMES["minute"]) for j in times.columns):
        return None
    hours = look.floats(hour)
    for k in look.columns:
        if k in times.columns or not look.numeric(k) or not named(look.name(k), _PARTS_OF_HOUR, partly=True):
            continue
        values = look.floats(k)
        good = ok & np.isfinite(values) & (values % 1 == 0) & (values >= 1)
        most = int(values[good].max()) if good.any() else 0
        if most not in (2, 3, 4, 6, 12) or good.sum() < 0.98 * ok.sum() or len(np.unique(values[good])) < most:
            continue
        first = int(hours[good].min())
        if first not in (0, 1) or hours[good].max() > 25:
            continue
        number = np.where(good, (hours - first) * most + values, 1).astype(np.int64)
        times.hours = Hours(times.wall.copy(), number, good, most)
        times.wall = np.where(good, times.wall + (number - 1) * (60 // most) * MINUTE, 0)
        times.ok = good
        times.columns.append(k)
        times.what += f" and {look.name(k)!r} of {60 // most} minutes"
        return times
    return None


_PARTS_OF_HOUR = frozenset({"interval", "quarter", "qh", "quarterhour", "viertelstunde", "period", "intervall"})


def parts_of_time(look: Look, only: Sequence[int] | None = None) -> Times | None:
    """Year, month, day, hour and so on, each in a column of its own."""
    allowed = list(look.columns if only is None else only)

    def part(name: str) -> int | None:
        return next(
            (k for k in allowed if named(look.name(k), PART_NAMES[name]) and k not in used and look.numeric(k)), None
        )

    used: list[int] = []
    year = part("year")
    if year is None:
        return None
    used.append(year)
    years = _merged_years(look, year)
    ok = (np.abs(years) < 1e6) & (years % 1 == 0)
    full = np.where(ok, years, 0).astype(np.int64)
    full = np.where(full < 70, full + 2000, np.where(full < 100, full + 1900, full))
    # Two-digit years and flags both occur under the name "y"; four digits leave no doubt
    if (
        not ok.any()
        or not np.all((full[ok] >= 1800) & (full[ok] <= 2200))
        or (years[ok].max() < 100 and years[ok].max() < 2)
    ):
        return None

    def whole(k: int) -> np.ndarray:
        nonlocal ok
        values = look.floats(k)
        fine = (np.abs(values) < 1e6) & (values % 1 == 0)
        ok = ok & fine
        used.append(k)
        return np.where(fine, values, 0).astype(np.int64)

    month, yearday, week, quarter = part("month"), part("yearday"), part("week"), part("quarter")
    half: int | None = None
    if month is None and week is None and quarter is None and (marked := _marked_part(look, allowed, used)) is not None:
        month, week, quarter, half = (
            marked[1] if marked[0] == name else None for name in ("month", "week", "quarter", "half")
        )
        yearday = None
    if yearday is not None and _names_a_month(look, yearday):
        yearday = None
    fraction: np.ndarray | None = None
    if month is None and only is None:
        month = _month_words(look, used)
    if month is not None:
        months = whole(month)
        day = part("day")
        days, possible = civil_days(full, months, whole(day) if day is not None else np.ones_like(full))
        dateonly = True
    elif yearday is not None:
        values = look.floats(yearday)
        if np.any(values[np.isfinite(values)] % 1):  # decimal day of the year
            used.append(yearday)
            ok &= np.abs(values) < 1e6
            fraction = np.where(ok, values % 1, 0)
            days, possible = year_days(full, np.where(ok, values // 1, 0).astype(np.int64))
        else:
            days, possible = year_days(full, whole(yearday))
        dateonly = fraction is None
    elif week is not None:
        days, possible = week_days(full, whole(week), np.ones_like(full))
        dateonly = True
    elif quarter is not None:
        days, possible = civil_days(full, (whole(quarter) - 1) * 3 + 1, np.ones_like(full))
        dateonly = True
    elif half is not None:
        days, possible = civil_days(full, (whole(half) - 1) * 6 + 1, np.ones_like(full))
        dateonly = True
    else:
        return None
    wall = days * DAY
    if fraction is not None:
        wall = wall + np.round(fraction * 86_400).astype(np.int64) * SECOND
    good = ok & possible
    what = ", ".join(look.name(k) for k in used)
    times = Times(list(used), np.where(good, wall, 0), good, what, dateonly=dateonly)
    if dateonly and (month is None or part("day") is None):
        times = with_clock(look, times, [k for k in allowed if k not in used])
    return times


_MARKED = (
    ("month", re.compile(r"M\s?(\d{1,2})", re.I)),
    ("quarter", re.compile(r"(?:Q|T|K|Qtr\.?|Quarter|Quartal|Trimestre|Kwartaal)\s?([1-4])", re.I)),
    (
        "quarter",
        re.compile(r"([1-4])\s?(?:\.|st|nd|rd|th|er|e|º)?\s?(?:Q|Qtr\.?|Quarter|Quartal|Trimestre|Kwartaal)", re.I),
    ),
    ("week", re.compile(r"(?:W|KW|CW|Week|Woche|Semaine|Semana|Vecka|Uge|v\.)\s?\.?-?(\d{1,2})", re.I)),
    ("half", re.compile(r"[HS]([12])", re.I)),
)
"""Parts of a year with what they are before or behind the number."""


def _marked_part(look: Look, allowed: Sequence[int], used: Sequence[int]) -> tuple[str, int] | None:
    """A column such as Q1, M01 or KW 05, and which part of the year it is."""
    names = PART_NAMES["month"] | PART_NAMES["quarter"] | PART_NAMES["week"] | PERIOD_NAMES
    for k in allowed:
        column = look.table.columns[k]
        if k in used or not named(look.name(k), names) or look.numeric(k) or not isinstance(column, pa.Array):
            continue
        sample = [text.strip() for text in look.sample(k)]
        for name, pattern in _MARKED:
            if sample and all(pattern.fullmatch(text) for text in sample):
                matches = [pattern.fullmatch((text or "").strip()) for text in column.to_pylist()]
                look.put(k, np.array([float(match[1]) if match else np.nan for match in matches]))
                return name, k
    return None


def _merged_years(look: Look, k: int) -> np.ndarray:
    """The years, each also for the rows below it that have none where these follow it as merged cells are exported."""
    years = look.floats(k)
    blank = ~np.isfinite(years)
    if not blank.any() or blank[0] or blank.mean() < 0.5:
        return years
    filled = np.flatnonzero(~blank)
    if not np.all(np.diff(years[filled]) == 1) or len(filled) < 2 or len(np.unique(np.diff(filled))) > 1:
        return years
    look.table.notes.append(f"{look.name(k)!r} stands in the first row of each year only; it holds for those below")
    return years[filled][np.cumsum(~blank) - 1]


def _names_a_month(look: Look, k: int) -> bool:
    """Whether a column called Jul is July: other months stand beside it."""
    names = [look.name(j).strip().rstrip(".").lower() for j in look.columns]
    months = {MONTHS[name] for name in names if name in MONTHS}
    return look.name(k).strip().rstrip(".").lower() in MONTHS and len(months) >= 3


def _month_words(look: Look, used: list[int]) -> int | None:
    """A month column that holds names."""
    for k in look.columns:
        sample = look.sample(k)
        if k in used or not named(look.name(k), PART_NAMES["month"]) or look.numeric(k) or not sample:
            continue
        if all(text.strip().rstrip(".").lower() in MONTHS for text in sample):
            texts = look.table.columns[k].to_pylist()
            look.put(
                k, np.array([MONTHS.get((t or "").strip().rstrip(".").lower(), np.nan) for t in texts], dtype=float)
            )
            return k
    return None


def logger_array(look: Look) -> Times | None:
    """Numbers side by side without names: year, month, day, hour; or year, day of year, HHMM as older loggers write."""
    if look.table.header is not None:
        return None
    for k in range(min(len(look.table.names) - 2, 4)):
        columns = [j for j in range(k, min(k + 5, len(look.table.names))) if look.numeric(j)]
        if columns[:3] != [k, k + 1, k + 2]:
            continue
        parts = [np.where(np.abs(look.floats(j)) < 1e6, look.floats(j), np.nan) for j in columns]
        ok = np.isfinite(parts[0]) & np.isfinite(parts[1]) & np.isfinite(parts[2])
        if ok.sum() < 2 or not _within(parts[0], ok, 1900, 2100):
            continue
        year = np.where(ok, parts[0], 1970).astype(np.int64)
        second, third = (np.where(ok, part, 1).astype(np.int64) for part in parts[1:3])
        found: list[tuple[int, np.ndarray, np.ndarray, str]] = []
        if _within(parts[1], ok, 1, 12) and _within(parts[2], ok, 1, 31):
            days, possible = civil_days(year, second, third)
            found.append((3, days * DAY, possible, "year, month, day"))
            if len(parts) > 3 and _within(parts[3], ok & np.isfinite(parts[3]), 0, 24):
                hour = np.where(np.isfinite(parts[3]), parts[3], 0).astype(np.int64)
                found.append((4, days * DAY + hour * HOUR, possible & np.isfinite(parts[3]), "year, month, day, hour"))
                if len(parts) > 4 and _within(parts[4], ok & np.isfinite(parts[4]), 0, 59):
                    minute = np.where(np.isfinite(parts[4]), parts[4], 0).astype(np.int64)
                    found.append(
                        (
                            5,
                            found[-1][1] + minute * MINUTE,
                            found[-1][2] & np.isfinite(parts[4]),
                            "year, month, day, hour, minute",
                        )
                    )
        if _within(parts[1], ok, 1, 366) and _within(parts[2], ok, 0, 2400):
            days, possible = year_days(year, second)
            found.append(
                (
                    3,
                    days * DAY + third // 100 * HOUR + third % 100 * MINUTE,
                    possible & (third % 100 < 60),
                    "year, day of year, HHMM",
                )
            )
        # The reading with the fewest columns under which the rows have times of their own
        for width, wall, possible, what in found:
            good = ok & possible
            if good.sum() >= 0.98 * ok.sum() and len(np.unique(wall[good])) >= 0.98 * good.sum():
                hours = Hours(wall - hour * HOUR, hour, good) if width == 4 else None
                dateonly = what == "year, month, day"
                return Times(
                    list(range(k, k + width)), np.where(good, wall, 0), good, what, dateonly=dateonly, hours=hours
                )
    return None


def _within(values: np.ndarray, ok: np.ndarray, least: float, most: float) -> bool:
    """Whether nearly all of the numbers are whole and in a range."""
    inside = (values[ok] >= least) & (values[ok] <= most) & (values[ok] % 1 == 0)
    return len(inside) > 0 and bool(inside.mean() >= 0.98)
