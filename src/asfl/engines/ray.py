"""Train many runs on the workers of a Ray cluster: on this machine, or on many.

A worker trains in a folder of its own node and sends home what a run leaves behind, so that the run folder at home can
be resumed at any moment. If a worker dies, its run goes back into the queue, and another worker goes on from the last
checkpoint that came home. What a run itself does wrong is its failure, and isn't tried again.
"""

import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from asfl._version import __version__
from asfl.callbacks import tracker_names
from asfl.engines.ray_cluster import RayCluster, ray_cluster, worker_environment
from asfl.engines.ray_errors import cause_of_death, cause_of_failure
from asfl.engines.ray_worker import Trainer
from asfl.engines.shipping import Home, News, send
from asfl.errors import AsflError
from asfl.jobs import Ended, Event, Job, Train, train
from asfl.records import RoundRecord

MOST_DEATHS = 3
"""Of workers that had the same run, and of workers in a row that died before they had any."""

SILENCE_S = 120.0
"""After so long without any worker it is said what we wait for."""

_log = logging.getLogger(__name__)


def train_on_ray(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    address: str | None = None,
    on_event: Callable[[Job, Event], None] = lambda job, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """Train every job on one of `workers` workers (default: as many as the cluster has room for).

    The cluster is the one at `address`, or one that is started on this machine for the purpose.
    `should_stop` is asked a few times a second; once it says so, nothing new is started and what runs is stopped.
    The result says, by name, how each job ended that was started.
    """
    for job in jobs:
        if "mlflow" in tracker_names(job.config.output.track) and not os.environ.get("MLFLOW_TRACKING_URI"):
            raise AsflError(
                f'output.track = "{job.config.output.track}": on Ray, MLflow needs the environment variable '
                "MLFLOW_TRACKING_URI, because runs are trained in folders that don't stay"
            )
    threads = max((job.threads for job in jobs), default=1)
    with ray_cluster(address, cpus=(workers or 0) * threads) as cluster:
        if cluster.cpus < threads:
            raise AsflError(f"the Ray cluster has {cluster.cpus} CPUs, and a run needs {threads}; add a node to it")
        dispatch = _Dispatch(jobs, cluster, workers or cluster.cpus // threads, threads, on_event, train)
        try:
            while dispatch.unfinished:
                dispatch.step(should_stop())
        finally:
            dispatch.dismiss_all()
    return dispatch.ended


class _Dispatch:
    """Who trains what."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: RayCluster,
        workers: int,
        threads: int,
        on_event: Callable[[Job, Event], None],
        train: Train,
    ) -> None:
        self.ended: dict[str, Ended] = {}
        self._waiting = deque(jobs)
        self._cluster, self._workers, self._threads = cluster, workers, threads
        self._on_event, self._train = on_event, train
        self._crew: dict[Any, _Worker] = {}
        """By the question each of them has been asked."""
        self._deaths: Counter[str] = Counter()
        self._deaths_in_a_row = 0
        self._stopping = False
        self._complain_at = time.monotonic() + SILENCE_S

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting) or any(worker.job for worker in self._crew.values())

    def step(self, stop: bool) -> None:
        """Hire who is needed, wait a moment for an answer, go on from there."""
        import ray

        if stop and not self._stopping:
            self._stopping = True
            for job in self._waiting:
                if self._deaths[job.name]:  # it was begun; the others never were
                    self._end(job, Ended(False))
            self._waiting.clear()
        unemployed = sum(worker.job is None for worker in self._crew.values())
        for _ in range(min(self._workers - len(self._crew), len(self._waiting) - unemployed)):
            self._ask(_Worker(self._cluster.scratch, self._threads))
        if time.monotonic() > self._complain_at:
            self._complain_at = math.inf
            if not any(worker.job for worker in self._crew.values()):
                _log.warning("no worker has started yet: the Ray cluster may be busy with other things")
        if self._crew:
            for question in ray.wait(list(self._crew), timeout=0.2)[0]:
                self._hear(question)

    def dismiss_all(self) -> None:
        for worker in self._crew.values():
            worker.dismiss()

    def _ask(self, worker: "_Worker") -> None:
        self._crew[worker.next_question(self._train, self._stopping)] = worker

    def _hear(self, question: Any) -> None:
        """Take an answer and ask on, or see why there is none."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        worker = self._crew.pop(question)  # asked again, it stands at the end of the line: everybody has a turn
        try:
            answer = ray.get(question)
            if worker.job is None:
                self._deaths_in_a_row = 0
                _check_version(answer)
            else:
                self._take(worker, worker.job, answer or [])
            self._go_on(worker)
        except RayTaskError as error:
            worker.dismiss()
            if worker.job is None:
                raise AsflError(
                    f"a node of the Ray cluster can't run asfl {__version__}: {cause_of_failure(error)}"
                ) from None
            self._end(worker.job, Ended(False, cause_of_failure(error), str(error)))
        except RayError as error:
            worker.dismiss()
            self._bury(worker.job, cause_of_death(error))
        except AsflError as error:
            worker.dismiss()
            if worker.job is None:
                raise
            self._end(worker.job, Ended(False, str(error)))  # such as a full disk at home

    def _take(self, worker: "_Worker", job: Job, news: list[News]) -> None:
        for one in news:
            worker.home.keep(one)
            if isinstance(one, RoundRecord):
                self._on_event(job, one)
            elif isinstance(one, Ended):
                self._end(job, one)
                worker.job = None

    def _go_on(self, worker: "_Worker") -> None:
        if worker.job is None and not self._waiting:
            worker.dismiss()
            return
        if worker.job is None:
            worker.begin(self._waiting.popleft())
        self._ask(worker)

    def _bury(self, job: Job | None, cause: str) -> None:
        if job is None:
            self._deaths_in_a_row += 1
            if self._deaths_in_a_row == MOST_DEATHS:
                raise AsflError(f"workers of the Ray cluster die before they can do anything: {cause}")
            return
        self._deaths[job.name] += 1
        if self._stopping:
            self._end(job, Ended(False))
        elif self._deaths[job.name] == MOST_DEATHS:
            self._end(job, Ended(False, f"its worker died {MOST_DEATHS} times (the last time: {cause})"))
        else:
            _log.warning("%s: its worker died (%s); it goes on from its last checkpoint", job.name, cause)
            self._waiting.appendleft(job)

    def _end(self, job: Job, end: Ended) -> None:
        self.ended[job.name] = end
        self._on_event(job, end)


class _Worker:
    """A worker, seen from the driver: asked one thing at a time."""

    job: Job | None = None
    home: Home

    def __init__(self, scratch: Path | None, threads: int) -> None:
        import ray

        hired = ray.remote(Trainer).options(
            num_cpus=threads,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": worker_environment(threads)},
        )
        self._actor: Any = hired.remote(str(Path.cwd()), scratch and str(scratch))

    def begin(self, job: Job) -> None:
        self.job, self.home = job, Home(job.folder)
        self._luggage, self._begun = send(job.folder), False

    def next_question(self, train: Train, stop: bool) -> Any:
        if self.job is None:
            return self._actor.hello.remote()
        if (piece := next(self._luggage, None)) is not None:
            return self._actor.receive.remote(piece)
        if not self._begun:
            self._begun = True
            return self._actor.begin.remote(self.job, train)
        return self._actor.report.remote(stop)

    def dismiss(self) -> None:
        import ray

        with suppress(Exception):  # it may be dead, and so may the cluster
            ray.kill(self._actor)


def _check_version(there: object) -> None:
    if there != __version__:
        raise AsflError(
            f"a node of the Ray cluster has asfl {there}, and here it is {__version__}; all nodes need the same version"
        )
