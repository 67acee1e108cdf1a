"""How fast the attention core is, and how much memory it takes, beside its peers in one process.

    python benchmarks/attention.py modules     # whole modules at four shapes, three precisions
    python benchmarks/attention.py windows     # a window over 16,384 tokens, against dense and local attention
    python benchmarks/attention.py lengths     # time and memory against length: a table and a PNG
    python benchmarks/attention.py crossovers  # what the constants of plan.py stand for

Contestants take turns, so that a busy machine slows all of them alike, and the table gives medians and the median of
the ratios of neighbouring turns. ``--cpu-time`` counts processor time instead, with one thread, which other programs
disturb less. Peers that are not installed are left out and named (``pip install mha_apps[bench]``).
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_apps.attention import Mask, MultiHeadAttention, Padding, Strided, Window, Window2d, plan, tiled
from mha_apps.attention.kernel import CPU_HAS_BF16_UNITS, KERNELS

Run = Callable[[], object]

SHAPES = [(256, 64, 192, 3), (64, 256, 128, 4), (16, 512, 512, 8), (1, 4096, 512, 8)]
EXPLICIT_SCORES = 2**29  # heads times length squared up to which the explicit kernel runs: five such tensors, 10 GiB
CLOCK = time.perf_counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["modules", "windows", "lengths", "crossovers"])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16", "autocast"])
    parser.add_argument("--shapes", nargs="*", type=int, default=range(len(SHAPES)), help="which of the four")
    parser.add_argument("--length", type=int, default=16384, help="of windows")
    parser.add_argument("--heads", type=int, default=8, help="of windows and lengths; one lets the explicit kernel fit")
    parser.add_argument("--longest", type=int, default=65536, help="of lengths")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/attention.png"))
    args = parser.parse_args()
    if args.cpu_time:
        global CLOCK
        CLOCK, args.threads = time.process_time, 1
    if args.threads:
        torch.set_num_threads(args.threads)
    units = "with" if CPU_HAS_BF16_UNITS else "without"
    print(
        f"torch {torch.__version__}, {platform.processor() or platform.machine()} {units} bf16 units, "
        f"{torch.get_num_threads()} threads, {args.device}"
    )
    {"modules": modules, "windows": windows, "lengths": lengths, "crossovers": crossovers}[args.part](args)


def take_turns(contestants: dict[str, Run], rounds: int, device: str) -> dict[str, list[float]]:
    """Milliseconds of each contestant in each round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds + 1):
        # Another one begins each round: what runs after a heavy neighbour finds the caches cold.
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start = CLOCK()
            contestants[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                times[name].append((CLOCK() - start) * 1e3)
    return times


def report(times: dict[str, list[float]], ours: str) -> None:
    """A line each: the median, and the median ratio to ours (above 1: slower than ours)."""
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, times[ours], strict=True))
        print(f"    {name:<34}{statistics.median(own):>10.1f} ms   {ratio:>6.2f} x")


