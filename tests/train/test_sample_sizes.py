"""Clients with more samples count for more: the fast round equals the plain one, whose averages are by samples."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from trainers import CPU, PROCEDURES, assert_same, random_plans, tiny_images, tiny_model, trainers

from asfl.config import load_config
from asfl.data import deal, load_data
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from asfl.train.optimizers import Name

SIZES = (6, 30, 12, 8)
CLIENTS = len(SIZES)


def uneven_batches(local_steps: int = 1, *, augment: bool = False) -> Batches:
    data, edges = tiny_images(), np.cumsum((0, *SIZES))
    parts = [np.arange(first, last) for first, last in pairwise(edges)]
    return Batches(
        data, parts, batch_size=6, local_steps=local_steps, seed=3, augment=augment, device=CPU, dtype=torch.float64,
        alone=True,
    )  # fmt: skip


@pytest.mark.parametrize(("exchange", "optimizer", "local_steps"), [
    ("asfl", "adam", 1), ("asfl", "sgd", 2), ("sfl", "sgd", 1), ("sfl", "adam", 2), ("fedavg", "sgd", 1),
    ("epsl", "adam", 1), ("sl", "sgd", 1),
])  # fmt: skip
def test_averages_are_by_samples(exchange: str, optimizer: Name, local_steps: int) -> None:
    model = tiny_model()
    plain, fast = trainers(model, uneven_batches(local_steps), PROCEDURES[exchange], optimizer, CLIENTS, 2)
    cuts = [len(model.units)] if exchange == "fedavg" else range(1, len(model.units))
    for plan in random_plans(cuts, 5, CLIENTS):
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-8)
        assert_same(plain, fast)


def test_a_configuration_deals_sizes_and_averages_follow_them() -> None:
    config = load_config("demo", ["data.partition=quantity", "data.quantity_alpha=0.5"]).config
    data = load_data(config)
    sizes = [len(part) for part in deal(data, config)]
    assert len(set(sizes)) > 1
    simulation = Simulation(config, scheme_named("asfl"), data)
    assert simulation.trainer.state.samples.tolist() == sizes
    central = Simulation(config, scheme_named("central"), data)
    assert central.trainer.state.samples.tolist() == [len(data.train_labels)]


def test_a_client_draws_the_same_whatever_others_have() -> None:
    together = uneven_batches(augment=True)
    data, edges = tiny_images(), np.cumsum((0, *SIZES))
    parts = [np.zeros(0, np.int64)] * CLIENTS
    parts[1] = np.arange(edges[1], edges[2])
    alone = Batches(
        data, parts, batch_size=6, seed=3, augment=True, device=CPU, dtype=torch.float64, alone=True
    )  # fmt: skip
    for index in range(8):
        for one, other in zip(together.batch(index, 1), alone.batch(index, 1), strict=True):
            assert torch.equal(one, other)


def test_an_epoch_is_as_long_as_a_client_has_samples() -> None:
    batches, data = uneven_batches(), tiny_images()
    for client, size in enumerate(SIZES):
        labels = torch.cat([batches.batch(index, client)[1] for index in range(size // 6)])
        start = sum(SIZES[:client])
        own = np.sort(data.train_labels[start : start + size])
        assert len(labels) == size // 6 * 6
        assert set(labels.tolist()) <= set(own.tolist())
