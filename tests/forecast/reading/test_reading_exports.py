# ruff: noqa: E501
"""Exports of weather services, markets, loggers and spreadsheets, each with its exact frame and account.

``v(i)`` are values that any dialect can write; each case says how its file writes them, and the frame is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

N = float("nan")
H = pd.date_range("2024-05-30", periods=30, freq="h")
T10 = pd.date_range("2024-05-30", periods=30, freq="10min")
D = pd.date_range("2024-01-01", periods=40)
BERLIN = "Europe/Berlin"


def a(i: int) -> float:
    return 10 + i % 7 + i % 10 / 10


def b(i: int) -> float:
    return 50 + i % 9


@dataclass
class Export:
    text: str
    columns: dict[str, Callable[[int], float]]
    index: pd.DatetimeIndex = field(default_factory=lambda: H)
    zone: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    """Rows set aside."""
    cells: dict[str, int] = field(default_factory=dict)
    """Cells set aside, other than those of rows set aside."""
    units: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Words that a note must hold."""
    encoding: str = "utf-8"
    options: dict[str, Any] = field(default_factory=dict)


def each(line: Callable[[int, pd.Timestamp], str], index: pd.DatetimeIndex = H) -> str:
    return "".join(line(i, t) + "\n" for i, t in enumerate(index))


def zoned(start: str, periods: int, zone: str = BERLIN, freq: str = "h") -> pd.DatetimeIndex:
    return pd.date_range(start, periods=periods, freq=freq, tz=zone)


def us(t: pd.Timestamp) -> str:
    return f"{t.month}/{t.day}/{t:%Y} {t.hour % 12 or 12}:{t:%M:%S} {t:%p}"


def until(t: pd.Timestamp) -> str:
    return " - ".join(f"{x:%d/%m/%Y %H:%M:%S} ({x.tzname()})" for x in (t, t + pd.Timedelta(hours=1)))


def browser(t: pd.Timestamp) -> str:
    east = int((t.utcoffset() or pd.Timedelta(0)).total_seconds()) // 3600
    return f"{t:%a %b %d %Y %H:%M:%S} GMT+{east:02d}00 (Central European {'Summer' if east == 2 else 'Standard'} Time)"


SPRING, AUTUMN = zoned("2024-03-29", 90), zoned("2024-10-26", 60)
LVM = "LabVIEW Measurement\t\nWriter_Version\t2\nSeparator\tTab\nDate\t2024/05/30\nTime\t08:00:00.5\n***End_of_Header***\t\n\t\nChannels\t2\t\t\nSamples\t30\t30\t\nX_Dimension\tTime\tTime\t\nX0\t0.0\t0.0\t\nDelta_X\t0.1\t0.1\t\n***End_of_Header***\t\t\t\nX_Value\tVoltage\tCurrent\tComment\n"
SMHI = "Stationsnamn;Stationsnummer;Mäthöjd\nStockholm A;98230;2.0\n\nTidsperiod (fr.o.m);Tidsperiod (t.o.m);Höjd\n1996-10-01 00:00:00;2024-05-31 23:59:59;43.1\n\nDatum;Tid (UTC);Lufttemperatur;Kvalitet;;Tidsutsnitt:\n"
ANNOTATED = "#group,false,false,true,true,false,false,true\n#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,double,string\n#default,_result,,,,,,\n,result,table,_start,_stop,_time,_value,_field\n"
MEMBERS = "\n\nstn;time;tre200h0\n"

