"""What the forecaster's numbers rest on: coverage, the public benchmark over seeds, peers, cost against length, scale.

    python benchmarks/forecast.py coverage DATA        # do 80% and 95% intervals hold, on four data sets
    python benchmarks/forecast.py seeds ETTh1.csv      # the public protocol over three seeds, paired with the ridge
    python benchmarks/forecast.py peers ETTh1.csv      # PatchTST, NHITS and DLinear of neuralforecast, same windows
    python benchmarks/forecast.py sparse               # step time and memory against look-back: a table and a PNG
    python benchmarks/forecast.py scale                # 10,000 series, and one of five million rows: peak memory

``DATA`` is a folder with ``ett/ETTh1.csv``, ``sensors/ambient_temperature.csv`` and ``sensors/beijing_pm25.csv``; the
embedded sample is scored too. ``--no-attention`` leaves the attention path out, for speed. Peers that are not
installed are left out and named (``pip install mha_apps[bench]``).
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mha_apps.forecast import Forecaster, ForecastRecipe, benchmark
from mha_apps.forecast.backtest import evaluate, first_unseen
from mha_apps.forecast.baselines import seasonal_naive
from mha_apps.forecast.conformal import Calibration, scores
from mha_apps.forecast.model import LEVELS, AttentionPath
from mha_apps.forecast.trainer import align, load_frame, make_inputs

POOLED, QUARTER = 0.03, 0.05  # how far coverage may be from its level
SPREAD = torch.tensor([0.0, -1.96, -1.2816, 0.0, 1.2816, 1.96])  # quantiles to start the naive forecast's from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["coverage", "seeds", "peers", "sparse", "scale"])
    parser.add_argument("data", nargs="?", type=Path, help="a folder for coverage, ETTh1.csv for seeds and peers")
    parser.add_argument("--no-attention", dest="attention", action="store_false")
    parser.add_argument("--no-trees", dest="trees", action="store_false")
    parser.add_argument("--only", nargs="*", help="of coverage: the names of data sets; of scale: wide, long")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--longest", type=int, default=16384, help="of sparse")
    parser.add_argument("--rounds", type=int, default=3, help="of sparse")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forecast-lengths.png"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.part in ("coverage", "seeds", "peers") and args.data is None:
        parser.error(f"{args.part} needs its data")
    parts = {"coverage": coverage, "seeds": seeds, "peers": peers, "sparse": sparse, "scale": scale}
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


PEERS = ("PatchTST", "NHITS", "DLinear")


def peers(args: argparse.Namespace) -> None:
    """One model for each horizon, as in the peers' papers, trained on the same rows and scored on the same windows."""
    start = time.perf_counter()
    recipe = ForecastRecipe(csv=str(args.data), attention=args.attention, trees=args.trees)
    ours = benchmark(args.data, recipe=recipe, trees=False)
    print(f"mha_apps: {_scores(ours['horizons'])}; {time.perf_counter() - start:.0f} s", flush=True)
    if find_spec("neuralforecast") is None:
        print(f"left out, since neuralforecast is not installed: {', '.join(PEERS)}")
        return
    import neuralforecast
    from neuralforecast import models

    frame = load_frame(args.data)
    rows, windows = ours["rows"], ours["windows"]
    frame = frame.iloc[: rows["train"] + rows["validation"] + rows["test"]]
    train_rows = frame.iloc[: rows["train"]]
    scaled = (frame - train_rows.mean()) / train_rows.std(ddof=0)
    long = scaled.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
    for name in PEERS:
        start, found = time.perf_counter(), {}
        for horizon in map(int, windows):
            model = getattr(models, name)(
                h=horizon, input_size=ours["look_back"], max_steps=1000, val_check_steps=100,
                early_stop_patience_steps=3, scaler_type="identity",
            )  # fmt: skip
            nf = neuralforecast.NeuralForecast(models=[model], freq=frame.index.freqstr)
            table = nf.cross_validation(
                long, val_size=rows["validation"], test_size=rows["test"], n_windows=None, step_size=1
            )
            gap = (table[name] - table["y"]).to_numpy()
            count = len(gap) // (horizon * frame.shape[1])
            if count != windows[str(horizon)]:
                print(f"{name} at {horizon}: {count} windows, not {windows[str(horizon)]}")
            found[str(horizon)] = {"mse": float(np.mean(gap**2)), "mae": float(np.mean(np.abs(gap)))}
        print(f"{name}: {_scores(found)}; {time.perf_counter() - start:.0f} s", flush=True)


def _scores(horizons: dict[str, dict[str, float]]) -> str:
    each = ", ".join(f"{horizon}: {score['mse']:.3f}/{score['mae']:.3f}" for horizon, score in horizons.items())
    average = [np.mean([score[name] for score in horizons.values()]) for name in ("mse", "mae")]
    return f"{each}, average {average[0]:.4f}/{average[1]:.4f}"


# cost against look-back ------------------------------------------------------------------------------------------


