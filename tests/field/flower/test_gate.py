"""The gate in front of a SuperLink: calls of SuperNodes pass, nothing else does."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.field.flower import gate as gates
from asfl.field.flower.door import PER_ADDRESS, Door
from asfl.field.stream.certificates import Certificates, make_certificates

METHODS = ["GET", "POST", "PUT", "DELETE"]


class Behind:
    """Something that takes every call and remembers it."""

    def __init__(self, certificates: Certificates) -> None:
        self.calls: list[tuple[str, str, bytes, str]] = []
        app = Starlette(routes=[Route("/{path:path}", self._take, methods=METHODS)])
        tls = {"ssl_certfile": str(certificates.certificate), "ssl_keyfile": str(certificates.key)}
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", ws="none", lifespan="off", **tls)  # type: ignore[arg-type]
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, "it listens")
        self.address = f"https://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        self.calls.append((request.method, request.url.path, body, request.headers.get("x-signature", "")))
        return Response(b"answer to " + body, 412, {"x-more": "yes"})

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("pem"), ["127.0.0.1"])


@pytest.fixture(scope="module")
def behind(certificates: Certificates) -> Iterator[Behind]:
    started = Behind(certificates)
    yield started
    started.end()


def call(behind: str, authority: Path, method: str, path: str, body: bytes = b"") -> httpx.Response:
    async def once() -> httpx.Response:
        app = gates.gate(behind, authority)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as client,
        ):
            return await client.request(method, path, content=body, headers={"x-signature": "mine"})

    return asyncio.run(once())


def test_calls_of_supernodes_pass(behind: Behind, certificates: Certificates) -> None:
    behind.calls.clear()
    answer = call(behind.address, certificates.authority, "POST", "/v1/fleet/pull-messages", b"\x00protobuf")
    assert behind.calls == [("POST", "/v1/fleet/pull-messages", b"\x00protobuf", "mine")]
    assert (answer.status_code, answer.content) == (412, b"answer to \x00protobuf")
    assert answer.headers["x-more"] == "yes"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/health", "/", "/v1/fleet",
        "/v1/fleet/", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/%2e%2e",
        "/v1/fleet/..%2fcontrol%2fstart-run", "/v1/fleet//start-run", "//v1/control/start-run", "/v1/fleet/a/b",
        "/v1/fleet/x?y=/v1/control", "/V1/FLEET/x",
    ],
)  # fmt: skip
def test_nothing_else_does(method: str, path: str, behind: Behind, certificates: Certificates) -> None:
    behind.calls.clear()
    answer = call(behind.address, certificates.authority, method, path)
    reached = [call for call in behind.calls if call[1] != "/v1/fleet/x"]  # a query isn't passed on
    assert reached == []
    assert answer.status_code in ((404, 405) if "?" not in path else (404, 405, 412))


def test_long_bodies_are_refused(behind: Behind, certificates: Certificates) -> None:
    behind.calls.clear()
    body = bytes(gates.LARGEST_BODY + 1)
    assert call(behind.address, certificates.authority, "POST", "/v1/fleet/push-object", body).status_code == 413
    assert behind.calls == []


def test_a_superlink_that_isnt_there_or_isnt_ours(behind: Behind, tmp_path: Path, certificates: Certificates) -> None:
    nobody = call("https://127.0.0.1:9", certificates.authority, "POST", "/v1/fleet/x")
    other = make_certificates(tmp_path, ["127.0.0.1"])
    behind.calls.clear()
    stranger = call(behind.address, other.authority, "POST", "/v1/fleet/x")
    assert (nobody.status_code, stranger.status_code) == (503, 503)
    assert behind.calls == []


@pytest.mark.parametrize(
    ("listen", "words"), [("here", "write it as host:port"), ("127.0.0.1:9092", "authority.pem: no such file")]
)
def test_mistakes_are_named(listen: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(AsflError, match=words):
        gates.main(["--listen", listen, "--certificates", str(tmp_path)])


# ---------------------------------------------------------------------- strangers
class Open:
    """A gate that listens, in a thread."""

    def __init__(self, behind: str, certificates: Certificates) -> None:
        self._door = Door.at("127.0.0.1", 0)
        app = gates.gate(behind, certificates.authority)
        self._server = gates.served(app, certificates.certificate, certificates.key)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._door]}, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, "it listens")
        self.place = "127.0.0.1", int(self._door.getsockname()[1])
        self.address = f"https://127.0.0.1:{self.place[1]}"

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._door.close()


@pytest.fixture
def opened(behind: Behind, certificates: Certificates) -> Iterator[Open]:
    gate = Open(behind.address, certificates)
    yield gate
    gate.end()


def test_hundreds_of_half_open_requests_of_one_address_harm_nobody_else(
    opened: Open, certificates: Certificates
) -> None:
    with ExitStack() as connections:
        for _ in range(300):
            stranger = connections.enter_context(socket.socket())
            stranger.bind(("127.0.0.2", 0))
            stranger.connect(opened.place)
            stranger.send(b"\x16\x03\x01")  # the beginning of a handshake
        tls = ssl.create_default_context(cafile=str(certificates.authority))
        with httpx.Client(verify=tls, trust_env=False) as client:
            answer = client.post(f"{opened.address}/v1/fleet/pull-messages", content=b"x")
        assert answer.status_code == 412  # what the SuperLink says
        assert opened._door._inside["127.0.0.2"] <= PER_ADDRESS
    wait_until(lambda: not opened._door._inside["127.0.0.2"], "they are counted out again")


def test_many_addresses_together_are_too_many_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.field.flower.door.IN_ALL", 3)
    with Door.at("127.0.0.1", 0) as door, ExitStack() as connections:
        door.listen()
        for number in range(2, 6):
            stranger = connections.enter_context(socket.socket())
            stranger.bind((f"127.0.0.{number}", 0))
            stranger.connect(door.getsockname())
        for _ in range(3):
            connections.enter_context(door.accept()[0])
        with pytest.raises(ConnectionAbortedError):
            door.accept()


def test_a_body_that_does_not_come_to_an_end_is_refused(
    behind: Behind, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_BODY_WITHIN_S", 0.05)

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def once() -> list[object]:
        app, sent = gates.gate(behind.address, certificates.authority), list[object]()

        async def send(message: dict[str, object]) -> None:
            sent.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/x", "headers": [], "query_string": b""}
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)  # type: ignore[arg-type]
        return sent

    assert asyncio.run(once())[0] == 408


def test_a_request_that_does_not_come_to_an_end_is_closed(
    opened: Open, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.field.flower.door.HEADER_WITHIN_S", 0.1)
    tls = ssl.create_default_context(cafile=str(certificates.authority))
    with (
        socket.create_connection(opened.place, LONG_S) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as half,
    ):
        half.send(b"POST /v1/fleet/x HTTP/1.1\r\nx-more: ")
        with suppress(ConnectionError, ssl.SSLError):
            assert half.recv(1) == b""
