"""The server's end of the streams: only the clients of the run are let in, and there is a link to each of them."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.field.protocol.codec import Message, decode, encode
from asfl.field.protocol.messages import Agreement, Bye, Ready, Refusal
from asfl.field.protocol.shapes import Blueprint
from asfl.field.protocol.wire import Data, WireError, words_of
from asfl.field.stream.access import Access, AccessError
from asfl.field.stream.certificates import Certificates
from asfl.field.stream.chunks import split
from asfl.field.stream.common import (
    CREDENTIAL_KEY,
    METHOD,
    SERVICE,
    SHARED_OPTIONS,
    VERSION_KEY,
    Option,
    check_address,
)
from asfl.field.stream.descriptors import allowed_connections
from asfl.field.stream.keys import KeyFile
from asfl.field.stream.link import Connection, StreamLink

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
_SPARE_STREAMS = 8
"""For connections that are being refused."""
LET_IN_S = 30.0
"""So long a client that was let in has its place for itself; then one that comes with the same credential takes it."""
READY_WITHIN_S = 600.0
"""From the welcome to the client's first word; meanwhile it loads its data."""
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


class Doorkeeper(Protocol):
    """Who decides who comes in (`asfl.field.stream.access.Access`)."""

    def identify(self, credential: str) -> int:
        """Which client this is; `AccessError`: none. Any other `AsflError`: not now."""
        ...

    def admit(self, credential: str) -> tuple[int, str]:
        """The same, and the credential for the next connection, if it is another one."""
        ...

    def confirm(self, client: int, offered: str) -> bool:
        """The client has that credential; False: it is void."""
        ...


class Members(Doorkeeper, Protocol):
    """Decides by certificates, which may be revoked while their streams are open."""

    def key_of(self, certificate: str) -> str:
        """SHA-256 of its public key."""
        ...

    def still_in(self, client: int, certificate: str) -> bool:
        """Whether it would be let in as this client now."""
        ...

    def agreed(self, certificate: str, samples: int) -> int:
        """How many images count of those that the device says it has."""
        ...


