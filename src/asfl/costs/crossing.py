"""How many bits cross the link: values with so many bits each, and what crosses beside them (docs/costs.md).

A group of numbers that are quantised together (a channel, or a sample where there is one position only) comes with a
`low` and a `step` of 32 bits each (`asfl.train.quantise`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.models.profile import ModelProfile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BITS_PER_GROUP = 2 * BITS_PER_VALUE
REPORTED_NUMBERS, BITS_OF_REPORTED = 64, 16
"""A client's report has so many numbers of so many bits for each layer, and a scale of 32 (`asfl.train.reports`)."""


@dataclass(frozen=True)
class Overheads:
    """Whether what the paper leaves out is charged: labels, running statistics, reports, scales of missed averages."""

    charged: bool = False
    reported_share: float | None = None
    """ι, where parameters themselves are reported, in 32 bits; None: `REPORTED_NUMBERS` for each layer."""


FREE = Overheads()


def activation_bits(profile: ModelProfile, cut: Ints, bits: ArrayLike, samples: ArrayLike, batches: int) -> Floats:
    """Activations at a cut, or their gradients, of so many samples in so many mini-batches."""
    samples = np.asarray(samples)
    values = samples * profile.activation_bits[cut - 1] * (np.asarray(bits) / BITS_PER_VALUE)
    groups = batches * profile.groups_per_batch[cut - 1] + samples * profile.groups_per_sample[cut - 1]
    return np.asarray(values + _beside(bits) * groups)


def label_bits(
    profile: ModelProfile, bits: ArrayLike, samples: ArrayLike, batches: int, overheads: Overheads
) -> Floats:
    """Beside activations on the way up: labels in whole bytes and, with few bits, one number on their error a batch."""
    if not overheads.charged:
        return np.zeros(())
    classes = max(profile.activation_bits[-1] / BITS_PER_VALUE, 2.0)  # the last layer's output
    of_label = 8 * np.ceil(np.log2(classes) / 8)
    return np.asarray(np.asarray(samples) * of_label + batches * BITS_PER_VALUE * (np.asarray(bits) < BITS_PER_VALUE))


def layer_bits(profile: ModelProfile, depth: int | Ints, bits: ArrayLike, overheads: Overheads = FREE) -> Floats:
    """Layers 1 … depth: their parameters with so many bits; running statistics cross whole."""
    values = np.asarray(profile.client_param_bits[depth]) * (np.asarray(bits) / BITS_PER_VALUE)
    found = np.asarray(values + _beside(bits) * np.asarray(profile.client_param_groups[depth]))
    return found + profile.client_statistic_bits[depth] if overheads.charged else found


def moving_bits(profile: ModelProfile, overheads: Overheads) -> Floats:
    """[M] each layer when the cut moves, whole."""
    return profile.param_bits + profile.statistic_bits if overheads.charged else profile.param_bits


def report_bits(profile: ModelProfile, synced: Ints, cut: Ints, overheads: Overheads) -> Floats:
    """What a client reports that has learnt: its update's norm, and of layers synced + 1 … cut, where sides differ."""
    if not overheads.charged:
        return np.zeros(())
    synced = np.minimum(synced, cut)
    if overheads.reported_share is None:
        return np.asarray(BITS_PER_VALUE + (cut - synced) * (REPORTED_NUMBERS * BITS_OF_REPORTED + BITS_PER_VALUE))
    apart = profile.client_param_bits[cut] - profile.client_param_bits[synced]
    return np.asarray(BITS_PER_VALUE + overheads.reported_share * apart)


def prefix_sums(values: Floats) -> Floats:
    """[..., M] -> [..., M+1], 0 first."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def _beside(bits: ArrayLike) -> Floats:
    """Of each group."""
    return np.where(np.asarray(bits) < BITS_PER_VALUE, float(BITS_PER_GROUP), 0.0)
