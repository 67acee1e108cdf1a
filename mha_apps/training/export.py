"""What exports of every application share: a folder that is filled at once or not at all, and the packages of ONNX."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mha_apps.errors import InputError, warn
from mha_apps.training import files

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mha_apps.training.run import Run

__all__ = ["exported", "require_onnx", "settings", "write_onnx"]

CARD = "README.md"
OURS = "library_name: mha_apps"
"""A line at the top of every model card; a folder with such a card holds an export."""
NAMES = (CARD, "config.json", "model.safetensors", "artifacts.safetensors", "model.onnx")
"""What an export may consist of."""


def require_onnx() -> None:
    """Raise InputError where a package of the extra ``export`` is missing, or is there and cannot be imported."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{error.name or name} is missing; pip install 'mha_apps[export]', or do without with --no-onnx"
            ) from error
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{name} is installed and cannot be imported ({reason}); install it anew, or do without with --no-onnx"
            ) from error


def write_onnx(module: nn.Module, inputs: dict[str, Tensor], outputs: list[str], path: Path) -> None:
    """Write ``module`` as a graph for any batch; ``inputs`` are examples of two, by its arguments."""
    import torch

    batch = torch.export.Dim("batch")
    with files.disk_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter about itself
        torch.onnx.export(
            module,
            (),
            path,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes={name: {0: batch} for name in inputs},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def settings(run: Run, *left_out: str) -> str:
    """The recipe of ``run`` as a list for its card, in which a path is its last part: a card tells of no machine."""
    lines = []
    for name, value in run.config["recipe"].items():
        if name not in left_out:
            lines.append(f"- {name}: {Path(value).name if Path(str(value)).is_absolute() else value}")
    return "\n".join(lines)


@contextmanager
def exported(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to write an export into, whose files go to ``folder`` together when the block ends without an error.

    An export that ``folder`` holds is replaced as a whole, so that no file of it lies beside those of another; a
    warning names what is gone. Files that are no part of an export are left alone.

    Args:
        folder: made when it is not there.
        force: replace files of the same names that no export wrote.

    Raises:
        InputError: there are such files and ``force`` is not set, or the folder cannot be written.
    """
    _check(folder, force)
    with files.disk_errors(folder):
        before = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    try:
        yield new
        with files.disk_errors(folder):
            written = {path.name for path in new.iterdir()}
            # The card goes first and comes last: without it a folder that a kill left half replaced is no export.
            for name in (CARD, *(name for name in NAMES if name not in written)):
                if (folder / name).exists():
                    (folder / name).unlink()
                    if name not in written:
                        warn(f"{folder / name}: was of another export, and is removed")
            for name in sorted(written, key=lambda name: name == CARD):
                files.sync(new / name)
                (new / name).replace(folder / name)
    finally:
        files.remove(new)
        if not before and not any(folder.iterdir()):
            folder.rmdir()


def _check(folder: Path, force: bool) -> None:
    with files.disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; name a folder with --out")
        if force or is_export(folder):
            return
        strange = next((folder / name for name in NAMES if (folder / name).exists()), None)
    if strange is not None:
        raise InputError(f"{strange}: no export wrote it; name another folder with --out, or replace it with --force")


def is_export(folder: Path) -> bool:
    """Whether ``folder`` holds what an export wrote."""
    card = folder / CARD
    return card.is_file() and OURS in card.read_text(encoding="utf-8", errors="replace").splitlines()[:20]
