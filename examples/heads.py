"""What the heads of a trained ViT look at, which of them are alike, and what happens when one is removed.

The ViT is trained on scikit-learn's digits in this script, or comes from a run folder with ``--weights``. Look at the
bars: every head can go at little cost, one at a time (Michel et al. 2019, "Are sixteen heads really better than one?").
All of a layer are another matter, and the earlier the layer, the more they are missed. The statistics tell an ill head
(all on one token, uniform, or a copy of another) from a well one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import COLOURS, PICTURES, figure, run, save, table
from torch import Tensor

from mha_apps.attention import MultiHeadAttention, head_statistics
from mha_apps.images import load, normalize
from mha_apps.vision import Explanation, ViT, VitRecipe, explain, load_model, train


@contextmanager
def without(attention: MultiHeadAttention, heads: list[int]) -> Iterator[None]:
    """Nothing of these heads reaches the output: their columns of the output projection are zero."""
    kept = attention.output.weight.detach().clone()
    with torch.no_grad():
        for head in heads:
            attention.output.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
    yield
    with torch.no_grad():
        attention.output.weight.copy_(kept)


@torch.no_grad()
def accuracy(model: ViT, images: Tensor, labels: Tensor) -> float:
    return float((model(normalize(images, model.mean, model.std)).argmax(dim=1) == labels).float().mean())


def main(
    out: Path = PICTURES / "heads.png", seed: int = 0, data: str = "digits", weights: Path | None = None
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = VitRecipe(data=data, epochs=15, seed=seed)
        model = load_model(weights if weights else train(recipe, out=Path(folder) / "vit"))
    test = load(data, "test", image_size=model.image_size, channels=model.channels)
    explained = explain(model, test.images[:200])
    statistics = head_statistics(explained.maps)

    whole = accuracy(model, test.images, test.labels)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, MultiHeadAttention) and name in statistics}
    rows, alone = [], {}
    for layer, (name, attention) in enumerate(layers.items()):
        for head, numbers in enumerate(statistics[name]["heads"]):
            with without(attention, [head]):
                alone[layer, head] = accuracy(model, test.images, test.labels)
            ill = ", ".join(numbers["ill"]) or "no"
            near = f"{numbers['nearest']} ({numbers['overlap']:.2f})"
            rows.append((layer, head, numbers["entropy"], numbers["mean_distance"], near, alone[layer, head], ill))
    table(["layer", "head", "entropy", "distance", "most like", "accuracy without it", "ill"], rows)
    gone = []
    for attention in layers.values():
        with without(attention, list(range(attention.heads))):
            gone.append(accuracy(model, test.images, test.labels))
    table(["layer", "accuracy without all its heads"], list(enumerate(gone)))

    draw(explained.images[:2], explained, alone, gone, whole, out)
    harmless = sum(value > whole - 0.01 for value in alone.values())
    worst = min(alone, key=lambda key: alone[key])
    print(
        f"Of {len(alone)} heads {harmless} can be removed, one at a time, for less than a point of the accuracy of "
        f"{whole:.1%}; the one that is missed most (layer {worst[0]}, head {worst[1]}) leaves {alone[worst]:.1%}, and "
        f"all heads of layer {gone.index(min(gone))} together leave {min(gone):.1%}; {len(statistics.ill)} of them are "
        f"ill."
    )
    return {"accuracy": whole, "harmless": harmless / len(alone), "worst": alone[worst], "layer_gone": min(gone)}


def draw(
    images: Tensor,
    explained: Explanation,
    alone: dict[tuple[int, int], float],
    gone: list[float],
    whole: float,
    out: Path,
) -> None:
    picture, axes = figure(3, 6, height=5.2, height_ratios=[1, 1, 1.7])
    for row, image in enumerate(images):
        axes[row, 0].imshow(image.permute(1, 2, 0), cmap="gray")
        axes[row, 0].set_title("image", fontsize=8)
        shown = [("rollout", explained.rollout[row])]
        shown += [(f"last layer, head {number}", head) for number, head in enumerate(explained.heads[row][:4])]
        for ax, (name, values) in zip(axes[row, 1:], shown, strict=False):
            size = image.shape[1:]
            ax.imshow(F.interpolate(values[None, None], size, mode="nearest")[0, 0], cmap="viridis", vmin=0)
            ax.contour(image.float().mean(dim=0), levels=[100], colors="white", linewidths=0.8)
            ax.set_title(name, fontsize=8)
        for ax in axes[row]:
            ax.set_axis_off()
    grid = axes[2, 0].get_gridspec()
    for ax in axes[2]:
        ax.remove()
    ax = picture.add_subplot(grid[2, :])
    labels, place = [], 0
    for layer, all_gone in enumerate(gone):
        values = [value for (number, _), value in alone.items() if number == layer]
        for name, value in [*((str(head), value) for head, value in enumerate(values)), ("all", all_gone)]:
            lost = 100 * (whole - value)
            ax.bar(place, lost, color=COLOURS[layer % len(COLOURS)], hatch="//" if name == "all" else None, ec="white")
            ax.text(place, max(lost, 0) + 0.4, f"{lost:.1f}", ha="center", fontsize=8)
            labels.append(f"{name}\nlayer {layer}" if name == "all" else name)
            place += 1
        labels.append("")
        place += 1
    ax.set_xticks(range(place), labels, fontsize=8)
    ax.tick_params(axis="x", length=0)
    ax.set(
        xlabel="head removed",
        ylabel="points of accuracy lost",
        title=f"what removing heads costs, of {whole:.1%} test accuracy",
    )
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
