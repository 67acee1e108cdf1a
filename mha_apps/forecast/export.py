"""Handing a forecaster on: ONNX from raw rows to quantiles, safetensors, and a model card that says how to feed it.

The graph holds everything that :func:`mha_apps.forecast.predict` does after reading: the scale of each sensor, the
centring, the linear path with what covariates add to it, attention where it was kept, the seasonal naive forecast and
the trees where they take part, what meters have risen by, the calibration of the intervals as training left it, and the
bounds.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from mha_apps.errors import InputError
from mha_apps.training import Run, files
from mha_apps.training.export import exported, require_onnx, settings, write_onnx

from .baselines import seasonal_naive
from .calendar import CYCLES, encode, extend
from .conformal import as_far_ahead, bounds
from .drivers import LATEST, CovariateWindows
from .faults import named
from .forecaster import to_wide
from .inputs import around, groups_of
from .limits import LastReading, increments, meters_of, ranges, readings_of
from .linear import LinearPath
from .meters import add_up
from .model import FILES, LEVELS, ForecastModel
from .predict import check_frame, free_values, in_zone, known_of, load_future, load_model, tail_of
from .recipe import ForecastRecipe
from .report import gained
from .sample import resolve
from .stack import Blend
from .trainer import static_of
from .trees import Table
from .windows import centre, spread, whole_patches

__all__ = ["OnnxForecaster", "export", "feeds"]

TOLERANCE = 1e-4
"""Largest difference from torch, in deviations of a sensor, that passes for rounding."""
MOST_SERIES = 1024
CHECKED = 4  # windows


class OnnxForecaster(nn.Module):
    """A model and all that is done before and after it, as one function of tensors.

    Args:
        model: in eval mode.

    Raises:
        InputError: the model has more series than a graph takes.
    """

    middle: Tensor
    unit: Tensor
    meters: Tensor
    numbers: Tensor
    static: Tensor | None
    identity: Tensor
    members: Tensor
    place: Tensor

    def __init__(self, model: ForecastModel) -> None:
        super().__init__()
        if len(model.series) > MOST_SERIES:
            raise InputError(
                f"model.onnx: {len(model.series):,} series, and the graph takes {MOST_SERIES:,} at most; do without "
                "with --no-onnx"
            )
        self.model = model.eval()
        count = len(model.series)
        members = groups_of(count)
        # Where a series is in two groups the later one counts, as in Inputs.
        place = torch.tensor([int((members.flatten() == each).nonzero()[-1]) for each in range(count)])
        held = model.artifacts
        low, high = ranges(model, model.series, rises=True)
        self.register_buffer("middle", held["mean"][:, None])
        self.register_buffer("unit", held["scale"][:, None])
        self.register_buffer("identity", torch.arange(1, count + 1)[members])
        self.register_buffer("members", members)
        self.register_buffer("place", place)
        self.register_buffer("offset", held["offset"])
        self.register_buffer("low", torch.from_numpy(low)[:, None, None])
        self.register_buffer("high", torch.from_numpy(high)[:, None, None])
        self.bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        for name, tensor in LinearPath.from_tensors(held).tensors().items():
            self.register_buffer(f"path_{name}", tensor)
        if model.covariates.names:
            self.register_buffer("around_middle", held["around_mean"][:, None])
            self.register_buffer("around_unit", held["around_scale"][:, None])
            self.knots = held["knots"].numpy()
        self.register_buffer("static", static_of(model, model.series))
        meters = meters_of(model, model.series)
        self.register_buffer("meters", torch.tensor([name in meters for name in model.series]))
        self.register_buffer("numbers", torch.tensor([model.series.index(name) for name in meters], dtype=torch.int64))
        self.future = whole_patches(model.horizon, model.patch)
        self.rows = model.look_back + self.future
        self.attends = bool(model.attention_weight)
        blend = Blend.of(model)
        weights = blend.expanded(model.horizon)[1:] if blend is not None else torch.zeros(count, model.horizon, 2)
        self.register_buffer("blend", weights)
        self.takes = tuple(bool(weights[..., number].any()) for number in range(weights.shape[-1]))
        self.trees = blend.trees if blend is not None and self.takes[1] else None
        if self.trees is not None and self.trees.table is not None:
            for name, tensor in vars(self.trees.table).items():
                self.register_buffer(f"tree_{name}", tensor)

    def _linear(self) -> LinearPath:
        held = self.named_buffers(recurse=False)
        return LinearPath.from_tensors({name[5:]: tensor for name, tensor in held if name.startswith("path_")})

    def forward(
        self,
        past: Tensor,
        waves: Tensor | None = None,
        bins: Tensor | None = None,
        past_covariates: Tensor | None = None,
        future_covariates: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Forecasts in the sensors' own units, of meters what they will have risen by since the last row.

        Args:
            past: ``(batch, series, look_back)`` float64, as measured, meters by what they rose since the row before,
                NaN where missing.
            waves: ``(batch, look_back + future, 2 * cycles)`` float32, of the rows of ``past`` and those after it, as
                :func:`mha_apps.forecast.calendar.encode` gives them; the future is the horizon rounded up to whole
                patches. Not for a model without cycles.
            bins: ``(batch, look_back + future, cycles)`` int64, as it gives them too.
            past_covariates: ``(batch, past ones, LATEST + look_back)`` float64, in their own units, NaN where missing.
                Not for a model without any, as for the next.
            future_covariates: ``(batch, future ones, LATEST + look_back + horizon)`` float64, the holidays last.

        Returns:
            The mean ``(batch, series, horizon)`` and the quantiles ``(batch, series, horizon, 5)``, float64.
        """
        model = self.model
        z = ((past - self.middle) / self.unit).float()
        z = torch.where(torch.isfinite(z), z, torch.nan)
        if len(self.numbers):
            z = torch.where(self.meters[:, None], spread(z), z)
        centred, mask, level = centre(z.double(), model.trailing)
        table = self._covariates(past_covariates, future_covariates, waves)
        path, who = self._linear(), torch.arange(1, past.shape[1] + 1)
        origins = torch.arange(past.shape[0]) * self.rows
        linear = path.forecast(centred, mask, level, covariates=table, origins=origins, who=who).float()
        batch: dict[str, Any] = {"past": centred.float(), "mask": mask.float(), "linear": linear}
        found = self._network(batch, waves, bins, table) + level.float().unsqueeze(-1)
        point = found[..., :1]
        if self.takes[0]:
            naive = seasonal_naive(z, model.horizon, model.period)
            found = found + self._share(naive, point, 0)
        if self.trees is not None:
            found = found + self._share(self._grown(z, waves, table), point, 1)
        measured = mask.flip(-1).cumsum(-1) > 0
        silent = (~measured).sum(-1) * ~self.meters
        which = self.numbers
        if len(which):
            found = add_up(found, which, self.middle[which], self.unit[which])
        made = as_far_ahead(bounds(found, self.get_buffer("offset")), silent)
        values = made * self.unit[..., None] + self.middle[..., None]
        if len(which):
            values = torch.where(self.meters[:, None, None], _rising(values), values)
        if self.bounded:
            values = torch.minimum(torch.maximum(values, self.get_buffer("low")), self.get_buffer("high"))
        return values[..., 0], values[..., 1:]

    def _share(self, forecast: Tensor, point: Tensor, component: int) -> Tensor:
        difference = torch.nan_to_num(forecast.unsqueeze(-1) - point, nan=0.0)
        return difference * self.get_buffer("blend")[..., component : component + 1]

    def _covariates(self, past: Tensor | None, future: Tensor | None, waves: Tensor | None) -> CovariateWindows | None:
        model, given = self.model, []
        if past is not None:
            given.append(functional.pad(past, (0, model.horizon), value=torch.nan))
        if future is not None:
            given.append(future)
        if not given:
            return None
        if waves is not None and "hour" in model.cycles:
            hour = 2 * model.cycles.index("hour")
            waves = waves[:, : model.look_back + model.horizon, hour : hour + 2]
        else:
            waves = None
        return CovariateWindows(
            (torch.cat(given, 1) - self.get_buffer("around_middle")) / self.get_buffer("around_unit"),
            known=model.covariates.known,
            columns=len(model.covariates.columns),
            knots=self.knots,
            waves=waves,
            look_back=model.look_back,
            horizon=model.horizon,
            trailing=model.trailing,
            stride=self.rows,
        )

    def _network(
        self, batch: dict[str, Any], waves: Tensor | None, bins: Tensor | None, table: CovariateWindows | None
    ) -> Tensor:
        """The heads' forecasts relative to the centre, ``(batch, series, horizon, 6)``."""
        model, groups, size = self.model, len(self.members), batch["past"].shape[0]
        batch = {name: values[:, self.members].flatten(0, 1) for name, values in batch.items()}
        batch["identity"] = self.identity.expand(size, -1, -1).flatten(0, 1)
        for name, rows in (("waves", waves), ("bins", bins)):
            batch[name] = None if rows is None else rows[:, :: model.patch].repeat_interleave(groups, 0)
        if table is not None:
            both = around(table, torch.arange(size) * self.rows, self._linear().weights, self.rows)
            batch["around"], batch["around_mask"] = (each.repeat_interleave(groups, 0) for each in both)
        if self.static is not None:
            batch["static"] = self.static[self.members].expand(size, -1, -1, -1).flatten(0, 1)
        found = model.heads(batch, attends=self.attends)
        return found.unflatten(0, (-1, groups)).flatten(1, 2)[:, self.place]

    def _grown(self, z: Tensor, waves: Tensor | None, table: CovariateWindows | None) -> Tensor:
        """The trees' forecasts ``(batch, series, horizon)``, standardised."""
        trees, horizon = self.trees, self.model.horizon
        assert trees is not None
        batch, count, _ = z.shape
        flat = waves if waves is not None else torch.zeros(batch, self.rows, 0)

        class _Here:  # what the trees read of Inputs, with the batch as rows that follow each other
            identities = torch.arange(1, count + 1)
            covariates, static, linear = table, self.static, self._linear()

        here = _Here()
        here.waves = flat.flatten(0, 1)  # type: ignore[attr-defined]
        origin = (torch.arange(batch) * self.rows)[:, None].expand(batch, count).flatten()
        series = torch.arange(count).expand(batch, count).flatten()
        lead = torch.arange(horizon).expand(batch * count, horizon)
        features, level = trees._features(here, z.flatten(0, 1), origin, series, lead)  # type: ignore[arg-type]
        forest = Table(**{name[5:]: held for name, held in self.named_buffers(recurse=False) if name[:5] == "tree_"})
        made = forest.at_once(features.flatten(0, 1)).unflatten(0, (-1, horizon)).float() + level[:, None]
        return made.unflatten(0, (-1, count))


