"""Series on their grids, stored ragged: a step, a first place and values each, however far apart the series lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mha_apps.errors import InputError

from .account import Account
from .grid import Grid, Step, far_off, infer, settle, stated
from .missing import Told, mark_missing
from .options import ReadOptions
from .zones import Zone, to_wall

MOST_PLACES = 500_000
"""Places of a grid that any file may have, however few its rows."""
PLACES_PER_ROW = 100
WIDE_CELLS = 1_000_000
WASTE = 4
"""A wide frame of more than so many times the cells in use is a waste, where it is large at all."""


class NoStepError(InputError):
    """The rows have one time only, and nobody said which step they follow."""


@dataclass
class Block:
    """Rows that go onto one grid, or onto one a sensor: those of a file, or of several that continue each other."""

    account: Account
    names: list[str]
    values: list[np.ndarray]
    utc: np.ndarray
    zone: Zone | None
    codes: np.ndarray | None = None
    """The sensor of each row, where a row holds one sensor."""
    labels: list[str] = field(default_factory=list)
    """Names of the sensors."""
    units: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class Part:
    """Series that share a grid and a span: ``values`` is (series, places), from place ``low`` of the grid on."""

    names: list[str]
    grid: Grid
    low: int
    values: np.ndarray

    @property
    def high(self) -> int:
        return self.low + self.values.shape[1] - 1


@dataclass
class Laid:
    """All series of a reading, and what happened when they were put on their grids."""

    parts: list[Part]
    zone: Zone | None
    identical: int = 0
    conflicting: int = 0
    moved: int = 0
    """Rows that were moved onto the grid, and by how much at most (microseconds)."""
    furthest: int = 0
    unsorted: bool = False
    irregular: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> dict[tuple[str, int], list[str]]:
        found: dict[tuple[str, int], list[str]] = {}
        for part in self.parts:
            found.setdefault(part.grid.step.key, []).extend(part.names)
        return found


def lay(blocks: list[Block], told: ReadOptions) -> Laid:
    """Puts the rows of all blocks on their grids.

    Raises:
        InputError: if there are too few times, or a stated step does not fit the data.
    """
    laid = Laid([], blocks[0].zone)
    for block in blocks:
        _lay_block(block, told, laid)
    if not laid.parts:
        account = blocks[0].account
        reasons = ", ".join(f"{reason} ({count})" for reason, count in account.rows.counts().items())
        raise InputError(f"{account.place(0)}: no row can be used: {reasons}; check --time, or the file")
    return laid


def _lay_block(block: Block, told: ReadOptions, laid: Laid) -> None:
    account = block.account
    order = _ordered(block, laid)
    if len(order) == 0:
        return
    order = _without_far(block, order)
    groups = block.codes[order] if block.codes is not None else None
    laid.notes += mark_missing(
        block.names, block.values, [account.cells[name] for name in block.names],
        missing=Told.of(told.missing, "--missing"), keep=Told.of(told.keep, "--keep"), order=order, groups=groups,
    )  # fmt: skip
    keys = block.utc[order] if groups is None else _runs(groups, block.utc[order])
    other = "averaged with others of the same time" if told.duplicates == "mean" else "conflicting duplicate"
    same, lost = settle(
        account, block.names, block.values, order, keys, rule=told.duplicates, same="identical duplicate", other=other
    )
    laid.identical, laid.conflicting = laid.identical + same, laid.conflicting + lost
    order = order[account.rows.open[order]]
    if told.aggregate is not None:
        if told.freq is None:
            raise InputError("--aggregate says how to join values but not into which step; pass --freq too")
        laid.parts += _aggregated(block, order, told)
        return
    utc = block.utc[order]
    wall = to_wall(utc, block.zone)
    groups = block.codes[order] if block.codes is not None else np.zeros(len(order), dtype=np.int64)
    bounds = (
        np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1], [True]])) if len(order) else np.array([0])
    )
    grids = _grids(block, utc, wall, bounds, told, order)
    place = np.empty(len(order), dtype=np.int64)
    for grid, members in grids:
        rows = _members(bounds, members)
        place[rows], off = grid.places(utc[rows], wall[rows])
        moved = off != 0
        laid.moved += int(np.count_nonzero(moved))
        laid.furthest = max(laid.furthest, int(np.abs(off).max()) if len(off) else 0)
        laid.irregular |= grid.step.how == "irregular"
        if grid.step.how == "stated":
            _check_stated(block, grid, place[rows], groups[rows], utc[rows], told)
    keys = place if block.codes is None else _runs(groups, place)
    settle(
        account, block.names, block.values, order, keys,
        rule=told.duplicates, same="shares its time step with an equal row",
        other="shares its time step with a later row",
    )  # fmt: skip
    for grid, members in grids:
        laid.parts += _parts(block, grid, members, bounds, order, place)


def _ordered(block: Block, laid: Laid) -> np.ndarray:
    """Rows in use, by sensor and time; rows of the same time stay in the order of the file."""
    rows = np.flatnonzero(block.account.rows.open)
    utc = block.utc[rows]
    if block.codes is None:
        if np.all(utc[1:] >= utc[:-1]):
            return rows
        laid.unsorted = True
        return rows[np.argsort(utc, kind="stable")]
    return rows[np.lexsort((utc, block.codes[rows]))]


def _runs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Numbers that change wherever one of two sorted arrays does."""
    if len(first) == 0:
        return np.zeros(0, dtype=np.int64)
    change = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return np.concatenate([[0], np.cumsum(change)])


