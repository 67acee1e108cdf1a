"""Odd rows, and probabilities of a condition."""

import copy
import importlib
import json

import numpy as np
import pandas as pd
import pytest
import torch

from mha_apps.cli import main
from mha_apps.errors import InputError
from mha_apps.forecast import ForecastRecipe, alert, predict, score, train
from mha_apps.forecast.engine import forecast_origins
from mha_apps.forecast.model import LEVELS
from mha_apps.forecast.predict import calibration_of, load_model
from mha_apps.forecast.score import below_probability, condition_probability, one_step_ahead, parse_alert, score_frame
from mha_apps.forecast.trainer import align, make_inputs

NORMAL = np.array([-1.959964, -1.281552, 0.0, 1.281552, 1.959964])


def frame_of(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    index = pd.date_range("2024-01-01", periods=rows, freq="h", name="time")
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)
    return pd.DataFrame({"temp": 20 + 5 * daily + rng.normal(size=rows), "flow": daily + rng.normal(size=rows)}, index)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant")
    frame_of().iloc[:500].to_csv(folder / "plant.csv")
    recipe = ForecastRecipe(csv=str(folder / "plant.csv"), horizon=6, attention=False, trees=False)
    return train(recipe, out=folder / "run")


def scored(run, tmp_path, spoil=lambda frame: None):
    frame = frame_of()
    spoil(frame)
    frame.to_csv(tmp_path / "new.csv")
    found = score(run, tmp_path / "new.csv")
    json.dumps(found, allow_nan=False)
    return found, {row["sensor"]: row for row in found["sensors"]}


def test_ordinary_rows_are_outside_their_intervals_about_as_often_as_they_should_be(run, tmp_path):
    found, sensors = scored(run, tmp_path)
    assert found["first"] == "2024-01-21 20:00:00"  # the first row that training did not see
    assert found["scored"] == 200
    for row in sensors.values():
        # 100 rows of each: four standard errors of the share are 0.16 and 0.09.
        assert row["outside 80%"] == pytest.approx(0.2, abs=0.16)
        assert row["outside 95%"] == pytest.approx(0.05, abs=0.09)
        assert not row["drifts"]
    assert found["stuck"] == []


