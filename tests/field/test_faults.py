"""Real client processes that die, hang and come back; the others' round is completed each time."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from client_processes import ClientProcesses, client_processes
from meddling import MeddledLink
from small_runs import CLIENTS, EVERYBODY_ARRIVES, PATIENT, over, planned_simulation, terms_of, tiny, wait_until

from asfl.field.roll import Patience
from asfl.field.stream_server import StreamServer
from asfl.records import RoundRecord
from asfl.simulate import Simulation

VICTIM, WHEN = 2, 1
CUTS = [4, 2, 5, 3]
Field = tuple[StreamServer, ClientProcesses]

ASFL, SFL = (terms_of(tiny(*EVERYBODY_ARRIVES, rounds=4), scheme) for scheme in ("asfl", "sfl"))


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    """Four clients of an ASFL run, used again by one test after the other: each begins with a sync."""
    with client_processes(ASFL) as started:
        yield started


@pytest.fixture(scope="module")
def sfl_field() -> Iterator[Field]:
    with client_processes(SFL) as started:
        yield started


def everybody_is_here(server: StreamServer) -> None:
    wait_until(lambda: all(link.trouble is None for link in server.links), "everybody is here")


def faults_of(record: RoundRecord) -> list[tuple[object, object]]:
    return [(fault["client"], fault["stage"]) for fault in record.faults or []]


def started(field: Field, patience: Patience = PATIENT) -> tuple[Simulation, list[MeddledLink]]:
    everybody_is_here(field[0])
    links = [MeddledLink(link) for link in field[0].links]
    return planned_simulation(ASFL, CUTS, over(links, patience)), links


@pytest.mark.parametrize(
    ("op", "when", "stage", "arrived"),
    [
        ("grow", 0, "resplit", 0),
        ("shrink", 1, "resplit", 0),
        ("forward", 1, "forward", 0),
        ("backward", 1, "backward", 1),
        ("state", 1, "gather", 1),
    ],
)
def test_killed(op: str, when: int, stage: str, arrived: int, field: Field) -> None:
    """Killed by its pid at every stage; started again, it takes part with the current layers."""
    server, clients = field
    simulation, links = started(field)
    links[VICTIM].before[op, when] = lambda: clients.kill(VICTIM)
    records = [simulation.play_round() for _ in range(when + 1)]
    assert faults_of(records[when]) == [(VICTIM, stage)]
    others = np.delete(np.array(records[when].arrived), VICTIM)
    assert others.tolist() == [1] * (CLIENTS - 1)
    assert records[when].arrived[VICTIM] == arrived
    away = simulation.play_round()
    assert faults_of(away) == [(VICTIM, "begin")]
    assert away.arrived_count == CLIENTS - 1
    clients.restart(VICTIM)
    everybody_is_here(server)
    back = simulation.play_round()
    assert back.faults is None
    assert back.arrived_count == CLIENTS
    assert links[VICTIM].requests("sync", when + 2)[0].whole("cut") == simulation_cut(CUTS, when + 1)


def simulation_cut(cuts: list[int], index: int) -> int:
    return cuts[index % len(cuts)]


def test_killed_while_models_are_given_back(sfl_field: Field) -> None:
    server, clients = sfl_field
    links = [MeddledLink(link) for link in server.links]
    links[VICTIM].before["give", WHEN] = lambda: clients.kill(VICTIM)
    simulation = planned_simulation(SFL, CUTS, over(links))
    records = [simulation.play_round() for _ in range(2)]
    assert faults_of(records[WHEN]) == [(VICTIM, "give")]
    assert records[WHEN].arrived_count == CLIENTS  # its activations had taught the server
    clients.restart(VICTIM)
    everybody_is_here(server)
    back = simulation.play_round()
    assert (back.faults, back.arrived_count) == (None, CLIENTS)


def test_hung(field: Field) -> None:
    """Stopped as a whole: nothing is answered, not even by gRPC. The round waits until the deadline and not longer."""
    server, clients = field
    simulation, links = started(field)
    simulation.play_round()
    fleet = simulation.trainer.fleet
    fleet._roll._patience = replace(PATIENT, deadlines=replace(PATIENT.deadlines, forward=5.0))  # type: ignore[attr-defined]
    links[VICTIM].before["forward", WHEN] = lambda: clients.signal(VICTIM, signal.SIGSTOP)
    began = time.monotonic()
    try:
        record = simulation.play_round()
        assert faults_of(record) == [(VICTIM, "forward")]
        assert record.arrived == [1, 1, 0, 1]
        assert time.monotonic() - began < 60
        assert faults_of(simulation.play_round()) == [(VICTIM, "begin")]
    finally:
        clients.signal(VICTIM, signal.SIGCONT)
    everybody_is_here(server)
    back = simulation.play_round()
    assert (back.faults, back.arrived_count) == (None, CLIENTS)


def test_cut_off_in_the_middle_and_back_by_itself(field: Field) -> None:
    """Its process lives and keeps its state, which isn't current any more: it is brought up to date all the same."""
    server, _ = field
    simulation, links = started(field)
    simulation.play_round()

    def cut_off() -> None:
        connection = server.links[VICTIM]._connection
        assert connection is not None
        connection.cancel()

    links[VICTIM].before["backward", WHEN] = cut_off
    record = simulation.play_round()
    assert faults_of(record) == [(VICTIM, "backward")]
    everybody_is_here(server)
    back = simulation.play_round()
    assert (back.faults, back.arrived_count) == (None, CLIENTS)
    assert len(links[VICTIM].requests("sync", 2)) == 1


def test_everybody_dies_and_comes_back(field: Field) -> None:
    server, clients = field
    simulation, links = started(field)
    simulation.play_round()
    for client in range(CLIENTS):
        links[client].before["forward", WHEN] = lambda client=client: clients.kill(client)  # type: ignore[misc]
    record = simulation.play_round()
    assert (record.arrived_count, len(record.faults or [])) == (0, CLIENTS)
    for client in range(CLIENTS):
        clients.restart(client)
    back = simulation.play_round()  # it waits for somebody
    assert back.arrived_count > 0
    everybody_is_here(server)
    last = simulation.play_round()
    assert (last.faults, last.arrived_count) == (None, CLIENTS)
