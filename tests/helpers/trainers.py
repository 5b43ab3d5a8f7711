"""Tiny networks, images and rounds, and the plain and the fast trainer on them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from plain import PlainTrainer

from asfl.config.names import Architecture, Dataset, ModelSpec, Norm
from asfl.costs.modelled import ASFL, FEDAVG, ON_DEMAND, SFL, SL, ExchangeRules, epsl
from asfl.data import ImageData
from asfl.models.build import build_model
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches
from asfl.train.fleet import LocalFleet
from asfl.train.optimizers import Name, rule_named
from asfl.train.privacy import GaussianMechanism
from asfl.train.signals import RoundPlan
from asfl.train.state import Combining, ModelVectors
from asfl.train.steps import Trainer

CPU = torch.device("cpu")
PROCEDURES: dict[str, ExchangeRules] = {"asfl": ASFL, "sfl": SFL, "sl": SL, "fedavg": FEDAVG, "epsl": epsl(0.5)}
MIXING: dict[str, ExchangeRules] = {"asfl:mix=on": replace(ON_DEMAND, mixes=True), "sfl-mix": replace(SFL, mixes=True)}
"""The server steps with every mini-batch, mixed from all clients'."""


def tiny_images(dataset: Dataset = "digits", per_class: int = 8, seed: int = 0) -> ImageData:
    random = np.random.default_rng(seed)
    shape, classes = {"digits": ((1, 8, 8), 10), "cifar10": ((3, 32, 32), 10)}[dataset]
    samples = per_class * classes
    images = random.integers(0, 256, (samples, *shape), dtype=np.uint8)
    labels = np.arange(samples) % classes
    mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
    return ImageData("tiny", images, labels, images[:40], labels[:40], classes, mean, std)


def tiny_model(
    architecture: Architecture = "cnn", norm: Norm = "batch", dataset: Dataset = "digits", width: float = 0.07
) -> CuttableModel:
    torch.manual_seed(0)
    return build_model(ModelSpec(architecture, dataset, width, norm)).double()


def tiny_batches(
    data: ImageData, num_clients: int, *, batch_size: int = 6, local_steps: int = 1, augment: bool = False
) -> Batches:
    samples = len(data.train_labels) // num_clients
    parts = np.arange(samples * num_clients).reshape(num_clients, samples)
    return Batches(
        data, parts, batch_size=batch_size, local_steps=local_steps, seed=3, augment=augment, device=CPU,
        dtype=torch.float64,
    )  # fmt: skip


SIZES = (6, 30, 12, 8)


def uneven_batches(local_steps: int = 1, *, augment: bool = False) -> Batches:
    data, edges = tiny_images(), np.cumsum((0, *SIZES))
    parts = [np.arange(first, last) for first, last in pairwise(edges)]
    return Batches(
        data, parts, batch_size=6, local_steps=local_steps, seed=3, augment=augment, device=CPU, dtype=torch.float64,
        alone=True,
    )  # fmt: skip


def trainers(
    model: CuttableModel, batches: Batches, exchange: ExchangeRules, optimizer: Name, num_clients: int, merge: int = 1,
    combining: Combining = Combining(), blur: GaussianMechanism | None = None, longer: float = 1.0,  # noqa: B008 (frozen)
) -> tuple[PlainTrainer, Trainer]:  # fmt: skip
    """`longer`: so many times the server's learning rate is that of clients."""
    rate = {"sgd": 0.05, "momentum": 0.02, "adam": 0.003}[optimizer]
    shared: dict[str, Any] = {"num_clients": num_clients, "seed": 5, "combining": combining}
    plain = PlainTrainer(
        model, batches, exchange, optimizer, rate, **shared, blur=blur, client_learning_rate=longer * rate
    )
    fast = Trainer(
        model, batches, exchange, rule_named(optimizer, rate), **shared, device=CPU, dtype=torch.float64, merge=merge,
        fleet=partial(LocalFleet, blur=blur), client_rule=rule_named(optimizer, longer * rate),
    )  # fmt: skip
    return plain, fast


def random_plans(
    cuts: Sequence[int], rounds: int, num_clients: int, seed: int = 0, *, by_client: bool = False
) -> Iterator[RoundPlan]:
    """Rounds with moving cuts, in which some clients sit out and some packets are lost."""
    random = np.random.default_rng(seed)
    for index in range(rounds):
        cut = random.choice(cuts, num_clients) if by_client else np.full(num_clients, random.choice(cuts))
        scheduled = random.random(num_clients) < 0.8
        yield RoundPlan(index, cut, scheduled, scheduled & (random.random(num_clients) < 0.8))


def full_round(index: int, cut: int, num_clients: int) -> RoundPlan:
    """A round in which all clients arrive."""
    all_clients = np.ones(num_clients, dtype=bool)
    return RoundPlan(index, np.full(num_clients, cut), all_clients, all_clients)


def vectors_of(model: CuttableModel, fast: Trainer) -> ModelVectors:
    return fast.layout.flatten(model, CPU, torch.float64)


def assert_same(plain: PlainTrainer, fast: Trainer, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Average model, client sides and server side agree."""
    cut = fast.state.cut
    pairs = [(fast.state.average_model(), vectors_of(plain.average_model(cut), fast))]
    for client in range(fast.state.num_clients if cut else 0):
        own = fast.layout.front(vectors_of(plain.clients[client].model, fast), cut)
        pairs.append((fast.state.clients.row(client), own))
    for found, expected in pairs:
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=rtol, atol=atol)
        torch.testing.assert_close(found.statistics, expected.statistics, rtol=rtol, atol=atol)
