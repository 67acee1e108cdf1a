"""Times written as one number: digits of a date, a count since an epoch, a spreadsheet's serial number, a year."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .look import Look, Times, named
from .timeparts import with_clock
from .timetext import DAY, SECOND, TimeText, civil_days
from .words import DATE_NAMES, MOMENT_NAMES, PART_NAMES

EXCEL_DAYS = 25_569
"""Days from a spreadsheet's day 0 (30 December 1899) to 1970."""
MATLAB_DAYS = 719_529
_EPOCHS = ((3e8, 4.2e9, 1_000_000, "seconds"), (3e11, 4.2e12, 1_000, "milliseconds"), (3e14, 4.2e15, 1, "microseconds"))
_NANOSECONDS = (3e17, 4.2e18)


def compact(look: Look) -> Times | None:
    """Dates written as one number: 20160131, 201601312359."""
    ranked = sorted(look.columns, key=lambda k: (not named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True), k))
    for k in ranked:
        times = compact_one(look, k, sure=False)
        if times is not None:
            if times.dateonly:
                times = with_clock(look, times, [j for j in look.columns if j != k])
            return times
    return None


def compact_one(look: Look, k: int, sure: bool = True) -> Times | None:
    column = look.table.columns[k]
    if isinstance(column, pd.Series):
        if not pd.api.types.is_integer_dtype(column.dtype):
            return None
        column = pa.array([str(v) for v in column], pa.string())
    sample = look.sample(k) or [text for text in column.slice(0, 200).to_pylist() if text]
    lengths = {len(text.strip()) for text in sample}
    if not sample or not all(text.strip().isdigit() for text in sample) or not lengths <= {6, 7, 8, 10, 12, 14, 17}:
        return None
    known = named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True)
    if not sure and not known and (k > 2 or lengths & {6, 7}):
        return None
    text = TimeText(column)
    found = text.instants("ymd")
    years = (
        found.wall[found.ok].astype("datetime64[us]").astype("datetime64[Y]").astype(int) + 1970
        if found.ok.any()
        else np.array([0])
    )
    plausible = (
        found.ok.mean() > 0.9 and years.min() >= 1900 and years.max() <= 2100 and len(set(sample)) > (len(sample) > 2)
    )
    if not plausible:
        return None
    return Times([k], found.wall, found.ok, f"{look.name(k)!r}", dateonly=not found.clock)


def counted(look: Look) -> Times | None:
    """Seconds since 1970 and their like, and days of a spreadsheet."""
    ranked = sorted(look.columns, key=lambda k: (not named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True), k))
    for k in ranked:
        known = named(look.name(k), MOMENT_NAMES | DATE_NAMES, partly=True)
        if not look.numeric(k) or not (known or k <= 1):
            continue
        times = counted_one(look, k)
        if times is None:
            continue
        forward = np.diff(times.wall[times.ok])
        if known or (len(forward) and np.mean(forward > 0) > 0.9):
            return times
    return None


def counted_one(look: Look, k: int) -> Times | None:
    values = look.floats(k)
    ok = np.isfinite(values)
    if ok.sum() == 0:
        return None
    low, high = np.quantile(values[ok], [0.02, 0.98])
    for least, most, unit, word in _EPOCHS:
        if least <= low and high < most:
            ok &= (values >= least) & (values < most)
            wall = np.round(np.where(ok, values, 0) * unit).astype(np.int64)
            return Times([k], wall, ok, f"{look.name(k)!r}, {word} since 1970", utc=True, zone="UTC")
    if _NANOSECONDS[0] <= low and high < _NANOSECONDS[1]:
        ok &= (values >= _NANOSECONDS[0]) & (values < _NANOSECONDS[1])
        # A float64 holds nanoseconds since 1970 to 256 ns
        wall = np.round(np.where(ok, values, 0) / 1000).astype(np.int64)
        return Times([k], wall, ok, f"{look.name(k)!r}, nanoseconds since 1970", utc=True, zone="UTC")
    for zero, least, most, word in (
        (EXCEL_DAYS, 20_000, 80_000, "days of a spreadsheet"),
        (MATLAB_DAYS, 700_000, 780_000, "days since year 0"),
    ):
        if least <= low and high < most:
            ok &= (values >= least) & (values < most)
            wall = np.round((np.where(ok, values, zero) - zero) * 86_400_000).astype(np.int64) * 1000
            steps = np.diff(np.unique(wall[ok]))
            if len(steps) == 0 or np.median(steps) >= 10 * SECOND:
                wall = (wall + SECOND // 2) // SECOND * SECOND
            return Times([k], wall, ok, f"{look.name(k)!r}, {word}", dateonly=bool(np.all(wall[ok] % DAY == 0)))
    return None


def years(look: Look) -> Times | None:
    for k in look.columns:
        if (k == 0 or named(look.name(k), PART_NAMES["year"])) and (times := years_one(look, k)) is not None:
            return times
    return None


def years_one(look: Look, k: int) -> Times | None:
    values = look.floats(k)
    ok = np.isfinite(values) & (values % 1 == 0) & (values >= 1800) & (values <= 2200)
    if ok.sum() < max(2, 0.9 * len(values)) or len(np.unique(values[ok])) < 2 or np.any(np.diff(values[ok]) == 0):
        return None
    days, _ = civil_days(
        np.where(ok, values, 1970).astype(np.int64), np.ones(len(values), np.int64), np.ones(len(values), np.int64)
    )
    return Times([k], np.where(ok, days * DAY, 0), ok, f"{look.name(k)!r}, years", dateonly=True)
