"""The loop: what it learns, how it stops, and that a resumed run is the run."""

import json
import math
import os
import signal

import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file
from torch import nn

from mha_apps.errors import InputError
from mha_apps.training import Interrupted, Run, Task, TrainingRecipe, fit, seed_everything, uniform

EXAMPLES, VALIDATION = 100, 37


class Small(nn.Module, PyTorchModelHubMixin):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def make_task(width=16, seed=0, on_batch=None, loss_factor=1.0):
    x = torch.randn(EXAMPLES + VALIDATION, 4, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])
    seed_everything(seed)

    def batch(indices, epoch):
        if on_batch:
            on_batch(indices, epoch)
        return x[indices] + 0.01 * uniform(seed, epoch, indices, 0, 4), y[indices]

    return Task(
        model=Small(width),
        examples=EXAMPLES,
        batch=batch,
        loss=lambda model, b: loss_factor * nn.functional.mse_loss(model(b[0]), b[1]),
        validation_examples=VALIDATION,
        evaluate=lambda model, i: {"loss": (model(x[EXAMPLES:][i]) - y[EXAMPLES:][i]) ** 2},
    )


def recipe(**fields):
    defaults = {"epochs": 3, "batch_size": 16, "learning_rate": 0.02, "ema": 0.9, "device": "cpu", "precision": "fp32"}
    return TrainingRecipe(**(defaults | fields))


def run_all(tmp_path, name, **fields):
    made = recipe(**fields)
    run = Run.create(tmp_path / name, made, "vit")
    summary = fit(make_task(seed=made.seed), made, run)
    return run, summary


def weights(run):
    return load_file(run.model_dir / "model.safetensors")


def last_state(run):
    from mha_apps.training import checkpoint

    return checkpoint.load(run.last_dir)[0]


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else True


def test_it_learns_a_linear_target_and_fills_the_run_folder(tmp_path):
    run, summary = run_all(tmp_path, "run", epochs=60)
    assert summary["validation_loss"] < 0.5  # the target's variance is 5.25
    assert summary["steps"] == 60 * (EXAMPLES // 16)
    assert {path.name for path in run.path.iterdir()} >= {
        "config.toml",
        "metrics.jsonl",
        "model",
        "last",
        "summary.json",
    }
    assert Run.open(run.path).recipe(TrainingRecipe) == recipe(epochs=60)
    best = min(record["loss"] for record in run.metrics() if record["phase"] == "validation")
    assert summary["validation_loss"] == best
    again = Small.from_pretrained(run.model_dir)
    assert same(again.state_dict(), weights(run))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    first, _ = run_all(tmp_path, "a", seed=1)
    second, _ = run_all(tmp_path, "b", seed=1)
    third, _ = run_all(tmp_path, "c", seed=2)
    assert same(weights(first), weights(second))
    assert not same(weights(first), weights(third))


@pytest.mark.parametrize("at", [1, 7, 12])
@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_run_that_was_stopped_continues_to_the_same_bits(tmp_path, at, how):
    """A signal saves at once; after a kill the last periodic checkpoint is taken up."""
    made = recipe(checkpoint_minutes=1e-9)  # a checkpoint at every step
    whole = Run.create(tmp_path / "whole", made, "vit")
    fit(make_task(), made, whole)

    class Killed(Exception):
        pass

    calls = []

    def stop(indices, epoch):
        calls.append(epoch)
        if len(calls) == at + 1:
            if how == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGINT)

    run = Run.create(tmp_path / "stopped", made, "vit")
    with pytest.raises(Interrupted if how == "signal" else Killed):
        fit(make_task(on_batch=stop), made, run)
    fit(make_task(), made, Run.open(run.path))
    assert same(last_state(whole), last_state(run))
    assert same(weights(whole), weights(run))
    steps = [record["step"] for record in run.metrics() if record["phase"] == "validation"]
    assert steps == [record["step"] for record in whole.metrics() if record["phase"] == "validation"]


def test_each_example_is_seen_once_an_epoch_up_to_the_last_partial_batch(tmp_path):
    seen: dict[int, list[int]] = {}
    task = make_task(on_batch=lambda indices, epoch: seen.setdefault(epoch, []).extend(indices.tolist()))
    made = recipe(epochs=2)
    fit(task, made, Run.create(tmp_path / "run", made, "vit"))
    for epoch in (0, 1):
        assert len(seen[epoch]) == len(set(seen[epoch])) == EXAMPLES // 16 * 16
    assert seen[0] != seen[1]


def test_validation_averages_over_each_example_once(tmp_path):
    task = make_task()
    made = recipe(epochs=1, ema=0.0)
    run = Run.create(tmp_path / "run", made, "vit")
    summary = fit(task, made, run)
    expected = task.evaluate(task.model, torch.arange(VALIDATION))["loss"].double().mean().item()
    assert summary["validation_loss"] == pytest.approx(expected, rel=1e-6)


def test_accumulating_gives_the_gradient_of_the_whole_batch(tmp_path):
    class Plain(Small):
        def __init__(self) -> None:
            super().__init__()
            self.net[2] = nn.Identity()  # dropout would draw differently

    states = []
    for pieces in (1, 4):
        task = make_task()
        seed_everything(0)
        task.model = Plain()
        made = recipe(epochs=1, accumulate=pieces)
        run = Run.create(tmp_path / str(pieces), made, "vit")
        fit(task, made, run)
        states.append(last_state(run)["model"])
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-4, atol=1e-6)


