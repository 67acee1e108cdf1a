"""Comparing gates: the statistics against scipy's, the words, and a small comparison from end to end."""

import importlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from mha_apps.cnn import CnnRecipe, compare
from mha_apps.cnn.compare import Difference, paired_difference, trained, verdict
from mha_apps.errors import InputError

compare_module = importlib.import_module("mha_apps.cnn.compare")  # the package has a function of that name
QUICK = CnnRecipe(model="resnet8", steps=4, device="cpu", precision="fp32")


def test_the_interval_and_p_value_are_those_of_the_paired_t_test():
    with_gate, without = [0.912, 0.907, 0.920, 0.911, 0.909], [0.908, 0.909, 0.911, 0.905, 0.906]
    found = paired_difference("se", with_gate, "none", without)
    reference = stats.ttest_rel(with_gate, without)
    interval = reference.confidence_interval(0.95)
    assert found.mean == pytest.approx(0.4)
    assert (found.low, found.high) == pytest.approx((100 * interval.low, 100 * interval.high))
    assert found.p == pytest.approx(reference.pvalue)


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("gap", [0.0, 0.002, -0.1])
def test_one_seed_and_differences_without_spread_tell_nothing(seeds, gap):
    without = [0.6 + 0.01 * seed for seed in range(seeds)]
    found = paired_difference("se", [score + gap for score in without], "none", without)
    assert found.mean == pytest.approx(100 * gap)
    assert (found.low, found.high, found.p) == (None, None, None)
    assert "nothing can be told" in verdict([found])[0]


def test_the_words_follow_the_p_value_and_the_number_of_gates():
    real = Difference("se", "none", 5, 0.5, 0.3, 0.7, 0.001)
    doubtful = Difference("eca", "none", 5, 0.5, 0.01, 0.99, 0.04)
    chance = Difference("cbam", "none", 5, -0.1, -0.5, 0.3, 0.6)
    sentences = verdict([real, doubtful, chance])
    assert (
        sentences[0]
        == "se: 0.50 points better than none (95% interval +0.30 to +0.70, 5 seeds). The difference is real."
    )
    assert "may be real, but among 3 gates" in sentences[1]
    assert "0.10 points worse than none" in sentences[2]
    assert (
        "cannot tell from chance. A gain of more than 0.30 points or a loss of more than 0.50 is unlikely."
        in sentences[2]
    )
    assert "is real" in verdict([doubtful])[0]
    wild = Difference("se", "none", 2, 30.0, -224.0, 284.0, 0.4)
    assert "A gain of more than 100.00 points or a loss of more than 100.00" in verdict([wild])[0]
    assert "se: as good as none" in verdict([Difference("se", "none", 2, 0.0, None, None, None)])[0]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "c"
    return folder, compare(QUICK, gates=["none", "se"], seeds=1, out=folder, rounds=1)


def test_a_comparison_trains_all_in_equal_steps_and_counts_their_costs(comparison):
    folder, result = comparison
    assert [row["gate"] for row in result["table"]] == ["none", "se"]
    none, se = result["table"]
    assert none["parameters"] < se["parameters"]
    assert none["macs"] < se["macs"]
    assert (none["train_ratio"], none["inference_ratio"]) == (1.0, 1.0)
    assert result["differences"][0]["mean"] == pytest.approx(
        100 * (result["scores"][0]["se"] - result["scores"][0]["none"])
    )
    assert (result["split"], result["budget"]) == ("test", "4 steps")
    assert json.loads((folder / "comparison.json").read_text()) == result
    assert (folder / "report.html").read_text().count("data:image/png") == 1


def test_a_comparison_goes_on_where_it_was(comparison):
    folder, result = comparison
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}
    assert len(written) == 2
    more = compare(QUICK, gates=["none", "se"], seeds=2, out=folder, rounds=1)
    assert [row["seed"] for row in more["scores"]] == [0, 1]
    assert more["scores"][0] == result["scores"][0]
    assert more["table"][0]["top1_sd"] is not None
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())


def test_runs_of_another_recipe_are_not_mixed_in_and_nothing_is_trained_before(comparison):
    folder, _ = comparison
    other = CnnRecipe(model="resnet8", steps=5, device="cpu", precision="fp32")
    with pytest.raises(InputError, match=r"se-0: holds a run of another recipe \(steps 4, not 5\)"):
        compare(other, gates=["eca", "se"], seeds=1, out=folder, rounds=1)
    with pytest.raises(InputError, match="another recipe"):
        trained(other, folder / "none-0")
    assert not (folder / "eca-0").exists()


