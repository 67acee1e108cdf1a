"""Who informs a forecast besides the past of what is forecast: roles of columns, values known ahead, attributes.

A past covariate is known up to the origin, a future one for the horizon too; holidays are a future covariate that
follows from the date. What is known of a future covariate after the last row of the history comes as rows of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from mha_apps.errors import InputError, nearest, warn

from .attributes import read_static
from .calendar import by_clock, step_of
from .faults import named, times_shown, without_sentinels, without_spikes
from .recipe import ForecastRecipe

__all__ = ["Covariates", "Roles", "assign", "holiday_flags", "warn_of_early_end", "weighed"]

FAR = 0.5  # spans of what training saw; what is planned further outside is told


@dataclass(frozen=True, kw_only=True)
class Covariates:
    """The names of what a model knows besides its series; a model's config holds them.

    Attributes:
        past, future: columns, known up to the origin and for the horizon.
        holidays: the country whose holidays are one more future covariate, the last one.
        listed: the series to forecast were listed, so that any other column is nobody's.
        described: series with attributes, which may be more than those of the training.
        attributes: what is known of each of them, categories one by one.
    """

    past: tuple[str, ...] = ()
    future: tuple[str, ...] = ()
    holidays: str | None = None
    listed: bool = False
    described: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: dict[str, Any] | None) -> Covariates:
        """From what :meth:`to_config` gave; JSON has no tuples."""
        values: dict[str, Any] = dict(config or {})
        values.update((name, tuple(value)) for name, value in values.items() if isinstance(value, list))
        return cls(**values)

    def to_config(self) -> dict[str, Any] | None:
        """A dict for JSON; None where nothing but the past of the series is known."""
        return None if self == Covariates() else asdict(self)

    @property
    def columns(self) -> list[str]:
        """The covariates that are columns of the data."""
        return [*self.past, *self.future]

    @property
    def names(self) -> list[str]:
        """All covariates, holidays last."""
        return self.columns + ([f"holidays {self.holidays}"] if self.holidays else [])

    @property
    def known(self) -> list[bool]:
        """For each of ``names`` whether it is known for the horizon."""
        return [number >= len(self.past) for number in range(len(self.names))]

    def series(self, frame: pd.DataFrame) -> list[str]:
        """The columns of ``frame`` that are forecast."""
        return [str(name) for name in frame.columns if str(name) not in self.columns]

    def forecast(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame`` without its covariates."""
        return frame.rename(columns=str)[self.series(frame)] if self.columns else frame

    def select(self, frame: pd.DataFrame, series: Sequence[str], source: str) -> pd.DataFrame:
        """New rows as the model reads them: what is forecast first, then the covariates, without rows to come.

        Args:
            frame: wide.
            series: those of the model.
            source: names the file in messages.

        Raises:
            InputError: a covariate is missing, or nothing to forecast is there.
        """
        if self == Covariates():
            return frame
        self.require_history(frame, series, source)
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            flag = "past" if missing[0] in self.past else "future"
            raise InputError(
                f"{source}: column {missing[0]!r} is missing, which training was given as --{flag}; add it, with "
                "empty cells where it is unknown"
            )
        found = self.series(frame)
        if self.listed:
            found = [name for name in found if name in series]
        if not found:
            raise InputError(f"{source}: no column to forecast; the model forecasts {', '.join(map(repr, series[:8]))}")
        return frame[found + self.columns].iloc[: self.history(frame, found)]

    def require_history(self, frame: pd.DataFrame, series: Sequence[str], source: str) -> None:
        """InputError for a table that holds future covariates and nothing that was measured."""
        told = set(frame.columns[frame.notna().to_numpy().any(0)])
        measured = told.difference(self.future)
        if self.listed:
            measured &= {*series, *self.past}
        ahead = [name for name in self.future if name in told]
        if ahead and not measured:
            raise InputError(
                f"{source}: holds {named(ahead)}, which is known ahead, and no value of {named(series)}, so it is no "
                "history to go on from; to say what is to come give it to predict as --future-csv, in Python as future"
            )

    def history(self, frame: pd.DataFrame, series: Sequence[str]) -> int:
        """How many rows of ``frame`` are history: those up to the last value that is not of a future covariate."""
        if not self.future:
            return len(frame)
        measured = frame[[*series, *self.past]].notna().to_numpy().any(1)
        return int(np.flatnonzero(measured)[-1]) + 1 if measured.any() else len(frame)

    def ahead(self, frame: pd.DataFrame, series: Sequence[str]) -> pd.DataFrame | None:
        """The future covariates in the rows of ``frame`` after its history; None without any such row."""
        if not self.future:
            return None
        found = [name for name in self.series(frame) if not self.listed or name in series]
        rows = frame.reindex(columns=list(self.future)).iloc[self.history(frame, found) :]
        return rows if len(rows) else None

    def require(self, future: pd.DataFrame | None, times: pd.DatetimeIndex, source: str) -> pd.DataFrame | None:
        """The future covariates at ``times``, each of them known; None for a model without any.

        Raises:
            InputError: a row or a value is missing.
        """
        if not self.future:
            return None
        rows = self.at(future, times, source)
        gaps = rows.isna()
        if bool(gaps.to_numpy().any()):
            columns = [name for name in self.future if bool(gaps[name].any())]
            when = times[gaps.any(axis=1).to_numpy()]
            raise InputError(
                f"{source}: the forecast needs {', '.join(map(repr, columns))} for {times[0]} to {times[-1]}, the "
                "rows after the last one with a value of another column, and "
                f"{len(when)} of the {len(times)} rows are missing ({times_shown(when)}); give them in --future-csv or "
                "as rows after the last measured one"
            )
        return rows

    def unknown(self, future: pd.DataFrame | None, times: pd.DatetimeIndex) -> list[str]:
        """The future covariates that ``future`` does not say for all of ``times``."""
        gaps = self.at(future, times, "the covariates").isna().any()
        return [name for name in self.future if bool(gaps[name])]

    def at(self, future: pd.DataFrame | None, times: pd.DatetimeIndex, source: str) -> pd.DataFrame:
        """The future covariates at ``times``, NaN where unknown.

        Raises:
            InputError: ``future`` has a time zone and ``times`` have none, or the other way round.
        """
        if future is None or future.empty:
            return pd.DataFrame(np.nan, index=times, columns=list(self.future))
        self._require_zone(future, times, source)
        return future.rename(columns=str).reindex(index=times, columns=list(self.future)).astype(float)

    @staticmethod
    def _require_zone(future: pd.DataFrame, times: pd.DatetimeIndex, source: str) -> None:
        if (pd.DatetimeIndex(future.index).tz is None) != (times.tz is None):
            which = (
                "history has a time zone and the future covariates have none"
                if times.tz is not None
                else ("future covariates have a time zone and the history has none")
            )
            raise InputError(f"{source}: the {which}; convert one of them")

    def require_step(self, future: pd.DataFrame, times: pd.DatetimeIndex, source: str) -> None:
        """Hold what is given of the future against the rows that it is given for.

        Args:
            future: the future covariates.
            times: of the history and the rows to forecast.
            source: names the file in messages.

        Raises:
            InputError: it is of another step or between their rows, or has a time zone where they have none.
        """
        self._require_zone(future, times, source)
        given = pd.DatetimeIndex(future.dropna(how="all").index)
        given = given[(given >= times[0]) & (given <= times[-1])]
        theirs, ours = step_of(given), step_of(times)
        if len(given) > 2 and not np.isclose(theirs, ours, rtol=0.15):  # months and quarters are not all as long
            raise InputError(
                f"{source}: its rows are {theirs:,.10g} s apart, those of the history {ours:,.10g} s; resample it"
            )
        between = given.difference(times)
        if len(between):
            place = int(times.searchsorted(between[0]))
            raise InputError(
                f"{source}: {between[0]} lies between two rows of the history and what comes after it, "
                f"{times[place - 1]} and {times[place]}; resample it to them"
            )

    def table(self, frame: pd.DataFrame, ahead: pd.DataFrame) -> np.ndarray:
        """All covariates ``(rows + ahead rows, names)`` in their own units, NaN where unknown.

        Args:
            frame: the history.
            ahead: future covariates in the rows after it.
        """
        values = np.full((len(frame) + len(ahead), len(self.names)), np.nan)
        values[: len(frame), : len(self.columns)] = frame.reindex(columns=self.columns).to_numpy(dtype=np.float64)
        values[len(frame) :, len(self.past) : len(self.columns)] = ahead.to_numpy(dtype=np.float64)
        if self.holidays:
            values[:, -1] = holiday_flags(self.holidays, frame.index.append(ahead.index))
        return values


