"""Covariates: data whose truth is known, what is not known, and that a model without them is as it was."""

import copy
import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mha_apps.cli import main
from mha_apps.errors import InputError, InputWarning
from mha_apps.forecast import Forecaster, ForecastRecipe, backtest, benchmark, predict, score, train, trainer
from mha_apps.forecast.attributes import read_static
from mha_apps.forecast.covariates import holiday_flags
from mha_apps.forecast.drivers import CovariateTable, accumulate, find_knots, gain, solve
from mha_apps.forecast.engine import forecast_origins
from mha_apps.forecast.ridge import accumulate as ridge_moments
from mha_apps.forecast.ridge import solve as ridge_solve
from mha_apps.forecast.trainer import align, follow_rows, make_inputs
from mha_apps.forecast.windows import Windows, centre

HORIZON = 8
PLAIN = {"horizon": HORIZON, "look_back": 72, "attention": False, "trees": False}
FLOOR = np.sqrt(2 / np.pi)  # mean absolute error of a forecast that knows all but unit noise


def driven(effect=lambda c: 3 * c, rows=1200, seed=0, start="2024-01-01"):
    """A daily cycle, the effect of something unpredictable, and noise of deviation 1; ``n`` has no effect."""
    rng = np.random.default_rng(seed)
    c = rng.normal(size=rows)
    y = 5 * np.sin(2 * np.pi * np.arange(rows) / 24) + effect(c) + rng.normal(size=rows)
    return pd.DataFrame({"y": y, "c": c, "n": rng.normal(size=rows)}, pd.date_range(start, periods=rows, freq="h"))


def error_of(frame, **roles):
    """The backtest's mean absolute error of ``y``, in its own unit, and the forecaster."""
    forecaster = Forecaster(**PLAIN, **roles).fit(frame)
    return forecaster.backtest().series.loc["y", "mae model"], forecaster


@pytest.fixture(scope="module")
def known():
    return Forecaster(**PLAIN, future=("c",)).fit(driven()[["y", "c"]])


# What covariates are worth ---------------------------------------------------------------------------------------


def test_what_nobody_can_foretell_counts_only_when_it_is_known_ahead():
    frame = driven()[["y", "c"]]
    alone, _ = error_of(frame[["y"]])
    past, _ = error_of(frame, past=("c",))
    future, _ = error_of(frame, future=("c",))
    without_effect, _ = error_of(frame[["y"]].sub(3 * frame["c"], axis=0))
    assert alone > 3 * FLOOR
    assert past == pytest.approx(alone, rel=0.01)
    assert future < 1.02 * without_effect < 1.2 * FLOOR


@pytest.mark.parametrize(
    ("effect", "shape"),
    [
        (lambda c: 4 * np.abs(c - 0.3), "bent"),
        (lambda c: 3 * np.roll(c, 2) + np.convolve(c, [0, 0, 0, 1, 1, 1])[: len(c)], "straight"),
    ],
    ids=["bends", "comes late"],
)
def test_an_effect_that_bends_or_comes_late_is_found(effect, shape):
    found, forecaster = error_of(driven(effect)[["y", "c"]], future=("c",))
    assert found < 1.2 * FLOOR
    assert all(block["kept"] and block["shape"] == shape for block in forecaster.facts_["linear"]["drivers"])


def test_an_effect_that_the_clock_changes_is_found():
    frame = driven(lambda c: 4 * c * np.cos(2 * np.pi * (np.arange(len(c)) % 24) / 24))[["y", "c"]]
    found, _ = error_of(frame, future=("c",))
    assert found < 1.2 * FLOOR


def test_noise_is_not_kept_and_costs_nothing():
    frame = driven()
    alone, _ = error_of(frame[["y"]])
    noise, forecaster = error_of(frame[["y", "n"]], future=("n",))
    assert not any(block["kept"] for block in forecaster.facts_["linear"]["drivers"])
    assert noise < 1.01 * alone
    with_it, _ = error_of(frame, future=("c", "n"))
    without, _ = error_of(frame[["y", "c"]], future=("c",))
    assert with_it < 1.01 * without


def test_a_past_covariate_that_leads_helps():
    frame = driven(lambda c: 3 * np.roll(c, HORIZON))[["y", "c"]]
    frame["c"] = frame["c"].rolling(4, min_periods=1).mean()  # what leads is smooth, as real things are
    frame["y"] = 3 * np.roll(frame["c"], HORIZON) + 0.3 * np.random.default_rng(1).normal(size=len(frame))
    alone, _ = error_of(frame[["y"]])
    past, _ = error_of(frame, past=("c",))
    assert past < 0.85 * alone


def test_covariates_inform_more_series_than_can_inform_each_other(monkeypatch):
    monkeypatch.setattr("mha_apps.forecast.cross.MOST_CHANNELS", 2)
    rng = np.random.default_rng(2)
    rows, series = 600, 3
    lead = pd.Series(rng.normal(size=rows)).rolling(4, min_periods=1).mean().to_numpy()
    known = rng.normal(size=rows)
    size = rng.uniform(1, 3, series)
    values = size * (np.roll(lead, 6)[:, None] + known[:, None]) + 0.2 * rng.normal(size=(rows, series))
    frame = pd.DataFrame(values, pd.date_range("2024", periods=rows, freq="h"), [f"s{k}" for k in range(series)])
    frame["lead"], frame["known"] = lead, known
    small = PLAIN | {"horizon": 6, "look_back": 24}
    errors = {}
    for name, roles in {
        "none": {},
        "past": {"past": ("lead",)},
        "both": {"past": ("lead",), "future": ("known",)},
    }.items():
        used = frame.drop(columns=[each for each in ("lead", "known") if each not in str(roles)])
        fitted = Forecaster(**small, **roles).fit(used)
        errors[name] = fitted.backtest().metrics["mae"]
    assert errors["past"] < 0.97 * errors["none"]
    assert errors["both"] < 0.6 * errors["past"]


# The regression against what it should be -------------------------------------------------------------------------


