"""Every example runs, writes its picture, and comes to the conclusion that its docstring tells."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def conclusion(tmp_path, monkeypatch, capsys):
    """Runs an example by name: the numbers that ``main`` returns, after a look at what it printed and drew."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)

    def run(name: str, **options: Any) -> dict[str, float]:
        picture = tmp_path / f"{name}.png"
        numbers = importlib.import_module(name).main(out=picture, **options)
        printed = capsys.readouterr().out
        assert printed.rstrip().splitlines()[-1].endswith("."), "the last line is a sentence"
        assert Image.open(picture).width >= 800
        return numbers

    yield run
    for name in [path.stem for path in EXAMPLES.glob("*.py")]:
        sys.modules.pop(name, None)


def test_shapes_by_hand_are_those_of_the_module(conclusion):
    found = conclusion("shapes")
    assert found["difference"] < 1e-5
    assert found["one_head"] == found["eight_heads"] == 4 * (64 * 64 + 64)
    assert 0.64 < found["feed_forward_share"] < 0.68
    assert found["view_fails"] == 1
    assert found["misplaced"] > 0.9


@pytest.mark.slow
def test_one_head_leaves_half_of_two_relations_and_eight_find_both(conclusion):
    found = conclusion("one_head_or_many")
    assert found["sizes"] == 1
    assert found["one_best"] > 0.49
    assert found["eight_worst"] < 0.05
    assert found["two_best"] < 0.05


@pytest.mark.slow
def test_a_loss_below_the_entropy_of_the_source_gives_a_wrong_mask_away(conclusion):
    found = conclusion("masks")
    assert abs(found["right"] - found["entropy"]) < 0.1
    assert found["flipped"] < 0.2 * found["entropy"]
    assert found["zero"] < 0.7 * found["entropy"]
    assert found["flipped_honest"] > found["zero_honest"] > found["right"] + 0.5
    assert 0.3 < found["leak"] < 0.5
    assert found["leak_large"] == 0
    assert found["nothing_is_finite"] == found["plain_is_nan"] == 1


@pytest.mark.slow
def test_scores_that_are_not_divided_saturate_softmax_and_learn_more_slowly(conclusion):
    found = conclusion("scaling")
    assert 0.9 < found["variance_divided"] < 1.1
    assert 900 < found["variance"] < 1150
    assert found["largest"] > 0.9
    assert found["gradient_divided"] > 3 * found["gradient"]
    for size in (64, 256, 1024):
        assert found[f"end_{size}_divided"] < found[f"end_{size}_raw"] - 0.1


@pytest.mark.slow
def test_positions_that_act_on_distances_carry_beyond_the_trained_length(conclusion):
    found = conclusion("positions")
    assert found["without"] < 1e-5 < 0.1 < found["with"]
    assert found["linear"] < 1e-3
    for way in ("learned", "sinusoidal", "sinusoidal, every layer", "rotary", "relative"):
        assert found[f"trained_{way}"] > 0.9, way
    assert min(found["rotary"], found["relative"]) > 0.9
    assert max(found["sinusoidal"], found["sinusoidal, every layer"], found["ALiBi"], found["none"]) < 0.75


@pytest.mark.slow
def test_cross_attention_aligns_what_it_copies_and_a_cache_changes_no_character(conclusion):
    found = conclusion("alignment")
    assert found["exact"] > 0.8
    assert found["aligned"] > 0.5
    assert found["same"] == 1
    assert found["speed_long"] > found["speed_short"]


@pytest.mark.slow
def test_deep_post_norm_needs_warm_up_and_dropout_on_queries_and_keys_shifts_the_output(conclusion):
    found = conclusion("training_stability")
    assert found["gradient"] > 1.5
    assert max(found["pre_cold"], found["pre_warm"]) < 0.2
    assert found["post_cold"] > 1.5
    assert found["shift_queries and keys"] > 5 * max(found["shift_weights"], found["shift_output"])


def test_attention_memory_is_as_predicted(conclusion):
    found = conclusion("memory")
    assert found["explicit"] == pytest.approx(found["explicit_predicted"], rel=0.1)
    assert found["explicit"] > 3 * found["matrix"]
    assert max(found["fused"], found["window"], found["strided"]) < 0.1 * found["explicit"]
    assert found["explicit_growth"] > 3.5  # doubling the length
    assert found["window_growth"] < 2.5


@pytest.mark.slow
def test_one_head_is_missed_less_than_a_layer_of_them(conclusion):
    found = conclusion("heads")
    assert found["accuracy"] > 0.95
    assert found["harmless"] >= 0.5
    assert found["worst"] > found["accuracy"] - 0.1
    assert found["layer_gone"] < found["worst"] - 0.1


@pytest.mark.slow
def test_convolution_pays_with_little_data(conclusion):
    found = conclusion("little_data")
    assert found["cnn_few"] > found["stem_few"] > found["vit_few"]
    assert found["cnn_many"] - found["stem_many"] < found["cnn_few"] - found["stem_few"]


@pytest.mark.slow
def test_the_vit_learns_and_is_drawn(conclusion):
    assert conclusion("vit_cifar")["top1"] > 0.95


@pytest.mark.slow
def test_the_forecast_beats_the_naive_one_and_its_intervals_hold(conclusion):
    found = conclusion("forecast_sensor")
    assert found["gain"] > 0.1
    assert 0.7 < found["coverage"] < 0.9


@pytest.mark.slow
def test_cbam_starts_as_identity_and_trains_on(conclusion):
    found = conclusion("plug_cbam")
    assert found["same"] == 1
    assert found["after"] > found["before"] - 0.02


def test_the_core_takes_the_place_of_others_with_equal_outputs(conclusion):
    found = conclusion("core_elsewhere")
    assert found["replaced"] == 14
    assert found["difference"] < 1e-4


def test_every_example_has_a_test_a_picture_and_a_place_in_the_gallery():
    gallery = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    tests = Path(__file__).read_text(encoding="utf-8")
    names = [path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("_")]
    assert len(names) == 14
    for name in names:
        picture = EXAMPLES / "pictures" / f"{name}.png"
        assert picture.stat().st_size < 150_000, picture
        assert f"pictures/{name}.png" in gallery
        assert f"python examples/{name}.py" in gallery
        assert f'conclusion("{name}")' in tests
