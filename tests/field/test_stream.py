"""The stream: who gets in, what is refused, what happens when it breaks. Clients are threads here."""

import logging
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import torch
from impostor import READY, Impostor, words_of
from small_runs import CLIENTS, agreement_of, enrolled, tiny
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.field.certificates import Authority
from asfl.field.client import ClientNode
from asfl.field.membership import Registry
from asfl.field.messages import Bye, Forward, LinkError, Ping, Ready, Sync, Welcome, Where
from asfl.field.shapes import Blueprint
from asfl.field.stream import CHUNK, Connection, Identity, StreamLink, StreamServer, split, take_part
from asfl.field.wire import pack
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

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


def test_the_link_knows_whether_the_same_node_is_back() -> None:
    with listening() as (server, devices):
        link = server.links[0]
        assert link.generation == 0
        for node, expected in (("one", 1), ("one", 1), ("two", 2), ("one", 3)):
            before, impostor = link._connection, admitted(server, devices)
            impostor.says(*words_of(Ready(node)))
            wait_until(lambda before=before: link._connection not in (None, before), "it is here")  # type: ignore[misc]
            assert link.generation == expected
            impostor.leaves()


def test_one_request_at_a_time_and_what_ends_it() -> None:
    """A late answer, a deadline before it could be sent, and a broken stream."""
    with listening() as (server, devices):
        impostor, link = welcomed(server, devices)
        future = link.ask(Forward(Task(0, 0, 1)), 60)
        assert link.trouble == "still busy with forward"
        with pytest.raises(LinkError, match="still busy with forward"):
            link.ask(Ping(), 60).result(1)
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


def test_at_most_one_request_waits_for_a_client_that_reads_nothing() -> None:
    link, connection = StreamLink(), Connection(cast(Any, SimpleNamespace(key="", still_in=True)), "", lambda: None)
    link.attach(connection, "one")
    link.ask(Ping(), 100)
    for _ in range(100):
        with pytest.raises(LinkError, match="still busy"):
            link.ask(Ping(), 100).result(0)
    assert connection.outbox.qsize() == 1


def test_mistakes_in_addresses() -> None:
    for address in ("127.0.0.1", "127.0.0.1:99999", "unix:/tmp/x", ""):
        with pytest.raises(AsflError, match="host:port"):
            take_part(address, (b"", b"", b""))
    with listening() as (server, _), TemporaryDirectory() as folder:
        with pytest.raises(AsflError, match="can't listen on"):
            StreamServer(server.address, AGREEMENT, Authority.of(Path(folder)))
        with pytest.raises(AsflError, match=r"4 of 4 devices didn't come.*: 0, 1, 2, 3"):
            server.wait_for_clients(0.1)
