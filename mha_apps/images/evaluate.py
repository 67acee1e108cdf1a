"""How good a classifier is, from its probabilities: accuracy, per-class figures, calibration, confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["calibration_error", "evaluate_classifier", "plot_confusion"]


def evaluate_classifier(probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """The figures of one evaluation.

    Args:
        probabilities: (N, classes), rows sum to 1.
        labels: (N,) int64.
        classes: names, in the order of the columns.

    Returns:
        a dictionary that JSON can hold: ``images``, ``top1`` and (with ten classes or more) ``top5`` as shares,
        ``loss`` (mean negative log-likelihood, natural), ``calibration_error``, ``per_class`` (precision, recall,
        f1 as shares, and support, by name) and ``confusion`` (rows: true class, columns: predicted class).
    """
    from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support

    p, truth = probabilities.double().cpu().numpy(), labels.cpu().numpy()
    numbers = np.arange(len(classes))
    predicted = p.argmax(axis=1)
    result: dict[str, Any] = {"images": len(truth), "top1": float((predicted == truth).mean())}
    if len(classes) >= 10:
        best = np.argpartition(-p, 4, axis=1)[:, :5]
        result["top5"] = float((best == truth[:, None]).any(axis=1).mean())
    result["loss"] = float(log_loss(truth, p / p.sum(axis=1, keepdims=True), labels=numbers))
    result["calibration_error"] = calibration_error(probabilities, labels)
    figures = precision_recall_fscore_support(truth, predicted, labels=numbers, zero_division=0)
    result["per_class"] = {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(classes, *figures, strict=True)
    }
    result["confusion"] = confusion_matrix(truth, predicted, labels=numbers).tolist()
    return result


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017, equation 3): how far confidence is from accuracy, 0 to 1.

    Predictions are put into ``bins`` of equal width by their confidence; the gaps are averaged by the bins' sizes.
    """
    confidence, predicted = probabilities.double().cpu().max(dim=1)
    right = (predicted == labels.cpu()).double()
    place = (confidence * bins).long().clamp(max=bins - 1)
    gap = (right - confidence).new_zeros(bins).index_add_(0, place, right - confidence)
    return float(gap.abs().sum() / len(labels))


def plot_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """The confusion matrix as a figure: shares of each true class as colour, counts as numbers (up to 25 classes)."""
    from matplotlib.figure import Figure

    counts = np.asarray(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(3.5, 0.45 * len(classes) + 1.5), 16)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="share of the true class")
    if len(classes) <= 50:
        axes.set_xticks(range(len(classes)), classes, rotation=90)
        axes.set_yticks(range(len(classes)), classes)
    if len(classes) <= 25:
        for row, column in zip(*np.nonzero(counts), strict=True):
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, counts[row, column], ha="center", va="center", color=shade, fontsize=7)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    return figure
