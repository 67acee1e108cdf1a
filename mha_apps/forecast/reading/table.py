"""From lines to columns of text: a line of data becomes a row, and lines that are no row are set aside by name."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv

from mha_apps.errors import InputError

from .account import Account
from .dialect import Dialect, Lines, detect, fields, remark_behind
from .sources import Source
from .text import decode

MOST_JOINED = 30
"""Lines that one quoted field may span."""


@dataclass
class Table:
    """Columns of equal length: texts (null where blank), or the typed columns of a data frame."""

    source: str
    names: list[str]
    columns: list[pa.Array | pd.Series]
    account: Account
    units: list[str | None] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    delimiter: str | None = None
    encoding: str | None = None
    packing: str | None = None
    header: int | None = None
    """Number of the line that names the columns."""
    lines: dict[str, int] = field(default_factory=dict)
    """Lines of the file that are no rows: above the data, comments, blank."""
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.account.lines)


def read_table(source: Source, *, delimiter: str | None = None, encoding: str | None = None) -> Table:
    """Parses one source.

    Raises:
        InputError: if it holds no rows.
    """
    if isinstance(source.data, pd.DataFrame):
        return _from_frame(source.name, source.data)
    text = decode(source.name, source.data, encoding)
    if not text.data[:4096].strip() and not text.data.strip():
        raise InputError(f"{source.name}, line 1: no line holds anything; export the file again")
    dialect, lines = detect(source.name, Lines(text.data), delimiter=delimiter)
    table = _parse(source.name, lines, dialect)
    table.encoding, table.packing = text.encoding, source.packing
    table.notes = [*text.notes, *table.notes]
    return table


def _from_frame(name: str, frame: pd.DataFrame) -> Table:
    index = frame.index
    if not isinstance(index, pd.RangeIndex) and (
        isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) or any(level is not None for level in index.names)
    ):
        frame = frame.reset_index()
        if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) and index.name is None:
            frame = frame.rename(columns={frame.columns[0]: "time"})
    if isinstance(frame.columns, pd.MultiIndex):
        frame = frame.set_axis(
            [" ".join(str(part) for part in column if part != "") for column in frame.columns], axis=1
        )
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"{name}: two columns are called {twice!r}; rename one")
    if not len(frame) or not names:
        raise InputError(f"{name}: no rows; pass a table with a time and a value column")
    columns: list[pa.Array | pd.Series] = []
    for position in range(frame.shape[1]):
        column = frame.iloc[:, position].reset_index(drop=True)
        if isinstance(column.dtype, pd.PeriodDtype):
            column = column.dt.to_timestamp()
        elif isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(column.cat.categories.dtype)
        if pd.api.types.is_datetime64_any_dtype(column.dtype) or (
            pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        ):
            columns.append(column)
        else:
            texts = column.astype(object).where(column.notna(), None)
            columns.append(pa.array([None if v is None or str(v) == "" else str(v) for v in texts], pa.string()))
    return Table(name, names, columns, Account.of(name, np.arange(1, len(frame) + 1)), [None] * len(names))


def _parse(name: str, lines: Lines, dialect: Dialect) -> Table:
    data, delimiter, quote = lines.bytes, ord(dialect.delimiter), dialect.quote
    numbers = np.arange(dialect.first, len(lines))
    starts, ends = lines.starts[numbers], lines.ends[numbers]
    notes = dialect.notes

    quoted = quote is not None and quote.encode() in lines.data
    if quoted:
        starts, ends, numbers, broken = _whole(lines, starts, ends, numbers, ord(quote or '"'), dialect, notes)
    else:
        broken = np.zeros(len(numbers), dtype=bool)
    separators = _counts(data, starts, ends, delimiter, ord(quote) if quoted and quote else None)
    expected = dialect.width - 1

    # Blank lines and comments are lines but no rows
    blank = ends == starts
    suspects = np.flatnonzero(~blank & (separators != expected))
    for k in suspects if len(suspects) < 200_000 else suspects[:200_000]:
        if not lines.data[starts[k] : ends[k]].strip():
            blank[k] = True
    comment = np.zeros(len(numbers), dtype=bool)
    if dialect.comment_mark is not None:
        mark = dialect.comment_mark.encode()
        inside = np.flatnonzero(ends > starts)
        inside = inside[data[starts[inside]] == mark[0]]
        comment[[k for k in inside if lines.data.startswith(mark, starts[k])]] = True
    rows = np.flatnonzero(~blank & ~comment)
    if len(rows) == 0:
        raise InputError(f"{name}, line {lines.numbers[dialect.first]}: no row of data; export the file again")
    starts, ends, numbers, separators, broken = starts[rows], ends[rows], numbers[rows], separators[rows], broken[rows]
    account = Account.of(name, lines.numbers[numbers])

    regular = (separators == expected) & ~broken
    buffer = _assemble(lines, starts, ends, regular, dialect, account, broken)
    columns = _columns(buffer, dialect, len(rows), quoted, int((ends - starts).max()))
    _rows_that_are_none(account, columns, dialect, lines, starts, ends)
    table = Table(
        name, list(dialect.names), columns, account, list(dialect.units), dialect.comments, dialect.delimiter,
        header=None if dialect.header is None else int(lines.numbers[dialect.header]),
        notes=notes,
        lines={"above the data": dialect.first, "comments": int(comment.sum()), "blank": int(blank.sum())},
    )  # fmt: skip
    _drop_nameless_blanks(table)
    return table


def _counts(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, sign: int, quote: int | None) -> np.ndarray:
    """How often ``sign`` stands outside quotes in each line."""
    hits = data == sign
    if quote is not None:
        inside = np.bitwise_xor.accumulate(data == quote)
        # A line within which quotes are paired starts outside them, whatever an unpaired line before it left behind
        before = np.where(starts > 0, inside[np.maximum(starts - 1, 0)], False)
        positions = np.flatnonzero(hits)
        line = np.searchsorted(starts, positions, side="right") - 1
        fine = (line >= 0) & (positions < ends[np.maximum(line, 0)])
        positions, line = positions[fine], line[fine]
        outside = inside[positions] == before[line]
        return np.bincount(line[outside], minlength=len(starts))
    positions = np.flatnonzero(hits)
    return np.searchsorted(positions, ends) - np.searchsorted(positions, starts)


def _whole(
    lines: Lines,
    starts: np.ndarray,
    ends: np.ndarray,
    numbers: np.ndarray,
    quote: int,
    dialect: Dialect,
    notes: list[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Joins lines over which a quoted field runs; a quote that nothing closes makes its line a broken one."""
    marks = _counts(lines.bytes, starts, ends, quote, None)
    odd = np.flatnonzero(marks % 2)
    broken = np.zeros(len(starts), dtype=bool)
    gone = np.zeros(len(starts), dtype=bool)
    k = 0
    while k < len(odd):
        here = odd[k]
        if k + 1 < len(odd) and odd[k + 1] - here <= MOST_JOINED:
            there = odd[k + 1]
            text = lines.data[starts[here] : ends[there]].decode("utf-8", "replace").replace("\n", " ")
            if len(fields(text, dialect.delimiter, dialect.quote)) == dialect.width:
                ends[here] = ends[there]
                gone[here + 1 : there + 1] = True
                k += 2
                continue
        broken[here] = True
        k += 1
    keep = ~gone
    if gone.any():
        notes.append(f"{int(gone.sum())} line ends within quotes")
    return starts[keep], ends[keep], numbers[keep], broken[keep]


