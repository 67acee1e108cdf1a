"""What an application hands to the training loop, and where a run stands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mha_apps.training.report import Report


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
        words: what people read in the place of a metric's name, such as what it counts in.
        parameters: parameter groups for the optimiser, for learning rates of their own; the whole model when None.
        facts: what ``summary.json`` says beside what the loop measures.
        sections: adds the application's own sections to the report. Called in the first process, when ``model`` holds
            the best weights; under a budget in minutes also before the first step, to know how long it takes.
        ends_run: whether the run ends with this training. If not, the application writes ``summary.json`` and
            ``report.html`` later.
        later_seconds: what the application needs after this training, of a budget in minutes.
        later_share: of what start-up and that leave, the share that it needs beside: for further trainings.
    """

    model: nn.Module
    examples: int
    batch: Callable[[Tensor, int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    validation_examples: int
    evaluate: Callable[[nn.Module, Tensor], dict[str, Tensor]]
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    words: dict[str, str] = field(default_factory=dict)
    parameters: list[dict[str, Any]] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    sections: Callable[[Report], object] | None = None
    ends_run: bool = True
    later_seconds: float = 0.0
    later_share: float = 0.0


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
