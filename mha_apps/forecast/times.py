"""The time axis of a picture: labels that each say when they are, and the zone whose clock they show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, num2date
from matplotlib.ticker import Formatter

__all__ = ["TimeFormatter", "show_times"]


class TimeFormatter(Formatter):
    """Labels of two lines: what tells a tick from the next, and below it the day or the year where that begins.

    matplotlib's own concise labels leave the month out of ``15``, and give the day of the last tick alone.

    Args:
        zone: whose clock is shown; UTC when None, which leaves times without a zone as they are.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        self.zone = zone

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of ticks at ``values``, in matplotlib's days."""
        times = [num2date(value, self.zone) for value in values]
        low, high = sorted(self.axis.get_view_interval()) if self.axis is not None else (-float("inf"), float("inf"))
        labels, before = [], ""
        for value, (own, around) in zip(values, _lines(times), strict=True):
            labels.append(own if around == before else f"{own}\n{around}")
            before = around if low <= value <= high else before  # a tick outside of the picture tells nobody
        return labels


def _lines(times: Sequence[datetime]) -> list[tuple[str, str]]:
    """Both lines of the label of each time, in the coarsest unit that tells them apart."""
    clock = None
    for unit, layout in (
        ("hour", "%H:%M"),
        ("minute", "%H:%M"),
        ("second", "%H:%M:%S"),
        ("microsecond", "%H:%M:%S.%f"),
    ):
        clock = layout if any(getattr(time, unit) for time in times) else clock
    if clock is not None:
        return [(f"{time:{clock}}", f"{time.day} {time:%b %Y}") for time in times]
    if any(time.day > 1 for time in times):
        return [(f"{time.day} {time:%b}", f"{time:%Y}") for time in times]
    if any(time.month > 1 for time in times):
        return [(f"{time:%b}", f"{time:%Y}") for time in times]
    return [(f"{time:%Y}", "") for time in times]


def show_times(axes: Axes, zone: tzinfo | None = None, *, name: str | None = None) -> None:
    """Make the horizontal axis one of times.

    Args:
        axes: the axes.
        zone: whose clock is shown; None for times that have none.
        name: of the zone, where times are without one because they are on its clock already.
    """
    axes.xaxis.set_major_locator(AutoDateLocator(tz=zone))
    axes.xaxis.set_major_formatter(TimeFormatter(zone))
    axes.set_xlabel(f"time ({name or zone or 'no zone'})")
