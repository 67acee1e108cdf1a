"""Clocks: the sensor's own zone, offsets that stand with the times, and new rows that another clock wrote."""

import json

import numpy as np
import pandas as pd
import pytest

from mha_apps.cli import main
from mha_apps.errors import InputWarning
from mha_apps.forecast import Forecaster, ForecastRecipe, alert, backtest, predict, score, train
from mha_apps.forecast.trainer import load_frame

PLAIN = {"horizon": 6, "look_back": 48, "attention": False}


def weekly(zone, rows=700, start="2024-03-01"):
    """A load by the clock of ``zone``, with another level on Sundays."""
    index = pd.date_range(start, periods=rows, freq="h", tz=zone, name="time")
    noise = np.random.default_rng(0).normal(size=rows)
    return pd.DataFrame({"load": 5.0 * (index.hour > 11) + 4 * (index.day_of_week == 6) + 0.1 * noise}, index)


def test_rows_of_another_clock_are_forecast_by_the_clock_of_the_training():
    frame = weekly("Europe/Berlin")
    forecaster = Forecaster(**PLAIN).fit(frame.iloc[:600])
    assert forecaster.facts_["blend"]["trees"]["kept"]  # they know hour and weekday
    own = forecaster.predict(frame.iloc[560:660])
    for zone in ("UTC", "America/New_York", "UTC+05:30"):
        theirs = forecaster.predict(frame.iloc[560:660].tz_convert(zone))
        assert str(theirs["ds"].dt.tz) == zone
        pd.testing.assert_frame_equal(theirs.assign(ds=theirs["ds"].dt.tz_convert("Europe/Berlin")), own)
    elsewhere = forecaster.update(frame.iloc[600:660].tz_convert("UTC"))
    pd.testing.assert_frame_equal(elsewhere.predict()[["ds", "mean"]], own[["ds", "mean"]])


def write(frame, path, clock=str):
    pd.DataFrame({"time": [clock(time) for time in frame.index], "load": frame["load"].to_numpy()}).to_csv(
        path, index=False
    )
    return str(path)


def test_summer_rows_go_on_from_a_run_that_was_trained_on_rows_of_winter_on_their_own_clock(tmp_path, capsys):
    frame = weekly("Europe/Berlin", start="2024-03-08")  # summer time begins after 23 days
    recipe = ForecastRecipe(csv=write(frame.iloc[:550], tmp_path / "winter.csv"), trees=False, **PLAIN)
    run = train(recipe, out=tmp_path / "run")
    path = write(frame.iloc[560:650], tmp_path / "summer.csv")
    table = predict(run, path, plots=False)
    assert table["ds"].iloc[0] == frame.index[650]
    assert table["ds"].iloc[0].utcoffset() == pd.Timedelta("2h")
    found = score(run, path)
    assert found["scored"] == 90
    assert found["first"] == "2024-03-31 09:00:00+02:00"
    assert str(alert(run, path, "load>3")["ds"].dt.tz) == "UTC+02:00"
    assert predict(run, plots=False)["ds"].iloc[0].utcoffset() == pd.Timedelta("1h")
    assert main(["forecast", "predict", str(run.path), path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["ds"] == "2024-04-04T03:00:00+02:00"
    assert "2024-04-04 03:00:00+02:00" in (run.path / "forecast-summer.csv").read_text()


def test_a_backtest_reads_hours_by_the_clock_of_the_training(tmp_path):
    frame = weekly("Europe/Berlin", start="2024-01-08")
    run = train(ForecastRecipe(csv=write(frame, tmp_path / "own.csv"), **PLAIN), out=tmp_path / "run")
    elsewhere = write(frame.tz_convert("America/New_York"), tmp_path / "elsewhere.csv")
    own, theirs = (backtest(run, path, plots=False, trees=False) for path in (None, elsewhere))
    assert run.summary()["blend"]["trees"]["kept"]  # they know hour and weekday
    assert theirs["mae"] == own["mae"]


@pytest.mark.parametrize(
    ("start", "clock", "flags", "message"),
    [
        ("2024-03-20", str, {}, r"times carry the offsets UTC\+01:00 and UTC\+02:00 and no zone, so hours, .* --tz"),
        ("2024-01-20", lambda time: f"{time.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ}", {"holidays": "DE"}, "are in UTC"),
        ("2024-03-20", str, {"tz": "Europe/Berlin", "holidays": "DE"}, None),
        ("2024-01-20", str, {"holidays": "DE"}, None),
        ("2024-01-20", lambda time: f"{time.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ}", {}, None),
    ],
)
def test_that_days_go_by_utc_is_said_where_it_may_not_be_meant(start, clock, flags, message, tmp_path, recwarn):
    path = write(weekly("Europe/Berlin", start=start), tmp_path / "a.csv", clock)
    frame = load_frame(path, ForecastRecipe(csv=path, **flags))
    told = [str(each.message) for each in recwarn if issubclass(each.category, InputWarning)]
    assert len(told) == (message is not None)
    if message is not None:
        assert str(frame.index.tz) == "UTC"
        with pytest.warns(InputWarning, match=message):
            load_frame(path, ForecastRecipe(csv=path, **flags))


def test_one_offset_in_all_rows_is_the_clock_of_the_sensor(tmp_path):
    path = write(weekly("Europe/Berlin", start="2024-01-20"), tmp_path / "a.csv")
    frame = load_frame(path)
    assert str(frame.index.tz) == "UTC+01:00"
    assert frame.index[0].hour == 0
