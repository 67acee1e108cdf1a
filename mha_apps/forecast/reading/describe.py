"""Fills the report: the columns and their oddities, the gaps, and the first lines that were set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from . import oddities, zones
from .account import Account
from .options import ReadOptions
from .reading import Reading
from .report import LEFT_OUT, ColumnReport, Gap, Offence, ReadingReport
from .series import Block, Laid
from .sources import Readable
from .table import Table

FIRST_LINES = 3
"""Offending lines that are shown for each reason."""


def describe(
    path: Readable,
    readings: list[Reading],
    blocks: list[Block],
    laid: Laid,
    frame: pd.DataFrame,
    layout: str,
    told: ReadOptions,
) -> ReadingReport:
    first = readings[0]
    accounts = [block.account for block in blocks]
    for account in accounts:
        account.close()
    steps: dict[str, list[str]] = {}
    for (name, _), members in laid.steps.items():
        steps.setdefault(name, []).extend(members)
    how = {part.grid.step.how for part in laid.parts}
    stamps = frame.index if layout == "wide" else frame["ds"]
    lines: dict[str, int] = {}
    for reading in readings:
        for kind, count in reading.table.lines.items():
            if count:
                lines[kind] = lines.get(kind, 0) + count
    report = ReadingReport(
        source=first.table.source
        if len(readings) == 1
        else f"{path if isinstance(path, str | Path) else first.table.source} ({len(readings)} files)",
        sources=[reading.table.source for reading in readings],
        encoding=first.table.encoding,
        packing=first.table.packing,
        delimiter=first.table.delimiter,
        decimal=first.decimal if first.table.delimiter else None,
        header_line=first.table.header,
        other_lines=lines,
        preface=[text[:200] for text in first.table.comments[:40]],
        time=first.times.what,
        zone=zones.label(laid.zone),
        offsets=list(dict.fromkeys(offset for reading in readings for offset in reading.offsets)),
        step=", ".join(steps),
        steps=steps,
        grid=next((kind for kind in ("irregular", "jittered", "stated", "calendar") if kind in how), "exact"),
        start=str(stamps.min()),
        end=str(stamps.max()),
        rows=len(frame),
        layout=layout,
        rows_read=sum(len(account.lines) for account in accounts),
        rows_used=sum(account.rows.used for account in accounts),
        set_aside=_sum(account.rows.counts() for account in accounts),
        cells_read=sum(len(ledger) for account in accounts for ledger in account.cells.values()),
        cells_used=sum(ledger.used for account in accounts for ledger in account.cells.values()),
        cells_set_aside=_sum(ledger.counts() for account in accounts for ledger in account.cells.values()),
        left_out=[column for reading in readings for column in reading.left_out][:200],
        duplicates={
            kind: count for kind, count in (("identical", laid.identical), ("conflicting", laid.conflicting)) if count
        },
        repeated_hour=sum(reading.repeated for reading in readings),
        moved=laid.moved,
        moved_most=laid.furthest / 1e6,
        notes=list(
            dict.fromkeys([note for reading in readings for note in [*reading.table.notes, *reading.times.notes]])
        ),
    )
    report.notes += list(dict.fromkeys([*(note for block in blocks for note in block.notes), *laid.notes]))
    if laid.conflicting > 0.3 * report.rows_read:
        report.notes.append(
            f"{laid.conflicting} rows share their time with others of different values; if a column names the sensor, "
            "pass it with --series"
        )
    if laid.unsorted:
        report.notes.append("rows were not in the order of time; sorted")
    if laid.irregular:
        report.notes.append(
            f"times follow no step; put on the nearest places of a grid of {report.step} "
            "(--freq and --aggregate choose)"
        )
    _describe_columns(report, blocks, laid, frame, layout)
    _find_gaps(report, laid)
    if len(accounts) == len(readings):
        for reading in readings:
            _show_offences(report, reading.table.account, [reading])
    else:  # some continue each other in one account
        for account in accounts:
            _show_offences(report, account, readings)
    return report


def _sum(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in counts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _describe_columns(report: ReadingReport, blocks: list[Block], laid: Laid, frame: pd.DataFrame, layout: str) -> None:
    """Each series: its range, its missing share, what was set aside, and its oddities."""
    wide = all(block.codes is None for block in blocks)
    ledgers = {name: block.account.cells[name] for block in blocks for name in block.names} if wide else {}
    units = {name: unit for block in blocks for name, unit in block.units.items()}
    for part in laid.parts:
        rows = part.values
        for name, row in zip(part.names, rows, strict=True):
            if len(report.columns) >= 2000:
                return
            finite = row[np.isfinite(row)]
            column = ColumnReport(
                name=name, unit=units.get(name), cells=len(row), used=len(finite),
                missing=1 - len(finite) / max(1, len(row)),
                least=float(finite.min()) if len(finite) else None,
                mean=float(finite.mean()) if len(finite) else None,
                greatest=float(finite.max()) if len(finite) else None,
            )  # fmt: skip
            if name in ledgers:
                column.cells, column.used, column.set_aside = (
                    len(ledgers[name]),
                    ledgers[name].used,
                    ledgers[name].counts(),
                )
            if len(finite) == 0:
                column.oddities.append("empty")
            elif oddities.constant(row):
                column.oddities.append(f"constant ({finite[0]:.6g})")
            elif oddities.row_counter(finite) and len(finite) > 5:
                column.oddities.append("rises by one from row to row, as a row counter does")
            elif oddities.only_rises(row):
                column.oddities.append("only rises, as a meter does; if it is one, name it to train with --counter")
            elif (share := oddities.zero_share(row)) >= 0.5:
                column.oddities.append(f"zero-inflated ({share:.0%} zeros)")
            column.step = _own_step(row, part, laid)
            report.columns.append(column)
        by_name = {column.name: column for column in report.columns[-len(part.names) :]}
        if len(part.names) > 1:
            for copy, original, lag in oddities.lagged_copies(part.names, list(rows)):
                by_name[copy].oddities.append(
                    f"copies {original!r}" + (f", {lag} step{'s' * (lag > 1)} later" if lag else "")
                )


def _own_step(row: np.ndarray, part: Any, laid: Laid) -> str | None:
    """The step of a column that has a value at every n-th row only."""
    usual = oddities.rows_apart(row)
    if usual == 1:
        return None
    offset = part.grid.step.offset
    try:
        scaled = offset * usual
        return str(getattr(scaled, "freqstr", scaled))
    except (TypeError, ValueError):
        return f"{usual} x {part.grid.step.name}"


def _find_gaps(report: ReadingReport, laid: Laid) -> None:
    """Runs of rows in which nothing was measured; the longest of each grid."""
    found: list[tuple[int, Any, int, int]] = []
    for part in laid.parts[:2000]:
        empty = ~np.isfinite(part.values).any(axis=0)
        if not empty.any():
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[False], empty, [False]]).astype(np.int8)))
        starts, ends = edges[0::2], edges[1::2]
        report.gap_count += len(starts)
        report.gap_rows += int((ends - starts).sum())
        for k in np.argsort(starts - ends, kind="stable")[:10]:
            found.append((int(ends[k] - starts[k]), part, int(starts[k]), int(ends[k])))
    found.sort(key=lambda item: -item[0])
    for rows, part, start, end in found[:10]:
        span = part.grid.index(part.low + start, part.low + end - 1, laid.zone)
        report.gaps.append(Gap(first=str(span[0]), last=str(span[-1]), rows=rows))


def _show_offences(report: ReadingReport, account: Account, readings: list[Reading]) -> None:
    """The first lines of each reason, for rows and for cells."""
    texts = {reading.table.source: reading for reading in readings}

    def offence(row: int, reason: str, column: str | None) -> Offence:
        source = account.sources[account.files[row]]
        owner = texts.get(source)
        before = int(np.searchsorted(account.files, account.files[row])) if len(account.sources) > 1 else 0
        return Offence(
            reason=reason, source=source, line=int(account.lines[row]), column=column,
            text=_shown_row(owner.table, row - before, column) if owner else "",
        )  # fmt: skip

    for reason in account.rows.counts():
        for row in account.rows.first(reason, FIRST_LINES):
            report.offences.append(offence(int(row), reason, None))
    quiet = LEFT_OUT.keys() - {"composite cell"} | {"column not in this file", "blank", "duplicate"}
    shown: dict[str, int] = {}
    for name, ledger in account.cells.items():
        for reason in ledger.counts():
            if reason in quiet or reason.startswith("row:") or shown.get(reason, 0) >= FIRST_LINES:
                continue
            for row in ledger.first(reason, FIRST_LINES - shown.get(reason, 0)):
                shown[reason] = shown.get(reason, 0) + 1
                report.offences.append(offence(int(row), reason, name))


def _shown_row(table: Table, row: int, column: str | None) -> str:
    columns = [table.names.index(column)] if column in table.names else range(min(len(table.names), 8))
    cells = []
    for k in columns:
        values = table.columns[k]
        cell = values[row].as_py() if isinstance(values, pa.Array) else values.iloc[row]
        cells.append("" if cell is None else str(cell)[:40])
    return (table.delimiter or ",").replace("\t", " ").join(cells)[:120]
