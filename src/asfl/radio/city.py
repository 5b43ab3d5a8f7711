"""Ray-traced cities: clients walk through streets, Sionna RT says what they hear of the server, and a trace is written
that `scenario.channel.kind = "trace"` reads.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from asfl.config.errors import AsflError, nearest
from asfl.config.files import open_ordinary
from asfl.config.randomness import random_stream
from asfl.config.units import to_db

# ---------------------------------------------------------------------- streets
Floats = NDArray[np.float64]

ROOF_M = 1.5
"""What is higher above the ground is a building."""
CLEAR_M = 3.0
"""People keep this far from walls."""
HEADINGS = 16
"""Directions that a person before a wall chooses from."""


@dataclass(frozen=True, eq=False)
class CityMap:
    """How high everything is, seen from above."""

    height_m: Floats
    """[rows, columns] above the lowest ground; row 0 is in the south."""
    west_m: float
    south_m: float
    cell_m: float

    @property
    def extent_m(self) -> tuple[float, float, float, float]:
        """West, east, south, north."""
        rows, columns = self.height_m.shape
        return (
            self.west_m,
            self.west_m + columns * self.cell_m,
            self.south_m,
            self.south_m + rows * self.cell_m,
        )

    def streets(self) -> NDArray[np.bool_]:
        """[rows, columns] where people can walk: outdoors, off the walls, and not in a closed yard."""
        clear = max(1, round(CLEAR_M / self.cell_m))
        open_ = ~ndimage.binary_dilation(self.height_m > ROOF_M, iterations=clear)
        open_[[0, -1]], open_[:, [0, -1]] = False, False
        parts, count = ndimage.label(open_)
        if not count:
            raise AsflError("nowhere in this part of the scene is outdoors; choose another --radius")
        return np.asarray(parts == 1 + np.bincount(parts.ravel())[1:].argmax())

    def cell_of(self, position_m: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column of positions [..., 2], at the edge if they are beyond it."""
        place = (position_m - (self.west_m, self.south_m)) / self.cell_m
        rows, columns = self.height_m.shape
        return np.clip(place[..., 1].astype(int), 0, rows - 1), np.clip(place[..., 0].astype(int), 0, columns - 1)

    def centre_of(self, cells: NDArray[np.int64]) -> Floats:
        """[..., 2] the middle of cells [..., 2] (row, column)."""
        return np.asarray(np.array([self.west_m, self.south_m]) + (cells[..., ::-1] + 0.5) * self.cell_m)


def walk(city: CityMap, start_m: Floats, steps: int, step_m: float, seed: int) -> Floats:
    """[N, steps, 2] where people are who go straight on until a wall, and then turn somewhere else."""
    streets, headings = city.streets(), 2 * np.pi * np.arange(HEADINGS) / HEADINGS
    ways = np.stack([np.cos(headings), np.sin(headings)], axis=1) * step_m
    positions = np.empty((len(start_m), steps, 2))
    for client, start in enumerate(start_m):
        luck = random_stream(seed, "turns", client)
        here, way = start, ways[luck.integers(HEADINGS)]
        for step in range(steps):
            positions[client, step] = here
            if not streets[city.cell_of(here + way)]:
                free = [other for other in luck.permutation(ways) if streets[city.cell_of(here + other)]]
                way = free[0] if free else np.zeros(2)
            here = here + way
    return positions


# ---------------------------------------------------------------------- rays: nothing else knows Sionna RT
OLDEST_LLVM = 16
"""14 and 15 crash while they compile; 19 is what was tried."""
SCATTERED = 0.2
"""Share of the field that walls scatter in all directions; without it, streets round two corners are silent."""
DEPTH = 5
SAMPLES = 500_000
SILENT_DB = -200.0
"""Where no ray arrives."""
CLIENT_M = 1.5


