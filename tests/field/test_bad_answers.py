"""Whatever a client answers, the round goes on, and the record says what happened. Clients are in this process here."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meddling import Absent, Bend, MeddledLink, give_all_the_time, give_up_soon
from small_runs import CLIENTS, EVERYBODY_ARRIVES, PATIENT, agreement_of, local_links, over, planned_simulation, tiny
from waiting import LONG_S

from asfl.config import Deadlines
from asfl.config.errors import AsflError
from asfl.field.client import ClientNode, LocalLink
from asfl.field.links import Link, LinkError
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Agreement, Answer, AnyRequest, ClientState, Codes, Gather, Refusal, Sync, Where
from asfl.field.protocol.wire import pack
from asfl.field.roster import Patience
from asfl.runs.records import RoundRecord
from asfl.runs.simulation import Networks, Simulation
from asfl.train.trainer import RoundPlan, Trained

VICTIM, WHEN = 2, 1
CUTS = [4, 2, 5, 3]


def agreement_for(scheme: str, *overrides: str) -> Agreement:
    """SGD: a client whose side the server knows then comes back as if only its packet had been lost."""
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.05")
    return agreement_of(tiny(*EVERYBODY_ARRIVES, *sgd, *overrides, rounds=4), scheme)


@contextmanager
def meddled(agreement: Agreement) -> Iterator[list[MeddledLink]]:
    with local_links(agreement) as links:
        yield [MeddledLink(link) for link in links]


def play(simulation: Simulation, rounds: int = 4) -> list[RoundRecord]:
    return [simulation.play_round() for _ in range(rounds)]


@contextmanager
def lost_packet(client: int, index: int) -> Iterator[None]:
    """In this round, this client's packet doesn't arrive."""

    train = Networks.train

    def unlucky(networks: Networks, plan: RoundPlan) -> Trained:
        there = np.arange(CLIENTS) != (client if plan.index == index else None)
        trained = train(networks, replace(plan, arrived=plan.arrived & there))
        return replace(trained, lost=~there)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "train", unlucky)
        yield


Change = Callable[[torch.Tensor], torch.Tensor]


def bent(answer: Answer, **changes: object) -> Answer:
    """As it would come over a network, which may refuse it."""
    return decode(encode(replace(answer, **changes)), Answer)  # type: ignore[arg-type]


def with_carry(change: Change) -> Bend:
    return lambda answer: bent(answer, carry=tuple(map(change, answer.carry)))


def with_labels(change: Change) -> Bend:
    return lambda answer: bent(answer, labels=change(answer.labels))


def raises(answer: Answer) -> Answer:
    raise LinkError("the connection broke")


def explodes(answer: Answer) -> Answer:
    raise MemoryError("whatever a transport may raise")


CODES = Codes(torch.ones(1, dtype=torch.uint8), torch.ones(1), torch.ones(1))
NAN = with_carry(lambda tensor: torch.full_like(tensor, torch.nan))
FORWARD: list[tuple[Bend, str]] = [
    (NAN, "carry.0 has numbers that are not finite"),
    (with_carry(lambda tensor: tensor[:-1]), "carry.0 is float32"),
    (with_carry(lambda tensor: tensor.flatten()), "carry.0 is float32"),
    (with_carry(lambda tensor: tensor.double()), "carry.0 is float64"),
    (with_labels(lambda labels: labels + 10), "labels must be 0 … 9"),
    (with_labels(lambda labels: labels - 100), "labels must be 0 … 9"),
    (with_labels(lambda labels: labels.float()), "labels is float32"),
    (lambda answer: bent(answer, labels=None), "labels is missing"),
    (lambda answer: bent(answer, carry=()), "carry: 0 tensors and codes of 0, not 1 and 0 as at 32 bits"),
    (lambda answer: bent(answer, carry=answer.carry * 2), "carry: 2 tensors and codes of 0, not 1 and 0"),
    (lambda answer: bent(answer, codes=(CODES,)), "carry: 1 tensors and codes of 1, not 1 and 0"),
    (lambda answer: bent(answer, error=torch.tensor(0.1)), "error must come with codes, and only with them"),
    (lambda answer: Where(3), "where is no answer to forward"),
    (lambda answer: Refusal("my battery is empty"), "my battery is empty"),
    (lambda answer: Refusal("a\n\x1b[2Jb"), "refused: a??[2Jb"),
    (lambda answer: decode(pack("refusal", {"reason": 3}, {}), Answer), "reason = 3: input should be a valid string"),
    (raises, "the connection broke"),
    (explodes, "MemoryError: whatever"),
]


def with_codes(**change: Change) -> Bend:
    def bend(answer: Any) -> Answer:
        (codes,) = answer.codes
        return bent(answer, codes=(replace(codes, **{key: f(getattr(codes, key)) for key, f in change.items()}),))

    return bend


CODED: list[tuple[Bend, str]] = [
    (with_codes(codes=lambda codes: codes[:-1]), "codes.0.codes is uint8"),
    (with_codes(codes=lambda codes: codes.repeat(2)), "codes.0.codes is uint8"),  # as at 8 bits
    (with_codes(codes=lambda codes: codes.float()), "codes.0.codes is float32"),
    (with_codes(low=lambda low: low[1:]), "codes.0.low is float32"),
    (with_codes(step=lambda step: torch.cat([step, step])), "codes.0.step is float32"),
    (with_codes(low=lambda low: low / 0), "codes.0.low has numbers that are not finite"),
    (with_codes(step=lambda step: -1 - step), "codes.0.step must not be negative"),
    (with_codes(step=lambda step: torch.full_like(step, 1e38)), "codes.0.step has 1e+38"),
    (with_codes(step=lambda step: torch.full_like(step, 1e6)), "nor any number that is meant above 1e+06"),
    (lambda answer: bent(answer, codes=()), "carry: 0 tensors and codes of 0, not 0 and 1 as at 4 bits"),
    (lambda answer: bent(answer, carry=(torch.ones(1),)), "carry: 1 tensors and codes of 1, not 0 and 1"),
    (with_codes(step=lambda step: step * 1e4), "codes.0 is "),  # … times as large as usual
    (with_codes(low=lambda low: low - 1e4), "codes.0 is "),
    (lambda answer: bent(answer, error=answer.error + 1e6), "error is "),
    (lambda answer: bent(answer, error=None), "error must come with codes"),
    (lambda answer: bent(answer, error=-answer.error), "error has -"),
    (lambda answer: bent(answer, error=answer.error / 0), "error has numbers that are not finite"),
]


def test_instead_of_codes() -> None:
    """What a client sends at 4 bits must be what it was asked for. Every second round something else is wrong."""
    agreement = agreement_for("asfl", f"training.rounds={2 * len(CODED) + 1}")
    everybody, bits = np.ones(CLIENTS, dtype=bool), np.full(CLIENTS, 4)
    with meddled(agreement) as links:
        links[VICTIM].bends = {("forward", 2 * i + 1): bend for i, (bend, _) in enumerate(CODED)}
        trainer = planned_simulation(agreement, CUTS, over(links)).trainer
        for index in range(2 * len(CODED) + 1):
            trainer.fleet.begin(index)
            trained = trainer.round(RoundPlan(index, np.full(CLIENTS, 3), everybody, everybody, bits=bits))
            faults = trainer.fleet.take_faults()
            if index % 2 == 0:
                assert not faults
                assert np.isfinite(trained.quantisation_error).all()
                continue
            (fault,), words = faults, CODED[index // 2][1]
            assert (fault.client, fault.stage) == (VICTIM, "forward")
            assert words in fault.reason
            np.testing.assert_array_equal(np.isnan(trained.loss), np.arange(CLIENTS) == VICTIM)
            np.testing.assert_array_equal(np.isnan(trained.quantisation_error), np.arange(CLIENTS) == VICTIM)


def test_instead_of_activations() -> None:
    """Every second round something else is wrong, and in the round after everybody is in again."""
    agreement = agreement_for("asfl", f"training.rounds={2 * len(FORWARD) + 1}")
    with meddled(agreement) as links:
        links[VICTIM].bends = {("forward", 2 * i + 1): bend for i, (bend, _) in enumerate(FORWARD)}
        records = play(planned_simulation(agreement, CUTS, over(links)), 2 * len(FORWARD) + 1)
    for good in records[::2]:
        assert (good.faults, good.arrived_count) == (None, CLIENTS)
    for bad, (_, words) in zip(records[1::2], FORWARD, strict=True):
        assert bad.faults is not None
        (fault,) = bad.faults
        assert (fault["client"], fault["round"], fault["stage"]) == (VICTIM, bad.round, "forward")
        assert words in str(fault["reason"])
        assert bad.arrived == [1, 1, 0, 1]
        assert bad.update_norm2[VICTIM] is None


@pytest.mark.parametrize("scheme", ["asfl", "sfl", "fedavg", "epsl", "asfl:mix=on", "sfl-best:mix=on"])
def test_a_client_lost_before_its_activations_came_is_a_packet_that_was_lost(scheme: str) -> None:
    """The server knows its side from the evaluation, so every bit of the model is as if only its packet had been."""
    agreement = agreement_for(scheme)
    here = planned_simulation(agreement, CUTS)
    with lost_packet(VICTIM, WHEN):
        expected = play(here)
    with meddled(agreement) as links:
        for op in ("forward", "learn"):
            links[VICTIM].bends[op, WHEN] = raises
        there = planned_simulation(agreement, CUTS, over(links))
        found = play(there)
        model = there.average_model()
    for one, other in zip(found, expected, strict=True):
        assert (one.arrived, one.cut, one.train_loss) == (other.arrived, other.cut, other.train_loss)
        assert (one.accuracy, one.test_loss, one.client_accuracy) == (
            other.accuracy,
            other.test_loss,
            other.client_accuracy,
        )
        # Whoever came back has forgotten how often it stepped each layer, so layers are summed up in other groups.
        norms, expected_norms = (np.array(record.update_norm2, dtype=float) for record in (one, other))
        np.testing.assert_allclose(norms, expected_norms, rtol=1e-5)
    for name, tensor in here.average_model().items():
        assert torch.equal(model[name], tensor), name


@pytest.mark.parametrize("knows", [True, False])
def test_who_comes_back_gets_the_current_layers(knows: bool) -> None:
    """Its own side, if the server has it as of the round before; else the mean of the others'."""
    agreement = agreement_for("asfl", "training.optimizer=adam", f"output.evaluate_every={1 if knows else 100}")
    with meddled(agreement) as links:
        simulation = planned_simulation(agreement, [4, 4, 4, 2], over(links))
        links[VICTIM].bends["forward", WHEN] = NAN
        play(simulation, WHEN)
        own = simulation.trainer.state.clients.clone()
        play(simulation, 1)
        others = [
            link.ask(Gather(memory=False, round=WHEN, after=WHEN), 60).result(60)
            for client, link in enumerate(links)
            if client != VICTIM
        ]
        play(simulation, 1)
        first, second = links[VICTIM].requests(Sync)
        after = simulation.trainer.fleet.begin(3)
    assert (first.cut, second.cut) == (0, 4)
    assert (second.memory is not None) == knows  # Theorem 1 was measured in the first round; else it begins anew
    for name in ("parameters", "statistics"):
        mean = torch.stack([getattr(answer.side, name) for answer in others if isinstance(answer, ClientState)]).mean(0)
        sent, kept = getattr(second.side, name), getattr(own, name)[VICTIM]
        expected, other = (kept, mean) if knows else (mean, kept)
        torch.testing.assert_close(sent, expected)
        assert not torch.allclose(sent, other)
    assert after.all()


