"""Intervals: scores, calibration and adaptation."""

import pytest
import torch

from mha_apps.forecast.conformal import MISS, Calibration, bounds, scores


def forecasts(*shape, width=1.0):
    """Standard intervals around zero, ``width`` times as wide as they should be for unit normal errors."""
    quantiles = torch.tensor([0.0, -1.96, -1.2816, 0.0, 1.2816, 1.96], dtype=torch.float64)
    return (quantiles * width).expand(*shape, 6).clone()


def coverage(calibrated, target, low=2, high=4):
    known = torch.isfinite(target)
    inside = (target >= calibrated[..., low]) & (target <= calibrated[..., high])
    return float(inside[known].double().mean())


@pytest.mark.parametrize("width", [0.3, 3.0])
def test_calibration_mends_intervals_that_are_too_narrow_or_too_wide(width):
    torch.manual_seed(0)
    target = torch.randn(3000, 2, 4, dtype=torch.float64)
    calibration = Calibration.fit(scores(forecasts(3000, 2, 4, width=width), target))
    fresh = torch.randn(3000, 2, 4, dtype=torch.float64)
    calibrated = calibration.apply(forecasts(3000, 2, 4, width=width))
    # 24,000 outcomes: the standard error of the coverage is 0.003, that of the calibration about as large.
    assert coverage(calibrated, fresh) == pytest.approx(0.80, abs=0.02)
    assert coverage(calibrated, fresh, 1, 5) == pytest.approx(0.95, abs=0.015)


def test_the_correction_is_the_finite_sample_quantile_of_the_scores():
    target = torch.arange(1.0, 400.0, dtype=torch.float64).reshape(-1, 1, 1) / 100
    forecast = forecasts(399, 1, 1)
    score = scores(forecast, target)
    calibration = Calibration.fit(score)
    ordered = sorted(score[:, 0, 0, 2].tolist())
    assert calibration.offset[0, 0, 2].item() == pytest.approx(ordered[359])  # ceil(400 * 0.9) = 360th


def test_bounds_stay_nested_and_around_the_median_whatever_the_offset():
    offset = torch.tensor([-9.0, 0.5, -9.0, 2.0], dtype=torch.float64)
    moved = bounds(forecasts(3), offset)[..., 1:]
    assert (moved.diff(dim=-1) >= 0).all()


def test_intervals_follow_a_series_that_becomes_noisier():
    torch.manual_seed(1)
    calm = torch.randn(600, 1, 3, dtype=torch.float64)
    calibration = Calibration.fit(scores(forecasts(600, 1, 3), calm), rate=0.05)
    fixed = Calibration(calibration.offset.clone(), calibration.pace.clone())
    noisy = 2.5 * torch.randn(4000, 1, 3, dtype=torch.float64)
    followed = calibration.follow(forecasts(4000, 1, 3), noisy)
    assert coverage(fixed.apply(forecasts(4000, 1, 3)), noisy) < 0.5
    assert coverage(followed[500:], noisy[500:]) == pytest.approx(0.80, abs=0.03)


def test_an_origin_knows_only_what_came_before_it():
    torch.manual_seed(2)
    target = torch.randn(50, 1, 5, dtype=torch.float64)
    start = Calibration.fit(scores(forecasts(300, 1, 5), torch.randn(300, 1, 5, dtype=torch.float64)))

    def follow(truth):
        return Calibration(start.offset.clone(), start.pace.clone()).follow(forecasts(50, 1, 5), truth)

    changed = target.clone()
    for origin in range(50):
        for step in range(5):
            if origin + step >= 30:  # truths from row 30 on
                changed[origin, 0, step] = 100.0
    assert torch.equal(follow(target)[:31], follow(changed)[:31])
    assert not torch.equal(follow(target)[31], follow(changed)[31])


def test_a_series_without_scores_borrows_those_of_the_others():
    torch.manual_seed(3)
    target = torch.randn(300, 2, 2, dtype=torch.float64)
    target[:, 1] = torch.nan
    calibration = Calibration.fit(scores(forecasts(300, 2, 2, width=0.5), target))
    assert torch.isfinite(calibration.offset).all()
    assert calibration.offset[1, 0, 2].item() == pytest.approx(calibration.offset[0, :, 2].mean().item(), abs=0.3)


def test_no_scores_at_all_leave_the_intervals_as_they_are():
    nothing = torch.full((5, 1, 2, 4), torch.nan, dtype=torch.float64)
    forecast = forecasts(1, 1, 2)
    assert torch.equal(Calibration.fit(nothing).apply(forecast), forecast)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_each_outcome_is_learned_once_however_many_rows_come_at_a_time(size):
    torch.manual_seed(3)
    rows, horizon = 60, 6
    target = torch.randn(rows + 2 * horizon, 1, horizon, dtype=torch.float64)
    zeros = torch.zeros(1, horizon, 4, dtype=torch.float64)
    calibration = Calibration(zeros.clone(), 1e-9 * torch.ones_like(zeros))  # so slow that it matters not when
    for start in range(horizon, horizon + rows, size):
        end = min(start + size, horizon + rows)
        origins = slice(start - horizon, end + 1)
        calibration.follow(forecasts(end + 1 - start + horizon, 1, horizon), target[origins], new=end - start)
    expected = torch.zeros_like(zeros)
    for row in range(horizon, horizon + rows):
        for step in range(horizon):
            score = scores(forecasts(1), target[row - step, :, step])[0]
            expected[0, step] += 1e-9 * ((score > 0).double() - MISS)
    torch.testing.assert_close(calibration.offset, expected, rtol=1e-9, atol=1e-18)
