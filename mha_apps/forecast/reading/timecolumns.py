"""Which columns hold the time, and the instant of each row.

The time may stand in one column (text, a count since an epoch, a spreadsheet's serial number) or in several (date and
clock; year, month, day and hour; year and day of year). What the cells hold decides, helped by the columns' names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError

from .account import Ledger
from .numbers import COMMA, PLAIN, numbers
from .options import ReadOptions
from .table import Table
from .timetext import DAY, HOUR, MINUTE, NO_OFFSET, SECOND, TimeText, civil_days, week_days, year_days
from .words import CLOCK_NAMES, DATE_NAMES, MOMENT_NAMES, PART_NAMES, PERIOD_NAMES, ZONE_NAMES, ZONE_OFFSETS

EXCEL_DAYS = 25_569
"""Days from a spreadsheet's day 0 (30 December 1899) to 1970."""
MATLAB_DAYS = 719_529
_NUMERIC = re.compile(r"^[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?$")
_EPOCHS = ((3e8, 4.2e9, 1_000_000, "seconds"), (3e11, 4.2e12, 1_000, "milliseconds"), (3e14, 4.2e15, 1, "microseconds"))
_NANOSECONDS = (3e17, 4.2e18)


@dataclass
class Times:
    """The instant of each row."""

    columns: list[int]
    wall: np.ndarray
    """Microseconds since 1970 on the clock that wrote them."""
    ok: np.ndarray
    what: str
    """How the time was read, for the report."""
    utc: bool = False
    """Whether ``wall`` is UTC already, as a count since 1970 is."""
    offset: np.ndarray | None = None
    zones: set[str] = field(default_factory=set)
    zone: str | None = None
    dateonly: bool = False
    hours: tuple[int, int] | None = None
    """The least and the greatest hour where the hours stand in a column of their own."""
    day: np.ndarray | None = None
    """Microseconds at the start of the day, where the hours stand in a column of their own."""
    counted: bool = False
    """Whether the hours or periods are counted through days of 23 and 25 hours, and not read off a clock."""
    notes: list[str] = field(default_factory=list)


def find_times(table: Table, options: ReadOptions) -> Times:
    """Finds and reads the time of every row.

    Raises:
        InputError: if there is no usable time, or the order of day and month is open.
    """
    look = _Look(table, options)
    for attempt in (_told, _frame_times, _text, _compact, _parts, _counted, _logger_array, _years):
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
            "from an unknown start?); add a column with dates, or name another with --time"
        )
    shown = ", ".join(repr(name) for name in table.names[:6]) + (", ..." if len(table.names) > 6 else "")
    raise InputError(
        f"{table.source}, line {line}: no column holds a usable time (columns: {shown}); name it with --time, "
        "and its format with --time-format"
    )


def looks_like_time(column: pa.Array) -> bool:
    """Whether the texts of a column are dates or clocks, so that they name no sensor."""
    count = len(column)
    sample = column.take(pa.array(np.unique(np.linspace(0, count - 1, min(count, 100)).astype(int)))).drop_null()
    return len(sample) > 0 and (TimeText(sample).share() > 0.6 or TimeText(sample, clocks=True).share() > 0.6)


def named(name: str, vocabulary: frozenset[str], *, partly: bool = False) -> bool:
    """Whether a column's name is a word of the vocabulary, or with ``partly`` holds one."""
    base = re.sub(r"\[.*?\]|\(.*?\)|<.*?>", " ", name).strip().lower().rstrip(":.")
    forms = {base, re.sub(r"[\s-]+", "_", base), re.sub(r"[\W_]+", "", base), re.sub(r"\s*/\s*", "/", base)}
    if forms & vocabulary or name.strip().lower() in vocabulary:
        return True
    return partly and any(word in vocabulary for word in re.split(r"[\W_]+", base))


def _with_zone(look: _Look, times: Times) -> Times:
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


