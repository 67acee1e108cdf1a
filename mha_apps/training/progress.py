"""What a person sees while a model trains: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

LINE_SECONDS = 10.0


def duration(seconds: float) -> str:
    """``59 s``, ``4 min 05 s``, ``3 h 20 min``."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


class Reporter:
    """Shows one training; a context manager. Silent when ``show`` is false (all processes but the first)."""

    def __init__(self, show: bool = True) -> None:
        self.show = show
        console = Console(stderr=True)
        self.bar: Progress | None = None
        if show and console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                console=console,
                transient=True,
            )
        self.task = self.bar.add_task("starting", total=1.0) if self.bar else None
        self.last_line = time.monotonic() - LINE_SECONDS

    def __enter__(self) -> Reporter:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, text: str, progress: float, seconds_left: float) -> None:
        """Say where training stands; ``progress`` from 0 to 1."""
        if not self.show:
            return
        text = f"{text}, {duration(seconds_left)} left"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=progress, description=text)
        elif time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            print(f"{progress:4.0%} {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if not self.show:
            return
        if self.bar:
            self.bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
