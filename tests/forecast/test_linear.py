"""The linear path as a whole: its choice of penalty, and the correction across channels."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

from mha_apps.forecast import cross, ridge
from mha_apps.forecast.linear import (
    LinearPath,
    Shape,
    fit_linear,
    fit_rounds,
    refit_linear,
    rounds_of,
    solve_mean,
    whole,
)
from mha_apps.forecast.plan import make_plan
from mha_apps.forecast.recipe import ForecastRecipe
from mha_apps.forecast.selection import judge, rolling_folds
from mha_apps.forecast.windows import Scaler, Windows, centre

LOOK_BACK, HORIZON = 24, 4


def led(rows=900, lag=5, seed=0):
    """Two channels: the second follows the first ``lag`` rows later, and is otherwise unpredictable."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=rows)
    second = np.roll(first, lag) + 0.1 * rng.normal(size=rows)
    return np.stack([first, second], 1)


def plan_for(values, **changes):
    frame = pd.DataFrame(values, index=pd.date_range("2024", periods=len(values), freq="h"))
    recipe = ForecastRecipe(csv="x", horizon=HORIZON, look_back=LOOK_BACK, **changes)
    plan = make_plan(frame, recipe)
    scaled = Scaler.fit(values[: plan.train[1]]).forward(values[: plan.test[0]])
    return Windows(scaled, look_back=plan.look_back, horizon=HORIZON), plan


def test_summaries_are_means_over_stretches_that_double():
    past = torch.arange(12.0)[None]
    mask = torch.ones_like(past)
    mask[0, 11] = 0
    stretches = [[], [9, 10], [6, 7, 8], [0, 1, 2, 3, 4, 5]]
    expected = [np.mean(stretch) if stretch else 0.0 for stretch in stretches]
    assert cross.summarise(past * mask, mask)[0].tolist() == pytest.approx(expected)


def test_the_correction_is_ridge_regression_on_the_residuals_of_the_base():
    values = led(300)
    windows = Windows(values, look_back=LOOK_BACK, horizon=HORIZON)
    base = torch.from_numpy(np.random.default_rng(1).normal(size=(LOOK_BACK, HORIZON)) * 0.1)
    origins = torch.arange(30, 290)
    found = cross.solve(cross.accumulate(windows, base, origins, trailing=6), channels=2, penalty=0.5)

    past, future = windows.every_series(origins)
    z, mask, level = centre(past.double(), 6)
    features = cross.summarise(z, mask).flatten(1).numpy()
    residual = (future - level - z @ base).flatten(1).numpy()
    centred = features - features.mean(0)
    alpha = 0.5 * (centred**2).sum() / features.shape[1]
    reference = Ridge(alpha=alpha).fit(features, residual)
    np.testing.assert_allclose(found.weights.flatten(1), reference.coef_.T, atol=1e-5)


def test_a_channel_that_leads_another_is_found_and_used():
    windows, plan = plan_for(led())
    path, facts = fit_linear(windows, plan, channels=True)
    alone, _ = fit_linear(windows, plan, channels=False)
    assert facts["cross"][0]["kept"]
    past, future = windows.every_series(whole(plan.calibration, HORIZON))
    z, mask, level = centre(past.double(), plan.trailing)

    def error(of):
        return float((of.forecast(z, mask, level) + level - future)[:, 1].square().mean())

    assert error(path) < 0.7 * error(alone)


def test_channels_that_say_nothing_about_each_other_are_left_alone():
    windows, plan = plan_for(np.random.default_rng(3).normal(size=(900, 3)))
    path, facts = fit_linear(windows, plan, channels=True)
    assert not any(block["kept"] for block in facts["cross"])
    assert path.cross is None


def test_each_block_of_the_horizon_is_decided_by_its_own_gains():
    values = led(rows=1500)
    frame = pd.DataFrame(values, index=pd.date_range("2024", periods=1500, freq="h"))
    plan = make_plan(frame, ForecastRecipe(csv="x", horizon=24, look_back=LOOK_BACK))
    scaled = Scaler.fit(values[: plan.train[1]]).forward(values[: plan.test[0]])
    path, facts = fit_linear(Windows(scaled, look_back=plan.look_back, horizon=24), plan, channels=True)
    assert [block["steps"] for block in facts["cross"]] == [[1, 6], [7, 12], [13, 24]]
    # The other channel is known five steps ahead: that is worth a lot in the first block, and nothing after it.
    assert [block["mean"] > 0.1 for block in facts["cross"]] == [True, False, False]
    for block in facts["cross"]:
        first, last = block["steps"]
        assert bool((path.cross.weights[..., first - 1 : last] != 0).any()) is block["kept"]


