"""Whatever a client answers, the round goes on, and the record says what happened. Clients are in this process here.

A client that is lost costs the others nothing; one whose answers are well-formed and wrong loses the round, then its
place. (Clients in processes that die or hang: `test_faults`. Averages of client sides: `test_averages`.)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from meddling import (
    Absent,
    Bend,
    MeddledLink,
    breaks,
    sends_nan,
    sends_the_wrong_shape,
)
from small_runs import CLIENTS, EVERYBODY_ARRIVES, PATIENT, agreement_of, local_links, over, planned_simulation, tiny
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.fleet import RemoteFleet, train
from asfl.field.messages import Agreement, Answer, AnyRequest, Link, LinkError, OpenRequest, failed
from asfl.field.outliers import BOUND, FACTOR, Kind, OutlierError, OutlierFilter, Place, bounded
from asfl.field.roster import LEAST_S, MOST_S, MeasuredDeadlines, Patience, Roster
from asfl.field.wire import WireError, decode, encode, pack
from asfl.runs.folder import check_finite, checkpoint_files
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import run
from asfl.runs.simulation import Networks, Simulation
from asfl.runs.state import flatten
from asfl.train.fleet import Packet
from asfl.train.signals import RoundPlan, Task, Trained
from studies.torture import lies, messages

VICTIM, WHEN = 2, 1
OTHERS = [client for client in range(CLIENTS) if client != VICTIM]
CUTS = [4, 2, 5, 3]
ADAM = ("training.optimizer=adam", "training.learning_rate=2e-3")


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


def faults_of(record: RoundRecord) -> list[tuple[Any, Any]]:
    return [(fault["client"], fault["stage"]) for fault in record.faults or []]


@contextmanager
def lost_packet() -> Iterator[None]:
    """In one round, the victim's packet doesn't arrive."""

    train = Networks.train

    def unlucky(networks: Networks, plan: RoundPlan) -> Trained:
        there = np.arange(CLIENTS) != (VICTIM if plan.index == WHEN else None)
        trained = train(networks, replace(plan, arrived=plan.arrived & there))
        return replace(trained, lost=~there)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "train", unlucky)
        yield


# ---------------------------------------------------------------------- instead of activations
def sent(answer: Answer) -> Answer:
    """As it would come over a network, which may refuse it."""
    return decode(encode(answer), Answer)


def few_labels(answer: Any) -> Answer:
    return sent(replace(answer, packet=replace(answer.packet, labels=answer.packet.labels[:1])))


def codes(**changes: Callable[[Tensor], Tensor]) -> Bend:
    def bend(answer: Any) -> Answer:
        new = [replace(q, **{name: f(getattr(q, name)) for name, f in changes.items()}) for q in answer.packet.carry]
        return sent(replace(answer, packet=replace(answer.packet, carry=tuple(new))))

    return bend


def explodes(answer: Answer) -> Answer:
    raise MemoryError("whatever a transport may raise")


PLAIN: list[tuple[Bend, str]] = [
    (sends_nan, "carry.0 has numbers that are not finite"),
    (few_labels, "labels is uint8"),
    (lambda answer: msg.Where(3), "where is no answer to forward"),
    (lambda answer: msg.Refusal("my battery is empty"), "my battery is empty"),
    (lambda answer: msg.Refusal("a\n\x1b[2Jb"), "refused: a??[2Jb"),
    (lambda answer: decode(pack("refusal", {"reason": 3}, []), Answer), "reason = 3 must be of type str"),
    (breaks, "the connection broke"),
    (explodes, "MemoryError: whatever"),
]
"""What doesn't fit the network: `test_wire`."""
CODES: list[tuple[Bend, str]] = [
    (codes(codes=lambda codes: codes[:-1]), "carry.0.codes is uint8"),
    (codes(step=lambda step: step * 1e4), "codes.0 is "),  # … times as large as usual
    (codes(low=lambda low: low - 1e4), "codes.0 is "),
    (lambda answer: replace(answer, packet=replace(answer.packet, error=torch.tensor(1e6))), "error is "),
]


