"""The stream: who gets in, what is refused, what happens when it breaks. Clients are threads here."""

import logging
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import torch
from impostor import READY, Impostor, words_of
from small_runs import CLIENTS, agreement_of, tiny
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.links import LinkError
from asfl.field.protocol.codec import decode
from asfl.field.protocol.messages import Bye, Forward, Ping, Ready, Sync, Welcome, Where
from asfl.field.protocol.shapes import Blueprint
from asfl.field.protocol.wire import pack
from asfl.field.stream.access import Access
from asfl.field.stream.certificates import Certificates, make_certificates
from asfl.field.stream.chunks import CHUNK, Joiner, split
from asfl.field.stream.client import serve
from asfl.field.stream.common import check_address, is_loopback
from asfl.field.stream.link import StreamLink
from asfl.field.stream.server import StreamServer
from asfl.train.layout import ModelVectors

AGREEMENT = agreement_of(tiny(), "asfl")
LARGEST = Blueprint.of(AGREEMENT.config).largest_message


@contextmanager
def listening(certificates: Certificates | None = None) -> Iterator[tuple[StreamServer, Access]]:
    with StreamServer("127.0.0.1:0", AGREEMENT, certificates) as server:
        yield server, server.access


class Served:
    """A client in a thread."""

    def __init__(self, server: StreamServer, token: str, authority: Path | None = None) -> None:
        self.error: AsflError | None = None
        self.nodes: list[ClientNode] = []

        def make_node(welcome: Welcome, data_dir: Path | None) -> ClientNode:
            self.nodes.append(ClientNode(welcome, data_dir))
            return self.nodes[-1]

        def work() -> None:
            try:
                serve(server.address, token, authority=authority, patience_s=60.0, make_node=make_node)
            except AsflError as error:
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        self._thread.join(LONG_S)
        return not self._thread.is_alive()


# ---------------------------------------------------------------------- who gets in
def test_a_client_works_until_it_hears_bye(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "pem", ["127.0.0.1"])
    with listening(certificates) as (server, access):
        client = Served(server, access.tokens[2], certificates.authority)
        wait_until(lambda: server.links[2].trouble is None, "the client is here")
        assert server.links[0].trouble == "not connected"
        assert isinstance(server.links[2].ask(Ping(), 60).result(60), Where)
        server.say_bye()
        assert client.ended()
        assert client.error is None


@pytest.mark.parametrize("case", ["wrong secret", "another's secret", "no such client", "nonsense", "none"])
def test_strangers_are_refused(case: str, caplog: pytest.LogCaptureFixture) -> None:
    with listening() as (server, access):
        secret = access.tokens[0].partition(".")[2]
        credential = {
            "wrong secret": "0." + "ab" * 32,
            "another's secret": f"1.{secret}",
            "no such client": f"{CLIENTS}.{secret}",
            "nonsense": "let me in",
            "none": "",
        }[case]
        with caplog.at_level(logging.WARNING):
            assert Impostor(server.address, credential).is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        assert "refused" in caplog.text
        assert secret not in caplog.text
        assert all(link.trouble == "not connected" for link in server.links)


def test_a_token_opens_once_and_an_old_secret_never_again() -> None:
    with listening() as (server, access):
        overheard = [access.tokens[1]]
        admit = access.admit

        def eavesdrop(credential: str) -> tuple[int, str]:
            client, offered = admit(credential)
            overheard.append(offered)
            return client, offered

        access.admit = eavesdrop  # type: ignore[method-assign]
        Served(server, access.tokens[1])
        wait_until(lambda: server.links[1].trouble is None, "the client is here")
        assert Impostor(server.address, overheard[0]).is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        first = server.links[1]._connection
        assert first is not None
        first.cancel()
        wait_until(lambda: server.links[1]._connection not in (None, first), "the client is back")
        for used in overheard[:-1]:
            assert Impostor(server.address, used).is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        assert server.links[1].trouble is None


