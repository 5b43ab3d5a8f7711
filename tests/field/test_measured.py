"""Costs by the clock: what exchanges on known links say, what is decided and charged by it, meters, and slow links."""

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from problems import plain_objective, random_problem
from small_runs import CLIENTS, local_links, tiny

from asfl.config import Network
from asfl.config.errors import AsflError
from asfl.costs.modelled import ExchangeRules, round_cost
from asfl.costs.round import Decision
from asfl.costs.world import Accountant, ModelledAccountant
from asfl.field.client import Pace
from asfl.field.fleet import agreement_for, read_profile, train
from asfl.field.measured import (
    PRIOR_LOG_VARIANCE,
    PRIOR_LOSS,
    Clocks,
    LinkState,
    LogEstimate,
    LossEstimate,
    MeasuredCost,
    MeasuredRound,
    MeasuredWorld,
    _covered,
    probe,
)
from asfl.field.messages import (
    Answer,
    AnyRequest,
    Backward,
    Forward,
    Grow,
    Learn,
    Ping,
    Probe,
    Probed,
    Where,
)
from asfl.field.meters import METERS, CarefulMeter, RaplMeter, meter_named, register_meter
from asfl.field.wire import WireError
from asfl.models.profile import ModelProfile
from asfl.optimize import Problem, Queues, ooe_bcd, solve_jointly
from asfl.runs.play import radio_only
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.round import play_round
from asfl.runs.run import run
from asfl.runs.state import State, SyntheticLearning
from asfl.schemes import SCHEMES, scheme_named
from asfl.schemes.base import decide, rules_of
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

PROFILE = ModelProfile(
    param_bits=np.array([1e4, 2e4, 3e4]),
    activation_bits=np.array([3e4, 2e4, 1e4]),
    forward_flops=np.array([1e6, 2e6, 3e6]),
    backward_flops=np.array([2e6, 4e6, 6e6]),
)
BATCH = 8
LATENCY_S, UP_BPS, DOWN_BPS, FLOPS_PER_S = 0.01, 2e6, 8e6, 5e8


def at(cut: int) -> Task:
    return Task(0, 0, cut)


def clocks_of(clients: int = 2, **rules: float) -> Clocks:
    return Clocks(PROFILE, BATCH, clients, Network(**rules))


Seen = tuple[Any, Answer]


def seen(client: int, request: AnyRequest, answer: Answer, sent_at: float, answered_at: float) -> Seen:
    """A request and its answer."""
    asked = SimpleNamespace(client=client, request=request, sent_at=sent_at, answered_at=answered_at)
    return asked, answer


def exchange(request: AnyRequest, up: int, sent_at: float, answered_at: float, client: int = 0, **costs: float) -> Seen:
    """With so many bytes in the answer."""
    answer = Probed(torch.zeros(up, dtype=torch.uint8), **costs)  # type: ignore[arg-type]
    return seen(client, request, answer, sent_at, answered_at)


def usual(request: AnyRequest, up: int, *, flops: float = 0.0) -> Seen:
    """As it takes on a link and a processor that are always the same."""
    busy_s = flops / FLOPS_PER_S
    took_s = LATENCY_S + 8 * up / UP_BPS + 8 * request.payload_bytes / DOWN_BPS + busy_s
    sent_at = time.monotonic()
    return exchange(request, up, sent_at, sent_at + took_s, busy_s=busy_s)


def charge(clocks: Clocks) -> MeasuredCost:
    """The round and its decision only say how many packets were expected to be lost."""
    clients = len(clocks.present)
    expected = SimpleNamespace(packet_error_rate=lambda *_: np.full(clients, 0.25), rb_count=None, tx_power_w=None)
    return clocks.charge(expected, expected, ExchangeRules(), clocks.present)  # type: ignore[arg-type]


