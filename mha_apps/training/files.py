"""Writing files so that a kill or a full disk leaves either the old content or the new, never a half."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mha_apps.errors import InputError


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


def clear(folder: Path) -> None:
    """Remove the temporary files that a kill has left in ``folder`` and below."""
    for leftover in folder.rglob(".*.tmp"):
        leftover.unlink(missing_ok=True)
