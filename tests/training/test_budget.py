"""Budgets: steps are counted; minutes cover start-up before and closing after, and leave some for later."""

import importlib
import time

import pytest

from mha_apps.cnn import CnnRecipe, train
from mha_apps.errors import InputError
from mha_apps.training import budget as module
from mha_apps.training.budget import SPARE, Budget
from mha_apps.training.clock import counting_from, seconds_counted


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "seconds_counted", lambda: 12.0)
    return clock


@pytest.mark.parametrize(("unit", "limit"), [("epochs", 30), ("steps", 3)])
def test_epochs_and_steps_are_counted_whatever_the_clock_says(clock, unit, limit):
    budget = Budget(unit, 3, epoch_steps=10)
    clock.now += 1e6
    assert [budget.used(step) for step in (0, limit // 3, limit)] == [0, 1 / 3, 1]
    assert budget.validation_examples(50_000, 1e9) == 50_000


def test_minutes_begin_with_the_work_and_end_where_closing_does(clock):
    budget = Budget("minutes", 2, epoch_steps=10)
    assert budget.seconds == 12
    with budget.closes("report"):
        clock.now += 8
    assert budget.seconds == 20
    last = 120 - 8 - SPARE * 120
    assert budget.used(0) == pytest.approx(20 / last)
    clock.now += last - 20
    assert budget.used(0) == 1
    assert budget.seconds + 8 == pytest.approx(120, rel=0.02)


def test_the_work_begins_where_the_outermost_says_and_without_one_with_the_training():
    assert seconds_counted() == 0
    with counting_from(time.time() - 100):
        assert 100 <= seconds_counted() < 110
        with counting_from():
            assert 100 <= seconds_counted() < 110
        assert 100 <= seconds_counted() < 110
    with counting_from():
        assert 0 <= seconds_counted() < 10
    assert seconds_counted() == 0


def test_in_python_minutes_begin_with_the_call_and_not_with_a_process_that_runs_for_long(tmp_path, monkeypatch):
    seen = []
    module = importlib.import_module("mha_apps.cnn.train")  # the package has a function of that name
    monkeypatch.setattr(module, "fit", lambda *task: seen.append(seconds_counted()))
    begun = time.time()
    train(CnnRecipe(model="resnet8", gate="none", device="cpu"), out=tmp_path / "run")
    assert 0 < seen[0] <= time.time() - begun


def test_a_part_that_takes_longer_the_next_time_counts_with_the_new_time(clock):
    budget = Budget("minutes", 2, epoch_steps=10)
    for seconds in (1, 4):
        with budget.closes("validation"):
            clock.now += seconds
    assert sum(budget.closing.values()) == 4


def test_an_application_that_goes_on_afterwards_keeps_its_share_of_what_start_up_left(clock):
    budget = Budget("minutes", 2, epoch_steps=10, later_seconds=20, later_share=0.75)
    left = 120 - 12 - 20 - SPARE * 120
    assert budget.usable == pytest.approx(12 + left / 4)
    clock.now += 10  # is not start-up
    assert budget.usable == pytest.approx(12 + left / 4)
    assert Budget("minutes", 0.1, epoch_steps=10, later_share=0.75).usable <= 6  # start-up took more


def test_a_resumed_run_is_charged_what_its_checkpoint_says(clock):
    budget = Budget("minutes", 2, epoch_steps=10)
    budget.resume(30)
    clock.now += 5
    assert budget.seconds == 12 + 30 + 5


def test_a_validation_takes_a_twentieth_of_the_minutes_at_most(clock):
    budget = Budget("minutes", 10, epoch_steps=10)
    assert budget.validation_examples(50_000, 0.03) == 1000
    assert budget.validation_examples(500, 0.03) == 500
    assert budget.validation_examples(50_000, 1.0) == module.LEAST_VALIDATION


def test_minutes_in_which_nothing_can_be_trained_are_refused_with_how_many_are_needed(clock):
    budget = Budget("minutes", 0.25, epoch_steps=10)
    with budget.closes("validation"):
        clock.now += 20
    assert budget.used(0) == 1
    assert isinstance(budget.refusal(), InputError)
    assert "take 52 seconds here" in str(budget.refusal())


def test_the_time_left_is_that_of_the_steps_to_come():
    budget = Budget("steps", 10, epoch_steps=5)
    budget.resume(60.0)
    assert budget.seconds_left(1) == pytest.approx(540, rel=0.01)
    assert budget.seconds_left(6) == pytest.approx(40, rel=0.01)
    assert budget.seconds_left(10) == 0