class Clock:
    """A clock on which each look takes a tenth of a second, so that nothing depends on the machine."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 0.1
        return self.now


def test_a_budget_in_minutes_covers_start_up_and_closing_and_adds_up_over_resumes(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("mha_apps.training.budget.time", clock)
    monkeypatch.setattr("mha_apps.training.budget.seconds_counted", lambda: 10.0)  # start-up took ten seconds
    made = recipe(epochs=None, minutes=1.0)
    run = Run.create(tmp_path / "run", made, "vit")
    summary = fit(make_task(), made, run)
    assert 50 < clock.now + 10 <= 60
    assert summary["seconds"] == pytest.approx(clock.now + 10, abs=0.5)
    rates = [record["learning_rate"] for record in run.metrics() if record["phase"] == "train"]
    assert all(0 < rate <= made.learning_rate for rate in rates)
    resumed = fit(make_task(), made, run)
    assert resumed["steps"] == summary["steps"] > 0  # the budget was used up, so nothing more is trained


def test_a_loss_that_is_not_finite_stops_with_what_was_seen(tmp_path):
    made = recipe()
    run = Run.create(tmp_path / "run", made, "vit")
    with pytest.raises(InputError) as error:
        fit(make_task(loss_factor=math.inf), made, run)
    assert "the loss is inf at step 0" in str(error.value)
    assert "learning rate" in str(error.value)


def test_a_checkpoint_of_another_architecture_is_refused_in_one_line(tmp_path):
    run, _ = run_all(tmp_path, "run")
    before = sorted(path.name for path in run.last_dir.iterdir())
    with pytest.raises(InputError, match="does not fit this model"):
        fit(make_task(width=8), recipe(), run)
    assert sorted(path.name for path in run.last_dir.iterdir()) == before


def test_patience_stops_a_run_that_no_longer_improves(tmp_path):
    _, summary = run_all(tmp_path, "run", epochs=500, patience=2, learning_rate=0.1)
    assert summary["epochs"] < 500


def test_what_is_refused_late_leaves_the_run_that_force_would_replace(tmp_path):
    run, summary = run_all(tmp_path, "run", epochs=1)
    made = recipe(optimizer="adamm")
    with pytest.raises(InputError, match="--optimizer adamm"):
        fit(make_task(), made, Run.create(run.path, made, "vit", force=True))
    assert Run.open(run.path).summary() == summary
    with pytest.raises(InputError, match="--optimizer adamm"):
        fit(make_task(), made, Run.create(tmp_path / "new", made, "vit"))
    assert not (tmp_path / "new").exists()


def test_weights_that_are_not_finite_are_never_a_success(tmp_path):
    made = recipe(steps=1, epochs=None, optimizer="sgd", learning_rate=1e30, clip=0.0, ema=0.0, warmup=0.0)
    with pytest.raises(InputError, match=r"validation loss is (nan|inf) at step 1"):
        fit(make_task(), made, Run.create(tmp_path / "run", made, "vit"))
    assert not (tmp_path / "run" / "model").exists()


def test_a_run_is_never_overwritten_without_force(tmp_path):
    run, _ = run_all(tmp_path, "run", epochs=1)
    with pytest.raises(InputError, match="--force"):
        Run.create(run.path, recipe(), "vit")
    again = Run.create(run.path, recipe(), "vit", force=True)
    assert run.metrics() != []  # what is there goes when the new run begins, not when it is prepared
    again.begin()
    assert run.metrics() == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds no run"):
        Run.create(other, recipe(), "vit", force=True)
    assert (other / "thesis.txt").read_text() == "precious"


def test_what_a_kill_leaves_of_a_runs_first_file_is_no_obstacle(tmp_path, monkeypatch):
    def killed(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("mha_apps.training.files.os.replace", killed)
    monkeypatch.setattr("mha_apps.training.files.Path.unlink", lambda *path, **options: None)  # as a kill would not
    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "run", recipe(), "vit").begin()
    monkeypatch.undo()
    assert [path.suffix for path in (tmp_path / "run").iterdir()] == [".tmp"]
    Run.create(tmp_path / "run", recipe(), "vit").begin()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


def test_the_summary_that_says_a_run_has_ended_is_written_last(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(Run, "write_summary", lambda run, summary: ended.append((run.path / "report.html").exists()))
    run_all(tmp_path, "run", epochs=1)
    assert ended == [True]


def test_a_run_of_another_kind_or_no_run_is_refused(tmp_path):
    run, _ = run_all(tmp_path, "run", epochs=1)
    with pytest.raises(InputError, match="is a run of `vit`, not of `cnn`"):
        Run.open(run.path, "cnn")
    with pytest.raises(InputError, match="holds no run"):
        Run.open(tmp_path)


def test_a_run_can_be_moved(tmp_path):
    run, summary = run_all(tmp_path, "run", epochs=1)
    moved = run.path.rename(tmp_path / "moved")
    assert Run.open(moved).summary() == json.loads(json.dumps(summary))


def test_minutes_that_start_up_uses_up_are_refused_and_leave_nothing(tmp_path):
    made = recipe(epochs=None, minutes=1e-6)
    run = Run.create(tmp_path / "run", made, "vit")
    with pytest.raises(InputError, match=r"nothing is left to train in; give [0-9]+ minutes or more"):
        fit(make_task(), made, run)
    assert list(tmp_path.iterdir()) == []
