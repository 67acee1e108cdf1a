"""One reader for each kind of image source: it knows where the splits, labels and pixels are, and decides nothing.

A reader gives either arrays of pixels (:class:`Arrays`) or encoded images that are decoded later, chosen ones
only (:class:`Encoded`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_apps.errors import InputError
from mha_apps.images.decode import EXTENSIONS

__all__ = ["Arrays", "Encoded", "Reader", "open_source"]

#: The names that folders and files use for each split.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}

#: More classes than any set of labelled images has; a label beyond it is an identifier or a mistake.
MOST_CLASSES = 100_000

KINDS = "digits, cifar10, cifar100, a folder of class folders, .parquet (a file or a folder of them) or .npz"


@dataclass(frozen=True)
class Arrays:
    """Images that come as pixels: ``images`` (N, C, H, W) uint8, ``labels`` (N,) int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """Images that come as files or bytes: ``read`` yields those at ascending indices, in order."""

    read: Callable[[NDArray[np.int64]], Iterator[bytes | Path]]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    skipped: dict[str, int] = field(default_factory=dict)

    def stream(self, indices: NDArray[np.int64]) -> Iterator[bytes | Path]:
        return self.read(indices)

    def sample(self, count: int) -> Iterator[bytes | Path]:
        """Up to ``count`` images, evenly spaced."""
        spaced = np.linspace(0, len(self.labels) - 1, min(count, len(self.labels)))
        return self.read(np.unique(spaced.astype(np.int64)))


@dataclass(frozen=True)
class Reader:
    """A source: the splits it has (none: it is one undivided set), and how to read one of them."""

    source: str
    splits: tuple[str, ...]
    read: Callable[[str | None], Arrays | Encoded]


def open_source(source: str) -> Reader:
    """The reader for what ``--data`` names.

    Raises:
        InputError: there is no such source, or nothing in it looks like images.
    """
    if source == "digits":
        return Reader(source, (), lambda split: _digits())
    if source in ("cifar10", "cifar100"):
        return Reader(source, ("train", "test"), partial(_cifar, source, None))
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"{source}: no such file or folder; --data takes {KINDS}")
    if path.is_file():
        if path.suffix == ".npz":
            return _npz(source, path)
        if path.suffix == ".parquet":
            return _parquet(source, [path])
        raise InputError(f"{source}: not a kind of file that holds labelled images; --data takes {KINDS}")
    for name, folder in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        root = path.parent if path.name == folder else path
        if (root / folder).is_dir():
            return Reader(source, ("train", "test"), partial(_cifar, name, root))
    if files := sorted(path.rglob("*.parquet")):
        return _parquet(source, files)
    return _folders(source, path)


# ---------------------------------------------------------------------------------------------- built in


def _digits() -> Arrays:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, whose values 0..16 are scaled to 0..255."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Arrays(pixels, labels.astype(np.int64), tuple("0123456789"))


def _cifar(name: str, root: Path | None, split: str | None) -> Arrays:
    """torchvision's official files, with their checksums; downloaded once where no folder is given."""
    from torchvision.datasets import CIFAR10, CIFAR100

    kind = CIFAR10 if name == "cifar10" else CIFAR100
    cache = Path(os.environ.get("MHA_APPS_CACHE", "~/.cache/mha_apps")).expanduser()
    try:
        data = kind(root or cache, train=split == "train", download=root is None)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"{name}: cannot be read or downloaded ({error}); put the official file "
            f"{kind.filename} into {root or cache}, or give --data another source"
        ) from error
    return Arrays(
        np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)),
        np.asarray(data.targets, dtype=np.int64),
        tuple(data.classes),
    )


# ------------------------------------------------------------------------------------------------ folders


def _folders(source: str, path: Path) -> Reader:
    inside = {child.name.lower(): child for child in _visible(path) if child.is_dir()}
    roots = {split: inside[name] for split, names in SPLIT_NAMES.items() for name in names if name in inside}
    if "train" not in roots:
        roots = {}
    tops = list(roots.values()) or [path]
    classes = tuple(sorted({child.name for top in tops for child in _visible(top) if child.is_dir()}))
    if len(classes) < 2:
        raise InputError(
            f"{source}: {len(classes)} class folders found, at least two are needed; "
            "lay images out as FOLDER/CLASS/image.png"
        )
    return Reader(source, tuple(roots), lambda split: _class_folders(roots[split] if split else path, classes))