def test_data_without_a_test_split_and_other_images_are_refused_before_anything_is_trained(tmp_path):
    def images(split, count, shade):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = np.full((16, 16, 3), shade + number, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{number}.png")

    recipe = replace(QUICK, steps=1, batch_size=4, data=str(tmp_path / "data"))
    for split in ("train", "val"):
        images(split, 4, 10)
    with pytest.raises(InputError, match="test"):
        compare(recipe, gates=["none", "se"], seeds=1, out=tmp_path / "c", rounds=1)
    assert not (tmp_path / "c").exists()
    images("test", 4, 10)
    compare(recipe, gates=["none", "se"], seeds=1, out=tmp_path / "c", rounds=1)
    shutil.rmtree(tmp_path / "c" / "se-0")
    images("train", 4, 90)
    with pytest.raises(InputError, match="none-0: was trained on other images"):
        compare(recipe, gates=["none", "se"], seeds=1, out=tmp_path / "c", rounds=1)
    assert not (tmp_path / "c" / "se-0").exists()


def test_a_comparison_that_is_stopped_says_how_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_module, "train", raising(KeyboardInterrupt("continue with --resume")))
    with pytest.raises(KeyboardInterrupt, match=f"stopped; the same command goes on in {tmp_path}"):
        compare(QUICK, gates=["none", "se"], seeds=1, out=tmp_path, rounds=1)


def raising(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_a_comparison_of_fewer_gates_or_seeds_does_not_replace_one_of_more(comparison):
    folder, _ = comparison
    told = (folder / "comparison.json").read_bytes()
    with pytest.raises(InputError, match=r"compares se-0.* too, which would be left out"):
        compare(QUICK, gates=["none", "eca"], seeds=2, out=folder, rounds=1)
    assert (folder / "comparison.json").read_bytes() == told
    assert not (folder / "eca-0").exists()


def test_a_run_that_was_stopped_is_brought_to_its_end(tmp_path, monkeypatch):
    whole = trained(QUICK, tmp_path / "whole")

    def stopped(task, recipe, run):
        run.begin()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(importlib.import_module("mha_apps.cnn.train"), "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            trained(QUICK, tmp_path / "stopped")
    again = trained(replace(QUICK, checkpoint_minutes=1.0), tmp_path / "stopped")
    weights = [run.model_dir / "model.safetensors" for run in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gates": ["none", "sea"]}, "--gates sea: is unknown"),
        ({"gates": ["none", "none"]}, "name at least two"),
        ({"seeds": 0}, "--seeds 0"),
        ({"rounds": 0}, "--rounds 0"),
        ({"recipe": CnnRecipe(minutes=1.0)}, "equal steps"),
        ({"recipe": CnnRecipe(patience=1)}, "equal steps"),
        ({"recipe": CnnRecipe(model="resnet8", steps=4, seed=2**32 - 1), "seeds": 2}, "--seed 4294967296"),
        ({"recipe": CnnRecipe(data="nowhere", steps=4)}, "nowhere: no such file or folder"),
        ({"recipe": CnnRecipe(model="resnet8", steps=4, image_size=1)}, "in a pass of 1x1 pixels; give it a larger"),
        ({"recipe": CnnRecipe(model="resnet8", steps=4, where="layer9")}, "layer9.*matches no module"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        compare(**({"recipe": QUICK, "out": tmp_path / "c"} | arguments))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["comparison.json", "report.html"])
@pytest.mark.parametrize("content", ["mine", "{}", "[]", '{"scores": [1]}'])
def test_a_comparison_replaces_no_file_that_none_has_written(tmp_path, name, content, comparison):
    shutil.copytree(comparison[0] / "none-0", tmp_path / "none-0")  # a run alone is no comparison
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: no comparison wrote it; compare into another folder"):
        compare(QUICK, gates=["none", "se"], seeds=1, out=tmp_path)
    assert (tmp_path / name).read_text() == content
    assert {path.name for path in tmp_path.iterdir()} == {name, "none-0"}


@pytest.mark.parametrize("taken", ["c", "c/se-0", "c/se-0/notes.txt"])
def test_a_place_that_something_else_has_is_refused_before_anything_is_trained(tmp_path, taken):
    path = tmp_path / taken
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(InputError, match=r"is a file; name|holds no run"):
        compare(QUICK, gates=["none", "se"], seeds=1, out=tmp_path / "c")
    assert path.read_text() == "mine"
    assert not (tmp_path / "c" / "none-0").exists()
