"""The lines above the data: which of them name the columns, in one row or in several, and which hold units."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from .numbers import is_missing_word, is_number
from .timetext import layout_of
from .words import LEVEL_NAMES, MOMENT_NAMES, PREFACE_LABELS, UNIT_LABELS, UNITS

MOST_SKIPPED = 3
"""Lines of another kind that may stand between the names and the data."""
_DIGIT = re.compile(r"\d")


@dataclass
class Above:
    """A line above the data."""

    index: int
    commented: bool
    cells: list[str]
    placed: str = ""
    """The line with its blanks, where runs of blanks part its fields; empty otherwise."""


@dataclass
class Names:
    """One name a column, their units, and the lines that these come from."""

    names: list[str]
    units: list[str | None]
    line: int | None = None
    lines: set[int] = field(default_factory=set)


def kind(cell: str) -> str:
    """blank, number, time, missing or text."""
    if not cell or cell.isspace():
        return "blank"
    if is_number(cell):
        return "number"
    if is_missing_word(cell):
        return "missing"
    if _DIGIT.search(cell) and layout_of(re.sub(r"\d", "0", cell).encode()) is not None:
        return "time"
    return "text"


def column_names(above: list[Above], width: int, profile: list[str]) -> Names:
    """Finds names and units among the lines above the data.

    A column is named by the lowest line that can name columns, joined with the lines above it that group the columns
    (an inverter's serial number, a room) and with those below it that tell columns of one name apart.

    Args:
        above: the lines above the data, from the top.
        width: columns of the data.
        profile: what each column mostly holds.
    """
    campbell = next((line.index for line in above if line.cells[:1] in (["TOA5"], ["TOACI1"])), None)
    block = _name_block(above, width) if campbell is None else [line for line in above if line.index > campbell]
    if campbell is None and len(block) > 1:
        first = [line.cells[0] for line in block]
        if all(_prefatory(line.cells) or (line.cells[0] and first.count(line.cells[0]) > 1) for line in block):
            block = []  # station,id,39001 / station,name,Kingston: a preface and no names
    if not block:
        return Names(_distinct([""] * width), [None] * width)
    found = Names([], [])
    if campbell is not None:
        chosen, names = block[0], block[0].cells
        units = block[1].cells if len(block) > 1 else []
        found.lines = {line.index for line in block[:2]}
    else:
        times = [k for k, held in enumerate(profile) if held == "time"]
        chosen, names, units = _from_block(block, above, times, found.lines)
    found.line = chosen.index
    if names and len(names) == width - 1:
        # either a table with row labels, or data that end in a delimiter, which leaves a blank column
        names = [*names, ""] if profile[-1] == "blank" else ["", *names]
    names = names + [""] * (width - len(names))
    found.names = _distinct([" ".join(name.split()) for name in names])
    found.units = [unit.strip() or None for unit in units[: len(names)]] + [None] * (len(names) - len(units))
    return found


def _from_block(
    block: list[Above], above: list[Above], times: list[int], used: set[int]
) -> tuple[Above, list[str], list[str]]:
    """The line that names the columns, their names, and their units."""
    timed = [line for line in block if any(_names_time(line.cells, k) for k in times)]
    plain = [line for line in block if not _unit_like(line.cells) and not _prefatory(line.cells)]
    if timed and not set(map(id, timed)) & set(map(id, plain)):
        plain = sorted([*plain, *timed], key=lambda line: line.index)  # Date,Time,,, are types of columns elsewhere
    plain = plain or [line for line in block if not _prefatory(line.cells)][:1] or block[:1]
    at = _best_name_row([line.cells for line in plain], times)
    chosen = plain[at]
    names = list(chosen.cells)
    used.add(chosen.index)
    near = [line for line in block if _unit_like(line.cells) and line not in plain and line.index >= chosen.index - 1]
    unit_line = near[-1] if near else None
    for lower in plain[at + 1 :]:
        open_names = "" in names[1:] or len(set(names[1:])) < len(names[1:])
        if open_names and len(set(filter(None, lower.cells))) > 1 and _labels_columns(lower.cells[0]):
            names = _joined(names, lower.cells)
            used.add(lower.index)
        elif unit_line is None and all(kind(cell) in ("text", "blank", "missing") for cell in lower.cells):
            unit_line = lower
    expected = chosen.index
    for upper in _levels(chosen, above, len(names)):
        if upper.index != expected - 1:
            break
        expected = upper.index
        cells = (_over(upper, chosen) or []) if upper.placed else upper.cells
        if cells and not _unit_like(cells) and _groups(cells, names):
            names = _joined(cells, names)
            used.add(upper.index)
    units: list[str] = []
    if unit_line is not None:
        units = (_over(unit_line, chosen) or unit_line.cells) if unit_line.placed else unit_line.cells
        used.add(unit_line.index)
        if names and not names[0] and len(units) == len(names):
            names[0] = units[0]  # dd.MM.yyyy HH:mm stands where the time has no name
    return chosen, names, units


def _names_time(cells: list[str], k: int) -> bool:
    return k < len(cells) and cells[k].strip().lower() in MOMENT_NAMES


def _labels_columns(first: str) -> bool:
    """Whether the first cell of a line lets the others name columns: none, or a word for names."""
    label = first.strip().rstrip(":.").lower()
    return not label or label in LEVEL_NAMES


def _prefatory(cells: list[str]) -> bool:
    """Whether a line says something of the file: Release date,24-05-2024."""
    return bool(cells) and cells[0].strip().rstrip(":.").lower() in PREFACE_LABELS


def _levels(chosen: Above, above: list[Above], width: int) -> list[Above]:
    """The lines above the names that may group columns, from the nearest up."""
    found = []
    for line in reversed([line for line in above if line.index < chosen.index]):
        if line.commented != chosen.commented or (len(line.cells) != width and not line.placed):
            break
        found.append(line)
    return found


def _groups(upper: list[str], names: list[str]) -> bool:
    """Whether a line groups the columns: the column of the time has no group, and the others not all the same one."""
    full = [cell for cell in upper[1:] if cell]
    if len(full) < 2 or len(upper) < 3:
        return False
    repeated = len(set(names[1:])) < len(names[1:])
    first = upper[0].strip().lower()
    labelled = not names[0] or first == names[0].strip().lower() or first in MOMENT_NAMES or _labels_columns(first)
    if not labelled and not (repeated and len(full) == len(upper) - 1):
        return False
    return repeated or len(set(full)) > 1


def _joined(upper: list[str], lower: list[str]) -> list[str]:
    """Two rows of names as one.

    A group may stand above the first of its columns only, as merged cells are exported; but not where a row repeats
    the same group over columns side by side.
    """
    spans = not any(a and a == b for a, b in itertools.pairwise(upper))
    names, above = [], ""
    for k, name in enumerate(lower):
        mine = upper[k] if k < len(upper) else ""
        if k == 0:
            names.append(name or ("" if _labels_columns(mine) else mine))
            continue
        above = mine or (above if spans and k > 1 else "")
        words = [word for word in above.split() if word not in name.split()]
        names.append(" ".join([*words, name]).strip())
    return names


def _over(line: Above, names: Above) -> list[str] | None:
    """The words of a line, each at the column whose name it stands over or under; None where they do not."""
    spots = [(match.start(), match.end()) for match in re.finditer(r"\S+", names.placed)]
    cells = [""] * len(names.cells)
    if len(spots) != len(cells):
        return None
    for match in re.finditer(r"\S+", line.placed):
        apart = [max(start - match.end(), match.start() - end) for start, end in spots]
        k = min(range(len(spots)), key=lambda k: apart[k])
        if apart[k] > 2 or cells[k]:
            return None
        cells[k] = match[0]
    return cells


def _unit_like(cells: list[str]) -> bool:
    full = [cell.strip().lower() for cell in cells if cell.strip()]
    if len(full) > 1 and full[0].rstrip(":") in UNIT_LABELS:
        return True
    known = 0.0
    for cell in full:
        bracketed = len(cell) < 16 and re.fullmatch(r"[\[(<{].*[\])>}]", cell) is not None
        if cell in UNITS or bracketed or is_missing_word(cell) or re.fullmatch(r"\d{1,3}[sdnfx]", cell):
            known += 0.5 if len(cell) == 1 and cell.isalpha() else 1  # A may be ampere, or the first sensor
    return bool(full) and known >= 0.5 * len(full)


def _name_block(above: list[Above], width: int) -> list[Above]:
    """The lines right above the data that have a cell for each column: names, units, what a logger adds to them."""
    block: list[Above] = []
    commented_block = False
    skipped = 0
    for line in reversed(above):
        cells = list(line.cells)
        while len(cells) > width and not cells[-1]:
            cells.pop()
        near = {width, width - 1} if width > 2 else {width} if width == 2 or line.commented else {width, width + 1}
        if not block and not line.commented:
            near |= {width + 1, width + 2, width + 3}  # names of columns that the data leave out
        if line.commented:
            if len(cells) == width and not (width <= 2 and cells[0].endswith(":")):
                if block and not (commented_block and _unit_like(block[0].cells)):
                    break
                block.insert(0, Above(line.index, True, cells, line.placed))
                commented_block = True
            elif commented_block:
                break
            continue
        if commented_block:
            break
        if len(cells) in near or (line.placed and 1 < len(cells) < width and not block and _unit_like(cells)):
            block.insert(0, Above(line.index, False, cells, line.placed))
        elif block or skipped == MOST_SKIPPED:
            break
        else:
            skipped += 1
    return block


def _best_name_row(rows: list[list[str]], times: list[int]) -> int:
    """The lowest row that can name the columns: mostly words, or one that names the time."""
    best = 0
    for k in range(1, len(rows)):
        others = [kind(cell) for j, cell in enumerate(rows[k]) if cell and j not in times]
        wordy = others.count("text") >= 0.6 * len(others) > 0
        timed = any(row_k < len(rows[k]) and rows[k][row_k] for row_k in times)
        already = any(row_k < len(rows[best]) and rows[best][row_k] for row_k in times)
        mixed = 0 < others.count("time") < len(others)  # data,first,1883-01-01
        if (any(cell.lower() in MOMENT_NAMES for cell in rows[k]) and not mixed) or (wordy and (timed or not already)):
            best = k
    return best


def _distinct(names: list[str]) -> list[str]:
    """Names without repeats and gaps; a nameless column is called by its number."""
    taken: set[str] = set()
    out: list[str] = []
    for k, name in enumerate(names, start=1):
        name = name or f"column_{k}"
        unique, again = name, 2
        while unique in taken:
            unique, again = f"{name}.{again}", again + 1
        taken.add(unique)
        out.append(unique)
    return out
