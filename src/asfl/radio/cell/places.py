"""What a client meets at the places along its way: path gain and rays, drawn once by Sionna and kept in a file.

Importing Sionna takes ten seconds and more, so nothing else of asfl does. A world's places depend on its settings and
seed alone; they are computed when first asked for and read from the cache afterwards.
"""

import hashlib
import json
import os
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.machine import check_memory
from asfl.config.randomness import random_stream
from asfl.data.npz import read_arrays
from asfl.radio.cell.walks import Walks

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]

FORMAT = 1
"""Of the cached files; another number when they would hold something else."""
STEP_M = 5.0
"""Places are this far apart on a way: half the shortest distance over which the standard's shadowing is correlated."""
MOST_PLACES = 200
"""On one way; on ways above a kilometre they are further apart."""
SERVER_M = {"umi": 10.0, "uma": 25.0, "rma": 35.0}
CLIENT_M = 1.5
NEAREST_M = {"umi": 10.0, "uma": 35.0, "rma": 35.0}
"""The models don't hold nearer to the server (TR 38.901, Table 7.4.1-1); who is nearer is taken to be there."""
RAYS = 500
"""About as many rays as there are at one place, for what they take of the memory."""


@dataclass(frozen=True, eq=False)
class Places:
    """N clients, W places on the way of each, R rays at each place."""

    path_gain_db: Floats
    """[N, W] with shadowing."""
    sees_server: NDArray[np.bool_]
    """[N, W] line of sight."""
    amplitude: NDArray[np.float32]
    """[N, W, R] of a ray; squares add up to 1 in the mean."""
    phase: NDArray[np.float32]
    """[N, W, R] in radians, at the carrier."""
    delay_s: NDArray[np.float32]
    """[N, W, R]"""
    arrival: NDArray[np.float32]
    """[N, W, R, 2] from where it comes: the part of the unit vector in the plane clients walk in."""


def places_on(walks: Walks, scenario: "config.Scenario") -> Places:
    """From the cache, or drawn and cached."""
    cell = scenario.channel.cell
    relevant: dict[str, Any] = cell.model_dump(exclude={"neighbours"})
    relevant |= {"clients": scenario.clients, "seed": scenario.seed, "format": FORMAT}
    relevant |= {"start": walks.start_m.tolist(), "heading": walks.heading.tolist(), "length": walks.length_m.tolist()}
    key = hashlib.blake2b(json.dumps(relevant, sort_keys=True).encode(), digest_size=12).hexdigest()
    file = cache_folder() / f"3gpp-{cell.model}-{key}.npz"
    names = [each.name for each in fields(Places)]
    if file.is_file():
        arrays, _ = read_arrays(file, names)
        if len(arrays) == len(names):
            return Places(**arrays)
    places = draw_places(walks, scenario)
    _write(file, {name: getattr(places, name) for name in names})
    return places


