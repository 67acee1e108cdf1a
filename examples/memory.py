"""What the attention matrix weighs, as predicted and as measured, and what the other ways to compute it weigh.

Every score of explicit attention is a number in memory: heads x length² x 4 bytes for the scores, as much for the
weights, and as much again for their gradient. The fused kernel (Dao et al. 2022; ``F.scaled_dot_product_attention``)
never holds the matrix; a window or a stride does not even compute most of it. Look at the slopes: on these axes the
square of the length is twice as steep as the length.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _common import COLOURS, PICTURES, figure, run, save, table
from torch import nn

from mha_apps.attention import Causal, Mask, MultiHeadAttention, Strided, Window, attention_memory

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler is talkative
HEADS, HEAD_DIM, LENGTHS = 4, 32, (256, 512, 1024, 2048)
DIM = HEADS * HEAD_DIM

WAYS: dict[str, tuple[str, Mask | None]] = {
    "explicit": ("explicit", None),
    "fused": ("sdpa", None),
    "Window(64, 64)": ("banded", Window(64, 64)),
    "Causal() & Strided(16)": ("strided", Causal() & Strided(16)),
}


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that ``work`` holds at once beyond what was there before."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def measure(kernel: str, mask: Mask | None, length: int) -> tuple[float, float]:
    """MiB and processor milliseconds (of all threads together) of forward and backward through the attention alone."""
    attention = MultiHeadAttention(DIM, HEADS, kernel=kernel)
    for name in ("query", "key", "value", "output"):  # no projections: nothing but the attention weighs anything
        setattr(attention, name, nn.Identity())
    x = torch.randn(3, 1, length, DIM, requires_grad=True)
    upstream = torch.randn(1, length, DIM)

    def work() -> None:
        query, key, value = x.unbind()
        torch.autograd.grad(attention(query, key, value=value, mask=mask), (query, key, value), upstream)

    work()
    times = []
    for _ in range(5):
        begun = time.process_time()
        work()
        times.append(1000 * (time.process_time() - begun))
    return peak_bytes(work) / 2**20, min(times)


def main(out: Path = PICTURES / "memory.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    rows, measured = [], {name: [] for name in WAYS}
    for name, (kernel, mask) in WAYS.items():
        for length in LENGTHS:
            predicted = attention_memory(1, HEADS, length, length, HEAD_DIM, torch.float32, kernel, mask) / 2**20
            mebibytes, milliseconds = measure(kernel, mask, length)
            measured[name].append((mebibytes, milliseconds))
            rows.append((name, length, predicted, mebibytes, milliseconds))
    table(
        ["attention", "length", "predicted MiB", "measured MiB", "CPU ms"],
        sorted(rows, key=lambda r: list(WAYS).index(r[0])),
    )
    matrix = [HEADS * length**2 * 4 / 2**20 for length in LENGTHS]
    draw(measured, matrix, out)
    explicit, fused, window, strided = (measured[name][-1][0] for name in WAYS)
    predicted = next(row[2] for row in rows if row[:2] == ("explicit", LENGTHS[-1]))
    print(
        f"At length {LENGTHS[-1]} one matrix of scores is {matrix[-1]:.0f} MiB, and explicit attention held "
        f"{explicit:.0f} MiB ({predicted:.0f} predicted), the fused kernel {fused:.1f}, the window {window:.1f} and "
        f"the stride {strided:.1f} MiB."
    )
    return {
        "matrix": matrix[-1], "explicit": explicit, "explicit_predicted": predicted, "fused": fused, "window": window,
        "strided": strided,
        "explicit_growth": measured["explicit"][-1][0] / measured["explicit"][-2][0],
        "window_growth": measured["Window(64, 64)"][-1][0] / measured["Window(64, 64)"][-2][0],
    }  # fmt: skip


def draw(measured: dict[str, list[tuple[float, float]]], matrix: list[float], out: Path) -> None:
    picture, axes = figure(1, 2, height=3.8)
    for ax, column, label in zip(axes, (0, 1), ("peak memory, MiB", "processor time, ms"), strict=True):
        for colour, marker, (name, points) in zip(COLOURS, "osv^", measured.items(), strict=False):
            ax.plot(LENGTHS, [point[column] for point in points], marker=marker, color=colour, label=name)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(LENGTHS, LENGTHS)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("")
        ax.set(xlabel="length, tokens", ylabel=label)
    axes[0].plot(LENGTHS, matrix, color="0.5", ls="--", label="one matrix: heads × length² × 4 bytes")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    picture.suptitle(f"attention forward and backward, {HEADS} heads of {HEAD_DIM}, float32", fontsize=10)
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
