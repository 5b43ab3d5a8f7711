"""What the server's maths does without a client that is lost on the way."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from trainers import CPU, MIXING, PROCEDURES, tiny_batches, tiny_images, tiny_model

from asfl.runs.state import flatten
from asfl.train.fleet import FirstLayers, LocalFleet, Norms, Packet
from asfl.train.layout import ModelVectors
from asfl.train.optimizers import rule_named
from asfl.train.quantise import Crossing
from asfl.train.steps import Trainer
from asfl.train.trainer import RoundPlan, Task

CLIENTS, VICTIM = 4, 2
CUT = 3


class LosingFleet(LocalFleet):
    """Loses the answers of the victim at one stage."""

    stage = ""

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        if self.stage != "forward":
            return super().forward(tasks)
        asked = [task for task in tasks if task.client != VICTIM]
        packets = iter(super().forward(asked) if asked else [])
        return [None if task.client == VICTIM else next(packets) for task in tasks]

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        norms = super().backward(tasks, gradients)
        return lambda: self._without(tasks, norms(), "backward")

    def learn(self, tasks: Sequence[Task]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        losses, norms = super().learn(tasks)
        return self._without(tasks, losses, "forward"), self._without(tasks, norms, "forward")

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        given = iter(super().give([task for task in tasks if task.client in self._loaded]))
        sides = [next(given) if task.client in self._loaded else None for task in tasks]
        return self._without(tasks, sides, "forward", "backward", "give")

    def moved(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        known = [task for task in tasks if task.client in self._before]
        norms = dict(zip(known, super().moved(known), strict=True))
        return self._without(tasks, [norms.get(task) for task in tasks], "backward")

    def _without(self, tasks: Sequence[Task], values: list[Any], *stages: str) -> list[Any]:
        lost = self.stage in stages
        return [None if lost and task.client == VICTIM else value for task, value in zip(tasks, values, strict=True)]


def trainer_of(exchange: str, *, local_steps: int = 1, merge: int = 2) -> Trainer:
    batches = tiny_batches(tiny_images(), CLIENTS, local_steps=local_steps, batch_size=4)
    return Trainer(
        tiny_model(), batches, (PROCEDURES | MIXING)[exchange], rule_named("adam", 0.003), num_clients=CLIENTS, seed=5,
        device=CPU, dtype=torch.float64, merge=merge, fleet=LosingFleet,
    )  # fmt: skip


def losing(trainer: Trainer) -> LosingFleet:
    assert isinstance(trainer.fleet, LosingFleet)
    return trainer.fleet


def plan_of(trainer: Trainer, arrived: Sequence[int], index: int = 0) -> RoundPlan:
    cut = trainer.layout.num_units if trainer.exchange.full_local_model else CUT
    mask: NDArray[np.bool_] = np.isin(np.arange(CLIENTS), arrived)
    return RoundPlan(index, np.full(CLIENTS, cut), np.ones(CLIENTS, dtype=np.bool_), mask)


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("exchange", PROCEDURES | MIXING)
def test_lost_before_its_activations_came_is_not_arrived(exchange: str, local_steps: int) -> None:
    """Merged by one: with other groups the same sums are rounded otherwise."""
    without, lossy = (trainer_of(exchange, local_steps=local_steps, merge=1) for _ in range(2))
    losing(lossy).stage = "forward"
    others = [client for client in range(CLIENTS) if client != VICTIM]
    if exchange == "sl":  # the order is drawn among those who arrive
        lossy.round(plan_of(lossy, range(CLIENTS)))
        assert np.isfinite(lossy.round(plan_of(lossy, range(CLIENTS), 1)).loss[others]).all()
        return
    for index in range(2):
        expected = without.round(plan_of(without, others, index))
        found = lossy.round(plan_of(lossy, range(CLIENTS), index))
        np.testing.assert_array_equal(found.loss, expected.loss)
        np.testing.assert_array_equal(found.update_norm2, expected.update_norm2)
        assert np.isnan(found.loss[VICTIM])
    for name, tensor in flatten(without.state).items():
        assert name.startswith("client") or torch.equal(flatten(lossy.state)[name], tensor), name


@pytest.mark.parametrize("exchange", ["asfl", "epsl", "asfl:mix=on"])
def test_lost_behind_the_pass_has_taught_the_server(exchange: str) -> None:
    whole, lossy = trainer_of(exchange), trainer_of(exchange)
    losing(lossy).stage = "backward"
    before = whole.state.server.clone()
    expected, found = (t.round(plan_of(t, range(CLIENTS))) for t in (whole, lossy))
    assert torch.equal(lossy.state.server.parameters, whole.state.server.parameters)
    assert torch.equal(lossy.state.server.statistics, whole.state.server.statistics)
    np.testing.assert_array_equal(found.loss, expected.loss)
    a = int(whole.layout.parameter_edges[CUT])
    of_server = (whole.state.server.parameters[a:] - before.parameters[a:]).square().sum()
    assert found.update_norm2[VICTIM] == pytest.approx(float(of_server))
    assert found.update_norm2[0] == expected.update_norm2[0]


@pytest.mark.parametrize("stage", ["backward", "give"])
def test_sides_are_averaged_over_those_who_gave_theirs(stage: str) -> None:
    """SFL: layers of the clients over three, layers of the server over four."""
    whole, lossy = trainer_of("sfl"), trainer_of("sfl")
    losing(lossy).stage = stage
    initial = whole.state.server.clone()
    sides: dict[int, ModelVectors] = {}
    for client in range(CLIENTS):  # each client's side after its own step: SFL with only that client
        alone = trainer_of("sfl")
        alone.round(plan_of(alone, [client]))
        sides[client] = alone.state.server
    for trainer in (whole, lossy):
        trainer.round(plan_of(trainer, range(CLIENTS)))
    a, b = int(whole.layout.parameter_edges[CUT]), int(whole.layout.statistic_edges[CUT])
    gave = [sides[client] for client in range(CLIENTS) if client != VICTIM]
    torch.testing.assert_close(
        lossy.state.server.parameters[:a], torch.stack([side.parameters[:a] for side in gave]).mean(0)
    )
    torch.testing.assert_close(lossy.state.server.parameters[a:], whole.state.server.parameters[a:])
    torch.testing.assert_close(
        lossy.state.server.statistics[:b], torch.stack([side.statistics[:b] for side in gave]).mean(0)
    )
    assert not torch.equal(lossy.state.server.parameters[:a], initial.parameters[:a])


@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("exchange", ["sfl", "fedavg", "sl"])
@pytest.mark.parametrize("stage", ["forward", "backward", "give"])
def test_the_only_one_is_lost(stage: str, exchange: str, local_steps: int) -> None:
    trainer = trainer_of(exchange, local_steps=local_steps)
    losing(trainer).stage = stage
    before = trainer.state.server.clone()
    trainer.round(plan_of(trainer, [VICTIM]))
    edge = int(trainer.layout.parameter_edges[CUT]) if exchange != "fedavg" else trainer.layout.num_parameters
    assert torch.equal(trainer.state.server.parameters[:edge], before.parameters[:edge])
    assert torch.isfinite(trainer.state.server.parameters).all()
    untouched = stage == "forward" or exchange == "fedavg" or (exchange == "sfl" and local_steps > 1)
    assert torch.equal(trainer.state.server.parameters, before.parameters) == untouched


def test_in_sequence_the_next_client_gets_what_the_lost_one_got() -> None:
    """SL: client sides go round; the server's layers have stepped for the lost one, the clients' have not."""
    trainer = trainer_of("sl")
    losing(trainer).stage = "give"
    found = trainer.round(plan_of(trainer, range(CLIENTS)))
    assert np.isfinite(found.loss).all()
    steps = trainer.state.server_optimizer.steps
    assert steps[CUT:].tolist() == [CLIENTS] * (trainer.layout.num_units - CUT)
