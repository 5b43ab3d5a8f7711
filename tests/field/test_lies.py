"""Clients whose answers are well-formed and wrong lose the round, then their place; nobody else loses anything."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from meddling import MeddledLink
from small_runs import CLIENTS, EVERYBODY_ARRIVES, agreement_of, local_links, over, planned_simulation, tiny
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field.copies import Copies
from asfl.field.engine import measured_world, train
from asfl.field.fleet import remote_fleet
from asfl.field.links import Exchange, Link, LinkError, OpenRequest, failed
from asfl.field.measure.probe import probe
from asfl.field.outliers import BOUND, FACTOR, Kind, OutlierError, OutlierFilter, Place, bounded
from asfl.field.protocol import messages as msg
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.wire import WireError, pack
from asfl.field.roster import LEAST_S, MOST_S, MeasuredDeadlines, Patience, Roster
from asfl.runs.folder import check_finite, checkpoint_files
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import run
from asfl.runs.simulation import Simulation
from asfl.train.fleet import LocalFleet
from studies.torture import lies, messages

LIAR = 2


# ---------------------------------------------------------------------- the campaigns, a slice of each
@pytest.mark.parametrize("name", ["activations × 1,000", "parameters = 3e38", "negative variances"])
def test_a_liar_costs_the_others_nothing(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in lies.LIES if case.name == name]
    assert list(lies.told(case, LIAR, tmp_path / "run")) == []


def test_there_are_sixteen_lies() -> None:
    assert len({case.name for case in lies.LIES}) == 16


def test_damaged_messages(tmp_path: Path) -> None:
    counts = messages.campaign(0.005, tmp_path, np.random.default_rng(7))
    assert (counts.tried, counts.examples) == (500, [])


# ---------------------------------------------------------------------- ranges
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (msg.Update(torch.tensor(-1e30)), "norm2 has -1e+30; valid are 0 … 1e+12"),
        (msg.Update(torch.tensor(1.0), torch.tensor(-1.0)), "loss has -1"),
        (msg.Values(torch.tensor([0.0, 3e38])), "values has 3e+38"),
        (msg.Activations(torch.zeros(1, dtype=torch.int64), (torch.tensor([[-1e7]]),)), "carry.0 has -1e+07"),
        (msg.Where(1, battery=7.0), "battery = 7.0"),
        (msg.Where(1, busy_s=1e9), "busy_s = 1000000000.0"),
        (msg.Probed(torch.zeros(1, dtype=torch.uint8), -torch.ones(2, 3).double()), "seconds has -1"),
    ],
)
def test_what_is_out_of_range_is_refused_as_it_comes(answer: msg.Answer, words: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(encode(answer), msg.Answer)
    assert words in str(caught.value)


# ---------------------------------------------------------------------- what is usual
def noted(sizes: Sequence[float]) -> tuple[OutlierFilter, Kind]:
    usual, kind = OutlierFilter(), Kind("sample", 3)
    for client, size in enumerate(sizes):
        usual.note(kind, Place(0, client, 0), msg.Values(torch.tensor([size])))
    return usual, kind


@given(st.lists(st.floats(1.0, 25.0), min_size=2, max_size=20), st.floats(1e-6, 1e3), st.integers(2, 9))
def test_who_is_near_the_others_is_usual_and_who_is_far_above_is_not(
    honest: list[float], unit: float, decades: int
) -> None:
    """Whatever the unit, and also if the far one is small: that harms nobody."""
    usual, kind = noted([unit * size for size in honest])
    for client in range(len(honest)):
        usual.check(kind, Place(0, client, 0))
    logs = np.sort(np.log(honest))
    mad = float(np.median(np.abs(logs - logs[len(logs) // 2])))
    far, near = Place(0, 90, 0), Place(0, 91, 0)
    usual.note(kind, near, msg.Values(torch.tensor([unit * 10.0**-decades])))
    usual.check(kind, near)
    much = 1e4 * max(honest) * FACTOR * math.exp(12 * mad)
    usual.note(kind, far, msg.Values(torch.tensor([unit * much], dtype=torch.float64).float()))
    if len(honest) > 3 and unit * much < 1e30:
        with pytest.raises(OutlierError, match="times as large as usual"):
            usual.check(kind, far)
        usual.check(kind, far)  # it isn't compared with any more


def test_two_cannot_accuse_each_other_and_old_sizes_are_forgotten() -> None:
    usual, kind = noted([1.0, 1e9])
    for client in (0, 1):
        usual.check(kind, Place(0, client, 0))
    usual, kind = noted([1.0, 1.0, 1.0])
    far = msg.Values(torch.tensor([1e9]))
    for index in (10, 11):  # alone in its round
        usual.begin(index)
        usual.note(kind, Place(index, 7, 0), far)
        with pytest.raises(OutlierError) if index == 10 else nullcontext():
            usual.check(kind, Place(index, 7, 0))


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12), st.floats(1e-3, 1e6))
def test_no_answer_weighs_more_than_the_bound_whatever_it_says(honest: list[float], lie: float) -> None:
    """The limit is found again from the others' sizes; what is within it keeps its bits."""
    usual, kind = noted([*honest, lie])
    base, said = torch.tensor([3.0]), torch.tensor([3.0 + lie])
    usual.note(kind, Place(0, len(honest), 0), msg.Values(said), base=base)
    logs = sorted(math.log(float(torch.tensor(size))) for size in honest)
    middle = logs[len(logs) // 2]
    apart = 5 * 1.4826 * float(np.median([abs(log - middle) for log in logs]))
    limit, most = (math.exp(middle + max(math.log(times), apart)) for times in (BOUND, FACTOR))
    size = float(said - base)
    try:
        factors = usual.check(kind, Place(0, len(honest), 0))
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
    """A link that is there; nothing is asked of it."""

    trouble, generation = None, 0


class Saying(Named):
    """A link that answers whatever it is asked."""

    def __init__(self, answer: "Callable[[], Future[msg.Answer]]") -> None:
        self._answer = answer

    def ask(self, request: msg.AnyRequest, deadline_s: float) -> "Future[msg.Answer]":
        return self._answer()


def roster_of(clients: int) -> Roster:
    links: list[Any] = [Named() for _ in range(clients)]
    return Roster(links, Patience())


def test_three_rounds_in_a_row_cost_the_place() -> None:
    roster = roster_of(2)
    for index in range(3):
        roster.begin(index)
        assert not roster.quarantined.any()
        roster.lose(0, "forward", "a lie", lied=True)
        roster.lose(0, "forward", "another in the same round", lied=True)
        roster._came = True  # client 1 has answered
    assert roster.quarantined.tolist() == [True, False]
    assert [fault.round for fault in roster.take_faults() if fault.stage == "quarantine"] == [2]
    roster.begin(3)
    assert [(fault.client, fault.reason) for fault in roster.take_faults()] == [(0, "in quarantine")]


def test_a_round_with_right_answers_in_between_does_not() -> None:
    roster = roster_of(2)
    for index in range(6):
        roster.begin(index)
        roster._came = True
        if index % 2:
            roster._good.add((0, "forward"))
        else:
            roster.lose(0, "forward", "a lie", lied=True)
    assert not roster.quarantined.any()


def test_being_away_costs_no_place_and_all_out_ends_the_run() -> None:
    roster = roster_of(1)
    for index in range(9):
        roster.begin(index)
        roster.lose(0, "forward", "the connection broke", lied=False)
        roster._came = True
    roster.quarantined[:] = True
    with pytest.raises(AsflError, match="all 1 clients lost their places"):
        roster.begin(9)


def test_a_refusal_a_broken_connection_and_a_missed_deadline_are_no_lies_and_nonsense_is() -> None:
    def never() -> "Future[msg.Answer]":
        return Future()

    def refuses() -> "Future[msg.Answer]":
        future: Future[msg.Answer] = Future()
        future.set_result(msg.Refusal("no"))
        return future

    cases = [
        (never, False),
        (refuses, False),
        (lambda: failed(LinkError("it broke")), False),
        (lambda: failed(WireError("nonsense")), True),
    ]
    for answer, lied in cases:
        link = Saying(answer)
        roster = Roster([link], Patience())
        for index in range(3):
            roster.begin(index)
            roster.present[:] = roster._came = True
            roster.answer(OpenRequest(link, 0, msg.Ping(), 0.0), lambda answer: answer)
        assert roster.quarantined.tolist() == [lied]


CURSOR_UP = "\x1b[1A\r\u202e"


def test_words_of_a_client_are_cut_and_move_no_cursor() -> None:
    roster = roster_of(1)
    for index in range(3):
        roster.begin(index)
        roster.lose(0, "forward", CURSOR_UP + "x" * 100_000, lied=False)
    faults = roster.take_faults()
    assert [len(fault.reason) for fault in faults] == [500] * 3
    with pytest.raises(AsflError, match="everybody who was asked was lost") as stopped:
        roster.begin(3)
    for text in (faults[0].reason, str(stopped.value)):
        assert text.isprintable()
        assert len(text) < 700


def test_a_name_that_nobody_declared_is_cut_too() -> None:
    """The name of a field is a client's word as well."""
    with pytest.raises(WireError) as caught:
        decode(pack("where", {"cut": 1, CURSOR_UP + "y" * 10_000: 1}, {}), msg.Answer)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


class Keyed(Named):
    """A device's link."""

    def __init__(self, key: str) -> None:
        self.key = key


def test_quarantine_is_of_a_key_not_of_a_number() -> None:
    links: list[Any] = [Keyed("aa"), Keyed("bb"), Keyed("cc")]
    roster, copies = Roster(links, Patience()), Copies(3)
    for index in range(3):
        roster.begin(index)
        roster.lose(1, "forward", "a lie", lied=True)
        roster._came = True
    knowledge = copies.knowledge(roster)
    restarted = Roster(links, Patience())
    Copies(3).restore(knowledge, restarted)
    for again in (roster, restarted):
        again.begin(3)
        assert again.quarantined.tolist() == [False, True, False]
        links[1].key, links[2].key = "dd", "bb"  # it was revoked, another device has its number, and it has another's
        again.begin(4)
        assert again.quarantined.tolist() == [False, False, True]
        assert not again._bad_rounds
        links[1].key, links[2].key = "bb", "cc"


def test_a_liar_does_not_come_back_when_the_server_is_killed(tmp_path: Path) -> None:
    """Though no checkpoint was due."""
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "output.checkpoint_every=100", rounds=6), "fedavg")

    def kill(record: RoundRecord) -> None:
        if record.round == 4:
            raise KeyboardInterrupt

    def played(links: Sequence[Link], **watching: Any) -> None:
        meddled = [MeddledLink(link) for link in links]
        meddled[LIAR].bends = {("give", index): far_away for index in range(6)}
        train(agreement, tmp_path / "run", meddled, **watching)

    with local_links(agreement) as links, pytest.raises(KeyboardInterrupt):
        played(links, on_round=kill)
    with local_links(agreement) as links:
        played(links)
    faults = [fault for record in read_records(tmp_path / "run") for fault in record.faults or ()]
    of_liar = [(fault["round"], fault["stage"]) for fault in faults]
    assert of_liar == [(1, "give"), (2, "give"), (3, "give"), (3, "quarantine"), *[(n, "begin") for n in (4, 5, 6)]]