@pytest.mark.parametrize(("bits", "table"), [(32, PLAIN), (4, CODES)], ids=["as they are", "with 4 bits"])
def test_instead_of_activations(bits: int, table: list[tuple[Bend, str]]) -> None:
    """Every second round something else is wrong, and in the round after all clients are in again."""
    rounds = 2 * len(table) + 1
    all_clients, victim = np.ones(CLIENTS, dtype=bool), np.arange(CLIENTS) == VICTIM
    with meddled(agreement_for("asfl", f"training.rounds={rounds}")) as links:
        links[VICTIM].bends = {("forward", 2 * i + 1): bend for i, (bend, _) in enumerate(table)}
        trainer = planned_simulation(agreement_for("asfl"), CUTS, over(links)).trainer
        for index in range(rounds):
            trainer.fleet.begin(index)
            plan = RoundPlan(index, np.full(CLIENTS, 3), all_clients, all_clients, bits=np.full(CLIENTS, bits))
            trained = trainer.round(plan)
            faults = trainer.fleet.take_faults()
            lost = victim if index % 2 else ~all_clients
            assert [(fault.client, fault.stage) for fault in faults] == [(VICTIM, "forward")] * (index % 2)
            assert all(table[index // 2][1] in fault.reason for fault in faults), faults
            np.testing.assert_array_equal(np.isnan(trained.loss), lost)
            np.testing.assert_array_equal(np.isnan(trained.quantisation_error), lost | (bits == 32))


# ---------------------------------------------------------------------- lost in a round
@pytest.mark.parametrize("scheme", ["asfl", "sfl", "fedavg", "epsl", "asfl:mix=on", "sfl-best:mix=on"])
def test_a_client_lost_before_its_activations_came_is_a_packet_that_was_lost(scheme: str) -> None:
    """The server knows its side from the evaluation, so every bit of the model is as if only its packet had been."""
    agreement = agreement_for(scheme)
    here = planned_simulation(agreement, CUTS)
    with lost_packet():
        expected = play(here)
    with meddled(agreement) as links:
        links[VICTIM].bends = {("forward", WHEN): breaks, ("learn", WHEN): breaks}
        there = planned_simulation(agreement, CUTS, over(links))
        found, model = play(there), there.average_model()
    for one, other in zip(found, expected, strict=True):
        for name in ("arrived", "cut", "train_loss", "accuracy", "test_loss", "client_accuracy"):
            assert getattr(one, name) == getattr(other, name), name
        # A client that comes back has forgotten how often it stepped each layer, so layers are summed in other groups.
        norms, expected_norms = (np.array(record.update_norm2, dtype=float) for record in (one, other))
        np.testing.assert_allclose(norms, expected_norms, rtol=1e-5)
    for name, tensor in here.average_model().items():
        assert torch.equal(model[name], tensor), name
    lines = [record.to_line() for record in found]
    assert ["faults" in line for line in lines] == [False, True, False, False]
    assert [RoundRecord.from_line(line) for line in lines] == found


@pytest.mark.parametrize(
    ("scheme", "op", "steps", "bend"),
    [
        ("fedavg", "learn", 1, breaks), ("fedavg", "give", 1, breaks), ("sl", "give", 1, breaks),
        ("asfl", "moved", 2, breaks), ("sfl", "moved", 2, breaks), ("epsl", "backward", 2, breaks),
        ("asfl:mix=on", "backward", 2, breaks), ("sfl-best:mix=on", "forward", 2, breaks),
        ("sfl-best:mix=on", "give", 2, breaks), ("asfl", "grow", 1, breaks), ("asfl", "shrink", 1, breaks),
        ("asfl", "shrink", 1, sends_nan), ("asfl", "project", 1, sends_the_wrong_shape), ("sfl", "give", 1, sends_nan),
        ("asfl", "backward", 1, sends_nan), ("asfl", "gather", 1, sends_the_wrong_shape),
    ],
)  # fmt: skip
def test_the_round_goes_on_wherever_it_is_lost(scheme: str, op: str, steps: int, bend: Bend) -> None:
    agreement = agreement_for(scheme, *ADAM, f"training.local_steps={steps}")
    when = 2 if op == "grow" else WHEN
    with meddled(agreement) as links:
        links[VICTIM].bends[op, when] = bend
        simulation = planned_simulation(agreement, CUTS, over(links))
        records = play(simulation, when + 2)
        simulation.tensors()
        assert simulation.trainer.state.cut in (0, CUTS[when + 1])
    stage = {"moved": "give", "grow": "resplit", "shrink": "resplit", "project": "report"}.get(op, op)
    assert [faults_of(record) for record in records] == [[(VICTIM, stage)] * (n == when) for n in range(when + 2)]
    if op != "moved":
        assert records[when].arrived[VICTIM] == (op in ("give", "backward", "gather"))
    assert records[-1].arrived_count == CLIENTS


@pytest.mark.parametrize("stage", ["backward", "give"])
def test_sides_are_averaged_over_those_who_gave_theirs(stage: str) -> None:
    """SFL: layers of the clients over three, layers of the server over four, as it has learnt from all."""
    agreement, given_ = agreement_for("sfl"), dict[int, Any]()
    here = planned_simulation(agreement, [3])
    here.play_round()
    with meddled(agreement) as links:
        for client in OTHERS:
            links[client].bends["give", 0] = cast(Bend, partial(given_.setdefault, client))
        links[VICTIM].bends[stage, 0] = breaks
        there = planned_simulation(agreement, [3], over(links))
        there.play_round()
    layout, found, whole = here.trainer.layout, there.trainer.state.server, here.trainer.state.server
    for name in ("parameters", "statistics"):
        mean = torch.stack([getattr(given_[client].layers, name) for client in OTHERS]).mean(0)
        torch.testing.assert_close(getattr(layout.front(found, 3), name), mean)
    assert torch.equal(layout.behind(found, 3).parameters, layout.behind(whole, 3).parameters)


@pytest.mark.parametrize("scheme", ["sfl", "fedavg", "sl"])
@pytest.mark.parametrize("op", ["forward", "backward", "give"])
def test_if_all_are_lost_their_layers_stay_and_in_sequence_the_server_steps_for_each(scheme: str, op: str) -> None:
    with meddled(agreement_for(scheme)) as links:
        for link in links:
            link.bends = {(one, 0): breaks for one in (op, "learn" if op == "forward" else op)}
        simulation = planned_simulation(agreement_for(scheme), [3], over(links))
        state = simulation.trainer.state
        before = state.server.clone()
        simulation.play_round()
    cut = simulation.trainer.layout.num_units if scheme == "fedavg" else 3
    front = simulation.trainer.layout.front
    lost = op != "backward" or scheme != "fedavg"  # which has no backward pass
    assert torch.equal(front(state.server, cut).parameters, front(before, cut).parameters) == lost
    assert torch.isfinite(state.server.parameters).all()
    if scheme == "sl":
        assert state.server_optimizer.steps[3:].tolist() == [CLIENTS * (op != "forward")] * (
            simulation.trainer.layout.num_units - 3
        )


@pytest.mark.parametrize("knows", [True, False])
def test_a_client_that_comes_back_gets_the_current_layers(knows: bool) -> None:
    """Its own side, if the server has it as of the round before; else the mean of the others'."""
    agreement = agreement_for("asfl", "training.optimizer=adam", f"output.evaluate_every={1 if knows else 100}")
    with meddled(agreement) as links:
        simulation = planned_simulation(agreement, [4, 4, 4, 2], over(links))
        links[VICTIM].bends["forward", WHEN] = sends_nan
        play(simulation, WHEN)
        own = simulation.trainer.state.clients.clone()
        play(simulation, 1)
        gather = msg.Gather(memory=False, round=WHEN, after=WHEN)
        others: list[Any] = [links[client].ask(gather, 60).result(60) for client in OTHERS]
        play(simulation, 1)
        first, second = links[VICTIM].requests(msg.Sync)
        after = simulation.trainer.fleet.begin(3)
    assert (first.cut, second.cut) == (0, 4)
    assert second.memory is None  # its optimiser begins anew
    for name in ("parameters", "statistics"):
        mean = torch.stack([getattr(answer.side, name) for answer in others]).mean(0)
        given_, kept = getattr(second.side, name), getattr(own, name)[VICTIM]
        expected, other = (kept, mean) if knows else (mean, kept)
        torch.testing.assert_close(given_, expected)
        assert not torch.allclose(given_, other)
    assert after.all()


def test_layers_are_averaged_over_those_who_sent_them() -> None:
    with meddled(agreement_for("asfl")) as links:
        simulation = planned_simulation(agreement_for("asfl"), CUTS, over(links))
        play(simulation, 1)
        sides, trainer = simulation.trainer.state.clients.clone(), simulation.trainer
        links[VICTIM].bends["shrink", 1] = breaks
        trainer.fleet.begin(1)
        assert trainer.fleet.resplit(CUTS[1], np.ones(CLIENTS, dtype=bool)) == 0
        edges = trainer.layout.parameter_edges[[CUTS[1], CUTS[0]]]
        server = trainer.state.server.parameters[edges[0] : edges[1]]
    torch.testing.assert_close(server, sides.parameters[OTHERS, edges[0] :].mean(0))


def test_if_no_client_sends_layers_the_cut_stays_and_the_next_round_goes_on() -> None:
    with meddled(agreement_for("asfl")) as links:
        for link in links:
            link.bends["shrink", WHEN] = breaks
        simulation = planned_simulation(agreement_for("asfl"), CUTS, over(links))
        records = play(simulation, 2)
        assert simulation.trainer.state.cut == simulation.state.previous_cut == CUTS[0]
        records += play(simulation, 2)
    assert [record.arrived_count for record in records] == [4, 0, 4, 4]
    assert len(records[WHEN].faults or []) == CLIENTS
    assert records[WHEN].train_loss is None


def test_a_fault_while_the_state_is_saved_is_in_the_next_record() -> None:
    with meddled(agreement_for("asfl", *ADAM)) as links:
        simulation = planned_simulation(agreement_for("asfl", *ADAM), CUTS, over(links))
        play(simulation, 2)
        links[VICTIM].bends["gather", 1] = breaks
        tensors = simulation.tensors()
        assert all(torch.isfinite(tensor.double()).all() for name, tensor in tensors.items() if "training" in name)
        (record,) = play(simulation, 1)
    assert [(fault["round"], fault["stage"]) for fault in record.faults or []] == [(2, "gather")]
    assert record.arrived_count == CLIENTS


# ---------------------------------------------------------------------- around the round
def test_a_client_that_is_not_there_is_left_out_and_a_new_process_loses_no_round() -> None:
    agreement = agreement_for("asfl")
    with local_links(agreement) as links:
        mixed: list[Link] = [*links[:VICTIM], Absent(), *links[VICTIM + 1 :]]
        for record in play(planned_simulation(agreement, CUTS, over(mixed)), 4):
            assert record.arrived == [1, 1, 0, 1]
            fault = {"client": VICTIM, "round": record.round, "stage": "begin", "reason": "not connected"}
            assert record.faults == [fault]
            assert record.accuracy is not None
    with local_links(agreement) as links:
        simulation = planned_simulation(agreement, CUTS, over(links))
        play(simulation, 2)
        links[VICTIM]._node = ClientNode(agreement.welcome(VICTIM))  # unnoticed
        links[VICTIM].generation += 1
        records = play(simulation, 2)
    assert [(record.arrived_count, record.faults) for record in records] == [(CLIENTS, None)] * 2


def test_no_client_at_all_or_losing_all_again_and_again_stops_the_run() -> None:
    agreement = agreement_for("asfl")
    patience = Patience(PATIENT.deadline_s, nobody_s=0.1)
    simulation = planned_simulation(agreement, CUTS, over([Absent() for _ in range(CLIENTS)], patience))
    with pytest.raises(AsflError, match=r"round 1: none of 4 clients could be reached for 0\.1 s .*not connected"):
        simulation.play_round()
    with meddled(agreement) as links:
        for link in links:
            link.bends = {("forward", index): sends_nan for index in range(1, 4)}
        simulation = planned_simulation(agreement, [3], over(links))
        assert [record.arrived_count for record in play(simulation, 4)] == [4, 0, 0, 0]
        with pytest.raises(AsflError, match=r"lost in each of the last 3 rounds up to round 4 .*carry.0 has numbers"):
            simulation.play_round()


# ---------------------------------------------------------------------- deadlines
def test_what_is_configured_is_every_deadline() -> None:
    assert [Patience(deadline).most_s("learn") for deadline in (7.0, "auto")] == [7.0, 600.0]
    link = Named("", refuses)
    roster = Roster([link], Patience(101.0))
    roster.begin(0)
    roster.present[:] = True
    asked = roster.ask(0, msg.Ping())
    assert asked is not None
    assert asked.deadline_s == 101.0


def test_deadlines_follow_what_a_stage_took() -> None:
    measured = MeasuredDeadlines()
    measured.begin()
    assert measured.deadline_s("forward", 0, MOST_S) == MOST_S
    for _ in range(20):
        measured.answered("forward", 0, 0.06)
    measured.begin()
    assert measured.deadline_s("forward", 1, MOST_S) == LEAST_S
    assert measured.deadline_s("backward", 1, MOST_S) == MOST_S  # of which nothing is known
    for seconds in (30.0, 60.0, MOST_S, MOST_S):  # too late: twice as long the next time
        measured.too_late("forward", 1)
        assert measured.deadline_s("forward", 1, MOST_S) == seconds
    measured.answered("forward", 1, 20.0)
    assert measured.deadline_s("forward", 1, MOST_S) == 60.0  # it is slow, and keeps its place
    assert measured.deadline_s("forward", 0, MOST_S) == LEAST_S


# ---------------------------------------------------------------------- lies: the campaigns, a slice of each
@pytest.mark.parametrize("name", ["activations × 1,000", "parameters = 3e38", "negative variances"])
def test_a_liar_costs_the_others_nothing(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in lies.LIES if case.name == name]
    assert list(lies.told(case, VICTIM, tmp_path / "run")) == []
    assert len({case.name for case in lies.LIES}) == 16


def test_damaged_messages(tmp_path: Path) -> None:
    counts = messages.campaign(0.005, tmp_path, np.random.default_rng(7))
    assert (counts.tried, counts.examples) == (500, [])


# ---------------------------------------------------------------------- outliers
def noted(sizes: Sequence[float]) -> tuple[OutlierFilter, Kind]:
    outliers, kind = OutlierFilter(), Kind("sample", 3)
    for client, size in enumerate(sizes):
        outliers.note(kind, Place(0, client, 0), msg.Values(torch.tensor([size])))
    return outliers, kind


@given(st.lists(st.floats(1.0, 25.0), min_size=2, max_size=20), st.floats(1e-6, 1e3), st.integers(2, 9))
def test_near_the_others_is_usual_and_far_above_is_not(honest: list[float], unit: float, decades: int) -> None:
    """Whatever the unit, and also if the far one is small: that does no harm."""
    outliers, kind = noted([unit * size for size in honest])
    for client in range(len(honest)):
        outliers.check(kind, Place(0, client, 0))
    logs = np.sort(np.log(honest))
    mad = float(np.median(np.abs(logs - logs[len(logs) // 2])))
    far, near = Place(0, 90, 0), Place(0, 91, 0)
    outliers.note(kind, near, msg.Values(torch.tensor([unit * 10.0**-decades])))
    outliers.check(kind, near)
    much = 1e4 * max(honest) * FACTOR * math.exp(12 * mad)
    outliers.note(kind, far, msg.Values(torch.tensor([unit * much], dtype=torch.float64).float()))
    if len(honest) > 3 and unit * much < 1e30:
        with pytest.raises(OutlierError, match="times as large as usual"):
            outliers.check(kind, far)
        outliers.check(kind, far)  # it isn't compared with any more


def test_two_cannot_accuse_each_other_and_old_sizes_are_forgotten() -> None:
    outliers, kind = noted([1.0, 1e9])
    for client in (0, 1):
        outliers.check(kind, Place(0, client, 0))
    outliers, kind = noted([1.0, 1.0, 1.0])
    for index in (10, 11):  # alone in its round
        outliers.begin(index)
        outliers.note(kind, Place(index, 7, 0), msg.Values(torch.tensor([1e9])))
        with pytest.raises(OutlierError) if index == 10 else nullcontext():
            outliers.check(kind, Place(index, 7, 0))


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12), st.floats(1e-3, 1e6))
def test_no_answer_weighs_more_than_the_bound_whatever_it_says(honest: list[float], lie: float) -> None:
    """The limit is found again from the others' sizes; what is within it keeps its bits."""
    outliers, kind = noted([*honest, lie])
    base, said = torch.tensor([3.0]), torch.tensor([3.0 + lie])
    outliers.note(kind, Place(0, len(honest), 0), msg.Values(said), base=base)
    logs = sorted(math.log(float(torch.tensor(size))) for size in honest)
    middle = logs[len(logs) // 2]
    apart = 5 * 1.4826 * float(np.median([abs(log - middle) for log in logs]))
    limit, most = (math.exp(middle + max(math.log(times), apart)) for times in (BOUND, FACTOR))
    size = float(said - base)
    try:
        factors = outliers.check(kind, Place(0, len(honest), 0))
    except OutlierError:
        assert size > most * 0.99
        return
    assert size < most * 1.01
    counted = bounded(msg.Values(said), factors, base)
    assert isinstance(counted, msg.Values)
    assert abs(float(counted.values - base)) <= max(limit * 1.01, 1e-6)
    if size < limit * 0.99:
        assert torch.equal(counted.values, said)


# ---------------------------------------------------------------------- losing one's place
class Named:
    """A link to a device that is there, and answers whatever it is asked."""

    trouble, generation = None, 0

    def __init__(self, key: str = "", answer: "Callable[[], Future[Answer]]" = Future) -> None:
        self.key, self._answer = key, answer

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        return self._answer()


def refuses() -> "Future[Answer]":
    future: Future[Answer] = Future()
    future.set_result(msg.Refusal("no"))
    return future


def lie_in(roster: Roster, rounds: Sequence[int], *, lied: bool = True, honest: Sequence[int] = ()) -> None:
    """Client 0 lies in these rounds, and is right in others; another client is there all the time."""
    for index in range(max(rounds) + 1):
        roster.begin(index)
        roster._came = True
        if index in rounds:
            roster.lose(0, "forward", "a lie", lied=lied)
            roster.lose(0, "forward", "another in the same round", lied=lied)
        elif index in honest:
            roster._good.add((0, "forward"))


def test_three_rounds_in_a_row_cost_the_place_and_right_answers_or_absence_do_not() -> None:
    roster = Roster([Named(), Named()], Patience())
    lie_in(roster, range(2))
    assert not roster.quarantined.any()
    roster = Roster([Named(), Named()], Patience())
    lie_in(roster, range(3))
    assert roster.quarantined.tolist() == [True, False]
    assert [fault.round for fault in roster.take_faults() if fault.stage == "quarantine"] == [2]
    roster.begin(3)
    assert [(fault.client, fault.reason) for fault in roster.take_faults()] == [(0, "in quarantine")]
    for rounds, lied, honest in ((range(0, 6, 2), True, range(1, 6, 2)), (range(9), False, ())):
        roster = Roster([Named()], Patience())
        lie_in(roster, rounds, lied=lied, honest=honest)
        assert not roster.quarantined.any()
    roster.quarantined[:] = True
    with pytest.raises(AsflError, match="all 1 clients lost their places"):
        roster.begin(9)


@pytest.mark.parametrize(
    ("answer", "lied"),
    [
        (Future, False),
        (refuses, False),
        (lambda: failed(LinkError("it broke")), False),
        (lambda: failed(WireError("nonsense")), True),
    ],
)
def test_only_nonsense_is_a_lie(answer: "Callable[[], Future[Answer]]", lied: bool) -> None:
    """A refusal, a broken connection and a missed deadline are none."""
    link = Named("", answer)
    roster = Roster([link], Patience())
    for index in range(3):
        roster.begin(index)
        roster.present[:] = roster._came = True
        roster.answer(OpenRequest(link, 0, msg.Ping(), 0.0), lambda answer: answer)
    assert roster.quarantined.tolist() == [lied]


def test_words_of_a_client_are_cut_and_move_no_cursor() -> None:
    roster = Roster([Named()], Patience())
    for index in range(3):
        roster.begin(index)
        roster.lose(0, "forward", "\x1b[1A\r\u202e" + "x" * 100_000, lied=False)
    faults = roster.take_faults()
    assert [len(fault.reason) for fault in faults] == [500] * 3
    with pytest.raises(AsflError, match="all clients that were asked were lost") as stopped:
        roster.begin(3)
    for text in (faults[0].reason, str(stopped.value)):
        assert text.isprintable()
        assert len(text) < 700


def test_quarantine_is_of_a_key_not_of_a_number() -> None:
    links = [Named("bb"), Named("aa"), Named("cc")]
    roster = Roster(links, Patience())
    lie_in(roster, range(3))
    restarted = Roster(links, Patience())
    restarted.restore(roster.knowledge())
    for again in (roster, restarted):
        again.begin(3)
        assert again.quarantined.tolist() == [True, False, False]
        links[0].key, links[2].key = "dd", "bb"  # it was revoked, another device has its number, and it has another's
        again.begin(4)
        assert again.quarantined.tolist() == [False, False, True]
        assert not again._bad_rounds
        links[0].key, links[2].key = "bb", "cc"


def test_a_liar_does_not_come_back_when_the_server_is_killed(tmp_path: Path) -> None:
    """Though no checkpoint was due."""
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "output.checkpoint_every=100", rounds=6), "fedavg")

    def far_away(answer: Any) -> Answer:
        return msg.Side(replace(answer.layers, parameters=answer.layers.parameters * -25))

    def kill(record: RoundRecord) -> None:
        if record.round == 4:
            raise KeyboardInterrupt

    for watching in ({"on_round": kill}, {}):
        with meddled(agreement) as links, pytest.raises(KeyboardInterrupt) if watching else nullcontext():
            links[VICTIM].bends = {("give", index): far_away for index in range(6)}
            train(agreement, tmp_path / "run", links, **watching)  # type: ignore[arg-type]
    faults = [fault for record in read_records(tmp_path / "run") for fault in record.faults or ()]
    found = [(fault["round"], fault["stage"]) for fault in faults]
    assert found == [(1, "give"), (2, "give"), (3, "give"), (3, "quarantine"), *[(n, "begin") for n in (4, 5, 6)]]


def test_an_average_that_most_have_wrong_answers_to_is_undone_and_its_outlier_is_out() -> None:
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=6), "sfl")
    with meddled(agreement) as links:
        simulation = planned_simulation(agreement, [3], over(links))
        fleet: Any = simulation.trainer.fleet
        simulation.play_round()
        good = simulation.trainer.state.server.clone()

        def farther(answer: Any) -> Answer:
            own = answer.layers.parameters
            base = good.parameters[: len(own)]
            return msg.Side(replace(answer.layers, parameters=base + 20 * (own - base)))

        links[VICTIM].bends["give", 1] = farther
        record = simulation.play_round()
        assert faults_of(record) == [(VICTIM, "bounded")]
        assert record.arrived == [1] * CLIENTS
        for client in OTHERS:
            links[client].bends["forward", 2] = few_labels
        simulation.play_round()
        fleet.begin(3)
        assert torch.equal(fleet.state.server.parameters, good.parameters)
        assert torch.equal(fleet.state.server.statistics, good.statistics)
        assert not fleet.state.server_optimizer.moments.any()
        assert fleet._roster.quarantined.tolist() == [client == VICTIM for client in range(CLIENTS)]
        assert not any(fleet._roster._bad_rounds.values())
        assert fleet._roster.present.tolist() == [client != VICTIM for client in range(CLIENTS)]


# ---------------------------------------------------------------------- losses and states that aren't finite
class Spoilt(RemoteFleet):
    """In one step, what the victim sends is finite, but nothing finite comes of it; or it is lost there."""

    step, lost = 0, False

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        packets = super().forward(tasks)
        clients = [task.client for task in tasks]
        if (tasks[0].round, tasks[0].step) == (WHEN, self.step) and VICTIM in clients:
            place = clients.index(VICTIM)
            found = packets[place]
            assert found is not None
            if self.lost:
                self._roster.lose(VICTIM, "forward", "the connection broke", lied=False)
                packets[place] = None
            else:
                huge = tuple(torch.full_like(one, 3e38) for one in found.carry if isinstance(one, Tensor))
                packets[place] = Packet(huge, found.labels)
        return packets


Model = dict[str, Tensor]


def played(agreement: Agreement, *, step: int = 0, lost: bool = False) -> tuple[list[RoundRecord], Model]:
    """Records; the average model, and all that the server itself has."""
    with local_links(agreement) as links:
        there = planned_simulation(agreement, CUTS, partial(Spoilt, links, PATIENT, None))
        fleet = there.trainer.fleet
        assert isinstance(fleet, Spoilt)
        fleet.step, fleet.lost = step, lost
        records = play(there)
        return records, model_of(there)


def model_of(simulation: Simulation) -> Model:
    of_server = {n: t for n, t in flatten(simulation.trainer.state).items() if n.startswith("server")}
    return {**simulation.average_model(), **of_server}


def assert_same(found: Model, expected: Model) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("scheme", "norm"),
    [("asfl", "batch"), ("asfl:mix=on", "batch"), ("asfl:mix=on", "none"), ("sfl-best:mix=on", "none")],
)
def test_a_loss_that_is_not_finite_is_a_packet_that_was_lost(scheme: str, norm: str) -> None:
    """To the bit, and only its sender is refused, though no loss was finite where mini-batches are mixed."""
    agreement = agreement_for(scheme, f"model.norm={norm}")
    here = planned_simulation(agreement, CUTS)
    with lost_packet():
        expected = play(here)
    found, model = played(agreement)
    for one, other in zip(found, expected, strict=True):
        for name in ("arrived", "cut", "train_loss", "accuracy", "test_loss"):
            assert getattr(one, name) == getattr(other, name), name
    assert_same(model, model_of(here))
    assert [faults_of(record) for record in found] == [[], [(VICTIM, "forward")], [], []]
    (fault,) = found[WHEN].faults or []
    assert "the server's pass gives a loss of" in str(fault["reason"])


