"""What the forecaster's numbers rest on: coverage, the public benchmark over seeds, peers, cost against length, scale.

    python benchmarks/forecast.py coverage DATA        # do 80% and 95% intervals hold, on four data sets
    python benchmarks/forecast.py seeds ETTh1.csv      # the public protocol over three seeds, paired with the ridge
    python benchmarks/forecast.py peers ETTh1.csv      # beside models of neuralforecast and darts, on the same windows
    python benchmarks/forecast.py sparse               # time, memory and error against look-back: a table and a PNG
    python benchmarks/forecast.py structure            # does attention add to the linear path, on generated series
    python benchmarks/forecast.py scale                # 10,000 series, also with covariates, and five million rows

``DATA`` is a folder with ``ett/ETTh1.csv``, ``sensors/ambient_temperature.csv`` and ``sensors/beijing_pm25.csv``; the
embedded sample is scored too. ``--no-attention`` leaves the attention path out, for speed. Peers that are not
installed are left out and named (``pip install neuralforecast darts``).
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.signal import lfilter
from torch import Tensor

from mha_apps.forecast import Forecaster, ForecastRecipe, benchmark
from mha_apps.forecast.backtest import evaluate, first_unseen
from mha_apps.forecast.baselines import seasonal_naive
from mha_apps.forecast.benchmark import MONTHS
from mha_apps.forecast.calendar import DAY, step_of
from mha_apps.forecast.conformal import Calibration, scores
from mha_apps.forecast.model import LEVELS, AttentionPath
from mha_apps.forecast.trainer import align, load_frame, make_inputs

POOLED, QUARTER = 0.03, 0.05  # how far coverage may be from its level
SPREAD = torch.tensor([0.0, -1.96, -1.2816, 0.0, 1.2816, 1.96])  # quantiles to start the naive forecast's from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["coverage", "seeds", "peers", "sparse", "structure", "scale"])
    parser.add_argument("data", nargs="?", type=Path, help="a folder for coverage, ETTh1.csv for seeds and peers")
    parser.add_argument("--no-attention", dest="attention", action="store_false")
    parser.add_argument("--no-trees", dest="trees", action="store_false")
    parser.add_argument("--only", nargs="*", help="some of the data sets, peers or measurements")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--horizons", nargs="*", type=int, default=[96, 336], help="of peers")
    parser.add_argument("--steps", type=int, default=500, help="of each peer's optimizer")
    parser.add_argument("--longest", type=int, default=16384, help="of sparse")
    parser.add_argument("--rounds", type=int, default=3, help="of sparse")
    parser.add_argument("--batch-size", type=int, default=4, help="windows in a step of sparse")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forecast-lengths.png"), help="of sparse")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.part in ("coverage", "seeds", "peers") and args.data is None:
        parser.error(f"{args.part} needs its data")
    parts = {"coverage": coverage, "seeds": seeds, "peers": peers, "sparse": sparse}
    parts |= {"structure": structure, "scale": scale}
    parts[args.part](args)


# coverage --------------------------------------------------------------------------------------------------------


def coverage(args: argparse.Namespace) -> None:
    """A line per data set and per channel of ETTh1: coverage of the last 20% of the rows, horizon 48, every origin."""
    table = []
    for name, frame in data_sets(args.data):
        if args.only and name not in args.only:
            continue
        start = time.perf_counter()
        forecaster = Forecaster(attention=args.attention, trees=args.trees, refit=False).fit(frame)
        model = forecaster.held_out_
        first = first_unseen(model, frame, name, "give more rows")
        found = evaluate(model, frame, first, trees=False)
        naive = naive_pinball(forecaster, frame, first)
        seconds = time.perf_counter() - start
        for series in frame.columns:
            row = found.series.loc[series]
            quarters = by_quarter(found.steps) if len(frame.columns) == 1 else {}
            table.append(
                {"data": name, "series": series, "80%": row["coverage 80%"], "95%": row["coverage 95%"]}
                | quarters
                | {"pinball": row["pinball"], "naive": naive[series], "seconds": None}
            )
        metrics = found.metrics
        deviation = model.artifacts["scale"].numpy()
        table.append(
            {"data": name, "series": "pooled", "80%": metrics["coverage"]["80"], "95%": metrics["coverage"]["95"]}
            | {
                f"q{n + 1} {level}%": metrics["coverage_by_quarter"][str(level)][n]
                for level in (80, 95)
                for n in range(4)
            }
            | {
                "pinball": metrics["pinball"],
                "naive": float(np.nanmean([naive[s] / d for s, d in zip(frame.columns, deviation, strict=True)])),
                "seconds": round(seconds),
            }
        )
        print(pd.DataFrame(table[-1:]).to_string(index=False, float_format="{:.3f}".format), flush=True)
    whole = pd.DataFrame(table)
    print(f"\n{whole.to_string(index=False, float_format='{:.3f}'.format, na_rep='-')}")
    for row in table:
        far = [
            f"{key} at {row[key]:.3f}"
            for key in row
            if key.endswith("%")
            and isinstance(row[key], float)
            and abs(row[key] - (0.8 if key.endswith("80%") else 0.95)) > (QUARTER if key.startswith("q") else POOLED)
        ]
        if row["pinball"] >= row["naive"]:
            far.append("its pinball loss is not below the conformal seasonal naive's")
        if far:
            print(f"falls short: {row['data']}, {row['series']}: {'; '.join(far)}")


def data_sets(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each channel of ETTh1 counts; of Beijing the pm2.5 alone."""
    yield "sample", load_frame("sample")
    yield "ambient", load_frame(folder / "sensors" / "ambient_temperature.csv")
    yield "beijing", load_frame(folder / "sensors" / "beijing_pm25.csv")[["pm2.5"]]
    yield "ETTh1", load_frame(folder / "ett" / "ETTh1.csv")


