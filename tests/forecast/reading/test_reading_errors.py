# ruff: noqa: E501
"""What cannot be read ends in one line that names the file, the place in it and the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv, sources

HOURLY = "\n".join(f"{t},{k}.5" for k, t in enumerate(pd.date_range("2024-05-14", periods=30, freq="h")))
QUARTERS = "\n".join(f"{t},{k}.5" for k, t in enumerate(pd.date_range("2024-05-14", periods=40, freq="15min")))

REFUSED: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "an empty file": (b"", {}, "the file is empty"),
    "blank lines only": ("\n\n  \n", {}, "line 1: no line holds anything"),
    "no time": ("a,b\n1,2\n3,4\n5,7\n", {}, r"line 1: no column holds a usable time \(columns: 'a', 'b'\); name it with --time"),
    "a clock without a date": ("time,v\n12:00,1\n13:00,2\n14:00,3\n", {}, "times of the day but no column holds the date; add a date column"),
    "an order that nothing decides": ("time,v\n03/04/2024 00:00,1\n03/04/2024 01:00,2\n", {}, "line 2: '03/04/2024 00:00'.*pass --dayfirst"),
    "days or months, both regular": ("time,v\n" + "".join(f"0{d}/04/2024,{d}\n" for d in range(1, 10)), {}, "pass --dayfirst or --no-dayfirst"),
    "one time only": ("time,v\n2024-05-14 12:00,1\n", {}, "line 2: only one time can be used.*--freq"),
    "no numbers": ("time,v\n2024-05-14,on\n2024-05-15,off\n", {}, "no column holds numbers"),
    "times that do not exist": ("time,v\n2024-13-45,1\n2024-14-45,2\n", {}, "no column holds a usable time"),
    "a workbook": (b"PK\x03\x04" + bytes(60), {}, "damaged zip archive"),
    "an old workbook": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(60), {}, "an Excel workbook.*save the sheet as CSV"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(60), {}, "not a text file"),
    "damaged gzip": (b"\x1f\x8b\x08\x00" + bytes(30), {}, "damaged gzip data"),
    "damaged Parquet": (b"PAR1" + bytes(30), {}, "damaged Parquet"),
    "a column that is not there": ("time,v\n" + HOURLY, {"time": "stamp"}, "no column is called 'stamp'; there are: time, v"),
    "a value column that is not there": ("time,v\n" + HOURLY, {"columns": "w"}, r"no column is called 'w' \(--columns\)"),
    "a sensor column that is not there": ("time,v\n" + HOURLY, {"series": "w"}, r"no column is called 'w' \(--series\)"),
    "a format that does not fit": ("time,v\n" + HOURLY, {"time": "time", "time_format": "%d.%m.%Y"}, "line 2: '2024-05-14 00:00:00' does not fit"),
    "a step that is no step": ("time,v\n" + HOURLY, {"freq": "often"}, "--freq 'often': not a frequency"),
    "a step of nothing": ("time,v\n" + HOURLY, {"freq": "0h"}, "--freq '0h': not a frequency"),
    "a coarser step without a way to join": ("time,v\n" + QUARTERS, {"freq": "h"}, "coarser than the data.*pass --aggregate"),
    "a way to join without a step": ("time,v\n" + QUARTERS, {"aggregate": "mean"}, "pass --freq too"),
    "an unknown way to join": ("time,v\n" + HOURLY, {"freq": "D", "aggregate": "median"}, "--aggregate 'median': not known; pass one of mean, sum, last"),
    "a delimiter of two characters": ("time,v\n" + HOURLY, {"delimiter": "::"}, "--delimiter '::': not a single character"),
    "an encoding that does not exist": ("time,v\n" + HOURLY, {"encoding": "utf-9"}, "no encoding is called 'utf-9'"),
    "an encoding that does not fit": ("time,v,°C\n".encode("latin-1") + HOURLY.encode(), {"encoding": "utf-8"}, "not utf-8"),
    "a value to keep that is no number": ("time,v\n" + HOURLY, {"keep": "abc"}, "--keep 'abc': 'abc' is not a number"),
    "times too far apart for their step": ("time,v\n2024-01-01 00:00:00,1\n2024-01-01 00:00:01,2\n2030-01-01 00:00:00,3\n", {}, "line 4: from 2024-01-01 .* rows of 3.*--freq"),
    "hours that count to 25": ("Date,Hour,v\n" + "".join(f"2024-10-27,{h},{h}\n" for h in range(1, 26)), {}, "hours of 2024-10-27 count to 25.*pass --tz"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_names_place_and_remedy(name: str, tmp_path: Path) -> None:
    content, options, expected = REFUSED[name]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=expected) as error:
        read_sensor_csv(path, **options)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message or message.startswith("--")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file; check the path"):
        read_sensor_csv(tmp_path / "nowhere.csv")


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the folder holds no CSV"):
        read_sensor_csv(tmp_path)


def test_an_unknown_option_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="no option 'dayfrist'"):
        read_sensor_csv("x.csv", dayfrist=True)


def test_a_packed_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ALWAYS_ALLOWED", 1 << 20)
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(bytes(16 << 20))
    with pytest.raises(InputError, match="unpacks to more than"):
        read_sensor_csv(path)
