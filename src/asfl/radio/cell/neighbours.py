"""Neighbouring cells as noise: the six of the first ring and the twelve of the second, in a hexagonal grid.

Stated model: with probability `LOAD` a cell is active. Down, its server then sends with p^s over the whole
band; up, one client sends in every block, with P^max over its fair share of blocks, from a place that is uniform in
the disc of the cell's area. Path losses are those without line of sight and without shadowing, and everything is
averaged over places: the noise is raised by a constant (up) or by what a client's place says (down).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.radio.cell.loss import unseen_gain

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]

SITE_DISTANCE_M = {"umi": 200.0, "uma": 500.0, "rma": 1732.0}
RINGS = 2
LOAD = 0.5
"""Share of the time and blocks in which neighbours send."""
PLACES = 400
"""Places in a neighbouring cell over which its clients are averaged."""


def sites_m(distance_m: float) -> Floats:
    """[18, 2] where the neighbours' servers are; ours is at the origin."""
    across, up = np.meshgrid(np.arange(-RINGS, RINGS + 1), np.arange(-RINGS, RINGS + 1))
    steps = np.maximum.reduce([np.abs(across), np.abs(up), np.abs(across + up)])
    chosen = (steps > 0) & (steps <= RINGS)
    return distance_m * np.column_stack([across[chosen] + up[chosen] / 2, up[chosen] * np.sqrt(3) / 2])


class Neighbours:
    """How much the neighbours raise the noise."""

    def __init__(self, scenario: "config.Scenario", radio: "config.Radio") -> None:
        cell = scenario.channel.cell
        distance = SITE_DISTANCE_M[cell.model]
        self._cell, self._radio, self._sites = cell, radio, sites_m(distance)
        # A hexagon's area as a disc, filled evenly (a sunflower's seeds).
        seed = np.arange(PLACES) + 0.5
        radius = distance * np.sqrt(np.sqrt(3) / 2 / np.pi) * np.sqrt(seed / PLACES)
        angle = np.pi * (1 + np.sqrt(5)) * seed
        places = self._sites[:, None] + (radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]))[None]
        gain = unseen_gain(np.hypot(places[..., 0], places[..., 1]), cell).mean(axis=1).sum()
        blocks = max(1.0, radio.num_rbs / scenario.clients)
        received_w_per_hz = LOAD * gain * radio.max_tx_power_w / (blocks * radio.rb_bandwidth_hz)
        self.uplink_rise = 1.0 + float(received_w_per_hz) / radio.noise_psd_w_per_hz
        """(N₀ + I) / N₀ at the server."""

    def downlink_rise(self, position_m: Floats) -> Floats:
        """[N] (N₀ + I) / N₀ at clients [N, 2]."""
        away = np.linalg.norm(position_m[:, None] - self._sites, axis=2)
        gain = unseen_gain(away, self._cell).sum(axis=1)
        sent_w_per_hz = LOAD * self._radio.server_tx_power_w / self._radio.downlink_bandwidth_hz
        return np.asarray(1.0 + sent_w_per_hz * gain / self._radio.noise_psd_w_per_hz)
