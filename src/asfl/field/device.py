"""A device's end of the stream: connect, show the certificate, answer until the server says bye."""

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
from asfl.field.certificates import SERVER_NAME
from asfl.field.client import ClientNode
from asfl.field.enrolment import Membership, renew_if_due
from asfl.field.messages import NODE_NAME, Ready, Refusal, Welcome
from asfl.field.meters import Meter, meter_named
from asfl.field.stream import (
    GREETING_LIMIT,
    METHOD,
    SERVICE,
    SHARED_OPTIONS,
    VERSION_KEY,
    Joiner,
    check_address,
    split,
)
from asfl.field.wire import Data, WireError, decode, encode
from asfl.train.fleet import keep_freed_memory

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
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
        if renew_if_due(home, member):
            _log.info("the certificate of %s was renewed", member.name)
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
