"""Tables that lie on their side: the times stand in the header, and each line is a series, a day, a month or a year.

Whole times tell themselves. Numbers from 1 to 24 may be hours or so many sensors: they are hours where each line has a
date and no clock, months where it has a year and nothing finer, and days where it has a year and a month.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa

from .account import Account
from .look import looks_like_time
from .table import Table
from .timetext import DAY, TimeText
from .words import MONTHS, PART_NAMES, SUMMARY_NAMES

FEWEST_TIMES = 4
FEWEST_CLOCKS = 12
_NUMBERED = re.compile(
    r"(?P<word>[^\W\d]*(?:[ _-][^\W\d]+)?)[\W_]*?(?P<number>\d{1,2})(?P<after>[ _]?[a-z]*)", re.IGNORECASE
)


def upright(table: Table) -> Table:
    """The table with a row for each cell under a time, if most of its columns are named by times; else the table.

    The times are whole ones, where no other column has the times, or clocks or numbered hours beside a column of dates:
    a line a day; or they are months beside a year, or days beside a year and a month.
    """
    if table.header is None or len(table.names) < FEWEST_TIMES:
        return table
    if any(not isinstance(column, pa.Array) for column in table.columns):
        return table
    names = pa.array(table.names, pa.string())
    dated = np.zeros(len(table.names), dtype=bool)
    for order in ("dmy", "mdy", "ymd"):
        dated |= TimeText(names).instants(order).ok
    clocks = _clocks(names)
    dates = [k for k in range(len(table.names)) if not dated[k] and not clocks[k] and looks_like_time(table.columns[k])]
    if dated.sum() >= max(FEWEST_TIMES, 0.6 * len(table.names)) and not dates:
        return _turned(table, np.flatnonzero(dated), "time")
    parts = {
        part: k for k, name in enumerate(table.names) for part, names in PART_NAMES.items() if _bare(name) in names
    }
    if (hours := _hours(table, dates, parts)) is not None:
        return _turned(table, hours[0], "hour", hours[1])
    if clocks.sum() >= max(FEWEST_CLOCKS, 0.6 * len(table.names)) and len(dates) == 1:
        return _turned(table, np.flatnonzero(clocks), "clock")
    if (months := _of_a_year(table, dates, parts)) is not None:
        return _turned(table, months[0], "month", months[1])
    if {"year", "month"} <= parts.keys() and not {"day", "hour"} & parts.keys():
        found = _run(table.names, PART_NAMES["day"] | {"d"}, (1,), (31,))
        if found is not None:
            return _turned(table, found[0], "day", found[1])
    return table


def _bare(name: str) -> str:
    return name.strip().lower()


def _of_a_line(name: str) -> bool:
    return _bare(name) in SUMMARY_NAMES


def _run(
    names: list[str], words: frozenset[str], firsts: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[np.ndarray, list[str], str] | None:
    """The columns that are numbered through, their numbers in words, and the word beside these; None without such.

    Args:
        names: of all columns.
        words: that may stand before or behind the number.
        firsts: numbers that the columns may begin with.
        counts: how many there may be.
    """
    groups: dict[str, dict[int, int]] = {}
    for k, name in enumerate(names):
        match = _NUMBERED.fullmatch(name.strip())
        if match is None:
            continue
        word = re.sub(r"[\W_]", "", match["word"] + match["after"]).lower()
        if not word or word in words:
            groups.setdefault(word, {}).setdefault(int(match["number"]), k)
    for word, columns in groups.items():
        first = min(columns)
        whole = sorted(columns) == list(range(first, first + len(columns)))
        if first in firsts and len(columns) in counts and whole and list(columns) == sorted(columns):
            return np.array(list(columns.values())), list(map(str, columns)), word
    return None


def _hours(table: Table, dates: list[int], parts: dict[str, int]) -> tuple[np.ndarray, list[str]] | None:
    """The columns of the hours of a day and their numbers, where each line has a date and no clock.

    Days on which the clock changes may have a 25th. Columns that are called by numbers alone, or by ``H`` and a number,
    could be sensors: their dates must follow each other by days, and be written without a clock.
    """
    found = _run(table.names, PART_NAMES["hour"] | {"h"}, (0, 1), (24, 25))
    if found is None or "hour" in parts:
        return None
    columns, numbers, word = found
    dates = [k for k in dates if k not in columns and not _of_a_line(table.names[k])]
    if {"year", "month", "day"} <= parts.keys() and not set(dates) - set(parts.values()):
        return columns, numbers
    if len(dates) != 1:
        return None
    texts = table.columns[dates[0]].drop_null()
    sure = word not in ("", "h")
    if not sure and any(":" in text for text in texts.slice(0, 1000).to_pylist()):
        return None
    for order in ("dmy", "mdy", "ymd"):
        stamps = TimeText(texts).instants(order)
        if not stamps.dated or stamps.ok.mean() < 0.9:
            continue
        days = np.unique(stamps.wall[stamps.ok])
        if (days % DAY).any():
            return None
        if sure or (len(days) > 1 and np.median(np.diff(days)) == DAY):
            return columns, numbers
    return None


def _of_a_year(table: Table, dates: list[int], parts: dict[str, int]) -> tuple[np.ndarray, list[str]] | None:
    """The columns of the months and their numbers, where each line has a year and nothing finer."""
    named = {MONTHS[_bare(name)]: k for k, name in enumerate(table.names) if _bare(name) in MONTHS}
    found = _run(table.names, PART_NAMES["month"] | {"m"}, (1,), (12,))
    if len(named) == 12 and list(named) == list(range(1, 13)):
        columns, numbers = np.array(list(named.values())), list(map(str, named))
    elif found is not None:
        columns, numbers, _ = found
    else:
        return None
    finer = [k for k in dates if k not in columns and k != parts.get("year") and not _of_a_line(table.names[k])]
    if "year" not in parts or {"month", "day", "hour"} & parts.keys() or finer:
        return None
    years = [text.strip() for text in table.columns[parts["year"]].drop_null().to_pylist()]
    return (columns, numbers) if years and all(re.fullmatch(r"(1[5-9]|2[01])\d\d", year) for year in years) else None


def _clocks(names: pa.Array) -> np.ndarray:
    """Which names are times of the day, if they lie evenly over it."""
    found = TimeText(names, clocks=True).instants()
    named = np.array([":" in name or "h" in name for name in names.to_pylist()])
    clocks = found.ok & named & (not found.dated)
    steps = np.diff(found.wall[clocks])
    return clocks if len(steps) and np.all(steps == steps[0]) and steps[0] > 0 else np.zeros(len(names), dtype=bool)


def _turned(table: Table, times: np.ndarray, called: str, words: list[str] | None = None) -> Table:
    """The table with a row for each cell of the columns ``times``, whose ``words``, or names, are under ``called``."""
    others = [k for k in range(len(table.names)) if k not in times]
    summaries = [k for k in others if _of_a_line(table.names[k])] if words else []
    others = [k for k in others if k not in summaries]
    rows, wide = table.count, len(times)
    line = np.repeat(np.arange(rows), wide)
    columns: list[pa.Array | pd.Series] = [table.columns[k].take(pa.array(line)) for k in others]
    numbered = words is not None
    words = words or [table.names[k] for k in times]
    if not numbered and all(word.isdigit() and len(word) == 4 for word in words):
        words = [f"{word}-01-01" for word in words]  # years, which digits alone do not tell
    stamps = pa.array(words, pa.string())
    columns.append(stamps.take(pa.array(np.tile(np.arange(wide), rows))))
    cells = pa.concat_arrays([table.columns[k].cast(pa.large_string()) for k in times])
    columns.append(cells.take(pa.array((np.arange(wide)[None, :] * rows + np.arange(rows)[:, None]).ravel())))
    if numbered:  # a day without an hour, a month without a day: such a cell is no reading that is missing
        full = columns[-1].is_valid().to_numpy(zero_copy_only=False)
        columns, line = [column.filter(pa.array(full)) for column in columns], line[full]
    account = Account.of(table.source, table.account.lines[line])
    for reason in table.account.rows.counts():
        account.rows.set_aside((table.account.rows.codes == table.account.rows.code(reason))[line], reason)
    if summaries:
        said = ", ".join(repr(table.names[k]) for k in summaries)
        table.notes.append(f"{said}: of a whole line and no reading of its own, so left out")
    what = {"time": "times", "clock": "times of the day"}.get(called, f"{called}s")
    table.notes.append(f"the {what} stand in the header; each of the {wide} cells below them in a line is a row")
    units = [table.units[k] for k in others]
    return Table(
        table.source, [*(table.names[k] for k in others), called, "value"], columns, account, [*units, None, None],
        table.comments, table.delimiter, table.encoding, table.packing, table.header, table.lines, table.notes,
    )  # fmt: skip
