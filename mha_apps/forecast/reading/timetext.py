"""From the text of times to instants, without a list of formats.

The *shape* of a time is its text with every digit written as 0, such as ``0000-00-00 00:00``. A column has few shapes,
so each is understood once (:func:`layout_of`), and all times of that shape are then read by position in NumPy. Any
order, separator, month name, AM/PM mark, fraction, zone or interval is thus a matter of understanding one short string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .words import CLOCK_AM, CLOCK_PM, MANY_ZONES, MONTHS, ZONE_OFFSETS

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
"""Instants are whole microseconds since 1970, in int64."""

FIRST_YEAR, LAST_YEAR = 1800, 2200
MOST_SHAPES = 2000
LONGEST = 120
"""Bytes of a time; two with long zone names make an interval."""
_OTHER_BLANKS = tuple(sign.encode() for sign in "\u00a0\u202f\u2009\u3000")
_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))


class Layout(NamedTuple):
    """Where the parts of a time stand in a text of one shape."""

    digits: tuple[tuple[str, int, int], ...]
    """Name of a part, and the bytes from and to which its digits stand."""
    form: str
    """How the date is written: ymd, abc (order open), ym, yj (day of year), yw (week), yq, yh (half year), y, none."""
    clock: bool
    month: int = 0
    afternoon: bool | None = None
    zone: str | None = None
    """Zone name or abbreviation; ``+`` or ``-`` where digits of an offset follow."""
    interval: bool = False
    dotted: bool = False
    place: str | None = None
    """Zone name that follows an offset, as in ``+01:00[Europe/Berlin]``."""

    @property
    def dated(self) -> bool:
        return self.form != "none"


_SEP = rb"[-/.\s]"
_END = rb"(?!0)"
_WORD = rb"(?P<word>[A-Za-z\x80-\xff]+)\.?"
_TH = rb"(?:st|nd|rd|th|\.|\xc2\xba|er)?"
_OF = rb"(?:[\s,./-]+|\s+de[l]?\s+|\s+of\s+)"

_QUARTER = rb"(?:[Qq]uartal|[Qq]uarter|[Qq]tr|[Tt]rimestre|[Kk]wartaal|[Kk]vartal)"
# Tried in this order; the first that lets the rest of the text be understood too is taken.
_DATES: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (form, re.compile(pattern))
    for form, pattern in (
        ("ymd", rb"(?P<y>0000)(?P<s>[-/.\s])\s?(?P<m>00?)(?P=s)\s?(?P<d>00?)" + _END),
        ("ymd", rb"(?P<y>0000)\xe5\xb9\xb4\s?(?P<m>00?)\xe6\x9c\x88\s?(?P<d>00?)\xe6\x97\xa5"),
        ("ymd", rb"(?P<y>0000)\s?(?:\xeb\x85\x84)\s?(?P<m>00?)\s?(?:\xec\x9b\x94)\s?(?P<d>00?)\s?(?:\xec\x9d\xbc)"),
        ("abc", rb"(?P<a>00?)(?P<s>[-/.\s])\s?(?P<b>00?)(?P=s)\s?(?P<c>0000|00)" + _END),
        ("named", rb"(?P<d>00?)" + _TH + rb"(?:" + _OF + rb")?" + _WORD + rb"(?:" + _OF + rb")?(?P<y>0000|00)" + _END),
        ("named", _WORD + rb"[\s.-]*(?P<d>00?)" + _TH + rb"[\s,-]+(?P<y>0000)" + _END),
        ("named", rb"(?P<y>0000)" + _SEP + _WORD + _SEP + rb"?(?P<d>00?)" + _END),
        ("ymd", rb"(?P<y>0000)(?P<m>00)(?P<d>00)" + _END),
        ("yw", rb"(?P<y>0000)[-\s]?(?:W|w|KW|kw|CW)[-\s]?(?P<w>00?)(?:-(?P<wd>0))?" + _END),
        ("yw", rb"(?P<y>0000)W(?P<w>00)(?P<wd>0)" + _END),
        ("yw", rb"(?:W|KW|CW|Week)\s?-?(?P<w>00?)[\s/.,-]+(?P<y>0000)" + _END),
        ("yq", rb"(?P<y>0000)[-\s/]?[QqTK](?P<q>0)" + _END),
        ("yq", rb"[QqTK](?P<q>0)[-\s/.]+(?P<y>0000)" + _END),
        ("yq", rb"(?P<q>0)(?:\.|er|e|[\xc2\xba]+)?\s?" + _QUARTER + rb"[\s/.-]+(?P<y>0000)" + _END),
        ("yq", rb"(?P<y>0000)[\s/.-]+" + _QUARTER + rb"\s?(?P<q>0)" + _END),
        ("yh", rb"(?P<y>0000)[-\s/]?[HhSs](?P<h>0)" + _END),
        ("yh", rb"[HhSs](?P<h>0)[-\s/.]+(?P<y>0000)" + _END),
        ("ym", rb"(?P<y>0000)[-/.M](?P<m>00?)" + _END),
        ("ym", rb"(?P<m>00?)[-/.](?P<y>0000)" + _END),
        ("namedmonth", _WORD + rb"[\s,/-]+(?P<y>0000|00)" + _END),
        ("namedmonth", rb"(?P<y>0000)[\s-]+" + _WORD),
        ("yj", rb"(?P<y>0000)[-/.\s](?P<j>000)" + _END),
        ("yj", rb"(?P<y>0000)(?P<j>000)" + _END),
        ("ym", rb"(?P<y>0000)(?P<m>00)" + _END),
        ("y", rb"(?P<y>0000)" + _END),
        # compact date and clock in one run of digits
        ("ymdHMS", rb"(?P<y>0000)(?P<m>00)(?P<d>00)(?P<H>00)(?P<M>00)(?P<S>00)(?:[.,]?(?P<f>0{1,6}))?" + _END),
        ("ymdHMS", rb"(?P<y>0000)(?P<m>00)(?P<d>00)(?P<H>00)(?P<M>00)" + _END),
        ("ymdHMS", rb"(?P<y>0000)(?P<m>00)(?P<d>00)(?P<H>00)(?::(?P<M>00))?" + _END),
    )
)
_CLOCKS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?P<H>00?)\s?[:.hH]\s?(?P<M>00?)(?:\s?[:.m']\s?(?P<S>00?)(?:[.,:](?P<f>0{1,9}))?)?"
        + _END
        + rb"(?:\s?[sm]\b|min)?",
        rb"(?P<H>00?)-(?P<M>00)-(?P<S>00)" + _END,
        rb"(?P<H>00?)\xe6\x97\xb6\s?(?P<M>00?)\xe5\x88\x86(?:\s?(?P<S>00?)\xe7\xa7\x92)?",
        rb"(?P<H>00?)\xe6\x99\x82\s?(?P<M>00?)\xe5\x88\x86(?:\s?(?P<S>00?)\xe7\xa7\x92)?",
        rb"(?P<H>00?)(?=\s*(?:[hH]|[Uu]hr|[aApP]\.?\s*[mM])\b)",
        rb"(?P<H>00)(?P<M>00)(?:(?P<S>00)(?:[.,](?P<f>0{1,9}))?)?" + _END,
        rb"(?P<H>00)" + _END,
    )
)
_JOIN = re.compile(rb"\s*[T_,;]\s*|\s+-\s+|\s+(?:at|um|kl\.?|\xc3\xa0)\s+|\s+|[-:]", re.I)
_SUFFIX = re.compile(rb"\s*(?:[Uu]hr|h|H|hrs|hs)\b\.?")
_HALF = re.compile(
    rb"\s*(?P<half>[aApP](?:\.?\s*[mM]\b\.?|\b)|nachm\.|vorm\.|\xe4\xb8\x8b\xe5\x8d\x88|\xe4\xb8\x8a\xe5\x8d\x88)"
)
_OFFSET = re.compile(rb"\s*(?:UTC|GMT)?(?P<sign>[+-]|\xe2\x88\x92)(?P<zh>00?)(?::?(?P<zm>00))?" + _END)
_PLACE = re.compile(rb"\s*[\[(]?(?P<zone>[A-Z][A-Za-z_]+/[A-Z][A-Za-z_/-]+)[\])]?")
_ABBREVIATION = re.compile(rb"\s*[\[(]?(?P<zone>[A-Za-z]{1,5})(?:/[A-Za-z]{3,4})?[\])]?")
_REMARK = re.compile(rb"\s*\([A-Za-z\x80-\xff][A-Za-z\x80-\xff .'-]*\)")
"""What a browser writes behind an offset: GMT+0100 (Central European Standard Time)."""
_UNTIL = re.compile(
    rb"\s*(?:-|\xe2\x80\x93|\xe2\x80\x94|\xe2\x88\x92|/|to|bis|until|\xc3\xa0|\.\.|~)\s*(?=0|(?<=\s)[A-Z][a-z])"
)
_WEEKDAY = re.compile(rb"[A-Za-z\x80-\xff]{2,}\.?,?\s+")


@lru_cache(maxsize=8192)
def layout_of(shape: bytes, clocks: bool = False) -> Layout | None:
    """The layout of a text in which digits are written as 0; None where that is no time.

    ``clocks`` says that the texts are times of the day, so that ``18.00.00`` is not a date.
    """
    if b"0" not in shape or len(shape) > LONGEST:
        return None
    for blank in _OTHER_BLANKS:  # as many plain blanks, so that the bytes keep their places
        shape = shape.replace(blank, b" " * len(blank))
    start = len(shape) - len(shape.lstrip())
    shape = shape.rstrip()
    starts = [start]
    if (day := _WEEKDAY.match(shape, start)) is not None:
        starts.append(day.end())
    for begin in () if clocks else starts:
        for form, pattern in _DATES:
            match = pattern.match(shape, begin)
            if match is not None and (layout := _after_date(shape, form, match)) is not None:
                return layout
    return _clock_first(shape, start, clocks)


def _digits(match: re.Match[bytes]) -> list[tuple[str, int, int]]:
    skip = {"s", "word", "half", "sign", "zone"}
    return [(name, *match.span(name)) for name, text in match.groupdict().items() if text and name not in skip]


def _month(match: re.Match[bytes]) -> int:
    return MONTHS.get(match["word"].decode("utf-8", "replace").lower(), 0)


def _after_date(shape: bytes, form: str, match: re.Match[bytes]) -> Layout | None:
    digits, month = _digits(match), 0
    if form in ("named", "namedmonth"):
        month = _month(match)
        if not month:
            return None
        form = "ymd" if form == "named" else "ym"
    dotted = form == "abc" and match["s"] == b"."
    if form == "ymdHMS":
        return _after_clock(shape, match.end(), digits, "ymd", True, month, dotted)
    at = match.end()
    if form in ("ymd", "abc", "yj", "yw", "y"):
        join = _JOIN.match(shape, at)
        if join is not None:
            for clock in _CLOCKS:
                found = clock.match(shape, join.end())
                if found is None or (form == "y" and b"T" not in join[0]):
                    continue
                layout = _after_clock(shape, found.end(), digits + _digits(found), form, True, month, dotted)
                if layout is not None:
                    return layout._replace(form="none") if form == "y" else layout
            # Thu Jan 01 00:00:00 CET 2016 puts the year last, and is met in _clock_first
    return _after_clock(shape, at, digits, form, False, month, dotted)


def _after_clock(
    shape: bytes, at: int, digits: list[tuple[str, int, int]], form: str, clock: bool, month: int, dotted: bool
) -> Layout | None:
    """What may follow: Uhr, AM or PM, a zone, and the end of an interval."""
    afternoon: bool | None = None
    zone: str | None = None
    place: str | None = None
    interval = False
    if clock and (half := _HALF.match(shape, at)) is not None:
        word = half["half"].decode().lower().replace(" ", "")
        afternoon = word[0] == "p" or word in CLOCK_PM
        if not afternoon and word[0] != "a" and word not in CLOCK_AM:
            return None
        at = half.end()
    elif clock and (suffix := _SUFFIX.match(shape, at)) is not None:
        at = suffix.end()
    for _ in range(2):  # an interval may stand before or after the zone
        if zone is None and (offset := _OFFSET.match(shape, at)) is not None and clock:
            end = offset.end()
            if end == len(shape) or _UNTIL.match(shape, end) or shape[end : end + 1] in b"(/ [":
                digits, zone, at = digits + _digits(offset), "+" if offset["sign"] == b"+" else "-", end
        if zone in (None, "+", "-") and (found := _PLACE.match(shape, at)) is not None:
            name, at = found["zone"].decode(), found.end()
            zone, place = zone or name, name if zone else None
        elif zone in (None, "+", "-") and (short := _ABBREVIATION.match(shape, at)) is not None:
            name = short["zone"].decode().upper()
            if name in ZONE_OFFSETS or name in MANY_ZONES:
                pair = b"/" in short[0]
                at = short.end()
                zone = zone or (short[0].decode().strip(" ()[]").upper() if pair else name)
        if zone in ("+", "-") and (remark := _REMARK.match(shape, at)) is not None:
            at = remark.end()
        until = _UNTIL.match(shape, at)
        if not interval and until is not None and (clock or until[0][:1].isspace()):
            rest = shape[until.end() :]
            end_of_it = layout_of(rest, True) or layout_of(rest)
            if end_of_it is not None and not end_of_it.interval:
                interval, at = True, len(shape)
                if zone is None and end_of_it.zone is not None:  # 00:00 - 01:00 CET
                    zone, place = end_of_it.zone, end_of_it.place
                    digits = digits + [
                        (part, until.end() + a, until.end() + b)
                        for part, a, b in end_of_it.digits
                        if part in ("zh", "zm")
                    ]
    if shape[at:].strip():
        return None
    return Layout(tuple(digits), form, clock, month, afternoon, zone, interval, dotted, place)


def _clock_first(shape: bytes, start: int, clocks: bool) -> Layout | None:
    """A clock alone; a clock before the date; or Thu Jan 01 00:00:00 CET 2016."""
    words = re.compile(rb"(?:[A-Za-z\x80-\xff]{2,}\.?,?\s+)?" + _WORD + rb"\s+(?P<d>00?)\s+").match(shape, start)
    if words is not None and (month := _month(words)):
        clock = _CLOCKS[0].match(shape, words.end())
        year = clock and re.compile(rb"\s+(?P<zone>[A-Z]{2,4}\s+)?(?P<y>0000)$").match(shape, clock.end())
        if clock and year:
            zone = year["zone"].decode().strip() if year["zone"] else None
            if zone is None or zone in ZONE_OFFSETS:
                digits = _digits(words) + _digits(clock) + _digits(year)
                return Layout(tuple(digits), "ymd", True, month, zone=zone)
        return None
    for pattern in _CLOCKS if clocks else _CLOCKS[:-2]:
        clock = pattern.match(shape, start)
        if clock is None:
            continue
        layout = _after_clock(shape, clock.end(), _digits(clock), "none", True, 0, False)
        bare = clock[0].isdigit() and not (clocks and len(clock[0]) == 2)
        if layout is not None and not (layout.interval and bare):  # 2024-13-45 is no interval, 00-01 among clocks is
            return layout
        half = _HALF.match(shape, clock.end())
        join = _JOIN.match(shape, half.end() if half else clock.end())
        for form, date in _DATES[:6] if join and not clocks else ():
            match = date.match(shape, join.end())  # type: ignore[union-attr]
            if match is None or (form == "named" and not _month(match)):
                continue
            month = _month(match) if form == "named" else 0
            dotted = form == "abc" and match["s"] == b"."
            digits = _digits(clock) + _digits(match)
            layout = _after_clock(shape, match.end(), digits, "ymd" if form == "named" else form, True, month, dotted)
            if layout is not None:
                afternoon = half["half"][:1].lower() == b"p" if half else None
                return layout._replace(afternoon=afternoon)
    return None


@dataclass
class Instants:
    """The times of a column: microseconds on the wall clock, and what is known of the clock's offset."""

    wall: np.ndarray
    ok: np.ndarray
    offset: np.ndarray | None = None
    """Minutes east of Greenwich; -32768 where the text has none."""
    zones: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    """Abbreviations with the times that name several zones, such as IST."""
    dated: bool = True
    clock: bool = True


