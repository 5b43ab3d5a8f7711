"""One random stream per purpose and round."""

from hashlib import blake2b

import numpy as np


def random_stream(seed: int, purpose: str, round_index: int = 0) -> np.random.Generator:
    """The random numbers of one purpose in one round.

    Streams of different purposes or rounds are independent, and asking for one never disturbs another: schemes that
    draw more or less of one kind still see the same world, and a resumed run replays it exactly.
    """
    purpose_key = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng([seed, purpose_key, round_index])