@dataclass
class Roles:
    """A table whose columns have roles.

    Attributes:
        frame: the history: what is forecast, then past and future covariates.
        ahead: the future covariates in the rows after it; None without any.
        covariates: the names.
        static: attributes ``(described, attributes)`` float32; None without any.
        zone: of the times; that of ``frame`` has none where the rows are regular by its clock.
    """

    frame: pd.DataFrame
    ahead: pd.DataFrame | None
    covariates: Covariates
    static: np.ndarray | None = None
    zone: str | None = None

    @property
    def series(self) -> list[str]:
        """The columns that are forecast."""
        return self.covariates.series(self.frame)

    def joined(self, series: pd.DataFrame) -> pd.DataFrame:
        """The whole table with ``series`` in the place of the columns that are forecast."""
        return pd.concat([series, self.frame[self.covariates.columns]], axis=1) if self.covariates.columns else series

    @property
    def digest(self) -> str:
        """Tells apart what the frame itself does not: attributes, and what is known ahead; empty without any."""
        if self.static is None and self.ahead is None:
            return ""
        found = hashlib.sha256()
        for part in (self.static, None if self.ahead is None else self.ahead.to_numpy(dtype=np.float64)):
            found.update(b"" if part is None else np.ascontiguousarray(part).data)
        return found.hexdigest()