class _Look:
    """A table, with samples of its columns and what they look like, each worked out once."""

    def __init__(self, table: Table, options: ReadOptions) -> None:
        self.table, self.options = table, options
        self._samples: dict[int, list[str]] = {}
        self._shares: dict[tuple[int, bool], tuple[float, float]] = {}
        self._floats: dict[int, np.ndarray] = {}

    @property
    def columns(self) -> range:
        return range(len(self.table.names))

    def name(self, k: int) -> str:
        return self.table.names[k]

    def sample(self, k: int) -> list[str]:
        """Texts of a column, from rows in all parts of the file."""
        if k not in self._samples:
            column = self.table.columns[k]
            if not isinstance(column, pa.Array):
                self._samples[k] = []
            else:
                count = len(column)
                rows = np.unique(
                    np.concatenate([np.arange(min(count, 60)), np.linspace(0, count - 1, 200).astype(int)])
                )
                self._samples[k] = [text for text in column.take(pa.array(rows)).to_pylist() if text]
        return self._samples[k]

    def only_words(self) -> bool:
        """Whether the table is a line or two of words, in which no cell begins like a number."""
        cells = [text for k in self.columns for text in self.sample(k)]
        return self.table.count <= 3 and bool(cells) and not any(re.match(r"[+-]?[.,]?\d", cell) for cell in cells)

    def numeric(self, k: int) -> bool:
        sample = self.sample(k)
        if not isinstance(self.table.columns[k], pa.Array):
            return True
        return bool(sample) and sum(bool(_NUMERIC.match(text.strip())) for text in sample) > 0.8 * len(sample)

    def _share(self, k: int, clocks: bool) -> tuple[float, float]:
        if (k, clocks) not in self._shares:
            sample = self.sample(k)
            text = TimeText(pa.array(sample, pa.string()), clocks=clocks) if sample else None
            dated = clock = 0.0
            if text is not None:
                possible = text.instants("dmy").ok | text.instants("mdy").ok | text.instants("ymd").ok
                for layout, rows, _ in text.groups:
                    good = float(possible[rows].sum()) / len(sample)
                    dated += good * layout.dated
                    clock += good * layout.clock
            self._shares[k, clocks] = dated, clock
        return self._shares[k, clocks]

    def date_share(self, k: int) -> float:
        return self._share(k, False)[0]

    def has_clock(self, k: int) -> bool:
        return self._share(k, False)[1] > 0.3

    def clock_share(self, k: int) -> float:
        if self.numeric(k):
            return 0.0
        return self._share(k, True)[1]

    def floats(self, k: int) -> np.ndarray:
        """The column as numbers, NaN where it has none."""
        if k not in self._floats:
            column = self.table.columns[k]
            if isinstance(column, pa.Array):
                sample = self.sample(k)
                comma = sum("," in text for text in sample) > sum("." in text for text in sample)
                told = None if comma else "."  # times have no thousands
                found = numbers(column, COMMA if comma else PLAIN, Ledger(len(column)), force=True, told=told)
                self._floats[k] = found[0] if found is not None else np.full(len(column), np.nan)
            elif pd.api.types.is_numeric_dtype(column.dtype):
                self._floats[k] = column.to_numpy(dtype=np.float64, na_value=np.nan)
            else:
                self._floats[k] = np.full(len(column), np.nan)
        return self._floats[k]

    def part(self, part: str, exclude: Sequence[int] = ()) -> int | None:
        """The column that is named as a part of a time and holds numbers."""
        names = PART_NAMES[part]
        if part == "minute" and any(self.name(k) == "MM" for k in exclude):
            names = names | {"mm"}  # beside months called MM; otherwise mm is millimetres
        for k in self.columns:
            if k not in exclude and named(self.name(k), names) and self.numeric(k):
                return k
        return None

    def index(self, name: str) -> int:
        if name in self.table.names:
            return self.table.names.index(name)
        folded = [known.lower() for known in self.table.names]
        if name.lower() in folded:
            return folded.index(name.lower())
        if name.isdigit() and 1 <= int(name) <= len(self.table.names):
            return int(name) - 1
        known = ", ".join(self.table.names[:12])
        raise InputError(
            f"{self.table.source}, line {self.table.header or 1}: no column is called {name!r}; there are: {known}"
        )


