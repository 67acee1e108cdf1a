"""How a text is laid out: the sign between fields, quotes, comments, and which lines are names, units and data."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mha_apps.errors import InputError

from .header import Above, column_names, kind

DELIMITERS = (";", "\t", "|", ",", " ")
_DIGIT = re.compile(r"\d")
COMMENT_MARKS = ("#", "//", "%", "!", "*", "'#", '"#')


@dataclass
class Dialect:
    """What a file's lines mean."""

    delimiter: str
    quote: str | None = '"'
    names: list[str] = field(default_factory=list)
    """One name a column."""
    units: list[str | None] = field(default_factory=list)
    header: int | None = None
    """Index of the line that holds the names."""
    first: int = 0
    """Index of the first line of data."""
    comments: list[str] = field(default_factory=list)
    """What stands above the data and is neither names nor units."""
    comment_mark: str | None = None
    profile: list[str] = field(default_factory=list)
    """What each column of the data mostly holds: number, time, text or blank."""
    notes: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.names)


class Lines:
    """The lines of a text, found once: where each starts and ends in the bytes."""

    def __init__(self, data: bytes) -> None:
        if data and not data.endswith(b"\n"):
            data += b"\n"
            self.cut = True
            """Whether the last line has no end, as when a logger lost its power."""
        else:
            self.cut = False
        self.data = data
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        self.ends = np.flatnonzero(self.bytes == 10)
        self.starts = np.concatenate([[0], self.ends[:-1] + 1]) if len(self.ends) else self.ends
        self.numbers = np.arange(1, len(self.ends) + 1)
        """The number of each line in the file."""
        self._join_head()

    def _join_head(self) -> None:
        """Joins lines at the top over which a quoted name runs, such as "Temp (newline) °C" of a spreadsheet."""
        odd = [i for i in range(min(len(self), 60)) if self.raw(i).count(b'"') % 2]
        gone: list[int] = []
        for here, there in zip(odd[0::2], odd[1::2], strict=False):
            if there - here > 5:
                break
            for end in self.ends[here:there]:
                self.data = self.data[:end] + b" " + self.data[end + 1 :]
            self.ends[here] = self.ends[there]
            gone += range(here + 1, there + 1)
        if gone:
            self.bytes = np.frombuffer(self.data, dtype=np.uint8)
            self.starts, self.ends = np.delete(self.starts, gone), np.delete(self.ends, gone)
            self.numbers = np.delete(self.numbers, gone)

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def text(self, index: int) -> str:
        return self.raw(index).decode("utf-8", "replace")

    def sample(self) -> list[int]:
        """Indices of lines from the start, the middle and the end."""
        count = len(self)
        picked = {*range(min(count, 150)), *range(max(0, count - 20), count)}
        picked |= {int(i) for i in np.linspace(0, count - 1, min(count, 120))}
        return sorted(picked)


def fields(line: str, delimiter: str, quote: str | None) -> list[str]:
    """The fields of one line, without their quotes and outer blanks."""
    if delimiter == " ":
        line, delimiter = re.sub(r"[ \t]+", " ", line.strip()), " "
    if quote is None or quote not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        row = next(csv.reader([line], delimiter=delimiter, quotechar=quote, skipinitialspace=True), [""])
    except csv.Error:
        row = line.split(delimiter)
    return [cell.strip() for cell in row]


