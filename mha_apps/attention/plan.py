"""Which kernel is fastest for a mask, shapes, a dtype and a device, and what memory it takes.

Every constant is a crossover that ``benchmarks/attention.py`` measures again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .kernel import CPU_HAS_BF16_UNITS, HALF, has_half_units, is_plain_causal
from .mask import Dense, Mask
from .pattern import Band, Pattern, covered
from .position import ScoreBias
from .tiled import step_sizes

__all__ = ["Plan", "attention_memory", "choose"]

# On a CPU with bfloat16 units the fused kernel's backward pass loses to three plain steps below this many keys; so
# it does everywhere when dropout or a learned bias takes its fast path away, and from there on tiles win.
PLAIN_BELOW = 192
# Tiles pay from this many score entries (query x key) on, where their support is at most this share of them.
TILED_FROM = 256 * 256
TILED_SHARE = 0.45
# From this many entries on a mask is not made as a matrix at all.
NO_MATRIX_FROM = 2**28


@dataclass(frozen=True)
class Plan:
    """A kernel, and why: ``str(plan)`` is the sentence."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.reason}"


def choose(
    shape: tuple[int, int, int, int],
    device: torch.device,
    dtype: torch.dtype,
    mask: Mask | None = None,
    biases: Sequence[ScoreBias] = (),
    dropout: float = 0.0,
    training: bool = True,
) -> Plan:
    """The kernel expected to be fastest.

    Args:
        shape: (batch, heads, query_length, key_length).
        device: where the tensors are.
        dtype: their dtype.
        mask, biases, dropout: as the kernels take them.
        training: whether gradients are needed.
    """
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        return Plan("explicit", "an exported graph takes plain operators and any length")
    _, heads, query_length, key_length = shape
    fused = not dropout and not (training and any(bias.tensor.requires_grad for bias in biases))
    pairs = query_length * key_length
    if mask is not None and not is_plain_causal(mask, query_length, key_length):
        patterns, needed = _needed(mask, heads, query_length, key_length)
        if pairs >= TILED_FROM and needed <= TILED_SHARE * pairs:
            share = f"{needed / pairs:.1%} of {query_length} x {key_length} pairs are in the mask's support"
            if device.type == "cuda" and not dropout:
                return Plan("flex", f"{share}, and there is a GPU")
            steps = any(isinstance(p, Band) and p.step > 1 and p.left is None for p in patterns)
            return Plan("strided" if steps else "banded", share)
        if pairs >= NO_MATRIX_FROM:
            return Plan("banded", f"a mask of {query_length} x {key_length} is too large to be made")
    if not fused and device.type == "cpu":
        why = "dropout or a learned bias takes the fused kernel's fast path away"
        kernel = "explicit" if key_length < PLAIN_BELOW else "banded"
        return Plan(kernel, f"{why}, and there are {key_length} keys")
    half = dtype in HALF and device.type == "cpu" and has_half_units(device)
    if half and training and key_length < PLAIN_BELOW:
        return Plan("explicit", f"the fused kernel's backward pass is slow with as few as {key_length} keys")
    return Plan("sdpa", f"the fused kernel is fastest at {query_length} x {key_length}")


def _needed(mask: Mask, heads: int, query_length: int, key_length: int) -> tuple[list[Pattern], float]:
    """The patterns of all groups of heads, and how many pairs a head needs on average."""
    mask = mask.for_heads(heads)
    group = heads // mask.head_groups()
    patterns: list[Pattern] = []
    needed = 0
    for start in range(0, heads, group):
        own = mask.head_slice(start, start + group).support(query_length, key_length)
        patterns += own
        needed += min(covered(own, query_length, key_length), query_length * key_length) * group
    return patterns, needed / heads


def attention_memory(
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    head_dim: int,
    dtype: torch.dtype,
    kernel: str,
    mask: Mask | None = None,
    training: bool = True,
) -> int:
    """Bytes that a kernel needs at most beyond its inputs on a CPU: results, gradients and what is in between.

    Args:
        batch, heads, query_length, key_length, head_dim: of queries and keys; values are like keys.
        dtype: of the inputs.
        kernel: "explicit", "sdpa", "banded" or "strided".
        mask: who may attend to whom.
        training: forward and backward, or forward alone.

    Raises:
        ValueError: a kernel that is none of these.
    """
    queries, keys = batch * heads * query_length * head_dim, batch * heads * key_length * head_dim
    inputs = queries + 2 * keys
    raised = dtype in HALF and not CPU_HAS_BF16_UNITS  # such kernels compute in float32 and convert
    own = torch.empty((), dtype=dtype).element_size()
    size = max(own, 4)
    if kernel in ("banded", "strided"):
        needed = size * queries + (own * queries if dtype in HALF else 0)
        if training:
            needed += size * inputs
        steps = step_sizes(batch, heads, query_length, key_length, mask, torch.device("cpu"))
        return needed + max(
            (
                size * ((2 if training else 1) * scores + (2 * rows if training else rows) * head_dim)
                + (size * (3 if training else 1) * columns * head_dim if copied or dtype in HALF else 0)
                + (0 if mask is None or mask.key_only(query_length) else (10 if mask.relative else 4) * block)
                for scores, rows, columns, block, copied in steps
            ),
            default=0,
        )
    pairs = query_length * key_length
    matrix, mask_heads = 0, 1
    if mask is not None and not (kernel == "sdpa" and is_plain_causal(mask, query_length, key_length)):
        corner = torch.arange(1)
        varied = mask.at(corner, corner, query_length, key_length, heads).shape
        mask_heads = varied[1]
        matrix = varied[0] * mask_heads * pairs
    if kernel == "explicit":
        scores = batch * heads * pairs
        if dtype in HALF and not raised:
            return scores * (14 if training else 10) + own * 2 * (queries + keys) + matrix
        needed = size * scores * (3 if training else 2) + size * 2 * queries + (size * 2 * keys if training else 0)
        return needed + matrix + (size * 2 * keys if raised and not training else 0)
    if kernel != "sdpa":
        raise ValueError(f"memory is known for explicit, sdpa, banded and strided, not for {kernel!r}")
    block = min(256 if query_length >= 768 else 64 if query_length >= 192 else 32, query_length)
    buffer = torch.get_num_threads() * block * min(512, key_length)
    if not training:
        made = mask is not None and not isinstance(mask, Dense) and not mask.key_only(query_length)
        bools = 2 * matrix if made else matrix
        return own * queries + (4 if own >= 4 else 6) * buffer + own * matrix + bools
    kept = size if raised else own
    needed = kept * (queries + inputs) + 2 * size * buffer + matrix
    if matrix:
        needed += kept * batch * mask_heads * pairs  # the backward pass expands it
    if raised:
        needed += size * (inputs + queries) + own * queries
    return needed
