"""Random numbers that depend on (seed, epoch, sample index) and on nothing else.

A counter is hashed (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
instead of a stream being consumed, so a sample is augmented alike whichever process, thread or batch handles it,
and a resumed run needs no saved generator.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The 64-bit two's complement of ``value``, which is how int64 tensors hold it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, bits: int) -> Tensor:
    # int64 has only the arithmetic shift; masking the sign bits makes it the logical one.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _hash(*words: int | Tensor) -> Tensor:
    state = torch.zeros((), dtype=torch.int64)
    for word in words:
        state = _mix((state + _GAMMA) ^ torch.as_tensor(word, dtype=torch.int64))
    return _mix(state + _GAMMA)


def derive(*words: int) -> int:
    """One seed (0 <= seed < 2**63) from several numbers, for a ``torch.Generator`` or ``torch.manual_seed``."""
    return int(_hash(*words)) & ((1 << 63) - 1)


def uniform(seed: int, epoch: int, indices: Tensor, stream: int, count: int) -> Tensor:
    """Uniform numbers for each sample.

    Args:
        seed: the run's seed.
        epoch: the epoch, from 0.
        indices: sample indices, (batch,) int64 on the CPU.
        stream: which use this is (crop, flip, ...); different streams are independent.
        count: how many numbers each sample needs.

    Returns:
        (batch, count) float32 in [0, 1).
    """
    rows = _hash(seed, epoch, stream, indices.reshape(-1, 1))
    bits = _hash(rows, torch.arange(count))
    return _shift(bits, 40).to(torch.float32) * 2.0**-24


def permutation(seed: int, epoch: int, count: int) -> Tensor:
    """The order of ``count`` samples in an epoch, (count,) int64."""
    generator = torch.Generator().manual_seed(derive(seed, epoch))
    return torch.randperm(count, generator=generator)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch: what initialises a model before the loop takes over."""
    from accelerate.utils import set_seed

    set_seed(seed)
