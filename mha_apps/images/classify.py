"""Training and applying a classifier of images, whatever its architecture: the bridge to the training loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha_apps.errors import InputError
from mha_apps.images.augment import Augmentation, normalize
from mha_apps.images.evaluate import evaluate_classifier, plot_confusion
from mha_apps.images.recipe import ImageRecipe
from mha_apps.images.source import ImageSet, load, with_classes
from mha_apps.training.device import autocast, resolve_device, resolve_precision
from mha_apps.training.files import save_picture
from mha_apps.training.run import Run

if TYPE_CHECKING:
    from mha_apps.training.loop import Task

__all__ = ["classification_task", "evaluate_model", "load_for_training", "predict_probabilities"]


def load_for_training(
    recipe: ImageRecipe, *, image_size: tuple[int, int] | None = None, channels: int | None = None
) -> tuple[ImageSet, ImageSet]:
    """The training and the validation images that a recipe names, of one size and one numbering of classes.

    Args:
        image_size: (height, width) where the recipe gives none.
        channels: 1 or 3; None decides by the images.

    Raises:
        InputError: see :func:`mha_apps.images.load`; also with fewer than two classes.
    """
    train = load(recipe.data, "train", image_size=recipe.image_size, channels=channels, validation=recipe.validation)
    if len(train.labels.unique()) < 2:
        raise InputError(f"{recipe.data}: the training images are all of one class; give at least two classes")
    validation = load(
        recipe.data,
        "validation",
        image_size=train.image_size,
        channels=train.channels,
        validation=recipe.validation,
    )
    return train, with_classes(validation, train.classes)


def classification_task(
    model: nn.Module,
    train: ImageSet,
    validation: ImageSet,
    recipe: ImageRecipe,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    parameters: list[dict[str, Any]] | None = None,
) -> Task:
    """What the training loop needs to train ``model``, which takes normalised images and gives logits.

    Pixels stay bytes until they are on the device; the augmentation is drawn on the CPU and applied on the device.
    The weights with the best top-1 accuracy on the validation images are kept; of fewer than a thousand images, which
    many epochs classify equally well, those with the least loss.

    Raises:
        InputError: the model cannot be trained on images of this size in batches of this size.
    """
    from mha_apps.training.loop import Task  # takes two seconds to import, and prediction does without it

    augmentation = Augmentation(train, recipe, mean=mean, std=std)
    _try(model, train, recipe)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        images, targets = augmentation.apply(batch)
        return F.cross_entropy(model(images).float(), targets, label_smoothing=recipe.label_smoothing)

    def evaluate(model: nn.Module, indices: Tensor) -> dict[str, Tensor]:
        device = next(model.parameters()).device
        labels = validation.labels[indices].to(device)
        logits = model(normalize(validation.images[indices].to(device), mean, std)).float()
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "top1": (logits.argmax(dim=1) == labels).float(),
        }

    return Task(
        model=model,
        examples=len(train),
        batch=augmentation.draw,
        loss=loss,
        validation_examples=len(validation),
        evaluate=evaluate,
        monitor="top1" if len(validation) >= 1000 else "loss",
        mode="max" if len(validation) >= 1000 else "min",
        parameters=parameters,
    )


def _try(model: nn.Module, train: ImageSet, recipe: ImageRecipe) -> None:
    """One pass of the smallest batch that an optimiser step is made of, through a copy and before anything is written.

    Networks refuse small images, and batch norms a single value, with errors of their own in the midst of a training.
    """
    pieces = torch.arange(min(recipe.batch_size, len(train))).chunk(recipe.accumulate)
    count = min(len(piece) for piece in pieces)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(model).train()(torch.zeros(count, train.channels, *train.image_size))
    except Exception as error:  # whatever a network out of some library raises
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        height, width = train.image_size
        few, remedy = (f"{count} images", "") if count > 1 else ("1 image", " or a larger --batch-size")
        raise InputError(
            f"{recipe.data}: the model cannot be trained on {few} of {height}x{width} at a time ({reason}); "
            f"set --image-size{remedy}"
        ) from error


def evaluate_model(
    model: Any,
    run: Run,
    recipe: ImageRecipe,
    data: str | None = None,
    *,
    split: Literal["test", "validation", "all"] = "test",
    flip_average: bool = False,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 128,
) -> dict[str, Any]:
    """How good a run's model is on images that it was not trained on; the confusion matrix goes into the run's plots.

    Args:
        model: a classifier with ``image_size``, ``channels``, ``classes``, ``mean`` and ``std``.
        run: where the plot goes: into its plots, in a folder of its own for data that it was not trained on.
        recipe: what the run was trained by.
        data: an image source; the one of the recipe when None.
        split: ``test``; ``all`` takes every image of a source without splits.
        flip_average: average the logits of each image with those of its mirror image. Stated in the result.
        device, precision, batch_size: see :func:`predict_probabilities`.

    Returns:
        what :func:`mha_apps.images.evaluate_classifier` returns, with ``data``, ``split``, ``skipped``,
        ``flip_average`` and ``plot``.

    Raises:
        InputError: the images cannot be used, or have classes that the model does not know.
    """
    height, width = model.image_size
    data = data or recipe.data
    images = with_classes(load(data, split, image_size=(height, width), channels=model.channels), model.classes)
    probabilities = predict_probabilities(
        model,
        images.images,
        mean=model.mean,
        std=model.std,
        device=device,
        precision=precision,
        batch_size=batch_size,
        flip_average=flip_average,
    )
    result = evaluate_classifier(probabilities, images.labels, model.classes)
    source = replace(recipe, data=data).located().data
    folder = run.plots_dir if source == recipe.data else run.plots_dir / Path(source).stem
    plot = folder / f"confusion-{split}.png"
    save_picture(plot_confusion(result["confusion"], model.classes), plot)
    return {
        "data": data,
        "split": split,
        "skipped": images.skipped,
        "flip_average": flip_average,
        **result,
        "plot": str(plot),
    }


@torch.inference_mode()
def predict_probabilities(
    model: nn.Module,
    images: Tensor,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 128,
    flip_average: bool = False,
) -> Tensor:
    """Class probabilities of each image.

    Args:
        model: takes normalised images and gives logits; it is moved to the device and put into eval mode.
        images: (N, channels, height, width) uint8.
        flip_average: average the logits with those of the mirrored image. A report must say so.

    Returns:
        (N, classes) float32 on the CPU.
    """
    if batch_size < 1:
        raise InputError(f"--batch-size {batch_size}: must be at least 1")
    where = resolve_device(device)
    model = model.to(where).eval()
    parts = []
    with autocast(where, resolve_precision(precision, where)):
        for batch in images.split(batch_size):
            inputs = normalize(batch.to(where), mean, std)
            logits = model(inputs).float()
            if flip_average:
                logits = (logits + model(inputs.flip(-1)).float()) / 2
            parts.append(logits.softmax(dim=1).cpu())
    return torch.cat(parts)
