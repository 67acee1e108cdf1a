"""Augmentation on batches of tensors: all images of a batch at once, from numbers drawn for each of them.

The numbers come from (seed, epoch, sample index), so an image is augmented alike in whatever batch it lands.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.images.recipe import ImageRecipe
from mha_apps.images.source import ImageSet
from mha_apps.training.random import uniform

__all__ = ["Augmentation", "crop_and_flip", "normalize"]

# One stream of random numbers for each use.
CROP, FLIP = 1, 2


class Augmentation:
    """The augmentation that a recipe asks for, in two halves: drawn on the CPU, applied on the device.

    Raises:
        InputError: a crop that is not smaller than the image.
    """

    def __init__(self, train: ImageSet, recipe: ImageRecipe, *, mean: Sequence[float], std: Sequence[float]) -> None:
        self.train, self.recipe, self.mean, self.std = train, recipe, mean, std
        side = min(train.image_size)
        self.crop = side // 8 if recipe.crop is None else recipe.crop
        self.flip = recipe.data != "digits" if recipe.flip is None else recipe.flip
        if self.crop >= side:
            raise InputError(f"--crop {self.crop}: must be less than the image's side of {side} pixels")

    def draw(self, indices: Tensor, epoch: int) -> dict[str, Tensor]:
        """Cropped and flipped images (batch, channels, height, width) uint8, labels, and what :meth:`apply` needs."""
        images = crop_and_flip(
            self.train.images, indices, seed=self.recipe.seed, epoch=epoch, crop=self.crop, flip=self.flip
        )
        return {"images": images, "labels": self.train.labels[indices]}

    def apply(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Normalised images (batch, channels, height, width) and targets, (batch,) or (batch, classes) when mixed."""
        return normalize(batch["images"], self.mean, self.std), batch["labels"]


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(batch, channels, height, width) uint8 to float32, each channel less its mean and over its deviation (of 0..1)."""
    scale = 255 * torch.tensor(std, device=images.device).reshape(-1, 1, 1)
    shift = torch.tensor(mean, device=images.device).reshape(-1, 1, 1) * 255
    return (images.float() - shift) / scale


def crop_and_flip(images: Tensor, indices: Tensor, *, seed: int, epoch: int, crop: int, flip: bool) -> Tensor:
    """The images at ``indices``, each shifted by up to ``crop`` pixels and flipped in every other epoch.

    The border is a reflection. Whether the flip starts in the first epoch or in the second is random for each image
    (alternating flip: Jordan, "94% on CIFAR-10 in 3.29 seconds", 2024, section 3.6), so two epochs show both sides.

    Args:
        images: the whole set, (N, channels, height, width).
        indices: which of them, (batch,) int64.
        crop: pixels, less than the sides of the image.

    Returns:
        (batch, channels, height, width), of the type of ``images``.
    """
    height, width = images.shape[2:]
    if not 0 <= crop < min(height, width):
        raise ValueError(f"crop must be at least 0 and less than the image's sides {height}x{width}, got {crop}")
    rows = torch.arange(height).expand(len(indices), height)
    columns = torch.arange(width).expand(len(indices), width)
    if flip:
        late = uniform(seed, 0, indices, FLIP, 1)[:, 0] < 0.5
        turned = late ^ (epoch % 2 == 0)
        columns = torch.where(turned[:, None], columns.flip(1), columns)
    if crop:
        shift = (uniform(seed, epoch, indices, CROP, 2) * (2 * crop + 1)).long() - crop
        rows = _reflect(rows + shift[:, :1], height)
        columns = _reflect(columns + shift[:, 1:], width)
    # One gather does it all; the channels come last in it, as they lie in memory after a channels-last convolution.
    picked = images[indices[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def _reflect(position: Tensor, length: int) -> Tensor:
    """Positions up to ``length - 1`` beyond either end, reflected without repeating the border pixel."""
    last = length - 1
    return last - (last - position.abs()).abs()