class StreamServer:
    """Listens while it is open; `links` has a link for each client, connected or not."""

    def __init__(
        self,
        address: str,
        agreement: Agreement,
        certificates: Certificates | None = None,
        *,
        keys: Path | None = None,
        restarted: bool = False,
        members: "Members | None" = None,
    ) -> None:
        """For one run. Without certificates only addresses of this machine do; port 0 is any that is free.

        `keys` is a file that outlives this server; it is made if it isn't there. Another server of the same run, at the
        same address and with the same file, lets in the clients that this one had, and they come by themselves.
        `restarted` says that this is that other server: without the file it doesn't start.
        `members` decides by the certificates that clients show, instead of tokens.
        """
        check_address(address, encrypted=certificates is not None)
        clients = agreement.config.scenario.clients
        self._agreement, self._largest = agreement, Blueprint.of(agreement.config).largest_message
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
        try:
            if certificates is None:
                port = self._server.add_insecure_port(address)
            else:
                pair = certificates.key.read_bytes(), certificates.certificate.read_bytes()
                root = None if members is None else certificates.authority.read_bytes()
                secure = grpc.ssl_server_credentials([pair], root, require_client_auth=members is not None)
                port = self._server.add_secure_port(address, secure)
        except OSError as error:
            raise AsflError(f"can't read {error.filename}: {error.strerror}") from None
        except RuntimeError as error:
            raise AsflError(f"can't listen on {address}: {error}") from None
        self.address = f"{address.rpartition(':')[0]}:{port}"
        """With the port that was taken."""
        try:  # now that the port is ours, no other server on it uses the file
            file = None if keys is None else KeyFile.of(keys, agreement)
            self.access = Access(clients, file, restarted=restarted)
            """Its tokens are what clients come in with."""
            self._members, self._keeper = members, members or self.access
        except AsflError:
            self._server.stop(grace=None)
            raise

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(grace=None).wait()
        self._threads.shutdown(wait=False)

    def wait_for_clients(self, timeout_s: float) -> None:
        """Until everybody is connected."""
        due = time.monotonic() + timeout_s
        while missing := [client for client, link in enumerate(self.links) if not link.connected]:
            if time.monotonic() > due:
                names = ", ".join(map(str, missing))
                raise AsflError(
                    f"{len(missing)} of {len(self.links)} clients didn't come within {timeout_s:g} s: {names}"
                )
            time.sleep(_POLL_S)

    def say_bye(self, timeout_s: float = 10.0) -> None:
        """Tell everybody who is there that the run is over, and end their streams."""
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
        client, credential = self._admit(context)
        connection = Connection(context.peer(), context.cancel)
        if self._members is not None:
            shown = _certificate_of(context)
            of_key = (partial(self._members.still_in, client, shown), partial(self._members.agreed, shown))
            connection = Connection(context.peer(), context.cancel, self._members.key_of(shown), *of_key)
        if not context.add_callback(lambda: connection.outbox.put(None)):  # gone already
            return
        self._wait_for_ready(client, connection)
        reader = threading.Thread(target=self._read, args=(client, credential, connection, chunks), daemon=True)
        reader.start()
        yield from split(encode(self._agreement.welcome(client, credential)))
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

    def _admit(self, context: grpc.ServicerContext) -> tuple[int, str]:
        shown = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        credential = shown.get(CREDENTIAL_KEY, "")
        if self._members is not None:
            credential = _certificate_of(context)
        try:
            waiting = self._waiting.get(self._keeper.identify(credential))
            if shown.get(VERSION_KEY) != __version__:
                _log.warning("refused %s: it runs asfl %s", context.peer(), ascii(shown.get(VERSION_KEY))[:40])
                wanted = f"the server runs asfl {__version__}; so must clients"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, wanted)
            if waiting is not None and time.monotonic() - waiting[2] < LET_IN_S:
                context.abort(grpc.StatusCode.UNAVAILABLE, "another connection with this credential is being let in")
            return self._keeper.admit(credential)
        except AccessError as error:
            _log.warning("refused %s: %s", context.peer(), error)
            # Strangers aren't told why.
            known = (
                "it isn't enrolled here, or was revoked" if self._members else "the token is wrong, or was used before"
            )
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"not admitted: {known}")
        except AsflError as error:  # its next credential could not be written down
            _log.error("nobody can be admitted: %s", error)
            context.abort(grpc.StatusCode.UNAVAILABLE, "nobody can be admitted at the moment")

    def _read(self, client: int, credential: str, connection: Connection, chunks: Iterator[bytes]) -> None:
        """What the client sends, until the stream ends."""
        link, reason = self.links[client], "the connection was closed"
        try:
            for chunk in chunks:
                buffer = connection.joiner.add(chunk)
                if buffer is not None:
                    self._take(client, credential, connection, buffer)
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

    def _take(self, client: int, credential: str, connection: Connection, data: Data) -> None:
        if connection.joiner.limit == self._largest:
            self.links[client].received(connection, data)
            return
        ready = decode(data, Message)  # its first word
        self._stop_waiting(client, connection)
        if isinstance(ready, Refusal):
            raise AccessError(f"it can't take part: {words_of(ready.reason)}")
        if not isinstance(ready, Ready):
            raise WireError(f"{ready.name} instead of ready")
        if not self._keeper.confirm(client, credential):
            raise AccessError("another connection has come in with the same credential")
        if not connection.still_in():
            raise AccessError("it was revoked")
        connection.joiner.limit = self._largest
        self.links[client].attach(connection, ready.node)
        _log.info("client %d (%s) is here", client, connection.peer)


def _certificate_of(context: grpc.ServicerContext) -> str:
    """What the client has shown, as PEM; "" if nothing."""
    certificate = next(iter(context.auth_context().get("x509_pem_cert", [])), b"")
    return certificate.decode("ascii", "replace") if isinstance(certificate, bytes) else ""
