"""Odd sensors in a table: each gets a forecast with a warning or one clear line, and harms no other."""

import html
import importlib
import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from mha_apps.cli import main
from mha_apps.errors import InputError, InputWarning
from mha_apps.forecast import Forecaster, ForecastRecipe, backtest, predict, score, train
from mha_apps.forecast.faults import since_unit_change, warn_of_faults, without_empty, without_spikes
from mha_apps.forecast.trainer import checked

LINEAR = {"horizon": 6, "attention": False, "trees": False}


def table(rows=300, seed=0):
    """Five sensors, the last of which is there to be spoiled."""
    rng = np.random.default_rng(seed)
    index = pd.date_range("2024-01-01", periods=rows, freq="h", name="time")
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)
    columns = {name: 10 * size + size * daily + 0.3 * rng.normal(size=rows) for size, name in enumerate("abcd", 1)}
    return pd.DataFrame(columns | {"odd": 20 + 3 * daily + 0.5 * rng.normal(size=rows)}, index)


def told_by(act):
    """What ``act`` returns, and the warnings about its input."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        answer = act()
    return answer, [str(each.message) for each in found if issubclass(each.category, InputWarning)]


def spoiled(kind):
    frame = table()
    if kind == "constant":
        frame["odd"] = 7.0
    elif kind == "all missing":
        frame["odd"] = np.nan
    elif kind == "shorter than the horizon":
        frame.iloc[:-4, 4] = np.nan
    elif kind == "one row":
        frame.iloc[:, 4] = np.where(np.arange(300) == 150, 20.0, np.nan)
    elif kind == "outlier":
        frame.iloc[100, 4] = 1e9
    elif kind == "outlier at the end":
        frame.iloc[-1, 4] = 1e9
    elif kind == "unit change":
        frame.iloc[130:, 4] *= 1000
    elif kind == "late unit change":
        frame.iloc[250:, 4] /= 1000
    elif kind == "silent at the end":
        frame.iloc[120:, 4] = np.nan
    return frame


KINDS = {
    "constant": "'odd' with one value throughout; the forecast is that value",
    "all missing": "'odd' without any value",
    "shorter than the horizon": "'odd' with fewer values than the 6 rows of the horizon",
    "one row": "'odd' with fewer values than the 6 rows of the horizon",
    "outlier": "'odd' reads 1e+09 at 2024-01-05 04:00:00, over 100 times further out",
    "outlier at the end": "'odd' reads 1e+09 at 2024-01-13 11:00:00",
    "unit change": "times larger from 2024-01-06 10:00:00 on, as if its unit had changed",
    "late unit change": "times smaller from 2024-01-11 10:00:00 on",
    "silent at the end": "'odd' without a value from",
}


@pytest.fixture(scope="module")
def expected():
    """The forecast of the other four, by themselves."""
    return Forecaster(**LINEAR, channels=False).fit(table().drop(columns="odd")).predict(wide=True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_sensor_is_told_on_the_command_line_and_in_the_report_and_harms_no_other(
    kind, expected, tmp_path, capsys, monkeypatch
):
    for module in ("predict", "backtest"):
        monkeypatch.setattr(importlib.import_module(f"mha_apps.forecast.{module}"), "MOST_PLOTS", 1)
    csv, run = tmp_path / "plant.csv", str(tmp_path / "run")
    spoiled(kind).to_csv(csv)

    def answer(*words):
        assert main(["forecast", *words, "--json"]) == 0
        heard = capsys.readouterr()
        found = json.loads(heard.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
        assert any(KINDS[kind] in warning for warning in found["warnings"])
        assert all(f"mha-apps: warning: {warning}\n" in heard.err for warning in found["warnings"])
        return found

    flags = ["--horizon", "6", "--no-attention", "--no-trees", "--no-channels"]
    answer("train", str(csv), *flags, "--out", run)
    rows = pd.DataFrame(answer("predict", run, "--out", str(tmp_path / "next.csv"))["rows"])
    answer("backtest", run, "--no-trees")
    assert html.escape(KINDS[kind]) in (tmp_path / "run" / "report.html").read_text()
    assert np.isfinite(rows.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    wide = rows.pivot(index="ds", columns="unique_id", values="mean")
    assert ("odd" in wide) == (kind != "all missing")
    # The series share one ridge, so the others may differ a little, and by no more than their noise of 0.3.
    assert np.abs(wide[list("abcd")].to_numpy() - expected.to_numpy()).max() < 0.3


@pytest.mark.parametrize("kind", ["outlier", "outlier at the end", "unit change", "late unit change"])
def test_an_outlier_or_another_unit_leaves_a_forecast_of_use(kind):
    factor = {"unit change": 1000, "late unit change": 1 / 1000}.get(kind, 1)
    plain = Forecaster(**LINEAR).fit(table()).predict().query("unique_id == 'odd'")
    odd, _ = told_by(lambda: Forecaster(**LINEAR).fit(spoiled(kind)).predict().query("unique_id == 'odd'"))
    assert ((odd["mean"] / factor - plain["mean"]).abs() < 1).all()  # of a sensor that moves between 17 and 23
    width = (odd["hi-80"] - odd["lo-80"]) / (plain["hi-80"] - plain["lo-80"]) / factor
    assert width.between(0.5, 2).all()


def test_values_far_out_are_spikes_and_events_are_not():
    frame = table()[["a", "b", "c", "d"]]
    frame.iloc[[20, 200], 0] = [9999.0, -9999.0]
    frame["b"] = 0.0
    frame.iloc[[40, 90, 91], 1] = [3.0, 800.0, 5.0]  # rain: nearly always zero
    frame.iloc[100:110, 2] = 5000.0  # an event of ten rows
    frame.iloc[150:152, 3] = 1e300
    clean, told = told_by(lambda: without_spikes(frame, "plant.csv"))
    lost = frame.notna() & clean.isna()
    assert {name: np.flatnonzero(lost[name]).tolist() for name in frame} == {
        "a": [20, 200], "b": [], "c": [], "d": [150, 151]
    }  # fmt: skip
    assert told == [
        "plant.csv: 'a' reads 9999 at 2024-01-01 20:00:00, over 100 times further out than its other values; it and 1 "
        "more are taken as missing",
        "plant.csv: 'd' reads 1e+300 at 2024-01-07 06:00:00, over 100 times further out than its other values; it and "
        "1 more are taken as missing",
    ]
    pd.testing.assert_frame_equal(without_spikes(clean, ""), clean)
    constant = pd.DataFrame({"x": np.where(np.arange(50) == 7, 1e9, 7.0)}, table(50).index)
    assert told_by(lambda: without_spikes(constant, ""))[0]["x"].isna().sum() == 1


def rain(storm, wet=(0.2, 0.4, 0.3, 0.5, 0.2, 0.3)):
    values = np.zeros(512)
    values[np.arange(len(wet)) * 60 + 10] = wet
    values[400] = storm
    return values


@pytest.mark.parametrize(
    ("values", "spikes"),
    [
        (lambda noise: np.where(np.isin(np.arange(512), [100, 250, 400]), 900, noise), []),  # three identical events
        (lambda noise: np.where(np.arange(512) == 100, 900, noise), [100]),
        (lambda noise: noise + 900 * (np.arange(512) == 9) + 1500 * (np.arange(512) == 99), []),
        (lambda noise: noise + 900 * (np.arange(512) == 9) + 1900 * (np.arange(512) == 99), [9, 99]),
        (lambda noise: noise + 900 * (np.arange(512) == 9) - 900 * (np.arange(512) == 99), [9, 99]),
        (lambda noise: noise + 900 * (np.arange(512) // 8 == 9) + 1000 * (np.arange(512) == 9), []),
        (lambda noise: rain(60.0), []),  # one storm among seven wet rows
        (lambda noise: rain(1e9), [400]),
        (lambda noise: 7 + rain(60.0), []),
        (lambda noise: 7 + rain(1e5), [400]),
    ],
)
def test_what_comes_again_or_rarely_is_an_event_and_what_has_no_like_is_a_spike(values, spikes):
    frame = pd.DataFrame({"x": values(np.random.default_rng(0).normal(size=512))}, table(512).index)
    clean, told = told_by(lambda: without_spikes(frame, "plant.csv"))
    assert np.flatnonzero(clean["x"].isna()).tolist() == spikes
    assert len(told) == bool(spikes)


def test_rows_are_compared_with_those_before_them_and_with_the_training():
    rng = np.random.default_rng(0)
    before = pd.DataFrame({"x": 20 + rng.normal(size=200)}, table(200).index)
    index = pd.date_range(before.index[-1], periods=41, freq="h")[1:]
    quiet = pd.DataFrame({"x": np.where(np.arange(40) == 30, 25.0, 20 + 0.001 * rng.normal(size=40))}, index)
    assert told_by(lambda: without_spikes(quiet, ""))[0]["x"].isna().sum() == 1  # by itself it would be one
    pd.testing.assert_frame_equal(without_spikes(quiet, "", earlier=before), quiet)
    pd.testing.assert_frame_equal(without_spikes(quiet, "", deviation=np.array([1.0])), quiet)
    short = quiet.iloc[:5].copy()
    short.iloc[3] = 1e6
    clean, (told,) = told_by(lambda: without_spikes(short, "new.csv", earlier=before))
    assert clean["x"].isna().tolist() == [False, False, False, True, False]
    assert f"'x' reads 1e+06 at {short.index[3]}" in told


@pytest.mark.parametrize(
    "kind", ["a switch", "growth", "two modes", "days and nights", "one event", "a step", "few rows"]
)
def test_what_changes_for_another_reason_keeps_its_past(kind):
    rng = np.random.default_rng(0)
    row = np.arange(300)
    noise = rng.normal(size=300)
    values = {
        "a switch": np.where(row < 150, 0.0, 50 + noise),
        "growth": np.exp(row / 40) * (1 + 0.01 * noise),
        "two modes": np.where(row // 50 % 2, 50 + noise, 0.05 + 0.001 * noise),
        "days and nights": np.where(row % 24 < 12, 0.01 + 0.001 * noise, 500 + 30 * noise),
        "one event": np.where((row > 100) & (row < 140), 5000 + noise, 20 + noise),
        "a step": np.where(row < 150, 20 + noise, 200 + noise),
        "few rows": np.where(row < 280, 20 + noise, 20_000 + 1000 * noise),
    }[kind]
    frame = pd.DataFrame({"x": values}, table().index)
    pd.testing.assert_frame_equal(since_unit_change(frame, "plant.csv"), frame)


@pytest.mark.parametrize("factor", [40, 100, 1 / 40])
def test_a_jump_of_level_and_fluctuation_by_no_factor_between_units_is_told_as_either_and_keeps_its_past(factor):
    values = 5 + 0.5 * np.random.default_rng(0).normal(size=300)
    frame = pd.DataFrame({"x": values * np.where(np.arange(300) < 150, 1, factor)}, table().index)
    kept, (told,) = told_by(lambda: since_unit_change(frame, "plant.csv"))
    pd.testing.assert_frame_equal(kept, frame)
    (size,) = re.findall(rf"(\d+) times {'larger' if factor > 1 else 'smaller'} from {frame.index[150]} on", told)
    assert float(size) == pytest.approx(max(factor, 1 / factor), rel=0.05)
    assert "either its unit has changed, or what it measures has" in told
    _, told = told_by(lambda: since_unit_change(frame))
    assert told == []


@pytest.mark.parametrize("factor", [1000, 1 / 1000, 3600, 1e5, 1e-6])
def test_a_factor_between_units_is_a_change_of_unit(factor):
    rng = np.random.default_rng(0)
    values = (5 + np.sin(np.arange(300) / 24) + 0.5 * rng.normal(size=300)) * np.where(np.arange(300) < 150, 1, factor)
    since, (told,) = told_by(lambda: since_unit_change(pd.DataFrame({"x": values}, table().index), "plant.csv"))
    assert since["x"].isna().sum() == 150
    assert "as if its unit had changed; what it read before is taken as missing" in told


def test_a_table_without_any_value_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"plant.csv: none of its columns holds a value"):
        without_empty(table() * np.nan, "plant.csv")


def test_many_odd_sensors_are_told_in_one_warning():
    frame = pd.DataFrame(dict.fromkeys(map(str, range(50)), 1.0), table().index)
    _, told = told_by(lambda: warn_of_faults(frame, train_rows=200, horizon=6, look_back=24, source="plant.csv"))
    assert told == [
        "plant.csv: '0', '1', '2', '3', '4', '5', '6', '7' and 42 more with one value throughout; the forecast is that "
        "value"
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant")
    table().iloc[:260].to_csv(folder / "plant.csv")
    return train(ForecastRecipe(csv=str(folder / "plant.csv"), **LINEAR), out=folder / "run")


def test_columns_that_training_did_not_know_or_that_are_gone_are_told(run, tmp_path):
    path = tmp_path / "new.csv"
    table().rename(columns={"odd": "pump"}).to_csv(path)
    forecast, told = told_by(lambda: predict(run, path, plots=False))
    assert forecast["unique_id"].unique().tolist() == ["a", "b", "c", "d", "pump"]
    assert any("new.csv: 'pump' unknown to the run" in each and "forecast all the same" in each for each in told)
    assert any("new.csv: 'odd' of the run not there" in each for each in told)
    for act in (lambda: score(run, path), lambda: backtest(run, path, plots=False, trees=False)):
        found, told = told_by(act)
        assert any("new.csv: 'pump' unknown to the run" in each and "left out" in each for each in told)
        assert any("new.csv: 'odd' of the run not there" in each for each in told)
        json.dumps(found, allow_nan=False)


def test_an_unknown_column_is_told_in_the_json_of_predict_and_score(run, tmp_path, capsys):
    path = tmp_path / "new.csv"
    table().assign(pump=1.0).to_csv(path)
    for words in (["predict", str(run.path), str(path)], ["score", str(path), str(run.path)]):
        assert main(["forecast", *words, "--json"]) == 0
        heard = capsys.readouterr()
        assert any("'pump' unknown to the run" in warning for warning in json.loads(heard.out)["warnings"])
        assert "mha-apps: warning: " in heard.err


def test_new_rows_without_a_value_of_a_sensor_or_with_a_spike_are_told(run, tmp_path):
    frame = table()
    frame.iloc[260:, 0] = np.nan
    frame.iloc[299, 1] = 1e7
    frame.iloc[260:].to_csv(tmp_path / "week.csv")
    plain = predict(run, plots=False)
    forecast, told = told_by(lambda: predict(run, tmp_path / "week.csv", plots=False))
    assert any("'b' reads 1e+07" in each for each in told)
    of = forecast.query("unique_id == 'b'")["mean"]
    assert (of - 20).abs().max() < 4
    assert (plain.query("unique_id == 'b'")["mean"] - 20).abs().max() < 4
    frame.assign(a=np.nan).to_csv(tmp_path / "empty.csv")
    _, told = told_by(lambda: predict(run, tmp_path / "empty.csv", plots=False))
    assert any("'a' without a value from" in each for each in told)


@pytest.mark.parametrize("rows", [1, 2])
def test_one_new_row_is_continued_and_scored_in_the_step_of_the_run(run, tmp_path, rows):
    path = tmp_path / "row.csv"
    table().iloc[260 : 260 + rows].to_csv(path)
    forecast, _ = told_by(lambda: predict(run, path, plots=False))
    assert forecast["ds"].min() == table().index[260 + rows]
    found, _ = told_by(lambda: score(run, path))
    assert found["scored"] == 5 * rows
    table().iloc[:1].to_csv(path)
    with pytest.raises(InputError, match="only one time can be used"):
        train(ForecastRecipe(csv=str(path), **LINEAR), out=tmp_path / "run")


@pytest.mark.parametrize("number", [-999.0, -99.9, 65535.0])
def test_a_number_that_stands_for_a_missing_value_in_a_new_row_is_known_by_the_training(number):
    frame = table()[["a", "b", "odd"]]
    fitted = Forecaster(**LINEAR).fit(frame.iloc[:260])
    new = frame.iloc[250:].copy()
    plain, told = told_by(lambda: fitted.predict(new))
    assert told == []
    new.iloc[-1, 2] = number
    found, (told,) = told_by(lambda: fitted.predict(new))
    assert told.startswith(f"the frame: 'odd' is {number:.10g} at {new.index[-1]}, far outside the ")
    assert (found["mean"] - plain["mean"]).abs().max() < 1
    updated, (told,) = told_by(lambda: fitted.update(new).predict())
    assert f"{number:.10g} at {new.index[-1]}" in told
    assert (updated["mean"] - plain["mean"]).abs().max() < 1


def test_a_short_table_is_judged_by_the_rows_before_it_and_not_by_itself():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": 20 + rng.normal(size=400), "b": rng.normal(size=400)}, table(400).index)
    frame.iloc[340:, 0] = 20 + 1e-4 * rng.normal(size=60)  # it has become quiet, but for one row
    frame.iloc[380, 0] = 24.0
    fitted = Forecaster(**LINEAR).fit(frame.iloc[:340])
    _, told = told_by(lambda: fitted.predict(frame.iloc[341:]))
    assert told == []
    short = frame.iloc[340:345].copy()
    short.iloc[2, 1] = 1e7
    for act in (fitted.predict, fitted.update):
        _, (told,) = told_by(lambda act=act: act(short))
        assert f"'b' reads 1e+07 at {short.index[2]}" in told


@pytest.mark.parametrize("gap", [1, 4, 20])
def test_a_sensor_that_stopped_early_has_intervals_as_wide_as_so_much_further_ahead(gap):
    rng = np.random.default_rng(3)
    walk = pd.DataFrame(
        {"walk": rng.normal(size=600).cumsum(), "other": rng.normal(size=600)},
        pd.date_range("2024-01-01", periods=600, freq="h"),
    )
    fitted = Forecaster(**LINEAR).fit(walk.iloc[:500])

    def widths(frame):
        answer, told = told_by(lambda: fitted.predict(frame))
        rows = answer[answer["unique_id"] == "walk"]
        return (rows["hi-80"] - rows["lo-80"]).to_numpy(), told

    whole, late = walk.iloc[450:550], walk.iloc[450:550].copy()
    late.iloc[-gap:, 0] = np.nan
    fresh, _ = widths(whole)
    stale, told = widths(late)
    assert any(f"'walk' without a value in the last {gap} rows" in each for each in told) == (gap > 1)
    later = fresh[np.minimum(np.arange(6) + gap, 5)]
    assert (stale > 0.7 * later).all()  # the width itself follows the rows, which are not quite the same
    # One step late is 1.15 times as wide in the mean of ten seeds.
    assert stale[0] > (1.15 if gap == 1 else 1.2) * fresh[0]


def test_intervals_that_rest_on_few_windows_are_told_with_their_number():
    def told(frame, **flags):
        recipe = ForecastRecipe(csv="", **LINEAR | flags)
        return told_by(lambda: checked(frame, recipe, "plant.csv"))[1]

    frame = table(400)  # 40 rows of calibration, and 80 more that the intervals follow where there is a refit
    assert told(frame) == []
    (short,) = told(frame, horizon=8)
    assert "plant.csv: the intervals rest on 120 rows, 15.0 windows of 8 rows that do not overlap, and 19 are" in short
    assert "lower --horizon or raise --calibration" in short
    (short,) = told(frame, refit=False)
    assert "the intervals rest on 40 rows, 6.7 windows of 6 rows" in short
    frame.iloc[300::2, 4] = np.nan
    (short,) = told(frame)
    assert "the intervals of 'odd' rest on 70 rows, 11.7 windows of 6 rows" in short


def test_what_training_said_of_few_windows_is_said_again_of_its_forecast_and_backtest(tmp_path):
    table().to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(csv=str(tmp_path / "plant.csv"), **LINEAR)
    run, (first,) = told_by(lambda: train(recipe, out=tmp_path / "run"))
    assert "rest on 90 rows, 15.0 windows of 6 rows" in first
    for act in (lambda: predict(run, plots=False), lambda: backtest(run, plots=False, trees=False)):
        assert told_by(act)[1] == [first]
