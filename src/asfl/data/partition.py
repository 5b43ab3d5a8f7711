"""Who gets which training samples: every client as many, by label mixes, shards or groups; or by sizes of their own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream

if TYPE_CHECKING:
    from asfl.config import Config
    from asfl.data.images import ImageData

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHARDS_PER_CLIENT = 2
_TINY_ALPHA = 1e-12
"""Below this a mix is one single class; log Γ draws of even smaller parameters would overflow."""


def deal(data: "ImageData", config: "Config") -> Sequence[Ints]:
    """[N][samples] indices of the training samples each client has, as a configuration says; no sample twice."""
    if config.data.private:
        raise AsflError(f"{data.name}: images stay on the devices, and only they know which labels they have")
    clients, seed, kind = config.scenario.clients, config.scenario.seed, config.data.partition
    if kind == "shards":
        return list(shards(data.train_labels, clients, SHARDS_PER_CLIENT, seed))
    if kind == "groups":
        if data.train_groups is None:
            raise AsflError(f'data.partition = "groups", but {data.name} has no groups: give it train_groups')
        return list(by_group(data.train_groups, clients, seed))
    if kind == "quantity":
        least = config.training.batch_size
        return by_quantity(len(data.train_labels), clients, least, seed)
    return list(partition(data.train_labels, clients, config.data.dirichlet_alpha, seed))


def shards(labels: Ints, num_clients: int, shards_per_client: int, seed: int) -> Ints:
    """Samples sorted by label are cut into N·s shards of equal size, and each client gets s of them by chance.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", §3: a client then has
    few labels. [N, s · ⌊S/(N·s)⌋].
    """
    count = num_clients * shards_per_client
    if count > len(labels):
        raise AsflError(
            f'data.partition = "shards": {num_clients} clients need {count:,} shards, '
            f"but there are {len(labels):,} training samples"
        )
    rng = random_stream(seed, "partition")
    size = len(labels) // count
    order = rng.permutation(len(labels))[: count * size]  # who is in which shard of a label, and who in none, is chance
    order = order[np.argsort(labels[order], kind="stable")].reshape(count, size)
    return rng.permuted(rng.permutation(order).reshape(num_clients, -1), axis=1)


def by_group(groups: Ints, num_clients: int, seed: int) -> Ints:
    """Whole groups to each client: the largest first, always to whoever has least so far; then all are cut to as many.

    [N, samples of the client that has least]; which samples others leave unused is chance.
    """
    names, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < num_clients:
        raise AsflError(
            f'data.partition = "groups": {len(names)} groups can\'t be dealt out to scenario.clients = {num_clients}'
        )
    rng = random_stream(seed, "partition")
    held, owner = np.zeros(num_clients, dtype=np.int64), np.empty(len(names), dtype=np.int64)
    order = rng.permutation(len(names))
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        owner[group] = held.argmin()
        held[owner[group]] += sizes[group]
    owners = owner[group_of]
    parts = [rng.permutation(np.flatnonzero(owners == client))[: held.min()] for client in range(num_clients)]
    return np.stack(parts)


def partition(labels: Ints, num_clients: int, alpha: float, seed: int) -> Ints:
    """Deal the samples out: [N, ⌊S/N⌋] indices into `labels` [S], no sample twice; S mod N samples stay unused.

    Client n wants the label mix p_n ~ Dir(α·C·g), g the mix of the whole set over its C classes: mean g, and the
    plain Dir(α, …, α) if all classes are equally frequent. Every client asks for ⌊S/N⌋ · p_n samples, rounded to
    whole ones. Where a class is asked for more often than it occurs, chance decides who gets it, and who went away
    empty asks again with its mix renormalised over the classes that are left. Each such pass uses up a class, so there
    are at most C. All clients ask at once: none is favoured by its number.
    """
    _check_number(num_clients, len(labels))
    if not 0 < alpha < np.inf:
        raise AsflError(f"data.dirichlet_alpha = {alpha} must be a finite number above 0")
    rng = random_stream(seed, "partition")
    _, class_of, class_size = np.unique(labels, return_inverse=True, return_counts=True)
    log_mix = _log_dirichlet(rng, alpha * len(class_size) * class_size / len(labels), num_clients)
    counts = _settle(rng, log_mix, class_size, len(labels) // num_clients)
    return _hand_out(rng, class_of, counts)


def by_quantity(num_samples: int, num_clients: int, least: int, seed: int) -> list[Ints]:
    """Every sample to somebody, by chance: `least` to each client, the others by shares ~ Dir(1, …, 1).

    Where there aren't so many, ⌊S/N⌋ to each, and a rest. Label mixes are those of the whole set, up to chance: small
    clients are further from it.
    """
    _check_number(num_clients, num_samples)
    rng = random_stream(seed, "partition")
    least = min(least, num_samples // num_clients)
    shares = _log_dirichlet(rng, np.ones(num_clients), 1)
    more = _rounded(rng, shares, np.array([num_samples - num_clients * least]))[0]
    return np.split(rng.permutation(num_samples), np.cumsum(least + more)[:-1])


def label_counts(labels: Ints, parts: Sequence[Ints] | Ints, num_classes: int) -> Ints:
    """How many samples of each label each client has, [N, num_classes]; `parts` [N][n] are indices into `labels`."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def distance_from_global(counts: Ints, labels: Ints) -> Floats:
    """½ Σ_c |p_n(c) − g(c)| for each client, [N]: 0 is the mix g of the whole set, 1 has no label in common with it.

    `counts` [N, num_classes] is what `label_counts` gives.
    """
    whole = np.bincount(labels, minlength=counts.shape[1]) / len(labels)
    mixes: Floats = counts / counts.sum(axis=1, keepdims=True)
    distance: Floats = 0.5 * np.abs(mixes - whole).sum(axis=1)
    return distance


