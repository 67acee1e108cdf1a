"""The account of a reading: what was read, what was used, and what was set aside and why; as text and as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

LEFT_OUT = {
    "text": "text",
    "row counter": "counts the rows",
    "not asked for": "not among --columns",
    "beside the value": "stands beside the value (--columns reads it)",
    "describes the sensor": "one value a sensor (--columns reads it)",
    "another time": "tells the same times once more",
    "composite cell": "several values in a cell",
}
"""Why a whole column is no sensor, and how the report says so of it."""


@dataclass(kw_only=True)
class ColumnReport:
    """One series of the frame, or one column that was left out."""

    name: str
    unit: str | None = None
    source: str | None = None
    """File that it comes from, where there are several."""
    cells: int = 0
    """Cells read."""
    used: int = 0
    """Cells in the frame."""
    set_aside: dict[str, int] = field(default_factory=dict)
    missing: float = 0.0
    """Share of the frame's rows, from its first to its last, that are missing."""
    least: float | None = None
    mean: float | None = None
    greatest: float | None = None
    step: str | None = None
    """Its own step, where that is not the frame's."""
    oddities: list[str] = field(default_factory=list)
    in_frame: bool = True


@dataclass(kw_only=True)
class Offence:
    """A row that was set aside, or a cell (where ``column`` names its column)."""

    reason: str
    source: str
    line: int
    text: str
    column: str | None = None


@dataclass(kw_only=True)
class Gap:
    """Rows of the grid that no row of the file fills."""

    first: str
    last: str
    rows: int


@dataclass(kw_only=True)
class ReadingReport:
    """What was read and what became of it.

    Every row and every cell is accounted for: ``rows_read == rows_used + sum(set_aside.values())``, and
    ``cells_read == cells_used + sum(cells_set_aside.values())``. A cell is a field of a row in a column other than
    those that hold the time or the name of a sensor. Without ``aggregate``, ``cells_used`` is the number of values in
    the frame.
    """

    source: str
    sources: list[str] = field(default_factory=list)
    encoding: str | None = None
    packing: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    header_line: int | None = None
    other_lines: dict[str, int] = field(default_factory=dict)
    """Lines that are no rows: above the data, comments, blank."""
    preface: list[str] = field(default_factory=list)
    """What stands above the data and is neither names nor units."""
    time: str = ""
    """The columns that hold the time, and how they were read."""
    zone: str | None = None
    offsets: list[str] = field(default_factory=list)
    """The offsets from UTC that stand with the times, where they do."""
    step: str = ""
    """The frame's frequency; several, parted by commas, where sensors differ."""
    steps: dict[str, list[str]] = field(default_factory=dict)
    """Names of the series by their step."""
    grid: str = "exact"
    """How the times lie on the grid: exact, jittered, irregular, calendar or stated."""
    start: str | None = None
    end: str | None = None
    rows: int = 0
    """Rows of the frame."""
    layout: str = "wide"
    rows_read: int = 0
    rows_used: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    cells_read: int = 0
    cells_used: int = 0
    cells_set_aside: dict[str, int] = field(default_factory=dict)
    columns: list[ColumnReport] = field(default_factory=list)
    left_out: list[ColumnReport] = field(default_factory=list)
    """Columns that are not in the frame: text, row counters."""
    gaps: list[Gap] = field(default_factory=list)
    """The longest gaps, longest first."""
    gap_count: int = 0
    gap_rows: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    repeated_hour: int = 0
    """Rows within an hour that summer time repeats, told apart by their order."""
    moved: int = 0
    """Rows moved onto the grid."""
    moved_most: float = 0.0
    """Seconds by which a row was moved at most."""
    notes: list[str] = field(default_factory=list)
    offences: list[Offence] = field(default_factory=list)
    plot: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, ready for JSON."""
        return _finite(asdict(self))

    def json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def text(self, width: int = 80) -> str:
        """The report for a reader's eyes."""
        return _render(self, width)

    def __str__(self) -> str:
        return self.text()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.6g}" if abs(value) < 1e7 else f"{value:.4g}"


def _count(value: int) -> str:
    return f"{value:,}"


def _share(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.1%}" if value >= 0.001 else "<0.1%"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent if first is None else first, subsequent_indent=indent, break_long_words=True
    ) or [indent]


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{_count(count)} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))


