"""The one training loop, on Accelerate: schedules, averaging, validation, checkpoints, resuming and stopping well.

An application describes its work as a :class:`Task` and calls :func:`fit`. All randomness inside the loop is derived
from (seed, epoch, sample index) or (seed, step, process), so a resumed run repeats what an uninterrupted one does.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import send_to_device
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from mha_apps.errors import InputError
from mha_apps.training import checkpoint, files, processes, random, schedule
from mha_apps.training.budget import Budget
from mha_apps.training.device import resolve_device, resolve_precision
from mha_apps.training.feed import Feed
from mha_apps.training.optimizer import make_optimizer
from mha_apps.training.progress import Reporter
from mha_apps.training.recipe import TrainingRecipe
from mha_apps.training.report import write_report
from mha_apps.training.run import Run
from mha_apps.training.signals import stop_signal
from mha_apps.training.task import Progress, Task

LOG_SECONDS = 2.0
_STEP_STREAM = 0x57E9  # keeps the seeds of dropout apart from those of augmentation


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the run was saved and ``--resume`` continues it."""

    def __init__(self, run: Run, step: int) -> None:
        super().__init__(f"stopped at step {step} and saved; continue with --resume {run.path}")


def fit(task: Task, recipe: TrainingRecipe, run: Run) -> dict[str, Any]:
    """Train ``task`` by ``recipe`` into ``run``; continue where its last checkpoint stands if it has one.

    Returns:
        The summary that is also in ``summary.json``. ``task.model`` then holds the best weights on validation.

    Raises:
        InputError: the loss is not finite, the disk is full, a checkpoint does not fit the model.
        Interrupted: SIGINT or SIGTERM; the run is saved.
    """
    return _Trainer(task, recipe, run).train()


