"""Named shapes of the ViT. Plain data, so that the command line can list them without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mha_apps.errors import InputError, nearest

__all__ = ["PRESETS", "Preset", "find_preset"]


@dataclass(frozen=True)
class Preset:
    """Settings of :class:`mha_apps.vision.ViT`, and what to expect of them."""

    about: str
    settings: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "digits": Preset(
        "8x8 images through a stem of two 3x3 convolutions to 16 tokens: 0.15M parameters, 2.4M MACs. "
        "Made for scikit-learn's digits: 98% of the test images in 40 epochs, half a minute on two cores.",
        {
            "patch_size": 2,
            "dim": 64,
            "depth": 3,
            "heads": 4,
            "mlp_ratio": 3.0,
            "stem": "conv",
            "pool": "mean",
            "position": "learned",
        },
    ),
    "compact": Preset(
        "32x32 images through a stem of six 3x3 convolutions with max pooling to 16 tokens: 2.84M parameters, 120M "
        "MACs. Made for CIFAR on a CPU: on CIFAR-10 81% of the test images in 10 minutes on two cores "
        "without bf16 units (2 epochs), 87% in an hour (12 epochs).",
        {
            "patch_size": 8,
            "dim": 256,
            "depth": 2,
            "heads": 4,
            "mlp_ratio": 3.0,
            "activation": "relu2",
            "stem": "pooled",
            "pool": "mean",
            "position": "learned+relative",
        },
    ),
    "compact-4": Preset(
        "32x32 images through a stem of four 3x3 convolutions with max pooling to 64 tokens: 0.70M parameters, 57M "
        "MACs. For sides that 8 does not divide, as 28x28, and for finer maps of attention.",
        {
            "patch_size": 4,
            "dim": 128,
            "depth": 3,
            "heads": 2,
            "mlp_ratio": 3.0,
            "activation": "relu2",
            "stem": "pooled",
            "pool": "mean",
            "position": "learned+relative",
        },
    ),
    "swin-32": Preset(
        "32x32 images through a stem of two 3x3 convolutions to 256 tokens, which attend within shifted windows of 4x4 "
        "and are merged to 64 after two blocks: 0.80M parameters, 72M MACs. A small Swin (Liu et al. 2021).",
        {
            "patch_size": 2,
            "dim": 64,
            "depth": [2, 4],
            "heads": 2,
            "window": 4,
            "mlp_ratio": 3.0,
            "stem": "conv",
            "pool": "mean",
            "position": "relative",
        },
    ),
    "conv-7-256": Preset(
        "32x32 images through a stem of three 3x3 convolutions to 64 tokens: 4.35M parameters, 298M MACs. "
        "Made for CIFAR on a GPU.",
        {
            "patch_size": 4,
            "dim": 256,
            "depth": 7,
            "heads": 4,
            "mlp_ratio": 2.0,
            "stem": "conv",
            "pool": "attention",
            "position": "learned+relative",
        },
    ),
    "vit-9-192": Preset(
        "32x32 images in plain patches of 4: 64 tokens, 4.0M parameters, 270M MACs. The usual small ViT for CIFAR.",
        {"patch_size": 4, "dim": 192, "depth": 9, "heads": 3, "pool": "mean", "position": "learned"},
    ),
    "tiny-16": Preset(
        "ViT-Ti/16 (Touvron et al. 2021): 224x224 images in patches of 16, 5.7M parameters, 1.3G MACs.",
        {"patch_size": 16, "dim": 192, "depth": 12, "heads": 3, "pool": "class", "position": "learned"},
    ),
    "small-16": Preset(
        "ViT-S/16 (Touvron et al. 2021): 224x224 images in patches of 16, 22M parameters, 4.6G MACs.",
        {"patch_size": 16, "dim": 384, "depth": 12, "heads": 6, "pool": "class", "position": "learned"},
    ),
    "base-16": Preset(
        "ViT-B/16 (Dosovitskiy et al. 2021): 224x224 images in patches of 16, 86M parameters, 17.6G MACs.",
        {"patch_size": 16, "dim": 768, "depth": 12, "heads": 12, "pool": "class", "position": "learned"},
    ),
}


def find_preset(name: str, image_size: tuple[int, int]) -> dict[str, Any]:
    """The settings of a preset; ``auto`` picks one by the shorter side of the images, and by what divides both.

    Raises:
        InputError: there is no such preset.
    """
    if name == "auto":
        side = min(image_size)
        small = "compact-4" if any(length % 8 for length in image_size) else "compact"
        name = "digits" if side < 16 else small if side <= 96 else "tiny-16"
    if name not in PRESETS:
        near = nearest(name, PRESETS)
        hint = f"; did you mean {near}?" if near else ""
        raise InputError(f"--preset {name}: there is none of that name, only auto, {', '.join(PRESETS)}{hint}")
    return dict(PRESETS[name].settings)