def _without_far(block: Block, order: np.ndarray) -> np.ndarray:
    times = np.sort(block.utc[order]) if block.codes is not None else block.utc[order]
    low, high = far_off(times)
    if low == 0 and high == len(times):
        return order
    first, last = times[low], times[high - 1]
    far = (block.utc[order] < first) | (block.utc[order] > last)
    block.account.rows.set_aside(order[far], "time far from all others")
    return order[~far]


def _members(bounds: np.ndarray, members: list[int]) -> np.ndarray:
    if len(members) == len(bounds) - 1:
        return np.arange(bounds[-1])
    return np.concatenate([np.arange(bounds[m], bounds[m + 1]) for m in members])


def _grids(
    block: Block, utc: np.ndarray, wall: np.ndarray, bounds: np.ndarray, told: ReadOptions, order: np.ndarray
) -> list[tuple[Grid, list[int]]]:
    """The grids that the sensors of a block are on, each with the sensors (numbers of runs between ``bounds``)."""
    sensors = list(range(len(bounds) - 1))
    if told.freq is not None:
        sort = np.argsort(utc, kind="stable")
        told_step = stated(told.freq, utc[sort], wall[sort])
        _check_size(block, told_step, utc, len(utc), order)
        return [(Grid(told_step, utc, wall), sensors)]
    steps: dict[tuple[str, int], tuple[Step, list[int]]] = {}
    single: list[int] = []
    telling: np.ndarray | None = None
    step: Step | None
    for sensor in sensors:
        part = slice(bounds[sensor], bounds[sensor + 1])
        step = infer(*_distinct(utc[part], wall[part]))
        if step is not None and step.how in ("jittered", "irregular"):
            telling = _telling(block, order) if telling is None else telling
            if not telling[part].all() and len(np.unique(utc[part][telling[part]])) > 1:
                step = infer(*_distinct(utc[part][telling[part]], wall[part][telling[part]]))
        if step is None:
            single.append(sensor)
        else:
            _check_size(block, step, utc[part], bounds[sensor + 1] - bounds[sensor], order[part])
            steps.setdefault(step.key, (step, []))[1].append(sensor)
    if not steps:
        if len(sensors) > 1 and (step := infer(*_distinct(utc, wall))) is not None:
            return [(Grid(step, utc, wall), sensors)]
        row = int(order[0])
        raise NoStepError(
            f"{block.account.place(row)}: only one time can be used, so no step shows; pass --freq, or a longer file"
        )
    if single:  # a sensor with one row follows the others
        max(steps.values(), key=lambda item: len(item[1]))[1].extend(single)
    grids = []
    for found, members in steps.values():
        rows = _members(bounds, sorted(members))
        grids.append((Grid(found, utc[rows], wall[rows]), sorted(members)))
    return grids


def _telling(block: Block, order: np.ndarray) -> np.ndarray:
    """Rows that hold a value at all; a logger's remarks on its own state come at times of their own."""
    telling = np.zeros(len(order), dtype=bool)
    for name, column in zip(block.names, block.values, strict=True):
        telling |= block.account.cells[name].open[order] & np.isfinite(column[order])
        if telling.all():
            break
    return telling


