"""What the tests of the training engine share."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def chaotic_days(tmp_path_factory) -> Path:
    """A CSV of days whose height follows the logistic map, so that the forecaster keeps its attention path."""
    rng = np.random.default_rng(0)
    height = np.empty(150)
    height[0] = 0.3
    for day in range(1, len(height)):
        height[day] = 3.95 * height[day - 1] * (1 - height[day - 1])
    values = np.outer(height, np.sin(np.pi * np.arange(24) / 24) ** 2).ravel()
    index = pd.date_range("2024-01-01", periods=len(values), freq="h")
    path = tmp_path_factory.mktemp("days") / "flow.csv"
    pd.DataFrame({"time": index, "flow": values + 0.02 * rng.normal(size=len(values))}).to_csv(path, index=False)
    return path