def _class_folders(root: Path, classes: tuple[str, ...]) -> Encoded:
    files: list[Path] = []
    labels: list[int] = []
    skipped: Counter[str] = Counter()
    for label, name in enumerate(classes):
        for file in sorted((root / name).rglob("*")):
            if file.is_dir() or file.name.startswith("."):
                continue
            if file.suffix.lower() in EXTENSIONS:
                files.append(file)
                labels.append(label)
            else:
                skipped["not an image file name"] += 1
    return Encoded(
        lambda indices: (files[index] for index in indices),
        np.asarray(labels, dtype=np.int64),
        classes,
        dict(skipped),
    )


def _visible(folder: Path) -> list[Path]:
    return [child for child in sorted(folder.iterdir()) if not child.name.startswith(".")]


# ------------------------------------------------------------------------------------------------ parquet


def _parquet(source: str, files: list[Path]) -> Reader:
    by_split: dict[str, list[Path]] = {}
    for file in files:
        name = file.name.lower()
        for split, names in SPLIT_NAMES.items():
            if name.startswith(tuple(f"{prefix}{after}" for prefix in names for after in "-_.")):
                by_split.setdefault(split, []).append(file)
    if len(files) > 1 and not by_split:
        return Reader(source, (), lambda split: _parquet_files(files, files))
    splits = tuple(split for split in SPLIT_NAMES if split in by_split)
    return Reader(source, splits, lambda split: _parquet_files(by_split[split] if split else files, files))


def _parquet_files(files: list[Path], all_files: list[Path]) -> Encoded:
    """Rows of the hub's layout: an image column (bytes, or a struct of bytes and path) and a label column."""
    schema = _open_parquet(files[0]).schema_arrow
    image = _column(files[0], schema, ("img", "image"), "an image column", "img")
    label = _column(files[0], schema, ("label", "fine_label", "labels"), "a label column", "label")
    for file in files[1:]:
        for name, what in ((image, "the image column"), (label, "the label column")):
            _column(file, _open_parquet(file).schema_arrow, (name,), f"{what} of {files[0].name}", name)
    values = np.concatenate([_label_values(file, label) for file in files])
    labels, classes = _number_labels(files[0], label, values, _hub_classes(schema, label), all_files)
    usable = np.flatnonzero(labels >= 0)

    def read(indices: NDArray[np.int64]) -> Iterator[bytes | Path]:
        wanted = np.zeros(len(labels), dtype=bool)
        wanted[usable[indices]] = True
        row = 0
        for file in files:
            batches = _open_parquet(file).iter_batches(batch_size=1024, columns=[image])
            while True:
                with _damage(file, image):
                    batch = next(batches, None)
                if batch is None:
                    break
                rows = np.flatnonzero(wanted[row : row + len(batch)])
                row += len(batch)
                if len(rows):
                    for cell in batch.column(0).take(rows).to_pylist():
                        yield _cell_bytes(cell, file.parent)

    missing = len(labels) - len(usable)
    return Encoded(read, labels[usable], classes, {"no label": missing} if missing else {})


def _open_parquet(file: Path) -> Any:
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(file)
    except Exception as error:
        raise InputError(f"{file}: not a readable parquet file ({error}); download or write it again") from error


@contextmanager
def _damage(file: Path, column: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pyarrow's own, and OSError for damaged pages
        raise InputError(
            f"{file}: column {column!r} cannot be read ({error}); download or write the file again"
        ) from error


def _label_values(file: Path, column: str) -> NDArray[Any]:
    """The labels of one file: numbers, or objects of text and None."""
    import pyarrow.types as kinds

    with _damage(file, column):
        values = _open_parquet(file).read([column])[column]
    plain = values.type.value_type if kinds.is_dictionary(values.type) else values.type
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_string, kinds.is_large_string)
    if not any(test(plain) for test in (*tests, kinds.is_null)):
        raise InputError(f"{file}: column {column!r} holds {plain}; labels are whole numbers or text")
    return np.asarray(values.to_pandas())


def _column(file: Path, schema: Any, names: Sequence[str], what: str, remedy: str) -> str:
    for name in names:
        if name in schema.names:
            return name
    raise InputError(
        f"{file}: lacks {what} ({' or '.join(names)}), it has {', '.join(schema.names)}; "
        f"rename the column to {remedy!r}"
    )


