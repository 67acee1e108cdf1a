"""Writing files so that a kill or a full disk leaves either the old content or the new, never a half."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mha_apps.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TEMPORARY = ".*.tmp"  # what :func:`replace` calls a file until it is whole


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error on ``path`` (disk full, no permission) into one clear line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason}); what was there before is untouched") from error


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it over ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_names(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def replace_text(path: Path, text: str) -> None:
    """:func:`replace` for text, as UTF-8."""
    replace(path, lambda file: file.write(text.encode()))


def save_picture(figure: Figure, path: Path, *, dpi: int = 120) -> None:
    """Write the figure as a PNG, making its folder where there is none.

    Raises:
        InputError: it cannot be written there.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, format="png")


def located(path: str | Path) -> str:
    """How a run records the path of data, however it is spelled, so that it is found from any folder.

    A link is not followed: it may come to point at newer data, and what it points at may have a name without a suffix.
    """
    return os.path.abspath(Path(path).expanduser())


def sync(path: Path) -> None:
    """Make sure that a file that something else wrote is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_names(folder: Path) -> None:
    """Make sure that a new name is on the disk, where the system can: a loss of power could take it back."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, or a file, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def json_text(data: Any, *, indent: int | None = None) -> str:
    """``data`` as JSON; numbers that JSON does not have (nan, inf) become null, and what it does not know is text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float):
            return value + 0.0 if math.isfinite(value) else None  # minus zero is zero
        return value

    return json.dumps(plain(data), allow_nan=False, default=str, indent=indent)


def clear(folder: Path) -> None:
    """Remove the temporary files that a kill has left in ``folder`` and below."""
    for path in folder.rglob(TEMPORARY):
        path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether :func:`replace` gave the file its name, and a kill has left it."""
    return path.match(TEMPORARY)
