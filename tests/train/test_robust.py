"""Robust averages against plain NumPy; robust rounds; and what one client alone cannot do to them."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from trainers import CPU, PROCEDURES, random_plans, tiny_model, uneven_batches

from asfl.train.fleet import LocalFleet
from asfl.train.optimizers import Name, rule_named
from asfl.train.state import Average, Combining, weighted_mean
from asfl.train.steps import Trainer
from studies import poison

CLIENTS = 4


def trainer(
    exchange: str,
    combining: Combining,
    optimizer: Name = "sgd",
    local_steps: int = 1,
    fleet: type[LocalFleet] = LocalFleet,
) -> Trainer:
    return Trainer(
        tiny_model(norm="none"), uneven_batches(local_steps), PROCEDURES[exchange], rule_named(optimizer, 0.01),
        num_clients=CLIENTS, seed=5, device=CPU, dtype=torch.float64, merge=2, fleet=partial(fleet),
        combining=combining,
    )  # fmt: skip


@pytest.mark.parametrize(("exchange", "local_steps"), [("asfl", 1), ("asfl", 2), ("sfl", 1), ("sfl", 2), ("fedavg", 1)])
def test_a_clip_that_no_update_reaches_changes_nothing(exchange: str, local_steps: int) -> None:
    usual, robust = (trainer(exchange, one, "adam", local_steps) for one in (Combining(), Combining(clip=1e9)))
    units = len(tiny_model().units)
    cuts = [units] if exchange == "fedavg" else range(1, units)
    for plan in random_plans(cuts, 4, CLIENTS, by_client=exchange == "sfl"):
        np.testing.assert_allclose(robust.round(plan).loss, usual.round(plan).loss, rtol=1e-9)
        found, expected = (one.state.average_model() for one in (robust, usual))
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attack", poison.ATTACKS)
def test_the_study_of_poisoned_clients_plays_every_attack(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "ROUNDS", 1)
    assert 0 <= poison.accuracy(("sfl", attack, "mean", 1)) <= 1


RULES: list[Average] = ["mean", "median"]


def rows_of(seed: int, clients: int, columns: int = 7) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(clients, columns)))


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_each_rule_is_what_it_says(seed: int, clients: int) -> None:
    rows, weights = rows_of(seed, clients), np.random.default_rng(seed + 1).uniform(1, 9, clients)
    x, reference = rows.numpy(), torch.zeros(7, dtype=torch.float64)
    expected = {
        "mean": np.average(x, axis=0, weights=weights),
        "median": np.median(x, axis=0),
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