def test_no_log_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    secrets = list[str]()
    with listening() as (server, access), caplog.at_level(logging.DEBUG):
        admit = access.admit
        access.admit = lambda credential: secrets.append(credential) or admit(credential)  # type: ignore[method-assign, func-returns-value]
        Served(server, access.tokens[0])
        wait_until(lambda: server.links[0].trouble is None, "the client is here")
        Impostor(server.address, access.tokens[0]).is_refused_with()
        Impostor(server.address, access.tokens[1] + "0").is_refused_with()
        first = server.links[0]._connection
        assert first is not None
        first.cancel()
        wait_until(lambda: len(secrets) > 1, "the client is back")
        assert not any(one.partition(".")[2] in caplog.text for one in [*secrets, *access.tokens])


def test_a_full_disk_lets_nobody_in_and_forgets_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise AsflError("can't write keys.json: No space left on device")

    with StreamServer("127.0.0.1:0", AGREEMENT, keys=tmp_path / "keys.json") as server:
        token = server.access.tokens[0]
        with monkeypatch.context() as patch:
            patch.setattr("asfl.field.stream.keys.write_whole", full)
            assert Impostor(server.address, token).is_refused_with() == grpc.StatusCode.UNAVAILABLE
        Served(server, token)
        wait_until(lambda: server.links[0].trouble is None, "the client is here")


def test_a_used_token_ends_the_second_client_with_a_clear_error() -> None:
    with listening() as (server, access):
        Served(server, access.tokens[0])
        wait_until(lambda: server.links[0].trouble is None, "the client is here")
        late = Served(server, access.tokens[0])
        assert late.ended()
        assert "refused this client: not admitted" in str(late.error)


def test_another_version_is_refused() -> None:
    with listening() as (server, access):
        assert (
            Impostor(server.address, access.tokens[0], "0.0.1").is_refused_with() == grpc.StatusCode.FAILED_PRECONDITION
        )
        stranger = Impostor(server.address, "0." + "ab" * 32, "0.0.1")  # isn't told which version this is
        assert stranger.is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        Served(server, access.tokens[0])  # and the token is still good
        wait_until(lambda: server.links[0].trouble is None, "the client is here")


def test_a_server_that_cannot_show_the_right_certificate_is_not_talked_to(tmp_path: Path) -> None:
    own, other = (make_certificates(tmp_path / name, ["127.0.0.1"]) for name in ("own", "other"))
    elsewhere = make_certificates(tmp_path / "elsewhere", ["192.0.2.1"])
    for certificates, authority in ((own, other.authority), (elsewhere, elsewhere.authority)):
        with listening(certificates) as (server, access):
            with pytest.raises(AsflError, match=r"no connection for 0\.2 s"):
                serve(server.address, access.tokens[0], authority=authority, patience_s=0.2)
            assert access.admit(access.tokens[0])[0] == 0  # the token was never shown


# ---------------------------------------------------------------------- what is refused
def admitted(server: StreamServer, access: Access, client: int = 0) -> Impostor:
    impostor = Impostor(server.address, access.tokens[client])
    impostor.hears()
    return impostor


def welcomed(server: StreamServer, access: Access) -> tuple[Impostor, StreamLink]:
    """One that has also said it is ready, so that the server may ask it."""
    impostor, link = admitted(server, access), server.links[0]
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
        (list(split(pack("ready", {}, {}))), "node is missing"),
        (words_of(Ready("x" * 1000)), "should have at most 32 characters"),
        ([*words_of(READY), *words_of(Where(3))], "an answer to nothing"),
        ([*words_of(READY), *words_of(READY)], "an answer to nothing"),
        ([*words_of(READY), struct.pack("<Q", LARGEST + 1)], "more than the"),
        ([*words_of(READY), struct.pack("<Q", LARGEST) + b"x" * 100, b""], "an empty chunk"),
    ],
)
def test_whoever_sends_nonsense_is_cut_off(chunks: list[bytes], words: str, caplog: pytest.LogCaptureFixture) -> None:
    with listening() as (server, access), caplog.at_level(logging.WARNING):
        impostor = admitted(server, access)
        impostor.says(*chunks)
        assert impostor.is_refused_with() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
        wait_until(lambda: server.links[0].trouble == "not connected", "the stream is closed")
        wait_until(lambda: words in caplog.text, f"the log says {words}")


