# ruff: noqa: E501
"""Files as weather services, markets, meters and loggers write them, rebuilt in small."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

H = pd.date_range("2024-05-30 00:00", periods=48, freq="h")
Q = pd.date_range("2024-05-30 00:00", periods=96, freq="15min")
MINUTE = pd.Timedelta(minutes=1)


@dataclass
class Export:
    """A file, and what must be read from it."""

    text: str
    columns: list[str]
    first: str
    """First time, with its zone."""
    rows: int
    """Rows used."""
    step: str = "h"
    zone: str | None = None
    aside: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    """Missing cells of columns that have any."""
    encoding: str = "utf-8"


def each(index: pd.DatetimeIndex, line: str) -> str:
    """One line for each time: ``line`` is formatted with t (the time), e (a minute earlier, for hours that end) and i."""
    return "".join(
        line.format(t=t, e=t - MINUTE, i=i, n=t + pd.Timedelta(minutes=15), h24=t.hour or 24, m3=i % 3) + "\n"
        for i, t in enumerate(index)
    )


EXPORTS: dict[str, Export] = {
    "British air quality, hours ending at 24:00": Export(
        "Aberdeen\nData supplied on 1/1/2024\nAll Data GMT hour ending\nStatus: R = Ratified\n\nDate,time,Ozone,status,unit\n" + each(H[1:], "{e:%d-%m-%Y},{h24:02d}:00,4{m3}.5,R,ugm-3") + "End\n",
        ["Ozone"], "2024-05-30 01:00:00+00:00", 47, zone="UTC", aside={"no time": 1},
    ),
    "integrated surface data without names": Export(
        each(H, "{t.year} {t.month:02d} {t.day:02d} {t.hour:02d}   -2{m3}   -7{m3} 10210 -9999 -9999"),
        ["column_5", "column_6", "column_7", "column_8", "column_9"], "2024-05-30 00:00:00", 48,
    ),
    "British monthly history with marks of quality": Export(
        "Armagh\nLocation 287800E, Lat 54.352 Lon -6.649\nEstimated data is marked with a * after the value.\n   yyyy  mm   tmax     sun\n              degC   hours\n"
        + "".join(f"   {1900 + i // 12}  {i % 12 + 1:2d}   {5 + i % 12}.1{'*' if i == 7 else ''}  {'---' if i < 5 else '54.3#'}\n" for i in range(36)),
        ["tmax", "sun"], "1900-01-01 00:00:00", 36, "MS", missing={"sun": 5},
    ),
    "German market data with thousands": Export(
        "Datum von;Datum bis;Netzlast [MWh] Originalauflösungen\n" + each(Q, "{t:%d.%m.%Y %H:%M};{n:%d.%m.%Y %H:%M};1{m3}.345,25"),
        ["Netzlast [MWh] Originalauflösungen"], "2024-05-30 00:00:00", 96, "15min",
    ),
    "a solar service with notes below the data": Export(
        "Latitude (decimal degrees):\t45.000\nElevation (m):\t250\n\ntime,P,G(i),Int\n" + each(H, "{t:%Y%m%d}:{t:%H}10,{i}.5,0.{m3},0.0") + "\nP: PV system power (W)\nInt: 1 means solar radiation values are reconstructed\n\nSolar (c) 2001-2024\n",
        ["P", "G(i)", "Int"], "2024-05-30 00:10:00", 48, aside={"time not understood": 3},
    ),
    "a weather service that states its zone in a row of its own": Export(
        "latitude,longitude,elevation,utc_offset_seconds,timezone,timezone_abbreviation\n52.52,13.42,38.0,7200,Europe/Berlin,CEST\n\ntime,temperature_2m (°C)\n" + each(H, "{t:%Y-%m-%dT%H:%M},{i}.1"),
        ["temperature_2m (°C)"], "2024-05-30 00:00:00+02:00", 48, zone="Europe/Berlin",
    ),
    "an American weather station with 12:00a": Export(
        "\t\tTemp\tHi\tOut\nDate\tTime\tOut\tTemp\tHum\n" + "".join(f"{t.month}/{t.day}/{t:%y}\t{t.hour % 12 or 12}:{t:%M}{'a' if t.hour < 12 else 'p'}\t6{i % 3}.1\t61.{i % 2}\t{'---' if i == 2 else 50 + i % 3}\n" for i, t in enumerate(H)),
        ["Temp Out", "Hi Temp", "Out Hum"], "2024-05-30 00:00:00", 48, missing={"Out Hum": 1},
    ),
    "Dutch weather with a commented header and hours from 1 to 24": Export(
        "# SOURCE: ROYAL INSTITUTE\n# YYYYMMDD = date (YYYY=year,MM=month,DD=day);\n# \n# STN,YYYYMMDD,   HH,   DD,    T\n# \n" + each(H[1:], "  260,{e:%Y%m%d},{h24:5d},  10{m3},  12{m3}"),
        ["STN", "DD", "T"], "2024-05-30 01:00:00", 47,
    ),
    "a bulk export without names, date and hour": Export(
        each(H, "{t:%Y-%m-%d},{t.hour},{i}.1,,5{m3},"), ["column_3", "column_5"], "2024-05-30 00:00:00", 48,
    ),
    "an inverter with seven lines above the data": Export(
        "sep=;\nVersion CSV1|Tool SB|Linebreaks CR/LF|Delimiter semicolon\n\n;SN: 2110;SN: 2110\n;SB 4000;SB 4000\n;Total yield;Power\n;Counter;Analog\ndd.MM.yyyy HH:mm;kWh;kW\n" + each(Q, "{t:%d.%m.%Y %H:%M};1000{m3},25;0,12{m3}"),
        ["Total yield Counter", "Power Analog"], "2024-05-30 00:00:00", 96, "15min",
    ),
    "a process control archive": Export(
        '"VarName"\t"TimeString"\t"VarValue"\t"Validity"\t"Time_ms"\n' + "".join(f'"{n}"\t"{t:%d.%m.%Y %H:%M:%S}"\t{i % 5},5\t1\t{45442000000 + i * 41666},0\n' for i, t in enumerate(H) for n in ("Temp1", "Druck 2")) + '"$RT_OFF$"\t"31.05.2024 23:30:00"\t0\t2\t45444000000\n',
        ["Temp1", "Druck 2"], "2024-05-30 00:00:00", 96, aside={"the logger's own remark": 1},
    ),
    "a dashboard with units in its cells": Export(
        '"Time","Living room","Kitchen"\n' + each(H, "{t:%Y-%m-%d %H:%M:%S},2{m3}.5 °C,21 °C"), ["Living room", "Kitchen"], "2024-05-30 00:00:00", 48,
    ),
    "an electricity bill with start and end times": Export(
        'Name,JOHN DOE\nAddress,"1 MAIN ST, TOWN"\nService,Service 1\n\nTYPE,DATE,START TIME,END TIME,USAGE,UNITS,COST\n' + each(Q, "Electric usage,{t:%Y-%m-%d},{t:%H:%M},{n:%H:%M},0.{m3}5,kWh,$0.0{m3}"),
        ["USAGE", "COST"], "2024-05-30 00:00:00", 96, "15min",
    ),
    "an Iberian market without names, hours from 1 to 24": Export(
        "MARGINALPDBC;\n" + "".join(f"{t.year};{t.month:02d};{t.day:02d};{t.hour + 1};{50 + i % 7}.5;{i % 7}.25;\n" for i, t in enumerate(H)) + "*\n",
        ["column_5", "column_6"], "2024-05-30 01:00:00", 48, aside={"no time": 1},
    ),
    "French grid data, tabs and Latin-1": Export(
        "Périmètre\tNature\tDate\tHeures\tConsommation\n" + each(Q, "France\tDonnées\t{t:%Y-%m-%d}\t{t:%H:%M}\t5000{m3}") + "RTE ne pourra être tenu responsable\n",
        ["Consommation"], "2024-05-30 00:00:00", 96, "15min", aside={"no time": 1}, encoding="latin-1",
    ),
    "Brazilian weather, 0000 UTC and ,8": Export(
        "REGIAO:;CO\nUF:;DF\nLATITUDE:;-15,78944444\nData;Hora UTC;PRECIPITAÇÃO TOTAL, HORÁRIO (mm);TEMPERATURA (°C);\n" + "".join(f"{t:%Y/%m/%d};{t:%H}00 UTC;{'-9999' if i in (3, 4) else ',8'};{20 + i % 4},5;\n" for i, t in enumerate(H)),
        ["PRECIPITAÇÃO TOTAL, HORÁRIO (mm)", "TEMPERATURA (°C)"], "2024-05-30 00:00:00+00:00", 48, zone="UTC", missing={"PRECIPITAÇÃO TOTAL, HORÁRIO (mm)": 2}, encoding="latin-1",
    ),
    "Danish prices of two areas": Export(
        "HourUTC;HourDK;PriceArea;SpotPriceEUR\n" + "".join(f"{t:%Y-%m-%d %H:%M};{t + pd.Timedelta(hours=2):%Y-%m-%d %H:%M};{a};{i},5\n" for i, t in enumerate(H) for a in ("DK1", "DK2")),
        ["DK1", "DK2"], "2024-05-30 00:00:00+00:00", 96, zone="UTC",
    ),
    "European climate data behind a preface": Export(
        "EUROPEAN CLIMATE ASSESSMENT, file created on 01-01-2024\nTHESE DATA CAN BE USED FREELY\n\nFILE FORMAT (MISSING VALUE CODE IS -9999):\n\n01-06 SOUID: Source identifier\n08-15 DATE : Date YYYYMMDD\n\nThis is the blended series\n\n SOUID,    DATE,   TG, Q_TG\n"
        + "".join(f"100805,{t:%Y%m%d},{'-9999' if i in (3, 9) else f'{i % 7 * 10 - 20:5d}'},    {9 if i in (3, 9) else 0}\n" for i, t in enumerate(pd.date_range("2024-01-01", periods=60))),
        ["SOUID", "TG", "Q_TG"], "2024-01-01 00:00:00", 60, "D", missing={"TG": 2},
    ),
    "an air quality archive, long, newest first": Export(
        "location,city,utc,local,parameter,value,unit,latitude\n" + "".join(f"Site A,X,{t:%Y-%m-%dT%H:%M:%SZ},{t + pd.Timedelta(hours=2):%Y-%m-%dT%H:%M:%S}+02:00,{p},{i % 7 + 3},µg/m³,52.5\n" for i, t in list(enumerate(H))[::-1] for p in ("no2", "pm25")),
        ["no2", "pm25"], "2024-05-30 00:00:00+00:00", 96, zone="UTC",
    ),
    "a solar resource file with a table of its site": Export(
        "Source,Location ID,City,State,Latitude,Longitude,Time Zone,Elevation\nNSRDB,145809,-,-,39.73,-105.18,-7,1820\nYear,Month,Day,Hour,Minute,DHI,Temperature\n" + each(H, "{t.year},{t.month},{t.day},{t.hour},30,{i},{m3}.5"),
        ["DHI", "Temperature"], "2024-05-30 00:30:00", 48,
    ),
    "a typical year, 24:00 and month first": Export(
        '723170,"GREENSBORO",NC,-5.0,36.100,-79.950,273\nDate (MM/DD/YYYY),Time (HH:MM),ETR (W/m^2),Dry-bulb (C)\n' + each(H[1:], "{e:%m/%d/%Y},{h24:02d}:00,{i},{m3}.5"),
        ["ETR (W/m^2)", "Dry-bulb (C)"], "2024-05-30 01:00:00", 47,
    ),
    "building simulation weather": Export(
        "LOCATION,Chicago,IL,USA,TMY3,725300,41.98,-87.92,-6.0,201.0\nDESIGN CONDITIONS,1,Climate\nTYPICAL/EXTREME PERIODS,6,Summer\nGROUND TEMPERATURES,3,.5\nHOLIDAYS/DAYLIGHT SAVINGS,No,0,0,0\nCOMMENTS 1,Custom\nCOMMENTS 2, -- Ground\nDATA PERIODS,1,1,Data,Sunday, 1/ 1,12/31\n"
        + each(H[1:], "{e.year},{e.month},{e.day},{h24},60,?9?9?9?9E0,{m3}.2,{i}.0,81,99500"),
        ["column_5", "column_7", "column_8", "column_9", "column_10"], "2024-05-30 01:00:00", 47,
    ),
    "river levels with a zone in each row": Export(
        "# ---- WARNING ----\n#\nagency_cd\tsite_no\tdatetime\ttz_cd\t69928_00060\t69928_00060_cd\n5s\t15s\t20d\t6s\t14n\t10s\n"
        + "".join(f"USGS\t01646500\t{t:%Y-%m-%d %H:%M}\t{t.tzname()}\t{1000 + i}\tA\n" for i, t in enumerate(pd.date_range("2024-11-03", periods=20, freq="15min", tz="America/New_York"))),
        ["site_no", "69928_00060"], "2024-11-03 00:00:00-04:00", 20, "15min", "America/New_York",
    ),
    "a buoy with two commented headers, newest first": Export(
        "#YY  MM DD hh mm WDIR WSPD  WVHT   DPD\n#yr  mo dy hr mn degT m/s     m   sec\n" + "".join(f"{t.year} {t.month:02d} {t.day:02d} {t.hour:02d} 50 {100 + i} {i % 5}.2 {'99.00' if i % 2 else '1.50'} {'99.00' if i % 2 else '8.0'}\n" for i, t in enumerate(H[::-1])),
        ["WDIR", "WSPD", "WVHT", "DPD"], "2024-05-30 00:50:00", 48, missing={"WVHT": 24, "DPD": 24},
    ),
    "half hours numbered through the day": Export(
        "Settlement Date,Settlement Period,ND\n" + "".join(f"{d:%d-%b-%Y},{p},{30000 + p * 10}\n" for d in pd.date_range("2024-05-30", periods=3) for p in range(1, 49)),
        ["ND"], "2024-05-30 00:00:00", 144, "30min",
    ),
    "smart meters, one after the other": Export(
        "LCLid,stdorToU,DateTime,KWH/hh (per half hour) \n" + "".join(f"{m},Std,{t:%Y-%m-%d %H:%M:%S}.0000000,{'Null' if i == 5 else f' 0.{i % 9}1 '}\n" for m in ("MAC000002", "MAC000003") for i, t in enumerate(pd.date_range("2012-10-12 00:30", periods=60, freq="30min"))),
        ["MAC000002", "MAC000003"], "2012-10-12 00:30:00", 120, "30min", missing={"MAC000002": 1, "MAC000003": 1},
    ),
    "Swedish weather behind tables of the station": Export(
        "Stationsnamn;Stationsnummer;Mäthöjd\nStockholm;98210;2.0\n\nTidsperiod (fr.o.m);Tidsperiod (t.o.m);Höjd\n1996-10-01 00:00:00;2024-05-30 00:00:00;43.1\n\nDatum;Tid (UTC);Lufttemperatur;Kvalitet;;Tidsutsnitt:\n" + each(H, "{t:%Y-%m-%d};{t:%H:%M:%S};{m3}.5;G;;"),
        ["Lufttemperatur", "Tidsutsnitt:"], "2024-05-30 00:00:00+00:00", 48, zone="UTC", missing={"Tidsutsnitt:": 48},
    ),
    "Finnish weather, a zone column": Export(
        "Vuosi,Kk,Pv,Klo,Aikavyöhyke,Ilman lämpötila (degC)\n" + each(H, "{t.year},{t.month},{t.day},{t:%H:%M},UTC,{m3}.5"), ["Ilman lämpötila (degC)"], "2024-05-30 00:00:00+00:00", 48, zone="UTC",
    ),
    "Japanese weather": Export(
        "ダウンロードした時刻：2024/06/01 10:00:00\n\n,東京,東京\n年月日時,気温(℃),湿度(％)\n" + "".join(f"{t.year}/{t.month}/{t.day} {t.hour}:00:00,{20 + i % 5}.5,8\n" for i, t in enumerate(H)),
        ["気温(℃)", "湿度(％)"], "2024-05-30 00:00:00", 48,
    ),
    "two years of a clock with decimal commas among commas": Export(
        "time,a,b\n" + each(H, "{t:%Y-%m-%d %H:%M},2{m3},5,{i},25"), ["a", "b"], "2024-05-30 00:00:00", 48,
    ),
    "many devices that report at times of their own": Export(
        "ts,device,temp\n" + "".join(f'"{1717027200 + 60 * i + 7 * j}","{d}","2{i % 3}.7"\n' for i in range(60) for j, d in enumerate(("b8:27", "00:0f"))),
        [], "2024-05-30 00:00:00+00:00", 120, "min", "UTC",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_without_an_option(name: str, tmp_path: Path) -> None:
    export = EXPORTS[name]
    (tmp_path / "export.csv").write_bytes(export.text.encode(export.encoding))
    frame, report = read_sensor_csv(tmp_path / "export.csv")
    stamps = frame.index if report.layout == "wide" else frame["ds"]
    assert report.step == export.step
    assert report.zone == export.zone
    assert str(stamps[0]) == export.first
    assert report.rows_used == export.rows
    assert report.set_aside == export.aside
    assert report.rows_read == report.rows_used + sum(report.set_aside.values())
    assert report.cells_read == report.cells_used + sum(report.cells_set_aside.values())
    if report.layout == "wide":
        assert list(frame.columns) == export.columns
        lost = {column: int(count) for column, count in frame.isna().sum().items() if count}
        if "integrated" not in name:
            assert lost == export.missing
        assert report.cells_used == np.isfinite(frame.to_numpy()).sum()
    else:
        assert frame["unique_id"].nunique() == 2
