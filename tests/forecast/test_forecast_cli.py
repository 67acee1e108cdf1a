"""The forecast verbs as they are typed: what may be left out, what is replaced, and what a number counts in."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.cli import main


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("forecast inspect", "CSV..."),
        ("forecast train", "CSV"),
        ("forecast predict", "RUN [CSV]"),
        ("forecast backtest", "RUN [CSV]"),
        ("forecast score", "CSV RUN"),
        ("forecast benchmark", "CSV"),
        ("vit explain", "RUN IMAGES..."),
        ("vit train", ""),
        ("cnn plug", "MODEL"),
    ],
)
def test_the_usage_shows_what_may_be_left_out(words, usage, capsys):
    assert main([*words.split(), "--help"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"usage: mha-apps {words} [OPTIONS] {usage}".rstrip()
    assert second == ""


def write(rows=240):
    time = pd.date_range("2024-01-01", periods=rows, freq="h").astype(str)
    noise = np.random.default_rng(0).normal(size=rows)
    values = {"time": time, "power": 500 + 50 * np.sin(np.arange(rows) * np.pi / 12) + 9 * noise}
    pd.DataFrame(values).to_csv("plant.csv", index=False)


def test_an_inspection_replaces_no_picture_but_its_own_unless_it_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write()
    picture = Path("plant-series.png")
    for _ in range(2):
        assert main(["forecast", "inspect", "plant.csv"]) == 0
    picture.write_bytes(b"mine")
    capsys.readouterr()
    assert main(["forecast", "inspect", "plant.csv"]) == 0
    told = capsys.readouterr()
    assert "plant-series.png: no inspection drew it, so it is kept and none is drawn; name another" in told.err
    assert "240 rows" in told.out
    assert picture.read_bytes() == b"mine"
    assert main(["forecast", "inspect", "plant.csv", "--plot", "plant-series.png"]) == 0
    assert picture.read_bytes() != b"mine"


def test_errors_are_told_with_what_they_count_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write()
    small = ["--horizon", "4", "--steps", "1", "--dim", "8", "--layers", "1", "--no-trees"]
    assert main(["forecast", "train", "plant.csv", *small, "--out", "run"]) == 0
    assert "validation mae of standardised values" in capsys.readouterr().err
    assert main(["forecast", "backtest", "run", "--no-trees"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Errors are in deviations of each sensor")
    assert "those by series are in its own unit" in told
