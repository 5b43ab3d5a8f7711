"""Measured channels: a CSV, NPZ or RENEW/Argos HDF5 file becomes one series of values per user.

A trace keeps the unit it was measured in; what an SNR, an RSRP or a relative gain means for the simulated
link is decided in `asfl.radio.channel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError, nearest
from asfl.config.files import check_file

Quantity = Literal["gain_db", "snr_db", "rsrp_dbm", "relative_gain"]
RequestedQuantity = Literal["auto", "gain_db", "snr_db", "rsrp_dbm", "relative_gain"]
HDF5_SUFFIXES = (".hdf5", ".h5")
Antenna = int | Literal["each"]

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


def read_trace(path: Path, quantity: RequestedQuantity = "auto", antenna: Antenna = 0) -> Trace:
    """Read a channel trace; the suffix of the file says how.

    `quantity` picks what to read of a file that holds several ("auto" takes SNR before RSRP); an HDF5 file
    gives `relative_gain` only. `antenna` counts the base-station antennas of an HDF5 file; with "each", every pair of
    a client's and a base-station antenna is a user. Tables have no antennas.
    """
    from asfl.radio.traces import renew, tables  # here, since both need the types above

    if quantity not in get_args(RequestedQuantity):
        raise AsflError(f"quantity: unknown '{quantity}': {nearest(quantity, get_args(RequestedQuantity))}")
    check_file(path)
    name = path.name.lower()
    if name.endswith(HDF5_SUFFIXES):
        if quantity not in ("auto", "relative_gain"):
            hint = "leave the quantity (scenario.channel.trace_quantity) at auto"
            raise AsflError(f"{path}: an HDF5 file gives no {quantity}; {hint}")
        return renew.read_hdf5(path, antenna)
    if not name.endswith((".csv", ".csv.gz", ".npz")):
        raise AsflError(f"{path}: unknown kind of file; valid suffixes: .csv, .csv.gz, .npz, .hdf5, .h5")
    if quantity == "relative_gain":
        raise AsflError(f"{path}: a table gives no relative_gain; quantity can be auto, snr_db or rsrp_dbm")
    if name.endswith(".npz"):
        return tables.read_npz(path, quantity)
    if quantity == "gain_db":
        raise AsflError(f"{path}: a CSV file gives no gain_db; quantity can be auto, snr_db or rsrp_dbm")
    return tables.read_csv(path, quantity)


def build_trace(
    path: Path, quantity: Quantity, users: Sequence[UserSeries], sample_period_s: float | None = None
) -> Trace:
    """Put every user on an even grid of time and leave out those that are mostly gaps.

    Without a `sample_period_s`, it is the median time step over all users.
    """
    for user in users:
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
