"""Where images come from: one function, :func:`load`, for every source that ``--data`` names.

A source is split once and for all: its own splits where it has them, else cuts that depend on nothing but the
list of labels, so that two runs, and training and evaluation, always agree on which image is in which split.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile, gettempdir
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.images.decode import Unreadable, decode_all, probe
from mha_apps.images.readers import Arrays, Encoded, Reader, open_source

__all__ = ["ImageSet", "Split", "load", "stratified_split", "with_classes"]

Split = Literal["train", "validation", "test", "all"]

#: Decoded images beyond this many bytes live in a memory-mapped temporary file that the system may page out.
IN_MEMORY = 2 * 2**30

#: Pixels; a batch of such images would not fit into memory long before.
LARGEST_SIDE = 4096


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of one size, decoded, in memory.

    Attributes:
        images: (N, C, H, W), uint8.
        labels: (N,), int64, indices into ``classes``.
        classes: the name of each class.
        skipped: how many images were left out, by reason.
        source: what was loaded, as the user named it.
        split: which part of it.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    skipped: dict[str, int] = field(default_factory=dict)
    source: str = ""
    split: str = "all"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.images.shape[2], self.images.shape[3]

    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel, of pixels scaled to 0..1.

        Counted exactly from the 256 possible values. A constant channel gets a deviation of 1.
        """
        levels = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in range(self.channels):
            counts = torch.zeros(256, dtype=torch.float64)
            for images in self.images[:, channel].split(4096):
                counts += torch.bincount(images.flatten(), minlength=256)
            share = counts / counts.sum()
            average = (share * levels).sum()
            deviation = (share * (levels - average).square()).sum().sqrt()
            mean.append(float(average))
            std.append(float(deviation) if deviation > 1e-6 else 1.0)
        return mean, std

    def describe(self) -> str:
        """One line for the user: what is there, and what was left out and why."""
        height, width = self.image_size
        line = f"{len(self):,} images of {height}x{width}, {len(self.classes)} classes"
        if self.skipped:
            line += "; skipped " + ", ".join(f"{count:,} ({reason})" for reason, count in self.skipped.items())
        return line


def load(
    source: str,
    split: Split,
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    validation: float = 0.1,
) -> ImageSet:
    """Read one split of an image source.

    Sources: ``digits``; ``cifar10`` and ``cifar100``; a folder of class folders, with or without ``train``,
    ``validation`` and ``test`` above them; a parquet file or a folder of them in the hub's layout; ``.npz``.

    A source without a validation split gives up the share ``validation`` of its training images for one; a source
    without any splits (a single file, bare class folders, digits) gives up a fifth for the test split first. Both
    cuts are stratified by class and always the same.

    Args:
        image_size: height and width to bring images to (see :func:`mha_apps.images.decode.decode`). ``None`` keeps
            the size that nine in ten images share, where it is 256 at most; else takes a square whose side is the
            median of the shorter sides, rounded to a multiple of 16 and kept within 32..224.
        channels: 1 or 3. ``None``: 1 where all are grey, else 3.

    Raises:
        InputError: the source does not exist, has no labels, lacks the split, or has no readable image in it.
    """
    reader = open_source(source)
    raw, chosen = _select(reader, split, validation)
    if isinstance(image_size, int):
        image_size = (image_size, image_size)
    if image_size is not None and not (min(image_size) >= 1 and max(image_size) <= LARGEST_SIDE):
        raise InputError(f"--image-size {max(image_size)}: must be from 1 to {LARGEST_SIDE}")
    skipped = Counter(raw.skipped if split in ("train", "all") or split in reader.splits else {})
    if isinstance(raw, Arrays):
        images = _fit_arrays(raw.images[chosen], image_size, channels)
        labels = raw.labels[chosen]
    else:
        size, depth = _choose(raw, image_size, channels)
        images, readable, unreadable = _decode(raw, chosen, size, depth)
        labels = raw.labels[chosen][readable]
        skipped.update(unreadable)
    if len(labels) == 0:
        reasons = f" ({dict(skipped)})" if skipped else ""
        raise InputError(f"{source}: no usable image in the split {split!r}{reasons}; check the files and labels")
    return ImageSet(
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels),
        classes=raw.classes,
        skipped=dict(skipped),
        source=source,
        split=split,
    )


