"""How many bits cross the link: values with so many bits each, what crosses beside them (docs/costs.md), and who holds
which layers already.

A group of numbers that are quantised together (a channel, or a sample where there is one position only) comes with a
`low` and a `step` of 32 bits each (`asfl.train.quantise`).

ASFL as published gives new layers to all clients at once. Schemes that average client sides can't: clients that sit out
would receive every average. Here clients fetch missed updates when they return, and are charged then (`Holdings`).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.fields import Amount
from asfl.config.shapes import Each
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.decision import Decision
from asfl.models.profile import ModelProfile

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BITS_PER_GROUP = 2 * BITS_PER_VALUE
REPORTED_NUMBERS, BITS_OF_REPORTED = 64, 16
"""A client's report has so many numbers of so many bits for each layer, and a scale of 32 (`asfl.train.fleet`)."""


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


# ---------------------------------------------------------------------- who holds what


@dataclass(frozen=True, eq=False)
class Holdings:
    """What would have to cross the link before each client can train each layer. N clients, M layers."""

    stale_bits: Annotated[Floats, Each(Amount, "clients layers")]
    """[N, M] bits per parameter that a client must receive: 0 if it is up to date, 32 for the whole layer; less if only
    averages at fewer bits were missed, which come as differences."""
    diverged: Annotated[Bools, Each(bool, "layers")]
    """[M] whether clients' copies of a layer differ. A layer that all share needn't be sent up when it moves."""
    missed: Annotated[Floats, Each(Amount, "clients layers")] = field(default_factory=lambda: np.zeros((1, 1)))
    """[N, M] how many averages with few bits a client has missed: each comes with scales of its own."""

    @classmethod
    def fresh(cls, num_clients: int, num_layers: int) -> "Holdings":
        """All clients have the initial model."""
        nothing = np.zeros((num_clients, num_layers))
        return cls(nothing, np.zeros(num_layers, dtype=np.bool_), nothing)

    @cached_property
    def _clients(self) -> NDArray[np.int64]:
        return np.arange(len(self.stale_bits))

    def download_bits(self, profile: ModelProfile, cut: NDArray[np.int64], overheads: Overheads) -> Floats:
        """[..., N] what each client must receive to hold its layers up to a cut [..., 1] or [N].

        With overheads: differences with the scales of each, or the whole layer if that is less; statistics as they are.
        """
        differences = (self.stale_bits > 0) & (self.stale_bits < BITS_PER_VALUE)
        missed = np.where(differences, self.missed if overheads.charged else 1.0, 0.0)
        stale = self.stale_bits / BITS_PER_VALUE * profile.param_bits + missed * BITS_PER_GROUP * profile.param_groups
        if overheads.charged:
            stale = np.minimum(stale, profile.param_bits) + np.where(self.stale_bits > 0, profile.statistic_bits, 0.0)
        return np.asarray(prefix_sums(stale)[self._clients, cut])

    def upload_bits(
        self, profile: ModelProfile, cut: NDArray[np.int64], previous_cut: int | None, overheads: Overheads
    ) -> Floats:
        """[..., N] at full precision: layers above the cut that go to the server, as far as it doesn't know them."""
        if previous_cut is None:
            return np.zeros(np.broadcast_shapes(np.shape(cut), self._clients.shape))
        known = (self.stale_bits > 0) | ~self.diverged
        unknown = prefix_sums(np.where(known, 0.0, moving_bits(profile, overheads)))
        return np.asarray(unknown[:, previous_cut] - unknown[self._clients, np.minimum(cut, previous_cut)])

    def after(self, decision: Decision, updated: Bools, *, trained: bool) -> "Holdings":
        """After a round: `updated` [N] have received what they needed; `trained`: some packet arrived."""
        layers = np.arange(1, self.stale_bits.shape[1] + 1)
        cut = np.broadcast_to(decision.cut, len(self.stale_bits))
        held = layers <= cut[:, None]
        stale, missed = (np.where(updated[:, None] & held, 0.0, before) for before in (self.stale_bits, self.missed))
        stale = np.where(layers > cut.max(), BITS_PER_VALUE, stale) if trained else stale
        diverged = self.diverged & (layers <= cut.max())
        if trained:
            averaged = layers <= decision.synced
            bits = float(np.max(np.broadcast_to(decision.bits, len(cut))[decision.scheduled], initial=0))
            stale = np.where(averaged, np.minimum(stale + bits, BITS_PER_VALUE), stale)
            missed = missed + (averaged & (bits < BITS_PER_VALUE))
            diverged = (diverged | (layers <= cut.max())) & ~averaged
        return Holdings(stale, diverged, missed)
