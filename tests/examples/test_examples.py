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
