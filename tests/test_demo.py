"""The demo, with budgets cut to a few steps: what it writes, and what it leaves alone."""

import json
import re
from functools import partial

import pytest

from mha_apps import forecast
from mha_apps.cli import main
from mha_apps.cnn import CnnRecipe
from mha_apps.forecast import ForecastRecipe
from mha_apps.vision import VitRecipe


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        for recipe in (VitRecipe, CnnRecipe, ForecastRecipe):
            patch.setattr(recipe, "default_budget", ("steps", 3))
        patch.setattr(forecast, "ForecastRecipe", partial(ForecastRecipe, look_back=48))
        assert main(["demo", "--out", str(out), "--json"]) == 0
    return out


def test_the_report_is_self_contained_and_shows_every_part(made):
    page = (made / "report.html").read_text(encoding="utf-8")
    assert re.findall("<h2>(vision|forecast|cnn)", page) == ["vision", "forecast", "cnn"]
    # curves for each of three, a confusion matrix, attention, four instruments, gates
    assert page.count("data:image/png;base64,") == 10
    assert not re.search(r'(src|href)="(?!data:)', page)
    for words in (
        "names",
        "test digits rightly",
        "less than the seasonal naive forecast",
        "80% intervals",
        "CBAM gates",
    ):
        assert words in page


def test_a_demo_is_replaced_with_force_only_and_other_folders_never(made, tmp_path, capsys):
    assert main(["demo", "--out", str(made)]) == 2
    assert "--force" in capsys.readouterr().err
    (tmp_path / "thesis.txt").write_text("precious")
    assert main(["demo", "--out", str(tmp_path), "--force"]) == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_the_demo_reaches_what_it_promises(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["vit"]["top1"] >= 0.97
    assert answer["cnn"]["top1"] >= 0.97
    assert answer["forecast"]["mae"] < answer["forecast"]["baselines"]["seasonal_naive"]
