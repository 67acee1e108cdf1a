# ruff: noqa: E501
"""The report: what an engineer reads, what a program reads, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import ReadOptions, inspect, read_sensor_csv
from mha_apps.forecast.reading.oddities import alone
from mha_apps.forecast.reading.plot import _envelope, _missing

RNG = np.random.default_rng(2)


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    index = pd.date_range("2024-01-01", periods=400, freq="h")
    flow = np.round(np.abs(RNG.normal(3, 1, 400)), 2)
    flow[[20, 21, 90]] = -999
    frame = pd.DataFrame(
        {
            "No": range(1, 401), "time": index.strftime("%d.%m.%Y %H:%M"), "flow": flow, "flow before": pd.Series(flow).shift(2), "set point": 7.5,
            "used": np.cumsum(np.abs(RNG.normal(2, 1, 400))).round(1),
            "rain": np.where(RNG.random(400) < 0.8, 0.0, RNG.gamma(2, 2, 400).round(1)), "state": "run",
        }
    )  # fmt: skip
    lines = frame.drop(index=range(100, 150)).to_csv(index=False, sep=";", decimal=",").splitlines()
    lines.insert(8, lines[7])
    lines.append("Sum;;1,5;;;;")
    path = tmp_path / "messy.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_report_says_what_an_engineer_needs(messy: Path) -> None:
    _, report = read_sensor_csv(messy)
    text = report.text()
    for part in (
        "semicolon", "decimal comma", "'time', day first", "no zone", "2024-01-01 00:00:00 to 2024-01-17 15:00:00", "400 rows, wide",
        "352 read = 350 used + 2 set aside", "1 identical duplicate", "1 no time", "2024-01-05 04:00:00 to 2024-01-07 05:00:00 (50 rows)",
        "3 sentinel -999", "set point: constant (7.5)", "rain: zero-inflated", "used: only rises, as a meter does", "flow before: copies 'flow', 2 steps later", "No: counts the rows",
        "state: text (1 different, such as 'run')", "line 9: identical duplicate", "line 353: no time",
    ):  # fmt: skip
        assert part in text, f"{part!r} is not in\n{text}"


def test_no_line_is_longer_than_the_width(messy: Path) -> None:
    _, report = read_sensor_csv(messy)
    for width in (80, 100):
        assert max(map(len, report.text(width).splitlines())) <= width


def test_json_holds_all_of_the_report(messy: Path) -> None:
    _, report = read_sensor_csv(messy)
    data = json.loads(report.json())
    assert data["rows_read"] == 352
    assert data["set_aside"] == {"no time": 1, "identical duplicate": 1}
    assert data["rows_read"] == data["rows_used"] + sum(data["set_aside"].values())
    assert data["cells_read"] == data["cells_used"] + sum(data["cells_set_aside"].values())
    assert [column["name"] for column in data["columns"]] == ["flow", "flow before", "set point", "used", "rain"]
    assert {column["name"] for column in data["left_out"]} == {"No", "state"}
    assert data["gaps"][0] == {"first": "2024-01-05 04:00:00", "last": "2024-01-07 05:00:00", "rows": 50}


def test_cells_of_the_columns_add_up_to_those_of_the_report(messy: Path) -> None:
    _, report = read_sensor_csv(messy)
    columns = [*report.columns, *report.left_out]
    assert sum(column.cells for column in columns) == report.cells_read
    assert sum(column.used for column in columns) == report.cells_used
    for column in columns:
        assert column.cells == column.used + sum(column.set_aside.values()), column


def test_inspect_draws_a_picture_in_which_gaps_are_shaded(messy: Path, tmp_path: Path) -> None:
    report = inspect(messy, plot=tmp_path / "out" / "plot.png")
    assert report.plot == str(tmp_path / "out" / "plot.png")
    pixels = matplotlib.image.imread(report.plot)[..., :3]
    shaded = np.all(np.abs(pixels - np.array([0xF3, 0xC9, 0xA5]) / 255) < 0.02, axis=-1)
    # 50 of 400 rows are missing in each of the four panels
    assert 0.05 < shaded.mean() < 0.3


def test_a_sensor_of_every_third_row_is_shaded_where_it_misses_a_reading_of_its_own(tmp_path: Path) -> None:
    values = np.where(np.arange(300) % 3 == 1, RNG.normal(size=300), np.nan)
    assert not _missing(values).any()
    values[[100, 103]] = np.nan  # two readings: eight rows without one
    assert np.flatnonzero(_missing(values)).tolist() == list(range(98, 106))


@pytest.mark.parametrize("apart", [1, 3])
def test_a_complete_series_has_no_shade(tmp_path: Path, apart: int) -> None:
    frame = pd.DataFrame({"v": np.arange(100.0)}, index=pd.date_range("2024-01-01", periods=100, freq="h"))
    frame["w"] = frame["v"].where(np.arange(100) % apart == 0)
    inspect(frame, plot=tmp_path / "plot.png")
    pixels = matplotlib.image.imread(tmp_path / "plot.png")[..., :3]
    assert not np.any(np.all(np.abs(pixels - np.array([0xF3, 0xC9, 0xA5]) / 255) < 0.02, axis=-1))


@pytest.mark.parametrize("others", [1, 20])
@pytest.mark.parametrize("rows", [600, 30_000])
def test_a_sensor_of_few_rows_is_seen_as_one_of_all_rows_is(rows: int, others: int, tmp_path: Path) -> None:
    slow = np.where(np.arange(rows) % 60 == 0, 20 + 5 * np.sin(np.arange(rows) / 900), np.nan)
    whole = pd.Series(slow).interpolate().to_numpy()  # what a line between its readings goes through
    index = pd.date_range("2024-01-01", periods=rows, freq="min")
    dark = []
    for last in (slow, whole):
        frame = pd.DataFrame({f"s{k}": whole for k in range(others)} | {"last": last}, index=index)
        inspect(frame, plot=tmp_path / "plot.png")
        pixels = matplotlib.image.imread(tmp_path / "plot.png")[..., :3]
        dark.append(np.count_nonzero((pixels[..., 2] > pixels[..., 0] + 0.2) & (pixels[..., 0] < 0.5)))
    assert dark[0] == pytest.approx(dark[1], rel=0.25)  # one of two panels is a half


def test_lone_values_of_a_long_series_are_seen() -> None:
    values = np.full(30_000, np.nan)
    values[RNG.choice(30_000, 40, replace=False)] = 1.0
    _, low, high = _envelope(np.arange(30_000), values)
    assert np.count_nonzero(alone(low)) >= 30
    np.testing.assert_array_equal(low, high)
    assert _envelope(np.arange(30_000), np.arange(30_000.0))[2][-1] == 29_999  # the last rows count too


@pytest.mark.parametrize("series", [17, 120])
def test_many_series_are_drawn_as_a_map(series: int, tmp_path: Path) -> None:
    index = pd.date_range("2024-01-01", periods=50, freq="h")
    inspect(
        pd.DataFrame(RNG.normal(size=(50, series)), index=index, columns=[f"s{k}" for k in range(series)]),
        plot=tmp_path / "plot.png",
    )
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_nothing_is_drawn_where_reading_stops(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no column holds a usable time"):
        inspect(tmp_path / "x.csv", plot=tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_options_are_taken_as_an_object_or_by_name(messy: Path) -> None:
    one, _ = read_sensor_csv(messy, options=ReadOptions(keep=("-999",), dayfirst=True))
    other, _ = read_sensor_csv(messy, keep=-999, dayfirst=True)
    pd.testing.assert_frame_equal(one, other)
    assert one["flow"].min() == -999


def test_options_can_be_defined_without_pandas() -> None:
    import subprocess
    import sys

    code = "import sys; from mha_apps.forecast.reading import ReadOptions; ReadOptions(); sys.exit(bool({'pandas', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reading_needs_no_torch(messy: Path) -> None:
    import subprocess
    import sys

    code = f"import sys; from mha_apps.forecast.reading import read_sensor_csv; read_sensor_csv({str(messy)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
