"""The stream: who gets in, what is refused, what happens when it breaks, and that strangers take no client's place.

Clients are threads here, or impostors: devices that speak gRPC and say whatever a test likes.
"""

import logging
import queue
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import numpy as np
import pytest
import torch
from fork_server import CONTEXT
from small_runs import CLIENTS, agreement_of, enrolled, tiny
from waiting import LONG_S, wait_until

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.field import stream as server
from asfl.field.certificates import SERVER_NAME, Authority
from asfl.field.client import ClientNode
from asfl.field.membership import Registry
from asfl.field.messages import Blueprint, Bye, Forward, LinkError, Ping, Ready, Sync, Welcome, Where
from asfl.field.stream import (
    CHUNK,
    METHOD,
    SERVICE,
    VERSION_KEY,
    Identity,
    StreamLink,
    StreamServer,
    split,
    take_part,
)
from asfl.field.wire import Message, encode, pack
from asfl.train.signals import Task
from asfl.train.state import ModelVectors
from studies.torture import strangers

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each has a connection of its own, as clients elsewhere do
    ("grpc.ssl_target_name_override", SERVER_NAME),
]
READY = Ready("one")


class Impostor:
    def __init__(self, address: str, identity: Identity, version: str = __version__) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        key, certificate, authority = identity
        shown = grpc.ssl_channel_credentials(authority, key, certificate)
        self._channel = grpc.secure_channel(address, shown, _OPTIONS)
        work: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = work(iter(self._outbox.get, None), metadata=((VERSION_KEY, version),), timeout=1200)

    def says(self, *chunks: bytes) -> None:
        """Chunks; each goes out when the one before has."""
        for chunk in chunks:
            self._outbox.put(chunk)

    def hears(self) -> bytes:
        return next(iter(self._call))

    def leaves(self) -> None:
        self._call.cancel()
        self._channel.close()

    def is_refused_with(self) -> grpc.StatusCode:
        """How the server ends the stream."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        self._outbox.put(None)
        self._channel.close()
        return self._call.code()


def words_of(message: Message) -> list[bytes]:
    return list(split(encode(message)))


# ---------------------------------------------------------------------- clients and their server
AGREEMENT = agreement_of(tiny(), "asfl")
LARGEST = Blueprint.of(AGREEMENT.config).largest_message


@contextmanager
def listening() -> Iterator[tuple[StreamServer, list[Identity]]]:
    with TemporaryDirectory() as folder:
        authority, devices = enrolled(Path(folder))
        with StreamServer("127.0.0.1:0", AGREEMENT, authority) as server:
            yield server, devices


class Served:
    """A client in a thread."""

    def __init__(self, server: StreamServer, identity: Identity) -> None:
        self.error: AsflError | None = None
        self.nodes: list[ClientNode] = []

        def make_node(welcome: Welcome, data_dir: Path | None) -> ClientNode:
            self.nodes.append(ClientNode(welcome, data_dir))
            return self.nodes[-1]

        def work() -> None:
            try:
                take_part(server.address, identity, patience_s=60.0, make_node=make_node)
            except AsflError as error:
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        self._thread.join(LONG_S)
        return not self._thread.is_alive()


# ---------------------------------------------------------------------- who gets in
def test_a_client_works_until_it_hears_bye() -> None:
    with listening() as (server, devices):
        client = Served(server, devices[2])
        wait_until(lambda: server.links[2].trouble is None, "the client is here")
        assert server.links[0].trouble == "not connected"
        assert isinstance(server.links[2].ask(Ping(), 60).result(60), Where)
        server.say_bye()
        assert client.ended()
        assert client.error is None


def test_another_version_is_refused() -> None:
    with listening() as (server, devices):
        assert Impostor(server.address, devices[0], "0.0.1").is_refused_with() == grpc.StatusCode.FAILED_PRECONDITION
        server.registry.revoke("device-1")
        stranger = Impostor(server.address, devices[1], "0.0.1")  # isn't told which version this is
        assert stranger.is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        Served(server, devices[0])
        wait_until(lambda: server.links[0].trouble is None, "the client is here")


# ---------------------------------------------------------------------- what is refused
def admitted(server: StreamServer, devices: list[Identity], client: int = 0) -> Impostor:
    impostor = Impostor(server.address, devices[client])
    impostor.hears()
    return impostor


def welcomed(server: StreamServer, devices: list[Identity]) -> tuple[Impostor, StreamLink]:
    """One that has also said it is ready, so that the server may ask it."""
    impostor, link = admitted(server, devices), server.links[0]
    impostor.says(*words_of(READY))
    wait_until(lambda: link.trouble is None, "it is here")
    return impostor, link


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"garbage, and no length"], "more than the"),
        ([struct.pack("<Q", LARGEST + 1)], "more than the"),
        ([struct.pack("<Q", 20) + b"x" * 20], "not a message"),
        ([b"short"], "too short"),
        (words_of(Where(3)), "where instead of ready"),
        (list(split(pack("ready", {}, []))), "node is missing"),
        (words_of(Ready("x" * 1000)), "must be at most 32"),
        ([*words_of(READY), *words_of(Where(3))], "an answer to nothing"),
        ([*words_of(READY), *words_of(READY)], "an answer to nothing"),
        ([*words_of(READY), struct.pack("<Q", LARGEST + 1)], "more than the"),
        ([*words_of(READY), struct.pack("<Q", LARGEST) + b"x" * 100, b""], "an empty chunk"),
    ],
)
def test_a_client_that_sends_nonsense_is_cut_off(
    chunks: list[bytes], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as (server, devices), caplog.at_level(logging.WARNING):
        impostor = admitted(server, devices)
        impostor.says(*chunks)
        assert impostor.is_refused_with() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
        wait_until(lambda: server.links[0].trouble == "not connected", "the stream is closed")
        wait_until(lambda: words in caplog.text, f"the log says {words}")


def test_a_chunk_above_the_limit_of_grpc_is_cut_off() -> None:
    with listening() as (server, devices):
        impostor, _ = welcomed(server, devices)
        future = server.links[0].ask(Ping(), 60)
        impostor.says(bytes(2 * CHUNK))
        with pytest.raises(LinkError, match=r"the connection (broke|was closed)"):
            future.result(60)
        assert impostor.is_refused_with() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_garbage_instead_of_an_answer_fails_the_request_with_the_reason() -> None:
    with listening() as (server, devices):
        impostor, link = welcomed(server, devices)
        future = link.ask(Ping(), 60)
        impostor.says(struct.pack("<Q", 30) + b"?" * 30)
        with pytest.raises(AsflError, match="not a message"):
            future.result(60)
        assert link.trouble is None  # it may still do better


# ---------------------------------------------------------------------- when it breaks
def break_stream(link: StreamLink) -> None:
    before = link._connection
    assert before is not None
    before.cancel()
    wait_until(lambda: link._connection not in (None, before), "the client is back")


def test_a_client_comes_back_with_the_state_it_had_and_another_process_is_another_node() -> None:
    with listening() as (server, devices):
        client, link = Served(server, devices[0]), server.links[0]
        wait_until(lambda: link.trouble is None, "the client is here")
        nothing = ModelVectors(torch.empty(0), torch.empty(0))
        assert isinstance(link.ask(Sync(0, nothing, round=7), 60).result(60), Where)
        for _ in range(3):
            break_stream(link)
            where = link.ask(Ping(), 60).result(60)
            assert isinstance(where, Where)
            assert (where.round, where.cut) == (7, 0)
        assert (len(client.nodes), link.generation) == (1, 1)
        Served(server, devices[0])
        wait_until(lambda: link.generation == 2, "another process is here")


def test_one_request_at_a_time_and_what_ends_it() -> None:
    """A late answer, a deadline before it could be sent, and a broken stream."""
    with listening() as (server, devices):
        impostor, link = welcomed(server, devices)
        future = link.ask(Forward(Task(0, 0, 1)), 60)
        assert link.trouble == "still busy with forward"
        for _ in range(100):
            with pytest.raises(LinkError, match="still busy with forward"):
                link.ask(Ping(), 60).result(1)
        assert link._connection is not None
        assert link._connection.outbox.qsize() <= 1  # though the client reads nothing
        with pytest.raises(TimeoutError):
            future.result(0.05)
        impostor.says(*words_of(Where(1)))
        wait_until(lambda: link.trouble is None, "the answer came")
        with pytest.raises(LinkError, match="could not be sent in time"):
            link.ask(Bye(), -1.0).result(60)
        second = link.ask(Ping(), 60)
        impostor.says(*words_of(Where(2)))
        assert isinstance(second.result(60), Where)
        third = link.ask(Ping(), 60)
        impostor._call.cancel()
        with pytest.raises(LinkError, match="the connection"):
            third.result(60)
        assert link.trouble == "not connected"
        with pytest.raises(LinkError, match="not connected"):
            link.ask(Ping(), 60).result(1)


def test_the_newest_stream_of_a_client_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as (server, devices):
        first, link = welcomed(server, devices)
        future = link.ask(Ping(), 60)
        second = admitted(server, devices)  # the first is broken, and the server hasn't noticed
        second.says(*words_of(READY))
        with pytest.raises(LinkError, match="connected anew"):
            future.result(60)
        assert first.is_refused_with() == grpc.StatusCode.CANCELLED
        assert link.trouble is None
        monkeypatch.setattr("asfl.field.stream.LET_IN_S", 0.0)
        silent, last = admitted(server, devices, 1), admitted(server, devices, 1)
        assert silent.is_refused_with() == grpc.StatusCode.CANCELLED  # it never said a word
        last.says(*words_of(READY))
        wait_until(lambda: server.links[1].trouble is None, "the last is here")


def test_a_client_gives_up_after_a_while_and_without_its_data(tmp_path: Path) -> None:
    authority, devices = enrolled(tmp_path, 1)
    with (
        StreamServer("127.0.0.1:0", agreement_of(tiny("data.name=cifar10"), "asfl"), authority) as server,
        pytest.raises(AsflError, match="asfl data fetch cifar10"),
    ):
        take_part(server.address, devices[0], data_dir=tmp_path)
    started = time.monotonic()
    with pytest.raises(AsflError, match=r"no connection for 0.5 s \(unavailable"):
        take_part(server.address, devices[0], patience_s=0.5)
    assert time.monotonic() - started > 0.5


def test_only_devices_of_this_server_come_in_and_only_to_their_server(tmp_path: Path) -> None:
    """Another authority's devices, one that was revoked, one without a place; a server of another authority."""
    authority, devices = enrolled(tmp_path / "own", CLIENTS + 2)
    _, others = enrolled(tmp_path / "other", 1)
    Registry(authority.folder).revoke("device-0")
    with StreamServer("127.0.0.1:0", AGREEMENT, authority) as server:
        assert Impostor(server.address, devices[0]).is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        assert Impostor(server.address, devices[-1]).is_refused_with() == grpc.StatusCode.UNAVAILABLE
        key, certificate, root = others[0]
        for stranger in (others[0], (key, certificate, devices[1][2]), (devices[1][0], devices[1][1], root)):
            with pytest.raises(AsflError, match=r"no connection for 0\.2 s"):
                take_part(server.address, stranger, patience_s=0.2)
        assert all(link.trouble == "not connected" for link in server.links)


def test_mistakes_in_addresses() -> None:
    for address in ("127.0.0.1", "127.0.0.1:99999", "unix:/tmp/x", ""):
        with pytest.raises(AsflError, match="host:port"):
            take_part(address, (b"", b"", b""))
    with listening() as (server, _), TemporaryDirectory() as folder:
        with pytest.raises(AsflError, match="can't listen on"):
            StreamServer(server.address, AGREEMENT, Authority.of(Path(folder)))
        with pytest.raises(AsflError, match=r"4 of 4 devices didn't come.*: 0, 1, 2, 3"):
            server.wait_for_clients(0.1)


# ---------------------------------------------------------------------- strangers, and devices that say nothing
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
