"""The recipe of the CNN trainer: what the command line's flags are made of. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tyro.conf import Suppress

from mha_apps.errors import InputError
from mha_apps.images.recipe import ImageRecipe

__all__ = ["CnnRecipe", "GateName"]

GateName = Literal["none", "se", "eca", "cbam", "channel", "spatial", "spatial-self", "channel-self"]


@dataclass(kw_only=True)
class CnnRecipe(ImageRecipe):
    """A CNN with gates. The defaults bring ResNet-20 with CBAM to about 98% on the digits' test images."""

    default_budget: ClassVar[tuple[str, float]] = ("epochs", 20)

    model: str = "resnet20"
    """`resnet20`, also 8, 14, 32, 44, 56, 110; `resnet18_3x3`; a name of torchvision's, or `timm/NAME`."""
    gate: GateName = "cbam"
    """What is plugged in; `none` trains the network as it is."""
    where: str = "auto"
    """`auto`: the end of each residual branch. Or globs over module paths, with commas between them."""
    start: Literal["identity", "standard"] = "identity"
    """Whether a new gate is exactly 1, or about one half as in the papers."""
    reduction: int = 16
    """Channels per unit of the bottleneck of se, cbam and channel; the bottleneck is never narrower than 8."""
    gate_rate: float = 1.0
    """Learning rate of the gates, as a multiple of the others'."""
    weights: str | None = None
    """Start from the weights of another run's folder, trained with other gates or without."""
    pretrained: bool = False
    """Start from the weights that torchvision or timm have for the model; downloads them."""
    optimizer: str = "sgd"
    """Any optimiser name that timm knows; sgd is with Nesterov momentum of 0.9."""
    batch_size: int = 64
    """Examples in one optimiser step, over all processes together."""
    learning_rate: float = 0.1
    """Peak learning rate, reached after the warm-up."""
    weight_decay: float = 5e-4
    """Weight decay; never applied to biases and norms."""
    clip: float = 5.0
    """Largest norm of the gradient; 0 turns clipping off."""
    label_smoothing: float = 0.1
    """Share of the target that is spread evenly over all classes."""

    def check(self) -> None:
        super().check()
        self.require("reduction", least=1)
        self.require("gate_rate", above=0)
        if self.weights is not None and self.pretrained:
            raise InputError("--weights and --pretrained: give one of them")
        if not self.where.strip():
            raise InputError("--where: is empty; give auto or a glob over module paths, such as 'layer3.*.bn2'")

    @property
    def places(self) -> str | list[str]:
        """`where` as `plug` takes it."""
        parts = [part.strip() for part in self.where.split(",")]
        return parts[0] if len(parts) == 1 else parts


@dataclass(kw_only=True)
class ComparedRecipe(CnnRecipe):
    """What all runs of a comparison share, from the command line: a gate is none of it, so ``--gate`` is no flag."""

    gate: Suppress[GateName] = "none"
