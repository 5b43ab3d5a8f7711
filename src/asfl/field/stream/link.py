"""A link to a client that comes and goes by streams; at most one request is under way."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from asfl.field.devices.registry import Member
from asfl.field.links import LinkError, failed
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Answer, AnyRequest
from asfl.field.protocol.wire import Data, WireError
from asfl.field.stream.framing import GREETING_LIMIT, Joiner, split


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


class StreamLink:
    """`asfl.field.links.Link` to a client that comes and goes; safe to use from several threads."""

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