def test_a_chunk_above_the_limit_of_grpc_is_cut_off() -> None:
    with listening() as (server, access):
        impostor, _ = welcomed(server, access)
        future = server.links[0].ask(Ping(), 60)
        impostor.says(bytes(2 * CHUNK))
        with pytest.raises(LinkError, match=r"the connection (broke|was closed)"):
            future.result(60)
        assert impostor.is_refused_with() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_garbage_instead_of_an_answer_fails_the_request_with_the_reason() -> None:
    with listening() as (server, access):
        impostor, link = welcomed(server, access)
        future = link.ask(Ping(), 60)
        impostor.says(struct.pack("<Q", 30) + b"?" * 30)
        with pytest.raises(AsflError, match="not a message"):
            future.result(60)
        assert link.trouble is None  # it may still do better


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:0", "needs TLS"),
        ("[::]:0", "needs TLS"),
        ("192.0.2.7:7400", "needs TLS"),
        ("server.example:7400", "needs TLS"),
        ("127.0.0.1.example:7400", "needs TLS"),
        ("127.0.0.1", "host:port"),
        ("127.0.0.1:99999", "host:port"),
        ("unix:/tmp/x", "host:port"),
        ("", "host:port"),
    ],
)
def test_without_tls_nothing_leaves_this_machine(address: str, words: str) -> None:
    for call in (lambda: StreamServer(address, AGREEMENT), lambda: serve(address, Access(1).tokens[0])):
        with pytest.raises(AsflError, match=words):
            call()


def test_loopback_is_what_it_says() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "1.127.0.0")))
    check_address("192.0.2.7:7400", encrypted=True)


