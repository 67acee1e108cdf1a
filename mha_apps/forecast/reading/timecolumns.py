"""Which columns hold the time, and the instant of each row.

The time may stand in one column (text, a count since an epoch, a spreadsheet's serial number) or in several (date and
clock; year, month, day and hour; year and day of year). What the cells hold decides, helped by the columns' names.
"""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError

from .dateorder import date_order
from .look import Look, Times, named
from .timenumbers import compact, compact_one, counted, counted_one, elapsed, years, years_one
from .timeparts import logger_array, parts_of_time, with_clock, with_milliseconds
from .timetext import DAY, NO_OFFSET, TimeText
from .words import DATE_NAMES, MOMENT_NAMES, PART_NAMES, ZONE_NAMES, ZONE_OFFSETS


def find_times(look: Look) -> Times:
    """Finds and reads the time of every row.

    Raises:
        InputError: if there is no usable time, or the order of day and month is open.
    """
    table = look.table
    for attempt in (_told, _frame_times, _text, compact, parts_of_time, counted, logger_array, years, elapsed):
        times = attempt(look)
        if times is not None:
            if not times.ok.any():
                break
            return _with_zone(look, times)
    line = table.header or 1
    if table.header is None and look.only_words():
        raise InputError(f"{table.source}, line {line}: names of columns and no row of data; export the file again")
    clock = next((k for k in range(len(table.names)) if look.clock_share(k) > 0.6), None)
    if clock is not None:
        raise InputError(
            f"{table.source}, line {line}: column {table.names[clock]!r} holds times of the day but no column holds "
            "the date; add a date column"
        )
    counting = next(
        (k for k in look.columns if named(look.name(k), MOMENT_NAMES, partly=True) and look.numeric(k)), None
    )
    if counting is not None:
        raise InputError(
            f"{table.source}, line {line}: column {table.names[counting]!r} holds numbers that are no date (a count "
            "from an unknown start?); add a column with dates, name another with --time, or tell how its digits are a "
            "date with --time-format"
        )
    shown = ", ".join(repr(name) for name in table.names[:6]) + (", ..." if len(table.names) > 6 else "")
    if table.header is None:
        shown += "; the file names none, so they bear their numbers"
    raise InputError(
        f"{table.source}, line {line}: no column holds a usable time (columns: {shown}); name it with --time, "
        "and its format with --time-format"
    )


def _with_zone(look: Look, times: Times) -> Times:
    """Adds the zones or offsets that stand in a column of their own."""
    if times.utc or times.offset is not None:
        return times
    for k in look.columns:
        column = look.table.columns[k]
        if k in times.columns or not isinstance(column, pa.Array) or not named(look.name(k), ZONE_NAMES):
            continue
        encoded = column.dictionary_encode()
        words = [word.strip() for word in encoded.dictionary.to_pylist()]
        if not 1 <= len(words) <= 12 or encoded.null_count > 0.5 * len(column):
            continue
        offsets = [_minutes_of(word) for word in words]
        places = [bool(re.fullmatch(r"[A-Z][A-Za-z]+/[A-Za-z_/]+", word)) for word in words]
        if all(places) and len(words) == 1:
            times.zones, times.offset = {words[0]}, np.full(len(column), NO_OFFSET, dtype=np.int32)
        elif all(offset is not None for offset in offsets):
            known = np.array([*(offset or 0 for offset in offsets), NO_OFFSET], dtype=np.int32)
            codes = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
            times.offset, times.zones = known[codes], {word.upper() for word in words if word.upper() in ZONE_OFFSETS}
        else:
            continue
        times.columns.append(k)
        times.what += f", zone in {look.name(k)!r}"
        return times
    return times


def _minutes_of(word: str) -> int | None:
    if word.upper() in ZONE_OFFSETS:
        return ZONE_OFFSETS[word.upper()]
    match = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?", word)
    if match is None or int(match[2]) > 15:
        return None
    return (int(match[2]) * 60 + int(match[3] or 0)) * (-1 if match[1] == "-" else 1)


def _told(look: Look) -> Times | None:
    options = look.options
    if not options.time and not options.time_format:
        return None
    columns = [look.index(name) for name in options.time]
    if options.time_format:
        return _by_format(look, columns, options.time_format)
    if len(columns) == 1:
        k = columns[0]
        for attempt in (_frame_times, compact_one, counted_one, text_one, years_one):
            times = attempt(look, k)
            if times is not None and times.ok.any():
                return times
        column = look.table.columns[k]
        example = next((text for text in look.sample(k)), None) if isinstance(column, pa.Array) else None
        raise InputError(
            f"{look.table.account.place(0)}: column {look.name(k)!r} holds no time that is understood "
            f"(such as {example!r}); pass its format with --time-format, or another column with --time"
        )
    dates = [
        k
        for k in columns
        if look.date_share(k) > 0.6 and not (look.numeric(k) and len(max(look.sample(k), key=len, default="")) < 6)
    ]
    if dates:
        others = [k for k in columns if k != dates[0]]
        times = text_one(look, dates[0])
        return with_clock(look, times, others) if times is not None else None
    return parts_of_time(look, columns)


