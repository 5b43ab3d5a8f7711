"""Where clients are at a time: each walks a straight way, out and back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.radio.scenario import place_clients

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]


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

        Whoever would meet the edge after less than half of its way walks the other way, if there is more room there.
        """
        cell, start = scenario.channel.cell, place_clients(scenario).position_m
        angle = random_stream(scenario.seed, "directions").random(scenario.clients) * 2 * np.pi
        heading = np.column_stack([np.cos(angle), np.sin(angle)])
        ahead, behind = _room(start, heading, scenario.radius_m), _room(start, -heading, scenario.radius_m)
        back = (ahead < cell.walk_m / 2) & (behind > ahead)
        length = np.minimum(np.where(back, behind, ahead), cell.walk_m)
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
