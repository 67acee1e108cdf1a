"""The report of a run: what was chosen and why, the forecasts, and after a backtest how good they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from mha_apps.errors import InputError
from mha_apps.training import Report, Run, curves
from mha_apps.training.report import COLOURS

if TYPE_CHECKING:
    from .backtest import Backtest

__all__ = ["components", "gained", "glance", "learned", "plot_steps", "write_report"]

GAIN = "Gain of each component: the share of the error that it takes away (+) or adds (-)"


def write_report(
    run: Run,
    *,
    forecasts: dict[str, Figure],
    found: Backtest | None = None,
    warnings: Sequence[str] = (),
    assumed: Sequence[str] = (),
) -> Path:
    """Write ``report.html`` into the run.

    Args:
        run: a run whose training has ended.
        forecasts: a figure per series, the forecast after the last row.
        found: what a backtest found, when there was one.
        warnings: of the backtest; those of the training are in the run.
        assumed: future covariates that are not known for ``forecasts``.
    """
    summary = run.summary()
    if "plan" not in summary:
        raise InputError(f"{run.path / 'summary.json'}: does not say what training chose; restore it or train again")
    plan = summary["plan"]
    recipe = run.config["recipe"]
    report = Report(f"Forecast of {Path(recipe['csv']).name}, {recipe['horizon']} rows ahead")
    if told := list(dict.fromkeys([*summary.get("warnings", []), *warnings])):
        report.heading("What is odd about the data")
        for warning in told:
            report.text(warning)
    report.heading("What was learned").text(learned(summary))
    report.table(components(summary), f"{GAIN}, on rolling folds of the training rows and on validation.")
    report.text(
        f"Windows of {plan['look_back']} rows were cut from rows {plan['train'][0]} to {plan['train'][1]} to train; "
        f"rows up to {plan['validation'][1]} decided, rows up to {plan['calibration'][1]} calibrated the intervals."
    )
    if any(record.get("phase") == "validation" for record in run.metrics()):
        report.figure(
            curves(run.metrics()),
            "Losses and errors of standardised values while the attention path learned, on validation rows.",
        )
    if found is not None:
        _backtest(report, found)
    report.heading("What comes next")
    if assumed:
        report.text(
            f"Not known after the last row, and taken to be what the linear path expects of them: "
            f"{', '.join(assumed)}. `forecast predict` asks for them."
        )
    for name, figure in forecasts.items():
        report.figure(figure, f"{name}: history, median and intervals.")
    settings = {name.replace("_", " "): str(value) for name, value in recipe.items()}
    report.heading("Recipe").table(pd.DataFrame({"value": settings}))
    return report.write(run.path / "report.html")


def learned(summary: dict[str, Any]) -> str:
    """What training chose, and why, in a few sentences."""
    plan, chosen = summary["plan"], summary["linear"]
    period = f"a period of {plan['period']} rows" if plan["period"] > 1 else "no period"
    helped = any(block["kept"] for block in chosen.get("cross", []))
    attention = summary.get("attention")
    if attention is None:
        verdict = "The attention path was not trained."
    elif attention["kept"]:
        verdict = (
            f"The attention path gains {gained(attention['relative_gain'])} on validation, which the folds confirm, "
            "and takes part."
        )
    else:
        verdict = (
            f"The attention path gains {gained(attention['relative_gain'])} on validation; that did not hold up, so it "
            "takes no part and the forecast does without it."
        )
    told = summary.get("covariates")
    if told is None:
        helpers = f"the series {'help each other' if helped else 'do not help each other'}"
    else:
        ahead = any(block["kept"] for block in chosen.get("drivers", []))
        helpers = "; ".join(
            [f"the past of the covariates and of the other series {'helps' if helped else 'does not help'}"]
            * bool(chosen.get("cross"))
            + [f"what is known ahead {'helps' if ahead else 'does not help'}"] * bool(chosen.get("drivers"))
        )
    return (
        f"Autocorrelation confirms {period}. The linear path is a ridge with penalty {chosen['penalty']:g}; "
        f"{helpers or 'attributes of the series are for trees and attention alone'}. {verdict}"
    )


def glance(table: pd.DataFrame, most: int) -> str:
    """A forecast as :func:`mha_apps.forecast.predict` gives it, in a line for each sensor, and ``most`` lines at most.

    They hold the median and the narrower interval at the first step, at the middle one and at the last.
    """
    levels = sorted(int(name[3:]) for name in table.columns if name.startswith("lo-"))
    columns = ["median", *(f"{side}-{level}" for level in levels[:1] for side in ("lo", "hi"))]
    rows = {}
    for name, steps in table.groupby("unique_id", sort=False):
        places = sorted({0, (len(steps) - 1) // 2, len(steps) - 1})
        rows[name] = {str(steps["ds"].iloc[place]): _within(*steps[columns].iloc[place]) for place in places}
    names = list(rows)
    what = f"median (and {levels[0]}% interval)" if levels else "median"
    shown = pd.DataFrame.from_dict({name: rows[name] for name in names[:most]}, orient="index").to_string()
    more = f"\n... {len(names) - most:,} more sensors" if len(names) > most else ""
    return f"{what} of each sensor at some of the steps; the file has all\n{shown}{more}"


def _within(median: float, low: float | None = None, high: float | None = None) -> str:
    """A value and its interval with as many digits as tell the ends of it apart."""
    if low is None or high is None:
        return f"{median:z.6g}"
    largest, width = max(abs(low), abs(high), 1e-300), max(high - low, 1e-300)
    digits = math.floor(math.log10(largest)) + 1
    digits = min(max(digits, digits - math.floor(math.log10(width)) + 1, 3), 12) if math.isfinite(largest) else 5
    return f"{median:z.{digits}g} ({low:z.{digits}g} to {high:z.{digits}g})"


def gained(gain: float | None, digits: int = 2) -> str:
    """A gain as a share with its sign; "-" where nothing came that it could be judged by."""
    return "-" if gain is None or not math.isfinite(gain) else f"{gain:+z.{digits}%}"


def components(summary: dict[str, Any]) -> pd.DataFrame:
    """The gains of each component in every round that it was judged in, as text, and whether it takes part."""
    rows: dict[str, list[float]] = {}
    kept: dict[str, str] = {}
    for block in summary["linear"].get("drivers", []):
        name = f"what is known ahead, steps {block['steps'][0]} to {block['steps'][1]}"
        rows[name], kept[name] = list(block["gains"]), "yes" if block["kept"] else "no"
    others = "past of covariates and channels" if summary.get("covariates") else "other channels"
    for block in summary["linear"].get("cross", []):
        name = f"{others}, steps {block['steps'][0]} to {block['steps'][1]}"
        rows[name], kept[name] = list(block["gains"]), "yes" if block["kept"] else "no"
    reversion = summary["linear"].get("reversion")
    if reversion is not None:
        rows["return to the mean"] = list(reversion["gains"])
        kept["return to the mean"] = "yes" if reversion["kept"] else "no"
    for component, verdict in summary.get("blend", {}).items():
        name = component.replace("_", " ")
        rows[name] = list(verdict["gains"])
        kept[name] = f"{verdict['weight']:.0%}" if verdict["kept"] else "no"
    attention = summary.get("attention")
    if attention is not None:
        rows["attention"] = list(attention.get("gains", [attention["relative_gain"]]))
        kept["attention"] = "yes" if attention["kept"] else "no"
    width = max((len(gains) for gains in rows.values()), default=0)
    names = [f"fold {number}" for number in range(1, width)] + ["validation"] * (width > 0)
    table = {
        name: [""] * (width - len(gains)) + [gained(gain) for gain in gains] + [kept[name]]
        for name, gains in rows.items()
    }
    return pd.DataFrame.from_dict(table, orient="index", columns=[*names, "takes part"])


def _backtest(report: Report, found: Backtest) -> None:
    metrics = found.metrics
    report.heading("How good it is on rows that it never saw")
    against = "; ".join(
        f"{gained(skill, 1)} against {name.replace('_', ' ')}" for name, skill in metrics["skill"].items()
    )
    report.text(
        f"From {metrics['origins']:,} origins, {metrics['first_origin']} on, the mean absolute error is "
        f"{metrics['mae']:.3f} deviations of a series: {against}. The 80% intervals held "
        f"{metrics['coverage']['80']:.1%} and the 95% intervals {metrics['coverage']['95']:.1%} of what came."
    )
    if "covariates" in metrics:
        report.text(_known(metrics["covariates"]))
        report.table(
            _contributions(metrics["contributions"]),
            "Contribution of each covariate: by how much the mean absolute error, in deviations of a series, is lower "
            "with it than where the linear path forecasts it (future) or where it is missing (past).",
        )
    worse = [name for name in found.series.index if _worse(found.series.loc[name])]
    if worse:
        report.text(f"A baseline did better on average on: {', '.join(map(str, worse))}.")
    naive = found.series["mae model"] / found.series["mae seasonal_naive"]
    report.table(
        found.series.loc[naive.sort_values().index],
        "By series, errors in the sensor's own unit, the worst against seasonal naive last.",
    )
    report.figure(plot_steps(found.steps), "Left: error by step ahead. Right: share of what came inside the intervals.")
    for name, figure in found.figures.items():
        report.figure(figure, f"{name}: one forecast of the backtest, in its middle, against what came.")


def _known(covariates: dict[str, str]) -> str:
    """In words what was known of the covariates ahead, and what that means for the numbers."""
    told = "; ".join(f"{name}: {words}" for name, words in covariates.items())
    hindsight = any("hindsight" in words for words in covariates.values())
    caution = " Where forecasts stand in for measured values in operation, errors are larger by what those are off."
    return f"Covariates: {told}." + caution * hindsight


def _contributions(found: dict[str, dict[str, float]]) -> pd.DataFrame:
    rows = {
        name: [f"{each['mae_without']:.4g}", f"{each['mae']:.4g}", gained(each["contribution"], 1)]
        for name, each in found.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["error without", "error with", "contribution"])


def _worse(row: pd.Series) -> bool:
    others = ("mae seasonal_naive", "mae last_value", "mae ridge", "mae trees")
    return any(row["mae model"] > row[name] * 1.001 for name in others if name in row)


def plot_steps(steps: pd.DataFrame) -> Figure:
    """Errors and coverage by step, from :attr:`Backtest.steps`."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    errors = [name for name in steps.columns if name.startswith("mae ") and name != "mae linear"]
    for name, colour in zip(errors, COLOURS, strict=False):
        left.plot(steps.index, steps[name], color=colour, label=name[4:].replace("_", " "))
    left.set_ylabel("mean absolute error")
    left.set_ylim(bottom=0)
    for level, colour in ((80, COLOURS[0]), (95, COLOURS[1])):
        right.plot(steps.index, 100 * steps[f"coverage {level}%"], color=colour, label=f"{level}% interval")
        right.axhline(level, color=colour, linewidth=0.8, linestyle=":")
    right.set_ylabel("coverage, %")
    right.set_ylim(50, 100)
    for axes in (left, right):
        axes.set_xlabel("steps ahead")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure
