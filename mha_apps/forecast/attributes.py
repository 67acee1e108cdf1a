"""Attributes of series from a CSV: what kind of building a meter is in, how high a sensor hangs."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from mha_apps.errors import InputError, nearest, warn

from .reading import numbers
from .reading.account import Ledger
from .reading.text import decode

__all__ = ["read_static"]

_INFINITE = re.compile("[+-]?inf(inity)?", re.IGNORECASE)
MOST_CATEGORIES = 32  # of one text attribute; rarer ones are told apart by nothing


def read_static(
    path: str, series: Sequence[str], *, decimal: Literal[".", ","] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Attributes of series from a CSV: numbers standardised over ``series``, text as a 0/1 column per category.

    Numbers are read as those of the data are: with a decimal comma, separated thousands and units too. A column that
    holds anything else than numbers and words for a missing value is text; infinite numbers and these words are
    missing, and named in a warning. Categories and scale are those of ``series``; other rows are kept for series that
    come later. A missing number is the mean, a missing text is no category, and an attribute that is the same for all
    is left out.

    Args:
        path: of the CSV; the names of the series are in its first column.
        series: that must be there.
        decimal: its decimal sign; the file decides when None.

    Returns:
        The names of the rows, those of the attributes, and the values ``(rows, attributes)`` float32.

    Raises:
        InputError: the file cannot be read, or lacks one of ``series``.
    """
    table, comma_separated = _table(path)
    names = table.iloc[:, 0].astype(str).str.strip()
    if names.duplicated().any():
        raise InputError(f"{path}: series {names[names.duplicated()].iloc[0]!r} has two rows; keep one")
    lacking = [name for name in series if name not in set(names)]
    if lacking:
        near = nearest(lacking[0], names.tolist())
        hint = f"is it the row {near!r}?" if near else "add one, with empty cells where nothing is known"
        raise InputError(f"{path}: no row for series {lacking[0]!r}; {hint}")
    trained = names.isin(list(series)).to_numpy()
    columns: dict[str, np.ndarray] = {}
    for name, text, values in _columns(path, table.iloc[:, 1:], names, comma_separated, decimal):
        found: dict[str, np.ndarray] = {}
        if values is not None:
            own = values[trained & np.isfinite(values)]
            if len(own) and own.std() > 1e-9 * max(1.0, abs(own.mean())):
                found[name] = np.nan_to_num((values - own.mean()) / own.std())
        else:
            counts = text[trained].value_counts()
            for category in counts.index[:MOST_CATEGORIES] if len(counts) > 1 else []:
                found[f"{name}={category}"] = (text == category).to_numpy(dtype=np.float64)
        if twice := next((name for name in found if name in columns), None):
            raise InputError(f"{path}: two attributes are called {twice!r}, one by its column and its text; rename one")
        columns |= found
    if not columns:
        raise InputError(f"{path}: no attribute tells the series apart; leave --static out")
    return tuple(names), tuple(columns), np.stack(list(columns.values()), 1).astype(np.float32)


def _table(path: str) -> tuple[pd.DataFrame, bool]:
    """The cells as text, NaN where they are blank, and whether commas separate them."""
    try:
        data = decode(path, Path(path).read_bytes()).data
        header = data.split(b"\n", 1)[0].decode()
        delimiter = max(",;\t|", key=header.count)
        table = pd.read_csv(io.BytesIO(data), dtype=str, sep=delimiter, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); --static names a CSV") from error
    except Exception as error:  # whatever the parser of pandas finds
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: is no CSV of attributes ({reason}); give series,attribute,... in its first row"
        ) from None
    if table.shape[1] < 2:
        raise InputError(f"{path}: has {table.shape[1]} column; give the series in the first and attributes in others")
    return table, delimiter == ","


def _columns(
    path: str, table: pd.DataFrame, names: pd.Series, comma_separated: bool, decimal: Literal[".", ","] | None
) -> list[tuple[str, pd.Series, np.ndarray | None]]:
    """Name, text and numbers of each column, None for the numbers of one that holds text."""
    texts = {str(name): table[name].str.strip() for name in table}
    samples = [[cell for cell in text.dropna() if not numbers.is_missing_word(cell)] for text in texts.values()]
    choice = numbers.choose(samples, comma_separated=comma_separated, told=decimal)
    if choice.note:
        warn(f"{path}: {choice.note}")
    found: list[tuple[str, pd.Series, np.ndarray | None]] = []
    for name, text in texts.items():
        cells = pa.array([None if pd.isna(cell) else cell for cell in text], pa.string())
        read = numbers.numbers(cells, choice.convention, Ledger(len(text)), told=decimal)
        lost = text[np.isnan(read[0]) & text.notna()] if read is not None else text
        # Among a few cells one word is as good as any number: such a column tells kinds apart.
        if not all(numbers.is_missing_word(cell) or _INFINITE.fullmatch(cell) for cell in lost.dropna()):
            read = None
        found.append((name, text, None if read is None else read[0]))
        if read is not None and len(lost):
            more = "" if len(lost) == 1 else f", and so are {len(lost) - 1:,} more"
            warn(
                f"{path}: {name!r} of {names[lost.index[0]]!r} is {lost.iloc[0]!r}, which is no finite number, and is "
                f"taken as missing{more}"
            )
    return found
