# ruff: noqa: E501
"""Many series: staggered, with steps of their own, joined, and laid out wide or long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

RNG = np.random.default_rng(5)


def staggered(count: int, length: int, spread: int) -> pd.DataFrame:
    starts = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, spread, count), unit="h")
    stamps = starts.to_numpy().repeat(length) + np.tile(np.arange(length), count) * np.timedelta64(1, "h")
    return pd.DataFrame(
        {
            "unique_id": np.repeat([f"s{k}" for k in range(count)], length),
            "ds": stamps,
            "y": np.round(RNG.normal(size=count * length), 3),
        }
    )


def test_staggered_series_are_long_where_wide_would_waste_memory() -> None:
    long = staggered(200, 60, 40_000)
    frame, report = read_sensor_csv(long)
    assert report.layout == "long"
    assert any("long layout" in note for note in report.notes)
    assert list(frame.columns) == ["unique_id", "ds", "y"]
    assert frame["y"].dtype == np.float32
    merged = frame.assign(unique_id=frame["unique_id"].astype(str)).sort_values(["unique_id", "ds"], ignore_index=True)
    expected = long.sort_values(["unique_id", "ds"], ignore_index=True)
    assert merged["unique_id"].tolist() == expected["unique_id"].tolist()
    np.testing.assert_array_equal(merged["ds"].to_numpy(), expected["ds"].to_numpy())
    np.testing.assert_allclose(merged["y"], expected["y"], rtol=1e-6)


@pytest.mark.slow
def test_ten_thousand_staggered_series_fit() -> None:
    long = staggered(10_000, 50, 80_000)
    frame, report = read_sensor_csv(long)
    assert report.layout == "long"
    assert len(frame) == report.rows_used == 500_000
    assert frame["unique_id"].nunique() == 10_000
    assert frame.memory_usage(deep=True).sum() < 20 * len(frame) + 2_000_000


def test_series_that_overlap_are_wide(tmp_path: Path) -> None:
    long = staggered(5, 200, 50)
    long.to_csv(tmp_path / "x.csv", index=False)
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    assert report.layout == "wide"
    expected = long.pivot(index="ds", columns="unique_id", values="y").asfreq("h")
    pd.testing.assert_frame_equal(frame, expected[list(frame.columns)], check_names=False, check_index_type=False)


@pytest.mark.parametrize("layout", ["wide", "long"])
def test_the_layout_can_be_told(layout: str) -> None:
    _, report = read_sensor_csv(staggered(5, 50, 500), layout=layout)
    assert report.layout == layout


def test_sensors_with_steps_of_their_own_keep_them() -> None:
    fast = pd.DataFrame(
        {"sensor": "fast", "time": pd.date_range("2024-01-01", periods=240, freq="min"), "value": np.arange(240.0)}
    )
    slow = pd.DataFrame(
        {"sensor": "slow", "time": pd.date_range("2024-01-01", periods=16, freq="15min"), "value": np.arange(16.0)}
    )
    both = pd.concat([fast, slow])
    frame, report = read_sensor_csv(both)
    assert report.layout == "long"
    assert report.steps == {"min": ["fast"], "15min": ["slow"]}
    assert len(frame) == 256
    joined, report = read_sensor_csv(both, freq="15min", aggregate="mean")
    assert report.layout == "wide"
    assert joined["fast"].tolist() == [15 * k + 7.0 for k in range(16)]
    assert joined["slow"].tolist() == list(range(16))
    assert report.rows_read == report.rows_used == 256


def test_a_gap_stays_a_gap_when_rows_are_joined(tmp_path: Path) -> None:
    index = pd.date_range("2024-01-01", periods=96, freq="15min", name="time")
    frame = pd.DataFrame({"v": np.arange(96.0)}, index=index).drop(index[20:32])
    frame.to_csv(tmp_path / "x.csv")
    for how in ("mean", "sum", "last"):
        joined, _ = read_sensor_csv(tmp_path / "x.csv", freq="h", aggregate=how)
        expected = (
            getattr(frame["v"].resample("h"), how)() if how != "sum" else frame["v"].resample("h").sum(min_count=1)
        )
        np.testing.assert_array_equal(joined["v"].to_numpy(), expected.to_numpy())
        assert joined["v"].isna().sum() == 3
        assert joined.index.freq == pd.tseries.frequencies.to_offset("h")


@pytest.mark.parametrize("freq", ["D", "MS", "W-SUN", "6h"])
def test_joined_rows_agree_with_pandas_in_a_zone(freq: str) -> None:
    index = pd.date_range("2024-03-01", "2024-05-01", freq="30min", tz="Europe/Berlin", inclusive="left", name="time")
    frame = pd.DataFrame({"v": np.arange(float(len(index)))}, index=index)
    joined, _ = read_sensor_csv(frame, freq=freq, aggregate="mean")
    expected = frame.resample(freq).mean()
    np.testing.assert_array_equal(joined["v"].dropna().to_numpy(), expected["v"].to_numpy())
    if freq != "6h":  # bins of six hours are laid from the first midnight on, also after the clock changed
        pd.testing.assert_index_equal(joined.index, expected.index, check_names=False)


def test_irregular_times_are_put_on_a_grid_and_that_is_said() -> None:
    seconds = np.cumsum(RNG.exponential(300, 500)).astype(int)
    index = pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s")
    frame, report = read_sensor_csv(pd.DataFrame({"time": index, "v": np.arange(500.0)}))
    assert report.grid == "irregular"
    assert any("follow no step" in note for note in report.notes)
    assert frame.index.freq is not None
    assert report.rows_used + sum(report.set_aside.values()) == 500
    assert report.rows_used > 450
    assert len(frame) < 20 * 500 + 2000


@pytest.mark.parametrize("scatter", [1, 20, 90])
def test_jittered_times_find_their_step(scatter: int) -> None:
    nominal = pd.date_range("2024-01-01", periods=300, freq="10min")
    index = nominal + pd.to_timedelta(RNG.integers(-scatter, scatter + 1, 300), unit="s")
    frame, report = read_sensor_csv(pd.DataFrame({"time": index, "v": np.arange(300.0)}))
    pd.testing.assert_index_equal(frame.index, nominal, check_names=False, exact=False)
    assert frame["v"].tolist() == list(range(300))
    assert report.moved > 0
    assert report.moved_most <= scatter


@pytest.mark.parametrize(
    "freq", ["s", "7s", "min", "5min", "h", "3h", "D", "2D", "W-WED", "2W-MON", "MS", "ME", "2MS", "QS-JAN", "QE-DEC", "QS-FEB", "YS-JAN", "YE-DEC", "B", "100ms", "BME"]
)  # fmt: skip
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_every_step_is_found_again_also_with_a_gap(freq: str, zone: str | None) -> None:
    index = pd.date_range("2023-02-05", periods=30, freq=freq, tz=zone, name="time")
    whole = pd.DataFrame({"v": np.arange(30.0)}, index=index)
    frame, report = read_sensor_csv(whole.drop(index[[11, 12, 17]]))
    pd.testing.assert_index_equal(frame.index, index)
    assert frame.index.freq == index.freq
    assert frame["v"].isna().sum() == 3
    assert report.step == index.freqstr


@pytest.mark.parametrize("header", ["time,temp,flow", "time,a,b", "Date;Temp;Flow"])
def test_a_single_row_keeps_the_names_above_it(tmp_path, header):
    path = tmp_path / "row.csv"
    path.write_text(f"{header}\n2024-01-11 20:00:00,8.9,18\n".replace(",", header[4]))
    frame, _ = read_sensor_csv(path, freq="h", layout="wide")
    assert [*frame.columns] == header.split(header[4])[1:]
    assert frame.to_numpy().tolist() == [[8.9, 18.0]]
