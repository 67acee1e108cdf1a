"""The public protocol, and how sure the gain over the ridge is."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from mha_apps.cli import main
from mha_apps.forecast import ForecastRecipe, benchmark
from mha_apps.forecast.benchmark import paired_gain


def pairs(rows, gain, noise=1.0, seed=0, together=1):
    """Squared errors, absolute errors and counts of two forecasts; ``together`` origins share what they gain."""
    rng = np.random.default_rng(seed)
    common = 1 + rng.exponential(size=rows)
    better = gain + noise * rng.normal(size=-(-rows // together)).repeat(together)[:rows]
    theirs = np.stack([common**2, common, np.ones(rows)], 1)
    ours = theirs * np.stack([1 - better, 1 - better, np.ones(rows)], 1)
    return torch.from_numpy(ours), torch.from_numpy(theirs)


def test_the_gain_is_the_share_of_the_error_that_is_gone():
    _, theirs = pairs(500, 0.0)
    ours = theirs * torch.tensor([0.81, 0.9, 1.0])
    found = paired_gain(ours, theirs, block=100)
    assert found["mse"] == pytest.approx({"gain": 0.19, "low": 0.19, "high": 0.19})
    assert found["mae"] == pytest.approx({"gain": 0.1, "low": 0.1, "high": 0.1})


def test_the_interval_holds_the_gain_about_as_often_as_it_says():
    inside = [
        found["low"] <= 0.05 <= found["high"]
        for seed in range(100)
        for found in [paired_gain(*pairs(600, 0.05, seed=seed, together=20), block=60)["mae"]]
    ]
    # Few blocks make a bootstrap a little too sure: ten blocks of what is 95% hold about 90%.
    assert 0.8 <= np.mean(inside) <= 1.0


def test_origins_that_share_their_gain_count_as_few():
    apart, shared = (paired_gain(*pairs(2000, 0.05, together=each), block=200)["mae"] for each in (1, 100))
    assert shared["high"] - shared["low"] > 4 * (apart["high"] - apart["low"])
    one_by_one = paired_gain(*pairs(2000, 0.05, together=100), block=1)["mae"]
    assert shared["high"] - shared["low"] > 4 * (one_by_one["high"] - one_by_one["low"])


def test_the_benchmark_scores_every_window_and_says_how_sure_its_gain_is(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    rows = np.arange(4 * 30 * 24)
    index = pd.date_range("2024-01-01", periods=len(rows), freq="h", name="time")
    daily = np.sin(2 * np.pi * rows / 24)
    frame = pd.DataFrame({name: daily + rng.normal(size=len(rows)) for name in "ab"}, index)
    recipe = ForecastRecipe(csv="", attention=False, trees=False)
    found = benchmark(frame, recipe=recipe, horizons=(12, 24), months=(2, 1, 1), trees=False)
    assert found["windows"] == {"12": 720 - 11, "24": 720 - 23}
    assert list(found["gain_over_ridge"]) == ["12", "24", "average"]
    for horizon in ("12", "24"):
        for error in ("mse", "mae"):
            gain = found["gain_over_ridge"][horizon][error]
            ratio = found["horizons"][horizon][error] / found["baselines"]["ridge"]["horizons"][horizon][error]
            assert gain["gain"] == pytest.approx(1 - ratio)
            assert gain["low"] <= gain["gain"] <= gain["high"]
    json.dumps(found, allow_nan=False)

    monkeypatch.setattr("mha_apps.forecast.benchmark", lambda *_, **__: found, raising=False)
    assert main(["forecast", "benchmark", "ignored.csv"]) == 0
    printed = capsys.readouterr().out
    assert "{" not in printed
    assert f"{found['average']['mse']:.4f}" in printed
    assert f"{found['gain_over_ridge']['average']['mse']['low']:+z.2%}" in printed
