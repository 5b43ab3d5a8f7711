"""Clients over gRPC: one long-lived stream each, behind TLS. The server's end lets only devices of the run in;
a device's end connects, and answers until the server says bye.

The server is the gRPC server, and it is also the one who asks: its side of the stream carries requests, the client's
side answers. gRPC only moves bytes; there is no schema besides `asfl.field.wire`. Messages of any length go over it in
short chunks, so that gRPC's own limit stays small and no peer can make us hold more: the first chunk of a message
begins with its length, and the rest follow until it is complete.
"""

import logging
import queue
import random
import re
import secrets
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError, words_of
from asfl.field.certificates import SERVER_NAME, Authority
from asfl.field.client import ClientNode
from asfl.field.membership import AccessError, Member, Membership, Registry
from asfl.field.messages import (
    NODE_NAME,
    Agreement,
    Answer,
    AnyRequest,
    Blueprint,
    Bye,
    LinkError,
    Ready,
    Refusal,
    Welcome,
    failed,
)
from asfl.field.meters import Meter, meter_named
from asfl.field.wire import HEADER_LIMIT, Data, Message, WireError, decode, encode, new_buffer
from asfl.train.fleet import keep_freed_memory

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
SERVICE, METHOD, VERSION_KEY = "asfl.Field", "Work", "asfl-version"
GREETING_LIMIT = HEADER_LIMIT + (1 << 12)
"""Bytes of a message before both sides know the network."""
CHUNK = 1 << 20
"""Bytes of a chunk at most."""
_LENGTH = struct.Struct("<Q")

SHARED_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", CHUNK),
    ("grpc.max_receive_message_length", CHUNK),
    ("grpc.max_metadata_size", 1 << 13),
    # A process that died is noticed at once; a machine that vanished without a word, when it doesn't answer a ping. On
    # a slow link a ping stands in line behind megabytes, so it has time.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.max_pings_without_data", 0),
]