def _distinct(utc: np.ndarray, wall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted times without repeats, and the same on the clock."""
    if np.all(utc[1:] > utc[:-1]):
        return utc, wall
    times, first = np.unique(utc, return_index=True)
    return times, wall[first]


def _check_size(block: Block, step: Step, utc: np.ndarray, rows: int, order: np.ndarray) -> None:
    places = int(utc.max() - utc.min()) // step.approximate + 1
    if places > max(MOST_PLACES, PLACES_PER_ROW * rows):
        at = int(order[np.argmax(utc)])
        raise InputError(
            f"{block.account.place(at)}: from {_shown(utc.min())} to {_shown(utc.max())} a step of {step.name} makes "
            f"{places} rows of {rows}; check these times, or pass a longer --freq"
        )


def _shown(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]")).replace("T", " ")


def _check_stated(
    block: Block, grid: Grid, place: np.ndarray, groups: np.ndarray, utc: np.ndarray, told: ReadOptions
) -> None:
    """A stated step that is coarser than the data needs to know how to join them."""
    pairs = _runs(groups, place)
    sharing = 1 - (int(pairs[-1]) + 1) / len(pairs)
    if sharing > 0.1:
        raise InputError(
            f"{block.account.sources[0]}: --freq {told.freq} is coarser than the data ({sharing:.0%} of the rows share "
            "a step); pass --aggregate mean, sum or last"
        )
    native = infer(*_distinct(utc, to_wall(utc, block.zone)))
    if native is not None and native.approximate >= 2 * grid.step.approximate:
        block.notes.append(
            f"--freq {told.freq} is finer than the data's step of {native.name}; the rows between stay missing"
        )


def _parts(
    block: Block, grid: Grid, members: list[int], bounds: np.ndarray, order: np.ndarray, place: np.ndarray
) -> list[Part]:
    account = block.account
    in_use = account.rows.open[order]
    parts: list[Part] = []
    columns = [(account.cells[name].open, column) for name, column in zip(block.names, block.values, strict=True)]
    for sensor in members:
        part = slice(bounds[sensor], bounds[sensor + 1])
        rows, where = order[part], place[part]
        kept = in_use[part]
        if not kept.all():
            rows, where = rows[kept], where[kept]
        if len(rows) == 0:
            continue
        low, high = int(where.min()), int(where.max())
        values = np.full((len(block.names), high - low + 1), np.nan)
        where = where - low
        for k, (usable, column) in enumerate(columns):
            good = usable[rows]
            if good.all():
                values[k, where] = column[rows]
            else:
                values[k, where[good]] = column[rows[good]]
        parts.append(
            Part(_names(block, int(block.codes[rows[0]]) if block.codes is not None else None), grid, low, values)
        )
    return parts


def _names(block: Block, code: int | None) -> list[str]:
    if code is None:
        return list(block.names)
    sensor = block.labels[code]
    return [sensor] if len(block.names) == 1 else [f"{sensor} {name}" for name in block.names]


def _aggregated(block: Block, order: np.ndarray, told: ReadOptions) -> list[Part]:
    """Values joined into the stated step; bins start at round times of the clock, as pandas' resample has them."""
    account = block.account
    stamps = pd.DatetimeIndex(block.utc[order].view("datetime64[us]"))
    if block.zone is not None:
        stamps = stamps.tz_localize("UTC").tz_convert(block.zone)
    stated(told.freq or "", block.utc[order], to_wall(block.utc[order], block.zone))
    columns = {
        k: np.where(account.cells[name].open[order], column[order], np.nan)
        for k, (name, column) in enumerate(zip(block.names, block.values, strict=True))
    }
    frame = pd.DataFrame(columns, index=stamps)
    frame["sensor"] = block.codes[order] if block.codes is not None else 0
    try:
        binned = frame.groupby(["sensor", pd.Grouper(freq=told.freq)])
    except (ValueError, TypeError) as error:
        raise InputError(f"--freq {told.freq!r}: {error}; pass another") from None
    names = list(columns)
    table = (
        binned[names].sum(min_count=1)
        if told.aggregate == "sum"
        else getattr(binned[names], told.aggregate or "mean")()
    )
    moments = pd.DatetimeIndex(table.index.get_level_values(1))
    utc = (moments.tz_convert("UTC").tz_localize(None) if block.zone is not None else moments).as_unit("us").asi8
    wall = to_wall(utc, block.zone)
    sort = np.argsort(utc, kind="stable")
    step = stated(told.freq or "", utc[sort], wall[sort])
    if step.micros is not None:
        step.origin = int(utc.min())
    else:
        step.origin = int(wall[sort][0] % 86_400_000_000)
    _check_size(block, step, utc, len(order), order)
    grid = Grid(step, utc, wall)
    where, _ = grid.places(utc, wall)
    sensors = table.index.get_level_values(0).to_numpy()
    parts = []
    for sensor in np.unique(sensors):
        rows = np.flatnonzero(sensors == sensor)
        low, high = int(where[rows].min()), int(where[rows].max())
        values = np.full((len(names), high - low + 1), np.nan)
        values[:, where[rows] - low] = table.to_numpy()[rows].T
        parts.append(Part(_names(block, int(sensor) if block.codes is not None else None), grid, low, values))
    return parts


def frame_of(laid: Laid, told: ReadOptions, where: str) -> tuple[pd.DataFrame, str]:
    """The frame, wide or long, and its layout; ``where`` names what was read in messages.

    Raises:
        InputError: if a wide frame was asked for and the sensors' steps differ.
    """
    steps = laid.steps
    used = sum(part.values.size for part in laid.parts)
    names = [name for part in laid.parts for name in part.names]
    repeated = len(set(names)) < len(names)
    if len(steps) > 1:
        groups = "; ".join(f"{len(members)} at {name}" for (name, _), members in list(steps.items())[:5])
        if told.layout == "wide":
            coarsest = max((part.grid.step for part in laid.parts), key=lambda step: step.approximate)
            raise InputError(
                f"{where}: the sensors are on different grids ({groups}), and a table with a column for each has one; "
                f"join them with --freq and --aggregate (as in --freq {coarsest.name} --aggregate mean)"
            )
        laid.notes.append(
            f"sensors are on different grids ({groups}); long layout, each on its own "
            "(--freq with --aggregate joins them)"
        )
        return _long(laid), "long"
    _rebase(laid)
    low, high = min(part.low for part in laid.parts), max(part.high for part in laid.parts)
    cells = (high - low + 1) * len(names)
    if told.layout == "long":
        return _long(laid), "long"
    if told.layout == "auto" and cells > max(WIDE_CELLS, WASTE * used):
        laid.notes.append(f"long layout: a wide frame would have {cells} cells for {used}")
        return _long(laid), "long"
    if told.layout == "wide" and cells > 200_000_000:
        raise InputError(
            f"{where}: a table with a column for each sensor would have {cells} cells for {used} values; give a "
            "coarser step with --freq and --aggregate, or read fewer sensors"
        )
    grid = laid.parts[0].grid
    index = grid.index(low, high, laid.zone)
    if len(laid.parts) == 1:
        values = laid.parts[0].values
    else:
        values = np.full((len(names), high - low + 1), np.nan)
        row = 0
        for part in laid.parts:
            values[row : row + len(part.names), part.low - low : part.high - low + 1] = part.values
            row += len(part.names)
    if repeated:
        names = _unique(names)
    return pd.DataFrame(values.T, index=index, columns=pd.Index(names, dtype=object).astype(str), copy=False), "wide"


def _rebase(laid: Laid) -> None:
    """Counts the places of all parts on one grid; their own have the same step and phase, but other first places."""
    grids = {id(part.grid): part.grid for part in laid.parts}
    if len(grids) == 1:
        return
    common = Grid.spanning(list(grids.values()))
    for part in laid.parts:
        part.low += common.place_of(part.grid)
        part.grid = common


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return out


def _long(laid: Laid) -> pd.DataFrame:
    identifiers, lengths, stamps, values = [], [], [], []
    cache: dict[tuple[int, int, int], pd.DatetimeIndex] = {}
    for part in laid.parts:
        key = (id(part.grid), part.low, part.high)
        if key not in cache:
            if len(cache) > 1000:
                cache.clear()
            cache[key] = part.grid.index(part.low, part.high, laid.zone)
        moments = cache[key]
        if laid.zone is not None:
            moments = moments.tz_convert("UTC").tz_localize(None)
        for name, row in zip(part.names, part.values, strict=True):
            identifiers.append(name)
            lengths.append(len(row))
            stamps.append(moments.to_numpy())
            values.append(row.astype(np.float32))
    ds = pd.DatetimeIndex(np.concatenate(stamps))
    if laid.zone is not None:
        ds = ds.tz_localize("UTC").tz_convert(laid.zone)
    # A categorical holds each name once
    distinct = list(dict.fromkeys(identifiers))
    number = {name: k for k, name in enumerate(distinct)}
    codes = np.repeat(np.array([number[name] for name in identifiers], dtype=np.int32), lengths)
    unique_id = pd.Categorical.from_codes(codes, categories=pd.Index(distinct, dtype=object).astype(str))
    return pd.DataFrame({"unique_id": unique_id, "ds": ds, "y": np.concatenate(values)})