def _hub_classes(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names of the classes as the hub's ``datasets`` writes them into the file's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _number_labels(
    file: Path, column: str, values: NDArray[Any], names: tuple[str, ...] | None, all_files: list[Path]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers from 0, and the names of the classes; -1 where a row has no label."""
    if values.dtype == object or values.dtype.kind in "US":
        texts = np.array(["" if value is None or value != value else str(value) for value in values])
        if names is None:
            names = tuple(sorted(set(_all_texts(all_files, column)) | set(texts.tolist()) - {""}))
        number = {name: index for index, name in enumerate(names)}
        return np.array([number.get(text, -1) for text in texts], dtype=np.int64), names
    if values.dtype.kind not in "iufb":
        raise InputError(f"{file}: column {column!r} holds {values.dtype}; labels are whole numbers or text")
    filled = np.where(np.isfinite(values.astype(np.float64)), values, -1)
    with np.errstate(invalid="ignore"):  # what no int64 holds is refused below
        labels = filled.astype(np.int64)
    if not np.array_equal(labels, filled):
        row = int(np.flatnonzero(labels != filled)[0])
        raise InputError(f"{file}: column {column!r}, row {row}: {values[row]} is no label; labels are whole numbers")
    highest = int(labels.max(initial=-1))
    if names is None and highest >= MOST_CLASSES:
        row = int(labels.argmax())
        raise InputError(
            f"{file}: column {column!r}, row {row}: label {highest} would make {highest + 1} classes, the most are "
            f"{MOST_CLASSES}; number the classes from 0, or give their names as text"
        )
    if names is None:
        names = tuple(str(number) for number in range(highest + 1))
    elif highest >= len(names):
        raise InputError(
            f"{file}: column {column!r} has the label {highest}, but the file names {len(names)} classes; "
            "correct the labels or the metadata"
        )
    return np.maximum(labels, -1), names


def _all_texts(files: list[Path], column: str) -> list[str]:
    """Text labels of every split, so that each split numbers the classes alike."""
    texts: set[str] = set()
    for file in files:
        if column in _open_parquet(file).schema_arrow.names:
            texts.update(str(text) for text in _label_values(file, column) if text is not None and text == text)
    return sorted(texts - {""})


def _cell_bytes(cell: Any, folder: Path) -> bytes | Path:
    if isinstance(cell, dict):
        if cell.get("bytes"):
            return cell["bytes"]
        return folder / cell["path"] if cell.get("path") else b""
    return cell if isinstance(cell, bytes) else b""


# ---------------------------------------------------------------------------------------------------- npz


def _npz(source: str, path: Path) -> Reader:
    """Arrays by the names that Keras (``x_train``), MedMNIST (``train_images``) and plain files (``images``) use."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
    except Exception as error:
        raise InputError(f"{source}: not a readable .npz ({error}); write it with numpy.savez") from error
    pairs: dict[str | None, tuple[str, str]] = {}
    for split, prefixes in SPLIT_NAMES.items():
        for prefix in prefixes:
            for pair in ((f"x_{prefix}", f"y_{prefix}"), (f"{prefix}_images", f"{prefix}_labels")):
                if names >= set(pair):
                    pairs[split] = pair
    for pair in (("images", "labels"), ("x", "y")):
        if not pairs and names >= set(pair):
            pairs[None] = pair
    if not pairs:
        raise InputError(
            f"{source}: holds {', '.join(sorted(names)) or 'nothing'}; name the arrays images and labels, "
            "or x_train, y_train, x_test and y_test"
        )
    splits = tuple(split for split in pairs if split is not None)
    return Reader(source, splits, lambda split: _npz_arrays(source, path, pairs[split]))


def _npz_arrays(source: str, path: Path, pair: tuple[str, str]) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels = file[pair[0]], file[pair[1]]
            names = tuple(str(name) for name in file["classes"].reshape(-1)) if "classes" in file.files else None
    except Exception as error:  # ValueError for objects, BadZipFile and zlib's own for damage
        raise InputError(f"{source}: cannot be read ({error}); save plain arrays with numpy.savez") from error
    where = f"{source}: array {pair[0]!r}"
    if images.dtype.kind not in "buif":
        raise InputError(f"{where} holds {images.dtype}; pixels are numbers of 0..255, or 0..1 as floats")
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras and MedMNIST have them
        labels = labels[:, 0]
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3, 4) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or 0 in images.shape[1:] or labels.shape != (len(images),):
        raise InputError(
            f"{where} has shape {images.shape} and {pair[1]!r} {labels.shape}; "
            "images are (N, H, W), (N, H, W, C) or (N, C, H, W), and labels (N,)"
        )
    if images.dtype != np.uint8:
        low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
        if not (low >= 0 and high <= 255):
            raise InputError(f"{where} has values from {low:g} to {high:g}; pixels are 0..255, or 0..1 as floats")
        scale = 255 if high <= 1 and images.dtype.kind == "f" else 1
        images = np.round(images * scale).astype(np.uint8)
    numbers, classes = _number_labels(path, pair[1], labels, names, [])
    usable = numbers >= 0
    missing = int((~usable).sum())
    return Arrays(
        np.ascontiguousarray(images[usable]), numbers[usable], classes, {"no label": missing} if missing else {}
    )
