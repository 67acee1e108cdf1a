"""Calendar features and periods."""

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.calendar import CYCLES, choose, encode, extend, step_of
from mha_apps.forecast.periods import autocorrelation, find_periods, natural_periods
from mha_apps.forecast.plan import make_plan
from mha_apps.forecast.recipe import ForecastRecipe


def test_discrete_values_are_those_of_the_calendar():
    index = pd.date_range("2024-02-27 22:15", periods=200, freq="37min")
    names = ["minute", "hour", "weekday", "monthday", "month"]
    _, bins = encode(index, names)
    expected = [index.minute, index.hour, index.dayofweek, index.day - 1, index.month - 1]
    for column, values in enumerate(expected):
        if names[column] == "monthday":
            assert (np.abs(bins[:, column] - values) <= 2).all()  # February is stretched over 31 values
        else:
            np.testing.assert_array_equal(bins[:, column], values)


def test_waves_are_the_cosine_and_sine_of_the_phase():
    index = pd.DatetimeIndex(["2024-01-01 06:00", "2024-01-01 12:00"])
    waves, _ = encode(index, ["hour"])
    np.testing.assert_allclose(waves, [[0, 1], [-1, 0]], atol=1e-6)


def test_the_phase_is_that_of_the_sensors_own_zone():
    local = pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")
    _, bins = encode(local, ["hour"])
    assert bins[:, 0].tolist() == list(local.hour)
    assert len({tuple(row) for row in bins[24:47].tolist()}) == 23  # the day on which the clocks go forward


@pytest.mark.parametrize(
    ("step", "rows", "expected"),
    [
        (3600, 100, ["hour"]),
        (3600, 24 * 80, ["hour", "weekday", "monthday"]),
        (86400, 800, ["weekday", "monthday", "yearday"]),
        (30.4375 * 86400, 60, ["month"]),
        (60, 24 * 60 * 3, ["minute", "hour"]),
        (3600, 10, []),
    ],
)
def test_cycles_follow_from_the_step_and_are_covered_twice(step, rows, expected):
    assert choose(step, rows) == expected


def test_the_first_forecast_is_one_step_after_the_last_row():
    monthly = pd.date_range("2024-01-01", periods=3, freq="MS")
    assert list(extend(monthly, 2)) == [pd.Timestamp("2024-04-01"), pd.Timestamp("2024-05-01")]
    hourly = pd.date_range("2024-10-26 23:00", periods=3, freq="h", tz="Europe/Berlin")
    assert extend(hourly, 1)[0] - hourly[-1] == pd.Timedelta("1h")


def test_every_bin_is_in_range_over_leap_years():
    index = pd.date_range("2023-12-30", "2025-01-02", freq="6h")
    waves, bins = encode(index, list(CYCLES))
    assert np.isfinite(waves).all()
    for column, cycle in enumerate(CYCLES.values()):
        assert bins[:, column].min() >= 0
        assert bins[:, column].max() < cycle.values


def test_autocorrelation_leaves_missing_pairs_out():
    values = np.array([[1.0], [np.nan], [2.0], [4.0], [1.0]])
    pairs = np.array([[1.0, 2.0], [2.0, 1.0]])  # lag 2: rows (0, 2) and (2, 4); (1, 3) is missing
    expected = (pairs[:, 0] * pairs[:, 1]).sum() / np.sqrt((pairs[:, 0] ** 2).sum() * (pairs[:, 1] ** 2).sum())
    assert autocorrelation(values, 2)[0] == pytest.approx(expected)


def test_periods_are_confirmed_and_not_assumed():
    rng = np.random.default_rng(1)
    time = np.arange(3000)
    daily = np.sin(2 * np.pi * time / 24) + 0.3 * rng.normal(size=3000)
    weekly = daily + 1.5 * ((time // 24) % 7 < 5)
    own = np.sin(2 * np.pi * time / 37) + 0.3 * rng.normal(size=3000)
    noise = rng.normal(size=3000)
    assert find_periods(daily[:, None], 3600) == [24]
    assert find_periods(weekly[:, None], 3600) == [24, 168]
    assert find_periods(own[:, None], 3600) == [37]
    assert find_periods(noise[:, None], 3600) == []
    assert find_periods(noise.cumsum()[:, None], 3600) == []


def test_a_day_is_144_rows_of_a_ten_minute_sensor():
    assert natural_periods(600) == [6, 144, 1008]
    assert natural_periods(7 * 86400) == [52]
    assert step_of(pd.date_range("2024", periods=9, freq="10min")) == 600


def test_far_heads_look_a_period_apart_that_is_longer_than_a_token():
    hours = pd.date_range("2024-01-01", periods=4000, freq="h")
    day = np.sin(2 * np.pi * np.arange(4000) / 24)
    week = np.repeat(np.random.default_rng(0).normal(size=7), 24)
    for values, far in ((day, 24), (day + np.resize(week, 4000), 168)):
        plan = make_plan(pd.DataFrame({"a": values}, index=hours), ForecastRecipe(csv="", horizon=24))
        assert plan.patch == 24
        assert plan.far == far