def by_quarter(steps: pd.DataFrame) -> dict[str, float]:
    """Coverage in each quarter of the horizon; steps count alike."""
    parts = np.array_split(np.arange(len(steps)), 4)
    return {
        f"q{number + 1} {level}%": float(steps[f"coverage {level}%"].iloc[part].mean())
        for level in (80, 95)
        for number, part in enumerate(parts)
    }


def naive_pinball(forecaster: Forecaster, frame: pd.DataFrame, start: int) -> dict[str, float]:
    """Pinball loss of the seasonal naive forecast, calibrated on the same rows and adapting in the same way."""
    model = forecaster.held_out_
    frame = align(model, frame)
    inputs = make_inputs(model, frame)
    plan = forecaster.facts_["plan"]

    def forecast(origins: Tensor) -> tuple[Tensor, Tensor]:
        past, future = inputs.windows.every_series(origins)
        point = torch.nan_to_num(seasonal_naive(past, model.horizon, model.period), nan=0.0)
        return point.unsqueeze(-1) + SPREAD, future

    calibration = Calibration.fit(scores(*forecast(torch.arange(*plan["calibration"])[: -model.horizon])))
    lead = min(start, model.horizon)
    raw, target = forecast(torch.arange(start - lead, len(frame)))
    followed, target = calibration.follow(raw, target)[lead:], target[lead:]
    gap = target.double().unsqueeze(-1) - followed[..., 1:]
    levels = torch.tensor(LEVELS, dtype=gap.dtype)
    loss = torch.maximum(levels * gap, (levels - 1) * gap).mean(-1)
    known = torch.isfinite(loss)
    mean = torch.where(known, loss, 0.0).sum((0, 2)) / known.sum((0, 2)).clamp_min(1)
    return dict(zip(frame.columns, (mean * torch.from_numpy(inputs.scaler.scale)).tolist(), strict=True))


# the public protocol ---------------------------------------------------------------------------------------------


def seeds(args: argparse.Namespace) -> None:
    """The average over the four horizons for each seed, beside the ridge's, and what took part."""
    for seed in range(args.seeds):
        start = time.perf_counter()
        recipe = ForecastRecipe(csv=str(args.data), seed=seed, attention=args.attention, trees=args.trees)
        found = benchmark(args.data, recipe=recipe, trees=False)
        ridge = found["baselines"]["ridge"]["average"]
        print(
            f"seed {seed}: MSE {found['average']['mse']:.4f}, MAE {found['average']['mae']:.4f}; ridge alone "
            f"{ridge['mse']:.4f}, {ridge['mae']:.4f}; attention "
            f"{'takes part' if found['chosen'].get('attention', {}).get('kept') else 'takes no part'}; "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )


def peers(args: argparse.Namespace) -> None:
    """Ours and its peers on the same windows: each alone in a process, so that its memory is its own.

    Ours is one model for all horizons, each peer one model for each. Seconds are of the processor, over all threads:
    other programs disturb them less.
    """
    frame = load_frame(args.data)
    scaled, rows = protocol(frame)
    names = [name for name in args.only or PEERS if installed(name)]
    print(
        f"Peers: at most {args.steps} steps, the best of the validations every {args.steps // 10 or 1} steps is kept."
    )
    print("\n".join(f"  {name}: {PEERS[name]}" for name in names))
    job = {"csv": str(args.data), "threads": torch.get_num_threads(), "steps": args.steps}
    own = json.loads(
        _child(
            args,
            job | {"kind": "ours", "horizons": args.horizons, "attention": args.attention, "trees": args.trees},
        )
    )
    found = own["found"]
    table = [
        {"model": name, "horizon": horizon} | scores["horizons"][str(horizon)]
        for name, scores in {"mha_apps": found, **found["baselines"]}.items()
        for horizon in args.horizons
        if name != "linear"
    ]
    table[0] |= {"seconds": own["seconds"], "MiB": own["MiB"]}
    kept = found["chosen"].get("attention", {}).get("kept")
    print("\n".join(_line(row) for row in table))
    print(
        f"mha_apps: look-back {found['look_back']}, the attention path takes {'part' if kept else 'no part'}",
        flush=True,
    )
    for horizon in args.horizons:
        truth, last = truths(scaled, rows, horizon)
        if len(truth) != found["windows"][str(horizon)]:
            raise SystemExit(f"ours scored {found['windows'][str(horizon)]} windows at {horizon}, not {len(truth)}")
        # What the benchmark says of the last value shows that it scored these very windows.
        theirs = found["baselines"]["last_value"]["horizons"][str(horizon)]
        np.testing.assert_allclose(list(errors(last, truth).values()), list(theirs.values()), rtol=1e-4)
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "forecasts.npz"
                told = _child(args, job | {"kind": "peer", "name": name, "horizon": horizon, "out": str(file)})
                with np.load(file) as arrays:
                    # The windows themselves, in the order of origin, series and step.
                    np.testing.assert_allclose(arrays["truth"], truth, atol=1e-5)
                    row = {"model": name, "horizon": horizon} | errors(arrays["forecast"], truth)
            row |= json.loads(told)
            table.append(row)
            print(_line(row), flush=True)
    whole = pd.DataFrame(table)
    print(f"\n{args.data.name}, every test window: {found['windows']}; {job['threads']} thread(s)")
    print(_by_horizon(whole).to_string(float_format="{:.3f}".format, na_rep=""))


def _line(row: dict[str, Any]) -> str:
    cost = f", {row['seconds']:.0f} s of the processor, {row['MiB']:.0f} MiB" if "seconds" in row else ""
    return f"{row['model']} at {row['horizon']}: MSE {row['mse']:.4f}, MAE {row['mae']:.4f}{cost}"