def gradients(num_bytes: int) -> tuple[torch.Tensor]:
    return (torch.zeros(num_bytes // 4),)


def test_rates_and_speeds_are_found() -> None:
    clocks = clocks_of()
    flops = 3 * BATCH * (PROFILE.forward_flops[1:].sum() + PROFILE.backward_flops[1:].sum())
    clocks.server_pass([1, 1, 1], flops / 1e9)
    assert clocks.estimates.links().server_s_per_flop == pytest.approx(1e-9)
    forward, backward = 8 * PROFILE.client_forward_flops[2], 8 * PROFILE.client_backward_flops[2]
    for _ in range(8):
        clocks.exchanged(*usual(Ping(), 0))
        clocks.exchanged(*usual(Forward(at(2)), 300_000, flops=forward))
        clocks.exchanged(*usual(Backward(at(2), gradients(300_000)), 4, flops=backward))
    found = clocks.estimates
    assert found.latency_s.value[0] == pytest.approx(LATENCY_S)
    assert 1 / found.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS, rel=0.01)
    assert 1 / found.downlink_s_per_bit.value[0] == pytest.approx(DOWN_BPS, rel=0.01)
    assert 1 / found.client_s_per_flop.value[0] == pytest.approx(FLOPS_PER_S, rel=1e-6)
    assert np.isinf(found.uplink_s_per_bit.relative_error[1])


def test_a_link_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.field.measured.MEMORY", 0.5)
    clocks = clocks_of()
    for _ in range(5):
        clocks.begin(np.ones(2, dtype=np.bool_))
        clocks.exchanged(*usual(Forward(at(1)), 300_000))
    uncertain = clocks.estimates.uplink_s_per_bit.relative_error[0]
    slow = exchange(Forward(at(1)), 300_000, 0.0, 8 * 300_000 / (UP_BPS / 20))
    clocks.begin(np.ones(2, dtype=np.bool_))
    clocks.exchanged(*slow)
    assert clocks.estimates.uplink_s_per_bit.relative_error[0] > 2 * uncertain  # something has happened
    for _ in range(6):
        clocks.begin(np.ones(2, dtype=np.bool_))
        clocks.exchanged(*slow)
    assert 1 / clocks.estimates.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS / 20, rel=0.15)


def test_layers_count_by_the_time_they_take() -> None:
    clocks = clocks_of()
    seconds = np.array([[1.0, 0.5, 0.5], [2.0, 3.0, 1.0]])
    clocks.layers_take({0: seconds, 1: 10 * seconds})
    whole = PROFILE.forward_flops.sum() + PROFILE.backward_flops.sum()
    assert clocks.profile.forward_flops.sum() + clocks.profile.backward_flops.sum() == pytest.approx(whole)
    np.testing.assert_allclose(clocks.profile.forward_flops, whole * seconds[0] / seconds.sum())
    np.testing.assert_allclose(clocks.estimates.client_s_per_flop.value * whole * BATCH, [8.0, 80.0])
    clocks.layers_take({0: np.zeros((2, 3)), 1: -seconds})  # a clock that doesn't run
    np.testing.assert_allclose(clocks.profile.forward_flops, whole * seconds[0] / seconds.sum())


def test_stages_add_up_to_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("asfl.field.measured.time.monotonic", lambda: now[0])
    clocks = clocks_of(3)
    clocks.begin(np.array([True, True, False]))
    clocks.training_begins()
    grow = Grow(2, ModelVectors(*gradients(50_000), torch.zeros(0)))
    for client, end in ((0, 101.0), (1, 102.0)):
        clocks.exchanged(*exchange(grow, 0, 100.0, end, client))
        clocks.exchanged(*exchange(Forward(at(2)), 50_000, 102.0, end + 3.0, client, busy_s=1.0))
    now[0] = 106.0
    clocks.lost(1, Backward(at(2), ()), 105.0)
    now[0] = 109.0
    cost = charge(clocks)
    assert (cost.resplit_delay_s, cost.uplink_stage_delay_s, cost.server_stage_delay_s) == (2.0, 3.0, 4.0)
    assert cost.delay_s == 9.0
    loss = clocks.estimates.loss.value
    assert loss[1] > clocks.estimates.loss.value[0]
    assert loss[2] == clocks_of(3).estimates.loss.value[2]  # it wasn't asked