def with_classes(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The same images with their labels numbered as a model numbers its classes, matched by name (by number where the
    data names no classes).

    Raises:
        InputError: the set has a class that the model does not know.
    """
    classes = tuple(classes)
    if images.classes == classes:
        return images
    known = {name: number for number, name in enumerate(classes)}
    present = {images.classes[number] for number in images.labels.unique().tolist()}
    unknown = sorted(present - known.keys())
    unnamed = images.classes == tuple(str(number) for number in range(len(images.classes)))
    if unknown and unnamed and len(images.classes) <= len(classes):
        return replace(images, classes=classes)
    if unknown:
        raise InputError(
            f"{images.source}: class {unknown[0]!r} is unknown to the model, whose classes are "
            f"{', '.join(classes[:10])}{', ...' if len(classes) > 10 else ''}; rename the class or train on this data"
        )
    numbers = torch.tensor([known.get(name, -1) for name in images.classes])
    return replace(images, labels=numbers[images.labels], classes=classes)


def stratified_split(
    labels: NDArray[np.int64], share: float, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices that stay and indices that are cut off: ``share`` of each class, both in ascending order.

    A class of two images or more gives up at least one and keeps at least one; a single image stays.
    """
    draw = np.random.default_rng(seed)
    cut = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        cut[members[:count]] = True
    return np.flatnonzero(~cut), np.flatnonzero(cut)


def _select(reader: Reader, split: Split, validation: float) -> tuple[Arrays | Encoded, NDArray[np.int64]]:
    """The raw images that hold a split, and which of them belong to it."""
    if split in reader.splits:
        raw = reader.read(split)
        everything = np.arange(len(raw.labels))
        if split == "train" and "validation" not in reader.splits:
            return raw, stratified_split(raw.labels, validation)[0]
        return raw, everything
    if split == "all":
        if len(reader.splits) > 1:
            raise InputError(f"{reader.source}: has the splits {', '.join(reader.splits)}; name one of them")
        raw = reader.read(reader.splits[0] if reader.splits else None)
        return raw, np.arange(len(raw.labels))
    if reader.splits:
        if split == "validation" and "train" in reader.splits:
            raw = reader.read("train")
            return raw, stratified_split(raw.labels, validation)[1]
        raise InputError(
            f"{reader.source}: has no {split} split, only {', '.join(reader.splits)}; "
            f"name a source that has one (files named {split}-*.parquet, or a folder {split}/)"
        )
    raw = reader.read(None)
    training, test = stratified_split(raw.labels, 0.2)
    if split == "test":
        return raw, test
    kept, cut = stratified_split(raw.labels[training], validation, seed=1)
    return raw, training[kept if split == "train" else cut]


def _choose(raw: Encoded, image_size: tuple[int, int] | None, channels: int | None) -> tuple[tuple[int, int], int]:
    """The size and number of channels of the set, from up to 1,000 headers where they are not given."""
    if image_size is not None and channels is not None:
        return image_size, channels
    shapes = []
    for data in raw.sample(1000):
        try:
            shapes.append(probe(data))
        except Unreadable:
            continue  # counted when it is decoded
    if not shapes:
        return image_size or (32, 32), channels or 3
    if channels is None:
        channels = max(shape[2] for shape in shapes)
    if image_size is None:
        (common, count), *_ = Counter(shape[:2] for shape in shapes).most_common(1)
        if count >= 0.9 * len(shapes) and max(common) <= 256:
            image_size = common
        else:
            side = 16 * round(float(np.median([min(shape[:2]) for shape in shapes])) / 16)
            image_size = (min(max(side, 32), 224),) * 2
    return image_size, channels


def _decode(
    raw: Encoded, chosen: NDArray[np.int64], size: tuple[int, int], channels: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], Counter[str]]:
    images = _room(len(chosen), (channels, *size))
    readable = np.zeros(len(chosen), dtype=bool)
    reasons: Counter[str] = Counter()
    filled = 0
    for position, result in enumerate(decode_all(raw.stream(chosen), size=size, channels=channels)):
        if isinstance(result, Unreadable):
            reasons[result.reason] += 1
        else:
            images[filled] = result
            readable[position] = True
            filled += 1
    return images[:filled], readable, reasons


def _room(count: int, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    needed = count * math.prod(shape)
    if needed <= IN_MEMORY:
        return np.empty((count, *shape), dtype=np.uint8)
    free = shutil.disk_usage(gettempdir()).free
    if needed > free:  # a mapped file that outgrows its disk ends the process
        raise InputError(
            f"{count:,} images of {shape[1]}x{shape[2]} need {needed / 2**30:.1f} GiB, but {gettempdir()} has "
            f"{free / 2**30:.1f} GiB free; set a smaller --image-size, or TMPDIR to a larger disk"
        )
    with TemporaryFile() as file:  # the mapping keeps the unnamed file alive, and it goes when the mapping goes
        return np.memmap(file, dtype=np.uint8, mode="w+", shape=(count, *shape))


def _fit_arrays(
    images: NDArray[np.uint8], image_size: tuple[int, int] | None, channels: int | None
) -> NDArray[np.uint8]:
    """Arrays (N, C, H, W) brought to a size and a number of channels by the rules of encoded images."""
    if channels == 3 and images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    elif channels == 1 and images.shape[1] == 3:
        luma = np.tensordot(images, np.array([0.299, 0.587, 0.114]), axes=(1, 0))
        images = np.round(luma).astype(np.uint8)[:, None]
    elif channels not in (None, images.shape[1]):
        raise InputError(f"images have {images.shape[1]} channels where {channels} are needed; use data of one kind")
    if image_size is not None and images.shape[2:] != image_size:
        from torchvision.transforms.v2 import functional

        height, width = image_size
        scale = max(height / images.shape[2], width / images.shape[3])
        scaled = [max(round(images.shape[2] * scale), height), max(round(images.shape[3] * scale), width)]
        fitted = _room(len(images), (images.shape[1], height, width))
        # Resizing works in float32: one piece at a time keeps that to a part of a gigabyte.
        piece = max(1, 2**25 // (images.shape[1] * math.prod(scaled)))
        for begin in range(0, len(images), piece):
            tensor = functional.resize(
                torch.from_numpy(images[begin : begin + piece]),
                scaled,
                functional.InterpolationMode.BICUBIC,
                antialias=True,
            )
            fitted[begin : begin + piece] = functional.center_crop(tensor, [height, width]).numpy()
        return fitted
    return np.ascontiguousarray(images)