def _rising(values: Tensor) -> Tensor:
    """The highest of the steps so far ``(..., horizon, 6)``, in operations that every runtime has."""
    horizon, step = values.shape[-2], 1
    while step < horizon:
        earlier = functional.pad(values, (0, 0, step, 0), value=-torch.inf)
        values, step = torch.maximum(values, earlier[..., :horizon, :]), 2 * step
    return values


def export(
    run: Run | str | Path, out: str | Path | None = None, *, onnx: bool = True, force: bool = False
) -> dict[str, Any]:
    """Write a run's model as files for others.

    Args:
        run: the run, or its folder.
        out: the folder to write into; ``export`` in the run folder when None. An export that it holds is replaced.
        onnx: write ``model.onnx`` beside the weights, which ``ForecastModel.from_pretrained`` reads, and the card. It
            is run beside torch before it counts as written.
        force: replace files of the same names in ``out`` that no export wrote.

    Returns:
        ``folder``, ``files``, and ``onnx_difference``: the largest difference from torch, in deviations of a sensor.

    Raises:
        InputError: no trained model in the run; the packages of the extra ``export`` are missing; the model holds
            more series than a graph takes, or ONNX disagrees; ``out`` holds files of the same names that no export
            wrote.
    """
    run, model = load_model(run)
    folder = Path(out) if out is not None else run.path / "export"
    result: dict[str, Any] = {"folder": str(folder)}
    graph = None
    if onnx:
        require_onnx()
        graph = OnnxForecaster(model).eval()
    with exported(folder, force=force) as new:
        with files.disk_errors(folder):
            for name in FILES:
                shutil.copyfile(run.model_dir / name, new / name)
        if graph is not None:
            result["onnx_difference"] = _write_onnx(graph, new / "model.onnx")
        files.replace_text(new / "README.md", model_card(run, model, onnx=graph is not None))
        result["files"] = sorted(path.name for path in new.iterdir())
    return result


