"""Who is where, with what processor; and what a channel says of a round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.config.units import from_db

if TYPE_CHECKING:
    from asfl import config
    from asfl.config import Radio

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


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ChannelState:
    """The links of one round; arrays have shape [N]."""

    path_gain: Floats
    """θ: the mean gain; for a trace, its mean over time."""
    channel_gain: Floats
    """|h|²: the gain in this round."""
    gain_is_known: bool
    """Whether packets meet exactly this gain (trace) or fade around the mean (Rayleigh)."""
    block_gain: Floats | None = None
    """[N, K] the gain of each resource block in this round, whose mean is `channel_gain`; None: all have the same."""
    downlink_gain: Floats | None = None
    """The gain on the way down, where it isn't `channel_gain`: gains are over the thermal noise, and where others are
    heard besides it, each end hears something else."""


def block_centres_hz(radio: "Radio") -> Floats:
    """[K] of the resource blocks, relative to the carrier."""
    return (np.arange(radio.num_rbs, dtype=np.float64) - (radio.num_rbs - 1) / 2) * radio.rb_bandwidth_hz
