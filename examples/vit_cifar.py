"""Use 1: train a ViT, test it, and see where it looks. ``--data cifar10`` downloads CIFAR-10; without, it is digits.

Look at the rollout: which pixels reach the classifier through all layers. ``--weights RUN`` takes a finished run.
"""

import tempfile
from pathlib import Path

from _common import PICTURES, run, save, table

from mha_apps.images import load
from mha_apps.vision import VitRecipe, evaluate, explain, plot_explanation, train


def main(
    out: Path = PICTURES / "vit_cifar.png", data: str = "digits", weights: Path | None = None, epochs: int = 12
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trained = weights or train(VitRecipe(data=data, epochs=epochs), out=Path(folder) / "vit").path
        result = evaluate(trained, data)
        images = load(data, "test")
        explained = explain(trained, images.images[:3])
    picture = plot_explanation(explained, images.classes, images.labels[:3], heads=True)
    picture.set_size_inches(8, 4.6)
    save(picture, out)
    table(["test images", "top-1 accuracy", "loss"], [(result["images"], result["top1"], result["loss"])])
    print(f"The ViT names {result['top1']:.1%} of {result['images']:,} test images of {data} rightly.")
    return {"top1": result["top1"]}


if __name__ == "__main__":
    run(main, __doc__)
