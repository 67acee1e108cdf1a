"""Looking at gates at work: their maps laid over images, the factors of their channels, and Grad-CAM beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from mha_apps.cnn.dataflow import evaluation_mode
from mha_apps.cnn.gates import Gate
from mha_apps.cnn.models import GatedCNN
from mha_apps.cnn.surgery import find_gates
from mha_apps.errors import InputError
from mha_apps.images.augment import normalize
from mha_apps.images.picture import picture_path, visible
from mha_apps.training.files import save_picture
from mha_apps.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["explain", "gate_maps", "grad_cam", "plot_gates"]


def gate_maps(model: nn.Module, inputs: Tensor) -> dict[str, dict[str, Tensor]]:
    """What each gate does to these inputs.

    Args:
        model: any network with gates.
        inputs: (batch, channels, height, width), as the network takes them.

    Returns:
        By the path of the host: `channel` (batch, channels) and `spatial` (batch, height, width) of that layer,
        whichever the gate has. Factors of 1 leave things as they are.

    Raises:
        InputError: the model has no gates.
    """
    gates = find_gates(model)
    if not gates:
        raise InputError(f"{type(model).__name__} has no gates to look at; plug some in first")
    maps: dict[str, dict[str, Tensor]] = {}

    def watch(path: str, gate: Gate) -> torch.utils.hooks.RemovableHandle:
        def look(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            maps[path] = gate.maps(given[0])

        return gate.register_forward_pre_hook(look)

    handles = [watch(path, gate) for path, gate in gates.items()]
    try:
        with evaluation_mode(model), torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return maps


def grad_cam(
    model: nn.Module,
    inputs: Tensor,
    path: str,
    targets: Tensor | None = None,
    *,
    side: Literal["before", "after"] = "after",
) -> Tensor:
    """Where the evidence for a class is, in the feature maps of one layer (Selvaraju et al. 2017, arXiv:1610.02391,
    eq. 1 and 2).

    Args:
        model: a classifier.
        inputs: (batch, channels, height, width), as the network takes them.
        path: the layer, as in `model.named_modules()`.
        targets: (batch,) classes to look for; the predicted ones when None.
        side: `before` or `after` the gate of that layer; without a gate both are the same.

    Returns:
        (batch, height, width) of that layer, 0 to 1 for each image.

    Raises:
        InputError: there is no such layer, or it does not return feature maps.
    """
    modules = dict(model.named_modules())
    if path not in modules:
        raise InputError(f"layer {path!r} is none of the model's; see model.named_modules()")
    gate = find_gates(model).get(path)
    with _captured(modules[path], gate if side == "before" else None) as seen, evaluation_mode(model):
        with torch.enable_grad():
            logits = model(inputs.detach().requires_grad_())
            if not seen or seen[0].ndim != 4:
                raise InputError(f"layer {path!r} does not return (batch, channels, height, width)")
            chosen = logits.argmax(dim=1) if targets is None else targets.to(logits.device)
            score = logits.gather(1, chosen[:, None]).sum()
            (gradient,) = torch.autograd.grad(score, seen[0])
        # Eq. 1 averages the gradient over the places, eq. 2 adds the maps up by it and keeps what speaks for the class.
        cam = (gradient.mean((2, 3), keepdim=True) * seen[0].detach()).sum(1).relu()
    return cam / cam.amax((1, 2), keepdim=True).clamp_min(1e-12)


@contextmanager
def _captured(module: nn.Module, gate: Gate | None) -> Iterator[list[Tensor]]:
    """What the module returns, or what its gate is given. The network goes on with a copy: it may add in place."""
    seen: list[Tensor] = []

    def take_output(host: nn.Module, given: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            seen.append(output)
            return output.clone()

    def take_input(host: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        seen.append(given[0])
        return (given[0].clone(),)

    hook = gate.register_forward_pre_hook(take_input) if gate else module.register_forward_hook(take_output)
    try:
        yield seen
    finally:
        hook.remove()


def plot_gates(
    model: GatedCNN,
    images: Tensor,
    *,
    labels: Sequence[str] | None = None,
    places: Sequence[str] | None = None,
) -> Figure:
    """One row an image: the image, the maps of its gates laid over it, Grad-CAM before and after the last gate, and
    the factors of the channels. A column has one scale of colours, so that its images can be compared.

    Args:
        model: a classifier with gates.
        images: (batch, channels, height, width) uint8, a few.
        labels: what each image shows.
        places: paths of the gates to show; the last at each resolution, three at most, when None.

    Raises:
        InputError: the model has no gates, or `places` names one that it does not have.
    """
    from matplotlib.figure import Figure

    network = model.backbone
    inputs = normalize(images, model.mean, model.std).to(next(model.parameters()).device)
    maps = gate_maps(network, inputs)
    shown = list(places) if places is not None else _last_of_each_resolution(model)
    if unknown := [path for path in shown if path not in maps]:
        raise InputError(f"place {unknown[0]!r} has no gate; there are {', '.join(maps)}")
    with evaluation_mode(network), torch.no_grad():
        predicted = network(inputs).argmax(dim=1)
    spatial = [path for path in shown if "spatial" in maps[path]]
    channel = [path for path in shown if "channel" in maps[path]]
    panels: list[tuple[str, Tensor]] = [(f"gate of {path}", maps[path]["spatial"]) for path in spatial]
    sides: tuple[Literal["before", "after"], ...] = ("before", "after")
    for side in sides:
        # One line: constrained layout cuts a second one off where all columns keep the aspect of the images.
        name = f"Grad-CAM {side} the last gate"
        panels.append((name, grad_cam(network, inputs, shown[-1], predicted, side=side)))

    columns = 1 + len(panels) + bool(channel)
    widths = [1.0] * (1 + len(panels)) + [1.6] * bool(channel)
    figure = Figure(figsize=(1.9 * sum(widths), 1.95 * len(images) + 1.1), layout="constrained")
    grid = figure.subplots(len(images), columns, squeeze=False, width_ratios=widths)
    lowest = min((float(maps[path]["channel"].min()) for path in channel), default=0)
    highest = max((float(maps[path]["channel"].max()) for path in channel), default=1)
    margin = 0.05 * (highest - lowest) + 0.01
    for row, axes in enumerate(grid):
        _show_image(axes[0], images[row])
        axes[0].set_ylabel(_verdict(model, predicted[row], labels[row] if labels is not None else None), fontsize=8)
        for column, (title, panel) in enumerate(panels, start=1):
            low, high = float(panel.min()), float(panel.max())
            colours = _lay_over(axes[column], images[row], panel[row], low, max(high, low + 1e-6))
            if row == 0:
                axes[column].set_title(title, fontsize=8)
                bar = figure.colorbar(colours, ax=grid[:, column], location="bottom", fraction=0.02, aspect=12)
                bar.ax.tick_params(labelsize=6)
        if channel:
            for path in channel:
                factors = maps[path]["channel"][row].cpu()
                axes[-1].plot(torch.linspace(0, 1, len(factors)), factors.sort().values, label=path, linewidth=1.2)
            axes[-1].set_ylim(lowest - margin, highest + margin)
            axes[-1].axhline(1, color="grey", linewidth=0.6, linestyle=":")
            axes[-1].tick_params(labelsize=7)
            axes[-1].set_xticks([])
            if row == 0:
                axes[-1].set_title("factors of the channels,\nfrom the smallest to the largest", fontsize=8)
                axes[-1].legend(fontsize=6)
    return figure


def _last_of_each_resolution(model: GatedCNN) -> list[str]:
    last = {(row.height, row.width): row.path for row in model.gates}
    return list(last.values())[-3:]


def _verdict(model: GatedCNN, predicted: Tensor, label: str | None) -> str:
    name = model.classes[int(predicted)]
    return f"taken for {name}" if label is None else f"{label}, taken for {name}"


def _show_image(axes: Any, image: Tensor) -> None:
    pixels, colours = visible(image)
    axes.imshow(pixels, **colours)
    axes.set_xticks([])
    axes.set_yticks([])


def _lay_over(axes: Any, image: Tensor, values: Tensor, low: float, high: float) -> AxesImage:
    """Draws the map over the image in colours from `low` to `high`."""
    _show_image(axes, image)
    height, width = image.shape[1:]
    return axes.imshow(
        values.detach().cpu().numpy(),
        cmap="inferno",
        alpha=0.6,
        interpolation="bilinear",
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        vmin=low,
        vmax=high,
    )


def explain(
    run: Run | str | Path,
    data: str | None = None,
    *,
    count: int = 6,
    split: Literal["validation", "test", "train", "all"] = "validation",
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Draws the gates of a run's best model at work on a few images, one of each class in turn.

    Args:
        run: the run or its folder.
        data: a source of images; the one that the run was trained on when None.
        count: how many images.
        split: which part of the data; the test images are left alone unless asked for.
        out: the picture; `plots/gates.png` of the run when None.

    Returns:
        `plot`, the path of the picture, and `gates`, a row each: the place, the kind, and the mean, smallest and
        largest factor of its channels and of its places over these images.

    Raises:
        InputError: no run in the folder; `out` is no name of a PNG; the images cannot be used.
    """
    from mha_apps.cnn.recipe import CnnRecipe
    from mha_apps.cnn.train import load_model
    from mha_apps.images.source import load, with_classes

    run = run if isinstance(run, Run) else Run.open(run, "cnn")
    if count < 1:
        raise InputError(f"--count {count}: must be at least 1")
    path = picture_path(out, run, "gates.png")
    model = load_model(run)
    if not model.gates:
        raise InputError(f"{run.path}: was trained without gates, so there are none to look at; name another run")
    height, width = model.image_size
    source = data or run.recipe(CnnRecipe).data
    images = with_classes(load(source, split, image_size=(height, width), channels=model.channels), model.classes)
    chosen = _one_of_each(images.labels, count)
    pixels = images.images[chosen]
    maps = gate_maps(model.backbone, normalize(pixels, model.mean, model.std))
    labels = [images.classes[number] for number in images.labels[chosen].tolist()]
    save_picture(plot_gates(model, pixels, labels=labels), path, dpi=130)
    gates = find_gates(model.backbone)
    rows = []
    for place, parts in maps.items():
        row: dict[str, Any] = {"place": place, "gate": gates[place].name}
        for name, values in parts.items():
            for word, number in (("mean", values.mean()), ("smallest", values.min()), ("largest", values.max())):
                row[f"{name}_{word}"] = round(float(number), 4)
        rows.append(row)
    return {"plot": str(path), "gates": rows}


def _one_of_each(labels: Tensor, count: int) -> Tensor:
    """Indices of the first image of each class, then of the second of each, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for index, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], label, index))
    return torch.tensor([index for _, _, index in sorted(ranked)[:count]])