def test_energy_by_the_clock_or_by_a_meter() -> None:
    clocks = clocks_of(2, client_power_w=4.0)
    clocks.exchanged(*exchange(Ping(), 0, 0.0, 0.1, 1, energy_j=100.0))
    clocks.begin(np.ones(2, dtype=np.bool_))
    clocks.training_begins()
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, busy_s=2.5))
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, 1, busy_s=2.5, energy_j=107.5))
    cost = charge(clocks)
    assert cost.energy_j.tolist() == [4.0 * 2.5, 7.5]
    assert clocks.estimates.client_power_w.value[1] == pytest.approx(7.5 / 2.5)  # what it draws is learnt
    assert clocks.facts()["energy_reported"] == [0.0, 1.0]
    clocks.training_begins()
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, 1, busy_s=2.5, energy_j=2.0))  # its process is a new one
    assert charge(clocks).energy_j[1] == 2.0


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda p: (float(p[0]), float(p[0] + p[1]))))


@given(spans)
def test_time_is_counted_once(found: list[tuple[float, float]]) -> None:
    seconds = np.arange(80)
    covered = np.zeros(80, dtype=np.bool_)
    for begin, end in found:
        covered |= (seconds >= begin) & (seconds < end)
    assert _covered(found) == covered.sum()


# ---------------------------------------------------------------------- estimates, against plain weighted means
amounts = st.floats(1e-9, 1e9)
rounds = st.lists(st.lists(amounts, max_size=3), min_size=1, max_size=8)
"""Measurements of one client, round by round."""
memories = st.floats(0.05, 0.99)


def after(measured: list[list[float]], memory: float) -> LogEstimate:
    estimate = LogEstimate(1.0, 1)
    for of_round in measured:
        estimate.fade(memory)
        for amount in of_round:
            estimate.add(0, amount)
    return estimate


@given(rounds, memories)
def test_a_weighted_mean_of_logarithms(measured: list[list[float]], memory: float) -> None:
    logs = np.log([amount for of_round in measured for amount in of_round])
    ages = [age for age, of_round in enumerate(reversed(measured)) for _ in of_round][::-1]
    estimate = after(measured, memory)
    if not len(logs):
        assert estimate.value[0] == 1.0  # the guess
        assert np.isinf(estimate.relative_error[0])
        return
    weights = memory ** np.array(ages, float)
    mean = np.average(logs, weights=weights)
    squares = (weights * (logs - mean) ** 2).sum()
    error = np.sqrt((squares + PRIOR_LOG_VARIANCE) / (weights.sum() + 1) / weights.sum())
    assert estimate.value[0] == pytest.approx(np.exp(mean), rel=1e-6)
    assert estimate.relative_error[0] == pytest.approx(error, rel=1e-5, abs=1e-7)


@given(st.lists(st.booleans(), max_size=20), memories)
def test_losses(missed: list[bool], memory: float) -> None:
    estimate = LossEstimate(1)
    for one in missed:
        estimate.fade(memory)
        estimate.add(0, missed=one)
    weights = memory ** np.arange(len(missed))[::-1]
    expected = (weights[np.array(missed, bool)].sum() + PRIOR_LOSS) / (weights.sum() + 1)
    assert estimate.value[0] == pytest.approx(expected)


# ---------------------------------------------------------------------- what a client says of itself
def test_a_meter_that_leaps_costs_the_round_and_the_next_reading_is_a_beginning() -> None:
    clocks = clocks_of(4)

    def says(energy_j: float, at: float) -> None:
        clocks.exchanged(*exchange(Ping(), 0, at, at + 0.1, energy_j=energy_j))

    says(1e12, 0.0)  # since any fixed moment
    says(1e12 + 50.0, 1.0)
    with pytest.raises(WireError, match=r"energy_j: 4\.9e\+13 J more"):
        says(5e13, 2.0)
    says(5e13 + 10.0, 3.0)
    clocks.training_begins()
    assert clocks._energy_of_round()[0] == 0.0