def detect(name: str, lines: Lines, *, delimiter: str | None = None) -> tuple[Dialect, Lines]:
    """Finds the dialect; the lines are rewritten where fields are parted by blanks or whole lines are quoted.

    Raises:
        InputError: if the text is no table.
    """
    notes: list[str] = []
    skip = 0
    if len(lines) and (stated := re.match(r'^\ufeff?"?sep=(.|\\t)"?\s*$', lines.text(0), re.I)):
        delimiter = delimiter or stated[1].replace("\\t", "\t")
        skip = 1
    if delimiter is not None:
        delimiter = {"space": " ", "blank": " ", "tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
        if len(delimiter.encode()) != 1 or delimiter in "\n\"'":
            raise InputError(
                f"--delimiter {delimiter!r}: not a single character; pass one such as ';', or 'tab' or 'space'"
            )
    lines = _unwrapped(lines, notes)
    picked = [i for i in lines.sample() if i >= skip and lines.raw(i).strip()]
    texts = {i: lines.text(i) for i in picked}
    if not texts:
        raise InputError(f"{name}, line 1: no line holds anything; export the file again")
    quote = _quote(list(texts.values()))
    delimiter = delimiter or _delimiter(list(texts.values()), quote)
    placed: dict[int, str] = {}
    if delimiter == " ":
        placed = texts
        data = re.sub(rb"(?m)^[ \t]+|[ \t]+$", b"", lines.data)
        lines, delimiter = Lines(re.sub(rb"[ \t]+", b"\t", data)), "\t"
        texts = {i: lines.text(i) for i in picked}
        notes.append("fields are parted by blanks")
    if delimiter == "," and (rewritten := _without_decimal_commas(lines, texts, notes)) is not None:
        lines = rewritten
        texts = {i: lines.text(i) for i in picked}
    dialect = Dialect(delimiter, quote, notes=notes)
    _header(lines, dialect, {i: fields(text, delimiter, quote) for i, text in texts.items()}, skip, placed)
    return dialect, lines


def _unwrapped(lines: Lines, notes: list[str]) -> Lines:
    """Takes off quotes that enclose each whole line, as a twice exported file has them."""
    texts = [lines.raw(i).strip() for i in lines.sample() if lines.raw(i).strip()]
    whole = [
        re.fullmatch(rb'"(?:[^"]|"")*"[,;]*', text) is not None and re.search(rb"[,;\t|]", text.strip(b'",;'))
        for text in texts
    ]
    if len(texts) < 2 or sum(map(bool, whole)) < 0.9 * len(texts):
        return lines
    data = re.sub(rb'(?m)^\s*"((?:[^"\n]|"")*)"[,;]*$', rb"\1", lines.data).replace(b'""', b'"')
    notes.append("each line was quoted as a whole")
    return Lines(data)


def _without_decimal_commas(lines: Lines, texts: dict[int, str], notes: list[str]) -> Lines | None:
    """Lines such as ``2024-05-14,20,5,51,0`` below three names: commas that part fields and decimals alike."""
    rows = {i: text.split(",") for i, text in texts.items() if '"' not in text}
    widths = Counter(len(row) for row in rows.values())
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    head = next(
        (row for row in rows.values() if len(row) > 1 and not any(kind(cell) in ("number", "time") for cell in row)),
        None,
    )
    if head is None or not len(head) < width <= 2 * len(head) - 1 or count < 0.8 * (len(rows) - 1):
        return None
    times = 2 * len(head) - width
    body = [row for row in rows.values() if len(row) == width]
    if times < 1 or not all(kind(row[0]) == "time" for row in body[:20]):
        return None
    for row in body:
        wholes, decimals = row[times::2], row[times + 1 :: 2]
        if not all(re.fullmatch(r"\s*[+-]?\d+", cell) for cell in wholes) or not all(
            re.fullmatch(r"\d+\s*", cell) for cell in decimals
        ):
            return None
    out = []
    for line in lines.data.split(b"\n"):
        cells = line.split(b",")
        if len(cells) == width:
            pairs = [a + b"." + b for a, b in zip(cells[times::2], cells[times + 1 :: 2], strict=True)]
            line = b",".join([*cells[:times], *pairs])
        out.append(line)
    notes.append("commas part both fields and decimals; read in pairs")
    return Lines(b"\n".join(out))


def _quote(texts: list[str]) -> str | None:
    if any('"' in text for text in texts):
        return '"'
    single = [re.findall(r"(?:^|[,;\t|])\s*'[^']*'\s*(?=$|[,;\t|])", text) for text in texts]
    return "'" if sum(bool(found) for found in single) > 0.5 * len(texts) else None


def _delimiter(texts: list[str], quote: str | None) -> str:
    """The sign that parts the lines into equally many fields, most of which are numbers or times."""
    best, best_score = ",", 0.0
    for delimiter in DELIMITERS:
        if delimiter == " " and _parted_otherwise(texts):
            continue
        rows = [fields(text, delimiter, quote) for text in texts]
        widths = Counter(len(row) for row in rows if any(row))
        if not widths:
            continue
        # A wide line says more: a note above the data is a single field under any delimiter
        width, count = max(widths.items(), key=lambda item: item[1] * (0.2 if item[0] == 1 else 1))
        if width == 1:
            continue
        table = [row for row in rows if len(row) == width][-150:]
        kinds = Counter(kind(cell[:80]) for row in table for cell in row[:60])
        typed = sum(kinds.values()) - kinds["text"]
        informative = kinds["number"] + kinds["time"]
        score = (count / len(rows)) * (typed / sum(kinds.values())) * (1 if informative else 0.3)
        if delimiter == " ":
            score *= 0.8  # a blank also stands between a date and a clock
        if score > best_score * 1.02:
            best, best_score = delimiter, score
    return best


def _parted_otherwise(texts: list[str]) -> bool:
    """Whether nearly all lines have equally many signs that part fields, so that blanks within them are just blanks.

    A comma between two digits may be a decimal one, as in ``2024-05-30 12:00 20,5``.
    """
    for sign in (r";", r"\t", r"\|", r"(?<!\d),|,(?!\d)"):
        counts = Counter(len(re.findall(sign, text)) for text in texts)
        most, lines = counts.most_common(1)[0]
        if most and lines >= 0.8 * len(texts):
            return True
    return False


def _header(lines: Lines, dialect: Dialect, rows: dict[int, list[str]], skip: int, placed: dict[int, str]) -> None:
    """Tells the lines above the data apart, and names the columns.

    ``placed`` holds lines as they stood before runs of blanks became one sign, so that words stand above their columns.
    """
    mark = _comment_mark(rows, lines)
    dialect.comment_mark = mark
    plain = {i: row for i, row in rows.items() if mark is None or not lines.text(i).lstrip().startswith(mark)}
    if not plain:
        plain, dialect.comment_mark = rows, None
    body = [row for i, row in plain.items() if i >= skip and any(row)]
    named = len(body) == 2 and _wordy(body[0]) and not _wordy(body[1])  # one row below its names
    tail = body[1 if named else len(body) // 3 :] or body or list(rows.values())
    widths = Counter(len(row) for row in tail)
    width = max(widths, key=lambda w: (widths[w], w))
    profile = _profile([row for row in tail if len(row) == width][-120:], width)
    full = [i for i, row in plain.items() if i >= skip and any(row)]
    data = [_is_data(plain[i], profile, width) for i in full]
    if data[:1] == [True] and _counts_on(plain[full[0]]):
        data[0] = False
    # A line of values that stands above a line of names belongs to the preface
    followed = [n + 1 == len(full) or data[n + 1] or not _wordy(plain[full[n + 1]]) for n in range(len(full))]
    first = next((i for n, i in enumerate(full) if data[n] and followed[n]), None)
    if first is None:
        first = next((i for n, i in enumerate(full) if data[n]), next(iter(plain)))
    above = [i for i in range(skip, first) if lines.raw(i).strip()]
    lines_above: list[Above] = []
    for i in above:
        text = lines.text(i)
        commented = mark is not None and text.lstrip().startswith(mark)
        if commented:
            text = text.lstrip()[len(mark or "") :].lstrip()
        lines_above.append(Above(i, commented, fields(text, dialect.delimiter, dialect.quote), placed.get(i, "")))
    found = column_names(lines_above, width, profile)
    dialect.names, dialect.units, dialect.header = found.names, found.units, found.line
    dialect.first, dialect.profile = first, profile
    dialect.comments = [" ".join(lines.text(i).split()) for i in above if i not in found.lines]


def _comment_mark(rows: dict[int, list[str]], lines: Lines) -> str | None:
    for mark in COMMENT_MARKS:
        marked = [i for i in rows if lines.text(i).lstrip().startswith(mark)]
        if marked and len(marked) < len(rows):
            first = rows[marked[0]]
            # HOBO names its row counter "#"; that line is the header
            if len(marked) == 1 and first and first[0] in ("#", "*", "%", "!") and len(first) > 1:
                continue
            if mark in ("%", "!", "*", "'#") and marked[0] > min(rows) + 3:
                continue
            return mark
    return None


def _profile(table: list[list[str]], width: int) -> list[str]:
    """What a column mostly holds: number, time, text, or blank."""
    profile = []
    for column in range(width):
        kinds = Counter(kind(row[column][:80]) for row in table)
        kinds.pop("blank", None)
        kinds.pop("missing", None)
        profile.append(kinds.most_common(1)[0][0] if kinds else "blank")
    return profile


def remark_behind(cells: list[str], dialect: Dialect) -> str | None:
    """What stands behind the last column of a line that is complete without it; None where it is no such line."""
    row, extra = cells[: dialect.width], [cell for cell in cells[dialect.width :] if cell]
    if not extra or any(_DIGIT.search(cell) for cell in extra) or len(dialect.profile) < dialect.width:
        return None
    fitting = {"number": ("number", "missing", "blank"), "time": ("time",)}
    for cell, expected in zip(row, dialect.profile, strict=False):
        if expected in fitting and kind(re.sub(r"[*#†^]$", "", cell[:80])) not in fitting[expected]:
            return None
    return " ".join(extra)


def _counts_on(row: list[str]) -> bool:
    """Whether a line names columns by years, as Country,2015,2016,2017, or counts them, as Year,Month,1,2 to 31."""
    words = sum(kind(cell[:80]) == "text" for cell in row)
    for pattern, firsts, fewest in ((r"(?:1[89]|20|21)\d\d", range(1800, 2200), 4), (r"\d\d?", range(2), 12)):
        numbers = [int(cell) for cell in row if re.fullmatch(pattern, cell)]
        if (
            len(numbers) >= fewest
            and numbers[0] in firsts
            and words + len(numbers) == sum(bool(cell) for cell in row)
            and all(later - earlier == 1 for earlier, later in itertools.pairwise(numbers))
        ):
            return True
    return False


def _wordy(row: list[str]) -> bool:
    return sum(kind(cell[:80]) == "text" for cell in row) >= 0.6 * sum(bool(cell) for cell in row)


def _is_data(row: list[str], profile: list[str], width: int) -> bool:
    """Whether a line looks like the bulk of the lines."""
    bare = len(row)
    while bare > width and not row[bare - 1]:
        bare -= 1
    timed = any(kind(cell[:80]) == expected == "time" for cell, expected in zip(row, profile, strict=False))
    if (len(row) < 2 and width > 1) or (bare > width and not timed):
        return False
    if "time" in profile and not timed:
        return False  # serial numbers, or names that are numbers
    fitting = misfit = 0
    for cell, expected in zip(row, profile, strict=False):
        found = kind(cell[:80])
        if expected == "time":
            if found == "time":
                fitting += 2
            elif found != "blank":
                misfit += 2
        elif expected == "number":
            fitting += found == "number"
            misfit += found in ("text", "time")
    if "time" not in profile and not fitting > 3 * misfit:
        return False  # a label and its numbers, as a preface has them
    return fitting > misfit and (len(row) == width or (timed and len(row) >= 0.67 * width))
