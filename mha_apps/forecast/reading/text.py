"""From bytes to UTF-8 text with one kind of line end, whatever encoding the logger or the spreadsheet wrote."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

from mha_apps.errors import InputError

from .words import COMMON_LETTERS

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass
class Text:
    """UTF-8 bytes with ``\\n`` as line end, the encoding that they came in, and what was said about them."""

    data: bytes
    encoding: str
    notes: list[str] = field(default_factory=list)


def decode(name: str, data: bytes, encoding: str | None = None) -> Text:
    """Decodes the bytes of a file.

    Without a stated encoding: a byte-order mark decides, then the pattern of zero bytes (UTF-16), then whether the
    bytes are valid UTF-8, then whether its words are those of another region (Shift-JIS, GB 18030, ...), and what
    remains is Windows-1252, of which Latin-1 is a part.

    Raises:
        InputError: if the stated encoding does not exist or does not fit.
    """
    bom = next(((mark, found) for mark, found in BOMS if data.startswith(mark)), None)
    if encoding is not None:
        try:
            text = data.decode(encoding)
        except LookupError:
            raise InputError(
                f"{name}: no encoding is called {encoding!r}; pass --encoding utf-8, or the like"
            ) from None
        except UnicodeError as error:
            raise InputError(f"{name}: not {encoding} ({error}); leave --encoding out, or pass another") from None
        return _tidy(text.lstrip("\ufeff").encode("utf-8", "replace"), encoding)
    if bom is not None:
        found, body = bom[1], data[len(bom[0]) :]
    else:
        found, body = _wide(data) or "utf-8", data
    if found == "utf-8":
        if body.isascii():
            return _tidy(body, "utf-8 with BOM" if bom else "ascii")
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            return _eight_bit(body, error, bom is not None)
        return _tidy(body, "utf-8 with BOM" if bom else "utf-8")
    if len(body) % (4 if "32" in found else 2):
        body += b"\0" * (-len(body) % (4 if "32" in found else 2))  # a file cut within a character
    return _tidy(body.decode(found, "replace").encode("utf-8", "replace"), found)


def _wide(data: bytes) -> str | None:
    """UTF-16 without a mark: in Western text every second byte is zero."""
    sample = data[:4096]
    if len(sample) < 8:
        return None
    even, odd = sample[0::2].count(0) / len(sample[0::2]), sample[1::2].count(0) / len(sample[1::2])
    if odd > 0.7 and even < 0.1:
        return "utf-16-le"
    if even > 0.7 and odd < 0.1:
        return "utf-16-be"
    return None


def _eight_bit(data: bytes, error: UnicodeDecodeError, marked: bool) -> Text:
    """Windows-1252 text; or UTF-8 in which a few bytes are damaged, which stays UTF-8."""
    repaired = data.decode("utf-8", "replace")
    damaged, foreign = repaired.count("\ufffd"), sum(1 for byte in data if byte > 127) if len(data) < 1 << 20 else -1
    if foreign < 0:
        foreign = len(data) - len(data.translate(None, bytes(range(128, 256))))
    if marked or (foreign - damaged) > 2 * damaged:
        text = _tidy(repaired.encode("utf-8"), "utf-8")
        text.notes.append(f"{damaged} damaged bytes that are not UTF-8, the first at byte {error.start}")
        return text
    if (regional := _regional(data)) is not None:
        return _tidy(data.decode(regional, "replace").encode("utf-8"), regional)
    try:
        return _tidy(data.decode("cp1252").encode("utf-8"), "windows-1252")
    except UnicodeDecodeError:
        return _tidy(data.decode("latin-1").encode("utf-8"), "latin-1")


def _regional(data: bytes) -> str | None:
    """The encoding of text from beyond Western Europe, if the words are those that such files have.

    Any bytes are text in several encodings, so it is the letters that decide: in the right one, many of the letters
    are those of common words for dates and measured values; in a wrong one, hardly any is.
    """
    lines = [line for line in data[: 1 << 16].splitlines()[:-1] or [data[: 1 << 16]] if not line.isascii()][:200]
    sample = b"\n".join(lines)
    best, most = None, 0.3
    for encoding, common in COMMON_LETTERS.items():
        try:
            text = sample.decode(encoding)
        except UnicodeDecodeError:
            continue
        foreign = {letter for letter in text if letter > "\x7f"}
        share = sum(letter in common for letter in foreign) / max(1, len(foreign))
        if len(foreign) >= 2 and share > most:
            best, most = encoding, share
    if best is not None:
        return best
    text = sample.decode("cp1251", "replace")
    words = re.findall("[а-яё]{3,}", text, re.I)
    if words and sum(map(len, words)) >= 0.7 * sum(letter > "\x7f" for letter in text) and _small(words):
        return "windows-1251"
    western = sample.decode("cp1252", "replace")
    if re.search(r"[A-Za-z][£¯¹¿¥¶¼¾³][A-Za-z]|[A-Za-z][¹¿¼¾]\b", western):  # signs within words are letters elsewhere
        return "windows-1250"
    return None


def _small(words: list[str]) -> bool:
    """Whether words are written in small letters but for their first, as words are and wrongly read ones are not."""
    return sum(word[1:].islower() or word.isupper() for word in words) >= 0.7 * len(words)


def _tidy(data: bytes, encoding: str) -> Text:
    """One kind of line end, and none of the zero bytes that a logger leaves when its power fails."""
    text = Text(data, encoding)
    zeros = data.count(b"\0")
    if zeros:
        data = data.replace(b"\0", b"")
        text.notes.append(f"{zeros} zero bytes were left out")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    text.data = data.rstrip(b"\x1a")
    return text
