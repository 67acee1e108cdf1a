"""The stages of a training on disk, so that a run that was killed goes on after the last one that it finished.

A stage is a model and what was found out, in a folder that appears whole or not at all. It counts only for the recipe
and the rows that it was made from; when the training has ended all of them are removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mha_apps.errors import InputError
from mha_apps.training import Run, processes
from mha_apps.training.recipe import to_table

from .model import ForecastModel, load_folder
from .recipe import ForecastRecipe

__all__ = ["Stages"]

FOLDER = "stages"
_FACTS = "facts.json"


class Stages:
    """The finished stages of ``run``; with ``run`` None nothing is kept and every stage is made."""

    def __init__(self, run: Run | None, recipe: ForecastRecipe, frame: pd.DataFrame) -> None:
        self.path = run.path / FOLDER if run is not None else None
        rows = np.ascontiguousarray(frame.to_numpy(dtype=np.float64))
        digest = hashlib.sha256(json.dumps(to_table(recipe), sort_keys=True, default=str).encode())
        digest.update(json.dumps([list(map(str, frame.columns)), str(frame.index[0]), str(frame.index[-1])]).encode())
        digest.update(rows.data)
        self.digest = digest.hexdigest()

    def once(
        self, name: str, make: Callable[[], tuple[ForecastModel | None, dict[str, Any]]]
    ) -> tuple[ForecastModel | None, dict[str, Any]]:
        """What ``make`` returns, a model or None and a JSON-able dict; from disk if the stage was finished before."""
        if self.path is None:
            return make()
        folder = self.path / name
        if (found := self._read(folder)) is not None:
            return found
        model, facts = make()
        facts = json.loads(json.dumps(facts))  # as it will be read: a resumed run must not differ
        if processes.is_first():
            half = self.path / f"{name}.half"
            for old in (half, folder):
                shutil.rmtree(old, ignore_errors=True)
            half.mkdir(parents=True)
            if model is not None:
                model.save_pretrained(half)
            (half / _FACTS).write_text(json.dumps({"digest": self.digest, "facts": facts}), encoding="utf-8")
            half.rename(folder)
        return model, facts

    def _read(self, folder: Path) -> tuple[ForecastModel | None, dict[str, Any]] | None:
        """The stage in ``folder``; None when there is none, or it is damaged or of other rows or another recipe."""
        try:
            content = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            if content["digest"] != self.digest:
                return None
            has_model = (folder / "config.json").is_file()
            model = load_folder(folder, "", whole=False) if has_model else None
            return model, dict(content["facts"])
        except (OSError, ValueError, TypeError, KeyError, InputError):
            return None

    def clear(self) -> None:
        """Remove them all: the training has ended."""
        if self.path is not None and processes.is_first():
            shutil.rmtree(self.path, ignore_errors=True)
