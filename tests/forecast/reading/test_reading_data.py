"""Public data, counted by other means: a plain loop over the lines."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
FILES = {
    "ett/ETTh1.csv": ("h", 7),
    "sensors/ambient_temperature.csv": ("h", 1),
    "sensors/beijing_pm25.csv": ("h", 10),
    "sensors/illness.csv": ("W-TUE", 7),
}


@pytest.mark.parametrize("name", FILES)
def test_public_files_are_read_without_an_option(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the public data are not beside the repository")
    with path.open(newline="") as stream:
        header, *lines = list(csv.reader(stream))
    step, columns = FILES[name]
    frame, report = read_sensor_csv(path)
    assert report.zone is None
    assert frame.index.freqstr == step
    assert frame.shape[1] == columns
    assert report.rows_read == report.rows_used == len(lines)
    stamp = (
        [pd.Timestamp(int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in lines]
        if "beijing" in name
        else [pd.Timestamp(row[0]) for row in lines]
    )
    assert frame.index[0] == min(stamp)
    assert frame.index[-1] == max(stamp)
    for column in frame.columns:
        k = header.index(column)
        expected = np.array([float(row[k]) if row[k] not in ("NA", "") else np.nan for row in lines])
        np.testing.assert_array_equal(frame.loc[stamp, column].to_numpy(), expected)
        assert frame[column].notna().sum() == np.isfinite(expected).sum()
    assert report.cells_used == sum(int(frame[column].notna().sum()) for column in frame.columns)
    assert report.cells_read == report.cells_used + sum(report.cells_set_aside.values())


def test_the_embedded_sample_is_read_without_an_option() -> None:
    path = Path(__file__).resolve().parents[3] / "data" / "weather_jfk_2013.csv"
    if not path.exists():
        pytest.skip("the embedded sample is not here")
    frame, report = read_sensor_csv(path)
    assert frame.index.freqstr == "h"
    assert report.rows_read == sum(1 for _ in path.open()) - sum(report.other_lines.values())
    assert report.cells_used == int(frame.notna().sum().sum())
