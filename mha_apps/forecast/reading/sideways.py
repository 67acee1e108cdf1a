"""Tables that lie on their side: the times stand in the header, and each line is a series."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .account import Account
from .look import looks_like_time
from .table import Table
from .timetext import TimeText

FEWEST_TIMES = 4


def upright(table: Table) -> Table:
    """The table with a row for each cell under a time, if most of its columns are named by times; else the table.

    Which holds only where no column of its own has the times.
    """
    if table.header is None or len(table.names) < FEWEST_TIMES:
        return table
    text = TimeText(pa.array(table.names, pa.string()))
    dated = np.zeros(len(table.names), dtype=bool)
    for order in ("dmy", "mdy", "ymd"):
        dated |= text.instants(order).ok
    times = np.flatnonzero(dated)
    others = [k for k in range(len(table.names)) if not dated[k]]
    if len(times) < max(FEWEST_TIMES, 0.6 * len(table.names)):
        return table
    arrays = [column for column in table.columns if isinstance(column, pa.Array)]
    if len(arrays) < len(table.columns) or any(looks_like_time(table.columns[k]) for k in others):
        return table
    rows, wide = table.count, len(times)
    line = np.repeat(np.arange(rows), wide)
    columns: list[pa.Array | pd.Series] = [table.columns[k].take(pa.array(line)) for k in others]
    stamps = pa.array([table.names[k] for k in times], pa.string())
    columns.append(stamps.take(pa.array(np.tile(np.arange(wide), rows))))
    cells = pa.concat_arrays([table.columns[k].cast(pa.large_string()) for k in times])
    columns.append(cells.take(pa.array((np.arange(wide)[None, :] * rows + np.arange(rows)[:, None]).ravel())))
    account = Account.of(table.source, table.account.lines[line])
    for reason in table.account.rows.counts():
        account.rows.set_aside((table.account.rows.codes == table.account.rows.code(reason))[line], reason)
    table.notes.append(f"the times stand in the header; each of the {wide} cells below them in a line is a row")
    units = [table.units[k] for k in others]
    return Table(
        table.source, [*(table.names[k] for k in others), "time", "value"], columns, account, [*units, None, None],
        table.comments, table.delimiter, table.encoding, table.packing, table.header, table.lines, table.notes,
    )  # fmt: skip
