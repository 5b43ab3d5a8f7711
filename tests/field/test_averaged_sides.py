"""Averages of client sides between machines: what is lost on the way, what is wrong, and who has what afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meddling import MeddledLink
from small_runs import CLIENTS, EVERYBODY_ARRIVES, agreement_of, local_links, over, planned_simulation, tiny
from torch import Tensor
from trainers import full_round

from asfl.costs.decision import Decision
from asfl.field.links import LinkError
from asfl.field.protocol import messages as msg
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Answer
from asfl.field.protocol.shapes import Blueprint
from asfl.field.protocol.wire import WireError
from asfl.runs.state import flatten, unflatten
from asfl.train.quantise import QuantisedLayers, quantise_side
from asfl.train.signals import DriftAndNoiseSignals
from asfl.train.steps import Trainer
from asfl.train.trainer import RoundPlan, Trained

VICTIM, CUT = 2, 3
SGD = ("training.optimizer=sgd", "training.learning_rate=0.05")
AGREEMENT = agreement_of(tiny(*EVERYBODY_ARRIVES, *SGD), "asfl:sync=on")


def average_of(index: int, depth: int, bits: int = 32, cut: int = CUT) -> RoundPlan:
    """A round in which everybody arrives and the first layers are averaged."""
    return replace(full_round(index, cut, CLIENTS), synced=depth, bits=np.full(CLIENTS, bits))


def play(trainer: Trainer, plans: Sequence[RoundPlan]) -> list[Trained]:
    trained = []
    for plan in plans:
        trainer.fleet.begin(plan.index)
        trained.append(trainer.round(plan))
    return trained


def here() -> Trainer:
    return planned_simulation(AGREEMENT, [CUT]).trainer


def there(links: Sequence[MeddledLink]) -> Trainer:
    return planned_simulation(AGREEMENT, [CUT], over(links)).trainer


def breaks(answer: Answer) -> Answer:
    raise LinkError("the connection broke")


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
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        trainer = there(meddled)
        meddled[VICTIM].bends["upload", 0] = breaks
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
    sync = meddled[VICTIM].requests(msg.Sync, 1)[0]
    assert torch.allclose(trainer.layout.front(sync.side, depth).parameters, shared.parameters)
    assert again.averaged_spread is not None


def test_nobody_sends_layers() -> None:
    """Then nothing is averaged, and drift goes on."""
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        for link in meddled:
            link.bends["upload", 0] = breaks
        trainer = there(meddled)
        (trained,) = play(trainer, [average_of(0, CUT)])
        assert not any(link.requests(msg.Share) for link in meddled)
    assert trained.averaged_spread is None
    layers = trainer.layout.num_units
    decision = Decision(CUT, np.ones(CLIENTS), np.ones(CLIENTS), synced=CUT)
    after = DriftAndNoiseSignals.none_yet(layers).after(decision, trained, np.ones(layers), CLIENTS)
    assert after.layer_age[:CUT].tolist() == [1.0] * CUT


@pytest.mark.parametrize("bits", [32, 4])
def test_cuts_of_their_own_are_the_same_bits(bits: int) -> None:
    """Each client sends activations and layers of its own cut; what the server trained for the others counts too."""
    cuts = np.array([1 + (client % CUT) for client in range(CLIENTS)])
    plans = [replace(average_of(index, CUT, bits), cut=np.roll(cuts, index)) for index in range(3)]
    alone = here()
    expected = play(alone, plans)
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        trainer = there(meddled)
        found = play(trainer, plans)
        assert not trainer.fleet.take_faults()
        assert_same_state(trainer, alone)
        for client, link in enumerate(meddled):
            assert [request.depth for request in link.requests(msg.Upload)] == [plan.cut[client] for plan in plans]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.loss, other.loss)


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_who_missed_an_average_gets_it_when_it_is_back(bits: int) -> None:
    """All layers are averaged, so the server knows what its side should be: every bit is as if it had been there."""
    alone = here()
    plans = [average_of(0, CUT, bits), average_of(1, 1, bits), average_of(2, CUT, bits), average_of(3, 0, bits)]
    play(alone, plans)
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        trainer = there(meddled)
        meddled[VICTIM].bends = {("share", 0): breaks, ("share", 2): breaks}
        play(trainer, plans)
        assert [(fault.round, fault.stage) for fault in trainer.fleet.take_faults()] == [(0, "resplit"), (2, "resplit")]
        assert_same_state(trainer, alone)
    assert [sync.round for sync in meddled[VICTIM].requests(msg.Sync)] == [0, 1, 3]


@pytest.mark.parametrize("depth", [1, CUT])
def test_who_comes_back_with_a_side_of_its_own_takes_part_in_differences(depth: int) -> None:
    """Its side isn't what all share, to which the differences are. It was lost as a packet is lost."""
    alone = here()
    plans = [average_of(0, 1, 8), average_of(1, 0, 8), average_of(2, depth, 4), average_of(3, CUT, 4)]
    unlucky = replace(plans[1], arrived=np.arange(CLIENTS) != VICTIM)
    play(alone, [plans[0], unlucky, *plans[2:]])
    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        trainer = there(meddled)
        meddled[VICTIM].bends["forward", 1] = breaks
        play(trainer, plans[:1])
        trainer.fleet.gather()  # as an evaluation does
        play(trainer, plans[1:])
        assert_same_state(trainer, alone)


