"""When the work began that a budget in minutes pays for: with the command, or with the call of ``train`` in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_begun: float | None = None


@contextmanager
def counting_from(begun: float | None = None) -> Iterator[None]:
    """Inside, minutes count from here, or from ``begun`` (as of ``time.time``); from where they do already, if so.

    Reading data and building a model are part of what a user waits for, so each ``train`` begins with this; the command
    line begins with the start of its process.
    """
    global _begun
    outer = _begun
    _begun = outer if outer is not None else time.time() if begun is None else begun
    try:
        yield
    finally:
        _begun = outer


def seconds_counted() -> float:
    """Seconds since the work began; 0 where nothing counts."""
    return time.time() - _begun if _begun is not None else 0.0
