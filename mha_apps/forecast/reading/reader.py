"""Reads sensor data into a frame on a regular time grid, and accounts for every row and cell of it.

The stages, each in a module of its own: what was named becomes bytes (`sources`), text (`text`), lines and fields
(`dialect`, `table`), instants (`timecolumns`, `timetext`, `zones`), numbers (`numbers`, `missing`), sensors (`layout`)
and series on a grid (`grid`, `series`). An account (`account`) goes with the rows through all of them.
"""

from __future__ import annotations

import dataclasses
import inspect as _inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError

from . import composite, numbers, oddities, zones
from .account import Account, Ledger
from .companions import with_companions
from .describe import describe
from .instants import localise
from .layout import codes_of, describing, series_columns
from .look import Look, Times, named
from .options import ReadOptions
from .reading import Reading
from .report import LEFT_OUT, ColumnReport, ReadingReport
from .series import Block, frame_of, lay
from .sideways import upright
from .sources import Readable, Source, gather
from .table import Table, read_table
from .timecolumns import find_times
from .words import COUNTER_NAMES, VALUE_NAMES


def read_sensor_csv(
    path: Readable, *, options: ReadOptions | None = None, **changes: Any
) -> tuple[pd.DataFrame, ReadingReport]:
    """Reads sensor data: a CSV of any dialect, packed or not, Parquet, a data frame, several of these, or a folder.

    Args:
        path: what to read. Files with the same columns and disjoint times continue each other; otherwise each file is a
            series of its own.
        options: how to read it; see :class:`ReadOptions`.
        **changes: fields of :class:`ReadOptions`, in place of those in ``options``.

    Returns:
        The frame and its account. The frame is wide: a DatetimeIndex named ``time`` with a fixed ``freq``, in the zone
        of the times, one float64 column for each sensor, NaN where a value is missing. Where that would waste memory,
        or where sensors have different steps, it is long: ``unique_id``, ``ds``, ``y`` (float32), each sensor on its
        own regular grid.

    Raises:
        InputError: if the data cannot be read as a whole; one line with the file, the place in it and the remedy.
    """
    told = _options(options, changes)
    readings = [_read(source, told) for source in gather(path)]
    blocks = _blocks(readings)
    laid = lay(blocks, told)
    more = f" and {len(readings) - 1} more" if len(readings) > 1 else ""
    frame, layout = frame_of(laid, told, readings[0].source.name + more)
    return frame, describe(path, readings, blocks, laid, frame, layout, told)


