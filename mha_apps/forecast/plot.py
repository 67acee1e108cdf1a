"""Pictures of forecasts: what was, what is expected, how sure that is, and in a backtest what came."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mha_apps.training.files import save_picture
from mha_apps.training.report import COLOURS

from .reading.oddities import alone
from .times import show_times

__all__ = ["plot_forecast", "rows_before", "safe_names", "save_each"]

LONGEST_NAME = 100  # bytes; file systems end a file name at 255, some encrypted ones at 143


def save_each(figures: dict[str, Figure], folder: Path, kind: str) -> None:
    """Each sensor's picture as ``KIND-SENSOR.png``; InputError where it cannot be written."""
    names = safe_names(figures)
    for name, figure in figures.items():
        save_picture(figure, folder / f"{kind}-{names[name]}.png", dpi=110)


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """For each sensor's name a part of a file name: short enough for any file system, and no two alike.

    Two names that would share a file, on a file system that takes no account of case either, get a number.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text = re.sub(r"[^\w.-]+", "_", name).strip("_") or "series"
        text = text.encode()[:LONGEST_NAME].decode(errors="ignore")
        unique, again = text, 2
        while unique.casefold() in taken:
            unique, again = f"{text}-{again}", again + 1
        taken.add(unique.casefold())
        found[name] = unique
    return found


def rows_before(series: pd.Series, horizon: int, *, meter: bool) -> pd.Series:
    """The rows of ``series`` that a picture shows before a forecast: four horizons of them.

    Of a meter they are half a horizon before its last reading: its intervals are narrow beside days of climb.
    """
    if not meter:
        return series.iloc[-4 * horizon :]
    read = np.flatnonzero(series.notna())
    return series.iloc[max((read[-1] if len(read) else len(series) - 1) - horizon // 2, 0) :]


def plot_forecast(
    history: pd.Series, forecast: pd.DataFrame, *, truth: pd.Series | None = None, title: str = "", unit: str = ""
) -> Figure:
    """History, median and intervals of one series.

    Args:
        history: observed values up to the origin; there may be none.
        forecast: rows of one series with ``ds``, ``median`` and ``lo-``/``hi-`` columns.
        truth: what came, drawn over the forecast.
        title: above the picture.
        unit: label of the vertical axis.
    """
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    history_colour, median_colour = COLOURS[6], COLOURS[0]
    _draw(axes, history, color=history_colour, linewidth=1.0, label="measured")
    levels = sorted((int(name[3:]) for name in forecast.columns if name.startswith("lo-")), reverse=True)
    when = pd.DatetimeIndex(forecast["ds"])
    for level in levels:
        low, high = forecast[f"lo-{level}"].to_numpy(), forecast[f"hi-{level}"].to_numpy()
        alpha = 0.15 if level > 80 else 0.3
        axes.fill_between(
            when, low, high, color=median_colour, alpha=alpha, linewidth=0, snap=False, label=f"{level}% interval"
        )
    axes.plot(when, forecast["median"].to_numpy(), color=median_colour, linewidth=1.5, label="forecast (median)")
    if truth is not None:
        _draw(axes, truth, color=COLOURS[1], linewidth=1.2, label="what came")
    if len(history):
        axes.axvline(_between(history.index[-1], when[0]), color="#999999", linewidth=0.8, linestyle=":")
    show_times(axes, when.tz)
    # A name may hold a $, which is no formula, and may be wider than the picture.
    axes.set_title(title if len(title) <= 80 else f"{title[:79]}\N{HORIZONTAL ELLIPSIS}", loc="left", parse_math=False)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize="small", ncols=4, frameon=False)
    low_end, high_end = axes.get_ylim()
    axes.set_ylim(low_end, high_end + 0.15 * (high_end - low_end))  # room for the legend
    return figure


def _draw(axes: Axes, series: pd.Series, **style: Any) -> None:
    """A line, with dots where it would not be seen."""
    values = series.to_numpy(dtype=np.float64)
    axes.plot(series.index, values, marker=".", markersize=4, markevery=np.flatnonzero(alone(values)).tolist(), **style)


def _between(first: pd.Timestamp, second: pd.Timestamp) -> pd.Timestamp:
    return first + (second - first) / 2 if not pd.isna(first) else np.datetime64("NaT")
