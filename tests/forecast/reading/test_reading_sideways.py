"""Hours, months and days in the header, and sensors that are called by numbers all the same."""

from __future__ import annotations

import calendar
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv

DAYS = pd.date_range("2024-01-30", periods=20, freq="D")


def lines(head: list[str], rows: list[list[object]], delimiter: str = ",") -> str:
    return "\n".join(delimiter.join(map(str, row)) for row in [head, *rows]) + "\n"


def read(tmp_path: Path, text: str, **told: object) -> tuple[pd.DataFrame, list[str]]:
    path = tmp_path / "table.csv"
    path.write_text(text)
    frame, report = read_sensor_csv(path, layout="wide", **told)  # type: ignore[arg-type]
    return frame, report.notes


def cells(count: int, day: int) -> list[float]:
    return [round(20 + 3 * np.sin(hour / 4) + day / 10, 2) for hour in range(count)]


@pytest.mark.parametrize(
    "names",
    [
        [f"HE{k:02d}" for k in range(1, 25)],
        [f"HE{k}" for k in range(1, 25)],
        [f"H{k}" for k in range(1, 25)],
        [f"H{k:02d}" for k in range(24)],
        [str(k) for k in range(1, 25)],
        [f"{k:02d}" for k in range(24)],
        [f"Hour {k}" for k in range(1, 25)],
        [f"hour_{k:02d}" for k in range(24)],
        [f"Hour Ending {k}" for k in range(1, 25)],
        [f"{k}h" for k in range(1, 25)],
        [f"Stunde {k}" for k in range(24)],
    ],
    ids=lambda names: names[0],
)
@pytest.mark.parametrize("date", ["%Y-%m-%d", "%m/%d/%Y", "%d.%m.%Y"])
def test_numbered_hours_beside_a_date_are_the_hours_of_a_day(tmp_path, names, date):
    frame, notes = read(tmp_path, lines(["Date", *names], [[f"{d:{date}}", *cells(24, n)] for n, d in enumerate(DAYS)]))
    first = DAYS[0] + pd.Timedelta(hours=int(names[0].endswith("1") or names[0] == "1h"))
    assert frame.index.tolist() == pd.date_range(first, periods=480, freq="h").tolist()
    assert frame.iloc[:, 0].tolist() == [value for n in range(20) for value in cells(24, n)]
    assert any("the hours stand in the header" in note for note in notes)


def test_sensors_of_one_table_of_hours_are_told_apart_and_sums_of_a_day_are_left_out(tmp_path):
    head = ["Date", "Plant", *(f"HE{k:02d}" for k in range(1, 25)), "Total", "Peak"]
    rows = [[f"{d:%Y-%m-%d}", plant, *cells(24, n), 480, 23] for n, d in enumerate(DAYS) for plant in ("A", "B")]
    frame, notes = read(tmp_path, lines(head, rows))
    assert list(frame.columns) == ["A", "B"]
    assert len(frame) == 480
    assert any("'Total', 'Peak': of a whole line" in note for note in notes)


def test_year_month_and_day_may_be_columns_of_their_own(tmp_path):
    head = ["Year", "Month", "Day", *(f"H{k}" for k in range(1, 25))]
    frame, _ = read(tmp_path, lines(head, [[d.year, d.month, d.day, *cells(24, n)] for n, d in enumerate(DAYS)]))
    assert frame.shape == (480, 1)
    assert frame.index[0] == DAYS[0] + pd.Timedelta("1h")


