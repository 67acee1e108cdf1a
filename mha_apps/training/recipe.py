"""The recipe: one dataclass that is the command-line flags, the recipe file and what the run folder records.

Each application subclasses :class:`TrainingRecipe` and adds its own fields. This module imports no torch, so that
the command line can show its help at once.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mha_apps.errors import InputError, nearest

BUDGETS = ("epochs", "steps", "minutes")
SCHEDULES = ("cosine", "inverse-sqrt", "constant")


@dataclass(kw_only=True)
class TrainingRecipe:
    """What every trainer shares. At most one of ``epochs``, ``steps`` and ``minutes`` is given: the budget."""

    default_budget: ClassVar[tuple[str, float]] = ("epochs", 10)
    """The budget, unit and amount, where none is given."""

    epochs: int | None = None
    """Budget in passes over the training examples."""
    steps: int | None = None
    """Budget in optimiser steps."""
    minutes: float | None = None
    """Budget in minutes: start-up, training, last evaluation and saving included."""
    batch_size: int = 128
    """Examples in one optimiser step, over all processes together."""
    accumulate: int = 1
    """Pieces that a batch is cut into when it does not fit in memory; the gradients add up."""
    optimizer: str = "adamw"
    """Any optimiser name that timm knows: adamw, sgd, nadamw, muon (for hidden matrices, AdamW for the rest), ..."""
    learning_rate: float = 1e-3
    """Peak learning rate, reached after the warm-up."""
    weight_decay: float = 0.05
    """Weight decay; never applied to biases and norms."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = 0.05
    """Share of the budget over which the learning rate rises linearly."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights that is evaluated and saved; 0 turns it off."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    validate_steps: int | None = None
    """Optimiser steps between validations; once an epoch when not given."""
    patience: int | None = None
    """Stop after this many validations without improvement."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints in `last/`, from which --resume continues; one is also written on interruption."""
    seed: int = 0
    """Same seed, machine and thread count: same weights, when the budget is in epochs or steps."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto takes a GPU when there is one."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the matrix products; auto is bf16 on CUDA and on CPUs with bf16 matrix units, else fp32."""

    def check(self) -> None:
        """Raise :class:`InputError` for a value that cannot be meant; subclasses add theirs."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            found = " and ".join(f"--{name}" for name in given)
            raise InputError(f"{found}: give one budget, --epochs, --steps or --minutes")
        counts = ("batch_size", "accumulate", "validate_steps", "patience")
        for name in (*BUDGETS, *counts, "learning_rate", "checkpoint_minutes"):
            self.require(name, above=0)
        for name in ("weight_decay", "clip"):
            self.require(name, least=0)
        self.require("seed", least=0, below=2**32)
        if self.schedule not in SCHEDULES:
            raise InputError(f"--schedule {self.schedule}: must be one of {', '.join(SCHEDULES)}")
        for name in ("warmup", "ema"):
            self.require(name, least=0, below=1)

    def require(
        self, name: str, *, above: float | None = None, least: float | None = None, below: float | None = None
    ) -> None:
        """Raise :class:`InputError` unless the field is None or ``above < value``, ``least <= value < below``."""
        value = getattr(self, name)
        if value is None:
            return
        fits = (
            math.isfinite(value)
            and (above is None or value > above)
            and (least is None or value >= least)
            and (below is None or value < below)
        )
        if not fits:
            bounds = [("above", above), ("at least", least), ("below", below)]
            wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
            raise InputError(f"--{name.replace('_', '-')} {value}: must be {wanted or 'finite'}")

    @property
    def budget(self) -> tuple[str, float]:
        """The unit (epochs, steps or minutes) and the amount of training."""
        for name in BUDGETS:
            if (amount := getattr(self, name)) is not None:
                return name, amount
        return self.default_budget

    @property
    def budget_text(self) -> str:
        """The budget in words, such as ``1 epoch``."""
        unit, amount = self.budget
        return f"{amount:g} {unit.removesuffix('s') if amount == 1 else unit}"


Recipe = TypeVar("Recipe", bound=TrainingRecipe)


def to_table(recipe: TrainingRecipe) -> dict[str, Any]:
    """The recipe as a TOML table; fields that are None are left out, paths become text."""
    table = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in table.items() if value is not None
    }


def from_table(cls: type[Recipe], table: dict[str, Any], where: str) -> Recipe:
    """A recipe of type ``cls`` from a TOML table; ``where`` names the file in error messages."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: recipe must be a table of fields, not {table!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        if key not in fields:
            near = nearest(key, fields)
            hint = f"; did you mean {near}?" if near else ""
            raise InputError(f"{where}: {name} is not a field of {cls.__name__}{hint}")
        if isinstance(value, list):  # TOML has no tuples
            value = tuple(value)
        if not _fits(value, hints[key]):
            wanted = str(fields[key].type).replace(" | None", "")
            raise InputError(f"{where}: {name} = {value!r} is not of the type {wanted}")
        values[key] = value
    return cls(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a TOML value is of the type that a field is annotated with."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str)
    return isinstance(value, hint)


def load_recipe(cls: type[Recipe], path: str | Path) -> Recipe:
    """Read a recipe file: a TOML file whose top level, or whose table ``[recipe]``, holds fields of ``cls``."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a recipe file") from error
    except ValueError as error:
        raise InputError(f"{path}: is not TOML ({error}); see the recipes that come with the package") from error
    return from_table(cls, table.get("recipe", table), str(path))
