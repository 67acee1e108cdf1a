"""What a training says of itself, on the console and in its report."""

import re

import numpy as np
import pandas as pd
import pytest

from mha_apps.cli import main
from mha_apps.forecast.report import components, learned
from mha_apps.training import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant")
    rng = np.random.default_rng(0)
    daily = np.sin(2 * np.pi * np.arange(300) / 24)
    index = pd.date_range("2024-01-01", periods=300, freq="h", name="time")
    pd.DataFrame({"a": daily + rng.normal(size=300), "b": rng.normal(size=300)}, index).to_csv(folder / "plant.csv")
    return folder


def test_training_prints_a_summary_and_no_raw_structures(trained, capsys):
    words = ["forecast", "train", str(trained / "plant.csv"), "--horizon", "6", "--no-attention", "--no-trees"]
    assert main([*words, "--out", str(trained / "run")]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"[{}\[\]]", printed)
    assert "2 series" in printed
    assert "takes part" in printed
    assert f"report: {trained / 'run' / 'report.html'}" in printed
    assert max(map(len, printed.splitlines())) <= 160


def test_the_report_holds_the_recipe(trained):
    page = (trained / "run" / "report.html").read_text()
    recipe = Run.open(trained / "run").config["recipe"]
    assert "<h2>Recipe</h2>" in page
    for name in recipe:
        assert name.replace("_", " ") in page.split("<h2>Recipe</h2>")[1]


@pytest.mark.parametrize("gain", [-0.0003, 0.0123])
@pytest.mark.parametrize("kept", [False, True])
def test_a_gain_has_one_sign_wherever_it_is_told(trained, gain, kept):
    summary = Run.open(trained / "run").summary()
    summary["attention"] = {"kept": kept, "relative_gain": gain, "weight": 0.5}
    row = components(summary).loc["attention"]
    assert row["validation"] == f"{gain:+.2%}"
    assert f"gains {gain:+.2%} on validation" in learned(summary)
