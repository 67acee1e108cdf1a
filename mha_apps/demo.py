"""The demo: all three applications on embedded data, through the functions that everyone calls, and one report."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mha_apps import cnn, forecast, vision
from mha_apps.cnn.explain import plot_gates
from mha_apps.errors import InputError
from mha_apps.forecast.backtest import examine
from mha_apps.images import load, plot_confusion
from mha_apps.training import Report, Run, curves, files
from mha_apps.vision import explain, plot_explanation

SHOWN = 6  # images in the pictures of attention and of gates
HORIZON = 48  # hours
UNITS = {"temperature": "°C", "humidity": "%", "pressure": "hPa", "wind_speed": "m/s"}


def demo(out: str | Path = "runs/demo", *, force: bool = False) -> dict[str, Any]:
    """Train the three applications, test them, and write ``report.html``.

    Args:
        out: the folder for the report and the three run folders.
        force: replace the demo that ``out`` holds.

    Returns:
        ``report`` (its path), ``sentences`` (what came out, in words), and the numbers: ``vit`` and ``cnn`` with
        ``top1``, ``forecast`` with the backtest's metrics, ``seconds``.

    Raises:
        InputError: ``out`` holds a demo and ``force`` is not set, or holds other things.
    """
    begun, out = time.monotonic(), Path(out)
    _prepare(out, force)
    report = Report("mha_apps: three applications of one attention core")
    sentences: list[str] = []
    numbers: dict[str, Any] = {}
    # What is said first in the report is known last: the parts are written as they come, the summary goes on top.
    for number, (name, part) in enumerate((("vit", _vit), ("forecast", _forecast), ("cnn", _cnn)), start=1):
        print(f"demo, part {number} of 3: {name}", file=sys.stderr, flush=True)
        sentence, numbers[name] = part(report, out / name)
        sentences.append(sentence)
    numbers["seconds"] = round(time.monotonic() - begun, 1)
    report.lead(sentences, f"Made in {numbers['seconds']:.0f} seconds by `mha-apps demo`.")
    path = report.write(out / "report.html")
    return {"report": str(path), "sentences": sentences, **numbers}


def _prepare(out: Path, force: bool) -> None:
    """An empty or absent ``out``; what a demo left there before is removed with ``force`` only."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; name a folder with --out")
    if not out.is_dir() or not any(out.iterdir()):
        with files.disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        return
    ours = {"vit", "forecast", "cnn", "plots", "report.html"}
    strangers = sorted(path.name for path in out.iterdir() if path.name not in ours)
    if strangers:
        raise InputError(f"{out}: holds {strangers[0]}, which no demo made; name another folder with --out")
    if not force:
        raise InputError(f"{out}: holds a demo; replace it with --force, or name another folder with --out")
    with files.disk_errors(out):
        shutil.rmtree(out)


def _vit(report: Report, out: Path) -> tuple[str, dict[str, Any]]:
    run = vision.train(vision.VitRecipe(data="digits"), out=out)
    result = vision.evaluate(run)
    summary = run.summary()
    sentence = (
        f"The vision transformer, {summary['parameters']:,} parameters, trained for {summary['seconds']:.0f} seconds, "
        f"names {result['top1']:.1%} of the {result['images']} test digits rightly."
    )
    images, labels, classes = _some_digits()
    report.heading("vision: a transformer that reads handwritten digits").text(sentence)
    report.figure(curves(run.metrics()), "Losses and the accuracy on the validation images while it learned.")
    report.figure(
        plot_confusion(result["confusion"], list(result["per_class"])),
        "Test images by true and by predicted class; off the diagonal are the mistakes.",
    )
    report.figure(
        plot_explanation(explain(run, images), classes, labels),
        "Where it looks: attention rolled out over all layers, laid over test images. Bright patches count most.",
        save=out.parent / "plots" / "attention.png",
    )
    return sentence, {"top1": result["top1"], "images": result["images"], **_trained(run)}


def _forecast(report: Report, out: Path) -> tuple[str, dict[str, Any]]:
    # Trees take longer than all the rest of the demo, and on this sample change little.
    run = forecast.train(forecast.ForecastRecipe(csv="sample", horizon=HORIZON, trees=False), out=out)
    found = examine(run)
    metrics = found.metrics
    naive, gain = metrics["baselines"]["seasonal_naive"], metrics["skill"]["seasonal_naive"]
    sentence = (
        f"The forecast of {len(found.series)} weather instruments, {HORIZON} hours ahead, errs by {metrics['mae']:.3f} "
        f"(mean absolute error in units of each instrument's deviation), {gain:.0%} less than the seasonal naive "
        f"forecast's {naive:.3f}; {metrics['coverage']['80']:.0%} of what came lay in its 80% intervals, over "
        f"{metrics['origins']:,} hourly starts that it had never seen."
    )
    report.heading("forecast: a weather station, two days ahead").text(sentence)
    report.figure(curves(run.metrics()), "Losses and errors on the validation rows while the attention path learned.")
    plots = out.parent / "plots"
    for name, figure in found.figures.items():
        figure.axes[0].set_ylabel(UNITS[name])
        report.figure(
            figure, f"{name}: the forecast with its intervals, against what came.", save=plots / f"{name}.png"
        )
    report.table(found.series, "Errors by instrument in its own unit, and the share of what came inside the intervals.")
    return sentence, metrics | _trained(run)


def _cnn(report: Report, out: Path) -> tuple[str, dict[str, Any]]:
    run = cnn.train(cnn.CnnRecipe(data="digits", gate="cbam"), out=out)
    result = cnn.evaluate(run)
    summary = run.summary()
    share = summary["gate_parameters"] / summary["parameters"]
    sentence = (
        f"{result['model']} with {summary['gates']} CBAM gates, {share:.1%} of its {summary['parameters']:,} "
        f"parameters, trained for {summary['seconds']:.0f} seconds, names {result['top1']:.1%} of the "
        f"{result['images']} test digits rightly."
    )
    images, labels, classes = _some_digits()
    report.heading("cnn: a ResNet with attention gates").text(sentence)
    report.figure(curves(run.metrics()), "Losses and the accuracy on the validation images while it learned.")
    report.figure(
        plot_gates(run.model(cnn.GatedCNN), images, labels=[classes[label] for label in labels]),
        "CBAM at work: its spatial maps laid over test images, Grad-CAM before and after the last gate, and the "
        "factors of the channels.",
        save=out.parent / "plots" / "gates.png",
    )
    return sentence, {"top1": result["top1"], "images": result["images"], **_trained(run)}


def _trained(run: Run) -> dict[str, Any]:
    summary = run.summary()
    return {"run": str(run.path), "parameters": summary["parameters"], "train_seconds": summary["seconds"]}


def _some_digits() -> tuple[Tensor, Tensor, Sequence[str]]:
    """The first test image of each of a few classes, uint8, their labels, and the names of the classes."""
    digits = load("digits", "test")
    first = [int((digits.labels == number).nonzero()[0]) for number in range(SHOWN)]
    return digits.images[first], digits.labels[first], digits.classes
