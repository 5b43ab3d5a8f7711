"""The laws of every partition: no sample twice, sizes, any alpha, the mix it promises; and data other than images."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from own_things import forgotten_afterwards

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.data import deal, distance_from_global, label_counts, load_data, partition, register_arrays
from asfl.data.partition import _log_dirichlet, _rounded, by_group, by_quantity, shards
from conftest import Asfl, assert_refused

ROOT = Path(__file__).parents[2]

alphas = st.sampled_from([1e-300, 1e-6, 0.01, 0.1, 1.0, 10.0, 1e3, 1e6, 1e300])
label_sets = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(lambda labels: np.array(labels, dtype=np.int64))
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def _forget_registered() -> Iterator[None]:
    with forgotten_afterwards():
        yield


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
    assert np.array_equal(parts, partition(labels, clients, alpha, seed))


def mean_distance(alpha: float, clients: int = 10) -> float:
    labels = np.repeat(np.arange(10), 300)
    distances = [
        distance_from_global(label_counts(labels, partition(labels, clients, alpha, seed), 10), labels).mean()
        for seed in range(5)
    ]
    return float(np.mean(distances))


def test_smaller_alpha_is_more_heterogeneous() -> None:
    labels = np.repeat(np.arange(5), 40)
    assert not np.array_equal(partition(labels, 8, 1.0, 1), partition(labels, 8, 1.0, 2))  # the seed counts
    distances = [mean_distance(alpha) for alpha in (0.01, 0.1, 1, 10, 100, 1e6)]
    assert all(before > after + 0.01 for before, after in pairwise(distances))
    assert distances[0] > 0.7
    assert distances[-1] < 0.01


def test_mixes_are_dirichlet_when_nothing_runs_out() -> None:
    """One client of many takes so little that it gets what it wants: mean and variance are those of Dir(α)."""
    alpha, classes = 2.0, 4
    mixes = np.exp(_log_dirichlet(np.random.default_rng(1), np.full(classes, alpha), 20_000))
    mixes /= mixes.sum(axis=1, keepdims=True)
    assert mixes.mean(axis=0) == pytest.approx(np.full(classes, 1 / classes), abs=0.01)
    variance = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    assert mixes.var(axis=0) == pytest.approx(np.full(classes, variance), rel=0.05)
    tiny = _log_dirichlet(np.random.default_rng(1), np.full(100, 1e-300), 1000)
    assert np.isfinite(tiny).all()


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


@pytest.mark.parametrize(
    ("clients", "alpha", "words"),
    [
        *((n, 1.0, rf"scenario.clients = {n}: with 10 training samples .* 1 … 10 clients") for n in (0, -1, 11)),
        *((2, alpha, r"data.dirichlet_alpha = .* above 0") for alpha in (0.0, -1.0, np.nan, np.inf)),
    ],
)
def test_impossible_partitions_are_refused(clients: int, alpha: float, words: str) -> None:
    with pytest.raises(AsflError, match=words):
        partition(np.arange(10), clients, alpha, 1)


# ---------------------------------------------------------------------- besides Dirichlet
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 60), st.integers(1, 7), st.integers(0, 3))
def test_shards_are_equal_disjoint_and_few_labels(
    clients: int, per_client: int, more: int, classes: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(classes, size=clients * per_client + more)
    parts = shards(labels, clients, per_client, seed)
    size = len(labels) // (clients * per_client)
    assert parts.shape == (clients, per_client * size)
    assert len(np.unique(parts)) == parts.size
    # Sorted by label, a shard is an interval: all shards together see each label change at most once.
    seen = sum(len(np.unique(labels[part])) for part in parts)
    assert seen <= clients * per_client + classes - 1
    assert (shards(labels, clients, per_client, seed) == parts).all()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 3))
def test_a_group_stays_with_one_client(sizes: list[int], clients: int, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    if len(sizes) < clients:
        with pytest.raises(AsflError, match="groups can't be dealt out"):
            by_group(groups, clients, seed)
        return
    parts = by_group(groups, clients, seed)
    assert len(np.unique(parts)) == parts.size
    held = [set(groups[part]) for part in parts]
    assert sum(map(len, held)) == len(set().union(*held))
    assert parts.shape[1] >= sum(sizes) / clients - max(sizes)  # no client lacks more than a group would give


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 200), st.integers(0, 3))
def test_every_sample_is_dealt_and_no_client_gets_less_than_a_batch(
    clients: int, batch: int, more: int, seed: int
) -> None:
    samples = clients + more
    parts = by_quantity(samples, clients, batch, seed)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(samples))
    assert min(map(len, parts)) >= min(batch, samples // clients)
    again = by_quantity(samples, clients, batch, seed)
    assert all((one == other).all() for one, other in zip(parts, again, strict=True))


def test_sizes_are_dirichlet() -> None:
    """Over many seeds a client's share beyond its mini-batch has the mean and the variance of Dir(1, …, 1)."""
    clients, samples, batch = 5, 100_000, 100
    sizes = np.array([[len(part) for part in by_quantity(samples, clients, batch, seed)] for seed in range(150)])
    shares = (sizes - batch) / (samples - clients * batch)
    variance = (1 / clients) * (1 - 1 / clients) / (clients + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(clients, 1 / clients), abs=4 * np.sqrt(variance / 150))
    assert shares.var() == pytest.approx(variance, rel=0.2)


