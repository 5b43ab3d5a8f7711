"""A report that follows its runs: on the loopback address, rebuilt when records change. Nothing else is served."""

import errno
import hashlib
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from asfl.config.errors import AsflError
from asfl.results.page.build import PLOTLY_PATH

ADDRESS = "127.0.0.1"


class LivePage:
    """The newest page, built when somebody asks for it and something has changed."""

    def __init__(self, signature: Callable[[], str], build: Callable[[str], str], library: str) -> None:
        """`signature` changes when the page would; `build` makes the page of a version."""
        self._signature, self._build = signature, build
        self.library = library.encode()
        self._lock = threading.Lock()
        self._made: tuple[str, bytes] = ("", b"")

    def version(self) -> str:
        return hashlib.sha256(self._signature().encode()).hexdigest()[:16]

    def page(self) -> bytes:
        """What can't be read just now keeps the page before it; the next change is another try."""
        with self._lock:  # two browsers, one build
            version = self.version()
            if self._made[0] != version:
                try:
                    self._made = (version, self._build(version).encode())
                except AsflError:
                    if not self._made[1]:
                        raise
            return self._made[1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    live: LivePage


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        status, kind, content = self._answer()
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        live, port = self.server.live, self.server.server_port
        if self.headers.get("Host") not in {f"{name}:{port}" for name in (ADDRESS, "localhost")}:  # a rebound name
            return HTTPStatus.FORBIDDEN, "text/plain", b"only under 127.0.0.1 or localhost\n"
        path = self.path.partition("?")[0]
        try:
            if path == "/":
                return HTTPStatus.OK, "text/html", live.page()
            if path == "/version":
                return HTTPStatus.OK, "application/json", json.dumps({"version": live.version()}).encode()
            if path == f"/{PLOTLY_PATH}":
                return HTTPStatus.OK, "text/javascript", live.library
        except AsflError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n".encode()
        return HTTPStatus.NOT_FOUND, "text/plain", b"only the report is here\n"

    def log_message(self, format: str, *args: object) -> None:
        """Nobody wants a line for every poll."""


def open_server(live: LivePage, port: int) -> _Server:
    """A server that is listening; `serve_forever` answers. Port 0 is any free one."""
    try:
        server = _Server((ADDRESS, port), _Handler)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise AsflError(f"port {port} is in use; give another one with --port, or 0 for any free one") from None
        raise AsflError(f"can't listen on port {port}: {getattr(error, 'strerror', None) or error}") from None
    server.live = live
    return server