class _Trainer:
    def __init__(self, task: Task, recipe: TrainingRecipe, run: Run) -> None:
        recipe.check()
        self.task, self.recipe, self.run = task, recipe, run
        device = resolve_device(recipe.device)
        self.precision = resolve_precision(recipe.precision, device)
        self.accelerator = _accelerator(device, self.precision)
        self.device = self.accelerator.device
        self.first = processes.is_first()
        self.reporter = Reporter(self.first)
        self.writer: SummaryWriter | None = None

        self.batch_size = _global_batch(task, recipe)
        self.feed = Feed(
            task.batch,
            examples=task.examples,
            batch_size=self.batch_size,
            accumulate=recipe.accumulate,
            seed=recipe.seed,
        )
        self.epoch_steps = self.feed.epoch_steps
        self.budget = Budget(
            *recipe.budget,
            epoch_steps=self.epoch_steps,
            later_seconds=task.later_seconds,
            later_share=task.later_share,
        )
        self.validate_every = recipe.validate_steps or self.epoch_steps
        self.progress = Progress()
        self.logged = time.monotonic()

        model = task.model.to(self.device)
        if processes.count() > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.raw = model
        # Copied before Accelerate wraps forward, or the copy would call the original's weights.
        self.average = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model, recipe, task.parameters))
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        exact = torch.float32 if self.device.type == "mps" else torch.float64  # which MPS lacks
        self.loss_sum = torch.zeros((), dtype=exact, device=self.device)

    # The run from its begin to its end -------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        if processes.launched_alone():
            self.reporter.say(
                "accelerate launch --cpu starts one process, however many it is told; for two on CPUs: "
                "torchrun --nproc-per-node 2 -m mha_apps ..."
            )
        self.run.begin()
        self._resume()
        processes.on_first(self._open)
        with stop_signal() as stop, self.reporter, self.feed.from_step(self.progress.step) as batches:
            self._plan()
            saved = time.monotonic()
            while (used := self.budget.used(self.progress.step)) < 1 and not self._out_of_patience():
                self._step(batches, used)
                if self.progress.step % self.validate_every == 0:
                    self._validate()
                old = time.monotonic() - saved >= 60 * self.recipe.checkpoint_minutes
                stopped, due = processes.most(stop.is_set(), old)
                if stopped or due:
                    self._save()
                    saved = time.monotonic()
                if stopped:
                    raise Interrupted(self.run, self.progress.step)
            if self.progress.step == 0:
                self._discard()
            if self.progress.step % self.validate_every or not self.progress.best_metrics:
                self._validate()
            self._save()
        return self._finish()

    def _open(self) -> None:
        if not self.run.new:
            self.run.reopen()
        self.run.record(self.recipe)
        self.writer = SummaryWriter(str(self.run.path), purge_step=self.progress.step)

    def _discard(self) -> None:
        """Start-up used up the minutes: untrained weights must not pass for a run, so its folder goes."""
        if self.writer is not None:
            self.writer.close()
            if self.run.new:
                shutil.rmtree(self.run.path)
        raise self.budget.refusal()

    def _out_of_patience(self) -> bool:
        return self.recipe.patience is not None and self.progress.stale >= self.recipe.patience

    def _finish(self) -> dict[str, Any]:
        if self.writer is not None:
            self.writer.close()
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        processes.on_first(lambda: self.run.load_weights(model))
        processes.share(model.state_dict().values())
        self.accelerator.free_memory()
        model.eval()
        summary = self._summary()
        if self.task.ends_run:
            processes.on_first(lambda: self._close(summary))
        return summary

    def _close(self, summary: dict[str, Any]) -> None:
        write_report(self.run, self.task.sections, summary=summary)
        self.run.write_summary(summary)  # last, since it says that the run has ended

    def _summary(self) -> dict[str, Any]:
        progress = self.progress
        trained = max(progress.train_seconds, 1e-9)
        return {
            **{f"validation_{name}": value for name, value in progress.best_metrics.items()},
            "best_step": progress.best_step,
            "steps": progress.step,
            "epochs": progress.step / self.epoch_steps,
            "seconds": round(self.budget.seconds, 3),
            "examples_per_second": round(progress.examples / trained, 1),
            "data_wait_share": round(progress.data_seconds / trained, 4),
            "parameters": sum(weight.numel() for weight in self.raw.parameters()),
            "device": self.device.type,
            "precision": self.precision,
            "processes": processes.count(),
            **self.task.facts,
        }

    # One step --------------------------------------------------------------------------------------------------

    def _step(self, batches: Iterator[list[Any]], used: float) -> None:
        progress, begun = self.progress, time.monotonic()
        pieces = next(batches)
        progress.data_seconds += time.monotonic() - begun
        rate = self._set_rate(used)
        loss = self._gradient(pieces)
        norm = None
        if self.recipe.clip:
            norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        # A GPU is not made to wait for every step: there the look is taken when the step is logged.
        if self.device.type == "cpu":
            self._require_finite(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.raw, step=progress.step)
        self.loss_sum += loss
        progress.loss_steps += 1
        progress.step += 1
        progress.examples += self.batch_size
        progress.train_seconds += time.monotonic() - begun
        if time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            self._log(loss, norm, rate, used)

    def _set_rate(self, used: float) -> float:
        """Set each group's learning rate; returns the first one's."""
        # The middle of a step, so that neither the first nor the last has a learning rate of zero.
        middle = used if self.budget.timed else used + 0.5 / self.budget.limit
        factor = schedule.multiplier(self.recipe.schedule, middle, self.recipe.warmup)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        return self.peaks[0] * factor

    def _gradient(self, pieces: list[Any]) -> Tensor:
        """Add up the gradient of a batch; returns its mean loss, in this process."""
        # Dropout depends on (seed, step, process) alone, so no generator state needs saving.
        torch.manual_seed(random.derive(self.recipe.seed, _STEP_STREAM, self.progress.step, processes.rank()))
        self.model.train()
        total = torch.zeros((), device=self.device)
        for number, piece in enumerate(pieces, start=1):
            with nullcontext() if number == len(pieces) else self.accelerator.no_sync(self.model):
                loss = self.task.loss(self.model, send_to_device(piece, self.device)) / len(pieces)
                self.accelerator.backward(loss)
                total += loss.detach()
        return total

    def _require_finite(self, loss: Tensor) -> None:
        [failed] = processes.most(not torch.isfinite(loss))
        if not failed:
            return
        bad = [
            name
            for name, weight in self.raw.named_parameters()
            if weight.grad is not None and not weight.grad.isfinite().all()
        ]
        where = f"; the gradient is not finite first in {bad[0]}" if bad else ""
        raise InputError(self._diverged(f"the loss is {loss.item()}", where))

    def _diverged(self, what: str, where: str = "") -> str:
        rate = self.optimizer.param_groups[0]["lr"]
        kept = f"the last good weights are in {self.run.model_dir}" if self.progress.best_metrics else "no weights yet"
        return (
            f"{self.run.path}: {what} at step {self.progress.step} (learning rate {rate:.2e}){where}; "
            f"lower --learning-rate or lengthen --warmup ({kept})"
        )

    # Validation ------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Set how many examples a validation takes; under a budget in minutes time what comes after the last step."""
        every, progress = self.task.validation_examples, self.progress
        if not self.budget.timed:
            progress.validation_examples = every
            return
        probe = torch.arange(min(every, self.batch_size))
        self._evaluate(probe)  # warms up
        with self.budget.closes("validation"):
            sums = self._evaluate(probe)
        [each] = processes.most(self.budget.closing["validation"] / len(probe))
        if not progress.validation_examples:  # a resumed run keeps its choice, so that its metrics compare
            progress.validation_examples = self.budget.validation_examples(every, each)
        self.budget.closing["validation"] = each * progress.validation_examples
        if progress.validation_examples < every:
            self.reporter.say(
                f"validation takes {progress.validation_examples} of {every} examples, to fit into the budget"
            )
        if self.first and self.task.ends_run:
            self._rehearse([*sums, "train_loss"])

    def _rehearse(self, metrics: list[str]) -> None:
        """Time the report, on a model that has learned nothing and a log made up of the metrics that will be in it."""
        records = [{"phase": "validation", "epoch": epoch, **dict.fromkeys(metrics, 0.0)} for epoch in (1, 2)]
        with self.budget.closes("report"):
            self.raw.eval()
            write_report(self.run, self.task.sections, records).unlink()

    def _evaluated(self) -> nn.Module:
        return self.average.module if self.average is not None else self.raw

    def _evaluate(self, indices: Tensor) -> dict[str, float]:
        """Sums over ``indices`` of which each process takes a share."""
        model = self._evaluated().eval()
        processes.share(model.buffers())
        sums: dict[str, float] = {}
        with torch.no_grad(), self.accelerator.autocast():
            share = indices[processes.rank() :: processes.count()]
            for part in share.split(max(1, self.batch_size // processes.count())):
                for name, values in self.task.evaluate(model, part).items():
                    sums[name] = sums.get(name, 0.0) + float(values.cpu().double().sum())
        return processes.sums(sums)

    def _validate(self) -> None:
        progress = self.progress
        count = progress.validation_examples
        # Sources may be sorted by class: a part of them must be drawn, the same one each time.
        order = random.permutation(self.recipe.seed, -1, self.task.validation_examples)
        with self.budget.closes("validation"):
            sums = self._evaluate(order[:count].sort().values)
        metrics = {name: total / count for name, total in sums.items()}
        value = metrics[self.task.monitor]
        if not math.isfinite(value):
            raise InputError(self._diverged(f"the validation {self.task.monitor} is {value}"))
        better = self._judge(value, metrics)
        if better:
            with self.budget.closes("model"):
                processes.on_first(lambda: self.run.save_model(self._evaluated()))
        if progress.loss_steps:
            metrics = {"train_loss": self._mean_loss_sum() / progress.loss_steps} | metrics
            self.loss_sum.zero_()
            progress.loss_steps = 0
        self._record("validation", metrics)
        words = {name: f"validation {self.task.words.get(name, name)}" for name in metrics}
        words["train_loss"] = "training loss"
        shown = ", ".join(f"{words[name]} {number:z.4g}" for name, number in metrics.items())
        epoch = progress.step / self.epoch_steps
        self.reporter.say(f"epoch {epoch:g}, step {progress.step}: {shown}{' (best)' if better else ''}")

    def _judge(self, value: float, metrics: dict[str, float]) -> bool:
        """Whether these are the weights to keep."""
        progress, best = self.progress, self.progress.best
        improved = math.isnan(best) or (value < best if self.task.mode == "min" else value > best)
        progress.stale = 0 if improved else progress.stale + 1
        # Of equals the later is kept: it has been trained longer at a smaller learning rate.
        better = improved or value == best
        if better:
            progress.best, progress.best_step, progress.best_metrics = value, progress.step, metrics
        return better

    # Records ---------------------------------------------------------------------------------------------------

    def _log(self, loss: Tensor, norm: Tensor | None, rate: float, used: float) -> None:
        progress = self.progress
        speed = progress.examples / max(progress.train_seconds, 1e-9)
        values = {"loss": loss.item(), "learning_rate": rate, "examples_per_second": speed}
        if norm is not None:
            values["gradient_norm"] = float(norm)
        self._record("train", values)
        self.reporter.update(
            f"epoch {progress.step / self.epoch_steps:.1f}, step {progress.step}, loss {values['loss']:.4f}, "
            f"lr {rate:.1e}, {speed:,.0f}/s",
            used,
            self.budget.seconds_left(progress.step),
        )

    def _record(self, phase: str, values: dict[str, float]) -> None:
        if not self.first:
            return
        step = self.progress.step
        place = {"phase": phase, "step": step, "epoch": step / self.epoch_steps, "seconds": self.budget.seconds}
        self.run.log(place | values)
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(f"{phase}/{name}", value, step)

    def _mean_loss_sum(self) -> float:
        """The losses added up since the last validation, averaged over the processes."""
        return processes.sums({"loss": float(self.loss_sum)})["loss"] / processes.count()

    # Checkpoints -----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.progress.seconds, self.progress.loss_sum = self.budget.seconds, self._mean_loss_sum()
        with self.budget.closes("saving"):
            processes.on_first(lambda: checkpoint.save(self.run.last_dir, self.progress.step, self._state()))

    def _state(self) -> dict[str, Any]:
        metrics, scaler = self.run.metrics_path, self.accelerator.scaler
        return {
            "progress": dict(vars(self.progress)),
            "metrics_bytes": metrics.stat().st_size if metrics.exists() else 0,
            "architecture": _architecture(self.raw),
            "model": self.raw.state_dict(),
            "optimizer_name": self.recipe.optimizer,
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def _resume(self) -> None:
        """Take up the newest checkpoint that is whole; without one training starts at step 0."""
        state, damaged = processes.on_first(lambda: checkpoint.load(self.run.last_dir))
        for line in damaged:
            self.reporter.say(line)
        if state is None:
            if self.run.metrics_path.exists():
                self.reporter.say(f"{self.run.last_dir}: holds no checkpoint; training starts at step 0")
        else:
            self._take_up(state)
        if self.first:
            self.run.truncate_metrics(0 if state is None else state["metrics_bytes"])

    def _take_up(self, state: dict[str, Any]) -> None:
        try:
            if (name := state["optimizer_name"]) != self.recipe.optimizer:
                raise ValueError(f"it is of --optimizer {name}, not {self.recipe.optimizer}")
            _require_same(state["architecture"], _architecture(self.raw))
            self.raw.load_state_dict(state["model"])
            decays = [group["weight_decay"] for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
                group["weight_decay"] = decay  # as the recipe says today, like the learning rate
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
            self.progress = Progress(**state["progress"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(
                f"{self.run.last_dir}: its checkpoint does not fit this model ({reason}); "
                "resume with the recipe that the run was made with"
            ) from error
        self.budget.resume(self.progress.seconds)
        # Each process holds a share of what the first one saved as their mean.
        self.loss_sum.fill_(self.progress.loss_sum)


def _architecture(model: nn.Module) -> dict[str, Any] | None:
    """The arguments that the model was made with, where huggingface_hub's mixin keeps them."""
    return json.loads(files.json_text(getattr(model, "_hub_mixin_config", None)))


def _require_same(saved: dict[str, Any] | None, now: dict[str, Any] | None) -> None:
    """ValueError where a model of the same shapes computes something else."""
    saved, now = saved or {}, now or {}
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            raise ValueError(f"it is of {name} {saved.get(name)!r}, not {now.get(name)!r}")


def _accelerator(device: torch.device, precision: str) -> Accelerator:
    # Accelerate keeps its first settings for the whole process; a second fit may want others.
    AcceleratorState._reset_state()
    # Said of depthwise convolutions once a process, whatever is done about it.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    mixed = "no" if precision == "fp32" else precision
    return Accelerator(cpu=device.type == "cpu", mixed_precision=mixed)


def _global_batch(task: Task, recipe: TrainingRecipe) -> int:
    """Examples in a step over all processes: as asked for, less where the data is smaller."""
    size, count = min(recipe.batch_size, task.examples), processes.count()
    if task.examples == 0 or task.validation_examples == 0:
        raise InputError(
            f"{task.examples} training and {task.validation_examples} validation examples: "
            "at least one of each is needed; give more data"
        )
    if size % count and size == recipe.batch_size:
        raise InputError(f"--batch-size {size}: must be divisible by the {count} processes")
    return max(size - size % count, count)
