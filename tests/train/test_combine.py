"""Robust averages against plain NumPy, and what one client alone can't do."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from asfl.train.layout import weighted_mean
from asfl.train.state import Average, Combining

RULES: list[Average] = ["mean", "median", "trimmed"]


def rows_of(seed: int, clients: int, columns: int = 7) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(clients, columns)))


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_each_rule_is_what_it_says(seed: int, clients: int) -> None:
    rows, weights = rows_of(seed, clients), np.random.default_rng(seed + 1).uniform(1, 9, clients)
    x, reference = rows.numpy(), torch.zeros(7, dtype=torch.float64)
    expected = {
        "mean": np.average(x, axis=0, weights=weights),
        "median": np.median(x, axis=0),
        "trimmed": np.sort(x, axis=0)[int(0.2 * clients) : clients - int(0.2 * clients)].mean(0),
    }
    for rule in RULES:
        found = Combining(rule).mean(rows, weights, reference)
        np.testing.assert_allclose(found.numpy(), expected[rule], rtol=1e-12, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(3, 11), st.floats(-1e6, 1e6))
def test_one_of_three_moves_a_median_no_further_than_others_are_apart(seed: int, clients: int, lie: float) -> None:
    rows, weights = rows_of(seed, clients), np.ones(clients)
    honest = rows[1:]
    rows[0] = lie
    found = Combining("median").mean(rows, weights, torch.zeros(7, dtype=torch.float64))
    assert (found >= honest.min(0).values).all()
    assert (found <= honest.max(0).values).all()


@pytest.mark.parametrize("rule", RULES)
def test_clipping_shortens_only_what_is_long(rule: Average) -> None:
    rows, weights, reference = rows_of(1, 10), np.ones(10), rows_of(2, 1)[0]
    usual, clipped = Combining(rule), Combining(rule, clip=100.0)
    near = reference + 1e-3 * rows
    assert torch.equal(clipped.mean(near, weights, reference), usual.mean(near, weights, reference))
    far = near.clone()
    far[3] = reference + 1e3 * (near[3] - reference)
    lengths = torch.linalg.vector_norm(near - reference, dim=1)
    moved = torch.linalg.vector_norm(Combining(rule, clip=2.0).mean(far, weights, reference) - reference)
    assert moved <= lengths.max() + 2.0 * lengths.median() * 1.1 / 10


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_equal_weights_are_the_plain_mean_to_the_bit(clients: int, seed: int) -> None:
    rows = rows_of(seed, clients).float()
    assert torch.equal(weighted_mean(rows, np.full(clients, 17.0)), rows.mean(0))