def test_layers_that_took_longer_than_the_server_waited_are_not_believed() -> None:
    clocks = clocks_of(4)
    before, shape = clocks.profile.forward_flops, (2, clocks.profile.num_layers)

    def says(seconds: float) -> Any:
        answered: Future[Answer] = Future()
        answered.set_result(Probed(torch.zeros(0, dtype=torch.uint8), torch.full(shape, seconds, dtype=torch.float64)))
        return SimpleNamespace(trouble=None, generation=0, ask=lambda *_: answered)

    probe([says(1e5)], clocks, 1.0)
    assert clocks.profile.forward_flops is before
    probe([says(0.0), says(1e-12)], clocks, 1.0)
    assert clocks.profile.forward_flops is not before


def test_no_busy_time_makes_a_link_or_a_processor_impossible() -> None:
    clocks, octets = clocks_of(4), torch.zeros(1 << 20, dtype=torch.uint8)
    for busy_s in (0.0, 1e-300, 1.0, 1e6):
        clocks.exchanged(*seen(0, Probe(1 << 20), Probed(octets, busy_s=busy_s), 0.0, 1.0))
        clocks.exchanged(*seen(0, Forward(at(2)), Where(1, busy_s=busy_s), 0.0, 1.0))
    links = clocks.estimates.links()
    for found, most in ((links.uplink_bps, 1e14), (links.downlink_bps, 1e14), (1 / links.client_s_per_flop, 1e18)):
        assert np.isfinite(found).all()
        assert (found < most).all()


# ---------------------------------------------------------------------- rounds over measured links
MEASURED = ("field.costs=measured", "decision.delay_budget_s=auto", "decision.energy_budget_j=auto")


def random_links(seed: int, clients: int) -> LinkState:
    rng = np.random.default_rng(seed)
    return LinkState(
        uplink_bps=10 ** rng.uniform(5, 8, clients),
        downlink_bps=10 ** rng.uniform(5, 8, clients),
        loss=rng.uniform(0, 0.5, clients),
        client_s_per_flop=10 ** rng.uniform(-10, -8, clients),
        client_power_w=rng.uniform(1, 10, clients),
        server_s_per_flop=1e-11,
    )


def measured_problem(seed: int, **rules: Any) -> Problem:
    """A random problem over random links; the last client isn't there."""
    problem = random_problem(seed, layers=5, **rules)
    given_, links = problem.round, random_links(seed, problem.round.num_clients)
    there = np.ones(given_.num_clients)
    there[-1] = 0.0
    fields = {
        name: getattr(given_, name) for name in ("profile", "charged_samples", "previous_cut", "equations", "index")
    }
    measured = MeasuredRound(
        **fields,
        radio=given_.radio.model_copy(update={"num_rbs": given_.num_clients, "max_tx_power_w": 10.0}),
        compute=given_.compute,
        path_gain=there,
        channel_gain=there,
        cpu_hz=given_.compute.client_cycles_per_flop / links.client_s_per_flop,
        links=links,
    )
    return replace(problem, round=measured)


@pytest.mark.parametrize("solve", [ooe_bcd, solve_jointly])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_all_cuts_is_chosen(seed: int, solve: Any) -> None:
    problem = measured_problem(seed)
    solution = solve(problem)
    allocation = problem.round.allocation
    assert allocation is not None
    values = [plain_objective(problem, Decision(cut, *allocation)) for cut in problem.round.profile.cuts.tolist()]
    assert solution.objective == pytest.approx(min(values))
    assert solution.decision.cut == problem.round.profile.cuts[int(np.argmin(values))]
    assert solution.decision.scheduled.tolist() == [True] * (problem.round.num_clients - 1) + [False]


def test_costs_are_those_of_the_links() -> None:
    problem = measured_problem(3)
    round_, cut = problem.round, 2
    assert isinstance(round_, MeasuredRound)
    assert round_.allocation is not None
    links, profile, samples = round_.links, round_.profile, round_.charged_samples
    arrived = np.array([1.0, 1.0, 0.0])
    cost = round_cost(replace(round_, previous_cut=None), Decision(cut, *round_.allocation), arrived)
    bits = samples * profile.activation_bits[cut - 1]
    forward = samples * profile.forward_flops[:cut].sum() * links.client_s_per_flop
    backward = samples * profile.backward_flops[:cut].sum() * links.client_s_per_flop
    up, down = bits / links.uplink_bps, bits / links.downlink_bps
    server = 2 * samples * (profile.forward_flops[cut:].sum() + profile.backward_flops[cut:].sum()) * 1e-11
    assert cost.uplink_stage_delay_s == pytest.approx((forward + up)[:2].max())
    assert cost.server_stage_delay_s == pytest.approx(server + (down + backward)[:2].max())
    energy = links.client_power_w * (forward + up + backward)
    np.testing.assert_allclose(cost.energy_j, [*energy[:2], 0.0])
    np.testing.assert_allclose(cost.packet_error_rate, [*links.loss[:2], 1.0])


