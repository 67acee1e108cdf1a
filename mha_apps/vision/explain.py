"""Where a ViT looks: attention laid over the images that it classifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mha_apps.attention import AttentionMaps, head_statistics, record_attention, rollout
from mha_apps.errors import InputError
from mha_apps.images.augment import normalize
from mha_apps.images.decode import Unreadable, decode_all
from mha_apps.images.picture import picture_path, visible
from mha_apps.training.files import save_picture
from mha_apps.training.run import Run
from mha_apps.vision.model import ViT, load_model
from mha_apps.vision.predict import find_images
from mha_apps.vision.pyramid import Pyramid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Explanation", "explain", "explain_files", "plot_explanation"]


@dataclass(frozen=True)
class Explanation:
    """How much each patch counts for what the classifier reads. Every map of an image sums to 1.

    Attributes:
        images: (batch, channels, height, width) uint8, what was explained.
        probabilities: (batch, classes).
        rollout: attention through all layers (Abnar and Zuidema 2020), (batch, rows, columns).
        heads: the attention of the last layer, (batch, heads, rows, columns) of the last stage's patches.
        maps: the attention of every layer, token by token, as ``mha_apps.attention`` records it.
    """

    images: Tensor
    probabilities: Tensor
    rollout: Tensor
    heads: Tensor
    maps: AttentionMaps


@torch.no_grad()
def explain(run: Run | str | Path | ViT, images: Tensor) -> Explanation:
    """Attention maps of images.

    The classifier's view is the class token's row of the maps; with mean pooling the mean of all patches' rows;
    with attention pooling the rows weighted as the pooling weighs them.

    Args:
        run: the run folder, or the model itself.
        images: (batch, channels, height, width) uint8, of the model's size.

    Raises:
        InputError: no run in the folder.
    """
    model = (run if isinstance(run, ViT) else load_model(run)).eval()
    device = next(model.parameters()).device
    with record_attention(model) as maps:
        logits = model(normalize(images.to(device), model.mean, model.std))
    layers = [weights for name, weights in maps.items() if name.startswith("encoder.")]
    tokens = layers[-1].shape[-1]
    view = torch.zeros(len(images), tokens, device=device)
    if model.pool == "class":
        view[:, 0] = 1
    elif model.pool == "mean":
        view[:, model.prefix :] = 1 / (tokens - model.prefix)
    else:
        view = maps["pool_attention"].mean(dim=1)[:, 0]

    if isinstance(model.encoder, Pyramid):
        rolled_out = model.encoder.rollout(view, layers)
    else:
        rolled_out = torch.einsum("bq,bqk->bk", view, rollout(layers))

    def patches(weights: Tensor, grid: tuple[int, int]) -> Tensor:
        seen = weights[..., model.prefix :]
        seen = seen / seen.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        return rearrange(seen, "... (h w) -> ... h w", h=grid[0], w=grid[1]).cpu()

    return Explanation(
        images=images.cpu(),
        probabilities=logits.float().softmax(dim=1).cpu(),
        rollout=patches(rolled_out, model.grid),
        heads=patches(torch.einsum("bq,bhqk->bhk", view, layers[-1]), model.last_grid),
        maps=maps,
    )


def explain_files(
    run: Run | str | Path,
    inputs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    heads: bool = True,
    limit: int = 16,
) -> dict[str, Any]:
    """A picture of where the model looks in image files, and what its heads do.

    Args:
        run: the run folder.
        inputs: files, folders and globs.
        out: the PNG to write; ``plots/explanation.png`` in the run folder when None.
        heads: draw each head of the last layer by itself.
        limit: how many images to draw at most, the first of them.

    Returns:
        ``plot``; ``images``, a row for each image drawn (``file``, ``class``, ``probability``); ``skipped`` (file and
        reason of each that could not be read); ``heads``, the core's head statistics; ``ill``, what they say is wrong;
        ``left_out``, how many images were beyond the limit.

    Raises:
        InputError: no image that can be read; no run in the folder; ``out`` is no name of a PNG, or one of the images.
    """
    run = run if isinstance(run, Run) else Run.open(run, "vit")
    if limit < 1:
        raise InputError(f"--limit {limit}: must be at least 1")
    target = picture_path(out, run, "explanation.png")
    model = load_model(run)
    files = find_images(inputs)
    if target.resolve() in {file.resolve() for file in files}:
        raise InputError(f"--out {out}: is one of the images and would be replaced; name another picture")
    chosen = files[:limit]
    decoded = list(zip(chosen, decode_all(chosen, size=model.image_size, channels=model.channels), strict=True))
    good = [(file, image) for file, image in decoded if not isinstance(image, Unreadable)]
    skipped = [{"file": str(file), "reason": bad.reason} for file, bad in decoded if isinstance(bad, Unreadable)]
    if not good:
        raise InputError(f"{chosen[0]}: {skipped[0]['reason']}; none of {len(chosen)} images can be read, name others")
    explanation = explain(model, torch.from_numpy(np.stack([image for _, image in good])))
    statistics = head_statistics(explanation.maps)
    save_picture(plot_explanation(explanation, model.classes, heads=heads), target)
    probability, number = explanation.probabilities.max(dim=1)
    answers = zip(good, probability.tolist(), number.tolist(), strict=True)
    return {
        "plot": str(target),
        "images": [
            {"file": str(file), "class": model.classes[index], "probability": value}
            for (file, _), value, index in answers
        ],
        "skipped": skipped,
        "left_out": len(files) - len(chosen),
        "heads": dict(statistics),
        "ill": statistics.ill,
    }


def plot_explanation(
    explanation: Explanation,
    classes: Sequence[str],
    labels: Tensor | None = None,
    *,
    heads: bool = False,
) -> Figure:
    """One row for each image: the image, the rollout over it, and the last layer over it.

    Args:
        explanation: of :func:`explain`.
        classes: names.
        labels: (batch,) the true classes, shown beside the prediction.
        heads: every head of the last layer by itself, not their mean.
    """
    from matplotlib.figure import Figure

    maps = [("rollout", explanation.rollout)]
    if heads:
        maps += [(f"head {number}", explanation.heads[:, number]) for number in range(explanation.heads.shape[1])]
    else:
        maps += [("last layer", explanation.heads.mean(dim=1))]
    count, height, width = len(explanation.images), *explanation.images.shape[2:]
    figure = Figure(figsize=(1.9 * (1 + len(maps)), 2.15 * count), layout="constrained")
    for row, axes in enumerate(figure.subplots(count, 1 + len(maps), squeeze=False)):
        picture, colours = visible(explanation.images[row])
        for column, ax in enumerate(axes):
            ax.set_axis_off()
            ax.imshow(picture, **colours)
            if column:
                name, values = maps[column - 1]
                large = F.interpolate(values[row][None, None], (height, width), mode="bicubic")[0, 0]
                ax.imshow(large.clamp(min=0), cmap="inferno", alpha=0.6)
                ax.set_title(name, fontsize=8)
        probability, number = explanation.probabilities[row].max(dim=0)
        title = f"{classes[int(number)]} ({probability:.0%})"
        if labels is not None and int(labels[row]) != int(number):
            title += f"\nis {classes[int(labels[row])]}"
        axes[0].set_title(title, fontsize=8)
    return figure
