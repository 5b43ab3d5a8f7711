"""Measured channels: a CSV or NPZ file becomes one series of values per user.

A trace keeps the unit it was measured in; what an SNR, an RSRP or a relative gain means for the simulated
link is decided in `asfl.radio.channel`.

CSV, one row per user and time step, as the UCC 5G data set (Raca et al., MMSys 2020)::

    trace,t,RSRP,SNR        user column: trace, user, client, ue or id; without one, there is one user
    0,0.0,-92.5,2.0         time column in seconds: t, time, time_s or seconds
    0,1.0,-93.0,            missing values: empty, "-", nan, or no row at all

NPZ: `snr_db`, `rsrp_dbm` or `relative_gain` (linear) [users, time]; optional: the time step `dt_s`, else 1 s, and
`user_names` [users]. A file of `asfl data trace` has `gain_db` instead.
"""

import csv
import gzip
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO, get_args

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError, nearest
from asfl.config.files import check_file
from asfl.data.arrays import read_arrays

Quantity = Literal["gain_db", "snr_db", "rsrp_dbm", "relative_gain"]
RequestedQuantity = Literal["auto", "gain_db", "snr_db", "rsrp_dbm", "relative_gain"]

MAX_DECIBEL = 500.0
MAX_MISSING_SHARE = 0.5
"""A user with a larger share of missing values is left out: most of its trace would be made up."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Where a traced walk went: positions in metres, and the city from above."""

    position_m: NDArray[np.float64]
    """[users, time, 2]"""
    server_m: NDArray[np.float64]
    """[3]"""
    height_m: NDArray[np.float64]
    """[rows, columns], row 0 in the south."""
    extent_m: tuple[float, float, float, float]
    """West, east, south, north."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What was measured for each user over time."""

    quantity: Quantity
    values: tuple[NDArray[np.float64], ...]
    """One array per user, each of its own length, finite and even in time: dB, dBm, or linear for `relative_gain`."""
    sample_period_s: float
    user_names: tuple[str, ...]
    source: str
    """Name of the file."""
    by_block: tuple[NDArray[np.float64], ...] | None = None
    """One array [time, K] per user: the gain in dB of each of K resource blocks, where the file tells them apart."""
    block_hz: NDArray[np.float64] | None = None
    """[K] their centres, relative to the carrier."""
    surroundings: Surroundings | None = None


@dataclass(frozen=True, eq=False)
class UserSeries:
    """One user as found in a file: time [T] in seconds, not decreasing, and values [T], NaN where missing."""

    name: str
    time_s: NDArray[np.float64]
    values: NDArray[np.float64]


def read_trace(path: Path, quantity: RequestedQuantity = "auto") -> Trace:
    """Read a channel trace; the suffix of the file says how.

    `quantity` picks what to read of a file that holds several ("auto" takes SNR before RSRP).
    """
    if quantity not in get_args(RequestedQuantity):
        raise AsflError(f"quantity: unknown '{quantity}': {nearest(quantity, get_args(RequestedQuantity))}")
    check_file(path)
    name = path.name.lower()
    if name.endswith((".hdf5", ".h5")):
        raise AsflError(f"{path}: HDF5 recordings are turned into NPZ traces by tools/read_renew.py of the repository")
    if not name.endswith((".csv", ".csv.gz", ".npz")):
        raise AsflError(f"{path}: unknown kind of file; valid suffixes: .csv, .csv.gz, .npz")
    if name.endswith(".npz"):
        return read_npz(path, quantity)
    match quantity:
        case "gain_db" | "relative_gain":
            raise AsflError(f"{path}: a CSV file gives no {quantity}; quantity can be auto, snr_db or rsrp_dbm")
        case _:
            return read_csv(path, quantity)


