"""From what the user names (a file, several, a folder, an archive, a frame) to bytes and frames, each with a name."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import pandas as pd

from mha_apps.errors import InputError

TEXT_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".tab", ".psv", ".asc", ".log", ".data", ".out"}
PACKED_SUFFIXES = {".gz", ".bz2", ".xz", ".zip", ".zst", ".lzma"}
PARQUET_SUFFIXES = {".parquet", ".pq"}
# A file of one repeated digit packs about a thousand times; a sensor file 5 to 40 times.
MOST_EXPANSION = 300
ALWAYS_ALLOWED = 256 << 20

Readable: TypeAlias = str | os.PathLike[str] | pd.DataFrame | Sequence[Any]


@dataclass
class Source:
    """One table to read: its name in messages, and its bytes or its frame."""

    name: str
    data: bytes | pd.DataFrame
    packing: str | None = None

    @property
    def stem(self) -> str:
        """Name without folder and suffixes, for naming a series after its file."""
        name = re.split(r"[/\\]", self.name)[-1]
        while Path(name).suffix.lower() in TEXT_SUFFIXES | PACKED_SUFFIXES | PARQUET_SUFFIXES:
            name = name[: -len(Path(name).suffix)]
        return name


def gather(path: Readable) -> list[Source]:
    """Everything that ``path`` stands for, in the order of names.

    Raises:
        InputError: if there is nothing to read.
    """
    if isinstance(path, pd.DataFrame):
        return [Source("data frame", path)]
    if isinstance(path, bytes):
        raise InputError("bytes were passed; write them to a file and pass its path")
    if isinstance(path, str | os.PathLike):
        return list(_named(Path(path)))
    if not isinstance(path, Sequence):
        raise InputError(f"{type(path).__name__} was passed; pass a path, several, or a data frame")
    sources = [source for one in path for source in gather(one)]
    if not sources:
        raise InputError("no file was named; pass a path")
    return sources


def _named(path: Path) -> Iterator[Source]:
    if path.is_dir():
        wanted = TEXT_SUFFIXES | PACKED_SUFFIXES | PARQUET_SUFFIXES
        files = [p for p in path.iterdir() if p.is_file() and p.suffix.lower() in wanted and p.name[0] != "."]
        if not files:
            raise InputError(f"{path}: the folder holds no CSV, text or Parquet file; name the files")
        for file in sorted(files, key=lambda p: _natural(p.name)):
            yield from _named(file)
        return
    if not path.exists():
        if glob.has_magic(str(path)) and (files := [Path(p) for p in glob.glob(str(path))]):
            for file in sorted(files, key=lambda p: _natural(str(p))):
                yield from _named(file)
            return
        raise InputError(f"{path}: no such file; check the path")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    yield from _opened(str(path), data)


def _natural(name: str) -> list[Any]:
    """Sorts file2 before file10."""
    return [(int(part), "") if part.isdigit() else (-1, part.lower()) for part in re.split(r"([0-9]+)", name)]


def _opened(name: str, data: bytes, depth: int = 0) -> Iterator[Source]:
    """The tables within the bytes of a file: itself, what it packs, or the members of an archive."""
    if not data:
        raise InputError(f"{name}: the file is empty; export it again")
    if data[:4] == b"PAR1":
        yield Source(name, _parquet(name, data), "parquet")
    elif data[:8] == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        raise InputError(f"{name}: an Excel workbook (.xls); save the sheet as CSV")
    elif data[:4] == b"PK\x03\x04":
        yield from _members(name, data, depth)
    elif (unpacked := _unpacked(name, data)) is not None:
        if depth > 2:
            raise InputError(f"{name}: packed more than twice; unpack it first")
        for source in _opened(name, unpacked[0], depth + 1):
            yield Source(source.name, source.data, source.packing or unpacked[1])
    elif data[:4] in (b"%PDF", b"\x89PNG", b"\x89HDF", b"CDF\x01", b"CDF\x02", b"\xff\xd8\xff\xe0"):
        raise InputError(f"{name}: not a text file ({data[:4]!r} at its start); export it as CSV")
    else:
        yield Source(name, data)


def _parquet(name: str, data: bytes) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(data))
    except Exception as error:  # any defect of the file, whichever library names it
        raise InputError(f"{name}: damaged Parquet ({error}); write it again") from None


def _members(name: str, data: bytes, depth: int) -> Iterator[Source]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, struct.error) as error:
        raise InputError(f"{name}: damaged zip archive ({error}); pack it again") from None
    if any(info.filename == "[Content_Types].xml" for info in infos):
        raise InputError(f"{name}: an Excel workbook (.xlsx); save the sheet as CSV")
    inner = [
        info
        for info in infos
        if not info.is_dir()
        and not info.filename.startswith("__MACOSX/")
        and not Path(info.filename).name.startswith(".")
    ]
    wanted = TEXT_SUFFIXES | PARQUET_SUFFIXES | PACKED_SUFFIXES
    chosen = [info for info in inner if Path(info.filename).suffix.lower() in wanted] or inner
    if not chosen or depth > 2:
        raise InputError(f"{name}: the archive holds no file to read; pack the CSV itself")
    for info in sorted(chosen, key=lambda i: _natural(i.filename)):
        member = f"{name}/{info.filename}" if len(chosen) > 1 else name
        try:
            with archive.open(info) as stream:
                content = _limited(member, stream, len(data))
        except (
            zipfile.BadZipFile,
            zlib.error,
            RuntimeError,
            NotImplementedError,
            EOFError,
            OSError,
            ValueError,
        ) as error:
            raise InputError(f"{name}: {info.filename} cannot be unpacked ({error}); pack it again") from None
        for source in _opened(member, content, depth + 1):
            yield Source(source.name, source.data, source.packing or "zip")


def _unpacked(name: str, data: bytes) -> tuple[bytes, str] | None:
    stream: IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
    if data[:2] == b"\x1f\x8b":
        packing, stream = "gzip", gzip.GzipFile(fileobj=io.BytesIO(data))
    elif data[:3] == b"BZh":
        packing, stream = "bzip2", bz2.BZ2File(io.BytesIO(data))
    elif data[:6] == b"\xfd7zXZ\x00":
        packing, stream = "xz", lzma.LZMAFile(io.BytesIO(data))  # noqa: SIM115
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        import pyarrow as pa

        packing, stream = "zstd", pa.CompressedInputStream(pa.BufferReader(data), "zstd")
    else:
        return None
    try:
        return _limited(name, stream, len(data)), packing
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: damaged {packing} data ({error}); pack it again") from None


def _limited(name: str, stream: IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, packed: int) -> bytes:
    """Unpacks, but stops where no sensor file would be: a few bytes may unpack to more than the memory holds."""
    most = max(ALWAYS_ALLOWED, MOST_EXPANSION * packed)
    parts, total = [], 0
    while part := stream.read(1 << 22):
        total += len(part)
        if total > most:
            raise InputError(f"{name}: unpacks to more than {most >> 20} MiB; unpack it first if that is right")
        parts.append(bytes(part))
    return b"".join(parts)
