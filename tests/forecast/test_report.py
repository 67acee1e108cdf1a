"""What a training says of itself, on the console and in its report."""

import re

import numpy as np
import pandas as pd
import pytest

from mha_apps.cli import _facts, _table, main
from mha_apps.forecast.report import components, glance, learned
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


def forecast_of(names, levels=(80, 95), steps=5):
    times = pd.date_range("2024-01-01", periods=steps, freq="h")
    table = pd.DataFrame({"unique_id": np.repeat(names, steps), "ds": [*times] * len(names), "median": 124_660.715})
    for level in levels:
        table[f"lo-{level}"], table[f"hi-{level}"] = table["median"] - level / 100, table["median"] + level / 50
    return table


def test_a_glance_at_a_forecast_has_a_line_for_every_sensor_and_says_how_many_more_there_are():
    what, times, *lines = glance(forecast_of(["a b", "c"]), 2).splitlines()
    assert what.startswith("median (and 80% interval) of each sensor")
    assert re.findall(r"\d\d:\d\d:00", times) == ["00:00:00", "02:00:00", "04:00:00"]
    assert [line.split("  ")[0] for line in lines] == ["a b", "c"]
    assert all(line.count("124660.7 (124659.9 to 124662.3)") == 3 for line in lines)
    *lines, more = glance(forecast_of([f"s{k}" for k in range(30)], steps=1), 20).splitlines()
    assert len(lines) == 2 + 20
    assert more == "... 10 more sensors"
    assert glance(forecast_of(["a"], levels=()), 20).splitlines()[-1].split() == ["a", *["124661"] * 3]


def test_no_number_is_a_minus_zero():
    table = forecast_of(["a"]).assign(**{"median": -0.0, "lo-80": -0.0, "hi-80": 0.0})
    assert "-0" not in glance(table, 20).splitlines()[-1]
    assert "-0" not in _facts({"skill": {"trees": -0.0, "ridge": -1e-300 / 1e300}}).text
    gains = {"gains": [-1e-9, 1e-9], "kept": False}
    assert components({"linear": {"reversion": gains}}).iloc[0, :2].tolist() == ["+0.00%"] * 2
    assert _table(pd.DataFrame({"a": [-0.0]}), None).text.split() == ["a", "0.0"]


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


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_a_gain_that_nothing_tells_of_is_a_dash(nothing):
    attention = {"kept": False, "relative_gain": nothing}
    linear = {"penalty": 1.0, "reversion": {"gains": [nothing, 0.01], "kept": False}}
    summary = {"plan": {"period": 24}, "linear": linear, "attention": attention}
    table = components(summary)
    assert table.loc["attention", "validation"] == "-"
    assert table.loc["return to the mean"].tolist()[-3:] == ["-", "+1.00%", "no"]
    assert "gains - on validation" in learned(summary)
