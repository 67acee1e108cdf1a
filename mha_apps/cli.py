"""The command line: parses, calls one public function of an application, prints.

Each verb is a dataclass: its fields are the flags (read by tyro, chosen because it makes flags from the same recipe
dataclasses that the run folder records, and starts without importing torch), its ``run`` is the call. What a verb
does not need is not imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, Positional

from mha_apps import __version__
from mha_apps.cnn.recipe import CnnRecipe, ComparedRecipe
from mha_apps.errors import InputError, collected, nearest, warn
from mha_apps.forecast.reading.options import ReadOptions
from mha_apps.forecast.recipe import ForecastRecipe
from mha_apps.training import files, processes
from mha_apps.training.clock import counting_from
from mha_apps.training.recipe import BUDGETS, TrainingRecipe, load_recipe
from mha_apps.training.run import Run
from mha_apps.vision.recipe import VitRecipe


@dataclass
class Answer:
    """What a verb found: ``data`` is what ``--json`` prints, ``text`` is for people."""

    data: dict[str, Any]
    text: str


@dataclass(kw_only=True)
class Verb:
    """What every verb has."""

    json: FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output and nothing else there."""
    debug: FlagCreatePairsOff[bool] = False
    """Show the traceback of an error."""

    def run(self) -> Answer:
        raise NotImplementedError


@dataclass(kw_only=True)
class FromRecipe(Verb):
    """What verbs have that take a recipe. ``recipe`` is annotated by the subclass."""

    recipe_class: ClassVar[type[TrainingRecipe]]

    recipe_file: Annotated[str | None, tyro.conf.arg(name="recipe")] = None
    """A recipe by name, or a recipe file; flags given beside it win."""


@dataclass(kw_only=True)
class Train(FromRecipe):
    """What every trainer has."""

    out: Path | None = None
    """The run folder to make; runs/KIND-DATE-TIME when not given."""
    force: FlagCreatePairsOff[bool] = False
    """Replace the run that --out holds."""
    resume: Path | None = None
    """Continue the run in this folder, from its last checkpoint."""

    def trained(self, train: Any, recipe: TrainingRecipe) -> Answer:
        run = train(recipe, out=self.out, force=self.force, resume=self.resume)
        summary = run.summary()
        return _facts({**summary, "run": str(run.path), "report": str(run.path / "report.html")})


@dataclass(kw_only=True)
class Compute(Verb):
    """What verbs have that run a model."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU when there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the matrix products."""
    batch_size: int = 128
    """Images at a time."""

    @property
    def computing(self) -> dict[str, Any]:
        return {"device": self.device, "precision": self.precision, "batch_size": self.batch_size}


@dataclass(kw_only=True)
class Evaluate(Compute):
    """What the evaluation of every image classifier has."""

    data: str | None = None
    """Images to evaluate on; those that the run was trained on when not given."""
    split: Literal["test", "validation", "all"] = "test"
    """Which of them; `all` is for sources without splits."""
    flip_average: FlagCreatePairsOff[bool] = False
    """Average each image with its mirror image; stated in the result."""

    def evaluated(self, evaluate: Any, folder: Path) -> Answer:
        settings = {"split": self.split, "flip_average": self.flip_average, **self.computing}
        return _facts(evaluate(folder, self.data, **settings))


@dataclass(kw_only=True)
class Export(Verb):
    """What verbs have that hand a trained model on."""

    out: Path | None = None
    """The folder to write into; `export` in the run folder when not given."""
    onnx: bool = True
    """Write model.onnx, checked against onnxruntime; needs the extra `export`."""
    force: FlagCreatePairsOff[bool] = False
    """Replace files of the same names in --out that no export wrote."""

    def exported(self, export: Any, folder: Path) -> Answer:
        return _facts(export(folder, self.out, onnx=self.onnx, force=self.force))


# vit -------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class VitTrain(Train):
    """Train a vision transformer from scratch on digits, CIFAR or your own images."""

    recipe_class = VitRecipe
    recipe: Annotated[VitRecipe, tyro.conf.arg(name="")] = field(default_factory=VitRecipe)

    def run(self) -> Answer:
        from mha_apps.vision import train

        return self.trained(train, self.recipe)


