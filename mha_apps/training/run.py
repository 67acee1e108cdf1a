"""The run folder: everything about one training, self-contained and movable.

``config.toml`` (recipe and environment), ``metrics.jsonl`` (a line per step logged and per validation), ``model/``
(safetensors and json), ``last/`` (all that resume needs), ``summary.json``, ``plots/*.png``, ``report.html``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli_w

from mha_apps import __version__
from mha_apps.errors import InputError
from mha_apps.training import files, processes
from mha_apps.training.recipe import Recipe, TrainingRecipe, from_table, to_table

if TYPE_CHECKING:
    from torch import nn

CONFIG = "config.toml"
Model = TypeVar("Model", bound="nn.Module")


class Run:
    """A run folder that exists. Make one with :meth:`create`, find one with :meth:`open`."""

    def __init__(self, path: Path, begin: Callable[[], object] | None = None) -> None:
        self.path = path
        self.new = begin is not None
        self._begin = begin

    @classmethod
    def create(cls, out: str | Path | None, recipe: TrainingRecipe, kind: str, *, force: bool = False) -> Run:
        """A run that is about to begin: its folder is made, and an old one replaced, by :meth:`begin` only.

        Args:
            out: the folder; ``runs/KIND-DATE-TIME`` when None.
            recipe: what is recorded and what :meth:`recipe` gives back.
            kind: the application, ``vit``, ``forecast`` or ``cnn``.
            force: replace a run that the folder holds. A folder that holds anything else is never touched.

        Raises:
            InputError: the folder holds a run and ``force`` is not set, holds other things, or cannot be written.
        """
        import torch

        processes.begin(cpu=recipe.device == "cpu" or not torch.cuda.is_available())
        path = processes.on_first(lambda: _free(out, kind, force))
        return cls(path, lambda: processes.on_first(lambda: _make(path, recipe, kind, force)))

    def begin(self) -> None:
        """Make the folder and write ``config.toml``, once; called when nothing can be refused any more."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()

    @classmethod
    def open(cls, path: str | Path, kind: str | None = None) -> Run:
        """The run in folder ``path``; InputError when there is none or it is of another kind."""
        path = Path(path)
        run = cls(path)
        if not (path / CONFIG).is_file():
            raise InputError(f"{path}: holds no run ({CONFIG} is missing); name a folder that a train command made")
        if kind is not None and run.kind != kind:
            raise InputError(f"{path}: is a run of `{run.kind}`, not of `{kind}`; use `mha-apps {run.kind}`")
        return run

    @property
    def config(self) -> dict[str, Any]:
        """``config.toml``: the tables ``run``, ``recipe`` and ``environment``."""
        path = self.path / CONFIG
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error}); restore it or train again") from error

    @property
    def kind(self) -> str:
        """The application that made the run."""
        table = self.config.get("run")
        kind = table.get("kind") if isinstance(table, dict) else None
        if not isinstance(kind, str):
            raise InputError(f"{self.path / CONFIG}: says no kind of run; restore the file or train again")
        return kind

    def recipe(self, cls: type[Recipe]) -> Recipe:
        """The recipe that the run was made with."""
        config = self.config
        if "recipe" not in config:
            raise InputError(f"{self.path / CONFIG}: has no table [recipe]; restore the file or train again")
        return from_table(cls, config["recipe"], str(self.path / CONFIG))

    @property
    def model_dir(self) -> Path:
        """The best weights on validation, in the layout of ``from_pretrained``."""
        return self.path / "model"

    def record(self, recipe: TrainingRecipe) -> None:
        """Note in ``config.toml`` that the run goes on by ``recipe``: a resumed run may have another budget."""
        config = self.config
        if config.get("recipe") != (table := to_table(recipe)):
            files.replace_text(self.path / CONFIG, tomli_w.dumps(config | {"recipe": table}))

    def model(self, cls: type[Model]) -> Model:
        """The best weights on validation as a ``cls``, in eval mode on the CPU.

        Raises:
            InputError: there are no weights yet, or they are damaged or of another class.
        """
        if not (self.model_dir / "config.json").is_file():
            raise InputError(f"{self.path}: holds no trained model yet; continue with --resume {self.path}")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the hub's mixin prints where it loads from
                model = cls.from_pretrained(str(self.model_dir), local_files_only=True)  # type: ignore[attr-defined]
        except Exception as error:  # whatever a damaged or edited file leads to
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise InputError(f"{self.model_dir}: its weights cannot be loaded ({reason}); train again") from error
        return model.eval()

    def save_model(self, model: nn.Module, name: str = "model") -> None:
        """Put ``model`` into the folder ``name`` of the run by its ``save_pretrained``, each file replaced at once."""
        from safetensors import SafetensorError

        folder = self.path / name
        with files.disk_errors(folder):
            temporary = folder / ".new"
            temporary.mkdir(parents=True, exist_ok=True)
            try:
                model.save_pretrained(temporary)  # type: ignore[operator]
            except SafetensorError as error:  # safetensors wraps what the operating system says
                raise OSError(str(error)) from error
            for path in sorted(temporary.iterdir()):
                files.sync(path)
                path.replace(folder / path.name)
            temporary.rmdir()

    def load_weights(self, model: nn.Module) -> None:
        """Put the best weights on validation into ``model``; InputError when they are damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        path = self.model_dir / "model.safetensors"
        try:
            load_model(model, str(path))
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: cannot be loaded ({reason}); train again with another --out") from error

    @property
    def last_dir(self) -> Path:
        """The checkpoints that resume uses."""
        return self.path / "last"

    @property
    def plots_dir(self) -> Path:
        """Where pictures go; made when first asked for."""
        path = self.path / "plots"
        with files.disk_errors(path):
            path.mkdir(exist_ok=True)
        return path

    @property
    def metrics_path(self) -> Path:
        """One JSON object a line, in the order of the steps."""
        return self.path / "metrics.jsonl"

    def log(self, record: dict[str, Any]) -> None:
        """Append one record to ``metrics.jsonl``."""
        with files.disk_errors(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All records of ``metrics.jsonl``; a last line that a kill cut short is left out."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            number = next(number for number, line in enumerate(lines, start=1) if not _is_json(line))
            raise InputError(f"{self.metrics_path}: line {number} is damaged; remove it") from error

    def truncate_metrics(self, size: int) -> None:
        """Forget what was logged after ``metrics.jsonl`` had ``size`` bytes: a resumed run logs it again.

        A file that is shorter, after a loss of power, loses its last line if that was cut.
        """
        if self.metrics_path.exists():
            content = self.metrics_path.read_bytes()[:size]
            os.truncate(self.metrics_path, content.rfind(b"\n") + 1)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json`` whole."""
        files.replace_text(self.path / "summary.json", files.json_text(summary, indent=2) + "\n")

    def reopen(self) -> None:
        """Remove what says that the run has ended, and what a kill has left: the run goes on."""
        files.clear(self.path)
        for name in ("summary.json", "report.html"):
            (self.path / name).unlink(missing_ok=True)

    def summary(self) -> dict[str, Any]:
        """``summary.json``, or an empty dict before the run has ended."""
        path = self.path / "summary.json"
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); restore it or train again") from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def environment() -> dict[str, Any]:
    """Library versions, git revision and hardware: what one needs to know to get the same numbers again."""
    import torch

    packages = ("torch", "torchvision", "timm", "accelerate", "numpy", "pandas", "scikit-learn")
    facts: dict[str, Any] = {
        "mha_apps": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in packages},
    }
    if torch.cuda.is_available():
        facts["cuda"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if revision := _git_revision():
        facts["git"] = revision
    return facts


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git_revision() -> str | None:
    """The revision of the source this package runs from, marked when files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _free(out: str | Path | None, kind: str, force: bool) -> Path:
    """The folder that a run may take, or an InputError; nothing is written."""
    if out is None:
        return _unused(Path("runs") / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    path = Path(out)
    with files.disk_errors(path):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path}: is a file; name a folder with --out")
        if _holds_something(path):
            if not (path / CONFIG).is_file():
                raise InputError(f"{path}: is not empty and holds no run; name another folder with --out")
            if not force:
                raise InputError(f"{path}: holds a run; continue it with --resume, or replace it with --force")
    return path


def _holds_something(path: Path) -> bool:
    """Whether the folder holds more than what a kill has left while its first file was written."""
    return path.is_dir() and any(not files.is_temporary(entry) for entry in path.iterdir())


def _make(path: Path, recipe: TrainingRecipe, kind: str, force: bool) -> Path:
    """The folder with its ``config.toml``; asked again, since another run may have taken it meanwhile."""
    _free(path, kind, force)
    with files.disk_errors(path):
        if _holds_something(path):
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
    config = {
        "run": {"kind": kind, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z")},
        "recipe": to_table(recipe),
        "environment": environment(),
    }
    files.replace_text(path / CONFIG, tomli_w.dumps(config))
    return path


def _unused(path: Path) -> Path:
    """``path``, or with a number behind it when two runs start within a second."""
    count, free = 1, path
    while free.exists():
        count += 1
        free = path.with_name(f"{path.name}-{count}")
    return free