def _examples(model: ForecastModel) -> list[tuple[pd.DataFrame, pd.DataFrame | None]]:
    """Rows of the training as the model reads them, and what is known after them; some cells missing."""
    tail, names = tail_of(model), list(model.covariates.future)
    draw = np.random.default_rng(0)
    found = []
    for back in range(min(CHECKED, max(1, len(tail) - model.look_back))):
        frame = tail.iloc[max(0, len(tail) - back - model.look_back - LATEST) : len(tail) - back]
        frame = frame.mask(draw.uniform(size=frame.shape) < 0.1 * back)
        ahead = None
        if names:
            usual = tail[names].mean().fillna(0.0), tail[names].std().fillna(1.0)
            drawn = usual[0].to_numpy() + usual[1].to_numpy() * draw.normal(size=(model.horizon, len(names)))
            ahead = pd.DataFrame(drawn, extend(frame.index, model.horizon), names)
            ahead = ahead.mask(draw.uniform(size=ahead.shape) < 0.1 * back)
        found.append((frame, ahead))
    return found


def feeds(
    model: ForecastModel,
    frames: pd.DataFrame | Sequence[pd.DataFrame],
    ahead: pd.DataFrame | Sequence[pd.DataFrame | None] | None = None,
) -> dict[str, np.ndarray]:
    """The inputs of the graph for rows to continue.

    Args:
        model: the model.
        frames: a table, or one for each forecast of a batch: wide or long, as :class:`Forecaster` takes it, with the
            model's series and covariates, meters as their readings, and at least one row. What is not there is missing.
        ahead: for each of them the future covariates in the rows after it, or None.

    Raises:
        InputError: a table is none of times, or of another step, or holds no sensor of the model; a meter has no
            reading in its last row, from which the graph counts; or there is not one of ``ahead`` for each of
            ``frames``.
    """
    tables = [frames] if isinstance(frames, pd.DataFrame) else list(frames)
    later = [ahead] if ahead is None or isinstance(ahead, pd.DataFrame) else list(ahead)
    later = later * len(tables) if ahead is None else later
    if len(later) != len(tables):
        raise InputError(f"feeds: {len(tables)} tables and {len(later)} of what is ahead; give one for each, or None")
    rows = []
    for table, known in zip(tables, later, strict=True):
        frame = in_zone(model, to_wide(table))
        frame = check_frame(model, frame[known_of(model, frame, "the frame")], "the frame")
        meters = meters_of(model, list(frame.columns))
        if silent := [name for name in meters if np.isnan(frame[name].iloc[-1])]:
            raise InputError(
                f"the frame: {named(silent)} without a reading in the last row {frame.index[-1]}, and the graph counts "
                "what a meter rises by from there; end it at their last reading, or use predict_frame"
            )
        rises = increments(frame, meters, readings_of(model), model.step)
        rows.append((rises, None if known is None else load_future(model, in_zone(model, to_wide(known)), "ahead")))
    return _arrays(model, rows)


