"""What leaves a client, and when: what the table of docs/security.md says, and no image."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from meddling import MeddledLink
from small_runs import EVERYBODY_ARRIVES, PATIENT, agreement_of, local_links, over, planned_simulation, tiny

from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.fleet import remote_fleet
from asfl.field.messages import Agreement, Answer, AnyRequest
from asfl.field.wire import encode
from asfl.runs.simulation import Simulation
from asfl.train.gradients import is_due
from asfl.train.layout import ModelVectors
from asfl.train.trainer import Task

EVERY_ROUND = {"forward", "backward"}


class Overheard(MeddledLink):
    """Keeps what was answered, as bytes."""

    def __init__(self, link: object) -> None:
        super().__init__(link)  # type: ignore[arg-type]
        self.sent: list[bytes] = []

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        future = super().ask(request, deadline_s)
        future.add_done_callback(lambda done: self.sent.append(encode(done.result())))
        return future


@contextmanager
def simulated(agreement: Agreement, cuts: list[int]) -> Iterator[tuple[Simulation, list[Overheard], list[ClientNode]]]:
    with local_links(agreement) as links:
        overheard = [Overheard(link) for link in links]
        nodes: list[Any] = [link._node for link in links]
        yield planned_simulation(agreement, cuts, remote_fleet(overheard, PATIENT)), overheard, nodes


@pytest.mark.parametrize(
    ("scheme", "more", "expected"),
    [
        ("asfl", [], [{"sync", "grow"}, {"project", "shrink", "gather"}, {"project"}, {"project", "gather"}]),
        ("sfl", [], [{"sync", "give"}, {"give"}, {"give"}, {"give"}]),
        # The printed objective needs ‖w̄‖², and with it everybody's side in every round.
        (
            "asfl",
            ["decision.equations=printed", "output.evaluate_every=4"],
            [{"sync", "grow"}, {"gather", "project", "shrink"}, {"gather", "project"}, {"gather", "project"}],
        ),
    ],
)
def test_when_what_leaves(scheme: str, more: list[str], expected: list[set[str]]) -> None:
    """Evaluated after every second round, if nothing else is said; the cut moves down in the second."""
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "output.evaluate_every=2", *more, rounds=4), scheme)
    with simulated(agreement, [4, 2, 2, 2]) as (simulation, links, _):
        for wanted in expected:
            simulation.play_round()
            found = {request.name for request in links[0].asked}
            assert found == wanted | EVERY_ROUND
            measures = scheme == "asfl" and is_due(simulation.round_index, agreement.config.output.evaluate_every)
            # What an optimiser remembers is for checkpoints, and for rounds in which Theorem 1 is measured.
            assert any(request.memory for request in links[0].requests(msg.Gather)) == measures
            links[0].asked.clear()
        tensors = simulation.tensors()
        assert [request.memory for request in links[0].requests(msg.Gather)] == ([] if measures else [True])
    if scheme == "asfl":
        assert len(tensors["training.clients.parameters"]) == len(links)  # checkpoints hold everybody's client side


def test_who_has_no_block_sends_no_layers() -> None:
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=4), "asfl")
    with simulated(agreement, [4]) as (simulation, links, _):
        simulation.play_round()
        scheduled = np.array([True, False, True, True])
        simulation.trainer.fleet.resplit(2, scheduled)
        assert [link.requests(msg.Shrink)[0].send for link in links] == scheduled.tolist()


@pytest.mark.parametrize("scheme", ["asfl", "sfl", "fedavg"])
def test_no_image_ever_leaves(scheme: str) -> None:
    """Neither its pixels nor what the network gets of them: no row of an image is in any answer."""
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "output.evaluate_every=1", rounds=2), scheme)
    with simulated(agreement, [1]) as (simulation, links, nodes):
        while not simulation.finished:
            simulation.play_round()
        simulation.tensors()
        for link, node in zip(links, nodes, strict=True):
            sent = b"".join(link.sent)
            images, _ = node._batches.batch(0, node.client, 0)
            assert images.numpy().tobytes()[: 4 * 8] not in sent
            for image in [*images.flatten(1).numpy(), *node._data.train_images.reshape(-1, 64)]:
                assert image[16:48].tobytes() not in sent
    if scheme == "fedavg":
        assert not any(b'"activations"' in data[:200] for data in links[0].sent)


def test_who_is_out_counts_like_the_mean_of_the_others() -> None:
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "output.evaluate_every=1", rounds=3), "asfl")
    with local_links(agreement) as links:
        simulation = planned_simulation(agreement, [3], over(links))
        simulation.play_round()
        simulation.trainer.fleet._roster.quarantined[2] = True  # type: ignore[attr-defined]
        simulation.play_round()
        sides = simulation.trainer.state.clients.parameters
        torch.testing.assert_close(sides[2], sides[[0, 1, 3]].mean(0))


# ---------------------------------------------------------------------- what a client hides by itself
def begun(*overrides: str, cut: int = 3) -> ClientNode:
    node = ClientNode(agreement_of(tiny(*overrides), "asfl").welcome(1))
    a, b = node._layout.parameter_edges[cut], node._layout.statistic_edges[cut]
    side = ModelVectors(torch.full((int(a),), 0.01), torch.ones(int(b)))
    assert isinstance(node.handle(msg.Sync(cut, side, round=0)), msg.Where)
    return node


def test_a_client_refuses_a_cut_that_is_too_shallow() -> None:
    node = begun("privacy.min_cut=3")
    refused = node.handle(msg.Forward(Task(0, 1, 2), round=0, after=0))
    assert isinstance(refused, msg.Refusal)
    assert "cut = 2, but privacy.min_cut = 3" in refused.reason
    assert isinstance(node.handle(msg.Forward(Task(0, 1, 3), round=0, after=0)), msg.Activations)


def test_noise_on_a_client_is_drawn_anew_and_losses_stay() -> None:
    noisy = ("privacy.activation_noise=1", "privacy.update_noise=1", "model.norm=none")

    def activations(*overrides: str) -> torch.Tensor:
        answer = begun(*overrides).handle(msg.Forward(Task(0, 1, 3), round=0, after=0))
        assert isinstance(answer, msg.Activations)
        (carry,) = answer.packet.carry
        assert isinstance(carry, torch.Tensor)
        return carry

    assert torch.equal(activations("model.norm=none"), activations("model.norm=none"))
    assert not torch.equal(activations(*noisy), activations(*noisy))
    refused = begun(*noisy).handle(msg.Learn(Task(0, 1, 3), round=0, after=0))
    assert isinstance(refused, msg.Refusal)
    assert "a loss leaves as it is" in refused.reason
