"""Bounds of forecasts, and meters."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError, InputWarning
from mha_apps.forecast import Forecaster, ForecastRecipe, backtest, predict, train
from mha_apps.forecast.backtest import evaluate
from mha_apps.forecast.limits import LastReading, increments, increments_of_believed, limited
from mha_apps.forecast.meters import readings
from mha_apps.forecast.predict import as_read, tail_of
from mha_apps.forecast.reading.oddities import only_rises
from mha_apps.forecast.windows import LONGEST_GAP

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


def limited_with(frame, **settings):
    """The warnings of :func:`limited`."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        limited(frame, ForecastRecipe(csv="it", horizon=6, **settings), "it")
    return [str(each.message) for each in told]


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


def test_a_series_that_only_rises_is_told_of_unless_it_is_named_as_a_meter():
    frame = metered(frame_of())
    told = limited_with(frame)
    assert told == ["it: 'used': only rises, as a meter does; if it is one, add --counter 'used'"]
    assert not limited_with(frame, counter=("used",))


USE = np.random.default_rng(3).gamma(2, size=2000)
HOURS = pd.date_range("2024-01-01", periods=2000, freq="h")
DAYS = pd.date_range("2014-01-01", periods=4000, freq="D")


@pytest.mark.parametrize(
    ("name", "values", "rises"),
    [
        ("a meter of the day", np.cumsum(USE[:480].reshape(20, 24), axis=1).ravel(), True),
        ("a total", np.cumsum(USE), True),
        ("a total in whole units", np.cumsum(USE) // 5, True),
        ("a total of a daily use", np.cumsum(1 + np.sin(np.arange(500) / 4)), True),
        ("a meter that is read at every sixth row", np.where(np.arange(2000) % 6, np.nan, np.cumsum(USE)), True),
        ("pulses with pauses between", 700 + np.cumsum(np.random.default_rng(4).random(2000) < 0.3), True),
        ("a meter with failed rows", np.where(np.arange(2000) % 50 == 20, 0.0, np.cumsum(USE)), True),
        ("a meter with one negative row", np.where(np.arange(2000) == 900, -1.0, np.cumsum(USE)), True),
        ("an hour of the day", HOURS.hour, False),
        ("a weekday", DAYS.dayofweek, False),
        ("a weekday by the hour", HOURS.dayofweek, False),
        ("a day of the month", DAYS.day, False),
        ("a day of the year", DAYS.dayofyear, False),
        ("the minute of every quarter", np.arange(400) % 4 * 15, False),
        ("minutes since the start", np.arange(300) / 60 + 4, False),
        ("hours since the start", np.arange(500), False),
        ("days since the start, of two decimals", np.round(np.arange(900) / 24, 2), False),
        ("days since the start, of two decimals, by ten minutes", np.round(np.arange(2000) / 144, 2), False),
        ("a smooth trend", np.exp(np.arange(500) / 100), False),
        ("a trend of steps that hardly differ", np.arange(500) + 0.02 * USE[:500], False),
        ("a table of the day", np.tile([0, 1, 3, 7], 100), False),
        ("a morning", np.cumsum(USE[:45]), False),
        ("a sensor", np.sin(np.arange(300.0)), False),
        ("a trend with noise", np.arange(300) + np.cos(np.arange(300.0) * 3) * 2, False),
        ("a switch", np.arange(300.0) % 50 // 25, False),
        ("a tank that empties slowly", np.tile([1, 2, 4, 5, 7, 9, 11, 13, 14, 16, 18, 20, 12.0], 20), False),
    ],
)
@pytest.mark.parametrize("lost", [0.0, 0.05])
def test_what_only_rises(name, values, rises, lost):
    values = np.array(values, dtype=np.float64)
    values[np.random.default_rng(5).random(len(values)) < lost] = np.nan
    assert only_rises(values) == rises, name


def test_rises_of_a_meter_count_through_resets_and_a_gap_has_their_mean_in_the_row_that_ends_it():
    frame = pd.DataFrame({"meter": [5.0, 7.0, 1.0, 4.0, np.nan, np.nan, 10.0, 10.5], "other": range(8)})
    assert increments(frame, ["meter"])["meter"].tolist() == pytest.approx(
        [np.nan, 2, 1, 3, np.nan, np.nan, 2, 0.5], nan_ok=True
    )
    assert increments(frame, ["meter"])["other"].tolist() == list(range(8))


@pytest.mark.parametrize(("rows", "rise"), [(LONGEST_GAP, 3.0), (LONGEST_GAP + 1, np.nan)])
def test_a_rise_over_more_rows_than_tell_of_each_other_is_missing(rows, rise):
    frame = pd.DataFrame({"meter": np.nan}, pd.date_range("2024-01-01", periods=rows + 2, freq="h"))
    frame.iloc[[0, rows, rows + 1], 0] = [10.0, 10 + 3.0 * rows, 14 + 3.0 * rows]
    found = increments(frame, ["meter"])["meter"]
    assert found.iloc[rows:].tolist() == pytest.approx([rise, 4], nan_ok=True)
    before = {"meter": LastReading(10.0, frame.index[0])}
    pd.testing.assert_series_equal(increments(frame.iloc[5:], ["meter"], before, "h")["meter"], found.iloc[5:])


def test_a_fall_of_a_meter_that_is_no_new_start_is_missing_and_not_the_whole_reading():
    frame = pd.DataFrame({"meter": [100.0, 101.0, 100.8, 102.0, 1.0, -2.0, 3.0]})
    assert increments(frame, ["meter"])["meter"].tolist() == pytest.approx(
        [np.nan, 1, np.nan, 1.2, 1, np.nan, 5], nan_ok=True
    )


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
    assert readings(np.array([[1.0], [-0.5], [2.0]]), float("nan"))[:, 0].tolist() == [1.0, 1.0, 2.0]


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


def limited_to(frame, **flags):
    """The warnings that these limits of ``frame`` lead to."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        limited(frame, ForecastRecipe(csv="", **flags), "plant.csv")
    assert all(issubclass(each.category, InputWarning) for each in told)
    return [str(each.message) for each in told]


def test_a_bound_that_many_values_contradict_is_refused_with_their_count():
    frame = frame_of().assign(used=lambda frame: frame["used"] - 2)
    below = int((frame["used"] < 0).sum())
    assert below > 100
    with pytest.raises(InputError, match=rf"{below} of 400 values of 'used' are below --min 0, down to -2"):
        limited_to(frame, min=("used=0",))
    with pytest.raises(InputError, match=r"values of 'humidity' are above --max 90, up to 100, .*leave --max out"):
        limited_to(frame, max=("humidity=90",))
    with pytest.raises(InputError, match=r"400 of 400 values of 'used' are below --min 5"):
        limited_to(frame.assign(used=-5.0), min=("used=5",))


def test_a_few_values_beyond_a_bound_are_counted_in_a_warning_and_stay():
    frame = frame_of()
    frame.iloc[[3, 50, 60], 1] = [-4.0, -1.0, -2.5]
    assert limited_to(frame, min=("used=0",)) == [
        "plant.csv: 3 of 400 values of 'used' are below --min 0, down to -4; they stay as they are, and forecasts stay "
        "within the bound"
    ]
    kept, _ = limited(frame.iloc[4:], ForecastRecipe(csv="", min=("used=-9",)), "")
    pd.testing.assert_frame_equal(kept, frame.iloc[4:])
    assert limited_to(frame_of(), min=("0",), max=("humidity=100",)) == []


def test_a_sensor_that_reads_a_little_below_zero_half_of_the_time_may_have_zero_as_its_bound():
    night = np.sin(2 * np.pi * np.arange(400) / 24) < 0
    rng = np.random.default_rng(0)
    sun = np.where(night, -2 + 0.1 * rng.normal(size=400), 500 + 100 * rng.normal(size=400))
    (told,) = limited_to(frame_of().assign(sun=sun), min=("sun=0",))
    assert f"{night.sum()} of 400 values of 'sun' are below --min 0" in told


@pytest.mark.parametrize("kind", ["walk", "countdown", "daily"])
def test_a_counter_that_falls_all_the_time_is_refused(kind):
    rng = np.random.default_rng(0)
    other = {
        "walk": 20 + 0.1 * rng.normal(size=400).cumsum(),
        "countdown": 1000 - np.arange(400.0),
        "daily": 10 * np.abs(np.sin(np.arange(400))),  # it comes down to near zero all the time
    }[kind]
    with pytest.raises(
        InputError, match=r"--counter other: it falls at \d+ of its \d+ changes, and a meter only rises"
    ):
        limited_to(frame_of().assign(other=other), counter=("other",))


def test_a_meter_of_the_day_is_a_meter_and_a_corrected_one_is_told():
    day = (np.arange(400.0) % 4) + 0.1  # four readings a day
    assert limited_to(frame_of().assign(day=day), counter=("day",)) == []
    frame = metered(frame_of())
    frame.iloc[200:290, 1] -= 20
    frame.iloc[220:290, 1] -= 20
    (told,) = limited_to(frame, counter=("used",))
    assert "the meter 'used' falls 2 times without starting again at zero" in told


def test_a_backtest_bounds_the_others_beside_a_meter_and_the_meter_by_rises_of_zero():
    frame = metered(frame_of())
    flags = {"max": ("humidity=100",), "counter": ("used",)}
    found, free = Forecaster(**LINEAR, **flags).fit(frame), Forecaster(**LINEAR, counter=("used",)).fit(frame)
    rises = increments(frame, ["used"])
    bounded, unbound = evaluate(found.held_out_, rises, 320), evaluate(free.held_out_, rises, 320)
    rows = bounded.series, unbound.series
    assert rows[0].loc["humidity", "width 80%"] < 0.95 * rows[1].loc["humidity", "width 80%"]
    # Its intervals are of readings, which here grow as the root of the steps: 1.8 on the average of six.
    held = free.held_out_
    held.artifacts = {name: tensor for name, tensor in held.artifacts.items() if name != "meter"}
    single = evaluate(held, rises, 320).series
    assert 1.3 < rows[1].loc["used", "width 80%"] / single.loc["used", "width 80%"] < 2.5
    assert rows[1].loc["used", "mae model"] == single.loc["used", "mae model"]


def test_a_meter_without_a_reading_in_new_rows_goes_on_from_what_training_read():
    longer = metered(frame_of(rows=424))
    found = Forecaster(**LINEAR, counter=("used",)).fit(longer.iloc[:400])
    read = longer["used"].iloc[399]
    silent = longer.iloc[400:].assign(used=np.nan)
    table = found.predict(silent)
    assert (table.loc[table["unique_id"] == "used", "mean"] >= read).all()
    after = found.update(silent).predict()
    assert (after.loc[after["unique_id"] == "used", "mean"] >= read).all()


def test_an_update_with_rows_that_are_known_moves_no_meter_back_and_one_off_the_grid_is_refused():
    longer = metered(frame_of(rows=424))
    found = Forecaster(**LINEAR, counter=("used",)).fit(longer)
    before = found.predict()
    pd.testing.assert_frame_equal(found.update(longer.iloc[380:400]).predict(), before)
    with pytest.raises(InputError, match="off the grid"):
        found.update(longer.iloc[400:].shift(freq="30min"))
    pd.testing.assert_frame_equal(found.predict(), before)


def silent_meter(rows=400, gap=10):
    """The frame, that frame without the last ``gap`` readings, and what the meter reads in the horizon."""
    longer = metered(frame_of(rows + 6))
    frame = longer.iloc[:rows]
    late = frame.copy()
    late.iloc[rows - gap :, 1] = np.nan
    return frame, late, longer["used"].iloc[rows:].to_numpy()


def of_meter(table):
    return table[table["unique_id"] == "used"].drop(columns=["unique_id", "ds"])


def told_of(act):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = act()
    return found, [str(each.message) for each in told if issubclass(each.category, InputWarning)]


@pytest.mark.parametrize("gap", [1, 3, 10, 40])
def test_a_meter_that_is_missing_at_the_end_is_forecast_with_what_it_rose_by_since(gap):
    frame, late, truth = silent_meter(gap=gap)
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:300])
    table, told = told_of(lambda: fitted.predict(late))
    assert any(f"'used' was last read at {frame.index[-gap - 1]}, before the last row" in each for each in told)
    found, whole = of_meter(table), of_meter(fitted.predict(frame))
    noise = np.sqrt(gap + 6)  # of deviation 1 in each row, cut at zero
    assert np.abs(found["mean"] - truth).max() < 3 * noise
    assert found["mean"].is_monotonic_increasing
    for level in ("80", "95"):
        wide, usual = (each[f"hi-{level}"] - each[f"lo-{level}"] for each in (found, whole))
        assert (wide > usual).all()
        assert (wide < usual * (gap + 6)).all()  # rather less than as if every row erred to one side
        assert ((found[f"lo-{level}"] <= truth) & (truth <= found[f"hi-{level}"])).all()
    assert (found["lo-95"] >= late["used"].dropna().iloc[-1]).all()
    again, _ = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(late).predict())
    assert np.abs(of_meter(again)["mean"] - truth).max() < 3 * noise
    updated, told = told_of(lambda: fitted.update(late.iloc[295:]).predict())
    assert any("'used' was last read at" in each for each in told)
    assert np.abs(of_meter(updated)["mean"] - truth).max() < 3 * noise
    np.testing.assert_allclose(of_meter(updated), found, rtol=0.02)


def test_a_gap_of_a_meter_is_what_the_model_forecasts_from_where_its_readings_end():
    frame, late, _ = silent_meter(gap=6)
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:300])
    before = of_meter(fitted.predict(frame.iloc[:-6]))  # the six missing rows are a horizon of their own
    found, _ = told_of(lambda: of_meter(fitted.predict(late)))
    # Behind the gap the model sees no reading; what the forecast rises by is what it is without one.
    rises = np.diff(found, axis=0)
    start = (found.iloc[0] - before.iloc[-1]).to_numpy()
    assert (start[:2] > 0).all()  # the mean and the median
    assert (np.abs(start) < 2 * rises.max(0) + 1).all()


def test_two_meters_are_silent_for_different_times_and_channels_may_inform_them():
    rng = np.random.default_rng(1)
    index = pd.date_range("2024-01-01", periods=500, freq="h")
    rate = 3 + 2 * np.sin(2 * np.pi * np.arange(500) / 24)[:, None] + 0.3 * rng.normal(size=(500, 3))
    frame = pd.DataFrame(np.maximum(rate, 0).cumsum(0), index, ["a", "b", "c"])
    late = frame.iloc[:494].copy()
    late.iloc[-5:, 0] = late.iloc[-17:, 1] = np.nan
    fitted = Forecaster(**LINEAR, counter=("a", "b", "c")).fit(frame.iloc[:400])
    table, (told,) = told_of(lambda: fitted.predict(late, wide=True))
    assert f"'a', 'b' were last read at {index[488]} or later" in told
    assert np.abs(table - frame.iloc[494:]).max().max() < 5  # a rise of 3 in each of up to 23 rows


def test_rows_that_come_one_by_one_keep_what_a_meter_rises_by():
    frame = metered(frame_of(430))
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:400])
    once = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:400]).update(frame.iloc[400:])
    for row in range(400, 430):
        fitted.update(frame.iloc[row : row + 1])
    ours, theirs = (each.model_.artifacts["tail"].numpy() for each in (fitted, once))
    np.testing.assert_allclose(ours, theirs)
    rises = increments(frame, ["used"])["used"].to_numpy()
    np.testing.assert_allclose(ours[:, 1], rises[-len(ours) :])
    np.testing.assert_allclose(fitted.predict()["mean"], once.predict()["mean"], rtol=1e-6)


def test_an_update_with_older_or_missing_readings_moves_no_meter_back(tmp_path):
    frame = metered(frame_of(430))
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:400])
    read = frame["used"].iloc[399]
    silent, told = told_of(lambda: fitted.update(frame.iloc[400:420].assign(used=np.nan)).predict())
    assert any(f"'used' was last read at {frame.index[399]}" in each for each in told)
    assert (of_meter(silent)["mean"] > read + 20).all()  # two in each of twenty hours
    loaded = Forecaster.load(fitted.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(loaded.predict(), silent, check_exact=True)
    on, told = told_of(lambda: fitted.update(frame.iloc[415:430]).predict())
    assert told == []
    assert np.abs(of_meter(on)["mean"].iloc[0] - frame["used"].iloc[429]) < 6


@pytest.mark.parametrize("absurd", [1e9, 1e5, -999.0])
@pytest.mark.parametrize("row", [350, 399])
def test_an_absurd_reading_is_missing_and_neither_a_rise_nor_where_the_forecast_starts(absurd, row):
    frame = metered(frame_of(), resets=())
    plain = of_meter(Forecaster(**LINEAR, counter=("used",)).fit(frame).predict())
    spoiled = frame.copy()
    spoiled.iloc[row, 1] = absurd
    fitted, told = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(spoiled))
    assert any("'used'" in each and str(frame.index[row]) in each for each in told)
    assert np.abs(of_meter(fitted.predict()) - plain).max().max() < 6  # the one rise that is not known
    new, _ = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:300]).predict(spoiled.iloc[340:]))
    assert np.abs(of_meter(new)["mean"] - plain["mean"]).max() < 8


def made_of(readings, **more):
    """What is believed of these readings, and what they rise by, and what is told."""
    frame = pd.DataFrame({"meter": readings}, pd.date_range("2024-01-01", periods=len(readings), freq="h"))
    (read, rises), told = told_of(lambda: increments_of_believed(frame, ["meter"], "plant.csv", **more))
    return read["meter"].to_numpy(), rises["meter"].to_numpy(), told


def counted(rows=400, seed=0):
    return 1000 + np.round(frame_of(rows, seed)["used"].cumsum().to_numpy(), 2)


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([200], 0.0),
        ([398], 0.0),  # the last reading is good
        ([397, 398], 0.0),
        ([20, 90, 91, 150, 200, 333], 0.0),  # each has its like, and all are faults
        (list(range(0, 400, 10))[1:], 0.0),
        (list(range(150, 210)), 0.0),  # a transmission that failed for days
        ([200], 900.0),
        ([200, 201, 202], [10.0, 0.0, 700.0]),
        ([200, 201], [1e9, 0.0]),
        ([200, 201, 300], 99999999.0),
        ([398, 399], 99999999.0),
        (list(range(390, 400)), 99999999.0),
    ],
)
def test_readings_that_those_before_and_after_contradict_are_missing_and_all_others_stay(rows, values):
    readings = counted()
    spoiled = readings.copy()
    spoiled[rows] = values
    read, rises, told = made_of(spoiled)
    expected = readings.copy()
    expected[rows] = np.nan
    np.testing.assert_array_equal(read, expected)
    assert len(told) == 1
    assert "meter" in told[0]
    assert np.nanmax(rises) <= np.diff(readings).max() + 1e-9
    last = np.flatnonzero(np.isfinite(expected))[-1]
    counted_rows = pd.Series(rises[1 : last + 1]).bfill()  # every row between two readings has their mean
    assert counted_rows.sum() == pytest.approx(readings[last] - readings[0])


def fresh(kind):
    readings, rise = counted(), np.diff(counted(), prepend=1000)
    if kind == "from zero":
        readings[300:] = rise[300:].cumsum()
    elif kind == "from zero in the last row":
        readings[-1] = 0.0
    elif kind == "daily":
        readings = np.concatenate([each.cumsum() for each in rise[:384].reshape(-1, 24)])
    elif kind == "rollover":
        readings = readings % 200
    elif kind == "rain, emptied daily":
        rng = np.random.default_rng(0)
        rain = np.where(rng.random(960) < 0.06, rng.gamma(1.0, 3.0, 960), 0.0)
        readings = np.concatenate([each.cumsum() for each in rain.reshape(-1, 24)])
    return readings


@pytest.mark.parametrize("kind", ["from zero", "from zero in the last row", "daily", "rollover", "rain, emptied daily"])
def test_a_reset_is_believed_however_often_it_comes(kind):
    readings = fresh(kind)
    read, rises, told = made_of(readings)
    assert told == []
    np.testing.assert_array_equal(read, readings)
    expected = np.where(np.diff(readings) < 0, readings[1:], np.diff(readings))
    np.testing.assert_allclose(rises[1:], expected)


@pytest.mark.parametrize("by", [500_000.0, -1100.0, -600.0])
def test_the_readings_of_another_device_stay_and_only_the_rise_to_them_is_missing(by):
    readings = counted()
    readings[300:] += by
    read, rises, told = made_of(readings)
    np.testing.assert_array_equal(read, readings)
    np.testing.assert_allclose(np.delete(rises[1:], 299), np.delete(np.diff(readings), 299))
    assert np.isnan(rises[300])
    assert len(told) == (by != -600.0)  # a fall to more than half is told by warn_of_losses


def test_a_zero_in_the_row_before_the_last_does_not_move_where_the_forecast_starts():
    frame = metered(frame_of(), resets=()).assign(used=lambda frame: frame["used"] + 1000)
    spoiled = frame.copy()
    spoiled.iloc[-2, 1] = 0.0
    plain = Forecaster(**LINEAR, counter=("used",)).fit(frame)
    fitted, told = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(spoiled))
    assert any("'used' reads 0 at" in each for each in told)
    found, _ = told_of(lambda: plain.predict(spoiled.iloc[340:]))
    for table in (fitted.predict(), found):
        assert np.abs(of_meter(table) - of_meter(plain.predict())).max().max() < 4  # one rise is known less exactly


def test_a_level_that_comes_back_after_a_zero_is_believed_when_rows_come_one_by_one():
    frame = metered(frame_of(406), resets=()).assign(used=lambda frame: frame["used"] + 1000)
    frame.iloc[401, 1] = 0.0
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame.iloc[:400])
    for row in range(400, 406):
        told_of(lambda row=row: fitted.update(frame.iloc[row : row + 1]))
    assert of_meter(fitted.predict())["mean"].iloc[0] == pytest.approx(frame["used"].iloc[405], abs=6)


def test_values_of_new_rows_beyond_a_bound_are_told_as_those_of_the_training_are():
    frame = metered(frame_of(), resets=())
    fitted = Forecaster(**LINEAR, counter=("used",), max=("used=750",)).fit(frame.iloc[:300])
    _, told = told_of(lambda: fitted.predict(frame))
    above = int((frame["used"] > 750).sum())
    assert any(f"{above} of 400 values of 'used' are above --max 750" in each for each in told)
    _, told = told_of(lambda: fitted.predict(frame.iloc[:300]))
    assert told == []


def every_second(rows=1500):
    """A sensor of every half hour beside a meter that is read every hour, and what that would read in between."""
    rng = np.random.default_rng(2)
    index = pd.date_range("2024-01-01", periods=rows, freq="30min")
    daily = np.sin(2 * np.pi * np.arange(rows) / 48)
    truth = 1000 + np.maximum(1 + 0.8 * daily + 0.3 * rng.normal(size=rows), 0).cumsum()
    other = 15 + 5 * daily + rng.normal(size=rows)
    return pd.DataFrame({"other": other, "used": np.where(np.arange(rows) % 2 == 0, truth, np.nan)}, index), truth


@pytest.mark.parametrize("columns", [["other", "used"], ["used"]])
def test_a_meter_that_is_read_in_every_second_row_is_forecast_with_intervals_that_hold(columns):
    frame, truth = every_second()
    flags = LINEAR | {"horizon": 12}
    fitted, told = told_of(lambda: Forecaster(**flags, counter=("used",)).fit(frame[columns].iloc[:1200]))
    assert all("windows of 12 rows" in each for each in told)
    inside, gaps = [], []
    for end in range(1200, 1488, 5):
        table, told = told_of(lambda end=end: fitted.predict(frame[columns].iloc[end - 200 : end]))
        assert told == []  # the last row has no reading in half of these tables, as is usual
        found, came = of_meter(table), truth[end : end + 12]
        read = np.arange(end, end + 12) % 2 == 0
        inside.append(((found["lo-80"] <= came) & (came <= found["hi-80"]))[read])
        gaps.append((found["mean"] - came)[read])
    assert np.mean(inside) == pytest.approx(0.8, abs=0.1)
    assert np.abs(np.mean(gaps)) < 0.3
    assert np.sqrt(np.mean(np.square(gaps))) < 1  # as of a meter that is read in every row, whose error is 0.75


def test_a_meter_that_misses_a_reading_it_usually_has_is_told():
    frame, _ = every_second(400)
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame)
    late = frame.copy()
    late.iloc[-3:, 1] = np.nan
    _, told = told_of(lambda: fitted.predict(late))
    assert any(f"'used' was last read at {frame.index[396]}" in each for each in told)


def test_a_meter_whose_readings_are_too_far_apart_is_named_and_so_is_the_remedy():
    frame = frame_of()
    frame["used"] = frame["used"].cumsum().where(np.arange(400) % 120 == 0)
    why = r"--counter used: it has 4 readings, none within 96 rows of another, so nothing tells .* --freq, such as"
    with pytest.raises(InputError, match=why):
        limited_to(frame[["used"]], counter=("used",))
    assert len(limited_to(frame, counter=("used",))) == 1
    with pytest.warns(InputWarning, match="no forecast is made of it"):
        kept, _ = limited(frame, ForecastRecipe(csv="", counter=("used",), min=("humidity=0",)), "plant.csv")
    assert list(kept) == ["humidity"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"counter": ("used", "used")}, "--counter: 'used' is named twice; name it once"),
        ({"target": ("used", "used")}, "--target: 'used' is named twice"),
        ({"future": ("used", "used")}, "--future: 'used' is named twice"),
        ({"min": ("used=0", "used=1")}, "--min: 'used' is named twice; give one value"),
        ({"max": ("8", "9")}, "--max: every sensor has two values; give one value"),
    ],
)
def test_a_name_that_an_option_has_twice_is_refused(flags, message):
    with pytest.raises(InputError, match=message):
        Forecaster(**LINEAR, **flags).fit(frame_of())


def test_a_reset_in_the_last_rows_is_no_spike():
    frame = metered(frame_of(), resets=(398,))
    fitted, told = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(frame))
    assert told == []
    assert (of_meter(fitted.predict())["mean"] < 40).all()


def test_a_picture_of_a_meter_shows_readings_before_the_forecast_too():
    frame, late, _ = silent_meter(gap=5)
    fitted = Forecaster(**LINEAR, counter=("used",)).fit(frame)
    shown = as_read(fitted.model_, tail_of(fitted.model_))["used"]
    since = frame["used"].iloc[-50:]  # all of them after the last reset
    np.testing.assert_allclose(shown[since.index], since)
    gone, _ = told_of(lambda: Forecaster(**LINEAR, counter=("used",)).fit(late))
    shown = as_read(gone.model_, tail_of(gone.model_))["used"]
    np.testing.assert_allclose(shown[since.index], late["used"][since.index])
