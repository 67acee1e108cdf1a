"""The simple forecasts against loops."""

import numpy as np
import pytest
import torch

from mha_apps.forecast.baselines import last_value, seasonal_naive

NAN = float("nan")


def naive_season(past, horizon, period):
    answer = []
    for step in range(horizon):
        place = len(past) - period + step % period
        while place >= 0 and not np.isfinite(past[place]):
            place -= period
        observed = [value for value in past if np.isfinite(value)]
        answer.append(past[place] if place >= 0 else (observed[-1] if observed else NAN))
    return answer


@pytest.mark.parametrize("period", [1, 3, 4])
@pytest.mark.parametrize("holes", [[], [9, 10], [6, 7, 8, 9, 10], [2, 5, 8, 11]])
def test_seasonal_naive_repeats_the_latest_observed_season(period, holes):
    past = torch.arange(12.0) ** 2
    past[holes] = NAN
    expected = naive_season(past.tolist(), 7, period)
    assert seasonal_naive(past, 7, period).tolist() == expected


def test_last_value_skips_what_is_missing():
    past = torch.tensor([[1.0, 2.0, NAN], [NAN, NAN, NAN]])
    answer = last_value(past, 2)
    assert answer[0].tolist() == [2.0, 2.0]
    assert torch.isnan(answer[1]).all()