read_sensor_csv.__signature__ = _inspect.Signature(  # type: ignore[attr-defined]
    [
        _inspect.Parameter("path", _inspect.Parameter.POSITIONAL_OR_KEYWORD),
        _inspect.Parameter("options", _inspect.Parameter.KEYWORD_ONLY, default=None),
        *(
            _inspect.Parameter(f.name, _inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in dataclasses.fields(ReadOptions)
        ),
    ]
)


def inspect(
    path: Readable, *, options: ReadOptions | None = None, plot: str | Path | None = None, **changes: Any
) -> ReadingReport:
    """Reads like :func:`read_sensor_csv`, and draws all series into the PNG ``plot`` if that is given.

    Returns:
        The report; ``report.text()`` is for reading, ``report.json()`` for programs.

    Raises:
        InputError: as ``read_sensor_csv`` does; nothing is written then.
    """
    frame, report = read_sensor_csv(path, options=options, **changes)
    if plot is not None:
        from .plot import draw

        draw(frame, report, plot)
        report.plot = str(plot)
    return report


def _options(options: ReadOptions | None, changes: dict[str, Any]) -> ReadOptions:
    known = {f.name for f in dataclasses.fields(ReadOptions)}
    for name in changes:
        if name not in known:
            raise TypeError(f"read_sensor_csv() has no option {name!r}; there are: {', '.join(sorted(known))}")
    told = dataclasses.replace(options or ReadOptions(), **changes)
    for name in ("missing", "keep", "time", "columns", "series"):
        value = getattr(told, name)
        if isinstance(value, str | int | float):
            value = (value,)
        setattr(told, name, tuple(str(item) for item in value or ()))
    told.check()
    if told.tz is not None:
        zones.zone_of(told.tz)
    return told


def _read(source: Source, told: ReadOptions) -> Reading:
    """One source up to the instants, the numbers and the sensors of its rows."""
    table = upright(read_table(source, delimiter=told.delimiter, encoding=told.encoding))
    look = Look(table, told)
    times = with_companions(look, find_times(look))
    account = table.account
    blank = _blank(table, times.columns)
    account.rows.set_aside(~times.ok & blank, "no time")
    account.rows.set_aside(~times.ok, "time not understood")

    remaining = [k for k in range(len(table.names)) if k not in times.columns]
    left_out: list[ColumnReport] = []
    values, texts, decimal, units = _numbers(table, remaining, told)
    for k in [k for k in values if k in times.beside]:
        del values[k]
        _leave_out(table, k, "another time", left_out)
    key = _key(table, times, account, told, list(texts), list(values))
    for k, why in texts.items():
        if k not in key:
            _leave_out(table, k, why, left_out)
    for k in [k for k in values if k in key]:
        del values[k], account.cells[table.names[k]]
    values = _chosen(table, values, told, left_out)
    if key and not told.columns:
        values = _values_of_long(table, values, left_out)
    for k in [k for k in values if not told.columns and _counts_rows(table.names[k], values[k], account, len(values))]:
        del values[k]
        _leave_out(table, k, "row counter", left_out)
    if not values:
        names = ", ".join(repr(table.names[k]) for k in remaining[:6]) or "none"
        raise InputError(
            f"{table.source}, line {int(account.lines[0])}: no column holds numbers (beside the time: {names}"
            + ("" if table.header else "; the file names none, so they bear their numbers")
            + "); check "
            "--delimiter and --decimal, or name columns with --columns"
        )
    codes, labels = _sensors(table, key, account)
    if codes is not None and not told.columns:
        for k in describing(table, values, codes, account.rows.open):
            if len(values) > 1:
                del values[k]
                _leave_out(table, k, "describes the sensor", left_out)
    block = Block(
        account, [table.names[k] for k in values], list(values.values()), times.wall, None, codes, labels, units
    )
    reading = Reading(source, table, times, block, decimal, left_out)
    localise(reading, told)
    return reading


def _blank(table: Table, columns: list[int]) -> np.ndarray:
    blank = np.zeros(table.count, dtype=bool)
    for k in columns:
        column = table.columns[k]
        if isinstance(column, pa.Array):
            if column.null_count:
                blank |= column.is_null().to_numpy(zero_copy_only=False)
        else:
            blank |= column.isna().to_numpy()
    return blank


def _numbers(
    table: Table, remaining: list[int], told: ReadOptions
) -> tuple[dict[int, np.ndarray], dict[int, str], str, dict[str, str]]:
    """The columns that hold numbers, and those that do not and why; each gets its ledger."""
    count = table.count
    samples: dict[int, list[str]] = {}
    for k in remaining:
        column = table.columns[k]
        if isinstance(column, pa.Array):
            step = max(1, count // 300)
            picked = column.take(pa.array(np.arange(0, count, step)[:400]))
            samples[k] = [text.strip() for text in picked.to_pylist() if text and not numbers.is_missing_word(text)]
    several = composite.composites(table.names, samples, table.delimiter)
    plain = [cells for k, cells in samples.items() if k not in several]
    choice = numbers.choose(plain[:200], comma_separated=table.delimiter == ",", told=told.decimal)
    if choice.note:
        table.notes.append(choice.note)
    values: dict[int, np.ndarray] = {}
    texts: dict[int, str] = {}
    units: dict[str, str] = {}
    for k in remaining:
        name, column = table.names[k], table.columns[k]
        ledger = table.account.cells[name] = Ledger(count)
        if k in several and told.decimal is None and isinstance(column, pa.Array):
            if several[k].scale is None:
                texts[k] = "composite cell"
                continue
            values[k], said = composite.read(column, several[k], ledger)
            units[name] = several[k].unit or ""
            table.notes.append(f"{name!r} holds a reading in tenths and its code, as in {samples[k][0]!r}; {said}")
        elif isinstance(column, pa.Array):
            found = numbers.numbers(column, choice.convention, ledger, force=name in told.columns, told=told.decimal)
            if found is None:
                texts[k] = "text"
                continue
            values[k] = found[0]
            unit = table.units[k] or found[1]
            if unit:
                units[name] = unit
        elif pd.api.types.is_numeric_dtype(column.dtype):
            numeric = np.array(column.to_numpy(dtype=np.float64, na_value=np.nan), copy=True)
            ledger.set_aside(np.isnan(numeric), "blank")
            ledger.set_aside(np.isinf(numeric), "infinite")
            numeric[~np.isfinite(numeric)] = np.nan
            values[k] = numeric
        else:
            texts[k] = "text"
    return values, texts, choice.convention.decimal, units


def _key(
    table: Table, times: Times, account: Account, told: ReadOptions, texts: list[int], numeric: list[int]
) -> list[int]:
    """The columns that name the sensor."""
    if told.series:
        missing = [name for name in told.series if name not in table.names]
        if missing:
            raise InputError(
                f"{table.source}, line {table.header or 1}: no column is called {missing[0]!r} (--series); there are: "
                + ", ".join(table.names[:12])
            )
        return [table.names.index(name) for name in told.series]
    if not numeric:
        return []
    return series_columns(table, times.wall, account.rows.open, texts, numeric)


def _leave_out(table: Table, k: int, why: str, left_out: list[ColumnReport]) -> None:
    name = table.names[k]
    ledger = table.account.cells[name] = Ledger(table.count)
    ledger.set_aside(np.ones(table.count, dtype=bool), why)
    oddity = LEFT_OUT[why]
    column = table.columns[k]
    example = ""
    if isinstance(column, pa.Array):
        example = next((str(text) for text in column.slice(0, 1000).to_pylist() if text), "")[:20]
    if why == "composite cell":
        oddity += f", such as {example!r}; not read"
    if why == "text" and isinstance(column, pa.Array):
        distinct = len(column.unique().drop_null())
        oddity = f"text ({distinct} different, such as {example!r})" if distinct else "empty"
    left_out.append(
        ColumnReport(
            name=name, cells=table.count, set_aside={why: table.count}, missing=1.0, oddities=[oddity], in_frame=False
        )
    )


def _chosen(
    table: Table, values: dict[int, np.ndarray], told: ReadOptions, left_out: list[ColumnReport]
) -> dict[int, np.ndarray]:
    if not told.columns:
        return values
    for name in told.columns:
        if name not in table.names:
            known = ", ".join(table.names[:12])
            raise InputError(
                f"{table.source}, line {table.header or 1}: no column is called {name!r} (--columns); "
                f"there are: {known}"
            )
    for k in list(values):
        if table.names[k] not in told.columns:
            del values[k]
            _leave_out(table, k, "not asked for", left_out)
    return values


def _values_of_long(table: Table, values: dict[int, np.ndarray], left_out: list[ColumnReport]) -> dict[int, np.ndarray]:
    """Where one column of a long table is called the value, numbers beside it (a place, a quality) are no sensors."""
    called = [k for k in values if named(table.names[k], VALUE_NAMES) and np.isfinite(values[k]).any()]
    if len(called) != 1:
        return values
    for k in values:
        if k not in called:
            _leave_out(table, k, "beside the value", left_out)
    return {k: values[k] for k in called}


def _counts_rows(name: str, values: np.ndarray, account: Account, columns: int) -> bool:
    """A row counter is left out where its name says so too, and other columns remain."""
    nameless = name == "column_1"
    if columns < 2 or not (nameless or named(name, COUNTER_NAMES)):
        return False
    return oddities.row_counter(values[account.rows.open])


def _sensors(table: Table, key: list[int], account: Account) -> tuple[np.ndarray | None, list[str]]:
    """The sensor of each row, and the sensors' names."""
    if not key:
        return None, []
    for k in key:
        account.cells.pop(table.names[k], None)
    codes, labels = codes_of(table.columns[key[0]])
    for k in key[1:]:
        more, names = codes_of(table.columns[k])
        blank = (codes < 0) | (more < 0)
        both = np.flatnonzero(~blank)
        pairs, found = np.unique(codes[both] * len(names) + more[both], return_inverse=True)
        labels = [f"{labels[pair // len(names)]} {names[pair % len(names)]}" for pair in pairs]
        codes = np.full(len(codes), -1, dtype=np.int64)
        codes[both] = found
    account.rows.set_aside(codes < 0, "no sensor name")
    own = np.array([bool(re.fullmatch(r"\$RT_\w+\$", label)) for label in labels] + [False])
    account.rows.set_aside(own[codes], "the logger's own remark")
    # Texts that differ only in blanks around them are one sensor
    distinct = list(dict.fromkeys(labels))
    if len(distinct) < len(labels):
        number = np.array([distinct.index(label) for label in labels])
        codes = np.where(codes >= 0, number[codes], -1)
    return codes, distinct


def _blocks(readings: list[Reading]) -> list[Block]:
    """Readings that continue each other become one block; the others get names of their own."""
    groups: dict[tuple[Any, ...], list[Reading]] = {}
    for reading in readings:
        kind = (tuple(reading.block.names), reading.block.codes is None, zones.label(reading.block.zone))
        groups.setdefault(kind, []).append(reading)
    blocks: list[Block] = []
    owners: list[Reading] = []
    for members in groups.values():
        if len(members) > 1 and _disjoint(members):
            blocks.append(_joined(members))
            owners.append(members[0])
            members[0].table.notes.append(f"{len(members)} files continue each other")
        else:
            blocks += [member.block for member in members]
            owners += members
    if len({block.zone is None for block in blocks}) > 1:
        plain = next(owner.table.source for owner, block in zip(owners, blocks, strict=True) if block.zone is None)
        raise InputError(f"{plain}: its times have no zone, those of other files have; pass --tz")
    if len({zones.label(block.zone) for block in blocks}) > 1:
        for block in blocks:
            block.zone = zones.UTC
        owners[0].table.notes.append("files are in different zones; kept as UTC (--tz names the zone)")
    names = [name for block in blocks for name in (block.labels or block.names)]
    if len(blocks) > 1 and len(set(names)) < len(names):
        for owner, block in zip(owners, blocks, strict=True):
            _rename(block, owner.source.stem)
    return blocks


def _disjoint(members: list[Reading]) -> bool:
    """Whether no times (of a sensor) are shared, but for one in a hundred: months may end with the next one's first."""
    keys = []
    labels: dict[str, int] = {}
    for member in members:
        rows = member.table.account.rows.open
        if member.block.codes is None:
            keys.append(np.unique(member.block.utc[rows]))
        else:
            number = np.array([labels.setdefault(label, len(labels)) for label in member.block.labels])
            keys.append(np.unique(member.block.utc[rows] * 4096 + number[member.block.codes[rows]] % 4096))
    total = sum(len(key) for key in keys)
    return len(np.unique(np.concatenate(keys))) >= 0.99 * total - len(members)


def _joined(members: list[Reading]) -> Block:
    first = members[0].block
    account = Account.joined([member.table.account for member in _same_cells(members)])
    codes, labels = None, []
    if first.codes is not None:
        number: dict[str, int] = {}
        parts = []
        for member in members:
            to = np.array([number.setdefault(label, len(number)) for label in member.block.labels] + [-1])
            parts.append(to[member.block.codes])
        codes, labels = np.concatenate(parts), list(number)
    values = [np.concatenate([member.block.values[k] for member in members]) for k in range(len(first.names))]
    utc = np.concatenate([member.block.utc for member in members])
    return Block(account, first.names, values, utc, first.zone, codes, labels, first.units)


def _same_cells(members: list[Reading]) -> list[Reading]:
    """Gives all accounts the same columns: a column that one file left out, another may lack."""
    names = list(dict.fromkeys(name for member in members for name in member.table.account.cells))
    for member in members:
        cells = member.table.account.cells
        for name in names:
            if name not in cells:
                cells[name] = Ledger(member.table.count)
                cells[name].set_aside(np.ones(member.table.count, dtype=bool), "column not in this file")
        member.table.account.cells = {name: cells[name] for name in names}
    return members


def _rename(block: Block, stem: str) -> None:
    if block.labels:
        block.labels = [f"{stem} {label}" for label in block.labels]
        return
    new = [stem] if len(block.names) == 1 else [f"{stem} {name}" for name in block.names]
    called = dict(zip(block.names, new, strict=True))
    block.account.cells = {called.get(name, name): ledger for name, ledger in block.account.cells.items()}
    block.units = {called.get(name, name): unit for name, unit in block.units.items()}
    block.names = new
