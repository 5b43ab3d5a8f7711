"""How many bits cross the link: values with so many bits each, and beside few bits what it takes to read them again.

A group of numbers that are quantised together (a channel, or a sample where there is one position only) comes with a
`low` and a `step` of 32 bits each (`asfl.train.quantise`).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.models.profile import ModelProfile

Floats = NDArray[np.float64]

BITS_PER_GROUP = 2 * BITS_PER_VALUE


def activation_bits(
    profile: ModelProfile, cut: NDArray[np.int64], bits: ArrayLike, samples: ArrayLike, batches: int
) -> Floats:
    """Activations at a cut, or their gradients, of so many samples in so many mini-batches."""
    samples = np.asarray(samples)
    values = samples * profile.activation_bits[cut - 1] * (np.asarray(bits) / BITS_PER_VALUE)
    groups = batches * profile.groups_per_batch[cut - 1] + samples * profile.groups_per_sample[cut - 1]
    return np.asarray(values + _beside(bits) * groups)


def layer_bits(profile: ModelProfile, depth: int | NDArray[np.int64], bits: ArrayLike) -> Floats:
    """The parameters of layers 1 … depth. Running statistics are no parameters, and not charged."""
    values = np.asarray(profile.client_param_bits[depth]) * (np.asarray(bits) / BITS_PER_VALUE)
    return np.asarray(values + _beside(bits) * np.asarray(profile.client_param_groups[depth]))


def _beside(bits: ArrayLike) -> Floats:
    """Of each group."""
    return np.where(np.asarray(bits) < BITS_PER_VALUE, float(BITS_PER_GROUP), 0.0)