def vectors(count: int, features: int = 5, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(3, 10, (count, features))


def test_vectors_and_sequences_become_bytes_by_feature() -> None:
    train, test = vectors(50), vectors(20, seed=1)
    data = register_arrays("vectors", train, np.arange(50) % 3, test, np.arange(20) % 3)
    assert data.input_shape == (5, 1, 1)
    low, high = train.min(axis=0), train.max(axis=0)
    back = low + data.train_images[:, :, 0, 0] / 255 * (high - low)
    assert np.abs(back - train).max() <= ((high - low) / 255 / 2 + 1e-9).max()
    outside = test > high
    assert (data.test_images[:, :, 0, 0][outside] == 255).all()
    series = np.random.default_rng(2).normal(size=(30, 16, 2))
    assert register_arrays("series", series, np.arange(30) % 2, series, np.arange(30) % 2).input_shape == (2, 1, 16)
    whole = np.random.default_rng(2).integers(256, size=(30, 9), dtype=np.uint8)
    kept = register_arrays("whole", whole, np.arange(30) % 2, whole, np.arange(30) % 2)
    assert (kept.train_images[:, :, 0, 0] == whole).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test_images": vectors(20, 4)}, "give all samples the same shape"),
        ({"test_images": np.zeros((20, 8, 8), np.uint8)}, "the same kind of samples"),
        ({"train_images": np.full((50, 5), np.nan)}, "finite"),
        ({"train_groups": np.zeros(49, int)}, "train_groups is int64 [49]; give one whole number"),
        ({"train_groups": np.zeros(50)}, "train_groups is float64 [50]"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change: dict[str, Any], words: str) -> None:
    given_: dict[str, Any] = {
        "train_images": vectors(50), "train_labels": np.arange(50) % 3,
        "test_images": vectors(20), "test_labels": np.arange(20) % 3, **change,
    }  # fmt: skip
    with pytest.raises(AsflError) as refused:
        register_arrays("wrong", **given_)
    assert words in str(refused.value)


def test_a_configuration_chooses(asfl: Asfl) -> None:
    config = load_config("demo", ["data.partition=shards"]).config
    data = load_data(config)
    labels = [len(np.unique(data.train_labels[part])) for part in deal(data, config)]
    assert max(labels) <= 6
    assert "2 shards of sorted labels each" in asfl("data", "show", "--set", "data.partition=shards").stdout
    uneven = asfl("data", "show", "--set", "data.partition=quantity", "--plot", "sizes.png")
    assert "sizes ~ Dir(1), 32 at least" in uneven.stdout
    assert "unused" not in uneven.stdout
    assert_refused(asfl("data", "show", "--set", "data.partition=groups"), "digits has no groups", "train_groups")
    assert_refused(asfl("data", "show", "--set", "data.partition=shard"), "data.partition", '"shards"')


def test_sounds_are_learnt_by_dense_layers(asfl: Asfl) -> None:
    arguments = ["--plugin", ROOT / "examples" / "my_sounds.py", "run", "demo", "--set", "data.name=sounds"]
    arguments += ["--set", "model.architecture=mlp", "--set", "data.partition=groups", "--rounds", 12, "--json"]
    result = asfl(*arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["final_accuracy"] > 0.5  # four calls: a guess is right in a quarter
