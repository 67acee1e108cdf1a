"""One picture of all series of a reading, in which what is missing can be seen."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from mha_apps.errors import InputError
from mha_apps.training import files

from ..times import show_times
from .oddities import alone, rows_apart
from .report import ReadingReport

MARK = "mha-apps forecast inspect"
"""What a picture holds to tell who drew it."""
MOST_PANELS = 16
MOST_ROWS_OF_MAP = 400
PIXELS = 1200
LINE, MISSING = "#1f4e79", "#f3c9a5"


def is_drawn(path: Path) -> bool:
    """Whether the file is a picture that :func:`draw` made."""
    with files.disk_errors(path), path.open("rb") as file:
        return MARK.encode() in file.read(1024)


def draw(frame: pd.DataFrame, report: ReadingReport, path: str | Path) -> None:
    """Writes a PNG: a panel for each series, shaded where it is missing; for many series, a map of what is there.

    Args:
        frame: wide, or long with the columns ``unique_id``, ``ds`` and ``y``.
        report: the account of the same reading.
        path: of the PNG.

    Raises:
        InputError: if the picture cannot be written.
    """
    series = _series(frame)
    figure = _panels(series, report) if len(series) <= MOST_PANELS else _map(series, report)
    FigureCanvasAgg(figure)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=100, metadata={"Software": MARK})
    except OSError as error:
        raise InputError(f"{path}: the picture cannot be written ({error.strerror}); pass another path") from None


def _series(frame: pd.DataFrame) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, times (datetime64, on the clock of their zone) and values of each series."""
    if "unique_id" in frame.columns and "ds" in frame.columns:
        stamps = pd.DatetimeIndex(frame["ds"])
        clock = (stamps.tz_localize(None) if stamps.tz is not None else stamps).to_numpy()
        values = frame["y"].to_numpy()
        codes = frame["unique_id"].cat.codes.to_numpy()
        names = frame["unique_id"].cat.categories
        bounds = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1], [True]]))
        return [(str(names[codes[a]]), clock[a:b], values[a:b]) for a, b in itertools.pairwise(bounds) if b > a]
    index = frame.index
    clock = (index.tz_localize(None) if index.tz is not None else index).to_numpy()
    return [(str(name), clock, frame[name].to_numpy()) for name in frame.columns]


def _panels(series: list[tuple[str, np.ndarray, np.ndarray]], report: ReadingReport) -> Figure:
    units = {column.name: column.unit for column in report.columns}
    figure = Figure(figsize=(12, 1.0 + 1.5 * len(series)), layout="constrained")
    axes = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, clock, values) in zip(axes, series, strict=True):
        missing = _missing(values)
        _shade(axis, clock, missing)
        kept = missing | np.isfinite(values)  # a line runs from one of its own readings to the next
        times, low, high = _envelope(clock[kept], values[kept])
        axis.plot(np.repeat(times, 2), np.column_stack([low, high]).ravel(), color=LINE, linewidth=0.8)
        dots = alone(low)
        axis.plot(times[dots], low[dots], ".", color=LINE, markersize=2)
        unit = units.get(name)
        share = missing.mean()
        label = name if not unit or unit in name else f"{name} [{unit}]"
        title = f"{label[:80]}   {share:.1%} missing" if share else label[:80]
        axis.set_title(title, loc="left", fontsize=9, parse_math=False)  # a $ in a name is no formula
        axis.tick_params(labelsize=8)
        axis.margins(x=0.01)
        axis.spines[["top", "right"]].set_visible(False)
    show_times(axes[-1], name=report.zone)
    figure.suptitle(_title(report), fontsize=10, parse_math=False)
    return figure


def _missing(values: np.ndarray) -> np.ndarray:
    """The rows without a value, but for those between two values of a sensor that is read at every n-th row."""
    missing = ~np.isfinite(values)
    apart = rows_apart(values)
    if apart > 1:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
        for start, end in edges.reshape(-1, 2):
            if end - start < apart:
                missing[start:end] = False
    return missing


