"""Schedules: where they start, peak and end, and the papers' formulas in between."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_apps.training.schedule import multiplier

KINDS = ("cosine", "inverse-sqrt", "constant")


@given(kind=st.sampled_from(KINDS), progress=st.floats(0, 1), warmup=st.floats(0, 0.99))
def test_every_schedule_is_a_factor_between_zero_and_one_everywhere(kind, progress, warmup):
    assert 0 <= multiplier(kind, progress, warmup) <= 1


@given(kind=st.sampled_from(KINDS), warmup=st.floats(0.01, 0.9))
def test_warm_up_rises_linearly_to_one(kind, warmup):
    assert multiplier(kind, warmup / 2, warmup) == pytest.approx(0.5)
    assert multiplier(kind, warmup, warmup) == pytest.approx(1)


def test_cosine_ends_at_zero_and_is_half_in_the_middle():
    assert multiplier("cosine", 1.0, 0.2) == pytest.approx(0, abs=1e-12)
    assert multiplier("cosine", 0.6, 0.2) == pytest.approx(0.5)


def test_inverse_sqrt_is_the_original_transformers_schedule_up_to_scale():
    total, warm, dim = 10_000, 400, 512

    def original(step):  # Vaswani et al. (2017), equation 3, defined from step 1
        return dim**-0.5 * min(step**-0.5, step * warm**-1.5)

    for step in (1, 100, 400, 401, 5_000, 10_000):
        ours = multiplier("inverse-sqrt", step / total, warm / total)
        assert ours == pytest.approx(original(step) / original(warm))
    assert multiplier("inverse-sqrt", 0.0, warm / total) == 0
    assert math.isfinite(multiplier("inverse-sqrt", 0.0, 0.0))