def _told(look: _Look) -> Times | None:
    options = look.options
    if not options.time and not options.time_format:
        return None
    columns = [look.index(name) for name in options.time]
    if options.time_format:
        return _by_format(look, columns, options.time_format)
    if len(columns) == 1:
        k = columns[0]
        for attempt in (_frame_times, _compact_one, _counted_one, _text_one, _years_one):
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
        times = _text_one(look, dates[0])
        return _with_clock(look, times, others) if times is not None else None
    return _parts(look, columns)


def _by_format(look: _Look, columns: list[int], pattern: str) -> Times:
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


_ORDER_WORDS = (
    ("dmy", re.compile(r"(?<![a-z])(?:dd?|tt|jj|gg)\s?[-/. ]\s?mm?\s?[-/. ]\s?(?:yy|jj|aa)", re.I)),
    ("mdy", re.compile(r"(?<![a-z])mm?\s?[-/. ]\s?dd?\s?[-/. ]\s?yy", re.I)),
    ("ymd", re.compile(r"(?<![a-z])(?:yy|jj|aa)(?:yy|jj|aa)?\s?[-/. ]\s?mm?\s?[-/. ]\s?(?:dd|tt|jj)", re.I)),
)
"""Orders that a header spells out, such as DD/MM/YYYY or tt.mm.jjjj."""


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


def _frame_times(look: _Look, k: int | None = None) -> Times | None:
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


def _text(look: _Look) -> Times | None:
    """A column of texts that are dates, with the clock in it or beside it."""
    found = [k for k in look.columns if not look.numeric(k) and look.date_share(k) >= 0.5]
    if not found:
        return None

    def rank(k: int) -> tuple[bool, bool, bool, int]:
        varied = len(set(look.sample(k))) > 1
        moment = named(look.name(k), MOMENT_NAMES | DATE_NAMES)
        return varied, moment or named(look.name(k), MOMENT_NAMES, partly=True), look.has_clock(k), -k

    best = max(found, key=rank)
    times = _text_one(look, best)
    if times is None:
        return None
    others = [k for k in look.columns if k != best and k not in found]
    if times.dateonly or bool(np.all(times.wall[times.ok] % DAY == 0)):
        times = _with_clock(look, times, others)
    rest = [look.name(k) for k in found if k != best and k not in times.columns]
    if rest:
        times.notes.append(f"other columns of times: {', '.join(rest)}")
    return times


def _text_one(look: _Look, k: int) -> Times | None:
    column = look.table.columns[k]
    if not isinstance(column, pa.Array):
        return None
    text = TimeText(column)
    if not text.groups:
        return None
    if named(look.name(k), PART_NAMES["week"], partly=True):
        text.read_months_as_weeks()
    order, note = _order(look, k, text)
    found = text.instants(order)
    forms = {layout.form for layout, _, _ in text.groups}
    what = f"{look.name(k)!r}"
    if "abc" in forms:
        what += {"dmy": ", day first", "mdy": ", month first", "ymd": ", year first"}[order]
    times = Times([k], found.wall, found.ok, what, offset=found.offset, zones=found.zones, dateonly=not found.clock)
    times.notes += [note] if note else []
    if any(layout.interval for layout, _, _ in text.groups):
        times.notes.append("times are intervals; each row stands at the start of its own")
    return times


