"""What ``benchmarks/forecast.py`` compares and makes up: the windows, the truths, the series, and who is left out."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "forecast.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("forecast_benchmarks", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hourly(rows, columns=2, seed=0):
    rng = np.random.default_rng(seed)
    index = pd.date_range("2016-07-01", periods=rows, freq="h", name="date")
    daily = np.sin(2 * np.pi * np.arange(rows) / 24)[:, None]
    values = 5 + daily + rng.normal(size=(rows, columns))
    return pd.DataFrame(values, index, [f"s{number}" for number in range(columns)])


def test_every_test_window_of_the_protocol_is_there_in_units_of_the_training_rows(bench):
    frame = hourly(15_000)
    scaled, rows = bench.protocol(frame)
    assert rows == {"train": 8640, "validation": 2880, "test": 2880}
    assert len(scaled) == 14_400
    np.testing.assert_allclose(scaled.iloc[:8640].std(ddof=0), 1.0)
    ahead, before = bench.truths(scaled, rows, 96)
    assert ahead.shape == before.shape == (2785, 2, 96)
    np.testing.assert_array_equal(ahead[7, 1], scaled["s1"].iloc[11_527 : 11_527 + 96])
    np.testing.assert_array_equal(before[7, 1], scaled["s1"].iloc[11_526])
    np.testing.assert_array_equal(ahead[-1, 0, -1], scaled["s0"].iloc[-1])


def test_one_forecast_is_scored_by_both_errors(bench):
    truth = np.zeros((2, 1, 2))
    forecast = np.array([[[1.0, -1.0]], [[3.0, 3.0]]], dtype=np.float32)
    assert bench.errors(forecast, truth) == {"mse": 5.0, "mae": 2.0}


def test_the_weekly_series_repeats_after_a_week_and_leaves_room_above_the_naive_forecast(bench):
    table = torch.from_numpy(bench.weekly(20_000))
    repeats = {lag: np.corrcoef(table[:-lag], table[lag:])[0, 1] for lag in (24, 168)}
    assert repeats[168] > 0.7
    assert abs(repeats[24]) < 0.2
    # Two noises of the same size, or what is left of one: a ratio of at least the square root of two.
    assert bench.naive_week(table) > 1.4 * bench.known_week(20_000)


def test_a_path_learns_the_week_from_a_look_back_that_holds_one(bench, monkeypatch):
    monkeypatch.setattr(bench, "NOISE", 0.05)
    monkeypatch.setattr(bench, "STEPS", 150)
    table = torch.from_numpy(bench.weekly(4000)).float()
    day, week = (bench.worth(table, look_back, 7) for look_back in (24, 168))
    assert week < 0.8 * day


def test_the_made_up_series_hold_what_a_linear_model_cannot_have(bench):
    frames = dict(bench.made_up(rows=4800))
    assert list(frames) == ["linear", "product", "wandering", "thermostat", "chaotic"]
    days = frames["product"]["s0"].to_numpy().reshape(-1, 24)
    shape = np.linalg.svd(days, full_matrices=False)[2][0]
    signs = np.sign(days @ shape)
    signs *= np.sign((signs[2:] * signs[1:-1] * signs[:-2]).mean())  # the shape is known up to its sign
    assert (signs[2:] == signs[1:-1] * signs[:-2]).mean() > 0.9
    assert frames["thermostat"].stack().between(17, 23).mean() > 0.99
    crossings = np.diff(np.sign(np.convolve(frames["wandering"]["s0"], np.ones(5), "same"))) != 0
    cycles = crossings.reshape(-1)[: 240 * 19].reshape(19, 240).sum(1)  # in stretches of ten days
    assert cycles.max() > 1.4 * cycles.min()
    heights = frames["chaotic"]["s0"].to_numpy().reshape(-1, 24).mean(1)
    assert np.corrcoef(heights[:-1], heights[1:])[0, 1] ** 2 < 0.2
    parabola = np.polyval(np.polyfit(heights[:-1], heights[1:], 2), heights[:-1])
    assert np.corrcoef(parabola, heights[1:])[0, 1] ** 2 > 0.8


@pytest.mark.slow
def test_peers_that_are_not_installed_are_named_and_ours_is_scored(bench, tmp_path, capsys, monkeypatch):
    file = tmp_path / "two.csv"
    hourly(14_400).to_csv(file)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    words = ["peers", str(file), "--no-attention", "--no-trees", "--horizons", "24", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["forecast.py", *words])
    bench.main()
    printed = capsys.readouterr().out
    assert all(f"{name} is left out" in printed for name in bench.PEERS)
    assert "{'24': 2857}" in printed
    table = printed[printed.index("MSE 24") :]
    assert [line.split()[0] for line in table.splitlines()[2:6]] == [
        "mha_apps",
        "ridge",
        "seasonal_naive",
        "last_value",
    ]
