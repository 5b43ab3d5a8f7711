"""Robust rounds: where nothing is clipped they are the usual ones, and one client's nonsense moves nothing far."""

from functools import partial

import numpy as np
import pytest
import torch
from test_sample_sizes import CLIENTS, uneven_batches
from trainers import CPU, PROCEDURES, full_round, random_plans, tiny_model

from asfl.train.combine import Combining, Rule
from asfl.train.fast import FastTrainer
from asfl.train.fleet import LocalFleet, Packet
from asfl.train.optimizers import Name, rule_named


class Shouting(LocalFleet):
    """Client 0 sends activations that are a million times too large."""

    def forward(self, *args: object) -> list[Packet | None]:
        sent = super().forward(*args)  # type: ignore[arg-type]
        clients = args[2]
        assert isinstance(clients, list)
        for place, packet in enumerate(sent):
            if clients[place] == 0 and packet is not None:
                loud = tuple(1e6 * tensor for tensor in packet.carry if isinstance(tensor, torch.Tensor))
                sent[place] = Packet(loud, packet.labels)
        return sent


def trainer(
    procedure: str,
    combining: Combining,
    optimizer: Name = "sgd",
    local_steps: int = 1,
    fleet: type[LocalFleet] = LocalFleet,
) -> FastTrainer:
    return FastTrainer(
        tiny_model(norm="none"), uneven_batches(local_steps), PROCEDURES[procedure], rule_named(optimizer, 0.01),
        num_clients=CLIENTS, seed=5, device=CPU, dtype=torch.float64, merge=2, fleet=partial(fleet),
        combining=combining,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("procedure", "local_steps"), [("asfl", 1), ("asfl", 2), ("sfl", 1), ("sfl", 2), ("fedavg", 1)]
)
def test_a_clip_that_nobody_reaches_changes_nothing(procedure: str, local_steps: int) -> None:
    usual, robust = (trainer(procedure, one, "adam", local_steps) for one in (Combining(), Combining(clip=1e9)))
    units = len(tiny_model().units)
    cuts = [units] if procedure == "fedavg" else range(1, units)
    for plan in random_plans(cuts, 4, CLIENTS, by_client=procedure == "sfl"):
        np.testing.assert_allclose(robust.round(plan).loss, usual.round(plan).loss, rtol=1e-9)
        found, expected = (one.state.average_model() for one in (robust, usual))
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_one_that_shouts_is_hardly_heard(rule: Rule) -> None:
    def moved(combining: Combining) -> float:
        shouted = trainer("asfl", combining, fleet=Shouting)
        before = shouted.state.server.parameters.clone()
        shouted.round(full_round(0, 2, CLIENTS))
        edge = shouted.layout.parameter_edges[2]
        return float((shouted.state.server.parameters - before)[edge:].norm())

    assert moved(Combining(rule, trim=0.3)) < 1e-3 * moved(Combining())