def _by_horizon(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each model: errors at each horizon, seconds over all of them, the highest memory."""
    errors = table.pivot(index="model", columns="horizon", values=["mse", "mae"])
    errors.columns = [f"{name.upper()} {horizon}" for name, horizon in errors.columns]
    cost = table.groupby("model").agg(seconds=("seconds", "sum"), peak=("MiB", "max"))
    found = errors.join(cost.where(cost["peak"].notna()).round())
    return found.loc[list(dict.fromkeys(table["model"]))].rename(columns={"peak": "peak MiB"})


def protocol(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of the public protocol, standardised on those of training, and how many are of which kind."""
    month = round(30 * DAY / step_of(frame.index))
    rows = {name: count * month for name, count in zip(("train", "validation", "test"), MONTHS, strict=True)}
    frame = frame.iloc[: sum(rows.values())]
    train = frame.iloc[: rows["train"]]
    return (frame - train.mean()) / train.std(ddof=0), rows


def truths(scaled: pd.DataFrame, rows: dict[str, int], horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """What came in each test window ``(origins, series, horizon)``, and the last value before it, as long."""
    values = scaled.to_numpy(dtype=np.float64)
    first = rows["train"] + rows["validation"]
    ahead = np.lib.stride_tricks.sliding_window_view(values[first:], horizon, axis=0)
    before = values[first - 1 : first - 1 + len(ahead), :, None]
    return ahead, np.broadcast_to(before, ahead.shape)


def errors(forecast: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Both errors of one point forecast, over every window, series and step."""
    gap = forecast.astype(np.float64) - truth
    return {"mse": float(np.mean(gap**2)), "mae": float(np.mean(np.abs(gap)))}


PEERS = {
    "PatchTST": "neuralforecast; look-back 336, patches of 16, 3 layers of width 16, dropout 0.3, squared error, "
    "batches of 128 x 7 windows, rate 1e-3 (its authors': 1e-4 for up to 100 epochs, ten times the steps)",
    "NHITS": "neuralforecast; look-back 7 horizons, 3 stacks of 512, dropout 0.5, Huber error, batches of 256 windows, "
    "rate 1e-3 (one setting of its authors' search)",
    "DLinear": "neuralforecast; look-back 336, moving average over 25, squared error, batches of 32 x 7 windows, rate "
    "5e-3 (its authors': the same for up to 10 epochs, 2,570 steps)",
    "LinearRegression": "darts; look-back 336, least squares in closed form",
}
"""Sizes, losses and batches are those that the authors give for ETTh1."""


def installed(name: str) -> bool:
    package = PEERS[name].partition(";")[0]
    if find_spec(package) is None:
        print(f"({package} is not installed: {name} is left out)")
        return False
    return True


def peer(job: dict[str, Any]) -> None:
    """Train one peer for one horizon and write forecasts and truths ``(origins, series, horizon)``."""
    scaled, rows = protocol(load_frame(job["csv"]))
    package = PEERS[job["name"]].partition(";")[0]
    import_module(package)
    forecast = _darts if package == "darts" else _neuralforecast
    start, before = time.process_time(), base()
    table = forecast(scaled, rows, job)
    told = {"seconds": time.process_time() - start, "MiB": peak() - before}
    np.savez(job["out"], forecast=table["forecast"], truth=table["truth"])
    print(json.dumps(told))


def _neuralforecast(scaled: pd.DataFrame, rows: dict[str, int], job: dict[str, Any]) -> dict[str, np.ndarray]:
    import neuralforecast
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MAE, MSE, HuberLoss
    from pytorch_lightning import Callback

    class Best(Callback):
        """Keep the weights that were best on validation, as the code of the papers does."""

        least, weights = float("inf"), None

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            now = float(trainer.callback_metrics.get("ptl/val_loss", float("inf")))
            if not trainer.sanity_checking and now < self.least:
                self.least, self.weights = now, copy.deepcopy(module.state_dict())

        def on_fit_end(self, trainer: Any, module: Any) -> None:
            if self.weights is not None:
                module.load_state_dict(self.weights)

    name, horizon, steps = job["name"], job["horizon"], job["steps"]
    own: dict[str, Any] = {
        "PatchTST": dict(
            input_size=336, encoder_layers=3, n_heads=4, hidden_size=16, linear_hidden_size=128, dropout=0.3,
            fc_dropout=0.3, revin_affine=True, revin_subtract_last=False, batch_normalization=True, loss=MSE(),
            learning_rate=1e-3, num_lr_decays=5, windows_batch_size=896,
        ),
        "NHITS": dict(
            input_size=7 * horizon, n_pool_kernel_size=[2, 2, 2], n_freq_downsample=[84, 12, 1],
            dropout_prob_theta=0.5, loss=HuberLoss(delta=0.5), valid_loss=MAE(), learning_rate=1e-3, num_lr_decays=3,
            windows_batch_size=256,
        ),
        "DLinear": dict(input_size=336, loss=MSE(), learning_rate=5e-3, num_lr_decays=10, windows_batch_size=224),
    }  # fmt: skip
    model = getattr(models, name)(
        h=horizon, max_steps=steps, val_check_steps=max(1, steps // 10), batch_size=scaled.shape[1],
        inference_windows_batch_size=1024, scaler_type="identity", random_seed=1, callbacks=[Best()],
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, **own[name],
    )  # fmt: skip
    long = scaled.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    forecaster = neuralforecast.NeuralForecast(models=[model], freq=scaled.index.freqstr)
    table = forecaster.cross_validation(
        long, val_size=rows["validation"], test_size=rows["test"], n_windows=None, step_size=1
    )
    table = table.sort_values(["cutoff", "unique_id", "ds"], kind="stable")
    order = np.argsort(np.argsort(scaled.columns))  # from names in order to the table's own order

    def windows(column: str) -> np.ndarray:
        return table[column].to_numpy().reshape(-1, scaled.shape[1], horizon)[:, order]

    return {"forecast": windows(name), "truth": windows("y")}


def _darts(scaled: pd.DataFrame, rows: dict[str, int], job: dict[str, Any]) -> dict[str, np.ndarray]:
    from darts import TimeSeries
    from darts.models import LinearRegressionModel

    horizon, first = job["horizon"], rows["train"] + rows["validation"]
    each = [TimeSeries.from_dataframe(scaled[[name]].astype(np.float32)) for name in scaled.columns]
    model = LinearRegressionModel(lags=336, output_chunk_length=horizon)
    model.fit([series[: rows["train"]] for series in each])
    found = model.historical_forecasts(
        [series[first - 336 :] for series in each], forecast_horizon=horizon, start=336, start_format="position",
        retrain=False, last_points_only=False, overlap_end=False, show_warnings=False,
    )  # fmt: skip
    truth = [
        [series.slice_intersect(one).values()[:, 0] for one in some] for series, some in zip(each, found, strict=True)
    ]
    return {
        "forecast": np.stack([[one.values()[:, 0] for one in some] for some in found], 1),
        "truth": np.stack(truth, 1),
    }


def ours(job: dict[str, Any]) -> None:
    """The recipe as it is, by the public protocol."""
    frame = load_frame(job["csv"])
    start, before = time.process_time(), base()
    recipe = ForecastRecipe(csv=job["csv"], attention=job["attention"], trees=job["trees"])
    found = benchmark(frame, recipe=recipe, horizons=job["horizons"], trees=False)
    print(json.dumps({"seconds": time.process_time() - start, "MiB": peak() - before, "found": found}))


# cost against look-back ------------------------------------------------------------------------------------------


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MOST_DENSE = 8192  # tokens; dense attention over more of them takes minutes
WEEK = 168
LOOK_BACKS = (24, 72, 168, 336, 672, 1344)
STEPS = 800  # that the path is trained for, with 64 windows each
WINDOW = 7  # tokens to each side: a week of daily patches


def sparse(args: argparse.Namespace) -> None:
    """What the attention path costs against look-back, with and without patches, and what a longer one is worth.

    Numbers are kept beside the picture, so that ``--only time`` measures anew what a busy machine has disturbed.
    """
    torch.set_num_threads(1)  # so that a busy machine disturbs little, and processes can fork
    kept = args.out.with_suffix(".json")
    found = json.loads(kept.read_text(encoding="utf-8")) if args.only and kept.exists() else {}
    table = torch.from_numpy(weekly(60_000)).float()
    for what in args.only or ("memory", "time", "error"):  # memory first, before anything is left in the heap
        found[what] = {}
        for patch, window in ((24, WINDOW), (24, None), (1, 24), (1, None)) if what != "error" else ():
            label = f"{'patches of 24 rows' if patch > 1 else 'no patches'}, {_heads(window)}"
            values = found[what][label] = {}
            for length in LENGTHS:
                if length > args.longest or (window is None and length // patch > MOST_DENSE):
                    continue
                if what == "time":
                    values[length] = _step(table, length, patch, window, args.rounds, args.batch_size)
                else:
                    with get_context("fork").Pool(1) as process:  # which has a peak of its own
                        values[length] = process.apply(_memory, (table, length, patch, window, args.batch_size))
            unit = "processor seconds a step" if what == "time" else "MiB a step"
            print(f"{label}, {unit}: {_pairs(values)}")
            print(f"    for twice the look-back {_growth(list(values.values()))} times as much", flush=True)
        for window in (WINDOW, None) if what == "error" else ():
            values = {look_back: worth(table, look_back, window) for look_back in LOOK_BACKS}
            found[what][_heads(window)] = values
            print(f"{_heads(window)}, error a day ahead: {_pairs(values)}", flush=True)
        if what == "error":
            found["bounds"] = {"the same as a week ago": naive_week(table), "the week is known": known_week(60_000)}
            print(_pairs(found["bounds"]))
    kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
    _draw(found, args.out)
    print(args.out)


def _growth(values: list[float]) -> str:
    return " ".join(f"{after / before:.2f}" if before > 0 else "-" for before, after in pairwise(values))


def _heads(window: int | None) -> str:
    return f"window {window}" if window else "dense"


def _pairs(values: dict[Any, float]) -> str:
    return ", ".join(f"{key}: {value:.3f}" for key, value in values.items())


def _draw(found: dict[str, Any], out: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    titles = {
        "time": "processor seconds of a training step",
        "memory": "memory of a training step, MiB",
        "error": "mean absolute error, a day ahead",
    }
    figure = Figure(figsize=(12.5, 4), layout="constrained")
    for axes, (what, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        every: set[int] = set()
        for number, (label, values) in enumerate(found.get(what, {}).items()):
            marker, line = ("s", "--") if "dense" in label else ("o", "-")
            lengths = [int(length) for length in values]
            every |= set(lengths)
            axes.plot(
                lengths,
                list(values.values()),
                label=label,
                color=f"C{number}",
                marker=marker,
                linestyle=line,
                markersize=4,
            )
        for style, (label, value) in zip(
            (":", "-."), found.get("bounds", {}).items() if what == "error" else (), strict=False
        ):
            axes.axhline(value, color="0.4", linestyle=style, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(every))
        axes.set_yscale("linear" if what == "error" else "log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("look-back, rows (hours)")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        if what == "error" and axes.lines:
            axes.legend(fontsize="small")
        elif axes.lines and not figure.legends:
            figure.legend(loc="outside lower left", ncols=4, fontsize="small")
    figure.savefig(out, dpi=100)


def _step(table: Tensor, length: int, patch: int, window: int | None, rounds: int, batch: int) -> float:
    """Processor seconds of a forward and a backward pass, the median of the rounds after one that does not count."""
    path = _path(length // patch * patch, 48, patch, window, 24)
    torch.nn.init.normal_(path.gate)
    past = table.unfold(0, path.past_tokens * patch, 1)[torch.arange(batch) * 997]
    times = []
    for _ in range(rounds + 1):
        path.zero_grad(set_to_none=True)
        start = time.process_time()
        _apply(path, past).square().mean().backward()
        times.append(time.process_time() - start)
    return float(np.median(times[1:] or times))


def _memory(table: Tensor, length: int, patch: int, window: int | None, batch: int) -> float:
    """MiB that such a pass takes at most on top of what the process held before."""
    _step(table, 24, patch, window, 0, 1)  # what the libraries load when first called
    before = base()
    _step(table, length, patch, window, 0, batch)
    return peak() - before


def _path(look_back: int, horizon: int, patch: int, window: int | None, period: int) -> AttentionPath:
    """The attention path as the recipe sizes it, without calendar: what it knows it has from the look-back."""
    torch.manual_seed(0)
    return AttentionPath(
        look_back=look_back, horizon=horizon, patch=patch, identities=1, cycles=[], dim=32, heads=4, layers=2,
        dropout=0.0, channels=False, window=window, far=max(1, period // patch),
    )  # fmt: skip


def _apply(path: AttentionPath, past: Tensor) -> Tensor:
    """The path's output ``(batch, horizon, 6)`` for ``past`` ``(batch, look_back)``; the linear forecast is zero."""
    past, batch = past[:, None], len(past)
    nothing = past.new_zeros(batch, 1, 0)
    return path(
        past, torch.ones_like(past), past.new_zeros(batch, 1, path.horizon), nothing, nothing.long(),
        torch.ones(batch, 1, dtype=torch.int64), past.new_zeros(batch, 1, 1),
    )[:, 0]  # fmt: skip


# A series with weekly structure: every hour of the week has its own value, which noise with a memory of hours covers.
NOISE, MEMORY = 0.5, 0.8


def weekly(rows: int) -> np.ndarray:
    return _week(rows) + _noise(rows)


def _week(rows: int) -> np.ndarray:
    return np.resize(np.random.default_rng(0).normal(size=WEEK), rows)


def _noise(rows: int) -> np.ndarray:
    shocks = NOISE * np.sqrt(1 - MEMORY**2) * np.random.default_rng(1).normal(size=rows)
    return lfilter([1.0], [1.0, -MEMORY], shocks)


def worth(table: Tensor, look_back: int, window: int | None) -> float:
    """The error a day ahead on the last quarter of the rows, of a path trained on those before."""
    horizon, cut = 24, len(table) * 3 // 4
    path = _path(look_back, horizon, 24, window, WEEK)
    gates = [path.gate]
    others = [weight for name, weight in path.named_parameters() if name != "gate"]
    optimizer = torch.optim.AdamW([{"params": others, "lr": 2e-3}, {"params": gates, "lr": 2e-2}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [2e-3, 2e-2], STEPS, pct_start=0.1)
    both = table.unfold(0, look_back + horizon, 1)

    def gap(first: Tensor) -> Tensor:
        rows = both[first]
        past, future = rows[:, :look_back], rows[:, look_back:]
        level = past[:, -24:].mean(1, keepdim=True)
        return _apply(path, past - level)[..., 0] - (future - level)

    draws = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        first = torch.randint(0, cut - look_back - horizon, (64,), generator=draws)
        optimizer.zero_grad()
        torch.nn.functional.huber_loss(wrong := gap(first), torch.zeros_like(wrong)).backward()
        optimizer.step()
        schedule.step()
    path.eval()
    with torch.no_grad():
        # The same origins for every look-back.
        first = torch.arange(cut, len(table) - horizon, 11) - look_back
        return float(torch.cat([gap(part).abs() for part in first.split(256)]).mean())


def naive_week(table: Tensor) -> float:
    return float((table[WEEK:] - table[:-WEEK])[len(table) * 3 // 4 :].abs().mean())


def known_week(rows: int) -> float:
    """The error a day ahead of the best forecast there can be: the week, and what is left of the last noise."""
    noise = _noise(rows)[rows * 3 // 4 :]
    return float(np.mean([np.abs(noise[h:] - MEMORY**h * noise[:-h]).mean() for h in range(1, 25)]))


# structure that a linear model cannot have ----------------------------------------------------------------------


def structure(args: argparse.Namespace) -> None:
    """The protocol on generated series: whether attention takes part, and what it adds to the linear path."""
    for name, frame in made_up():
        if args.only and name not in args.only:
            continue
        start = time.process_time()
        recipe = ForecastRecipe(csv=name, trees=args.trees)
        found = benchmark(frame, recipe=recipe, horizons=(24,), months=(8, 2, 2), trees=False)
        told, baseline = found["chosen"]["attention"], found["baselines"]
        gain = found["gain_over_ridge"]["average"]
        rows = {"last value": "last_value", "seasonal naive": "seasonal_naive", "ridge": "ridge", "linear": "linear"}
        parts = {what: baseline[key]["average"] for what, key in rows.items()} | {"all": found["average"]}
        print(f"{name}: " + ", ".join(f"{what} {each['mse']:.3f}/{each['mae']:.3f}" for what, each in parts.items()))
        weight = f"takes part with weight {told['weight']:.2f}" if told["kept"] else "takes no part"
        gains = " ".join(f"{gain:+.1%}" for gain in told.get("gains", [told["relative_gain"]]))
        print(
            f"    attention {weight} (gains on the folds and validation {gains}); gain over the ridge "
            + ", ".join(f"{e.upper()} {gain[e]['gain']:+.1%} [{gain[e]['low']:+.1%}, {gain[e]['high']:+.1%}]"
                        for e in ("mse", "mae"))
            + f"; {time.process_time() - start:.0f} s of the processor",
            flush=True,
        )  # fmt: skip


def made_up(rows: int = 8640, series: int = 3) -> Iterator[tuple[str, pd.DataFrame]]:
    """Hourly frames of a few series: one that a linear model has whole, and four that it cannot have."""
    rng = np.random.default_rng(0)
    hours, days = np.arange(rows), rows // 24
    index = pd.date_range("2020-01-01", periods=rows, freq="h", name="time")

    def frame(values: list[np.ndarray]) -> pd.DataFrame:
        noisy = np.stack(values, 1) + 0.2 * rng.normal(size=(rows, len(values)))
        return pd.DataFrame(noisy, index, [f"s{number}" for number in range(len(values))])

    def linear() -> np.ndarray:
        """A daily wave and noise with a memory."""
        return np.sin(2 * np.pi * (hours + rng.uniform(0, 24)) / 24) + lfilter(
            [1], [1, -0.9], 0.2 * rng.normal(size=rows)
        )

    def product() -> np.ndarray:
        """The sign of a day's shape is the product of the signs of the two days before; one in twenty errs."""
        signs = [1, -1]
        for _ in range(days - 2):
            signs.append(signs[-1] * signs[-2] * (1 if rng.uniform() > 0.05 else -1))
        shape = np.convolve(rng.normal(size=24 + 4), np.ones(5) / 5**0.5, "valid")
        return (np.array(signs)[:, None] * shape).ravel()

    def chaotic() -> np.ndarray:
        """Days whose height follows the logistic map: uncorrelated with the day before, and yet decided by it."""
        heights = [rng.uniform(0.2, 0.8)]
        for _ in range(days - 1):
            heights.append(3.95 * heights[-1] * (1 - heights[-1]))
        return 3 * np.outer(heights, np.sin(np.pi * np.arange(24) / 24) ** 2).ravel()

    def wandering() -> np.ndarray:
        """A machine whose cycle takes 15 to 30 hours, and another time every ten days."""
        cycles = np.repeat(1 / rng.uniform(15, 30, size=rows // 240 + 1), 240)[:rows]
        return np.sin(2 * np.pi * np.cumsum(cycles))

    def thermostat() -> np.ndarray:
        """Heated when it falls below 19 until it is above 21, losing warmth to a day that is warmer at noon."""
        warmth, on, found = 20.0, False, []
        loss, power = rng.uniform(0.03, 0.05), rng.uniform(1.2, 1.6)
        for outside in 8 + 5 * np.sin(2 * np.pi * hours / 24) + np.cumsum(0.05 * rng.normal(size=rows)):
            on = warmth < 19 or (on and warmth < 21)
            warmth += loss * (outside - warmth) + power * on
            found.append(warmth)
        return np.array(found)

    for make in (linear, product, wandering, thermostat, chaotic):
        yield make.__name__, frame([make() for _ in range(series)])


# scale -----------------------------------------------------------------------------------------------------------


def scale(args: argparse.Namespace) -> None:
    """Train, predict and look at the size on disk, each data set in a process of its own."""
    for name in args.only or ("wide", "informed", "long"):
        found = json.loads(_child(args, {"kind": name, "attention": args.attention, "trees": args.trees}))
        print(
            f"{name}: {found['series']:,} series of {found['rows']:,} rows: {found['seconds']:.0f} s, "
            f"peak {found['peak']:.2f} GiB ({found['data']:.2f} with the data alone), "
            f"model {found['megabytes']:.1f} MB",
            flush=True,
        )


def _child(args: argparse.Namespace, job: dict[str, Any]) -> str:
    """The last line that a process of its own prints for a job; its peak of memory is its own too."""
    command = [sys.executable, __file__, args.part, "--child", json.dumps(job)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip().splitlines()[-1]


def peak() -> float:
    """The most memory that this process has held so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def base() -> float:
    """The memory that this process holds now, MiB, from which :func:`peak` counts anew where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def child(job: dict[str, Any]) -> None:
    torch.set_num_threads(job.get("threads", torch.get_num_threads()))
    {"peer": peer, "ours": ours}.get(job["kind"], large)(job)


def large(job: dict[str, Any]) -> None:
    """Peak memory of many series, of many with covariates, or of a long one."""
    rng = np.random.default_rng(0)
    rows, series = (5_000_000, 1) if job["kind"] == "long" else (1000, 10_000)
    horizon = 48
    wave = np.sin(2 * np.pi * np.arange(rows) / 24)[:, None]
    values = rng.normal(size=(rows, series)).astype(np.float32) + wave
    index = pd.date_range("2020-01-01", periods=rows, freq="h" if rows < 10_000 else "min")
    frame = pd.DataFrame(values, index=index, columns=[f"s{number}" for number in range(series)])
    del values
    roles: dict[str, Any] = {}
    future = None
    if job["kind"] == "informed":
        roles = {"past": ("inside",), "future": ("weather", "open")}
        times = pd.date_range(index[0], periods=rows + horizon, freq="h")
        around = pd.DataFrame(rng.normal(size=(len(times), 3)), times, ["inside", "weather", "open"])
        effect = around["weather"].to_numpy()[:rows, None] * rng.uniform(0, 2, series)
        frame = pd.concat([frame + effect.astype(np.float32), around.iloc[:rows]], axis=1)
        future = around[["weather", "open"]].iloc[rows:]
        del effect
    gc.collect()
    data, start = peak(), time.perf_counter()
    forecaster = Forecaster(attention=job["attention"], trees=job["trees"], steps=50, horizon=horizon, **roles)
    table = forecaster.fit(frame).predict(future=future)
    assert np.isfinite(table["mean"]).all()
    with tempfile.TemporaryDirectory() as folder:
        forecaster.save(folder)
        size = sum(file.stat().st_size for file in (Path(folder) / "model").iterdir())
    print(
        json.dumps(
            {
                "series": series, "rows": rows, "seconds": time.perf_counter() - start, "peak": peak() / 1024,
                "data": data / 1024, "megabytes": size / 1e6,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(json.loads(sys.argv[sys.argv.index("--child") + 1]))
    else:
        main()
