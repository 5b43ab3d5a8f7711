"""A link to a client that is a Ray actor; one that died is replaced by another."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.field.links import LinkError, failed
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Answer, AnyRequest
from asfl.runs.engines.ray_actors import cause_of_death, cause_of_failure, check_version, end_actor

_LOOK_EVERY_S = 0.5
"""How soon it is noticed that an actor which isn't asked anything has died."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LEAVE_WITHIN_S = 10.0


class _RefusalError(LinkError):
    """The client can't be there."""


@dataclass(frozen=True, eq=False)
class _Pending:
    name: str
    request: bytes
    future: "Future[Answer]"


class RayLink:
    """`asfl.field.links.Link` to a client in an actor.

    A thread of its own starts the actor, hands it one request at a time and waits for the answer. If the actor dies, or
    can't be this client where it is, the thread starts another one, which knows nothing until the server has brought it
    up to date.
    """

    def __init__(self, start_actor: Callable[[], Any], welcome: bytes, data_dir: str | None, limit: int) -> None:
        """`start_actor` makes a `ClientActor`; `limit`: bytes of the largest answer."""
        self._start_actor, self._welcome, self._data_dir, self._limit = start_actor, welcome, data_dir, limit
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[_Pending] = queue.SimpleQueue()
        self._actor: Any = None
        self._pending: _Pending | None = None
        self._absence: str | None = "its actor is being started"
        self.generation = 0
        """Counts the actors that were ready. With another one, whatever the one before had learnt is gone."""
        self.losses_in_a_row = 0
        """Of actors, since the last one that was ready."""
        self.refusal: str | None = None
        """Why the latest actor couldn't be this client where it was, if that is how it ended."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="asfl-ray-link", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        with self._lock:
            return self._trouble()

    def _trouble(self) -> str | None:
        if self._absence is not None:
            return self._absence
        return None if self._pending is None else f"still busy with {self._pending.name}"

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        """At once under way, as nobody stands in line before an actor: `deadline_s` needn't be known there."""
        try:
            data = encode(request)
        except AsflError as error:
            return failed(error)
        with self._lock:
            trouble = self._trouble()
            if trouble is not None:
                return failed(LinkError(trouble))
            self._pending = _Pending(request.name, data, Future())
            self._inbox.put(self._pending)
            return self._pending.future

    def start_to_close(self) -> None:
        """No actor is started any more, and the actor ends; doesn't wait for it."""
        with self._lock:
            self._closed.set()
            end_actor(self._actor)

    def close(self) -> None:
        """The thread is over then, unless Ray itself hangs."""
        self.start_to_close()
        self._thread.join(_LEAVE_WITHIN_S)

    # ------------------------------------------------------------------ the thread
    def _work(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            self._lose(self._life_of_an_actor())
            at_once = self.losses_in_a_row < 2
            pause_s = 0.0 if at_once else min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    def _life_of_an_actor(self) -> str:
        """Start one and hand it requests until it is over; the reason why it is."""
        from ray.exceptions import RayError

        try:
            self._start()
            self._hand_over_requests()
        except _RefusalError as error:
            self.refusal = str(error)
            return self.refusal
        except RayError as error:
            return f"its actor died ({cause_of_death(error)})"
        except Exception as error:  # Ray's client raises whatever gRPC does
            return f"its actor is out of reach ({type(error).__name__}: {error})"
        finally:
            end_actor(self._actor)
        return "the run is over"

    def _start(self) -> None:
        import ray
        from ray.exceptions import RayTaskError

        with self._lock:
            if self._closed.is_set():
                return
            self._actor, self.refusal = self._start_actor(), None
        self._presence = self._actor.stay.remote()  # first, so that all requests have the same thread
        try:
            if mismatch := check_version(ray.get(self._actor.hello.remote())):
                raise _RefusalError(f"its node {mismatch}")
            if refusal := ray.get(self._actor.begin.remote(self._welcome, self._data_dir)):
                raise _RefusalError(refusal)
        except RayTaskError as error:
            raise _RefusalError(f"its node can't run asfl {__version__}: {cause_of_failure(error)}") from None
        with self._lock:
            self._absence, self.losses_in_a_row = None, 0
            self.generation += 1

    def _hand_over_requests(self) -> None:
        import ray
        from ray.exceptions import RayTaskError

        while not self._closed.is_set():
            try:
                pending = self._inbox.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                if ray.wait([self._presence], timeout=0)[0]:
                    ray.get(self._presence)  # which raises
                continue
            try:
                answer = decode(ray.get(self._actor.handle.remote(pending.request)), Answer, self._limit)
            except RayTaskError as error:  # the actor lives
                self._end(pending, LinkError(cause_of_failure(error)))
            except AsflError as error:
                self._end(pending, error)
            else:
                self._end(pending, answer)

    def _end(self, pending: _Pending, outcome: Answer | Exception) -> None:
        with self._lock:
            self._pending = None
        if isinstance(outcome, Answer):
            pending.future.set_result(outcome)
        else:
            pending.future.set_exception(outcome)

    def _lose(self, reason: str) -> None:
        with self._lock:
            lost, self._pending = self._pending, None
            self._absence = reason
            self.losses_in_a_row += 1
            self._inbox = queue.SimpleQueue()
        if lost is not None:
            lost.future.set_exception(LinkError(reason))
