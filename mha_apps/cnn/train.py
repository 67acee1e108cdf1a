"""Training a CNN with gates, and judging it on test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file

from mha_apps.cnn.models import GatedCNN, backbone, model_channels
from mha_apps.cnn.recipe import CnnRecipe
from mha_apps.cnn.surgery import CHILD, gate_parameters
from mha_apps.errors import InputError
from mha_apps.images.classify import classification_task, evaluate_model, load_for_training
from mha_apps.images.source import ImageSet
from mha_apps.training import files
from mha_apps.training.clock import counting_from
from mha_apps.training.device import resolve_device, resolve_precision
from mha_apps.training.loop import fit
from mha_apps.training.random import seed_everything
from mha_apps.training.report import Report
from mha_apps.training.run import Run

__all__ = ["build", "evaluate", "load_model", "train"]


@counting_from()
def train(
    recipe: CnnRecipe | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    resume: str | Path | None = None,
) -> Run:
    """Trains by a recipe into a run folder, or continues the run in `resume` with the recipe that it has.

    Args:
        recipe: see `CnnRecipe`; the defaults train on the digits. The run's own when None and resuming.
        out: the folder; `runs/cnn-DATE-TIME` when None.
        force: replace a run that `out` holds.
        resume: folder of an interrupted run.

    Returns:
        The run: `model/` has the weights that were best on the validation images.

    Raises:
        InputError: the data, the model's name, the gate or its places cannot be used; nothing is written then.
    """
    run = Run.open(resume, "cnn") if resume is not None else None
    recipe = recipe or (run.recipe(CnnRecipe) if run is not None else CnnRecipe())
    recipe.check()
    recipe = recipe.located()
    resolve_precision(recipe.precision, resolve_device(recipe.device))
    training, validation = load_for_training(recipe, channels=model_channels(recipe.model))
    model = build(recipe, training)
    groups = model.parameter_groups(
        learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay, gate_rate=recipe.gate_rate
    )
    task = classification_task(model, training, validation, recipe, mean=model.mean, std=model.std, parameters=groups)
    if run is None:
        run = Run.create(out, recipe, "cnn", force=force)
    task.facts = {
        "gates": len(model.gates),
        "gate_parameters": sum(weight.numel() for weight in gate_parameters(model)),
        "train": training.describe(),
        "validation": validation.describe(),
    }
    task.sections = lambda report: _gates(report, run, model)
    fit(task, recipe, run)
    return run


def _gates(report: Report, run: Run, model: GatedCNN) -> None:
    """What was plugged in where."""
    listed = f"{model.gates or 'no gates'}"
    files.replace_text(run.path / "gates.txt", f"{listed}\n")
    report.heading("Gates").code(listed)


def build(recipe: CnnRecipe, training: ImageSet) -> GatedCNN:
    """The model of a recipe for such images. The network's weights depend on the seed alone, not on the gates."""
    mean, std = training.statistics()
    bottleneck = recipe.gate in ("se", "cbam", "channel")
    seed_everything(recipe.seed)
    model = GatedCNN(
        model=recipe.model,
        classes=list(training.classes),
        gate=recipe.gate,
        where=recipe.places,
        start=recipe.start,
        options={"reduction": recipe.reduction} if bottleneck else None,
        channels=training.channels,
        image_size=list(training.image_size),
        mean=mean,
        std=std,
        seed=recipe.seed,
    )
    if recipe.pretrained:
        source = backbone(recipe.model, classes=len(training.classes), channels=training.channels, pretrained=True)
        model.backbone.load_state_dict(source.state_dict())
    if recipe.weights is not None:
        _load_backbone(model, Path(recipe.weights))
    return model


def _load_backbone(model: GatedCNN, folder: Path) -> None:
    """Takes over the network's weights of another run, and those of its gates where it has the same kind of gate at the
    same place. Gates that it lacks keep their start."""
    run = Run.open(folder, "cnn")
    other, path = run.recipe(CnnRecipe), run.model_dir / "model.safetensors"
    if not path.is_file():
        raise InputError(f"{path}: is missing; that run has not got as far as its first validation")
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own, and OSError
        raise InputError(f"{path}: is damaged ({error}); restore it or train that run again") from error
    if other.gate == model.gate and other.start != model.start:  # the same numbers would mean other factors
        raise InputError(f"{folder}: its gates have the start {other.start}; give --start {other.start}")
    gates = {key: value for key, value in model.state_dict().items() if f".{CHILD}." in key}
    taken = gates.keys() if other.gate == model.gate else set()
    shared = {key: value for key, value in weights.items() if f".{CHILD}." not in key or key in taken}
    try:
        model.load_state_dict(gates | shared)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 300 else f"{reason[:300]} ..."
        raise InputError(
            f"{path}: does not fit {model.model_name} ({reason}); give the --model, --data, --image-size and "
            "--reduction of that run"
        ) from error


def load_model(run: Run | str | Path) -> GatedCNN:
    """The best model of a run, in evaluation mode.

    Raises:
        InputError: the folder holds no run of this kind, or its model is missing or damaged.
    """
    run = run if isinstance(run, Run) else Run.open(run, "cnn")
    return run.model(GatedCNN)


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
    """Judges the best model of a run on images that it was not trained on; the confusion matrix goes into its plots.

    Args:
        run: the run or its folder.
        data: a source of images; the one that the run was trained on when None.
        split: `test`; `all` takes every image of a source without splits.
        flip_average: average the logits of each image with those of its mirror image. Stated in the result.
        device, precision, batch_size: how it is computed.

    Returns:
        `model`, `gate`, and what `mha_apps.images.classify.evaluate_model` returns (`top1` and more).
    """
    run = run if isinstance(run, Run) else Run.open(run, "cnn")
    model = load_model(run)
    result = evaluate_model(
        model,
        run,
        run.recipe(CnnRecipe),
        data,
        split=split,
        flip_average=flip_average,
        device=device,
        precision=precision,
        batch_size=batch_size,
    )
    return {"model": model.model_name, "gate": model.gate, **result}