@dataclass(kw_only=True)
class VitEvaluate(Evaluate):
    """Accuracy of a trained ViT on the test split, with a confusion matrix."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `vit train` made."""

    def run(self) -> Answer:
        from mha_apps.vision import evaluate

        return self.evaluated(evaluate, self.folder)


@dataclass(kw_only=True)
class VitPredict(Compute):
    """Classes of image files, of folders of them, or of globs."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `vit train` made."""
    inputs: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]
    """Image files, folders or globs."""
    top: int = 1
    """How many classes to give for each image."""
    out: Path | None = None
    """Write the table to this .csv or .json file instead of printing it."""

    def run(self) -> Answer:
        from mha_apps.vision import predict

        _require_output(self.out, (".csv", ".json"), self.inputs)
        return _table(predict(self.folder, list(self.inputs), top_k=self.top, **self.computing), self.out)


@dataclass(kw_only=True)
class VitExplain(Verb):
    """Where the model looks in image files, and what its attention heads do."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `vit train` made."""
    inputs: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]
    """Image files, folders or globs."""
    out: Path | None = None
    """The picture to write; plots/explanation.png in the run folder when not given."""
    limit: int = 16
    """Most images to draw."""

    def run(self) -> Answer:
        from mha_apps.attention import HeadStatistics
        from mha_apps.vision import explain_files

        found = explain_files(self.folder, list(self.inputs), out=self.out, limit=self.limit)
        text = _facts({name: value for name, value in found.items() if name != "heads"}).text
        return Answer(found, f"{text}\n\nheads\n{HeadStatistics(found['heads'])}")


@dataclass(kw_only=True)
class VitExport(Export):
    """Hand a trained model on: ONNX, safetensors and a model card."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `vit train` made."""

    def run(self) -> Answer:
        from mha_apps.vision import export

        return self.exported(export, self.folder)


@dataclass(kw_only=True)
class VitPresets(Verb):
    """The named shapes of the model, and what each is for."""

    def run(self) -> Answer:
        from mha_apps.vision.presets import PRESETS

        lines = [
            textwrap.fill(f"{name:<12}{preset.about}", 80, subsequent_indent=" " * 12)
            for name, preset in PRESETS.items()
        ]
        data = {name: {"about": preset.about, **preset.settings} for name, preset in PRESETS.items()}
        return Answer(data, "\n".join(lines))


# forecast --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ForecastInspect(Verb):
    """Read sensor data and account for every row and cell of it."""

    data: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="CSV")]
    """Files, or a folder of them; `sample` is the embedded weather data."""
    options: Annotated[ReadOptions, tyro.conf.arg(name="")] = field(default_factory=ReadOptions)
    plot: Path | None = None
    """The PNG of all series with their gaps, replaced when it is there; FILE-series.png in the current folder when not
    given, where only a picture of an inspection is replaced, and any other kept."""

    def run(self) -> Answer:
        from mha_apps.forecast.reading import inspect, is_drawn
        from mha_apps.forecast.sample import resolve

        paths = [resolve(path) for path in self.data if path]
        if not paths:
            raise InputError("forecast inspect: name a file, files or a folder; see mha-apps forecast inspect --help")
        _require_output(self.plot, (".png",), paths)
        usual = Path(f"{paths[0].stem}-series.png")
        foreign = self.plot is None and usual.exists() and not is_drawn(usual)
        if foreign:
            warn(f"{usual}: no inspection drew it, so it is kept and none is drawn; name another file with --plot")
        plot = None if foreign else self.plot or usual
        report = inspect(paths[0] if len(paths) == 1 else paths, options=self.options, plot=plot)
        return Answer(report.to_dict(), report.text(min(shutil.get_terminal_size().columns, 120)))


