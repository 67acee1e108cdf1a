"""Reads a CSV of sensor values into a frame on a regular time grid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from mha_apps.errors import InputError

from .options import ReadOptions
from .report import ReadingReport


def read_sensor_csv(path: str | os.PathLike[str], **options: Any) -> tuple[pd.DataFrame, ReadingReport]:
    """Reads ``path`` and returns ``(frame, report)``.

    The frame has a DatetimeIndex with a fixed ``freq``, one float column per sensor, and NaN where a value is
    missing. ``options`` are the fields of :class:`ReadOptions`.

    Raises:
        InputError: if the file is missing or holds no usable time; one line with the file, the place and the remedy.
    """
    told = ReadOptions(**options)
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    table = pd.read_csv(path, comment="#")
    for name in table.columns:
        if table[name].dtype.kind in "Of" and table[name].dtype.kind == "f":
            continue
        times = pd.to_datetime(table[name].astype(str), errors="coerce", format="ISO8601")
        if len(times) and times.notna().mean() > 0.5:
            break
    else:
        raise InputError(f"{path}, line 1: no column holds a time; name it with --time")
    values = table.drop(columns=name).apply(pd.to_numeric, errors="coerce").astype(float)
    values = values.loc[times.notna()].set_axis(pd.DatetimeIndex(times[times.notna()], name="time"))
    values = values[~values.index.duplicated(keep="last")].sort_index()
    step = told.freq or values.index.to_series().diff().mode().iloc[0]
    frame = values.asfreq(step)
    if told.tz:
        frame = frame.tz_localize(told.tz, ambiguous="NaT", nonexistent="NaT")
    report = ReadingReport(source=str(path), step=str(frame.index.freqstr), rows_read=len(table), rows_used=len(values))
    report.set_aside = {"no time": int(times.isna().sum())}
    report.set_aside["duplicate time"] = len(table) - len(values) - report.set_aside["no time"]
    return frame, report
