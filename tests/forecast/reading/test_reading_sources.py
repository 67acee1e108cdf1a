"""Several files, folders, archives, Parquet and data frames."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv

JANUARY = pd.date_range("2024-01-01", periods=48, freq="h", name="time")
FEBRUARY = pd.date_range("2024-01-03", periods=48, freq="h", name="time")


def write(path: Path, index: pd.DatetimeIndex, start: int = 0, name: str = "v") -> Path:
    pd.DataFrame({name: np.arange(len(index)) + start + 0.5}, index=index).to_csv(path)
    return path


def test_files_with_disjoint_times_continue_each_other(tmp_path: Path) -> None:
    write(tmp_path / "2.csv", FEBRUARY, 48)
    write(tmp_path / "1.csv", JANUARY)
    frame, report = read_sensor_csv(tmp_path)
    assert frame["v"].tolist() == [k + 0.5 for k in range(96)]
    assert report.rows_read == report.rows_used == 96
    assert any("continue each other" in note for note in report.notes)


def test_files_of_the_same_times_are_a_series_each(tmp_path: Path) -> None:
    files = [write(tmp_path / "roof.csv", JANUARY), write(tmp_path / "cellar.csv", JANUARY, 100)]
    frame, report = read_sensor_csv(files)
    assert list(frame.columns) == ["roof", "cellar"]
    assert frame["cellar"].tolist() == [k + 100.5 for k in range(48)]
    assert report.rows_read == 96


def test_files_of_other_columns_stand_beside_each_other(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.csv", JANUARY, name="temp"), write(tmp_path / "b.csv", FEBRUARY, name="flow")]
    frame, _ = read_sensor_csv(files)
    assert list(frame.columns) == ["temp", "flow"]
    assert len(frame) == 96
    assert int(frame["temp"].isna().sum()) == int(frame["flow"].isna().sum()) == 48


def test_files_with_other_steps_are_not_joined_silently(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.csv", JANUARY, name="temp"),
        write(tmp_path / "b.csv", pd.date_range("2024-01-01", periods=96, freq="30min", name="time"), name="flow"),
    ]
    frame, report = read_sensor_csv(files)
    assert report.layout == "long"
    assert report.steps == {"h": ["temp"], "30min": ["flow"]}
    assert frame.groupby("unique_id", observed=True).size().to_dict() == {"temp": 48, "flow": 96}
    joined, _ = read_sensor_csv(files, freq="h", aggregate="mean")
    assert joined["flow"].tolist() == [2 * k + 1.0 for k in range(48)]
    with pytest.raises(InputError, match="different grids"):
        read_sensor_csv(files, layout="wide")


def test_an_overlap_of_one_row_is_a_duplicate(tmp_path: Path) -> None:
    long = pd.date_range("2024-01-01", periods=240, freq="h", name="time")
    files = [write(tmp_path / "a.csv", long[:121]), write(tmp_path / "b.csv", long[120:], 120)]
    frame, report = read_sensor_csv(files)
    assert frame["v"].tolist() == [k + 0.5 for k in range(240)]
    assert report.set_aside == {"identical duplicate": 1}


def test_an_offending_line_names_its_file(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", JANUARY)
    with write(tmp_path / "2.csv", FEBRUARY, 48).open("a") as stream:
        stream.write("Sum,12\n")
    _, report = read_sensor_csv(tmp_path)
    (offence,) = [o for o in report.offences if o.reason == "time not understood"]
    assert offence.source.endswith("2.csv")
    assert offence.line == 50
    assert offence.text == "Sum,12"


def test_an_archive_of_several_files_is_read_as_a_folder_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(write(tmp_path / "1.csv", JANUARY), "1.csv")
        archive.write(write(tmp_path / "2.csv", FEBRUARY, 48), "2.csv")
    frame, _ = read_sensor_csv(tmp_path / "all.zip")
    assert len(frame) == 96


def test_a_pattern_names_files(tmp_path: Path) -> None:
    write(tmp_path / "log1.csv", JANUARY)
    write(tmp_path / "log2.csv", FEBRUARY, 48)
    write(tmp_path / "other.csv", JANUARY)
    frame, _ = read_sensor_csv(str(tmp_path / "log*.csv"))
    assert len(frame) == 96


def test_parquet_is_read_wide_and_long(tmp_path: Path) -> None:
    wide = pd.DataFrame({"a": np.arange(48.0), "b": np.arange(48)}, index=JANUARY.tz_localize("Europe/Berlin"))
    wide.to_parquet(tmp_path / "wide.parquet")
    frame, report = read_sensor_csv(tmp_path / "wide.parquet")
    pd.testing.assert_frame_equal(frame, wide.astype(float).tz_convert("Europe/Berlin"), check_freq=False)
    assert report.zone == "Europe/Berlin"
    assert frame.index.freq == JANUARY.freq
    long = (
        wide.astype(float)
        .reset_index()
        .melt("time", var_name="unique_id", value_name="y")
        .rename(columns={"time": "ds"})
    )
    long.to_parquet(tmp_path / "long.parquet")
    again, _ = read_sensor_csv(tmp_path / "long.parquet")
    pd.testing.assert_frame_equal(again, frame)


def test_frames_are_read_wide_and_long() -> None:
    wide = pd.DataFrame(
        {"a": [1.5, 2.5, np.nan, 4.5], "b": [1, 2, 3, 4], "note": ["x", "y", "z", "w"]}, index=JANUARY[[0, 1, 3, 4]]
    )
    frame, report = read_sensor_csv(wide)
    assert list(frame.columns) == ["a", "b"]
    assert frame["b"].tolist()[:2] == [1, 2]
    assert np.isnan(frame["b"].iloc[2])
    assert report.cells_set_aside == {"text": 4, "blank": 1}
    long = pd.DataFrame({"unique_id": ["p"] * 4 + ["q"] * 4, "ds": list(JANUARY[:4]) * 2, "y": np.arange(8)})
    frame, _ = read_sensor_csv(long)
    assert frame["q"].tolist() == [4, 5, 6, 7]


def test_a_frame_is_not_changed() -> None:
    wide = pd.DataFrame({"a": [20.5, -999, 21, -999, 22]}, index=JANUARY[:5])
    before = wide.copy()
    frame, _ = read_sensor_csv(wide)
    assert int(frame["a"].isna().sum()) == 2
    pd.testing.assert_frame_equal(wide, before)


def test_a_frame_with_a_column_of_texts_as_time() -> None:
    frame, _ = read_sensor_csv(
        pd.DataFrame({"Datum": ["14.05.2024 00:00", "14.05.2024 01:00", "14.05.2024 02:00"], "v": [1, 2, 3]})
    )
    assert frame.index[0] == pd.Timestamp("2024-05-14")
