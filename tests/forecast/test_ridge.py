"""The linear path against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from mha_apps.forecast import ridge
from mha_apps.forecast.windows import Windows, centre


@pytest.fixture
def series():
    rng = np.random.default_rng(0)
    time = np.arange(400)
    return np.stack([np.sin(time / 4), np.cos(time / 7)], 1) + 0.3 * rng.normal(size=(400, 2))


def design(windows, origins, trailing):
    batch = next(windows.chunks(origins, size=10**6))
    past, _, level = centre(batch.past.double(), trailing)
    return past.numpy(), (batch.future.double() - level).numpy()


def test_the_closed_form_is_ridge_regression(series):
    windows = Windows(series, look_back=12, horizon=5, dtype=torch.float64)
    origins = torch.arange(12, 380)
    moments = ridge.accumulate(windows, origins, trailing=4, chunk=100)
    inputs, targets = design(windows, origins, 4)
    alpha = 0.1 * np.trace(inputs.T @ inputs) / 12
    reference = Ridge(alpha=alpha, fit_intercept=False).fit(inputs, targets).coef_.T
    np.testing.assert_allclose(ridge.solve(moments, look_back=12, penalty=0.1), reference, rtol=1e-8, atol=1e-10)


def test_a_shorter_look_back_uses_the_last_steps_alone(series):
    windows = Windows(series, look_back=12, horizon=3, dtype=torch.float64)
    moments = ridge.accumulate(windows, torch.arange(12, 380), trailing=4)
    weights = ridge.solve(moments, look_back=5, penalty=0.1)
    assert (weights[:7] == 0).all()
    short = Windows(series, look_back=5, horizon=3, dtype=torch.float64)
    alone = ridge.solve(ridge.accumulate(short, torch.arange(12, 380), trailing=4), look_back=5, penalty=0.1)
    torch.testing.assert_close(weights[7:], alone)


def test_moments_of_parts_add_up_to_the_moments_of_the_whole(series):
    windows = Windows(series, look_back=8, horizon=3, dtype=torch.float64)
    whole = ridge.accumulate(windows, torch.arange(8, 300), trailing=4)
    parts = ridge.accumulate(windows, torch.arange(8, 100), trailing=4) + ridge.accumulate(
        windows, torch.arange(100, 300), trailing=4
    )
    torch.testing.assert_close(whole.gram, parts.gram)
    torch.testing.assert_close(whole.cross, parts.cross)


def test_missing_targets_are_left_out_per_step(series):
    holes = series.copy()
    holes[200] = np.nan
    windows = Windows(holes, look_back=6, horizon=2, dtype=torch.float64)
    moments = ridge.accumulate(windows, torch.arange(6, 398), trailing=6)
    observed = [
        sum(np.isfinite(holes[o + h, s]) for o in range(6, 398) for s in range(2) if _complete(holes, o, s))
        for h in range(2)
    ]
    assert moments.targets.tolist() == observed


def test_weights_shrink_to_the_mean_of_the_seasons_that_fit_in():
    moments = ridge.Moments(torch.eye(9).double(), torch.zeros(9, 5).double(), 1.0, torch.ones(5).double())
    pull = ridge.seasonal_pull(9, 5, 4, 0.6)
    weights = ridge.solve(moments, look_back=9, penalty=1e9, pull=pull)
    torch.testing.assert_close(weights, pull, atol=1e-8, rtol=0)
    # Step 0 has its phase 4 and 8 rows before the origin; the nearer season counts twice.
    assert weights[[9 - 4, 9 - 8], 0].tolist() == pytest.approx([0.4, 0.2])
    assert weights.sum(0).tolist() == pytest.approx([0.6] * 5)


def test_a_rank_keeps_the_patterns_in_which_the_fitted_forecasts_vary_most(series):
    windows = Windows(series, look_back=12, horizon=5, dtype=torch.float64)
    origins = torch.arange(12, 380)
    moments = ridge.accumulate(windows, origins, trailing=4)
    inputs, _ = design(windows, origins, 4)
    weights = ridge.solve(moments, look_back=12, penalty=1e-9, rank=2).numpy()
    full = ridge.solve(moments, look_back=12, penalty=1e-9).numpy()
    assert np.linalg.matrix_rank(weights, tol=1e-8) == 2
    # Of all maps of rank two, the one nearest to the targets: the best approximation of the fitted values.
    u, s, v = np.linalg.svd(inputs @ full, full_matrices=False)
    np.testing.assert_allclose(inputs @ weights, (u[:, :2] * s[:2]) @ v[:2], atol=1e-6)


def test_older_steps_are_penalised_more(series):
    windows = Windows(series, look_back=12, horizon=1, dtype=torch.float64)
    moments = ridge.accumulate(windows, torch.arange(12, 380), trailing=4)
    even, graded = (ridge.solve(moments, look_back=12, penalty=3.0, unit=unit).abs() for unit in (None, 1))
    assert graded[:6].sum() / graded.sum() < even[:6].sum() / even.sum()


def _complete(values, origin, series):
    return np.isfinite(values[origin - 6 : origin, series]).mean() >= ridge.OBSERVED


def test_a_linear_recurrence_is_forecast_exactly():
    values = np.empty(300)
    values[:2] = 0.3, 1.0
    for row in range(2, 300):
        values[row] = 2 * np.cos(0.4) * values[row - 1] - values[row - 2]
    windows = Windows(values[:, None], look_back=40, horizon=6, dtype=torch.float64)
    moments = ridge.accumulate(windows, torch.arange(40, 200), trailing=10)
    weights = ridge.solve(moments, look_back=40, penalty=1e-9)
    assert ridge.error(weights, windows, torch.arange(200, 290), trailing=10)[0] < 1e-10