def _arrays(model: ForecastModel, rows: list[tuple[pd.DataFrame, pd.DataFrame | None]]) -> dict[str, np.ndarray]:
    """:func:`feeds` for rows as the model reads them."""
    covariates, future = model.covariates, whole_patches(model.horizon, model.patch)
    found: dict[str, list[np.ndarray]] = {"past": []}
    for frame, ahead in rows:
        before = pd.date_range(end=frame.index[-1], periods=model.look_back, freq=model.step)
        found["past"].append(frame.reindex(index=before, columns=model.series).to_numpy(dtype=np.float64).T)
        if model.cycles:
            waves, bins = encode(before.append(extend(before, future)), model.cycles)
            found.setdefault("waves", []).append(waves)
            found.setdefault("bins", []).append(bins)
        earlier = pd.date_range(end=before[-1], periods=model.look_back + LATEST, freq=model.step)
        known = covariates.at(ahead, extend(earlier, model.horizon), "the covariates")
        table, past = covariates.table(frame.reindex(earlier), known).T, len(covariates.past)
        if past:
            found.setdefault("past_covariates", []).append(table[:past, : len(earlier)])
        if len(table) > past:
            found.setdefault("future_covariates", []).append(table[past:])
    return {name: np.stack(each) for name, each in found.items()}


