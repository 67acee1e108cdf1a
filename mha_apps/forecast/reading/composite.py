"""Cells that hold several values, such as ``+0020,1``: a reading of fixed width and a code of its quality.

A comma within such a cell parts two values. Read as a decimal comma it would give a number that is plausible and wrong,
so these columns are told apart before any number is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .account import Ledger
from .numbers import is_number

CODED = re.compile(r"(?P<sign>[+-]?)(?P<digits>\d{2,9}),(?P<code>[0-9A-Za-z])")
MOST_CODES = 8
ISD_COLUMNS = frozenset({"WND", "CIG", "VIS", "TMP", "DEW", "SLP"})
ISD_UNITS = {"TMP": "°C", "DEW": "°C", "SLP": "hPa"}
"""Columns of NOAA's Integrated Surface Database that hold tenths and one code of quality."""


@dataclass
class Composite:
    """What the cells of a column hold."""

    scale: float | None
    """By what the reading is divided; None where nothing tells, and the cells are not read."""
    unit: str | None = None


def composites(names: Sequence[str], samples: dict[int, list[str]], delimiter: str | None) -> dict[int, Composite]:
    """The columns whose cells hold several values.

    One sign of it is not enough: ``-05,3`` may be a decimal comma behind a printed zero. The digits have one width of
    at least three, and either zeros fill them up or all bear a sign, and few codes occur, most often one of them.

    Args:
        names: of all columns.
        samples: cells of the columns that hold texts, by the column's number; blank ones left out.
        delimiter: between the fields. Only where that is a comma do fields with commas stand in quotes.
    """
    found: dict[int, Composite] = {}
    isd = len(ISD_COLUMNS & set(names)) >= 2
    for k, cells in samples.items():
        cells = [cell.strip() for cell in cells if cell.strip()]
        if not cells:
            continue
        if _coded(cells) or (isd and names[k] in ISD_UNITS and _share(cells) >= 0.95):
            tenths = isd and names[k] in ISD_UNITS
            found[k] = Composite(10.0, ISD_UNITS[names[k]]) if tenths else Composite(None)
        elif delimiter == "," and _listed(cells):
            found[k] = Composite(None)
    return found


def _share(cells: list[str]) -> float:
    return sum(CODED.fullmatch(cell) is not None for cell in cells) / len(cells)


def _coded(cells: list[str]) -> bool:
    if len(cells) < 2 or _share(cells) < 0.95:
        return False
    matches = [match for match in map(CODED.fullmatch, cells) if match is not None]
    parts = [(match["sign"], match["digits"], match["code"]) for match in matches]
    if len({len(digits) for _, digits, _ in parts}) > 1 or len(parts[0][1]) < 3:
        return False
    codes = Counter(code for _, _, code in parts)
    if any(code.isalpha() for code in codes):
        return True
    filled = any(digits[0] == "0" for _, digits, _ in parts) or all(sign for sign, _, _ in parts)
    return filled and len(codes) <= MOST_CODES and codes.most_common(1)[0][1] >= 0.6 * len(cells)


def _listed(cells: list[str]) -> bool:
    """Whether each cell is a list of values, at least two of which are numbers: ``000,1,N,0046,1`` or ``52.5,13.4``."""
    parts = [cell.split(",") for cell in cells]
    if len({len(part) for part in parts}) > 1 or len(parts[0]) < 2 or any(is_number(cell) for cell in cells):
        return False
    return all(sum(is_number(value) for value in part) >= 2 and all(len(v) < 20 for v in part) for part in parts)


def read(cells: pa.Array, composite: Composite, ledger: Ledger) -> tuple[np.ndarray, str]:
    """The readings of a column of coded cells, and what is to be said of their codes.

    Nines in all places mean that nothing was measured.
    """
    count = len(cells)
    shape = f"^{CODED.pattern}$"
    parts = pc.extract_regex(pc.utf8_trim_whitespace(cells), shape)
    blank = cells.is_null().to_numpy(zero_copy_only=False)
    ledger.set_aside(blank, "blank")
    bad = parts.is_null().to_numpy(zero_copy_only=False)
    ledger.set_aside(bad, "not a number")
    digits = pc.struct_field(parts, "digits")
    missing = pc.fill_null(pc.match_substring_regex(digits, "^9+$"), False).to_numpy(zero_copy_only=False)
    example = next((cells[int(k)].as_py().strip() for k in np.flatnonzero(missing)[:1]), "")
    ledger.set_aside(missing, f"marked {example!r}")
    negative = pc.fill_null(pc.equal(pc.struct_field(parts, "sign"), "-"), False).to_numpy(zero_copy_only=False)
    size = pc.cast(digits, pa.float64()).to_numpy(zero_copy_only=False)
    values = np.where(negative, -size, size) / (composite.scale or 1.0)
    values = np.where(bad | blank | missing, np.nan, values) if count else values
    codes = Counter(code for code in pc.struct_field(parts, "code").to_pylist() if code is not None)
    said = ", ".join(f"{code} ({number})" for code, number in sorted(codes.items(), key=lambda item: -item[1])[:8])
    return values, f"codes of quality: {said}"
