"""Training and evaluating a ViT: from a recipe to a run folder, and from a run folder to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from mha_apps.errors import InputError
from mha_apps.images.classify import classification_task, evaluate_model, load_for_training
from mha_apps.images.source import ImageSet
from mha_apps.training.clock import counting_from
from mha_apps.training.device import resolve_device, resolve_precision
from mha_apps.training.loop import fit
from mha_apps.training.random import seed_everything
from mha_apps.training.report import Report
from mha_apps.training.run import Run
from mha_apps.vision.convert import adapt, from_timm, replace_head
from mha_apps.vision.model import ViT, load_model
from mha_apps.vision.presets import find_preset
from mha_apps.vision.recipe import VitRecipe

__all__ = ["build", "evaluate", "train"]


@counting_from()
def train(
    recipe: VitRecipe | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    resume: str | Path | None = None,
) -> Run:
    """Train a ViT into a run folder.

    Args:
        recipe: data, model and training; the defaults train on the digits. The run's own when None and resuming.
        out: the run folder; ``runs/vit-DATE-TIME`` when None.
        force: replace the run that ``out`` holds.
        resume: a run folder to continue where its last checkpoint stands.

    Raises:
        InputError: the data, the recipe or the folder cannot be used. Nothing has been written then.
    """
    run = Run.open(resume, "vit") if resume is not None else None
    recipe = recipe or (run.recipe(VitRecipe) if run is not None else VitRecipe())
    recipe.check()
    recipe = recipe.located()
    resolve_precision(recipe.precision, resolve_device(recipe.device))
    pretrained = _pretrained(recipe) if recipe.pretrained is not None else None
    images, validation = load_for_training(
        recipe,
        image_size=pretrained.image_size if pretrained is not None else None,
        channels=pretrained.channels if pretrained is not None else None,
    )
    model = build(recipe, images, pretrained)
    task = classification_task(model, images, validation, recipe, mean=model.mean, std=model.std)
    if run is None:
        run = Run.create(out, recipe, "vit", force=force)
    task.facts = {"train": images.describe(), "validation": validation.describe()}
    task.sections = lambda report: _attention(report, run, model, validation)
    fit(task, recipe, run)
    return run


def _attention(report: Report, run: Run, model: ViT, validation: ImageSet) -> None:
    """A few explained images."""
    from mha_apps.vision.explain import explain, plot_explanation

    few = slice(0, 6)
    maps = plot_explanation(explain(model, validation.images[few]), model.classes, validation.labels[few])
    caption = "Validation images, and where the model looks: bright counts more."
    report.heading("Attention").figure(maps, caption, save=run.plots_dir / "attention.png")


def build(recipe: VitRecipe, images: ImageSet, pretrained: ViT | None = None) -> ViT:
    """The model that a recipe asks for, for such images: new, or made from a pretrained one.

    New weights depend on the seed alone. A pretrained model keeps its own normalisation.

    Raises:
        InputError: an unknown preset; sizes that do not fit together.
    """
    seed_everything(recipe.seed)
    if pretrained is not None:
        rates = {name: rate for name, rate in recipe.overrides().items() if name in ("dropout", "drop_path")}
        try:
            model = adapt(pretrained, image_size=images.image_size, **rates)
        except ValueError as error:
            raise InputError(f"--pretrained {recipe.pretrained}: {error}; set --image-size") from error
        return model if model.classes == images.classes else replace_head(model, images.classes)
    settings = find_preset(recipe.preset, images.image_size) | recipe.overrides()
    mean, std = images.statistics()
    try:
        return ViT(
            image_size=images.image_size,
            channels=images.channels,
            classes=images.classes,
            mean=mean,
            std=std,
            **settings,
        )
    except ValueError as error:
        side = -(-min(images.image_size) // 16) * 16  # which every preset's patch divides
        raise InputError(
            f"{recipe.data} with preset {recipe.preset}: {error}; set --image-size, such as {side}, --patch-size, or "
            "--dim, --heads, --mlp-ratio and the like"
        ) from error


def _pretrained(recipe: VitRecipe) -> ViT:
    """The model that ``--pretrained`` names, as it is."""
    name = str(recipe.pretrained)
    folder = Path(name).expanduser()
    if (folder / "config.toml").is_file():
        return load_model(folder)
    if (folder / "config.json").is_file() or (name.count("/") == 1 and not folder.exists()):
        try:
            return ViT.from_pretrained(folder if folder.exists() else name)
        except Exception as error:  # of the hub, of safetensors, of json, and of a config that is another model's
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(f"--pretrained {name}: cannot be loaded ({reason}); name a local folder") from error
    weights = recipe.pretrained_weights
    return from_timm(name, pretrained=weights is None, weights=weights)


def evaluate(
    run: Run | str | Path,
    data: str | None = None,
    *,
    split: Literal["test", "validation", "all"] = "test",
    flip_average: bool = False,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 128,
) -> dict[str, Any]:
    """How good a run's model is on images that it was not trained on; the confusion matrix goes into its plots.

    Args:
        run: the run folder.
        data: an image source; the one that the run was trained on when None.
        split: ``test``; ``all`` takes every image of a source without splits.
        flip_average: average the logits of each image with those of its mirror image. Stated in the result.

    Returns:
        see :func:`mha_apps.images.classify.evaluate_model`.
    """
    run = run if isinstance(run, Run) else Run.open(run, "vit")
    return evaluate_model(
        load_model(run),
        run,
        run.recipe(VitRecipe),
        data,
        split=split,
        flip_average=flip_average,
        device=device,
        precision=precision,
        batch_size=batch_size,
    )
