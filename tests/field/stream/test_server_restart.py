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

import pytest
from client_processes import be_client
from fork_server import CONTEXT
from meddling import MeddledLink
from small_runs import CLIENTS, PATIENT, agreement_of, assert_same_run, tiny
from waiting import LONG_S, wait_until

from asfl.field.engine import train
from asfl.field.stream.certificates import Certificates, make_certificates
from asfl.field.stream.server import StreamServer
from asfl.runs.manifest import MANIFEST_FILE
from asfl.runs.records import read_records
from asfl.runs.run import run

AGREEMENT = agreement_of(tiny("output.checkpoint_every=2"), "asfl")
Moment = tuple[str, int]
"""A request, and its round counted from 0."""


def be_server(address: str, place: Path, certificates: Certificates, moment: Moment | None, told: Connection) -> None:
    """Train in a folder; at this moment, say so and wait to be killed."""
    logging.disable()
    folder = place / "run"
    restarted = (folder / MANIFEST_FILE).exists()
    keys = place / "keys.json"
    with StreamServer(address, AGREEMENT, certificates, keys=keys, restarted=restarted) as server:
        told.send((server.address, server.access.tokens))
        server.wait_for_clients(LONG_S)
        links = [MeddledLink(link) for link in server.links]

        def wait_for_the_end() -> None:
            told.send("in the middle")
            time.sleep(LONG_S)

        if moment is not None:
            links[CLIENTS - 1].before[moment] = wait_for_the_end
        train(AGREEMENT, folder, links, patience=PATIENT)
        server.say_bye()


@contextmanager
def a_server(
    address: str, place: Path, certificates: Certificates, moment: Moment | None
) -> Iterator[tuple[ForkServerProcess, Connection]]:
    heard, told = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=be_server, args=(address, place, certificates, moment, told), daemon=True)
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
    """Records, checkpoint and model are those of a run that nobody disturbed, bit for bit."""
    certificates = make_certificates(tmp_path / "pem", ["127.0.0.1"])
    assert run(AGREEMENT.config, AGREEMENT.scheme, tmp_path / "undisturbed", threads=AGREEMENT.threads)
    address = "127.0.0.1:0"
    clients: list[ForkServerProcess] = []
    # Before the first checkpoint, before anything is begun again, in the middle of a pass, in its last round.
    moments: list[Moment | None] = [("forward", 1), ("sync", 0), ("backward", 4), ("gather", 9), None]
    try:
        for moment in moments:
            with a_server(address, tmp_path, certificates, moment) as (process, heard):
                found = hear(heard)
                assert isinstance(found, tuple)
                address, tokens = found
                if not clients:
                    clients = [
                        CONTEXT.Process(target=be_client, args=(address, token, certificates.authority), daemon=True)
                        for token in tokens
                    ]
                    for client in clients:
                        client.start()
                else:
                    assert tokens == []
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


def test_a_server_with_new_keys_is_none_of_theirs(tmp_path: Path) -> None:
    """Nobody waits for ever at a door that won't open: the client ends with an error."""
    with StreamServer("127.0.0.1:0", AGREEMENT, keys=tmp_path / "keys.json") as server:
        address = server.address
        client = CONTEXT.Process(target=be_client, args=(address, server.access.tokens[0], None), daemon=True)
        client.start()
        wait_until(lambda: server.links[0].connected, "the client is here")
    try:
        with StreamServer(address, AGREEMENT, keys=tmp_path / "others.json"):
            client.join(LONG_S)
            assert client.exitcode == 2
    finally:
        client.kill()
        client.join()


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_same_port_is_free_at_once(encrypted: bool, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "pem", ["127.0.0.1"]) if encrypted else None
    address = "127.0.0.1:0"
    for _ in range(3):
        with StreamServer(address, AGREEMENT, certificates, keys=tmp_path / "keys.json") as server:
            address = server.address