def _assemble(
    lines: Lines,
    starts: np.ndarray,
    ends: np.ndarray,
    regular: np.ndarray,
    dialect: Dialect,
    account: Account,
    broken: np.ndarray,
) -> bytes:
    """The rows as text in which each has the right number of fields."""
    data = lines.data
    contiguous = bool(np.all(starts[1:] == ends[:-1] + 1))
    if regular.all() and contiguous:
        return pa.py_buffer(data).slice(int(starts[0]), int(ends[-1] + 1 - starts[0]))
    delimiter = dialect.delimiter
    pieces: list[bytes] = []
    odd = {int(k) for k in np.flatnonzero(~regular)}
    # A new piece wherever a row is irregular or its line does not follow the one before
    breaks = np.flatnonzero((starts[1:] != ends[:-1] + 1) | ~regular[1:] | ~regular[:-1]) + 1
    bounds = [0, *breaks.tolist(), len(starts)]
    short: list[int] = []
    long: list[int] = []
    remarks: list[str] = []
    for begin, end in itertools.pairwise(bounds):
        if begin not in odd:
            piece = data[starts[begin] : ends[end - 1]]
            pieces.append(piece.replace(b"\n", b" ") if end - begin == 1 and b"\n" in piece else piece)
            continue
        text = data[starts[begin] : ends[begin]].decode("utf-8", "replace").replace("\n", " ")
        cells = fields(text, delimiter, dialect.quote)
        while len(cells) > dialect.width and not cells[-1]:
            cells.pop()
        if len(cells) > dialect.width and (remark := remark_behind(cells, dialect)) is not None:
            remarks.append(remark)
            cells = cells[: dialect.width]
        if len(cells) > dialect.width:
            long.append(begin)
        if len(cells) < dialect.width and not broken[begin]:
            short.append(begin)
        if len(cells) > dialect.width or broken[begin]:
            cells = []
        cells += [""] * (dialect.width - len(cells))
        pieces.append(delimiter.join(_requoted(cell, delimiter) for cell in cells).encode())
    if remarks:
        dialect.notes.append(f"{len(remarks)} rows end in a remark beyond the columns, such as {remarks[0][:30]!r}")
    account.rows.set_aside(broken, "quote never closed")
    account.rows.set_aside(np.array(long, dtype=np.int64), "more fields than columns")
    if lines.cut and short and short[-1] == len(starts) - 1 and ends[-1] >= len(data) - 1:
        account.rows.set_aside(np.array([short[-1]]), "cut off at the end of the file")
    return pa.py_buffer(b"\n".join(pieces) + b"\n")


