"""Tables that lie on their side: the times stand in the header, and each line is a series, or a day."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .account import Account
from .look import looks_like_time
from .table import Table
from .timetext import TimeText

FEWEST_TIMES = 4
FEWEST_CLOCKS = 12


def upright(table: Table) -> Table:
    """The table with a row for each cell under a time, if most of its columns are named by times; else the table.

    The times are whole ones, where no other column has the times, or clocks beside a column of dates: a line a day.
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
    if clocks.sum() >= max(FEWEST_CLOCKS, 0.6 * len(table.names)) and len(dates) == 1:
        return _turned(table, np.flatnonzero(clocks), "clock")
    return table


def _clocks(names: pa.Array) -> np.ndarray:
    """Which names are times of the day, if they lie evenly over it."""
    found = TimeText(names, clocks=True).instants()
    named = np.array([":" in name or "h" in name for name in names.to_pylist()])
    clocks = found.ok & named & (not found.dated)
    steps = np.diff(found.wall[clocks])
    return clocks if len(steps) and np.all(steps == steps[0]) and steps[0] > 0 else np.zeros(len(names), dtype=bool)


def _turned(table: Table, times: np.ndarray, called: str) -> Table:
    others = [k for k in range(len(table.names)) if k not in times]
    rows, wide = table.count, len(times)
    line = np.repeat(np.arange(rows), wide)
    columns: list[pa.Array | pd.Series] = [table.columns[k].take(pa.array(line)) for k in others]
    words = [table.names[k] for k in times]
    if all(word.isdigit() and len(word) == 4 for word in words):
        words = [f"{word}-01-01" for word in words]  # years, which digits alone do not tell
    stamps = pa.array(words, pa.string())
    columns.append(stamps.take(pa.array(np.tile(np.arange(wide), rows))))
    cells = pa.concat_arrays([table.columns[k].cast(pa.large_string()) for k in times])
    columns.append(cells.take(pa.array((np.arange(wide)[None, :] * rows + np.arange(rows)[:, None]).ravel())))
    account = Account.of(table.source, table.account.lines[line])
    for reason in table.account.rows.counts():
        account.rows.set_aside((table.account.rows.codes == table.account.rows.code(reason))[line], reason)
    what = "times" if called == "time" else "times of the day"
    table.notes.append(f"the {what} stand in the header; each of the {wide} cells below them in a line is a row")
    units = [table.units[k] for k in others]
    return Table(
        table.source, [*(table.names[k] for k in others), called, "value"], columns, account, [*units, None, None],
        table.comments, table.delimiter, table.encoding, table.packing, table.header, table.lines, table.notes,
    )  # fmt: skip
