"""The one place that knows Sionna RT: a scene from above, and the gains of clients in it."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError, nearest
from asfl.radio.city.streets import CityMap

Floats = NDArray[np.float64]

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
        given = Path(os.environ["DRJIT_LIBLLVM_PATH"])
        version = _version(given)
        if given.exists() and (version == 0 or version >= OLDEST_LLVM):
            return
        why = f"DRJIT_LIBLLVM_PATH is {given}, " + ("which is too old" if given.exists() else "which isn't there")
    else:
        folders = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/opt/llvm/lib", "/usr/local/opt/llvm/lib")
        libraries = [
            file
            for folder in folders
            for pattern in ("libLLVM*.so*", "*/libLLVM*.so*", "llvm-*/lib/libLLVM*.so*", "libLLVM*.dylib")
            for file in Path(folder).glob(pattern)
        ]
        newest = max(libraries, key=_version, default=None)
        if newest is not None and _version(newest) >= OLDEST_LLVM:
            os.environ["DRJIT_LIBLLVM_PATH"] = str(newest)
            return
        why = "there is none" if newest is None else f"the newest is {newest}"
    raise AsflError(
        f"ray tracing needs LLVM {OLDEST_LLVM} or newer, and {why}: install libllvm19 (Debian, Ubuntu: apt-get install "
        "libllvm19), or set DRJIT_LIBLLVM_PATH to its library"
    )


def _version(library: Path) -> int:
    """19 of libLLVM-19.so.1 or libLLVM.so.19.1; 0 if the name doesn't say."""
    found = re.search(r"libLLVM(?:-|\.so\.)(\d+)", library.name)
    return int(found[1]) if found else 0
