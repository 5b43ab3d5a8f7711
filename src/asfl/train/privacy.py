"""Noise against a curious server: what leaves a client is shortened and blurred, and how much that hides is counted.

Two Gaussian mechanisms, both on the client:

- *activations*: those of one sample are shortened to norm C and get noise N(0, σ²C²) on every number. Two samples
  differ by at most 2C, so each time a sample crosses it is hidden behind noise of σ/2 of what it could change;
- *updates*: the gradient of the client side over a mini-batch is shortened to norm C and gets noise likewise, before
  the optimiser sees it. Whatever is made of it later (layers, moments, norms, reports) reveals no more.

What isn't hidden: labels, how many samples there are, that a client takes part, how long it takes. The server knows
which mini-batch comes when, so nothing is gained by sampling: both are released whenever a sample is in a mini-batch,
and these releases compose (Rényi; Opacus). The guarantee is for one sample of one client, exchanged for another.
"""

import math
import secrets
import warnings
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from asfl.config import Privacy
from asfl.config.errors import MissingExtraError
from asfl.config.randomness import random_stream
from asfl.config.tree import DELTA
from asfl.models.cuttable import Carry

RngOf = Callable[[str, int, int, int], torch.Generator]
"""The random numbers of a purpose, in a round, of a client, in a step."""
_ORDERS = [1 + order / 100 for order in range(1, 10)] + [1 + order / 10 for order in range(1, 100)] + [*range(12, 512)]


def drawn_from(seed: int) -> RngOf:
    """For simulations: the same noise whenever it is asked for. With the seed it can be taken off again."""

    def rng(purpose: str, index: int, client: int, step: int) -> torch.Generator:
        drawn = random_stream(seed, f"privacy: {purpose}, client {client}, step {step}", index)
        return torch.Generator().manual_seed(int(drawn.integers(2**62)))

    return rng


def nobody_knows(purpose: str, index: int, client: int, step: int) -> torch.Generator:
    """For real clients: from the system's entropy."""
    return torch.Generator().manual_seed(secrets.randbits(62))


class GaussianMechanism:
    """What a client does to everything that leaves it."""

    def __init__(self, privacy: Privacy, rng: RngOf) -> None:
        self._privacy, self._rng = privacy, rng

    def activations(self, carry: Carry, index: int, client: int, step: int) -> Carry:
        """Of a mini-batch; gradients pass through it as it is."""
        clip, noise = self._privacy.activation_clip, self._privacy.activation_noise
        if not noise:
            return carry
        lengths = torch.stack([tensor.flatten(1).square().sum(1) for tensor in carry]).sum(0).sqrt()
        shorter = clip / lengths.clamp(min=clip)
        rng = self._rng("activations", index, client, step)
        return tuple(
            tensor * shorter.view(-1, *[1] * (tensor.dim() - 1)) + noise * clip * _normal(tensor, rng)
            for tensor in carry
        )

    def gradient_(self, gradient: Tensor, index: int, client: int, step: int) -> None:
        """Of the client side, in place."""
        clip, noise = self._privacy.update_clip, self._privacy.update_noise
        if noise:
            length = float(torch.linalg.vector_norm(gradient))
            gradient.mul_(min(1.0, clip / max(length, 1e-30)))
            gradient.add_(_normal(gradient, self._rng("update", index, client, step)), alpha=noise * clip)


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=torch.float32).to(like)


@lru_cache(maxsize=4096)
def epsilon(privacy: Privacy, releases: int) -> float:
    """ε at δ = `DELTA`, once a sample was in so many mini-batches; infinite: one of the two isn't hidden."""
    if not (privacy.activation_noise and privacy.update_noise):
        return math.inf
    if not releases:
        return 0.0
    try:
        from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
    except ModuleNotFoundError as error:
        raise MissingExtraError("accounting for privacy", "privacy") from error
    both = (privacy.activation_noise, privacy.update_noise)
    spent = sum(compute_rdp(q=1.0, noise_multiplier=noise / 2, steps=releases, orders=_ORDERS) for noise in both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other orders may be tighter still
        found, _ = get_privacy_spent(orders=_ORDERS, rdp=spent, delta=DELTA)
    return float(found)