def _order(look: _Look, k: int, text: TimeText) -> tuple[str, str | None]:
    """The order of day, month and year: what all dates allow, else what makes the series regular."""
    numeric_dates = [layout for layout, _, _ in text.groups if layout.form == "abc"]
    if not numeric_dates:
        bad = text.misfits("ymd")
        if bad and text.misfits("ydm") < bad / 10:
            return "ydm", "dates are year-day-month"
        return "ymd", None
    if look.options.dayfirst is not None:
        return ("dmy" if look.options.dayfirst else "mdy"), None
    short = any(end - start == 2 for layout in numeric_dates for name, start, end in layout.digits if name == "c")
    orders = ["dmy", "mdy"] + ["ymd"] * short
    misfits = {order: text.misfits(order) for order in orders}
    least = min(misfits.values())
    left = [order for order in orders if misfits[order] == least]
    note = f"{least} dates fit no order that the others allow" if least and len(left) == 1 else None
    if len(left) == 1:
        return left[0], note
    words = [look.name(k), look.table.units[k] or "" if k < len(look.table.units) else "", *look.table.comments[-20:]]
    stated = next((order for order, pattern in _ORDER_WORDS if any(pattern.search(word) for word in words)), None)
    if stated in left:
        return stated, f"the order of day and month is stated above the data ({stated})"
    left = [order for order in left if not (order == "ymd" and len(left) > 1 and _restless_year(text))]
    if len(left) == 1:
        return left[0], note
    if all(layout.dotted for layout in numeric_dates) and "dmy" in left:
        return "dmy", "dates with dots were read day first, as they are written everywhere (--dayfirst tells)"
    read = {order: text.instants(order) for order in left}
    first = read[left[0]]
    if all(np.array_equal(first.wall[first.ok], other.wall[other.ok]) for other in read.values()):
        return left[0], None
    evenness = {order: _evenness(found.wall[found.ok]) for order, found in read.items()}
    ranked = sorted(left, key=lambda order: evenness[order], reverse=True)
    (fill, steady), (other_fill, other_steady) = evenness[ranked[0]], evenness[ranked[1]]
    if (fill >= 0.5 and other_fill <= 0.3 * fill) or (steady and not other_steady and fill >= other_fill):
        alone = {"dmy": "day first", "mdy": "month first", "ymd": "year first"}[ranked[0]]
        return ranked[
            0
        ], f"no date decides the order of day and month; read {alone}, which alone makes a regular series"
    row = int(np.flatnonzero(first.ok)[0])
    column = look.table.columns[k]
    example = column[row].as_py().strip()
    raise InputError(
        f"{look.table.account.place(row)}: {example!r} in {look.name(k)!r} may be day or month first, and no date in "
        "the file decides it; pass --dayfirst or --no-dayfirst"
    )


