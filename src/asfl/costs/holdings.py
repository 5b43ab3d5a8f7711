"""Who holds which layers, where a client is brought up to date only when it takes part again, and is charged then.

ASFL as published gives new layers to all clients at once. Schemes that average client sides can't: clients that sit out
would receive every average. Here clients fetch missed updates when they return.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from asfl.config.fields import Amount
from asfl.config.shapes import Each
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.crossing import BITS_PER_GROUP, Overheads, moving_bits, prefix_sums
from asfl.costs.decision import Decision
from asfl.models.profile import ModelProfile

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


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
