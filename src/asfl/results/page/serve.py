"""A report that follows its runs: on the loopback address, rebuilt when records change. Nothing else is served."""

import errno
import hashlib
import json
import threading
from collections.abc import Callable

from asfl.config.errors import AsflError
from asfl.results.page import PLOTLY_PATH
from asfl.runs.http_server import Asked, HttpServer, Reply

ADDRESS = "127.0.0.1"


class LivePage:
    """The newest page, built when it is asked for and something has changed."""

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


def open_server(live: LivePage, port: int) -> HttpServer:
    """A server that is listening; `serve_forever` answers. Port 0 is any free one."""

    def answer(asked: Asked) -> Reply:
        return _answer(live, asked, server.server_port)

    try:
        server = HttpServer(ADDRESS, port, answer)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise AsflError(f"port {port} is in use; give another one with --port, or 0 for any free one") from None
        raise AsflError(f"can't listen on port {port}: {getattr(error, 'strerror', None) or error}") from None
    return server


def _answer(live: LivePage, asked: Asked, port: int) -> Reply:
    if asked.host not in {f"{name}:{port}" for name in (ADDRESS, "localhost")}:  # a rebound name
        return Reply(b"only under 127.0.0.1 or localhost\n", status=403)
    path = asked.path.partition("?")[0]
    try:
        if path == "/":
            return Reply(live.page(), "text/html")
        if path == "/version":
            return Reply(json.dumps({"version": live.version()}).encode(), "application/json")
        if path == f"/{PLOTLY_PATH}":
            return Reply(live.library, "text/javascript")
    except AsflError as error:
        return Reply(f"{error}\n".encode(), status=500)
    return Reply(b"only the report is here\n", status=404)