def test_the_penalty_with_the_smallest_error_over_all_folds_is_kept():
    windows, plan = plan_for(led())
    _, facts = fit_linear(windows, plan, channels=False, penalties=(0.01, 100.0))
    errors = {trial["penalty"]: trial["score"] for trial in facts["trials"]}
    assert errors[facts["penalty"]] == min(errors.values())


def test_the_moments_of_the_whole_training_block_are_used_once_each():
    windows, plan = plan_for(led())
    path, facts = fit_linear(windows, plan, channels=False)
    moments = ridge.accumulate(windows, whole(plan.train, HORIZON), trailing=plan.trailing)
    shape = Shape(facts["penalty"], facts["share"], facts["rank"])
    torch.testing.assert_close(path.weights, solve_mean(moments, plan, shape))


def test_refitting_on_the_same_rows_gives_the_same_path():
    windows, plan = plan_for(led())
    path, facts = fit_linear(windows, plan, channels=True)
    again = refit_linear(windows, plan, facts)
    for name, tensor in path.tensors().items():
        torch.testing.assert_close(again.tensors()[name], tensor)


def test_the_path_of_each_round_is_the_one_fitted_on_its_rows_alone(monkeypatch):
    # Without a reversion: each round measures it from the mean of its own rows, a fit alone from the scaler's.
    monkeypatch.setattr("mha_apps.forecast.linear.REVERSION", 1e12)
    windows, plan = plan_for(led())
    paths, facts = fit_rounds(windows, plan, channels=True)
    rounds = rounds_of(plan, windows.horizon)
    assert len(paths) == len(rounds) == 4
    assert any(block["kept"] for block in facts["cross"])
    assert not facts["reversion"]["kept"]
    for path, (train, _) in zip(paths, rounds, strict=True):
        alone = refit_linear(windows, replace(plan, train=train), facts)
        for name, tensor in path.tensors().items():
            torch.testing.assert_close(alone.tensors()[name], tensor)


def returning(rows=1500, seed=0):
    """A slow return to the mean, under noise that hides it from any difference of the last day."""
    rng = np.random.default_rng(seed)
    slow = np.zeros(rows)
    for row in range(1, rows):
        slow[row] = 0.97 * slow[row - 1] + rng.normal()
    return slow[:, None]


def test_a_series_that_returns_to_its_mean_is_forecast_to_do_so():
    values = returning()
    frame = pd.DataFrame(values, index=pd.date_range("2024", periods=len(values), freq="h"))
    plan = make_plan(frame, ForecastRecipe(csv="x", horizon=24, look_back=LOOK_BACK))
    scaled = Scaler.fit(values[: plan.train[1]]).forward(values[: plan.test[0]])
    path, facts = fit_linear(Windows(scaled, look_back=plan.look_back, horizon=24), plan, channels=True)
    assert facts["reversion"]["kept"]
    assert path.reversion[-1] < path.reversion[0] < 0
    assert torch.equal(LinearPath.from_tensors(path.tensors()).reversion, path.reversion)
    with pytest.raises(ValueError, match="level"):
        path.forecast(torch.zeros(1, 1, plan.look_back).double(), torch.ones(1, 1, plan.look_back).double())


def test_a_random_walk_is_not_forecast_to_return():
    values = np.cumsum(np.random.default_rng(5).normal(size=(1500, 4)), axis=0)
    windows, plan = plan_for(values)
    path, _ = fit_linear(windows, plan, channels=False)
    assert path.reversion is None


def test_a_path_is_the_same_after_saving():
    windows, plan = plan_for(led())
    path, _ = fit_linear(windows, plan, channels=True)
    again = LinearPath.from_tensors(path.tensors())
    past, _ = windows.every_series(torch.tensor([300]))
    z, mask, level = centre(past.double(), plan.trailing)
    assert torch.equal(again.forecast(z, mask, level), path.forecast(z, mask, level))


def test_folds_train_before_they_score_and_follow_each_other():
    folds = rolling_folds((0, 1000), folds=3, horizon=48)
    assert len(folds) == 3
    assert folds[0][0] == (0, 500)
    assert folds[-1][1][1] == 1000
    assert all(train == (0, scored[0]) for train, scored in folds)
    assert rolling_folds((0, 200), folds=3, horizon=48) == [((0, 100), (100, 150)), ((0, 150), (150, 200))]
    assert rolling_folds((0, 60), folds=3, horizon=48) == []


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ([0.02, 0.03, 0.025, 0.02], True),
        ([-0.01, -0.01, -0.01, 0.2], False),  # most folds disagree
        ([0.1, -0.09, 0.1, -0.08], False),  # the gain is within its error
        ([0.5], False),  # one fold proves nothing
        ([], False),
    ],
)
def test_a_component_is_kept_only_if_its_gain_repeats(gains, kept):
    assert judge(gains).kept is kept
