"""What the processes of one training agree on: one decides or writes, and all hear of it.

Clocks, signals and disks differ between processes; a decision that only some of them take would leave the others
waiting in the next collective call for ever. Imports no torch before there is more than one process.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from mha_apps.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# What torchrun, Accelerate and the kinds of MPI tell a process of the others.
_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")

Made = TypeVar("Made")


def count() -> int:
    """How many processes were launched to train together."""
    return max(int(os.environ.get(name, 1)) for name in _COUNTS)


def rank() -> int:
    """Which of them this one is, from 0."""
    return max(int(os.environ.get(name, 0)) for name in _RANKS)


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank() == 0


def await_first(seconds: float = 10.0) -> None:
    """Wait before printing an error, unless this process is the first on its machine.

    As a rule the others meet the same error. While they wait the first prints it and ends, and their launcher ends
    them; one that is still there afterwards had an error of its own.
    """
    if int(os.environ.get("LOCAL_RANK", rank())) != 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(seconds)


def is_lost_peer(error: Exception) -> bool:
    """Whether an error only says that another process has ended, which then has said why."""
    return count() > 1 and isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL"))


def launched_alone() -> bool:
    """Whether ``accelerate launch --cpu`` was asked for several processes, of which it starts only this one."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and "MASTER_PORT" in os.environ
    return asked and count() == 1 and "WORLD_SIZE" not in os.environ


def begin(cpu: bool) -> None:
    """Let the processes find each other, over gloo when they train on the CPU; nothing happens for a single one."""
    if count() > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu)


def most(*values: float) -> list[float]:
    """The largest of each value over all processes."""
    if count() == 1:
        return list(values)
    import torch
    import torch.distributed as dist

    every = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(every, dist.ReduceOp.MAX, group=_talk())
    return every.tolist()


def on_first(make: Callable[[], Made]) -> Made:
    """What ``make`` returns in the first process, or the InputError that it raises there, in every process."""
    if count() == 1:
        return make()
    import torch.distributed as dist

    answer: list[Any] = [None, None]
    if is_first():
        try:
            answer = [make(), None]
        except InputError as error:
            answer = [None, str(error)]
    dist.broadcast_object_list(answer, 0, group=_talk())
    if answer[1] is not None:
        raise InputError(answer[1])
    return answer[0]


def sums(values: dict[str, float]) -> dict[str, float]:
    """The sum of each value over all processes; one that had nothing to add may lack names, the first never does."""
    if count() == 1:
        return values
    import torch
    import torch.distributed as dist

    names = on_first(lambda: sorted(values))
    total = torch.tensor([values.get(name, 0.0) for name in names], dtype=torch.float64)
    dist.all_reduce(total, group=_talk())
    return dict(zip(names, total.tolist(), strict=True))


def share(tensors: Iterable[Tensor]) -> None:
    """Give every process the first one's values: buffers, say, which no gradient keeps alike (batch norm's means)."""
    if count() > 1:
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor, 0)


@functools.cache
def _talk() -> Any:
    """A group over the CPU, so that no GPU waits for its queue when processes agree."""
    import torch.distributed as dist

    return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
