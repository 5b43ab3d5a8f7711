"""A run whose clients are Ray actors, spread over a cluster: on this machine, or on many."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from asfl._version import __version__
from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.fleet import agreement_for, data_folder, train
from asfl.field.messages import Agreement, Answer, AnyRequest, Blueprint, LinkError, Welcome, failed
from asfl.field.roster import Patience
from asfl.field.wire import decode, encode
from asfl.runs.engines.ray import (
    Actor,
    cause_of_death,
    cause_of_failure,
    check_ray,
    check_version,
    end_actor,
    ray_cluster,
    start_actor,
)
from asfl.runs.folder import is_finished
from asfl.runs.manifest import MANIFEST_FILE, read_manifest, run_to_go_on_with
from asfl.runs.run import RunOptions, ShouldStop, run

_LONGEST_PAUSE_S = 30.0
MOST_LOSSES = 3
"""Of actors in a row, before a client was ever ready."""
_POLL_S = 0.05
_CPUS = 1e-3
"""That each client reserves: next to nothing, so that there is always room, also for those whose node has died. They
compute with as many threads as the run has, and only on nodes that have CPUs."""


class ClientActor(Actor):
    """Holds a `ClientNode` and answers for it. A Ray actor of two threads, of which `stay` takes one."""

    def stay(self) -> None:
        """Never answers: the caller learns when this process ends."""
        threading.Event().wait()

    def begin(self, welcome: bytes, data_dir: str | None) -> str:
        """Become the client the welcome is for. The answer says why that can't be; it is empty if all is well."""
        import torch

        from asfl.field.client import ClientNode
        from asfl.train.fleet import keep_freed_memory

        keep_freed_memory()
        try:
            self._node = ClientNode(decode(welcome, Welcome), Path(data_dir) if data_dir else None)
        except AsflError as error:
            return str(error)
        torch.set_num_threads(self._node.threads)
        return ""

    def handle(self, request: bytes) -> bytes:
        """A request and its answer, as bytes."""
        return self._node.answer(request)


class RayLink:
    """`asfl.field.messages.Link` to a client in an actor.

    If the actor dies, or can't be this client where it is, another one is started, which knows nothing until the server
    has brought it up to date.
    """

    def __init__(self, start: Callable[[], Any], welcome: bytes, data_dir: str | None, limit: int) -> None:
        """`start` makes a `ClientActor`; `limit`: bytes of the largest answer."""
        self._start_actor, self._welcome, self._data_dir, self._limit = start, welcome, data_dir, limit
        self._lock, self._closed = threading.Lock(), False
        self._actor: Any = None
        self._latest: tuple[str, Future[Answer]] | None = None
        """The latest request by name, and its answer."""
        self._absence: str | None = "its actor is being started"
        self.generation = 0
        """Counts the actors that were ready. With another one, whatever the one before had learnt is gone."""
        self.losses = 0
        """Of actors, since the last one that was ready."""
        self.refusal = ""
        """Why the latest actor couldn't be this client where it was, if that is how it ended."""
        self._start_after(0.0)

    @property
    def trouble(self) -> str | None:
        if self._absence is None and self._latest is not None and not self._latest[1].done():
            return f"still busy with {self._latest[0]}"
        return self._absence

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        """At once under way: no other request stands in line before an actor, which needn't know the deadline."""
        if (trouble := self.trouble) is not None:
            return failed(LinkError(trouble))
        try:
            handled = self._actor.handle.remote(encode(request)).future()
        except Exception as error:  # what can't be sent, and all that Ray may raise
            return failed(error if isinstance(error, AsflError) else LinkError(_reason(error)))
        answered: Future[Answer] = Future()
        self._latest = request.name, answered
        handled.add_done_callback(lambda done: self._answer(done, answered))
        return answered

    def _answer(self, handled: "Future[bytes]", answered: "Future[Answer]") -> None:
        try:
            answered.set_result(decode(handled.result(), Answer, self._limit))
        except AsflError as error:
            answered.set_exception(error)
        except Exception as error:  # Ray's client raises whatever gRPC does
            answered.set_exception(LinkError(_reason(error)))

    # ------------------------------------------------------------------ the life of an actor
    def _start_after(self, pause_s: float) -> None:
        timer = threading.Timer(pause_s, self._start)
        timer.daemon = True
        timer.start()

    def _start(self) -> None:
        import ray
        from ray.exceptions import RayTaskError

        if self._closed:  # then there may be no cluster any more
            return
        try:
            self._actor = actor = self._start_actor()
            if self._closed:
                end_actor(actor)
            stays = actor.stay.remote()  # first, so that all requests have the same thread
            try:
                if mismatch := check_version(ray.get(actor.hello.remote())):
                    refusal = f"its node {mismatch}"
                else:
                    refusal = ray.get(actor.begin.remote(self._welcome, self._data_dir))
            except RayTaskError as error:
                refusal = f"its node can't run asfl {__version__}: {cause_of_failure(error)}"
        except Exception as error:
            self._lose(_reason(error))
            return
        if refusal:
            self.refusal = refusal
            end_actor(actor)
            self._lose(refusal)
            return
        with self._lock:
            self._absence, self.refusal, self.losses, self.generation = None, "", 0, self.generation + 1
        stays.future().add_done_callback(lambda done: self._lose(_reason(done.exception())))

    def _lose(self, reason: str) -> None:
        """The actor is gone: another one, at once if the one before had been ready."""
        with self._lock:
            self._absence = reason
            self.losses += 1
            pause_s = 0.0 if self.losses < 2 else min(2.0 ** (self.losses - 2), _LONGEST_PAUSE_S)
            if not self._closed:
                self._start_after(pause_s)

    def close(self) -> None:
        """No actor is started any more, and the actor ends."""
        with self._lock:
            self._closed, self._absence = True, "the run is over"
        end_actor(self._actor)  # not under the lock, which Ray's own thread may wait for in `_lose`


