"""The client's end of the stream: connect, prove who one is, answer until the server says bye."""

import logging
import queue
import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from asfl._version import __version__
from asfl.errors import AsflError, MissingExtraError
from asfl.field.access import client_of
from asfl.field.chunks import Joiner, split
from asfl.field.client import ClientNode
from asfl.field.meters import Meter, meter_named
from asfl.field.stream import (
    CREDENTIAL_KEY,
    GREETING_LIMIT,
    METHOD,
    NODE_NAME,
    SERVICE,
    SHARED_OPTIONS,
    VERSION_KEY,
    check_address,
)
from asfl.field.wire import Message, WireError, decode, encode
from asfl.train.memory import keep_freed_memory

try:
    import grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("clients in other processes", "field") from error

_log = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_JITTER = random.SystemRandom()
"""So that not everybody comes back at the same moment."""
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
"""Refusals that another attempt won't change."""


def serve(
    address: str,
    token: str,
    *,
    authority: Path | None = None,
    data_dir: Path | None = None,
    patience_s: float = 300.0,
    make_node: Callable[[Message, Path | None], ClientNode] = ClientNode,
    meter: str = "none",
) -> None:
    """Be the client the token is for, until the server says bye.

    `authority` is the certificate the server's own is checked with; without it only servers on this machine are called.
    If the stream breaks, the client calls again and goes on with the state it has; after `patience_s` without success
    it gives up. `meter` names how the client knows what it consumes (`asfl.field.meters`).
    """
    check_address(address, encrypted=authority is not None)
    client_of(token)
    keep_freed_memory()
    visitor = _Visitor(address, token, _read(authority), data_dir, make_node, meter_named(meter))
    wait_s, heard = _FIRST_WAIT_S, time.monotonic()
    while True:
        contacts = visitor.contacts
        try:
            if visitor.visit():
                return
            trouble = "the server ended the stream"
        except grpc.RpcError as error:
            code, details = _code_of(error), error.details() if isinstance(error, grpc.Call) else str(error)
            if code in _FINAL:
                raise AsflError(f"{address} refused this client: {details}") from None
            trouble = f"{code.name.lower() if code else 'error'}: {details}"
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


class _Visitor:
    """What outlives a stream: the node with its state, and the credential for the next one."""

    def __init__(
        self,
        address: str,
        credential: str,
        authority: bytes | None,
        data_dir: Path | None,
        make_node: Callable[[Message, Path | None], ClientNode],
        meter: Meter | None,
    ) -> None:
        self._address, self._credential, self._authority = address, credential, authority
        self._data_dir, self._make_node, self._meter = data_dir, make_node, meter
        self._node: ClientNode | None = None
        self._node_name = ""
        """Of this node and no other: the server learns from it whether the state it knows is still there."""
        self.contacts = 0
        """How often the server has welcomed this client."""

    @property
    def said_bye(self) -> bool:
        return self._node is not None and self._node.said_bye

    def visit(self) -> bool:
        """One stream, from beginning to end; whether the server said bye."""
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        metadata = ((CREDENTIAL_KEY, self._credential), (VERSION_KEY, __version__))
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
                    message = decode(buffer)
                    if node is None:
                        node = self._welcomed(message)
                        joiner.limit = node.largest_message
                        outbox.put(encode(Message("ready", {"node": self._node_name})))
                    else:
                        outbox.put(_answer(node, message))
            finally:
                outbox.put(None)
                call.cancel()
        return self.said_bye

    def _welcomed(self, message: Message) -> ClientNode:
        if message.op != "welcome":
            raise WireError(f"{message.op} instead of a welcome")
        self._credential = message.text("credential")
        if self._node is None or not self._node.fits(message):
            self._node = self._make_node(message, self._data_dir)
            self._node.read_meter(self._meter)
            self._node_name = secrets.token_hex(NODE_NAME // 2)
            torch.set_num_threads(self._node.threads)
        self.contacts += 1
        return self._node

    def _channel(self) -> grpc.Channel:
        options = [*SHARED_OPTIONS, ("grpc.enable_retries", 0)]
        if self._authority is None:
            return grpc.insecure_channel(self._address, [*options, ("grpc.enable_http_proxy", 0)])
        return grpc.secure_channel(self._address, grpc.ssl_channel_credentials(self._authority), options)


def _answer(node: ClientNode, request: Message) -> bytes:
    number = request.whole("id")
    answer = node.handle(request)
    try:
        return encode(answer.having(id=number))
    except WireError as error:
        return encode(Message("error", {"id": number, "request": request.op, "reason": str(error)}))


def _chunks(outbox: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    for message in iter(outbox.get, None):
        yield from split(message)


def _code_of(error: grpc.RpcError) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def _read(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise AsflError(f"can't read {file}: {error.strerror or error}") from None
