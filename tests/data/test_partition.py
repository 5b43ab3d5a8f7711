"""The laws of the partition: equal sizes, no sample twice, any alpha, and the mix it promises."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asfl.config.errors import AsflError
from asfl.data import distance_from_global, label_counts, partition
from asfl.data.partition import _log_dirichlet, _rounded

alphas = st.sampled_from([1e-300, 1e-6, 0.01, 0.1, 1.0, 10.0, 1e3, 1e6, 1e300])
label_sets = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(lambda labels: np.array(labels, dtype=np.int64))
seeds = st.integers(0, 2**31)


@given(label_sets, st.data(), alphas, seeds)
def test_equal_sizes_and_no_sample_twice(
    labels: np.ndarray[tuple[int], np.dtype[np.int64]], data: st.DataObject, alpha: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    parts = partition(labels, clients, alpha, seed)
    assert parts.shape == (clients, len(labels) // clients)
    assert parts.dtype == np.int64
    assert len(np.unique(parts)) == parts.size
    assert parts.min() >= 0
    assert parts.max() < len(labels)
    counts = label_counts(labels, parts, 7)
    for row, part in zip(counts, parts, strict=True):
        assert np.array_equal(row, np.bincount(labels[part], minlength=7))
    distance = distance_from_global(counts, labels)
    assert (distance >= 0).all()
    assert (distance <= 1).all()


@given(alphas, seeds)
def test_the_same_seed_gives_the_same_parts(alpha: float, seed: int) -> None:
    labels = np.repeat(np.arange(5), 40)
    parts = partition(labels, 8, alpha, seed)
    assert np.array_equal(parts, partition(labels, 8, alpha, seed))
    assert not np.array_equal(parts, partition(labels, 8, alpha, seed + 1))


def mean_distance(alpha: float, clients: int = 10) -> float:
    labels = np.repeat(np.arange(10), 300)
    distances = [
        distance_from_global(label_counts(labels, partition(labels, clients, alpha, seed), 10), labels).mean()
        for seed in range(10)
    ]
    return float(np.mean(distances))


def test_smaller_alpha_is_more_heterogeneous() -> None:
    distances = [mean_distance(alpha) for alpha in (0.01, 0.1, 1, 10, 100, 1e6)]
    assert all(before > after + 0.01 for before, after in pairwise(distances))
    assert distances[0] > 0.7
    assert distances[-1] < 0.01


@pytest.mark.parametrize("sizes", [[500, 500, 500], [900, 500, 100]])
def test_a_huge_alpha_gives_everybody_the_global_mix(sizes: list[int]) -> None:
    """Also if the classes differ in size: each client gets its share of each, up to a sample or two."""
    labels = np.repeat(np.arange(3), sizes)
    counts = label_counts(labels, partition(labels, 15, 1e9, 1), 3)
    assert np.abs(counts - np.array(sizes) / 15).max() <= 2


def test_mixes_are_dirichlet_when_nothing_runs_out() -> None:
    """One client of many takes so little that it gets what it wants: mean and variance are those of Dir(α)."""
    alpha, classes = 2.0, 4
    mixes = np.exp(_log_dirichlet(np.random.default_rng(1), np.full(classes, alpha), 20_000))
    mixes /= mixes.sum(axis=1, keepdims=True)
    assert mixes.mean(axis=0) == pytest.approx(np.full(classes, 1 / classes), abs=0.01)
    variance = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    assert mixes.var(axis=0) == pytest.approx(np.full(classes, variance), rel=0.05)


def test_tiny_parameters_stay_finite() -> None:
    draws = _log_dirichlet(np.random.default_rng(1), np.full(100, 1e-300), 1000)
    assert np.isfinite(draws).all()


@given(st.integers(0, 50), seeds)
def test_rounding_keeps_the_sum_and_closed_classes_closed(total: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_mix = np.where(rng.random((6, 8)) < 0.5, -np.inf, rng.normal(0, 5, (6, 8)))
    log_mix[np.arange(6), rng.integers(0, 8, 6)] = 0
    counts = _rounded(rng, log_mix, np.full(6, total))
    mix = np.exp(log_mix) / np.exp(log_mix).sum(axis=1, keepdims=True)
    assert (counts.sum(axis=1) == total).all()
    assert (counts[np.isinf(log_mix)] == 0).all()
    assert np.abs(counts - total * mix).max() < 1 + 1e-9


def test_no_client_is_favoured_by_its_number() -> None:
    """Scarce classes: the first and the last client stay as close to their own mix, on average."""
    labels = np.repeat(np.arange(10), 30)
    distances = np.array(
        [distance_from_global(label_counts(labels, partition(labels, 10, 0.05, s), 10), labels) for s in range(60)]
    )
    first, last = distances[:, :3].mean(), distances[:, -3:].mean()
    assert first == pytest.approx(last, abs=0.04)


def test_a_thousand_clients() -> None:
    labels = np.repeat(np.arange(100), 50)
    for alpha in (0.01, 1e6):
        assert len(np.unique(partition(labels, 1000, alpha, 3))) == 5000


@pytest.mark.parametrize("clients", [0, -1, 11])
def test_impossible_numbers_of_clients_are_refused(clients: int) -> None:
    with pytest.raises(AsflError, match=rf"scenario.clients = {clients}: with 10 training samples .* 1 … 10 clients"):
        partition(np.arange(10), clients, 1.0, 1)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_alphas_are_refused(alpha: float) -> None:
    with pytest.raises(AsflError, match=r"data.dirichlet_alpha = .* above 0"):
        partition(np.arange(10), 2, alpha, 1)
