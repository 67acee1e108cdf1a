"""Numbers that stand for a missing value are recognised by evidence, and only by evidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

RNG = np.random.default_rng(11)
INDEX = pd.date_range("2024-01-01", periods=2000, freq="h", name="time")


def read(path: Path, columns: dict[str, np.ndarray], **options: object) -> tuple[pd.DataFrame, dict[str, int]]:
    pd.DataFrame(columns, index=INDEX[: len(next(iter(columns.values())))]).to_csv(path / "x.csv")
    frame, report = read_sensor_csv(path / "x.csv", **options)
    return frame, report.cells_set_aside


def air_quality() -> dict[str, np.ndarray]:
    """Columns with the ranges of a well-known air quality set, in which -200 stands for a missing value."""
    walk = np.cumsum(RNG.normal(0, 1, 2000))
    columns = {
        "CO": np.round(np.abs(np.sin(walk / 9)) * 8 + 0.1, 1),
        "tin oxide": np.round(1100 + 200 * np.sin(walk / 7)),
        "NOx": np.round(np.abs(RNG.gamma(1.5, 150, 2000)) + 2),
        "T": np.round(15 + 10 * np.sin(np.arange(2000) / 24), 1),
        "NMHC": np.where(RNG.random(2000) < 0.9, -200.0, np.round(RNG.gamma(2, 100, 2000) + 7)),
    }
    lost = RNG.random(2000) < 0.04
    for name in ("tin oxide", "T", "NOx", "CO"):
        columns[name] = np.where(lost, -200.0, columns[name])
    return columns


def test_a_value_lost_in_many_columns_at_once_is_found_in_all_of_them(tmp_path: Path) -> None:
    columns = air_quality()
    frame, aside = read(tmp_path, columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(frame[name].isna().to_numpy(), values == -200, err_msg=name)
    assert aside == {"sentinel -200": int(sum((values == -200).sum() for values in columns.values()))}


@pytest.mark.parametrize(
    "value", [-999.0, -9999.0, 9999.0, -99.9, 32767.0, 65535.0, -6999.0, 1e30, -99.0, 999.9, -127.0, -32768.0]
)
def test_values_that_loggers_write_are_found(value: float, tmp_path: Path) -> None:
    values = np.round(RNG.normal(20, 3, 500), 2)
    values[[7, 100, 101, 102, 499]] = value
    frame, aside = read(tmp_path, {"v": values})
    assert int(frame["v"].isna().sum()) == 5
    assert aside == {f"sentinel {value:.10g}": 5}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a counter that passes 9999", np.arange(9000.0, 11000.0)),
        (
            "a counter that stops at 9999 for a while",
            np.concatenate([np.arange(9500.0, 9999.0), np.full(50, 9999.0), np.arange(10000.0, 10400.0)]),
        ),
        ("a counter that ends at 9999", np.concatenate([np.arange(9500.0, 9999.0), np.full(50, 9999.0)])),
        ("deep cold", np.round(-200 + np.cumsum(RNG.choice([-1.0, 0.0, 1.0], 800)))),
        ("power in both directions", np.round(RNG.normal(0, 400, 1000) / 10) * 10),
        ("many zeros", np.where(RNG.random(1000) < 0.9, 0.0, RNG.gamma(2, 2, 1000).round(1))),
        ("percent up to 99", np.clip(np.round(90 + np.cumsum(RNG.normal(0, 1, 800))), 0, 99)),
        ("a constant", np.full(300, 9999.0)),
        ("a constant -999", np.full(300, -999.0)),
        ("wide jumps", np.round(RNG.choice([0.0, 500.0, 999.0, 1500.0], 600))),
        ("minus one and up", RNG.integers(-1, 5, 500).astype(float)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_are_meant_stay(name: str, values: np.ndarray, tmp_path: Path) -> None:
    frame, aside = read(tmp_path, {"v": values})
    np.testing.assert_array_equal(frame["v"].to_numpy(), values)
    assert aside == {}


def test_what_was_found_can_be_overruled_for_one_column(tmp_path: Path) -> None:
    values = np.round(RNG.normal(20, 3, 300), 2)
    values[[7, 100, 101]] = -999
    frame, _ = read(tmp_path, {"a": values, "b": values}, keep=("a=-999",))
    assert not frame["a"].isna().any()
    assert int(frame["b"].isna().sum()) == 3


TEMPERATURE, HUMIDITY = np.round(RNG.normal(20, 3, 300), 2), np.round(RNG.uniform(20, 99, 300), 1)
RAIN = np.where(RNG.random(300) < 0.9, 0.0, RNG.gamma(2, 2, 300).round(1))
CARBON_DIOXIDE, POWER = RNG.integers(400, 2000, 300).astype(float), RNG.normal(0, 400, 300).round()
LIGHT = RNG.uniform(0, 50_000, 300).round()


@pytest.mark.parametrize("lone", [-999, -9999, -999.9, 9999, 65535, -32768, 1e20])
@pytest.mark.parametrize("values", [TEMPERATURE, RAIN], ids=["temperature", "rain"])
def test_a_usual_number_that_is_absurdly_far_out_is_missing_though_it_stands_there_once(values, lone, tmp_path) -> None:
    spoiled = values.copy()
    spoiled[150] = lone
    frame, aside = read(tmp_path, {"v": spoiled})
    assert np.flatnonzero(frame["v"].isna()).tolist() == [150]
    assert aside == {f"sentinel {lone:.10g}": 1}
    _, report = read_sensor_csv(tmp_path / "x.csv")
    (note,) = [note for note in report.notes if "single" in note]
    assert f"'v' holds a single {lone:.10g}, far outside its other values, {values.min():.10g} to " in note
    assert f"taken as missing (--keep {lone:.10g} keeps it)" in note
    kept, aside = read(tmp_path, {"v": spoiled}, keep=(str(lone),))
    np.testing.assert_array_equal(kept["v"].to_numpy(), spoiled)
    assert aside == {}


@pytest.mark.parametrize(
    ("values", "lone"),
    [
        (CARBON_DIOXIDE, 9999),  # such a sensor reads up to 10,000
        (LIGHT, 65535),
        (POWER, -999),
        (HUMIDITY, 999),
        (TEMPERATURE, -127),  # no usual number
        (TEMPERATURE[:15], -999),  # too few to know what is far out
        (np.arange(9000.0, 9300.0), 9999),
        (-900 - np.abs(POWER) / 10, -999),
    ],
)
def test_a_single_number_that_a_sensor_may_have_measured_is_kept(values, lone, tmp_path) -> None:
    spoiled = values.copy()
    spoiled[len(values) // 2] = lone
    frame, aside = read(tmp_path, {"v": spoiled})
    np.testing.assert_array_equal(frame["v"].to_numpy(), spoiled)
    assert aside == {}


def test_a_single_far_value_that_is_kept_is_said(tmp_path: Path) -> None:
    values = TEMPERATURE.copy()
    values[150] = -1111.0
    pd.DataFrame({"v": values}, index=INDEX[:300]).to_csv(tmp_path / "x.csv")
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    assert not frame["v"].isna().any()
    assert any("single -1111" in note and "--missing -1111" in note for note in report.notes)


def test_sensors_of_a_long_file_are_judged_each_by_its_own_values(tmp_path: Path) -> None:
    warm = np.round(RNG.normal(20, 3, 200), 2)
    warm[[5, 6, 90]] = 9999
    counter = np.arange(9900.0, 10100.0)
    long = pd.DataFrame(
        {
            "time": list(INDEX[:200]) * 2,
            "sensor": ["warm"] * 200 + ["counter"] * 200,
            "value": np.concatenate([warm, counter]),
        }
    )
    long.to_csv(tmp_path / "x.csv", index=False)
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    assert int(frame["warm"].isna().sum()) == 3
    np.testing.assert_array_equal(frame["counter"].to_numpy(), counter)
    assert report.cells_set_aside == {"sentinel 9999": 3}
