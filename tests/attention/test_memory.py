"""The memory that is foretold is the memory that is taken, and tiles take little."""

from __future__ import annotations

import os

import pytest
import torch

from mha_apps.attention import Causal, Dense, Global, Mask, Padding, Window, attention_memory
from mha_apps.attention.kernel import KERNELS

os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def measured(
    kernel: str, shape: tuple[int, int, int, int, int], dtype: torch.dtype, mask: Mask | None, training: bool
) -> int:
    """Bytes allocated at most beyond the inputs, by the profiler's record of the allocator."""
    batch, heads, *lengths, dim = shape
    leaves = [
        torch.randn(batch, length, heads, dim).to(dtype).transpose(1, 2).requires_grad_(training)
        for length in (lengths[0], lengths[1], lengths[1])
    ]
    grad = torch.randn(leaves[0].transpose(1, 2).shape).to(dtype).transpose(1, 2)

    def run() -> None:
        with torch.set_grad_enabled(training):
            out = KERNELS[kernel](*leaves, mask, (), 0.0)
            if training:
                torch.autograd.grad(out, leaves, grad)

    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


MASKS = {
    "none": lambda shape: None,
    "causal": lambda shape: Causal(),
    "window": lambda shape: Window(32, 32),
    "padding": lambda shape: Padding(torch.full((shape[0],), shape[3] - 3)),
    "window and global": lambda shape: Window(64, 64) | Global([0]),
    "tensor": lambda shape: Dense(torch.rand(shape[0], 1, *shape[2:4]) < 0.5),
    "tensor per head": lambda shape: Dense(torch.rand(shape[:4]) < 0.5) & Causal(),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 512, 512, 32), (2, 4, 256, 1024, 32), (1, 2, 1024, 1024, 64)])
@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@pytest.mark.parametrize("kind", MASKS)
def test_memory_is_foretold_within_a_fifth(
    kind: str, kernel: str, shape: tuple[int, int, int, int, int], training: bool
) -> None:
    mask = MASKS[kind](shape)
    taken = measured(kernel, shape, torch.float32, mask, training)
    foretold = attention_memory(*shape, torch.float32, kernel, mask, training)
    assert abs(foretold / taken - 1) <= 0.2, (foretold, taken)


def test_a_window_takes_a_fifteenth_of_the_memory_of_plain_products() -> None:
    shape, mask = (1, 2, 4608, 4608, 64), Window(64, 64)
    banded, explicit, sdpa = (
        measured(kernel, shape, torch.float32, mask, True) for kernel in ("banded", "explicit", "sdpa")
    )
    assert banded <= explicit / 15
    assert banded <= sdpa / 4


def test_the_memory_of_a_window_grows_with_the_length_alone() -> None:
    small, large = (
        measured("banded", (1, 2, length, length, 32), torch.float32, Window(64, 64), True) for length in (2048, 8192)
    )
    assert large <= 4 * small


def test_a_kernel_of_unknown_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="'flex'"):
        attention_memory(1, 1, 8, 8, 8, torch.float32, "flex")
