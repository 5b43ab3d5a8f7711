"""Who is where, with what processor."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.config.units import from_db

if TYPE_CHECKING:
    from asfl import config


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a scenario; arrays have shape [N] unless stated."""

    position_m: NDArray[np.float64]
    """[N, 2], the server is at the origin."""
    distance_m: NDArray[np.float64]
    path_gain: NDArray[np.float64]
    cpu_hz: NDArray[np.float64]


def place_clients(scenario: "config.Scenario", round_index: int = 0) -> Clients:
    """Draw positions (uniform in the disc, §V-A) and processor speeds (uniform).

    With static placement every round sees the positions of round 0. A larger `clients` keeps the first ones where
    they are.
    """
    place_round = round_index if scenario.placement == "every_round" else 0
    uniform = random_stream(scenario.seed, "positions", place_round).random((scenario.clients, 2))
    inner, outer = scenario.min_distance_m**2, scenario.radius_m**2
    distance = np.sqrt(inner + (outer - inner) * uniform[:, 0])
    angle = 2 * np.pi * uniform[:, 1]
    speed = random_stream(scenario.seed, "cpu").random(scenario.clients)
    return Clients(
        position_m=distance[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]),
        distance_m=distance,
        path_gain=path_gain(distance, scenario.channel),
        cpu_hz=scenario.min_cpu_hz + (scenario.max_cpu_hz - scenario.min_cpu_hz) * speed,
    )


def path_gain(distance_m: NDArray[np.float64], channel: "config.ChannelSettings") -> NDArray[np.float64]:
    """θ of §V-A as a linear gain: 10^((−30 − 40 log₁₀ d)/10) with the default intercept and exponent."""
    return from_db(channel.path_gain_at_1m_db) * distance_m**-channel.path_loss_exponent