@dataclass(kw_only=True)
class ForecastTrain(Train):
    """Train a forecaster on the sensors of one CSV."""

    recipe_class = ForecastRecipe
    recipe: Annotated[ForecastRecipe, tyro.conf.arg(name="")]

    def run(self) -> Answer:
        from mha_apps.forecast import train
        from mha_apps.forecast.report import GAIN, components, learned

        answer = self.trained(train, self.recipe)
        found = answer.data
        plan, gains = found["plan"], components(found)
        lines = textwrap.wrap(
            f"{len(found['series'])} series; the rows {plan['train'][0]:,} to {plan['train'][1]:,} taught, those up to "
            f"{plan['validation'][1]:,} decided, and those up to {plan['calibration'][1]:,} calibrated the intervals. "
            + learned(found),
            100,
        )
        if len(gains):
            lines += ["", GAIN, gains.to_string()]
        lines += ["", f"run: {found['run']}", f"report: {found['report']}"]
        return Answer(found, "\n".join(lines))


@dataclass(kw_only=True)
class ForecastPredict(Verb):
    """Forecast what comes after the last row, with intervals, as CSV and plots.

    Plots go into plots/ of the run folder, those for rows of NAME.csv into plots/NAME/.
    """

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `forecast train` made."""
    csv: Annotated[Positional[str | None], tyro.conf.arg(metavar="CSV")] = None
    """Newer rows to continue from; the end of the training data when not given."""
    future_csv: str | None = None
    """What is known of the columns that training was given as --future, in the rows to forecast."""
    levels: tuple[int, ...] = (80, 95)
    """Intervals to give, in percent: 80, 95 or both."""
    alert: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="CONDITION [CONDITION ...]")] = None
    """Conditions such as 'temp>80', each in quotes: print their probabilities at each step instead."""
    out: Path | None = None
    """The .csv file to write; when not given, forecast.csv in the run folder, or forecast-NAME.csv for rows of
    NAME.csv."""

    def run(self) -> Answer:
        from mha_apps.forecast import alert, predict
        from mha_apps.forecast.predict import plots_of
        from mha_apps.forecast.report import glance

        _require_output(self.out, (".csv", ".json"), [self.csv or "", self.future_csv or "", *_trained_on(self.folder)])
        if self.alert is not None:
            return _table(alert(self.folder, self.csv, *self.alert, future=self.future_csv), self.out)
        table = predict(self.folder, self.csv, future=self.future_csv, levels=self.levels)
        plots = plots_of(Run.open(self.folder), self.csv)
        usual = "forecast.csv" if self.csv is None else f"forecast-{plots.name}.csv"
        answer = _table(table, self.out or self.folder / usual, glance(table, MOST_SHOWN))
        return Answer({**answer.data, "plots": str(plots)}, f"{answer.text}\nplots: {plots}")


@dataclass(kw_only=True)
class ForecastBacktest(Verb):
    """Score the forecaster on the rows that it was never shown, beside simple forecasts."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `forecast train` made."""
    csv: Annotated[Positional[str | None], tyro.conf.arg(metavar="CSV")] = None
    """The data that it was trained on with newer rows behind; the training data when not given."""
    trees: bool = True
    """Fit gradient-boosted trees too, to compare with."""

    def run(self) -> Answer:
        from mha_apps.forecast import backtest

        answer = _facts(backtest(self.folder, self.csv, trees=self.trees))
        units = (
            "Errors are in deviations of each sensor over the rows that taught, as are those by step; "
            "those by series are in its own unit. Of a meter, errors are of what it rises by in a row, and pinball, "
            "coverage and width of its readings."
        )
        return Answer(answer.data, f"{units}\n\n{answer.text}")