def world_with(links: LinkState, **overrides: str) -> MeasuredWorld:
    """A world of which exactly this was measured."""
    config = tiny(*MEASURED, *(f"{name}={value}" for name, value in overrides.items()))
    world = MeasuredWorld.unknown(config)
    for client in range(CLIENTS):
        for _ in range(50):
            world.clocks.estimates.uplink_s_per_bit.add(client, 1 / links.uplink_bps[client])
            world.clocks.estimates.downlink_s_per_bit.add(client, 1 / links.downlink_bps[client])
            world.clocks.estimates.client_s_per_flop.add(client, links.client_s_per_flop[client])
    world.clocks.estimates.server_s_per_flop.add(0, links.server_s_per_flop)
    return world


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_decides_a_cut_for_all_clients_that_are_there(scheme: str) -> None:
    world = world_with(random_links(1, CLIENTS))
    world.clocks.begin(np.array([True, False, True, True]))
    run = replace(radio_only(world, scheme_named(scheme), world.budgets()), accountant=ModelledAccountant())
    _, record = play_round(run, State.fresh(world, run.scheme))
    assert record.rb_count == [1.0, 0.0, 1.0, 1.0]
    assert record.arrived == [1, 0, 1, 1]  # nothing is drawn


@given(st.integers(0, 50), st.integers(0, CLIENTS - 1))
def test_a_slower_link_never_makes_more_cross_it(seed: int, client: int) -> None:
    """Delay is all that counts here: with one uplink slower, the best cut sends at most as many bits as before."""
    links = random_links(seed, CLIENTS)
    slower = links.uplink_bps.copy()
    slower[client] /= 100
    sent = []
    for one in (links, replace(links, uplink_bps=slower)):
        world = world_with(one, **{"decision.energy_budget_j": "1e9", "decision.delay_budget_s": "1e-9"})
        rules = rules_of(world.config, world.budgets()).model_copy(update={"penalty_weight": 0.0})
        learning = SyntheticLearning.fresh(world.profile, CLIENTS).learning()
        problem = Problem(world.begin_round(0), learning, Queues.empty(CLIENTS), rules)
        cut = decide(scheme_named("asfl"), problem).decision.cut
        sent.append(world.profile.activation_bits[int(cut) - 1])
    assert sent[1] <= sent[0]


def test_queues_follow_what_was_measured() -> None:
    world = world_with(random_links(1, CLIENTS))
    assert world_with(random_links(1, CLIENTS), **{"decision.delay_budget_s": "0.7"}).budgets().delay_s == 0.7
    budgets, nothing = world.budgets(), np.zeros(CLIENTS)
    cost = MeasuredCost(0.0, 1.0, 3 * budgets.delay_s - 1.0, nothing, nothing, nothing)
    modelled, measured = ModelledAccountant(), world.accountant()
    measured.charge = lambda *_: cost  # type: ignore[method-assign]

    def after(scheme: str, accountant: Accountant) -> RoundRecord:
        run = replace(radio_only(world, scheme_named(scheme), budgets), accountant=accountant)
        return play_round(run, State.fresh(world, run.scheme))[1]

    assert after("asfl", measured).delay_queue == pytest.approx(2.0)  # (3γ − γ)/γ
    assert after("asfl", measured).delay_s == cost.delay_s
    assert after("fedavg", measured).delay_queue == after("fedavg", modelled).delay_queue


