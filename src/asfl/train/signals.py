"""What a trainer is told of a round, what it tells back, and what the server remembers of that between two rounds.

The last is what it knows of the learning when it decides (§IV of the paper): spreads and update norms; and drift by
layer, gradient noise and what few bits cost, for decisions beyond the paper. Nothing here needs PyTorch.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.round import Decision
from asfl.optimize import Learning
from asfl.optimize.problem import USUAL_ERROR, DriftAndNoise, precision_errors

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


# ---------------------------------------------------------------------- remembered
MEMORY = 0.9
"""How much of what was measured before counts after another round."""
LEAST_NOISE, MOST_NOISE = 0.25, 64.0
"""Where B is believed. Behind a deep cut the server sees the gradient of few layers, with hardly any signal; beyond the
largest B, progress is as good as proportional to what arrives. It is also what B is taken to be before it is measured:
so it comes out in the first round of clients with unlike data, and a price of progress that was found with a smaller B
would make the rounds after that look too dear to serve anybody."""


@dataclass(frozen=True, eq=False)
class Signals:
    """What is remembered of the updates."""

    update_norm2: Floats
    """[N] ‖Δ_n‖² of each client's latest update; NaN before its first."""
    update_scale: float
    """U: the mean ‖Δ‖² of all rounds so far; NaN before the first update of anybody.

    Under Adam updates shrink tenfold while it warms up. A mean that forgot the first ones would shrink with them, and
    measure the drift of those large updates in small ones.
    """
    rounds: int = 0
    """How many rounds that is a mean of."""

    @classmethod
    def none_yet(cls, num_clients: int) -> "Signals":
        return cls(np.full(num_clients, np.nan), np.nan)

    def after(self, trained: Trained) -> "Signals":
        arrived = np.isfinite(trained.update_norm2)
        if not arrived.any():
            return self
        mean = float(trained.update_norm2[arrived].mean())
        scale = mean if self.rounds == 0 else self.update_scale + (mean - self.update_scale) / (self.rounds + 1)
        return replace(
            self,
            update_norm2=np.where(arrived, trained.update_norm2, self.update_norm2),
            update_scale=max(scale, np.finfo(float).tiny),  # updates of exactly 0 must not divide by 0
            rounds=self.rounds + 1,
        )

    def learning(self, layer_spread: Floats, layer_norm2: Floats, weights: Floats) -> Learning:
        """For the next decision, with what clients report [M] and how much each counts [N].

        A client without an update so far counts like the mean one; before any update all count 1.
        """
        scale = 1.0 if np.isnan(self.update_scale) else self.update_scale
        return Learning(
            layer_spread=layer_spread,
            layer_norm2=layer_norm2,
            # By samples: the update of a client that has twice as many is twice the loss.
            update_norm2=weights * np.where(np.isnan(self.update_norm2), scale, self.update_norm2),
            update_scale=scale,
        )


@dataclass(frozen=True, eq=False)
class DriftAndNoiseSignals:
    """What is remembered between two rounds. M layers."""

    layer_unit: Floats
    """[M] what one round adds to a layer's spread; 0 before it is seen."""
    layer_age: Floats
    """[M] rounds since clients' copies of a layer were equal."""
    layer_debt: Floats
    """[M] drift, summed over these rounds."""
    noise: float = 0.0
    """S and |G|² (`GradientNorms`), running means."""
    signal: float = 0.0
    measured: float = 0.0
    """In how many rounds they were."""
    error: float = USUAL_ERROR
    """Relative squared error of what crosses at 4 bits."""

    @classmethod
    def none_yet(cls, num_layers: int) -> "DriftAndNoiseSignals":
        return cls(*np.zeros((3, num_layers)))

    @property
    def noise_scale(self) -> float:
        """B in mini-batches."""
        if self.signal <= 0:
            return MOST_NOISE
        return float(np.clip(self.noise / self.signal, LEAST_NOISE, MOST_NOISE))

    def seen(self, layer_spread: Floats) -> "DriftAndNoiseSignals":
        """Spreads [M] as clients report them before a round; those of layers one round old are a unit."""
        return replace(
            self, layer_unit=_mixed(self.layer_unit, layer_spread, (self.layer_age == 1) & (layer_spread > 0))
        )

    def learning(self, layer_spread: Floats) -> DriftAndNoise:
        known = self.layer_unit > 0
        measured = np.divide(layer_spread, self.layer_unit, out=self.layer_age.copy(), where=known)
        return DriftAndNoise(
            layer_drift=np.where(self.layer_age > 0, measured, 0.0),
            layer_debt=self.layer_debt,
            noise_scale=self.noise_scale,
            precision_error=precision_errors(self.error),
        )

    def after(self, decision: Decision, trained: Trained, drift: Floats, num_clients: int) -> "DriftAndNoiseSignals":
        """After a round that began with this drift [M]."""
        arrived = np.isfinite(trained.loss)
        if not arrived.any():
            return self
        layers = np.arange(1, len(drift) + 1)
        happened = trained.averaged_spread is not None  # else all clients were lost on the way
        unit, averaged = self.layer_unit, (layers <= decision.synced) & happened
        if trained.averaged_spread is not None:
            # Those who didn't arrive are where they were, so over all clients the spread is smaller.
            spread = trained.averaged_spread * arrived.sum() / num_clients
            unit = _mixed(unit, spread, averaged & (self.layer_age == 0) & (spread > 0))
        apart = (layers <= np.max(decision.cut)) & ~averaged
        noise, signal, measured = self.noise, self.signal, self.measured
        if trained.gradient_norms is not None:
            memory = MEMORY if measured else 0.0
            new = trained.gradient_norms.noise_and_signal()
            noise, signal = (memory * old + (1 - memory) * now for old, now in zip((noise, signal), new, strict=True))
            measured += 1
        error, bits = self.error, np.broadcast_to(decision.bits, arrived.shape)
        if (known := np.isfinite(trained.quantisation_error)).any():
            at_4_bits = trained.quantisation_error * ((2.0**bits - 1) / 15) ** 2
            error = MEMORY * error + (1 - MEMORY) * float(np.median(at_4_bits[known]))  # what a client says is a claim
        return replace(
            self,
            error=error,
            layer_unit=unit,
            layer_age=np.where(apart, self.layer_age + 1, 0.0),
            layer_debt=np.where(apart, self.layer_debt + drift, 0.0),
            noise=noise,
            signal=signal,
            measured=measured,
        )


def _mixed(before: Floats, new: Floats, where: NDArray[np.bool_]) -> Floats:
    """Running means, where there is something new."""
    mixed = np.where(before > 0, MEMORY * before + (1 - MEMORY) * new, new)
    return np.asarray(np.where(where, mixed, before))
