"""Does a gate help? The same network with each gate, over several seeds, in equal steps, with an honest answer.

Runs are paired by seed: those of one seed begin with the same weights of the network and see the same images in the
same order, so that the difference between two gates varies less than the accuracies do.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mha_apps.cnn.models import GatedCNN, model_channels
from mha_apps.cnn.recipe import CnnRecipe
from mha_apps.cnn.surgery import GATES
from mha_apps.cnn.train import build, evaluate, load_model, train
from mha_apps.errors import InputError
from mha_apps.images.classify import load_for_training
from mha_apps.images.source import load, with_classes
from mha_apps.training import files
from mha_apps.training.device import resolve_device
from mha_apps.training.recipe import to_table
from mha_apps.training.report import COLOURS, Report
from mha_apps.training.run import CONFIG, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Difference", "begun", "compare", "latencies", "paired_difference", "trained", "verdict"]

LEVEL = 0.95
ROUNDING = 1e-9  # points; differences closer than this are the same
COMPARISON, REPORT = "comparison.json", "report.html"


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
        `split`, of the images that judge, and `table`, one row a gate: mean and standard deviation of the accuracy on
        them (0 to 1), parameters, MACs of one image, milliseconds of a training step and of inference;
        `differences`, one row a gate beside the first: the mean paired difference in points, its 95% t interval and
        p value; `verdict`, in words; `scores`, one row a seed; `runs`, and `report`.

    Raises:
        InputError: gates that are unknown or fewer than two, a budget in minutes, patience, data or a model that
            cannot be used, `out` holds another comparison, or one of more gates or seeds; no network is trained then.
    """
    recipe = (recipe or CnnRecipe()).located()
    gates = list(dict.fromkeys(gates))
    _check(recipe, gates, seeds, rounds)
    folder = Path(out) if out is not None else Path("runs") / f"compare-{recipe.model.replace('/', '-')}"
    wanted = {
        (gate, seed): replace(recipe, gate=gate, seed=seed)  # type: ignore[arg-type]
        for seed in range(recipe.seed, recipe.seed + seeds)
        for gate in gates
    }
    for one in wanted.values():
        one.check()
    models = _check_models(recipe, gates)
    _check_folder(folder, wanted, models)
    runs: dict[str, list[Run]] = {gate: [] for gate in gates}
    scores: dict[str, list[float]] = {gate: [] for gate in gates}
    try:
        for number, ((gate, seed), one) in enumerate(wanted.items(), start=1):
            print(f"{gate}, seed {seed}: run {number} of {len(wanted)}", file=sys.stderr, flush=True)
            run = trained(one, _place(folder, gate, seed))
            runs[gate].append(run)
            scores[gate].append(evaluate(run, split="test", device=recipe.device, precision=recipe.precision)["top1"])
        times = latencies(models, batch_size=recipe.batch_size, device=recipe.device, rounds=rounds)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"stopped; the same command goes on in {folder}") from stop
    table = [_row(gate, models[gate], scores[gate], times[gate], times[gates[0]]) for gate in gates]
    found = [paired_difference(gate, scores[gate], gates[0], scores[gates[0]]) for gate in gates[1:]]
    result: dict[str, Any] = {
        "model": recipe.model,
        "data": recipe.data,
        "split": "test",
        "budget": recipe.budget_text,
        "seeds": seeds,
        "table": table,
        "differences": [vars(difference) for difference in found],
        "verdict": "\n".join(verdict(found)),
        "scores": [{"seed": recipe.seed + i} | {gate: scores[gate][i] for gate in gates} for i in range(seeds)],
        "runs": [str(run.path) for several in runs.values() for run in several],
        "report": str(folder / REPORT),
    }
    files.replace_text(folder / COMPARISON, json.dumps(result, indent=1) + "\n")
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
    if recipe.patience is not None:
        raise InputError("--patience: gates are compared in equal steps; leave it out")


