"""The server of all HTTP ports: clients that drip, flood or listen slowly keep no other client out, and hold little."""

import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from hypothesis import given, strategies as st
from waiting import LONG_S, wait_until

from asfl.runs import http_server
from asfl.runs.http_server import MOST_BYTES, PLACES, Asked, HttpServer, Reply, _loser, _network, _Visit


def echo(asked: Asked) -> Reply:
    return Reply(f"{asked.path} {asked.host} {asked.body!r}".encode())


def get(server: HttpServer, path: str = "/") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=LONG_S) as answer:
        return str(answer.read().decode())


def caller(server: HttpServer, begin: bytes = b"", here: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_port), LONG_S, (here, 0))
    connection.sendall(begin)
    return connection


def all_of(connection: socket.socket) -> bytes:
    return connection.makefile("rb").read()


class Drippers:
    """So many connections that say a byte now and then, and call again as soon as they are closed."""

    def __init__(self, server: HttpServer, count: int, here: str = "127.0.0.1") -> None:
        self._server, self._here, self._over = server, here, threading.Event()
        self._threads = [threading.Thread(target=self._drip, daemon=True) for _ in range(count)]

    def _drip(self) -> None:
        while not self._over.is_set():
            with suppress(OSError), closing(caller(self._server, b"GET / HTTP", self._here)) as connection:
                while not self._over.wait(0.1):
                    connection.send(b"x")

    def __enter__(self) -> "Drippers":
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self._server._visits) >= min(len(self._threads), PLACES), "they are in")
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()


@contextmanager
def visits_of(server: HttpServer) -> Iterator[list[int]]:
    """The largest number of connections there was, looked at often."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], len(server._visits))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def test_honest_calls_win_against_drippers_of_the_same_address() -> None:
    with HttpServer("127.0.0.1", 0, echo) as server, visits_of(server) as most, Drippers(server, PLACES + 20):
        assert [get(server, f"/{number}")[:2] for number in range(8)] == [f"/{number}" for number in range(8)]
    assert PLACES <= most[0] <= PLACES + http_server._LEAVING


def test_who_is_alone_at_an_address_is_never_hung_up_on_for_a_crowd_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SHORT_S", 0.0)
    with HttpServer("127.0.0.1", 0, echo) as server, closing(caller(server, b"GET /slow HT", "127.0.0.2")) as slow:
        wait_until(lambda: server._visits)
        with ExitStack() as crowd:
            for _ in range(3 * PLACES):
                crowd.enter_context(closing(caller(server, b"GET")))
            slow.sendall(b"TP/1.0\r\n\r\n")
            assert b"/slow" in all_of(slow)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1))
def test_the_loser_is_the_oldest_open_request_of_the_largest_crowd(crowd: list[tuple[str, bool]]) -> None:
    visits = [_Visit(socket.socket.__new__(socket.socket), network, asked=asked) for network, asked in crowd]
    visits.append(_Visit(visits[0].connection, "newcomer"))
    counted = Counter(visit.network for visit in visits if not visit.asked)
    loser = _loser(visits)
    assert not loser.asked
    assert counted[loser.network] == max(counted.values())
    before = visits[: visits.index(loser)]
    assert all(visit.asked or visit.network != loser.network for visit in before)


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert _network("2001:db8::1") == _network("2001:db8::ffff:1") != _network("2001:db8:0:1::1")
    assert _network("fe80::1%eth0") == _network("fe80::2")
    assert _network("192.0.2.1") != _network("192.0.2.2")


def test_a_request_that_is_answered_is_not_dropped_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An enrolment would be lost: its code is used, and the device doesn't know."""
    monkeypatch.setattr(http_server, "SHORT_S", 0.0)
    go_on = threading.Event()

    def slowly(asked: Asked) -> Reply:
        go_on.wait(LONG_S)
        return echo(asked)

    with HttpServer("127.0.0.1", 0, slowly) as server, ExitStack() as crowd:
        honest = crowd.enter_context(closing(caller(server, b"GET /first HTTP/1.0\r\n\r\n")))
        wait_until(lambda: any(visit.asked for visit in server._visits.values()))
        for _ in range(3 * PLACES):
            crowd.enter_context(closing(caller(server)))
        go_on.set()
        assert b"/first" in all_of(honest)


def test_time_is_over_however_slowly_a_client_speaks_or_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WITHIN_S", 0.2)
    with HttpServer("127.0.0.1", 0, lambda asked: Reply(bytes(50_000_000))) as server:
        with closing(caller(server, b"GET / HTTP/1.0\r\n\r\n")), Drippers(server, 3):
            begun = min(visit.began for visit in server._visits.values())
            wait_until(lambda: all(visit.began > begun for visit in list(server._visits.values())), "the first are out")
        wait_until(lambda: not server._visits, "all are out")


def test_of_a_request_only_so_many_bytes_are_read() -> None:
    asked, begins = (
        list[Asked](),
        (b"POST /long", b"POST / HTTP/1.0\r\nx: ", b"POST / HTTP/1.0\r\nContent-Length: 9999999999\r\n\r\n"),
    )

    def answer(one: Asked) -> Reply:
        asked.append(one)
        return echo(one)

    with HttpServer("127.0.0.1", 0, answer, method="POST") as server:
        for begin in begins:
            with suppress(ConnectionError), closing(caller(server)) as client:
                client.sendall(begin + b"x" * (1 << 20))
        wait_until(lambda: not server._visits)
    assert all(len(one.path) + len(one.body) <= MOST_BYTES for one in asked)


def test_only_its_method_is_answered_and_a_mistake_of_ours_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(asked: Asked) -> Reply:
        raise ZeroDivisionError("ours")

    with HttpServer("127.0.0.1", 0, wrong) as server:
        for method, status in ((b"POST", b" 501 "), (b"HEAD", b" 501 "), (b"GET", b"")):
            with closing(caller(server, method + b" / HTTP/1.0\r\n\r\n")) as client:
                assert status in client.recv(10_000)
        wait_until(lambda: not server._visits)
    assert "a request of 127.0.0.1 failed: ZeroDivisionError('ours')" in caplog.text


def test_without_a_file_left_it_waits_instead_of_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer("127.0.0.1", 0, echo) as server:
        accept, refused = server.socket.accept, [OSError(24, "Too many open files")] * 3

        class Full:
            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

            def accept(self) -> object:
                if refused:
                    raise refused.pop()
                return accept()

        real = server.socket
        monkeypatch.setattr(server, "socket", Full())
        assert get(server, "/here").startswith("/here")
        monkeypatch.undo()
    assert not refused