def assign(frame: pd.DataFrame, recipe: ForecastRecipe, source: str) -> Roles:
    """Give the columns of a wide ``frame`` the roles that the recipe says.

    Raises:
        InputError: a column is not there or nothing is left to forecast; the country or the attributes cannot be used.
    """
    frame = frame.rename(columns=str)
    index = pd.DatetimeIndex(frame.index)
    if (wall := by_clock(index)) is not None:
        frame = frame.set_axis(wall)
    names = list(frame.columns)
    for flag in ("target", "past", "future"):
        for name in getattr(recipe, flag):
            if name not in names:
                near = nearest(name, names)
                hint = f"did you mean {near!r}?" if near else f"it has {', '.join(map(repr, names[:8]))}"
                raise InputError(f"{source}: no numeric column {name!r}, which --{flag} names; {hint}")
    informing = {*recipe.past, *recipe.future}
    series = list(recipe.target) or [name for name in names if name not in informing]
    if not series:
        raise InputError(f"{source}: --past and --future name every column; leave at least one to forecast")
    described: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    static = None
    if recipe.static is not None:
        described, attributes, static = read_static(recipe.static, series, decimal=recipe.decimal)
        if not recipe.attention and not recipe.trees:
            warn(f"{recipe.static}: attributes are for attention and trees, and both are switched off")
    covariates = Covariates(
        past=tuple(recipe.past),
        future=tuple(recipe.future),
        holidays=recipe.holidays,
        listed=bool(recipe.target),
        described=described,
        attributes=attributes,
    )
    if recipe.holidays:
        holiday_flags(recipe.holidays, frame.index[:1])
        if covariates.names[-1] in [*series, *covariates.columns]:
            raise InputError(
                f"{source}: column {covariates.names[-1]!r} has the name of what --holidays {recipe.holidays} adds; "
                "rename it, or leave --holidays out"
            )
    ahead = covariates.ahead(frame, series)
    frame = frame[series + covariates.columns].iloc[: covariates.history(frame, series)]
    if covariates.columns:
        frame = frame[series].join(without_spikes(frame[covariates.columns], source))
        values = frame[covariates.columns].to_numpy(dtype=np.float64)
        empty = [name for name, some in zip(covariates.columns, np.isfinite(values).any(0), strict=True) if not some]
        if empty:
            warn(f"{source}: {named(empty)} without any value, so nothing is learned from it")
        if ahead is not None:
            ahead = weighed(ahead, seen(frame[list(covariates.future)]), source)
    warn_of_early_end(ahead, recipe.horizon, source)
    return Roles(frame, ahead, covariates, static, None if index.tz is None else str(index.tz))


