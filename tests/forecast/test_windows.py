"""Windows, scaling and the split into blocks."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from mha_apps.forecast.windows import Scaler, Windows, centre, split_rows

NAN = float("nan")


def naive_centre(window, trailing):
    seen = [value for value in window[-trailing:] if np.isfinite(value)]
    seen = seen or [value for value in window if np.isfinite(value)] or [0.0]
    level = sum(seen) / len(seen)
    return [value - level if np.isfinite(value) else 0.0 for value in window], level


@pytest.mark.parametrize(
    "window",
    [[1.0, 2.0, 3.0, 5.0], [1.0, NAN, 3.0, NAN], [4.0, 2.0, NAN, NAN], [NAN] * 4],
    ids=["complete", "a gap", "an empty trailing slice", "nothing observed"],
)
def test_a_window_is_centred_on_its_last_observed_values(window):
    past, mask, level = centre(torch.tensor(window), trailing=2)
    expected, expected_level = naive_centre(window, 2)
    assert past.tolist() == pytest.approx(expected)
    assert level.item() == pytest.approx(expected_level)
    assert mask.tolist() == [float(np.isfinite(value)) for value in window]


def test_windows_hold_the_rows_before_and_after_the_origin():
    values = np.arange(20.0).reshape(10, 2)
    windows = Windows(values, look_back=3, horizon=2)
    batch = windows.at(torch.tensor([1]), torch.tensor([4]))
    assert batch.past.tolist() == [[3.0, 5.0, 7.0]]
    assert batch.future.tolist() == [[9.0, 11.0]]


def test_rows_outside_the_table_are_missing():
    windows = Windows(np.arange(5.0)[:, None], look_back=3, horizon=2)
    first = windows.at(torch.tensor([0]), torch.tensor([1]))
    last = windows.at(torch.tensor([0]), torch.tensor([5]))
    assert torch.isnan(first.past[0, :2]).all()
    assert first.past[0, 2] == 0.0
    assert torch.isnan(last.future).all()
    assert last.past.tolist() == [[2.0, 3.0, 4.0]]


def test_chunks_visit_every_window_once():
    windows = Windows(np.random.default_rng(0).normal(size=(12, 3)), look_back=2, horizon=1)
    seen = [
        (int(s), int(o))
        for batch in windows.chunks(torch.arange(2, 11), size=4)
        for s, o in zip(batch.series, batch.origin, strict=True)
    ]
    assert sorted(seen) == [(s, o) for s in range(3) for o in range(2, 11)]


def test_the_scaler_leaves_missing_values_out_and_never_divides_by_zero():
    values = np.array([[1.0, 7.0, NAN], [NAN, 7.0, NAN], [3.0, 7.0, NAN]])
    scaler = Scaler.fit(values)
    assert scaler.mean.tolist() == [2.0, 7.0, 0.0]
    assert scaler.scale.tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(scaler.backward(scaler.forward(values)), values)


@pytest.mark.parametrize(("rows", "horizon"), [(1000, 48), (300, 48), (60, 10)])
def test_blocks_cover_all_rows_in_order_and_hold_a_whole_future(rows, horizon):
    blocks = split_rows(rows, 0.1, 0.1, 0.2, horizon=horizon)
    assert blocks[0][0] == 0
    assert blocks[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(blocks))
    assert all(end - start > horizon for start, end in blocks)