def sparse(args: argparse.Namespace) -> None:
    """Step time and memory of the attention path on hourly windows, sparse and dense, with patches and without."""
    from matplotlib.figure import Figure

    lengths = [length for length in (512, 1024, 2048, 4096, 8192, 16384) if length <= args.longest]
    rng = np.random.default_rng(0)
    table = torch.from_numpy(np.sin(np.arange(60_000) * 2 * np.pi / 24) + 0.1 * rng.normal(size=60_000)).float()
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for patch, window in ((24, 7), (24, None), (1, 24), (1, None)):
        label = f"{'patches of 24' if patch > 1 else 'no patches'}, {'sparse' if window else 'dense'}"
        seconds, memory, done = [], [], []
        for length in lengths:
            if window is None and length // patch > 4096:
                continue  # dense attention over more tokens than that takes minutes and gigabytes
            took = _step(table, length, patch, window, args.rounds)
            # Memory in a process of its own, whose peak is its own.
            peak = _child(args, json.dumps({"kind": "step", "length": length, "patch": patch, "window": window}))
            done.append(length)
            seconds.append(took)
            memory.append(peak)
            print(f"{label:<26} {length:>6} {took * 1e3:>9.1f} ms {peak:>8.0f} MiB", flush=True)
        left.plot(done, seconds, marker="o", label=label)
        right.plot(done, memory, marker="o", label=label)
        if window is not None and len(done) > 2:
            slopes = np.diff(seconds) / np.diff(done)
            print(f"{label}: seconds a row over the last doubling / the one before: {slopes[-1] / slopes[-2]:.2f}")
    left.set_ylabel("seconds a step, forward and backward")
    right.set_ylabel("peak memory, MiB")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("look-back, rows")
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    figure.savefig(args.out, dpi=110)
    print(args.out)


def _step(table: Tensor, length: int, patch: int, window: int | None, rounds: int) -> float:
    """Processor seconds of one optimiser step's forward and backward, the median; one that does not count first."""
    torch.manual_seed(0)
    horizon, batch = 48, 4
    path = AttentionPath(
        look_back=length // patch * patch, horizon=horizon, patch=patch, identities=1, cycles=["hour"], dim=32, heads=4,
        layers=2, dropout=0.0, channels=False, window=window, period_tokens=max(1, 24 // patch),
    )  # fmt: skip
    torch.nn.init.normal_(path.gate)
    past = table.unfold(0, path.past_tokens * patch, 1)[torch.arange(batch) * 997][:, None]
    tokens = path.past_tokens + path.future_tokens
    inputs = (
        past, torch.ones_like(past), torch.zeros(batch, 1, horizon), torch.zeros(batch, tokens, 2),
        torch.zeros(batch, tokens, 1, dtype=torch.int64), torch.ones(batch, 1, dtype=torch.int64),
        torch.zeros(batch, 1, 1),
    )  # fmt: skip
    times = []
    for _ in range(rounds + 1):
        path.zero_grad(set_to_none=True)
        start = time.process_time()
        path(*inputs).square().mean().backward()
        times.append(time.process_time() - start)
    return float(np.median(times[1:]))


# scale -----------------------------------------------------------------------------------------------------------


def scale(args: argparse.Namespace) -> None:
    """Train, predict and look at the size on disk, each data set in a process of its own."""
    for name in args.only or ("wide", "long"):
        found = json.loads(_child(args, json.dumps({"kind": name, "attention": args.attention, "trees": args.trees})))
        print(
            f"{name}: {found['series']:,} series of {found['rows']:,} rows: {found['seconds']:.0f} s, "
            f"peak {found['peak']:.2f} GiB ({found['data']:.2f} with the data alone), "
            f"model {found['megabytes']:.1f} MB",
            flush=True,
        )


def _child(args: argparse.Namespace, job: str) -> Any:
    command = [sys.executable, __file__, args.part, "--child", job]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip().splitlines()[-1]
    return float(answer) if args.part == "sparse" else answer


def child(job: dict[str, Any]) -> None:
    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    if job["kind"] == "step":
        before = peak()
        _step(torch.randn(60_000), job["length"], job["patch"], job["window"], 1)
        print(peak() - before)
        return
    rng = np.random.default_rng(0)
    rows, series = (1000, 10_000) if job["kind"] == "wide" else (5_000_000, 1)
    wave = np.sin(2 * np.pi * np.arange(rows) / 24)[:, None]
    values = rng.normal(size=(rows, series)).astype(np.float32) + wave
    index = pd.date_range("2020-01-01", periods=rows, freq="h" if rows < 10_000 else "min")
    frame = pd.DataFrame(values, index=index, columns=[f"s{number}" for number in range(series)])
    del values
    gc.collect()
    data, start = peak(), time.perf_counter()
    forecaster = Forecaster(attention=job["attention"], trees=job["trees"], steps=50).fit(frame)
    table = forecaster.predict()
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
