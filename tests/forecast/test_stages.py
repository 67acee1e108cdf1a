"""A training that is stopped between two of its stages goes on after the last that it finished, to the same end."""

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast import ForecastRecipe, predict, train, trainer
from mha_apps.forecast.stages import Stages
from mha_apps.training import Run

SMALL = {"horizon": 6, "steps": 4, "validate_steps": 4, "dim": 8, "heads": 2, "layers": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    rng = np.random.default_rng(0)
    daily = np.sin(2 * np.pi * np.arange(400) / 24)
    path = tmp_path_factory.mktemp("plant") / "plant.csv"
    index = pd.date_range("2024-01-01", periods=400, freq="h", name="time")
    pd.DataFrame({"a": 5 * daily + rng.normal(size=400), "b": daily + rng.normal(size=400)}, index).to_csv(path)
    return path


@pytest.fixture(scope="module")
def kept():
    """The attention path is confirmed on folds and refitted, whatever it is worth after four steps."""
    with pytest.MonkeyPatch.context() as patch:
        real = trainer.select
        patch.setattr(
            trainer, "select", lambda *args: real(*args) | {"kept": True, "relative_gain": 0.1, "weight": 0.5}
        )
        yield


@pytest.fixture(scope="module")
def whole(csv, kept, tmp_path_factory):
    return train(ForecastRecipe(csv=str(csv), trees=False, **SMALL), out=tmp_path_factory.mktemp("runs") / "whole")


class Kill(BaseException):
    """What no code catches."""


# Each function begins a stage or lies in it: (where the kill comes, after how many calls, stages finished by then).
@pytest.mark.parametrize(
    ("function", "calls", "finished"),
    [
        ("fit", 0, {"ridge"}),
        ("confirm", 0, {"ridge", "attention"}),
        ("_fit_aside", 2, {"ridge", "attention", "selection-0", "selection-1"}),
        ("calibrate", 0, {"ridge", "attention", "selection-0", "selection-1", "selection-2"}),
        ("refit", 0, {"ridge", "attention", "selection-0", "selection-1", "selection-2", "calibration"}),
    ],
)
def test_a_run_killed_between_stages_ends_the_same(csv, whole, tmp_path, monkeypatch, function, calls, finished):
    real, seen = getattr(trainer, function), []

    def killed(*args, **keywords):
        seen.append(function)
        if len(seen) > calls:
            raise Kill
        return real(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, function, killed)
        with pytest.raises(Kill):
            train(ForecastRecipe(csv=str(csv), trees=False, **SMALL), out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "stages").iterdir()} == finished

    built = []
    monkeypatch.setattr(trainer, "build", lambda *args, real=trainer.build, **kw: built.append(1) or real(*args, **kw))
    resumed = train(resume=tmp_path / "run")
    # The ridge is never fitted again on the training rows; folds that were not finished fit theirs.
    assert len(built) == 3 - len([name for name in finished if name.startswith("selection")])
    pd.testing.assert_frame_equal(predict(resumed, plots=False), predict(whole, plots=False), check_exact=True)
    assert not (resumed.path / "stages").exists()


def test_stages_of_other_rows_or_another_recipe_do_not_count(csv, tmp_path, monkeypatch):
    recipe = ForecastRecipe(csv=str(csv), attention=False, trees=False, horizon=6)

    def killed(*_):
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "refit", lambda *args: killed())
        with pytest.raises(Kill):
            train(recipe, out=tmp_path / "run")
    csv_changed = tmp_path / "changed.csv"
    frame = pd.read_csv(csv)
    frame["a"] *= 2
    frame.to_csv(csv_changed, index=False)
    changed = ForecastRecipe(csv=str(csv_changed), attention=False, trees=False, horizon=6)
    resumed = train(changed, resume=tmp_path / "run")
    fresh = train(changed, out=tmp_path / "fresh")
    pd.testing.assert_frame_equal(predict(resumed, plots=False), predict(fresh, plots=False), check_exact=True)


@pytest.mark.parametrize("odd", ["folder", "stages"])
def test_a_file_where_a_stage_should_be_is_replaced(odd, tmp_path):
    recipe = ForecastRecipe(csv="sample")
    run = Run.create(tmp_path / "run", recipe, "forecast")
    run.begin()
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.date_range("2024", periods=2, freq="h"))
    place = run.path / "stages" / "ridge"
    if odd == "folder":
        place.parent.mkdir()
        place.write_text("no folder")
    else:
        place.mkdir(parents=True)
        (place / "facts.json").write_text("[]")
    calls = []
    for _ in range(2):
        stages = Stages(run, recipe, frame)
        assert stages.once("ridge", lambda: (None, {"made": calls.append(1)})) == (None, {"made": None})
    assert len(calls) == 1  # the second time it came from disk
    stages.clear()
    assert not (run.path / "stages").exists()
