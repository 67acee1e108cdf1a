"""Batches, each made in a thread while the step before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mha_apps.training import processes, random


class Feed:
    """This process's share of each batch, as a function of the step alone.

    Args:
        make: (indices (B,), epoch) -> the batch.
        examples: how many training examples there are.
        batch_size: examples in a step, over all processes.
        accumulate: pieces that a batch is cut into.
        seed: decides the order of the examples in each epoch.
    """

    def __init__(
        self,
        make: Callable[[Tensor, int], Any],
        *,
        examples: int,
        batch_size: int,
        accumulate: int,
        seed: int,
    ) -> None:
        self.make, self.examples, self.batch_size = make, examples, batch_size
        self.accumulate, self.seed = accumulate, seed
        self.epoch_steps = max(1, examples // batch_size)
        self._order = torch.empty(0, dtype=torch.int64)
        self._order_epoch: int | None = None  # whose order is at hand

    def pieces(self, step: int) -> list[Any]:
        """The batch of a step, as a list of ``accumulate`` pieces."""
        epoch, position = divmod(step, self.epoch_steps)
        if self._order_epoch != epoch:
            self._order = random.permutation(self.seed, epoch, self.examples)
            self._order_epoch = epoch
        begin = position * self.batch_size
        indices = self._order[begin : begin + self.batch_size][processes.rank() :: processes.count()]
        return [self.make(piece, epoch) for piece in indices.chunk(self.accumulate)]

    @contextmanager
    def from_step(self, step: int) -> Iterator[Iterator[list[Any]]]:
        """The batches of ``step`` and all after it."""
        threads = torch.get_num_threads()
        # A second team of OpenMP threads would be more threads than cores, whereupon both teams sleep at every barrier.
        with ThreadPoolExecutor(1, "batches", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            pool.submit(torch.get_num_threads).result()
            torch.set_num_threads(threads)  # the setting holds for a thread, but new ones begin with the latest
            ahead = pool.submit(self.pieces, step)
            yield self._batches(pool, ahead, step)

    def _batches(self, pool: ThreadPoolExecutor, ahead: Future[list[Any]], step: int) -> Iterator[list[Any]]:
        while True:
            batch, step = ahead.result(), step + 1
            ahead = pool.submit(self.pieces, step)
            yield batch
