"""Which kernel is fastest for a mask, shapes, a dtype and a device, and what memory it takes.

Every constant is a crossover that ``benchmarks/attention.py`` measures again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .kernel import is_plain_causal
from .mask import Mask
from .pattern import Band, Pattern, covered
from .position import ScoreBias

__all__ = ["Plan", "attention_memory", "choose"]

# On a CPU the fused kernel wins over three plain steps from these key lengths on: its backward computes the weights
# again, which short rows do not repay.
SDPA_FROM = {"training": 512, "inference": 128}
# Tiles pay from this many score entries (query x key) on, where their support is at most this share of them.
TILED_FROM = 256 * 256
TILED_SHARE = 0.5
# Tiles instead of the fused kernel for a mask without structure that leaves sdpa without its fused path.
TILED_WITHOUT_FUSED_FROM = 1024


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
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()
    fused = not dropout and not (training and any(bias.tensor.requires_grad for bias in biases))
    short = device.type == "cpu" and key_length < SDPA_FROM["training" if training else "inference"]
    if mask is not None and not is_plain_causal(mask, query_length, key_length):
        pairs = query_length * key_length
        patterns, needed = _needed(mask, heads, query_length, key_length)
        if pairs >= TILED_FROM and needed <= TILED_SHARE * pairs:
            share = f"{needed / pairs:.1%} of {query_length} x {key_length} pairs are within the mask's support"
            if device.type == "cuda" and not dropout:
                return Plan("flex", f"{share}, and there is a GPU")
            steps = any(isinstance(p, Band) and p.step > 1 and p.left is None for p in patterns)
            return Plan("strided" if steps else "banded", share)
    if short and (fused or key_length < TILED_WITHOUT_FUSED_FROM):
        return Plan("explicit", f"{key_length} keys are too few to repay the fused kernel")
    if not fused and not tracing:
        if key_length < TILED_WITHOUT_FUSED_FROM:
            return Plan("explicit", "dropout or a learned bias leaves the fused kernel without its fast path")
        if device.type == "cpu":
            return Plan("banded", "tiles keep memory linear where dropout or a learned bias rules the fused kernel out")
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
    raise NotImplementedError
