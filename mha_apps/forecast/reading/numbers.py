"""From text to numbers: decimal comma, thousands separators, units behind a number, and words for a missing value."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .account import Ledger
from .words import MISSING_WORDS

_EXPONENT = r"(?:[eE][+-]?\d{1,3})?"


class Convention(NamedTuple):
    """How numbers are written."""

    decimal: str
    thousands: str = ""
    """The separators that group thousands, any one of which may occur."""

    @property
    def pattern(self) -> str:
        point = re.escape(self.decimal)
        if not self.thousands:
            return rf"^[+-]?(?:\d+(?:{point}\d*)?|{point}\d+){_EXPONENT}$"
        group = "(?:" + "|".join(re.escape(sign) for sign in self.thousands) + ")"
        return rf"^[+-]?[1-9]\d{{0,2}}(?:{group}\d{{3}})+(?:{point}\d*)?$"


BLANKS = " \u00a0\u202f\u2009'’"
PLAIN, COMMA = Convention("."), Convention(",")
# Grouped conventions also hold the numbers below a thousand, which their plain twin reads.
CONVENTIONS = (
    PLAIN,
    COMMA,
    Convention(".", ","),
    Convention(",", "."),
    Convention(".", BLANKS),
    Convention(",", BLANKS),
)
_PATTERNS = {convention: re.compile(convention.pattern) for convention in CONVENTIONS}
PLAIN_NUMBER = re.compile(PLAIN.pattern)
_MINUS = {"−": "-", "–": "-", "﹣": "-", "－": "-"}


def fits(convention: Convention, text: str) -> bool:
    """Whether ``text`` is a number in ``convention``."""
    if _PATTERNS[convention].match(text):
        return True
    return bool(convention.thousands) and bool(_PATTERNS[Convention(convention.decimal)].match(text))


def is_number(text: str) -> bool:
    """Whether ``text`` is a number in any convention."""
    text = re.sub(r"^([+-])\s+(?=\d)", r"\1", text.strip())
    if text.endswith("-") and text[:1].isdigit():
        text = "-" + text[:-1]
    for sign, minus in _MINUS.items():
        text = text.replace(sign, minus)
    return any(pattern.match(text) for pattern in _PATTERNS.values())


def is_missing_word(text: str) -> bool:
    return text.strip().lower() in MISSING_WORDS


@dataclass
class Choice:
    """The convention of a file, and whether the data decided it."""

    convention: Convention
    note: str | None = None


def choose(samples: list[list[str]], *, comma_separated: bool, told: str | None = None) -> Choice:
    """The convention in which most of the sampled cells are numbers.

    Args:
        samples: cells of each column, without blanks.
        comma_separated: whether fields are separated by commas, so that a comma within one groups thousands.
        told: the decimal sign, where the user stated it.
    """
    votes: Counter[Convention] = Counter()
    for cells in samples:
        for cell in cells:
            for convention in CONVENTIONS:
                if fits(convention, cell):
                    votes[convention] += 1
    allowed = [c for c in CONVENTIONS if told is None or c.decimal == told]
    # Ties go to the plainest; between 1,234 as a decimal and as thousands, the delimiter decides.
    order = [PLAIN, Convention(".", ","), COMMA] if comma_separated else [PLAIN, COMMA, Convention(".", ",")]
    order += [c for c in CONVENTIONS if c not in order]
    best = max(allowed, key=lambda c: (votes[c], -order.index(c)))
    note = None
    if told is None and best in (COMMA, Convention(".", ",")):
        other = Convention(".", ",") if best == COMMA else COMMA
        if votes[other] == votes[best] > 0:
            reading = "a decimal comma" if best == COMMA else "thousands"
            note = f"every comma stands before three digits; read as {reading} (--decimal tells)"
    dotted = [cell for cells in samples for cell in cells if "." in cell and is_number(cell)]
    if told is None and best == PLAIN and not comma_separated and len(dotted) >= 3:
        grouped = _PATTERNS[Convention(",", ".")]
        if all(grouped.match(cell) for cell in dotted):
            note = "every dot stands before three digits; read as a decimal point (--decimal , takes thousands)"
    return Choice(best, note)


def numbers(
    cells: pa.Array, convention: Convention, ledger: Ledger, *, force: bool = False, told: str | None = None
) -> tuple[np.ndarray, str | None] | None:
    """The numbers of a column, NaN where it has none, and the unit written behind each; None where it is text.

    Args:
        cells: text of each cell, null where it is blank.
        ledger: receives the cells that hold no number, by reason.
        force: take the column as numbers however few it holds.
        told: the decimal sign, where the user stated it.
    """
    grouped = told != "." and _dots_group(cells, convention)
    if grouped:
        convention = Convention(",", ".")
    blank = cells.is_null().to_numpy(zero_copy_only=False) if cells.null_count else None
    unit = None
    marked: list[tuple[str, np.ndarray]] = []
    values = None if grouped else _quickly(cells, convention)
    if values is None or np.isnan(values).sum() > cells.null_count:
        cells, marked = _without_words(cells)
        values = None if grouped else _quickly(cells, convention)
    if values is None:
        slow = _slowly(cells, convention, ledger, force)
        if slow is None:
            return None
        values, unit = slow
    if blank is not None:
        ledger.set_aside(blank, "blank")
    for word, rows in marked:
        ledger.set_aside(rows, f"marked {word!r}")
    bad = ~np.isfinite(values)
    if bad.any():
        ledger.set_aside(np.isinf(values), "infinite")
        for row in np.flatnonzero(bad & ledger.open)[:1]:
            ledger.set_aside(bad, f"marked {cells[int(row)].as_py().strip()!r}")
        values[bad] = np.nan
    return values, unit


_SPELLINGS = pa.array(
    sorted(
        {spelling for word in MISSING_WORDS for spelling in (word, word.upper(), word.title(), word.capitalize())}
        | {"NaN"}
    )
)


def _without_words(cells: pa.Array) -> tuple[pa.Array, list[tuple[str, np.ndarray]]]:
    """The cells with null for each word that stands for a missing value, and the rows of each such word."""
    found = pc.is_in(cells, value_set=_SPELLINGS.cast(cells.type))
    if not pc.any(found).as_py():
        return cells, []
    rows = np.flatnonzero(found.to_numpy(zero_copy_only=False))
    words = cells.take(pa.array(rows)).dictionary_encode()
    codes = words.indices.to_numpy()
    marked = [(word, rows[codes == k]) for k, word in enumerate(words.dictionary.to_pylist())]
    return pc.if_else(found, pa.scalar(None, cells.type), cells), marked


def _has(cells: pa.Array, sign: str) -> bool:
    data = cells.buffers()[2]
    return data is not None and sign.encode() in bytes(memoryview(data))


def _dots_group(cells: pa.Array, convention: Convention) -> bool:
    """Whether every dot of a column stands between thousands.

    Where the file has a decimal comma, it is enough that each dot stands before three digits. Elsewhere numbers below
    a thousand must tell: 998, 999, 1.000.
    """
    if not _has(cells, "."):
        return False
    shape = _PATTERNS[Convention(",", ".")]
    dotted = [cell.strip() for cell in _sample(cells) if cell and "." in cell and re.search(r"\d", cell)]
    if not all(shape.match(cell) for cell in dotted):
        return False
    text = pc.utf8_trim_whitespace(cells)
    with_dot = text.filter(pc.fill_null(pc.match_substring_regex(text, r"\d.*\.|\..*\d"), False))
    if not len(with_dot) or not pc.all(pc.match_substring_regex(with_dot, shape.pattern)).as_py():
        return False
    if convention.decimal == ",":
        return True
    if convention != PLAIN or _has(cells, ",") or pc.any(pc.match_substring_regex(text, r"^[+-]?\d{4,}$")).as_py():
        return False
    # A printer of three decimals writes 250.000, and one that drops zeros writes no 1.000; -999 marks what is missing
    small = pc.unique(text.filter(pc.fill_null(pc.match_substring_regex(text, r"^[+-]?[1-9]\d\d$"), False))).to_pylist()
    plain = [cell for cell in small if len(set(cell.lstrip("+-"))) > 1]
    return bool(plain) and (len(plain) >= 3 or pc.any(pc.match_substring_regex(with_dot, "0$")).as_py())


def _quickly(cells: pa.Array, convention: Convention) -> np.ndarray | None:
    """The column as numbers, if each cell is a plain one or blank."""
    try:
        if len(cells) > 2000:  # a cast that fails is slow, so a sample goes first
            sample = pa.array(_sample(cells), cells.type)
            pc.cast(pc.replace_substring(sample, ",", ".") if convention == COMMA else sample, pa.float64())
        if convention == COMMA:
            return _cast(pc.replace_substring(cells, ",", ".")) if not _has(cells, ".") else None
        return _cast(cells)
    except pa.ArrowInvalid:
        return None


def _cast(cells: pa.Array) -> np.ndarray:
    values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else values.copy()


def _slowly(
    cells: pa.Array, convention: Convention, ledger: Ledger, force: bool
) -> tuple[np.ndarray, str | None] | None:
    """Columns that are not all numbers: trims, tells numbers from the rest by pattern, and names the rest."""
    text = pc.utf8_trim_whitespace(cells)
    for sign, minus in _MINUS.items():
        if _has(text, sign):
            text = pc.replace_substring(text, sign, minus)
    spaced = r"^([+-])\s+(\d.*)$"  # a sign, then blanks that fill the width
    if pc.any(pc.match_substring_regex(text, spaced)).as_py():
        text = pc.replace_substring_regex(text, spaced, r"\1\2")
    behind = pc.fill_null(pc.match_substring_regex(text, r"^\d[\d.,'’ ]*-$"), False)
    if pc.any(behind).as_py():  # 5,5- is how some ledgers write -5,5
        text = pc.if_else(behind, pc.replace_substring_regex(text, r"^(.*)-$", r"-\1"), text)
    if pc.any(pc.equal(text, "")).as_py():
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)
        ledger.set_aside(text.is_null().to_numpy(zero_copy_only=False), "blank")
    filled = text.filter(text.is_valid())
    if len(filled) == 0:
        return np.full(len(cells), np.nan), None
    unit = None
    sample = _sample(filled)
    bare = [re.sub(r"\s?[*#†^]$", "", cell) for cell in sample]
    if not force and not any(is_number(cell) or is_missing_word(cell) for cell in bare) and not _common_unit(sample):
        return None
    convention = _best(sample, convention)
    good = _matching(text, convention)
    if pc.sum(good).as_py() in (None, 0) or pc.mean(good.cast(pa.float64())).as_py() < 0.5:
        unit = _common_unit(sample)
        if unit is not None:
            before, after = unit
            shape = f"^{re.escape(before)}\\s*(.*?)\\s*{re.escape(after)}$"
            bare = pc.replace_substring_regex(text, shape, r"\1")
            convention = _best(_sample(bare.filter(bare.is_valid())), convention)
            better = _matching(bare, convention)
            if (pc.sum(better).as_py() or 0) > (pc.sum(good).as_py() or 0):
                text, good = bare, better
            else:
                unit = None
    flagged = pc.fill_null(pc.match_substring_regex(text, r"\d\s?[*#†^]$"), False)
    if pc.any(flagged).as_py():  # a mark of quality behind a number leaves the number as it is
        bare = pc.replace_substring_regex(text, r"\s?[*#†^]$", "")
        text = pc.if_else(pc.and_kleene(flagged, _matching(bare, convention)), bare, text)
        good = _matching(text, convention)
    mask = pc.fill_null(good, False).to_numpy(zero_copy_only=False)
    present = text.is_valid().to_numpy(zero_copy_only=False)
    others = text.filter(pa.array(present & ~mask))
    counts = pc.value_counts(others)
    words = {item["values"].as_py(): item["counts"].as_py() for item in counts} if len(counts) <= 20_000 else None
    foreign = (
        sum(n for word, n in words.items() if not is_missing_word(word))
        if words is not None
        else int(np.sum(present & ~mask))
    )
    numeric = int(mask.sum())
    lone = [word for word in words or {} if not is_missing_word(word) and not re.search(r"\d", word)]
    by_rule = len(lone) == 1 and foreign == (words or {})[lone[0]] and len(pc.unique(text.filter(pa.array(mask)))) > 2
    if not force and (numeric == 0 or (numeric < foreign and not by_rule)) and foreign > 0:
        return None
    values = np.full(len(cells), np.nan)
    values[mask] = _cast(_plain(text.filter(pa.array(mask)), convention))
    if by_rule and numeric < foreign:  # one word and nothing else among numbers, however often
        ledger.set_aside(present & ~mask & _equal(text, lone[0]), f"marked {lone[0]!r}")
    _name_the_rest(text, present & ~mask, words, ledger)
    return values, " ".join(part for part in unit if part) if unit else None


def _matching(text: pa.Array, convention: Convention) -> pa.Array:
    plain = Convention(convention.decimal)
    good = pc.match_substring_regex(text, plain.pattern)
    if convention.thousands:
        good = pc.or_(good, pc.match_substring_regex(text, convention.pattern))
    return good


def _plain(text: pa.Array, convention: Convention) -> pa.Array:
    for sign in convention.thousands:
        if _has(text, sign):
            text = pc.replace_substring(text, sign, "")
    return pc.replace_substring(text, ",", ".") if convention.decimal == "," else text


def _sample(text: pa.Array, most: int = 400) -> list[str]:
    if len(text) <= most:
        return text.to_pylist()
    step = len(text) // most
    return text.take(pa.array(np.arange(0, len(text), step))).to_pylist()


def _best(sample: list[str], convention: Convention) -> Convention:
    """The file's convention, unless the column clearly has its own."""
    votes = {c: sum(fits(c, cell) for cell in sample) for c in CONVENTIONS}
    best = max(CONVENTIONS, key=lambda c: votes[c])
    return best if votes[best] > votes[convention] + 0.2 * len(sample) else convention


