"""What can go wrong with a process × where in the round: the others' round is completed each time.

Every case plays one round in which the victim fails at one stage, and the next one, in which it takes part again. The
victim has got the request and hasn't answered it when it is killed, stopped or cut off.

No client but one that answers too late has a deadline that ends before the test does: a round that waited for the
others longer than it must would never be over. And no deadline is short for a client that is only slow.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from client_processes import ClientProcesses, Order, be_client, client_processes
from fork_server import CONTEXT
from meddling import MeddledLink, give_all_the_time, give_up_soon
from small_runs import (
    CLIENTS,
    EVERYBODY_ARRIVES,
    PATIENT,
    agreement_of,
    assert_same_run,
    enrolled,
    over,
    planned_simulation,
    tiny,
)
from waiting import LONG_S, wait_until

from asfl.field.certificates import Authority
from asfl.field.fleet import train
from asfl.field.messages import Agreement, Answer, AnyRequest, Sync
from asfl.field.stream import StreamServer
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import run
from asfl.runs.simulation import Simulation
from asfl.runs.state import flatten

VICTIM, CUTS = 2, [4, 2, 5, 3]
DEADLINE_S = 0.3
SCHEMES = {scheme: agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=6), scheme) for scheme in ("asfl", "sfl")}


@dataclass(frozen=True)
class Stage:
    """Where in the round the victim fails."""

    op: str
    """The request it has then, or gets next."""
    round: int
    """Counted from 0."""
    name: str
    """In the record, and of the deadline."""
    arrived: bool
    """Whether its activations had taught the server by then."""
    scheme: str = "asfl"
    asked: bool = True
    """False: it has answered everything and waits for the next request."""


STAGES = {
    "round begins": Stage("sync", 0, "sync", arrived=False),
    "layers go down": Stage("grow", 0, "resplit", arrived=False),
    "layers go up": Stage("shrink", 1, "resplit", arrived=False),
    "report": Stage("project", 1, "report", arrived=False),
    "forward": Stage("forward", 1, "forward", arrived=False),
    "server's pass": Stage("backward", 1, "backward", arrived=True, asked=False),
    "backward": Stage("backward", 1, "backward", arrived=True),
    "gives its model": Stage("give", 1, "give", arrived=True, scheme="sfl"),
    "gather": Stage("gather", 1, "gather", arrived=True),
}

GONE = r"the connection (broke|was closed)|not connected|connected anew"
TOO_LATE = f"no answer within {DEADLINE_S:g} s"
FAULTS = {
    "dies": GONE,
    "hangs": TOO_LATE,
    "disconnects": GONE,
    "is too late": TOO_LATE,
    "sends garbage": "not a message",
}
"""And the reason in the record."""
MATRIX = [(fault, stage) for stage in STAGES for fault in ("dies", "hangs", "disconnects")]
MATRIX += [("is too late", "forward"), ("is too late", "gives its model"), ("sends garbage", "backward")]
"""Wrong numbers in each stage: `test_bad_answers`, in one process."""


# ---------------------------------------------------------------------- the field
class SurelyAsked(MeddledLink):
    """The request is sent even if the server, being slow, has given the answer up by then."""

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        return super().ask(request, LONG_S)


class Field:
    """A server, and four client processes that one test after the other uses: each begins with a sync."""

    def __init__(self, agreement: Agreement, server: StreamServer, clients: ClientProcesses) -> None:
        self.agreement, self.server, self.clients = agreement, server, clients

    def simulation(self) -> tuple[Simulation, list[MeddledLink]]:
        self.wait_for_all()
        links: list[MeddledLink] = [SurelyAsked(link) for link in self.server.links]
        return planned_simulation(self.agreement, CUTS, over(links)), links

    def wait_for_all(self) -> None:
        wait_until(lambda: all(link.trouble is None for link in self.server.links), "all clients are here")

    def cut_off(self) -> None:
        connection = self.server.links[VICTIM]._connection
        assert connection is not None
        connection.cancel()


@pytest.fixture(scope="module")
def asfl_field() -> Iterator[Field]:
    yield from _field("asfl")


@pytest.fixture(scope="module")
def sfl_field() -> Iterator[Field]:
    yield from _field("sfl")


def _field(scheme: str) -> Iterator[Field]:
    agreement = SCHEMES[scheme]
    with client_processes(agreement) as (server, clients):
        yield Field(agreement, server, clients)


@pytest.fixture
def field(request: pytest.FixtureRequest, stage: str) -> Field:
    found = request.getfixturevalue(f"{STAGES[stage].scheme}_field")
    assert isinstance(found, Field)
    return found


# ---------------------------------------------------------------------- the matrix
@pytest.mark.parametrize(("fault", "stage"), MATRIX)
def test_the_round_goes_on(fault: str, stage: str, field: Field) -> None:
    where = STAGES[stage]
    simulation, links = field.simulation()
    for _ in range(where.round):
        simulation.play_round()

    # 1. The round in which it happens.
    if FAULTS[fault] == TOO_LATE:
        give_up_soon(simulation, VICTIM, where.name, DEADLINE_S)
    if where.asked:
        order = Order(where.op, where.round, DEEDS.get(fault, "wait"), 2 * DEADLINE_S)
        field.clients.orders[VICTIM].send(order)
    else:
        links[VICTIM].before[where.op, where.round] = lambda: strike(fault, field)
    with ThreadPoolExecutor(1) as pool:
        struck = pool.submit(strike_when_it_waits, fault, where, field)
        record = simulation.play_round()
        struck.result()

    (found,) = record.faults or []
    assert (found["client"], found["round"], found["stage"]) == (VICTIM, where.round + 1, where.name)
    assert re.search(FAULTS[fault], str(found["reason"])), found["reason"]
    assert np.delete(np.array(record.arrived), VICTIM).tolist() == [1] * (CLIENTS - 1)
    assert record.arrived[VICTIM] == where.arrived
    assert_finite(simulation, record)

    # 2. The next one: it is back, with the current layers.
    give_all_the_time(simulation)
    come_back(fault, where, field)
    field.wait_for_all()
    state = simulation.trainer.state
    cut = state.cut
    back = simulation.play_round()
    assert (back.faults, back.arrived_count) == (None, CLIENTS)
    (sync,) = links[VICTIM].requests(Sync, where.round + 1)
    assert sync.cut == cut
    assert len(sync.side.parameters) == simulation.trainer.layout.parameter_edges[cut]
    assert_finite(simulation, back)


DEEDS = {"is too late": "late", "sends garbage": "garbage"}


def strike_when_it_waits(fault: str, where: Stage, field: Field) -> None:
    """It has got the request; if it does something wrong itself, there is nothing to be done."""
    if not where.asked or fault in DEEDS:
        return
    orders = field.clients.orders[VICTIM]
    assert orders.poll(LONG_S), "the victim never got the request"
    assert orders.recv() == "here"
    strike(fault, field)
    if fault == "disconnects":
        orders.send("go on")


def strike(fault: str, field: Field) -> None:
    if fault == "dies":
        field.clients.kill(VICTIM)
    elif fault == "hangs":
        field.clients.signal(VICTIM, signal.SIGSTOP)
    else:
        field.cut_off()


def come_back(fault: str, where: Stage, field: Field) -> None:
    """What is disconnected, or too late, comes back by itself."""
    if fault == "dies":
        field.clients.restart(VICTIM)
    elif fault == "hangs":
        field.clients.signal(VICTIM, signal.SIGCONT)
        if where.asked:
            field.clients.orders[VICTIM].send("go on")


def assert_finite(simulation: Simulation, record: RoundRecord) -> None:
    assert record.train_loss is not None
    assert record.accuracy is not None
    assert np.isfinite([record.train_loss, record.accuracy]).all()
    for name, tensor in flatten(simulation.trainer.state).items():
        assert torch.isfinite(tensor.double()).all(), name


# ---------------------------------------------------------------------- more than one client


def test_all_die_and_come_back(asfl_field: Field) -> None:
    clients = asfl_field.clients
    simulation, links = asfl_field.simulation()
    simulation.play_round()
    for client in range(CLIENTS):
        links[client].before["forward", 1] = lambda client=client: clients.kill(client)  # type: ignore[misc]
    record = simulation.play_round()
    assert (record.arrived_count, len(record.faults or [])) == (0, CLIENTS)
    for client in range(CLIENTS):
        clients.restart(client)
    back = simulation.play_round()  # it waits for any client
    assert back.arrived_count > 0
    asfl_field.wait_for_all()
    last = simulation.play_round()
    assert (last.faults, last.arrived_count) == (None, CLIENTS)


# ---------------------------------------------------------------------- the server is killed and started again
AGREEMENT = agreement_of(tiny("output.checkpoint_every=2"), "asfl")
Moment = tuple[str, int]
"""A request, and its round counted from 0."""


def be_server(address: str, place: Path, moment: Moment | None, told: Connection) -> None:
    """Train in a folder; at this moment, say so and wait to be killed."""
    logging.disable()
    with StreamServer(address, AGREEMENT, Authority.of(place / "server")) as server:
        told.send(server.address)
        server.wait_for_clients(LONG_S)
        links = [MeddledLink(link) for link in server.links]

        def wait_for_the_end() -> None:
            told.send("in the middle")
            time.sleep(LONG_S)

        if moment is not None:
            links[CLIENTS - 1].before[moment] = wait_for_the_end
        train(AGREEMENT, place / "run", links, patience=PATIENT)
        server.say_bye()


@contextmanager
def a_server(address: str, place: Path, moment: Moment | None) -> Iterator[tuple[ForkServerProcess, Connection]]:
    heard, told = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=be_server, args=(address, place, moment, told), daemon=True)
    process.start()
    told.close()
    try:
        yield process, heard
    finally:
        process.kill()
        process.join()
        heard.close()


def hear(heard: Connection) -> object:
    assert heard.poll(LONG_S), "the server says nothing"
    return heard.recv()


def test_killed_again_and_again_it_is_the_same_run(tmp_path: Path) -> None:
    """Records, checkpoint and model are those of an undisturbed run, bit for bit."""
    _, devices = enrolled(tmp_path)
    assert run(AGREEMENT.config, AGREEMENT.scheme, tmp_path / "undisturbed", threads=AGREEMENT.threads)
    address = "127.0.0.1:0"
    clients: list[ForkServerProcess] = []
    # Before the first checkpoint, before anything is begun again, in the middle of a pass, in its last round.
    moments: list[Moment | None] = [("forward", 1), ("sync", 0), ("backward", 4), ("gather", 9), None]
    try:
        for moment in moments:
            with a_server(address, tmp_path, moment) as (process, heard):
                address = str(hear(heard))
                if not clients:
                    clients = [
                        CONTEXT.Process(target=be_client, args=(address, device), daemon=True) for device in devices
                    ]
                    for client in clients:
                        client.start()
                if moment is None:
                    process.join(LONG_S)
                    assert process.exitcode == 0
                else:
                    assert hear(heard) == "in the middle"
                    assert process.pid is not None
                    os.kill(process.pid, signal.SIGKILL)
                    process.join()
                    assert all(client.is_alive() for client in clients)
        for client in clients:
            client.join(LONG_S)
        assert [client.exitcode for client in clients] == [0] * CLIENTS
    finally:
        for client in clients:
            client.kill()
            client.join()
    assert all(record.faults is None for record in read_records(tmp_path / "run"))
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_a_server_with_another_list_of_devices_is_not_theirs(tmp_path: Path) -> None:
    """A client isn't kept waiting for a server that won't let it in: it ends with an error."""
    authority, devices = enrolled(tmp_path)
    with StreamServer("127.0.0.1:0", AGREEMENT, authority) as server:
        address = server.address
        client = CONTEXT.Process(target=be_client, args=(address, devices[0]), daemon=True)
        client.start()
        wait_until(lambda: server.links[0].connected, "the client is here")
    try:
        (authority.folder / "devices.json").unlink()
        with StreamServer(address, AGREEMENT, authority):  # the same port is free at once
            client.join(LONG_S)
            assert client.exitcode == 2
    finally:
        client.kill()
        client.join()
