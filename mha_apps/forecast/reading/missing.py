"""Numbers that stand for a missing value, such as -999: recognised by evidence, never by their form alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mha_apps.errors import InputError

from .account import Ledger


def _candidates() -> np.ndarray:
    values = {
        -200.0,
        -100.0,
        -127.0,
        -273.0,
        -273.15,
        -1000.0,
        -9990.0,
        1e10,
        1e20,
        1e30,
        1e31,
        1e36,
        1e37,
        3.4028235e38,
    }
    values |= {
        32767.0,
        65535.0,
        65534.0,
        2147483647.0,
        2147483648.0,
        4294967295.0,
        3276.7,
        6553.5,
        327.67,
        655.35,
        32766.0,
    }
    values |= {
        6999.0,
        7999.0,
        8999.0,
        3.402823e38,
        3.4e38,
        9.96921e36,
        9.969209968386869e36,
        1.7976931348623157e308,
        1e300,
        32768.0,
    }
    for digit in "6789":
        for length in range(2, 8):
            values.add(float(digit * length))
            for places in range(1, 4):
                values.add(float(digit * length + "." + digit * places))
    values |= {-1111.0, -5555.0}
    return np.array(sorted(values | {-abs(v) for v in values}))


CANDIDATES = _candidates()
FEWEST_OTHERS = 3
ENOUGH_OTHERS = 20  # by which the range of a column is known
RARE = 0.01  # of the values of a column
FAR = 10.0  # ranges of a column
FILLS = {32767.0, -32768.0, 65535.0, 2147483647.0, -2147483648.0, 4294967295.0}  # all bits of an integer


@dataclass
class Told:
    """Values that the user takes as missing, or as values, for all columns or for one."""

    everywhere: list[float] = field(default_factory=list)
    by_column: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[str], flag: str) -> Told:
        told = cls()
        for text in texts:
            column, equals, value = str(text).rpartition("=")
            try:
                number = float(value)
            except ValueError:
                if flag == "--missing":
                    continue  # a word is no number, so it is missing anyway
                raise InputError(
                    f"{flag} {text!r}: {value!r} is not a number; pass a number, or column=number"
                ) from None
            if equals:
                told.by_column.setdefault(column.strip(), []).append(number)
            else:
                told.everywhere.append(number)
        return told

    def for_column(self, name: str) -> list[float]:
        return self.everywhere + self.by_column.get(name, [])


@dataclass
class _Evidence:
    column: int
    value: float
    rows: np.ndarray
    gap: float
    """Distance to the nearest other value of the column."""
    edge: float
    """Usual jump between the candidate and its neighbours."""
    usual: float
    """Median change of the other values from row to row, zeros left out."""
    large: float
    """A change that the other values seldom exceed."""
    others: np.ndarray = field(default_factory=lambda: np.empty(0))
    """The other values of the column."""

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest of the other values."""
        return float(self.others.min()), float(self.others.max())

    @property
    def lone(self) -> bool:
        """Whether it is missing though it stands there once: one of the usual numbers, absurdly far from the others.

        Nothing is measured as -999, so that counts where it is further out than the others reach; a 9999 or a 65535 may
        be measured, and has to be ten times further out than that.
        """
        if len(self.others) < ENOUGH_OTHERS or len(self.rows) > max(1, RARE * len(self.others)):
            return False
        low, high = self.range
        nines = set(_shown(abs(self.value))) <= set("9.")
        if nines and self.value <= -999:
            return self.gap > high - low > 0
        usual = (nines and self.value >= 9999) or self.value in FILLS or abs(self.value) >= 1e20
        return usual and self.gap > FAR * (high - low) > 0

    @property
    def strong(self) -> bool:
        return (
            len(self.rows) >= 2
            and self.gap > 3 * self.usual
            and self.edge > 10 * self.usual
            and self.edge > 1.5 * self.large
        )

    @property
    def whole(self) -> bool:
        """Whether the column holds nothing but nines below zero, as -999; what a sensor gives that is not there."""
        nines = set(_shown(self.value)) <= set("-9.") and self.value <= -99
        return bool(nines and np.isinf(self.edge) and len(self.rows) >= 10)

    @property
    def fair(self) -> bool:
        return self.gap > 0 and self.edge > 1.5 * self.usual


