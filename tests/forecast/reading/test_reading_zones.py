# ruff: noqa: E501
"""Clocks and zones, beside what pandas knows of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.errors import InputError
from mha_apps.forecast.reading import read_sensor_csv
from mha_apps.forecast.reading.zones import localise, stated_zone, summer_signature, to_wall, zone_of

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Sydney", "Europe/London", "America/Santiago"]


def local_file(
    path: Path,
    zone: str,
    freq: str,
    start: str = "2023-01-01",
    end: str = "2024-12-31 23:45",
    stamp: str = "%Y-%m-%d %H:%M",
) -> pd.DatetimeIndex:
    index = pd.date_range(start, end, freq=freq, tz=zone, name="time")
    pd.DataFrame({"time": index.strftime(stamp), "v": np.arange(len(index)) % 97 + 0.5}).to_csv(path, index=False)
    return index


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("freq", ["15min", "h"])
def test_two_years_of_local_time_come_back_hour_by_hour(zone: str, freq: str, tmp_path: Path) -> None:
    index = local_file(tmp_path / "x.csv", zone, freq)
    frame, report = read_sensor_csv(tmp_path / "x.csv", tz=zone)
    pd.testing.assert_index_equal(frame.index, index)
    assert frame.index.freq == index.freq
    assert report.set_aside == {}
    assert report.repeated_hour == 2 * 2 * (4 if freq == "15min" else 1)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_days_of_23_and_25_hours_keep_their_rows(zone: str, tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", zone, "h")
    frame, _ = read_sensor_csv(tmp_path / "x.csv", tz=zone)
    hours = frame["v"].groupby(frame.index.date).count()
    assert sorted(hours.unique()) == [23, 24, 25]
    assert (hours == 23).sum() == (hours == 25).sum() == 2


@pytest.mark.parametrize("zone", ZONES[:3])
@pytest.mark.parametrize("order", ["forwards", "backwards", "sorted by the clock"])
def test_the_order_of_the_file_tells_the_repeated_hour_apart(zone: str, order: str) -> None:
    index = pd.date_range("2024-01-01", "2024-12-31", freq="30min", tz=zone)
    utc = index.as_unit("us").asi8
    wall = index.tz_localize(None).as_unit("us").asi8
    rows = {
        "forwards": np.arange(len(utc)),
        "backwards": np.arange(len(utc))[::-1],
        "sorted by the clock": np.argsort(wall, kind="stable"),
    }[order]
    told = localise(wall[rows], zone_of(zone))
    np.testing.assert_array_equal(told.utc, utc[rows])
    assert not told.missing.any()
    assert not told.ambiguous.any()


@pytest.mark.parametrize("zone", ZONES)
def test_the_clock_of_a_zone_agrees_with_pandas(zone: str) -> None:
    index = pd.date_range("1995-01-01", "2030-01-01", freq="7h", tz=zone)
    np.testing.assert_array_equal(
        to_wall(index.as_unit("us").asi8, zone_of(zone)), index.tz_localize(None).as_unit("us").asi8
    )


CHANGES = [
    ("Europe/Berlin", "2024-03-31"), ("Europe/Berlin", "2024-10-27"), ("America/Santiago", "2024-09-08"),
    ("America/Santiago", "2024-04-07"), ("Australia/Lord_Howe", "2024-04-07"), ("Africa/Casablanca", "2024-03-10"),
    ("America/Boa_Vista", "2000-10-08"), ("Africa/Cairo", "2010-09-10"),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("rows", [1, 300])
def test_a_file_may_begin_at_any_time_around_a_change_of_the_clock(zone: str, day: str, rows: int) -> None:
    for hours in range(-6 * 24, 10 * 24, 4):
        start = pd.Timestamp(day, tz="UTC") + pd.Timedelta(hours=hours)
        index = pd.date_range(start, periods=rows, freq="h").tz_convert(zone).as_unit("us")
        wall = index.tz_localize(None)
        np.testing.assert_array_equal(to_wall(index.asi8, zone_of(zone)), wall.asi8)
        once = wall.tz_localize(zone, ambiguous="NaT").notna()
        np.testing.assert_array_equal(localise(wall.asi8, zone_of(zone)).utc[once], index.asi8[once])


def test_the_first_rows_after_a_change_are_read_at_their_hour(tmp_path: Path) -> None:
    for start in ("2024-04-03 12:00", "2024-10-30 12:00"):
        index = local_file(
            tmp_path / "x.csv", "Europe/Berlin", "h", start, str(pd.Timestamp(start) + pd.Timedelta("8D"))
        )
        frame, _ = read_sensor_csv(tmp_path / "x.csv", tz="Europe/Berlin")
        pd.testing.assert_index_equal(frame.index, index)
    days = pd.date_range("2024-09-11", periods=200, tz="America/Santiago")
    pd.DataFrame({"time": [day.isoformat() for day in days], "v": np.arange(200) % 7}).to_csv(
        tmp_path / "x.csv", index=False
    )
    frame, _ = read_sensor_csv(tmp_path / "x.csv", tz="America/Santiago")
    assert list(frame.index) == list(days)


@pytest.mark.parametrize(
    ("zone", "rule"), [("Europe/Berlin", "EU"), ("America/New_York", "US"), ("Australia/Sydney", "Australian")]
)
def test_plain_times_with_the_marks_of_summer_time_stop(zone: str, rule: str, tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", zone, "h")
    with pytest.raises(InputError, match=rf"look like {rule} rules.*pass --tz, such as --tz {zone}") as error:
        read_sensor_csv(tmp_path / "x.csv")
    assert str(tmp_path / "x.csv") in str(error.value)
    assert "line " in str(error.value)


def test_a_doubled_hour_alone_stops_too(tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", "Europe/Berlin", "15min", "2024-10-20", "2024-11-05")
    with pytest.raises(InputError, match="EU rules"):
        read_sensor_csv(tmp_path / "x.csv")


def test_a_missing_hour_alone_is_said(tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", "Europe/Berlin", "15min", "2024-03-20", "2024-04-05")
    _, report = read_sensor_csv(tmp_path / "x.csv")
    assert any("2024-03-31" in note and "--tz" in note for note in report.notes)


def test_plain_times_without_summer_time_are_left_alone(tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", "UTC", "h")
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    assert frame.index.tz is None
    assert report.zone is None
    assert not any("summer" in note for note in report.notes)


def test_gaps_elsewhere_are_no_summer_time(tmp_path: Path) -> None:
    local_file(tmp_path / "x.csv", "UTC", "h")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("2024-03-30 02", "2023-05-07 11", "2024-10-26 02"))]
    (tmp_path / "x.csv").write_text("\n".join(kept) + "\n")
    frame, _ = read_sensor_csv(tmp_path / "x.csv")
    assert int(frame["v"].isna().sum()) == 3


def test_sensors_of_a_long_file_are_told_apart_each_by_its_own_order(tmp_path: Path) -> None:
    index = pd.date_range("2024-10-26 22:00", periods=12, freq="h", tz="Europe/Berlin")
    clock = index.strftime("%Y-%m-%d %H:%M")
    rows = [(t, "a", k) for k, t in enumerate(clock)] + [(t, "b", k + 100) for k, t in enumerate(clock)]
    pd.DataFrame(rows, columns=["time", "sensor", "value"]).to_csv(tmp_path / "x.csv", index=False)
    frame, report = read_sensor_csv(tmp_path / "x.csv", tz="Europe/Berlin")
    assert frame["a"].tolist() == list(range(12))
    assert frame["b"].tolist() == list(range(100, 112))
    assert report.repeated_hour == 4


def test_mixed_offsets_become_utc_and_that_is_said(tmp_path: Path) -> None:
    index = pd.date_range("2024-03-30", "2024-04-02", freq="h", tz="Europe/Berlin")
    pd.DataFrame({"time": [t.isoformat() for t in index], "v": 1.5}).to_csv(tmp_path / "x.csv", index=False)
    frame, report = read_sensor_csv(tmp_path / "x.csv")
    assert str(frame.index.tz) == "UTC"
    assert any("kept as UTC" in note for note in report.notes)
    assert report.offsets == ["UTC+01:00", "UTC+02:00"]
    pd.testing.assert_index_equal(frame.index, index.tz_convert("UTC"), check_names=False)


@pytest.mark.parametrize(
    ("name", "zone"),
    [("time (UTC)", "UTC"), ("Date Time, GMT-05:00", "-05:00"), ("MTU (CET/CEST)", "Europe/Berlin"), ("HourUTC", "UTC"),
     ("Zeit [Europe/Vienna]", "Europe/Vienna"), ("time", None), ("estimate", None), ("cet_timestamp", "CET")],
)  # fmt: skip
def test_a_zone_is_found_in_the_name_of_a_column(name: str, zone: str | None) -> None:
    found = stated_zone([name], [])
    assert (found[0] if found else None) == zone


@pytest.mark.parametrize(
    ("line", "zone"),
    [("# Timezone: UTC+1", "+01:00"), ("All times in UTC", "UTC"), ("# tz=Europe/Berlin", "Europe/Berlin"), ("Zeitzone: MEZ", "MEZ"),
     ("latitude,utc_offset_seconds,timezone", None), ("Station Berlin", None)],
)  # fmt: skip
def test_a_zone_is_found_above_the_data(line: str, zone: str | None) -> None:
    found = stated_zone([], [line])
    assert (found[0] if found else None) == zone


def test_a_name_like_cet_means_a_fixed_offset_unless_the_clock_shows_summer_time(tmp_path: Path) -> None:
    index = local_file(tmp_path / "x.csv", "Europe/Berlin", "h")
    text = (tmp_path / "x.csv").read_text()
    (tmp_path / "x.csv").write_text(text.replace("time,", "time (CET),", 1))
    frame, _ = read_sensor_csv(tmp_path / "x.csv")
    pd.testing.assert_index_equal(frame.index, index)
    local_file(tmp_path / "y.csv", "UTC", "h")
    (tmp_path / "y.csv").write_text((tmp_path / "y.csv").read_text().replace("time,", "time (CET),", 1))
    frame, _ = read_sensor_csv(tmp_path / "y.csv")
    assert str(frame.index.tz) == "UTC+01:00"


def test_no_rule_is_seen_in_steps_longer_than_an_hour() -> None:
    wall = pd.date_range("2020-01-01", "2024-01-01", freq="3h").as_unit("us").asi8
    assert summer_signature(wall) is None


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(InputError, match="--tz 'Europe/Berlni'"):
        read_sensor_csv("nowhere.csv", tz="Europe/Berlni")


@pytest.mark.parametrize("first", [0, 1])
def test_hours_counted_through_the_day_of_25_keep_their_rows(first: int, tmp_path: Path) -> None:
    times = pd.date_range("2024-01-01", "2025-01-01", freq="h", inclusive="left", tz="Europe/Madrid")
    days = times.normalize()
    hours = (times - days) // pd.Timedelta("1h") + first
    rows = [f"{day:%d/%m/%Y};{hour};{k}.5" for k, (day, hour) in enumerate(zip(days, hours, strict=True))]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["Fecha;Hora;v", *rows, ""]))
    frame, report = read_sensor_csv(path, tz="Europe/Madrid")
    assert report.rows_used == len(times)
    assert frame["v"].tolist() == [k + 0.5 for k in range(len(times))]
    assert frame.index[0] in (times[0], times[0] + pd.Timedelta(hours=first))
