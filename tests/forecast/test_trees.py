"""The tree baseline."""

import numpy as np
import pandas as pd
import torch

from mha_apps.forecast.baselines import last_value, seasonal_naive
from mha_apps.forecast.inputs import Inputs
from mha_apps.forecast.linear import LinearPath
from mha_apps.forecast.trees import Trees
from mha_apps.forecast.windows import Scaler, Windows


def inputs_of(values, look_back=48, horizon=6):
    return Inputs(
        Windows(values, look_back=look_back, horizon=horizon),
        pd.date_range("2024", periods=len(values), freq="h"),
        linear=LinearPath(torch.zeros(look_back, horizon, dtype=torch.float64)),
        scaler=Scaler.fit(values),
        patch=6,
        trailing=24,
        cycles=["hour"],
    )


def test_trees_learn_a_rule_that_repeating_the_past_does_not():
    rng = np.random.default_rng(0)
    time = np.arange(1500)
    weekly = np.where((time // 24) % 2 == 0, 1.0, -1.0) * np.sin(2 * np.pi * time / 24)
    values = np.stack([weekly + 0.1 * rng.normal(size=1500), 0.1 * rng.normal(size=1500)], 1)
    values[200:210] = np.nan
    inputs = inputs_of(values)
    trees = Trees(period=24, trailing=24).fit(inputs, torch.arange(60, 1200))
    origins = torch.arange(1250, 1490)
    past, future = inputs.windows.every_series(origins)
    error = (trees.forecast(inputs, origins) - future).abs().mean()
    assert error < 0.5 * (seasonal_naive(past, 6, 24) - future).abs().mean()
    assert error < 0.5 * (last_value(past, 6) - future).abs().mean()


def test_the_features_of_a_step_come_from_before_the_origin():
    values = np.random.default_rng(1).normal(size=(300, 1))
    trees = Trees(period=24, trailing=24).fit(inputs_of(values), torch.arange(60, 200))
    changed = values.copy()
    changed[250:] += 100
    origin = torch.tensor([250])
    assert torch.equal(trees.forecast(inputs_of(values), origin), trees.forecast(inputs_of(changed), origin))