def far_away(answer: Any) -> msg.Answer:
    return msg.Side(replace(answer.layers, parameters=answer.layers.parameters * -25))


# ---------------------------------------------------------------------- most look wrong
def test_an_average_that_most_have_wrong_answers_to_is_undone_and_its_outlier_is_out() -> None:
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=6), "sfl")
    with local_links(agreement) as links:
        meddled = [MeddledLink(link) for link in links]
        over_meddled: list[Any] = list(meddled)
        simulation = planned_simulation(agreement, [3], over(over_meddled))
        fleet: Any = simulation.trainer.fleet
        simulation.play_round()
        good, given = simulation.trainer.state.server.clone(), simulation.trainer.state.server.parameters.clone()

        def farther(answer: Any) -> msg.Answer:
            base = given[: len(answer.layers.parameters)]
            return msg.Side(replace(answer.layers, parameters=base + 20 * (answer.layers.parameters - base)))

        meddled[LIAR].bends["give", 1] = farther
        record = simulation.play_round()
        assert [(fault["client"], fault["stage"]) for fault in record.faults or ()] == [(LIAR, "bounded")]
        assert record.arrived == [1] * CLIENTS
        honest = [client for client in range(CLIENTS) if client != LIAR]
        for client in honest:
            meddled[client].bends["forward", 2] = lambda answer: replace(answer, labels=answer.labels[:1])
        simulation.play_round()
        fleet.begin(3)
        assert torch.equal(fleet.state.server.parameters, good.parameters)
        assert torch.equal(fleet.state.server.statistics, good.statistics)
        assert not fleet.state.server_optimizer.moments.any()
        assert fleet._roster.quarantined.tolist() == [client == LIAR for client in range(CLIENTS)]
        assert not any(fleet._roster._bad_rounds.values())
        assert fleet._roster.present.tolist() == [client != LIAR for client in range(CLIENTS)]