def _write_onnx(graph: OnnxForecaster, path: Path) -> float:
    import onnx
    import onnxruntime

    model = graph.model
    examples = _examples(model)
    given = _arrays(model, examples)
    two = {name: torch.from_numpy(rows[:2] if len(rows) > 1 else rows.repeat(2, 0)) for name, rows in given.items()}
    write_onnx(graph, two, ["forecast", "quantiles"], path)
    written = onnx.load(path)
    facts = {
        "series": model.series, "look_back": model.look_back, "horizon": model.horizon, "cycles": model.cycles,
        "frequency": model.frequency, "zone": model.zone, "by_clock": model.by_clock, "levels": LEVELS,
        "future": graph.future,
        "meters": meters_of(model, model.series), "past_covariates": model.covariates.past,
        "future_covariates": model.covariates.names[len(model.covariates.past) :],
    }  # fmt: skip
    onnx.helper.set_model_props(written, {name: json.dumps(value) for name, value in facts.items()})
    files.replace(path, lambda file: file.write(written.SerializeToString()))

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference = 0.0
    for some in (slice(0, 1), slice(0, len(examples))):
        mean, quantiles = session.run(None, {name: value[some] for name, value in given.items()})
        found = np.concatenate([mean[..., None], quantiles], -1)
        for ours, (frame, ahead) in zip(found, examples[some], strict=True):
            gap = np.abs(ours - _values(model, frame, ahead)) / graph.unit[..., None].numpy()
            difference = max(difference, float(np.nan_to_num(gap, nan=np.inf).max()))
    if not difference <= TOLERANCE:
        raise InputError(
            f"{path.name}: onnxruntime differs from torch by {difference:.2g} deviations; report this with the run's "
            "config, and do without with --no-onnx"
        )
    return difference


def _values(model: ForecastModel, frame: pd.DataFrame, ahead: pd.DataFrame | None) -> np.ndarray:
    """What the graph should say of these rows ``(series, horizon, 6)``: the forecasts of meters that read zero last."""
    zero = {name: LastReading(0.0, frame.index[-1]) for name in meters_of(model, model.series)}
    values, _, names, _ = free_values(model, frame, last=zero, ahead=ahead, strict=False)
    low, high = ranges(model, names, rises=True)
    return np.clip(values, low[:, None, None], high[:, None, None])


FORMULAS = {
    "minute": "(t.minute + t.second / 60) / 60",
    "hour": "(t.hour + t.minute / 60 + t.second / 3600) / 24",
    "weekday": "(t.day_of_week + hour) / 7",
    "monthday": "(t.day - 1) / t.days_in_month",
    "yearday": "(t.dayofyear - 1 + hour) / (365 + t.is_leap_year)",
    "month": "(t.month - 1) / 12",
}
"""The phases of the calendar as Python: of times ``t``, a ``DatetimeIndex``, and the phase ``hour`` of the day."""
SHOWN = 50  # names in a card