def _reason(error: BaseException | None) -> str:
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):  # the actor lives
        return cause_of_failure(error)
    if isinstance(error, RayError):
        return f"its actor died ({cause_of_death(error)})"
    return f"its actor is out of reach ({type(error).__name__}: {error})"


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

    Everything else is as in `asfl.runs.run.run`. A stop before all clients are there is a KeyboardInterrupt.
    """
    check_ray(address)
    agreement = agreement_for(config, scheme, folder, watching.get("threads"))
    run_to_go_on_with(folder, agreement.config, scheme)  # refuses what is no run, before a cluster is started
    if is_finished(folder, agreement.config.training.rounds):
        return run(agreement.config, scheme, folder, **watching)
    if (folder / MANIFEST_FILE).exists():
        watching["data_dir"] = read_manifest(folder).data_dir(watching.get("data_dir"))
    stop = watching.get("should_stop", lambda: False)
    with ray_clients(agreement, address, watching.get("data_dir"), stop) as links:
        return train(agreement, folder, links, patience=patience, **watching)


@contextmanager
def ray_clients(
    agreement: Agreement,
    address: str | None = None,
    data_dir: Path | None = None,
    should_stop: ShouldStop = lambda: False,
) -> Iterator[list[RayLink]]:
    """The links to the clients of a run, when all are there."""
    clients, largest = agreement.config.scenario.clients, Blueprint.of(agreement.config).largest_message
    with ray_cluster(address), ExitStack() as open_:
        start = partial(start_actor, ClientActor, cpus=_CPUS, threads=agreement.threads, max_concurrency=2)
        links: list[RayLink] = []
        for client in range(clients):
            welcome = encode(agreement.welcome(client))
            links.append(RayLink(start, welcome, data_folder(agreement.config, data_dir), largest))
            open_.callback(links[-1].close)
        _wait_for_all(links, should_stop)
        yield links


def _wait_for_all(links: Sequence[RayLink], should_stop: ShouldStop) -> None:
    while missing := [client for client, link in enumerate(links) if link.trouble is not None]:
        for client in missing:
            refusal = links[client].refusal
            if refusal or links[client].losses >= MOST_LOSSES:
                why = refusal or links[client].trouble
                raise AsflError(f"client {client} can't be started on the Ray cluster: {why}")
        if should_stop():
            raise KeyboardInterrupt
        time.sleep(_POLL_S)
