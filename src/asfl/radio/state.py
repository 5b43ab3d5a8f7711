"""What a channel says of a round."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