def test_many_series_share_what_covariates_do_at_an_origin_and_blocks_of_them_change_nothing(monkeypatch):
    frame, rng = driven(rows=400), np.random.default_rng(0)
    wide = pd.DataFrame({f"s{k}": frame["y"] + rng.normal(size=len(frame)) for k in range(40)}).assign(c=frame["c"])
    forecaster = Forecaster(**PLAIN | {"look_back": 48}, future=("c",)).fit(wide)
    model = forecaster.held_out_
    assert "drivers" in model.artifacts
    asked = []
    usual = CovariateTable._innovations
    monkeypatch.setattr(CovariateTable, "_innovations", lambda *given: asked.append(given[1]) or usual(*given))
    rows = align(model, wide)
    forecast_origins(model, make_inputs(model, rows), torch.arange(200, 330))
    assert torch.equal(torch.cat(asked), torch.arange(200, 330))  # once each, for three groups of series

    offsets = []
    for together in (1, 10**9):
        monkeypatch.setattr("mha_apps.forecast.trainer.MOST_TOGETHER", together)
        followed = copy.deepcopy(model)
        assert follow_rows(followed, rows) == len(rows) - model.rows_seen(rows.index)
        offsets.append(followed.artifacts["offset"])
    assert (offsets[0] - model.artifacts["offset"]).abs().max() > 0
    torch.testing.assert_close(*offsets)


def test_weights_are_those_of_a_regression_of_residuals_on_innovations():
    rng = np.random.default_rng(0)
    look_back, horizon, rows = 12, 3, 400
    c = rng.normal(size=(rows + horizon, 1))
    y = 2 * c[:rows] + rng.normal(size=(rows, 1))
    y[50:60] = np.nan
    windows = Windows(y, look_back=look_back, horizon=horizon)
    table = CovariateTable(
        c, known=[True], columns=1, knots=find_knots(c), waves=None, look_back=look_back, horizon=horizon, trailing=4
    )
    base = 0.1 * torch.from_numpy(rng.normal(size=(look_back, horizon)))
    origins = torch.arange(20, 380)
    moments = accumulate(windows, table, base, origins, [(0, horizon)], trailing=4)
    found = solve(moments, penalty=1e-9, use=torch.tensor([True] + [False] * (len(table.bent) - 1)))[1, 0, 0]

    def left_over(of):
        past, future = of.every_series(origins)
        z, _, level = centre(past.double(), 4)
        return (future.double() - level - z @ base)[:, 0].flatten().numpy()

    e, r = left_over(table.windows), left_over(windows)
    seen = np.isfinite(r)
    expected = e[seen] @ r[seen] / (e[seen] @ e[seen])
    assert float(found) == pytest.approx(expected, rel=1e-4)
    weights = torch.zeros(2, 1, len(table.bent), dtype=torch.float64)
    weights[1, 0, 0] = expected
    share = 1 - ((r[seen] - expected * e[seen]) ** 2).sum() / (r[seen] ** 2).sum()
    assert float(gain(moments, weights)[0]) == pytest.approx(share, rel=1e-4)


def test_the_weights_of_a_series_shrink_to_what_all_say():
    rng = np.random.default_rng(1)
    c = rng.normal(size=(403, 1))
    y = c[:400] * [1.0, 1.0, 1.0, 3.0] + 0.5 * rng.normal(size=(400, 4))
    windows = Windows(y, look_back=8, horizon=3)
    table = CovariateTable(
        c, known=[True], columns=1, knots=find_knots(c), waves=None, look_back=8, horizon=3, trailing=4
    )
    moments = accumulate(
        windows, table, torch.zeros(8, 3, dtype=torch.float64), torch.arange(30, 390), [(0, 3)], trailing=4
    )
    only = torch.tensor([True] + [False] * (len(table.bent) - 1))
    free, bound = (solve(moments, penalty=penalty, use=only)[:, 0, 0] for penalty in (1e-6, 1e4))
    np.testing.assert_allclose(free, [1.5, 1, 1, 1, 3], atol=0.05)
    np.testing.assert_allclose(bound[1:] - bound[0], 0, atol=1e-3)
    np.testing.assert_allclose(bound[0], 1.5 / (1 + 1e4 / 4), rtol=0.05)


def test_innovations_leave_nothing_of_a_covariate_that_its_past_tells():
    rows, horizon, look_back = 600, 4, 48
    c = np.sin(2 * np.pi * np.arange(rows + horizon) / 24)[:, None]
    windows = Windows(c[:rows], look_back=look_back, horizon=horizon)
    origins = torch.arange(100, 500)
    map_ = ridge_solve(ridge_moments(windows, origins, trailing=24), look_back=look_back, penalty=1e-6)
    table = CovariateTable(
        c, known=[True], columns=1, knots=find_knots(c), waves=None, look_back=look_back, horizon=horizon, trailing=24
    )
    assert float(table.innovations(origins, map_)[:, 0].abs().max()) < 1e-3


def test_series_that_share_their_moments_are_solved_as_each_alone(monkeypatch):
    rng = np.random.default_rng(3)
    c = rng.normal(size=(300, 1))
    y = c[:297] * [1.0, -2.0] + 0.1 * rng.normal(size=(297, 2))
    windows = Windows(y, look_back=8, horizon=3)
    table = CovariateTable(
        c, known=[True], columns=1, knots=find_knots(c), waves=None, look_back=8, horizon=3, trailing=4
    )
    base = torch.zeros(8, 3, dtype=torch.float64)
    made = []
    for most in (10**9, 0):
        monkeypatch.setattr("mha_apps.forecast.drivers.MOST_GRAM", most)
        moments = accumulate(windows, table, base, torch.arange(30, 290), [(0, 3)], trailing=4)
        weights = solve(moments, penalty=0.01, use=torch.ones_like(table.bent))
        made.append((weights, gain(moments, weights)))
    torch.testing.assert_close(made[0], made[1], rtol=1e-6, atol=1e-9)


# What is known ahead ----------------------------------------------------------------------------------------------