def model_card(run: Run, model: ForecastModel, *, onnx: bool) -> str:
    """What a stranger needs to know before using the model: data, inputs, numbers, limits; Markdown."""
    recipe, summary = run.recipe(ForecastRecipe), run.summary()
    attention = summary.get("attention") or {}
    parts = ["the linear path"]
    parts += ["attention"] if bool(model.attention_weight) else []
    parts += [name.replace("_", " ") for name, found in summary.get("blend", {}).items() if found.get("kept")]
    told = "".join(f"- {warning}\n" for warning in summary.get("warnings", []))
    for path in (resolve(recipe.csv), Path(recipe.static or recipe.csv)):  # of this machine, which is nobody's concern
        told = told.replace(str(path), path.name)
    gain = f" The attention path gained {gained(attention['relative_gain'])} on validation." if attention else ""
    tail = tail_of(model)
    return f"""---
library_name: mha_apps
pipeline_tag: time-series-forecasting
tags: [time-series, forecasting]
---
# A forecaster of {len(model.series)} sensor{"s" * (len(model.series) > 1)}, {model.horizon} rows ahead

A row is one step of `{model.frequency}`{f", in the zone {model.zone}" if model.zone else ""}. It gives the mean and the
quantiles {", ".join(map(str, LEVELS))} of each sensor, from the {model.look_back} rows before.
The sensors, in this order (all are in config.json): {_listed(model.series)}.
{_inputs(model)}
## Use
```python
{_use(model)}
```
In the place of `rows` goes a table of yours with the same columns, a `DatetimeIndex` in steps of `{model.frequency}`,
and NaN where nothing was measured.
{_onnx_use(model) if onnx else ""}
## Data
Trained on `{Path(recipe.csv).name}`, up to {tail.index[-1]}. Its last {len(tail)} rows are in artifacts.safetensors,
from which it goes on: where they are confidential, {"hand on model.onnx alone" if onnx else "do not hand it on"}.

## What it is made of
{", ".join(parts).capitalize()}.{gain}
`mha-apps forecast backtest` gives its errors and coverage on rows that it never saw.

## Recipe
{settings(run, "csv", "device")}

## Limits
{told}- Quantiles were calibrated up to the last row of the training; predict adapts them to newer rows{
        ", the graph does not" if onnx else ""
    }.
- It was not tested on sensors that it was not trained on.
"""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _inputs(model: ForecastModel) -> str:
    """What must be known about the columns of a table, a paragraph each; empty where they are plain sensors."""
    covariates, told = model.covariates, []
    if meters := meters_of(model, model.series):
        told.append(
            f"Meters: {_listed(meters)}. Tables hold their readings, and forecasts are readings. Inside, the model "
            "works with what they rise by from row to row, and `tail` in artifacts.safetensors holds that."
        )
    if covariates.past:
        told.append(f"Covariates, columns of the same table, known up to its last row: {_listed(covariates.past)}.")
    if covariates.future:
        told.append(
            f"Covariates, columns of the same table, that must be known for the {model.horizon} rows to forecast too: "
            f"{_listed(covariates.future)}."
        )
    if covariates.holidays:
        told.append(f"Holidays of {covariates.holidays} are looked up; `pip install holidays`.")
    low, high = ranges(model, model.series)
    bounded = [
        f"`{name}` from {first:g} to {last:g}"
        for name, first, last in zip(model.series, low, high, strict=True)
        if np.isfinite(first) or np.isfinite(last)
    ]
    if bounded:
        told.append(f"Forecasts stay within bounds: {', '.join(bounded[:SHOWN])}{', ...' * (len(bounded) > SHOWN)}.")
    return "".join(f"\n{textwrap.fill(paragraph, 120, break_on_hyphens=False)}\n" for paragraph in told)


def _step(model: ForecastModel) -> str:
    """The step of the rows in Python."""
    months = model.frequency.removeprefix("months=")
    return json.dumps(model.frequency) if months == model.frequency else f"pd.DateOffset(months={months})"


def _use(model: ForecastModel) -> str:
    """Python that forecasts after the last rows of the training, with what is known ahead where that is needed."""
    future, ahead, given = model.covariates.future, "", ""
    if future:
        latest = tail_of(model)[list(future)].ffill().iloc[-1].fillna(0.0)
        values = "\n".join(f"    {json.dumps(name, ensure_ascii=False)}: {float(latest[name])!r}," for name in future)
        clock = ".tz_localize(None)" if model.by_clock else ""  # where each day has its time
        end = f"rows.index[-1]{clock}"
        times = f"pd.date_range({end}, periods={model.horizon + 1}, freq={_step(model)})[1:]"
        ahead = f"""
times = {times}
known = {{  # as measured last; what you know of each of the times goes here
{values}
}}
future = pd.DataFrame(known, times)"""
        given = ", future"
    first = "import pandas as pd\n\n" if future else ""
    return f"""{first}from mha_apps.forecast import ForecastModel, last_rows, predict_frame

model = ForecastModel.from_pretrained(".")  # the folder of this file
rows = last_rows(model)  # of the training, as they were measured{ahead}
print(predict_frame(model, rows{given}))"""