@dataclass(kw_only=True)
class ForecastScore(Verb):
    """Flag what is odd in new rows: values outside their intervals, stuck sensors, drift."""

    csv: Annotated[Positional[str], tyro.conf.arg(metavar="CSV")]
    """The rows to look at; `sample` is the embedded weather data."""
    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `forecast train` made."""
    out: Path | None = None
    """Write every value outside its interval to this .csv or .json file."""

    def run(self) -> Answer:
        import pandas as pd

        from mha_apps.forecast import score

        _require_output(self.out, (".csv", ".json"), [self.csv, *_trained_on(self.folder)])
        found = score(self.folder, self.csv)
        outside = found["outside"]
        # The sensors that are worst come first here; --json has them in the order of the file.
        worst = sorted(found["sensors"], key=lambda row: (-row["drifts"], -row["outside 95%"]))
        text = _facts({name: value for name, value in found.items() if not isinstance(value, list)}).text
        for title, rows in (
            ("sensors, the worst first", worst),
            ("values outside their 95% interval, the furthest first", outside),
            ("stretches without a change", found["stuck"]),
        ):
            if rows:
                shown = pd.DataFrame(rows[:MOST_SHOWN]).to_string(index=False, float_format=_short)
                more = f"\n... {len(rows) - MOST_SHOWN:,} more; --json has all" if len(rows) > MOST_SHOWN else ""
                text += f"\n\n{title}\n{shown}{more}"
        if meters := Run.open(self.folder, "forecast").recipe(ForecastRecipe).counter:
            text += f"\n\nValues and bounds of {', '.join(meters)} are what it rises by in a row."
        if self.out is not None:
            columns = ["time", "sensor", "value", "lo-95", "hi-95", "distance"]
            text += f"\n\n{_table(pd.DataFrame(outside, columns=columns), self.out).text.splitlines()[-1]}"
        return Answer(found, text)


@dataclass(kw_only=True)
class ForecastExport(Export):
    """Hand a trained forecaster on: ONNX, safetensors and a model card."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `forecast train` made."""

    def run(self) -> Answer:
        from mha_apps.forecast import export

        return self.exported(export, self.folder)


@dataclass(kw_only=True)
class ForecastBenchmark(Verb):
    """The public protocol: 12, 4 and 4 months, every test window, at 96 to 720 steps."""

    recipe: Annotated[ForecastRecipe, tyro.conf.arg(name="")]

    def run(self) -> Answer:
        import pandas as pd

        from mha_apps.forecast import benchmark
        from mha_apps.forecast.report import gained

        found = benchmark(self.recipe.csv, recipe=self.recipe, trees=self.recipe.trees)
        errors = {name: found[name] for name in ("average", "horizons")}
        rows = {
            name.replace("_", " "): {
                f"{error} {horizon}": of["average"][error] if horizon == "average" else of["horizons"][horizon][error]
                for error in ("mse", "mae")
                for horizon in (*of["horizons"], "average")
            }
            for name, of in ({"model": errors} | found["baselines"]).items()
        }
        gains = {
            horizon: {
                error: f"{gained(of['gain'])} ({gained(of['low'])} to {gained(of['high'])})"
                for error, of in both.items()
            }
            for horizon, both in found["gain_over_ridge"].items()
        }
        windows = ", ".join(f"{count:,} of {horizon} rows" for horizon, count in found["windows"].items())
        lines = [
            f"look-back {found['look_back']} rows; windows: {windows}; rows: {_facts(found['rows']).text}".replace(
                "\n", ", "
            ),
            "",
            "mean errors of the standardised values",
            pd.DataFrame.from_dict(rows, orient="index").to_string(float_format=lambda value: f"{value:.4f}"),
            "",
            "share of the ridge's error that the model takes away, and where a bootstrap over weeks has 95% of it",
            pd.DataFrame.from_dict(gains, orient="index").to_string(),
        ]
        return Answer(found, "\n".join(lines))


# cnn -------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class CnnTrain(Train):
    """Train a CNN with attention gates plugged in, or without them."""

    recipe_class = CnnRecipe
    recipe: Annotated[CnnRecipe, tyro.conf.arg(name="")] = field(default_factory=CnnRecipe)

    def run(self) -> Answer:
        from mha_apps.cnn import train

        return self.trained(train, self.recipe)


@dataclass(kw_only=True)
class CnnEvaluate(Evaluate):
    """Accuracy of a trained CNN on the test split, with a confusion matrix."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `cnn train` made."""

    def run(self) -> Answer:
        from mha_apps.cnn import evaluate

        return self.evaluated(evaluate, self.folder)


