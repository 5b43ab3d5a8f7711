"""Who holds which layers, where a client is brought up to date only when it takes part again, and is charged then.

ASFL as published gives new layers to everybody at once. Schemes that average client sides can't: whoever sits out would
receive every average. Here each client owes itself what changed since it last took part.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.crossing import BITS_PER_GROUP, Overheads, moving_bits, prefix_sums
from asfl.costs.decision import Decision
from asfl.models.profile import ModelProfile

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Holdings:
    """What would have to cross the link before each client can train each layer. N clients, M layers."""

    stale_bits: Floats
    """[N, M] bits per parameter that a client must receive: 0 if it is up to date, 32 for the whole layer; less if only
    averages at fewer bits were missed, which come as differences."""
    apart: Bools
    """[M] whether clients' copies of a layer differ. A layer that all share needn't be sent up when it moves."""
    missed: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    """[N, M] how many averages with few bits a client has missed: each comes with scales of its own."""

    @classmethod
    def fresh(cls, num_clients: int, num_layers: int) -> "Holdings":
        """Everybody has the initial model."""
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
        owed = self.stale_bits / BITS_PER_VALUE * profile.param_bits + missed * BITS_PER_GROUP * profile.param_groups
        if overheads.charged:
            owed = np.minimum(owed, profile.param_bits) + np.where(self.stale_bits > 0, profile.statistic_bits, 0.0)
        return np.asarray(prefix_sums(owed)[self._clients, cut])

    def upload_bits(
        self, profile: ModelProfile, cut: NDArray[np.int64], previous_cut: int | None, overheads: Overheads
    ) -> Floats:
        """[..., N] at full precision: layers above the cut that go to the server, as far as it doesn't know them."""
        if previous_cut is None:
            return np.zeros(np.broadcast_shapes(np.shape(cut), self._clients.shape))
        known = (self.stale_bits > 0) | ~self.apart
        unknown = prefix_sums(np.where(known, 0.0, moving_bits(profile, overheads)))
        return np.asarray(unknown[:, previous_cut] - unknown[self._clients, np.minimum(cut, previous_cut)])

    def after(self, decision: Decision, updated: Bools, *, trained: bool) -> "Holdings":
        """After a round: `updated` [N] have received what they needed; `trained`: somebody's packet arrived."""
        layers = np.arange(1, self.stale_bits.shape[1] + 1)
        cut = np.broadcast_to(decision.cut, len(self.stale_bits))
        held = layers <= cut[:, None]
        owed, missed = (np.where(updated[:, None] & held, 0.0, before) for before in (self.stale_bits, self.missed))
        owed = np.where(layers > cut.max(), BITS_PER_VALUE, owed) if trained else owed
        apart = self.apart & (layers <= cut.max())
        if trained:
            averaged = layers <= decision.synced
            bits = float(np.max(np.broadcast_to(decision.bits, len(cut))[decision.scheduled], initial=0))
            owed = np.where(averaged, np.minimum(owed + bits, BITS_PER_VALUE), owed)
            missed = missed + (averaged & (bits < BITS_PER_VALUE))
            apart = (apart | (layers <= cut.max())) & ~averaged
        return Holdings(owed, apart, missed)
