# ruff: noqa: E501
"""What looks like a special form and is none: no rule of evidence may take valid data for something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv
from mha_apps.forecast.reading.look import spelled
from mha_apps.forecast.reading.text import decode
from mha_apps.forecast.reading.timetext import TimeText

H = pd.date_range("2024-05-30", periods=48, freq="h")


def write(path: Path, head: str, line: Callable[[int, pd.Timestamp], str], index: pd.DatetimeIndex = H) -> Path:
    file = path / "data.csv"
    file.write_text(head + "\n" + "".join(line(i, t) + "\n" for i, t in enumerate(index)))
    return file


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (
            lambda i: f"{i % 40:03d},{i % 10}",
            lambda i: i % 40 + i % 10 / 10,
        ),  # zeros fill the width, but the digit behind varies
        (lambda i: f"{i % 30 - 15:+d},{i % 2}", None),
        (lambda i: f"{20 + i % 9},1", lambda i: 20.1 + i % 9),  # always ,1 but of two digits
        (lambda i: f"{1000 + i},5", lambda i: 1000.5 + i),  # four digits, without a sign or a filling zero
    ],
)
def test_a_decimal_comma_before_one_digit_is_no_code(cell: Any, value: Any, tmp_path: Path) -> None:
    frame, report = read_sensor_csv(write(tmp_path, "time,v", lambda i, t: f'{t},"{cell(i)}"'))
    expected = [float(cell(i).replace(",", ".")) for i in range(len(H))]
    if value is not None:
        assert expected == pytest.approx([value(i) for i in range(len(H))])
    assert frame["v"].tolist() == pytest.approx(expected)
    assert "composite cell" not in report.cells_set_aside


def test_coded_cells_of_an_unknown_scale_are_not_read_but_can_be_told(tmp_path: Path) -> None:
    path = write(tmp_path, "time,v,w", lambda i, t: f'{t},"{i:+05d},1",{i}.5')
    frame, report = read_sensor_csv(path)
    assert list(frame.columns) == ["w"]
    assert report.cells_set_aside == {"composite cell": 48}
    assert "several values in a cell" in report.left_out[0].oddities[0]
    frame, _ = read_sensor_csv(path, decimal=",", columns="v")
    assert frame["v"].tolist() == pytest.approx([i + 0.1 for i in range(48)])


def test_names_with_commas_are_texts_and_pairs_of_coordinates_are_composite(tmp_path: Path) -> None:
    _, report = read_sensor_csv(
        write(tmp_path, "time,place,spot,v", lambda i, t: f'{t},"MADRID, RETIRO","40.4,-3.{i}",{i}.5')
    )
    assert report.cells_set_aside == {"text": 48, "composite cell": 48}


@pytest.mark.parametrize(
    "line",
    [
        lambda i, t: f"{t:%Y-%m-%d %H:%M} {i},5 {i % 7},25",
        lambda i, t: f"{t:%Y-%m-%dT%H:%M}   {i}.5   {i % 7}.25",
        lambda i, t: f"{t:%d.%m.%Y %H:%M}\t{i}.5\t{i % 7}.25",
        lambda i, t: f"{t:%d %b %Y %H:%M:%S} GMT,{i}.5,{i % 7}.25",
    ],
)
def test_fields_are_parted_by_blanks_where_nothing_else_does(line: Any, tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(write(tmp_path, "", line))
    assert frame.iloc[:, -2].tolist() == [i + 0.5 for i in range(48)]
    assert frame.iloc[:, -1].tolist() == [i % 7 + 0.25 for i in range(48)]


@pytest.mark.parametrize(
    ("texts", "minutes"),
    [
        (["2024-05-30 10:00-05:00", "2024-05-30 11:00-05:00"], [-300, -300]),
        (["2024-11-03 01:00-04:00", "2024-11-03 01:00-05:00", "2024-11-03 02:00-05:00"], [-240, -300, -300]),
        (["2024-05-30 10:00-05"], [-300]),
    ],
)
def test_offsets_west_of_greenwich_are_no_ends_of_intervals(texts: list[str], minutes: list[int]) -> None:
    import pyarrow as pa

    found = TimeText(pa.array(texts)).instants()
    assert found.offset is not None
    assert found.offset.tolist() == minutes


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (",Roof of house 7,\ntime,temp,hum", ["temp", "hum"]),  # a title over all
        ("Project,Berlin,Mitte\ntime,temp,hum", ["temp", "hum"]),  # a note of the same width
        ("Tokyo,Tokyo,Tokyo\ntime,temp,hum", ["temp", "hum"]),
        (",roof,roof\ntime,temp,hum", ["temp", "hum"]),  # the same group for all tells nothing
        (",roof,cellar\n\ntime,temp,hum", ["temp", "hum"]),  # a blank line between
        (",roof,cellar\ntime,temp,hum", ["roof temp", "cellar hum"]),
        ("time,roof,cellar\n,temp,hum", ["roof", "cellar"]),  # distinct names need no second row
    ],
)
def test_a_line_above_the_names_is_joined_only_where_it_groups_columns(
    head: str, names: list[str], tmp_path: Path
) -> None:
    frame, report = read_sensor_csv(write(tmp_path, head, lambda i, t: f"{t},{i}.5,{i % 7}"))
    assert list(frame.columns) == names
    assert report.rows_used == 48
    above = [line for line in head.split("\n")[:-1] if line]
    assert len(report.preface) == (0 if names[0] != "temp" else len(above))


@pytest.mark.parametrize("ident", ["10203040", "20991231", "20240530", "202405"])
def test_numbers_of_devices_are_no_dates(ident: str, tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(write(tmp_path, "device,v,ts", lambda i, t: f"{ident},{i}.5,{int(t.timestamp())}"))
    assert frame.index[0] == pd.Timestamp("2024-05-30", tz="UTC")
    assert frame["v"].tolist() == [i + 0.5 for i in range(48)]


@pytest.mark.parametrize(
    ("name", "order"),
    [("AAAAMMJJHH", "ymd"), ("YYYYMM", "ym"), ("ddmmyy", "dmy"), ("MMDDYYYY", "mdy"), ("YYYY-MM-DD HH:mm", "ymd"), ("datum [JJJJMMTT]", None),
     ("comment", None), ("ammonia", None), ("Dummyyield", None), ("mmol", None), ("time", None), ("rain_mm", None)],
)  # fmt: skip
def test_a_name_spells_a_date_or_does_not(name: str, order: str | None) -> None:
    assert spelled(name) == order


def test_a_time_of_something_else_is_no_companion(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    late = rng.integers(1, 500, 48)
    frame, report = read_sensor_csv(
        write(tmp_path, "time,received_utc,v", lambda i, t: f"{t},{t + pd.Timedelta(seconds=int(late[i]))},{i}.5")
    )
    assert frame.index.tz is None
    assert report.time == "'time'"
    assert frame["v"].tolist() == [i + 0.5 for i in range(48)]


def test_large_numbers_that_are_no_times_stay_sensors(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(write(tmp_path, "time,energy", lambda i, t: f"{t},{1700000000 + i * 37}"))
    assert frame["energy"].tolist() == [1700000000 + i * 37 for i in range(48)]


@pytest.mark.parametrize("tz", [None, "Europe/Berlin"])
def test_midnight_written_as_24_on_each_day_is_no_25th_hour(tz: str | None, tmp_path: Path) -> None:
    days = pd.date_range("2024-05-28", periods=5)
    rows = [(day, hour) for day in days for hour in range(1, 25)]
    path = tmp_path / "data.csv"
    path.write_text("Date,Hour,v\n" + "".join(f"{day:%Y-%m-%d},{hour},{k}.5\n" for k, (day, hour) in enumerate(rows)))
    frame, report = read_sensor_csv(path, tz=tz)
    assert report.rows_used == len(rows)
    assert frame["v"].tolist() == [k + 0.5 for k in range(len(rows))]
    assert "numbered through" not in str(report.notes)


def test_hours_of_a_clock_that_changes_are_read_off_it(tmp_path: Path) -> None:
    index = pd.date_range("2024-03-30", periods=71, freq="h", tz="Europe/Berlin")
    path = tmp_path / "data.csv"
    path.write_text("Date,Hour,v\n" + "".join(f"{t:%Y-%m-%d},{t.hour},{k}.5\n" for k, t in enumerate(index)))
    frame, report = read_sensor_csv(path, tz="Europe/Berlin")
    assert report.set_aside == {}
    pd.testing.assert_index_equal(frame.index, index, check_names=False)


def test_a_stray_25_is_set_aside(tmp_path: Path) -> None:
    rows = [(day, hour) for day in pd.date_range("2024-05-28", periods=5) for hour in range(24)]
    rows[30] = (rows[30][0], 25)
    path = tmp_path / "data.csv"
    path.write_text("Date,Hour,v\n" + "".join(f"{day:%Y-%m-%d},{hour},{k}.5\n" for k, (day, hour) in enumerate(rows)))
    frame, report = read_sensor_csv(path)
    assert report.set_aside == {"hour that the day does not have": 1}
    assert frame["v"].isna().sum() == 1


def test_conflicting_rows_with_whole_numbers_are_no_series(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "data.csv"
    path.write_text("time,count,v\n" + "".join(f"{t},{rng.integers(0, 9)},{k}.5\n" for k, t in enumerate([*H, *H])))
    frame, report = read_sensor_csv(path)
    assert list(frame.columns) == ["count", "v"]
    assert report.set_aside == {"conflicting duplicate": 48}
    assert any("--series" in note for note in report.notes)


def test_places_that_move_are_sensors(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(
        "time,vehicle,lat,speed\n" + "".join(f"{t},{n},{50 + k / 100},{k}.5\n" for k, t in enumerate(H) for n in "AB")
    )
    frame, _ = read_sensor_csv(path)
    assert list(frame.columns) == ["A lat", "A speed", "B lat", "B speed"]


def test_sensors_named_like_years_stay_where_a_time_stands_beside_them(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(
        write(tmp_path, "time,2018,2019,2020,2021,2022", lambda i, t: f"{t},1.5,2.5,3.5,4.5,{i}.5")
    )
    assert list(frame.columns) == ["2018", "2019", "2020", "2021", "2022"]


@pytest.mark.parametrize("cells", [["on", "off"], ["A", "B", "1", "2", "3"], ["x7", "1", "2", "3", "x7", "x7", "x7"]])
def test_states_stay_texts(cells: list[str], tmp_path: Path) -> None:
    frame, report = read_sensor_csv(write(tmp_path, "time,state,v", lambda i, t: f"{t},{cells[i % len(cells)]},{i}.5"))
    assert "state" not in frame.columns or report.cells_set_aside.get("not a number", 0) > 0


@pytest.mark.parametrize("extra", [",3,4", ",NY,20.5", ",7 ok"])
def test_a_row_with_more_numbers_than_columns_is_set_aside(extra: str, tmp_path: Path) -> None:
    _, report = read_sensor_csv(write(tmp_path, "time,a,b", lambda i, t: f"{t},{i}.5,{i}" + (extra if i == 9 else "")))
    assert report.set_aside == {"more fields than columns": 1}


def test_a_remark_behind_numbers_that_are_shifted_is_no_remark(tmp_path: Path) -> None:
    _, report = read_sensor_csv(
        write(tmp_path, "time,a,b", lambda i, t: f"{t},{i}.5,{i}" if i != 9 else f"{t},New,{i},York")
    )
    assert report.set_aside == {"more fields than columns": 1}


@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [
        ("Zeit;Außentemperatur °C;Gerät\n", "latin-1", "windows-1252"), ("Heure;Température extérieure (°C);Énergie\n", "cp1252", "windows-1252"),
        ("Hora;Precipitación (mm);Año;m³/h;¿qué?\n", "cp1252", "windows-1252"), ("Tid;Lufttryck;Mätvärde på höjd\n", "latin-1", "windows-1252"),
        ("Czas;Ciśnienie;Wilgotność;Białowieża\n", "cp1250", "windows-1250"), ("Время;Температура воздуха\n", "cp1251", "windows-1251"),
        ("日時,気温,湿度\n", "cp932", "cp932"), ("时间,温度,湿度\n", "gb18030", "gb18030"), ("일시,기온,습도\n", "cp949", "cp949"), ("時間,溫度,濕度\n", "big5", "big5"),
    ],
)  # fmt: skip
def test_the_words_of_a_region_tell_its_encoding(text: str, encoding: str, found: str) -> None:
    got = decode("x", (text * 3).encode(encoding))
    assert got.encoding == found
    assert got.data.decode() == text * 3


def test_a_station_without_a_sensor_is_told_from_a_constant(tmp_path: Path) -> None:
    frame, report = read_sensor_csv(write(tmp_path, "time,a,b,c,d", lambda i, t: f"{t},-999,9999,-200,{i}.5"))
    assert report.cells_set_aside == {"sentinel -999": 48}
    assert (frame["b"] == 9999).all()
    assert (frame["c"] == -200).all()


def test_sensors_named_by_depth_or_clock_stay_without_a_date_or_an_even_day(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(write(tmp_path, "time,0:10,0:20,0:40", lambda i, t: f"{t},1.5,2.5,{i}.5"))
    assert list(frame.columns) == ["0:10", "0:20", "0:40"]


def test_a_line_of_data_that_counts_up_like_years_is_data(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("".join(f"{t},{2015 + k % 3},{2016 + k},{2017 + k},{2018 + k}\n" for k, t in enumerate(H)))
    frame, _ = read_sensor_csv(path)
    assert len(frame) == len(H)


def test_a_count_beside_hours_that_is_no_quarter_stays_a_sensor(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(
        write(tmp_path, "Date,Hour,interval,v", lambda i, t: f"{t:%Y-%m-%d},{t.hour},{i % 5},{i}.5")
    )
    assert list(frame.columns) == ["interval", "v"]
    assert list(frame.index) == list(H)


def test_a_day_of_a_month_that_is_not_that_of_the_time_stays_a_sensor(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(write(tmp_path, "time,day,v", lambda i, t: f"{t},{i},{i}.5"))
    assert list(frame.columns) == ["day", "v"]


def test_dates_without_a_clock_among_times_are_midnights(tmp_path: Path) -> None:
    frame, report = read_sensor_csv(
        write(tmp_path, "time,v", lambda i, t: f"{t:%d.%m.%Y}{'' if t.hour == 0 else f' {t:%H:%M}'},{i}.5")
    )
    assert report.rows_used == 48
    assert list(frame.index) == list(H)


@pytest.mark.parametrize("head", ["source,time,v", "file,time,v", "version,time,v"])
def test_a_column_named_like_a_preface_keeps_its_header(head: str, tmp_path: Path) -> None:
    frame, report = read_sensor_csv(write(tmp_path, head, lambda i, t: f"x{i % 2},{t},{i}.5"))
    assert list(frame.columns) == ["v"]
    assert report.header_line == 1


def test_the_second_of_two_dates_is_read_where_only_it_varies(tmp_path: Path) -> None:
    frame, _ = read_sensor_csv(
        write(
            tmp_path,
            "installed,read,v",
            lambda i, t: f"2020-01-01,{t:%Y-%m-%d},{i}.5",
            pd.date_range("2024-01-01", periods=20),
        )
    )
    assert frame.index[0] == pd.Timestamp("2024-01-01")


REFUSED = {
    "digits that are a date in two ways": ("DATE,TIME,v\n" + "".join(f"121011,{h:02d}00,{h}\n" for h in range(20)), "line 2: '121011' in 'DATE' may be a date in several ways; pass --time 'DATE' 'TIME' with --time-format '%y%m%d %H%M'"),
    "hours numbered to 25": ("Date,Hour,v\n" + "".join(f"2024-10-{d},{h},{h}\n" for d, n in ((26, 24), (27, 25), (28, 24)) for h in range(1, n + 1)), "line 26: the hours of 2024-10-27 count to 25.*pass --tz"),
    "hours numbered to 23": ("Date,Hour,v\n" + "".join(f"2024-{d},{h},{h}\n" for d, n in (("03-30", 24), ("03-31", 23), ("04-01", 24)) for h in range(1, n + 1)), "line 26: the hours of 2024-03-31 count to 23.*pass --tz"),
    "a count without a start": ("Time (s),v\n" + "".join(f"{k}.5,{k}\n" for k in range(20)), "'Time \\(s\\)' holds numbers that are no date"),
    "nameless columns": ("".join(f"{k}.5,a,{k}\n" for k in range(20)), "columns: 'column_1', 'column_2', 'column_3'; the file names none, so they bear their numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_open_is_asked_for(name: str, tmp_path: Path) -> None:
    text, expected = REFUSED[name]
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(InputError, match=expected):
        read_sensor_csv(tmp_path / "data.csv")


def test_the_report_lists_rows_and_cells_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "time,a", lambda i, t: f"{'' if i == 5 else t},{'oops' if i == 7 else i}")
    _, report = read_sensor_csv(path)
    rows, cells = report.text().split("first rows set aside\n")[1].split("\n\nfirst cells set aside\n")
    assert rows == "  line 7: no time: ,5"
    assert cells == "  line 9: not a number in a: oops"


@pytest.mark.parametrize("by_sensor", [False, True])
@pytest.mark.parametrize("head", ["sensor,date,power,hum", "id,date,power,", "sensor,date,value,quality"])
def test_daily_values_of_several_sensors_that_look_like_clocks_are_values(
    head: str, by_sensor: bool, tmp_path: Path
) -> None:
    days = pd.date_range("2024-01-01", periods=28)
    rows = [(f"S{n}", day, 100 * n + j) for j, day in enumerate(days) for n in (1, 2, 3)]  # 101 might be 01:01
    rows = sorted(rows) if by_sensor else rows
    name = head.split(",")[3]
    lines = [f"{s},{day:%Y-%m-%d},{value}" + {"hum": ",50.5", "quality": ",1", "": ""}[name] for s, day, value in rows]
    path = tmp_path / "daily.csv"
    path.write_text("\n".join([head.rstrip(","), *lines]) + "\n")
    frame, report = read_sensor_csv(path)
    assert report.step == "D"
    for n in (1, 2, 3):
        column = f"S{n} power" if name == "hum" else f"S{n}"
        assert frame[column].tolist() == [100 * n + j for j in range(28)]


def test_a_table_on_its_side_of_daily_counts_is_read_as_values(tmp_path: Path) -> None:
    days = pd.date_range("2024-01-01", periods=28)
    path = tmp_path / "side.csv"
    lines = ["Sensor," + ",".join(f"{day:%Y-%m-%d}" for day in days)]
    lines += [f"S{n}," + ",".join(str(100 * n + j) for j in range(28)) for n in (1, 2, 3)]
    path.write_text("\n".join(lines) + "\n")
    frame, _ = read_sensor_csv(path)
    assert frame["S2"].tolist() == [200 + j for j in range(28)]


def test_hours_are_the_clock_of_several_sensors_all_the_same(tmp_path: Path) -> None:
    times = pd.date_range("2024-01-01", periods=96, freq="h")
    path = tmp_path / "hours.csv"
    path.write_text(
        "sensor,date,hour,value\n"
        + "".join(f"{s},{t:%Y-%m-%d},{t.hour},{t.hour + n}.5\n" for t in times for n, s in enumerate("AB"))
    )
    frame, report = read_sensor_csv(path)
    assert report.step == "h"
    assert frame["B"].tolist() == [t.hour + 1.5 for t in times]