def test_quarantine_survives_the_server() -> None:
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=4), "asfl")
    with local_links(agreement) as links:
        first = planned_simulation(agreement, [3], over(links))
        first.play_round()
        assert "fleet.quarantined" not in first.tensors()  # checkpoints of honest runs have nothing new
        first.trainer.fleet._roster.quarantined[LIAR] = True  # type: ignore[attr-defined]
        second = planned_simulation(agreement, [3], over(links))
        second.restore(first.tensors())
        record = second.play_round()
    assert record.arrived == [1, 1, 0, 1]
    assert record.faults == [{"client": LIAR, "round": 2, "stage": "begin", "reason": "in quarantine"}]


# ---------------------------------------------------------------------- losses and states that aren't finite
def test_a_loss_that_is_not_finite_costs_a_client_its_round_and_nothing_else() -> None:
    """As if its packet had been lost: the server's pass is done again without it."""
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, "training.optimizer=sgd", rounds=3), "asfl")

    def played(*, broken: bool) -> tuple[Any, Tensor]:
        with local_links(agreement) as links:
            meddled: list[Link] = [MeddledLink(link) for link in links]
            simulation = planned_simulation(agreement, [3], remote_fleet(meddled, Patience()))
            simulation.play_round()
            trainer = simulation.trainer
            if broken:
                real = trainer.server.run

                def breaking(carry: Any, first: int, last: int) -> Any:
                    (logits,) = real(carry, first, last)
                    if len(logits) == CLIENTS * 8:
                        spoilt = torch.ones(CLIENTS, 8, 1)
                        spoilt[LIAR] = torch.inf
                        logits = logits * spoilt.view(-1, 1)
                    return (logits,)

                trainer.server.run = breaking  # type: ignore[method-assign]
            else:
                meddled[LIAR].bends["forward", 1] = lambda answer: msg.Refusal("gone")  # type: ignore[attr-defined]
            return simulation.play_round(), trainer.state.server.parameters.clone()

    (found, model), (expected, wanted) = played(broken=True), played(broken=False)
    assert found.arrived == expected.arrived == [1, 1, 0, 1]
    assert [(fault["stage"], fault["client"]) for fault in found.faults or []] == [("forward", LIAR)]
    assert torch.equal(model, wanted)