def _requoted(cell: str, delimiter: str) -> str:
    if delimiter in cell or '"' in cell:
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _columns(buffer: pa.Buffer, dialect: Dialect, count: int, quoted: bool, longest: int) -> list[pa.Array]:
    """The fields of all rows, column by column."""
    names = [str(k) for k in range(dialect.width)]
    text = pa.large_string() if buffer.size > 1 << 30 else pa.string()
    try:
        parsed = arrow_csv.read_csv(
            pa.BufferReader(buffer),
            read_options=arrow_csv.ReadOptions(
                column_names=names, block_size=min(max(1 << 20, 2 * longest + 4 * dialect.width), (1 << 31) - 1)
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=(dialect.quote or '"') if quoted else False,
                ignore_empty_lines=False,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, text), strings_can_be_null=True, null_values=[""]
            ),
        )
        if parsed.num_rows == count:
            return [_one(parsed.column(k), text) for k in range(dialect.width)]
    except pa.ArrowException:
        pass
    # Quotes in odd places: slower, and it bears anything
    table = [
        fields(line.decode("utf-8", "replace"), dialect.delimiter, dialect.quote)
        for line in buffer.to_pybytes().split(b"\n")[:count]
    ]
    rows = [(row + [""] * dialect.width)[: dialect.width] for row in table]
    return [pa.array([row[k] or None for row in rows], text) for k in range(dialect.width)]


def _one(column: pa.ChunkedArray, text: pa.DataType) -> pa.Array:
    joined = column.combine_chunks()
    return (
        joined
        if isinstance(joined, pa.Array)
        else pa.concat_arrays(joined.chunks)
        if joined.num_chunks
        else pa.array([], text)
    )


def _rows_that_are_none(
    account: Account, columns: list[pa.Array], dialect: Dialect, lines: Lines, starts: np.ndarray, ends: np.ndarray
) -> None:
    """Rows of delimiters only, and the header where it comes again within the data."""
    empty = np.ones(account.lines.shape, dtype=bool)
    for column in columns:
        if column.null_count == 0:
            empty[:] = False
            break
        empty &= column.is_null().to_numpy(zero_copy_only=False)
    account.rows.set_aside(empty, "empty row")
    if dialect.header is None:
        return
    header = lines.raw(dialect.header)
    if lines.data.find(header, starts[0]) < 0 or not header.strip():
        return
    same = np.flatnonzero(ends - starts == len(header))
    again = [k for k in same if lines.data[starts[k] : ends[k]] == header]
    account.rows.set_aside(np.array(again, dtype=np.int64), "header repeated")


def _drop_nameless_blanks(table: Table) -> None:
    """Columns that a delimiter at the end of each line makes."""
    keep = [
        k
        for k, (name, column) in enumerate(zip(table.names, table.columns, strict=True))
        if not (name == f"column_{k + 1}" and column.null_count == len(column))
    ]
    dropped = len(table.names) - len(keep)
    if dropped and keep:
        table.notes.append(f"{dropped} empty column{'s' * (dropped > 1)} without a name")
        table.names = [table.names[k] for k in keep]
        table.columns = [table.columns[k] for k in keep]
        table.units = [table.units[k] for k in keep]
