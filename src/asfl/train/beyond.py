"""What decisions beyond the paper need to know of the learning: drift by layer, gradient noise, what few bits cost."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asfl.costs.decision import Decision
from asfl.optimize.problem import USUAL_ERROR, DriftAndNoise, precision_errors
from asfl.train.trainer import Trained

Floats = NDArray[np.float64]

MEMORY = 0.9
"""How much of what was measured before counts after another round."""
LEAST_NOISE, MOST_NOISE = 0.25, 64.0
"""Where B is believed. Behind a deep cut the server sees the gradient of few layers, with hardly any signal; beyond the
largest B, progress is as good as proportional to what arrives. It is also what B is taken to be before it is measured:
so it comes out in the first round of clients with unlike data, and a price of progress that was found with a smaller B
would make the rounds after that look too dear to serve anybody."""


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
    """S and |G|² (`asfl.train.noise`), running means."""
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
        happened = trained.averaged_spread is not None  # else everybody was lost on the way
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

    def arrays(self) -> dict[str, Floats]:
        numbers = np.array([self.noise, self.signal, self.measured, self.error])
        return {"unit": self.layer_unit, "age": self.layer_age, "debt": self.layer_debt, "numbers": numbers}

    @classmethod
    def of(cls, arrays: dict[str, Floats]) -> "DriftAndNoiseSignals":
        return cls(arrays["unit"], arrays["age"], arrays["debt"], *arrays["numbers"].tolist())


def _mixed(before: Floats, new: Floats, where: NDArray[np.bool_]) -> Floats:
    """Running means, where there is something new."""
    mixed = np.where(before > 0, MEMORY * before + (1 - MEMORY) * new, new)
    return np.asarray(np.where(where, mixed, before))
