"""Averages of client sides between machines: what is lost on the way, what is wrong, and who has what afterwards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meddling import MeddledLink, breaks
from small_runs import CLIENTS, EVERYBODY_ARRIVES, agreement_of, local_links, over, planned_simulation, tiny
from trainers import full_round

from asfl.costs.round import Decision
from asfl.field import messages as msg
from asfl.runs.state import flatten, unflatten
from asfl.train.signals import DriftAndNoiseSignals, RoundPlan, Trained
from asfl.train.steps import Trainer

VICTIM, CUT = 2, 3
SGD = ("training.optimizer=sgd", "training.learning_rate=0.05")
AGREEMENT = agreement_of(tiny(*EVERYBODY_ARRIVES, *SGD), "asfl:sync=on")


def average_of(index: int, depth: int, bits: int = 32, cut: int = CUT) -> RoundPlan:
    """A round in which all clients arrive and the first layers are averaged."""
    return replace(full_round(index, cut, CLIENTS), synced=depth, bits=np.full(CLIENTS, bits))


def play(trainer: Trainer, plans: Sequence[RoundPlan]) -> list[Trained]:
    trained = []
    for plan in plans:
        trainer.fleet.begin(plan.index)
        trained.append(trainer.round(plan))
    return trained


def here() -> Trainer:
    return planned_simulation(AGREEMENT, [CUT]).trainer


@contextmanager
def there() -> Iterator[tuple[Trainer, list[MeddledLink]]]:
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        yield planned_simulation(AGREEMENT, [CUT], over(meddled)).trainer, meddled


def assert_same_state(found: Trainer, expected: Trainer) -> None:
    found.fleet.gather(optimizers=True)
    for name in ("server.parameters", "server.statistics", "clients.parameters", "clients.statistics"):
        assert torch.equal(flatten(found.state)[name], flatten(expected.state)[name]), name


# ---------------------------------------------------------------------- who is lost
@pytest.mark.parametrize("depth", [CUT, 1])
def test_lost_while_layers_go_up_is_left_out_of_the_mean(depth: int) -> None:
    apart = here()
    play(apart, [average_of(0, 0)])
    others = [client for client in range(CLIENTS) if client != VICTIM]
    with there() as (trainer, links):
        links[VICTIM].bends["upload", 0] = breaks
        (trained,) = play(trainer, [average_of(0, depth)])
        (fault,) = trainer.fleet.take_faults()
        shared = trainer.layout.front(trainer.state.server, depth).clone()
        again = play(trainer, [average_of(1, depth, bits=4)])[0]
        assert not trainer.fleet.take_faults()
    assert (fault.client, fault.stage, fault.reason) == (VICTIM, "give", "the connection broke")
    assert np.isfinite(trained.loss).all()  # it has taught the server
    sides = apart.layout.front(apart.state.clients, depth)
    assert torch.equal(shared.parameters, sides.parameters[others].mean(0))
    assert torch.equal(shared.statistics, sides.statistics[others].mean(0))
    sync = links[VICTIM].requests(msg.Sync, 1)[0]
    assert torch.allclose(trainer.layout.front(sync.side, depth).parameters, shared.parameters)
    assert again.averaged_spread is not None


def test_if_no_client_sends_layers_nothing_is_averaged_and_drift_goes_on() -> None:
    with there() as (trainer, links):
        for link in links:
            link.bends["upload", 0] = breaks
        (trained,) = play(trainer, [average_of(0, CUT)])
        assert not any(link.requests(msg.Share) for link in links)
    assert trained.averaged_spread is None
    layers = trainer.layout.num_units
    decision = Decision(CUT, np.ones(CLIENTS), np.ones(CLIENTS), synced=CUT)
    after = DriftAndNoiseSignals.none_yet(layers).after(decision, trained, np.ones(layers), CLIENTS)
    assert after.layer_age[:CUT].tolist() == [1.0] * CUT


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_a_client_that_missed_an_average_gets_it_when_it_is_back(bits: int) -> None:
    """All layers are averaged, so the server knows what its side should be: every bit is as if it had been there."""
    alone = here()
    plans = [average_of(0, CUT, bits), average_of(1, 1, bits), average_of(2, CUT, bits), average_of(3, 0, bits)]
    play(alone, plans)
    with there() as (trainer, links):
        links[VICTIM].bends = {("share", 0): breaks, ("share", 2): breaks}
        play(trainer, plans)
        assert [(fault.round, fault.stage) for fault in trainer.fleet.take_faults()] == [(0, "resplit"), (2, "resplit")]
        assert_same_state(trainer, alone)
    assert [sync.round for sync in links[VICTIM].requests(msg.Sync)] == [0, 1, 3]


@pytest.mark.parametrize("depth", [1, CUT])
def test_a_client_that_comes_back_with_a_side_of_its_own_takes_part_in_differences(depth: int) -> None:
    """Its side isn't what all share, to which the differences are. It was lost as a packet is lost."""
    alone = here()
    plans = [average_of(0, 1, 8), average_of(1, 0, 8), average_of(2, depth, 4), average_of(3, CUT, 4)]
    unlucky = replace(plans[1], arrived=np.arange(CLIENTS) != VICTIM)
    play(alone, [plans[0], unlucky, *plans[2:]])
    with there() as (trainer, links):
        links[VICTIM].bends["forward", 1] = breaks
        play(trainer, plans[:1])
        trainer.fleet.gather()  # as an evaluation does
        play(trainer, plans[1:])
        assert_same_state(trainer, alone)


def test_after_a_checkpoint_differences_are_to_the_same_layers() -> None:
    """A server started anew, and clients that are: only the checkpoint has what all shared."""
    alone = here()
    plans = [average_of(0, 2, 8), average_of(1, 0), average_of(2, 2, 4), average_of(3, CUT, 4, cut=4)]
    play(alone, plans)
    with there() as (before, _):
        play(before, plans[:2])
        before.fleet.gather(optimizers=True)
        saved, knowledge = {n: t.clone() for n, t in flatten(before.state).items()}, before.fleet.knowledge()
    with there() as (trainer, _):
        trainer.restore(unflatten(trainer.state, saved))
        trainer.fleet.scatter(knowledge)
        play(trainer, plans[2:])
        assert_same_state(trainer, alone)


# ---------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize("bits", [32, 4])
def test_layers_unlike_all_others_have_no_part_in_the_mean(bits: int) -> None:
    def larger(answer: Any) -> msg.Answer:
        sent = answer.layers.parameters
        far = sent * 1e3 if bits == 32 else replace(sent, low=sent.low * 1e3, step=sent.step * 1e3)
        return msg.Side(replace(answer.layers, parameters=far))

    with there() as (trainer, links):
        links[VICTIM].bends["upload", 1] = larger
        play(trainer, [average_of(index, CUT, bits) for index in range(2)])
        (fault,) = trainer.fleet.take_faults()
    assert (fault.client, fault.stage) == (VICTIM, "give")
    assert "times as large as usual" in fault.reason


def test_deeper_layers_may_have_drifted_for_longer() -> None:
    """The first layer is averaged in every round, the others after long: their differences are no lie."""
    with there() as (trainer, links):
        play(trainer, [average_of(index, 1, 8) for index in range(3)])
        for client, link in enumerate(links):  # as after hundreds of rounds
            node: Any = link._link
            side = node._node._state.clients.parameters
            side[:, int(trainer.layout.parameter_edges[1]) :] += 0.1 * (client + 1)
        (trained,) = play(trainer, [average_of(3, CUT, 8)])
        assert not trainer.fleet.take_faults()
    assert trained.averaged_spread is not None
