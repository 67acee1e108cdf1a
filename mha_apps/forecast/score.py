"""What is odd in new rows: values outside what was forecast for them, sensors that are stuck, and drift.

Every row is held against the forecast that was made one step before it, with intervals that adapt as in operation.
A value far outside is no past of the forecasts after it, as a fault would spoil them and flag the good values that
follow, and the intervals do not learn from it, until the next value is known: where that is clearly nearer to what the
forecast with the doubted value says than to the one without it, the value is believed. So are several far outside in a
row: then it is not the values that are wrong but the forecast, the level having shifted.

In place of a value that is missing or not believed the forecasts after it have the one that was forecast for it: a day
later it counts as much as any. After a gap the interval is that of a forecast which is as old as what it rests on. A
meter's first reading after a gap tells its rise over all of it, so it is held against what was forecast for that before
the gap; where that is longer than the horizon, the reading is not judged.

Distances are counted in half-widths of the 80% interval as it is without the bounds of the sensor, which may cut it to
a point: see :func:`mha_apps.forecast.conformal.half_width`.
"""

from __future__ import annotations

import re
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mha_apps.errors import InputError, nearest, warn
from mha_apps.training import Run

from .conformal import Calibration, as_far_ahead, bounds, half_width, scores
from .engine import forecast_origins
from .inputs import Inputs
from .limits import are_meters, bound
from .meters import since_origin
from .model import LEVELS, ForecastModel
from .predict import (
    after_tail,
    calibration_of,
    free_values,
    in_zone,
    known_of,
    load_model,
    load_rows,
    rows_to_continue,
    rows_to_judge,
    times_in,
)
from .trainer import align, make_inputs

__all__ = ["alert", "one_step_ahead", "parse_alert", "score", "score_frame"]

FAR = 1.0  # 80% half-widths beyond the 95% interval: 3.2 deviations of a normal error
SHIFTED = 5  # values in a row far outside: the level is another one
FEW, MANY = 8, 256  # origins forecast at a time: few where values are taken as missing
STUCK = 12  # equal readings in a row, and four times as many as ever before
DRIFT_WINDOW = 200  # rows over which errors are averaged
DRIFT = 1.5  # 80% half-widths: a mean error that one row rarely has
FURTHEST = 5.0  # 80% half-widths: what an error counts at most
_CONDITION = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>[-+0-9.eE]+)\s*")


def score(run: Run | str | Path, csv: str | Path) -> dict[str, Any]:
    """Go through the rows of ``csv`` and flag what does not fit.

    Args:
        run: a run or its folder.
        csv: rows of the sensors of the run; those that training saw are passed over, unless there are no others.

    Returns:
        JSON-able: ``scored`` values, ``first`` and ``last`` row; ``sensors`` with the shares outside their 80% and 95%
        intervals and the drift; ``outside``, all values outside the 95% interval, the furthest first; ``stuck``, the
        stretches without any change, with the number of readings. Values of a meter are what it rose by in a row since
        the last reading that can be believed. Intervals lie within the bounds of the sensor, so a value at a bound that
        the forecast lies beyond is inside; ``drift`` and ``distance`` count half-widths of the 80% interval as it is
        without bounds.

    Raises:
        InputError: the CSV cannot be used, or no sensor of the run is in it.
    """
    run, model = load_model(run)
    frame = load_rows(run, model, csv).rename(columns=str)
    zone = pd.DatetimeIndex(frame.index).tz
    frame = in_zone(model, frame, str(csv))
    frame = frame[known_of(model, frame, str(csv))]
    # A spike of a covariate must not flag the sensors that it informs.
    rows, read = rows_to_judge(model, frame, str(csv))
    return score_frame(model, rows, str(csv), zone=zone, read=read)


