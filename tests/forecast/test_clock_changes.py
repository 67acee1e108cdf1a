"""Days on which a clock changes: rows that are regular by the clock, at times that it skips or shows twice."""

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError, InputWarning
from mha_apps.forecast import (
    Forecaster,
    ForecastModel,
    ForecastRecipe,
    backtest,
    feeds,
    last_rows,
    predict,
    predict_frame,
    score,
    train,
)
from mha_apps.forecast.calendar import by_clock, offset_of, step_name
from mha_apps.forecast.plot import plot_forecast
from mha_apps.forecast.reading.zones import at_first

PLAIN = {"horizon": 7, "attention": False, "trees": False, "look_back": 28}


def weekly(rows, start, step="D"):
    """A load by the day of the week, and a random walk, without a zone."""
    index = pd.date_range(start, periods=rows, freq=step, name="time")
    draw = np.random.default_rng(0)
    load = 5.0 * (np.arange(rows) % 7 > 4) + 0.3 * np.cumsum(draw.normal(size=rows)) + draw.normal(size=rows)
    return pd.DataFrame({"load": load.round(2)}, index)


def write(frame, path):
    frame.set_axis(frame.index.strftime("%Y-%m-%d %H:%M")).to_csv(path, index_label="time")
    return str(path)


@pytest.mark.parametrize(
    ("zone", "start", "changes"),
    [
        ("Europe/Berlin", "2023-07-01 02:00", {"2024-03-31": "2024-03-31 03:00+02:00"}),
        ("America/Santiago", "2023-12-08", {"2024-09-08": "2024-09-08 01:00-03:00"}),
        ("Europe/Berlin", "2024-01-28 02:30", {"2024-10-27": "2024-10-27 02:30+02:00"}),
    ],
)
def test_days_are_forecast_across_a_change_of_the_clock_as_if_there_were_none(zone, start, changes, tmp_path, recwarn):
    frame = weekly(280, start)
    days = frame.index.strftime("%Y-%m-%d")
    before = int(np.flatnonzero(days == next(iter(changes)))[0]) - 3  # the change lies in the horizon
    run, plain = (
        train(
            ForecastRecipe(csv=write(frame.iloc[:before], tmp_path / "old.csv"), tz=tz, **PLAIN),
            out=tmp_path / str(tz)[:4],
        )
        for tz in (zone, None)
    )
    model = ForecastModel.from_pretrained(run.model_dir)
    assert (model.frequency, model.zone) == ("D", zone)
    later = write(frame.iloc[before : before + 5], tmp_path / "later.csv")
    for csv, first in ((None, before), (later, before + 5)):
        found, wanted = (predict(each, csv, plots=False) for each in (run, plain))
        pd.testing.assert_frame_equal(found.drop(columns="ds"), wanted.drop(columns="ds"))
        times = pd.date_range(frame.index[first], periods=7, freq="D")
        told = [changes.get(f"{time:%Y-%m-%d}") or time.tz_localize(zone) for time in times]
        assert found["ds"].tolist() == [pd.Timestamp(time).tz_convert(zone) for time in told]
    found, wanted = (backtest(each, trees=False) for each in (run, plain))
    assert found["mae"] == wanted["mae"]
    assert score(run, later)["scored"] == score(plain, later)["scored"]
    assert not [str(each.message) for each in recwarn if "rows moved" in str(each.message)]


def test_a_frame_of_days_in_a_zone_is_forecast_updated_and_given_back_over_a_midnight_that_is_skipped():
    frame = weekly(280, "2023-12-08")
    local = frame.set_axis(at_first(frame.index, "America/Santiago")).drop(index=[pd.Timestamp("2024-05-05 04:00Z")])
    naive = frame.drop(index=[pd.Timestamp("2024-05-05")])
    found, wanted = (Forecaster(**PLAIN).fit(each.iloc[:270]) for each in (local, naive))
    for each, rows in ((found, local), (wanted, naive)):
        each.update(rows.iloc[270:276])
    pd.testing.assert_frame_equal(found.predict().drop(columns="ds"), wanted.predict().drop(columns="ds"))
    assert str(found.predict()["ds"].dt.tz) == "America/Santiago"
    again = predict_frame(found.model_, last_rows(found.model_))
    pd.testing.assert_frame_equal(again, found.predict())
    utc = found.predict(local.iloc[200:270].tz_convert("UTC"))
    assert str(utc["ds"].dt.tz) == "UTC"
    own = found.predict(local.iloc[200:270])
    pd.testing.assert_frame_equal(utc.assign(ds=utc["ds"].dt.tz_convert("America/Santiago")), own)


