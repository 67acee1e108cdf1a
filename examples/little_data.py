"""Where the local bias of convolution pays: a ViT, a ViT with a convolutional stem and a CNN, with little data.

A convolution is told that what is near belongs together and that a thing is the same thing elsewhere; a ViT has to
learn both from examples (Dosovitskiy et al. 2021, section 3.1; Xiao et al. 2021, "Early convolutions help transformers
see better"). All models have about a hundred thousand parameters and see the same number of images in training, so that
only how many of them are different differs. Look at the gap at the left, and at what is left of it at the right.

The embedded data are scikit-learn's digits, each put somewhere on a canvas of 16 x 16 pixels with noise; the test is of
digits that training never had. ``--data cifar10``, a parquet file or a folder takes real photographs, at 16 x 16.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from _common import COLOURS, PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.cnn import CifarResNet
from mha_apps.images import load, normalize
from mha_apps.vision import ViT

SIDE, COUNTS, STEPS, BATCH = 16, (500, 2000, 10000), 400, 32


def moved_digits(split: str, count: int) -> tuple[Tensor, Tensor]:
    """Digits of 8 x 8 anywhere on a noisy canvas, uint8 (count, 1, 16, 16), and their labels."""
    digits = load("digits", split)
    chosen = torch.randint(len(digits), (count,))
    images = torch.randint(0, 60, (count, 1, SIDE, SIDE), dtype=torch.uint8)
    corner = torch.randint(0, SIDE - 8 + 1, (count, 2)).tolist()
    for image, digit, (row, column) in zip(images, digits.images[chosen], corner, strict=True):
        patch = image[:, row : row + 8, column : column + 8]
        patch.copy_(torch.maximum(patch, digit))
    return images, digits.labels[chosen]


def photographs(data: str, split: str, count: int) -> tuple[Tensor, Tensor]:
    images = load(data, split, image_size=SIDE)  # type: ignore[arg-type]
    chosen = torch.randperm(len(images))[:count]
    return images.images[chosen], images.labels[chosen]


def make(name: str, channels: int, classes: int) -> nn.Module:
    if name == "CNN (ResNet-8)":
        return CifarResNet(8, classes=classes, channels=channels)
    stem = "conv" if "stem" in name else "patch"
    return ViT(
        image_size=SIDE,
        patch_size=4,
        channels=channels,
        classes=classes,
        dim=64,
        depth=3,
        heads=4,
        mlp_ratio=2,
        stem=stem,
    )


def learn(name: str, training: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seed: int) -> tuple[float, int]:
    """Accuracy on the test images, and the number of parameters."""
    torch.manual_seed(seed)
    images, labels = training
    model = make(name, images.shape[1], int(max(labels.max(), test[1].max())) + 1)

    def loss() -> Tensor:
        batch = torch.randint(len(labels), (BATCH,))
        return F.cross_entropy(model(normalize(images[batch], mean, std)), labels[batch], label_smoothing=0.1)

    scaled = images.float() / 255
    mean, std = scaled.mean(dim=(0, 2, 3)).tolist(), scaled.std(dim=(0, 2, 3)).tolist()
    train(model, loss, STEPS, 3e-3)
    model.eval()
    with torch.no_grad():
        right = [
            model(normalize(part, mean, std)).argmax(dim=1) == truth
            for part, truth in zip(test[0].split(500), test[1].split(500), strict=True)
        ]
    return float(torch.cat(right).float().mean()), sum(p.numel() for p in model.parameters())


def main(out: Path = PICTURES / "little_data.png", seed: int = 0, data: str | None = None) -> dict[str, float]:
    torch.manual_seed(seed)

    def source(split: str, count: int) -> tuple[Tensor, Tensor]:
        return moved_digits(split, count) if data is None else photographs(data, split, count)

    images, labels = source("train", COUNTS[-1])
    test = source("test", 2000)
    names = ("ViT", "ViT with a convolutional stem", "CNN (ResNet-8)")
    found = {name: [learn(name, (images[:count], labels[:count]), test, seed) for count in COUNTS] for name in names}
    accuracy = {name: [value for value, _ in results] for name, results in found.items()}
    table(
        ["model", "parameters", *(f"accuracy of {count:,} images" for count in COUNTS)],
        [(name, results[0][1], *(value for value, _ in results)) for name, results in found.items()],
    )
    draw(accuracy, "digits moved about" if data is None else Path(data).name, out)
    vit, stem, cnn = accuracy.values()
    print(
        f"With {COUNTS[0]} images the CNN names {cnn[0]:.0%} of the test rightly, the ViT {vit[0]:.0%} and the ViT "
        f"with a convolutional stem {stem[0]:.0%}; with {COUNTS[-1]:,} they are at {cnn[-1]:.0%}, {vit[-1]:.0%} and "
        f"{stem[-1]:.0%}."
    )
    return {
        "vit_few": vit[0], "stem_few": stem[0], "cnn_few": cnn[0],
        "vit_many": vit[-1], "stem_many": stem[-1], "cnn_many": cnn[-1],
    }  # fmt: skip


def draw(accuracy: dict[str, list[float]], name: str, out: Path) -> None:
    picture, ax = figure(height=3.4)
    for colour, marker, (model, values) in zip(COLOURS, "osv", accuracy.items(), strict=False):
        ax.plot(COUNTS, [100 * value for value in values], marker=marker, color=colour, label=model)
    ax.set_xscale("log")
    ax.set_xticks(COUNTS, [f"{count:,}" for count in COUNTS])
    ax.minorticks_off()
    ax.set(xlabel="different training images", ylabel="test accuracy, %", ylim=(0, 102))
    ax.set_title(f"{name}: {STEPS} steps of {BATCH} images each")
    ax.legend(loc="lower right")
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