def test_lost_behind_the_pass_counts_as_arrived() -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        links[VICTIM].bends["backward", WHEN] = lambda answer: bent(answer, norm2=answer.norm2 * torch.nan)
        records = play(planned_simulation(agreement, CUTS, over(links)), 3)
    assert records[WHEN].arrived == [1, 1, 1, 1]
    assert [fault["stage"] for fault in records[WHEN].faults or []] == ["backward"]
    norms = np.array(records[WHEN].update_norm2, dtype=float)
    assert np.argmin(norms) == VICTIM  # only the server's part of it, which is everybody's
    assert records[2].faults is None


@pytest.mark.parametrize(("scheme", "op"), [("sfl", "give"), ("fedavg", "learn"), ("fedavg", "give"), ("sl", "give")])
def test_schemes_that_exchange_models_go_on(scheme: str, op: str) -> None:
    agreement = agreement_for(scheme, "training.optimizer=adam")
    with meddled(agreement) as links:
        links[VICTIM].bends[op, WHEN] = raises
        simulation = planned_simulation(agreement, CUTS, over(links))
        records = play(simulation, 3)
        simulation.tensors()
    assert [fault["stage"] for fault in records[WHEN].faults or []] == [op]
    assert records[WHEN].arrived[VICTIM] == (op != "learn")
    assert records[2].faults is None
    assert records[2].arrived_count == CLIENTS


