"""The sessions as the ServerApp keeps them, and the ClientApp's answers to them; only Flower itself is missing."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given, strategies as st
from post import Post, context_of
from small_runs import CLIENTS, agreement_of, tiny
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.field.flower import client_app, sessions
from asfl.field.flower.session import MESSAGE, Farewell, Session
from asfl.field.flower.sessions import Sessions, assign_nodes, wait_for_nodes
from asfl.field.stream.access import AccessError, client_of
from asfl.field.stream.certificates import make_certificates
from asfl.field.stream.server import StreamServer

NODES = [11, 22, 33, 44]
AGREEMENT = agreement_of(tiny(rounds=1), "asfl")


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The apps let asfl speak in the process they are in, which elsewhere is one of Flower's."""
    logger = logging.getLogger("asfl")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StreamServer, str]]:
    certificates = make_certificates(tmp_path_factory.mktemp("pem"), ["127.0.0.1"])
    with StreamServer("127.0.0.1:0", AGREEMENT, certificates) as server:
        yield server, certificates.authority.read_text()


@pytest.fixture
def office(authority: tuple[StreamServer, str]) -> tuple[Post, Sessions]:
    post = Post(NODES)
    return post, Sessions(post, *(authority[0], NODES, authority[1]), patience_s=LONG_S)