def build_trace(
    path: Path, quantity: Quantity, users: Sequence[UserSeries], sample_period_s: float | None = None
) -> Trace:
    """Put every user on an even grid of time and leave out those that are mostly gaps.

    Without a `sample_period_s`, it is the median time step over all users.
    """
    for user in users:
        if quantity == "relative_gain" and np.nanmin(user.values, initial=0) < 0:
            raise AsflError(f"{path}: {quantity} of user '{user.name}' is negative; give powers, not amplitudes")
        if quantity != "relative_gain" and np.nanmax(np.abs(user.values), initial=0) > MAX_DECIBEL:
            raise AsflError(f"{path}: {quantity} of user '{user.name}' is beyond ±{MAX_DECIBEL:g} dB; no link is")
    if sample_period_s is None:
        steps_s = np.concatenate([np.diff(user.time_s) for user in users])
        sample_period_s = float(np.median(steps_s)) if steps_s.size else 0.0
        if sample_period_s <= 0:
            raise AsflError(
                f"{path}: the median time step is {sample_period_s:g} s; "
                "give two or more rows per user, at increasing times"
            )
    resampled = [(user.name, resample(user, sample_period_s)) for user in users]
    kept = [(name, values) for name, values in resampled if values is not None]
    if not kept:
        raise AsflError(f"{path}: every user misses over half of its {quantity} values; take another file or quantity")
    return Trace(
        quantity=quantity,
        values=tuple(values for _, values in kept),
        sample_period_s=sample_period_s,
        user_names=tuple(name for name, _ in kept),
        source=path.name,
    )


def resample(user: UserSeries, sample_period_s: float) -> NDArray[np.float64] | None:
    """Values at the first time of the user and every `sample_period_s` from there, or None if most are missing.

    Linear interpolation in time between the values that are there; at the edges, the nearest one is held. A value
    is missing if it is NaN, and also if its row is: logs skip seconds, and a trace without them would run fast.
    """
    known = ~np.isnan(user.values)
    # The small number keeps the last sample if rounding put it just before its place.
    count = np.floor(float(user.time_s[-1] - user.time_s[0]) / sample_period_s + 1e-6) + 1
    if known.sum() < (1 - MAX_MISSING_SHARE) * count:
        return None
    grid_s: NDArray[np.float64] = user.time_s[0] + np.arange(int(count)) * sample_period_s
    return np.interp(grid_s, user.time_s[known], user.values[known])


# ---------------------------------------------------------------------- walks through a city
_WHERE = ("position_m", "server_m", "map_height_m", "map_extent_m")


def read_walk(path: Path) -> Trace:
    """`gain_db` and `dt_s`; `block_hz` if there is a gain for each block; positions and map if all are there."""
    arrays, _ = read_arrays(path, ("gain_db", "dt_s", "block_hz", *_WHERE))
    gain_db = arrays["gain_db"]
    if gain_db.ndim not in (2, 3) or gain_db.size == 0 or gain_db.dtype.kind != "f":
        raise AsflError(f"{path}: gain_db is {gain_db.dtype} {list(gain_db.shape)}; give [users, time] or with blocks")
    gain_db = gain_db.astype(np.float64)
    if not (np.abs(gain_db) <= MAX_DECIBEL).all():
        raise AsflError(f"{path}: gain_db is missing somewhere or beyond ±{MAX_DECIBEL:g} dB; no link is")
    period = arrays.get("dt_s", np.array(1.0))
    if period.size != 1 or period.dtype.kind not in "fiu" or not 0 < period.item() < np.inf:
        raise AsflError(f"{path}: dt_s is {period.tolist()}; give one positive number of seconds")
    by_block, block_hz = None, arrays.get("block_hz")
    if gain_db.ndim == 3:
        if block_hz is None or block_hz.shape != gain_db.shape[2:]:
            raise AsflError(f"{path}: gain_db has {gain_db.shape[2]} blocks; block_hz must give the centre of each")
        by_block = tuple(gain_db)
        gain_db = 10 * np.log10((10 ** (gain_db / 10)).mean(axis=2))
    surroundings = None
    if all(name in arrays for name in _WHERE) and arrays["position_m"].shape == (*gain_db.shape, 2):
        west, east, south, north = (float(edge) for edge in arrays["map_extent_m"].ravel()[:4])
        surroundings = Surroundings(
            position_m=arrays["position_m"].astype(np.float64),
            server_m=arrays["server_m"].astype(np.float64),
            height_m=arrays["map_height_m"].astype(np.float64),
            extent_m=(west, east, south, north),
        )
    return Trace(
        quantity="gain_db",
        values=tuple(gain_db),
        sample_period_s=float(period.item()),
        user_names=tuple(str(user) for user in range(len(gain_db))),
        source=path.name,
        by_block=by_block,
        block_hz=block_hz,
        surroundings=surroundings,
    )


