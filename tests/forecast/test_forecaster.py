"""The forecaster in scikit-learn's manners."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from mha_apps.errors import InputError
from mha_apps.forecast import Forecaster
from mha_apps.forecast.forecaster import to_wide

SMALL = {"horizon": 5, "steps": 8, "dim": 8, "heads": 2, "layers": 1, "trees": False}


def frame_of(rows=400, seed=0, zone=None):
    rng = np.random.default_rng(seed)
    time = np.arange(rows)
    daily = np.sin(2 * np.pi * time / 24)
    index = pd.date_range("2024-02-01", periods=rows, freq="h", tz=zone)
    return pd.DataFrame({"a": 3 * daily + rng.normal(size=rows), "b": 100 + daily}, index=index)


@pytest.fixture(scope="module")
def fitted():
    return Forecaster(**SMALL).fit(frame_of())


def test_parameters_are_those_of_the_constructor_and_survive_a_clone():
    forecaster = Forecaster(horizon=7, dropout=0.3)
    assert clone(forecaster).get_params() == forecaster.get_params()
    assert forecaster.set_params(horizon=9).horizon == 9


def test_predicting_before_fitting_is_refused():
    with pytest.raises(NotFittedError):
        Forecaster().predict()


def test_the_forecast_is_long_with_both_intervals(fitted):
    table = fitted.predict()
    assert table.columns.tolist() == ["unique_id", "ds", "mean", "median", "lo-80", "hi-80", "lo-95", "hi-95"]
    assert table["ds"].min() == frame_of().index[-1] + pd.Timedelta("1h")
    assert (table["lo-95"] <= table["lo-80"]).all()
    assert (table["hi-80"] <= table["hi-95"]).all()


def test_the_wide_forecast_holds_the_means(fitted):
    wide, table = fitted.predict(wide=True), fitted.predict()
    assert wide.columns.tolist() == ["a", "b"]
    np.testing.assert_array_equal(wide["b"], table.loc[table["unique_id"] == "b", "mean"])


def test_predicting_changes_nothing(fitted):
    before = fitted.predict()
    fitted.predict(frame_of(430))
    pd.testing.assert_frame_equal(fitted.predict(), before)


def test_fitting_twice_forgets_the_first_time():
    twice = Forecaster(**SMALL, attention=False).fit(frame_of(300, seed=5)).fit(frame_of())
    once = Forecaster(**SMALL, attention=False).fit(frame_of())
    pd.testing.assert_frame_equal(twice.predict(), once.predict())


def test_a_forecaster_is_saved_over_no_other_model(fitted, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("mine")
    with pytest.raises(InputError, match="model: no forecaster was saved there; save into another folder"):
        fitted.save(tmp_path)
    assert (tmp_path / "model" / "config.json").read_text() == "mine"
    assert fitted.save(fitted.save(tmp_path / "own")) == tmp_path / "own"


def test_a_saved_forecaster_forecasts_the_same_to_the_bit(fitted, tmp_path):
    loaded = Forecaster.load(fitted.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict(), check_exact=True)
    assert loaded.get_params() == fitted.get_params()
    assert loaded.backtest(frame_of()).metrics == fitted.backtest().metrics


def test_long_and_wide_frames_say_the_same(fitted):
    wide = frame_of(420)
    long = wide.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    pd.testing.assert_frame_equal(fitted.predict(long), fitted.predict(wide))


def test_an_update_moves_the_forecast_on_without_new_weights():
    forecaster = Forecaster(**SMALL, attention=False).fit(frame_of())
    weights = forecaster.model_.artifacts["linear"].clone()
    longer = frame_of(430, seed=0)
    longer.iloc[:400] = frame_of().to_numpy()
    forecaster.update(longer.iloc[390:])
    assert forecaster.predict()["ds"].min() == longer.index[-1] + pd.Timedelta("1h")
    assert (forecaster.model_.artifacts["linear"] == weights).all()
    direct = Forecaster(**SMALL, attention=False).fit(frame_of()).predict(longer)
    pd.testing.assert_frame_equal(forecaster.predict()[["ds", "mean"]], direct[["ds", "mean"]])


@pytest.mark.parametrize("size", [1, 10])
def test_intervals_learn_as_much_from_rows_that_come_a_few_at_a_time(size):
    longer = pd.concat([frame_of(), 2 * frame_of(60, seed=5).set_axis(frame_of(460).index[400:])]).asfreq("h")
    fitted = Forecaster(**SMALL, attention=False).fit(longer.iloc[:400])
    before = fitted.model_.artifacts["offset"].clone()
    once = copy.deepcopy(fitted).update(longer.iloc[400:])
    for row in range(400, 460, size):
        fitted.update(longer.iloc[row : row + size])
    ours, theirs = (each.model_.artifacts["offset"] - before for each in (fitted, once))
    assert theirs.abs().mean() > 0.1
    # What came is held against the intervals that were given: for rows of an earlier update, those of that update.
    assert (ours - theirs).abs().mean() < 0.1 * theirs.abs().mean()


def test_times_stay_in_the_zone_of_the_input():
    table = Forecaster(**SMALL, attention=False).fit(frame_of(zone="Europe/Berlin")).predict()
    assert str(table["ds"].dt.tz) == "Europe/Berlin"
    assert table["ds"].min() == frame_of(zone="Europe/Berlin").index[-1] + pd.Timedelta("1h")


def test_missing_rows_stay_missing():
    frame = to_wide(frame_of().drop(index=frame_of().index[10:13]))
    assert len(frame) == 400
    assert frame.isna().all(axis=1).sum() == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda frame: frame.reset_index(drop=True), "no DatetimeIndex"),
        (lambda frame: pd.concat([frame, frame.iloc[:1]]), "is there twice"),
        (lambda frame: frame.astype(str), "no numeric column"),
        (lambda frame: frame.iloc[:20], "too few for --horizon 5"),
    ],
)
def test_a_frame_that_cannot_be_used_is_one_line(spoil, message):
    with pytest.raises(InputError, match=message):
        Forecaster(**SMALL).fit(spoil(frame_of()))


@pytest.mark.parametrize("kind", ["constant", "all missing", "outlier", "unit change", "mostly missing"])
def test_a_strange_series_gets_a_finite_forecast_and_does_not_harm_the_others(kind):
    frame = frame_of()
    frame["odd"] = frame["a"]
    if kind == "constant":
        frame["odd"] = 7.0
    elif kind == "all missing":
        frame["odd"] = np.nan
    elif kind == "outlier":
        frame.iloc[150, 2] = 1e9
    elif kind == "unit change":
        frame.iloc[200:, 2] *= 1000
    else:
        frame.iloc[: len(frame) - 30, 2] = np.nan
    forecaster = Forecaster(**SMALL, attention=False).fit(frame)
    table = forecaster.predict()
    assert np.isfinite(table.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert (table.loc[table["unique_id"] == "b", "mean"] - 100).abs().max() < 3


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_table_shorter_than_the_horizon_is_continued_all_the_same(fitted, rows):
    table = fitted.predict(frame_of(rows))
    assert table["ds"].unique().tolist() == list(pd.date_range(frame_of(rows).index[-1], periods=6, freq="h")[1:])
    assert np.isfinite(table.drop(columns=["unique_id", "ds"]).to_numpy()).all()


def test_rows_without_any_value_are_continued_by_what_training_knew(fitted):
    frame = frame_of(50)
    frame[:] = np.nan
    table = fitted.predict(frame)
    assert np.isfinite(table.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert (table.loc[table["unique_id"] == "b", "mean"] - 100).abs().max() < 3


def test_one_row_is_no_table_to_train_on():
    with pytest.raises(InputError, match=r"1 rows are too few for --horizon 5, which needs 32; lower --horizon"):
        Forecaster(**SMALL).fit(frame_of(1))


def test_a_series_for_a_frame_and_a_name_for_a_tuple_are_one_line():
    rows = pd.Series(np.arange(100.0), pd.date_range("2024-01-01", periods=100, freq="h"))
    with pytest.raises(InputError, match="is a Series, not a DataFrame"):
        Forecaster(horizon=4).fit(rows)
    with pytest.raises(InputError, match=r"past='a': give a tuple of names, \('a',\)"):
        Forecaster(horizon=4, past="a").fit(rows.to_frame("y").assign(a=1.0))