def _check_models(recipe: CnnRecipe, gates: Sequence[str]) -> dict[str, GatedCNN]:
    """The untrained models by gate; InputError where images cannot be had, or a gate has no place in the network."""
    training, _ = load_for_training(recipe, channels=model_channels(recipe.model))
    models = {gate: build(replace(recipe, gate=gate), training) for gate in gates}  # type: ignore[arg-type]
    with_classes(
        load(recipe.data, "test", image_size=training.image_size, channels=training.channels), training.classes
    )
    return models


def _place(folder: Path, gate: str, seed: int) -> Path:
    return folder / f"{gate}-{seed}"


def _check_folder(folder: Path, wanted: dict[tuple[str, int], CnnRecipe], models: dict[str, GatedCNN]) -> None:
    """InputError where the folder holds what a comparison of these gates and seeds would replace or could not use."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder with --out")
    for (gate, seed), recipe in wanted.items():
        run = begun(recipe, _place(folder, gate, seed))
        if run is not None and run.summary() and _images(load_model(run)) != _images(models[gate]):
            raise InputError(
                f"{run.path}: was trained on other images than {recipe.data} holds now; name another folder with --out"
            )
    path, elsewhere = folder / COMPARISON, "compare into another folder with --out"
    if path.exists():
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["scores"]
            before = {(gate, row["seed"]) for row in rows for gate in row if gate != "seed"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: no comparison wrote it; {elsewhere}") from error
        if lost := sorted(before - wanted.keys(), key=str):
            more = ", ".join(_place(folder, *one).name for one in lost)
            raise InputError(f"{path}: compares {more} too, which would be left out; ask for them, or {elsewhere}")
    elif (folder / REPORT).exists():
        raise InputError(f"{folder / REPORT}: no comparison wrote it; {elsewhere}")


def _images(model: GatedCNN) -> tuple[Any, ...]:
    """What a model knows of the images that it was made for; the mean of all pixels tells sets of images apart."""
    return model.classes, model.channels, model.image_size, model.mean, model.std


def begun(recipe: CnnRecipe, folder: Path) -> Run | None:
    """The run of this recipe in this folder, finished or not, or None. How often it saves does not matter.

    Raises:
        InputError: the folder holds a run of another recipe, or something else.
    """
    if not (folder / CONFIG).is_file():
        Run.create(folder, recipe, "cnn")  # refuses what training would refuse, and writes nothing
        return None
    run = Run.open(folder, "cnn")
    held, asked = to_table(run.recipe(CnnRecipe)), to_table(recipe)
    other = [
        f"{name} {held.get(name)}, not {asked.get(name)}"
        for name in held | asked
        if held.get(name) != asked.get(name) and name != "checkpoint_minutes"
    ]
    if other:
        raise InputError(
            f"{folder}: holds a run of another recipe ({'; '.join(other)}); name another folder with --out"
        )
    return run


def trained(recipe: CnnRecipe, folder: Path) -> Run:
    """The finished run of this recipe in this folder: the one that is there, brought to its end, or a new one.

    Raises:
        InputError: as `begun`, and as `train`.
    """
    run = begun(recipe, folder)
    if run is None:
        return train(recipe, out=folder)
    return run if run.summary() else train(recipe, resume=folder)


@dataclass
class Difference:
    """How much better `gate` is than `reference`, in points of accuracy, over paired seeds.

    `low`, `high` and `p` are None where nothing can be told: of one seed, and of differences that are all the same.
    """

    gate: str
    reference: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    p: float | None


def paired_difference(gate: str, scores: Sequence[float], reference: str, others: Sequence[float]) -> Difference:
    """Mean of the differences by seed, its 95% t interval, and the p value of the two-sided paired t test.

    Args:
        gate, reference: what is compared.
        scores, others: their accuracies (0 to 1), by seed.
    """
    from scipy.stats import t as student

    gaps = [100 * (a - b) for a, b in zip(scores, others, strict=True)]
    count, mean = len(gaps), statistics.fmean(gaps)
    error = statistics.stdev(gaps) / math.sqrt(count) if count > 1 else 0.0
    if error < ROUNDING:
        return Difference(gate, reference, count, mean, None, None, None)
    reach = float(student.ppf((1 + LEVEL) / 2, count - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, count - 1))
    return Difference(gate, reference, count, mean, mean - reach, mean + reach, p)


def verdict(differences: Sequence[Difference]) -> list[str]:
    """A sentence a gate. Of several gates compared at once, one may look good by chance: a difference is called real
    if it stands when its p value is multiplied by their number (Bonferroni)."""
    several = len(differences)
    sentences = []
    for one in differences:
        size = f"{abs(one.mean):.2f} points {'better' if one.mean >= 0 else 'worse'} than {one.reference}"
        if abs(one.mean) < ROUNDING:
            size = f"as good as {one.reference}"
        if one.low is None or one.high is None or one.p is None:
            found = "in one run each" if one.seeds == 1 else f"in each of {one.seeds} pairs of runs, without any spread"
            sentences.append(f"{one.gate}: {size} {found}, from which nothing can be told; use more seeds.")
            continue
        interval = f"95% interval {one.low:+z.2f} to {one.high:+z.2f}, {one.seeds} seeds"
        if one.p * several < 1 - LEVEL:
            sentences.append(f"{one.gate}: {size} ({interval}). The difference is real.")
        elif one.p < 1 - LEVEL:
            sentences.append(
                f"{one.gate}: {size} ({interval}). It may be real, but among {several} gates one such result comes "
                "about by chance too often; use more seeds."
            )
        else:
            sentences.append(
                f"{one.gate}: {size} ({interval}), which these runs cannot tell from chance. A gain of more than "
                f"{min(one.high, 100.0):.2f} points or a loss of more than {min(-one.low, 100.0):.2f} is unlikely."
            )
    return sentences


def _row(
    gate: str, model: GatedCNN, scores: Sequence[float], times: dict[str, float], base: dict[str, float]
) -> dict[str, Any]:
    spread = statistics.stdev(scores) if len(scores) > 1 else math.nan
    return {
        "gate": gate,
        "top1_mean": round(statistics.fmean(scores), 5),
        "top1_sd": None if math.isnan(spread) else round(spread, 5),
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
    """Median seconds of a training step and of inference on one batch in float32, with the models measured in turns,
    so that whatever else the machine does meets all of them.

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
        f"Accuracy on the {result['split']} images after {result['budget']}, by gate and seed ({result['seeds']} of "
        "each). Runs are paired by seed. The intervals are about the chance in training; all runs are judged on the "
        "same images."
    )
    for sentence in result["verdict"].splitlines():
        report.text(sentence)
    report.table(
        pd.DataFrame(result["table"]).set_index("gate"), "Means and costs; times are for one batch, in float32."
    )
    report.table(pd.DataFrame(result["differences"]).set_index("gate"), "Paired differences, in points.")
    report.figure(plot_scores(result["scores"]), "Each line is one seed: runs that differ in the gate alone.")
    report.write(folder / REPORT)


def plot_scores(scores: list[dict[str, float]]) -> Figure:
    """The accuracies, one line a seed across the gates, and the means."""
    from matplotlib.figure import Figure

    gates = [name for name in scores[0] if name != "seed"]
    figure = Figure(figsize=(1.6 + 1.1 * len(gates), 3.4), layout="constrained")
    axes = figure.subplots()
    for row, colour in zip(scores, itertools.cycle(COLOURS), strict=False):
        axes.plot(gates, [100 * row[gate] for gate in gates], color=colour, marker="o", markersize=3, linewidth=0.7)
    means = [100 * statistics.fmean(row[gate] for row in scores) for gate in gates]
    axes.plot(gates, means, color="black", marker="_", markersize=18, linestyle="none", label="mean")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