@pytest.mark.parametrize(("scheme", "step"), [("asfl:mix=on", 0), ("sfl-best:mix=on", 1)])
def test_only_the_steps_that_it_spoilt_are_made_again(scheme: str, step: int) -> None:
    """Adam, two local steps: as if it had been lost in that one; what the server learnt in the one before stays."""
    agreement = agreement_for(scheme, *ADAM, "training.local_steps=2")
    (found, model), (expected, other) = played(agreement, step=step), played(agreement, step=step, lost=True)
    assert [record.train_loss for record in found] == [record.train_loss for record in expected]
    assert [record.arrived for record in found] == [record.arrived for record in expected]
    assert [len(record.faults or []) for record in found] == [0, 1, 0, 0]
    assert_same(model, other)


def test_a_state_that_is_not_finite_is_not_saved_and_the_checkpoint_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"training.server": torch.ones(3), "signals.update_norm2": torch.tensor([torch.nan])}
    check_finite(good, 3)
    with pytest.raises(AsflError, match=r"after round 3: training has diverged, training\.server has numbers"):
        check_finite({**good, "training.server": torch.tensor([1.0, torch.inf])}, 3)
    tensors, folder = Simulation.tensors, tmp_path / "run"

    def spoilt(simulation: Simulation) -> dict[str, Tensor]:
        found = tensors(simulation)
        return found if simulation.round_index < 3 else {**found, "training.server.parameters": torch.tensor(torch.nan)}

    monkeypatch.setattr(Simulation, "tensors", spoilt)
    with pytest.raises(AsflError, match="after round 3: training has diverged"):
        run(tiny("output.checkpoint_every=1", rounds=4), "sfl", folder, threads=1)
    assert next(checkpoint_files(folder))[0] == 2
    assert not (folder / MODEL_FILE).exists()
