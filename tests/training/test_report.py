"""Reports: one page, self-contained, and nothing in it that a browser would run."""

import re

import pandas as pd

from mha_apps.training import Report, curves

RECORDS = [
    {"phase": "train", "step": 1, "epoch": 0.5, "seconds": 1.0, "loss": 2.0},
    {"phase": "validation", "step": 2, "epoch": 1.0, "seconds": 2.0, "train_loss": 1.5, "loss": 1.2, "top1": 0.4},
    {"phase": "validation", "step": 4, "epoch": 2.0, "seconds": 4.0, "train_loss": 1.0, "loss": 0.9, "top1": 0.6},
]


def test_a_report_holds_its_pictures_and_fetches_nothing(tmp_path):
    path = (
        Report("Title <script>")
        .heading("Curves")
        .figure(curves(RECORDS, "A run"), "Losses & accuracy")
        .table(pd.DataFrame({"MAE": [1.23456]}, index=["ridge"]), "Errors")
        .text("Done.")
        .write(tmp_path / "deep" / "report.html")
    )
    page = path.read_text()
    assert "data:image/png;base64," in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script>" not in page
    assert "Losses &amp; accuracy" in page
    assert "1.235" in page


def test_curves_show_losses_and_metrics_with_labelled_axes():
    figure = curves(RECORDS)
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["validation loss", "training loss"]
    assert left.get_xlabel() == right.get_xlabel() == "epoch"
    assert right.get_ylabel() == "validation top1"
    assert list(right.lines[0].get_ydata()) == [0.4, 0.6]
