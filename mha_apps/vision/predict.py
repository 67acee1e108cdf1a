"""Classes of image files with a trained ViT: files, folders and globs, in batches, one row for each image."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.images.classify import predict_probabilities
from mha_apps.images.decode import EXTENSIONS, Unreadable, decode_all
from mha_apps.training.run import Run
from mha_apps.vision.model import ViT, load_model

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_images", "predict", "predict_rows"]


def predict(
    run: Run | str | Path | ViT,
    inputs: str | Path | Sequence[str | Path],
    *,
    top_k: int = 1,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 128,
) -> pd.DataFrame:
    """The most likely classes of each image.

    Args:
        run: the run folder, or the model itself.
        inputs: files, folders (all images in them, at any depth) and globs.
        top_k: how many classes to give.

    Returns:
        one row for each file, in the order of ``inputs`` and sorted inside a folder: ``file``; ``class`` and
        ``probability``, then ``class_2``, ``probability_2``, ... up to ``top_k``; and ``reason``, which says why an
        image could not be read and is empty for all others.

    Raises:
        InputError: an input that does not exist, a folder without images, no run in the folder.
    """
    import pandas as pd

    rows = predict_rows(run, inputs, top_k=top_k, device=device, precision=precision, batch_size=batch_size)
    return pd.DataFrame(rows, columns=_columns(top_k))


def predict_rows(
    run: Run | str | Path | ViT,
    inputs: str | Path | Sequence[str | Path],
    *,
    top_k: int = 1,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 128,
) -> Iterator[dict[str, Any]]:
    """:func:`predict` row by row, for more images than a table should hold."""
    if batch_size < 1:
        raise InputError(f"--batch-size {batch_size}: must be at least 1")
    files = find_images(inputs)
    model = run if isinstance(run, ViT) else load_model(run)
    if not 1 <= top_k <= len(model.classes):
        raise InputError(f"--top {top_k}: the model has {len(model.classes)} classes, give 1 to {len(model.classes)}")
    columns = _columns(top_k)
    decoded = zip(files, decode_all(files, size=model.image_size, channels=model.channels), strict=True)
    while chunk := list(islice(decoded, batch_size)):
        good = [image for _, image in chunk if not isinstance(image, Unreadable)]
        answers: Iterator[tuple[list[float], list[int]]] = iter(())
        if good:
            images = torch.from_numpy(np.stack(good))
            answers = _top(model, images, top_k, device, precision, batch_size)
        for file, image in chunk:
            row: dict[str, Any] = dict.fromkeys(columns)
            row["file"], row["reason"] = str(file), ""
            if isinstance(image, Unreadable):
                row["reason"] = image.reason
            else:
                for place, (probability, number) in enumerate(zip(*next(answers), strict=True)):
                    row[columns[1 + 2 * place]] = model.classes[number]
                    row[columns[2 + 2 * place]] = probability
            yield row


def _top(
    model: ViT, images: Tensor, top_k: int, device: str, precision: str, batch_size: int
) -> Iterator[tuple[list[float], list[int]]]:
    probabilities = predict_probabilities(
        model, images, mean=model.mean, std=model.std, device=device, precision=precision, batch_size=batch_size
    )
    values, numbers = probabilities.topk(top_k, dim=1)
    return zip(values.tolist(), numbers.tolist(), strict=True)


def _columns(top_k: int) -> list[str]:
    ranks = [""] + [f"_{rank}" for rank in range(2, top_k + 1)]
    return ["file", *(name + rank for rank in ranks for name in ("class", "probability")), "reason"]


def find_images(inputs: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that ``inputs`` name. A file named outright is taken whatever its name ends in.

    Raises:
        InputError: nothing is there.
    """
    found: list[Path] = []
    for item in [inputs] if isinstance(inputs, str | Path) else inputs:
        path = Path(item).expanduser()
        if path.is_dir():
            named = (file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS)
            inside = sorted(file for file in named if not file.is_dir())  # a link to nothing has its row too
            if not inside:
                raise InputError(f"{item}: a folder without images; they end in {', '.join(sorted(EXTENSIONS))}")
            found += inside
        elif path.exists():
            found.append(path)
        elif matches := sorted(glob.glob(str(path), recursive=True)):
            found += [Path(match) for match in matches if Path(match).is_file()]
        else:
            raise InputError(f"{item}: no such file, and no file fits it as a pattern; name images, folders or globs")
    if not found:
        raise InputError("no images: name files, folders or globs")
    return found
