"""What one source holds, before it is put on a grid."""

from __future__ import annotations

import dataclasses

from .look import Times
from .report import ColumnReport
from .series import Block
from .sources import Source
from .table import Table


@dataclasses.dataclass
class Reading:
    """What one source holds, before it is put on a grid."""

    source: Source
    table: Table
    times: Times
    block: Block
    decimal: str
    left_out: list[ColumnReport]
    repeated: int = 0
    offsets: list[str] = dataclasses.field(default_factory=list)
    """The offsets from UTC that stand with the times, where they do."""