@dataclass(kw_only=True)
class CnnCompare(FromRecipe):
    """Does a gate help? The same network with each, over several seeds, paired."""

    recipe_class = ComparedRecipe
    recipe: Annotated[ComparedRecipe, tyro.conf.arg(name="")] = field(default_factory=ComparedRecipe)
    gates: str = "none,se,eca,cbam"
    """Gates with commas between them; the first is what the others are compared with."""
    seeds: int = 5
    """Runs of each gate."""
    out: Path | None = None
    """The folder of all runs and the report; a comparison that was stopped goes on there."""
    rounds: int = 20
    """How often the latency of each network is measured."""

    def run(self) -> Answer:
        from mha_apps.cnn import compare

        gates = [gate.strip() for gate in self.gates.split(",") if gate.strip()]
        return _facts(compare(self.recipe, gates=gates, seeds=self.seeds, out=self.out, rounds=self.rounds))


@dataclass(kw_only=True)
class CnnPlug(Verb):
    """Plug gates into a network by name: what went where, and that its output is the same."""

    model: Annotated[Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A name of torchvision's, or `timm/NAME`, or resnet20, resnet32, resnet56."""
    gate: str = "cbam"
    """se, eca, cbam, channel, spatial, spatial-self or channel-self."""
    where: str = "auto"
    """`auto`, or globs over module paths, with commas between them."""
    start: Literal["identity", "standard"] = "identity"
    """Whether a new gate is exactly 1, or about one half as in the papers."""
    image_size: int = 224
    """Side of the images, in pixels."""
    pretrained: FlagCreatePairsOff[bool] = False
    """With the weights that the library has for it; downloads them."""
    out: Path | None = None
    """A folder to save the gated network to."""

    def run(self) -> Answer:
        from mha_apps.cnn import plug_named

        return _facts(
            plug_named(
                self.model,
                self.gate,
                where=self.where,
                start=self.start,
                image_size=self.image_size,
                pretrained=self.pretrained,
                out=self.out,
            )
        )


@dataclass(kw_only=True)
class CnnExplain(Verb):
    """The gates of a trained network at work on a few images, with Grad-CAM."""

    folder: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run folder that `cnn train` made."""
    data: str | None = None
    """Images to show; those that the run was trained on when not given."""
    count: int = 6
    """How many images."""
    split: Literal["validation", "test", "train", "all"] = "validation"
    """Which of them; the test images are left alone unless asked for."""
    out: Path | None = None
    """The picture to write; plots/gates.png in the run folder when not given."""

    def run(self) -> Answer:
        from mha_apps.cnn import explain

        return _facts(explain(self.folder, self.data, count=self.count, split=self.split, out=self.out))


# demo ------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Demo(Verb):
    """Train all three applications on embedded data, and write one report about them."""

    out: Path = Path("runs/demo")
    """The folder to make."""
    force: FlagCreatePairsOff[bool] = False
    """Replace the demo that --out holds."""

    def run(self) -> Answer:
        from mha_apps.demo import demo

        answer = demo(self.out, force=self.force)
        return Answer(answer, "\n".join([*answer["sentences"], f"report: {answer['report']}"]))


VERBS: dict[str, dict[str, type[Verb]]] = {
    "vit": {
        "train": VitTrain,
        "evaluate": VitEvaluate,
        "predict": VitPredict,
        "explain": VitExplain,
        "export": VitExport,
        "presets": VitPresets,
    },
    "forecast": {
        "inspect": ForecastInspect,
        "train": ForecastTrain,
        "predict": ForecastPredict,
        "backtest": ForecastBacktest,
        "score": ForecastScore,
        "benchmark": ForecastBenchmark,
        "export": ForecastExport,
    },
    "cnn": {
        "train": CnnTrain,
        "evaluate": CnnEvaluate,
        "compare": CnnCompare,
        "plug": CnnPlug,
        "explain": CnnExplain,
    },
    "demo": {"": Demo},
}
POSITIONAL = get_args(Positional[str])[1]  # how tyro marks an argument without a flag
MOST_ROWS = 24  # of a table that is printed
MOST_SHOWN = 20  # rows of a longer one, where the first matter most
SUBJECTS = {
    "vit": "vision transformers for images",
    "forecast": "sensor data to forecasts with intervals",
    "cnn": "attention gates in convolutional networks",
    "demo": "all three on embedded data, and a report",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, 2 for input that cannot be used, 130 when interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        # Until a trainer takes over, which saves first, SIGTERM ends as SIGINT does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = _choose(args)
        if isinstance(chosen, str):
            print(chosen)
            return 0
        words, verb_class = chosen
        verb = _parse(" ".join(["mha-apps", *words]), verb_class, args[len(words) :])
        import psutil  # a tenth of the time that this module takes to import, and help does without it

        # A budget in minutes covers the start of the process. Standard output is the answer's alone.
        begun = psutil.Process().create_time() if argv is None else None
        with counting_from(begun), contextlib.redirect_stdout(sys.stderr), collected(_tell) as told:
            answer = verb.run()
        if processes.is_first():
            data = answer.data | ({"warnings": told} if told else {})
            print(files.json_text(data) if verb.json else answer.text, flush=True)
        return 0
    except SystemExit:
        return 0  # tyro ends the process once it has made the help text
    except InputError as error:
        if "--debug" in args:
            raise
        _complain(str(error))
        return 2
    except KeyboardInterrupt as error:
        if processes.is_first():
            print(f"mha-apps: {error if str(error) else 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) had enough; Python would complain again while it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in args:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if not processes.is_lost_peer(error):
            _complain(f"this should not have happened ({reason}); --debug shows where, please report it")
        return 1


def _tell(warning: str) -> None:
    """What is odd about the input, on standard error as soon as it is found."""
    if processes.is_first():
        print(f"mha-apps: warning: {warning}", file=sys.stderr, flush=True)


def _complain(message: str) -> None:
    """One line on standard error, however many processes train together."""
    processes.await_first()
    print(f"mha-apps: {message}", file=sys.stderr, flush=True)


def _choose(args: list[str]) -> tuple[list[str], type[Verb]] | str:
    """The verb that ``args`` begin with, or the help text that they ask for."""
    if not args or args[0] in ("-h", "--help", "help"):
        return _overview()
    if args[0] in ("-V", "--version"):
        return f"mha-apps {__version__}"
    verbs = VERBS[_known(args[0], VERBS, "mha-apps")]
    if "" in verbs:
        return args[:1], verbs[""]
    if len(args) == 1 or args[1] in ("-h", "--help", "help"):
        return _overview(args[0])
    return args[:2], verbs[_known(args[1], verbs, f"mha-apps {args[0]}")]


def _known(word: str, among: dict[str, Any], command: str) -> str:
    if word in among:
        return word
    near = nearest(word, among)
    hint = f"did you mean {near}?" if near else f"it has {', '.join(among)}"
    raise InputError(f"{command} has no verb {word!r}; {hint}")


def _overview(subject: str | None = None) -> str:
    """The help above the verbs, which needs no parser."""
    lines = [f"usage: mha-apps {subject or '[vit | forecast | cnn | demo]'} VERB [OPTIONS]", ""]
    for name, verbs in VERBS.items():
        if subject not in (None, name):
            continue
        lines.append(f"{name}: {SUBJECTS[name]}")
        for word, verb in verbs.items():
            summary = (verb.__doc__ or "").splitlines()[0]
            lines.append(textwrap.fill(f"  {f'{name} {word}'.strip():<20}{summary}", 80, subsequent_indent=" " * 22))
        lines.append("")
    lines.append("mha-apps VERB --help tells the options of a verb, --version the version.")
    return "\n".join(lines)


def _parse(program: str, verb_class: type[Verb], args: list[str]) -> Verb:
    args = _gathered(args, _sequences(verb_class))
    default: Any = tyro.MISSING_NONPROP
    if issubclass(verb_class, FromRecipe):
        base = _base_recipe(verb_class.recipe_class, program.split()[1], args)
        if base is not None:
            default = verb_class(recipe=base)  # type: ignore[call-arg]
    printed, complaint = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            return tyro.cli(
                verb_class,
                prog=program,
                args=args,
                default=default,
                config=(tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as end:
        if end.code:
            raise InputError(f"{_one_line(complaint.getvalue())}; see {program} --help") from end
        print(_tidy(printed.getvalue(), " ".join(["usage:", program, "[OPTIONS]", *_positionals(verb_class)])))
        raise


def _sequences(cls: Any) -> set[str]:
    """The flags that take several values, of a verb and of the recipe in it."""
    found: set[str] = set()
    for name, hint in get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            found |= _sequences(hint)
        elif tuple in (get_origin(hint), *map(get_origin, get_args(hint))):
            found.add("--" + name.replace("_", "-"))
    return found


def _gathered(args: list[str], flags: set[str]) -> list[str]:
    """``args`` with all that is given to each of ``flags`` after one of it, as tyro takes the last one alone."""
    others: list[str] = []
    given: dict[str, list[str]] = {}
    into = others
    for word in args:
        name, sign, value = word.partition("=")
        if name in flags:
            into = given.setdefault(name, [])
            into += [value] * bool(sign)
        elif word.startswith("--"):
            into = others
            into.append(word)
        else:
            into.append(word)
    return others + [word for flag, values in given.items() for word in (flag, *values)]


def _positionals(cls: Any) -> Iterator[str]:
    """The arguments without a flag, of a verb and of the recipe in it: ``[CSV]`` where one may be left out."""
    hints = get_type_hints(cls, include_extras=True)
    for one in dataclasses.fields(cls):
        kind, *notes = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else [hints[one.name]]
        if dataclasses.is_dataclass(kind):
            yield from _positionals(kind)
        elif POSITIONAL in notes:
            name = next((note.metavar for note in notes if getattr(note, "metavar", None)), one.name.upper())
            name += "..." if get_origin(kind) is tuple else ""
            yield name if one.default is dataclasses.MISSING else f"[{name}]"


def _tidy(help_text: str, usage: str) -> str:
    """tyro's help below ``usage``, without defaults that tell a reader nothing, and as wide as the terminal at most.

    tyro's own usage shows what may be left out as what must be there.
    """
    help_text = f"{usage}\n\n{help_text.partition(chr(10) * 2)[2]}"
    help_text = re.sub(r"\s*\(default:\s+None\)|\s*\(default: \)", "", help_text)
    width = shutil.get_terminal_size().columns
    lines = []
    for line in map(str.rstrip, help_text.splitlines()):
        indent = "       " if line.startswith("usage:") else ""
        lines += textwrap.wrap(line, width, subsequent_indent=indent) if len(line) > width else [line]
    return "\n".join(lines)


def _one_line(complaint: str) -> str:
    """tyro's message about flags, several framed paragraphs, as one line without the frame and the help text."""
    blocks = re.split(r"^\W*-{10,}\W*$|^\W*─{10,}\W*$", complaint, flags=re.MULTILINE)
    kept = [block for block in blocks if "helptext" not in block]
    words = [re.sub(r"[│╭╮╰╯─]+", " ", block).split() for block in kept]
    # The first word or two are the frame's title, which repeats what follows.
    text = "; ".join(" ".join(line) for line in words if line)
    return re.sub(r"^(Value error|Unrecognized options|Required options|Parsing error)\W+", "", text).rstrip(".; ")


def _base_recipe(cls: type[TrainingRecipe], kind: str, args: list[str]) -> TrainingRecipe | None:
    """The recipe that ``--recipe`` or ``--resume`` names, which the other flags change."""
    if (resume := _option(args, "--resume")) is not None:
        base: TrainingRecipe | None = Run.open(resume, kind).recipe(cls)
    elif (name := _option(args, "--recipe")) is not None:
        base = named_recipe(cls, name)
    else:
        return None
    if any(_option(args, f"--{budget}") for budget in BUDGETS):
        for budget in BUDGETS:
            setattr(base, budget, None)
    return base


def named_recipe(cls: type[TrainingRecipe], name: str) -> TrainingRecipe:
    """A recipe that comes with the package, by name, or the recipe file of that path."""
    folder = Path(sys.modules[cls.__module__].__file__ or "").parent / "recipes"
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if name in names:
        return load_recipe(cls, folder / f"{name}.toml")
    if Path(name).suffix == ".toml" or Path(name).exists():
        return load_recipe(cls, name)
    raise InputError(f"--recipe {name}: is neither a recipe ({', '.join(names) or 'none'}) nor a .toml file")


def _option(args: list[str], name: str) -> str | None:
    """The value of an option, given as ``--name value`` or ``--name=value``."""
    for index, word in enumerate(args):
        if word == name and index + 1 < len(args):
            return args[index + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


# printing --------------------------------------------------------------------------------------------------------


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_short, value))
    return f"{value:z.4g}" if isinstance(value, float) else str(value)


