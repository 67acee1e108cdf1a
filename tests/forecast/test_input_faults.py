"""What a user can do wrong around a run of the forecaster: each ends in the right value or in one clear line."""

import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from mha_apps.errors import InputError
from mha_apps.forecast import (
    Forecaster,
    ForecastModel,
    ForecastRecipe,
    alert,
    backtest,
    export,
    predict,
    score,
    train,
)
from mha_apps.forecast.plot import safe_names
from mha_apps.forecast.sample import locate
from mha_apps.training import Interrupted, Run

SMALL = {
    "horizon": 6,
    "steps": 6,
    "validate_steps": 6,
    "dim": 8,
    "heads": 2,
    "layers": 1,
    "batch_size": 8,
    "trees": False,
}
LINEAR = SMALL | {"attention": False}
LINEAR_PARAMETERS = {"horizon": 6, "attention": False, "trees": False}
LONG_NAME = "t" * 300


def table(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)
    return pd.DataFrame(
        {
            "time": pd.date_range("2024-01-01", periods=rows, freq="h"),
            "a b": 5 * daily + rng.normal(size=rows),
            "a_b": daily + rng.normal(size=rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("plant")
    table().to_csv(path / "plant.csv", index=False)
    return path


@pytest.fixture(scope="module")
def run(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the recipe names the CSV as one does at a prompt
        return train(ForecastRecipe(csv="plant.csv", **LINEAR), out=folder / "run")


def test_a_run_finds_its_csv_from_any_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = tmp_path / "moved"
    shutil.copytree(run.path, moved)
    assert backtest(moved, plots=False, trees=False)["origins"] == 80
    assert run.recipe(ForecastRecipe).csv == str(run.path.parent / "plant.csv")
    assert locate("sample") == "sample"


def test_a_csv_that_is_gone_is_one_line_that_says_how_to_name_it(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run.path, moved)
    config = moved / "config.toml"
    config.write_text(config.read_text().replace("plant.csv", "gone.csv"))
    with pytest.raises(InputError, match=r"gone\.csv: .*not there any more.*backtest RUN CSV"):
        backtest(moved)


def test_series_whose_names_share_a_file_name_or_are_too_long_for_one_get_a_picture_each(run):
    names = ["a b", "a_b", "A b", LONG_NAME, LONG_NAME + "u", "温" * 200, "%"]
    files = safe_names(names)
    assert len({file.casefold() for file in files.values()}) == len(names)
    assert max(len(file.encode()) for file in files.values()) < 128
    assert files["a b"] == "a_b"
    predict(run)
    assert len(list(run.plots_dir.glob("forecast-*.png"))) == 2


def test_a_name_with_dollar_signs_is_drawn_as_it_is(run, folder, tmp_path):
    path = tmp_path / "dollars.csv"
    table().rename(columns={"a b": r"$\frac{$", "a_b": LONG_NAME}).to_csv(path, index=False)
    assert set(predict(run, path)["unique_id"]) == {r"$\frac{$", LONG_NAME}


def test_an_interruption_while_a_choice_is_confirmed_names_the_run_and_leaves_no_folder_behind(
    folder, tmp_path, monkeypatch
):
    from mha_apps.forecast import trainer

    out = tmp_path / "run"
    whole = trainer.fit

    def fit(task, recipe, run):
        if run.path != out:
            run.begin()
            raise Interrupted(run, 3)
        return whole(task, recipe, run)

    monkeypatch.setattr(trainer, "fit", fit)
    monkeypatch.setattr(trainer, "select", lambda *_: {"kept": True, "relative_gain": 0.1, "weight": 0.5})
    with pytest.raises(Interrupted) as caught:
        train(ForecastRecipe(csv=str(folder / "plant.csv"), **SMALL), out=out)
    assert str(out) in str(caught.value)
    assert trainer.ASIDE not in str(caught.value)
    assert not (out / trainer.ASIDE).exists()

    (out / trainer.ASIDE).mkdir()  # as a kill leaves it
    (out / trainer.ASIDE / "half").write_text("")
    monkeypatch.undo()
    resumed = train(resume=Run.open(out).path)
    assert not (out / trainer.ASIDE).exists()
    assert len(predict(resumed, plots=False)) == 12


@pytest.mark.parametrize("folder_name", ["model", "heldout"])
@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("model.safetensors", lambda data: None),
        ("model.safetensors", lambda data: data[: len(data) // 2]),
        ("model.safetensors", lambda data: b""),
        ("config.json", lambda data: None),
        ("config.json", lambda data: b"{"),
        ("config.json", lambda data: b"{}"),
        ("config.json", lambda data: b"[]"),
        ("config.json", lambda data: data.replace(b'"a_b"', b'"a_b", "c"')),
        ("config.json", lambda data: data.replace(b'"frequency": "h"', b'"frequency": "fortnight"')),
        ("config.json", lambda data: json.dumps(json.loads(data) | {"trailing": 0}).encode()),
        ("artifacts.safetensors", lambda data: data[: len(data) // 2]),
        ("artifacts.safetensors", lambda data: data.replace(b'"tail"', b'"tale"')),
    ],
)
def test_a_damaged_model_is_one_line_that_names_its_folder(run, tmp_path, folder_name, file, spoil):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    path = copy / folder_name / file
    data = spoil(path.read_bytes())
    assert data != path.read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=f"copy/{folder_name}: .*; restore it or train again$") as caught:
        predict(copy, plots=False) if folder_name == "model" else backtest(copy, plots=False, trees=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("found", [1, 99])
def test_a_model_of_another_format_is_refused_wherever_it_is_read(run, tmp_path, found):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    for folder in ("model", "heldout"):
        path = copy / folder / "artifacts.safetensors"
        held = load_file(path)
        del held["format"]  # which the first one had not
        save_file(held if found == 1 else held | {"format": torch.tensor(found)}, path)
    line = rf"copy/(model|heldout): another version of mha_apps saved .* in format {found} .*; train again$"
    plant = run.recipe(ForecastRecipe).csv
    for read in (predict, backtest, export, lambda path: alert(path, None, "a_b>1"), lambda path: score(path, plant)):
        with pytest.raises(InputError, match=line):
            read(copy)
    with pytest.raises(InputError, match=line):
        ForecastModel.from_pretrained(copy / "model")


def test_a_damaged_forecaster_is_one_line(tmp_path):
    saved = Forecaster(**LINEAR_PARAMETERS).fit(table().set_index("time")).save(tmp_path / "saved")
    (saved / "model" / "artifacts.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"saved/model: .*save the forecaster again$"):
        Forecaster.load(saved)
    (saved / "forecaster.json").write_text("{}")
    with pytest.raises(InputError, match=r"forecaster\.json: cannot be read"):
        Forecaster.load(saved)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"look_back": 240}, r"plant\.csv: --look-back 240 is longer .* it is 234 at most"),
        ({"look_back": 10**9}, r"--look-back 1000000000: must be .*below 8193"),
        ({"horizon": 10**9}, r"--horizon 1000000000: must be .*below 8193"),
        ({"dim": 10**6}, r"--dim 1000000, --layers 1 and --members 1 make about 2\.4e\+13 weights"),
        ({"dim": 8, "heads": 3}, r"--dim 8: must be a multiple of --heads 3"),
        ({"layout": "long"}, r"--layout long: .*leave it out"),
    ],
)
def test_sizes_that_no_memory_or_table_has_room_for_are_refused_first(folder, tmp_path, flags, message):
    with pytest.raises(InputError, match=message):
        train(ForecastRecipe(csv=str(folder / "plant.csv"), **(SMALL | flags)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["time,a,b\n", "time\n", "time,T1,T2\n,degC,%\n"])
def test_a_file_with_names_alone_is_said_to_have_no_data(tmp_path, text):
    path = tmp_path / "names.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"names\.csv, line 1: names of columns and no row of data"):
        train(ForecastRecipe(csv=str(path), **LINEAR), out=tmp_path / "run")


def test_sensors_of_different_steps_are_one_line_whose_remedy_works(tmp_path):
    fast = table(2400)[["time", "a b"]].rename(columns={"a b": "value"}).assign(sensor="fast")
    fast["time"] = pd.date_range("2024-01-01", periods=2400, freq="10min")
    slow = table()[["time", "a_b"]].rename(columns={"a_b": "value"}).assign(sensor="slow")
    path = tmp_path / "steps.csv"
    pd.concat([fast, slow])[["time", "sensor", "value"]].to_csv(path, index=False)
    with pytest.raises(InputError, match=r"steps\.csv: .*--freq and --aggregate \(as in --freq h --aggregate mean\)"):
        train(ForecastRecipe(csv=str(path), **LINEAR), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = train(ForecastRecipe(csv=str(path), freq="h", aggregate="mean", **LINEAR), out=tmp_path / "run")
    assert len(predict(run, path, plots=False)) == 12
    assert backtest(run, plots=False, trees=False)["origins"] == 80


def test_values_near_the_end_of_the_floats_are_forecast_as_smaller_ones_are():
    unit = 2.0**1000
    frame = table().set_index("time")
    small = Forecaster(**LINEAR_PARAMETERS).fit(frame).predict(wide=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        large = Forecaster(**LINEAR_PARAMETERS).fit(frame * unit).predict(wide=True)
    np.testing.assert_allclose(large / unit, small, rtol=1e-6, atol=1e-6)


def test_a_sensor_without_a_truth_has_no_error_and_a_block_without_any_is_refused(run, folder, tmp_path):
    frame = table()
    frame.loc[300:, "a_b"] = np.nan
    frame.to_csv(tmp_path / "late.csv", index=False)
    found = backtest(run, tmp_path / "late.csv", plots=False, trees=False)
    json.dumps(found, allow_nan=False)
    errors = {row["series"]: row["mae model"] for row in found["series"]}
    assert errors["a b"] > 0
    assert errors["a_b"] is None

    frame.loc[310:, "a b"] = np.nan
    frame.to_csv(tmp_path / "silent.csv", index=False)
    with pytest.raises(InputError, match=r"silent\.csv: no value from 2024-01-14 08:00:00 on"):
        backtest(run, tmp_path / "silent.csv", plots=False, trees=False)
