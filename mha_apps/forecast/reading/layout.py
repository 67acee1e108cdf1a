"""Wide or long: whether a row holds all sensors at one time, or one sensor, and which columns name it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa

from .look import looks_like_time, named
from .table import Table
from .words import PLACE_NAMES, SENSOR_NAMES, SERIES_NAMES, VALUE_NAMES


def codes_of(column: pa.Array | pd.Series) -> tuple[np.ndarray, list[str]]:
    """Each row's number in the list of a column's distinct texts, in order of appearance; -1 where blank."""
    if isinstance(column, pd.Series):
        codes, found = pd.factorize(column)
        return codes.astype(np.int64), [_plain(value) for value in found]
    encoded = column.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [text.strip() for text in encoded.dictionary.to_pylist()]


def _plain(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def series_columns(
    table: Table, wall: np.ndarray, usable: np.ndarray, texts: list[int], numeric: list[int]
) -> list[int]:
    """The columns that name the sensor of a row; none where the table is wide.

    A table is long where its times repeat, and a column of names (or two) tells the rows of one time apart.
    """
    rows = np.flatnonzero(usable)
    if len(rows) < 2:
        return []
    texts = [k for k in texts if not (isinstance(table.columns[k], pa.Array) and looks_like_time(table.columns[k]))]
    moments = wall[rows]
    distinct = len(rows) if np.all(moments[1:] > moments[:-1]) else len(pd.unique(moments))
    for_sure = [
        k
        for k in texts + numeric
        if table.names[k].lower() in ("unique_id", "item_id", "series_id", "sensor_id", "_field")
    ]
    if distinct > 0.95 * len(rows) and not for_sure:
        # One sensor after another, or sensors that never report at the same time, still have names for their values
        return _staggered(table, rows, texts, numeric)
    candidates: list[tuple[tuple[bool, bool, int], int, np.ndarray]] = []
    for k in [*texts, *numeric]:
        is_named = named(table.names[k], SERIES_NAMES)
        if k in numeric and not is_named:
            continue
        codes, found = codes_of(table.columns[k])
        if len(found) < 2 or len(found) > max(2, 0.5 * len(rows)):
            continue
        candidates.append(((not is_named, k in numeric, k), k, codes))
    candidates.sort(key=lambda item: item[0])
    candidates = candidates[:8]
    moment = pd.factorize(moments)[0]

    def repeats(chosen: tuple[np.ndarray, ...]) -> float:
        key = moment.astype(np.int64)
        for codes in chosen:
            part = codes[rows]
            key = pd.factorize(key * (int(part.max()) + 2) + part + 1)[0]
        return 1 - (int(key.max()) + 1) / len(rows)

    before = 1 - distinct / len(rows)
    best: list[int] = []
    least = before
    for size in (1, 2, 3):
        for group in combinations(candidates, size):
            left = repeats(tuple(codes for _, _, codes in group))
            if left < 0.5 * least - 1e-9 and left < least - 0.02:
                best, least = [k for _, k, _ in group], left
        if best and least <= 0.02:
            break
    if least > 0.02 and before >= 0.3:
        best = _numbered(table, rows, moment, numeric) or best
    return best


def _numbered(table: Table, rows: np.ndarray, moment: np.ndarray, numeric: list[int]) -> list[int]:
    """A column of whole numbers that is not named for it but numbers the sensors.

    Measured values do not do this: each number comes at most once at a time, and all come about equally often.
    """
    for k in numeric:
        codes, found = codes_of(table.columns[k])
        if not 2 <= len(found) <= max(2, 0.1 * len(rows)) or not all(text.isdigit() for text in found):
            continue
        part = codes[rows]
        counts = np.bincount(part[part >= 0], minlength=len(found))
        if np.any(part < 0) or counts.min() < 0.5 * counts.max():
            continue
        keys = moment.astype(np.int64) * len(found) + part
        if len(np.unique(keys)) >= 0.98 * len(keys):
            return [k]
    return []


def describing(table: Table, values: dict[int, np.ndarray], codes: np.ndarray, usable: np.ndarray) -> list[int]:
    """Columns that say of each sensor where it is or how else it is called: one value a sensor throughout."""
    rows = np.flatnonzero(usable & (codes >= 0))
    if len(rows) == 0:
        return []
    found = []
    for k, column in values.items():
        if not named(table.names[k], PLACE_NAMES):
            continue
        first = np.full(int(codes.max()) + 1, np.nan)
        first[codes[rows[::-1]]] = column[rows[::-1]]
        here = first[codes[rows]]
        if np.all((column[rows] == here) | (np.isnan(column[rows]) & np.isnan(here))):
            found.append(k)
    return found


def _staggered(table: Table, rows: np.ndarray, texts: list[int], numeric: list[int]) -> list[int]:
    """A column of sensors where no time repeats, since each sensor reports at times of its own."""
    has_value = any(named(table.names[k], VALUE_NAMES) for k in numeric)
    for k in texts:
        if named(table.names[k], SENSOR_NAMES) or (has_value and named(table.names[k], SERIES_NAMES)):
            codes, found = codes_of(table.columns[k])
            if 2 <= len(found) <= max(2, 0.2 * len(rows)) and (codes[rows] >= 0).mean() > 0.9:
                return [k]
    return []