def _facts(facts: dict[str, Any]) -> Answer:
    """Numbers a line each, then what has rows as tables; the longest tables are left to ``--json``."""
    import pandas as pd

    lines, tables = [], []
    for name, value in facts.items():
        label = name.replace("_", " ")
        rows = list(value.values()) if isinstance(value, dict) else value
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            if len(rows) <= MOST_ROWS:
                table = pd.DataFrame(rows, index=list(value) if isinstance(value, dict) else None)
                shown = table.to_string(index=isinstance(value, dict), float_format=_short, na_rep="-")
                tables.append(f"\n{label}\n{shown}")
        elif isinstance(value, dict):
            pairs = [f"{key} {_short(item)}" for key, item in value.items() if not isinstance(item, dict)]
            lines.append(f"{label}: {', '.join(pairs) or 'none'}")
        elif not isinstance(value, list):
            lines.append(f"{label}: {_short(value)}")
    return Answer(facts, "\n".join(lines + tables))


def _require_output(out: Path | None, suffixes: tuple[str, ...], inputs: Sequence[str | Path]) -> None:
    """Refuse a file that cannot be written, or that would replace an input, before any work is done."""
    if out is None:
        return
    if out.suffix not in suffixes:
        raise InputError(f"{out}: must end in {' or '.join(suffixes)}")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"{out}: is a folder, or lies in one that does not exist; name a file in an existing folder")
    if any(out.resolve() == Path(path).resolve() for path in inputs):
        raise InputError(f"{out}: is an input too and would be replaced; name another file")