def test_a_forecast_follows_what_is_known_ahead(known):
    times = pd.date_range(driven().index[-1], periods=HORIZON + 1, freq="h")[1:]
    base = pd.DataFrame({"c": np.zeros(HORIZON)}, times)
    jump = base.copy()
    jump.iloc[3] = 1.0
    difference = known.predict(future=jump)["mean"] - known.predict(future=base)["mean"]
    assert difference.iloc[3] == pytest.approx(3, abs=0.2)
    assert difference.drop(index=3).abs().max() < 0.3


def test_what_is_missing_ahead_is_named_with_its_first_timestamps(known):
    times = pd.date_range(driven().index[-1], periods=HORIZON + 1, freq="h")[1:]
    with pytest.raises(InputError, match=rf"needs 'c' .* {HORIZON} of the {HORIZON} rows are missing \({times[0]}, "):
        known.predict()
    some = pd.DataFrame({"c": np.zeros(HORIZON)}, times)
    some.iloc[[2, 5]] = np.nan
    with pytest.raises(InputError, match=rf"2 of the {HORIZON} rows are missing \({times[2]}, {times[5]}\)"):
        known.predict(future=some)
    with pytest.raises(InputError, match="column 'c' is missing; give 'c'"):
        known.predict(future=some.rename(columns={"c": "d"}))
    with pytest.raises(InputError, match="time zone"):
        known.predict(future=some.tz_localize("UTC"))


def test_rows_of_the_future_in_the_frame_are_no_history():
    frame = driven()[["y", "c"]]
    longer = frame.copy()
    longer.iloc[-HORIZON:, 0] = np.nan
    history = frame.iloc[:-HORIZON]
    with_rows = Forecaster(**PLAIN, future=("c",)).fit(longer)
    without = Forecaster(**PLAIN, future=("c",)).fit(history)
    ahead = frame[["c"]].iloc[-HORIZON:]
    table = with_rows.predict()
    assert table["ds"].iloc[0] == ahead.index[0]
    pd.testing.assert_frame_equal(table, without.predict(future=ahead), check_exact=True)
    pd.testing.assert_frame_equal(table, without.predict(longer), check_exact=True)
    assert with_rows.backtest().metrics == without.backtest(longer).metrics