def score_frame(
    model: ForecastModel,
    frame: pd.DataFrame,
    source: str = "the frame",
    *,
    zone: tzinfo | str | None = None,
    read: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """:func:`score` for a frame as :func:`mha_apps.forecast.predict.rows_of` gives it; times are told in ``zone``.

    What is held against the intervals is ``read``, where it is given: ``frame`` with what cannot be believed in it.
    """
    whole = after_tail(model, frame)
    before = len(whole) - len(frame)  # rows of the training, which are the past of these
    seen = model.rows_seen(frame.index)
    start = before + (seen if seen < len(frame) else min(max(0, model.look_back - before), len(frame) - 1))
    frame = align(model, whole)
    inputs = make_inputs(model, frame)
    read = model.covariates.forecast(frame if read is None else read.reindex_like(frame))
    frame = model.covariates.forecast(frame.set_axis(times_in(model, frame.index, zone)))
    times, values = frame.index[start:], read.to_numpy(dtype=np.float64)[start:]
    if not np.isfinite(values).any():
        raise InputError(f"{source}: no value from {times[0]} on; give rows with readings")
    lead = min(start, model.horizon)  # the intervals follow these rows first
    forecast, half = (found[lead:] for found in one_step_ahead(model, inputs, frame, start - lead))
    values = _within_reach(values, forecast, frame.columns, source)
    low, high = forecast[..., 1], forecast[..., 5]
    distance = np.maximum(low - values, values - high) / half  # NaN where nothing was read

    outside: list[dict[str, Any]] = []
    for row, column in zip(*np.nonzero(np.nan_to_num(distance, nan=-1.0) > 0), strict=True):
        outside.append(
            {
                "time": str(times[row]), "sensor": str(frame.columns[column]), "value": float(values[row, column]),
                "lo-95": float(low[row, column]), "hi-95": float(high[row, column]),
                "distance": float(distance[row, column]),
            }
        )  # fmt: skip
    outside.sort(key=lambda found: -found["distance"])
    sensors, stuck = [], []
    for column, name in enumerate(frame.columns):
        known = np.isfinite(values[:, column])
        if not known.any():
            continue
        inner = (values[:, column] < forecast[:, column, 2]) | (values[:, column] > forecast[:, column, 4])
        error = ((values[:, column] - forecast[:, column, 3]) / half[:, column])[known]
        drift = float(np.mean(np.clip(error[-DRIFT_WINDOW:], -FURTHEST, FURTHEST)))  # a single spike is no drift
        sensors.append(
            {
                "sensor": str(name), "scored": int(known.sum()), "outside 80%": float(inner[known].mean()),
                "outside 95%": float((distance[:, column][known] > 0).mean()), "drift": drift,
                "drifts": bool(abs(drift) > DRIFT and len(error) >= 20),
            }
        )  # fmt: skip
        stuck += _stuck(frame[name], start)
    return {
        "scored": int(np.isfinite(values).sum()),
        "first": str(times[0]),
        "last": str(times[-1]),
        "outside_count": len(outside),
        "sensors": sensors,
        "outside": outside,
        "stuck": stuck,
    }


def _within_reach(values: np.ndarray, forecast: np.ndarray, names: pd.Index, source: str) -> np.ndarray:
    """``values`` ``(rows, series)`` as missing where no forecast reached so far, which a warning counts."""
    beyond = np.isfinite(values) & ~np.isfinite(forecast[..., 3])
    for column in np.flatnonzero(beyond.any(0)):
        count = int(beyond[:, column].sum())
        after = "a reading after a gap that is" if count == 1 else f"{count:,} readings after gaps that are"
        warn(
            f"{source}: the meter {str(names[column])!r} has {after} longer than the horizon, so what it rose by since "
            "the one before is not judged"
        )
    return np.where(beyond, np.nan, values)


def _gaps(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Which values are missing though there usually is one, and for how many rows before each row that has been so.

    Both are ``(rows, series)``. A sensor that is read in every sixth row misses nothing in the others.
    """
    read = np.isfinite(frame.to_numpy(dtype=np.float64))
    place = np.arange(len(read))[:, None]
    last = np.maximum.accumulate(np.where(read, place, -1), axis=0)
    apart = np.array([int(np.median(np.diff(rows))) if len(rows) > 1 else 1 for rows in map(np.flatnonzero, read.T)])
    due = ~read & (last >= 0) & ((place - last) % apart == 0)
    before = np.concatenate([last[:1] * 0 - 1, last[:-1]])
    return due, np.where(before >= 0, np.maximum(place - before - apart, 0), 0).astype(np.int64)


def one_step_ahead(
    model: ForecastModel, inputs: Inputs, frame: pd.DataFrame, start: int
) -> tuple[np.ndarray, np.ndarray]:
    """Forecasts of the rows of ``frame`` from ``start`` on, each made one row before it.

    Values that are missing, and those far outside their interval unless those after them bear them out, are in
    ``inputs`` what was forecast for them; see the module's first lines.

    Args:
        model: the model.
        inputs: over ``frame``.
        frame: as :func:`mha_apps.forecast.trainer.align` puts it.
        start: the first row.

    Returns:
        ``(rows - start, series, 6)`` in the sensors' own units, within their bounds, and what a distance from them is
        counted in ``(rows - start, series)``, which no bound makes narrower. NaN where nothing is known: in a meter,
        longer than the horizon after its last reading.
    """
    names = [str(name) for name in frame.columns]
    table, before = inputs.windows.table, inputs.windows.look_back
    real = torch.tensor(frame.to_numpy(dtype=np.float64))
    scaled = torch.tensor(inputs.scaler.forward(real.numpy())).to(table.dtype)
    whole = calibration_of(model, inputs)
    calibration = Calibration(whole.offset[:, :1], whole.pace[:, :1])
    found = torch.empty(len(frame) - start, len(names), 6, dtype=torch.float64)
    halves = torch.empty(len(frame) - start, len(names), dtype=torch.float64)
    scale = torch.from_numpy(inputs.scaler.scale)
    due, silent = (torch.from_numpy(each) for each in _gaps(frame))
    meters = torch.from_numpy(are_meters(model, names))
    open_gap = due.clone()  # what is yet to be given what is forecast for it
    silent = torch.where(meters, 0, silent)
    doubted: list[list[int]] = [[] for _ in names]  # rows of each sensor far outside, of which nothing is known yet
    guessed: list[list[Tensor]] = [[] for _ in names]  # what was forecast for them
    missed: list[list[Tensor]] = [[] for _ in names]  # their scores, which are learned once they are believed
    unread: dict[int, tuple[int, Tensor]] = {}  # meters in a gap: its first row, and what was forecast from there on

    def forecast(origins: Tensor) -> Tensor:
        return forecast_origins(model, inputs, origins)[0]

    def in_units(step: Tensor, row: int) -> tuple[Tensor, Tensor]:
        calibrated = calibration.apply(step[:, :1])[:, 0]
        if bool(silent[row].any()):
            offset = torch.cat([calibration.offset, whole.offset[:, 1:]], 1)
            calibrated = as_far_ahead(bounds(step, offset), silent[row])[:, 0]
        units = inputs.scaler.backward(calibrated.numpy(), axis=0)
        half = half_width(step[:, 0], calibrated) * scale
        for column, (first, made) in unread.items():
            rows = row - first + 1
            if rows > model.horizon:
                units[column] = np.nan
                continue
            total = bounds(made[rows - 1], whole.offset[column, rows - 1])
            mean = float(inputs.scaler.mean[column])
            units[column] = (total.numpy() * float(scale[column]) + mean) / rows
            half[column] = half_width(made[rows - 1], total) * scale[column] / rows
        return torch.from_numpy(bound(model, names, units[:, None], rises=True)[:, 0]), half

    def far(step: Tensor, half: Tensor, value: Tensor) -> Tensor:
        return torch.maximum(step[:, 1] - value, value - step[:, 5]) > FAR * half  # not where the value is missing

    def put(column: int, values: Tensor) -> None:
        table[column, before + torch.tensor(doubted[column])] = values.to(table.dtype)

    def put_back(column: int) -> None:
        put(column, scaled[doubted[column], column])

    def fill(step: Tensor, row: int) -> None:
        """Give the gaps that begin in ``row``, as far as the horizon, what is forecast for them."""
        for column in open_gap[row].nonzero()[:, 0].tolist():
            ahead = torch.isfinite(real[row : row + model.horizon, column]).nonzero()[:1, 0].tolist()
            rows = slice(row, row + (ahead[0] if ahead else model.horizon))
            places = row + open_gap[rows, column].nonzero()[:, 0]
            table[column, before + places] = step[column, places - row, 0].to(table.dtype)
            open_gap[rows, column] = False

    past = max(0, start - before)
    row, size = past + int(torch.cat([due[past:start].any(1), torch.tensor([True])]).nonzero()[0]), FEW
    while row < len(frame):
        doubtful = [column for column, rows in enumerate(doubted) if rows]
        stop = min(row + (1 if doubtful else size), len(frame))
        gap = open_gap[row:stop].any(1).nonzero()[:1, 0].tolist()
        origins = torch.arange(row, row + gap[0] + 1 if gap else stop)
        steps = forecast(origins)
        risen = since_origin(model, inputs, steps)
        if doubtful:
            for column in doubtful:
                put_back(column)
            believing = since_origin(model, inputs, forecast(origins))[0]
            for column in doubtful:
                put(column, torch.tensor(torch.nan))
        size = min(2 * size, MANY)
        for number, row in enumerate(origins.tolist()):
            value = real[row]
            unread = {
                column: since for column, since in unread.items() if not bool(torch.isfinite(real[row - 1, column]))
            }
            for column in (due[row] & meters).nonzero()[:, 0].tolist():
                unread.setdefault(column, (row, risen[number, column]))
            fill(steps[number], row)
            if row < start:  # rows that training had: they only say what is in their gaps
                continue
            shown, half = in_units(risen[number], row)
            learned = scores(risen[number, :, :1], scaled[row, :, None])
            learned[silent[row] > 0] = torch.nan
            learned[list(unread)] = torch.nan
            outside = far(shown, half, value)
            if doubtful:
                other, its_half = in_units(believing, row)
                # Where both forecasts are about as good, as where a day ago counts most, nothing is borne out.
                nearer = (shown[:, 3] - value).abs() - (other[:, 3] - value).abs() > FAR * half
                for column in doubtful:
                    if not bool(torch.isfinite(value[column])):
                        continue
                    believed = bool(nearer[column]) and not bool(far(other, its_half, value)[column])
                    if believed:
                        shown[column], half[column], outside[column] = other[column], its_half[column], False
                        learned[column] = scores(believing[:, :1], scaled[row, :, None])[column]
                    elif bool(outside[column]) and len(doubted[column]) + 1 < SHIFTED:
                        continue
                    if believed or bool(outside[column]):
                        put_back(column)
                        outside[column] = False
                        for late in missed[column]:
                            calibration.learn(_only(late, column, learned), calibration.offset)
                    else:
                        side = torch.sign(scaled[doubted[column][-1], column] - guessed[column][-1])
                        # Where this one errs to the same side, the level may be shifting, and nothing is put there.
                        if not bool(side * (value[column] - shown[column, 3]) > half[column]):
                            put(column, torch.stack(guessed[column]))
                    doubted[column], guessed[column], missed[column] = [], [], []
            found[row - start], halves[row - start] = shown, half
            for column in outside.nonzero()[:, 0].tolist():
                doubted[column].append(row)
                guessed[column].append(steps[number, column, 0, 0])
                missed[column].append(learned[column].clone())
                put(column, torch.tensor(torch.nan))
                learned[column] = torch.nan
            calibration.learn(learned, calibration.offset)
            if bool(outside.any()):
                size = FEW
                break
        row += 1
    return found.numpy(), halves.numpy()


def _only(score: Tensor, column: int, like: Tensor) -> Tensor:
    """Scores of one sensor, unknown for the others."""
    scores_of = torch.full_like(like, torch.nan)
    scores_of[column] = score
    return scores_of


def _stuck(series: pd.Series, start: int) -> list[dict[str, Any]]:
    """Stretches of one value that reach row ``start``, of far more readings than any before it.

    Rows without a reading are passed over, as of a sensor that is read in every sixth.
    """
    rows = np.flatnonzero(np.isfinite(series.to_numpy(dtype=np.float64)))
    values = series.to_numpy(dtype=np.float64)[rows]
    changes = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(rows) else rows
    lengths = np.diff(np.append(changes, len(values)))
    past = int(np.searchsorted(rows, start))
    before = np.minimum(lengths, past - changes)
    least = max(STUCK, 4 * int(before.max(initial=0)))
    found = []
    for first, length in zip(changes, lengths, strict=True):
        if first + length > past and length >= least:
            found.append(
                {
                    "sensor": str(series.name), "value": float(values[first]), "from": str(series.index[rows[first]]),
                    "to": str(series.index[rows[first + length - 1]]), "rows": int(length),
                }
            )  # fmt: skip
    return found


def parse_alert(text: str) -> tuple[str, str, float]:
    """``"temp>80"`` as sensor, sign and number; InputError for anything else."""
    match = _CONDITION.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        return match["name"], match["sign"], float(match["number"])
    except ValueError:
        raise InputError(
            f"--alert {text!r}: is no condition; write SENSOR>NUMBER, or the like with >=, < or <=, in quotes, and "
            "other arguments before --alert"
        ) from None


def alert(
    run: Run | str | Path, csv: str | Path | None, *conditions: str, future: str | Path | None = None
) -> pd.DataFrame:
    """The probability of each of ``conditions``, such as ``"temp>80"``, at each step of the forecast.

    It comes from the calibrated quantiles, the distribution function being linear between them; beyond the outer
    ones, 2.5% and 97.5%, its tails are those of a logistic distribution. What lies beyond a bound of the sensor counts
    as the bound itself: with ``--min flow=0`` the probability of ``flow<0`` is 0, that of ``flow<=0`` what was expected
    at or below 0, and that of ``flow>=0`` is 1. Without ``csv`` the forecast continues the rows of the training;
    ``future`` is as for :func:`mha_apps.forecast.predict`.

    Returns:
        ``ds``, and the probabilities of each condition in a column of its name.

    Raises:
        InputError: there is no condition, or one cannot be read or names no sensor.
    """
    if not conditions:
        raise InputError("--alert: names no condition; write one or more such as 'temp>80', in quotes")
    read = {text.strip(): parse_alert(text) for text in conditions}
    run, model = load_model(run)
    history = rows_to_continue(run, model, csv, future)
    values, (low, high), names, times = free_values(
        model, history.rows, last=history.last, ahead=history.ahead, source=str(future or csv or run.path)
    )
    table = pd.DataFrame({"ds": times_in(model, times, history.zone)})
    for condition, (name, sign, number) in read.items():
        if name not in names:
            near = nearest(name, names)
            one = f"did you mean {near!r}?" if near else f"it is one of {', '.join(names[:8])}"
            raise InputError(f"--alert {condition!r}: there is no sensor {name!r}; {one}")
        at = names.index(name)
        chance = condition_probability(values[at, :, 1:], sign, number, low=float(low[at]), high=float(high[at]))
        table[condition] = chance.round(4)  # more digits than these no calibration can know
    return table


def condition_probability(
    quantiles: np.ndarray, sign: str, number: float, *, low: float = -np.inf, high: float = np.inf
) -> np.ndarray:
    """The probability that a value is ``sign`` (``<``, ``<=``, ``>`` or ``>=``) ``number``, at each step.

    Args:
        quantiles: ``(steps, 5)`` at the levels of the model, as if there were no bound.
        sign: of the condition.
        number: of the condition.
        low: what lies below counts as this value.
        high: what lies above counts as this value.
    """
    with_number = sign in ("<=", ">")  # whether the number itself is on the lower side
    if number < low or (number == low and not with_number):
        below = np.zeros(len(quantiles))
    elif number > high or (number == high and with_number):
        below = np.ones(len(quantiles))
    else:
        below = below_probability(quantiles, number, at_most={low: True, high: False}.get(number))
    return 1 - below if sign.startswith(">") else below


def below_probability(quantiles: np.ndarray, number: float, *, at_most: bool | None = None) -> np.ndarray:
    """The probability of values below ``number``, from quantiles ``(steps, 5)`` at the levels of the model.

    Where several quantiles equal ``number``, it is that of values at most ``number`` with ``at_most``, that of values
    less than it without, and the middle of the two when None.
    """
    levels = np.array(LEVELS)
    answer = np.empty(len(quantiles))
    for step, row in enumerate(quantiles):
        if row[0] <= number <= row[-1]:
            most = np.interp(number, row, levels)
            less = 1 - np.interp(-number, -row[::-1], 1 - levels[::-1])
            answer[step] = (most + less) / 2 if at_most is None else most if at_most else less
            continue
        edge, inner = (0, 1) if number < row[0] else (-1, -2)
        logit = np.log(levels / (1 - levels))
        slope = abs(logit[edge] - logit[inner]) / max(abs(row[edge] - row[inner]), 1e-12)
        logarithm = logit[edge] + slope * (number - row[edge])
        answer[step] = 1 / (1 + np.exp(-np.clip(logarithm, -700, 700)))
    return answer