class Tracer:
    """A scene of Sionna RT with a server in it."""

    def __init__(self, scene: str, carrier_hz: float) -> None:
        choose_llvm()
        try:
            import mitsuba
            from sionna import rt
        except ImportError as error:
            raise AsflError(f'ray tracing needs Sionna RT: pip install "asfl[city]" ({error})') from None
        self.mitsuba, self.rt = mitsuba, rt
        known = sorted(name for name, file in vars(rt.scene).items() if str(file).endswith(".xml"))
        if scene not in known:
            raise AsflError(f"unknown scene '{scene}': {nearest(scene, known)}")
        self.scene: Any = rt.load_scene(getattr(rt.scene, scene))
        self.scene.frequency = carrier_hz
        aerial = rt.PlanarArray(num_rows=1, num_cols=1, pattern="iso", polarization="V")
        self.scene.tx_array = self.scene.rx_array = aerial
        for material in self.scene.radio_materials.values():
            material.scattering_coefficient = SCATTERED
        self.solve: Any = rt.PathSolver()

    def middle_m(self) -> Floats:
        box = self.scene.mi_scene.bbox()
        return np.array([box.min.x + box.max.x, box.min.y + box.max.y]) / 2

    def city_map(self, middle_m: Floats, radius_m: float, cell_m: float) -> CityMap:
        """By rays that fall straight down; where there is nothing, there is no street."""
        cells = int(2 * radius_m / cell_m)
        west, south = middle_m - radius_m
        axis = (np.arange(cells) + 0.5) * cell_m
        east, north = (grid.ravel().astype(np.float32) for grid in np.meshgrid(west + axis, south + axis))
        mi, top = self.mitsuba, float(self.scene.mi_scene.bbox().max.z) + 10.0
        rays = mi.Ray3f(mi.Point3f(east, north, top), mi.Vector3f(0, 0, -1))
        hit = self.scene.mi_scene.ray_intersect(rays)
        height = np.where(np.array(hit.is_valid()), np.array(hit.p.z), np.inf).astype(float)
        height = np.where(np.isfinite(height), height - height[np.isfinite(height)].min(initial=0.0), 99.0)
        return CityMap(height.reshape(cells, cells), float(west), float(south), cell_m)

    def gains(self, server_m: Floats, clients_m: Floats, block_hz: Floats) -> Floats:
        """[R, K] linear gains at the blocks' frequencies, of clients at [R, 2]."""
        scene, rt = self.scene, self.rt
        for name in [*scene.transmitters, *scene.receivers]:
            scene.remove(name)
        scene.add(rt.Transmitter("server", position=[float(x) for x in server_m]))
        for index, (x, y) in enumerate(clients_m):
            scene.add(rt.Receiver(f"client-{index}", position=[float(x), float(y), CLIENT_M]))
        paths = self.solve(
            scene, max_depth=DEPTH, samples_per_src=SAMPLES, diffuse_reflection=True, refraction=False, seed=1
        )
        response = paths.cfr(frequencies=block_hz.astype(np.float32), out_type="numpy")
        power = np.abs(response.reshape(len(clients_m), -1, len(block_hz))[:, 0]) ** 2
        return np.asarray(np.maximum(power.astype(float), 10 ** (SILENT_DB / 10)))


def choose_llvm() -> None:
    """Point Dr.Jit to the newest LLVM there is, unless the user did; one sentence if none will do."""
    if os.environ.get("DRJIT_LIBLLVM_PATH"):
        return
    folders = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/opt/llvm/lib", "/usr/local/opt/llvm/lib")
    patterns = ("libLLVM*.so*", "*/libLLVM*.so*", "llvm-*/lib/libLLVM*.so*", "libLLVM*.dylib")
    libraries = [file for folder in folders for pattern in patterns for file in Path(folder).glob(pattern)]
    newest = max(libraries, key=_version, default=None)
    if newest is None or _version(newest) < OLDEST_LLVM:
        raise AsflError(
            f"ray tracing needs LLVM {OLDEST_LLVM} or newer, and {newest or 'none'} is the newest here: install "
            "libllvm19 (Debian, Ubuntu: apt-get install libllvm19), or set DRJIT_LIBLLVM_PATH to its library"
        )
    os.environ["DRJIT_LIBLLVM_PATH"] = str(newest)


def _version(library: Path) -> int:
    """19 of libLLVM-19.so.1 or libLLVM.so.19.1; 0 if the name doesn't say."""
    found = re.search(r"libLLVM(?:-|\.so\.)(\d+)", library.name)
    return int(found[1]) if found else 0


# ---------------------------------------------------------------------- the trace
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
    """What was asked for."""

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


def trace_city(
    asked: Walk, tracer: Tracer, out: Path, progress: Callable[[int, int], None] = lambda done, steps: None
) -> None:
    """Solve step after step, and write the trace."""
    middle = tracer.middle_m()
    city = tracer.city_map(middle, asked.radius_m, CELL_M)
    server = _server(city, middle)
    blocks: Floats = (np.arange(asked.num_rbs, dtype=float) - (asked.num_rbs - 1) / 2) * asked.rb_bandwidth_hz
    start = _starts(asked, tracer, city, server, blocks)
    position = walk(city, start, asked.steps, asked.speed_mps * asked.step_s, asked.seed)
    together = max(1, AT_ONCE // asked.clients)
    rows = []
    for done in range(0, asked.steps, together):
        progress(done, asked.steps)
        places = position[:, done : done + together]
        gains = tracer.gains(server, places.reshape(-1, 2), blocks)
        rows.append(to_db(gains).reshape(asked.clients, -1, asked.num_rbs).astype(np.float16))
    progress(asked.steps, asked.steps)
    _save(
        out,
        gain_db=np.concatenate(rows, axis=1),
        block_hz=blocks,
        dt_s=asked.step_s,
        position_m=position.astype(np.float32),
        server_m=server,
        map_height_m=np.clip(city.height_m, 0, 255).astype(np.uint8),
        map_extent_m=np.array(city.extent_m),
        walk=json.dumps(asdict(asked)),
    )


def _server(city: CityMap, middle_m: Floats) -> Floats:
    rows, columns = np.nonzero(city.height_m > ROOF_M)
    where = city.centre_of(np.stack([rows, columns], axis=1))
    near = np.hypot(*(where - middle_m).T) <= 100.0
    if not near.any():
        return np.array([*middle_m, ROOF_WANTED_M])
    heights = city.height_m[rows, columns]
    best = int(np.where(near, np.abs(heights - ROOF_WANTED_M), np.inf).argmin())
    return np.array([*where[best], heights[best] + ABOVE_ROOF_M])


def _starts(asked: Walk, tracer: Tracer, city: CityMap, server: Floats, blocks: Floats) -> Floats:
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


def _save(file: Path, **arrays: object) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".tmp")
    with os.fdopen(open_ordinary(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    temporary.replace(file)
