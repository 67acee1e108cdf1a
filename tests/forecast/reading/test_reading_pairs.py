# ruff: noqa: E501
"""Traits in pairs: every dialect with every way to write a time, and every mark of a missing value with every number."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

TIMES = pd.date_range("2024-05-28 18:15", periods=40, freq="45min")
RNG = np.random.default_rng(3)
A = np.round(RNG.normal(20, 4, len(TIMES)), 2)
B = np.round(RNG.uniform(1000, 5000, len(TIMES)), 1)
A[[3, 4, 17]] = np.nan
EXPECTED = pd.DataFrame({"a": A, "b": B}, index=pd.DatetimeIndex(TIMES, freq="45min", name="time"))

DIALECTS = {
    "commas": (",", ".", "utf-8", "\n"),
    "semicolons and decimal commas": (";", ",", "utf-8-sig", "\r\n"),
    "tabs and decimal commas in UTF-16": ("\t", ",", "utf-16", "\r\n"),
    "bars in Latin-1": ("|", ".", "latin-1", "\n"),
    "semicolons and points, packed": (";", ".", "gzip", "\n"),
}
STAMPS = [
    "%Y-%m-%d %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %I:%M %p",
    "%d/%m/%y %H:%M",
    "%Y%m%d%H%M",
    "%d %B %Y %H.%M",
    "%Y-%m-%dT%H:%M:%SZ",
]
MARKS = ["", "NA", "-", "-999", "NaN", "n/a", "#WERT!"]


def write(path: Path, dialect: str, stamp: str, mark: str, thousands: bool = False) -> None:
    sep, decimal, encoding, end = DIALECTS[dialect]

    def number(value: float) -> str:
        if np.isnan(value):
            return mark
        text = f"{value:,}" if thousands else f"{value}"
        return text.translate(str.maketrans(",.", ".,")) if decimal == "," else text

    lines = [sep.join(("time", "a", "b"))]
    lines += [sep.join((t.strftime(stamp), number(a), number(b))) for t, a, b in zip(TIMES, A, B, strict=True)]
    text = end.join(lines) + end
    path.write_bytes(gzip.compress(text.encode()) if encoding == "gzip" else text.encode(encoding))


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_read_with_every_way_to_write_a_time(dialect: str, stamp: str, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", dialect, stamp, "NA")
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    expected = EXPECTED.tz_localize("UTC") if stamp.endswith("Z") else EXPECTED
    pd.testing.assert_frame_equal(frame, expected, check_freq=False)
    assert frame.index.freq == EXPECTED.index.freq
    assert report.cells_set_aside == {"marked 'NA'": 3}
    assert report.rows_read == report.rows_used == len(TIMES)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_mark_of_a_missing_value_is_found_in_every_dialect(dialect: str, mark: str, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", dialect, STAMPS[0], mark)
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    pd.testing.assert_frame_equal(frame, EXPECTED)
    reason = {"": "blank", "-999": "sentinel -999"}.get(mark, f"marked {mark!r}")
    assert report.cells_set_aside == {reason: 3}


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "commas"])
def test_thousands_are_read_in_every_dialect(dialect: str, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", dialect, STAMPS[1], "", thousands=True)
    frame, _ = read_sensor_csv(tmp_path / "x.csv")
    pd.testing.assert_frame_equal(frame, EXPECTED)


@pytest.mark.parametrize("mark", MARKS)
def test_gaps_and_duplicates_are_found_beside_every_mark(mark: str, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", "semicolons and decimal commas", STAMPS[1], mark)
    lines = (tmp_path / "x.csv").read_text(encoding="utf-8-sig").splitlines()
    kept = [line for k, line in enumerate(lines) if k not in (8, 9, 30)]  # three rows are lost, one comes twice
    kept.insert(5, kept[5])
    (tmp_path / "x.csv").write_text("\n".join(kept) + "\n")
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    expected = EXPECTED.copy()
    expected.iloc[[7, 8, 29]] = np.nan
    pd.testing.assert_frame_equal(frame, expected)
    assert report.set_aside == {"identical duplicate": 1}
    assert report.gap_count == 2
    assert report.gap_rows == 3


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        (["998", "999", "1.000", "1.001"], {}, [998, 999, 1000, 1001]),
        (["1.250", "2.310", "-999", "3.125"], {}, [1.25, 2.31, -999, 3.125]),
        (["1.250", "2.310", "3.125", "4.000"], {}, [1.25, 2.31, 3.125, 4]),
        (["1.250", "2.310", "3.125", "4.000"], {"decimal": ","}, [1250, 2310, 3125, 4000]),
        (["998", "999", "1.000", "1.001"], {"decimal": "."}, [998, 999, 1, 1.001]),
    ],
)
def test_dots_between_thousands_are_told_from_decimals(
    cells: list[str], options: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    rows = [f"01.02.2024 1{k}:00;{cell}" for k, cell in enumerate(cells)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["Datum;A", *rows, ""]))
    frame, _ = read_sensor_csv(path, **options)
    kept = np.array(expected, dtype=float)
    kept[kept == -999] = np.nan
    found = frame["A"].to_numpy()
    np.testing.assert_array_equal(np.where(found == -999, np.nan, found), kept)


def test_whole_numbers_with_dots_follow_the_decimal_comma_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("Datum;A;B\n01.02.2024 10:00;1.234,50;1.000\n01.02.2024 11:00;1.234,75;2.000\n")
    frame, _ = read_sensor_csv(path)
    assert frame["A"].tolist() == [1234.5, 1234.75]
    assert frame["B"].tolist() == [1000, 2000]


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("date,peak_hour,peak_mw", "17,5000"),
        ("date,hours,peak_mw", "17,5000"),
        ("date,sunshine hours,peak_mw", "7.5,5000"),
        ("Date,Time of maximum wind gust,peak_mw", "13:4{},5000"),
        ("Date,Sunrise,Sunset,peak_mw", "05:1{},20:3{},5000"),
    ],
)
def test_times_and_hours_that_a_day_has_are_not_its_clock(head: str, cells: str, tmp_path: Path) -> None:
    rows = [f"2023-12-0{k + 1},{cells.replace('{}', str(k))}" for k in range(6)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join([head, *rows, ""]))
    frame, report = read_sensor_csv(path)
    assert list(frame.index) == list(pd.date_range("2023-12-01", periods=6))
    assert frame["peak_mw"].tolist() == [5000.0] * 6
    assert report.rows_used == 6
    if "hour" in head:
        assert frame.shape[1] == 2


@pytest.mark.parametrize("name", ["time", "Uhrzeit", "hour"])
def test_one_reading_a_day_keeps_its_clock(name: str, tmp_path: Path) -> None:
    clock = "7" if name == "hour" else "07:00"
    path = tmp_path / "data.csv"
    path.write_text("\n".join([f"date,{name},v", *(f"2023-12-0{k},{clock},{k}.5" for k in range(1, 7)), ""]))
    frame, _ = read_sensor_csv(path)
    assert frame.index[0] == pd.Timestamp("2023-12-01 07:00")


def test_july_beside_other_months_is_no_day_of_the_year(tmp_path: Path) -> None:
    months = "May;Jun;Jul;Aug"
    path = tmp_path / "data.csv"
    path.write_text("\n".join([f"Year;{months}", *(f"{y};5;6;7;8" for y in range(2018, 2024)), ""]))
    frame, _ = read_sensor_csv(path)
    assert list(frame.columns) == months.split(";")
    assert list(frame.index) == list(pd.date_range("2018-01-01", periods=6, freq="YS"))
