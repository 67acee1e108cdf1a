# ruff: noqa: E501
"""Whatever the bytes are: a frame whose account adds up, or one clear line."""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv

CALM = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def attempt(data: bytes, **options: Any) -> bool:
    """Reads the bytes; whatever comes of it must be in order. Returns whether a frame came of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(data)
        try:
            frame, report = read_sensor_csv(path, **options)
        except InputError as error:
            message = str(error)
            assert "\n" not in message
            assert str(path) in message or message.startswith("--"), message
            return False
    assert report.rows_read == report.rows_used + sum(report.set_aside.values())
    assert report.cells_read == report.cells_used + sum(report.cells_set_aside.values())
    values = frame["y"].to_numpy() if report.layout == "long" else frame.to_numpy()
    if "aggregate" not in options:
        assert report.cells_used == np.count_nonzero(np.isfinite(values))
    if report.layout == "wide":
        assert frame.index.freq is not None
        assert frame.index.is_monotonic_increasing
        assert frame.index.is_unique
    assert max(map(len, report.text().splitlines())) <= 80
    report.json()
    return True


VALID = {
    "commas": "time,a,b\n" + "".join(f"{t},{k}.5,{k % 7}\n" for k, t in enumerate(pd.date_range("2024-05-14", periods=30, freq="h"))),
    "semicolons": "Datum;Uhrzeit;T [°C];H\n" + "".join(f"{t:%d.%m.%Y;%H:%M};{k},5;-999\n" for k, t in enumerate(pd.date_range("2024-05-20", periods=30, freq="15min"))),
    "long": "ds,unique_id,y\n" + "".join(f"{t:%Y-%m-%dT%H:%M:%SZ},s{k},{k}.25\n" for t in pd.date_range("2024-05-14", periods=12, freq="D") for k in range(3)),
    "quoted": '"a","time","b"\n' + "".join(f'"{k}","{t:%m/%d/%Y %I:%M %p}","x, ""y"""\n' for k, t in enumerate(pd.date_range("2024-05-14", periods=30, freq="h"))),
    "parts": "# site\nyear,month,day,hour,v\n" + "".join(f"{t.year},{t.month},{t.day},{t.hour},NA\n{t.year},{t.month},{t.day},{t.hour},{t.hour}\n" for t in pd.date_range("2024-05-14", periods=20, freq="h")),
    "epochs": "ts|v\n" + "".join(f"{1715680000 + 61 * k}|{k * k}\n" for k in range(40)),
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [{}, {"tz": "Europe/Berlin"}, {"freq": "h"}, {"freq": "D", "aggregate": "mean"}, {"dayfirst": True}, {"duplicates": "mean"}, {"layout": "long"}, {"missing": "0"}]  # fmt: skip


@CALM
@given(st.binary(max_size=400))
@example(b"\xff\xfe")
@example(b"\n")
@example(b'"')
@example(b"time,v\n")
@example(b",,,\n,,,\n")
@example(b"\x1f\x8b")
@example(b"2024-01-01,1\n2024-01-01,1\n")
@example(b"t;v\n" + b"9" * 4000 + b";1\n")
def test_any_bytes(data: bytes) -> None:
    attempt(data)


CELLS = st.one_of(
    st.sampled_from(["", "NA", "-999", "1,5", "1.5", "1.234,5", "0", "nan", "inf", "1e308", "-", "x", '"', '"a"', "2024-05-14", "2024-05-14 10:00", "14.05.2024", "05/06/2024 12:00 AM", "24:00", "12", "1715680000", "45000.5", "2024", "5", "31", "#", "°C"]),
    st.floats(allow_nan=True).map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.datetimes().map(str),
    st.text(max_size=6),
)  # fmt: skip
HEADS = st.sampled_from(
    [
        "time",
        "Date",
        "Uhrzeit",
        "year",
        "month",
        "day",
        "hour",
        "sensor",
        "value",
        "unique_id",
        "ds",
        "y",
        "",
        "a",
        "T [°C]",
        "No",
        "epoch",
        "minute",
    ]
)


@CALM
@given(
    st.lists(HEADS, min_size=1, max_size=5).flatmap(lambda head: st.tuples(st.just(head), st.lists(st.lists(CELLS, min_size=len(head), max_size=len(head)), max_size=12))),
    st.sampled_from([",", ";", "\t", "|", " "]),
    st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    st.sampled_from(OPTIONS),
)  # fmt: skip
def test_any_table_of_odd_cells(
    table: tuple[list[str], list[list[str]]], sep: str, encoding: str, options: dict[str, Any]
) -> None:
    head, rows = table
    attempt("\n".join(sep.join(row) for row in [head, *rows]).encode(encoding, "replace"), **options)


@pytest.mark.parametrize("name", VALID)
def test_the_files_to_be_damaged_are_valid(name: str) -> None:
    assert attempt(VALID[name].encode())


@pytest.mark.parametrize("name", VALID)
@CALM
@given(st.data())
def test_a_valid_file_with_damaged_bytes(name: str, data: st.DataObject) -> None:
    damaged = bytearray(VALID[name].encode(data.draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["flip", "set", "cut", "insert", "end"]))
        if kind == "flip":
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "set":
            damaged[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del damaged[at : at + data.draw(st.integers(1, 40))]
        elif kind == "insert":
            damaged[at:at] = data.draw(
                st.sampled_from([b",", b";", b'"', b"\n", b"\0", b"\r", b"-", b"9" * 30, b"\xff", b"#"])
            )
        elif len(damaged) > 40:
            del damaged[at + 20 :]
        if not damaged:
            break
    attempt(bytes(damaged), **data.draw(st.sampled_from(OPTIONS)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_damaged_files(seed: int) -> None:
    rng = random.Random(seed)
    sources = [text.encode() for text in VALID.values()]
    read = 0
    for _ in range(1000):
        damaged = bytearray(rng.choice(sources))
        for _ in range(rng.choice([1, 2, 5, 20])):
            at = rng.randrange(len(damaged))
            damaged[at] ^= 1 << rng.randrange(8)
        read += attempt(bytes(damaged), **rng.choice(OPTIONS))
    assert read > 300  # a few damaged bytes do not make a file unreadable


def test_memory_is_a_small_multiple_of_the_file(tmp_path: Path) -> None:
    index = pd.date_range("2020-01-01", periods=100_000, freq="min")
    frame = pd.DataFrame({f"s{k}": np.arange(100_000) % 97 + 0.5 for k in range(5)}, index=index.rename("time"))
    frame.to_csv(tmp_path / "x.csv")
    size = (tmp_path / "x.csv").stat().st_size
    read_sensor_csv(tmp_path / "x.csv")
    tracemalloc.start()
    read_sensor_csv(tmp_path / "x.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * size


def test_a_few_lines_make_no_large_frame() -> None:
    lines = ["time,v", "1850-01-01 00:00:00,1", "1850-01-01 00:00:01,2", "2150-01-01 00:00:00,3"]
    assert not attempt("\n".join(lines).encode())
