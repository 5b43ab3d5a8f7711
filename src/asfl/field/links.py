"""A way to ask one client something, whatever lies in between."""

from concurrent.futures import Executor, Future
from time import monotonic
from typing import Protocol

from asfl.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.wire import Message, decode, encode


class LinkError(AsflError):
    """The client can't be asked, or its answer can't come any more."""


class Link(Protocol):
    """One client, one request at a time."""

    @property
    def trouble(self) -> str | None:
        """Why the client can't be asked now; None if it can."""
        ...

    @property
    def generation(self) -> int:
        """Another number: behind the link is another node now, and whatever the one before had learnt is gone."""
        ...

    def ask(self, message: Message, deadline_s: float) -> "Future[Message]":
        """Send a request that is of use only for so many seconds; never raises, the future does.

        An answer that comes later still ends the request: only then the client can be asked again.
        """
        ...


class LocalLink:
    """A client in this process, in a thread of a pool; messages are encoded and decoded as on a network."""

    def __init__(self, node: ClientNode, pool: Executor) -> None:
        self._node, self._pool = node, pool
        self._latest: Future[Message] | None = None
        self.generation = 0

    @property
    def trouble(self) -> str | None:
        return "still busy" if self._latest is not None and not self._latest.done() else None

    def ask(self, message: Message, deadline_s: float) -> "Future[Message]":
        if self.trouble is not None:
            return failed(LinkError(self.trouble))
        try:
            self._latest = self._pool.submit(self._answer, encode(message), monotonic() + deadline_s)
        except (AsflError, RuntimeError) as error:  # a pool that was shut down
            return failed(error)
        return self._latest

    def _answer(self, request: bytes, due: float) -> Message:
        if monotonic() > due:
            raise LinkError("the request was too late")
        limit = self._node.largest_message
        return decode(encode(self._node.handle(decode(request, limit))), limit)


def failed(error: Exception) -> "Future[Message]":
    """A future that has nothing but this error."""
    future: Future[Message] = Future()
    future.set_exception(error)
    return future
