"""What a trainer is told and what it tells back; the plain and the fast one are the same to the loop."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.train.noise import GradientNorms

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What one client does in one step of a round."""

    round: int
    client: int
    cut: int
    """M: the client has every layer."""
    step: int = 0
    bits: int = BITS_PER_VALUE
    """Per number that crosses the cut, up and down."""
    batch: int | None = None
    """Samples in its mini-batch. None: as many as are configured."""


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """One round, as decided and as it happened on the air."""

    index: int
    cut: NDArray[np.int64]
    """[N]; the same for all unless the scheme says otherwise. M for FedAvg, whose clients hold everything."""
    scheduled: NDArray[np.bool_]
    """[N] who has a resource block."""
    arrived: NDArray[np.bool_]
    """[N] whose packet arrived."""
    synced: int = 0
    """Client-side layers 1 … `synced` are averaged over those who arrived, at the end of the round."""
    bits: NDArray[np.int64] | None = None
    """[N] per number that crosses the cut, up and down: 32, 16, 8 or 4. None: 32 for everybody."""
    batch: NDArray[np.int64] | None = None
    """[N] samples in a mini-batch. None: as many as are configured."""

    def task(self, client: int, step: int = 0) -> Task:
        bits = BITS_PER_VALUE if self.bits is None else int(self.bits[client])
        batch = None if self.batch is None else int(self.batch[client])
        return Task(self.index, client, int(self.cut[client]), step, bits, batch)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a round of training leaves behind. A client that didn't arrive has NaN."""

    loss: Floats
    """[N] of each client's own mini-batches, mean over local steps, before the step."""
    update_norm2: Floats
    """[N] ‖Δ_n‖²: its client side's update and the server's in which it took part."""
    quantisation_error: Floats
    """[N] ‖x̂ − x‖² / ‖x‖² of the activations it sent, mean over local steps, as it says itself; NaN at 32 bits."""
    resplit_shift: float = 0.0
    """How far stage 1 moved the average model, ‖·‖²: not at all unless a client without block was left out."""
    averaged_spread: Floats | None = None
    """[M] how far the copies that were averaged were apart, (1/A) Σ ‖w̄_m − w_{n,m}‖²; None if none were."""
    gradient_norms: GradientNorms | None = None
    """Of the server's gradient, if they are watched."""

    @classmethod
    def nothing(cls, num_clients: int, resplit_shift: float = 0.0) -> "Trained":
        loss, update_norm2, quantisation_error = np.full((3, num_clients), np.nan)
        return cls(loss, update_norm2, quantisation_error, resplit_shift)
