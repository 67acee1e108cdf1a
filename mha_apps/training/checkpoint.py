"""Checkpoints that survive kills, full disks and bit rot.

A checkpoint is one file in ``last/`` whose name holds its step and the hash of its bytes. It is written under a
temporary name and renamed when whole; the one before it stays until then and after. Loading takes the newest
whose hash holds, so a damaged file costs the steps since the one before, not the run.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from mha_apps.errors import InputError
from mha_apps.training import files

_NAME = re.compile(r"(\d{9})-([0-9a-f]{16})\.pt")
KEEP = 2


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state`` (tensors, numbers, strings, lists, dicts) as the checkpoint of ``step``, and drop old ones."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    path = folder / f"{step:09d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    with files.disk_errors(folder):
        folder.mkdir(exist_ok=True)
    files.replace(path, lambda file: file.write(content))
    for old in _listed(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def load(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that is whole, or None, and a line about each damaged one that was passed over.

    Raises:
        InputError: there are checkpoints, and none is whole.
    """
    damaged: list[str] = []
    paths = _listed(folder)
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            damaged.append(f"{path}: cannot be read ({error.strerror}); passed over")
            continue
        if hashlib.sha256(content).hexdigest()[:16] == path.stem[-16:]:
            return _decode(path, content), damaged
        damaged.append(f"{path}: damaged (its bytes do not match the hash in its name); passed over")
    if paths:
        raise InputError(
            f"{folder}: every checkpoint is damaged; the best weights are in {folder.parent / 'model'}, "
            "train again with another --out"
        )
    return None, damaged


def _decode(path: Path, content: bytes) -> dict[str, Any]:
    try:
        # weights_only refuses anything but tensors and plain containers: no code runs from a file.
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{path}: is not a checkpoint of this package and was not opened; remove it") from error


def _listed(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(named, key=lambda path: (path.name[:9], path.stat().st_mtime), reverse=True)
