"""Who gets how many resource blocks: of every client, the share of rounds with none, one, two, …"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asfl.runs.records import RoundRecord

Floats = NDArray[np.float64]


def block_shares(records: Sequence[RoundRecord]) -> dict[str, Floats]:
    """By number of blocks, [N] shares of the rounds; blocks that are shared in time count up to the next whole one."""
    counts = np.array([record.rb_count for record in records], float)  # [R, N]
    whole = np.ceil(counts - 1e-9).astype(int)
    in_time = bool((np.abs(counts - np.round(counts)) > 1e-9).any())
    shares = {}
    for number in range(int(whole.max(initial=0)) + 1):
        word = "none" if number == 0 else f"up to {number}" if in_time else str(number)
        shares[word] = np.asarray((whole == number).mean(axis=0))
    return shares
