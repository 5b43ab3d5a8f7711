"""Walks through a city, as `asfl data trace` writes them: `gain_db` [users, time, blocks], positions and a map."""

from pathlib import Path

import numpy as np

from asfl.config.errors import AsflError
from asfl.data.npz import read_arrays
from asfl.radio.traces import MAX_DECIBEL, Surroundings, Trace

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
