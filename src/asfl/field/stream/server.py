"""The server's end of the streams: only devices of the run are let in, and there is a link to each of them."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.field.devices.authority import Authority
from asfl.field.devices.registry import AccessError, Member, Registry
from asfl.field.protocol.codec import Message, decode, encode
from asfl.field.protocol.messages import Agreement, Bye, Ready, Refusal
from asfl.field.protocol.shapes import Blueprint
from asfl.field.protocol.wire import Data, WireError, words_of
from asfl.field.stream.framing import METHOD, SERVICE, SHARED_OPTIONS, VERSION_KEY, Option, check_address, split
from asfl.field.stream.link import Connection, StreamLink

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
_SPARE_STREAMS = 8
"""For connections that are being refused."""
LET_IN_S = 30.0
"""So long a device that was let in has its place for itself; then another connection of its takes it."""
READY_WITHIN_S = 600.0
"""From the welcome to the client's first word; meanwhile it loads its data."""
RESERVED_FILES = 256
"""For everything that isn't a connection: records, checkpoints, the data, PyTorch, trackers."""
_STRANGERS = 256
"""Connections that may be there besides those of the clients, which may come anew before their old ones are gone."""
_QUIET_MS = 20_000
"""A connection without a handshake, or without a stream, is closed after this time: clients call at once."""
_POLL_S = 0.05
_OPTIONS: list[Option] = [
    *SHARED_OPTIONS,
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a lottery
    ("grpc.max_concurrent_streams", 2),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", _QUIET_MS),
    ("grpc.http2.settings_timeout", _QUIET_MS),
    ("grpc.max_connection_idle_ms", _QUIET_MS),
]


def allowed_connections(clients: int) -> int:
    """How many connections a server of so many clients takes at once: without a file left, none could be written.

    The soft limit of this process is raised as far as that needs, and as it may.
    """
    wanted = 2 * clients + _STRANGERS
    if sys.platform == "win32":  # which has no such limit
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - RESERVED_FILES)
    if allowed < 2 * clients:
        raise AsflError(
            f"{clients} clients need {2 * clients + RESERVED_FILES} open files, but this process may have {soft} "
            "(`ulimit -n` shows the limit; an administrator can raise it)"
        )
    return allowed


