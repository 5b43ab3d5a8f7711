"""A walk through a city, written as a trace that `scenario.channel.kind = "trace"` reads."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.files import open_ordinary
from asfl.config.randomness import random_stream
from asfl.config.units import to_db
from asfl.data.npz import read_arrays
from asfl.radio.city.streets import ROOF_M, CityMap, walk

Floats = NDArray[np.float64]

CELL_M = 2.0
ROOF_WANTED_M = 25.0
"""The server stands on the roof near the middle that is nearest to this height, as in TR 38.901's urban macro cell."""
ABOVE_ROOF_M = 3.0
AT_ONCE = 160
"""Places solved together: rays from the server serve them all."""
HEARD_DB = -150.0
"""Walks begin where the server hears at least this."""


@dataclass(frozen=True)
class Walk:
    """What was asked for; a file that was begun goes on only if it is the same."""

    scene: str
    clients: int
    seconds: float
    step_s: float
    speed_mps: float
    radius_m: float
    carrier_hz: float
    num_rbs: int
    rb_bandwidth_hz: float
    seed: int

    @property
    def steps(self) -> int:
        return max(2, round(self.seconds / self.step_s))


class TracesRays(Protocol):
    """What is asked of `asfl.radio.city.rays.Tracer`."""

    def middle_m(self) -> Floats: ...
    def city_map(self, middle_m: Floats, radius_m: float, cell_m: float) -> CityMap: ...
    def gains(self, server_m: Floats, clients_m: Floats, block_hz: Floats) -> Floats: ...


def trace_city(
    asked: Walk, tracer: TracesRays, out: Path, progress: Callable[[int, int], None] = lambda done, steps: None
) -> None:
    """Solve step after step; what is done is kept beside `out`, and a second call goes on from there."""
    middle = tracer.middle_m()
    city = tracer.city_map(middle, asked.radius_m, CELL_M)
    server = _server(city, middle)
    blocks: Floats = (np.arange(asked.num_rbs, dtype=float) - (asked.num_rbs - 1) / 2) * asked.rb_bandwidth_hz
    part = out.with_name(out.name + ".part")
    start, gain_db = _begun(part, asked)
    if start is None:
        start = _starts(asked, tracer, city, server, blocks)
    position = walk(city, start, asked.steps, asked.speed_mps * asked.step_s, asked.seed)
    together = max(1, AT_ONCE // asked.clients)
    while (done := gain_db.shape[1]) < asked.steps:
        progress(done, asked.steps)
        places = position[:, done : done + together]
        gains = tracer.gains(server, places.reshape(-1, 2), blocks)
        rows = to_db(gains).reshape(asked.clients, -1, asked.num_rbs).astype(np.float16)
        gain_db = np.concatenate([gain_db, rows], axis=1)
        _save(part, walk=json.dumps(asdict(asked)), start_m=start, gain_db=gain_db)
    progress(asked.steps, asked.steps)
    _save(
        out,
        gain_db=gain_db,
        block_hz=blocks,
        dt_s=asked.step_s,
        position_m=position.astype(np.float32),
        server_m=server,
        map_height_m=np.clip(city.height_m, 0, 255).astype(np.uint8),
        map_extent_m=np.array(city.extent_m),
        walk=json.dumps(asdict(asked)),
    )
    part.unlink()


def _server(city: CityMap, middle_m: Floats) -> Floats:
    rows, columns = np.nonzero(city.height_m > ROOF_M)
    where = city.centre_of(np.stack([rows, columns], axis=1))
    near = np.hypot(*(where - middle_m).T) <= 100.0
    if not near.any():
        return np.array([*middle_m, ROOF_WANTED_M])
    heights = city.height_m[rows, columns]
    best = int(np.where(near, np.abs(heights - ROOF_WANTED_M), np.inf).argmin())
    return np.array([*where[best], heights[best] + ABOVE_ROOF_M])


def _starts(asked: Walk, tracer: TracesRays, city: CityMap, server: Floats, blocks: Floats) -> Floats:
    """[N, 2] random places in the streets where the server can be heard."""
    cells = np.argwhere(city.streets())
    order = random_stream(asked.seed, "starts").permutation(len(cells))
    heard: list[Floats] = []
    for first in range(0, min(len(order), 10 * AT_ONCE), AT_ONCE):
        places = city.centre_of(cells[order[first : first + AT_ONCE]])
        gain_db = to_db(tracer.gains(server, places, blocks).mean(axis=1))
        heard += list(places[gain_db >= HEARD_DB])
        if len(heard) >= asked.clients:
            return np.array(heard[: asked.clients])
    raise AsflError(
        f"{asked.scene}: only {len(heard)} of {asked.clients} clients found a place within {asked.radius_m:g} m where "
        "the server hears them; choose fewer --clients or another --radius"
    )


def _begun(part: Path, asked: Walk) -> tuple[Floats | None, NDArray[np.float16]]:
    """Where walks began and the gains so far [N, steps done, K], if the same walk was begun before."""
    nothing = np.zeros((asked.clients, 0, asked.num_rbs), dtype=np.float16)
    if not part.is_file():
        return None, nothing
    try:
        arrays, _ = read_arrays(part, ("walk", "start_m", "gain_db"))
    except AsflError:
        return None, nothing
    same = len(arrays) == 3 and json.loads(str(arrays["walk"])) == asdict(asked)
    return (arrays["start_m"], arrays["gain_db"]) if same else (None, nothing)


def _save(file: Path, **arrays: object) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".tmp")
    with os.fdopen(open_ordinary(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    temporary.replace(file)
