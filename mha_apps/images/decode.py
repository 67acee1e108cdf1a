"""Encoded image files to arrays of pixels, for every odd image that people have.

Grey, palette, 16-bit, CMYK, transparent and EXIF-rotated images come out as they look on a screen; what cannot
be used right is refused with a short reason that the caller counts, so that one bad file never ends a training.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from os import cpu_count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_jpeg

from mha_apps.errors import InputError

__all__ = ["EXTENSIONS", "Unreadable", "decode", "decode_all", "probe"]

#: File names that are taken for images; others in a folder are counted as "not an image file name".
EXTENSIONS = frozenset(
    {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)

#: An image of more pixels is refused (after JPEG's own reduction): decoded it would take over 200 MB.
LARGEST = 50_000_000

#: Encoded images of at most this many bytes take a shorter way.
SMALL = 32_768


class Unreadable(Exception):
    """An image that cannot be used; ``reason`` is a few words that can be counted, such as "truncated"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode(data: bytes | Path, *, size: tuple[int, int] | None = None, channels: int = 3) -> NDArray[np.uint8]:
    """One image as it looks on a screen.

    - EXIF orientation is applied; of an animation, the first frame is taken.
    - Transparency is laid over white; 16-bit values are divided by 257; float values in 0..1 are multiplied by 255.
    - An image of another size is scaled (bicubic, antialiased) until it covers ``size`` and cropped at its centre.

    Args:
        data: the encoded bytes, or the file that holds them.
        size: (height, width) to bring the image to; ``None`` keeps its own.
        channels: 1 for grey (ITU-R 601 luma) or 3 for RGB.

    Returns:
        (channels, height, width), uint8.

    Raises:
        Unreadable: the image is missing, empty, truncated, too large, or no image at all.
    """
    data = _small_in_memory(data)
    if (array := _small_jpeg(data, channels)) is not None:
        if size is None or array.shape[1:] == size:
            return array
        pixels = Image.fromarray(array[0] if channels == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
        return _to_array(_fit(pixels, size))
    with _open(data) as image:
        if size is not None and image.format == "JPEG":
            # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which bounds the memory of huge photographs.
            # The larger side is asked for on both axes, because EXIF may exchange them later.
            image.draft(None, (max(size), max(size)))
        if image.width * image.height > LARGEST:
            raise Unreadable(f"larger than {LARGEST // 1_000_000} megapixels")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image.load()
                pixels = _as_seen(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
        except Unreadable:
            raise
        except MemoryError as error:
            raise Unreadable("too large for this machine's memory") from error
        except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, zlib.error, ...
            raise Unreadable("truncated or damaged") from error
    return _to_array(pixels if size is None else _fit(pixels, size))


def decode_all(
    images: Iterable[bytes | Path], *, size: tuple[int, int], channels: int = 3
) -> Iterator[NDArray[np.uint8] | Unreadable]:
    """:func:`decode` over a stream, in order and on all cores; an unreadable image is its :class:`Unreadable`.

    At most a few hundred encoded images are held at a time, whatever the length of the stream.

    Raises:
        InputError: ``channels`` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise InputError(
            f"the model takes images of {channels} channels, image files have 1 or 3; give the images as arrays in .npz"
        )

    def one(data: bytes | Path) -> NDArray[np.uint8] | Unreadable:
        try:
            return decode(data, size=size, channels=channels)
        except Unreadable as error:
            return error

    stream = iter(images)
    workers = min(8, cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        while group := [_small_in_memory(data) for data in islice(stream, 16 * workers)]:
            # Small images spend their time in Python, which threads would only make slower.
            large = any(isinstance(data, Path) or len(data) > SMALL for data in group)
            yield from pool.map(one, group) if large else map(one, group)


def probe(data: bytes | Path) -> tuple[int, int, int]:
    """(height, width, channels) from the header alone: channels is 1 for a grey image and 3 for any other.

    Raises:
        Unreadable: as :func:`decode` does, as far as the header shows it.
    """
    with _open(data) as image:
        height, width = image.height, image.width
        try:
            if image.getexif().get(0x0112, 1) in (5, 6, 7, 8):  # EXIF orientations that turn by a quarter
                height, width = width, height
        except Exception as error:
            raise Unreadable("truncated or damaged") from error
        return height, width, 1 if image.mode in ("1", "L", "LA", "I", "F") or "I;16" in image.mode else 3


def _small_in_memory(data: bytes | Path) -> bytes | Path:
    """The bytes of a small file that is there; anything else as it is."""
    if isinstance(data, Path):
        try:
            if 0 < data.stat().st_size <= SMALL:
                return data.read_bytes()
        except OSError:
            pass  # opening it again says what is wrong
    return data


def _small_jpeg(data: bytes | Path, channels: int) -> NDArray[np.uint8] | None:
    """A small JPEG by torchvision, which gives the same pixels as Pillow in a quarter of the time; else None."""
    if not isinstance(data, bytes) or len(data) > SMALL or data[:2] != b"\xff\xd8":
        return None
    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        return decode_jpeg(encoded, mode=mode, apply_exif_orientation=True).numpy()
    except RuntimeError:
        return None  # Pillow says what is wrong with it


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if image.size == (size[1], size[0]):
        return image
    return ImageOps.fit(image, (size[1], size[0]), method=Image.Resampling.BICUBIC)


def _to_array(image: Image.Image) -> NDArray[np.uint8]:
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _open(data: bytes | Path) -> Image.Image:
    try:
        if isinstance(data, Path):
            if data.stat().st_size == 0:
                raise Unreadable("empty file")
        elif not data:
            raise Unreadable("empty file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    except Image.DecompressionBombError as error:
        raise Unreadable(f"larger than {LARGEST // 1_000_000} megapixels") from error
    except UnidentifiedImageError as error:
        raise Unreadable("not an image") from error
    except FileNotFoundError as error:
        raise Unreadable("missing file") from error
    except OSError as error:
        raise Unreadable("unreadable file") from error
    except (SyntaxError, ValueError, EOFError) as error:
        raise Unreadable("truncated or damaged") from error


def _as_seen(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_8_bit(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    try:
        return image.convert(mode)
    except ValueError as error:
        raise Unreadable(f"colour mode {image.mode}") from error


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Pillow clips where it converts such images to 8 bits; here the range is scaled."""
    values = np.asarray(image).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 65535):  # also true of NaN
        raise Unreadable("values outside 0..65535")
    if image.mode == "F" and high <= 1:
        values = values * 255
    elif "16" in image.mode or high > 255:
        values = values / 257
    return Image.fromarray(np.round(values).astype(np.uint8))