def test_in_one_process_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match=r'field.costs = "measured" needs clients that are somewhere else'):
        run(tiny(*MEASURED), "asfl", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- whole runs
def test_rounds_are_charged_what_they_take_also_after_a_stop(tmp_path: Path) -> None:
    agreement, rounds = (
        agreement_for(tiny(*MEASURED, rounds=4), "asfl", tmp_path / "run", threads=1),
        list[RoundRecord](),
    )
    for finishes in (False, True):
        with local_links(agreement) as links:
            stop = (lambda: False) if finishes else (lambda: len(rounds) == 2)
            assert train(agreement, tmp_path / "run", links, on_round=rounds.append, should_stop=stop) == finishes
    records = read_records(tmp_path / "run")
    assert [record.round for record in records] == [record.round for record in rounds] == [1, 2, 3, 4]
    for record in records:
        assert record.measured is not None
        assert record.faults is None
        assert record.arrived == [1] * CLIENTS
        stages = record.resplit_delay_s + record.uplink_stage_delay_s + record.server_stage_delay_s
        assert record.delay_s == pytest.approx(stages)
        assert 0 < record.uplink_stage_delay_s < record.delay_s
        assert all(energy > 0 for energy in record.energy_j)
        assert all(error is not None for error in record.measured["uplink_bps_error"])
    assert records[-1].total_delay_s == pytest.approx(sum(record.delay_s for record in records))


# ---------------------------------------------------------------------- meters of energy
def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def test_packages_are_summed_and_counters_start_over(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match="'rapl': there are no energy counters"):
        RaplMeter(tmp_path)
    for number in (0, 1):
        write(tmp_path / f"intel-rapl:{number}", energy_uj=900, max_energy_range_uj=999)
    write(tmp_path / "intel-rapl:0:0", energy_uj=5, max_energy_range_uj=999)  # a part of package 0
    meter = RaplMeter(tmp_path)
    assert meter.read() == 0.0
    write(tmp_path / "intel-rapl:0", energy_uj=950)
    write(tmp_path / "intel-rapl:1", energy_uj=50)
    assert meter.read() == pytest.approx((50 + 150) * 1e-6)


class Broken:
    def read(self) -> float:
        raise RuntimeError("no such gauge")


def test_by_name_and_one_that_fails_costs_nothing_but_its_readings(caplog: pytest.LogCaptureFixture) -> None:
    assert meter_named("none") is None
    with pytest.raises(AsflError, match=r"unknown meter 'rpl'.*rapl"):
        meter_named("rpl")
    try:
        register_meter("mine", Broken)
        meter = CarefulMeter(meter_named("mine"))
    finally:
        METERS.clear()
    assert [meter.read(), meter.read()] == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "the energy meter failed, and isn't read any more: RuntimeError: no such gauge"
    ]


# ---------------------------------------------------------------------- links made slow on purpose
SLOW = """
[[link]]
uplink_bps = "8 Mbit/s"

[[link]]
client = 1
from_round = 5
uplink_bps = 1000
downlink_bps = "2 kbit/s"
latency_s = "10 ms"
"""


def test_messages_wait_as_long_as_they_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    agreement = agreement_for(tiny(f"field.shaping={tmp_path / 'slow.toml'}"), "asfl", tmp_path / "run")
    waited = list[float]()
    monkeypatch.setattr("asfl.field.client.time.sleep", waited.append)
    for client in (1, 0):
        pace = Pace(agreement.welcome(client).agreement.shaping)
        pace.down(1000, 1)
        pace.up(1000)
        pace.down(1000, 5)
        pace.up(500)
        pace.up(0)  # of the same round
    assert waited == [8 * 1000 / 8e6, 0.005 + 4.0, 0.005 + 4.0, 0.005, 8 * 1000 / 8e6, 8 * 500 / 8e6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[link]]\nuplink = 3", "unknown key 'link\\[0\\].uplink': did you mean 'uplink_bps'"),
        ("[[link]]\nuplink_bps = '3 MHz'", "unit 'MHz'.*Mbit/s"),
        ("[[link]]\nuplink_bps = 0", "> 0"),
        ("[[link]]\nclient = 2", "client = 2, but there are 2: 0 … 1"),
        ("links", "not valid TOML"),
        (None, "no such file"),
    ],
)
def test_mistakes(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(AsflError, match=f"(?s)field.shaping: .*wrong.toml.*{words}"):
        read_profile(file, clients=2)
