"""The order of day, month and year in dates such as 03/04/24: what the dates allow, what is said, what is regular."""

from __future__ import annotations

import re
import time

import numpy as np

from mha_apps.errors import InputError

from .look import Look
from .timetext import DAY, SECOND, TimeText

_ORDER_WORDS = (
    ("dmy", re.compile(r"(?<![a-z])(?:dd?|tt|jj|gg)\s?[-/. ]\s?mm?\s?[-/. ]\s?(?:yy|jj|aa)", re.I)),
    ("mdy", re.compile(r"(?<![a-z])mm?\s?[-/. ]\s?dd?\s?[-/. ]\s?yy", re.I)),
    ("ymd", re.compile(r"(?<![a-z])(?:yy|jj|aa)(?:yy|jj|aa)?\s?[-/. ]\s?mm?\s?[-/. ]\s?(?:dd|tt|jj)", re.I)),
)
"""Orders that a header spells out, such as DD/MM/YYYY or tt.mm.jjjj."""


def date_order(look: Look, k: int, text: TimeText) -> tuple[str, str | None]:
    """The order of day, month and year: what all dates allow, else what makes the series regular."""
    numeric_dates = [layout for layout, _, _ in text.groups if layout.form == "abc"]
    if not numeric_dates:
        bad = text.misfits("ymd")
        if bad and text.misfits("ydm") < bad / 10:
            return "ydm", "dates are year-day-month"
        return "ymd", None
    if look.options.dayfirst is not None:
        return ("dmy" if look.options.dayfirst else "mdy"), None
    short = any(end - start == 2 for layout in numeric_dates for name, start, end in layout.digits if name == "c")
    orders = ["dmy", "mdy"] + ["ymd"] * short
    misfits = {order: text.misfits(order) for order in orders}
    least = min(misfits.values())
    left = [order for order in orders if misfits[order] == least]
    note = f"{least} dates fit no order that the others allow" if least and len(left) == 1 else None
    if len(left) == 1:
        return left[0], note
    words = [look.name(k), look.table.units[k] or "" if k < len(look.table.units) else "", *look.table.comments[-20:]]
    stated = next((order for order, pattern in _ORDER_WORDS if any(pattern.search(word) for word in words)), None)
    if stated in left:
        return stated, f"the order of day and month is stated above the data ({stated})"
    left = [order for order in left if not (order == "ymd" and len(left) > 1 and _unlikely_year(text))]
    if len(left) == 1:
        return left[0], note
    if all(layout.dotted for layout in numeric_dates) and "dmy" in left:
        return "dmy", "dates with dots were read day first, as they are written everywhere (--dayfirst tells)"
    read = {order: text.instants(order) for order in left}
    first = read[left[0]]
    if all(np.array_equal(first.wall[first.ok], other.wall[other.ok]) for other in read.values()):
        return left[0], None
    even = {order: evenness(found.wall[found.ok]) for order, found in read.items()}
    ranked = sorted(left, key=lambda order: even[order], reverse=True)
    (fill, steady), (other_fill, other_steady) = even[ranked[0]], even[ranked[1]]
    if (fill >= 0.5 and other_fill <= 0.3 * fill) or (steady and not other_steady and fill >= other_fill):
        alone = {"dmy": "day first", "mdy": "month first", "ymd": "year first"}[ranked[0]]
        return ranked[
            0
        ], f"no date decides the order of day and month; read {alone}, which alone makes a regular series"
    row = int(np.flatnonzero(first.ok)[0])
    column = look.table.columns[k]
    example = column[row].as_py().strip()
    raise InputError(
        f"{look.table.account.place(row)}: {example!r} in {look.name(k)!r} may be day or month first, and no date in "
        "the file decides it; pass --dayfirst or --no-dayfirst"
    )


def _unlikely_year(text: TimeText) -> bool:
    """Whether years would lie ahead, or change more often than days, if dates were read year first."""
    found = text.instants("ymd")
    if found.ok.any() and int(found.wall[found.ok].min()) > (time.time() + 366 * 86_400) * SECOND:
        return True
    days = (found.wall[found.ok] // DAY).astype("datetime64[D]")
    years, months = days.astype("datetime64[Y]"), days.astype("datetime64[M]")
    day = (days - months.astype("datetime64[D]")).astype(np.int64)
    return int(np.count_nonzero(np.diff(years))) > int(np.count_nonzero(np.diff(day)))


def evenness(wall: np.ndarray) -> tuple[float, bool]:
    """How full the span is at the usual step, and whether the rows are in order."""
    times = np.unique(wall)
    if len(times) < 3:
        return 0.0, True
    step = float(np.median(np.diff(times)))
    if len(wall) >= 4 * len(times) and np.all(times % DAY == 0):
        step = float(DAY)  # many rows a date: the clock stands in another column, and days follow each other
    forward = np.diff(wall)
    return min(1.0, (len(times) - 1) * step / float(times[-1] - times[0])), bool(
        np.all(forward >= 0) or np.all(forward <= 0)
    )
