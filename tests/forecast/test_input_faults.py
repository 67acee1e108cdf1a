"""What a user can do wrong around a run of the forecaster: each ends in the right value or in one clear line."""

import shutil

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast import ForecastRecipe, backtest, predict, train
from mha_apps.forecast.plot import safe_names
from mha_apps.forecast.sample import locate
from mha_apps.training import Interrupted, Run

SMALL = {"horizon": 6, "steps": 6, "validate_steps": 6, "dim": 8, "heads": 2, "layers": 1, "batch_size": 8}
LINEAR = SMALL | {"attention": False}
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
    monkeypatch.setattr(trainer, "select", lambda *_: {"kept": True, "relative_gain": 0.1})
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
