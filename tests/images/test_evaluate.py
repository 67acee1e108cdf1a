"""The figures of a classifier, beside counting by hand."""

import json

import pytest
import torch

from mha_apps.images import calibration_error, evaluate_classifier, plot_confusion


def test_figures_agree_with_counting_by_hand():
    probabilities = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    labels = torch.tensor([0, 1, 1, 2])
    result = evaluate_classifier(probabilities, labels, ["a", "b", "c"])
    assert result["top1"] == 0.75
    assert result["confusion"] == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert result["per_class"]["a"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1}
    assert result["per_class"]["b"]["recall"] == 0.5
    expected = -torch.tensor([0.8, 0.3, 0.7, 0.4]).log().mean().item()
    assert result["loss"] == pytest.approx(expected, rel=1e-5)
    json.dumps(result)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    # All in one bin: confidence 0.9, half of them right.
    probabilities = torch.tensor([[0.9, 0.1]]).repeat(10, 1)
    labels = torch.tensor([0] * 5 + [1] * 5)
    assert calibration_error(probabilities, labels) == pytest.approx(0.4, abs=1e-6)
    assert calibration_error(torch.tensor([[1.0, 0.0]] * 4), torch.zeros(4).long()) == pytest.approx(0)


def test_calibrated_predictions_have_a_small_error():
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(20_000, generator=generator)
    right = torch.rand(20_000, generator=generator) < confidence
    probabilities = torch.stack([confidence, 1 - confidence], dim=1)
    assert calibration_error(probabilities, (~right).long()) < 0.02


def test_a_class_without_images_and_without_predictions_has_figures_of_zero():
    result = evaluate_classifier(torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([0]), ["a", "b", "c"])
    assert result["per_class"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}


def test_the_confusion_matrix_is_drawn_with_its_counts():
    figure = plot_confusion([[3, 1], [0, 2]], ["a", "b"])
    assert {text.get_text() for text in figure.axes[0].texts} == {"3", "1", "2"}
