"""Train many runs on the workers of a Ray cluster: on this machine, or on many.

A worker trains in a folder of its own node and sends home what a run leaves behind, so that the run folder at home can
be resumed at any moment. If a worker dies, its run goes back into the queue, and another worker goes on from the last
checkpoint that came home. What a run itself does wrong is its failure, and isn't tried again.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asfl._version import __version__
from asfl.config.errors import AsflError
from asfl.runs.callbacks import tracker_names
from asfl.runs.engines import OnEvent
from asfl.runs.engines.dispatch import WorkerDiedError, dispatch
from asfl.runs.engines.ray_actors import cause_of_death, cause_of_failure, check_version, end_actor, start_actor
from asfl.runs.engines.ray_cluster import ray_cluster
from asfl.runs.engines.ray_worker import Trainer
from asfl.runs.engines.shipping import Destination, send
from asfl.runs.jobs import Ended, Event, Job, Train, train
from asfl.runs.lock import writing
from asfl.runs.records import RoundRecord
from asfl.runs.watching import ShouldStop

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
    on_event: OnEvent = lambda job, event: None,
    should_stop: ShouldStop = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """An `Engine` of `workers` workers (default: as many as the cluster has room for).

    The cluster is the one at `address`, or one that is started on this machine for the purpose.
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
        silence_broken = threading.Event()
        return dispatch(
            jobs,
            lambda: _Worker(cluster.scratch, threads, train, silence_broken),
            workers or cluster.cpus // threads,
            attempts=MOST_DEATHS,
            on_event=on_event,
            should_stop=should_stop,
        )


class _Worker:
    """A `Trainer` somewhere in the cluster, seen from the driver."""

    def __init__(self, scratch: Path | None, threads: int, train: Train, silence_broken: threading.Event) -> None:
        self._scratch, self._threads, self._train = scratch and str(scratch), threads, train
        self._silence_broken = silence_broken
        """By the first of all workers, or by us, who said what we wait for."""
        self._actor: Any = None

    def start(self) -> None:
        """Have an actor that says hello; one that dies before it can is replaced."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        for attempt in range(1, MOST_DEATHS + 1):
            self._actor = start_actor(Trainer, self._scratch, cpus=self._threads, threads=self._threads)
            hello = self._actor.hello.remote()
            if not ray.wait([hello], timeout=SILENCE_S)[0] and not self._silence_broken.is_set():
                _log.warning("no worker has started yet: the Ray cluster may be busy with other things")
            self._silence_broken.set()
            try:
                mismatch = check_version(ray.get(hello))
            except RayTaskError as error:
                mismatch = f"can't run asfl {__version__}: {cause_of_failure(error)}"
            except RayError as error:
                if attempt < MOST_DEATHS:
                    continue
                cause = cause_of_death(error)
                raise AsflError(f"workers of the Ray cluster die before they can do anything: {cause}") from None
            if mismatch:
                raise AsflError(f"a node of the Ray cluster {mismatch}")
            return

    def train(self, job: Job, tell: Callable[[Event], None], should_stop: ShouldStop) -> Ended:
        """Bring the run folder there, if there is one, and home whatever becomes of it."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        home = Destination(job.folder)
        try:
            with writing(job.folder):
                for piece in send(job.folder):
                    ray.get(self._actor.receive.remote(piece))
                ray.get(self._actor.begin.remote(job, self._train))
                while True:
                    for news in ray.get(self._actor.report.remote(should_stop())):
                        if isinstance(news, Ended):
                            return news
                        home.take(news)
                        if isinstance(news, RoundRecord):
                            tell(news)
        except RayTaskError as error:
            failure = Ended(False, cause_of_failure(error), str(error))
        except RayError as error:
            raise WorkerDiedError(cause_of_death(error)) from None
        except AsflError as error:  # such as a full disk at home
            failure = Ended(False, str(error))
        self.end()  # it still has that run
        self.start()
        return failure

    def end(self) -> None:
        end_actor(self._actor)

    kill = end