def _restless_year(text: TimeText) -> bool:
    """Whether years would change more often than days if dates were read year first."""
    found = text.instants("ymd")
    days = (found.wall[found.ok] // DAY).astype("datetime64[D]")
    years, months = days.astype("datetime64[Y]"), days.astype("datetime64[M]")
    day = (days - months.astype("datetime64[D]")).astype(np.int64)
    return int(np.count_nonzero(np.diff(years))) > int(np.count_nonzero(np.diff(day)))


def _evenness(wall: np.ndarray) -> tuple[float, bool]:
    """How full the span is at the usual step, and whether the rows are in order."""
    times = np.unique(wall)
    if len(times) < 3:
        return 0.0, True
    step = float(np.median(np.diff(times)))
    if len(wall) >= 4 * len(times) and np.all(times % DAY == 0):
        step = float(DAY)  # many rows a date: the clock stands in another column, and days follow each other
    forward = np.diff(wall)
    return min(1.0, (len(times) - 1) * step / float(times[-1] - times[0])), bool(
        np.all(forward >= 0) or np.all(forward <= 0)
    )


def _with_clock(look: _Look, times: Times, others: Sequence[int]) -> Times:
    """Adds the time of the day that stands in another column, as text or as numbers."""
    date_name = look.name(times.columns[0])
    if not look.options.time and _daily(times):  # sunrise or the hour of a peak are values of a day, not its clock
        others = [k for k in others if named(look.name(k), _PLAIN_CLOCKS) or _same_clock(look, k)]
    clocks = [k for k in others if look.clock_share(k) >= 0.6 and not isinstance(look.table.columns[k], pd.Series)]
    clocks.sort(key=lambda k: (not named(look.name(k), CLOCK_NAMES, partly=True), abs(k - times.columns[0])))
    if clocks:
        k = clocks[0]
        text = TimeText(look.table.columns[k], clocks=True)
        found = text.instants()
        if found.offset is not None:
            times.offset, times.zones = found.offset, times.zones | found.zones
        if any(layout.interval for layout, _, _ in text.groups):
            times.notes.append("times are intervals; each row stands at the start of its own")
        times.wall, times.ok = times.wall + found.wall, times.ok & found.ok
        times.columns.append(k)
        times.what += f" and {look.name(k)!r}"
        times.dateonly = False
        return times
    numeric = [k for k in others if look.numeric(k)]
    period = next((k for k in numeric if named(look.name(k), PERIOD_NAMES)), None)
    if period is not None and _add_periods(look, times, period):
        return times
    hour = next((k for k in numeric if named(look.name(k), PART_NAMES["hhmm"])), None)
    hour = hour if hour is not None else look.part("hour", times.columns)
    if hour is None or hour not in others:
        hour = next((k for k in numeric if named(look.name(k), CLOCK_NAMES, partly=True)), None)
    if hour is None and (look.options.time or len(np.unique(times.wall[times.ok])) < 0.75 * times.ok.sum()):
        hour = next((k for k in numeric if k in others and (look.options.time or _cycles(times, look.floats(k)))), None)
    if hour is None:
        labelled = next((k for k in others if named(look.name(k), CLOCK_NAMES | PART_NAMES["hour"], partly=True)), None)
        return _lettered(look, times, labelled) if labelled is not None else times
    return _add_hours(look, times, hour, date_name)


_PLAIN_CLOCKS = (CLOCK_NAMES | PART_NAMES["hour"] | PART_NAMES["hhmm"]) - frozenset(
    {"hours", "hrs", "stunden", "heures", "horas", "ore"}
)
"""Names of a clock and of nothing else; the plural counts hours of something."""


def _daily(times: Times) -> bool:
    """Whether dates alone make a series: each occurs once, and most follow the day before."""
    days = times.wall[times.ok]
    if len(days) < 3 or len(np.unique(days)) < len(days):
        return False
    return bool(np.median(np.diff(np.sort(days))) == DAY)


def _same_clock(look: _Look, k: int) -> bool:
    """Whether a column that is named as a clock in part holds one time of the day throughout."""
    return (
        named(look.name(k), CLOCK_NAMES, partly=True)
        and look.clock_share(k) >= 0.6
        and len({text.strip() for text in look.sample(k)}) == 1
    )


def _add_periods(look: _Look, times: Times, k: int) -> bool:
    """Adds half hours or quarters of an hour that are numbered through the day; the number 1 starts it."""
    values = look.floats(k)
    ok = times.ok & (values >= 1) & (values <= 100) & (values % 1 == 0)
    most = float(values[ok].max()) if ok.any() else 0.0
    minutes = 30 if 46 <= most <= 50 else 15 if 92 <= most <= 100 else None
    if minutes is None or ok.sum() < 0.9 * times.ok.sum():
        return False
    times.day = times.wall.copy()
    times.counted = most in (50, 100)
    times.wall = np.where(ok, times.wall + (np.where(ok, values, 1).astype(np.int64) - 1) * minutes * MINUTE, 0)
    times.ok = ok
    times.columns.append(k)
    times.what += f" and {look.name(k)!r} of {minutes} minutes"
    times.dateonly = False
    return True


def _cycles(times: Times, values: np.ndarray) -> bool:
    """Whether numbers run through the hours of each date."""
    ok = times.ok & np.isfinite(values)
    if ok.sum() < 24 or not np.all((values[ok] >= 0) & (values[ok] <= 25) & (values[ok] % 1 == 0)):
        return False
    keys = times.wall[ok] // DAY * 32 + values[ok].astype(np.int64)
    return len(np.unique(values[ok])) >= 20 and len(np.unique(keys)) >= 0.98 * len(keys)


def _lettered(look: _Look, times: Times, k: int) -> Times:
    """Hours such as 3A and 3B, as markets write the repeated hour."""
    column = look.table.columns[k]
    if not isinstance(column, pa.Array):
        return times
    texts = column.to_pylist()
    matches = [re.fullmatch(r"\s*(\d{1,2})\s*([AaBbXx*]?)\s*", text or "") for text in texts]
    if sum(match is not None for match in matches) < 0.9 * len(matches):
        return times
    look._floats[k] = np.array([float(match[1]) if match else np.nan for match in matches])
    return _add_hours(look, times, k, look.name(times.columns[0]))


def _add_hours(look: _Look, times: Times, k: int, date_name: str) -> Times:
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
        times.hours = (int(least), int(most))
        times.counted = most == 25 or (ok.any() and _long_days(times.wall[ok], values[ok]))
        times.day = times.wall.copy()
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
        if least >= 1 and most == 24:
            times.notes.append(f"hours run from 1 to 24; 24 is the midnight that ends the day ({look.name(k)!r})")
    times.wall, times.ok = np.where(ok, times.wall + clock, 0), ok
    return times


def _long_days(days: np.ndarray, hours: np.ndarray) -> bool:
    """Whether hours run from 1 to 25, or from 0 to 24, on the Sundays that have 25 of them, and on few other days."""
    first, last = hours.min(), hours.max()
    if last - first != 24 or first not in (0, 1) or np.any(hours % 1):
        return False
    long = np.unique(days[hours == last])
    span = (days.max() - days.min()) / DAY
    sundays = (long // DAY + 4) % 7 == 0  # 1970-01-01 was a Thursday
    if len(long) > 1 + span / 150 or not np.all(sundays):
        return False
    full = all(len(np.unique(hours[days == day])) == 25 for day in long)
    next_days = np.isin(long + DAY, days[hours == first]) | (long == days.max())
    return full and bool(np.all(next_days))


def _compact(look: _Look) -> Times | None:
    """Dates written as one number: 20160131, 201601312359."""
    ranked = sorted(look.columns, key=lambda k: (not named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True), k))
    for k in ranked:
        times = _compact_one(look, k, sure=False)
        if times is not None:
            if times.dateonly:
                times = _with_clock(look, times, [j for j in look.columns if j != k])
            return times
    return None


def _compact_one(look: _Look, k: int, sure: bool = True) -> Times | None:
    column = look.table.columns[k]
    if isinstance(column, pd.Series):
        if not pd.api.types.is_integer_dtype(column.dtype):
            return None
        column = pa.array([str(v) for v in column], pa.string())
    sample = look.sample(k) or [text for text in column.slice(0, 200).to_pylist() if text]
    lengths = {len(text.strip()) for text in sample}
    if not sample or not all(text.strip().isdigit() for text in sample) or not lengths <= {6, 7, 8, 10, 12, 14, 17}:
        return None
    known = named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True)
    if not sure and not known and (k > 2 or lengths & {6, 7}):
        return None
    text = TimeText(column)
    found = text.instants("ymd")
    years = (
        found.wall[found.ok].astype("datetime64[us]").astype("datetime64[Y]").astype(int) + 1970
        if found.ok.any()
        else np.array([0])
    )
    plausible = (
        found.ok.mean() > 0.9 and years.min() >= 1900 and years.max() <= 2100 and len(set(sample)) > (len(sample) > 2)
    )
    if not plausible:
        return None
    return Times([k], found.wall, found.ok, f"{look.name(k)!r}", dateonly=not found.clock)


