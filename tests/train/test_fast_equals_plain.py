"""The fast round equals the plain one: all exchange rules, optimiser, norm and cut, however many clients are merged."""

import numpy as np
import pytest
from trainers import PROCEDURES, assert_same, full_round, random_plans, tiny_batches, tiny_images, tiny_model, trainers

from asfl.config.names import Architecture, Dataset, Norm
from asfl.costs.modelled import epsl
from asfl.train.optimizers import Name

CLIENTS = 5
MERGES = [
    (exchange, merge)
    for exchange in PROCEDURES
    for merge in ((1, 2, CLIENTS) if exchange in ("asfl", "sfl") else (2,))  # the others merge nobody, or everybody
]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("exchange", "merge"), MERGES)
def test_rounds_with_moving_cuts_and_lost_packets(exchange: str, optimizer: Name, merge: int) -> None:
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS)
    plain, fast = trainers(model, batches, PROCEDURES[exchange], optimizer, CLIENTS, merge)
    cuts = [len(model.units)] if exchange == "fedavg" else range(1, len(model.units))
    for plan in random_plans(cuts, 4, CLIENTS, seed=merge):
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-8)
        np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-7)
        assert_same(plain, fast)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("exchange", PROCEDURES)
def test_several_local_steps(exchange: str, optimizer: Name) -> None:
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=3, batch_size=4)
    plain, fast = trainers(model, batches, PROCEDURES[exchange], optimizer, CLIENTS, 2)
    cuts = [len(model.units)] if exchange == "fedavg" else range(1, len(model.units))
    for plan in random_plans(cuts, 3, CLIENTS, seed=1):
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-8)
        if exchange != "epsl":  # its steps' norms are added up, not the norm of their sum
            np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-7)
        assert_same(plain, fast)


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_one_cut_per_client(optimizer: Name, local_steps: int) -> None:
    model = tiny_model()
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=local_steps)
    plain, fast = trainers(model, batches, PROCEDURES["sfl"], optimizer, CLIENTS, 2)
    for plan in random_plans(range(1, len(model.units)), 5, CLIENTS, by_client=True):
        np.testing.assert_allclose(fast.round(plan).loss, plain.round(plan).loss, rtol=1e-8)
        assert_same(plain, fast)


@pytest.mark.parametrize("share", [0.4, 0.5, 1.0])
def test_epsl_shares(share: float) -> None:
    model = tiny_model("resnet18", "group", width=0.03)
    batches = tiny_batches(tiny_images(), CLIENTS)
    plain, fast = trainers(model, batches, epsl(share), "sgd", CLIENTS)
    for plan in random_plans(range(1, len(model.units)), 4, CLIENTS):
        np.testing.assert_allclose(fast.round(plan).loss, plain.round(plan).loss, rtol=1e-8)
        assert_same(plain, fast)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("architecture", ["cnn", "vgg11", "resnet18"])
def test_every_cut(architecture: Architecture, norm: Norm) -> None:
    dataset: Dataset = "cifar10" if architecture == "vgg11" else "digits"
    model = tiny_model(architecture, norm, dataset, width=0.03)
    batches = tiny_batches(tiny_images(dataset, per_class=3), 3, batch_size=4)
    for cut in range(1, len(model.units) // 2 + 1):
        plain, fast = trainers(model, batches, PROCEDURES["asfl"], "sgd", 3, 3)
        both = cut, len(model.units) - cut
        for index, here in enumerate(both if cut % 2 else reversed(both)):
            one = full_round(index, here, 3)
            np.testing.assert_allclose(fast.round(one).loss, plain.round(one).loss, rtol=1e-7)
        assert_same(plain, fast)