def test_after_a_checkpoint_differences_are_to_the_same_layers() -> None:
    """A server started anew, and clients that are: nobody has what all shared but the checkpoint."""
    alone = here()
    plans = [average_of(0, 2, 8), average_of(1, 0), average_of(2, 2, 4), average_of(3, CUT, 4, cut=4)]
    play(alone, plans)
    with local_links(AGREEMENT) as links:
        before = there([MeddledLink(link) for link in links])
        play(before, plans[:2])
        before.fleet.gather(optimizers=True)
        saved, knowledge = {n: t.clone() for n, t in flatten(before.state).items()}, before.fleet.knowledge()
    with local_links(AGREEMENT) as links:
        trainer = there([MeddledLink(link) for link in links])
        trainer.state = unflatten(trainer.state, saved)
        trainer.fleet.scatter(knowledge)
        play(trainer, plans[2:])
        assert_same_state(trainer, alone)


# ---------------------------------------------------------------------- what is wrong
SHAPES = Blueprint.of(AGREEMENT.config).shapes
DEPTH = 2
Change = Callable[[msg.Uploaded], msg.Uploaded]


def uploaded(bits: int) -> msg.Uploaded:
    """As a client would answer."""
    random = np.random.default_rng(1)
    difference = torch.from_numpy(random.normal(size=int(SHAPES.layout.parameter_edges[DEPTH]))).float()
    crossing = quantise_side(SHAPES.layout, difference, DEPTH, bits, random)
    statistics = torch.ones(int(SHAPES.layout.statistic_edges[DEPTH]))
    if isinstance(crossing, QuantisedLayers):
        return msg.Uploaded(statistics, codes=msg.Codes(crossing.codes, crossing.low, crossing.step))
    return msg.Uploaded(statistics, crossing)


def coded(**changes: Callable[[Tensor], Tensor]) -> Change:
    def change(answer: msg.Uploaded) -> msg.Uploaded:
        assert answer.codes is not None
        changed: dict[str, Any] = {name: f(getattr(answer.codes, name)) for name, f in changes.items()}
        return replace(answer, codes=replace(answer.codes, **changed))

    return change


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_what_fits_is_taken(bits: int) -> None:
    layers = SHAPES.check_first(decode(encode(uploaded(bits)), msg.Uploaded), DEPTH, bits)
    shared = torch.zeros(int(SHAPES.layout.parameter_edges[DEPTH]))
    assert len(layers.received(shared).parameters) == len(shared)


@pytest.mark.parametrize(
    ("bits", "change", "words"),
    [
        (32, lambda a: uploaded(8), "parameters must come at 32 bits"),
        (8, lambda a: uploaded(32), "codes must come at 8 bits"),
        (4, lambda a: uploaded(8), "codes.codes is uint8"),
        (16, lambda a: uploaded(8), "codes.codes is uint8"),
        (8, lambda a: replace(a, parameters=uploaded(32).parameters), "codes must come at 8 bits, and nothing else"),
        (32, lambda a: replace(a, parameters=a.parameters[:-1]), "parameters is float32"),
        (32, lambda a: replace(a, parameters=None), "parameters must come"),
        (32, lambda a: replace(a, parameters=a.parameters * torch.inf), "not finite"),
        (32, lambda a: replace(a, parameters=a.parameters + 1e7), "parameters has 1e+07"),
        (8, coded(low=lambda low: low[:-1]), "codes.low is float32"),
        (8, coded(step=lambda step: -1 - step), "codes.step must not be negative"),
        (8, coded(step=lambda step: step + 1e5), "nor any number that is meant above"),
        (8, lambda a: replace(a, statistics=a.statistics[1:]), "statistics is float32"),
        (8, lambda a: replace(a, statistics=-a.statistics), "negative variance"),
        (32, lambda a: replace(a, statistics=-a.statistics), "negative variance"),
    ],
)
def test_what_does_not_fit_is_refused(bits: int, change: Change, words: str) -> None:
    with pytest.raises(WireError) as refused:
        SHAPES.check_first(decode(encode(change(uploaded(bits))), msg.Uploaded), DEPTH, bits)
    assert words in str(refused.value)


@pytest.mark.parametrize("bits", [32, 4])
def test_layers_unlike_everybody_elses_have_no_part_in_the_mean(bits: int) -> None:
    def larger(answer: msg.Uploaded) -> Answer:
        if answer.parameters is not None:
            return replace(answer, parameters=answer.parameters * 1e3)
        return coded(low=lambda low: low * 1e3, step=lambda step: step * 1e3)(answer)

    with local_links(AGREEMENT) as links:
        meddled = [MeddledLink(link) for link in links]
        trainer = there(meddled)
        meddled[VICTIM].bends["upload", 1] = larger
        play(trainer, [average_of(index, CUT, bits) for index in range(2)])
        (fault,) = trainer.fleet.take_faults()
    assert (fault.client, fault.stage) == (VICTIM, "give")
    assert "times as large as usual" in fault.reason


def test_deeper_layers_may_have_drifted_for_longer() -> None:
    """The first layer is averaged in every round, the others after long: their differences are no lie."""
    with local_links(AGREEMENT) as links:
        trainer = there([MeddledLink(link) for link in links])
        play(trainer, [average_of(index, 1, 8) for index in range(3)])
        for client, link in enumerate(links):  # as after hundreds of rounds
            side = link._node._state.clients.parameters
            side[:, int(trainer.layout.parameter_edges[1]) :] += 0.1 * (client + 1)
        (trained,) = play(trainer, [average_of(3, CUT, 8)])
        assert not trainer.fleet.take_faults()
    assert trained.averaged_spread is not None