_AFFIXED = re.compile(
    r"^(?P<before>[€$£¥]?)\s*[+-]?(?:\d[\d.,' \u00a0\u202f’]*)?\d[.,]?\s*"
    r"(?P<after>(?!.*\d\d)(?!.*:)(?:[^\W\d_]|[°%‰€$£µ/²³\"'])\S{0,11}(?: \S{1,6})?)?$"
)
"""A number with a currency before or a unit behind it. Words before numbers are names, such as sensor 7."""


def _common_unit(sample: list[str]) -> tuple[str, str] | None:
    """What stands before and behind nearly every number of a column."""
    found: Counter[tuple[str, str]] = Counter()
    for cell in sample:
        match = _AFFIXED.match(cell)
        if match is not None and not is_missing_word(cell):
            found[(match["before"].strip(), (match["after"] or "").strip())] += 1
    if not found:
        return None
    (unit, count) = found.most_common(1)[0]
    words = sum(1 for cell in sample if is_missing_word(cell))
    return unit if any(unit) and count >= 0.8 * (len(sample) - words) else None


def _equal(text: pa.Array, word: str) -> np.ndarray:
    return pc.fill_null(pc.equal(text, word), False).to_numpy(zero_copy_only=False)


def _name_the_rest(text: pa.Array, rest: np.ndarray, words: dict[str, int] | None, ledger: Ledger) -> None:
    if words is not None:
        for word in sorted((w for w in words if is_missing_word(w)), key=lambda w: -words[w])[:40]:
            ledger.set_aside(_equal(text, word) & rest, f"marked {word!r}" if word else "blank")
    infinite = pc.fill_null(pc.match_substring_regex(text, r"(?i)^[+-]?inf(inity)?$"), False)
    ledger.set_aside(infinite.to_numpy(zero_copy_only=False) & rest, "infinite")
    ledger.set_aside(rest, "not a number")