class StreamServer:
    """Listens while it is open; `links` has a link for each client, connected or not."""

    def __init__(self, address: str, agreement: Agreement, authority: Authority) -> None:
        """For one run, and the devices that are in the authority's folder; port 0 is any that is free.

        A server that is started again, at the same address with the same folder, finds its devices again: they come by
        themselves.
        """
        check_address(address)
        clients = agreement.config.scenario.clients
        self._agreement, self._largest = agreement, Blueprint.of(agreement.config).largest_message
        self.registry, certificates = Registry(authority.folder), authority.server_certificates()
        self.links = [StreamLink() for _ in range(clients)]
        self._waiting: dict[int, tuple[Connection, threading.Timer, float]] = {}
        """Of each client the stream on which it hasn't said that it is ready, how long it may, and since when."""
        self._lock = threading.Lock()
        streams = 2 * len(self.links) + _SPARE_STREAMS
        self._threads = ThreadPoolExecutor(streams, thread_name_prefix="asfl-stream")
        options = [*_OPTIONS, ("grpc.max_allowed_incoming_connections", allowed_connections(clients))]
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=streams)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._work)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        pair = certificates.key.read_bytes(), certificates.certificate.read_bytes()
        secure = grpc.ssl_server_credentials([pair], authority.pem.encode(), require_client_auth=True)
        try:
            port = self._server.add_secure_port(address, secure)
        except RuntimeError as error:
            raise AsflError(f"can't listen on {address}: {error}") from None
        self.address = f"{address.rpartition(':')[0]}:{port}"
        """With the port that was taken."""

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(grace=None).wait()
        self._threads.shutdown(wait=False)

    def wait_for_clients(self, timeout_s: float) -> None:
        """Until all are connected."""
        due = time.monotonic() + timeout_s
        while missing := [client for client, link in enumerate(self.links) if not link.connected]:
            if time.monotonic() > due:
                names = ", ".join(map(str, missing))
                raise AsflError(
                    f"{len(missing)} of {len(self.links)} clients didn't come within {timeout_s:g} s: {names}"
                )
            time.sleep(_POLL_S)

    def say_bye(self, timeout_s: float = 10.0) -> None:
        """Tell all clients that are there that the run is over, and end their streams."""
        due = time.monotonic() + timeout_s
        there = [link for link in self.links if link.trouble is None]
        for link, future in [(link, link.ask(Bye(), timeout_s)) for link in there]:
            try:
                future.result(max(due - time.monotonic(), 0.0))
            except (TimeoutError, AsflError):
                _log.info("a client left without a word")
            link.close()

    # ------------------------------------------------------------------ one stream
    def _work(self, chunks: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        connection = Connection(self._admit(context), context.peer(), context.cancel)
        client = connection.member.client
        if not context.add_callback(lambda: connection.outbox.put(None)):  # gone already
            return
        self._wait_for_ready(client, connection)
        threading.Thread(target=self._read, args=(client, connection, chunks), daemon=True).start()
        yield from split(encode(self._agreement.welcome(client)))
        yield from self.links[client].outgoing(connection)

    def _wait_for_ready(self, client: int, connection: Connection) -> None:
        """One stream of each client is waited for, and not forever: else one of them could hold all there are."""

        def give_up() -> None:
            _log.warning("client %d (%s): not ready within %g s", client, connection.peer, READY_WITHIN_S)
            connection.cancel()

        timer = threading.Timer(READY_WITHIN_S, give_up)
        timer.daemon = True
        with self._lock:
            before = self._waiting.get(client)
            self._waiting[client] = connection, timer, time.monotonic()
        timer.start()
        if before is not None:
            before[1].cancel()
            before[0].cancel()

    def _stop_waiting(self, client: int, connection: Connection) -> None:
        with self._lock:
            waiting = self._waiting.get(client)
            if waiting is not None and waiting[0] is connection:
                waiting[1].cancel()
                del self._waiting[client]

    def _admit(self, context: grpc.ServicerContext) -> Member:
        version = next((value for key, value in context.invocation_metadata() or () if key == VERSION_KEY), "")
        try:
            member = Member.admitted(self.registry, _certificate_of(context), len(self.links))
        except AccessError as error:  # a stranger isn't told why
            _log.warning("refused %s: %s", context.peer(), error)
            wanted = "not admitted: it isn't enrolled here, or was revoked"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, wanted)
        except AsflError as error:
            _log.error("%s isn't admitted now: %s", context.peer(), error)
            context.abort(grpc.StatusCode.UNAVAILABLE, "not admitted at the moment")
        if version != __version__:
            _log.warning("refused %s: it runs asfl %s", context.peer(), ascii(version)[:40])
            wanted = f"the server runs asfl {__version__}; so must clients"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, wanted)
        waiting = self._waiting.get(member.client)
        if waiting is not None and time.monotonic() - waiting[2] < LET_IN_S:
            context.abort(grpc.StatusCode.UNAVAILABLE, "another connection of this device is being let in")
        return member

    def _read(self, client: int, connection: Connection, chunks: Iterator[bytes]) -> None:
        """What the client sends, until the stream ends."""
        link, reason = self.links[client], "the connection was closed"
        try:
            for chunk in chunks:
                buffer = connection.joiner.add(chunk)
                if buffer is not None:
                    self._take(client, connection, buffer)
        except AsflError as error:
            reason = str(error)
            _log.warning("client %d (%s): closed: %s", client, connection.peer, reason)
            connection.cancel()
        except Exception as error:  # how gRPC says that the stream broke, also on a chunk that is too long
            reason = "the connection broke"
            _log.info("client %d (%s): %s %s", client, connection.peer, reason, error)
        self._stop_waiting(client, connection)
        link.detach(connection, reason)
        connection.outbox.put(None)

    def _take(self, client: int, connection: Connection, data: Data) -> None:
        if connection.joiner.limit == self._largest:
            self.links[client].received(connection, data)
            return
        ready = decode(data, Message)  # its first word
        self._stop_waiting(client, connection)
        if isinstance(ready, Refusal):
            raise AccessError(f"it can't take part: {words_of(ready.reason)}")
        if not isinstance(ready, Ready):
            raise WireError(f"{ready.name} instead of ready")
        if not connection.member.still_in:
            raise AccessError("it was revoked")
        connection.joiner.limit = self._largest
        self.links[client].attach(connection, ready.node)
        _log.info("client %d (%s) is here", client, connection.peer)


def _certificate_of(context: grpc.ServicerContext) -> str:
    """What the client has shown, as PEM; "" if nothing."""
    certificate = next(iter(context.auth_context().get("x509_pem_cert", [])), b"")
    return certificate.decode("ascii", "replace") if isinstance(certificate, bytes) else ""
