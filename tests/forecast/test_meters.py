"""What a meter will read: sums of rises, and intervals that hold for the sums."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from mha_apps.forecast import Forecaster
from mha_apps.forecast.limits import increments
from mha_apps.forecast.meters import risen, since_origin, summed
from mha_apps.forecast.model import LEVELS
from mha_apps.forecast.windows import LONGEST_GAP, Scaler, Windows, spread


def a_meter_beside_a_sensor(mean=2.0, scale=3.0):
    """A model whose second series is a meter, and inputs of it alone, in the other order and with a stranger."""
    model = SimpleNamespace(series=["sensor", "meter"], meters=torch.tensor([False, True]))
    scaler = Scaler(np.array([mean, 7.0, 8.0]), np.array([scale, 0.5, 0.6]))
    return model, SimpleNamespace(identities=torch.tensor([2, 1, 0]), scaler=scaler)


def standardised(inputs, rises):
    """Rises ``(..., horizon, 6)`` of the meter as the model forecasts them, with two series that are none."""
    meter = (rises - inputs.scaler.mean[0]) / inputs.scaler.scale[0]
    return torch.from_numpy(np.stack([meter, rises + 1, rises + 2], -3))


def test_rises_that_are_normal_and_independent_add_up_to_what_their_sum_is():
    model, inputs = a_meter_beside_a_sensor()
    mean, deviation = np.array([5.0, 4.0, 6.0]), np.array([1.0, 0.5, 2.0])
    levels = np.array([0.5, *LEVELS])  # the mean of a normal rise is its median
    forecast = standardised(inputs, norm.ppf(levels, mean[:, None], deviation[:, None]))
    found = since_origin(model, inputs, forecast)
    ours = inputs.scaler.backward(found.numpy(), axis=0)[0]
    total = np.cumsum(mean)[:, None], np.sqrt(np.cumsum(deviation**2))[:, None]
    np.testing.assert_allclose(ours, norm.ppf(levels, *total), rtol=1e-9)
    assert torch.equal(found[1:], forecast[1:])


def test_the_first_step_is_the_rise_itself_and_a_skewed_sum_has_its_median_below_its_mean():
    model, inputs = a_meter_beside_a_sensor()
    draw = np.random.default_rng(0).gamma(2.0, 1.5, (200_000, 6))
    row = np.array([draw[:, 0].mean(), *np.quantile(draw[:, 0], LEVELS)])
    forecast = standardised(inputs, np.repeat(row[None], 6, 0))
    ours = inputs.scaler.backward(since_origin(model, inputs, forecast).numpy(), axis=0)[0]
    np.testing.assert_allclose(ours[0], row, rtol=1e-9)
    sums = draw.cumsum(1)
    np.testing.assert_allclose(ours[:, 0], sums.mean(0), rtol=0.01)
    np.testing.assert_allclose(ours[:, 3], np.median(sums, 0), rtol=0.02)


def test_a_row_that_is_not_known_is_left_out_of_both_sums():
    model, inputs = a_meter_beside_a_sensor()
    rises = np.array([1.0, np.nan, 4.0])
    target = standardised(inputs, rises[:, None])[..., 0]
    come = inputs.scaler.backward(risen(model, inputs, target).numpy(), axis=0)[0]
    np.testing.assert_allclose(come, [1.0, np.nan, 5.0])
    forecast = standardised(inputs, np.outer([1.0, 2.0, 3.0], [1.0, 0.2, 0.5, 1.0, 1.5, 1.8]))
    some = since_origin(model, inputs, forecast, torch.isfinite(target))
    short = since_origin(model, inputs, forecast[:, [0, 2]])
    torch.testing.assert_close(some[0, [0, 2]], short[0])


def test_windows_of_a_meter_know_what_readings_tell_of_rows_before_them_once_they_are_there():
    rng = np.random.default_rng(0)
    total = rng.gamma(2.0, size=60).cumsum()
    some = pd.DataFrame({"m": total, "t": total}, pd.date_range("2024-01-01", periods=60, freq="30min"))
    some[np.append([False, False], rng.random(58) < 0.6)] = np.nan
    rises = increments(some, ["m"])["m"]
    read = np.flatnonzero(some["m"].notna())
    values = np.stack([rises, some["t"]], 1)
    windows = Windows(values, look_back=60, horizon=12, dtype=torch.float64, means=np.array([True, False]))
    origins = torch.arange(61)
    past, future = windows.every_series(origins)
    at = windows.at(torch.zeros_like(origins), origins)
    measured = windows.measured(future, origins)
    for origin in range(61):
        held = past[origin, 0, 60 - origin :].numpy()
        before = read[read < origin]
        known = before[-1] if len(before) else 0
        assert np.isnan(held[known + 1 :]).all()  # what was read later is in no window
        assert held[1 : known + 1].sum() == pytest.approx(total[known] - total[0])
        after = read[(read >= origin) & (read < origin + 12)]
        assert np.flatnonzero(np.isfinite(measured[origin, 0])).tolist() == [row - origin for row in after if row > 0]
        if len(after) and origin in read + 1:  # sums since a reading are those of the readings
            come = summed(future[origin, 0]).numpy()[after - origin]
            np.testing.assert_allclose(come, total[after] - total[origin - 1])
        torch.testing.assert_close(at.past[origin], past[origin, 0], equal_nan=True)
        plain = np.concatenate([np.full(60, np.nan), some["t"]])[origin : origin + 60]
        np.testing.assert_array_equal(past[origin, 1].numpy(), plain)


def test_a_rise_tells_of_no_row_of_a_gap_that_is_too_long():
    rises = torch.full((2, LONGEST_GAP + 3), torch.nan)
    rises[:, 0] = 1.0
    rises[0, LONGEST_GAP], rises[1, LONGEST_GAP + 1] = 2.0, 2.0
    assert torch.isnan(spread(rises[:, 1:])[:, 0]).all()
    found = spread(rises)
    assert (found[0, 1 : LONGEST_GAP + 1] == 2).all()
    torch.testing.assert_close(found[1], rises[1], equal_nan=True)
    assert torch.isnan(found[:, -1]).all()


def household(rows, meters, rng):
    """Rises of meters whose level wanders for days, so that errors of the rows go together, by day and by night."""
    level = np.zeros((rows, meters))
    steps = rng.normal(size=(rows, meters)) * 0.4 * np.sqrt(1 - 0.97**2)
    for row in range(1, rows):
        level[row] = 0.97 * level[row - 1] + steps[row]
    daily = 2 + 1.5 * np.sin(2 * np.pi * np.arange(rows) / 24)[:, None]
    return daily * np.exp(level) * rng.gamma(8, 1 / 8, (rows, meters))


@pytest.mark.parametrize("missing", [0.0, 0.03])
def test_intervals_of_readings_hold_in_every_quarter_of_the_horizon(missing):
    rng = np.random.default_rng(3)
    rows, fresh, meters, horizon = 2600, 1500, 4, 24
    index = pd.date_range("2024-01-01", periods=rows + fresh, freq="h")
    truth = pd.DataFrame(household(len(index), meters, rng).cumsum(0), index, [f"m{k}" for k in range(meters)])
    given = truth.mask(rng.random(truth.shape) < missing)
    given.iloc[-1] = truth.iloc[-1]
    fitted = Forecaster(
        horizon=horizon, attention=False, trees=False, channels=False, counter=tuple(truth.columns)
    ).fit(given.iloc[:rows])
    inside = {80: [], 95: []}
    for origin in range(rows + 200, rows + fresh - horizon, 31):  # at every hour of the day
        past = given.iloc[origin - 250 : origin].copy()
        past.iloc[-1] = truth.iloc[origin - 1]
        table = fitted.predict(past)
        came = truth.iloc[origin : origin + horizon].to_numpy().T
        bounds = [
            table[name].to_numpy().reshape(meters, horizon) for name in ("lo-95", "lo-80", "median", "hi-80", "hi-95")
        ]
        assert (np.diff(bounds, axis=-1) >= 0).all()
        assert (np.diff(bounds, axis=0) >= 0).all()
        assert (bounds[0] >= truth.iloc[origin - 1].to_numpy()[:, None]).all()
        inside[80].append((came >= bounds[1]) & (came <= bounds[3]))
        inside[95].append((came >= bounds[0]) & (came <= bounds[4]))
    for level, hits in inside.items():
        quarters = np.array_split(np.array(hits), 4, axis=-1)
        # 40 origins of 4 meters, whose steps go together: the standard error of a quarter is about 3 and 2 points.
        assert [each.mean() for each in quarters] == pytest.approx([level / 100] * 4, abs=0.08 if level == 80 else 0.05)


def test_a_backtest_holds_readings_against_intervals_and_rises_against_baselines():
    rng = np.random.default_rng(5)
    index = pd.date_range("2024-01-01", periods=1500, freq="h")
    frame = pd.DataFrame(household(1500, 2, rng).cumsum(0), index, ["a", "b"])
    flags = {"horizon": 12, "attention": False, "trees": False}
    meters, rises = Forecaster(**flags, counter=("a", "b")).fit(frame), increments(frame, ["a", "b"])
    found, single = meters.backtest(), Forecaster(**flags, min=("0",)).fit(rises).backtest()
    assert found.metrics["mae"] == pytest.approx(single.metrics["mae"], rel=1e-6)
    assert found.metrics["skill"] == pytest.approx(single.metrics["skill"], abs=1e-5)
    # Errors go together, so a sum errs by more than the root of its steps (2.4 on average), and less than their number.
    ratio = found.series["width 80%"] / single.series["width 80%"]
    assert ((ratio > 2.4) & (ratio < 6)).all()
