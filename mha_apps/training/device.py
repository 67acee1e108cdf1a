"""Where and in which arithmetic a model runs: the answers to ``--device`` and ``--precision``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from mha_apps.errors import InputError


def resolve_device(name: str = "auto") -> torch.device:
    """``auto`` is CUDA, else Apple's MPS, else the CPU. A device that is asked for and absent is an InputError."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, present in available.items() if present)
    if not available.get(name, False):
        raise InputError(f"--device {name}: torch finds none on this machine; use --device auto or cpu")
    return torch.device(name)


def cpu_has_bf16_matrix_units() -> bool:
    """Whether bf16 matrix products have their own units (AMX) and not only an emulation that is slower than fp32."""
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe and probe())


def resolve_precision(name: str, device: torch.device) -> str:
    """``fp32``, ``bf16`` or ``fp16``. Nothing is measured: ``auto`` is bf16 where the hardware multiplies in it."""
    if name != "auto":
        if name == "fp16" and device.type == "cpu":
            raise InputError("--precision fp16: slow and prone to overflow on a CPU; use bf16 or fp32")
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu" and cpu_has_bf16_matrix_units():
        return "bf16"
    return "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which to run a model for evaluation or prediction; nothing changes for ``fp32``."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[precision])