def passes(forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> tuple[Run, Run]:
    """(forward without gradients, forward and backward)."""

    def infer() -> None:
        with torch.no_grad():
            forward()

    def train() -> None:
        out = forward()
        torch.autograd.grad(out, leaves, torch.ones_like(out))

    return infer, train


def under_autocast(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return module(x)

    return forward


def kernel_pass(kernel: str, leaves: Sequence[Tensor], mask: Mask | None, dropout: float = 0.0) -> Run:
    return passes(lambda: KERNELS[kernel](*leaves, mask, (), dropout), leaves)[1]


def modules(args: argparse.Namespace) -> None:
    """Whole modules: projections and all."""
    for batch, length, dim, heads in (SHAPES[i] for i in args.shapes):
        for precision in args.precision:
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            x = torch.randn(batch, length, dim, device=args.device, dtype=dtype, requires_grad=True)
            built = {name: make().to(args.device, dtype) for name, make in peers(dim, heads)}
            for index, kind in enumerate(("forward", "forward+backward")):
                runs = {}
                for name, module in built.items():
                    forward = under_autocast(module, x) if precision == "autocast" else partial(module, x)
                    runs[name] = passes(forward, [x, *module.parameters()])[index]
                print(f"\n  batch {batch}, length {length}, dim {dim}, {heads} heads, {precision}, {kind}")
                report(take_turns(runs, args.rounds, args.device), "mha_apps")


class TorchSelf(nn.Module):
    """``nn.MultiheadAttention`` of one argument."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class PlainSDPA(nn.Module):
    """What one writes by hand: a packed projection and the fused kernel."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def peers(dim: int, heads: int) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """The contestants of ``modules``, ours first."""
    yield "mha_apps", lambda: MultiHeadAttention(dim, heads)
    yield "nn.MultiheadAttention", lambda: TorchSelf(dim, heads)
    yield "plain SDPA", lambda: PlainSDPA(dim, heads)
    if installed("timm"):
        from timm.layers import Attention

        for fused in (True, False):

            def make(fused: bool = fused) -> nn.Module:
                layer = Attention(dim, heads, qkv_bias=True)
                layer.fused_attn = fused
                return layer

            yield f"timm, {'fused' if fused else 'plain'}", make
    if installed("x_transformers"):
        from x_transformers.attend import Attend  # noqa: F401  (fails early where the package is broken)
        from x_transformers.x_transformers import Attention as Peer

        for flash in (True, False):
            yield (
                f"x-transformers, {'flash' if flash else 'plain'}",
                lambda flash=flash: Peer(dim, heads=heads, dim_head=dim // heads, flash=flash),
            )


def installed(package: str) -> bool:
    if find_spec(package) is None:
        print(f"({package} is not installed: left out)")
        return False
    return True


def window_contestants(
    length: int, width: int, device: str, dtype: torch.dtype, heads: int
) -> dict[str, tuple[Run, Run]]:
    """Forward, and forward with backward, of heads of 64 under a window: ours, dense, and local-attention."""
    query, key, value = (
        torch.randn(1, length, heads, 64, device=device, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)
    )
    mask, leaves = Window(width, width), (query, key, value)

    def dense() -> Tensor:
        allowed = mask.materialize(length, length, device)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    found = {"mha_apps, banded": passes(lambda: KERNELS["banded"](*leaves, mask, (), 0.0), leaves)}
    if length <= 16384:
        found["SDPA with the mask"] = passes(dense, leaves)
    if heads * length**2 <= EXPLICIT_SCORES:
        found["explicit"] = passes(lambda: KERNELS["explicit"](*leaves, mask, (), 0.0), leaves)
    if installed("local_attention"):
        from local_attention import LocalAttention

        local = LocalAttention(
            dim=64, window_size=width, causal=False, look_backward=1, look_forward=1, exact_windowsize=True,
            use_rotary_pos_emb=False, autopad=True,
        ).to(device)  # fmt: skip
        found["local-attention"] = passes(lambda: local(*leaves), leaves)
    if device == "cuda":
        found["mha_apps, flex"] = passes(lambda: KERNELS["flex"](*leaves, mask, (), 0.0), leaves)
    return found


def windows(args: argparse.Namespace) -> None:
    """The window of the README's table."""
    for precision in args.precision:
        if precision == "autocast":
            continue
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        found = window_contestants(args.length, 256, args.device, dtype, args.heads)
        for index, kind in enumerate(("forward", "forward+backward")):
            print(f"\n  {args.length} tokens, Window(256, 256), {args.heads} heads of 64, {precision}, {kind}")
            runs = {name: both[index] for name, both in found.items()}
            report(take_turns(runs, args.rounds, args.device), "mha_apps, banded")
            held = {name: peak_memory(run, args.device) for name, run in runs.items()}
            for name, bytes_held in held.items():
                share = bytes_held / held["mha_apps, banded"]
                print(f"    {name:<34}{bytes_held / 2**20:>10.1f} MiB  {share:>6.2f} x")


def lengths(args: argparse.Namespace) -> None:
    """Time and memory of forward and backward against length."""
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    rows: dict[str, list[tuple[int, float, float]]] = {}
    length = 1024
    while length <= args.longest:
        found = window_contestants(length, 256, args.device, dtype, args.heads)
        runs = {name: both[1] for name, both in found.items()}
        times = take_turns(runs, max(args.rounds // 2, 1), args.device)
        print(f"\n  {length} tokens, forward+backward")
        for name, own in times.items():
            memory = peak_memory(runs[name], args.device) / 2**20
            rows.setdefault(name, []).append((length, statistics.median(own), memory))
            per_token = rows[name][-1][1] / length * 1e3
            print(f"    {name:<34}{rows[name][-1][1]:>10.1f} ms {per_token:>8.2f} us a token {memory:>10.1f} MiB")
        draw(rows, args.out, args.heads)  # after each length: the longest may be more than one has patience for
        length *= 2


def peak_memory(run: Run, device: str) -> int:
    """Bytes that a run holds at most beyond what was there before."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def draw(rows: dict[str, list[tuple[int, float, float]]], path: Path, heads: int) -> None:
    from matplotlib.figure import Figure

    # Okabe and Ito's colours and a marker each: told apart without colour vision and in print.
    styles = list(zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"), "osD^v", strict=True))
    figure = Figure(figsize=(10, 4), layout="constrained")
    for ax, column, label in zip(figure.subplots(1, 2), (1, 2), ("milliseconds", "MiB beyond the inputs"), strict=True):
        for (name, points), (color, marker) in zip(rows.items(), styles, strict=False):
            ax.plot([p[0] for p in points], [p[column] for p in points], marker=marker, color=color, label=name)
        ax.set(xlabel="tokens", ylabel=label)
        for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
            scale("log", base=2)
            axis.set_major_formatter("{x:,.0f}")
        ax.grid(alpha=0.3)
    ax.legend()
    figure.suptitle(f"Window(256, 256), {heads} heads of 64, forward and backward")
    figure.savefig(path, dpi=150)


def crossovers(args: argparse.Namespace) -> None:
    """Kernels against each other around the constants of plan.py."""
    print(f"  PLAIN_BELOW {plan.PLAIN_BELOW}, TILED_FROM {plan.TILED_FROM}, TILED_SHARE {plan.TILED_SHARE}")
    print(f"  of tiles: ROWS {tiled.ROWS}, COLUMNS {tiled.COLUMNS}, STEP {tiled.STEP}")
    cases: list[tuple[str, int, Mask | None]] = [
        *((f"no mask, {length}", length, None) for length in (64, 128, 256, 512, 1024)),
        *((f"Window({w}, {w}), {n}", n, Window(w, w)) for n in (256, 512, 1024) for w in (8, 32, 96)),
        *((f"Strided({s}), {n}", n, Strided(s)) for n in (256, 1024) for s in (2, 8)),
        *((f"Window2d {g} in {w}", g * g, Window2d(g, g, w, w, w // 2)) for g, w in ((8, 4), (16, 8), (32, 8))),
        *((f"Padding, {n}", n, Padding(torch.full((1,), n - 3))) for n in (256, 1024)),
    ]
    for precision in args.precision:
        if precision == "autocast":
            continue
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for name, length, mask in cases:
            shape = (max(4096 // length, 1), length, 4, 32)
            leaves = [
                torch.randn(shape, device=args.device, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)
            ]
            for dropout in (0.0, 0.1) if mask is None else (0.0,):
                runs = {kernel: kernel_pass(kernel, leaves, mask, dropout) for kernel in ("explicit", "sdpa", "banded")}
                times = take_turns(runs, args.rounds, args.device)
                medians = {kernel: statistics.median(own) for kernel, own in times.items()}
                chosen = plan.choose((shape[0], 4, length, length), leaves[0].device, dtype, mask, (), dropout).kernel
                chosen = "banded" if chosen == "strided" else chosen
                note = "" if medians[chosen] <= 1.1 * min(medians.values()) else "   <- not the fastest"
                text = " ".join(f"{kernel} {ms:8.1f}" for kernel, ms in medians.items())
                drop = f", dropout {dropout}" if dropout else ""
                print(f"    {precision} {name + drop:<30} {text}   auto: {chosen}{note}")


if __name__ == "__main__":
    main()
