"""The stages of a training on disk, so that a run that was killed goes on after the last one that it finished.

A stage is a model and what was found out, in a folder that appears whole or not at all. It counts only for the recipe
and the rows that it was made from; when the training has ended all of them are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mha_apps.errors import InputError
from mha_apps.training import Run, files, processes
from mha_apps.training.recipe import to_table

from .model import ForecastModel, load_folder
from .recipe import ForecastRecipe

__all__ = ["Stages"]

FOLDER = "stages"
_FACTS = "facts.json"


class Stages:
    """The finished stages of ``run``; with ``run`` None nothing is kept and every stage is made.

    They were made from ``frame``, and from what else ``more`` tells apart.
    """

    def __init__(self, run: Run | None, recipe: ForecastRecipe, frame: pd.DataFrame, *, more: str = "") -> None:
        self.run = run
        rows = np.ascontiguousarray(frame.to_numpy(dtype=np.float64))
        digest = hashlib.sha256(json.dumps(to_table(recipe), sort_keys=True, default=str).encode())
        digest.update(json.dumps([list(map(str, frame.columns)), str(frame.index[0]), str(frame.index[-1])]).encode())
        digest.update(rows.data)
        digest.update(more.encode())
        self.digest = digest.hexdigest()

    def once(
        self, name: str, make: Callable[[], tuple[ForecastModel | None, dict[str, Any]]]
    ) -> tuple[ForecastModel | None, dict[str, Any]]:
        """What ``make`` returns, a model or None and a JSON-able dict; from disk if the stage was finished before."""
        if self.run is None:
            return make()
        folder = self.run.path / FOLDER / name
        if (found := self._read(folder)) is not None:
            return found
        model, facts = make()
        facts = json.loads(json.dumps(facts))  # as it will be read: a resumed run must not differ
        if processes.is_first():
            self._write(self.run, name, model, {"digest": self.digest, "model": model is not None, "facts": facts})
        return model, facts

    def _write(self, run: Run, name: str, model: ForecastModel | None, content: dict[str, Any]) -> None:
        folder = run.path / FOLDER / name
        half = folder.with_name(f"{name}.half")
        with files.disk_errors(folder):
            for old in (half, folder):
                files.remove(old)
            half.mkdir(parents=True)
            if model is not None:
                run.save_model(model, f"{FOLDER}/{half.name}")
            files.replace_text(half / _FACTS, json.dumps(content))
            half.rename(folder)

    def _read(self, folder: Path) -> tuple[ForecastModel | None, dict[str, Any]] | None:
        """The stage in ``folder``; None when there is none, or it is damaged or of other rows or another recipe."""
        try:
            content = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            if content["digest"] != self.digest:
                return None
            model = load_folder(folder, "", whole=False) if content["model"] else None
            return model, dict(content["facts"])
        except (OSError, ValueError, TypeError, KeyError, InputError):
            return None

    def clear(self) -> None:
        """Remove them all: the training has ended."""
        if self.run is not None and processes.is_first():
            files.remove(self.run.path / FOLDER)
