"""What a trainer is told and what it tells back; the plain and the fast one are the same to the loop."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import BITS_PER_VALUE

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
    """[N] per number that crosses the cut, up and down: 32, 16, 8 or 4. None: 32 for all."""
    batch: NDArray[np.int64] | None = None
    """[N] samples in a mini-batch. None: as many as are configured."""

    def task(self, client: int, step: int = 0) -> Task:
        bits = BITS_PER_VALUE if self.bits is None else int(self.bits[client])
        batch = None if self.batch is None else int(self.batch[client])
        return Task(self.index, client, int(self.cut[client]), step, bits, batch)


class GradientNorms(NamedTuple):
    """Squared norms of mean gradients."""

    of_parts: float
    """Mean over parts of the clients that arrived."""
    part: float
    """How many clients make a part."""
    of_all: float
    all: float

    def noise_and_signal(self) -> tuple[float, float]:
        """S and |G|², unbiased; either may come out negative in one round."""
        noise = (self.of_parts - self.of_all) / (1 / self.part - 1 / self.all)
        return noise, (self.all * self.of_all - self.part * self.of_parts) / (self.all - self.part)


@dataclass(frozen=True, eq=False)
class Trained:
    """What a round of training leaves behind. A client that didn't arrive has NaN."""

    loss: Floats
    """[N] of each client's own mini-batches, mean over local steps, before the step."""
    update_norm2: Floats
    """[N] ‖Δ_n‖²: its client side's update and the server's in which it took part."""
    quantisation_error: Floats
    """[N] ‖x̂ − x‖² / ‖x‖² of the activations it sent, mean over local steps, as it says itself; NaN at 32 bits."""
    averaged_spread: Floats | None = None
    """[M] how far the copies that were averaged were apart, (1/A) Σ ‖w̄_m − w_{n,m}‖²; None if none were."""
    gradient_norms: GradientNorms | None = None
    """Of the server's gradient, if they are watched."""
    lost: NDArray[np.bool_] | None = None
    """[N] clients that weren't there, or were lost before the server had learnt from them; None: no client."""

    @classmethod
    def nothing(cls, num_clients: int) -> "Trained":
        loss, update_norm2, quantisation_error = np.full((3, num_clients), np.nan)
        return cls(loss, update_norm2, quantisation_error)
