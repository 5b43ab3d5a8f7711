"""How noisy a gradient is, seen from its parts: the gradient noise scale of McCandlish et al.

The squared norm of a mean over a mini-batches is |G|² + S/a in expectation: G the exact gradient, S the noise of one
mini-batch. Norms for two different a give both, and B = S / |G|² is the number of mini-batches at which noise and
signal are equal ("An Empirical Model of Large-Batch Training", appendix A). Clients with different data
make S larger, too.
"""

from typing import NamedTuple

from torch import Tensor


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


class GradientParts:
    """Watches a sum of gradients grow, part by part."""

    def __init__(self, total: Tensor) -> None:
        """`total` is added to by somebody else, and starts from 0."""
        self._total, self._before = total, total.new_zeros(total.shape)
        self._norms: list[tuple[Tensor, int, float]] = []

    def add(self, clients: int, noise: float = 1.0) -> None:
        """So many clients' gradients were added since the last call, each so many times as noisy as a mini-batch's."""
        if clients:
            part = (self._total - self._before).div_(clients)
            self._norms.append((part.square().sum(), clients, noise))
            self._before.copy_(self._total)

    def norms(self) -> GradientNorms | None:
        """None if there weren't two parts. Parts count by their size, so it is their mean size that matters.

        A mean over a clients with mini-batches of their own sizes is as noisy as one over a² / Σ (their noise).
        """
        clients = sum(size for _, size, _ in self._norms)
        if len(self._norms) < 2:
            return None
        of_parts = sum(float(norm) * size for norm, size, _ in self._norms) / clients
        of_all = float((self._total / clients).square().sum())
        part = clients / sum(noise for _, _, noise in self._norms)
        return GradientNorms(of_parts, part, of_all, clients * clients / sum(n * noise for _, n, noise in self._norms))
