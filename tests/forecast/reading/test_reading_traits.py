# ruff: noqa: E501, RUF028
"""One small messy file for each trait that sensor files have, with the exact frame and account that it must give."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mha_apps.forecast.reading import read_sensor_csv

N = float("nan")
HOURS = pd.date_range("2024-05-14 22:00", periods=5, freq="h")  # a day above 12, across midnight
T = [20.5, 21.0, N, 22.25, 23.0]
H = [50.0, 51.0, 52.0, 53.0, 54.0]


@dataclass
class Case:
    """A file, how it is read, and what must come of it."""

    name: str
    text: str | bytes
    frame: pd.DataFrame
    rows: dict[str, int] = field(default_factory=dict)
    """Rows set aside."""
    cells: dict[str, int] = field(default_factory=dict)
    """Cells set aside, other than those of rows set aside."""
    options: dict[str, Any] = field(default_factory=dict)
    file: str = "data.csv"
    read: int | None = None
    """Rows read; those of the frame and those set aside unless it is given."""

    def __str__(self) -> str:
        return self.name


def frame(
    values: dict[str, list[float]], start: Any = "2024-05-14 22:00", freq: Any = "h", tz: str | None = None
) -> pd.DataFrame:
    length = len(next(iter(values.values())))
    index = pd.date_range(start, periods=length, freq=freq, tz=tz, name="time")
    return pd.DataFrame({name: np.array(column, dtype=float) for name, column in values.items()}, index=index)


BOTH = frame({"temp": T, "hum": H})
BLANK = {"blank": 1}


def table(
    stamp: str = "%Y-%m-%d %H:%M:%S", sep: str = ",", decimal: str = ".", head: str | None = None, blank: str = "", end: str = "\n",
    tail: str = "", quote: str = "", times: pd.DatetimeIndex = HOURS,
) -> str:  # fmt: skip
    """The same five rows in any dialect."""
    head = f"time{sep}temp{sep}hum" if head is None else head
    lines = [line for line in head.split("\n") if line]
    for k, time in enumerate(times):
        cells = [
            time.strftime(stamp),
            blank if np.isnan(T[k]) else f"{T[k]}".replace(".", decimal),
            f"{H[k]}".replace(".", decimal),
        ]
        lines.append(sep.join(f"{quote}{cell}{quote}" for cell in cells) + tail)
    return end.join(lines) + end


def packed_zip(text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inner.csv", text)
    return buffer.getvalue()


DIALECTS = [
    Case("comma", table(), BOTH, cells=BLANK),
    Case("semicolon and decimal comma", table(sep=";", decimal=","), BOTH, cells=BLANK),
    Case("semicolon and decimal point", table(sep=";"), BOTH, cells=BLANK),
    Case("tab", table(sep="\t"), BOTH, cells=BLANK),
    Case("tab and decimal comma", table(sep="\t", decimal=","), BOTH, cells=BLANK),
    Case("bar", table(sep="|"), BOTH, cells=BLANK),
    Case("quoted decimal comma among commas", table(decimal=",", quote='"'), BOTH, cells=BLANK),
    Case("everything quoted", table(sep=";", quote='"', head='"time";"temp";"hum"'), BOTH, cells=BLANK),
    Case("single quotes", table(quote="'", head="'time','temp','hum'"), BOTH, cells=BLANK),
    Case("blank and semicolon", table(sep=" ; ", head="time ; temp ; hum"), BOTH, cells=BLANK),
    Case("runs of blanks", table("%Y-%m-%dT%H:%M", sep="   ", blank="NA", head="time  temp  hum"), BOTH, cells={"marked 'NA'": 1}),
    Case("each line quoted as a whole", "\n".join(f'"{line}"' for line in table().splitlines()) + "\n", BOTH, cells=BLANK),
    Case("UTF-8 with a byte-order mark", b"\xef\xbb\xbf" + table().encode(), BOTH, cells=BLANK),
    Case("UTF-16 with a mark", table(sep="\t").encode("utf-16"), BOTH, cells=BLANK),
    Case("UTF-16 without a mark", table().encode("utf-16-le"), BOTH, cells=BLANK),
    Case("UTF-16 big-endian", b"\xfe\xff" + table().encode("utf-16-be"), BOTH, cells=BLANK),
    Case("Latin-1", table(head="time,Außen °C,hum").encode("latin-1"), frame({"Außen °C": T, "hum": H}), cells=BLANK),
    Case("Windows-1252", table(head="time,€,hum").encode("cp1252"), frame({"€": T, "hum": H}), cells=BLANK),
    Case("CRLF", table(end="\r\n"), BOTH, cells=BLANK),
    Case("CR alone", table(end="\r"), BOTH, cells=BLANK),
    Case("mixed line ends", table().replace("\n", "\r\n", 3), BOTH, cells=BLANK),
    Case("no line end at the end", table().rstrip("\n"), BOTH, cells=BLANK),
    Case("zero bytes", table().encode().replace(b"\n2024-05-15 00", b"\n\0\0\0\x002024-05-15 00"), BOTH, cells=BLANK),
    Case("end-of-file mark", table().encode() + b"\x1a", BOTH, cells=BLANK),
    Case("gzip", gzip.compress(table().encode()), BOTH, cells=BLANK, file="data.csv.gz"),
    Case("bzip2", bz2.compress(table().encode()), BOTH, cells=BLANK, file="data.csv.bz2"),
    Case("xz", lzma.compress(table().encode()), BOTH, cells=BLANK, file="data.csv.xz"),
    Case("zip", packed_zip(table()), BOTH, cells=BLANK, file="data.zip"),
    Case("gzip under a plain name", gzip.compress(table(sep=";", decimal=",").encode()), BOTH, cells=BLANK),
    Case("stated separator", "sep=;\n" + table(sep=";", decimal=","), BOTH, cells=BLANK),
    Case("trailing delimiters", table(tail=",,", head="time,temp,hum,,"), BOTH, cells=BLANK),
    Case("trailing delimiters in the data only", table(tail=","), BOTH, cells=BLANK),
    Case("trailing empty rows", table() + ",,\n,,\n", BOTH, cells=BLANK, rows={"empty row": 2}),
    Case("blank lines", table().replace("\n", "\n\n"), BOTH, cells=BLANK),
    Case("comments above", "# logger 7\n# site: roof\n" + table(), BOTH, cells=BLANK),
    Case("comments within", table().replace("\n2024-05-15 01", "\n# battery changed\n2024-05-15 01"), BOTH, cells=BLANK),
    Case("a commented header", table(head="# time,temp,hum"), BOTH, cells=BLANK),
    Case("notes above the header", "Station: Berlin\nSerial: 1234\n\n" + table(), BOTH, cells=BLANK),
    Case("notes that look like rows of names", "Station,Berlin\nSerial,1234\n" + table(), BOTH, cells=BLANK),
    Case("units below the header", table(head="time,temp,hum\n,°C,%"), BOTH, cells=BLANK),
    Case("units above the header", table(head=",°C,%\ntime,temp,hum"), BOTH, cells=BLANK),
    Case("units in brackets below", table(head="time,temp,hum\n[s],[°C],[%]"), BOTH, cells=BLANK),
    Case(
        "two rows of names", table(head=",inside,inside\ntime,value,value"),
        frame({"inside value": T, "inside value.2": H}), cells=BLANK,
    ),  # fmt: skip
    Case(
        "names that span columns", "time,roof,,cellar\n,temp,hum,temp\n" + "".join(f"{t},1.5,2.5,3.5\n" for t in HOURS),
        frame({"roof temp": [1.5] * 5, "roof hum": [2.5] * 5, "cellar temp": [3.5] * 5}),
    ),  # fmt: skip
    Case("no header", table(head=""), frame({"column_2": T, "column_3": H}), cells=BLANK),
    Case("names that are numbers", table(head="time,1,2"), frame({"1": T, "2": H}), cells=BLANK),
    Case("a line break in a name", table(head="").replace("", 'time,"temp\n(C)",hum\n', 1), frame({"temp (C)": T, "hum": H}), cells=BLANK),
    Case("names that repeat", table(head="time,temp,temp"), frame({"temp": T, "temp.2": H}), cells=BLANK),
    Case("row numbers without a name", "".join(
        f"{k},{line}\n" if k else f",{line}\n" for k, line in enumerate(table().splitlines())), BOTH, cells={"blank": 1, "row counter": 5}),
    Case("row labels without a header cell", "".join(
        f"{k},{line}\n" if k else f"{line}\n" for k, line in enumerate(table().splitlines())), BOTH, cells={"blank": 1, "row counter": 5}),
    Case("header again within", table() + table(times=HOURS + pd.Timedelta(hours=5)),
         frame({"temp": T + T, "hum": H + H}), rows={"header repeated": 1}, cells={"blank": 2}),
    Case("a total at the end", table() + "Sum,86.75,260\n", BOTH, rows={"time not understood": 1}, cells=BLANK),
    Case("words at the end", table() + "-- end of data --\n", BOTH, rows={"time not understood": 1}, cells=BLANK),
    Case("a row with too many fields", table() + "2024-05-15 03:00:00,1,2,3,4\n", BOTH, rows={"more fields than columns": 1}, cells=BLANK),
    Case("a row with too few fields", table() + "2024-05-15 03:00:00,25\n",
         frame({"temp": [*T, 25.0], "hum": [*H, N]}), cells={"blank": 2}),
    Case("a row cut off at the end", table() + "2024-05-15 03:00:00,2", BOTH, rows={"cut off at the end of the file": 1}, cells=BLANK),
    Case("a quote that nothing closes", table() + '2024-05-15 03:00:00,"25,3\n', BOTH, rows={"quote never closed": 1}, cells=BLANK),
    Case("a quoted field over two lines", table(head="time,temp,hum,note", tail=',"good\nbad"'), BOTH, cells={"blank": 1, "text": 5}),
    Case("a text column", table(head="time,temp,hum,state", tail=",ok"), BOTH, cells={"blank": 1, "text": 5}),
    Case("the time in the last column", "temp,hum,time\n" + "".join(
        f"{'' if np.isnan(t) else t},{h},{s}\n" for t, h, s in zip(T, H, HOURS, strict=True)), BOTH, cells=BLANK),
]  # fmt: skip

STAMPS = [
    Case(f"time as {stamp}", table(stamp, sep=";"), BOTH, cells=BLANK)
    for stamp in (
        "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y/%m/%d %H:%M", "%Y.%m.%d %H:%M:%S", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
        "%d-%m-%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%y %I:%M %p", "%d.%m.%y %H:%M", "%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%Y%m%dT%H%M%S",
        "%d %b %Y %H:%M", "%d-%b-%Y %H:%M:%S", "%d-%b-%y %H:%M", "%b %d, %Y %I:%M %p", "%B %d %Y %H:%M", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S",
        "%Y-%m-%d-%H.%M.%S", "%d/%m/%Y %H.%M.%S", "%Y-%j %H:%M", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S,%f", "%d%b%Y:%H:%M:%S", "%H:%M %d.%m.%Y",
        "%Y-%m-%d %H:%M Uhr", "%d.%m.%Y, %Hh%M", "%Y年%m月%d日 %H:%M", "%Y-%m-%d_%H:%M:%S", "%d.%m.%Y - %H:%M", "%Y-%m-%d %H:%M:%S:%f", "%G-W%V-%u %H:%M",
    )
]  # fmt: skip


def rows(stamps: list[str], head: str = "time,v", values: list[Any] | None = None, sep: str = ",") -> str:
    values = list(range(1, len(stamps) + 1)) if values is None else values
    return head + "\n" + "".join(f"{stamp}{sep}{value}.5\n" if isinstance(value, int) else f"{stamp}{sep}{value}\n" for stamp, value in zip(stamps, values, strict=True))  # fmt: skip


def one(
    count: int, start: Any = "2024-05-14 22:00", freq: Any = "h", tz: str | None = None, name: str = "v"
) -> pd.DataFrame:
    return frame({name: [k + 0.5 for k in range(1, count + 1)]}, start, freq, tz)


EPOCHS = (HOURS - pd.Timestamp(0)) // pd.Timedelta(seconds=1)
SERIALS = (HOURS - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
TIMES = [
    Case("single digits", rows([f"{t.day}/{t.month}/{t.year} {t.hour}:{t.minute:02d}" for t in HOURS]), one(5)),
    Case("German month names", rows([f"{t.day}. Mai {t.year} {t.hour}:00 Uhr" for t in HOURS]), one(5)),
    Case("French month names", rows(["30 janvier 2024", "31 janvier 2024", "1er février 2024", "2 février 2024"]), one(4, "2024-01-30", "D")),
    Case("Spanish month names", rows(["30 de enero de 2024", "31 de enero de 2024", "1 de febrero de 2024"]), one(3, "2024-01-30", "D")),
    Case("Portuguese abbreviations", rows(["30-abr-2024", "01-mai-2024", "02-mai-2024", "03-mai-2024"]),
         frame({"v": [1.5, N, 2.5, 3.5, 4.5]}, "2024-04-30", "D").drop(index=[]).iloc[[0, 2, 3, 4]].set_axis(pd.date_range("2024-04-30", periods=4, freq="D", name="time"))),
    Case("Italian weekdays", rows(["lun 13 mag 2024", "mar 14 mag 2024", "mer 15 mag 2024"]), one(3, "2024-05-13", "D")),
    Case("epoch seconds", rows([str(e) for e in EPOCHS]), one(5, tz="UTC")),
    Case("epoch milliseconds", rows([str(e * 1000) for e in EPOCHS]), one(5, tz="UTC")),
    Case("epoch microseconds", rows([str(e * 10**6) for e in EPOCHS]), one(5, tz="UTC")),
    Case("epoch nanoseconds", rows([str(e * 10**9) for e in EPOCHS]), one(5, tz="UTC")),
    Case("epoch seconds with a fraction", rows([f"{e}.0" for e in EPOCHS]), one(5, tz="UTC")),
    Case("days of a spreadsheet", rows([f"{s:.9f}" for s in SERIALS]), one(5)),
    Case("days of a spreadsheet, decimal comma", rows([f"{s:.6f}".replace(".", ",") for s in SERIALS], sep=";", head="time;v"), one(5)),
    Case("date and clock", rows([t.strftime("%d.%m.%Y;%H:%M") for t in HOURS], "Datum;Uhrzeit;v", sep=";"), one(5)),
    Case("date and clock with dots", rows([t.strftime("%d/%m/%Y;%H.%M.%S") for t in HOURS], "Date;Time;v", sep=";"), one(5)),
    Case("date and clock with AM and PM", rows([t.strftime("%m/%d/%Y,%I:%M %p") for t in HOURS], "Date,Time,v"), one(5)),
    Case("clock before date", rows([t.strftime("%H:%M,%Y-%m-%d") for t in HOURS], "Time,Date,v"), one(5)),
    Case("date at midnight and clock", rows([t.strftime("%Y-%m-%d 00:00:00,%H:%M") for t in HOURS], "Date,Time,v"), one(5)),
    Case("date and hour", rows([t.strftime("%Y-%m-%d,") + str(t.hour) for t in HOURS], "dteday,hr,v"), one(5)),
    Case("date and HHMM", rows([t.strftime("%Y%m%d,") + str(t.hour * 100) for t in HOURS], "Date,HrMn,v"), one(5)),
    Case("date and hours from 1 to 24", rows([f"2024-05-14,{h}" for h in range(1, 25)], "Date,Hour,v"), one(24, "2024-05-14 01:00")),
    Case("24:00", rows([*[f"2024-05-14 {h}:00" for h in range(20, 25)], "2024-05-15 01:00"]), one(6, "2024-05-14 20:00")),
    Case("year, month, day, hour", rows([f"{t.year},{t.month},{t.day},{t.hour}" for t in HOURS], "year,month,day,hour,v"), one(5)),
    Case("Jahr, Monat, Tag, Stunde", rows([f"{t.year};{t.month};{t.day};{t.hour}" for t in HOURS], "Jahr;Monat;Tag;Stunde;v", sep=";"), one(5)),
    Case("year, month, day, hour, minute", rows([f"{t.year},{t.month},{t.day},{t.hour},{t.minute}" for t in HOURS], "YY,MM,DD,hh,mm,v"), one(5)),
    Case("year and day of year", rows(["2024,135", "2024,136", "2024,137"], "YEAR,DOY,v"), one(3, "2024-05-14", "D")),
    Case("year, day of year and HHMM", rows([f"{t.year},{t.dayofyear},{t.hour * 100}" for t in HOURS], "Year,DOY,HHMM,v"), one(5)),
    Case("logger arrays without names", rows([f"101,{t.year},{t.dayofyear},{t.hour * 100}" for t in HOURS], "").lstrip(),
         frame({"column_1": [101.0] * 5, "column_5": [1.5, 2.5, 3.5, 4.5, 5.5]})),
    Case("ISO weeks", rows(["2024-W01", "2024-W02", "2024-W03"]), one(3, "2024-01-01", "W-MON")),
    Case("German weeks", rows(["KW 1 2024", "KW 2 2024", "KW 3 2024"]), one(3, "2024-01-01", "W-MON")),
    Case("months", rows(["2024-01", "2024-02", "2024-03", "2024-04"]), one(4, "2024-01-01", "MS")),
    Case("named months", rows(["Jan 2024", "Feb 2024", "Mar 2024", "Apr 2024"]), one(4, "2024-01-01", "MS")),
    Case("month ends", rows(["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"]), one(4, "2024-01-31", "ME")),
    Case("the fifteenth of each month", rows(["2024-01-15", "2024-02-15", "2024-03-15"]), one(3, "2024-01-15", pd.DateOffset(months=1))),
    Case("quarters", rows(["2023Q3", "2023Q4", "2024Q1", "2024Q2"]), one(4, "2023-07-01", "QS-JAN")),
    Case("years", rows(["2020", "2021", "2022", "2023"], "year,v"), one(4, "2020-01-01", "YS-JAN")),
    Case("weekly on a Tuesday", rows(["2024-05-07 00:00:00", "2024-05-14 00:00:00", "2024-05-21 00:00:00"]), one(3, "2024-05-07", "W-TUE")),
    Case("business days", rows([d.strftime("%Y-%m-%d") for d in pd.date_range("2024-05-13", periods=12, freq="B")]), one(12, "2024-05-13", "B")),
    Case("intervals", rows([f"{t:%d.%m.%Y %H:%M} - {t + pd.Timedelta(hours=1):%d.%m.%Y %H:%M}" for t in HOURS]), one(5)),
    Case("date and intervals", rows([f"{t:%d.%m.%Y};{t:%H:%M} - {t + pd.Timedelta(minutes=15):%H:%M}" for t in pd.date_range("2024-05-14 23:30", periods=4, freq="15min")], "Datum;Zeitintervall;v", sep=";"),
         one(4, "2024-05-14 23:30", "15min")),
    Case("a format that is told", rows([t.strftime("%Y|%d|%m|%H").replace("|", "_") for t in HOURS]), one(5), options={"time_format": "%Y_%d_%m_%H"}),
    Case("a time column that is told", rows([f"2020-01-01,{t}" for t in HOURS], "installed,read,v"), one(5), options={"time": "read"}, cells={"text": 5}),
    Case("day first, as told", rows(["01/02/2024 00:00", "01/02/2024 01:00", "01/02/2024 02:00"]), one(3, "2024-02-01"), options={"dayfirst": True}),
    Case("month first, as told", rows(["01/02/2024 00:00", "01/02/2024 01:00", "01/02/2024 02:00"]), one(3, "2024-01-02"), options={"dayfirst": False}),
    Case("day first, as only that is regular", rows([f"{d:02d}/02/2024 {h:02d}:00" for d in (3, 4, 5) for h in range(24)]), one(72, "2024-02-03")),
    Case("dots are day first", rows(["01.02.2024 00:00", "01.02.2024 01:00", "01.02.2024 02:00"]), one(3, "2024-02-01")),
    Case("a second time column", rows([f"{t},{t:%d.%m.%Y %H:%M}" for t in HOURS], "utc,local,v"), one(5, tz="UTC"), cells={"text": 5}),
    Case("a date that does not exist", rows(["2024-02-27", "2024-02-28", "2024-02-30", "2024-02-29"]),
         frame({"v": [1.5, 2.5, 4.5]}, "2024-02-27", "D"), rows={"time not understood": 1}),
    Case("a row without a time", rows(["2024-02-27", "2024-02-28", "", "2024-02-29"]),
         frame({"v": [1.5, 2.5, 4.5]}, "2024-02-27", "D"), rows={"no time": 1}),
]  # fmt: skip

ZONES = [
    Case("Z", rows([f"{t:%Y-%m-%dT%H:%M:%SZ}" for t in HOURS]), one(5, tz="UTC")),
    Case("one offset", rows([f"{t:%Y-%m-%dT%H:%M:%S}+02:00" for t in HOURS]), one(5, tz="UTC+02:00")),
    Case("an offset without a colon", rows([f"{t:%Y-%m-%d %H:%M:%S} -0530" for t in HOURS]), one(5, tz="UTC-05:30")),
    Case("a zone in the name of the column", rows([str(t) for t in HOURS], "time (UTC),v"), one(5, tz="UTC")),
    Case("an offset in the name of the column", rows([f"{t:%m/%d/%y %I:%M:%S %p}" for t in HOURS], '"Date Time, GMT-05:00",v'), one(5, tz="UTC-05:00")),
    Case("a zone in a comment", "# Timezone: Europe/Berlin\n" + rows([str(t) for t in HOURS]), one(5, tz="Europe/Berlin")),
    Case("a zone name with each time", rows([f"{t} Europe/Berlin" for t in HOURS]), one(5, tz="Europe/Berlin")),
    Case("an abbreviation", rows([f"{t} CEST" for t in HOURS]), one(5, tz="UTC+02:00")),
    Case("mixed offsets", rows(["2024-03-31T00:00+01:00", "2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00", "2024-03-31T04:00+02:00"]),
         one(4, "2024-03-30 23:00", tz="UTC")),
    Case("mixed offsets with a zone told", rows(["2024-03-31T00:00+01:00", "2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00", "2024-03-31T04:00+02:00"]),
         one(4, "2024-03-31", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("CET and CEST", rows(["31.03.2024 00:00 CET", "31.03.2024 01:00 CET", "31.03.2024 03:00 CEST", "31.03.2024 04:00 CEST"]),
         one(4, "2024-03-31", tz="Europe/Berlin")),
    Case("UTC converted", rows([f"{t:%Y-%m-%dT%H:%MZ}" for t in HOURS]), one(5, "2024-05-15 00:00", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("spring in Berlin", rows(["2024-03-31 00:00", "2024-03-31 01:00", "2024-03-31 03:00", "2024-03-31 04:00"]),
         one(4, "2024-03-31", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("autumn in Berlin", rows([f"2024-10-27 {h:02d}:00" for h in (0, 1, 2, 2, 3, 4)]),
         one(6, "2024-10-27", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("spring in New York", rows(["2024-03-10 00:00", "2024-03-10 01:00", "2024-03-10 03:00", "2024-03-10 04:00"]),
         one(4, "2024-03-10", tz="America/New_York"), options={"tz": "America/New_York"}),
    Case("autumn in New York", rows([f"2024-11-03 {h:02d}:{m:02d}" for h in (0, 1, 1, 2) for m in (0, 30)]),
         one(8, "2024-11-03", "30min", tz="America/New_York"), options={"tz": "America/New_York"}),
    Case("autumn backwards", rows([f"2024-10-27 {h:02d}:00" for h in (4, 3, 2, 2, 1, 0)]),
         frame({"v": [6.5, 5.5, 4.5, 3.5, 2.5, 1.5]}, "2024-10-27", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("autumn with a gap in the repeated hour", rows([f"2024-10-27 0{h}:{m:02d}" for h, m in ((1, 0), (1, 30), (2, 0), (2, 0), (2, 30), (3, 0))]),
         frame({"v": [1.5, 2.5, 3.5, N, 4.5, 5.5, 6.5]}, "2024-10-27 01:00", "30min", "Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("a lone time in the repeated hour", rows([f"2024-10-27 {h:02d}:00" for h in (0, 1, 2, 3, 4)]),
         frame({"v": [1.5, 2.5, N, N, 4.5, 5.5]}, "2024-10-27", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"},
         rows={"local time that comes twice": 1}),
    Case("a time that the clock skips", rows([f"2024-03-31 {h:02d}:00" for h in (0, 1, 2, 3, 4)]),
         frame({"v": [1.5, 2.5, 4.5, 5.5]}, "2024-03-31", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"},
         rows={"local time that the clock skips": 1}),
    Case("days in a zone", rows(["2024-03-30", "2024-03-31", "2024-04-01", "2024-04-02"]),
         one(4, "2024-03-30", "D", "Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("hours of a market with 3A and 3B", rows([f"27.10.2024;{h}" for h in ("1", "2", "3A", "3B", "4", "5", "24")], "Datum;Stunde;v", sep=";"),
         frame({"v": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, *[N] * 18, 7.5]}, "2024-10-27 01:00", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
    Case("hours of a market up to 25", rows([f"27.10.2024;{h}" for h in range(1, 26)], "Datum;Stunde;v", sep=";"),
         one(25, "2024-10-27 01:00", tz="Europe/Berlin"), options={"tz": "Europe/Berlin"}),
]  # fmt: skip


def numbers(cells: list[str], sep: str = ";") -> str:
    return f"time{sep}v\n" + "".join(f"{t}{sep}{cell}\n" for t, cell in zip(HOURS, cells, strict=False))


def v(values: list[float]) -> pd.DataFrame:
    return frame({"v": values})


MISSING = [
    Case("thousands with points", numbers(["1.234,5", "2.345,25", "12,5", "1.000.000,0", "3"]), v([1234.5, 2345.25, 12.5, 1e6, 3])),
    Case("thousands with commas", numbers(["1,234.5", "2,345.25", "12.5", "1,000,000.0", "3"]), v([1234.5, 2345.25, 12.5, 1e6, 3])),
    Case("thousands with blanks", numbers(["1 234,5", "2 345,25", "12,5", "1 000 000,0", "3"]), v([1234.5, 2345.25, 12.5, 1e6, 3])),
    Case("thousands with narrow blanks", numbers(["1\u202f234,5", "2\u202f345,25", "12,5", "7,5", "3"]), v([1234.5, 2345.25, 12.5, 7.5, 3])),
    Case("thousands with apostrophes", numbers(["1'234.5", "2'345.25", "12.5", "7.5", "3"]), v([1234.5, 2345.25, 12.5, 7.5, 3])),
    Case("quoted thousands among commas", numbers(['"1,234"', '"2,345"', "12", "7", "3"], ","), v([1234, 2345, 12, 7, 3])),
    Case("a decimal comma before three digits", numbers(["1,234", "2,345", "0,125", "7,500", "3"]), v([1.234, 2.345, 0.125, 7.5, 3])),
    Case("exponents", numbers(["1.5e3", "2E-2", "1e0", "+3.5", "-.5"]), v([1500, 0.02, 1, 3.5, -0.5])),
    Case("a typographic minus", numbers(["−1.5", "2.5", "−3", "4", "5"]), v([-1.5, 2.5, -3, 4, 5])),
    Case("units behind numbers", numbers(["20.5 °C", "21 °C", "22 °C", "-1 °C", "0 °C"]), v([20.5, 21, 22, -1, 0])),
    Case("percent signs", numbers(["20.5%", "21%", "22%", "1%", "0%"]), v([20.5, 21, 22, 1, 0])),
    *[
        Case(f"missing written as {mark!r}", numbers(["1.5", mark, "2.5", mark, "3.5"]), v([1.5, N, 2.5, N, 3.5]), cells={f"marked {mark!r}": 2})
        for mark in ("NA", "N/A", "null", "-", "?", "NaN", "#N/A", "---", "n.a.", "None", ".", "NAN", "k.A.", "*", "nodata")
    ],
    Case("blanks as missing", numbers(["1.5", "", "2.5", "  ", "3.5"]), v([1.5, N, 2.5, N, 3.5]), cells={"blank": 2}),
    Case("one bad cell", numbers(["1.5", "1.2.3", "2.5", "3", "3.5"]), v([1.5, N, 2.5, 3, 3.5]), cells={"not a number": 1}),
    Case("infinity", numbers(["1.5", "inf", "2.5", "-inf", "3.5"]), v([1.5, N, 2.5, N, 3.5]), cells={"infinite": 2}),
    Case("-999 as missing", numbers(["20.5", "-999", "21", "-999", "22"]), v([20.5, N, 21, N, 22]), cells={"sentinel -999": 2}),
    Case("-200 as missing, decimal comma", numbers(["20,5", "-200", "21", "-200", "22"]), v([20.5, N, 21, N, 22]), cells={"sentinel -200": 2}),
    Case("9999 as missing", numbers(["20.5", "9999", "9999", "21", "22"]), v([20.5, N, N, 21, 22]), cells={"sentinel 9999": 2}),
    Case("-99.9 as missing", numbers(["20.5", "-99.9", "-99.9", "21", "22"]), v([20.5, N, N, 21, 22]), cells={"sentinel -99.9": 2}),
    Case("-999 kept as told", numbers(["20.5", "-999", "21", "-999", "22"]), v([20.5, -999, 21, -999, 22]), options={"keep": "-999"}),
    Case("a counter that passes 9999", numbers(["9997", "9998", "9999", "10000", "10001"]), v([9997, 9998, 9999, 10000, 10001])),
    Case("a counter that rests at 9999", numbers(["9997", "9998", "9999", "9999", "9999"]), v([9997, 9998, 9999, 9999, 9999])),
    Case("true negatives", numbers(["-198", "-199", "-200", "-200", "-201"]), v([-198, -199, -200, -200, -201])),
    Case("zero is a value", numbers(["20.5", "0", "0", "21", "22"]), v([20.5, 0, 0, 21, 22])),
    Case("zero is missing as told", numbers(["20.5", "0", "0", "21", "22"]), v([20.5, N, N, 21, 22]), options={"missing": "0"}, cells={"missing 0, as told": 2}),
    Case("zero is missing in one column as told", "time,a,b\n" + "".join(f"{t},{k % 2},{k % 2}\n" for k, t in enumerate(HOURS)),
         frame({"a": [N, 1, N, 1, N], "b": [0, 1, 0, 1, 0]}), options={"missing": "a=0"}, cells={"missing 0, as told": 3}),
    Case("a sentinel in the same row of two columns", "time,a,b\n" + "".join(f"{t},{-9999 if k == 2 else 20 + k % 2},{-9999 if k == 2 else 5 + k % 2}\n" for k, t in enumerate(HOURS)),
         frame({"a": [20, 21, N, 21, 20], "b": [5, 6, N, 6, 5]}), cells={"sentinel -9999": 2}),
    Case("a single far value stays", numbers(["20.5", "-999", "21", "20", "22"]), v([20.5, -999, 21, 20, 22])),
]  # fmt: skip

GRID = [
    Case("gaps stay missing", rows(["2024-05-14 22:00", "2024-05-14 23:00", "2024-05-15 02:00"]), frame({"v": [1.5, 2.5, N, N, 3.5]})),
    Case("unsorted", rows([str(HOURS[k]) for k in (3, 0, 4, 2, 1)]), frame({"v": [2.5, 5.5, 4.5, 1.5, 3.5]})),
    Case("backwards", rows([str(t) for t in HOURS[::-1]]), frame({"v": [5.5, 4.5, 3.5, 2.5, 1.5]})),
    Case("identical duplicates", rows([str(HOURS[k]) for k in (0, 1, 1, 2, 3, 4)], values=["1", "2", "2", "3", "4", "5"]),
         v([1, 2, 3, 4, 5]), rows={"identical duplicate": 1}),
    Case("conflicting duplicates, the last wins", rows([str(HOURS[k]) for k in (0, 1, 1, 2, 3, 4)], values=["1", "9", "2", "3", "4", "5"]),
         v([1, 2, 3, 4, 5]), rows={"conflicting duplicate": 1}),
    Case("conflicting duplicates, the first as told", rows([str(HOURS[k]) for k in (0, 1, 1, 2, 3, 4)], values=["1", "9", "2", "3", "4", "5"]),
         v([1, 9, 3, 4, 5]), options={"duplicates": "first"}, rows={"conflicting duplicate": 1}),
    Case("conflicting duplicates, the mean as told", rows([str(HOURS[k]) for k in (0, 1, 1, 2, 3, 4)], values=["1", "9", "2", "3", "4", "5"]),
         v([1, 5.5, 3, 4, 5]), options={"duplicates": "mean"}, rows={"averaged with others of the same time": 1}),
    Case("rows that complete each other", "time,a,b\n" + "".join(f"{t},{k + 1},\n{t},,{k + 10}\n" for k, t in enumerate(HOURS)),
         frame({"a": [1, 2, 3, 4, 5], "b": [10, 11, 12, 13, 14]}), cells={"blank": 10}, read=10),
    Case("jittered times", rows([f"2024-05-14 {h:02d}:{m:02d}:{s:02d}" for h, m, s in ((0, 0, 2), (0, 10, 0), (0, 19, 57), (0, 30, 1), (0, 40, 3), (0, 59, 58), (1, 10, 1))]),
         frame({"v": [1.5, 2.5, 3.5, 4.5, 5.5, N, 6.5, 7.5]}, "2024-05-14", "10min")),
    Case("a phase of its own", rows([f"2024-05-14 {h:02d}:07:30" for h in range(4)]), one(4, "2024-05-14 00:07:30")),
    Case("a step that changes", rows([f"2024-05-14 00:{m:02d}" for m in (0, 10, 20, 30, 35, 40, 45, 50)]),
         frame({"v": [1.5, N, 2.5, N, 3.5, N, 4.5, 5.5, 6.5, 7.5, 8.5]}, "2024-05-14", "5min")),
    Case("a stated step that is finer", rows([str(t) for t in HOURS[:3]]), frame({"v": [1.5, N, 2.5, N, 3.5]}, freq="30min"), options={"freq": "30min"}),
    Case("means of a coarser step", rows([f"2024-05-14 {h:02d}:{m:02d}" for h in (0, 1) for m in (0, 15, 30, 45)]),
         frame({"v": [3.0, 7.0]}, "2024-05-14"), options={"freq": "h", "aggregate": "mean"}, read=8),
    Case("sums of a coarser step", rows([f"2024-05-14 {h:02d}:{m:02d}" for h in (0, 1) for m in (0, 15, 30, 45)]),
         frame({"v": [12.0, 28.0]}, "2024-05-14"), options={"freq": "h", "aggregate": "sum"}, read=8),
    Case("the last of a coarser step", rows([f"2024-05-14 {h:02d}:{m:02d}" for h in (0, 1) for m in (0, 15, 30, 45)]),
         frame({"v": [4.5, 8.5]}, "2024-05-14"), options={"freq": "h", "aggregate": "last"}, read=8),
    Case("a clock that was reset", rows([*[str(t) for t in pd.date_range("2024-05-14", periods=100, freq="h")], "2000-01-01 00:00"]),
         one(100, "2024-05-14"), rows={"time far from all others": 1}),
    Case("seconds", rows([f"2024-05-14 00:00:{s:02d}" for s in range(5)]), one(5, "2024-05-14", "s")),
    Case("milliseconds", rows([f"2024-05-14 00:00:00.{ms:03d}" for ms in range(0, 100, 20)]), one(5, "2024-05-14", "20ms")),
    Case("two columns of values, one of which is hourly", "time,a,b\n" + "".join(f"2024-05-14 {q // 4:02d}:{q % 4 * 15:02d},{q + 1},{q + 1 if q % 4 == 0 else ''}\n" for q in range(24)),
         frame({"a": list(range(1, 25)), "b": [q + 1 if q % 4 == 0 else N for q in range(24)]}, "2024-05-14", "15min"), cells={"blank": 18}),
]  # fmt: skip


def long_rows(head: str = "time,sensor,value", sep: str = ",") -> str:
    lines = [
        sep.join((str(t), name, str(value)))
        for k, t in enumerate(HOURS)
        for name, value in (("a", k + 1.5), ("b", k + 10.5))
    ]
    return head.replace(",", sep) + "\n" + "\n".join(lines) + "\n"


A_AND_B = frame({"a": [1.5, 2.5, 3.5, 4.5, 5.5], "b": [10.5, 11.5, 12.5, 13.5, 14.5]})
LONG = [
    Case("a sensor column", long_rows(), A_AND_B, read=10),
    Case("a sensor column, semicolons", long_rows(sep=";"), A_AND_B, read=10),
    Case("a sensor column without a telling name", long_rows("time,quelle,messung"), A_AND_B, read=10),
    Case("one sensor after the other", "time,sensor,value\n" + "".join(sorted((line + "\n" for line in long_rows().splitlines()[1:]), key=lambda x: x.split(",")[1])), A_AND_B, read=10),
    Case("unique_id, ds, y", "unique_id,ds,y\n" + "".join(f"{name},{t},{k + base}\n" for name, base in (("a", 1.5), ("b", 10.5)) for k, t in enumerate(HOURS)), A_AND_B, read=10),
    Case("sensors that are numbers", long_rows().replace(",a,", ",7,").replace(",b,", ",12,").replace("sensor", "sensor_id"), A_AND_B.set_axis(["7", "12"], axis=1), read=10),
    Case("two names make a sensor", "time,station,parameter,value\n" + "".join(f"{t},{s},{p},{k + 1}.5\n" for k, t in enumerate(HOURS) for s in "XY" for p in ("no2", "o3")),
         frame({f"{s} {p}": [1.5, 2.5, 3.5, 4.5, 5.5] for s in "XY" for p in ("no2", "o3")}), read=20),
    Case("several values a sensor", "time,station,temp,hum\n" + "".join(f"{t},{s},{k + 1}.5,{k + 20}.5\n" for k, t in enumerate(HOURS) for s in "XY"),
         frame({f"{s} {n}": [k + b for k in range(5)] for s in "XY" for n, b in (("temp", 1.5), ("hum", 20.5))}), read=10),
    Case("a sensor column, duplicates", long_rows() + f"{HOURS[4]},b,99\n", frame({"a": [1.5, 2.5, 3.5, 4.5, 5.5], "b": [10.5, 11.5, 12.5, 13.5, 99]}),
         rows={"conflicting duplicate": 1}, read=11),
    Case("a row without a sensor name", long_rows() + f"{HOURS[4]},,99\n", A_AND_B, rows={"no sensor name": 1}, read=11),
    Case("sensors that start at different times", "time,sensor,value\n" + "".join(f"{HOURS[k]},{n},{k}.5\n" for k in range(5) for n in "ab" if n == "a" or k >= 2),
         frame({"a": [0.5, 1.5, 2.5, 3.5, 4.5], "b": [N, N, 2.5, 3.5, 4.5]}), read=8),
]  # fmt: skip

LOGGERS = [
    Case("Campbell TOA5", '"TOA5","CR1000","CR1000","12345","CR1000.Std.22","CPU:p.CR1","1234","T"\r\n"TIMESTAMP","RECORD","BattV_Avg","AirTC_Avg"\r\n"TS","RN","Volts","Deg C"\r\n"","","Avg","Avg"\r\n'
         + "".join(f'"{t}",{k},12.5,{T[k] if k != 2 else chr(34) + "NAN" + chr(34)}\r\n' for k, t in enumerate(HOURS)),
         frame({"BattV_Avg": [12.5] * 5, "AirTC_Avg": T}), cells={"row counter": 5, "marked 'NAN'": 1}),
    Case("HOBO", '"Plot Title: 1234"\n"#","Date Time, GMT-05:00","Temp, °F (LGR S/N: 1)","Host Connected (LGR S/N: 1)"\n'
         + "".join(f"{k + 1},{t:%m/%d/%y %I:%M:%S %p},{k + 60.5},\n" for k, t in enumerate(HOURS)) + f"6,{HOURS[4] + pd.Timedelta(minutes=17):%m/%d/%y %I:%M:%S %p},,Logged\n",
         frame({"Temp, °F (LGR S/N: 1)": [60.5, 61.5, 62.5, 63.5, 64.5]}, tz="UTC-05:00"),
         rows={"shares its time step with an equal row": 1}, cells={"row counter": 5, "text": 5}),
    Case("German weather service", "STATIONS_ID;MESS_DATUM;QN_9;TT_TU;RF_TU;eor\n" + "".join(
        f"         44;{t:%Y%m%d%H};    3;  {k + 7.7};{'  -999' if k in (1, 3) else '  84.0'};eor\n" for k, t in enumerate(HOURS)),
        frame({"STATIONS_ID": [44.0] * 5, "QN_9": [3.0] * 5, "TT_TU": [k + 7.7 for k in range(5)], "RF_TU": [84, N, 84, N, 84]}), cells={"text": 5, "sentinel -999": 2}),
    Case("air quality with trailing delimiters", "Date;Time;CO(GT);T;;\n" + "".join(f"{t:%d/%m/%Y};{t:%H.%M.%S};{'-200' if k in (1, 2) else '2,6'};13,{k};;\n" for k, t in enumerate(HOURS)) + ";;;;;\n;;;;;\n",
         frame({"CO(GT)": [2.6, N, N, 2.6, 2.6], "T": [13 + k / 10 for k in range(5)]}), rows={"empty row": 2}, cells={"sentinel -200": 2}),
    Case("market transparency", '"MTU (CET/CEST)","Load"\n' + "".join(f'"27.10.2024 {h:02d}:00 - 27.10.2024 {h2:02d}:00","{k + 100}"\n' for k, (h, h2) in enumerate(((0, 1), (1, 2), (2, 2), (2, 3), (3, 4)))),
         frame({"Load": [100, 101, 102, 103, 104]}, "2024-10-27", tz="Europe/Berlin")),
    Case("home automation", "entity_id,state,last_changed\n" + "".join(f"sensor.{n},{'unavailable' if k == 2 else k + 20.5},{t:%Y-%m-%dT%H:%M:%S.000Z}\n" for n in "ab" for k, t in enumerate(HOURS)),
         frame({f"sensor.{n}": [20.5, 21.5, N, 23.5, 24.5] for n in "ab"}, tz="UTC"), cells={"marked 'unavailable'": 2}, read=10),
    Case("a database export", ",result,table,_start,_stop,_time,_value,_field\n" + "".join(
        f",,0,2024-05-01T00:00:00Z,2024-06-01T00:00:00Z,{t:%Y-%m-%dT%H:%M:%SZ},{k + b},{n}\n" for n, b in (("t", 1.5), ("h", 50.5)) for k, t in enumerate(HOURS)),
        frame({"t": [1.5, 2.5, 3.5, 4.5, 5.5], "h": [50.5, 51.5, 52.5, 53.5, 54.5]}, tz="UTC"), read=10, cells={"text": 20, "beside the value": 20}),
]  # fmt: skip

CASES = [*DIALECTS, *STAMPS, *TIMES, *ZONES, *MISSING, *GRID, *LONG, *LOGGERS]


def check(case: Case, path: Path) -> None:
    path = path / case.file
    path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    got, report = read_sensor_csv(path, **case.options)
    assert isinstance(got.index, pd.DatetimeIndex), report.notes
    assert got.index.freq is not None
    expected = case.frame
    pd.testing.assert_frame_equal(got, expected, check_freq=True, check_index_type=True)
    assert report.set_aside == case.rows
    assert {
        reason: count for reason, count in report.cells_set_aside.items() if not reason.startswith("row:")
    } == case.cells
    assert report.rows_read == report.rows_used + sum(report.set_aside.values())
    assert report.cells_read == report.cells_used + sum(report.cells_set_aside.values())
    if "aggregate" not in case.options:
        assert report.cells_used == int(got.notna().sum().sum())
    if case.read is not None:
        assert report.rows_read == case.read


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_file_with_this_trait_gives_its_exact_frame_and_account(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_traits_are_as_many_as_they_should_be() -> None:
    assert len(CASES) >= 80
    assert len({case.name for case in CASES}) == len(CASES)