def test_in_one_process_it_still_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFleet, "refuse", lambda self, client, reason: False)
    with pytest.raises(AsflError, match="training has diverged"):
        run(tiny("training.optimizer=sgd", "training.learning_rate=1e12", rounds=5), "sfl", tmp_path / "run", threads=1)


def test_a_state_that_is_not_finite_is_not_saved() -> None:
    good = {"training.server": torch.ones(3), "signals.update_norm2": torch.tensor([torch.nan])}
    check_finite(good, 3)
    with pytest.raises(AsflError, match=r"after round 3: training has diverged, training\.server has numbers"):
        check_finite({**good, "training.server": torch.tensor([1.0, torch.inf])}, 3)


def test_the_checkpoint_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = tiny("output.checkpoint_every=1", rounds=4), tmp_path / "run"
    tensors = Simulation.tensors

    def spoilt(simulation: Simulation, *, whole: bool = True) -> dict[str, Tensor]:
        found = tensors(simulation, whole=whole)
        return found if simulation.round_index < 3 else {**found, "training.server.parameters": torch.tensor(torch.nan)}

    monkeypatch.setattr(Simulation, "tensors", spoilt)
    with pytest.raises(AsflError, match="after round 3: training has diverged"):
        run(config, "sfl", folder, threads=1)
    assert next(checkpoint_files(folder))[0] == 2
    assert not (folder / MODEL_FILE).exists()