def test_mistakes_in_files_and_ports(tmp_path: Path) -> None:
    nothing = Certificates(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with pytest.raises(AsflError, match="can't read"):
        StreamServer("127.0.0.1:0", AGREEMENT, nothing)
    with pytest.raises(AsflError, match="can't read"):
        serve("127.0.0.1:1", Access(1).tokens[0], authority=tmp_path / "none.pem")
    with pytest.raises(AsflError, match="not a credential"):
        serve("127.0.0.1:1", "token")
    with listening() as (server, _), pytest.raises(AsflError, match="can't listen on"):
        StreamServer(server.address, AGREEMENT)
    with listening() as (server, _), pytest.raises(AsflError, match=r"4 of 4 clients didn't come.*: 0, 1, 2, 3"):
        server.wait_for_clients(0.1)


# ---------------------------------------------------------------------- when it breaks
def test_a_client_comes_back_with_the_state_it_had() -> None:
    with listening() as (server, access):
        client, link = Served(server, access.tokens[0]), server.links[0]
        wait_until(lambda: link.trouble is None, "the client is here")
        nothing = ModelVectors(torch.empty(0), torch.empty(0))
        assert isinstance(link.ask(Sync(0, nothing, round=7), 60).result(60), Where)
        for _ in range(3):
            before = link._connection
            assert before is not None
            before.cancel()
            wait_until(lambda before=before: link._connection not in (None, before), "the client is back")  # type: ignore[misc]
            where = link.ask(Ping(), 60).result(60)
            assert isinstance(where, Where)
            assert (where.round, where.cut) == (7, 0)
        assert len(client.nodes) == 1


def test_a_request_under_way_fails_when_the_stream_breaks() -> None:
    with listening() as (server, access):
        impostor, link = welcomed(server, access)
        future = link.ask(Forward(0, 1), 60)
        assert link.trouble == "still busy with forward"
        with pytest.raises(LinkError, match="still busy with forward"):
            link.ask(Ping(), 60).result(1)
        impostor._call.cancel()
        with pytest.raises(LinkError, match="the connection"):
            future.result(60)
        assert link.trouble == "not connected"
        with pytest.raises(LinkError, match="not connected"):
            link.ask(Ping(), 60).result(1)


def test_a_late_answer_ends_the_request_and_nothing_else() -> None:
    with listening() as (server, access):
        impostor, link = welcomed(server, access)
        future = link.ask(Forward(0, 1), 60)
        with pytest.raises(TimeoutError):
            future.result(0.05)
        impostor.says(*words_of(Where(1)))
        wait_until(lambda: link.trouble is None, "the answer came")
        second = link.ask(Ping(), 60)
        impostor.says(*words_of(Where(2)))
        assert isinstance(second.result(60), Where)


def test_a_request_that_waited_too_long_is_not_sent() -> None:
    with listening() as (server, access):
        client, link = Served(server, access.tokens[0]), server.links[0]
        wait_until(lambda: link.trouble is None, "the client is here")
        with pytest.raises(LinkError, match="could not be sent in time"):
            link.ask(Bye(), -1.0).result(60)
        assert isinstance(link.ask(Ping(), 60).result(60), Where)
        assert not client.nodes[0].said_bye


def next_credential(impostor: Impostor) -> str:
    joined = Joiner(1 << 20).add(impostor.hears())
    assert joined is not None
    return decode(joined, Welcome).credential


def test_the_newest_stream_of_a_client_counts() -> None:
    with listening() as (server, access):
        first = Impostor(server.address, access.tokens[0])
        held = next_credential(first)
        first.says(*words_of(READY))
        wait_until(lambda: server.links[0].trouble is None, "the first is here")
        future = server.links[0].ask(Ping(), 60)
        second = Impostor(server.address, held)  # the first is broken, and the server hasn't noticed
        second.hears()
        second.says(*words_of(READY))
        with pytest.raises(LinkError, match="connected anew"):
            future.result(60)
        assert first.is_refused_with() == grpc.StatusCode.CANCELLED
        assert server.links[0].trouble is None


def test_of_two_with_the_same_token_only_one_comes_in(caplog: pytest.LogCaptureFixture) -> None:
    with listening() as (server, access), caplog.at_level(logging.WARNING):
        first, token = admitted(server, access), access.tokens[0]
        assert Impostor(server.address, token).is_refused_with() == grpc.StatusCode.UNAVAILABLE  # for the moment
        first.says(*words_of(READY))
        wait_until(lambda: server.links[0].trouble is None, "the first is here")
        connection = server.links[0]._connection
        assert Impostor(server.address, token).is_refused_with() == grpc.StatusCode.PERMISSION_DENIED
        wait_until(lambda: "used before" in caplog.text, "the log says why")
        assert server.links[0]._connection is connection


def test_who_comes_later_takes_the_place_of_one_that_never_says_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.field.stream.server.LET_IN_S", 0.0)
    with listening() as (server, access):
        silent, second = admitted(server, access), admitted(server, access)
        assert silent.is_refused_with() == grpc.StatusCode.CANCELLED
        second.says(*words_of(READY))
        wait_until(lambda: server.links[0].trouble is None, "the second is here")


def test_the_link_knows_whether_the_same_node_is_back() -> None:
    with listening() as (server, access):
        link = server.links[0]
        assert link.generation == 0
        credential = access.tokens[0]
        for node, expected in (("one", 1), ("one", 1), ("two", 2), ("one", 3)):
            before, impostor = link._connection, Impostor(server.address, credential)
            credential = next_credential(impostor)
            impostor.says(*words_of(Ready(node)))
            wait_until(lambda before=before: link._connection not in (None, before), "it is here")  # type: ignore[misc]
            assert link.generation == expected
            impostor.leaves()


def test_a_process_that_replaced_another_is_another_node() -> None:
    with listening() as (server, access):
        link = server.links[0]
        Served(server, access.tokens[0])
        wait_until(lambda: link.trouble is None, "the client is here")
        before = link._connection
        assert before is not None
        before.cancel()
        wait_until(lambda: link._connection not in (None, before), "the client is back")
        assert link.generation == 1
        Served(server, access.renew(0))
        wait_until(lambda: link.generation == 2, "another process is here")


def test_nobody_there_is_given_up_after_a_while() -> None:
    with listening() as (server, access):
        pass
    started = time.monotonic()
    with pytest.raises(AsflError, match=r"no connection for 0.5 s \(unavailable"):
        serve(server.address, access.tokens[0], patience_s=0.5)
    assert time.monotonic() - started > 0.5


def test_a_client_without_the_data_says_so(tmp_path: Path) -> None:
    with (
        StreamServer("127.0.0.1:0", agreement_of(tiny("data.name=cifar10"), "asfl")) as server,
        pytest.raises(AsflError, match="asfl data fetch cifar10"),
    ):
        serve(server.address, server.access.tokens[0], data_dir=tmp_path)
