"""What reading a sensor CSV costs, beside pandas that is told all about the file.

    python benchmarks/reading.py            # a million rows, seven sensors
    python benchmarks/reading.py --rows 100000

Prints one line a dialect: seconds of pandas, seconds of the reader, and their ratio (the least of several turns each,
taken in turns so that a busy machine harms both alike).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mha_apps.forecast.reading import read_sensor_csv

DIALECTS: dict[str, dict[str, Any]] = {
    "comma, ISO times": {"stamp": "%Y-%m-%d %H:%M:%S", "sep": ",", "decimal": "."},
    "semicolon, decimal comma, day first": {"stamp": "%d.%m.%Y %H:%M", "sep": ";", "decimal": ","},
    "comma, ISO times, 1 % NA, gaps": {"stamp": "%Y-%m-%d %H:%M:%S", "sep": ",", "decimal": ".", "missing": True},
    "long, ten sensors": {"stamp": "%Y-%m-%d %H:%M:%S", "sep": ",", "decimal": ".", "sensors": 10, "long": True},
    "one sensor": {"stamp": "%Y-%m-%d %H:%M:%S", "sep": ",", "decimal": ".", "sensors": 1},
}


def write(
    path: Path,
    rows: int,
    *,
    stamp: str,
    sep: str,
    decimal: str,
    missing: bool = False,
    sensors: int = 7,
    long: bool = False,
) -> None:
    rows = rows // sensors if long else rows
    rng = np.random.default_rng(0)
    times = pd.date_range("2016-01-01", periods=rows, freq="min")
    if missing:
        times = pd.date_range("2016-01-01", periods=rows + rows // 50, freq="min")
        times = times[np.sort(rng.choice(len(times), rows, replace=False))]
    frame = pd.DataFrame({f"s{k}": np.round(rng.normal(20, 5, rows), 3) for k in range(sensors)})
    if missing:
        frame = frame.mask(rng.random(frame.shape) < 0.01)
    frame.insert(0, "time", times.strftime(stamp))
    if long:
        frame = frame.melt("time", var_name="sensor", value_name="value").sort_values(["time", "sensor"])
    frame.to_csv(path, index=False, sep=sep, decimal=decimal, na_rep="NA")


def told(path: Path, dialect: dict[str, Any]) -> pd.DataFrame:
    """pandas with every option that helps it."""
    frame = pd.read_csv(
        path,
        sep=dialect["sep"],
        decimal=dialect["decimal"],
        index_col=0,
        parse_dates=["time"],
        date_format=dialect["stamp"],
        engine="c",
    )
    return frame.pivot(columns="sensor", values="value") if dialect.get("long") else frame


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, dialect in DIALECTS.items():
            path = Path(folder) / "data.csv"
            write(path, flags.rows, **dialect)
            frame, report = read_sensor_csv(path)
            expected = told(path, dialect)
            assert report.rows_read == report.rows_used
            assert np.allclose(frame.loc[expected.index, expected.columns], expected, rtol=1e-12, equal_nan=True)
            pandas, ours = [], []
            for _ in range(flags.turns):
                pandas.append(seconds(lambda path=path, dialect=dialect: told(path, dialect)))
                ours.append(seconds(lambda path=path: read_sensor_csv(path)))
            ratio = min(ours) / min(pandas)
            print(f"{name:<40} pandas {min(pandas):6.2f} s   reader {min(ours):6.2f} s   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
