"""Augmentation on batches of tensors: all images of a batch at once, from numbers drawn for each of them.

The numbers come from (seed, epoch, sample index), so an image is augmented alike in whatever batch it lands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mha_apps.errors import InputError
from mha_apps.images.policy import apply_policy, numbers_needed
from mha_apps.images.recipe import ImageRecipe
from mha_apps.images.source import ImageSet
from mha_apps.training.random import uniform

__all__ = ["Augmentation", "crop_and_flip", "erasing_boxes", "inside", "mix", "mixing", "normalize"]

# One stream of random numbers for each use.
CROP, FLIP, POLICY, MIX, ERASE = 1, 2, 3, 4, 5


class Augmentation:
    """The augmentation that a recipe asks for, in two halves: drawn on the CPU, applied on the device.

    Raises:
        InputError: a crop that is not smaller than the image; a policy for images that are neither grey nor RGB.
    """

    def __init__(self, train: ImageSet, recipe: ImageRecipe, *, mean: Sequence[float], std: Sequence[float]) -> None:
        self.train, self.recipe, self.mean, self.std = train, recipe, mean, std
        side = min(train.image_size)
        self.crop = (side // 8 if side >= 16 else 0) if recipe.crop is None else recipe.crop
        self.flip = recipe.data != "digits" if recipe.flip is None else recipe.flip
        if self.crop >= side:
            raise InputError(f"--crop {self.crop}: must be less than the image's side of {side} pixels")
        if recipe.policy != "none" and train.channels not in (1, 3):
            raise InputError(
                f"--policy {recipe.policy}: is for images of 1 or 3 channels, these have {train.channels}; leave it out"
            )

    def draw(self, indices: Tensor, epoch: int) -> dict[str, Tensor]:
        """Cropped and flipped images (batch, channels, height, width) uint8, labels, and what :meth:`apply` needs."""
        recipe = self.recipe
        batch = self._pick(indices, epoch)
        if recipe.erasing:
            numbers = uniform(recipe.seed, epoch, indices, ERASE, 5)
            batch["erased"] = erasing_boxes(numbers, recipe.erasing, self.train.image_size)
        if recipe.mixup or recipe.cutmix:
            numbers = uniform(recipe.seed, epoch, indices, MIX, 5)
            # The partner is any training image, not a neighbour in the batch, so that it does not depend on the batch.
            partner = self._pick((numbers[:, 0] * len(self.train)).long(), epoch)
            batch |= {f"partner_{name}": value for name, value in partner.items()}
            batch["share"], batch["box"] = mixing(
                numbers[:, 1:], mixup=recipe.mixup, cutmix=recipe.cutmix, size=self.train.image_size
            )
        return batch

    def _pick(self, indices: Tensor, epoch: int) -> dict[str, Tensor]:
        recipe = self.recipe
        images = crop_and_flip(
            self.train.images, indices, seed=recipe.seed, epoch=epoch, crop=self.crop, flip=self.flip
        )
        picked = {"images": images, "labels": self.train.labels[indices]}
        if count := numbers_needed(recipe.policy):
            picked["policy"] = uniform(recipe.seed, epoch, indices, POLICY, count)
        return picked

    def apply(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Normalised images (batch, channels, height, width) and targets, (batch,) or (batch, classes) when mixed."""
        images, targets = self._prepared(batch, ""), batch["labels"]
        if "share" in batch:
            images = mix(images, self._prepared(batch, "partner_"), batch["share"], batch["box"])
            share = batch["share"][:, None]
            first, second = (
                F.one_hot(labels, len(self.train.classes)).float() for labels in (targets, batch["partner_labels"])
            )
            targets = share * first + (1 - share) * second
        if "erased" in batch:
            # Normalised images have the mean colour at zero.
            images = images * ~inside(batch["erased"], self.train.image_size)[:, None]
        return images, targets

    def _prepared(self, batch: dict[str, Tensor], prefix: str) -> Tensor:
        images = batch[f"{prefix}images"]
        if self.recipe.policy != "none":
            images = apply_policy(images, self.recipe.policy, batch[f"{prefix}policy"])
        return normalize(images, self.mean, self.std)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(batch, channels, height, width) uint8 as float32, less the mean and over the deviation of each channel."""
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


def mixing(numbers: Tensor, *, mixup: float, cutmix: float, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """How each image is mixed with its partner: by mixup (Zhang et al. 2018) or by cutmix (Yun et al. 2019).

    Args:
        numbers: (batch, 4) in [0, 1): which of the two, the share, and the centre of the box.
        mixup: both parameters of the beta distribution of the share; 0 for cutmix only.
        cutmix: the same for cutmix.
        size: (height, width) of the images.

    Returns:
        the share that an image keeps of itself, (batch,), and the box that the partner fills, (batch, 4): top, bottom,
        left, right. With mixup the box is empty; with cutmix the share is that of the pixels outside the box.
    """
    cut = numbers[:, 0] < (cutmix > 0) / ((cutmix > 0) + (mixup > 0))
    share = torch.where(cut, _beta(numbers[:, 1], cutmix or 1.0), _beta(numbers[:, 1], mixup or 1.0))
    height, width = size
    side = (1 - share).sqrt()
    half = torch.stack([side * height, side * width]) / 2
    centre = torch.stack([numbers[:, 2] * height, numbers[:, 3] * width])
    low = (centre - half).round().clamp(min=0) * cut
    high = torch.minimum((centre + half).round(), torch.tensor([[height], [width]])) * cut
    covered = (high - low).prod(dim=0) / (height * width)
    box = torch.stack([low[0], high[0], low[1], high[1]], dim=1)
    return torch.where(cut, 1 - covered, share), box


def _beta(numbers: Tensor, parameter: float) -> Tensor:
    """Uniform numbers to numbers of the beta distribution with both parameters alike, by its inverse."""
    if parameter == 1:
        return numbers
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(parameter, parameter, numbers.double().numpy())).float()


def mix(images: Tensor, partners: Tensor, share: Tensor, box: Tensor) -> Tensor:
    """Images mixed with their partners (both (batch, channels, height, width) float) as :func:`mixing` says."""
    cut = box[:, 1] > box[:, 0]
    # Where a box is cut, the pixels outside it are the image's own in full.
    own = torch.where(cut[:, None, None], 1.0, share[:, None, None])
    own = torch.where(inside(box, (images.shape[2], images.shape[3])), 0.0, own)[:, None]
    return own * images + (1 - own) * partners


def erasing_boxes(numbers: Tensor, probability: float, size: tuple[int, int]) -> Tensor:
    """Boxes for random erasing (Zhong et al. 2020): a fiftieth to a third of the image, sides of 0.3 to 3.3 to one.

    Args:
        numbers: (batch, 5) in [0, 1): whether, area, ratio of the sides, and position.
        probability: share of the images that have a box.
        size: (height, width) of the images.

    Returns:
        (batch, 4): top, bottom, left, right; all zero without a box.
    """
    height, width = size
    area = height * width * (0.02 + numbers[:, 1] * (1 / 3 - 0.02))
    ratio = torch.exp(np.log(0.3) + numbers[:, 2] * (np.log(3.3) - np.log(0.3)))
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top = (numbers[:, 3] * (height - tall + 1)).floor()
    left = (numbers[:, 4] * (width - wide + 1)).floor()
    boxes = torch.stack([top, top + tall, left, left + wide], dim=1)
    return boxes * (numbers[:, :1] < probability)


def inside(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Which pixels are in the boxes (batch, 4) of top, bottom, left, right: (batch, height, width), boolean."""
    row = torch.arange(size[0], device=boxes.device)[None, :, None]
    column = torch.arange(size[1], device=boxes.device)[None, None, :]
    top, bottom, left, right = boxes[:, :, None, None].unbind(dim=1)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)
