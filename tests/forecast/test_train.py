"""From a CSV to a run, forecasts and a backtest."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from mha_apps.errors import InputError
from mha_apps.forecast import Forecaster, ForecastRecipe, backtest, predict, train
from mha_apps.forecast.sample import resolve

SMALL = {
    "horizon": 6,
    "steps": 12,
    "validate_steps": 6,
    "dim": 8,
    "heads": 2,
    "layers": 1,
    "batch_size": 8,
    "trees": False,
}


def series(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    time = np.arange(rows)
    daily = np.sin(2 * np.pi * time / 24)
    return pd.DataFrame(
        {
            "time": pd.date_range("2024-01-01", periods=rows, freq="h"),
            "pump temp": 20 + 5 * daily + rng.normal(size=rows),
            "load %": 50 + 10 * np.roll(daily, 6) + 2 * rng.normal(size=rows),
        }
    )


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "plant.csv"
    frame = series()
    frame.loc[100:110, "load %"] = np.nan
    frame.drop(index=range(200, 205)).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(csv, tmp_path_factory):
    return train(ForecastRecipe(csv=str(csv), **SMALL), out=tmp_path_factory.mktemp("runs") / "run")


def test_the_first_forecast_is_one_step_after_the_last_row(run, csv):
    table = predict(run)
    last = pd.read_csv(csv, parse_dates=["time"])["time"].iloc[-1]
    for _, rows in table.groupby("unique_id", sort=False):
        assert rows["ds"].tolist() == list(pd.date_range(last, periods=7, freq="h")[1:])
    assert table["unique_id"].unique().tolist() == ["pump temp", "load %"]


def test_a_forecast_has_a_mean_a_median_and_an_interval_around_it(run):
    table = predict(run)
    assert table.columns.tolist()[:6] == ["unique_id", "ds", "mean", "median", "lo-80", "hi-80"]
    assert np.isfinite(table.drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert (table["lo-80"] <= table["median"]).all()
    assert (table["median"] <= table["hi-80"]).all()


def test_a_picture_is_drawn_for_every_series(run):
    predict(run)
    assert (run.plots_dir / "forecast-pump_temp.png").stat().st_size > 5000
    assert (run.plots_dir / "forecast-load.png").stat().st_size > 5000


def test_the_saved_tail_gives_the_forecast_of_the_csv_that_was_trained_on(run, csv):
    pd.testing.assert_frame_equal(predict(run), predict(run, csv), check_dtype=False)


def test_new_rows_move_the_forecast_on(run, tmp_path):
    longer = tmp_path / "longer.csv"
    series(530).to_csv(longer, index=False)
    table = predict(run, longer, plots=False)
    assert table["ds"].min() == pd.Timestamp("2024-01-01") + pd.Timedelta(hours=530)


def test_a_series_that_training_did_not_know_is_forecast_too(run, tmp_path):
    other = tmp_path / "other.csv"
    series().rename(columns={"load %": "flow"}).to_csv(other, index=False)
    table = predict(run, other, plots=False)
    assert np.isfinite(table.loc[table["unique_id"] == "flow", "mean"]).all()


def test_a_backtest_scores_the_rows_that_training_never_saw(run):
    found = backtest(run)
    assert found["origins"] == 100
    assert found["skill"]["seasonal_naive"] > 0
    assert 0 < found["coverage"]["80"] <= found["coverage"]["95"] <= 1
    assert {row["series"] for row in found["series"]} == {"pump temp", "load %"}
    assert len(found["steps"]) == 6
    json.dumps(found)
    assert (run.plots_dir / "backtest-load.png").exists()


def test_the_report_says_what_was_chosen_and_how_good_it_is(run):
    backtest(run, trees=False)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "a period of 24 rows" in page
    assert "The attention path" in page
    assert "The 80% intervals held" in page
    assert page.count("data:image/png;base64,") >= 5
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_training_never_looks_at_the_rows_held_out(run, csv, tmp_path):
    frame = pd.read_csv(csv)
    changed = tmp_path / "changed.csv"
    frame.loc[frame.index[-90:], ["pump temp", "load %"]] += 1000.0
    frame.to_csv(changed, index=False)
    other = train(ForecastRecipe(csv=str(changed), **SMALL), out=tmp_path / "run")
    for name in ("model.safetensors", "config.json"):
        assert (other.path / "heldout" / name).read_bytes() == (run.path / "heldout" / name).read_bytes()
    ours, theirs = (load_file(each.path / "heldout" / "artifacts.safetensors") for each in (run, other))
    for name in ("linear", "mean", "scale", "offset", "known_until"):
        assert torch.equal(ours[name], theirs[name])


def test_a_run_says_what_it_chose(run):
    summary = run.summary()
    assert summary["plan"]["period"] == 24
    assert summary["attention"]["kept"] in (True, False)
    assert summary["linear"]["penalty"] > 0


@pytest.mark.parametrize("bad", [{"horizon": -3}, {"look_back": 0}, {"dim": 7}, {"holdout": 0.9}])
def test_a_value_that_cannot_be_meant_is_one_line(bad, csv, tmp_path):
    with pytest.raises(InputError, match=r"^--") as caught:
        train(ForecastRecipe(csv=str(csv), **(SMALL | bad)), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_too_few_rows_for_the_horizon_are_one_line_and_leave_nothing(csv, tmp_path):
    with pytest.raises(InputError, match=r"plant\.csv: 500 rows are too few for --horizon 200.*lower --horizon"):
        train(ForecastRecipe(csv=str(csv), **(SMALL | {"horizon": 200})), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_sampling_step_is_refused(run, tmp_path):
    other = tmp_path / "minutes.csv"
    frame = series()
    frame["time"] = pd.date_range("2024-01-01", periods=len(frame), freq="10min")
    frame.to_csv(other, index=False)
    with pytest.raises(InputError, match=r"minutes\.csv.*600 s apart.*3600 s"):
        predict(run, other)


def test_the_sample_is_found_by_its_name():
    assert resolve("sample").name == "weather_jfk_2013.csv"
    assert resolve("other.csv").name == "other.csv"


def chaotic(days=300, seed=0):
    """Days whose height follows the logistic map: uncorrelated with the day before, and yet decided by it."""
    rng = np.random.default_rng(seed)
    height = np.empty(days)
    height[0] = 0.3
    for day in range(1, days):
        height[day] = 3.95 * height[day - 1] * (1 - height[day - 1])
    values = np.outer(height, np.sin(np.pi * np.arange(24) / 24) ** 2).ravel() + 0.05 * rng.normal(size=24 * days)
    return pd.DataFrame({"pump": values}, index=pd.date_range("2023-01-02", periods=24 * days, freq="h"))


@pytest.mark.slow
def test_attention_finds_what_no_linear_model_can():
    forecaster = Forecaster(horizon=24, look_back=72, refit=False).fit(chaotic())
    assert forecaster.facts_["attention"]["kept"]
    found = forecaster.backtest().metrics
    assert found["skill"]["linear"] > 0.2


def test_a_run_that_was_stopped_after_its_training_ends_the_same_when_resumed(run, csv, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    shutil.rmtree(copy / "heldout")
    (copy / "model" / "artifacts.safetensors").unlink()
    with pytest.raises(InputError, match="its training has not ended"):
        predict(copy)
    pd.testing.assert_frame_equal(predict(train(resume=copy)), predict(run))


def test_a_run_killed_after_its_first_validation_is_sent_to_resume(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    (copy / "summary.json").unlink()  # what a run has that is still going on
    with pytest.raises(InputError, match=f"its training has not ended; continue it with --resume {copy}"):
        predict(copy)
