"""HTTP for anything that reaches the port: a few short requests at a time, and no client can make them more or longer.

One connection, one request, of so many bytes. It is over after `WITHIN_S`, however slowly the client speaks or listens.
When all places are taken, newcomers queue for `SHORT_S` at most: then the address with the most open requests loses its
oldest one. Honest calls are short, so they get through, also those of devices behind the same router as the attacker.
"""

import io
import ipaddress
import logging
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self

_log = logging.getLogger(__name__)
PLACES, WITHIN_S, SHORT_S = 32, 20.0, 1.0
MOST_BYTES = 1 << 14
"""Of a request, with its first line and headers."""
_LEAVING = 16
"""Connections that were hung up on may still be there for a moment; with more of them newcomers are closed."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    host: str
    """As the client calls this server."""
    who: str
    """The client's address."""
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    content: bytes
    kind: str = "text/plain"
    status: int = 200


@dataclass(eq=False)
class _Visit:
    connection: socket.socket
    network: str
    began: float = field(default_factory=time.monotonic)
    asked: bool = False
    """The request is complete, and is being answered."""
    over: bool = False

    def now(self, connection: socket.socket) -> None:
        self.connection = connection
        if self.over:
            self.hang_up()

    def hang_up(self) -> None:
        self.over = True
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)  # its reader finds the end


class HttpServer(ThreadingHTTPServer):
    """Listens from the beginning; answers requests of one method while it is open, or in `serve_forever`.

    An `OSError` says why it can't listen.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[Asked], Reply],
        *,
        method: str = "GET",
        context: ssl.SSLContext | None = None,
    ) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.answer, self.method, self._context = answer, method, context
        self._visits: dict[Any, _Visit] = {}
        self._lock = threading.Condition()
        """Told when a connection is over."""
        super().__init__((host, port), _Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name=f"asfl-http-{self.server_port}", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the other one first asks the network what this machine is called
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    # ------------------------------------------------------------------ who is in
    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no file is left to this process; the caller waits in the queue, and so do we
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        visit = _Visit(request, _network(client_address[0]))
        with self._lock:
            if not self._has_place(visit):
                self.shutdown_request(request)
                return
            self._visits[client_address] = visit
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is left
            self._leaves(client_address)
            raise

    def _has_place(self, newcomer: _Visit) -> bool:
        """Others wait in the system's queue meanwhile."""
        while len(inside := [visit for visit in self._visits.values() if not visit.over]) >= PLACES:
            loser = _loser([*inside, newcomer])
            if loser is newcomer:
                return False
            left_s = loser.began + SHORT_S - time.monotonic()
            if left_s <= 0:
                loser.hang_up()
            else:
                self._lock.wait(left_s)
        return len(self._visits) < PLACES + _LEAVING

    def _leaves(self, client_address: Any) -> None:
        with self._lock:
            self._visits.pop(client_address)
            self._lock.notify()

    def service_actions(self) -> None:
        """Every half second."""
        begun = time.monotonic() - WITHIN_S
        with self._lock:
            for visit in self._visits.values():
                if visit.began < begun and not visit.over:
                    visit.hang_up()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._context is not None:
                with self._lock:  # from here on the other object is no socket any more
                    request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                    self._visits[client_address].now(request)
                request.do_handshake()  # in this thread, not where others wait
            super().process_request_thread(request, client_address)
        except OSError as error:
            _log.info("%s: %s", client_address[0], error)
            self.shutdown_request(request)
        finally:
            self._leaves(client_address)

    def complete(self, client_address: Any, asked: bool) -> None:
        """Its request is here, and nothing the client does lengthens what follows; or no longer."""
        with self._lock:
            self._visits[client_address].asked = asked

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            _log.info("%s left: %s", client_address[0], error)
        else:
            _log.error("a request of %s failed: %r", client_address[0], error)


def _network(address: str) -> str:
    """A subscriber has one address of IPv4, and 2^64 of IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return address if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _loser(visits: list[_Visit]) -> _Visit:
    """The oldest open request of the network with the most of them; visits come in the order of arrival."""
    open_ = [visit for visit in visits if not visit.asked]
    ((most, _),) = Counter(visit.network for visit in open_).most_common(1)
    return next(visit for visit in open_ if visit.network == most)


# ---------------------------------------------------------------------- one connection
class _Part(io.RawIOBase):
    """The first so many bytes of what comes; then its end."""

    def __init__(self, connection: socket.socket, left: int) -> None:
        self._connection, self.left = connection, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._connection.recv_into(buffer, min(len(buffer), self.left)) if self.left else 0
        self.left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    server_version, sys_version = "asfl", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Part(self.connection, MOST_BYTES))

    def _do(self) -> None:
        if self.command != self.server.method:
            self.send_error(501)
            return
        length = self.headers.get("Content-Length", "")[:9]
        body = self.rfile.read(int(length)) if length.isdecimal() else b""
        asked = Asked(self.path, self.headers.get("Host", ""), self.client_address[0], body)
        self.server.complete(self.client_address, True)
        reply = self.server.answer(asked)
        if len(reply.content) > MOST_BYTES:  # now the client decides again how long it takes
            self.server.complete(self.client_address, False)
        self.send_response(reply.status)
        headers = {
            "Content-Type": f"{reply.kind}; charset=utf-8",
            "Content-Length": str(len(reply.content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.content)

    do_GET = do_POST = _do  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """No line for every poll, and none that a stranger has written."""
