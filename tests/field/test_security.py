"""docs/security.md: its numbers are those of the code, and what leaves a client, and when, is what its table says. And
what crosses is charged, byte by byte, as the table of docs/costs.md says.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meddling import MeddledLink
from small_runs import EVERYBODY_ARRIVES, PATIENT, Planned, agreement_of, local_links, over, planned_simulation, tiny

from asfl.config import load_config
from asfl.config.errors import MOST_LETTERS
from asfl.costs.modelled import ExchangeRules, RoundCost
from asfl.costs.round import Decision, Round
from asfl.costs.world import ModelledAccountant
from asfl.field import measured, messages as msg, stream as server
from asfl.field.client import ClientNode
from asfl.field.fleet import remote_fleet
from asfl.field.measured import MOST_CLIENT_W
from asfl.field.messages import Agreement, Answer, AnyRequest
from asfl.field.outliers import BOUND, FACTOR, MEMORY_ROUNDS
from asfl.field.roster import BAD_ANSWERS
from asfl.field.stream import CHUNK, GREETING_LIMIT
from asfl.field.wire import HEADER_LIMIT, MOST_SECONDS, MOST_SQUARE, MOST_WEIGHT, encode
from asfl.runs import http_server
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
WORDS = {1: "one", 2: "two", 3: "three", 8: "eight", 10: "ten"}


def ten_to(value: float) -> str:
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in f"{value:e}".partition("e+")[2].lstrip("0"))


@pytest.mark.parametrize(
    "sentence",
    [
        f"one call of {http_server.MOST_BYTES >> 10} KiB is answered",
        f"{http_server.PLACES} connections each, for {http_server.WITHIN_S:g} s",
        f"Chunks are {CHUNK >> 20} MiB at most",
        f"Before its first word a client may send {round(GREETING_LIMIT / HEADER_LIMIT)} MiB",
        f"for {WORDS[round(server.READY_WITHIN_S / 60)]} minutes at most",
        f"two streams per client and {WORDS[server._SPARE_STREAMS]} more",
        f"cut to {MOST_LETTERS} letters",
        f"sampled parameters | −{ten_to(MOST_WEIGHT)} … {ten_to(MOST_WEIGHT)} |",
        f"| ‖update‖² | 0 … {ten_to(MOST_SQUARE)} |",
        f"| −{ten_to(MOST_SQUARE)} … {ten_to(MOST_SQUARE)}; variances and weights from 0 on |",
        f"| loss | 0 … {ten_to(MOST_WEIGHT)} |",
        f"| 0 … {ten_to(MOST_SECONDS)} s, and never more than the server waited |",
        f"at most {MOST_CLIENT_W / 1e3:g} kW since it was last read, and {measured._MOST_AT_ONCE_J / 1e3:g} kJ",
        f"of this round and of the {WORDS[MEMORY_ROUNDS]} before",
        f"max(log {BOUND:g}, 5 · 1.4826 · MAD)",
        f"max(log {FACTOR:g}, 5 · 1.4826 · MAD)",
        f"{WORDS[BAD_ANSWERS].capitalize()} rounds in a row",
        f"two connections per client and {server._STRANGERS} more",
        f"after {server._QUIET_MS / 1e3:g} s, a",
        f"{server.RESERVED_FILES} open files are left",
    ],
)
def test_its_numbers_are_those_of_the_code(sentence: str) -> None:
    assert sentence in re.sub(r"\s+", " ", PAGE)


# ---------------------------------------------------------------------- what reaches the server
LEAVES = {
    msg.Activations: "activations at the cut, and labels",
    msg.Side: "the layers above the new cut",
    msg.Projected: "random sums of its parameters",
    msg.Values: "a sample of its parameters",
    msg.ClientState: "the whole client side",
    msg.Update: "‖update‖²",
    msg.Where: "how many images it has",
    msg.Scored: "of those it holds out, how many the model gets right",
    msg.Calibrated: "running statistics",
    msg.Probed: "how long each layer takes",
    msg.Refusal: "why it refuses",
}


def test_every_answer_is_in_the_table() -> None:
    table = PAGE.partition("| reaches the server |")[2].partition("\n\n")[0]
    assert LEAVES.keys() == set(msg.Answer.__subclasses__())
    assert [words for words in (*LEAVES.values(), "its first layers") if words not in table] == []


# ---------------------------------------------------------------------- nothing is executed
def test_no_code_here_could_unpickle_or_run_what_arrives() -> None:
    """Ray does, as the page says."""
    unsafe = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "runpy", "eval", "exec", "compile", "load"}
    for file in (ROOT / "src" / "asfl" / "field").rglob("*.py"):
        if file.name == "ray.py":
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            elif isinstance(node, ast.Call):
                names = {getattr(node.func, "id", "")}
                if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("torch", "np"):
                    names = {node.func.attr}
            assert not names & unsafe, file


def test_robust_rules_and_noise_are_off_unless_wanted() -> None:
    config = load_config("demo").config
    assert (config.robust.average, config.robust.clip, config.privacy.noisy) == ("mean", 0.0, False)


# ---------------------------------------------------------------------- what leaves, and when
EVERY_ROUND = {"forward", "backward"}


class Overheard(MeddledLink):
    """Keeps what was answered, as bytes."""

    def __init__(self, link: object) -> None:
        super().__init__(link)  # type: ignore[arg-type]
        self.sent: list[bytes] = []

    def hears(self, request: AnyRequest, answer: Answer) -> None:
        self.sent.append(encode(answer))


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
        # The printed objective needs ‖w̄‖², and with it all client sides in every round.
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
            # What an optimiser remembers is for checkpoints.
            assert not any(request.memory for request in links[0].requests(msg.Gather))
            links[0].asked.clear()
        tensors = simulation.tensors()
        assert [request.memory for request in links[0].requests(msg.Gather)] == [True]
    if scheme == "asfl":
        assert len(tensors["training.clients.parameters"]) == len(links)  # checkpoints hold all client sides


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


# ---------------------------------------------------------------------- what is charged
ROUNDS = 4
FRAME_BYTES = 1000
"""A message takes at most so much beside its numbers: a header, and gaps to multiples of 64 bytes."""


class Bills(ModelledAccountant):
    """Keeps the bits that rounds are charged for, [up, down] of client 0."""

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: np.ndarray) -> RoundCost:
        cost = super().charge(round_, decision, exchange, arrived)
        down_s = cost.model_down_delay_s + cost.downlink_delay_s
        up_s = cost.uplink_delay_s + cost.model_up_delay_s
        if (cost.resplit_energy_j > 0).any():
            up_s = up_s + cost.resplit_delay_by_client_s
        else:
            down_s = down_s + cost.resplit_delay_by_client_s
        billed.append((float(up_s[0] * cost.uplink_rate_bps[0]), float(down_s[0] * cost.downlink_rate_bps[0])))
        return cost


billed: list[tuple[float, float]] = []


class Counted(MeddledLink):
    """Counts messages, the bytes of their numbers and all their bytes, by direction and kind."""

    def __init__(self, link: object) -> None:
        super().__init__(link)  # type: ignore[arg-type]
        self.sent: list[tuple[str, str, int, int]] = []

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        self.sent.append(("down", request.name, request.payload_bytes, len(encode(request))))
        return super().ask(request, deadline_s)

    def hears(self, request: AnyRequest, answer: Answer) -> None:
        self.sent.append(("up", answer.name, answer.payload_bytes, len(encode(answer))))

    def payload(self) -> dict[str, dict[str, int]]:
        """Bytes of the numbers by direction and kind of message."""
        found: dict[str, dict[str, int]] = {"up": defaultdict(int), "down": defaultdict(int)}
        for way, name, payload, whole in self.sent:
            assert 0 <= whole - payload <= FRAME_BYTES, (way, name)
            found[way][name] += payload
        return found


def simulation_of(scheme: str, planned: Planned, links: Sequence[Counted]) -> Simulation:
    config = tiny(*EVERYBODY_ARRIVES, "output.evaluate_every=4", rounds=ROUNDS)
    simulation = planned_simulation(agreement_of(config, scheme), planned.cuts, over(links))
    simulation.run = replace(simulation.run, scheme=planned, accountant=Bills())
    return simulation


CASES = {
    "asfl": ([2, 4, 4, 3], 32, [False] * 4),
    "asfl:sync=on": ([3, 3, 3, 3], 8, [False, True, True, False]),
    "sfl-best:bits=8": ([3, 3, 2, 3], 8, [False] * 4),
    "sfl": ([3, 3, 2, 3], 32, [False] * 4),
    "fedavg": ([1, 1, 1, 1], 32, [False] * 4),
    "epsl:share=0": ([3, 3, 3, 3], 32, [False] * 4),
}


@pytest.mark.parametrize("scheme", CASES)
def test_every_byte_is_charged_or_in_the_list_of_what_is_not(scheme: str) -> None:
    cuts, bits, syncs = CASES[scheme]
    billed.clear()
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=ROUNDS), scheme)
    planned = Planned(scheme_named(scheme).exchange, cuts, bits, syncs)
    with local_links(agreement) as local:
        links = [Counted(link) for link in local]
        simulation = simulation_of(scheme, planned, links)
        for _ in range(ROUNDS):
            simulation.play_round()
        simulation.run.learner.learning(
            simulation.state
        )  # what the next round asks for is reported by those who learnt in this
        simulation.trainer.fleet.gather()
        payload = links[0].payload()
    up_bits, down_bits = (sum(way) for way in zip(*billed, strict=True))
    up, down = payload["up"], payload["down"]
    learnt = up.pop("update", 0)
    assert learnt == 4 * ROUNDS * (2 if scheme == "fedavg" else 1)  # norms of updates; FedAvg's losses
    reported = up.pop("projected", 0)
    if not planned.exchange.reports:
        reported = learnt = 0  # other schemes' norms, and reports of EPSL, are for the record
    up.pop("clientstate", 0)  # for evaluations
    down.pop("sync", 0)
    if cuts[0] and scheme in ("asfl", "asfl:sync=on", "epsl:share=0"):  # the first model isn't charged: all can draw it
        down["grow"] -= first_layers_bytes(simulation, cuts[0])
    assert 8 * (sum(up.values()) + learnt + reported) == pytest.approx(up_bits, rel=1e-9)
    assert 8 * sum(down.values()) == pytest.approx(down_bits, rel=1e-9)


def first_layers_bytes(simulation: Simulation, cut: int) -> int:
    layout = simulation.trainer.layout
    return 4 * int(layout.parameter_edges[cut] + layout.statistic_edges[cut])