def test_a_25th_hour_is_that_of_the_night_in_which_the_clock_goes_back(tmp_path):
    whole = pd.date_range("2024-03-25", "2024-11-10", freq="h", tz="Europe/Berlin")[:-1]
    table = pd.DataFrame({"day": whole.date, "value": np.arange(len(whole)) + 0.5})
    rows = []
    for day, part in table.groupby("day"):
        values = part["value"].tolist()
        rows.append([day, *values, *[""] * (25 - len(values))])
    text = lines(["Date", *(f"HE{k:02d}" for k in range(1, 26))], rows)
    frame, _ = read(tmp_path, text, tz="Europe/Berlin")
    assert frame.index.tolist() == (whole + pd.Timedelta("1h")).tolist()
    assert frame.iloc[:, 0].tolist() == table["value"].tolist()
    with pytest.raises(InputError, match=r"the hours of 2024-10-27 count to 25.*pass --tz"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "names",
    [
        list(calendar.month_abbr[1:]),
        [name.upper() for name in calendar.month_name[1:]],
        ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "Aug", "Sept", "Okt", "Nov", "Dez"],
        [str(k) for k in range(1, 13)],
        [f"M{k:02d}" for k in range(1, 13)],
    ],
    ids=lambda names: names[0],
)
def test_months_beside_a_year_are_its_months(tmp_path, names):
    rows = [[year, *cells(12, year - 2000), 1.0] for year in range(2000, 2020)]
    rows[-1][10:13] = ["", "", ""]  # the year is not over
    frame, notes = read(tmp_path, lines(["Year", *names, "Annual"], rows))
    assert frame.index.tolist() == pd.date_range("2000-01-01", periods=237, freq="MS").tolist()
    assert frame.iloc[:, 0].tolist() == [value for n in range(20) for value in cells(12, n)][:237]
    assert any("the months stand in the header" in note for note in notes)


def test_days_beside_a_year_and_a_month_are_its_days(tmp_path):
    months = pd.date_range("2023-11-01", periods=6, freq="MS")
    rows = [[t.year, t.month, *cells(t.days_in_month, t.month), *[""] * (31 - t.days_in_month)] for t in months]
    frame, notes = read(tmp_path, lines(["Year", "Month", *map(str, range(1, 32))], rows))
    assert frame.index.tolist() == pd.date_range("2023-11-01", "2024-04-30", freq="D").tolist()
    assert frame.iloc[:, 0].isna().sum() == 0
    assert any("the days stand in the header" in note for note in notes)


HOURLY = pd.date_range("2024-01-30", periods=60, freq="h")
WEEKLY = pd.date_range("2024-01-01", periods=30, freq="W-MON")
COUNTEREXAMPLES = {
    "24 sensors by the hour": (["time", *map(str, range(1, 25))], [f"{t}" for t in HOURLY]),
    "24 sensors by the day, with a clock": (["time", *map(str, range(1, 25))], [f"{d:%Y-%m-%d 00:00}" for d in DAYS]),
    "24 sensors by the day, at noon": (["time", *(f"HE{k}" for k in range(1, 25))], [f"{d} 12:00" for d in DAYS.date]),
    "24 sensors by the week": (["date", *map(str, range(1, 25))], [f"{d:%Y-%m-%d}" for d in WEEKLY]),
    "24 humidities by the hour": (["time", *(f"H{k}" for k in range(1, 25))], [f"{t}" for t in HOURLY]),
    "24 temperatures by the day": (["date", *(f"T{k}" for k in range(1, 25))], [f"{d:%Y-%m-%d}" for d in DAYS]),
    "20 sensors by the day": (["date", *map(str, range(1, 21))], [f"{d:%Y-%m-%d}" for d in DAYS]),
    "sensors with a gap in their numbers": (["date", *map(str, [*range(1, 24), 30])], [f"{d:%Y-%m-%d}" for d in DAYS]),
    "12 sensors by the day": (["date", *map(str, range(1, 13))], [f"{d:%Y-%m-%d}" for d in DAYS]),
    "12 sensors named by months": (["date", "Jan", *(f"s{k}" for k in range(11))], [f"{d:%Y-%m-%d}" for d in DAYS]),
    "31 sensors by the day": (["date", *map(str, range(1, 32))], [f"{d:%Y-%m-%d}" for d in DAYS]),
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNTEREXAMPLES)
def test_sensors_that_are_called_by_numbers_stay_sensors(tmp_path, kind):
    head, times = COUNTEREXAMPLES[kind]
    count = len(head) - 1
    frame, notes = read(tmp_path, lines(head, [[t, *cells(count, n)] for n, t in enumerate(times)]))
    assert list(frame.columns) == head[1:]
    assert len(frame) == len(times)
    assert not any("in the header" in note for note in notes)
