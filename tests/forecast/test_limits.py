"""Bounds of forecasts, and meters."""

import json

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast import Forecaster, ForecastRecipe, backtest, predict, train
from mha_apps.forecast.limits import increments, readings

LINEAR = {"horizon": 6, "attention": False, "trees": False}


def frame_of(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    index = pd.date_range("2024-01-01", periods=rows, freq="h", name="time")
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)
    used = np.maximum(2 + 2 * daily + rng.normal(size=rows), 0.0)
    return pd.DataFrame({"humidity": np.clip(95 + 10 * daily + rng.normal(size=rows), 0, 100), "used": used}, index)


def metered(frame, resets=(150, 290)):
    """``used`` as the reading of a meter that was exchanged twice."""
    total, reading = [], 0.0
    for row, rise in enumerate(frame["used"]):
        reading = rise if row in resets else reading + rise
        total.append(reading)
    return frame.assign(used=total)


def test_no_number_of_a_forecast_is_outside_its_bounds():
    bounded = Forecaster(**LINEAR, min=("0",), max=("humidity=100",)).fit(frame_of())
    table = bounded.predict()
    values = table.drop(columns=["unique_id", "ds"])
    assert (values.to_numpy() >= 0).all()
    assert (values[table["unique_id"] == "humidity"].to_numpy() <= 100).all()
    unbound = Forecaster(**LINEAR).fit(frame_of())
    # A truth is within the bounds, so moving a forecast to them lowers its error.
    assert bounded.backtest().metrics["mae"] < unbound.backtest().metrics["mae"]
    free = unbound.predict()
    assert (free.drop(columns=["unique_id", "ds"]).to_numpy() < 0).any()
    inner = values["lo-95"].le(values["lo-80"]) & values["lo-80"].le(values["median"])
    assert (inner & values["median"].le(values["hi-80"]) & values["hi-80"].le(values["hi-95"])).all()


def test_rises_of_a_meter_count_through_resets_and_not_through_gaps():
    frame = pd.DataFrame({"meter": [5.0, 7.0, 1.0, 4.0, np.nan, 9.0, 9.5], "other": range(7)})
    assert increments(frame, ["meter"])["meter"].tolist() == pytest.approx(
        [np.nan, 2, 1, 3, np.nan, np.nan, 0.5], nan_ok=True
    )
    assert increments(frame, ["meter"])["other"].tolist() == list(range(7))


def test_a_meter_is_forecast_as_the_sum_of_what_it_will_rise_by():
    frame = frame_of()
    rises = Forecaster(**LINEAR, min=("0",)).fit(increments(metered(frame), ["used"])).predict()
    found = Forecaster(**LINEAR, counter=("used",)).fit(metered(frame))
    table = found.predict()
    last = metered(frame)["used"].iloc[-1]
    ours, theirs = (each.loc[each["unique_id"] == "used", "mean"].to_numpy() for each in (table, rises))
    np.testing.assert_allclose(ours, last + np.cumsum(theirs))
    assert (table.loc[table["unique_id"] == "used", "lo-95"] >= last).all()
    pd.testing.assert_frame_equal(found.predict(metered(frame)), table)


def test_an_updated_meter_goes_on_from_its_new_reading():
    longer = metered(frame_of(430))
    found = Forecaster(**LINEAR, counter=("used",)).fit(longer.iloc[:400]).update(longer.iloc[395:])
    table = found.predict()
    assert (table.loc[table["unique_id"] == "used", "lo-95"] >= longer["used"].iloc[-1]).all()
    assert table["ds"].min() == longer.index[-1] + pd.Timedelta("1h")


def test_readings_start_at_zero_where_nothing_was_read():
    assert readings(np.array([[1.0], [-0.5], [2.0]]), float("nan"))[:, 0].tolist() == [1.0, 1.0, 3.0]


def test_a_run_keeps_bounds_and_meters(tmp_path):
    path = tmp_path / "plant.csv"
    metered(frame_of()).to_csv(path)
    run = train(
        ForecastRecipe(csv=str(path), min=("0",), max=("humidity=100",), counter=("used",), **LINEAR),
        out=tmp_path / "run",
    )
    table = predict(run, plots=False)
    assert table.loc[table["unique_id"] == "humidity", "hi-95"].max() <= 100
    assert table.loc[table["unique_id"] == "used", "mean"].is_monotonic_increasing
    pd.testing.assert_frame_equal(predict(run, path, plots=False), table, check_dtype=False)
    json.dumps(backtest(run, plots=False, trees=False), allow_nan=False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"min": ("humidty=0",)}, r"no sensor 'humidty', which --min names; did you mean 'humidity'\?"),
        ({"max": ("much",)}, r"--max much: 'much' is no number; give 0, or NAME=0"),
        ({"min": ("5",), "max": ("humidity=4",)}, r"--min 5 is above --max 4 for 'humidity'"),
        ({"counter": ("total",)}, r"no sensor 'total', which --counter names; it has 'humidity', 'used'"),
    ],
)
def test_limits_that_cannot_be_meant_are_one_line(flags, message):
    with pytest.raises(InputError, match=message):
        Forecaster(**LINEAR, **flags).fit(frame_of())