def _by_format(look: Look, columns: list[int], pattern: str) -> Times:
    if not columns:
        columns = [k for k in look.columns if any(_strptime(text, pattern) is not None for text in look.sample(k)[:5])][
            :1
        ]
    if not columns:
        raise InputError(f"{look.table.source}: no column fits --time-format {pattern!r}; name the column with --time")
    texts = [look.table.columns[k] for k in columns]
    series = pd.Series(dtype=object)
    for k, text in enumerate(texts):
        part = (
            pd.Series(text.to_pylist() if isinstance(text, pa.Array) else text.astype(str), dtype=object)
            .fillna("")
            .str.strip()
        )
        if len(texts) > 1 and part.str.fullmatch(r"\d*").all():
            part = part.str.zfill(int(part.str.len().max())).where(part != "", "")  # 300 beside 1500 is 03:00
        series = part if k == 0 else series + " " + part
    try:
        parsed = pd.to_datetime(series, format=pattern, errors="coerce", utc="%z" in pattern or None)
    except ValueError as error:
        raise InputError(f"--time-format {pattern!r}: {error}; see the codes of strptime") from None
    ok = parsed.notna().to_numpy()
    if not ok.any():
        row = int(np.argmax(series.to_numpy() != ""))
        raise InputError(
            f"{look.table.account.place(row)}: {series.iloc[row]!r} does not fit --time-format {pattern!r}"
        )
    wall = _micros(parsed)
    return Times(
        columns,
        np.where(ok, wall, 0),
        ok,
        f"format {pattern}",
        utc="%z" in pattern,
        zone="UTC" if "%z" in pattern else None,
    )


def _strptime(text: str, pattern: str) -> datetime | None:
    try:
        return datetime.strptime(text.strip(), pattern)
    except ValueError:
        return None


def _micros(times: pd.Series) -> np.ndarray:
    """Microseconds since 1970 of a datetime series; in UTC where it has a zone."""
    if getattr(times.dtype, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.to_numpy().astype("datetime64[us]").astype(np.int64)


def _frame_times(look: Look, k: int | None = None) -> Times | None:
    """A column of a data frame that is of a datetime type."""
    typed = [j for j in look.columns if not isinstance(look.table.columns[j], pa.Array)]
    typed = [j for j in typed if pd.api.types.is_datetime64_any_dtype(look.table.columns[j].dtype)]
    if k is not None:
        typed = [j for j in typed if j == k]
    if not typed:
        return None
    best = max(typed, key=lambda j: (named(look.name(j), MOMENT_NAMES, partly=True), -j))
    column = look.table.columns[best]
    zone = getattr(column.dtype, "tz", None)
    ok = column.notna().to_numpy()
    wall = np.where(ok, _micros(column), 0)
    return Times(
        [best], wall, ok, f"{look.name(best)!r}", utc=zone is not None, zone=str(zone) if zone else None,
        dateonly=zone is None and bool(np.all(wall % DAY == 0)),
    )  # fmt: skip


def _text(look: Look) -> Times | None:
    """A column of texts that are dates, with the clock in it or beside it."""
    found = [k for k in look.columns if not look.numeric(k) and look.date_share(k) >= 0.5]
    if not found:
        return None

    def rank(k: int) -> tuple[bool, bool, bool, int]:
        # The first of two dates may be the same in all rows, where each has its clock beside it
        paired = not look.has_clock(k) and k + 1 in look.columns and look.clock_share(k + 1) >= 0.6
        varied = len(set(look.sample(k))) > 1 or paired
        moment = named(look.name(k), MOMENT_NAMES | DATE_NAMES)
        return varied, moment or named(look.name(k), MOMENT_NAMES, partly=True), look.has_clock(k), -k

    best = max(found, key=rank)
    times = text_one(look, best)
    if times is None:
        return None
    others = [k for k in look.columns if k != best and k not in found]
    if times.dateonly or bool(np.all(times.wall[times.ok] % DAY == 0)):
        times = with_clock(look, times, others)
    elif look.has_clock(best):
        times = with_milliseconds(look, times)
    rest = [look.name(k) for k in found if k != best and k not in times.columns]
    if rest:
        times.notes.append(f"other columns of times: {', '.join(rest)}")
    return times


def text_one(look: Look, k: int) -> Times | None:
    column = look.table.columns[k]
    if not isinstance(column, pa.Array):
        return None
    text = TimeText(column)
    if not text.groups:
        return None
    if named(look.name(k), PART_NAMES["week"], partly=True):
        text.read_months_as_weeks()
    said = text.keep_one_kind_of_period()
    order, note = date_order(look, k, text)
    found = text.instants(order)
    forms = {layout.form for layout, _, _ in text.groups}
    what = f"{look.name(k)!r}"
    if "abc" in forms:
        what += {"dmy": ", day first", "mdy": ", month first", "ymd": ", year first"}[order]
    times = Times([k], found.wall, found.ok, what, offset=found.offset, zones=found.zones, dateonly=not found.clock)
    times.unclear = found.unclear
    times.notes += [remark for remark in (note, said) if remark]
    if any(layout.interval for layout, _, _ in text.groups):
        times.notes.append("times are intervals; each row stands at the start of its own")
    return times