def test_hours_that_stay_on_the_clock_when_it_changes_are_forecast_by_it(tmp_path):
    frame = weekly(500, "2024-01-15", "6h")
    path = write(frame, tmp_path / "local.csv")
    run, plain = (
        train(ForecastRecipe(csv=path, tz=tz, **PLAIN), out=tmp_path / str(tz)[:4]) for tz in ("Europe/Berlin", None)
    )
    found, wanted = (predict(each, plots=False) for each in (run, plain))
    pd.testing.assert_series_equal(found["mean"], wanted["mean"])
    assert found["ds"].dt.tz_localize(None).tolist() == wanted["ds"].tolist()


def test_rows_beside_the_grid_of_the_training_go_on_from_it_and_that_is_told(tmp_path):
    frame = weekly(320, "2024-01-16", "6h")
    winter = int(np.flatnonzero(frame.index == pd.Timestamp("2024-03-30 18:00"))[0]) + 1
    recipe = ForecastRecipe(csv=write(frame.iloc[:winter], tmp_path / "winter.csv"), tz="Europe/Berlin", **PLAIN)
    run = train(recipe, out=tmp_path / "run")
    summer = write(frame.iloc[winter : winter + 8], tmp_path / "summer.csv")
    with pytest.warns(InputWarning, match="7 rows moved onto the steps of the training, by 1 h at most"):
        found = predict(run, summer, plots=False)
    whole = predict(run, write(frame.iloc[: winter + 8], tmp_path / "whole.csv"), plots=False)
    pd.testing.assert_frame_equal(found.assign(ds=found["ds"].astype(whole["ds"].dtype)), whole)
    between = frame.iloc[winter + 1 : winter + 9]
    between = write(between.set_axis(between.index + pd.Timedelta("4h")), tmp_path / "between.csv")
    with pytest.warns(InputWarning, match="lie between those that training saw"):
        predict(run, between, plots=False)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_as_few_rows_as_there_are_go_on_across_a_change_of_the_clock(rows, tmp_path):
    frame = weekly(320, "2024-01-16", "6h")
    winter = int(np.flatnonzero(frame.index == pd.Timestamp("2024-03-30 18:00"))[0]) + 1
    recipe = ForecastRecipe(csv=write(frame.iloc[:winter], tmp_path / "winter.csv"), tz="Europe/Berlin", **PLAIN)
    run = train(recipe, out=tmp_path / "run")
    found = predict(run, write(frame.iloc[winter : winter + rows], tmp_path / "new.csv"), plots=False)
    whole = predict(run, write(frame.iloc[: winter + rows], tmp_path / "whole.csv"), plots=False)
    np.testing.assert_array_equal(found["mean"], whole["mean"])
    apart = frame.iloc[[winter, winter + 2]]
    with pytest.raises(InputError, match="s apart, those of the training 21600 s"):
        predict(run, write(apart, tmp_path / "apart.csv"), plots=False)


@pytest.mark.parametrize("layout", ["%Y-%m-%d", "%Y-%m-%d %H:%M"])
def test_a_single_day_whose_midnight_is_skipped_begins_at_its_first_moment(layout, tmp_path):
    frame = weekly(200, "2024-02-21")  # to 7 September
    run = train(
        ForecastRecipe(csv=write(frame, tmp_path / "old.csv"), tz="America/Santiago", **PLAIN), out=tmp_path / "run"
    )
    new = tmp_path / "new.csv"
    new.write_text(f"time,load\n{pd.Timestamp('2024-09-08'):{layout}},3.5\n")
    found = predict(run, new, plots=False)
    assert found["ds"].iloc[0] == pd.Timestamp("2024-09-09", tz="America/Santiago")
    assert score(run, new)["scored"] == 1


