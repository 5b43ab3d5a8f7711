"""Train many runs on the nodes of a Ray cluster that was started before, on this machine or on many.

Run folders are on a disk that all nodes share. If a worker dies, another one goes on from the last checkpoint. What a
run itself does wrong is its failure, and isn't tried again.
"""

import logging
import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.runs.jobs import Ended, Event, Job, OnEvent, Train, WorkerDiedError, attempt, train, train_side_by_side
from asfl.runs.run import ShouldStop

if TYPE_CHECKING:
    from ray.exceptions import RayError, RayTaskError

MOST_DEATHS = 3
"""Of workers that had the same run."""
SILENCE_S = 120.0
"""After so long without a word of a worker it is said what we wait for."""
ANSWER_WITHIN_S = 10.0
_GPU_STAYS_VISIBLE = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""To processes that reserve none, as without Ray; some versions warn that this will be so."""
_BEFORE_IMPORT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to its makers
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # messages of its processes aren't repeated on our terminal
    **_GPU_STAYS_VISIBLE,
}
"""Switches that Ray reads when it is imported. What the user has set, stays."""
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- the cluster
def check_ray(address: str | None) -> None:
    """Refuse what can't work, before anything is started: no Ray here, or nothing that answers at the address.

    Ray itself would try for minutes.
    """
    if util.find_spec("ray") is None:
        raise MissingExtraError("training on Ray", "ray")
    if address is None:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise AsflError(
            f"--address {address}: give HOST:PORT of a Ray cluster, such as 10.0.0.1:6379, or ray://HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AsflError(f"--address {address}: no Ray cluster answers there ({reason})") from None


@contextmanager
def ray_cluster(address: str | None = None) -> Iterator[None]:
    """Be in the Ray cluster at `address`, by default the one that runs on this machine.

    A process that is in a cluster already stays in that one, and doesn't leave it in the end.
    """
    check_ray(address)
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        if address is None and isinstance(error, ConnectionError):
            raise AsflError(
                "no Ray cluster runs on this machine: start one (ray start --head), or give --address HOST:PORT"
            ) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AsflError(f"can't join the Ray cluster at {address or 'this machine'}: {reason}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own handler prints a stack trace
    try:
        yield
    finally:
        ray.shutdown()


# ---------------------------------------------------------------------- actors
_PASSED_ON = (
    *("ASFL_PLUGINS", "ASFL_DATA_DIR", "OMP_WAIT_POLICY"),
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL"),
)
"""Environment variables that mean something on other machines too; none that hold secrets."""


class Actor:
    """What all our processes on nodes can do."""

    def __init__(self, driver_folder: str) -> None:
        """Relative paths begin in the driver's folder, if this node has it."""
        if Path(driver_folder).is_dir():
            os.chdir(driver_folder)

    def hello(self) -> str:
        """Say which asfl this is. From now on, end with the process that manages this node.

        Ray's own workers notice only after a minute that their node is dead, and would work on until then.
        """
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        return __version__


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def start_actor(kind: type, *arguments: object, cpus: float, threads: int, **options: object) -> Any:
    """Start an actor that reserves `cpus`, computes with `threads`, and isn't started again if it dies.

    The first argument of every actor is the driver's folder, where relative paths begin.
    """
    import ray

    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment = {"OMP_NUM_THREADS": str(threads), **_GPU_STAYS_VISIBLE, **passed_on}
    actor: Any = ray.remote(kind).options(
        num_cpus=cpus,
        scheduling_strategy="SPREAD",  # over the nodes
        max_restarts=0,
        max_task_retries=0,
        runtime_env={"env_vars": environment},
        **options,
    )
    return actor.remote(str(Path.cwd()), *arguments)


def end_actor(actor: Any) -> None:
    import ray

    if actor is not None:
        with suppress(Exception):  # it may be dead, and so may the cluster
            ray.kill(actor)