def test_a_saved_forecaster_knows_the_same_to_the_bit(tmp_path):
    frame = driven()
    frame.iloc[-HORIZON:, [0, 2]] = np.nan
    forecaster = Forecaster(**PLAIN, past=("n",), future=("c",)).fit(frame)
    loaded = Forecaster.load(forecaster.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(loaded.predict(), forecaster.predict(), check_exact=True)
    assert loaded.backtest(frame).metrics == forecaster.backtest().metrics
    assert loaded.get_params() == forecaster.get_params()


def test_an_update_brings_rows_and_what_is_known_after_them():
    frame = driven()[["y", "c"]]
    forecaster = Forecaster(**PLAIN, future=("c",)).fit(frame.iloc[:-60])
    newer = frame.iloc[-100:].copy()
    newer.iloc[-HORIZON:, 0] = np.nan
    table = forecaster.update(newer).predict()
    assert table["ds"].iloc[0] == frame.index[-HORIZON]
    assert np.abs(table["mean"].to_numpy() - frame["y"].iloc[-HORIZON:].to_numpy()).mean() < 2 * FLOOR


def test_a_covariate_that_is_missing_in_the_past_is_no_obstacle():
    frame = driven()[["y", "c"]]
    frame.iloc[200:260, 1] = np.nan
    frame.iloc[::17, 1] = np.nan
    found, forecaster = error_of(frame, future=("c",))
    assert found < 1.5 * FLOOR
    assert np.isfinite(forecaster.backtest().metrics["mae"])


@pytest.mark.parametrize("role", ["past", "future"])
@pytest.mark.parametrize("value", [np.nan, 1.0, 1e200], ids=["never known", "constant", "huge"])
def test_a_strange_covariate_does_no_harm(role, value):
    frame = driven(rows=300)[["y", "c"]]
    frame["c"] = value if value != 1e200 else value * frame["c"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        forecaster = Forecaster(**PLAIN | {"trees": True}, **{role: ("c",)}).fit(frame)
    ahead = pd.DataFrame({"c": value}, pd.date_range(frame.index[-1], periods=HORIZON + 1, freq="h")[1:])
    if role == "past" or np.isfinite(value):
        assert np.isfinite(forecaster.predict(future=ahead if role == "future" else None)["mean"]).all()
    assert np.isfinite(forecaster.backtest().metrics["mae"])


def test_every_origin_of_a_table_is_forecast_as_if_it_were_the_last(known):
    frame = driven()[["y", "c"]]
    row = 900
    table = known.predict(frame.iloc[:row], future=frame[["c"]].iloc[row : row + HORIZON])
    inputs = make_inputs(known.model_, frame)
    linear = inputs.batch(torch.tensor([row]))
    point = (linear["linear"] + linear["level"])[0].double().numpy()
    np.testing.assert_allclose(inputs.scaler.backward(point, axis=0)[0], table["mean"], rtol=1e-4)


def told_by(act):
    """What ``act`` returns, and the warnings about its input."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        answer = act()
    return answer, [str(each.message) for each in found if issubclass(each.category, InputWarning)]


@pytest.fixture(scope="module")
def warm():
    """``y`` follows the temperature ``t``: a forecaster of the first rows, and the table with those after them."""
    rng = np.random.default_rng(5)
    rows = 900
    t = 15 + 8 * np.sin(2 * np.pi * np.arange(rows) / 24) + rng.normal(size=rows)
    index = pd.date_range("2024-01-01", periods=rows, freq="h", name="time")
    frame = pd.DataFrame({"y": 300 + 5 * t + rng.normal(size=rows), "t": t}, index)
    return Forecaster(**PLAIN, future=("t",)).fit(frame.iloc[:800]), frame


def test_what_is_planned_far_outside_of_the_training_is_told_and_followed(warm):
    forecaster, frame = warm
    ahead = frame[["t"]].iloc[800 : 800 + HORIZON].copy()
    plain, told = told_by(lambda: forecaster.predict(future=ahead))
    assert told == []
    ahead.iloc[[2, 5]] = [[70.0], [61.5]]
    hot, (told,) = told_by(lambda: forecaster.predict(future=ahead))
    low, high = frame["t"].iloc[:800].min(), frame["t"].iloc[:800].max()
    assert told == (
        f"future: 't' is as far as 70 in 2 rows, {ahead.index[2]}, {ahead.index[5]}, far outside the {low:.4g} to "
        f"{high:.4g} that training saw; the forecast follows it all the same: check it and its unit"
    )
    assert (hot["mean"] - plain["mean"])[[2, 5]].min() > 100
    _, (told,) = told_by(lambda: forecaster.predict(future=ahead * 1.8 + 32))  # a temperature in another unit
    assert f"in {HORIZON} rows, {ahead.index[0]}, {ahead.index[1]}, {ahead.index[2]}, ..., far outside" in told


@pytest.mark.parametrize("number", [-999.0, -99.0, -9999.0, 9999.0, 1e20])
def test_a_planned_number_that_stands_for_a_missing_value_is_missing(warm, number):
    forecaster, frame = warm
    ahead = frame[["t"]].iloc[800 : 800 + HORIZON].copy()
    ahead.iloc[3] = number

    def act():
        with pytest.raises(InputError, match=rf"needs 't' .* 1 of the {HORIZON} rows are missing \({ahead.index[3]}\)"):
            forecaster.predict(future=ahead)

    _, (told,) = told_by(act)
    assert f"future: 't' is {number:.10g} at {ahead.index[3]}, far outside" in told
    assert "stands for a missing value, and is taken as one" in told
    rows = frame.iloc[:800].copy()
    longer = pd.concat([rows, ahead.assign(y=np.nan)[["y", "t"]]]).asfreq("h")
    with pytest.raises(InputError, match=str(ahead.index[3])):
        told_by(lambda: Forecaster(**PLAIN, future=("t",)).fit(longer).predict())


def test_a_planned_event_is_no_spike(warm):
    _, frame = warm
    rng = np.random.default_rng(0)
    longer = frame.iloc[: 800 + HORIZON].assign(t=np.where(rng.uniform(size=800 + HORIZON) < 0.9, 0.0, rng.normal()))
    longer.iloc[800:, 0] = np.nan
    longer.iloc[803, 1] = 500.0
    forecaster, told = told_by(lambda: Forecaster(**PLAIN, future=("t",)).fit(longer))
    assert len(told) == 1
    assert f"'t' is 500 at {longer.index[803]}, far outside" in told[0]
    assert forecaster.predict()["ds"].iloc[0] == longer.index[800]
    _, told = told_by(lambda: forecaster.predict(longer))
    assert len(told) == 1
    assert "'t' is 500" in told[0]


def test_gaps_of_a_covariate_in_the_history_are_filled_from_what_is_given_of_it(warm):
    forecaster, frame = warm
    history, given = frame.iloc[:800].copy(), frame[["t"]].iloc[780 : 800 + HORIZON]
    whole = forecaster.predict(history, given)
    history.iloc[-10:, 1] = np.nan
    history.iloc[-40, 1] = np.nan  # the file does not have this one
    found, told = told_by(lambda: forecaster.predict(history, given))
    assert told == []
    assert np.abs(found["mean"] - whole["mean"]).max() < 1
    # Rows of the file that are measured are the measured ones.
    other = given.copy()
    other.iloc[:9] += 3
    again, _ = told_by(lambda: forecaster.predict(history, other))
    pd.testing.assert_frame_equal(again, found, check_exact=True)
    # So it is in rows that come in, from what was given with those before them.
    longer = frame.iloc[: 800 + HORIZON].copy()
    longer.iloc[800:, 0] = np.nan
    fitted = Forecaster(**PLAIN, future=("t",)).fit(longer)
    fitted.update(frame.iloc[800:804].assign(t=np.nan))
    np.testing.assert_allclose(fitted.model_.artifacts["tail_around"][-4:, 0].numpy(), frame["t"].iloc[800:804])


def test_a_table_of_the_future_on_another_grid_is_one_line(warm):
    forecaster, frame = warm
    ahead = frame[["t"]].iloc[800 : 800 + HORIZON]
    with pytest.raises(InputError, match=r"future: its rows are 1,800 s apart, those of the history 3,600 s; resample"):
        forecaster.predict(future=ahead.resample("30min").ffill())
    with pytest.raises(
        InputError, match=r"future: its rows are 10,800 s apart, those of the history 3,600 s; resample"
    ):
        forecaster.predict(future=ahead.iloc[::3])
    with pytest.raises(InputError, match=rf"{ahead.index[0]} and {ahead.index[1]}; resample it to them") as error:
        forecaster.predict(future=ahead.shift(freq="30min"))
    assert "lies between two rows of the history and what comes after it" in str(error.value)
    longer = frame[["t"]].iloc[800 : 800 + 3 * HORIZON]
    assert forecaster.predict(future=longer)["ds"].iloc[-1] == ahead.index[-1]
    some, told = told_by(lambda: forecaster.predict(future=pd.concat([ahead, longer.iloc[[-1]]]).asfreq("h")))
    assert len(some) == HORIZON
    assert told == []


def test_months_are_planned_by_months_and_daily_rows_are_no_months():
    rng = np.random.default_rng(2)
    index = pd.date_range("2000-01-01", periods=240, freq="MS", name="time")
    t = 10 + 8 * np.sin(2 * np.pi * np.arange(240) / 12) + rng.normal(size=240)
    frame = pd.DataFrame({"y": 3 * t + 0.1 * rng.normal(size=240), "t": t}, index)
    fitted = Forecaster(horizon=6, attention=False, trees=False, future=("t",)).fit(frame.iloc[:228])
    ahead = frame[["t"]].iloc[228:234]
    assert np.abs(fitted.predict(future=ahead)["mean"].to_numpy() - frame["y"].iloc[228:234].to_numpy()).max() < 3
    with pytest.raises(InputError, match=r"its rows are 86,400 s apart, those of the history 2,678,400 s"):
        fitted.predict(future=ahead.resample("D").ffill())


def test_a_table_of_the_future_is_resampled_as_the_history_was(tmp_path):
    rng = np.random.default_rng(4)
    index = pd.date_range("2020-01-01", periods=300 * 24, freq="h", name="time")
    t = np.repeat(10 + rng.normal(size=300), 24) + 0.1 * rng.normal(size=7200)
    frame = pd.DataFrame({"y": 5 * t, "t": t}, index)
    frame.iloc[: 280 * 24].to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(
        csv=str(tmp_path / "plant.csv"),
        future=("t",),
        horizon=5,
        freq="D",
        aggregate="mean",
        attention=False,
        trees=False,
    )
    run = train(recipe, out=tmp_path / "run")
    frame[["t"]].iloc[280 * 24 : 286 * 24].to_csv(tmp_path / "ahead.csv")
    table = predict(run, future=tmp_path / "ahead.csv", plots=False)
    daily = frame["y"].resample("D").mean().iloc[280:285]
    assert np.abs(table["mean"].to_numpy() - daily.to_numpy()).max() < 1


def test_rows_of_the_future_alone_are_no_history_and_the_line_says_where_they_belong(warm, tmp_path, capsys):
    forecaster, frame = warm
    ahead = frame.iloc[800 : 800 + HORIZON]
    line = "the frame: holds 't', which is known ahead, and no value of 'y', so it is no history to go on from; to say "
    for alone in (ahead[["t"]], ahead.assign(y=np.nan)):
        for act in (forecaster.predict, forecaster.update):
            with pytest.raises(
                InputError, match=line + r"what is to come give it to predict as --future-csv, in Python"
            ):
                act(alone)
    csv, tomorrow, run = (tmp_path / name for name in ("plant.csv", "tomorrow.csv", "run"))
    frame.assign(n=1.0 + np.arange(len(frame)) % 7).iloc[:800].to_csv(csv)
    ahead[["t"]].to_csv(tomorrow)
    words = ["--horizon", "8", "--look-back", "72", "--no-attention", "--no-trees", "--out", str(run)]
    assert main(["forecast", "train", str(csv), "--past", "n", "--future", "t", *words]) == 0
    assert main(["forecast", "predict", str(run), str(tomorrow)]) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "tomorrow.csv" in line]
    assert "tomorrow.csv: holds 't', which is known ahead, and no value of 'y'" in told
    assert "--future-csv" in told
    assert main(["forecast", "predict", str(run), "--future-csv", str(tomorrow), "--json"]) == 0
    assert "warnings" not in json.loads(capsys.readouterr().out)
    ahead[["t"]].assign(t=lambda rows: rows["t"] * 1.8 + 32).to_csv(tomorrow)
    assert main(["forecast", "predict", str(run), "--future-csv", str(tomorrow), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "tomorrow.csv: 't' is as far as" in told


def test_a_saved_forecaster_knows_what_range_training_saw(warm, tmp_path):
    forecaster, frame = warm
    loaded = Forecaster.load(forecaster.save(tmp_path / "saved"))
    ahead = frame[["t"]].iloc[800 : 800 + HORIZON] + 40
    assert told_by(lambda: loaded.predict(future=ahead))[1] == told_by(lambda: forecaster.predict(future=ahead))[1]
    (told,) = told_by(lambda: loaded.predict(future=ahead))[1]
    assert f"in {HORIZON} rows" in told


# Roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"future": ("C",)}, "no numeric column 'C', which --future names; did you mean 'c'"),
        ({"target": ("zz",)}, "no numeric column 'zz', which --target names; it has 'y', 'c', 'n'"),
        ({"past": ("c",), "future": ("c",)}, "--past and --future: 'c' is named twice"),
        ({"past": ("c", "c")}, "--past: 'c' is named twice"),
        ({"past": ("y", "c"), "future": ("n",)}, "leave at least one to forecast"),
        ({"past": tuple(f"p{k}" for k in range(65))}, "65 columns, and 64 are the most"),
    ],
)
def test_roles_that_cannot_be_are_one_line(roles, message):
    with pytest.raises(InputError, match=message):
        Forecaster(**PLAIN, **roles).fit(driven(rows=300))


def test_only_targets_are_forecast_and_scored():
    frame = driven()
    forecaster = Forecaster(**PLAIN, target=("y",), future=("c",)).fit(frame)
    assert forecaster.model_.series == ["y"]
    table = forecaster.predict(frame, future=frame[["c"]].shift(HORIZON, freq="h"))
    assert set(table["unique_id"]) == {"y"}
    assert forecaster.backtest().series.index.tolist() == ["y"]
    with pytest.raises(InputError, match="holds 'c', which is known ahead, and no value of 'y'"):
        forecaster.predict(frame[["c", "n"]])
    with pytest.raises(InputError, match="column 'c' is missing, which training was given as --future"):
        forecaster.predict(frame[["y"]])


def test_a_series_that_training_did_not_know_is_forecast_with_the_covariates(known):
    frame = driven()[["y", "c"]]
    table = known.predict(frame.rename(columns={"y": "other"}), future=frame[["c"]].shift(HORIZON, freq="h"))
    assert set(table["unique_id"]) == {"other"}
    assert np.isfinite(table["mean"]).all()


# Trees and attention ----------------------------------------------------------------------------------------------


def test_trees_see_what_two_covariates_do_together():
    rng = np.random.default_rng(5)
    rows = 2000
    a, b = rng.normal(size=(2, rows))
    y = 3 * a * np.sign(b) + 0.3 * rng.normal(size=rows)  # nothing for a sum of effects
    frame = pd.DataFrame({"y": y, "a": a, "b": b}, pd.date_range("2024", periods=rows, freq="h"))
    small = {"horizon": 3, "look_back": 24, "attention": False, "future": ("a", "b")}
    linear = Forecaster(**small, trees=False).fit(frame).backtest().metrics["mae"]
    forecaster = Forecaster(**small).fit(frame)
    found = forecaster.backtest().metrics
    assert forecaster.facts_["blend"]["trees"]["kept"]
    assert found["mae"] < 0.5 * linear
    assert min(each["contribution"] for each in found["contributions"].values()) > 0.3


@pytest.fixture(scope="module")
def network():
    """A table of two series with covariates of all kinds, and a recipe for a small attention path."""
    frame = driven(rows=420)
    frame["z"] = frame["y"].rolling(3, min_periods=1).mean()
    frame.iloc[-6:, [0, 2, 3]] = np.nan
    return frame


def small_recipe(csv, **changes):
    sizes = {"steps": 4, "validate_steps": 4, "dim": 8, "heads": 2, "layers": 1, "batch_size": 8, "trees": False}
    return ForecastRecipe(csv=str(csv), horizon=6, past=("n",), future=("c",), **sizes, **changes)


def test_a_run_with_covariates_killed_between_stages_ends_the_same(network, tmp_path, monkeypatch):
    csv = tmp_path / "plant.csv"
    network.rename_axis("time").to_csv(csv)
    real = trainer.select
    monkeypatch.setattr(
        trainer, "select", lambda *args: real(*args) | {"kept": True, "relative_gain": 0.1, "weight": 0.5}
    )
    whole = train(small_recipe(csv), out=tmp_path / "whole")

    class Kill(BaseException):
        pass

    def kill(*_, **__):
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "confirm", kill)
        with pytest.raises(Kill):
            train(small_recipe(csv), out=tmp_path / "killed")
    resumed = train(resume=tmp_path / "killed")
    pd.testing.assert_frame_equal(predict(resumed, plots=False), predict(whole, plots=False), check_exact=True)


def test_the_attention_path_hears_of_covariates_and_attributes(tmp_path):
    frame = driven(rows=420)
    frame["z"] = frame["y"] + 1
    (tmp_path / "about.csv").write_text("name,height\ny,1\nz,2\n")
    forecaster = Forecaster(
        horizon=6, past=("n",), future=("c",), static=str(tmp_path / "about.csv"), steps=4, dim=8, heads=2, layers=1,
        trees=False, holdout=0.0, refit=False,
    ).fit(frame)  # fmt: skip
    model = forecaster.model_
    model.attention_weight.fill_(1.0)
    torch.nn.init.normal_(model.paths[0].gate, generator=torch.Generator().manual_seed(0))
    batch = make_inputs(model, frame).batch(torch.tensor([300, 301]))
    before = model(batch)
    for name in ("around", "around_mask", "static"):
        changed = batch | {name: batch[name] + 1.0}
        assert not torch.equal(model(changed), before)
    assert batch["around"].shape[:2] == (2, 2)
    past, ahead = batch["around_mask"][:, :, : model.look_back], batch["around_mask"][:, :, model.look_back :]
    assert bool(past.all())
    assert not bool(ahead[:, 0].any())  # the past covariate
    assert bool(ahead[:, 1, :6].all())


def test_without_covariates_a_model_has_no_part_for_them():
    forecaster = Forecaster(**PLAIN).fit(driven(rows=300)[["y"]])
    assert not {"around_mean", "knots", "drivers", "tail_around", "static"} & set(forecaster.model_.artifacts)
    assert not any("around" in name or "static" in name for name in forecaster.model_.state_dict())
    assert set(forecaster.facts_["linear"]) == {"penalty", "share", "rank", "look_backs", "trials", "reversion"}


# Attributes -------------------------------------------------------------------------------------------------------


def test_attributes_are_standardised_or_one_column_per_category(tmp_path):
    path = tmp_path / "about.csv"
    path.write_text("series;height;room;same\na;1;hall;7\nb;3;attic;7\nlater;5;hall;7\nc;;;7\n")
    described, attributes, values = read_static(str(path), ["a", "b", "c"])
    assert described == ("a", "b", "later", "c")
    assert attributes == ("height", "room=hall", "room=attic")
    expected = [[-1, 1, 0], [1, 0, 1], [3, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(values, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,height\na,1\n", "no row for series 'b'"),
        ("name,height\na,1\nB,1\n", "no row for series 'b'; is it the row 'B'"),
        ("name,height\na,1\nb,2\na,3\n", "series 'a' has two rows"),
        ("name,height\na,1\nb,1\n", "no attribute tells the series apart"),
        ("name\na\nb\n", "has 1 column; give the series in the first and attributes in others"),
        ("", "is no CSV of attributes"),
        ("name,k,k=x\na,x,1\nb,y,2\n", "two attributes are called 'k=x'"),
    ],
)
def test_attributes_that_cannot_be_used_are_one_line(text, message, tmp_path):
    path = tmp_path / "about.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_static(str(path), ["a", "b"])


@pytest.mark.parametrize(
    "text",
    [
        "name;area\na;1,5\nb;2,5\nc;-3,25\n",
        'name,area\na,"1,5"\nb,"2,5"\nc,"-3,25"\n',
        "name;area\na;1.5 m²\nb;2.5 m²\nc;-3.25 m²\n",
        "name;area\na;1,500\nb;2,500\nc;−3,250\n",
    ],
)
def test_numbers_of_attributes_are_read_as_those_of_the_data_are(text, tmp_path):
    path = tmp_path / "about.csv"
    path.write_text(text, encoding="utf-8")
    _, attributes, values = read_static(str(path), ["a", "b", "c"], decimal="," if ",500" in text else None)
    assert attributes == ("area",)
    area = np.array([1.5, 2.5, -3.25])
    np.testing.assert_allclose(values[:, 0], (area - area.mean()) / area.std(), rtol=1e-6)


def test_what_is_no_number_among_numbers_of_an_attribute_is_missing_and_named(tmp_path):
    path = tmp_path / "about.csv"
    path.write_text("name,area,age,room\na,1,3,1\nb,inf,n/a,2\nc,3,5,hall\nd,,7,3\n", encoding="utf-16")
    with pytest.warns(InputWarning) as told:
        _, attributes, values = read_static(str(path), ["a", "b", "c", "d"])
    said = [str(each.message).partition(": ")[2] for each in told]
    assert said == [
        "'area' of 'b' is 'inf', which is no finite number, and is taken as missing",
        "'age' of 'b' is 'n/a', which is no finite number, and is taken as missing",
    ]
    assert attributes == ("area", "age", "room=1", "room=2", "room=hall", "room=3")
    np.testing.assert_allclose(values[:, 0], [-1, 0, 1, 0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"holidays": ""}, r"--holidays '': names no country; give one such as DE"),
        ({"static": " "}, r"--static ' ': names no file"),
        ({"freq": ""}, r"--freq '': is empty"),
        ({"tz": ""}, r"--tz '': is empty"),
        ({"future": ("c",), "min": ("0", "c=0")}, r"--min c=0: 'c' is a covariate, which --future names"),
        ({"past": ("c",), "max": ("c=0",)}, r"--max c=0: 'c' is a covariate, which --past names"),
        ({"past": ("c",), "counter": ("c",)}, r"--counter c: 'c' is a covariate, which --past names"),
    ],
)
def test_flags_that_say_nothing_or_are_about_another_role_are_one_line(flags, message):
    with pytest.raises(InputError, match=message):
        ForecastRecipe(csv="x.csv", **flags).check()


@pytest.mark.parametrize("role", ["target", "past", "future"])
def test_a_column_named_as_the_holidays_are_is_refused(role):
    pytest.importorskip("holidays")
    frame = driven(rows=100).rename(columns={"n": "holidays DE"})
    roles = {"target": ("y",)} | {role: ("holidays DE",)}
    with pytest.raises(InputError, match="column 'holidays DE' has the name of what --holidays DE adds; rename it"):
        Forecaster(**PLAIN, holidays="DE", **roles).fit(frame)


def test_attributes_help_trees_with_a_series_that_training_did_not_know(tmp_path):
    rng = np.random.default_rng(7)
    rows, height = 500, {"a": 1.0, "b": 1.2, "c": 4.0, "d": 4.2, "new": 4.1}
    known = rng.normal(size=rows)
    index = pd.date_range("2024", periods=rows, freq="h")
    values = {name: tall * known + 0.2 * rng.normal(size=rows) for name, tall in height.items()}
    frame = pd.DataFrame(values | {"k": known}, index)
    for name in height:  # each series is standardised by itself: what differs is the sign
        frame[name] *= -1 if height[name] > 3 else 1
    path = tmp_path / "about.csv"
    path.write_text("series,height\n" + "".join(f"{name},{tall}\n" for name, tall in height.items()))
    small = {"horizon": 3, "look_back": 24, "attention": False, "future": ("k",)}
    forecaster = Forecaster(**small, static=str(path)).fit(frame.drop(columns="new"))
    assert forecaster.model_.covariates.attributes == ("height",)
    rows_to_come = frame[["k"]].iloc[-3:]
    table = forecaster.predict(frame[["new", "k"]].iloc[:-3], future=rows_to_come)
    assert np.isfinite(table["mean"]).all()
    features = make_inputs(forecaster.model_, frame[["new", "k"]]).static
    tall = np.array([1.0, 1.2, 4.0, 4.2])
    np.testing.assert_allclose(features, [[(4.1 - tall.mean()) / tall.std()]], rtol=1e-5)


# Holidays ---------------------------------------------------------------------------------------------------------


def test_holidays_without_the_library_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(InputError, match="--holidays DE: needs the library holidays; pip install holidays"):
        Forecaster(**PLAIN, holidays="DE").fit(driven(rows=300))


def test_holidays_are_those_of_the_local_date():
    pytest.importorskip("holidays")
    index = pd.date_range("2024-12-24 22:00", periods=4, freq="h", tz="UTC")
    assert holiday_flags("DE", index.tz_convert("Europe/Berlin")).tolist() == [0, 1, 1, 1]
    assert holiday_flags("de", index).tolist() == [0, 0, 1, 1]
    assert holiday_flags("US-CA", pd.DatetimeIndex(["2024-03-31"])).tolist() == [1]  # Cesar Chavez Day
    assert holiday_flags("US", pd.DatetimeIndex(["2024-03-31"])).tolist() == [0]
    for code in ("XX", "DE-XX"):
        with pytest.raises(InputError, match=f"--holidays {code}: not known"):
            holiday_flags(code, index)


def test_a_holiday_ahead_is_forecast(tmp_path):
    pytest.importorskip("holidays")
    rows = 730
    index = pd.date_range("2022-01-01", periods=rows, freq="D")
    rng = np.random.default_rng(0)
    off = holiday_flags("DE-BY", index)
    y = 10 + 2 * (index.dayofweek < 5) - 6 * off + 0.3 * rng.normal(size=rows)
    frame = pd.DataFrame({"y": y}, index)
    forecaster = Forecaster(**PLAIN | {"horizon": 7, "look_back": 28}, holidays="DE-BY").fit(frame.loc[:"2023-12-20"])
    means = forecaster.predict()["mean"].to_numpy()  # the 21st to the 27th; the 25th and 26th are off
    assert means[[4, 5]].max() < 8
    assert means[[0, 1, 6]].min() > 10
    loaded = Forecaster.load(forecaster.save(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict()["mean"], means)
    assert forecaster.backtest().metrics["covariates"] == {"holidays DE-BY": "known in truth"}


# The command line -------------------------------------------------------------------------------------------------


def test_the_command_line_goes_from_training_to_report(tmp_path, capsys):
    frame = driven(rows=500).rename_axis("time")
    csv, ahead, run = tmp_path / "plant.csv", tmp_path / "ahead.csv", tmp_path / "run"
    frame.iloc[:-HORIZON].to_csv(csv)
    frame[["c"]].iloc[-HORIZON:].to_csv(ahead)
    words = ["--horizon", "8", "--look-back", "72", "--no-attention", "--no-trees", "--out", str(run)]
    assert main(["forecast", "train", str(csv), "--past", "n", "--future", "c", *words]) == 0
    assert main(["forecast", "predict", str(run)]) == 2
    assert "the forecast needs 'c'" in capsys.readouterr().err
    assert main(["forecast", "predict", str(run), "--future-csv", str(ahead), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["unique_id"] for row in rows} == {"y"}
    gap = np.array([row["mean"] for row in rows]) - frame["y"].to_numpy()[-HORIZON:]
    assert np.abs(gap).mean() < 2 * FLOOR
    assert main(["forecast", "predict", str(run), "--future-csv", str(ahead), "--alert", "y>0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == HORIZON
    assert main(["forecast", "backtest", str(run), "--no-trees", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["contributions"]["c"]["contribution"] > 0.5
    assert abs(found["contributions"]["n"]["contribution"]) < 0.02
    assert found["covariates"]["c"].startswith("known in hindsight")
    report = (run / "report.html").read_text()
    assert "Not known after the last row" in report
    assert "known in hindsight" in report
    assert "Contribution of each covariate" in report
    whole = tmp_path / "whole.csv"
    frame.to_csv(whole)
    assert main(["forecast", "score", str(whole), str(run), "--json"]) == 0
    assert [each["sensor"] for each in json.loads(capsys.readouterr().out)["sensors"]] == ["y"]


def test_a_table_of_the_future_is_read_without_the_columns_of_the_history(tmp_path):
    frame = driven(rows=300).rename_axis("time")
    csv, ahead = tmp_path / "plant.csv", tmp_path / "ahead.csv"
    frame.iloc[:-HORIZON].to_csv(csv)
    frame[["c"]].iloc[-HORIZON:].to_csv(ahead)
    recipe = ForecastRecipe(
        csv=str(csv), columns=("y", "c"), future=("c",), horizon=HORIZON, look_back=24, attention=False, trees=False
    )
    run = train(recipe, out=tmp_path / "run")
    assert predict(run, future=ahead, plots=False)["ds"].iloc[-1] == frame.index[-1]
    with pytest.raises(InputError, match=r"needs 'c' .* 8 of the 8 rows"):
        predict(run, plots=False)


def test_rows_without_any_measurement_that_go_on_beyond_the_horizon_are_told():
    frame = driven(rows=300)[["y", "c"]]
    frame.iloc[-20:, 0] = np.nan
    with pytest.warns(InputWarning, match=f"no value was measured from {frame.index[-20]} on, in the last 20 rows"):
        table = Forecaster(**PLAIN, future=("c",)).fit(frame).predict()
    assert table["ds"].iloc[0] == frame.index[-20]


def test_the_benchmark_takes_covariates_too():
    frame = driven(rows=20 * 30 * 6)
    recipe = ForecastRecipe(csv="x", look_back=48, future=("c",), target=("y",), attention=False, trees=False)
    settings = {"horizons": (4,), "months": (12, 4, 4), "trees": False}
    frame.index = pd.date_range("2020", periods=len(frame), freq="4h")
    found = benchmark(frame, recipe=recipe, **settings)
    assert (
        found["average"]["mae"]
        < 0.5 * benchmark(frame[["y"]], recipe=replace(recipe, future=()), **settings)["average"]["mae"]
    )


def test_rows_of_the_future_in_the_csv_serve_training_prediction_and_backtest(tmp_path):
    frame = driven(rows=500)[["y", "c"]].rename_axis("time")
    frame.iloc[-HORIZON:, 0] = np.nan
    csv = tmp_path / "plant.csv"
    frame.to_csv(csv)
    sizes = {"horizon": HORIZON, "look_back": 72, "attention": False, "trees": False}
    run = train(ForecastRecipe(csv=str(csv), future=("c",), **sizes), out=tmp_path / "run")
    table = predict(run, plots=False)
    assert table["ds"].iloc[0] == frame.index[-HORIZON]
    pd.testing.assert_frame_equal(predict(run, csv, plots=False), table)
    assert backtest(run, plots=False, trees=False)["last_row"] == str(frame.index[-HORIZON - 1])
    assert score(run, csv)["last"] == str(frame.index[-HORIZON - 1])


def test_a_covariate_that_ends_before_the_target_does_no_harm():
    rng = np.random.default_rng(3)
    frame = driven()[["y", "c"]]
    frame["c"] = 10 + 5 * np.sin(np.arange(len(frame)) / 24 * 2 * np.pi) + rng.normal(size=len(frame)).cumsum() / 4
    frame["y"] = 300 + 3 * frame["c"] + rng.normal(size=len(frame))
    forecaster = Forecaster(**PLAIN, future=("c",)).fit(frame)
    horizon = forecaster.horizon
    history, tomorrow = frame.iloc[:-horizon], frame[["c"]].iloc[-horizon:]
    truth = frame["y"].iloc[-horizon:].to_numpy()

    def error(rows):
        late = history.copy()
        late.iloc[len(late) - rows :, late.columns.get_loc("c")] = np.nan
        return np.abs(forecaster.predict(late, tomorrow)["mean"].to_numpy() - truth).mean()

    whole = error(0)
    assert error(1) < whole + 1
    assert error(3) < whole + 2
    with pytest.warns(UserWarning, match="'c' without a value in the last rows"):
        without = error(len(history))
    plain = Forecaster(**PLAIN).fit(frame[["y"]]).predict(history[["y"]])["mean"].to_numpy()
    assert without < 1.5 * np.abs(plain - truth).mean()
    for rows in (6, 24):  # as without it, and not far outside of all that was ever measured
        with pytest.warns(UserWarning, match="'c' without a value in the last rows"):
            assert error(rows) < 1.5 * np.abs(plain - truth).mean()