def test_new_rows_alone_have_the_end_of_the_training_as_their_past(run, tmp_path):
    whole, _ = scored(run, tmp_path)
    frame_of().iloc[500:].to_csv(tmp_path / "week.csv")
    alone = score(run, tmp_path / "week.csv")
    assert alone["first"] == whole["first"]
    for one, other in zip(alone["sensors"], whole["sensors"], strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    table = predict(run, tmp_path / "week.csv", plots=False)
    pd.testing.assert_frame_equal(table, predict(run, tmp_path / "new.csv", plots=False), atol=1e-6)


def test_rows_of_another_time_stand_alone(run, tmp_path):
    far = frame_of().iloc[500:].shift(freq="1000h")
    far.to_csv(tmp_path / "far.csv")
    found = score(run, tmp_path / "far.csv")
    assert found["first"] == str(far.index[0])
    assert found["scored"] == 200


def test_a_value_that_jumps_comes_first(run, tmp_path):
    def spoil(frame):
        frame.iloc[550, 1] = 50.0

    found, _ = scored(run, tmp_path, spoil)
    assert (found["outside"][0]["sensor"], found["outside"][0]["value"]) == ("flow", 50.0)
    assert found["outside"][0]["time"] == str(frame_of().index[550])
    assert found["outside"][0]["hi-95"] < 10


def flagged(found, sensor, first, last):
    """The rows from ``first`` to ``last`` in which ``sensor`` was outside."""
    times = {row["time"] for row in found["outside"] if row["sensor"] == sensor}
    return [row for row in range(first, last) if str(frame_of().index[row]) in times]


@pytest.mark.parametrize("spike", [[550], [550, 551, 552], [520, 550, 580]])
def test_a_spike_flags_itself_and_none_of_the_values_after_it(run, tmp_path, spike, monkeypatch):
    def spoil(frame):
        frame.iloc[spike, 0] = 200.0

    clean, _ = scored(run, tmp_path)
    found, sensors = scored(run, tmp_path, spoil)
    usual = flagged(clean, "temp", 500, 600)
    more = set(flagged(found, "temp", 500, 600)) - set(usual)
    assert {row["time"] for row in found["outside"][: len(spike)]} == {str(frame_of().index[row]) for row in spike}
    assert len(more - set(spike)) <= 1  # a forecast without the value that the spike hides is another one
    assert flagged(found, "flow", 500, 600) == flagged(clean, "flow", 500, 600)
    assert not sensors["temp"]["drifts"]
    # Where the spike enters the forecasts, good values are flagged for a day or more.
    monkeypatch.setattr(importlib.import_module("mha_apps.forecast.score"), "FAR", np.inf)
    spoiled_by_it, _ = scored(run, tmp_path, spoil)
    assert len(set(flagged(spoiled_by_it, "temp", 500, 600)) - set(usual)) > len(spike) + 5


@pytest.mark.parametrize("row", range(520, 544, 3))
def test_a_spike_on_which_the_next_value_hardly_depends_is_not_believed(run, row):
    _, model = load_model(run)
    frame = frame_of()
    inputs = make_inputs(model, frame)
    plain = one_step_ahead(model, inputs, frame, 500)[0][:, 0, 3]
    spoiled = frame.copy()
    spoiled.iloc[row, 0] += 12.0
    found = one_step_ahead(model, make_inputs(model, spoiled), spoiled, 500)[0][:, 0, 3]
    # One in thirty rows: each weighs a third at most, of errors that are 1 and a spike that is 12.
    assert np.abs(found - plain).max() < 1.5


@pytest.mark.parametrize("size", [10.0, 40.0])
def test_a_level_that_has_shifted_is_drift_and_enters_the_forecasts(run, tmp_path, size):
    def spoil(frame):
        frame.iloc[540:, 0] += size

    found, sensors = scored(run, tmp_path, spoil)
    assert flagged(found, "temp", 540, 545) == [540, 541, 542, 543, 544]
    assert sensors["temp"]["drifts"]
    assert not sensors["flow"]["drifts"]
    _, model = load_model(run)
    frame = frame_of()
    before = one_step_ahead(model, make_inputs(model, frame), frame, 500)[0][:, 0, 3]
    spoil(frame)
    after = one_step_ahead(model, make_inputs(model, frame), frame, 500)[0][:, 0, 3]
    np.testing.assert_allclose(after[:45], before[:45], atol=2)  # five values may still be faults
    assert (after[70:] - before[70:] > size / 2).all()


def test_a_sensor_that_has_become_noisy_gets_wider_intervals(run, tmp_path):
    def spoil(frame):
        frame.iloc[520:, 1] = 20 * np.random.default_rng(1).normal(size=80)

    _, model = load_model(run)
    frame = frame_of()
    inputs = make_inputs(model, frame)
    before = one_step_ahead(model, inputs, frame, 500)[0][:, 1]
    spoil(frame)
    after = one_step_ahead(model, make_inputs(model, frame), frame, 500)[0][:, 1]
    np.testing.assert_array_equal(after[:21], before[:21])
    assert after[-1, 5] - after[-1, 1] > 1.2 * (before[-1, 5] - before[-1, 1])


def test_without_a_value_far_outside_the_intervals_are_those_of_the_backtest(run):
    _, model = load_model(run)
    frame = align(model, frame_of())
    inputs = make_inputs(model, frame)
    ours, half = one_step_ahead(model, inputs, frame, 500)
    raw, target = forecast_origins(model, inputs, torch.arange(500, 600))
    theirs = inputs.scaler.backward(calibration_of(model, inputs).follow(raw, target)[:, :, 0].numpy(), axis=1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(half, (theirs[..., 4] - theirs[..., 2]) / 2, rtol=1e-5)


def test_every_value_outside_is_listed(run, tmp_path, capsys):
    def spoil(frame):
        frame.iloc[500:, :] *= np.where(np.arange(100) % 2, 8, -8)[:, None]

    found, _ = scored(run, tmp_path, spoil)
    assert found["outside_count"] == len(found["outside"]) > 100
    words = ["forecast", "score", str(tmp_path / "new.csv"), str(run.path), "--out", str(tmp_path / "odd.csv")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    first = found["outside"][0]
    assert printed.index(first["time"]) < printed.index(found["outside"][19]["time"])
    assert f"{len(found['outside']) - 20} more; --json has all" in printed
    written = pd.read_csv(tmp_path / "odd.csv")
    assert written.columns.tolist() == ["time", "sensor", "value", "lo-95", "hi-95", "distance"]
    assert written["distance"].tolist() == pytest.approx([row["distance"] for row in found["outside"]])


@pytest.mark.parametrize("verb", ["predict", "score"])
def test_a_result_never_replaces_what_the_run_was_trained_on(run, verb, capsys):
    data = run.path.parent / "plant.csv"
    before = data.read_bytes()
    words = ["predict", str(run.path)] if verb == "predict" else ["score", "sample", str(run.path)]
    assert main(["forecast", *words, "--out", str(data)]) == 2
    assert "is an input too and would be replaced" in capsys.readouterr().err
    assert data.read_bytes() == before


def test_a_value_that_no_sensor_of_its_bounds_can_have_is_outside(tmp_path):
    frame = frame_of().assign(flow=lambda frame: frame["flow"].abs())
    frame.iloc[:500].to_csv(tmp_path / "plant.csv")
    recipe = {"csv": str(tmp_path / "plant.csv"), "horizon": 6, "attention": False, "trees": False}
    found = train(ForecastRecipe(**recipe, min=("flow=0",)), out=tmp_path / "run")
    frame.iloc[550, 1] = -0.01
    frame.to_csv(tmp_path / "new.csv")
    outside = [row for row in score(found, tmp_path / "new.csv")["outside"] if row["sensor"] == "flow"]
    assert any(row["value"] == -0.01 and row["lo-95"] == 0 for row in outside)
    assert min(row["lo-95"] for row in outside) >= 0


def trained(frame, folder, **flags):
    """The run of the first 500 rows of ``frame``, all of which are in ``new.csv`` beside it."""
    frame.iloc[:500].to_csv(folder / "plant.csv")
    frame.to_csv(folder / "new.csv")
    recipe = ForecastRecipe(csv=str(folder / "plant.csv"), horizon=6, attention=False, trees=False, **flags)
    return train(recipe, out=folder / "run")


def trained_on(frame, folder, **flags):
    """The rows that the run of a part of ``frame`` finds outside in a sensor "flow" of it."""
    found = trained(frame, folder, **flags)
    return [row for row in score(found, folder / "new.csv")["outside"] if row["sensor"] == "flow"]


def test_a_bound_that_cuts_the_interval_to_a_point_does_not_make_distances_enormous(run):
    _, free = load_model(run)
    frame = frame_of()
    frame["flow"] = frame["flow"].where(np.arange(600) < 500, frame["flow"].clip(lower=1.0))
    bounded = copy.deepcopy(free)
    bounded.artifacts["lower"] = torch.tensor([-torch.inf, 1.0, -torch.inf], dtype=torch.float64)
    bounded.artifacts["upper"] = torch.full((3,), torch.inf, dtype=torch.float64)
    shown, half = one_step_ahead(bounded, make_inputs(bounded, frame), frame, 500)
    below = 500 + np.flatnonzero(shown[:, 1, 4] == shown[:, 1, 2])  # the 80% interval lies below the bound
    assert (half[:, 1] > 0.5).all()
    frame.iloc[below[-1], 1] = 6.0
    outside = [row for row in score_frame(bounded, frame)["outside"] if row["sensor"] == "flow"]
    assert str(frame.index[below[-1]]) in {row["time"] for row in outside}
    assert all(row["value"] > 1.0 and 0 < row["distance"] < 9 for row in outside)  # what is at the bound is inside


def test_a_sensor_that_has_never_moved_is_odd_in_proportion_when_it_does(tmp_path):
    frame = frame_of()
    frame["flow"] = frame["flow"].where(np.arange(600) < 250, 2.0)
    frame.iloc[560, 1], frame.iloc[580, 1] = 2.5, 4.0
    outside = {row["time"]: row["distance"] for row in trained_on(frame, tmp_path)}
    less, more = (outside[str(frame.index[row])] for row in (560, 580))
    assert more == pytest.approx(4 * less, rel=0.3)
    assert max(outside.values()) < 1e6


def test_a_sensor_that_does_not_move_is_stuck_and_one_that_repeats_is_not(run, tmp_path):
    def spoil(frame):
        frame.iloc[520:560, 0] = 21.5
        frame.iloc[530:535, 1] = 0.25

    found, _ = scored(run, tmp_path, spoil)
    assert [(row["sensor"], row["rows"], row["value"]) for row in found["stuck"]] == [("temp", 40, 21.5)]
    assert found["stuck"][0]["from"] == str(frame_of().index[520])


def test_a_sensor_that_is_read_in_every_sixth_row_is_stuck_as_others_are(tmp_path):
    frame = frame_of()
    frame.loc[np.arange(600) % 6 != 0, "flow"] = np.nan
    frame.loc[(np.arange(600) >= 480) & (np.arange(600) % 6 == 0), "flow"] = (
        0.5  # four readings in training are no norm
    )
    run = trained(frame, tmp_path)
    (stuck,) = score(run, tmp_path / "new.csv")["stuck"]
    assert (stuck["sensor"], stuck["rows"], stuck["value"]) == ("flow", 20, 0.5)
    assert (stuck["from"], stuck["to"]) == (str(frame.index[480]), str(frame.index[594]))


@pytest.fixture(scope="module")
def metered(tmp_path_factory):
    """The run of a meter "flow", and 600 rows of it."""
    frame = frame_of()
    frame["flow"] = 1000 + np.round(np.maximum(2 + 1.5 * frame["flow"], 0), 2).cumsum()
    return trained(frame, tmp_path_factory.mktemp("meter"), counter=("flow",)), frame


@pytest.mark.parametrize(
    ("rows", "reads"), [([550], 0.0), ([550], -5.0), ([550], 9e6), ([550, 551], 0.0), ([540, 560, 580], 700.0)]
)
def test_a_reading_of_a_meter_that_cannot_be_believed_is_flagged_and_none_after_it(metered, tmp_path, rows, reads):
    run, frame = metered
    usual = set(flagged(score(run, run.path.parent / "new.csv"), "flow", 500, 600))
    spoiled = frame.copy()
    spoiled.iloc[rows, 1] = reads
    spoiled.to_csv(tmp_path / "new.csv")
    with pytest.warns(UserWarning, match="'flow' reads"):
        found = score(run, tmp_path / "new.csv")
    first = [row for row in found["outside"] if row["sensor"] == "flow"][: len(rows)]
    assert {row["time"] for row in first} == {str(frame.index[row]) for row in rows}
    for row in first:  # what they differ by, in each row, from the last reading before the fault
        at = frame.index.get_loc(pd.Timestamp(row["time"]))
        good = max(set(range(at)) - set(rows))
        assert row["value"] == pytest.approx((reads - frame["flow"].iloc[good]) / (at - good))
    assert len(set(flagged(found, "flow", 500, 600)) - usual - set(rows)) <= 2
    assert all(abs(row["value"]) < 50 for row in found["outside"] if row not in first)


@pytest.mark.parametrize(
    ("rows", "by", "words"),
    [
        (slice(500, 600), -600.0, "'flow' falls once without starting again"),
        (slice(598, 600), None, "its last 2 readings are 0: taken as a new start"),
        (slice(599, 600), None, "its last reading is 0: taken as a new start"),
    ],
)
def test_a_meter_that_is_another_one_or_ends_at_zero_is_told(metered, tmp_path, rows, by, words):
    run, frame = metered
    spoiled = frame.iloc[500:].copy() if rows.start == 500 else frame.copy()
    place = slice(rows.start - 600, None)
    spoiled.iloc[place, 1] = 0.0 if by is None else spoiled.iloc[place, 1] + by
    spoiled.to_csv(tmp_path / "new.csv")
    for act in (score, lambda *given: predict(*given, plots=False)):
        with pytest.warns(UserWarning, match="'flow'") as told:
            act(run, tmp_path / "new.csv")
        assert sum(words in str(each.message) for each in told) == 1


@pytest.mark.parametrize("begins", [500, 520])
def test_a_gap_flags_no_good_rows_after_it(metered, tmp_path, begins):
    run, frame = metered
    usual = score(run, run.path.parent / "new.csv")
    holed = frame.iloc[begins:].copy()
    if begins == 500:
        holed.iloc[30:50] = np.nan
    holed.to_csv(tmp_path / "new.csv")  # or the gap lies between the training and these rows
    with pytest.warns(UserWarning, match="'flow' has a reading after a gap that is longer than the horizon"):
        found = score(run, tmp_path / "new.csv")
    assert found["scored"] == 200 - 2 * 20 - 1
    for name in ("temp", "flow"):
        more = set(flagged(found, name, 500, 600)) - set(flagged(usual, name, 500, 600))
        assert len(more) <= 2  # of 40 rows after it that see it


def test_the_first_reading_of_a_meter_after_a_gap_is_held_against_the_whole_of_it(metered):
    run, frame = metered
    _, model = load_model(run)
    rises = frame.assign(flow=frame["flow"].diff())

    def made(rows):
        return one_step_ahead(model, make_inputs(model, rows), rows, 520)

    plain, half = made(rises)
    gap = rises.copy()
    gap.iloc[540:543, 1] = np.nan
    gap.iloc[543, 1] = rises["flow"].iloc[540:544].mean()
    found, its_half = made(gap)
    np.testing.assert_array_equal(found[:20], plain[:20])
    assert found[23, 1, 0] == pytest.approx(plain[20:24, 1, 0].mean(), abs=0.5)
    assert its_half[23, 1] == pytest.approx(
        half[23, 1] / 2, rel=0.35
    )  # independent rises: half as far in a mean of four


def test_the_interval_after_a_gap_is_that_of_a_forecast_as_old(tmp_path):
    frame = frame_of()
    frame["flow"] = np.random.default_rng(4).normal(size=600).cumsum()
    run = trained(frame, tmp_path)
    _, model = load_model(run)
    inputs = make_inputs(model, frame)
    plain = one_step_ahead(model, inputs, frame, 520)[0][:, 1]
    ahead = calibration_of(model, inputs).apply(forecast_origins(model, inputs, torch.tensor([540]))[0])[0, 1, 4]
    gap = frame.copy()
    gap.iloc[540:544, 1] = np.nan
    found = one_step_ahead(model, make_inputs(model, gap), gap, 520)[0][:, 1]
    wide, usual = (each[24, 5] - each[24, 1] for each in (found, plain))
    assert wide > 1.2 * usual
    assert wide == pytest.approx(float(ahead[5] - ahead[1]) * inputs.scaler.scale[1], rel=0.15)
    assert found[26, 5] - found[26, 1] == pytest.approx(plain[26, 5] - plain[26, 1], rel=0.1)


def test_a_sensor_whose_errors_have_a_sign_drifts(run, tmp_path):
    def spoil(frame):
        frame.iloc[500:, 0] += 2.0 * np.arange(1, 101)

    _, sensors = scored(run, tmp_path, spoil)
    assert sensors["temp"]["drifts"]
    assert sensors["temp"]["drift"] > 1.5
    assert not sensors["flow"]["drifts"]


def test_rows_of_other_sensors_cannot_be_scored(run, tmp_path):
    frame_of().rename(columns={"temp": "a", "flow": "b"}).to_csv(tmp_path / "other.csv")
    with pytest.raises(InputError, match=r"none of its columns is a sensor of the run; it has temp, flow"):
        score(run, tmp_path / "other.csv")


def test_probabilities_follow_the_quantiles():
    rows = np.tile(NORMAL, (len(LEVELS), 1))
    for level, value in zip(LEVELS, NORMAL, strict=True):
        assert below_probability(rows, value) == pytest.approx([level] * len(LEVELS))
    numbers = np.linspace(-6, 6, 200)
    curve = np.array([below_probability(NORMAL[None], number)[0] for number in numbers])
    assert (np.diff(curve) > 0).all()
    # The tail of a logistic distribution is the heavier one.
    assert below_probability(NORMAL[None], 3.0)[0] == pytest.approx(0.9965, abs=0.003)
    assert 0 < below_probability(NORMAL[None], -1e9)[0] < 1e-100
    assert below_probability(np.full((1, 5), 7.0), 7.0)[0] == pytest.approx(0.5)


def test_an_alert_agrees_with_the_forecast(run):
    table = predict(run, plots=False)
    temp = table[table["unique_id"] == "temp"].reset_index(drop=True)
    number = temp["hi-80"].iloc[2]
    above, below = f"temp > {number}", f"temp<={number}"
    found = alert(run, None, above, below, "flow>0")
    assert found.columns.tolist() == ["ds", above, below, "flow>0"]
    assert found["ds"].tolist() == temp["ds"].tolist()
    assert found[above].iloc[2] == pytest.approx(0.1)
    np.testing.assert_allclose(found[above] + found[below], 1.0)
    pd.testing.assert_frame_equal(found[["ds", "flow>0"]], alert(run, None, "flow>0"))


def test_what_lies_beyond_a_bound_counts_as_the_bound():
    rows = NORMAL[None]

    def chance(sign, number):
        return condition_probability(rows, sign, number, low=-1.281552, high=1.959964)[0]

    for number in (-1.0, 0.5, 1.9):  # a bound changes nothing above it
        below = below_probability(rows, number)[0]
        assert chance("<", number) == chance("<=", number) == below
        assert chance(">", number) == chance(">=", number) == 1 - below
    assert chance("<", -1.281552) == 0
    assert chance("<=", -1.281552) == pytest.approx(0.1)
    assert chance(">", -1.281552) == pytest.approx(0.9)
    assert chance(">=", -1.281552) == 1
    assert chance(">", 1.959964) == 0
    assert chance(">=", 1.959964) == pytest.approx(0.025)
    assert chance("<", 1.959964) == pytest.approx(0.975)
    assert chance("<=", 1.959964) == 1
    assert chance(">", 9.0) == chance("<=", -9.0) == 0
    assert chance("<", 9.0) == chance(">=", -9.0) == 1


@pytest.mark.parametrize("meter", [False, True])
def test_alerts_hold_the_bounds_of_the_run(tmp_path, meter):
    frame = frame_of().abs() if not meter else frame_of().abs().cumsum()
    frame.to_csv(tmp_path / "plant.csv")
    flags = {"counter": ("flow",)} if meter else {"min": ("flow=0",)}
    recipe = ForecastRecipe(csv=str(tmp_path / "plant.csv"), horizon=6, attention=False, trees=False, **flags)
    found = train(recipe, out=tmp_path / "run")
    low = float(frame["flow"].iloc[-1]) if meter else 0.0
    conditions = [f"flow<{low!r}", f"flow>={low!r}", f"flow<={low!r}", f"flow<{low + 1e-9!r}"]
    below, not_below, at, above = (alert(found, None, *conditions)[each] for each in conditions)
    assert (below == 0).all()
    assert (not_below == 1).all()
    assert at.between(0, 0.5, inclusive="right").all()
    # Just above the bound nothing jumps but what lies at it.
    np.testing.assert_allclose(above, at, atol=1e-6)


@pytest.mark.parametrize("apart", [1, 2])
def test_zeros_of_a_meter_are_flagged_and_spoil_nothing_else(tmp_path, apart):
    frame = frame_of(1000).assign(flow=(frame_of(1000)["flow"] + 5).cumsum())
    frame.loc[frame.index[np.arange(1000) % apart != 0], "flow"] = np.nan
    frame.iloc[:800].to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(csv=str(tmp_path / "plant.csv"), horizon=6, attention=False, trees=False, counter=("flow",))
    found = train(recipe, out=tmp_path / "run")

    def outside(*zeros):
        rows = frame.iloc[700:].copy()
        rows.iloc[list(zeros), rows.columns.get_loc("flow")] = 0.0
        rows.to_csv(tmp_path / "new.csv")
        result = score(found, tmp_path / "new.csv")
        assert not any(sensor["drifts"] for sensor in result["sensors"])
        return {(row["sensor"], row["time"]) for row in result["outside"]}

    usual = outside()
    assert len(usual) < 30
    assert len(outside(60, 80) ^ usual) <= 2  # among the rows of the training
    more, here = outside(150), ("flow", str(frame.index[850].tz_localize(None)))
    assert here in more - usual
    assert len((more ^ usual) - {here}) <= 3


@pytest.mark.parametrize("text", ["temp", "temp>", ">80", "temp>hot", "temp=80", ""])
def test_a_condition_that_cannot_be_read_is_one_line(text):
    with pytest.raises(InputError, match=r"--alert .*write SENSOR>NUMBER"):
        parse_alert(text)


def test_names_with_blanks_and_signs_are_sensors_too(run):
    assert parse_alert("load % < -1.5e3") == ("load %", "<", -1500.0)
    with pytest.raises(InputError, match=r"no sensor 'pump'; it is one of temp, flow"):
        alert(run, None, "pump>1")


def test_a_spike_of_a_covariate_flags_no_sensor_that_it_informs(tmp_path):
    frame = frame_of()
    frame["load"] = 100 + 3 * frame["temp"] + np.random.default_rng(1).normal(size=len(frame))
    frame[["load", "temp"]].iloc[:500].to_csv(tmp_path / "plant.csv")
    recipe = ForecastRecipe(
        csv=str(tmp_path / "plant.csv"), target=("load",), future=("temp",), horizon=6, attention=False, trees=False
    )
    run = train(recipe, out=tmp_path / "run")
    frame[["load", "temp"]].to_csv(tmp_path / "new.csv")
    before = score(run, tmp_path / "new.csv")["outside_count"]
    frame.iloc[550, frame.columns.get_loc("temp")] = 1e5
    frame[["load", "temp"]].to_csv(tmp_path / "new.csv")
    with pytest.warns(UserWarning, match="'temp' reads 100000"):
        after = score(run, tmp_path / "new.csv")["outside_count"]
    assert abs(after - before) <= 2
