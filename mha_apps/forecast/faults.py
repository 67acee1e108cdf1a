"""What is odd about the sensors of a table before anything is learned from them, and what is done about it.

One absurd value would set the scale of its series, and a change of unit would mix two scales in one window. Both are
found and taken as missing, which the model knows how to handle; the table is never filled. Everything is told in a
warning that names the series and the reason, and no series keeps the others from being forecast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd

from mha_apps.errors import InputError, warn

from .reading.missing import CANDIDATES
from .windows import span

__all__ = [
    "named",
    "rows_since",
    "since_unit_change",
    "times_shown",
    "warn_of_faults",
    "warn_of_short_calibration",
    "warn_of_silence",
    "without_empty",
    "without_sentinels",
    "without_spikes",
]

MOST_NAMED = 8
MOST_SHOWN = 3  # timestamps in a message
NINES = CANDIDATES[[value <= -99 and set(f"{value:.10g}") <= set("-9.") for value in CANDIDATES]]
"""What loggers write where nothing was measured, and nothing ever is."""
NOWHERE = 10.0  # ranges of the training; any other number that may stand for a missing value does, further outside
SPIKE = 100.0  # times further from the median than any but a thousandth of the values
SPIKE_ROWS = 2  # a longer stretch is an event
LIKE = 2.0  # two values far out are alike when neither is further out than twice the other
FEWEST = 20  # values that are needed to call one of them a spike
WINDOWS = 19  # 1 / (1 - 0.95) - 1
UNIT = 20.0  # a change of level by less has causes other than the unit
UNIT_ROWS = 30  # values on each side of a change
UNIT_SPREAD = 3.0  # how much the factor of the fluctuation may differ from that of the level
UNITS = (1e3, 3600.0, 1e5, 1e6, 3.6e6, 1e9)  # kilo, hours in s, bar in Pa, mega, kWh in J, giga; machines do less
UNIT_NEAR = 1.25  # how well a factor is known: the seasons go on while the unit changes


def named(names: Iterable[str]) -> str:
    """The first few of ``names`` in quotes, and how many more there are."""
    names = list(names)
    text = ", ".join(map(repr, names[:MOST_NAMED]))
    return text + (f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else "")


def without_empty(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """``frame`` without the columns that hold no value at all, which are named in a warning.

    Raises:
        InputError: no column holds a value.
    """
    empty = ~np.isfinite(frame.to_numpy(dtype=np.float64)).any(0)
    if empty.all() and len(empty):
        raise InputError(f"{source}: none of its columns holds a value; check the file")
    if empty.any():
        warn(f"{source}: {named(map(str, frame.columns[empty]))} without any value: no forecast is made of nothing")
        frame = frame.loc[:, ~empty]
    return frame


def without_sentinels(frame: pd.DataFrame, usual: pd.DataFrame, source: str) -> pd.DataFrame | None:
    """``frame`` with numbers that stand for a missing value as missing, which a warning names; None without any.

    They are those that the reader knows (-999, 65535 and so on), far outside of what training saw. By that a single one
    is told from a value, which a table by itself cannot do.

    Args:
        frame: new rows.
        usual: the range of each column in training, ``low`` and ``high``, NaN where it had no value.
        source: names the file in warnings.
    """
    values = frame.to_numpy(dtype=np.float64)
    low, high = (usual[side].reindex(frame.columns) for side in ("low", "high"))
    with np.errstate(over="ignore", invalid="ignore"):
        width = (high - low).to_numpy()
        beyond = np.maximum(low.to_numpy() - values, values - high.to_numpy())
        found = np.isin(values, NINES) & (beyond > width)
        found |= np.isin(values, CANDIDATES) & (beyond > NOWHERE * width) & (width > 0)
    if not found.any():
        return None
    cleaned: dict[str, np.ndarray] = {}
    for column in np.flatnonzero(found.any(0)):
        name, rows = frame.columns[column], found[:, column]
        warn(
            f"{source}: {str(name)!r} is {values[rows, column][0]:.10g} at {times_shown(frame.index[rows])}, far "
            f"outside the {low.iloc[column]:.4g} to {high.iloc[column]:.4g} that training saw: a number that stands "
            "for a missing value, and is taken as one"
        )
        cleaned[name] = np.where(rows, np.nan, values[:, column])
    return frame.assign(**cleaned)


def times_shown(index: pd.Index) -> str:
    """The first few times of ``index`` in a message."""
    return ", ".join(map(str, index[:MOST_SHOWN])) + (", ..." if len(index) > MOST_SHOWN else "")


def without_spikes(
    frame: pd.DataFrame,
    source: str,
    *,
    earlier: pd.DataFrame | None = None,
    deviation: np.ndarray | None = None,
    rises: Collection[str] = (),
) -> pd.DataFrame:
    """``frame`` with absurd single values as missing: a hundred times further out than the others, see ``SPIKE``.

    What comes again is an event and no fault: a value far out that has another one like it elsewhere stays. Where
    fewer than ``FEWEST`` values differ from the median, as in rain, they hardly tell how far others may reach: further
    out then means a hundred times more than that, or than the median where it is not zero; a series that is zero but
    for three values has no spikes at all.

    Args:
        frame: wide.
        source: names the file in warnings.
        earlier: rows before these; they are compared with, and stay as they are.
        deviation: of each column in training ``(columns,)``; a value within a hundred of them is no spike.
        rises: columns that say what a meter rose by, for the words of the warning.
    """
    values = frame.to_numpy(dtype=np.float64)
    first_row = 0
    if earlier is not None and len(earlier):
        values = np.concatenate([earlier.reindex(columns=frame.columns).to_numpy(dtype=np.float64), values])
        first_row = len(earlier)
    rows = len(values)
    if rows < FEWEST or not values.shape[1]:
        return frame
    observed = np.isfinite(values)
    unit = span(values)
    with np.errstate(invalid="ignore"):
        middle = _medians(values / unit)
        distance = np.where(observed, np.abs(values / unit - middle), -1.0)
    usual = max(3, rows // 1000)
    ordinary = np.partition(distance, rows - 1 - usual, axis=0)[rows - 1 - usual]
    ordinary = np.maximum(ordinary, 0.0)
    telling = (distance > 0).sum(0) - usual
    ordinary = np.where(telling >= FEWEST, ordinary, np.maximum(SPIKE * ordinary, np.abs(middle)))
    enough = (observed.sum(0) >= FEWEST) & (ordinary > 0)
    if deviation is not None:
        ordinary = np.maximum(ordinary, deviation / unit)
    frame = frame.copy(deep=False)
    for column in np.flatnonzero(enough & (distance[first_row:].max(0, initial=-1.0) > SPIKE * ordinary)):
        found = _spikes(values[:, column] / unit[column] - middle[column], SPIKE * ordinary[column])
        found = found[found >= first_row]
        if not len(found):
            continue
        cleaned = values[first_row:, column].copy()
        cleaned[found - first_row] = np.nan
        name = str(frame.columns[column])
        first = found[0]
        more = f" and {len(found) - 1} more are" if len(found) > 1 else " is"
        warn(
            f"{source}: {name!r} {'rises by' if name in rises else 'reads'} {values[first, column]:g} at "
            f"{frame.index[first - first_row]}, over {SPIKE:g} times further out than its other values; it{more} taken "
            "as missing"
        )
        frame[frame.columns[column]] = cleaned
    return frame


def _spikes(offset: np.ndarray, limit: float) -> np.ndarray:
    """The rows of ``offset`` ``(rows,)``, distances with a sign, in short runs beyond ``limit`` that have no like."""
    far = np.abs(offset) > limit  # not where nothing was observed
    edges = np.flatnonzero(np.diff(np.concatenate([[False], far, [False]])))
    starts, ends = edges[::2], edges[1::2]
    peaks = np.array([offset[a:b][np.argmax(np.abs(offset[a:b]))] for a, b in zip(starts, ends, strict=True)])
    order = np.argsort(peaks)
    low, high = peaks[order][:-1], peaks[order][1:]
    with np.errstate(over="ignore"):
        alike = (np.sign(low) == np.sign(high)) & (high - low <= (LIKE - 1) * np.minimum(np.abs(low), np.abs(high)))
    repeated = np.zeros(len(peaks), dtype=bool)
    repeated[order[:-1]] |= alike
    repeated[order[1:]] |= alike
    runs = [(a, b) for a, b, again in zip(starts, ends, repeated, strict=True) if b - a <= SPIKE_ROWS and not again]
    return np.concatenate([np.arange(a, b) for a, b in runs]) if runs else np.array([], dtype=int)


def since_unit_change(frame: pd.DataFrame, source: str | None = None, *, skip: Collection[str] = ()) -> pd.DataFrame:
    """``frame`` with the rows of a series before its unit has changed as missing: two units make no history.

    A change is seen where level and fluctuation both jump by about one factor, at least 20, and stay there. A unit has
    changed where that is a factor between two units (see ``UNITS``); by any other factor what is measured may have
    changed as well, a machine that was switched on for one, so nothing is taken away and the warning names both.

    Args:
        frame: wide.
        source: names the file in warnings; no warning when None.
        skip: columns that are left as they are.
    """
    values = np.abs(frame.to_numpy(dtype=np.float64))
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    known = (np.isfinite(values).sum(0) >= 2 * UNIT_ROWS) & ~frame.columns.isin(list(skip))
    if not known.any():
        return frame
    places = np.flatnonzero(known)
    low, high = np.nanquantile(values[:, places], (0.02, 0.98), axis=0)  # a change that lasts shows here
    frame = frame.copy(deep=False)
    for column in places[high > UNIT * low]:
        found = _unit_change(values[:, column])
        if found is None:
            continue
        row, factor, sure = found
        name = frame.columns[column]
        if source is not None:
            size = f"{float(f'{max(factor, 1 / factor):.2g}'):,.0f}"
            times = f"{size} times {'larger' if factor > 1 else 'smaller'}"
            meant = (
                "as if its unit had changed; what it read before is taken as missing"
                if sure
                else "level and fluctuation alike: either its unit has changed, or what it measures has, as when a "
                "machine is switched on; every row is kept, so make those before missing if it was the unit"
            )
            warn(f"{source}: {str(name)!r} is about {times} from {frame.index[row]} on, {meant}")
        if sure:
            frame[name] = frame[name].where(np.arange(len(frame)) >= row)
    return frame


def _unit_change(values: np.ndarray) -> tuple[int, float, bool] | None:
    """The first row after a change of level and fluctuation, its factor, and whether that is one between two units.

    ``values`` are magnitudes ``(rows,)``; None where there is no such change.
    """
    rows = np.flatnonzero(np.isfinite(values))
    magnitudes = values[rows]
    logarithms = np.log(magnitudes)
    count = len(rows)
    # The split between the two most different means (cumulative sums; Page 1954).
    sums = np.cumsum(logarithms - logarithms.mean())[:-1]
    place = np.arange(1, count)
    score = np.abs(sums) / np.sqrt(place * (count - place))
    score[: UNIT_ROWS - 1] = score[count - UNIT_ROWS :] = 0.0
    split = int(np.argmax(score)) + 1
    before, after = magnitudes[:split], magnitudes[split:]
    factor = float(np.median(after) / np.median(before))
    # Growth has split into two halves, too; a unit changes from one row to the next.
    at_once = float(np.median(after[:UNIT_ROWS]) / np.median(before[-UNIT_ROWS:]))
    if any(1 / UNIT < size < UNIT for size in (factor, at_once)):
        return None
    small, large = (before, after) if factor > 1 else (after, before)
    if np.quantile(small, 0.98) > np.quantile(large, 0.02):
        return None
    spread = [float(np.median(np.abs(np.diff(part)))) for part in (before, after)]
    if min(spread) > 0 and not 1 / UNIT_SPREAD < spread[1] / spread[0] / factor < UNIT_SPREAD:
        return None
    if min(spread) == 0 < max(spread):
        return None
    sizes = [max(size, 1 / size) for size in (factor, at_once)]
    sure = min(spread) > 0 and any(unit / UNIT_NEAR < size < unit * UNIT_NEAR for unit in UNITS for size in sizes)
    return int(rows[split]), factor, sure


def warn_of_faults(frame: pd.DataFrame, *, train_rows: int, horizon: int, look_back: int, source: str) -> None:
    """Warn of series that a forecast can be made of, and should not be trusted much.

    Args:
        frame: the whole table.
        train_rows: those that the model learns from.
        horizon: of the forecast.
        look_back: rows of the past that a forecast sees.
        source: names the file.
    """
    values = frame.to_numpy(dtype=np.float64)
    observed = np.isfinite(values)
    count = observed.sum(0)
    names = np.array([str(name) for name in frame.columns], dtype=object)
    few = count < horizon
    late = ~few & ~observed[:train_rows].any(0)
    with np.errstate(invalid="ignore"):
        same = np.max(values, 0, initial=-np.inf, where=observed) == np.min(values, 0, initial=np.inf, where=observed)
    if few.any():
        warn(
            f"{source}: {named(names[few])} with fewer values than the {horizon} rows of the horizon; the forecast "
            "rests on what the other series show"
        )
    if late.any():
        warn(
            f"{source}: {named(names[late])} without a value before {frame.index[train_rows]}, where the rows to learn "
            "from end; the forecast rests on what the other series show, and its intervals may be wrong"
        )
    if (same & ~few).any():
        warn(f"{source}: {named(names[same & ~few])} with one value throughout; the forecast is that value")
    warn_of_silence(frame, look_back=look_back, source=source)


def warn_of_short_calibration(frame: pd.DataFrame, *, horizon: int, source: str, held_out: bool = False) -> None:
    """Warn of series whose intervals rest on too few windows.

    Errors of windows that overlap go together, so a series has about as many outcomes of its last step as its values
    make windows. The largest of n outcomes is exceeded once in n + 1 times, so fewer than 19 tell no 95% interval
    whatever they are, and no method does better without assuming more.

    Args:
        frame: the rows that the intervals rest on; those of a series that is constant or empty are passed over.
        horizon: of the forecast.
        source: names the file.
        held_out: whether rows are among them that a backtest does without.
    """
    values = frame.to_numpy(dtype=np.float64)
    count = np.isfinite(values).sum(0)
    with np.errstate(invalid="ignore"):
        moves = np.fmax.reduce(values, 0) > np.fmin.reduce(values, 0)
    short = moves & (count < WINDOWS * horizon)
    if short.any():
        least = int(count[short].min())
        more = ", and more so in a backtest, which does without the held-out rows" if held_out else ""
        whose = "" if short.sum() == moves.sum() else f" of {named(map(str, frame.columns[short]))}"
        warn(
            f"{source}: the intervals{whose} rest on {least:,} rows, {least / horizon:.1f} windows of {horizon} rows "
            f"that do not overlap, and {WINDOWS} are the fewest that tell a 95% interval, so its coverage may be some "
            f"points off{more}; give more rows, lower --horizon or raise --calibration"
        )


def rows_since(frame: pd.DataFrame) -> np.ndarray:
    """How many rows at the end of each column have no value."""
    return np.logical_and.accumulate(~np.isfinite(frame.to_numpy(dtype=np.float64)[::-1]), axis=0).sum(0)


def warn_of_silence(frame: pd.DataFrame, *, look_back: int, source: str) -> None:
    """Warn of series without a value in the last ``look_back`` rows, from which a forecast is made, or in some rows."""
    recent = frame.iloc[-look_back:]
    since = rows_since(recent)
    late = (since > 1) & (since < len(recent))
    if late.any():
        names, most = named(map(str, frame.columns[late])), since[late].max()
        rows = f"{most} rows" if (since[late] == most).all() else f"rows, {most} at most"
        warn(
            f"{source}: {names} without a value in the last {rows}; the forecast is that much further ahead, and its "
            "intervals are wider accordingly"
        )
    silent = since == len(recent)
    if silent.any():
        names = named(map(str, frame.columns[silent]))
        warn(
            f"{source}: {names} without a value from {recent.index[0]} on; the forecast is no more than the mean of "
            "what training saw"
        )


def _medians(values: np.ndarray) -> np.ndarray:
    """The median of each column, zero for an empty one."""
    answer = np.zeros(values.shape[1])
    some = np.isfinite(values).any(0)
    if some.any():
        answer[some] = np.nanmedian(values[:, some], axis=0)
    return answer
