"""The recipe of a ViT: the fields that are its command-line flags and its recipe file. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mha_apps.errors import InputError
from mha_apps.images.recipe import ImageRecipe

__all__ = ["VitRecipe"]


@dataclass(kw_only=True)
class VitRecipe(ImageRecipe):
    """How a ViT is trained. A field of the model that is not given is the preset's."""

    default_budget: ClassVar[tuple[str, float]] = ("epochs", 40)

    learning_rate: float = 2e-3
    """Peak learning rate, reached after the warm-up."""
    mixup: float = 0.4
    """Beta parameter of mixup; 0 turns it off. With cutmix too, each image gets one of both."""

    preset: str = "auto"
    """Shape of the model; auto picks one by the image size. See `vit presets`."""
    pretrained: str | None = None
    """Start from these weights: a run folder, a folder or hub name that save_pretrained made, or a ViT of timm's."""
    pretrained_weights: str | None = None
    """A local file with timm's weights for the model that --pretrained names."""
    patch_size: int | None = None
    """Pixels on a side of the patch that becomes one token."""
    dim: int | None = None
    """Channels of a token."""
    depth: int | None = None
    """Number of transformer blocks."""
    heads: int | None = None
    """Attention heads; divides dim."""
    window: int | None = None
    """Attend within shifted windows of so many tokens a side, as Swin does; to the whole image when not given."""
    mlp_ratio: float | None = None
    """Hidden channels of the feed-forward over dim."""
    stem: Literal["patch", "conv", "pooled", "shifted"] | None = None
    """How patches become tokens: one linear map, overlapping 3x3 convolutions, two of them a halving with max pooling,
    or shifted patches."""
    pool: Literal["mean", "class", "attention"] | None = None
    """What the classifier reads: the mean token, a class token, or attention pooling."""
    position: str | None = None
    """How tokens know where they stand: learned, sinusoidal, rotary, relative, or two as in learned+relative."""
    activation: Literal["gelu", "relu", "relu2", "silu", "swiglu"] | None = None
    """Of the feed-forward; relu2 is squared and the cheapest on a CPU."""
    registers: int | None = None
    """Tokens without a place that the model may use as memory."""
    dropout: float | None = None
    """Dropout on attention weights and activations."""
    drop_path: float | None = None
    """Rate at which the last block is skipped for an image; it grows linearly with depth."""

    def check(self) -> None:
        super().check()
        for name in ("patch_size", "dim", "depth", "heads", "window", "mlp_ratio"):
            self.require(name, above=0)
        self.require("registers", least=0)
        for name in ("dropout", "drop_path"):
            self.require(name, least=0, below=1)
        if self.pretrained_weights is not None and self.pretrained is None:
            raise InputError("--pretrained-weights: name the model that they belong to with --pretrained")
        if self.pretrained is not None:
            fixed = set(self.overrides()) - {"dropout", "drop_path"} | ({"preset"} if self.preset != "auto" else set())
            if fixed:
                name = sorted(fixed)[0].replace("_", "-")
                raise InputError(f"--{name}: --pretrained {self.pretrained} brings its own; leave one of the two out")

    def overrides(self) -> dict[str, Any]:
        """The settings of the model that the recipe gives, beside its preset."""
        names = (
            "patch_size", "dim", "depth", "heads", "window", "mlp_ratio", "stem", "pool", "position", "activation",
            "registers", "dropout", "drop_path",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}
