"""Robust rounds: where nothing is clipped they are the usual ones, and one client's nonsense moves nothing far."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from test_sample_sizes import CLIENTS, uneven_batches
from trainers import CPU, PROCEDURES, assert_same, full_round, random_plans, tiny_model, trainers

from asfl.train.fleet import LocalFleet, Packet
from asfl.train.optimizers import Name, rule_named
from asfl.train.state import Average, Combining
from asfl.train.steps import Trainer
from asfl.train.trainer import Task
from studies import poison


class Shouting(LocalFleet):
    """Client 0 sends activations that are a million times too large."""

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        sent = super().forward(tasks)
        for place, packet in enumerate(sent):
            if tasks[place].client == 0 and packet is not None:
                loud = tuple(1e6 * tensor for tensor in packet.carry if isinstance(tensor, torch.Tensor))
                sent[place] = Packet(loud, packet.labels)
        return sent


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
def test_a_clip_that_nobody_reaches_changes_nothing(exchange: str, local_steps: int) -> None:
    usual, robust = (trainer(exchange, one, "adam", local_steps) for one in (Combining(), Combining(clip=1e9)))
    units = len(tiny_model().units)
    cuts = [units] if exchange == "fedavg" else range(1, units)
    for plan in random_plans(cuts, 4, CLIENTS, by_client=exchange == "sfl"):
        np.testing.assert_allclose(robust.round(plan).loss, usual.round(plan).loss, rtol=1e-9)
        found, expected = (one.state.average_model() for one in (robust, usual))
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize(("exchange", "by_client"), [("asfl", False), ("sfl", False), ("sfl", True), ("fedavg", False)])
@pytest.mark.parametrize(
    ("combining", "optimizer"),
    [
        (Combining("median"), "momentum"),
        (Combining("trimmed", trim=0.3), "adam"),
        (Combining(clip=1.0), "adam"),
        (Combining("median", clip=1.1), "sgd"),
    ],
)
def test_fast_equals_plain(
    combining: Combining, optimizer: Name, exchange: str, by_client: bool, local_steps: int
) -> None:
    model, batches = tiny_model(), uneven_batches(local_steps)
    plain, fast = trainers(model, batches, PROCEDURES[exchange], optimizer, CLIENTS, 2, combining)
    cuts = [len(model.units)] if exchange == "fedavg" else range(1, len(model.units))
    for plan in random_plans(cuts, 4, CLIENTS, seed=2, by_client=by_client):
        expected, found = plain.round(plan), fast.round(plan)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-8)
        if not by_client:
            np.testing.assert_allclose(found.update_norm2, expected.update_norm2, rtol=1e-7)
        assert_same(plain, fast)


@pytest.mark.parametrize("bits", [32, 8])
def test_fast_equals_plain_where_client_sides_are_averaged(bits: int) -> None:
    model, how = tiny_model(), Combining("median", clip=1.2)
    plain, fast = trainers(model, uneven_batches(1), PROCEDURES["asfl"], "adam", CLIENTS, 2, how)
    for plan in random_plans(range(3, len(model.units)), 4, CLIENTS, seed=3):
        synced = replace(plan, synced=2, bits=np.full(CLIENTS, bits))
        plain.round(synced)
        fast.round(synced)
        assert_same(plain, fast, *((1e-9, 1e-10) if bits == 32 else (1e-5, 1e-8)))


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_one_that_shouts_is_hardly_heard(rule: Average) -> None:
    def moved(combining: Combining) -> float:
        shouted = trainer("asfl", combining, fleet=Shouting)
        before = shouted.state.server.parameters.clone()
        shouted.round(full_round(0, 2, CLIENTS))
        edge = shouted.layout.parameter_edges[2]
        return float((shouted.state.server.parameters - before)[edge:].norm())

    assert moved(Combining(rule, trim=0.3)) < 1e-3 * moved(Combining())


@pytest.mark.parametrize("attack", poison.ATTACKS)
@pytest.mark.parametrize("scheme", ["sfl", "fedavg"])
def test_the_study_of_poisoned_clients_plays_every_attack(
    attack: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poison, "ROUNDS", 1)
    assert 0 <= poison.accuracy((scheme, attack, "mean", 1)) <= 1
