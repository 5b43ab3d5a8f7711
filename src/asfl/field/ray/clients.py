"""A run whose clients are Ray actors, spread over a cluster: on this machine, or on many."""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

from asfl._version import __version__
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.engine import agreement_for, data_folder, train
from asfl.field.links import LinkError, failed
from asfl.field.protocol.codec import decode, encode
from asfl.field.protocol.messages import Agreement, Answer, AnyRequest
from asfl.field.protocol.shapes import Blueprint
from asfl.field.ray.actor import ClientActor
from asfl.field.roster import Patience
from asfl.runs.engines.ray import (
    OBJECT_STORE_BYTES,
    cause_of_death,
    cause_of_failure,
    check_ray,
    check_version,
    end_actor,
    ray_cluster,
    start_actor,
)
from asfl.runs.manifest import MANIFEST_FILE, read_manifest
from asfl.runs.run import RunOptions

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


MOST_LOSSES = 3
"""Of actors in a row, before a client was ever ready."""
SILENCE_S = 120.0
"""After so long without all clients it is said what we wait for."""
_POLL_S = 0.05
_SMALLEST_SHARE = 1e-4
"""Of a CPU; Ray counts in these."""

_log = logging.getLogger(__name__)


def run_with_actors(
    config: Config,
    scheme: str,
    folder: Path,
    *,
    address: str | None = None,
    patience: Patience | None = None,
    **watching: Unpack[RunOptions],
) -> bool:
    """Train in a folder with one actor per client: a new run, or the rest of the one that is there.

    The cluster is the one at `address`, or one that is started on this machine for the purpose. Everything else is as
    in `asfl.runs.run.run`. A stop before all clients are there is a KeyboardInterrupt.
    """
    check_ray(address)
    terms = agreement_for(config, scheme, folder, watching.get("threads"))
    if (folder / MANIFEST_FILE).exists():
        watching["data_dir"] = read_manifest(folder).data_dir(watching.get("data_dir"))
    with RayClients(terms, address=address, **watching) as clients:
        return train(terms, folder, clients, patience=patience, **watching)


class RayClients(Sequence[RayLink]):
    """The links to the clients of a run.

    Nothing is started before somebody looks at them: a run that is over, or can't begin, needs no cluster. Then it
    takes until all clients are there.
    """

    def __init__(
        self,
        terms: Agreement,
        *,
        address: str | None = None,
        **watching: Unpack[RunOptions],
    ) -> None:
        self._terms, self._address, self._should_stop = terms, address, watching.get("should_stop", lambda: False)
        self._data_dir = data_folder(terms.config, watching.get("data_dir"))
        self._links: list[RayLink] = []
        self._started = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._started.close()

    def __len__(self) -> int:
        return len(self._ready())

    @overload
    def __getitem__(self, index: int) -> RayLink: ...
    @overload
    def __getitem__(self, index: slice) -> list[RayLink]: ...
    def __getitem__(self, index: int | slice) -> RayLink | list[RayLink]:
        return self._ready()[index]

    def _ready(self) -> list[RayLink]:
        if not self._links:
            self._start()
        return self._links

    def _start(self) -> None:
        clients, largest = self._terms.config.scenario.clients, Blueprint.of(self._terms.config).largest_message
        store_bytes = max(OBJECT_STORE_BYTES, clients * largest)  # everybody may be sent a whole client at once
        self._started.enter_context(ray_cluster(self._address, store_bytes=store_bytes))
        start = partial(
            start_actor,
            ClientActor,
            cpus=share_of_cpu(clients, _cpus_of_nodes()),
            threads=self._terms.threads,
            max_concurrency=2,
        )
        self._started.callback(self._leave)
        for client in range(clients):
            welcome = encode(self._terms.welcome(client))
            self._links.append(RayLink(start, welcome, self._data_dir, largest))
        self._wait_for_everybody()

    def _wait_for_everybody(self) -> None:
        complain_at = time.monotonic() + SILENCE_S
        while missing := [client for client, link in enumerate(self._links) if link.trouble is not None]:
            for client in missing:
                link = self._links[client]
                if link.refusal is not None or link.losses_in_a_row >= MOST_LOSSES:
                    raise AsflError(
                        f"client {client} can't be started on the Ray cluster: {link.refusal or link.trouble}"
                    )
            if self._should_stop():
                raise KeyboardInterrupt
            if time.monotonic() > complain_at:
                complain_at = math.inf
                _log.warning(
                    "%d of %d clients haven't started yet: the Ray cluster may be busy with other things",
                    len(missing),
                    len(self._links),
                )
            time.sleep(_POLL_S)

    def _leave(self) -> None:
        for link in self._links:
            link.start_to_close()
        for link in self._links:
            link.close()


def share_of_cpu(clients: int, cpus_of_nodes: Sequence[float]) -> float:
    """What each client reserves: so much that all of them would fit on the largest node, and at most one CPU.

    So there is always room, also for those whose node has died. They compute with as many threads as the run has.
    """
    largest = max(cpus_of_nodes, default=0.0) or 1.0
    return min(math.floor(largest / clients / _SMALLEST_SHARE) * _SMALLEST_SHARE, 1.0)


def _cpus_of_nodes() -> list[float]:
    import ray

    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