# ---------------------------------------------------------------------- deadlines
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


def test_what_is_configured_is_kept() -> None:
    config = tiny("field.deadlines.forward_s=7", rounds=1).field
    patience = Patience.of(config)
    assert (patience.most_s("forward"), patience.is_measured("forward")) == (7.0, False)
    assert (patience.most_s("learn"), patience.is_measured("learn")) == (600.0, True)
    assert config.deadlines.give_s == "auto"


# ---------------------------------------------------------------------- what a client says of itself
def test_a_meter_that_leaps_costs_the_round_and_the_next_reading_is_a_beginning() -> None:
    clocks = measured_world(tiny()).clocks

    def says(energy_j: float, at: float) -> None:
        clocks.exchanged(Exchange(0, msg.Ping(), msg.Where(1, energy_j=energy_j), at, at + 0.1))

    says(1e12, 0.0)  # since any fixed moment
    says(1e12 + 50.0, 1.0)
    with pytest.raises(WireError, match=r"energy_j: 4\.9e\+13 J more"):
        says(5e13, 2.0)
    says(5e13 + 10.0, 3.0)
    clocks.training_begins()
    assert clocks._energy_of_round()[0] == 0.0


def test_layers_that_took_longer_than_the_server_waited_are_not_believed() -> None:
    clocks = measured_world(tiny()).clocks
    before, shape = clocks.profile.forward_flops, (2, clocks.profile.num_layers)

    def says(seconds: float) -> Saying:
        answer = msg.Probed(torch.zeros(0, dtype=torch.uint8), torch.full(shape, seconds, dtype=torch.float64))
        answered: Future[msg.Answer] = Future()
        answered.set_result(answer)
        return Saying(lambda: answered)

    probe([says(1e5)], clocks, 1.0)
    assert clocks.profile.forward_flops is before
    probe([says(0.0), says(1e-12)], clocks, 1.0)
    assert clocks.profile.forward_flops is not before


def test_no_busy_time_makes_a_link_or_a_processor_impossible() -> None:
    clocks, octets = measured_world(tiny()).clocks, torch.zeros(1 << 20, dtype=torch.uint8)
    for busy_s in (0.0, 1e-300, 1.0, 1e6):
        clocks.exchanged(Exchange(0, msg.Probe(1 << 20), msg.Probed(octets, busy_s=busy_s), 0.0, 1.0))
        clocks.exchanged(Exchange(0, msg.Forward(0, 2), msg.Where(1, busy_s=busy_s), 0.0, 1.0))
    links = clocks.estimates.links(0.0)
    for found, most in ((links.uplink_bps, 1e14), (links.downlink_bps, 1e14), (1 / links.client_s_per_flop, 1e18)):
        assert np.isfinite(found).all()
        assert (found < most).all()
