"""The account of a reading: what was read, what was used, and what was set aside and why."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class ReadingReport:
    """What was read and what became of it; ``rows_read == rows_used + sum(set_aside.values())``, cells alike."""

    source: str
    step: str = ""
    zone: str | None = None
    rows_read: int = 0
    rows_used: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    cells_read: int = 0
    cells_used: int = 0
    cells_set_aside: dict[str, int] = field(default_factory=dict)
