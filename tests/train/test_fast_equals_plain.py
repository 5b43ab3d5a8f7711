"""The fast round equals the plain one: every exchange, optimiser, norm and cut; averages, few bits, noise, mixing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from trainers import (
    MIXING,
    PROCEDURES,
    assert_same,
    full_round,
    random_plans,
    tiny_batches,
    tiny_images,
    tiny_model,
    trainers,
    uneven_batches,
)

from asfl.config import Privacy
from asfl.config.names import Architecture, Dataset, Norm
from asfl.costs.modelled import ON_DEMAND, ExchangeRules, epsl
from asfl.train.optimizers import Name
from asfl.train.privacy import GaussianMechanism, drawn_from
from asfl.train.state import Combining

CLIENTS = 4
ALL: tuple[Name, ...] = ("sgd", "momentum", "adam")
TWO: tuple[Name, ...] = ("sgd", "adam")
TWO_WAYS: tuple[tuple[Name, int], ...] = (("sgd", 1), ("adam", 2))
LONG_AND_SHORT: tuple[tuple[Name, int], ...] = ("sgd", 3), ("adam", 1)
"""To step: one step by plain descent, two with moments."""
RULES: dict[str, ExchangeRules] = {
    **PROCEDURES, **MIXING, "on-demand": ON_DEMAND, "epsl:0.4": epsl(0.4), "epsl:1": epsl(1.0)
}  # fmt: skip
NOISE = Privacy(activation_clip=2.0, activation_noise=0.1, update_clip=0.5, update_noise=0.2)
ROBUST: tuple[tuple[Combining, Name], ...] = (
    (Combining("median"), "momentum"),
    (Combining(clip=1.0), "adam"),
    (Combining("median", clip=1.1), "sgd"),
)


@dataclass(frozen=True)
class Case:
    """Rounds with moving cuts, in which some clients sit out and some packets are lost."""

    exchange: str
    optimizer: Name = "sgd"
    local_steps: int = 1
    merge: int = 2
    by_client: bool = False
    """A cut for each client."""
    bits: tuple[int, ...] = (32,) * CLIENTS
    synced: bool = False
    """In some rounds, some client-side layers are averaged."""
    batches: bool = False
    """Mini-batches of each client's own size."""
    uneven: bool = False
    """Clients with more samples count for more."""
    combining: Combining = Combining()  # noqa: RUF009 (frozen)
    noise: bool = False
    network: tuple[Architecture, Norm, float] = ("cnn", "batch", 0.07)
    loose: bool = False
    """What crosses with few bits lies on a grid of float32 numbers, whose last digit the order of a sum decides."""