def _render(report: ReadingReport, width: int) -> str:
    out: list[str] = []

    def line(key: str, value: str) -> None:
        out.extend(_wrapped(value, width, " " * 10, f"{key:<10}"))

    out.extend(_wrapped(report.source, width, "  ", ""))
    names = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "blank"}
    how = [report.packing, report.encoding, names.get(report.delimiter or "", report.delimiter)]
    how += [f"decimal {names.get(report.decimal, report.decimal)}"] if report.decimal == "," else []
    if any(how):
        line("file", ", ".join(part for part in how if part))
    if report.preface:
        more = f" and {len(report.preface) - 2} more lines" if len(report.preface) > 2 else ""
        line("above", _cut(" | ".join(report.preface[:2]), 2 * width) + more)
    line("time", f"{report.time}; {report.zone or 'no zone'}")
    line("span", f"{report.start} to {report.end}")
    step = f"{report.step}; {_count(report.rows)} rows, {report.layout}"
    line("step", step + ("" if report.grid in ("exact", "calendar") else f"; {report.grid} times"))
    line("rows", f"{_count(report.rows_read)} read = {_count(report.rows_used)} used" + _minus(report.set_aside))
    line(
        "cells", f"{_count(report.cells_read)} read = {_count(report.cells_used)} used" + _minus(report.cells_set_aside)
    )
    if report.gap_count:
        line("gaps", f"{_count(report.gap_count)} with {_count(report.gap_rows)} rows; the longest:")
        for gap in report.gaps[:3]:
            out.append(f"          {gap.first} to {gap.last} ({_count(gap.rows)} rows)"[:width])
    if report.moved:
        line("moved", f"{_count(report.moved)} rows onto the grid, by {seconds(report.moved_most)} at most")
    if report.repeated_hour:
        line("clock", f"{_count(report.repeated_hour)} rows in repeated hours, told apart by their order")
    out.append("")
    out += _table(report, width)
    oddities = [(column, odd) for column in [*report.columns, *report.left_out] for odd in column.oddities]
    if oddities:
        out += ["", "oddities"]
        for column, odd in oddities[:20]:
            out += _wrapped(f"{column.name}: {odd}", width, "    ", "  ")
        if len(oddities) > 20:
            out.append(f"  and {len(oddities) - 20} more")
    if report.notes:
        out += ["", "notes"]
        for note in report.notes[:20]:
            out += _wrapped(note, width, "    ", "  ")
        if len(report.notes) > 20:
            out.append(f"  and {len(report.notes) - 20} more")
    several = len(report.sources) > 1
    for what in ("rows", "cells"):
        offences = [offence for offence in report.offences if (offence.column is None) == (what == "rows")]
        if not offences:
            continue
        out += ["", f"first {what} set aside"]
        for offence in offences[:10]:
            where = f"{offence.source}, line {offence.line}" if several else f"line {offence.line}"
            why = f"{offence.reason}" + (f" in {offence.column}" if offence.column else "")
            out += [_cut(f"  {where}: {why}: {offence.text}", width)]
        if len(offences) > 10:
            out.append(f"  and {len(offences) - 10} more (--json has all)")
    if report.plot:
        out += ["", *_wrapped(f"plot: {report.plot}", width, "      ", "")]
    return "\n".join(out)


def _minus(counts: dict[str, int]) -> str:
    return "" if not counts else f" + {_count(sum(counts.values()))} set aside: {_pairs(counts)}"


def seconds(count: float) -> str:
    """A span of time in the largest unit that it fills."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} s"


def _table(report: ReadingReport, width: int) -> list[str]:
    shown = report.columns[:40]
    name_width = min(
        max([len(column.name) + (len(column.unit or "") + 3 if column.unit else 0) for column in shown] + [6]),
        width - 44,
    )
    out = [f"{'column':<{name_width}} {'missing':>8} {'least':>10} {'mean':>10} {'most':>10}"]
    for column in shown:
        name = column.name if not column.unit or column.unit in column.name else f"{column.name} [{column.unit}]"
        out.append(
            f"{_cut(name, name_width):<{name_width}} {_share(column.missing):>8} {_number(column.least):>10} "
            f"{_number(column.mean):>10} {_number(column.greatest):>10}"
        )
        taken = {reason: count for reason, count in column.set_aside.items() if not reason.startswith("row:")}
        if taken:
            out += _wrapped(f"missing: {_pairs(taken)}", width, "    ", "  ")
        if column.step:
            out += _wrapped(f"its own step is {column.step}", width, "    ", "  ")
    if len(report.columns) > len(shown):
        out.append(f"and {len(report.columns) - len(shown)} more columns")
    if report.left_out:
        out += _wrapped("not in the frame: " + ", ".join(column.name for column in report.left_out), width, "  ", "")
    return out
