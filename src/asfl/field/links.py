"""A way to ask one client something, whatever lies in between, and how long each exchange took."""

import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, Protocol

from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field.messages import A, Answer, AnyRequest, Refusal, Request
from asfl.field.wire import Data, WireError, decode, encode


class RefusedError(WireError):
    """The client hasn't done what it was asked to, and says so: no lie."""


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

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        """Send a request that is of use only for so many seconds; never raises, the future does.

        An answer that comes later still ends the request: only then can the client be asked again.
        """
        ...


def failed(error: Exception) -> "Future[Answer]":
    """A future that has nothing but this error."""
    future: Future[Answer] = Future()
    future.set_exception(error)
    return future


class Node(Protocol):
    """A client that answers bytes with bytes (`asfl.field.client.ClientNode`)."""

    largest_message: int

    def answer(self, data: Data) -> bytes: ...


class LocalLink:
    """A link to a client in this process."""

    def __init__(self, node: Node, pool: Executor) -> None:
        self._node, self._pool = node, pool
        self._latest: Future[Answer] | None = None
        self.generation = 0

    @property
    def trouble(self) -> str | None:
        return "still busy" if self._latest is not None and not self._latest.done() else None

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        if self.trouble is not None:
            return failed(LinkError(self.trouble))
        try:
            self._latest = self._pool.submit(self._answer, encode(request), time.monotonic() + deadline_s)
        except (AsflError, RuntimeError) as error:  # a pool that was shut down
            return failed(error)
        return self._latest

    def _answer(self, request: bytes, due: float) -> Answer:
        if time.monotonic() > due:
            raise LinkError("the request was too late")
        return decode(self._node.answer(request), Answer, self._node.largest_message)


@dataclass(frozen=True, eq=False)
class Exchange(Generic[A]):
    """A request and its answer; times are the server's monotonic clock."""

    client: int
    request: Request[A]
    answer: A
    sent_at: float
    answered_at: float


@dataclass(eq=False)
class OpenRequest(Generic[A]):
    """A request that is under way. Making one sends it."""

    link: Link
    client: int
    request: Request[A]
    deadline_s: float
    base: Tensor | None = None
    """What layers in the answer are compared with (`asfl.field.outliers`)."""
    sent_at: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.noted = False
        """Whether others are compared with its answer."""
        self._answered_at: float | None = None
        self._future = self.link.ask(self.request, self.deadline_s)
        self._future.add_done_callback(self._note_time)

    def _note_time(self, _: "Future[Answer]") -> None:
        self._answered_at = monotonic()

    def answer_if_any(self) -> Answer | None:
        """Waits for the answer; None if it is none, for whatever reason."""
        try:
            return self.exchange().answer
        except Exception:  # `exchange` says the reason again
            return None

    def exchange(self) -> Exchange[A]:
        """Waits for the answer, but no longer than agreed (TimeoutError). A refusal is a `WireError`."""
        answer = self._future.result(max(self.sent_at + self.deadline_s - monotonic(), 0.0))
        if isinstance(answer, Refusal):
            raise RefusedError(f"the client refused: {answer.reason}")
        if not isinstance(answer, self.request.answer_type()):
            raise WireError(f"{answer.name} is no answer to {self.request.name}")
        return Exchange(self.client, self.request, answer, self.sent_at, self._answered_at or monotonic())
