"""SIGINT and SIGTERM ask a training to save and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mha_apps.training import processes


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT ends the process at once.

    Of several processes each gets the terminal's SIGINT and its launcher's after it: there the second does nothing, and
    the launcher ends by force what does not end.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals can be had in the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        stop.set()
        if processes.count() == 1:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
