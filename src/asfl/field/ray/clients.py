"""A run whose clients are Ray actors, spread over a cluster: on this machine, or on many."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, overload

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.engine import agreement_for, data_folder, train
from asfl.field.patience import Patience
from asfl.field.protocol.codec import encode
from asfl.field.protocol.messages import Agreement
from asfl.field.protocol.shapes import Blueprint
from asfl.field.ray.actor import ClientActor
from asfl.field.ray.link import RayLink
from asfl.runs.engines.ray_actors import start_actor
from asfl.runs.engines.ray_cluster import OBJECT_STORE_BYTES, check_ray, ray_cluster
from asfl.runs.manifest import MANIFEST_FILE, read_manifest
from asfl.runs.watching import Watching

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
    **watching: Unpack[Watching],
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
        **watching: Unpack[Watching],
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
