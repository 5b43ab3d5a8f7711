"""The server is killed in the middle of rounds and started again; its clients, never touched, come by themselves."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from client_processes import be_client
from fork_server import CONTEXT
from meddling import MeddledLink
from small_runs import CLIENTS, PATIENT, agreement_of, assert_same_run, enrolled, tiny
from waiting import LONG_S, wait_until

from asfl.field.certificates import Authority
from asfl.field.engine import train
from asfl.field.stream import StreamServer
from asfl.runs.records import read_records
from asfl.runs.run import run

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