def cache_folder() -> Path:
    """`ASFL_CACHE_DIR`, else the user's cache."""
    own, usual = os.environ.get("ASFL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(usual or Path.home() / ".cache") / "asfl"


def _write(file: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """All of it or nothing; without a cache that can be written it is drawn again next time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            np.savez(part, **arrays)  # type: ignore[arg-type]
        Path(part.name).replace(file)
    except OSError as error:
        warnings.warn(
            f"{file} can't be written ({error.strerror}); set ASFL_CACHE_DIR to a folder that can", stacklevel=2
        )


def draw_places(walks: Walks, scenario: "config.Scenario") -> Places:
    """Steps 1 to 10 of TR 38.901 §7.5 by Sionna, with spatial consistency (§7.6.3) along each way.

    Every client is a batch entry of its own, so the surroundings of two clients are independent. Aerials are single and
    vertically polarised on both sides, so of a ray only one phase counts; rays of a cluster arrive together.
    """
    cell, clients = scenario.channel.cell, scenario.clients
    longest = float(walks.length_m.max()) if walks.speed_mps > 0 else 0.0
    count = min(int(np.ceil(longest / STEP_M)) + 1, MOST_PLACES)
    check_memory(
        clients * count * (RAYS * 200 + count * 3000),
        f"drawing {count} places on the ways of scenario.clients = {clients:,}",
        "choose fewer clients or a shorter scenario.channel.cell.walk_m",
    )
    share = np.linspace(0.0, 1.0, count) if count > 1 else np.zeros(1)
    place_m = walks.start_m[:, None] + (share * walks.length_m[:, None])[..., None] * walks.heading[:, None]
    place_m = _not_too_near(place_m, NEAREST_M[cell.model])
    torch, model = _sionna_model(cell, int(random_stream(scenario.seed, "3gpp").integers(2**31)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order would be other places
    try:
        still = torch.zeros(clients, count, 3, dtype=torch.float64)
        server = torch.tensor([0.0, 0.0, SERVER_M[cell.model]], dtype=torch.float64).expand(clients, 1, 3)
        height = np.full((clients, count, 1), CLIENT_M)
        model.set_topology(
            ut_loc=torch.from_numpy(np.concatenate([place_m, height], axis=2)),
            bs_loc=server,
            ut_orientations=still,
            bs_orientations=still[:, :1],
            ut_velocities=still,
            in_state=torch.zeros(clients, count, dtype=torch.bool),
            los={"drawn": "random", "always": True, "never": False}[cell.line_of_sight],
            spatial_consistency_track_ids=torch.zeros(count, dtype=torch.int64),
            **({"in_car": torch.zeros(clients, count, dtype=torch.bool)} if cell.model == "rma" else {}),
        )
        model.return_rays = True
        _, _, rays = model(1, 1.0)
    finally:
        torch.set_num_threads(threads)
    scenario_, lsp = model._scenario, model._lsp  # Sionna shows them nowhere else
    sees = scenario_.los[:, 0].numpy()
    gain_db = -lsp.pathloss[:, 0].numpy()
    if cell.shadowing:
        gain_db = gain_db + 10 * np.log10(lsp.sf[:, 0].numpy())
    k_factor = np.where(sees, lsp.k_factor[:, 0].numpy(), 0.0)[..., None]
    zenith, azimuth = rays.zoa[:, 0].numpy(), rays.aoa[:, 0].numpy()
    power = np.repeat(rays.powers[:, 0].numpy()[..., None], zenith.shape[-1], axis=-1) / zenith.shape[-1]
    delay = np.broadcast_to(rays.delays[:, 0].numpy()[..., None], zenith.shape)
    direct = np.deg2rad(scenario_.los_zoa[:, 0].numpy()), np.deg2rad(scenario_.los_aoa[:, 0].numpy())
    to_server = -2 * np.pi * scenario_.distance_3d[:, 0].numpy() * cell.carrier_hz / 299_792_458.0

    def rays_and_direct(scattered: Floats, straight: Floats) -> NDArray[np.float32]:
        """[N, W, R] with the direct ray, which has no power without line of sight, as the last."""
        rows = scattered.reshape(clients, count, -1)
        return np.concatenate([rows, straight.reshape(clients, count, 1)], axis=2).astype(np.float32)

    horizontal = [
        rays_and_direct(np.sin(zenith) * turned(azimuth), np.sin(direct[0]) * turned(direct[1]))
        for turned in (np.cos, np.sin)
    ]
    return Places(
        path_gain_db=gain_db,
        sees_server=sees,
        amplitude=rays_and_direct(np.sqrt(power / (1 + k_factor[..., None])), np.sqrt(k_factor / (1 + k_factor))),
        phase=rays_and_direct(rays.phases[:, 0, ..., 0].numpy(), to_server % (2 * np.pi)),
        delay_s=rays_and_direct(delay, np.zeros_like(to_server)),
        arrival=np.stack(horizontal, axis=-1),
    )


def _not_too_near(place_m: Floats, nearest_m: float) -> Floats:
    distance = np.maximum(np.hypot(place_m[..., 0], place_m[..., 1]), 1e-6)[..., None]
    return np.asarray(place_m * np.maximum(1.0, nearest_m / distance))


def _sionna_model(cell: "config.Cell", seed: int) -> tuple[Any, Any]:
    try:
        import torch
        from sionna.phy import config as sionna
        from sionna.phy.channel import tr38901
    except ImportError as error:
        raise AsflError(
            f'scenario.channel.kind = "3gpp" needs Sionna: pip install "asfl[channels]" ({error})'
        ) from None
    sionna.seed = seed
    aerial = tr38901.PanelArray(
        num_rows_per_panel=1,
        num_cols_per_panel=1,
        polarization="single",
        polarization_type="V",
        antenna_pattern="omni",
        carrier_frequency=cell.carrier_hz,
        precision="double",
    )
    options: dict[str, Any] = {
        "carrier_frequency": cell.carrier_hz,
        "ut_array": aerial,
        "bs_array": aerial,
        "direction": "downlink",
        "precision": "double",
        "enable_spatial_consistency": True,
    }
    if cell.model == "rma":
        return torch, tr38901.RMa(**options)
    return torch, (tr38901.UMi if cell.model == "umi" else tr38901.UMa)(o2i_model="low", **options)
