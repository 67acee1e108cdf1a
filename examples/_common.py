"""What the examples share: where a picture goes and how it looks, how a table is printed, a plain training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor, nn

PICTURES = Path(__file__).with_name("pictures")

# The palette of Okabe and Ito (2008), which people with any kind of colour vision can tell apart.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK)

matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "lines.markersize": 4,
    }
)


def figure(rows: int = 1, columns: int = 1, *, height: float = 3.0, **options: Any) -> tuple[Figure, Any]:
    """A figure as wide as a README, and its axes; ``options`` as for ``Figure.subplots``."""
    made = Figure(figsize=(8.0, height), layout="constrained")
    return made, made.subplots(rows, columns, **options)


def save(picture: Figure, out: Path) -> None:
    """Write the picture and say where it is."""
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(out, dpi=110)
    shown = out.absolute()
    print(f"picture: {shown.relative_to(Path.cwd()) if shown.is_relative_to(Path.cwd()) else shown}\n")


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under titles; numbers to the right, words to the left, floats with three digits that count."""
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(titles, *cells, strict=True)]
    right = [not isinstance(cell, str) for cell in rows[0]]

    def line(row: Sequence[str]) -> str:
        pairs = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in pairs).rstrip()

    print("\n".join([line(titles), "  ".join("-" * width for width in widths), *map(line, cells)]), end="\n\n")


def train(model: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float, warmup: float = 0.1) -> list[float]:
    """Plain training: AdamW, a linear warm-up over that share of the steps, cosine decay; the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    losses = []
    for step in range(steps):
        rise, fall = (step + 1) / (warmup * steps + 1), 0.5 + 0.5 * math.cos(math.pi * step / steps)
        optimizer.param_groups[0]["lr"] = rate * min(rise, fall)
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def run(main: Callable[..., Any], about: str | None) -> None:
    """Call an example's ``main`` with the flags of its signature; its docstring is the help."""
    tyro.cli(main, description=about)
