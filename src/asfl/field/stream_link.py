"""A link to a client that comes and goes by streams; at most one request is under way."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from asfl.field.chunks import Joiner, split
from asfl.field.links import LinkError, failed
from asfl.field.stream import GREETING_LIMIT
from asfl.field.wire import Message, WireError, encode


@dataclass(frozen=True, eq=False)
class Pending:
    """The one request a client may have."""

    number: int
    op: str
    request: bytes
    due: float
    future: "Future[Message]"


class Connection:
    """One stream of a client that was admitted."""

    def __init__(self, peer: str, cancel: Callable[[], object]) -> None:
        self.peer, self.cancel = peer, cancel
        self.joiner = Joiner(GREETING_LIMIT)
        self._outbox: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()

    def send(self, pending: Pending) -> None:
        self._outbox.put(pending)

    def end(self) -> None:
        self._outbox.put(None)

    def outgoing(self, too_late: Callable[[Pending], None]) -> Iterator[bytes]:
        """Chunks of requests, until the end; what waited longer than its deadline isn't sent any more."""
        for pending in iter(self._outbox.get, None):
            if time.monotonic() > pending.due:
                too_late(pending)
            else:
                yield from split(pending.request)


class StreamLink:
    """`asfl.field.links.Link` to a client that comes and goes; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._pending: Pending | None = None
        self._number = 0
        self._node = ""
        self._generation = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def generation(self) -> int:
        """Counts the nodes that have answered here. With another one, whatever the one before had learnt is gone."""
        return self._generation

    @property
    def trouble(self) -> str | None:
        with self._lock:
            return self._trouble()

    def _trouble(self) -> str | None:
        if self._connection is None:
            return "not connected"
        return None if self._pending is None else f"still busy with {self._pending.op}"

    def ask(self, message: Message, deadline_s: float) -> "Future[Message]":
        due = time.monotonic() + deadline_s
        with self._lock:
            trouble, connection = self._trouble(), self._connection
            if trouble is not None or connection is None:
                return failed(LinkError(trouble or "not connected"))
            self._number += 1
            try:
                request = encode(message.having(id=self._number))
            except WireError as error:
                return failed(error)
            self._pending = Pending(self._number, message.op, request, due, Future())
            connection.send(self._pending)
            return self._pending.future

    def attach(self, connection: Connection, node: str) -> None:
        """The client is here; if it was here before, that stream is of no use any more.

        `node` names what holds its state: the same name, the same state.
        """
        with self._lock:
            if node != self._node:
                self._node, self._generation = node, self._generation + 1
            before, lost = self._connection, self._pending
            self._connection, self._pending = connection, None
        if before is not None:
            before.cancel()
        if lost is not None:
            lost.future.set_exception(LinkError(f"the client connected anew instead of answering to {lost.op}"))

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
                self._connection.end()

    def received(self, connection: Connection, answer: Message) -> None:
        """An answer to the one request there may be."""
        number = answer.whole("id")
        with self._lock:
            if self._connection is not connection:
                return
            pending = self._pending
            if pending is None or pending.number != number:
                raise WireError(f"an answer to request {number}, which nobody made")
            self._pending = None
        pending.future.set_result(answer)

    def too_late(self, pending: Pending) -> None:
        """The request was never sent, so the client is free."""
        with self._lock:
            if self._pending is not pending:
                return
            self._pending = None
        pending.future.set_exception(LinkError("the request could not be sent in time"))