@pytest.mark.parametrize("steps", ["training.local_steps=2"])
@pytest.mark.parametrize(
    ("scheme", "op"),
    [
        ("asfl", "moved"),
        ("sfl", "moved"),
        ("sfl", "forward"),
        ("epsl", "backward"),
        ("asfl:mix=on", "backward"),
        ("sfl-best:mix=on", "forward"),
        ("sfl-best:mix=on", "give"),
    ],
)
def test_several_local_steps_go_on(scheme: str, op: str, steps: str) -> None:
    agreement = agreement_for(scheme, steps)
    with meddled(agreement) as links:
        links[VICTIM].bends[op, WHEN] = raises
        records = play(planned_simulation(agreement, CUTS, over(links)), 3)
    assert len(records[WHEN].faults or []) == 1
    assert records[2].faults is None
    assert records[2].arrived_count == CLIENTS


# ---------------------------------------------------------------------- stage 1
@pytest.mark.parametrize(("op", "when"), [("grow", 0), ("shrink", 1)])
def test_lost_while_layers_move(op: str, when: int) -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        links[VICTIM].bends[op, when] = raises
        simulation = planned_simulation(agreement, CUTS, over(links))
        records = play(simulation, 3)
        cut = simulation.trainer.state.cut
    assert [fault["stage"] for fault in records[when].faults or []] == ["resplit"]
    assert records[when].arrived == [1, 1, 0, 1]
    assert records[when + 1].arrived_count == CLIENTS
    assert cut == CUTS[2]


