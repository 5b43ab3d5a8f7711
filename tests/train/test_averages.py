"""Averages of client sides: fast equals plain, all averaged every round is SplitFed, noise is measured without bias."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from trainers import (
    CPU,
    PROCEDURES,
    assert_same,
    full_round,
    random_plans,
    tiny_batches,
    tiny_images,
    tiny_model,
    trainers,
)

from asfl.costs.modelled import ON_DEMAND, ExchangeRules
from asfl.train.optimizers import Name, rule_named
from asfl.train.steps import GradientParts, Trainer

CLIENTS = 4


@pytest.mark.parametrize("bits", [32, 8, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fast_equals_plain(optimizer: Name, bits: int) -> None:
    model = tiny_model()
    plain, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), ON_DEMAND, optimizer, CLIENTS, 2)
    mixed = np.array([bits, 32, bits, bits])
    for number, plan in enumerate(random_plans(range(1, len(model.units)), 6, CLIENTS)):
        depth = int(plan.cut[0]) - (number % 3 == 2) if number % 2 else 0
        plan = replace(plan, synced=depth, bits=mixed if number < 4 else np.full(CLIENTS, bits))
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
        # What crosses with few bits lies on a grid of float32 numbers, whose last digit the order of a sum decides.
        assert_same(plain, fast, *((1e-9, 1e-10) if bits == 32 else (1e-5, 1e-8)))


def test_all_averaged_every_round_is_split_fed() -> None:
    """SplitFed v1 at a cut that stays, with its whole client model exchanged every round."""
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS)
    (_, ours), (_, theirs) = (
        trainers(model, batches, exchange, "sgd", CLIENTS, CLIENTS) for exchange in (ON_DEMAND, PROCEDURES["sfl"])
    )
    for index in range(4):
        plan = full_round(index, 2, CLIENTS)
        ours.round(replace(plan, synced=2))
        theirs.round(plan)
        one, other = ours.state.average_model(), theirs.state.average_model()
        torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-9, atol=1e-12)
    assert ours.state.clients.parameters.std(0).max() == 0


def test_spreads_are_those_before_the_average() -> None:
    model = tiny_model()
    _, fast = trainers(model, tiny_batches(tiny_images(), CLIENTS), ON_DEMAND, "sgd", CLIENTS, 2)
    plan = full_round(0, 3, CLIENTS)
    _, apart = trainers(model, tiny_batches(tiny_images(), CLIENTS), ON_DEMAND, "sgd", CLIENTS, 2)
    apart.round(plan)
    found = fast.round(replace(plan, synced=2)).averaged_spread
    assert found is not None
    sides, edges = apart.state.clients.parameters, apart.layout.parameter_edges
    for layer in range(len(model.units)):
        own = sides[:, edges[layer] : edges[layer + 1]]
        wanted = float((own - own.mean(0)).square().sum(1).mean()) if layer < 2 else 0.0
        assert found[layer] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("exchange", [ON_DEMAND, replace(ON_DEMAND, mixes=True), PROCEDURES["sfl"]])
def test_noise_is_measured_where_it_is_watched(exchange: ExchangeRules) -> None:
    for watches in (True, False):
        fast = Trainer(
            tiny_model(), tiny_batches(tiny_images(), CLIENTS, batch_size=8), exchange, rule_named("sgd", 0.05),
            num_clients=CLIENTS, seed=5, device=CPU, dtype=torch.float64, merge=CLIENTS, watch_noise=watches,
        )  # fmt: skip
        norms = fast.round(full_round(0, 2, CLIENTS)).gradient_norms
        assert (norms is not None) == watches
        assert norms is None or norms.all == CLIENTS > norms.part


def test_noise_and_signal_are_unbiased() -> None:
    """Gradients G + noise of variance S: the mean of many estimates is both."""
    random, exact, clients = np.random.default_rng(1), np.array([3.0, -1.0, 2.0]), 7
    found = []
    for _ in range(4000):
        total = torch.zeros(3, dtype=torch.float64)
        parts = GradientParts(total)
        for size in (2, 2, 3):
            total += torch.from_numpy((exact + random.normal(0, 2.0, (size, 3))).sum(0))
            parts.add(size)
        norms = parts.norms()
        assert norms is not None
        assert norms.all == clients
        found.append(norms.noise_and_signal())
    noise, signal = np.mean(found, axis=0)
    assert noise == pytest.approx(3 * 4.0, rel=0.05)
    assert signal == pytest.approx(14.0, rel=0.05)