@contextmanager
def taking_part(*clients: Session, node_config: client_app.NodeConfig | None = None) -> Iterator[None]:
    """Real clients, in threads."""
    arguments = [(session, node_config or client_app.NodeConfig()) for session in clients]
    threads = [threading.Thread(target=client_app.take_part, args=each, daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


# ---------------------------------------------------------------------- messages
def test_a_session_survives_the_post() -> None:
    session = Session("127.0.0.1:7400", "3.abc", "-----BEGIN", 3, 60.0)
    assert Session.of(session.content()) == session


@pytest.mark.parametrize("record", [{}, {"address": "a:1"}, {"address": "a:1", "token": "t", "authority": "p"}])
def test_what_is_no_session_is_refused(record: dict[str, str]) -> None:
    with pytest.raises(AsflError, match="does the server run the same asfl"):
        Session.of(RecordDict({"session": ConfigRecord(dict(record))}))
    with pytest.raises(AsflError, match="the same asfl"):
        Session.of(RecordDict())


def test_farewells() -> None:
    for farewell in (Farewell("done"), Farewell("failed", "no data"), Farewell("declined", claim=2)):
        assert Farewell.of(farewell.content()) == farewell
    assert Farewell.of(RecordDict()) == Farewell("failed", "no reason was given")
    odd = RecordDict({"session": ConfigRecord({"outcome": "declined", "claim": "me"})})
    assert Farewell.of(odd).outcome == "failed"


# ---------------------------------------------------------------------- the client's side
def test_the_clientapp_takes_part_until_the_bye(
    office: tuple[Post, Sessions], authority: tuple[StreamServer, str]
) -> None:
    post, kept = office
    server = authority[0]
    kept.invite(kept.node_of)
    assert [message.metadata.message_type for message in post.sent] == [MESSAGE] * CLIENTS
    with taking_part(*(session for node in NODES for session in post.sessions(node))):
        kept.wait_for_clients(1200, never)
        assert all(link.connected for link in server.links)
        server.say_bye()


@pytest.mark.parametrize(
    ("node_config", "words"),
    [
        ({"data_dir": "x"}, "unknown key 'data_dir': did you mean 'data-dir'?"),
        ({"client": "two"}, "client = 'two' must be a whole number ≥ 0"),
        ({"client": -1}, "client = -1 must be a whole number"),
    ],
)
def test_mistakes_in_the_node_config_come_back(node_config: dict[str, bool | int | float | str], words: str) -> None:
    session = Session("127.0.0.1:9", "0." + 64 * "0", "", 0, 1.0)
    reply = client_app.app(Message(session.content(), 1, MESSAGE), context_of(node_config))
    farewell = Farewell.of(reply.content)
    assert farewell.outcome == "failed"
    assert words in farewell.reason


def test_node_configs() -> None:
    of = client_app.NodeConfig.of
    assert of({}) == client_app.NodeConfig()
    assert of({"data-dir": "/d", "client": 3, "meter": "ina219"}) == client_app.NodeConfig(Path("/d"), 3, "ina219")
    assert of({"partition-id": 1, "num-partitions": 4}) == client_app.NodeConfig()


def test_a_device_that_is_another_client_declines() -> None:
    session = Session("127.0.0.1:9", "0." + 64 * "0", "", 0, 1.0)
    reply = client_app.app(Message(session.content(), 1, MESSAGE), context_of({"client": 2}))
    assert Farewell.of(reply.content) == Farewell("declined", claim=2)


def test_a_refused_token_comes_back_as_a_failure(authority: tuple[StreamServer, str]) -> None:
    server, pem = authority
    session = Session(server.address, "0." + 64 * "0", pem, 0, 1.0)
    farewell = Farewell.of(client_app.app(Message(session.content(), 1, MESSAGE), context_of({})).content)
    assert farewell.outcome == "failed"
    assert "refused this client" in farewell.reason


# ---------------------------------------------------------------------- the server's side
def test_everybody_gets_one_session_with_a_token_of_its_own(
    office: tuple[Post, Sessions], authority: tuple[StreamServer, str]
) -> None:
    post, kept = office
    kept.invite(kept.node_of)
    assert kept.node_of == dict(enumerate(NODES))
    for client, node in kept.node_of.items():
        (session,) = post.sessions(node)
        assert (session.client, client_of(session.token)) == (client, client)
        assert session.address == authority[0].address
        assert authority[0].access.admit(session.token)[0] == client


def test_extra_nodes_get_none(authority: tuple[StreamServer, str]) -> None:
    post = Post([*NODES, 55])
    kept = Sessions(post, authority[0], post.nodes, authority[1], 5.0)
    kept.invite(kept.node_of)
    assert post.sessions(55) == []


def test_a_device_with_a_number_changes_places(
    office: tuple[Post, Sessions], authority: tuple[StreamServer, str]
) -> None:
    post, kept = office
    kept.invite(kept.node_of)
    old = post.sessions(33)[0]
    post.reply(11, Farewell("declined", claim=2))
    kept.look()
    assert kept.node_of == {0: 22, 1: 33, 2: 11, 3: 44}
    assert [len(post.sessions(node)) for node in NODES] == [2, 2, 2, 1]
    assert post.sessions(11)[-1].client == 2
    with pytest.raises(AccessError):
        authority[0].access.admit(old.token)
    post.reply(44, Farewell("declined", claim=2))
    with pytest.raises(AsflError, match="both say they are client 2"):
        kept.look()


@pytest.mark.parametrize(
    ("farewell", "words"),
    [
        (Farewell("failed", "digits: no such file"), r"client 1 \(node 22\) can't take part: digits: no such file"),
        (Error(0, "node is gone"), r"client 1 \(node 22\) can't take part: node is gone"),
    ],
)
def test_who_cant_take_part_ends_the_run_before_it_begins(
    office: tuple[Post, Sessions], farewell: Farewell | Error, words: str
) -> None:
    post, kept = office
    kept.invite(kept.node_of)
    post.reply(22, farewell)
    with pytest.raises(AsflError, match=words):
        kept.wait_for_clients(1200, never)


def test_who_didnt_come_is_named(office: tuple[Post, Sessions]) -> None:
    _, kept = office
    kept.invite(kept.node_of)
    with pytest.raises(AsflError, match=r"4 of 4 clients didn't come within 0\.01 s.*3 \(node 44\)"):
        kept.wait_for_clients(0.01, never)
    with pytest.raises(AsflError, match="stopped before the first round"):
        kept.wait_for_clients(1200, lambda: True)


def test_who_is_lost_later_gets_another_session(
    office: tuple[Post, Sessions], authority: tuple[StreamServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ClientApp crashed, or its device was started anew: the node is there, the client isn't."""
    for name, value in {"_LOOK_EVERY_S": 0.02, "_FIRST_PAUSE_S": 0.05, "_CALLS_AGAIN_S": 0.3}.items():
        monkeypatch.setattr(sessions, name, value)
    post, server = Post(NODES), authority[0]
    kept = Sessions(post, server, NODES, authority[1], patience_s=0.3)
    kept.invite(kept.node_of)
    first = {node: replace(post.sessions(node)[0], patience_s=LONG_S) for node in NODES}  # they do come
    post.nodes.remove(44)
    with taking_part(first[11], first[22]):
        wait_until(lambda: server.links[0].connected and server.links[1].connected, "two are here")
        with kept:
            post.reply(33, Error(0, "crashed"))
            wait_until(lambda: len(post.sessions(33)) > 1, "who crashed has another session")
            post.nodes.append(44)
            wait_until(lambda: len(post.sessions(44)) > 1, "who was away has another session")
            assert [len(post.sessions(node)) for node in (11, 22)] == [1, 1]
            kept.invite_nobody_else()
            server.say_bye()
            for node in NODES:
                post.reply(node, Farewell("failed", "late") if node == 44 else Farewell("done"))


def test_time_away_doesnt_put_the_next_session_off(
    authority: tuple[StreamServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower notices a crash after a minute only; then the pause is the first one all the same."""
    for name, value in {"_LOOK_EVERY_S": 0.01, "_FIRST_PAUSE_S": 0.01, "_FAREWELL_S": 0.1}.items():
        monkeypatch.setattr(sessions, name, value)
    post = Post(NODES)
    kept = Sessions(post, authority[0], NODES, authority[1], patience_s=1000.0)
    kept.invite(kept.node_of)
    with kept:
        wait_until(lambda: post.asked > 30, "it was away for long")
        post.reply(33, Error(0, "crashed"))
        wait_until(lambda: len(post.sessions(33)) > 1, "it has another session")


def test_the_superlink_may_be_away_for_a_while(
    authority: tuple[StreamServer, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"_LOOK_EVERY_S": 0.02, "_FAREWELL_S": 0.1}.items():
        monkeypatch.setattr(sessions, name, value)
    post = Post(NODES)

    def away(message_ids: object) -> list[Message]:
        raise ConnectionError("nobody there")

    kept = Sessions(post, authority[0], NODES, authority[1], patience_s=LONG_S)
    kept.invite(kept.node_of)
    with monkeypatch.context() as patch:
        patch.setattr(post, "pull_messages", away)
        with caplog.at_level("WARNING"), kept:
            wait_until(lambda: "nobody there" in caplog.text, "it is said")


def test_waiting_for_nodes() -> None:
    assert wait_for_nodes(Post(NODES), 3, 1.0, never) == NODES
    with pytest.raises(AsflError, match=r"scenario.clients = 5.*there are 4 \(11, 22, 33, 44\).*num-supernodes=5"):
        wait_for_nodes(Post(NODES), 5, 1e-9, never)
    with pytest.raises(AsflError, match="stopped"):
        wait_for_nodes(Post([]), 1, 60.0, lambda: True)


def test_whoever_comes_prolongs_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node every 20 s is waited for if the next may take 30 s: however many are needed."""
    post, now = Post([]), 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += 20.0
        post.nodes = NODES[: int(now // 20)]

    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    assert wait_for_nodes(post, 4, 30.0, never) == NODES
    with pytest.raises(AsflError, match="no other came within 30 s"):
        wait_for_nodes(post, 5, 30.0, never)


# ---------------------------------------------------------------------- which node is which client
def test_nodes_are_assigned_in_the_order_of_their_ids() -> None:
    assert assign_nodes(3, [30, 10, 20, 40], {}) == {0: 10, 1: 20, 2: 30}


def test_a_node_that_knows_its_number_gets_it() -> None:
    assert assign_nodes(3, [10, 20, 30], {10: 2}) == {0: 20, 1: 30, 2: 10}
    assert assign_nodes(3, [10, 20, 30, 40], {40: 0}) == {0: 40, 1: 10, 2: 20}
    assert assign_nodes(2, [10, 20, 30], {10: 7}) == {0: 20, 1: 30}


@given(st.data())
def test_every_client_has_a_node_and_no_node_two_clients(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 6))
    nodes = data.draw(st.lists(st.integers(1, 2**64 - 1), min_size=clients, max_size=10, unique=True))
    knowing = data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=clients))
    numbers = data.draw(st.permutations(range(clients)))
    claims = dict(zip(knowing, numbers, strict=False))
    assigned = assign_nodes(clients, nodes, claims)
    assert list(assigned) == list(range(clients))
    assert len(set(assigned.values())) == clients
    assert set(assigned.values()) <= set(nodes)
    assert all(assigned[claim] == node for node, claim in claims.items())
    assert assign_nodes(clients, sorted(nodes), claims) == assigned


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({10: 1, 30: 1}, "nodes 10 and 30 both say they are client 1"),
        ({10: 5}, "no node is left for client 2"),
    ],
)
def test_claims_that_cant_be_met(claims: dict[int, int], words: str) -> None:
    with pytest.raises(AsflError, match=words):
        assign_nodes(3, [10, 20, 30], claims)