def cause_of_failure(error: "RayTaskError") -> str:
    """What went wrong on a worker, in one line."""
    lines = [line for line in str(error.cause).splitlines() if line.strip()]
    return f"{type(error.cause).__name__}: {lines[-1] if lines else ''}"


def cause_of_death(error: "RayError") -> str:
    """Why a worker is gone."""
    causes = {
        "node has died": "its node is gone",
        "running low on memory": "its node ran out of memory",
        "worker process has died": "its process was killed or crashed; out of memory?",
    }
    return next((cause for words, cause in causes.items() if words in str(error)), "it can't be reached any more")


def check_version(there: object) -> str | None:
    """What is wrong with a node whose `Actor.hello` said this; None: nothing."""
    if there == __version__:
        return None
    return f"has asfl {there}, and here it is {__version__}; all nodes need the same version"


# ---------------------------------------------------------------------- on a node
PATIENCE_S = 0.5
"""How long `report` waits for news: a question costs little, but not nothing."""


class Trainer(Actor):
    """Trains the runs it is given, one after the other, in a thread. The driver asks for news."""

    def begin(self, job: Job, train: Train) -> None:
        self._news: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stop = threading.Event()
        threading.Thread(target=self._work, args=(job, train), daemon=True).start()

    def _work(self, job: Job, train: Train) -> None:
        self._news.put(attempt(train, job, self._news.put, self._stop.is_set))

    def report(self, stop: bool) -> list[Event]:
        """What happened since the last time; waits a moment if nothing has."""
        if stop:
            self._stop.set()
        news = list[Event]()
        with suppress(queue.Empty):
            news.append(self._news.get(timeout=PATIENCE_S))
            while True:
                news.append(self._news.get_nowait())
        return news


# ---------------------------------------------------------------------- on the driver
def train_on_ray(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    address: str | None = None,
    on_event: OnEvent = lambda job, event: None,
    should_stop: ShouldStop = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """An `Engine` of `workers` workers (default: as many as the cluster has room for)."""
    threads = max((job.threads for job in jobs), default=1)
    with ray_cluster(address):
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        if cpus < threads:
            raise AsflError(f"the Ray cluster has {cpus} CPUs, and a run needs {threads}; add a node to it")
        crew = [_Worker(threads, train) for _ in range(min(workers or cpus // threads, len(jobs)))]
        return train_side_by_side(jobs, crew, on_event, should_stop, MOST_DEATHS)


class _Worker:
    """A `Trainer` somewhere in the cluster, seen from the driver; a new one after a failure, which may have left it
    in the middle of a run.
    """

    def __init__(self, threads: int, train: Train) -> None:
        self._threads, self._train = threads, train
        self._actor: Any = None

    def begin(self, job: Job) -> None:
        self._job, self._stopping = job, False
        self._silent_until = time.monotonic() + SILENCE_S
        if self._actor is None:
            self._actor = start_actor(Trainer, cpus=self._threads, threads=self._threads)
            self._hello = self._actor.hello.remote()
        self._answer = self._actor.begin.remote(job, self._train)

    def events(self) -> list[Event]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            if not ray.wait([self._answer], timeout=0)[0]:
                if time.monotonic() > self._silent_until:
                    _log.warning("%s waits for a worker: the Ray cluster may be busy with other things", self._job.name)
                    self._silent_until = math.inf
                return []
            self._silent_until = math.inf
            if mismatch := check_version(ray.get(self._hello)):
                self.end()
                return [Ended(False, f"a node of the Ray cluster {mismatch}")]
            found: list[Event] = ray.get(self._answer) or []
        except RayTaskError as error:
            self.end()
            return [Ended(False, cause_of_failure(error), str(error))]
        except RayError as error:
            self.end()
            raise WorkerDiedError(cause_of_death(error)) from None
        if not any(isinstance(event, Ended) for event in found):
            self._answer = self._actor.report.remote(self._stopping)
        return found

    def stop(self) -> None:
        self._stopping = True

    def end(self) -> None:
        end_actor(self._actor)
        self._actor = None
