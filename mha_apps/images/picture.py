"""Pictures that explain a classifier: where they are written, and images of any number of channels made visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.training.run import Run

__all__ = ["picture_path", "visible"]


def picture_path(out: str | Path | None, run: Run, name: str) -> Path:
    """The PNG that ``--out`` names, or ``plots/NAME`` of the run. Asked before the work, which may be long.

    Raises:
        InputError: ``out`` does not end in ``.png``, or is a folder.
    """
    if out is None:
        return run.path / "plots" / name
    path = Path(out).expanduser()
    if path.suffix.lower() != ".png" or path.is_dir():
        what = "is a folder" if path.is_dir() else "does not end in .png"
        raise InputError(f"--out {out}: {what}; name the picture to write, such as {name}")
    return path


def visible(image: Tensor) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """An image (channels, height, width) uint8 as matplotlib's ``imshow`` takes it, with the arguments to give.

    Three channels are colours, of more the first three; of one or two the first is shown in grey.
    """
    pixels = image.cpu().numpy()
    if len(pixels) < 3:
        return pixels[0], {"cmap": "gray", "vmin": 0, "vmax": 255}
    return np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)), {}