def test_layers_are_averaged_over_those_who_sent_them() -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        simulation = planned_simulation(agreement, CUTS, over(links))
        play(simulation, 1)
        sides = simulation.trainer.state.clients.clone()
        links[VICTIM].bends["shrink", 1] = raises
        trainer = simulation.trainer
        trainer.fleet.begin(1)
        assert trainer.fleet.resplit(CUTS[1], np.ones(CLIENTS, dtype=bool)) == 0
        edges = trainer.layout.parameter_edges[[CUTS[1], CUTS[0]]]
        server = trainer.state.server.parameters[edges[0] : edges[1]]
    others = [client for client in range(CLIENTS) if client != VICTIM]
    torch.testing.assert_close(server, sides.parameters[others, edges[0] :].mean(0))


def test_if_nobody_sends_layers_the_cut_stays_and_the_next_round_goes_on() -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        for link in links:
            link.bends["shrink", WHEN] = raises
        simulation = planned_simulation(agreement, CUTS, over(links))
        records = play(simulation, 2)
        assert simulation.trainer.state.cut == CUTS[0]
        assert simulation.state.previous_cut == CUTS[0]
        records += play(simulation, 2)
    assert [record.arrived_count for record in records] == [4, 0, 4, 4]
    assert len(records[WHEN].faults or []) == CLIENTS
    assert records[WHEN].train_loss is None


# ---------------------------------------------------------------------- around the round
def test_who_is_not_there_is_left_out() -> None:
    agreement = agreement_for("asfl")
    with local_links(agreement) as links:
        mixed: list[Link] = [*links[:VICTIM], Absent(), *links[VICTIM + 1 :]]
        records = play(planned_simulation(agreement, CUTS, over(mixed)), 4)
    for record in records:
        assert record.arrived == [1, 1, 0, 1]
        assert record.faults == [{"client": VICTIM, "round": record.round, "stage": "begin", "reason": "not connected"}]
        assert record.accuracy is not None


def test_who_was_started_anew_without_anybody_noticing_loses_no_round() -> None:
    agreement = agreement_for("asfl")
    with local_links(agreement) as links:
        simulation = planned_simulation(agreement, CUTS, over(links))
        play(simulation, 2)
        links[VICTIM]._node = ClientNode(agreement.welcome(VICTIM))
        links[VICTIM].generation += 1
        records = play(simulation, 2)
    assert [record.arrived_count for record in records] == [CLIENTS, CLIENTS]
    assert not any(record.faults for record in records)