# ---------------------------------------------------------------------- chunks
def check_address(address: str) -> None:
    """Refuse what isn't host:port."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise AsflError(f"address '{address}': write it as host:port, for example 127.0.0.1:7400 or [::1]:7400")


def split(message: bytes) -> Iterator[bytes]:
    """The message in chunks."""
    view = memoryview(message)
    first = CHUNK - _LENGTH.size
    yield _LENGTH.pack(len(message)) + bytes(view[:first])
    for start in range(first, len(message), CHUNK):
        yield bytes(view[start : start + CHUNK])


class Joiner:
    """Puts messages together again, each in a buffer of its own; never one above `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer: Tensor | None = None
        self._filled = 0

    def add(self, chunk: bytes) -> Tensor | None:
        """Take the next chunk; the message if it is complete now."""
        content = memoryview(chunk)
        if self._buffer is None:
            if len(chunk) < _LENGTH.size:
                raise WireError(f"a first chunk of {len(chunk)} bytes: too short")
            (size,) = _LENGTH.unpack_from(content)
            if size > self.limit:
                raise WireError(f"a message of {size:,} bytes, more than the {self.limit:,} agreed on")
            content, self._buffer, self._filled = content[_LENGTH.size :], new_buffer(size), 0
        elif not chunk:
            raise WireError("an empty chunk")
        end = self._filled + len(content)
        if end > len(self._buffer):
            raise WireError(f"a chunk that is {end - len(self._buffer):,} bytes too long")
        self._buffer.numpy()[self._filled : end] = content
        self._filled = end
        if end < len(self._buffer):
            return None
        done, self._buffer = self._buffer, None
        return done


# ---------------------------------------------------------------------- a client
@dataclass(frozen=True, eq=False)
class Pending:
    """The one request a client may have."""

    name: str
    request: bytes
    due: float
    future: "Future[Answer]"


@dataclass(frozen=True, eq=False)
class Connection:
    """One stream of a client that was admitted."""

    member: Member
    peer: str
    cancel: Callable[[], object]
    joiner: Joiner = field(default_factory=lambda: Joiner(GREETING_LIMIT))
    outbox: "queue.SimpleQueue[Pending | None]" = field(default_factory=queue.SimpleQueue)
    """Requests to be sent; None ends the stream."""
    admitted_at: float = field(default_factory=time.monotonic)


class StreamLink:
    """`asfl.field.messages.Link` to a client that comes and goes; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._pending: Pending | None = None
        self._node = self._key = ""
        self.sent_bytes = self.received_bytes = 0
        """Of messages, over all streams."""
        self.generation = 0
        """Counts the nodes that have answered here. With another one, whatever the one before had learnt is gone."""

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def key(self) -> str:
        """Whose stream this is, or was last; "" before the first."""
        return self._key

    def agreed(self, samples: int) -> int:
        """How many images count of those that the device says it has."""
        connection = self._connection
        return samples if connection is None else connection.member.agreed(samples)

    def close_if_out(self) -> None:
        """End a stream whose device isn't let in any more; its answers are of no use."""
        connection = self._connection
        if connection is not None and not connection.member.still_in:
            self.detach(connection, "it was revoked")
            connection.cancel()

    @property
    def trouble(self) -> str | None:
        self.close_if_out()
        with self._lock:
            return self._trouble()

    def _trouble(self) -> str | None:
        if self._connection is None:
            return "not connected"
        return None if self._pending is None else f"still busy with {self._pending.name}"

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        due = time.monotonic() + deadline_s
        self.close_if_out()
        with self._lock:
            trouble, connection = self._trouble(), self._connection
            if trouble is not None or connection is None:
                return failed(LinkError(trouble or "not connected"))
            try:
                self._pending = Pending(request.name, encode(request), due, Future())
            except WireError as error:
                return failed(error)
            connection.outbox.put(self._pending)
            return self._pending.future

    def attach(self, connection: Connection, node: str) -> None:
        """The client is here. If it was here before, its earlier stream is of no use any more.

        `node` names what holds its state: the same name, the same state.
        """
        with self._lock:
            if node != self._node:
                self._node, self.generation = node, self.generation + 1
            before, lost = self._connection, self._pending
            self._connection, self._pending, self._key = connection, None, connection.member.key
        if before is not None:
            before.cancel()
        if lost is not None:
            lost.future.set_exception(LinkError(f"the client connected anew instead of answering to {lost.name}"))

    def detach(self, connection: Connection, reason: str) -> None:
        """The stream has ended; nothing if another took its place."""
        with self._lock:
            if self._connection is not connection:
                return
            lost, self._connection, self._pending = self._pending, None, None
        if lost is not None:
            lost.future.set_exception(LinkError(reason))

    def close(self) -> None:
        """End the stream, if there is one, as soon as everything is sent."""
        with self._lock:
            if self._connection is not None:
                self._connection.outbox.put(None)

    def received(self, connection: Connection, data: Data) -> None:
        """The answer to the one request there may be. If it is none, that request fails, and the stream goes on."""
        self.close_if_out()
        with self._lock:
            if self._connection is not connection:
                return
            if self._pending is None:
                raise WireError("an answer to nothing")
            pending, self._pending = self._pending, None
            self.received_bytes += len(data)
        try:
            pending.future.set_result(decode(data, Answer))
        except WireError as error:
            pending.future.set_exception(error)

    def outgoing(self, connection: Connection) -> Iterator[bytes]:
        """Chunks of requests until the end. One that waited beyond its deadline isn't sent, and the client is free."""
        for pending in iter(connection.outbox.get, None):
            if time.monotonic() <= pending.due:
                self.sent_bytes += len(pending.request)
                yield from split(pending.request)
                continue
            with self._lock:
                if self._pending is not pending:
                    continue
                self._pending = None
            pending.future.set_exception(LinkError("the request could not be sent in time"))


# ---------------------------------------------------------------------- the server
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
_OPTIONS = [
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
        self.registry = Registry(authority.folder)
        self.links = [StreamLink() for _ in range(clients)]
        self._waiting: dict[int, tuple[Connection, threading.Timer]] = {}
        """Of each client the stream on which it hasn't said that it is ready, and what ends that."""
        self._lock = threading.Lock()
        streams = 2 * len(self.links) + _SPARE_STREAMS
        self._threads = ThreadPoolExecutor(streams, thread_name_prefix="asfl-stream")
        options = [*_OPTIONS, ("grpc.max_allowed_incoming_connections", allowed_connections(clients))]
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=streams)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._work)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        certificate, key = (file.read_bytes() for file in authority.server_files())
        secure = grpc.ssl_server_credentials([(key, certificate)], authority.pem.encode(), require_client_auth=True)
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

    def wait_for_clients(
        self,
        wait_s: float,
        on_waiting: Callable[[int, int], None] = lambda there, wanted: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Until all are connected, of which `on_waiting` is told. False: told to stop."""
        due, before = time.monotonic() + wait_s, -1
        while missing := [client for client, link in enumerate(self.links) if not link.connected]:
            there = len(self.links) - len(missing)
            if there != before:
                before = there
                on_waiting(there, len(self.links))
            if should_stop():
                return False
            if time.monotonic() > due:
                names = ", ".join(map(str, missing))
                raise AsflError(
                    f"{len(missing)} of {len(self.links)} devices didn't come within {wait_s:g} s (--wait-s): {names}"
                )
            time.sleep(_POLL_S)
        return True

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
            self._waiting[client] = connection, timer
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
        if waiting is not None and time.monotonic() - waiting[0].admitted_at < LET_IN_S:
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


# ---------------------------------------------------------------------- a device
Identity = tuple[bytes, bytes, bytes]
"""A device's key, its certificate, and that of the authority, in PEM."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_BETWEEN_RUNS_S = 5.0
_JITTER = random.SystemRandom()
"""So that not all devices come back at the same moment."""
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
"""Refusals that another attempt won't change."""


def work(home: Path, member: Membership, *, meter: str = "none", once: bool = False) -> None:
    """As the device whose folder this is, take part in every run there is, for ever; `once`: in one."""
    while True:
        data_dir = Path(member.data) if member.data else None
        take_part(member.stream, member.files(home), data_dir=data_dir, patience_s=float("inf"), meter=meter)
        _log.info("the run is over")
        if once:
            return
        time.sleep(_BETWEEN_RUNS_S)


def take_part(
    address: str,
    identity: Identity,
    *,
    data_dir: Path | None = None,
    patience_s: float = 300.0,
    make_node: Callable[[Welcome, Path | None], ClientNode] = ClientNode,
    meter: str = "none",
) -> None:
    """Be the client that the certificate is for, until the server says bye.

    If the stream breaks, the client calls again and goes on with the state it has; after `patience_s` without success
    it gives up. `meter` names how the client knows what it consumes (`asfl.field.meters`).
    """
    check_address(address)
    visitor = _Visitor(address, identity, data_dir, make_node, meter_named(meter))
    wait_s, heard = _FIRST_WAIT_S, time.monotonic()
    while True:
        contacts = visitor.contacts
        try:
            if visitor.visit():
                return
            trouble = "the server ended the stream"
        except grpc.RpcError as error:
            trouble = str(error)
            if isinstance(error, grpc.Call):
                trouble = f"{error.code().name.lower()}: {error.details()}"
                if error.code() in _FINAL:
                    raise AsflError(f"{address} refused this client: {error.details()}") from None
        except WireError as error:
            trouble = str(error)
        if visitor.said_bye:
            return
        if visitor.contacts > contacts:
            wait_s, heard = _FIRST_WAIT_S, time.monotonic()
        if time.monotonic() - heard > patience_s:
            raise AsflError(f"{address}: no connection for {patience_s:g} s ({trouble})")
        _log.info("%s: %s; trying again", address, trouble)
        time.sleep(wait_s * _JITTER.uniform(0.5, 1.5))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@dataclass(eq=False)
class _Visitor:
    """What outlives a stream: the node with its state."""

    address: str
    identity: Identity
    data_dir: Path | None
    make_node: Callable[[Welcome, Path | None], ClientNode]
    meter: Meter | None
    node: ClientNode | None = None
    node_name: str = ""
    """Of this node and no other: the server learns from it whether the state it knows is still there."""
    contacts: int = 0
    """How often the server has welcomed this client."""

    @property
    def said_bye(self) -> bool:
        return self.node is not None and self.node.said_bye

    def visit(self) -> bool:
        """One stream, from beginning to end; whether the server said bye."""
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._channel() as channel:
            work: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            call = work(_chunks(outbox), metadata=((VERSION_KEY, __version__),))
            try:
                joiner = Joiner(GREETING_LIMIT)
                node: ClientNode | None = None
                for chunk in call:
                    buffer = joiner.add(chunk)
                    if buffer is None:
                        continue
                    if node is None:
                        node = self._welcomed(buffer, outbox, call)
                        joiner.limit = node.largest_message
                        outbox.put(encode(Ready(self.node_name)))
                    else:
                        outbox.put(node.answer(buffer))
            finally:
                outbox.put(None)
                call.cancel()
        return self.said_bye

    def _welcomed(self, data: Data, outbox: "queue.SimpleQueue[bytes | None]", call: Iterator[bytes]) -> ClientNode:
        welcome = decode(data, Welcome)
        if self.node is None or not self.node.fits(welcome):
            try:
                self.node = self.make_node(welcome, self.data_dir)
            except AsflError:  # the server is told, though not why, and ends the stream
                outbox.put(encode(Refusal("what it has doesn't fit this run; its own log says why")))
                with suppress(grpc.RpcError):
                    next(call, None)
                raise
            self.node.read_meter(self.meter)
            self.node_name = secrets.token_hex(NODE_NAME // 2)
            torch.set_num_threads(self.node.threads)
            keep_freed_memory()  # from now on: the whole network, of which shapes were taken, isn't needed any more
        self.contacts += 1
        return self.node

    def _channel(self) -> grpc.Channel:
        # A connection of its own for every visit: a shared one would remember for how long the server was away.
        options = [*SHARED_OPTIONS, ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        key, certificate, authority = self.identity
        shown = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.secure_channel(self.address, shown, [*options, ("grpc.ssl_target_name_override", SERVER_NAME)])


def _chunks(outbox: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    for message in iter(outbox.get, None):
        yield from split(message)
