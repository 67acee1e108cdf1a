"""Comparing gates: the statistics against scipy's, the words, and a small comparison from end to end."""

import json

import pytest
from scipy import stats

from mha_apps.cnn import CnnRecipe, compare
from mha_apps.cnn.compare import Difference, paired_difference, verdict
from mha_apps.errors import InputError

QUICK = CnnRecipe(model="resnet8", steps=4, device="cpu", precision="fp32")


def test_the_interval_and_p_value_are_those_of_the_paired_t_test():
    with_gate, without = [91.2, 90.7, 92.0, 91.1, 90.9], [90.8, 90.9, 91.1, 90.5, 90.6]
    found = paired_difference("se", with_gate, "none", without)
    reference = stats.ttest_rel(with_gate, without)
    interval = reference.confidence_interval(0.95)
    assert found.mean == pytest.approx(0.4)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(reference.pvalue)


def test_equal_differences_have_an_interval_of_no_width():
    assert paired_difference("se", [2.0, 3.0], "none", [1.0, 2.0]) == Difference("se", "none", 2, 1.0, 1.0, 1.0, 0.0)
    assert paired_difference("se", [2.0, 3.0], "none", [2.0, 3.0]).p == 1.0


def test_one_seed_tells_nothing():
    found = paired_difference("se", [2.0], "none", [1.0])
    assert (found.low, found.high, found.p) == (None, None, None)
    assert "proves nothing" in verdict([found])[0]


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
    assert "no more than chance" in sentences[2]
    assert "is real" in verdict([doubtful])[0]


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
    assert result["differences"][0]["mean"] == pytest.approx(result["scores"][0]["se"] - result["scores"][0]["none"])
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


def test_runs_of_another_recipe_are_not_mixed_in(comparison):
    other = CnnRecipe(model="resnet8", steps=5, device="cpu", precision="fp32")
    with pytest.raises(InputError, match="another recipe"):
        compare(other, gates=["none", "se"], seeds=1, out=comparison[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gates": ["none", "sea"]}, "--gates sea: is unknown"),
        ({"gates": ["none", "none"]}, "name at least two"),
        ({"seeds": 0}, "--seeds 0"),
        ({"rounds": 0}, "--rounds 0"),
        ({"recipe": CnnRecipe(minutes=1.0)}, "equal steps"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        compare(**({"recipe": QUICK, "out": tmp_path / "c"} | arguments))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["comparison.json", "report.html"])
def test_a_comparison_replaces_no_file_that_none_has_written(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=rf"{name}: no comparison wrote it; compare into another folder"):
        compare(QUICK, gates=["none", "se"], seeds=1, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"
