"""Where the embedded sensor data lies, in a checkout and in an installed wheel. Imports no torch."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from mha_apps.errors import InputError
from mha_apps.training.files import located

__all__ = ["SAMPLE", "locate", "resolve"]

SAMPLE = "sample"
_FILE = "weather_jfk_2013.csv"


def resolve(csv: str | Path) -> Path:
    """The path of a CSV; ``sample`` is the embedded hourly weather data, unless a file of that name is there."""
    if str(csv) != SAMPLE or Path(csv).is_file():
        return Path(csv)
    package = Path(str(resources.files("mha_apps")))
    # A wheel carries the folder data/ inside the package; in a checkout it lies beside it.
    for folder in (package / "data", package.parent / "data"):
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise InputError(f"{_FILE}: the embedded sample is not installed with {package}; give the path of a CSV")


def locate(csv: str | Path) -> str:
    """What a run records of its CSV: the path, or ``sample``."""
    embedded = str(csv) == SAMPLE and not Path(csv).is_file()
    return SAMPLE if embedded else located(csv)