def _onnx_use(model: ForecastModel) -> str:
    rows = model.look_back + whole_patches(model.horizon, model.patch)
    series, cycles, steps = len(model.series), model.cycles, rows - model.look_back
    tail = tail_of(model)
    clock = zone = code = ""
    given = '"past": past'
    if cycles:
        table = "\n".join(
            f"| {k} | {name} | `{FORMULAS[name]}` | {CYCLES[name].values} |" for k, name in enumerate(cycles)
        )
        zone = f" in the zone {model.zone}" if model.zone else " as the data's own clock shows it"
        clock = f"""
- `waves` (batch, {rows}, {2 * len(cycles)}) float32 and `bins` (batch, {rows}, {len(cycles)}) int64: the
  calendar of the {model.look_back} rows of the past and the {steps} after them, by the time of each row{zone}. The
  phase of a row in cycle k is a number from 0 to 1; columns 2k and 2k + 1 of `waves` are the cosine and the sine of
  2 pi phase, computed in float64 and then rounded, and column k of `bins` is the whole part of values * phase + 1e-6,
  and values - 1 at most:

| k | cycle | phase of the times t, where hour is the phase of the day | values |
|---|---|---|---|
{table}
"""
        last = f'pd.Timestamp("{tail.index[-1]}")' + (f'.tz_convert("{model.zone}")' if tail.index.tz else "")
        phases = "\n".join(f"    {'hour' if name == 'hour' else FORMULAS[name]}," for name in cycles)
        step = _step(model)
        code = f"""end = {last}  # the time of its last row

t = pd.date_range(end=end, periods={model.look_back}, freq={step})
t = t.append(pd.date_range(end, periods={steps + 1}, freq={step})[1:])
hour = {FORMULAS["hour"]}
phases = [
{phases}
]
values = {[CYCLES[name].values for name in cycles]}
waves = [wave(2 * np.pi * phase) for phase in phases for wave in (np.cos, np.sin)]
bins = [np.minimum(np.floor(count * phase + 1e-6), count - 1) for phase, count in zip(phases, values)]
waves, bins = np.stack(waves, -1).astype(np.float32), np.stack(bins, -1).astype(np.int64)
"""
        given += ', "waves": waves[None], "bins": bins[None]'
    covariates, taken, around_told = model.covariates, "", ""
    past, behind = len(covariates.past), LATEST + model.look_back
    there = min(len(tail), behind)
    for name, columns, measured, count, what in (
        ("past_covariates", covariates.names[:past], f":{past}", behind, f"the latest {behind} rows of"),
        ("future_covariates", covariates.names[past:], f"{past}:", behind + model.horizon,
         f"the latest {behind} rows and the {model.horizon} to forecast of"),
    ):  # fmt: skip
        if columns:
            around_told += (
                f"\n- `{name}` (batch, {len(columns)}, {count}) float64: {what} {_listed(columns)}, in this order and "
                "in their own units, oldest first, NaN where not known;"
            )
            taken += f"\n{name} = np.full((1, {len(columns)}, {count}), np.nan)"
            if held := [column for column in columns if column in covariates.columns]:
                place = f"0, :{len(held)}, {behind - there}:{behind}"
                taken += f'\n{name}[{place}] = held["tail_around"][-{there}:, {measured}].T'
            given += f', "{name}": {name}'
    if covariates.holidays:
        around_told += f" `{covariates.names[-1]}` is 1 in the rows of a holiday's date and 0 in others;"
    meters, rises, risen = meters_of(model, model.series), "", ""
    if meters:
        rises = f"; of the meters {_listed(meters)} what they rose by in each row since the reading before, on average"
        risen = (
            " For the meters they are what they will have risen by since the last row of `past`: readings are the last "
            "one plus that, and lie within no bounds but this. The last row must have one: what a meter has risen by "
            "since an earlier reading, `predict_frame` alone adds."
        )
    tables = "model, rows, future" if covariates.future else "model, rows"
    return f"""
`model.onnx` takes, for any batch,
- `past` (batch, {series}, {model.look_back}) float64: the latest rows of each sensor in its own unit, oldest
  first, NaN where missing{rises};{around_told}{clock}
and gives `forecast` (batch, {series}, {model.horizon}), the mean, and `quantiles` (batch,
{series}, {model.horizon}, {len(LEVELS)}), float64, in the sensors' units.{risen}
`mha_apps.forecast.feeds({tables})` makes all that it takes from the tables above. Without this package:
```python
import numpy as np
import onnxruntime
{"import pandas as pd" + chr(10) if cycles else ""}from safetensors.numpy import load_file

held = load_file("artifacts.safetensors")  # with the last rows of the training: the latest of yours go in their place
past = held["tail"][-{model.look_back}:].T[None]{taken}
{code}
session = onnxruntime.InferenceSession("model.onnx")
forecast, quantiles = session.run(None, {{{given}}})
print(forecast[0])
```
"""