def mark_missing(
    names: Sequence[str],
    values: Sequence[np.ndarray],
    ledgers: Sequence[Ledger],
    *,
    missing: Told,
    keep: Told,
    order: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> list[str]:
    """Sets numbers that stand for a missing value to NaN, in place, and enters them in the ledgers.

    A candidate counts where it repeats exactly, lies outside all other values of its column, and where the steps to its
    neighbours are far larger than the column's steps are. Evidence in one column carries over to the others, and the
    same rows in several columns are evidence too. One of the usual numbers counts where it stands once, if it is
    absurdly far from the other values, and a remark says so.

    Args:
        names: of the columns.
        values: of each column; changed in place.
        ledgers: of each column.
        missing, keep: what the user stated.
        order: rows in the order of time (and of sensors, where there are several in a column).
        groups: the sensor of each row, in the order of ``order``.

    Returns:
        Remarks for the report: candidates that were left alone, and lone ones that were not.
    """
    remarks: list[str] = []
    found: list[_Evidence] = []
    for k, (name, column, ledger) in enumerate(zip(names, values, ledgers, strict=True)):
        for value in missing.for_column(name):
            where = np.flatnonzero(column == value)
            if len(where):
                ledger.set_aside(where, f"missing {_shown(value)}, as told")
                column[where] = np.nan
        ordered = column if order is None else column[order]
        hits = _extremes(ordered) if groups is None else _every(ordered)
        if not hits.any():
            continue
        kept = np.array(keep.for_column(name))
        found += [e for e in _weigh(k, ordered, hits, groups) if not np.any(kept == e.value)]
    settled = {e.value for e in found if e.strong}
    for evidence in found:
        carried = (evidence.value in settled and evidence.fair) or _shared(evidence, found)
        absent = evidence.whole and _others_vary(values, evidence.column)
        lone = not (evidence.strong or absent or carried) and evidence.lone
        if lone:
            low, high = evidence.range
            count = len(evidence.rows)
            remarks.append(
                f"{names[evidence.column]!r} holds {'a single' if count == 1 else count} {_shown(evidence.value)}, far "
                f"outside its other values, {_shown(low)} to {_shown(high)}; taken as missing "
                f"(--keep {_shown(evidence.value)} keeps it)"
            )
        elif not evidence.strong and not absent and not carried:
            if (
                len(evidence.rows) == 1
                and evidence.edge > 10 * evidence.usual
                and evidence.gap > 10 * max(evidence.large, evidence.usual) > 0
            ):
                remarks.append(
                    f"{names[evidence.column]!r} holds a single {_shown(evidence.value)}; kept "
                    f"(--missing {_shown(evidence.value)} drops it)"
                )
            continue
        rows = evidence.rows if order is None else order[evidence.rows]
        ledgers[evidence.column].set_aside(rows, f"sentinel {_shown(evidence.value)}")
        values[evidence.column][rows] = np.nan
    return remarks


def _others_vary(values: Sequence[np.ndarray], column: int) -> bool:
    """Whether another column measures something, so that the station was at work."""
    for k, other in enumerate(values):
        finite = other[np.isfinite(other)] if k != column else other[:0]
        if len(finite) and finite.min() < finite.max():
            return True
    return False


def _extremes(column: np.ndarray) -> np.ndarray:
    """The candidates beyond all other values of a column; one that has values on both sides is a value itself."""
    hits = np.zeros(len(column), dtype=bool)
    for end in (np.fmin, np.fmax):
        rest = column
        while True:
            value = end.reduce(rest) if len(rest) else np.nan
            if not np.isfinite(value) or CANDIDATES[np.searchsorted(CANDIDATES, value) % len(CANDIDATES)] != value:
                break
            hits |= column == value
            rest = column[~hits]
    return hits


def _every(column: np.ndarray) -> np.ndarray:
    at = np.searchsorted(CANDIDATES, column)
    return CANDIDATES[np.minimum(at, len(CANDIDATES) - 1)] == column


def _weigh(k: int, column: np.ndarray, hits: np.ndarray, groups: np.ndarray | None) -> list[_Evidence]:
    """The evidence for each candidate of a column, sensor by sensor."""
    if groups is None:
        return _weigh_one(k, column, hits, 0)
    found: list[_Evidence] = []
    for group in np.unique(groups[hits]):
        start, end = np.searchsorted(groups, [group, group + 1])
        found += _weigh_one(k, column[start:end], hits[start:end], int(start))
    return found


def _weigh_one(k: int, column: np.ndarray, hits: np.ndarray, start: int) -> list[_Evidence]:
    present = np.isfinite(column)
    other = present & ~hits
    candidates = np.unique(column[hits])
    if not other.any() and len(candidates) == 1:
        # Nothing but the candidate: as good as any other column's evidence for it
        rows = np.flatnonzero(column == candidates[0])
        return [_Evidence(k, float(candidates[0]), rows + start, np.inf, np.inf, 0.0, np.inf)]
    if other.sum() < FEWEST_OTHERS:
        return []
    found = []
    lowest, highest = float(column[other].min()), float(column[other].max())
    both = other[1:] & other[:-1]
    steps = np.abs(np.diff(column)[both]) if both.any() else np.abs(np.diff(column[other]))
    moving = steps[steps > 0]
    usual = float(np.median(moving)) if len(moving) else 0.0
    large = float(np.quantile(steps, 0.98)) if len(steps) else 0.0
    # The nearest values before and after each row, over missing ones
    rows_of_other = np.flatnonzero(other)
    for value in candidates:
        rows = np.flatnonzero(column == value)
        gap = max(lowest - value, value - highest, 0.0)
        if gap == 0.0:
            continue
        after = np.searchsorted(rows_of_other, rows)
        edges = np.concatenate(
            [
                np.abs(column[rows_of_other[np.minimum(after, len(rows_of_other) - 1)]] - value),
                np.abs(column[rows_of_other[np.maximum(after - 1, 0)]] - value),
            ]
        )
        edge = float(np.median(edges))
        found.append(_Evidence(k, float(value), rows + start, gap, edge, usual, large, column[other]))
    return found


def _shared(evidence: _Evidence, every: list[_Evidence]) -> bool:
    """Whether the same value stands in the same rows of another column, far off there too."""
    if not (evidence.fair and np.isfinite(evidence.gap) and evidence.gap > 3 * evidence.usual):
        return False
    for other in every:
        if (
            other.column != evidence.column
            and other.value == evidence.value
            and other.fair
            and other.gap > 3 * other.usual
        ):
            common = np.intersect1d(evidence.rows, other.rows, assume_unique=True)
            if len(common) >= 0.5 * min(len(evidence.rows), len(other.rows)):
                return True
    return False


def _shown(value: float) -> str:
    return f"{value:.10g}"
