"""Who is where, with what processor."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.config.units import from_db

if TYPE_CHECKING:
    from asfl import config

MIN_DISTANCE_M = 1.0
"""No client is nearer to the server."""
PATH_GAIN_AT_1M_DB = -30.0


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a scenario; arrays have shape [N] unless stated."""

    position_m: NDArray[np.float64]
    """[N, 2], the server is at the origin."""
    distance_m: NDArray[np.float64]
    path_gain: NDArray[np.float64]
    cpu_hz: NDArray[np.float64]


def place_clients(scenario: "config.Scenario") -> Clients:
    """Draw positions (uniform in the disc, §V-A) and processor speeds (uniform).

    A larger `clients` keeps the first ones where they are.
    """
    uniform = random_stream(scenario.seed, "positions").random((scenario.clients, 2))
    inner, outer = MIN_DISTANCE_M**2, scenario.radius_m**2
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
    """θ of §V-A as a linear gain: 10^((−30 − 40 log₁₀ d)/10) with the default exponent."""
    return from_db(PATH_GAIN_AT_1M_DB) * distance_m**-channel.path_loss_exponent