NO_OFFSET = -32768


class TimeText:
    """A column of texts, grouped by shape."""

    def __init__(self, strings: pa.Array, *, clocks: bool = False) -> None:
        strings = pc.fill_null(strings, "")
        if isinstance(strings, pa.ChunkedArray):
            strings = strings.combine_chunks()
        self.count = len(strings)
        wide = pa.types.is_large_string(strings.type)
        kind = np.int64 if wide else np.int32
        buffers = strings.buffers()
        offsets = np.frombuffer(buffers[1], dtype=kind)[strings.offset : strings.offset + self.count + 1]
        raw = bytes(memoryview(buffers[2])) if buffers[2] is not None else b""
        self._data = np.frombuffer(raw, dtype=np.uint8)
        self._starts = offsets[:-1]
        shapes = pa.Array.from_buffers(
            strings.type, self.count, [None, buffers[1], pa.py_buffer(raw.translate(_ZEROS))], 0, strings.offset
        ).dictionary_encode()
        codes = shapes.indices.to_numpy()
        names = [shape.encode() for shape in shapes.dictionary.to_pylist()]
        self.groups: list[tuple[Layout, np.ndarray, int]] = []
        """Layout, rows, and bytes of a text."""
        if len(names) == 1:
            rows_of = [np.arange(self.count)]
        else:
            order = np.argsort(codes, kind="stable")
            bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
            rows_of = [order[bounds[i] : bounds[i + 1]] for i in range(len(names))]
        if len(names) > MOST_SHAPES:
            keep = sorted(range(len(names)), key=lambda i: -len(rows_of[i]))[:MOST_SHAPES]
        else:
            keep = list(range(len(names)))
        for i in keep:
            layout = layout_of(names[i], clocks)
            if layout is not None and len(rows_of[i]):
                self.groups.append((layout, rows_of[i], len(names[i])))
        self._tell_ends_from_offsets()

    def _tell_ends_from_offsets(self) -> None:
        """Takes ``10:00-11:00`` for an interval where the second changes with the first; an offset stays the same."""
        for g, (layout, rows, length) in enumerate(self.groups):
            if layout.zone != "-" or not layout.clock:
                continue
            parts = self.parts(layout, rows[:2000], length)
            end = parts["zh"].astype(np.int64) * 60 + parts.get("zm", np.zeros(1, dtype=np.int32))
            start = parts["H"].astype(np.int64) * 60 + parts.get("M", np.zeros(1, dtype=np.int32))
            spans = (end - start) % (24 * 60)
            if len(np.unique(end)) > 1 and np.mean(spans == spans[0]) > 0.9 and spans[0]:
                kept = tuple(digit for digit in layout.digits if digit[0] not in ("zh", "zm"))
                self.groups[g] = layout._replace(zone=None, interval=True, digits=kept), rows, length

    @property
    def blank(self) -> int:
        return self.count - sum(len(rows) for _, rows, _ in self.groups)

    def keep_one_kind_of_period(self) -> str | None:
        """Leaves the periods that are most frequent where years, quarters and months stand below each other.

        Returns:
            What is to be said of the others.
        """
        words = {"y": "years", "yh": "half years", "yq": "quarters", "ym": "months", "yw": "weeks"}
        counts: dict[str, int] = {}
        for layout, rows, _ in self.groups:
            if layout.dated:
                kind = words.get(layout.form, "days")
                counts[kind] = counts.get(kind, 0) + len(rows)
        if len(counts) < 2:
            return None
        most = max(counts, key=lambda kind: counts[kind])
        self.groups = [group for group in self.groups if words.get(group[0].form, "days") == most or not group[0].dated]
        others = " and ".join(f"{count} {kind}" for kind, count in counts.items() if kind != most)
        return f"{others} stand among the {most} and are set aside"

    def read_months_as_weeks(self) -> None:
        """Takes 05/2024 for the fifth week, in a column that is named so."""
        self.groups = [
            (
                layout._replace(form="yw", digits=tuple(("w" if n == "m" else n, a, b) for n, a, b in layout.digits)),
                rows,
                length,
            )
            if layout.form == "ym" and not layout.month
            else (layout, rows, length)
            for layout, rows, length in self.groups
        ]

    def share(self, *, dated: bool | None = None, clock: bool | None = None) -> float:
        """Share of the texts whose shape is a time, with a date or a clock where that is asked for."""
        total = sum(
            len(rows)
            for layout, rows, _ in self.groups
            if (dated is None or layout.dated == dated) and (clock is None or layout.clock == clock)
        )
        return total / max(self.count, 1)

    def parts(self, layout: Layout, rows: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The numbers that stand in the texts of one group."""
        parts = {name: np.zeros(len(rows), dtype=np.int32) for name, _, _ in layout.digits}
        for begin in range(0, len(rows), 1 << 16):
            part = rows[begin : begin + (1 << 16)]
            first = self._starts[part[0]]
            if part[-1] - part[0] + 1 == len(part) and self._starts[part[-1]] - first == length * (len(part) - 1):
                block = self._data[first : first + length * len(part)].reshape(len(part), length)
            else:
                block = self._data[self._starts[part][:, None] + np.arange(length)]
            for name, start, end in layout.digits:
                value = np.zeros(len(part), dtype=np.int32)
                for place in range(start, min(end, start + 6) if name == "f" else end):
                    value = value * 10 + (block[:, place] - np.uint8(48))
                parts[name][begin : begin + len(part)] = value
        return parts

    def misfits(self, order: str) -> int:
        """Texts whose date is impossible when read in ``order`` (dmy, mdy, ymd, ydm)."""
        bad = 0
        for layout, rows, length in self.groups:
            if layout.form in ("abc", "ymd") and not layout.month:
                date = Layout(layout.digits, layout.form, False)
                only = date._replace(digits=tuple(d for d in layout.digits if d[0] in "ymdabc"))
                if (layout.form == "abc") == (order in ("ydm",)):
                    continue
                bad += int(np.count_nonzero(~_days(only, self.parts(only, rows, length), order)[1]))
        return bad

    def instants(self, order: str = "dmy") -> Instants:
        """Reads all texts; ``ok`` is False where a text is not a time, or not a possible one."""
        result = Instants(np.zeros(self.count, dtype=np.int64), np.zeros(self.count, dtype=bool))
        dated = [layout.dated for layout, _, _ in self.groups]
        result.dated = any(dated)
        result.clock = any(layout.clock for layout, _, _ in self.groups)
        for layout, rows, length in self.groups:
            if result.dated and not layout.dated:
                continue
            parts = self.parts(layout, rows, length)
            days, ok = _days(layout, parts, order)
            clock, fine = _clock(layout, parts)
            result.wall[rows] = days * DAY + clock
            result.ok[rows] = ok & fine
            if layout.zone in MANY_ZONES:
                result.unclear.add(layout.zone or "")
            elif layout.zone is not None:
                if result.offset is None:
                    result.offset = np.full(self.count, NO_OFFSET, dtype=np.int32)
                if layout.place:
                    result.zones.add(layout.place)
                if layout.zone in ("+", "-"):
                    east = parts["zh"] * 60 + parts.get("zm", 0)
                    result.ok[rows] &= (parts["zh"] <= 15) & (parts.get("zm", 0) < np.int32(60))
                    result.offset[rows] = east if layout.zone == "+" else -east
                else:
                    result.zones.add(layout.zone)
                    if layout.zone in ZONE_OFFSETS:
                        result.offset[rows] = ZONE_OFFSETS[layout.zone]
        return result


def _full_year(parts: dict[str, np.ndarray], layout: Layout, name: str) -> np.ndarray:
    year = parts[name].astype(np.int64)
    start, end = next((start, end) for part, start, end in layout.digits if part == name)
    return np.where(year < 70, year + 2000, year + 1900) if end - start <= 2 else year


def _days(layout: Layout, parts: dict[str, np.ndarray], order: str) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970, and which of them exist."""
    form = layout.form
    if form == "none":
        count = len(next(iter(parts.values())))
        return np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    if form == "abc":
        names = dict(zip(order if order != "ydm" else "dmy", "abc", strict=True))
        year, month, day = _full_year(parts, layout, names["y"]), parts[names["m"]], parts[names["d"]]
    elif form == "ymd" and order == "ydm" and not layout.month and "m" in parts:
        year, month, day = _full_year(parts, layout, "y"), parts["d"], parts["m"]
    else:
        year = _full_year(parts, layout, "y")
        month = parts.get("m", np.full(len(year), layout.month or 1))
        day = parts.get("d", np.ones(len(year), dtype=np.int64))
    if form == "yq":
        month = np.where(parts["q"] <= 4, (parts["q"] - 1) * 3 + 1, 0)
    if form == "yh":
        month = np.where(parts["h"] <= 2, (parts["h"] - 1) * 6 + 1, 0)
    if form == "yw":
        return week_days(year, parts["w"], parts.get("wd", np.ones(len(year), dtype=np.int64)))
    if form == "yj":
        return year_days(year, parts["j"])
    return civil_days(year, month, day)


def civil_days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970 of Gregorian dates, and which of them exist."""
    ok = (year >= FIRST_YEAR) & (year <= LAST_YEAR) & (month >= 1) & (month <= 12)
    months = np.where(ok, (year - 1970) * 12 + month - 1, 0).astype(np.int64)
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    ok &= (day >= 1) & (day <= following - first)
    return first + day - 1, ok


def year_days(year: np.ndarray, yearday: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970 of a year and the day in it (1-366)."""
    first, ok = civil_days(year, np.ones_like(year), np.ones_like(year))
    following, _ = civil_days(np.minimum(year + 1, LAST_YEAR), np.ones_like(year), np.ones_like(year))
    return first + yearday - 1, ok & (yearday >= 1) & (yearday <= following - first)


def week_days(year: np.ndarray, week: np.ndarray, weekday: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Days since 1970 of ISO weeks (week 1 holds the fourth of January) and weekdays (1 is Monday)."""
    fourth, ok = civil_days(year, np.ones_like(year), np.full_like(year, 4))
    monday = fourth - (fourth + 3) % 7
    return monday + (week - 1) * 7 + weekday - 1, ok & (week >= 1) & (week <= 53) & (weekday >= 1) & (weekday <= 7)


def _clock(layout: Layout, parts: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds since midnight, and which of them exist. 24:00 is the end of the day."""
    count = len(next(iter(parts.values())))
    if not layout.clock:
        return np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    nothing = np.zeros(count, dtype=np.int32)
    hour, minute, second = parts["H"].astype(np.int64), parts.get("M", nothing), parts.get("S", nothing)
    fraction = parts.get("f", nothing).astype(np.int64)
    for name, start, end in layout.digits:
        if name == "f":
            fraction = fraction * 10 ** (6 - min(end - start, 6))
    # 60 seconds are a leap second; it becomes the start of the next minute
    ok = (minute < 60) & (second <= 60) & ((hour < 24) | ((hour == 24) & (minute == 0) & (second == 0)))
    if layout.afternoon is not None:
        # a 24-hour clock may carry a needless PM
        hour = np.where(hour > 12, hour, hour % 12 + 12 * layout.afternoon)
    return hour * HOUR + minute.astype(np.int64) * MINUTE + second.astype(np.int64) * SECOND + fraction, ok
