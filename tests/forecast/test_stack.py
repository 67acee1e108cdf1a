"""The blend: what gets weight, and how much."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from mha_apps.forecast import Forecaster
from mha_apps.forecast.stack import convex_weights
from mha_apps.forecast.trees import Table


def brute_force(gram, cross, steps=200):
    """The best of a fine grid over the triangle."""
    grid = np.arange(steps + 1) / steps
    pairs = np.array([(a, b) for a in grid for b in grid if a + b <= 1 + 1e-12])
    values = np.einsum("nk,kl,nl->n", pairs, gram, pairs) - 2 * pairs @ cross
    return pairs[values.argmin()], values.min()


@pytest.mark.parametrize("seed", range(12))
def test_convex_weights_are_the_best_of_all_that_are_allowed(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 2))
    gram, cross = root.T @ root, rng.normal(size=2)
    found = convex_weights(gram, cross)
    _, least = brute_force(gram, cross)
    assert found.min() >= 0
    assert found.sum() <= 1 + 1e-9
    assert found @ gram @ found - 2 * found @ cross <= least + 1e-9
    assert convex_weights(gram, cross, [1])[0] == 0


def test_a_component_that_says_the_same_as_another_does_no_harm():
    found = convex_weights(np.ones((2, 2)), np.array([0.4, 0.4]))
    assert found.sum() == pytest.approx(0.4, abs=1e-6)


def test_trees_as_tensors_predict_what_the_library_predicts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:, 3] = np.round(x[:, 3])  # ties with the thresholds
    y = np.nan_to_num(x[:, 0]) * np.isnan(x[:, 1]) + np.nan_to_num(x[:, 3]) ** 2
    model = HistGradientBoostingRegressor(max_iter=30, max_depth=5).fit(x, y)
    x[:20] = np.nan
    np.testing.assert_allclose(Table.of(model).predict(torch.from_numpy(x)), model.predict(x), rtol=0, atol=1e-12)


def switching(rows=1500, seed=0):
    """A machine whose next hours depend on a threshold of the last one: nothing for a linear model."""
    rng = np.random.default_rng(seed)
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = (-0.9 if abs(values[row - 1]) > 0.5 else 1.6) * values[row - 1] + 0.1 * rng.normal()
    return pd.DataFrame({"machine": values}, index=pd.date_range("2024", periods=rows, freq="h"))


@pytest.fixture(scope="module")
def switched():
    return Forecaster(horizon=3, look_back=12, attention=False).fit(switching())


def test_trees_get_weight_where_folds_confirm_that_they_help(switched):
    found = switched.facts_["blend"]["trees"]
    assert found["kept"]
    assert found["weight"] > 0.5
    assert len(found["gains"]) == 4
    metrics = switched.backtest().metrics
    assert metrics["skill"]["linear"] > 0.1
    assert metrics["mae"] == pytest.approx(metrics["baselines"]["trees"], rel=0.1)


def test_a_blend_is_the_same_to_the_bit_after_saving(switched, tmp_path):
    loaded = Forecaster.load(switched.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(loaded.predict(), switched.predict(), check_exact=True)


def test_a_series_that_training_did_not_know_is_blended_by_what_all_series_say(switched):
    blend = switched.model_.artifacts["blend"]
    # With one series all say what it says, but for the shrinkage of the series to itself.
    torch.testing.assert_close(blend[0], blend[1])
    frame = switching(600, seed=1)
    table = switched.predict(frame.rename(columns={"machine": "other"}))
    assert np.isfinite(table["mean"]).all()
    shifted = switched.predict(frame + 100.0)  # a known series keeps its own scale
    assert not np.allclose(table["mean"], shifted["mean"] - 100.0)


def test_what_is_linear_is_left_to_the_linear_path_almost_alone():
    rng = np.random.default_rng(4)
    time = np.arange(1200)
    wave = np.sin(2 * np.pi * time / 24) + 0.5 * np.sin(2 * np.pi * time / 37.3)
    frame = pd.DataFrame({"a": wave + 0.1 * rng.normal(size=1200)}, index=pd.date_range("2024", periods=1200, freq="h"))
    forecaster = Forecaster(horizon=4, look_back=72, attention=False).fit(frame)
    found = forecaster.facts_["blend"]
    assert not found["seasonal_naive"]["kept"]
    assert found["trees"].get("weight", 0.0) < 0.25
