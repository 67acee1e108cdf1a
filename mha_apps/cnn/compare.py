"""Does a gate help? The same network with each gate, over several seeds, in equal steps, with an honest answer.

Runs are paired by seed: those of one seed begin with the same weights of the network and see the same images in the
same order, so that the difference between two gates varies less than the accuracies do.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mha_apps.cnn.models import GatedCNN
from mha_apps.cnn.recipe import CnnRecipe
from mha_apps.cnn.surgery import GATES
from mha_apps.cnn.train import evaluate, load_model, train
from mha_apps.errors import InputError
from mha_apps.training import files
from mha_apps.training.device import resolve_device
from mha_apps.training.report import COLOURS, Report
from mha_apps.training.run import CONFIG, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Difference", "compare", "latencies", "paired_difference", "verdict"]

LEVEL = 0.95


def compare(
    recipe: CnnRecipe | None = None,
    *,
    gates: Sequence[str] = ("none", "se", "eca", "cbam"),
    seeds: int = 5,
    out: str | Path | None = None,
    rounds: int = 20,
) -> dict[str, Any]:
    """Trains the recipe's network with each gate and each seed, and says what the differences are worth.

    A comparison that was stopped goes on where it was when it is called again with the same arguments.

    Args:
        recipe: everything but the gate and the seed; its budget is in epochs or steps. The seeds count up from its own.
        gates: names of gates or `none`; the first is what the others are compared with.
        seeds: how many runs of each.
        out: the folder of all runs, `comparison.json` and `report.html`; `runs/compare-MODEL` when None.
        rounds: how often each latency is measured.

    Returns:
        `table`, one row a gate: mean and standard deviation of the test accuracy in points, parameters, MACs of one
        image, milliseconds of a training step and of inference; `differences`, one row a gate beside the first: the
        mean paired difference in points, its 95% t interval and p value; `verdict`, in words; `scores`, one row a
        seed; `runs`, and `report`.

    Raises:
        InputError: gates that are unknown or fewer than two, a budget in minutes, `out` holds another comparison.
    """
    recipe = (recipe or CnnRecipe()).located()
    gates = list(dict.fromkeys(gates))
    _check(recipe, gates, seeds, rounds)
    folder = Path(out) if out is not None else Path("runs") / f"compare-{recipe.model.replace('/', '-')}"
    _check_folder(folder, [f"{gate}-{recipe.seed}" for gate in gates])
    runs: dict[str, list[Run]] = {gate: [] for gate in gates}
    scores: dict[str, list[float]] = {gate: [] for gate in gates}
    for seed in range(recipe.seed, recipe.seed + seeds):
        for gate in gates:
            run = _trained(replace(recipe, gate=gate, seed=seed), folder / f"{gate}-{seed}")  # type: ignore[arg-type]
            runs[gate].append(run)
            scores[gate].append(100 * evaluate(run, device=recipe.device, precision=recipe.precision)["top1"])
    models = {gate: load_model(runs[gate][0]) for gate in gates}
    times = latencies(models, batch_size=recipe.batch_size, device=recipe.device, rounds=rounds)
    table = [_row(gate, models[gate], scores[gate], times[gate], times[gates[0]]) for gate in gates]
    found = [paired_difference(gate, scores[gate], gates[0], scores[gates[0]]) for gate in gates[1:]]
    result: dict[str, Any] = {
        "model": recipe.model,
        "data": recipe.data,
        "budget": "{1:g} {0}".format(*recipe.budget),
        "seeds": seeds,
        "table": table,
        "differences": [vars(difference) for difference in found],
        "verdict": " ".join(verdict(found)),
        "scores": [{"seed": recipe.seed + i} | {gate: scores[gate][i] for gate in gates} for i in range(seeds)],
        "runs": [str(run.path) for several in runs.values() for run in several],
        "report": str(folder / "report.html"),
    }
    files.replace_text(folder / "comparison.json", json.dumps(result, indent=1) + "\n")
    _write_report(result, folder)
    return result


def _check(recipe: CnnRecipe, gates: Sequence[str], seeds: int, rounds: int) -> None:
    if unknown := [gate for gate in gates if gate != "none" and gate not in GATES]:
        raise InputError(f"--gates {unknown[0]}: is unknown; use none or some of {', '.join(GATES)}")
    if len(gates) < 2:
        raise InputError(f"--gates {','.join(gates)}: name at least two, such as none,cbam")
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: must be at least 1")
    if rounds < 1:
        raise InputError(f"--rounds {rounds}: must be at least 1")
    if recipe.budget[0] == "minutes":
        raise InputError("--minutes: gates are compared in equal steps; give --epochs or --steps")
    recipe.check()


def _check_folder(folder: Path, runs: Sequence[str]) -> None:
    """InputError where the folder holds files that a comparison would replace and that none has written."""
    if any((folder / run / CONFIG).is_file() for run in runs):
        return
    for name in ("comparison.json", "report.html"):
        if (folder / name).exists():
            raise InputError(f"{folder / name}: no comparison wrote it; compare into another folder with --out")


def _trained(recipe: CnnRecipe, folder: Path) -> Run:
    """The finished run in this folder, the stopped one brought to its end, or a new one."""
    if not (folder / CONFIG).is_file():
        return train(recipe, out=folder)
    run = Run.open(folder, "cnn")
    if run.recipe(CnnRecipe) != recipe:
        raise InputError(f"{folder}: holds a run of another recipe; compare into another folder with --out")
    return run if run.summary() else train(resume=folder)


@dataclass
class Difference:
    """How much better `gate` is than `reference`, in points of accuracy, over paired seeds."""

    gate: str
    reference: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    p: float | None


def paired_difference(gate: str, scores: Sequence[float], reference: str, others: Sequence[float]) -> Difference:
    """Mean of the differences by seed, its 95% t interval, and the p value of the two-sided paired t test.

    With one seed there is neither: nothing can be told.
    """
    from scipy.stats import t as student

    gaps = [a - b for a, b in zip(scores, others, strict=True)]
    count, mean = len(gaps), statistics.fmean(gaps)
    if count < 2:
        return Difference(gate, reference, count, mean, None, None, None)
    error = statistics.stdev(gaps) / math.sqrt(count)
    reach = float(student.ppf((1 + LEVEL) / 2, count - 1)) * error
    if error == 0:
        return Difference(gate, reference, count, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    p = 2 * float(student.sf(abs(mean) / error, count - 1))
    return Difference(gate, reference, count, mean, mean - reach, mean + reach, p)


def verdict(differences: Sequence[Difference]) -> list[str]:
    """A sentence a gate. Of several gates compared at once, one may look good by chance: a difference is called real
    if it stands when its p value is multiplied by their number (Bonferroni)."""
    several = len(differences)
    sentences = []
    for one in differences:
        size = f"{abs(one.mean):.2f} points {'better' if one.mean >= 0 else 'worse'} than {one.reference}"
        if one.low is None or one.high is None or one.p is None:
            sentences.append(f"{one.gate}: {size} in one run each, which proves nothing; use more seeds.")
            continue
        interval = f"95% interval {one.low:+.2f} to {one.high:+.2f}, {one.seeds} seeds"
        if one.p * several < 1 - LEVEL:
            sentences.append(f"{one.gate}: {size} ({interval}). The difference is real.")
        elif one.p < 1 - LEVEL:
            sentences.append(
                f"{one.gate}: {size} ({interval}). It may be real, but among {several} gates one such result comes "
                "about by chance too often; use more seeds."
            )
        else:
            sentences.append(
                f"{one.gate}: {size} ({interval}), which is no more than chance. A gain above {one.high:+.2f} or a "
                f"loss below {one.low:+.2f} is unlikely."
            )
    return sentences


def _row(
    gate: str, model: GatedCNN, scores: Sequence[float], times: dict[str, float], base: dict[str, float]
) -> dict[str, Any]:
    spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
    return {
        "gate": gate,
        "top1_mean": round(statistics.fmean(scores), 3),
        "top1_sd": None if math.isnan(spread) else round(spread, 3),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "macs": _macs(model),
        "train_ms": round(1e3 * times["train"], 2),
        "train_ratio": round(times["train"] / base["train"], 3),
        "inference_ms": round(1e3 * times["inference"], 2),
        "inference_ratio": round(times["inference"] / base["inference"], 3),
    }


def _macs(model: GatedCNN) -> int:
    """Multiply-adds of one image: convolutions and matrix products as counted by PyTorch, the gates by themselves."""
    bare = GatedCNN(
        model=model.model_name, classes=model.classes, channels=model.channels, image_size=model.image_size
    ).eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        bare(torch.zeros(1, model.channels, *model.image_size))
    return counter.get_total_flops() // 2 + sum(row.macs for row in model.gates)


def latencies(
    models: dict[str, GatedCNN], *, batch_size: int, device: str = "auto", rounds: int = 20
) -> dict[str, dict[str, float]]:
    """Median seconds of a training step and of inference on one batch, with the models measured in turns, so that
    whatever else the machine does meets all of them.

    Returns:
        By name: `train` and `inference`, in seconds.
    """
    where = resolve_device(device)
    first = next(iter(models.values()))
    x = torch.randn(batch_size, first.channels, *first.image_size).to(where)
    spent: dict[str, dict[str, list[float]]] = {name: {"train": [], "inference": []} for name in models}
    for turn in range(rounds + 2):
        for name, model in models.items():
            for kind, work in (("train", _training_step), ("inference", _inference)):
                seconds = _seconds(work, model.to(where), x)
                if turn >= 2:  # the first turns choose algorithms and fill caches
                    spent[name][kind].append(seconds)
    return {name: {kind: statistics.median(all_) for kind, all_ in kinds.items()} for name, kinds in spent.items()}


def _seconds(work: Callable[[nn.Module, Tensor], object], model: nn.Module, x: Tensor) -> float:
    begun = time.perf_counter()
    work(model, x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _training_step(model: nn.Module, x: Tensor) -> None:
    model.train()
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()


def _inference(model: nn.Module, x: Tensor) -> None:
    model.eval()
    with torch.inference_mode():
        model(x)


def _write_report(result: dict[str, Any], folder: Path) -> None:
    import pandas as pd

    report = Report(f"Gates in {result['model']} on {result['data']}")
    report.text(
        f"Test accuracy after {result['budget']}, {result['seeds']} seeds each, paired by seed. The intervals are "
        "about the chance in training; all runs are judged on the same test images."
    )
    report.text(result["verdict"])
    report.table(pd.DataFrame(result["table"]).set_index("gate"), "Means and costs; times are for one batch.")
    report.table(pd.DataFrame(result["differences"]).set_index("gate"), "Paired differences, in points.")
    report.figure(plot_scores(result["scores"]), "Each line is one seed: runs that differ in the gate alone.")
    report.write(folder / "report.html")


def plot_scores(scores: list[dict[str, float]]) -> Figure:
    """The accuracies, one line a seed across the gates, and the means."""
    from matplotlib.figure import Figure

    gates = [name for name in scores[0] if name != "seed"]
    figure = Figure(figsize=(1.6 + 1.1 * len(gates), 3.4), layout="constrained")
    axes = figure.subplots()
    for row, colour in zip(scores, itertools.cycle(COLOURS), strict=False):
        axes.plot(gates, [row[gate] for gate in gates], color=colour, marker="o", markersize=3, linewidth=0.7)
    means = [statistics.fmean(row[gate] for row in scores) for gate in gates]
    axes.plot(gates, means, color="black", marker="_", markersize=18, linestyle="none", label="mean")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
