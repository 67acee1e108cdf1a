"""The one training loop, on Accelerate: budgets, schedules, averaging, checkpoints, resuming and stopping well.

An application describes its work as a :class:`Task` and calls :func:`fit`. All randomness inside the loop is derived
from (seed, epoch, sample index) or (seed, step, process), so a resumed run repeats what an uninterrupted one does.
"""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, send_to_device
from safetensors import SafetensorError
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from mha_apps.errors import InputError
from mha_apps.training import checkpoint, files, random, schedule
from mha_apps.training.device import resolve_device, resolve_precision
from mha_apps.training.progress import Reporter
from mha_apps.training.recipe import TrainingRecipe
from mha_apps.training.report import write_report
from mha_apps.training.run import Run

LOG_SECONDS = 2.0
VALIDATION_SHARE = 0.05  # most of a budget in minutes that one validation may take
CLOSING_SHARE = 0.02  # of a budget in minutes, kept for saving and the report
LEAST_VALIDATION = 200
_STEP_STREAM = 0x57E9  # keeps the seeds of dropout apart from those of augmentation


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the run was saved and ``--resume`` continues it."""

    def __init__(self, run: Run, step: int) -> None:
        super().__init__(f"stopped at step {step} and saved; continue with --resume {run.path}")


@dataclass(kw_only=True)
class Task:
    """What an application hands to the loop.

    Attributes:
        model: the model; its ``save_pretrained(folder)`` (huggingface_hub's mixin) writes ``model/``.
        examples: how many training examples there are.
        batch: (indices (B,) int64 on the CPU, epoch) -> the batch, a nested structure of tensors. Called in a thread
            ahead of time; random only through :func:`mha_apps.training.random.uniform`.
        loss: (model, batch on the device) -> mean loss over the batch, a scalar.
        validation_examples: how many validation examples there are.
        evaluate: (model in eval mode, indices (B,)) -> metrics of each example, each (B,). The loop averages over all.
        monitor: the metric that selects the weights in ``model/``.
        mode: whether a smaller or a larger ``monitor`` is better.
        parameters: parameter groups for the optimiser, for learning rates of their own; the whole model when None.
    """

    model: nn.Module
    examples: int
    batch: Callable[[Tensor, int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    validation_examples: int
    evaluate: Callable[[nn.Module, Tensor], dict[str, Tensor]]
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    parameters: list[dict[str, Any]] | None = None


@dataclass
class Progress:
    """Where a run stands; all of it is in the checkpoint."""

    step: int = 0
    seconds: float = 0.0
    examples: int = 0
    data_seconds: float = 0.0
    train_seconds: float = 0.0
    best: float = math.nan
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0  # validations since the best
    loss_sum: float = 0.0  # over the steps since the last validation
    loss_steps: int = 0
    validation_examples: int = 0


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
        self.device = resolve_device(recipe.device)
        self.precision = resolve_precision(recipe.precision, self.device)
        self.accelerator = _accelerator(self.device, self.precision)
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        self.device = self.accelerator.device
        self.batch_size = self._global_batch()
        self.epoch_steps = max(1, task.examples // self.batch_size)
        self.unit, amount = recipe.budget
        self.limit = amount * {"epochs": self.epoch_steps, "steps": 1, "minutes": 60.0}[self.unit]
        self.validate_every = recipe.validate_steps or self.epoch_steps
        self.reserve = 0.0  # seconds that the last validation and saving will take
        self.progress = Progress()
        self._order_epoch: int | None = None  # the epoch whose order of examples is at hand
        # A budget in minutes covers start-up, which ended just now.
        self.clock = time.time() - psutil.Process().create_time() if self.unit == "minutes" else 0.0
        self.started = time.monotonic()

        model = task.model.to(self.device)
        if self.world > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.raw = model
        # Copied before Accelerate wraps forward, or the copy would call the original's weights.
        self.average = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        self.model, self.optimizer = self.accelerator.prepare(model, self._optimizer())
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)

    def _global_batch(self) -> int:
        size = min(self.recipe.batch_size, self.task.examples)
        if self.task.examples == 0 or self.task.validation_examples == 0:
            raise InputError(
                f"{self.task.examples} training and {self.task.validation_examples} validation examples: "
                "at least one of each is needed; give more data"
            )
        if size % self.world and size == self.recipe.batch_size:
            raise InputError(f"--batch-size {size}: must be divisible by the {self.world} processes")
        return max(size - size % self.world, self.world)

    def _optimizer(self) -> torch.optim.Optimizer:
        recipe = self.recipe
        weights: Any = self.task.parameters if self.task.parameters is not None else self.raw
        try:
            return create_optimizer_v2(
                weights, opt=recipe.optimizer, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
            )
        except (ValueError, AssertionError) as error:
            raise InputError(f"--optimizer {recipe.optimizer}: timm knows none of that name ({error})") from error

    # The clock and the budget ----------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds charged to the run so far, resumes included."""
        return self.clock + time.monotonic() - self.started

    def _used(self) -> float:
        """Share of the budget that is used, 0 to 1, the same in every process."""
        if self.unit == "minutes":
            return min(1.0, self._most(self.seconds / max(self.limit - self.reserve, 1e-9)))
        return self.progress.step / self.limit

    def _most(self, value: float) -> float:
        """The largest value of any process: clocks and signals differ between them, decisions must not."""
        if self.world == 1:
            return value
        every = self.accelerator.gather(torch.tensor([value], dtype=torch.float64, device=self.device))
        return float(every.max())

    # Training --------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        self.run.begin()
        self._resume()
        if self.rank == 0:
            self.run.record(self.recipe)
        writer = SummaryWriter(str(self.run.path), purge_step=self.progress.step) if self.rank == 0 else None
        with _stop_signal() as stop, Reporter(self.rank == 0) as reporter, self._batches() as batches:
            self.reporter, self.writer = reporter, writer
            self._plan_validation()
            saved = logged = time.monotonic()
            while (used := self._used()) < 1 and not self._out_of_patience():
                waited = time.monotonic()
                batch = next(batches)
                begun = time.monotonic()
                loss, norm, rate = self._step(batch, used)
                self.progress.step += 1
                self.progress.examples += self.batch_size
                self.progress.loss_steps += 1
                self.progress.data_seconds += begun - waited
                self.progress.train_seconds += time.monotonic() - waited
                if time.monotonic() - logged >= LOG_SECONDS:
                    logged = time.monotonic()
                    self._log(loss, norm, rate, used)
                if self.progress.step % self.validate_every == 0:
                    self._validate()
                if self._most(stop.is_set()):
                    self._save()
                    raise Interrupted(self.run, self.progress.step)
                if self._most(time.monotonic() - saved) >= 60 * self.recipe.checkpoint_minutes:
                    self._save()
                    saved = time.monotonic()
            if self.progress.step == 0:
                self._refuse_budget()
            if self.progress.step % self.validate_every or not self.progress.best_metrics:
                self._validate()
            self._save()
        if writer is not None:
            writer.close()
        return self._finish()

    def _refuse_budget(self) -> None:
        """Start-up used up the minutes: untrained weights must not pass for a run, so its folder goes."""
        self.accelerator.wait_for_everyone()
        if self.writer is not None:
            self.writer.close()
            shutil.rmtree(self.run.path)
        used = self.seconds + self.reserve
        raise InputError(
            f"--minutes {self.recipe.minutes:g}: start-up and the last validation take {used:.0f} seconds here, so "
            f"nothing is left to train in; give {math.ceil(used / 30) + 1} minutes or more"
        )

    def _out_of_patience(self) -> bool:
        return self.recipe.patience is not None and self.progress.stale >= self.recipe.patience

    def _step(self, batch: Any, used: float) -> tuple[Tensor, Tensor | None, float]:
        recipe, step = self.recipe, self.progress.step
        # The middle of a step, so that neither the first nor the last has a learning rate of zero.
        middle = used if self.unit == "minutes" else used + 0.5 / self.limit
        factor = schedule.multiplier(recipe.schedule, middle, recipe.warmup)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        # Dropout depends on (seed, step, process) alone, so no generator state needs saving.
        torch.manual_seed(random.derive(recipe.seed, _STEP_STREAM, step, self.rank))
        self.model.train()
        total = torch.zeros((), device=self.device)
        pieces = batch if isinstance(batch, list) else [batch]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss = self.task.loss(self.model, send_to_device(piece, self.device)) / len(pieces)
                self.accelerator.backward(loss)
                total += loss.detach()
        norm = None
        if recipe.clip:
            norm = self.accelerator.clip_grad_norm_(self.model.parameters(), recipe.clip)
        # A GPU is not made to wait for every step: there the look is taken when the step is logged.
        if self.device.type == "cpu":
            self._require_finite(total)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.raw, step=step)
        self.loss_sum += total
        return total, norm, self.peaks[0] * factor

    def _require_finite(self, loss: Tensor) -> None:
        if torch.isfinite(loss):
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

    @contextmanager
    def _batches(self) -> Iterator[Iterator[Any]]:
        """Batches from the current step on, each made in a thread while the step before it runs."""
        with ThreadPoolExecutor(1, "batches") as pool:
            ahead: Future[Any] = pool.submit(self._batch, self.progress.step)

            def batches() -> Iterator[Any]:
                nonlocal ahead
                step = self.progress.step
                while True:
                    ready, step = ahead, step + 1
                    batch = ready.result()
                    ahead = pool.submit(self._batch, step)
                    yield batch

            yield batches()

    def _batch(self, step: int) -> Any:
        epoch, position = divmod(step, self.epoch_steps)
        if self._order_epoch != epoch:
            self._order = random.permutation(self.recipe.seed, epoch, self.task.examples)
            self._order_epoch = epoch
        begin = position * self.batch_size
        indices = self._order[begin : begin + self.batch_size][self.rank :: self.world]
        if self.recipe.accumulate == 1:
            return self.task.batch(indices, epoch)
        return [self.task.batch(piece, epoch) for piece in indices.chunk(self.recipe.accumulate)]

    # Validation ------------------------------------------------------------------------------------------------

    def _evaluated(self) -> nn.Module:
        return self.average.module if self.average is not None else self.raw

    def _evaluate(self, indices: Tensor) -> dict[str, Tensor]:
        """Sums over this process's share of ``indices``."""
        model = self._evaluated().eval()
        sums: dict[str, Tensor] = {}
        with torch.no_grad(), self.accelerator.autocast():
            for part in indices[self.rank :: self.world].split(max(1, self.batch_size // self.world)):
                for name, values in self.task.evaluate(model, part).items():
                    sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + values.double().sum().cpu()
        return sums

    def _validate(self) -> None:
        begun = time.monotonic()
        count = self.progress.validation_examples
        # Sources may be sorted by class: a part of them must be drawn, the same one each time.
        order = random.permutation(self.recipe.seed, -1, self.task.validation_examples)
        sums = self._evaluate(order[:count].sort().values)
        if self.world > 1:
            # A process whose share is empty has no names of its own; the first process always has them.
            names = sorted(sums) if self.rank == 0 else []
            holder = [names]
            broadcast_object_list(holder)
            stacked = torch.stack([sums.get(name, torch.zeros((), dtype=torch.float64)) for name in holder[0]])
            stacked = self.accelerator.reduce(stacked.to(self.device), "sum").cpu()
            sums = dict(zip(holder[0], stacked, strict=True))
        metrics = {name: float(total) / count for name, total in sums.items()}
        value = metrics[self.task.monitor]
        if not math.isfinite(value):
            raise InputError(self._diverged(f"the validation {self.task.monitor} is {value}"))
        best = self.progress.best
        improved = math.isnan(best) or (value < best if self.task.mode == "min" else value > best)
        self.progress.stale = 0 if improved else self.progress.stale + 1
        # Of equals the later is kept: it has been trained longer at a smaller learning rate.
        better = improved or value == best
        if better:
            self.progress.best, self.progress.best_step = value, self.progress.step
            self.progress.best_metrics = metrics
            if self.rank == 0:
                _save_model(self._evaluated(), self.run.model_dir)
        self.reserve = max(self.reserve, time.monotonic() - begun + CLOSING_SHARE * self.limit)
        if self.progress.loss_steps:
            metrics = {"train_loss": self._mean_loss_sum() / self.progress.loss_steps} | metrics
            self.loss_sum.zero_()
            self.progress.loss_steps = 0
        self._record("validation", metrics)
        words = {"train_loss": "training loss"}
        shown = ", ".join(f"{words.get(name, f'validation {name}')} {number:.4g}" for name, number in metrics.items())
        epoch = self.progress.step / self.epoch_steps
        self.reporter.say(f"epoch {epoch:g}, step {self.progress.step}: {shown}{' (best)' if better else ''}")

    def _plan_validation(self) -> None:
        """Set how many examples a validation takes: all, or under a budget in minutes what fits into a part of it."""
        every = self.task.validation_examples
        if self.unit != "minutes":
            self.progress.validation_examples = every
            return
        probe = torch.arange(min(every, self.batch_size))
        for _ in range(2):  # the first pass also warms up
            begun = time.monotonic()
            self._evaluate(probe)
            seconds = self._most((time.monotonic() - begun) / len(probe))
        if not self.progress.validation_examples:  # a resumed run keeps its choice, so that its metrics compare
            fitting = int(VALIDATION_SHARE * self.limit / max(seconds, 1e-9))
            self.progress.validation_examples = min(every, max(fitting, LEAST_VALIDATION))
        if self.progress.validation_examples < every:
            self.reporter.say(
                f"validation takes {self.progress.validation_examples} of {every} examples, to fit into the budget"
            )
        self.reserve = seconds * self.progress.validation_examples + CLOSING_SHARE * self.limit

    # Records ---------------------------------------------------------------------------------------------------

    def _log(self, loss: Tensor, norm: Tensor | None, rate: float, used: float) -> None:
        if self.device.type != "cpu":
            self._require_finite(loss)
        progress = self.progress
        speed = progress.examples / max(progress.train_seconds, 1e-9)
        values = {"loss": loss.item(), "learning_rate": rate, "examples_per_second": speed}
        if norm is not None:
            values["gradient_norm"] = float(norm)
        self._record("train", values)
        left = self.seconds * (1 - used) / max(used, 1e-9)
        if self.unit == "minutes":
            left = self.limit - self.seconds
        epoch = progress.step / self.epoch_steps
        self.reporter.update(
            f"epoch {epoch:.1f}, step {progress.step}, loss {values['loss']:.4f}, lr {rate:.1e}, {speed:,.0f}/s",
            used,
            left,
        )

    def _record(self, phase: str, values: dict[str, float]) -> None:
        if self.rank != 0:
            return
        step = self.progress.step
        self.run.log({"phase": phase, "step": step, "epoch": step / self.epoch_steps, "seconds": self.seconds} | values)
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(f"{phase}/{name}", value, step)

    def _mean_loss_sum(self) -> float:
        """The losses added up since the last validation, averaged over the processes."""
        if self.world > 1:
            self.loss_sum = self.accelerator.reduce(self.loss_sum, "mean")
        return float(self.loss_sum)

    def _save(self) -> None:
        self.progress.seconds, self.progress.loss_sum = self.seconds, self._mean_loss_sum()
        if self.rank != 0:
            return
        size = self.run.metrics_path.stat().st_size if self.run.metrics_path.exists() else 0
        scaler = self.accelerator.scaler
        state = {
            "progress": dict(vars(self.progress)),
            "metrics_bytes": size,
            "model": self.raw.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
        }
        checkpoint.save(self.run.last_dir, self.progress.step, state)

    def _resume(self) -> None:
        state, damaged = checkpoint.load(self.run.last_dir)
        for line in damaged:
            Reporter(self.rank == 0).say(line)
        if state is None:
            if self.run.metrics_path.exists():
                Reporter(self.rank == 0).say(f"{self.run.last_dir}: holds no checkpoint; training starts at step 0")
            if self.rank == 0:
                self.run.truncate_metrics(0)
            return
        try:
            self.raw.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(
                f"{self.run.last_dir}: its checkpoint does not fit this model ({reason}); "
                "resume with the recipe that the run was made with"
            ) from error
        self.progress = Progress(**state["progress"])
        self.clock += self.progress.seconds
        self.loss_sum.fill_(self.progress.loss_sum)
        if self.rank == 0:
            self.run.truncate_metrics(state["metrics_bytes"])

    def _finish(self) -> dict[str, Any]:
        self.accelerator.wait_for_everyone()
        progress = self.progress
        summary = {
            **{f"validation_{name}": value for name, value in progress.best_metrics.items()},
            "best_step": progress.best_step,
            "steps": progress.step,
            "epochs": progress.step / self.epoch_steps,
            "seconds": round(self.seconds, 3),
            "examples_per_second": round(progress.examples / max(progress.train_seconds, 1e-9), 1),
            "data_wait_share": round(progress.data_seconds / max(progress.train_seconds, 1e-9), 4),
            "parameters": sum(weight.numel() for weight in self.raw.parameters()),
            "device": str(self.device),
            "precision": self.precision,
            "processes": self.world,
        }
        if self.rank == 0:
            self.run.write_summary(summary)
            write_report(self.run)
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        if self.run.model_dir.exists():
            from safetensors.torch import load_model

            load_model(model, str(self.run.model_dir / "model.safetensors"))
        self.accelerator.free_memory()
        model.eval()
        return summary


def _accelerator(device: torch.device, precision: str) -> Accelerator:
    # Accelerate keeps its first settings for the whole process; a second fit may want others.
    AcceleratorState._reset_state()
    mixed = "no" if precision == "fp32" else precision
    return Accelerator(cpu=device.type == "cpu", mixed_precision=mixed)


def _save_model(model: nn.Module, folder: Path) -> None:
    """``save_pretrained``, with each file replaced at once."""
    with files.disk_errors(folder):
        folder.mkdir(exist_ok=True)
        temporary = folder / ".new"
        temporary.mkdir(exist_ok=True)
        try:
            model.save_pretrained(temporary)  # type: ignore[operator]
        except SafetensorError as error:  # safetensors wraps what the operating system says
            raise OSError(str(error)) from error
        for path in sorted(temporary.iterdir()):
            files.sync(path)
            path.replace(folder / path.name)
        temporary.rmdir()


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT ends the process at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals can be had in the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
