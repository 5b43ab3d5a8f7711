"""A stranger, or a device that says nothing, takes no place that a client needs."""

import logging
import resource
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from fork_server import CONTEXT
from impostor import READY, Impostor, words_of
from small_runs import CLIENTS, agreement_of, enrolled, tiny
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.field import stream as server
from asfl.field.shapes import Blueprint
from asfl.field.stream import CHUNK, StreamServer
from studies.torture import strangers

AGREEMENT = agreement_of(tiny(), "asfl")
LARGEST = Blueprint.of(AGREEMENT.config).largest_message
OFFERED = 128 << 20
"""Bytes, by each of those who flood the server."""


def limit_files(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[int]:
    """Of this process, in a way that it believes; the limits it then asks for."""
    now = [soft]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (now[-1], hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: now.append(limits[0]))
    return now


def test_connections_leave_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = limit_files(monkeypatch, soft=64, hard=100_000)
    assert server.allowed_connections(10) + server.RESERVED_FILES <= asked[-1]
    limit_files(monkeypatch, soft=300, hard=300)
    assert server.allowed_connections(10) == 300 - server.RESERVED_FILES
    with pytest.raises(AsflError, match="1000 clients need 2256 open files, but this process may have 300"):
        server.allowed_connections(1000)


def test_connections_above_the_limit_are_closed_and_clients_still_come_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, devices = enrolled(tmp_path)
    monkeypatch.setattr(server, "allowed_connections", lambda clients: 20)
    quickly = [(name, 1000 if value == server._QUIET_MS else value) for name, value in server._OPTIONS]
    monkeypatch.setattr(server, "_OPTIONS", quickly)
    with StreamServer("127.0.0.1:0", AGREEMENT, authority) as opened, ExitStack() as connections:
        host, _, port = opened.address.partition(":")
        idle = [connections.enter_context(socket.create_connection((host, int(port)), LONG_S)) for _ in range(60)]
        for one in idle:  # some at once, the others because they never say a word
            with suppress(ConnectionError):
                while one.recv(1000):
                    pass
        client = Impostor(opened.address, devices[0])
        client.hears()
        client.says(*words_of(READY))
        wait_until(lambda: opened.links[0].connected, "the client is in")
        client.leaves()


def test_a_client_that_never_says_ready_holds_one_stream_and_not_forever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, devices = enrolled(tmp_path)
    with StreamServer("127.0.0.1:0", AGREEMENT, authority) as opened:
        silent = [Impostor(opened.address, devices[0]) for _ in range(4 * CLIENTS + 30)]
        others = [Impostor(opened.address, device) for device in devices[1:]]
        for number, other in enumerate(others, start=1):
            other.hears()
            other.says(*words_of(READY))
            wait_until(lambda number=number: opened.links[number].connected, "all others are in")  # type: ignore[misc]
        assert len(opened._waiting) <= 1
        for each in (*silent, *others):
            each.leaves()
    monkeypatch.setattr(server, "READY_WITHIN_S", 0.2)
    with StreamServer("127.0.0.1:0", AGREEMENT, authority) as opened:
        assert Impostor(opened.address, devices[0]).is_refused_with().name == "CANCELLED"


def test_a_run_among_strangers_has_the_same_bits(tmp_path: Path) -> None:
    counts = strangers.campaign(0.01, tmp_path, np.random.default_rng(3))
    assert (counts.tried, counts.examples) == (20, [])


# ---------------------------------------------------------------------- memory
def be_flooded(pipe: Pipe) -> None:
    logging.disable()
    with TemporaryDirectory() as folder:
        authority, devices = enrolled(Path(folder))
        with StreamServer("127.0.0.1:0", AGREEMENT, authority) as server:
            pipe.send((server.address, devices))
            while pipe.recv() != "end":
                pipe.send(_most_resident())
                Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten


def _most_resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_flood_is_not_kept() -> None:
    """From devices, before and after their first word, and from others with the same keys; all at once."""
    pipe, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=be_flooded, args=(theirs,), daemon=True)
    process.start()

    def peak() -> int:
        pipe.send("how much?")
        found = pipe.recv()
        assert isinstance(found, int)
        return found

    try:
        address, devices = pipe.recv()
        peak()
        before = peak()
        ready, nothing = words_of(READY), bytes(CHUNK)
        flood: Sequence[bytes] = [struct.pack("<Q", LARGEST) + nothing[8:], *([nothing] * (OFFERED // CHUNK))]
        callers = [Impostor(address, device) for device in [*devices, *devices]]
        for number, caller in enumerate(callers):
            caller.says(*(ready if number % 2 else []), *flood)
        for caller in callers:
            caller.is_refused_with()
        grown = peak() - before
        pipe.send("end")
    finally:
        process.kill()
        process.join()
    # About 25 MiB: what was agreed on, and what gRPC has on its way (more, where processes wait for a CPU). It is the
    # same for an eighth of the flood.
    assert grown < len(callers) * OFFERED / 5