def _title(report: ReadingReport) -> str:
    span = f"{report.start} to {report.end}, step {report.step}, {report.zone or 'no zone'}"
    return f"{Path(report.source).name}: {span}; shaded: missing"


def _shade(axis: object, clock: np.ndarray, missing: np.ndarray) -> None:
    """Shades runs of missing values, each widened to be seen."""
    if not missing.any() or len(clock) < 2:
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    starts, ends = edges[0::2], edges[1::2]
    step = np.median(np.diff(clock).astype("timedelta64[us]").astype(np.int64))
    whole = (clock[-1] - clock[0]).astype("timedelta64[us]").astype(np.int64)
    least = whole / PIXELS
    times = clock.astype("datetime64[us]").astype(np.int64)
    spans: list[tuple[float, float]] = []
    for a, b in zip(times[starts], times[ends - 1], strict=True):
        low, high = a - step / 2, b + step / 2
        if high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2
        if spans and low <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(high, spans[-1][1]))
        else:
            spans.append((low, high))
    for low, high in spans:
        axis.axvspan(np.datetime64(int(low), "us"), np.datetime64(int(high), "us"), color=MISSING, linewidth=0)  # type: ignore[attr-defined]


def _envelope(clock: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A series thinned to what a pixel can show: times, and the least and greatest value at each, NaN for none."""
    width = -(-len(values) // (2 * PIXELS)) if len(values) > 8 * PIXELS else 1
    block = np.pad(values.astype(np.float64), (0, -len(values) % width), constant_values=np.nan).reshape(-1, width)
    return clock[::width], np.fmin.reduce(block, axis=1), np.fmax.reduce(block, axis=1)


def _map(series: list[tuple[str, np.ndarray, np.ndarray]], report: ReadingReport) -> Figure:
    """A row for each series (or each few), dark where values are there."""
    first = min(clock[0] for _, clock, _ in series).astype("datetime64[us]").astype(np.int64)
    last = max(clock[-1] for _, clock, _ in series).astype("datetime64[us]").astype(np.int64)
    rows = min(len(series), MOST_ROWS_OF_MAP)
    there = np.zeros((rows, PIXELS))
    whole = np.zeros((rows, PIXELS))
    for k, (_, clock, values) in enumerate(series):
        row = k * rows // len(series)
        at = clock.astype("datetime64[us]").astype(np.int64)
        pixel = ((at - first) / max(1, last - first) * (PIXELS - 1)).astype(np.int64)
        whole[row] += np.bincount(pixel, minlength=PIXELS)
        there[row] += np.bincount(pixel, weights=~_missing(values), minlength=PIXELS)
    with np.errstate(invalid="ignore"):
        share = np.where(whole > 0, there / np.maximum(whole, 1), np.nan)
    # Between two rows of a coarse grid lies no missing value: carry the last pixel on
    share = pd.DataFrame(share.T).ffill(limit=max(1, PIXELS // max(2, len(series[0][1])) + 1)).to_numpy().T
    figure = Figure(figsize=(12, min(14, 2 + 0.18 * rows)), layout="constrained")
    axis = figure.subplots()
    span = [date2num(np.datetime64(int(first), "us")), date2num(np.datetime64(int(last), "us"))]
    if span[1] <= span[0]:
        span[1] = span[0] + 1
    axis.set_facecolor("white")
    axis.imshow(
        share,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=-0.2,
        vmax=1,
        extent=(span[0], span[1], rows, 0),
    )
    show_times(axis, name=report.zone)
    if len(series) <= 60:
        axis.set_yticks(np.arange(len(series)) + 0.5, [name[:30] for name, _, _ in series], fontsize=7)
    else:
        axis.set_ylabel(f"{len(series):,} series")
    axis.set_title(
        _title(report).replace("shaded: missing", "dark: measured, pale: missing"), fontsize=10, parse_math=False
    )
    return figure
