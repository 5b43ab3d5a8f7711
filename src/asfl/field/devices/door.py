"""The door that devices come to first: HTTPS, two calls of a few kilobytes, nothing else.

    POST /enrol   {"code", "name", "request"}   a one-time code: its key is signed
    POST /renew   {"request"}                   with its certificate, which is about to end

A device knows the server's certificate by the fingerprint in the line that was pasted, later by the authority.
"""

import hashlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from cryptography import x509

from asfl.config.errors import AsflError
from asfl.field.devices.authority import Authority
from asfl.field.devices.registry import Registry
from asfl.field.protocol.wire import words_of
from asfl.field.stream.access import AccessError
from asfl.field.stream.certificates import Certificates

_log = logging.getLogger(__name__)
MOST_BYTES = 1 << 14
MOST_AT_ONCE, TIMEOUT_S = 16, 20.0


class Door:
    """Listens while it is open."""

    def __init__(self, host: str, port: int, authority: Authority, registry: Registry, stream: str) -> None:
        """`stream`: the port that devices are told to go on to."""
        certificates = authority.server_certificates()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificates.certificate, certificates.key)
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.fingerprint = fingerprint_of(certificates)
        """Of the server's certificate."""

        class Handler(_Handler):
            def respond(self, path: str, said: Mapping[str, Any], shown: bytes | None) -> dict[str, Any]:
                return _answer(authority, registry, stream, path, said, shown)

        try:
            self._server = _Server((host, port), Handler, context)
        except OSError as error:
            raise AsflError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="asfl-door", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def fingerprint_of(certificates: Certificates) -> bytes:
    """What devices know the server by before they have its authority."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates.certificate.read_text())).digest()


def _answer(
    authority: Authority, registry: Registry, stream: str, path: str, said: Mapping[str, Any], shown: bytes | None
) -> dict[str, Any]:
    request = str(said.get("request", ""))
    if path == "/enrol":
        name = str(said.get("name", ""))
        certificate, key = authority.sign(request, name[:64] or "?")
        registry.enrol(str(said.get("code", "")), name, key)
    elif path == "/renew" and shown is not None:
        device = registry.member(x509.load_der_x509_certificate(shown))
        certificate, key = authority.sign(request, device.name)
        if key != device.key:
            raise AccessError("another key")
        registry.audit("renewed", device=device.name)
    else:
        raise AccessError("there is nothing here")
    files = authority.server_certificates()
    return {"certificate": certificate, "authority": files.authority.read_text(), "stream": stream, "now": time.time()}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        self._context, self._places = context, threading.BoundedSemaphore(MOST_AT_ONCE)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        over = threading.Timer(TIMEOUT_S, lambda: _hang_up(request))
        over.daemon = True  # however slowly somebody speaks, a place is taken for so long only
        over.start()
        try:
            request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            request.do_handshake()  # here, not where others wait
            super().process_request_thread(request, client_address)
        except (OSError, ssl.SSLError) as error:
            _log.info("door: %s: %s", client_address[0], error)
            self.shutdown_request(request)
        finally:
            over.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("door: %s left", client_address[0])


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # whoever reads from it finds its end


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "asfl", ""

    def respond(self, path: str, said: Mapping[str, Any], shown: bytes | None) -> dict[str, Any]:
        raise AccessError("there is nothing here")

    def do_POST(self) -> None:
        who, status = self.client_address[0], 200
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 < length <= MOST_BYTES:
                raise ValueError("length")
            said = json.loads(self.rfile.read(length))
            if not isinstance(said, dict):
                raise ValueError("no object")
            connection = self.connection
            shown = connection.getpeercert(True) if isinstance(connection, ssl.SSLSocket) else None
            answer = self.respond(self.path, said, shown)
        except AccessError as error:
            _log.warning("door: refused %s: %s", who, error)
            status, answer = 403, {"error": str(error)}
        except AsflError as error:
            status, answer = 400, {"error": str(error)}
        except (ValueError, RecursionError):
            status, answer = 400, {"error": "not a request"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("door: %s %s", self.client_address[0], words_of(format % args))