def cases() -> Iterator[Case]:
    for exchange, optimizer in product(PROCEDURES, ALL):
        yield Case(exchange, optimizer)
    for exchange in PROCEDURES:
        yield Case(exchange, "adam", local_steps=3)
    for exchange, merge in product(("asfl", "sfl"), (1, CLIENTS)):
        yield Case(exchange, "adam", merge=merge)
    for optimizer, steps in zip(ALL, (1, 2, 2), strict=True):
        yield Case("sfl", optimizer, steps, by_client=True)
    for exchange in ("epsl", "epsl:0.4", "epsl:1"):
        yield Case(exchange, network=("resnet18", "group", 0.03))
    # Averages of client sides, few bits, mini-batches of other sizes.
    few = (8, 32, 4, 8)
    for optimizer, bits in product(TWO, ((32,) * CLIENTS, few, (4,) * CLIENTS)):
        yield Case("on-demand", optimizer, bits=bits, synced=True, loose=bits[0] < 32)
    for exchange, (optimizer, steps) in product(("sfl", "fedavg", "sl"), TWO_WAYS):
        yield Case(exchange, optimizer, steps, by_client=exchange == "sfl", bits=few, loose=True)
    for exchange, steps in product(("asfl", "epsl"), (1, 2)):
        yield Case(exchange, "adam" if exchange == "asfl" else "sgd", steps, bits=few)
    for exchange, (optimizer, steps) in product(("sfl", "fedavg", "sl", "asfl"), TWO_WAYS):
        yield Case(exchange, optimizer, steps, by_client=exchange == "sfl", batches=True)
    # Clients that count for more, robust averages, noise.
    for exchange, optimizer, steps in (
        ("asfl", "adam", 1), ("asfl", "sgd", 2), ("sfl", "sgd", 1), ("sfl", "adam", 2), ("fedavg", "sgd", 1),
        ("epsl", "adam", 1), ("sl", "sgd", 1), ("asfl:mix=on", "sgd", 1), ("asfl:mix=on", "adam", 1),
        ("sfl-mix", "sgd", 1), ("sfl-mix", "adam", 1),
    ):  # fmt: skip
        yield Case(exchange, optimizer, steps, uneven=True, by_client=exchange == "sfl-mix")
    for how, optimizer in ROBUST:
        for exchange, steps in (("asfl", 1), ("sfl", 2), ("sfl", 1), ("fedavg", 2)):
            by_client = (exchange, steps) == ("sfl", 1)
            yield Case(exchange, optimizer, steps, by_client=by_client, uneven=True, combining=how)
    for bits in ((32,) * CLIENTS, (8,) * CLIENTS):
        how = Combining("median", clip=1.2)
        yield Case("asfl", "adam", bits=bits, synced=True, uneven=True, combining=how, loose=bits[0] < 32)
    for exchange, steps in zip(("asfl", "sfl", "sl", "epsl"), (1, 2, 1, 2), strict=True):
        yield Case(exchange, "adam", steps, noise=True, network=("cnn", "group", 0.07), loose=True)
    yield Case("asfl", "adam", bits=few, noise=True, network=("cnn", "group", 0.07), loose=True)
    # The server mixes mini-batches.
    for exchange, optimizer in product(MIXING, ALL):
        yield Case(exchange, optimizer)
    for exchange in MIXING:
        yield Case(exchange, "adam", network=("cnn", "none", 0.07))
    for (optimizer, steps), bits in product(LONG_AND_SHORT, ((32,) * CLIENTS, few)):
        yield Case("sfl-mix", optimizer, steps, by_client=True, bits=bits, loose=bits[0] < 32)
    for exchange, steps in product(MIXING, (1, 3)):
        yield Case(exchange, "adam", steps, bits=few, synced=exchange == "asfl:mix=on", loose=True)
    yield Case("sfl-mix", by_client=True, network=("resnet18", "batch", 0.03))
    for exchange in MIXING:
        yield Case(exchange, "adam", noise=True, network=("cnn", "group", 0.07), loose=True)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_rounds_are_the_same(case: Case) -> None:
    architecture, norm, width = case.network
    model, rules, random = tiny_model(architecture, norm, width=width), RULES[case.exchange], np.random.default_rng(1)
    batches = tiny_batches(
        tiny_images(), CLIENTS, batch_size=6 if case.local_steps == 1 else 4, local_steps=case.local_steps
    )
    if case.uneven:
        batches = uneven_batches(case.local_steps)
    blur = GaussianMechanism(NOISE, drawn_from(7)) if case.noise else None
    longer = 1.7 if rules.mixes else 1.0
    plain, fast = trainers(
        model, batches, rules, case.optimizer, CLIENTS, case.merge, case.combining, blur=blur, longer=longer
    )
    cuts = [len(model.units)] if rules.full_local_model else range(1, len(model.units))
    rtol, atol = (1e-4, 1e-7) if case.loose else (1e-9, 1e-10)
    for number, plan in enumerate(random_plans(cuts, 4, CLIENTS, seed=case.merge, by_client=case.by_client)):
        depth = int(plan.cut[0]) - (number == 3) if case.synced and number % 2 else 0
        sizes = random.choice([2, 3, 4, 9], CLIENTS) if case.batches else None
        plan = replace(plan, bits=np.array(case.bits), synced=depth, batch=sizes)
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5 if case.loose else 1e-8)
        np.testing.assert_allclose(found.quantisation_error, expected.quantisation_error, rtol=1e-5)
        # With a cut for each client, the server's part counts layers of others; EPSL's steps' norms are added up.
        if not (case.by_client or rules.aggregated_share or case.batches or (rules.mixes and case.local_steps > 1)):
            np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-4 if case.loose else 1e-7)
        assert_same(plain, fast, rtol, atol)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("architecture", ["cnn", "vgg11", "resnet18"])
def test_every_cut(architecture: Architecture, norm: Norm) -> None:
    dataset: Dataset = "cifar10" if architecture == "vgg11" else "digits"
    model = tiny_model(architecture, norm, dataset, width=0.03)
    batches = tiny_batches(tiny_images(dataset, per_class=3), 3, batch_size=4)
    for cut in range(1, len(model.units) // 2 + 1, 1 if architecture == "cnn" else 2):
        plain, fast = trainers(model, batches, PROCEDURES["asfl"], "sgd", 3, 3)
        both = cut, len(model.units) - cut
        for index, here in enumerate(both if cut % 2 else reversed(both)):
            one = full_round(index, here, 3)
            np.testing.assert_allclose(fast.round(one).loss, plain.round(one).loss, rtol=1e-7)
        assert_same(plain, fast)
