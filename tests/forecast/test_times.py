"""The time axis of pictures: every label tells its day or month, and the axis tells the zone."""

import datetime

import numpy as np
import pandas as pd
import pytest
from matplotlib.dates import num2date
from matplotlib.figure import Figure

from mha_apps.forecast.plot import plot_forecast, rows_before
from mha_apps.forecast.times import show_times


def labels(start, end, zone=None):
    """The labels of an axis from ``start`` to ``end`` as they are drawn, and the times that they stand at."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(pd.DatetimeIndex([start, end], tz=zone), [0, 1])
    show_times(axes, pd.Timestamp(start, tz=zone).tz)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
    return [tick.get_text() for tick in shown], [num2date(tick.get_position()[0]) for tick in shown]


def read(shown, layout):
    """The times that the labels tell a reader, each with what stands below it or below one before it."""
    found, around = [], None
    for text in shown:
        own, _, below = text.partition("\n")
        around = below or around
        found.append(pd.to_datetime(f"{own} {around}" if around else own, format=layout))
    return found


@pytest.mark.parametrize(
    ("start", "end", "layout"),
    [
        ("2024-02-28 23:59:30", "2024-02-29 00:00:50", "%H:%M:%S %d %b %Y"),
        ("2024-02-28 22:00", "2024-02-29 02:00", "%H:%M %d %b %Y"),
        ("2024-03-30 05:00", "2024-04-01 06:00", "%H:%M %d %b %Y"),
        ("2024-01-25", "2024-02-08", "%d %b %Y"),
        ("2023-11-20", "2024-02-18", "%d %b %Y"),
        ("2021-01-01", "2023-06-01", "%b %Y"),
        ("2015-01-31", "2023-12-31", "%Y"),
    ],
)
def test_every_label_tells_when_it_is(start, end, layout):
    shown, times = labels(start, end)
    assert len(times) > 4
    assert [time.tz_localize("UTC") for time in read(shown, layout)] == times


def test_labels_are_on_the_clock_of_the_zone():
    shown, _ = labels("2024-06-01 00:00", "2024-06-01 12:00", "Asia/Tokyo")
    assert shown[0] == "00:00\n1 Jun 2024"


def test_pictures_of_meters_show_half_a_horizon_before_their_last_reading():
    series = pd.Series(np.arange(100.0), pd.date_range("2024-01-01", periods=100, freq="h"))
    assert rows_before(series, 10, meter=False).tolist() == list(range(60, 100))
    assert rows_before(series, 10, meter=True).tolist() == list(range(94, 100))
    assert rows_before(series.mask(series > 80), 10, meter=True).dropna().tolist() == list(range(75, 81))
    assert len(rows_before(series * np.nan, 10, meter=True)) == 6
    assert rows_before(series.iloc[:2], 10, meter=True).tolist() == [0, 1]


def test_a_picture_of_a_forecast_names_the_zone_of_its_times():
    for zone, name in (("Europe/Berlin", "Europe/Berlin"), (None, "no zone"), (datetime.UTC, "UTC")):
        index = pd.date_range("2024-01-25", periods=60, freq="h", tz=zone)
        history = pd.Series(np.arange(48.0), index[:48])
        forecast = pd.DataFrame({"ds": index[48:], "median": 1.0, "lo-80": 0.0, "hi-80": 2.0})
        assert plot_forecast(history, forecast).axes[0].get_xlabel() == f"time ({name})"
