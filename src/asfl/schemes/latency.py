"""What ACC-SFL and EPSL share: both make the round short and assume that everything arrives."""

import numpy as np
from numpy.typing import NDArray

from asfl.costs.round import Round

Floats = NDArray[np.float64]

MAX_PASSES = 20
LEAST_GAIN = 1e-12
"""The descent ends when a pass shortens the round by less than this share."""


def even_counts(round_: Round) -> Floats:
    """Every block handed out, as evenly as whole blocks allow; needs at least one block per client."""
    each, left = divmod(round_.radio.num_rbs, round_.num_clients)
    return np.where(np.arange(round_.num_clients) < left, each + 1.0, float(each))


def relative_uplink_s(round_: Round, tx_power_w: Floats) -> Floats:
    """[K', N]: time of a transmission with 1, 2, … K' blocks, relative to one block; K' leaves everybody else one."""
    most = round_.radio.num_rbs - round_.num_clients + 1
    rate = round_.uplink_rate_bps(np.arange(1.0, most + 1)[:, None], tx_power_w)
    return np.asarray(np.divide(rate[0], rate, out=np.ones_like(rate), where=rate > 0))