def seen(frame: pd.DataFrame) -> pd.DataFrame:
    """The lowest and the highest value of each column as ``low`` and ``high``, NaN for an empty one."""
    return pd.DataFrame({"low": frame.min(), "high": frame.max()})


def weighed(ahead: pd.DataFrame, usual: pd.DataFrame, source: str) -> pd.DataFrame:
    """What is known ahead, numbers that stand for a missing value as missing; what is far outside is told.

    What is planned may well be new, so nothing else is taken away.

    Args:
        ahead: future covariates in rows to come.
        usual: by column the range in training, as :func:`seen` gives it.
        source: names the file in warnings.
    """
    cleaned = without_sentinels(ahead, usual, source)
    ahead = ahead if cleaned is None else cleaned
    for name in ahead.columns:
        least, most = float(usual.at[name, "low"]), float(usual.at[name, "high"])
        values = ahead[name]
        beyond = np.maximum(least - values, values - most)  # NaN is beyond nothing
        far = beyond > FAR * (most - least)
        if far.any():
            furthest = f"{values[beyond.where(far).idxmax()]:.6g}"
            what = f"is {furthest} at" if far.sum() == 1 else f"is as far as {furthest} in {far.sum():,} rows,"
            warn(
                f"{source}: {name!r} {what} {times_shown(ahead.index[far])}, far outside the {least:.4g} to {most:.4g} "
                "that training saw; the forecast follows it all the same: check it and its unit"
            )
    return ahead


def warn_of_early_end(ahead: pd.DataFrame | None, horizon: int, source: str) -> None:
    """Warn where rows without any measured value go on beyond the horizon: were they meant as the future?"""
    if ahead is not None and len(ahead) > horizon:
        warn(
            f"{source}: no value was measured from {ahead.index[0]} on, in the last {len(ahead):,} rows; the forecast "
            "begins there, and these rows say what is to come"
        )


def holiday_flags(code: str, index: pd.DatetimeIndex) -> np.ndarray:
    """1 at the times of ``index`` whose local date is a holiday, else 0.

    Args:
        code: of a country, such as ``DE``, or of a part of it, such as ``US-CA``.
        index: in the zone whose dates count.

    Raises:
        InputError: the library ``holidays`` is not installed, or does not know the country.
    """
    try:
        import holidays
    except ImportError:
        raise InputError(f"--holidays {code}: needs the library holidays; pip install holidays") from None
    days = index.tz_localize(None).normalize()
    numbers, dates = pd.factorize(days)
    country, _, part = code.partition("-")
    try:
        years = sorted({int(year) for year in pd.DatetimeIndex(dates).year})
        calendar = holidays.country_holidays(country.upper(), subdiv=part.upper() or None, years=years)
    except (NotImplementedError, KeyError, ValueError) as error:
        raise InputError(
            f"--holidays {code}: not known to the library holidays ({error}); give a country such as DE, or a part of "
            "it such as US-CA"
        ) from None
    flags = np.array([pd.Timestamp(day).date() in calendar for day in dates], dtype=np.float64)
    return flags[numbers]
