"""The client's end of the stream: connect, show a credential, answer until the server says bye."""

import logging
import queue
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.field.client import ClientNode
from asfl.field.measure.meters import Meter, meter_named
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import NODE_NAME, Ready, Refusal, Welcome
from asfl.field.protocol.wire import Data, WireError
from asfl.field.stream.access import client_of
from asfl.field.stream.chunks import Joiner, split
from asfl.field.stream.common import (
    CREDENTIAL_KEY,
    GREETING_LIMIT,
    METHOD,
    SERVICE,
    SHARED_OPTIONS,
    VERSION_KEY,
    check_address,
)
from asfl.train.memory import keep_freed_memory

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_JITTER = random.SystemRandom()
"""So that not everybody comes back at the same moment."""
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
"""Refusals that another attempt won't change."""


@dataclass(frozen=True)
class Identity:
    """What a client shows instead of a token: a certificate, in PEM, and the key it is for."""

    key: bytes
    certificate: bytes
    server_name: str
    """What the server's own certificate is for, whatever its address."""


def serve(
    address: str,
    token: str = "",
    *,
    identity: Identity | None = None,
    authority: Path | bytes | None = None,
    data_dir: Path | None = None,
    patience_s: float = 300.0,
    make_node: Callable[[Welcome, Path | None], ClientNode] = ClientNode,
    meter: str = "none",
) -> None:
    """Be the client that the token, or the certificate, is for, until the server says bye.

    `authority` is the certificate (or its file) that the server's own is checked with; without it only servers on this
    machine are called.
    If the stream breaks, the client calls again and goes on with the state it has; after `patience_s` without success
    it gives up. `meter` names how the client knows what it consumes (`asfl.field.measure.meters`).
    """
    check_address(address, encrypted=authority is not None)
    if identity is None:
        client_of(token)
    visitor = _Visitor(address, token, _read(authority), data_dir, make_node, meter_named(meter), identity)
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
    """What outlives a stream: the node with its state, and the credential for the next one."""

    address: str
    credential: str
    authority: bytes | None
    data_dir: Path | None
    make_node: Callable[[Welcome, Path | None], ClientNode]
    meter: Meter | None
    identity: Identity | None = None
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
        metadata = ((CREDENTIAL_KEY, self.credential), (VERSION_KEY, __version__))
        with self._channel() as channel:
            work: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            call = work(_chunks(outbox), metadata=metadata)
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
        self.credential = welcome.credential
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
        if self.authority is None:
            return grpc.insecure_channel(self.address, [*options, ("grpc.enable_http_proxy", 0)])
        if self.identity is None:
            return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(self.authority), options)
        shown = grpc.ssl_channel_credentials(self.authority, self.identity.key, self.identity.certificate)
        name = ("grpc.ssl_target_name_override", self.identity.server_name)
        return grpc.secure_channel(self.address, shown, [*options, name])


def _chunks(outbox: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    for message in iter(outbox.get, None):
        yield from split(message)


def _read(authority: Path | bytes | None) -> bytes | None:
    if not isinstance(authority, Path):
        return authority
    try:
        return authority.read_bytes()
    except OSError as error:
        raise AsflError(f"can't read {authority}: {error.strerror or error}") from None
