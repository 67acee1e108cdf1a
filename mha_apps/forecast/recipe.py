"""The recipe of a forecast: every flag of ``mha-apps forecast train``. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro
from tyro.conf import Positional

from mha_apps.errors import InputError
from mha_apps.forecast.reading.options import ReadOptions
from mha_apps.training.recipe import TrainingRecipe

__all__ = ["ForecastRecipe"]

LONGEST = 8192  # rows of look-back and of horizon: the normal equations of 8,192 rows take half a gigabyte
MOST_WEIGHTS = 500_000_000
MOST_COVARIATES = 64  # the sums of products that the linear path needs of them grow with their square


@dataclass(kw_only=True)
class ForecastRecipe(ReadOptions, TrainingRecipe):
    """Train a forecaster on the sensors of one CSV.

    On the embedded sample (four instruments, 8,730 hours, two CPU cores) the defaults take about a minute.
    """

    default_budget: ClassVar[tuple[str, float]] = ("steps", 300)
    naming: ClassVar[tuple[str, ...]] = (*ReadOptions.naming, "min", "max", "counter", "target", "past", "future")
    valued: ClassVar[tuple[str, ...]] = ("min", "max")

    csv: Annotated[Positional[str], tyro.conf.arg(metavar="CSV")]
    """The CSV with a timestamp column and one column per sensor, or `sample` for the embedded weather data."""
    horizon: int = 48
    """Rows to forecast."""
    min: tuple[str, ...] = ()
    """Lowest values that a forecast may have, such as 0, or 'flow=0' for one sensor only."""
    max: tuple[str, ...] = ()
    """Highest values that a forecast may have, such as 100, or 'humidity=100' for one sensor only."""
    counter: tuple[str, ...] = ()
    """Sensors that only rise and start again at zero, as meters do; they are forecast by what they rise."""
    target: tuple[str, ...] = ()
    """Columns to forecast; when not given, every column that --past and --future do not name."""
    past: tuple[str, ...] = ()
    """Columns that inform the forecast but are not forecast, known up to now, such as other sensors."""
    future: tuple[str, ...] = ()
    """Columns that are known for the coming rows too, planned or forecast elsewhere, such as a weather forecast."""
    holidays: str | None = None
    """Country whose holidays are known ahead, such as DE, or US-CA for a part of it; needs the library holidays."""
    static: str | None = None
    """A CSV about the sensors: their names in its first column, an attribute in each other one."""
    look_back: int | None = None
    """Rows of the past that a forecast sees; from the data's period and length when not given."""
    holdout: float = 0.2
    """Share of the rows, at the end, that training never sees and `backtest` scores."""
    validation: float = 0.1
    """Share of the rows on which penalty, weights and components are chosen."""
    calibration: float = 0.1
    """Share of the rows on which the intervals are calibrated."""
    dim: int = 32
    """Width of the attention path."""
    heads: int = 4
    """Attention heads; half look at what is near, half at the same phase of other periods."""
    layers: int = 2
    """Transformer blocks along time (and as many across channels)."""
    dropout: float = 0.1
    """Dropout in the attention path."""
    channels: bool = True
    """Let the sensors attend to each other."""
    window: int | None = None
    """Tokens to each side that a head sees; every token when not given."""
    members: int = 1
    """Attention paths that are averaged."""
    refit: bool = True
    """Fit again on every row, the held-out ones too, once everything is chosen; `backtest` uses the model before."""
    trees: bool = True
    """Try gradient-boosted trees as a component of the forecast."""
    attention: bool = True
    """Train the attention path; without it the forecast is the linear one."""

    batch_size: int = 32
    """Origins in one optimiser step; each brings up to 16 series."""
    learning_rate: float = 2e-3
    """Peak learning rate, reached after the warm-up."""
    ema: float = 0.99
    """Decay of the moving average of the weights that is evaluated and saved; 0 turns it off."""
    validate_steps: int | None = 50
    """Optimiser steps between validations; once an epoch when not given."""
    patience: int | None = 3
    """Stop after this many validations without improvement."""

    def check(self) -> None:
        """Raise :class:`InputError` for a value that cannot be meant."""
        TrainingRecipe.check(self)
        ReadOptions.check(self)
        if self.layout == "long":
            raise InputError("--layout long: a forecaster reads a table with a column for each sensor; leave it out")
        roles = [(flag, name) for flag in ("target", "past", "future") for name in getattr(self, flag)]
        taken: dict[str, str] = {}
        for flag, name in roles:
            if name in taken:
                raise InputError(f"--{taken[name]} and --{flag}: {name!r} is named twice; a column has one role")
            taken[name] = flag
        for flag in ("min", "max", "counter"):
            for word in getattr(self, flag):
                name = word if flag == "counter" else word.rpartition("=")[0]
                if taken.get(name, "target") != "target":
                    raise InputError(
                        f"--{flag} {word}: {name!r} is a covariate, which --{taken[name]} names, and bounds and meters "
                        "are of what is forecast; leave it out"
                    )
        if self.holidays is not None and not self.holidays.strip():
            raise InputError(
                f"--holidays {self.holidays!r}: names no country; give one such as DE, or a part of one such as US-CA, "
                "or leave it out"
            )
        if self.static is not None and not self.static.strip():
            raise InputError(f"--static {self.static!r}: names no file; give a CSV about the sensors, or leave it out")
        if len(self.past) + len(self.future) > MOST_COVARIATES:
            raise InputError(
                f"--past and --future name {len(self.past) + len(self.future)} columns, and {MOST_COVARIATES} are the "
                "most; leave out those that matter least"
            )
        for name in ("horizon", "look_back", "dim", "heads", "layers", "members", "window"):
            self.require(name, least=1)
        for name in ("horizon", "look_back"):
            self.require(name, below=LONGEST + 1)
        weights = 12 * self.dim**2 * self.layers * self.members * (1 + self.channels)
        if weights > MOST_WEIGHTS:
            raise InputError(
                f"--dim {self.dim}, --layers {self.layers} and --members {self.members} make about {weights:.2g} "
                f"weights, and {MOST_WEIGHTS:.0e} are the most; lower one of them"
            )
        for name in ("validation", "calibration"):
            self.require(name, above=0, below=0.5)
        for name in ("holdout", "dropout"):
            self.require(name, least=0, below=1)
        if self.dim % self.heads:
            raise InputError(f"--dim {self.dim}: must be a multiple of --heads {self.heads}")
        if self.holdout + self.validation + self.calibration > 0.8:
            total = self.holdout + self.validation + self.calibration
            raise InputError(
                f"--holdout, --validation and --calibration add up to {total:g}: leave at least 0.2 for training"
            )