def test_rows_that_reading_moved_are_told_in_training(tmp_path):
    frame = weekly(200, "2024-01-16", "6h")
    frame = frame.set_axis([*frame.index[:-4], *(frame.index[-4:] + pd.Timedelta("1h"))])
    with pytest.warns(InputWarning, match="4 rows moved onto the grid, by 1 h at most"):
        train(ForecastRecipe(csv=write(frame, tmp_path / "a.csv"), **PLAIN), out=tmp_path / "run")


def test_the_graph_is_fed_by_the_clock_of_the_training():
    index = pd.date_range("2024-03-20", periods=400, freq="h", tz="Europe/Berlin")
    load = np.sin(np.arange(400) / 4) + np.random.default_rng(0).normal(size=400)
    frame = pd.DataFrame({"load": load, "plan": 1.0 * (index.hour > 6)}, index)
    plain = PLAIN | {"look_back": 48, "holidays": None, "future": ("plan",)}
    model = Forecaster(**plain).fit(frame.iloc[:380]).model_
    own = feeds(model, frame.iloc[:380], frame[["plan"]].iloc[380:387])
    for zone in ("UTC", "America/New_York"):
        moved = frame.tz_convert(zone)
        theirs = feeds(model, moved.iloc[:380], moved[["plan"]].iloc[380:387])
        assert own.keys() == theirs.keys()
        for name, values in own.items():
            np.testing.assert_array_equal(theirs[name], values)


def test_a_backtest_takes_a_single_row_and_rows_that_stand_alone(tmp_path):
    frame = weekly(220, "2024-01-01")
    run = train(ForecastRecipe(csv=write(frame.iloc[:200], tmp_path / "old.csv"), **PLAIN), out=tmp_path / "run")
    assert backtest(run, write(frame.iloc[200:201], tmp_path / "one.csv"), trees=False)["origins"] == 1
    far = frame.set_axis(frame.index + pd.Timedelta("1000D")).iloc[:20]
    assert backtest(run, write(far, tmp_path / "far.csv"), trees=False)["origins"] == 20


def test_a_forecast_without_a_history_is_drawn():
    frame = weekly(7, "2024-01-01")
    table = pd.DataFrame({"ds": frame.index, "median": 1.0, "lo-80": 0.0, "hi-80": 2.0})
    lines = plot_forecast(frame["load"].iloc[:0], table).axes[0].lines
    assert [len(line.get_xdata()) for line in lines] == [0, 7]


def test_the_same_day_of_each_month_is_a_step_that_a_model_keeps(tmp_path):
    frame = weekly(160, "2010-01-15", pd.DateOffset(months=1))
    recipe = ForecastRecipe(csv=write(frame, tmp_path / "months.csv"), **(PLAIN | {"horizon": 3, "look_back": 12}))
    table = predict(train(recipe, out=tmp_path / "run"), plots=False)
    assert table["ds"].dt.strftime("%Y-%m-%d").tolist() == ["2023-05-15", "2023-06-15", "2023-07-15"]


@pytest.mark.parametrize("step", ["15min", "6h", "D", "2D", "W-SUN", "MS", "QE-DEC", "YS-JAN", "B", "months=1"])
def test_a_step_is_made_again_from_its_name(step):
    index = pd.date_range("2024-01-01", periods=20, freq=offset_of(step))
    assert offset_of(step_name(index)) == index.freq
    assert step_name(pd.DatetimeIndex(list(index[:2]))) is None


@pytest.mark.parametrize(
    ("step", "start"), [("D", "2024-08-01"), ("2h", "2024-09-01"), ("12h", "2024-09-01"), ("W-SUN", "2024-06-02")]
)
def test_times_by_the_clock_come_back_from_their_zone(step, start):
    wall = pd.date_range(start, periods=120, freq=step)
    found = by_clock(at_first(wall, "America/Santiago"))  # whose clock skips an hour at midnight of 8 September
    pd.testing.assert_index_equal(found, wall)
    assert found.freq == wall.freq


def test_times_that_pass_evenly_are_not_by_the_clock():
    index = pd.date_range("2024-03-01", periods=1000, freq="h", tz="Europe/Berlin")
    assert by_clock(index) is None
    assert by_clock(pd.DatetimeIndex(list(index))) is None
    assert by_clock(index.tz_localize(None)) is None
