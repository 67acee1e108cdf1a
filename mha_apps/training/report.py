"""Reports that a person opens in a browser: one HTML file, pictures inside, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mha_apps.training import files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from mha_apps.training.run import Run

# Okabe and Ito's palette: distinct for every common kind of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_STYLE = """
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, caption { color: #555; font-size: .9rem; text-align: left; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; }
"""


class Report:
    """Collects headings, sentences, figures and tables, and writes them as one self-contained HTML page."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def lead(self, sentences: Sequence[str], note: str = "") -> Report:
        """What came out, in sentences, above everything else."""
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
        self._parts.insert(0, f"<ul>{items}</ul><p>{html.escape(note)}</p>")
        return self

    def heading(self, text: str) -> Report:
        """A section title."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")
        return self

    def text(self, text: str) -> Report:
        """A paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")
        return self

    def code(self, text: str) -> Report:
        """Text in which the columns matter: a command, a printed table."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")
        return self

    def figure(self, figure: Figure, caption: str, *, save: Path | None = None) -> Report:
        """A matplotlib figure, embedded as PNG, and written to ``save`` too. The caption says what to see in it."""
        buffer = io.BytesIO()
        # A figure that arranges itself is drawn once; tight bounds would draw it a second time to find them.
        tight = None if figure.get_layout_engine() is not None else "tight"
        figure.savefig(buffer, format="png", dpi=110, bbox_inches=tight)
        if save is not None:
            with files.disk_errors(save):
                save.parent.mkdir(parents=True, exist_ok=True)
            files.replace(save, lambda file: file.write(buffer.getbuffer()))
        data = base64.b64encode(buffer.getvalue()).decode()
        text = html.escape(caption)
        self._parts.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
        )
        return self

    def table(self, frame: pd.DataFrame, caption: str = "") -> Report:
        """A data frame; its index is the first column."""
        table = frame.to_html(border=0, justify="right", float_format=lambda value: f"{value:z.4g}")
        self._parts.append(table.replace(">", f"><caption>{html.escape(caption)}</caption>", 1) if caption else table)
        return self

    def render(self) -> str:
        """The page as HTML text."""
        title = html.escape(self.title)
        body = "\n".join(self._parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page; its folder is made when it is missing."""
        with files.disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_text(path, self.render())
        return path


def curves(records: list[dict[str, Any]], title: str = "") -> Figure:
    """Learning curves from the records of ``metrics.jsonl``: losses on the left, the other metrics on the right.

    Args:
        records: what :meth:`Run.metrics` returns.
        title: above the figure.
    """
    from matplotlib.figure import Figure

    validation = [record for record in records if record.get("phase") == "validation"]
    known = {"phase", "step", "epoch", "seconds"}
    names = sorted({name for record in validation for name in record} - known)
    losses = [name for name in names if "loss" in name]
    others = [name for name in names if name not in losses]
    groups = [("loss", losses)] + ([("metric", others)] if others else [])

    figure = Figure(figsize=(5 * len(groups), 3.4), layout="constrained")
    for axes, (label, group) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        for name, colour in zip(group, COLOURS, strict=False):
            points = [(record["epoch"], record[name]) for record in validation if name in record]
            shown = {"train_loss": "training loss"}.get(name, f"validation {name}")
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=shown)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label if len(group) > 1 else f"validation {group[0]}" if group else label)
        axes.grid(alpha=0.3)
        if len(group) > 1:
            axes.legend()
    if title:
        figure.suptitle(title)
    return figure


def write_report(
    run: Run,
    sections: Callable[[Report], object] | None = None,
    records: list[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """``report.html`` of a run: its curves, what ``sections`` adds, its summary and its recipe.

    Args:
        run: the run, whose folder also gets ``plots/curves.png``.
        sections: adds an application's own part.
        records: what the curves show; the run's metrics when None.
        summary: of the run; what it has when None.
    """
    import pandas as pd

    def table(facts: dict[str, Any]) -> pd.DataFrame:
        return pd.DataFrame({"value": {name.replace("_", " "): str(value) for name, value in facts.items()}})

    report = Report(f"{run.kind}: {run.path.name}")
    caption = "What the loss and the metrics did; the best validation selects the weights."
    report.figure(curves(run.metrics() if records is None else records), caption, save=run.plots_dir / "curves.png")
    if sections is not None:
        sections(report)
    report.heading("Summary").table(table(run.summary() if summary is None else summary))
    report.heading("Recipe").table(table(run.config["recipe"]))
    return report.write(run.path / "report.html")
