"""A table with samples of its columns and what they look like; what the search for the time works with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError

from .account import Ledger
from .hours import Hours
from .numbers import COMMA, PLAIN, numbers
from .options import ReadOptions
from .table import Table
from .timetext import TimeText
from .words import PART_NAMES

_NUMERIC = re.compile(r"^[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?$")


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
    unclear: set[str] = field(default_factory=set)
    """Zone abbreviations that name several zones."""
    dateonly: bool = False
    hours: Hours | None = None
    """Where the hours or periods of the day stand in a column of their own."""
    beside: list[int] = field(default_factory=list)
    """Columns that tell the same instants once more, and are no sensors."""
    notes: list[str] = field(default_factory=list)


def named(name: str, vocabulary: frozenset[str], *, partly: bool = False) -> bool:
    """Whether a column's name is a word of the vocabulary, or with ``partly`` holds one."""
    base = re.sub(r"\[.*?\]|\(.*?\)|<.*?>", " ", name).strip().lower().rstrip(":.")
    forms = {base, re.sub(r"[\s-]+", "_", base), re.sub(r"[\W_]+", "", base), re.sub(r"\s*/\s*", "/", base)}
    if forms & vocabulary or name.strip().lower() in vocabulary:
        return True
    return partly and any(word in vocabulary for word in re.split(r"[\W_]+", base))


class Look:
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
                usable = self.table.account.rows.open  # not the header that comes again, nor empty rows
                known = np.arange(len(column)) if usable.all() else np.flatnonzero(usable)
                count = len(known)
                rows = known[
                    np.unique(np.concatenate([np.arange(min(count, 60)), np.linspace(0, count - 1, 200).astype(int)]))
                    if count
                    else np.zeros(0, dtype=np.int64)
                ]
                self._samples[k] = [text for text in column.take(pa.array(rows)).to_pylist() if text]
        return self._samples[k]

    def text(self, k: int, row: int) -> str:
        """A cell as it stands in the file."""
        column = self.table.columns[k]
        return str(column[row].as_py() if isinstance(column, pa.Array) else column.iloc[row]).strip()

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

    def put(self, k: int, values: np.ndarray) -> None:
        """Takes ``values`` for the numbers of a column whose texts were understood otherwise."""
        self._floats[k] = values

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


_SPELLED = re.compile(
    r"(?:(?:yy|aa|jj|rr)?(?:yy|aa|jj|rr)[-_/.]?mm(?:[-_/.]?(?:dd|jj|tt|gg))?|(?:dd|jj|tt|gg)[-_/.]?mm[-_/.]?(?:yy|aa|jj|rr)+|"
    r"mm[-_/.]?dd[-_/.]?(?:yy)+)(?:[-_t ]?hh(?:[-_:]?(?:mm|mi|nn)(?:[-_:]?ss)?)?)?",
    re.I,
)


def spelled(name: str) -> str | None:
    """The order of a date that a column's name spells, such as AAAAMMJJHH; None where it spells none."""
    match = _SPELLED.search(re.sub(r"\[.*?\]", "", name))
    if match is None or re.search(r"[A-Za-z]", name[: match.start()][-1:] + name[match.end() :][:1]):
        return None
    word = (
        re.split(r"[-_/.t ]?hh", match[0].lower())[0]
        .replace("-", "")
        .replace("_", "")
        .replace("/", "")
        .replace(".", "")
    )
    if word.startswith("mm"):
        return "mdy"
    if re.match(r"(?:dd|jj|tt|gg)mm", word):
        # jjmm may be the day in French or the year in German; four letters at the end are a year
        return "ym" if word in ("jjmm",) else "dmy"
    return "ym" if word.endswith("mm") else "ymd"


def looks_like_time(column: pa.Array) -> bool:
    """Whether the texts of a column are dates or clocks, so that they name no sensor."""
    count = len(column)
    sample = column.take(pa.array(np.unique(np.linspace(0, count - 1, min(count, 100)).astype(int)))).drop_null()
    return len(sample) > 0 and (TimeText(sample).share() > 0.6 or TimeText(sample, clocks=True).share() > 0.6)
