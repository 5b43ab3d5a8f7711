"""What seconds, joules and progress are worth, where progress per cost is what counts (docs/schemes.md)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from asfl.config.shapes import Float, Floats


@dataclass(frozen=True)
class Progress:
    """What a step is worth that is made with the mean gradient of A mini-batches, at a step size that stays.

        p(A) = 2 x − x² (1 + B / A),      x = A₀ / (A₀ + B)

    as a share of what the exact gradient at its own best step would bring: a quadratic model of the loss (McCandlish et
    al., "An Empirical Model of Large-Batch Training", (2.5)), with the step size x that is best for A₀ mini-batches, as
    a learning rate is that was tuned with everybody taking part. Few mini-batches at that step size are worth less
    than their number says, since noise takes back what the signal brings.

    Where the server makes a step with every mini-batch, mixed from all that arrived (`mixed`), steps of the same size
    add up: p(A) = A / A₀.
    """

    usual: float
    """A₀."""
    noise_scale: float
    """B."""
    mixed: bool = False

    @property
    def step(self) -> float:
        """x."""
        return self.usual / (self.usual + self.noise_scale)

    def of(self, arrivals: ArrayLike) -> Floats:
        """p(A); nothing at all happens without arrivals."""
        number = np.asarray(arrivals, float)
        if self.mixed:
            return number / self.usual
        parts = np.where(number > 0, self.noise_scale / np.where(number > 0, number, 1.0), 0.0)
        return np.where(number > 0, self.step * (2.0 - self.step * (1.0 + parts)), 0.0)

    def expected(self, arrival: Floats) -> float:
        """E p(A), where mini-batches arrive with these probabilities [N], independently."""
        if self.mixed or len(arrival) > FEW:
            return float(self.of(arrival.sum()))
        return float(self.of(np.arange(len(arrival) + 1)) @ _distribution(arrival))

    def slopes(self, arrival: Floats) -> Floats:
        """[N] what it is worth that a client arrives for sure instead of not at all: E p(A' + 1) − E p(A').

        A' are the others. E p(A) is linear in each of these probabilities, so for one client alone this is exact.
        """
        if self.mixed:
            return np.full(len(arrival), 1.0 / self.usual)
        if len(arrival) > FEW:
            total = max(float(arrival.sum()), 0.5)
            return np.full(len(arrival), self.step**2 * self.noise_scale / total**2)
        gained = np.diff(self.of(np.arange(len(arrival) + 1)))
        others = np.where(np.eye(len(arrival), dtype=np.bool_), 0.0, arrival)  # row n: without client n
        return np.array([gained @ chances[:-1] for chances in _distribution(others)])


FEW = 64
"""Up to so many clients, the number that arrives is taken as the random variable that it is; beyond, as its mean."""


def _distribution(arrival: Floats) -> Floats:
    """[..., N+1] of how many arrive, of [..., N]: Poisson binomial."""
    chances = np.zeros((*arrival.shape[:-1], arrival.shape[-1] + 1))
    chances[..., 0] = 1.0
    for one in np.moveaxis(arrival, -1, 0)[..., None]:
        chances[..., 1:] += one * (chances[..., :-1] - chances[..., 1:])
        chances[..., :1] *= 1.0 - one
    return chances


@dataclass(frozen=True, eq=False)
class Prices:
    """What a second, a joule and the progress of a round are worth, where progress per cost is what counts."""

    per_s: float
    per_j: Float[Floats, "clients"]
    per_progress: float
    """θ: what progress has cost so far, so that a round is worth more or less than that."""
    arrival: Float[Floats, "clients"]
    """How likely mini-batches arrive, about: `Progress.slopes` then say what one more is worth."""

    def cost(self, delay_s: float, energy_j: Floats) -> float:
        """Of a round."""
        return self.per_s * delay_s + float((self.per_j * energy_j).sum())