def _check_number(clients: int, samples: int) -> None:
    if not 1 <= clients <= samples:
        raise AsflError(
            f"scenario.clients = {clients}: with {samples:,} training samples "
            f"there can be 1 … {samples:,} clients, one sample each at least"
        )


def _log_dirichlet(rng: np.random.Generator, alpha: Floats, count: int) -> Floats:
    """Draws of Dir(alpha [C]), not normalised, as logarithms [count, C].

    Dirichlet shares are normalised Γ(a) variables. For small a most of those underflow to 0, at worst all of them;
    log Γ(a) = log Γ(a+1) + log(U)/a with U uniform stays finite.
    """
    alpha = np.maximum(alpha, _TINY_ALPHA)
    uniform = 1 - rng.random((count, len(alpha)))  # (0, 1]: its logarithm is finite
    log_mix: Floats = np.log(rng.standard_gamma(alpha + 1, (count, len(alpha)))) + np.log(uniform) / alpha
    return log_mix


def _settle(rng: np.random.Generator, log_mix: Floats, class_size: Ints, share: int) -> Ints:
    """How many samples of each class each client gets, [N, C]: rows sum to `share`, columns to ≤ `class_size`."""
    counts = np.zeros(log_mix.shape, dtype=np.int64)
    left = class_size.astype(np.int64)
    while (unmet := share - counts.sum(axis=1)).any():
        wanted = _rounded(rng, np.where(left > 0, log_mix, -np.inf), unmet)
        for c in np.flatnonzero(wanted.sum(axis=0) > left):
            wanted[:, c] = rng.multivariate_hypergeometric(wanted[:, c], left[c], method="marginals")
        counts += wanted
        left -= wanted.sum(axis=0)
    return counts


def _rounded(rng: np.random.Generator, log_mix: Floats, total: Ints) -> Ints:
    """Whole numbers [N, C] with row sums `total` [N], each within 1 of total · mix and equal to it on average.

    Cumulated amounts are shifted by one random number per row and rounded down.
    """
    mix = np.exp(log_mix - log_mix.max(axis=1, keepdims=True))
    edges = np.cumsum(mix, axis=1)
    edges = edges / edges[:, -1:] * total[:, None]
    edges = np.floor(edges + rng.random((len(edges), 1))).astype(np.int64)
    # A class that nobody can get must not receive the last sample through a rounding error: it repeats the edge
    # before it, and the edge behind the last open class is exactly `total`.
    counts: Ints = np.diff(np.minimum(edges, total[:, None]), axis=1, prepend=0)
    return counts


def _hand_out(rng: np.random.Generator, class_of: Ints, counts: Ints) -> Ints:
    """Which samples those are: random ones of each class, in random order within each client."""
    order = rng.permutation(len(class_of))
    order = order[np.argsort(class_of[order], kind="stable")]  # one block per class, shuffled within
    start = np.searchsorted(class_of[order], np.arange(counts.shape[1]))
    taken = [order[first : first + count] for first, count in zip(start, counts.sum(axis=0), strict=True)]
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    parts = np.concatenate(taken)[np.argsort(owner, kind="stable")].reshape(len(counts), -1)
    return rng.permuted(parts, axis=1)
