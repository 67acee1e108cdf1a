"""What a reader may be told: one dataclass behind the keyword arguments and the command-line flags.

Nothing here imports pandas, so that the command line can show its help at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mha_apps.errors import InputError


@dataclass(kw_only=True)
class ReadOptions:
    """How to read sensor data. Every field has a default that lets the data decide."""

    naming: ClassVar[tuple[str, ...]] = ("time", "columns", "series")
    """Fields that list names, none of which may be there twice."""
    valued: ClassVar[tuple[str, ...]] = ()
    """Those of them that list values, NAME=VALUE for one name."""

    tz: str | None = None
    """Time zone of the clock that wrote the times, such as Europe/Berlin. Times that already carry a zone are
    converted to it."""
    dayfirst: bool | None = None
    """Whether 03/04/2024 is the third of April. Decided from the data where they decide it."""
    freq: str | None = None
    """Step of the grid, such as 15min, 1h, D, W-SUN, MS or B. The step that the data show is taken otherwise."""
    aggregate: Literal["mean", "sum", "last"] | None = None
    """How several values become one where ``freq`` is coarser than the data."""
    duplicates: Literal["last", "first", "mean"] = "last"
    """Which of several different rows with the same time counts."""
    missing: tuple[str, ...] = ()
    """Values to take as missing besides those found, such as -1, or 'flow=0' for one column only."""
    keep: tuple[str, ...] = ()
    """Values never to take as missing, such as 9999, or 'counter=9999' for one column only."""
    time: tuple[str, ...] = ()
    """Column or columns that hold the time, by name (or by number, from 1)."""
    time_format: str | None = None
    """strptime format of the time, such as '%d.%m.%y %H.%M'."""
    columns: tuple[str, ...] = ()
    """Value columns to read, by name. All numeric columns otherwise."""
    series: tuple[str, ...] = ()
    """Column or columns that name the sensor, where each row holds the value of one sensor."""
    delimiter: str | None = None
    """Character between two fields; 'space' for runs of blanks."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign."""
    encoding: str | None = None
    """Encoding of the text, such as utf-8 or latin-1."""
    layout: Literal["auto", "wide", "long"] = "auto"
    """One column a sensor (wide), or columns unique_id, ds, y (long). Wide where that is dense."""

    def check(self) -> None:
        """Raises :class:`InputError` for a value that no reading could use."""
        for name in ("tz", "freq", "time_format", "delimiter", "encoding"):
            if getattr(self, name) == "":
                raise InputError(f"--{name.replace('_', '-')} '': is empty; give a value, or leave it out")
        for field in self.naming:
            valued, known = field in self.valued, set()
            for word in getattr(self, field):
                name = word.rpartition("=")[0] if valued else word
                if name in known:
                    what = f"{name!r} is named twice" if name or not valued else "every sensor has two values"
                    raise InputError(f"--{field}: {what}; {'give one value' if valued else 'name it once'}")
                known.add(name)
        for name, allowed in (
            ("aggregate", (None, "mean", "sum", "last")),
            ("duplicates", ("last", "first", "mean")),
            ("layout", ("auto", "wide", "long")),
            ("decimal", (None, ".", ",")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                words = ", ".join(str(word) for word in allowed if word is not None)
                raise InputError(f"--{name} {value!r}: not known; pass one of {words}")
