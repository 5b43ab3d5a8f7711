"""Rounds over links that were measured: what is decided, what is charged, what survives."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from problems import plain_objective, random_problem
from small_runs import CLIENTS, agreement_of, tiny

from asfl.config.errors import AsflError
from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision
from asfl.costs.world import Accountant, ModelledAccountant
from asfl.field.client import ClientNode
from asfl.field.engine import agreement_for, train
from asfl.field.measured import LinkState, MeasuredCost, MeasuredRound, MeasuredWorld
from asfl.field.messages import Agreement, Answer, AnyRequest
from asfl.optimize import Problem, Queues, ooe_bcd, solve_jointly
from asfl.runs.manifest import MODEL_FILE
from asfl.runs.play import radio_only
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.round import play_round
from asfl.runs.run import run
from asfl.runs.state import State, SyntheticLearning
from asfl.schemes import SCHEMES, scheme_named
from asfl.schemes.rules import decide, rules_of
from studies.local_links import LocalLink

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
@pytest.mark.parametrize("seed", range(12))
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


def test_a_budget_that_is_set_stays() -> None:
    world = world_with(random_links(1, CLIENTS), **{"decision.delay_budget_s": "0.7"})
    assert world.budgets().delay_s == 0.7
    assert 0 < world.budgets().energy_j < np.inf


def test_in_one_process_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(AsflError, match=r'field.costs = "measured" needs clients that are somewhere else'):
        run(tiny(*MEASURED), "asfl", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- whole runs
class ServerDeathError(Exception):
    pass


class MortalLink(LocalLink):
    """Remembers what it carried; and the server dies when it sends this request in this round (counted from 0)."""

    fatal: tuple[str, int] | None = None

    def __init__(self, node: ClientNode, pool: ThreadPoolExecutor) -> None:
        super().__init__(node, pool)
        self.ops: list[str] = []

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        if (request.name, request.round) == self.fatal:
            raise ServerDeathError
        self.ops.append(request.name)
        return super().ask(request, deadline_s)


@contextmanager
def links_to(nodes: Sequence[ClientNode]) -> Iterator[list[MortalLink]]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield [MortalLink(node, pool) for node in nodes]


def nodes_of(agreement: Agreement) -> list[ClientNode]:
    return [ClientNode(agreement.welcome(client)) for client in range(CLIENTS)]


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    """A scheme that decides the same whatever was measured, so that runs can be compared; sides are never asked for."""
    overrides = ("output.evaluate_every=100", "output.checkpoint_every=100")
    return agreement_of(tiny(*MEASURED, *overrides, rounds=5), "sfl-cut2")


@pytest.fixture(scope="module")
def undisturbed(agreement: Agreement, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with links_to(nodes_of(agreement)) as links:
        assert train(agreement, folder, links)
    return (folder / MODEL_FILE).read_bytes()


def broken_run(agreement: Agreement, folder: Path, nodes: Sequence[ClientNode], request: str) -> None:
    """The server dies in the fourth round."""
    with links_to(nodes) as links:
        links[0].fatal = request, 3
        with pytest.raises(ServerDeathError):
            train(agreement, folder, links)
    assert len(read_records(folder)) == 3


def test_rounds_are_charged_what_they_take(tmp_path: Path) -> None:
    agreement = agreement_for(tiny(*MEASURED, rounds=4), "asfl", tmp_path / "run", threads=1)
    with links_to(nodes_of(agreement)) as links:
        assert train(agreement, tmp_path / "run", links)
    records = read_records(tmp_path / "run")
    assert len(records) == 4
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


def test_the_server_starts_anew_and_clients_keep_what_they_have(
    agreement: Agreement, undisturbed: bytes, tmp_path: Path
) -> None:
    """It died between two rounds, and had asked no client for its side: the model is the same to the last bit."""
    nodes = nodes_of(agreement)
    broken_run(agreement, tmp_path, nodes, "project")
    with links_to(nodes) as links:
        assert train(agreement, tmp_path, links)
        assert not any("sync" in link.ops for link in links)
    assert (tmp_path / MODEL_FILE).read_bytes() == undisturbed


@pytest.mark.parametrize("clients", ["are ahead", "are new"])
def test_state_of_another_round_is_never_used(clients: str, agreement: Agreement, tmp_path: Path) -> None:
    nodes = nodes_of(agreement)
    broken_run(agreement, tmp_path, nodes, "backward")
    if clients == "are new":
        nodes = nodes_of(agreement)
    with links_to(nodes) as links:
        assert train(agreement, tmp_path, links)
        assert all("sync" in link.ops for link in links)
    records = read_records(tmp_path)
    assert len(records) == 5
    assert records[-1].accuracy is not None
    assert not any(record.faults for record in records)