# ---------------------------------------------------------------------- tables
TableQuantity = Literal["snr_db", "rsrp_dbm"]

_USER_COLUMNS = ("trace", "user", "client", "ue", "id")
_TIME_COLUMNS = ("t", "time", "time_s", "seconds")
_VALUE_COLUMNS: dict[TableQuantity, tuple[str, ...]] = {
    "snr_db": ("snr", "snr_db", "sinr", "sinr_db"),
    "rsrp_dbm": ("rsrp", "rsrp_dbm"),
}
_TABLES: tuple[Quantity, ...] = (*_VALUE_COLUMNS, "relative_gain")
"""Of an NPZ file."""
MAX_LINE_LENGTH = 1 << 20
MAX_TABLE_LENGTH = 1 << 28
"""About ten million rows, which take some 20 seconds and half a gigabyte."""


def read_csv(path: Path, quantity: TableQuantity | Literal["auto"]) -> Trace:
    """Read a table, plain or compressed with gzip; users come in order of appearance."""
    try:
        with _open_text(path) as file:
            reader = csv.reader(_lines(path, file))
            columns = _find_columns(path, [name.strip() for name in next(reader, [])], quantity)
            samples = _collect(path, columns, ((reader.line_num, row) for row in reader if row))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise AsflError(f"{path}: can't be read as a CSV file of text in UTF-8: {error}") from error
    if not samples:
        raise AsflError(f"{path}: no rows below the header; a trace needs two or more per user")
    users = [user.series(path, name, columns.header[columns.time]) for name, user in samples.items()]
    return build_trace(path, columns.quantity, users)


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Line by line, as long as lines and file stay in bounds: a kilobyte of gzip can hold a megabyte."""
    total = 0
    while line := file.readline(MAX_LINE_LENGTH):
        total += len(line)
        if len(line) == MAX_LINE_LENGTH or total > MAX_TABLE_LENGTH:
            raise AsflError(
                f"{path}: a line has more than {MAX_LINE_LENGTH:,} characters, or all of them have more than "
                f"{MAX_TABLE_LENGTH:,}; give fewer samples, or an NPZ file"
            )
        yield line


def _open_text(path: Path) -> TextIO:
    # utf-8-sig: spreadsheets put a byte order mark in front of the first column's name.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@dataclass(frozen=True)
class _Columns:
    header: Sequence[str]
    quantity: TableQuantity
    time: int
    user: int | None
    value: int


def _find_columns(path: Path, header: list[str], quantity: TableQuantity | Literal["auto"]) -> _Columns:
    lowered = [name.lower() for name in header]

    def find(options: Sequence[str]) -> int | None:
        return next((lowered.index(option) for option in options if option in lowered), None)

    # The order of the names decides where several fit: UCC 5G has `trace`, others number their rows in `id`.
    time, user = find(_TIME_COLUMNS), find(_USER_COLUMNS)
    found = {each: column for each, names in _VALUE_COLUMNS.items() if (column := find(names)) is not None}
    shown = ", ".join(header) or "none"
    if time is None:
        raise AsflError(f"{path}: no time column among: {shown}; name one {' or '.join(_TIME_COLUMNS)}")
    wanted = next(iter(found), None) if quantity == "auto" else quantity
    if wanted is None or wanted not in found:
        options = [name for each in _VALUE_COLUMNS if wanted in (None, each) for name in _VALUE_COLUMNS[each]]
        raise AsflError(f"{path}: no value column among: {shown}; name one {' or '.join(options)}")
    return _Columns(header, wanted, time, user, found[wanted])


@dataclass
class _Samples:
    """Arrays, since a list takes five times the memory."""

    time_s: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    lines: "array[int]" = field(default_factory=lambda: array("q"))

    def series(self, path: Path, name: str, time_column: str) -> UserSeries:
        time_s = np.array(self.time_s)
        backwards = np.flatnonzero(np.diff(time_s) < 0)
        if backwards.size:
            row = int(backwards[0]) + 1
            raise AsflError(
                f"{path}, row {self.lines[row]}: {time_column} of user '{name}' goes back from "
                f"{time_s[row - 1]:g} to {time_s[row]:g}; sort the rows of a user by time"
            )
        return UserSeries(name, time_s, np.array(self.values))


def _collect(path: Path, columns: _Columns, rows: Iterator[tuple[int, list[str]]]) -> dict[str, _Samples]:
    samples: dict[str, _Samples] = {}
    for line, row in rows:
        if len(row) != len(columns.header):
            raise AsflError(f"{path}, row {line}: {len(row)} fields, but the header has {len(columns.header)}")
        time_s = _number(path, line, columns.header[columns.time], row[columns.time])
        if math.isnan(time_s):
            raise AsflError(f"{path}, row {line}: {columns.header[columns.time]} is missing; give seconds")
        name = path.name.split(".")[0] if columns.user is None else row[columns.user].strip()
        if not name:
            raise AsflError(f"{path}, row {line}: {columns.header[columns.user or 0]} is empty; name the user")
        user = samples.setdefault(name, _Samples())
        user.time_s.append(time_s)
        user.values.append(_number(path, line, columns.header[columns.value], row[columns.value]))
        user.lines.append(line)
    return samples


def _number(path: Path, line: int, column: str, text: str) -> float:
    """The finite number in a field, or NaN if the field says that it is missing."""
    try:
        value = float(text)
    except ValueError:
        if text.strip() in ("", "-"):
            return math.nan
        value = math.inf
    if math.isinf(value):
        raise AsflError(f"{path}, row {line}: {column} is '{text}'; give a finite number, or leave it empty")
    return value


def read_npz(path: Path, quantity: RequestedQuantity) -> Trace:
    """Read arrays [users, time] from an NPZ archive; other arrays in it may be of any kind and stay unread."""
    arrays, names_in_file = read_arrays(path, (*_TABLES, "dt_s", "user_names"))
    if "gain_db" in names_in_file and quantity in ("auto", "gain_db"):
        return read_walk(path)
    if quantity == "gain_db":
        raise AsflError(f"{path}: no array gain_db among: {', '.join(names_in_file) or 'none'}")
    wanted = next((each for each in _TABLES if each in arrays), None) if quantity == "auto" else quantity
    if wanted is None or wanted not in arrays:
        raise AsflError(f"{path}: no array {wanted or ', '.join(_TABLES)} among: {', '.join(arrays) or 'none'}")
    table = arrays[wanted]
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "fiu":
        raise AsflError(f"{path}: {wanted} is {table.dtype} {list(table.shape)}; give real numbers [users, time]")
    values = table.astype(np.float64)
    if np.isinf(values).any():
        user, step = (int(index) for index in np.argwhere(np.isinf(values))[0])
        raise AsflError(f"{path}: {wanted}[{user}, {step}] is {values[user, step]}; give finite numbers, or nan")
    period = arrays.get("dt_s", np.array(1.0))
    if period.size != 1 or period.dtype.kind not in "fiu" or not 0 < period.item() < math.inf:
        raise AsflError(f"{path}: dt_s is {period.tolist()}; give one positive number of seconds")
    names = arrays.get("user_names", np.arange(len(values)))
    if names.shape != (len(values),):
        raise AsflError(f"{path}: user_names is {list(names.shape)}; give one name for each of the {len(values)} users")
    time_s = np.arange(values.shape[1], dtype=np.float64) * np.float64(period.item())
    users = [UserSeries(str(name), time_s, row) for name, row in zip(names, values, strict=True)]
    return build_trace(path, wanted, users, float(period.item()))