def _parts(look: _Look, only: Sequence[int] | None = None) -> Times | None:
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
    years = look.floats(year)
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
    else:
        return None
    wall = days * DAY
    if fraction is not None:
        wall = wall + np.round(fraction * 86_400).astype(np.int64) * SECOND
    good = ok & possible
    what = ", ".join(look.name(k) for k in used)
    times = Times(list(used), np.where(good, wall, 0), good, what, dateonly=dateonly)
    if dateonly and (month is None or part("day") is None):
        times = _with_clock(look, times, [k for k in allowed if k not in used])
    return times


def _names_a_month(look: _Look, k: int) -> bool:
    """Whether a column called Jul is July: other months stand beside it."""
    from .words import MONTHS

    names = [look.name(j).strip().rstrip(".").lower() for j in look.columns]
    months = {MONTHS[name] for name in names if name in MONTHS}
    return look.name(k).strip().rstrip(".").lower() in MONTHS and len(months) >= 3


def _month_words(look: _Look, used: list[int]) -> int | None:
    """A month column that holds names."""
    from .words import MONTHS

    for k in look.columns:
        sample = look.sample(k)
        if k in used or not named(look.name(k), PART_NAMES["month"]) or look.numeric(k) or not sample:
            continue
        if all(text.strip().rstrip(".").lower() in MONTHS for text in sample):
            texts = look.table.columns[k].to_pylist()
            look._floats[k] = np.array(
                [MONTHS.get((t or "").strip().rstrip(".").lower(), np.nan) for t in texts], dtype=float
            )
            return k
    return None


