"""A cell as 3GPP TR 38.901 has it: clients walk, and Sionna draws what they meet on their way.

What a client meets at the places along its way, path gain and rays, is drawn once and kept in a file: importing Sionna
takes ten seconds and more, so nothing else of asfl does.
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
from asfl.config.files import check_memory
from asfl.config.randomness import random_stream
from asfl.config.units import from_db
from asfl.data.arrays import read_arrays
from asfl.radio.link import ChannelState, block_centres_hz, place_clients

if TYPE_CHECKING:
    from asfl import config

# ---------------------------------------------------------------------- ways
Floats = NDArray[np.float64]
WALK_M = 100.0
"""How far clients walk before they turn round; at the edge of the disc they turn sooner."""


@dataclass(frozen=True, eq=False)
class Walks:
    """The ways of all clients; the server is at the origin."""

    start_m: Floats
    """[N, 2] where they are at time 0."""
    heading: Floats
    """[N, 2] unit vectors."""
    length_m: Floats
    """[N] how far they walk before they turn round."""
    speed_mps: float

    @classmethod
    def of(cls, scenario: "config.Scenario") -> "Walks":
        """From where the scenario puts each client, along its drawn direction, inside the disc.

        A client that would meet the edge after less than half of its way walks the other way, if there is more room.
        """
        cell, start = scenario.channel.cell, place_clients(scenario).position_m
        angle = random_stream(scenario.seed, "directions").random(scenario.clients) * 2 * np.pi
        heading = np.column_stack([np.cos(angle), np.sin(angle)])
        ahead, behind = _room(start, heading, scenario.radius_m), _room(start, -heading, scenario.radius_m)
        back = (ahead < WALK_M / 2) & (behind > ahead)
        length = np.minimum(np.where(back, behind, ahead), WALK_M)
        return cls(start, np.where(back[:, None], -heading, heading), length, cell.speed_mps)

    def walked_m(self, time_s: float) -> Floats:
        """[N] how far from its start each client is: rising to `length_m`, falling to 0, and again."""
        length = np.maximum(self.length_m, 1e-9)
        return length - np.abs(length - (self.speed_mps * time_s) % (2 * length))

    def position_m(self, time_s: float) -> Floats:
        """[N, 2]"""
        return self.start_m + self.walked_m(time_s)[:, None] * self.heading


def _room(start: Floats, heading: Floats, radius_m: float) -> Floats:
    """[N] how far it is to the edge of the disc: |start + x · heading| = radius."""
    along = (start * heading).sum(axis=1)
    return np.asarray(-along + np.sqrt(np.maximum(along**2 + radius_m**2 - (start**2).sum(axis=1), 0.0)))


# ---------------------------------------------------------------------- what a client meets
FORMAT = 1
"""Of the cached files; another number when they would hold something else."""
STEP_M = 5.0
"""Places are this far apart on a way: half the shortest distance over which the standard's shadowing is correlated."""
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
    relevant: dict[str, Any] = cell.model_dump()
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
    count = int(np.ceil(longest / STEP_M)) + 1
    check_memory(
        clients * count * (RAYS * 200 + count * 3000),
        f"drawing {count} places on the ways of scenario.clients = {clients:,}",
        "choose fewer clients",
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
            los="random",
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


# ---------------------------------------------------------------------- the channel
SPEED_OF_LIGHT_MPS = 299_792_458.0
ROUND_S = 1.0
"""A round counted without a clock, as where budgets are sampled, is taken to begin this long after the one before."""


@dataclass(frozen=True, eq=False)
class CellChannel:
    """Gains of clients that walk. Two calls with the same time give the same links, whichever scheme asks."""

    walks: Walks
    places: Places
    carrier_hz: float
    block_hz: Floats
    """[K] centres of the resource blocks, relative to the carrier."""
    selective: bool = False
    """Whether each block has its own gain, or all have the mean."""

    @classmethod
    def of(cls, scenario: "config.Scenario", radio: "config.Radio") -> "CellChannel":
        walks = Walks.of(scenario)
        channel, block_hz = scenario.channel, block_centres_hz(radio)
        places = places_on(walks, scenario)
        return cls(walks, places, channel.cell.carrier_hz, block_hz, channel.blocks == "selective")

    def at(self, round_index: int) -> ChannelState:
        return self.at_time(ROUND_S * round_index)

    def at_time(self, time_s: float) -> ChannelState:
        """Path gains between two places are interpolated in dB; the gain is their product with the fading."""
        walked = self.walks.walked_m(time_s)
        every, last = np.arange(len(walked)), self.places.path_gain_db.shape[1] - 1
        place = last * walked / np.maximum(self.walks.length_m, 1e-9)
        before = np.minimum(place.astype(int), max(last - 1, 0))
        after, share = np.minimum(before + 1, last), place - before
        gain_db = self.places.path_gain_db
        path_gain = from_db((1 - share) * gain_db[every, before] + share * gain_db[every, after])
        nearest = np.rint(place).astype(int)
        beyond_m = walked - nearest / max(last, 1) * self.walks.length_m
        by_block = path_gain[:, None] * np.abs(self._response(nearest, beyond_m)) ** 2
        return ChannelState(path_gain, by_block.mean(axis=1), True, by_block if self.selective else None)

    def position_at(self, time_s: float) -> Floats:
        """[N, 2] in metres."""
        return self.walks.position_m(time_s)

    def _response(self, place: NDArray[np.int64], beyond_m: Floats) -> NDArray[np.complex128]:
        """[N, K] Σ_r a_r exp(j (φ_r + 2π/λ · (direction of r) · (metres beyond the place) − 2π f τ_r)).

        The surroundings stand still, so a ray's phase turns only because the client moves (TR 38.901, 7.5-22).
        """
        every, heading = np.arange(len(place)), self.walks.heading
        places = self.places
        towards = (places.arrival[every, place] * heading[:, None]).sum(axis=2)
        turned = places.phase[every, place] + (2 * np.pi * self.carrier_hz / SPEED_OF_LIGHT_MPS) * (
            beyond_m[:, None] * towards
        )
        ray = places.amplitude[every, place] * np.exp(1j * turned)
        by_block = np.exp(-2j * np.pi * places.delay_s[every, place].astype(float)[:, None] * self.block_hz[:, None])
        return np.asarray((by_block @ ray[:, :, None])[:, :, 0])