def _trained_on(folder: Path) -> list[str]:
    """The files that a forecaster was trained on."""
    recipe = Run.open(folder, "forecast").recipe(ForecastRecipe)
    return [recipe.csv, recipe.static or ""]


def _table(frame: Any, out: Path | None, shown: str | None = None) -> Answer:
    """A data frame as text; in full in ``out`` when that is given, and then its first rows, or ``shown``, as text."""
    times = frame.select_dtypes(["datetime", "datetimetz"])
    numbers = frame.select_dtypes("floating")
    frame = frame.assign(**{name: numbers[name] + 0.0 for name in numbers})  # no minus zero
    # As text at once: pandas would write every time in UTC.
    told = frame.assign(**{name: [time.isoformat() for time in times[name]] for name in times})
    rows = json.loads(told.to_json(orient="records"))
    if out is None:
        return Answer({"rows": rows}, frame.to_string(index=False))
    content = frame.to_csv(index=False) if out.suffix == ".csv" else files.json_text(rows, indent=1)
    files.replace_text(out, content)
    if shown is None:
        more = f"\n... {len(frame) - 10} more rows" if len(frame) > 10 else ""
        shown = frame.head(10).to_string(index=False) + more
    return Answer({"file": str(out), "rows": rows}, f"{shown}\n{out}: {len(frame)} rows")
