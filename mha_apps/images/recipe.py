"""The fields that every image classifier's recipe has: data, sizes and augmentation. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from mha_apps.training.files import located
from mha_apps.training.recipe import TrainingRecipe

NAMED = ("digits", "cifar10", "cifar100")
"""Data that is known by name."""


@dataclass(kw_only=True)
class ImageRecipe(TrainingRecipe):
    """What the trainers of image classifiers share."""

    data: str = "digits"
    """`digits`, `cifar10`, `cifar100`, a folder of class folders, parquet (file or folder) or .npz."""
    image_size: int | None = None
    """Side to which images are scaled and centre-cropped; their own when nearly all share one of up to 256."""
    validation: float = 0.1
    """Share of the training images held out to select the weights, where the data has no validation split."""
    crop: int | None = None
    """Pixels of reflected border for random crops; when not given an eighth of the side, 0 below 16 pixels."""
    flip: bool | None = None
    """Left-right flip, alternating between epochs; on unless the data is `digits`."""
    policy: Literal["none", "trivial", "rand"] = "none"
    """Colour and geometry: TrivialAugment, or RandAugment with two operations of strength 9 of 30."""
    erasing: float = 0.0
    """Probability with which a random rectangle of an image gets the mean colour."""
    mixup: float = 0.0
    """Beta parameter of mixup; 0 turns it off. With cutmix too, each image gets one of both."""
    cutmix: float = 0.0
    """Beta parameter of cutmix; 0 turns it off."""
    label_smoothing: float = 0.1
    """Share of the target that is spread evenly over all classes."""

    def located(self) -> Self:
        """The same recipe with the data's absolute path, where it is a file or a folder: found from any folder."""
        path = located(self.data)
        return replace(self, data=path) if self.data not in NAMED and Path(path).exists() else self

    def check(self) -> None:
        super().check()
        self.require("image_size", above=0)
        self.require("validation", above=0, below=1)
        self.require("erasing", least=0, below=1.0001)
        self.require("label_smoothing", least=0, below=1)
        for name in ("crop", "mixup", "cutmix"):
            self.require(name, least=0)
