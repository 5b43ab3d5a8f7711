"""The channel of a cell as a function of time: the clock of the simulation moves the clients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import from_db
from asfl.radio.cell.neighbours import Neighbours
from asfl.radio.cell.places import Places, places_on
from asfl.radio.cell.walks import Walks
from asfl.radio.state import ChannelState, block_centres_hz

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]

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
    neighbours: Neighbours | None = None
    """Cells around, whose noise lowers all gains: they are over the thermal noise."""

    @classmethod
    def of(cls, scenario: "config.Scenario", radio: "config.Radio") -> "CellChannel":
        walks = Walks.of(scenario)
        channel, block_hz = scenario.channel, block_centres_hz(radio)
        places = places_on(walks, scenario)
        around = Neighbours(scenario, radio) if channel.cell.neighbours == "hexagonal" else None
        return cls(walks, places, channel.cell.carrier_hz, block_hz, channel.blocks == "selective", around)

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
        down = None
        if self.neighbours is not None:
            down = by_block.mean(axis=1) / self.neighbours.downlink_rise(self.walks.position_m(time_s))
            path_gain, by_block = path_gain / self.neighbours.uplink_rise, by_block / self.neighbours.uplink_rise
        return ChannelState(path_gain, by_block.mean(axis=1), True, by_block if self.selective else None, down)

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
