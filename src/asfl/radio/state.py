"""What a channel says of a round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from asfl.config import Radio

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