def _counted(look: _Look) -> Times | None:
    """Seconds since 1970 and their like, and days of a spreadsheet."""
    ranked = sorted(look.columns, key=lambda k: (not named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True), k))
    for k in ranked:
        known = named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True)
        if not look.numeric(k) or not (known or k <= 1):
            continue
        times = _counted_one(look, k)
        if times is None:
            continue
        forward = np.diff(times.wall[times.ok])
        if known or (len(forward) and np.mean(forward > 0) > 0.9):
            return times
    return None


def _counted_one(look: _Look, k: int) -> Times | None:
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


def _logger_array(look: _Look) -> Times | None:
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
                hours = None
                if width == 4 and (hour[good].min() >= 1 and hour[good].max() == 24):
                    hours = (1, 24)
                dateonly = what == "year, month, day"
                return Times(
                    list(range(k, k + width)), np.where(good, wall, 0), good, what, dateonly=dateonly, hours=hours
                )
    return None


def _within(values: np.ndarray, ok: np.ndarray, least: float, most: float) -> bool:
    """Whether nearly all of the numbers are whole and in a range."""
    inside = (values[ok] >= least) & (values[ok] <= most) & (values[ok] % 1 == 0)
    return len(inside) > 0 and bool(inside.mean() >= 0.98)


def _years(look: _Look) -> Times | None:
    for k in look.columns:
        if (k == 0 or named(look.name(k), PART_NAMES["year"])) and (times := _years_one(look, k)) is not None:
            return times
    return None


def _years_one(look: _Look, k: int) -> Times | None:
    values = look.floats(k)
    ok = np.isfinite(values) & (values % 1 == 0) & (values >= 1800) & (values <= 2200)
    if ok.sum() < max(2, 0.9 * len(values)) or len(np.unique(values[ok])) < 2 or np.any(np.diff(values[ok]) == 0):
        return None
    days, _ = civil_days(
        np.where(ok, values, 1970).astype(np.int64), np.ones(len(values), np.int64), np.ones(len(values), np.int64)
    )
    return Times([k], np.where(ok, days * DAY, 0), ok, f"{look.name(k)!r}, years", dateonly=True)