EXPORTS: dict[str, Export] = {
    # national weather services
    "NOAA ISD, tenths and a code in a cell": Export(
        '"STATION","DATE","REPORT_TYPE","LATITUDE","WND","TMP","SLP"\n' + each(lambda i, t: f'"72503014732","{t:%Y-%m-%dT%H:%M:%S}","FM-15","40.77944","{i * 10:03d},1,N,0046,1","{"+9999,9" if i == 4 else f"{round(a(i) * 10) - 120:+05d},{5 if i == 7 else 1}"}","{round(a(i) * 10) + 10000:05d},1"'),
        {"STATION": lambda i: 72503014732, "LATITUDE": lambda i: 40.77944, "TMP": lambda i: N if i == 4 else (round(a(i) * 10) - 120) / 10, "SLP": lambda i: (round(a(i) * 10) + 10000) / 10},
        cells={"text": 30, "composite cell": 30, "marked '+9999,9'": 1}, units={"TMP": "°C", "SLP": "hPa"}, notes=("in tenths", "1 (28)"),
    ),
    "Météo-France, hourly, two stations": Export(
        "NUM_POSTE;NOM_USUEL;LAT;LON;ALTI;AAAAMMJJHH;T;QT\n" + "".join(each(lambda i, t, s=s, n=n, lat=lat: f"{s};{n};{lat};5.6;{lat[:2]};{t:%Y%m%d%H};{a(i)};{'' if i == 3 else 1}") for s, n, lat in (("01014002", "ARBENT", "46.27"), ("01027003", "BALAN_AERO", "45.83"))),
        {f"{s} {c}": f for s in ("ARBENT", "BALAN_AERO") for c, f in (("T", a), ("QT", lambda i: N if i == 3 else 1))},
        cells={"blank": 2, "describes the sensor": 240},
    ),
    "Météo-France, daily, one station": Export(
        "NUM_POSTE;NOM_USUEL;LAT;AAAAMMJJ;RR;QRR\n" + each(lambda i, t: f"01014002;ARBENT;46.27;{t:%Y%m%d};{a(i)};1", D),
        {"NUM_POSTE": lambda i: 1014002, "LAT": lambda i: 46.27, "RR": a, "QRR": lambda i: 1}, D, cells={"text": 40},
    ),
    "French synoptic reports, stations that are numbers": Export(
        "numer_sta;date;pmer;t\n" + "".join(each(lambda i, t, s=s: f"{s};{t:%Y%m%d%H%M%S};{'mq' if i == 2 else 1000 + b(i)};{a(i)}") for s in ("07005", "07015")),
        {f"{s} {c}": f for s in ("07005", "07015") for c, f in (("pmer", lambda i: N if i == 2 else 1000 + b(i)), ("t", a))},
        cells={"not a number": 2},
    ),
    "German solar radiation, hour and minute with a colon": Export(
        "STATIONS_ID;MESS_DATUM;QN_592;FG_LBERG;ZENIT;MESS_DATUM_WOZ;eor\n" + each(lambda i, t: f"        433;{t:%Y%m%d%H}:11;    1;    -999;{a(i)};{t + pd.Timedelta(hours=1):%Y%m%d%H}:00;eor"),
        {"STATIONS_ID": lambda i: 433, "QN_592": lambda i: 1, "FG_LBERG": lambda i: N, "ZENIT": a}, H + pd.Timedelta(minutes=11), cells={"text": 60, "sentinel -999": 30},
    ),
    "Dutch hours of two stations, numbered": Export(
        "# SOURCE: KNMI\n# STN  LON\n# 240  4.7\n#\n# STN,YYYYMMDD,   HH,   DD,   SQ\n#\n" + "".join(each(lambda i, t, s=s: f"  {s},{t:%Y%m%d},{t.hour + 1:5d},{b(i):5.0f},{'' if i == 4 else i % 10:>5}") for s in (240, 260)),
        {f"{s} {c}": f for s in (240, 260) for c, f in (("DD", b), ("SQ", lambda i: N if i == 4 else i % 10))}, H + pd.Timedelta(hours=1), cells={"blank": 2}, notes=("hours run from 1 to 24",),
    ),
    "British months with marks, remarks and units below": Export(
        "Heathrow\nLocation 507800E 176700N, Lat 51.479\nEstimated data is marked with a * after the value.\n   yyyy  mm   tmax    af     sun\n              degC    days   hours\n" + "".join(f"   {2020 + i // 12}  {i % 12 + 1:2d}   {a(i)}     {'---' if i < 5 else int(b(i))}    {b(i)}.1{'#' if i > 20 else ''}{'  Provisional' if i > 25 else ''}\n" for i in range(30)),
        {"tmax": a, "af": lambda i: N if i < 5 else b(i), "sun": lambda i: b(i) + 0.1}, pd.date_range("2020-01-01", periods=30, freq="MS"), cells={"marked '---'": 5},
        units={"tmax": "degC", "af": "days", "sun": "hours"}, notes=("4 rows end in a remark beyond the columns, such as 'Provisional'",),
    ),
    "Japanese hours in Shift-JIS with quality columns": Export(
        "ダウンロードした時刻：2024/06/01 10:00:00\n\n,東京,東京,東京\n年月日時,気温(℃),気温(℃),気温(℃)\n,,品質情報,均質番号\n" + each(lambda i, t: f"{t.year}/{t.month}/{t.day} {t.hour}:00:00,{a(i)},8,1"),
        {"気温(℃)": a, "気温(℃) 品質情報": lambda i: 8, "気温(℃) 均質番号": lambda i: 1}, encoding="cp932",
    ),
    "Chinese weather in GB 18030": Export(
        "日期,时间,温度(℃),湿度(%)\n" + each(lambda i, t: f"{t.year}/{t.month}/{t.day},{t:%H:%M:%S},{a(i)},{b(i)}"), {"温度(℃)": a, "湿度(%)": b}, encoding="gb18030",
    ),
    "Korean weather in CP949": Export(
        "지점,지점명,일시,기온(°C),강수량(mm)\n" + each(lambda i, t: f"108,서울,{t:%Y-%m-%d %H:%M},{a(i)},{'' if i % 3 else 0.5}"),
        {"지점": lambda i: 108, "기온(°C)": a, "강수량(mm)": lambda i: N if i % 3 else 0.5}, cells={"text": 30, "blank": 20}, encoding="cp949",
    ),
    "Russian weather in Windows-1251, newest first": Export(
        '"Местное время";"Температура";"Влажность"\n' + "".join(f'"{H[i]:%d.%m.%Y %H:%M}";"{a(i)}";"{b(i)}"\n' for i in reversed(range(30))), {"Температура": a, "Влажность": b}, encoding="cp1251", notes=("not in the order of time",),
    ),
    "Swedish hours with side notes in the first rows": Export(
        SMHI + each(lambda i, t: f"{t:%Y-%m-%d};{t:%H:%M:%S};{a(i)};{'GY'[i % 5 == 0]}" + {0: ";;Kvalitetskontrollerade data", 1: ";;Tidsperiod (fr.o.m.) = 1996-10-01 00:00:00 (UTC)"}.get(i, "")),
        {"Lufttemperatur": a}, zone="UTC", cells={"text": 60},
    ),
    "Swiss archive, a header for each station": Export(
        "".join(MEMBERS + each(lambda i, t, s=s: f"{s};{t:%Y%m%d%H};{'-' if i == 4 else a(i)}") for s in ("BER", "ZUR")),
        {s: lambda i: N if i == 4 else a(i) for s in ("BER", "ZUR")}, rows={"header repeated": 1}, cells={"marked '-'": 2},
    ),
    "American climate network, no names, UTC and local": Export(
        each(lambda i, t: f"53878 {t:%Y%m%d} {t:%H%M} {t - pd.Timedelta(hours=5):%Y%m%d} {a(i)} {'-9999.0' if i in (4, 5) else '  11.2'}"),
        {"column_1": lambda i: 53878, "column_4": lambda i: float((H[i] - pd.Timedelta(hours=5)).strftime("%Y%m%d")), "column_5": a, "column_6": lambda i: N if i in (4, 5) else 11.2}, cells={"sentinel -9999": 2},
    ),
    "a buoy whose sensor is mostly out": Export(
        "#YY  MM DD hh mm WSPD  WVHT\n#yr  mo dy hr mn m/s     m\n" + each(lambda i, t: f"{t.year} {t:%m %d %H %M} {a(i)}   {1 + i % 7 / 10 if i % 6 == 4 else 'MM'}", T10),
        {"WSPD": a, "WVHT": lambda i: 1 + i % 7 / 10 if i % 6 == 4 else N}, T10, cells={"marked 'MM'": 25}, units={"WSPD": "m/s", "WVHT": "m"},
    ),
    # energy
    "European market, interval with both zones, autumn": Export(
        '"MTU (CET/CEST)","Area","Price"\n' + each(lambda i, t: f'"{until(t)}","BZN|DE-LU","{a(i)}"', AUTUMN), {"Price": a}, AUTUMN, BERLIN, cells={"text": 60}, notes=("times are intervals",),
    ),
    "European market, interval with both zones, spring, unquoted": Export(
        "MTU,Price\n" + each(lambda i, t: f"{until(t)},{a(i)}", SPRING), {"Price": a}, SPRING, BERLIN, notes=("marked CEST and CET",),
    ),
    "European market in winter alone keeps the zone of its name": Export(
        "MTU (CET/CEST),Price\n" + each(lambda i, t: f"{until(t)},{a(i)}", zoned("2024-01-20", 30)), {"Price": a}, zoned("2024-01-20", 30), BERLIN,
    ),
    "Nordic hours from to": Export(
        "ts\tcet/cest\tSE1\tSE2\n" + each(lambda i, t: f"{t:%Y-%m-%d}\t{t.hour:02d} - {(t.hour + 1) % 24:02d}\t{a(i):.1f}\t{b(i)}".replace(".", ",")), {"SE1": a, "SE2": b}, H.tz_localize(BERLIN), BERLIN,
    ),
    "hours from to without blanks": Export(
        "Datum;Timme;Pris\n" + each(lambda i, t: f"{t:%Y-%m-%d};{t.hour:02d}-{t.hour + 1:02d};{a(i):.1f}".replace(".", ",")), {"Pris": a}, notes=("times are intervals",),
    ),
    "date and clock with the end behind a hyphen": Export("time,v\n" + each(lambda i, t: f"{t:%Y-%m-%d %H:%M}-{(t.hour + 1) % 24:02d}:00,{a(i)}"), {"v": a}, notes=("times are intervals",)),
    "American grid, UTC beside the local clock": Export(
        "datetime_beginning_utc,datetime_beginning_ept,zone,mw,is_verified\n" + "".join(each(lambda i, t, z=z: f"{us(t)},{us(t - pd.Timedelta(hours=4))},{z},{a(i)},True") for z in ("AE", "BC")),
        {"AE": a, "BC": a}, zone="UTC", cells={"text": 120},
    ),
    "British system, record types and no names": Export(
        "HDR,SYSTEM DEMAND\n" + "".join(f"ITSDO,{d:%Y%m%d},{p},{30000 + p}\n" for d in D[:2] for p in range(1, 49)) + "FTR,96\n",
        {"column_4": lambda i: 30001 + i % 48}, pd.date_range("2024-01-01", periods=96, freq="30min"), rows={"no time": 1}, cells={"text": 96},
    ),
    "inverters: serial numbers, types, channels and units": Export(
        "sep=;\nVersion CSV1|Tool SB|Delimiter semicolon\n\n;SN: 2110000001;SN: 2110000002;SN: 2110000002\n;SB 4000;SB 4000;SB 4000\n;2110000001;2110000002;2110000002\n;Total yield;Total yield;Power\n;Counter;Counter;Analog\ndd.MM.yyyy HH:mm;kWh;kWh;kW\n" + each(lambda i, t: f"{t:%d.%m.%Y %H:%M};{1000 + b(i)},25;{b(i)},5;0,{i % 10}", T10),
        {"SN: 2110000001 Total yield Counter": lambda i: 1000.25 + b(i), "SN: 2110000002 Total yield Counter": lambda i: b(i) + 0.5, "SN: 2110000002 Power Analog": lambda i: i % 10 / 10}, T10,
        units={"SN: 2110000001 Total yield Counter": "kWh", "SN: 2110000002 Power Analog": "kW"},
    ),
    "Spanish hours numbered to 25": Export(
        "Fecha;Hora;v\n" + "".join(f"{day:%d/%m/%Y};{h};{i % 7}.5\n" for i, (day, h) in enumerate((day, h) for day, n in (("2024-10-26", 24), ("2024-10-27", 25), ("2024-10-28", 24)) for day in [pd.Timestamp(day)] for h in range(1, n + 1))),
        {"v": lambda i: i % 7 + 0.5}, zoned("2024-10-26 01:00", 73, "Europe/Madrid"), "Europe/Madrid", options={"tz": "Europe/Madrid"}, notes=("numbered through",),
    ),
    "Spanish hours numbered to 23": Export(
        "Fecha;Hora;v\n" + "".join(f"{day:%d/%m/%Y};{h};{i % 7}.5\n" for i, (day, h) in enumerate((day, h) for day, n in (("2024-03-30", 24), ("2024-03-31", 23), ("2024-04-01", 24)) for day in [pd.Timestamp(day)] for h in range(1, n + 1))),
        {"v": lambda i: i % 7 + 0.5}, zoned("2024-03-30 01:00", 71, "Europe/Madrid"), "Europe/Madrid", options={"tz": "Europe/Madrid"}, notes=("numbered through",),
    ),
    # loggers
    "Davis WeatherLink, two rows of names": Export(
        "\t\tTemp\tHi\tLow\tOut\tDew\tWind\tWind\nDate\tTime\tOut\tTemp\tTemp\tHum\tPt.\tSpeed\tDir\n" + each(lambda i, t: f"{t.month}/{t.day}/{t:%y}\t{t.hour % 12 or 12}:{t:%M}{'ap'[t.hour > 11]}\t{a(i)}\t61.0\t60.5\t{'---' if i == 2 else b(i)}\t51.5\t{i % 5}.0\tNNE"),
        {"Temp Out": a, "Hi Temp": lambda i: 61, "Low Temp": lambda i: 60.5, "Out Hum": lambda i: N if i == 2 else b(i), "Dew Pt.": lambda i: 51.5, "Wind Speed": lambda i: i % 5}, cells={"marked '---'": 1, "text": 30},
    ),
    "Davis WeatherLink, columns of fixed width": Export(
        "                  Temp     Hi   Out   Dew\n  Date    Time     Out   Temp   Hum   Pt.\n-------------------------------------------\n" + each(lambda i, t: f" {t.month}/{t.day:02d}/{t:%y}  {t.hour % 12 or 12:2d}:{t:%M}{'ap'[t.hour > 11]}   {a(i)}   61.0   {b(i)}   51.5"),
        {"Temp Out": a, "Hi Temp": lambda i: 61, "Out Hum": b, "Dew Pt.": lambda i: 51.5},
    ),
    "rows of serial numbers, names and units, each with its label": Export(
        "Serial;0001;0002\nName;Inlet;Outlet\nUnit;°C;°C\nTime;T1;T2\n" + each(lambda i, t: f"{t:%d.%m.%Y %H:%M};{a(i):.1f};{b(i)}".replace(".", ",", 4).replace(",", ".", 2)), {"0001 Inlet T1": a, "0002 Outlet T2": b}, units={"0001 Inlet T1": "°C"},
    ),
    "merged cells over two rows and units": Export(
        "Date,Boiler 1,,Boiler 2,\n,Temp,Flow,Temp,Flow\n,°C,m3/h,°C,m3/h\n" + each(lambda i, t: f"{t:%d/%m/%Y %H:%M},{a(i)},{b(i)},{b(i)},{a(i)}"),
        {"Boiler 1 Temp": a, "Boiler 1 Flow": b, "Boiler 2 Temp": b, "Boiler 2 Flow": a}, units={"Boiler 1 Temp": "°C", "Boiler 2 Flow": "m3/h"},
    ),
    "LabVIEW, seconds since a start above the data": Export(
        LVM + "".join(f"{i * 0.1:.6f}\t{a(i):.6f}\t{b(i):.6f}\t\n" for i in range(30)), {"Voltage": a, "Current": b, "Comment": lambda i: N},
        pd.date_range("2024-05-30 08:00:00.5", periods=30, freq="100ms"), cells={"blank": 30}, notes=("counted from the start",),
    ),
    "Netatmo, a count beside the local clock": Export(
        'Name;Long;Lat\n"Home";13.4;52.5\n\nTimestamp;"Timezone : Europe/Berlin";Temperature;CO2\n' + each(lambda i, t: f'{int(t.timestamp())};"{t.tz_convert(BERLIN):%Y/%m/%d %H:%M:%S}";{a(i)};{400 + b(i)}', AUTUMN.tz_convert("UTC")),
        {"Temperature": a, "CO2": lambda i: 400 + b(i)}, AUTUMN, BERLIN, cells={"text": 60}, notes=("is a local clock (+1 h or +2 h); UTC was read",),
    ),
    "Sensirion, the local clock second": Export(
        "# EdfVersion=4.0\n# Date=2024-05-30T08:00:00Z\n# Epoch_UTC\tLocal_Date_Time\tT_SHT4x\n" + each(lambda i, t: f"{int(t.timestamp())}.0\t{t + pd.Timedelta(hours=2):%Y-%m-%dT%H:%M:%S}.000000\t{a(i)}", T10), {"T_SHT4x": a}, T10, "UTC", cells={"text": 30},
    ),
    "InfluxDB, annotated tables one below the other": Export(
        "\n".join(ANNOTATED + each(lambda i, t, k=k, n=n, f=f: f",,{k},2024-05-30T00:00:00Z,2024-06-01T00:00:00Z,{t:%Y-%m-%dT%H:%M:%SZ},{f(i)},{n}") for k, (n, f) in enumerate((("temp", a), ("hum", b)))),
        {"temp": a, "hum": b}, zone="UTC", rows={"header repeated": 1}, cells={"text": 180, "beside the value": 60},
    ),
    "Home Assistant statistics, times in the header": Export(
        "entity_id,type,unit," + ",".join(f"{t:%d.%m.%Y %H:%M:%S}" for t in H) + "\n" + "".join(f"sensor.{n},change,kWh," + ",".join(str(f(i)) for i in range(30)) + "\n" for n, f in (("grid", a), ("solar", b))),
        {"sensor.grid": a, "sensor.solar": b}, cells={"text": 120}, notes=("the times stand in the header",),
    ),
    "a browser's dates over a change of the clock": Export("time,value\n" + each(lambda i, t: f"{browser(t)},{a(i)}", SPRING), {"value": a}, SPRING.tz_convert("UTC"), "UTC", notes=("different offsets",)),
    "narrow blanks before a. m.": Export(
        "time,value\n" + each(lambda i, t: f'"{t:%d/%m/%Y}, {t.hour % 12 or 12}:{t:%M}:00\u202f{"ap"[t.hour > 11]}.\u00a0m.",{a(i)}'), {"value": a},
    ),
    "a clock with hard blanks in a column of its own": Export("date,time,value\n" + each(lambda i, t: f"{t:%d/%m/%Y},{t.hour % 12 or 12}:{t:%M}\u00a0{'ap'[t.hour > 11]}.m.,{a(i)}"), {"value": a}),
    "Go's way to write a time": Export("dt_iso,temp\n" + each(lambda i, t: f"{t:%Y-%m-%d %H:%M:%S} +0000 UTC,{a(i)}"), {"temp": a}, zone="UTC"),
    "an Indian clock, said to be unclear": Export("time,v\n" + each(lambda i, t: f"{t:%Y-%m-%d %H:%M:%S} IST,{a(i)}"), {"v": a}, notes=("'IST', which names no one zone (Asia/Kolkata", "--tz")),
    "an Indian clock, told": Export("time,v\n" + each(lambda i, t: f"{t:%Y-%m-%d %H:%M:%S} IST,{a(i)}"), {"v": a}, H.tz_localize("Asia/Kolkata"), "Asia/Kolkata", options={"tz": "Asia/Kolkata"}),
    # digits, periods and spreadsheets
    "YYMMDD and HHMM": Export("DATE,TIME,v\n" + each(lambda i, t: f"{t:%y%m%d},{t:%H%M},{a(i)}", zoned("2024-01-25 15:00", 72, "UTC").tz_localize(None)), {"v": a}, pd.date_range("2024-01-25 15:00", periods=72, freq="h")),
    "DDMMYY and HHMMSS": Export("DATE,TIME,v\n" + each(lambda i, t: f"{t:%d%m%y},{t:%H%M%S},{a(i)}", pd.date_range("2024-01-25 15:00", periods=72, freq="h")), {"v": a}, pd.date_range("2024-01-25 15:00", periods=72, freq="h")),
    "DDMMYYYY and HHMM": Export("DATE,TIME,v\n" + each(lambda i, t: f"{t:%d%m%Y},{t:%H%M},{a(i)}", pd.date_range("2024-01-25 15:00", periods=72, freq="h")), {"v": a}, pd.date_range("2024-01-25 15:00", periods=72, freq="h")),
    "YYMMDD and HHMM, told": Export("DATE,TIME,v\n" + each(lambda i, t: f"{t:%y%m%d},{t.hour * 100},{a(i)}", H[:20]), {"v": a}, H[:20], options={"time": ("DATE", "TIME"), "time_format": "%y%m%d %H%M"}),
    "months as digits": Export("v;YYYYMM;w\n" + each(lambda i, t: f"{b(i)};{t:%Y%m};{a(i)}", D.to_period("M").unique().to_timestamp()), {"v": b, "w": a}, pd.date_range("2024-01-01", periods=2, freq="MS")),
    "months as digits without a name": Export(each(lambda i, t: f"{t:%Y%m},{a(i)}", pd.date_range("2015-01-01", periods=30, freq="MS")), {"column_2": a}, pd.date_range("2015-01-01", periods=30, freq="MS")),
    "weeks as digits": Export("yearweek,v\n" + each(lambda i, t: f"{t:%G%V},{a(i)}", pd.date_range("2015-01-05", periods=60, freq="W-MON")), {"v": a}, pd.date_range("2015-01-05", periods=60, freq="W-MON")),
    "year and quarter": Export("Year,Quarter,v\n" + each(lambda i, t: f"{t.year},Q{t.quarter},{a(i)}", pd.date_range("2015-01-01", periods=12, freq="QS-JAN")), {"v": a}, pd.date_range("2015-01-01", periods=12, freq="QS-JAN")),
    "year in the first row of each year": Export("Year,Quarter,v\n" + each(lambda i, t: f"{t.year if t.quarter == 1 else ''},Q{t.quarter},{a(i)}", pd.date_range("2015-01-01", periods=12, freq="QS-JAN")), {"v": a}, pd.date_range("2015-01-01", periods=12, freq="QS-JAN"), notes=("'Year' stands in the first row",)),
    "labour statistics with a mean of the year": Export(
        "Series ID,Year,Period,Value\n" + "".join(f"LNS1,{2015 + k // 13},M{k % 13 + 1:02d},{a(k)}\n" for k in range(26)), {"Value": lambda i: a(i + i // 12)}, pd.date_range("2015-01-01", periods=24, freq="MS"), rows={"time not understood": 2}, cells={"text": 24},
    ),
    "year and calendar week": Export("Jahr;KW;v\n" + each(lambda i, t: f"{t:%G};KW {t:%V};{b(i)},5", pd.date_range("2015-01-26", periods=12, freq="W-MON")), {"v": lambda i: b(i) + 0.5}, pd.date_range("2015-01-26", periods=12, freq="W-MON")),
    "quarters in words": Export("Zeit;v\n" + each(lambda i, t: f"{t.quarter}. Quartal {t.year};{b(i)},5", pd.date_range("2015-01-01", periods=12, freq="QS-JAN")), {"v": lambda i: b(i) + 0.5}, pd.date_range("2015-01-01", periods=12, freq="QS-JAN")),
    "half years": Export("Period,v\n" + each(lambda i, t: f"{t.year}H{1 + t.month // 7},{a(i)}", pd.date_range("2015-01-01", periods=12, freq="6MS")), {"v": a}, pd.date_range("2015-01-01", periods=12, freq="6MS")),
    "months in the header": Export("Country," + ",".join(f"{t:%Y-%m}" for t in pd.date_range("2020-01-01", periods=24, freq="MS")) + "\n" + "".join(f"{c}," + ",".join(str(a(i)) for i in range(24)) + "\n" for c in ("DE", "FR")), {"DE": a, "FR": a}, pd.date_range("2020-01-01", periods=24, freq="MS")),
    "a ledger with the minus behind": Export("Datum;Last\n" + each(lambda i, t: f"{t:%d.%m.%Y %H:%M};{b(i)},5{'-' if i % 3 == 0 else ''}"), {"Last": lambda i: (b(i) + 0.5) * (-1 if i % 3 == 0 else 1)}),
    "Swiss apostrophes": Export("Datum;Uhrzeit;Verbrauch\n" + each(lambda i, t: f"{t:%d.%m.%Y};{t:%H:%M};12'3{b(i)}.{i % 10}"), {"Verbrauch": lambda i: 12300 + b(i) + i % 10 / 10}),
    # more of the same kinds
    "American air quality, date and clock in both zones": Export(
        '"State Code","Date Local","Time Local","Date GMT","Time GMT","Sample Measurement"\n' + each(lambda i, t: f'"36","{t:%Y-%m-%d}","{t:%H:%M}","{t.tz_convert("UTC"):%Y-%m-%d}","{t.tz_convert("UTC"):%H:%M}",{a(i)}', zoned("2024-11-02", 60, "America/New_York")),
        {"State Code": lambda i: 36, "Sample Measurement": a}, zoned("2024-11-02", 60, "America/New_York").tz_convert("UTC"), cells={"text": 120}, notes=("(-5 h or -4 h); UTC was read",),
    ),
    "Canadian hours, year, month and day once more": Export(
        '"Date/Time (LST)","Year","Month","Day","Time (LST)","Temp"\n' + each(lambda i, t: f'"{t:%Y-%m-%d %H:%M}","{t.year}","{t:%m}","{t:%d}","{t:%H:%M}","{a(i)}"'), {"Temp": a}, cells={"text": 30, "another time": 90}, notes=("'LST', which names no one zone",),
    ),
    "a load profile of one day, from and until": Export(
        "Profil;1-1:1.29.0\nEinheit;kWh\nAb-Datum;Ab-Zeit;Bis-Datum;Bis-Zeit;Wert;Status\n" + each(lambda i, t: f"{t:%d.%m.%Y};{t:%H:%M:%S};{t + pd.Timedelta(minutes=60):%d.%m.%Y};{t + pd.Timedelta(minutes=60):%H:%M:%S};{b(i)},5;W", H[:24]),
        {"Wert": lambda i: b(i) + 0.5}, H[:24], cells={"text": 72},
    ),
    "Texan prices, quarters within the hour": Export(
        "Delivery Date,Delivery Hour,Delivery Interval,Settlement Point Name,Price\n" + "".join(each(lambda i, t, n=n: f"{t:%m/%d/%Y},{t.hour + 1},{t.minute // 15 + 1},{n},{a(i)}", pd.date_range("2024-05-30", periods=96, freq="15min")) for n in ("HUB", "NORTH")),
        {"HUB": a, "NORTH": a}, pd.date_range("2024-05-30", periods=96, freq="15min"),
    ),
    "a British meter, half hours in the header": Export(
        "Date,Type," + ",".join(f"{m // 60:02d}:{m % 60:02d}" for m in range(30, 1441, 30)) + "\n" + "".join(f"{d:%d/%m/%Y},AI," + ",".join(str(a(48 * n + k)) for k in range(48)) + "\n" for n, d in enumerate(D[:20])),
        {"value": a}, pd.date_range("2024-01-01 00:30", periods=960, freq="30min"), cells={"text": 960}, notes=("the times of the day stand in the header",),
    ),
    "years in the header": Export("Country,Code," + ",".join(map(str, range(1990, 2020))) + "\n" + "".join(f"{c},{c}," + ",".join(str(a(i)) for i in range(30)) + "\n" for c in ("DE", "FR")), {"DE": a, "FR": a}, pd.date_range("1990-01-01", periods=30, freq="YS"), cells={"text": 60}),
    "a central bank, labels above the data": Export(
        '"",BBK01.WT5511,BBK01.WT5511_FLAGS\n"",Goldpreis,""\nEinheit,USD,""\nDimension,Eins,""\nStand vom,30.05.2024 10:00:00 Uhr,""\n' + each(lambda i, t: f"{t:%Y-%m-%d},{'.' if t.weekday() > 4 else a(i)},{'Kein Wert vorhanden' if t.weekday() > 4 else ''}", D),
        {"BBK01.WT5511 Goldpreis": lambda i: N if D[i].weekday() > 4 else a(i)}, D, cells={"marked '.'": 10, "text": 40}, units={"BBK01.WT5511 Goldpreis": "USD"},
    ),
    "an office of statistics, months behind labels": Export(
        '"Title","Retail: Index"\n"CDID","J5EK"\n"PreUnit",""\n"Unit","Index, base year = 100"\n"Release date","24-05-2024"\n' + each(lambda i, t: f'"{t:%Y} {t:%b}","{a(i)}"'.upper(), pd.date_range("2015-01-01", periods=30, freq="MS")),
        {"J5EK": a}, pd.date_range("2015-01-01", periods=30, freq="MS"), units={"J5EK": "Index, base year = 100"},
    ),
    "years and quarters above the months": Export(
        '"CDID","J5EK"\n"2015","1.5"\n"2016","2.5"\n"2015 Q1","1.1"\n"2015 Q2","1.2"\n' + each(lambda i, t: f'"{t:%Y} {t:%b}","{a(i)}"'.upper(), pd.date_range("2015-01-01", periods=24, freq="MS")),
        {"J5EK": a}, pd.date_range("2015-01-01", periods=24, freq="MS"), rows={"time not understood": 2}, notes=("2 quarters stand among the months",),
    ),
    "river flow behind a preface of labels": Export(
        "file,timestamp,2024-05-30T10:00:00\ndatabase,id,nrfa\ndatabase,name,Archive\nstation,id,39001\nstation,name,Thames\ndata,first,2024-01-01\ndata,last,2024-02-29\n" + each(lambda i, t: f"{t:%Y-%m-%d},{a(i)},{'M' if i == 5 else ''}", D),
        {"column_2": a, "column_3": lambda i: N}, D, cells={"blank": 39, "marked 'M'": 1},
    ),
    "a recorder: channels, tags and units above date, time and milliseconds": Export(
        "Device Type,GX10\nSerial No.,S5\n\nCh.,,,CH0001,CH0002\nTag,,,Inlet,Outlet\nUnit,,,C,bar\nDate,Time,msec,,\n" + each(lambda i, t: f"{t:%Y/%m/%d},{t:%H:%M:%S},500,{a(i)},{b(i)}", T10),
        {"CH0001 Inlet": a, "CH0002 Outlet": b}, T10 + pd.Timedelta(milliseconds=500), units={"CH0001 Inlet": "C", "CH0002 Outlet": "bar"},
    ),
    "a logger that fills the width behind the sign": Export(
        "Vendor,GRAPHTEC\nModel,GL240\nCH,Signal name,Input\nCH1,Inlet,TEMP\nData\nNumber,Date&Time,ms,CH1,Alarm\nNO.,Time,ms,degC,A1\n" + each(lambda i, t: f"{i + 1},{t:%Y/%m/%d %H:%M:%S},0,{'+-'[i % 3 == 0]}  {a(i)},LL", T10),
        {"CH1": lambda i: a(i) * (-1 if i % 3 == 0 else 1)}, T10, cells={"row counter": 30, "text": 30}, units={"CH1": "degC"},
    ),
    "a monitor of a boat: devices, names and units, and the zone in the header": Export(
        "timestamp,System [0],System [0],Battery [258]\nEurope/Berlin (+02:00),Grid,Load,Voltage\n,W,W,V\n" + each(lambda i, t: f"{t:%Y-%m-%d %H:%M:%S},{a(i)},{b(i)},{a(i)}"),
        {"System [0] Grid": a, "System [0] Load": b, "Battery [258] Voltage": a}, zone=BERLIN, units={"System [0] Grid": "W", "Battery [258] Voltage": "V"},
    ),
    "a market that marks what is not expected": Export(
        '"MTU","Biomass [MW]","Marine [MW]"\n' + each(lambda i, t: f'"{t:%d.%m.%Y %H:%M} - {t + pd.Timedelta(hours=1):%d.%m.%Y %H:%M} (UTC)","{a(i)}","n/e"'), {"Biomass [MW]": a, "Marine [MW]": lambda i: N}, zone="UTC", cells={"marked 'n/e'": 30},
    ),
    "two digits of the year behind the day": Export("Date/Time,Unit,Value\n" + each(lambda i, t: f"{t:%d/%m/%y %H:%M:%S},C,{a(i)}", H[:20]), {"Value": a}, H[:20], cells={"text": 20}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_gives_its_exact_frame_and_account(name: str, tmp_path: Path) -> None:
    export = EXPORTS[name]
    (tmp_path / "export.csv").write_bytes(export.text.encode(export.encoding))
    frame, report = read_sensor_csv(tmp_path / "export.csv", **export.options)
    zone = export.zone if export.index.tz is None else None
    index = export.index.tz_localize(zone) if zone else export.index
    expected = pd.DataFrame({c: np.array([f(i) for i in range(len(index))], float) for c, f in export.columns.items()}, index)  # fmt: skip
    pd.testing.assert_frame_equal(frame, expected, check_freq=False, check_names=False, rtol=1e-12)
    assert report.zone == (str(index.tz) if index.tz is not None else None)
    assert report.set_aside == export.rows
    assert {why: n for why, n in report.cells_set_aside.items() if not why.startswith("row:")} == export.cells
    assert report.rows_read == report.rows_used + sum(report.set_aside.values())
    assert report.cells_read == report.cells_used + sum(report.cells_set_aside.values())
    assert report.cells_used == int(frame.notna().sum().sum())
    units = {column.name: column.unit for column in report.columns if column.unit}
    assert export.units.items() <= units.items()
    for words in export.notes:
        assert any(words in note for note in report.notes), report.notes
