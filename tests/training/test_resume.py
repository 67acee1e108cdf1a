"""Resuming what a kill, a loss of power or a stray hand has left: the run goes on, or says in one line why not."""

import json
import os
import signal

import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from mha_apps.errors import InputError
from mha_apps.training import Interrupted, Run, Task, TrainingRecipe, checkpoint, fit, seed_everything

STOP_AT = 9  # of 18 steps


class Small(nn.Module, PyTorchModelHubMixin):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x)[:, 0]


def make_task(stop_at=None):
    x = torch.randn(137, 4, generator=torch.Generator().manual_seed(0))
    y = x.sum(1)
    seed_everything(0)
    steps = []

    def loss(model, batch):
        steps.append(1)
        if len(steps) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return Task(
        model=Small(),
        examples=100,
        batch=lambda indices, epoch: (x[indices], y[indices]),
        loss=loss,
        validation_examples=37,
        evaluate=lambda model, indices: {"loss": (model(x[100:][indices]) - y[100:][indices]) ** 2},
        ends_run=False,  # the report takes longer than the training
    )


def recipe(**fields):
    return TrainingRecipe(
        **({"epochs": 3, "batch_size": 16, "learning_rate": 0.05, "device": "cpu", "precision": "fp32"} | fields)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("whole") / "run", recipe(), "vit")
    fit(make_task(), recipe(), run)
    return validations(run)


@pytest.fixture
def stopped(tmp_path):
    run = Run.create(tmp_path / "run", recipe(checkpoint_minutes=1e-9), "vit")
    with pytest.raises(Interrupted):
        fit(make_task(stop_at=STOP_AT), recipe(checkpoint_minutes=1e-9), run)
    return Run.open(run.path)


def validations(run):
    records = [record for record in run.metrics() if record["phase"] == "validation"]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def everything(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_what_was_logged_after_the_checkpoint_is_logged_again_and_not_twice(stopped, whole):
    later = {"phase": "validation", "step": 12, "epoch": 2.0, "seconds": 1.0, "train_loss": 1.0, "loss": 1.0}
    with stopped.metrics_path.open("a") as file:
        file.write(json.dumps(later) + "\n" + json.dumps(later)[:30])
    fit(make_task(), recipe(), stopped)
    assert validations(stopped) == whole


def test_a_log_that_lost_its_end_with_the_power_goes_on_with_whole_lines(stopped, whole):
    stopped.metrics_path.write_bytes(stopped.metrics_path.read_bytes()[:-20])
    fit(make_task(), recipe(), stopped)
    assert validations(stopped) == [record for record in whole if record["step"] > STOP_AT]


def test_a_damaged_line_of_the_log_is_named(stopped):
    content = stopped.metrics_path.read_bytes()
    for harm in (b'{"phase": ', b"\xff\xfe"):
        stopped.metrics_path.write_bytes(content + harm + b"\n" + content)
        number = content.count(b"\n") + 1
        with pytest.raises(InputError, match=rf"metrics.jsonl: line {number} is damaged"):
            stopped.metrics()


def test_when_the_newest_checkpoint_is_damaged_the_run_goes_on_from_the_one_before(stopped, whole, capsys):
    newest = max(stopped.last_dir.iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    fit(make_task(), recipe(), stopped)
    assert f"{newest}: damaged" in capsys.readouterr().err
    assert validations(stopped) == whole


def test_when_every_checkpoint_is_damaged_nothing_is_touched(stopped):
    for path in stopped.last_dir.iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    before = everything(stopped)
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        fit(make_task(), recipe(), stopped)
    assert everything(stopped) == before


def test_another_optimiser_is_refused_and_nothing_is_touched(stopped):
    before = everything(stopped)
    with pytest.raises(InputError, match="it is of --optimizer adamw, not sgd"):
        fit(make_task(), recipe(optimizer="sgd"), stopped)
    assert everything(stopped) == before


def test_another_weight_decay_holds_from_there_on(stopped):
    fit(make_task(), recipe(weight_decay=0.5), stopped)
    groups = checkpoint.load(stopped.last_dir)[0]["optimizer"]["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0, 0.5}  # none on the bias


def test_a_run_that_goes_on_no_longer_says_that_it_has_ended(tmp_path):
    run = Run.create(tmp_path / "run", recipe(epochs=1), "vit")
    task = make_task()
    task.ends_run = True
    fit(task, recipe(epochs=1), run)
    assert run.summary()["epochs"] == 1
    with pytest.raises(Interrupted):
        fit(make_task(stop_at=2), recipe(), Run.open(run.path))
    assert run.summary() == {}
    assert not (run.path / "report.html").exists()


def test_what_a_kill_left_half_written_is_removed(stopped):
    leftovers = [stopped.path / ".summary.json.1.tmp", stopped.last_dir / ".x.pt.1.tmp"]
    for path in leftovers:
        path.write_text("half")
    fit(make_task(), recipe(), stopped)
    assert not any(path.exists() for path in leftovers)


def test_damaged_best_weights_are_one_line(stopped):
    best = stopped.model_dir / "model.safetensors"
    best.write_bytes(best.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"model\.safetensors: cannot be loaded"):
        stopped.load_weights(Small())