def test_nobody_at_all_stops_the_run() -> None:
    agreement = agreement_for("asfl")
    patience = Patience(PATIENT.deadlines, nobody_s=0.1)
    simulation = planned_simulation(agreement, CUTS, over([Absent() for _ in range(CLIENTS)], patience))
    with pytest.raises(AsflError, match=r"round 1: none of 4 clients could be reached for 0\.1 s .*not connected"):
        simulation.play_round()


def test_losing_everybody_again_and_again_stops_the_run() -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        for link in links:
            link.bends = {("forward", index): NAN for index in range(1, 4)}
        simulation = planned_simulation(agreement, [3], over(links))
        records = play(simulation, 4)
        with pytest.raises(AsflError, match=r"lost in each of the last 3 rounds up to round 4 .*carry.0 has numbers"):
            simulation.play_round()
    assert [record.arrived_count for record in records] == [4, 0, 0, 0]


class Slow:
    """Its answer to the forward pass of one round comes when it is let go."""

    generation = 0

    def __init__(self, link: LocalLink) -> None:
        self._link = link
        self._kept: tuple[Future[Answer], Future[Answer]] | None = None

    @property
    def trouble(self) -> str | None:
        return "still busy" if self._kept is not None else self._link.trouble

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        answered = self._link.ask(request, deadline_s)
        if (request.name, request.round) != ("forward", WHEN):
            return answered
        late: Future[Answer] = Future()
        self._kept = late, answered
        return late

    def let_go(self) -> None:
        assert self._kept is not None
        late, answered = self._kept
        late.set_result(answered.result(LONG_S))
        self._kept = None


def test_a_late_answer_is_not_used_and_its_client_rejoins() -> None:
    agreement = agreement_for("asfl")
    with local_links(agreement) as links:
        slow = Slow(links[VICTIM])
        everybody: list[Link] = [slow if client == VICTIM else link for client, link in enumerate(links)]
        simulation = planned_simulation(agreement, CUTS, over(everybody, PATIENT))
        play(simulation, WHEN)
        give_up_soon(simulation, VICTIM, "forward", 0.1)
        records = play(simulation, 2)
        slow.let_go()
        give_all_the_time(simulation)
        records += play(simulation, 1)
    assert [record.arrived[VICTIM] for record in records] == [0, 0, 1]
    reasons = [[fault["reason"] for fault in record.faults or []] for record in records]
    assert reasons == [["no answer within 0.1 s"], ["still busy"], []]


def test_deadlines_are_by_stage() -> None:
    asked: dict[str, float] = {}

    class Watched(MeddledLink):
        def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
            asked[request.name] = deadline_s
            return super().ask(request, deadline_s)

    agreement = agreement_for("asfl")
    deadlines = Deadlines(sync_s=101, resplit_s=102, forward_s=103, backward_s=104, report_s=105, gather_s=106)
    with local_links(agreement) as links:
        simulation = planned_simulation(agreement, CUTS, over([Watched(link) for link in links], Patience(deadlines)))
        play(simulation, 2)
    expected = {"sync": 101, "grow": 102, "shrink": 102, "forward": 103, "backward": 104, "project": 105, "gather": 106}
    assert asked == expected


def test_faults_are_in_the_record_and_only_then() -> None:
    agreement = agreement_for("asfl")
    with meddled(agreement) as links:
        links[VICTIM].bends["forward", WHEN] = raises
        records = play(planned_simulation(agreement, CUTS, over(links)), 2)
    lines = [record.to_line() for record in records]
    assert "faults" not in lines[0]
    assert [RoundRecord.from_line(line) for line in lines] == records


def test_a_fault_while_the_state_is_saved_is_in_the_next_record() -> None:
    agreement = agreement_for("asfl", "training.optimizer=adam")
    with meddled(agreement) as links:
        simulation = planned_simulation(agreement, CUTS, over(links))
        play(simulation, 2)
        links[VICTIM].bends["gather", 1] = raises
        assert all(
            torch.isfinite(tensor.double()).all() for name, tensor in simulation.tensors().items() if "training" in name
        )
        (record,) = play(simulation, 1)
    assert [(fault["round"], fault["stage"]) for fault in record.faults or []] == [(2, "gather")]
    assert record.arrived_count == CLIENTS
