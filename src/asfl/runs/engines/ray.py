"""Train many runs on the nodes of a Ray cluster: on this machine, or on many.

A worker trains in a folder of its own node and sends home what a run leaves behind (`asfl.runs.engines.shipping`), so
that the run folder at home can be resumed at any moment and no disk has to be seen by both. If a worker dies, another
one goes on from the last checkpoint that came home. What a run itself does wrong is its failure, and isn't tried again.

A cluster of our own listens on the loopback address only, asks for a token, and is gone with its files in the end. It
writes nothing to our terminal. Ctrl-C doesn't reach it: Ray's processes block the signal or have groups of their own.
"""

import logging
import math
import os
import queue
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.runs.callbacks import tracker_names
from asfl.runs.engines.processes import WorkerDiedError, train_side_by_side
from asfl.runs.engines.shipping import Destination, News, Parcel, Source, send
from asfl.runs.files import writing
from asfl.runs.jobs import Ended, Event, Job, OnEvent, Train, attempt, train
from asfl.runs.records import RoundRecord
from asfl.runs.run import ShouldStop
from asfl.runs.this_process import usual_threads

if TYPE_CHECKING:
    from ray.exceptions import RayError, RayTaskError

MOST_DEATHS = 3
"""Of workers that had the same run."""
SILENCE_S = 120.0
"""After so long without a word of a worker it is said what we wait for."""
_log = logging.getLogger(__name__)

# ---------------------------------------------------------------------- the cluster
OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster of our own: most messages are small, and so is /dev/shm in many containers."""
ANSWER_WITHIN_S, LEAVE_WITHIN_S = 10.0, 3.0
_SHARED_MEMORY = Path("/dev/shm")
_LONGEST_FOLDER = 36
"""Ray puts sockets far below its folder, and the path of a socket has room for about 100 characters."""
_GPU_STAYS_VISIBLE = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""To processes that reserve none, as without Ray; some versions warn that this will be so."""
_BEFORE_IMPORT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to its makers
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # messages of its processes aren't repeated on our terminal
    **_GPU_STAYS_VISIBLE,
}
"""Switches that Ray reads when it is imported. What the user has set, stays."""
_OF_OUR_OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it listens on the loopback address only
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_worker_niceness": "0",  # a run is as important here as it is without Ray
    "RAY_prestart_worker_first_driver": "0",  # workers have an environment of their own
}
"""Ray reads them once in a process, so all clusters of a process have the same token."""
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = 4
_own_cluster_before = False


def check_ray(address: str | None) -> None:
    """Refuse what can't work, before anything is started: no Ray here, or none at the address.

    At the address it is asked for HTTP/2, which Ray speaks; Ray itself would try for minutes.
    """
    if util.find_spec("ray") is None:
        raise MissingExtraError("training on Ray", "ray")
    if address is None:
        return
    scheme, _, rest = address.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if scheme not in ("", "ray") or not host or not port or parts.path:
        raise AsflError(
            f"--address {address}: give HOST:PORT of a Ray cluster, such as 10.0.0.1:6379, or ray://HOST:PORT"
        )
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):  # then a plain greeting is no greeting
        return
    try:
        with socket.create_connection((host, port), timeout=ANSWER_WITHIN_S) as connection:
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9)
    except OSError as error:
        raise AsflError(f"--address {address}: no Ray cluster answers there ({error.strerror or error})") from None
    if answer[3:4] != bytes([_HTTP2_SETTINGS]):
        raise AsflError(f"--address {address}: what answers there isn't a Ray cluster")


@contextmanager
def ray_cluster(
    address: str | None = None, *, cpus: int = 0, store_bytes: int = OBJECT_STORE_BYTES
) -> Iterator[Path | None]:
    """Be in a Ray cluster: the one at `address`, or a new one on this machine with at least `cpus` CPUs.

    That has a folder for whatever is to live as long as it does.

    `store_bytes`: what may be under way at a time in a new cluster; what is more goes through the disk.
    A process that is in a cluster already stays in that one, and doesn't leave it in the end.
    """
    check_ray(address)
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield None
    elif address is None:
        with _own_cluster(max(usual_threads(), cpus), store_bytes) as folder:
            yield folder
    else:
        import ray

        try:
            _join(address)
            yield None
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    import ray

    try:
        _init(address)
    except (ConnectionError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AsflError(f"can't join the Ray cluster at {address}: {reason}") from None


@contextmanager
def _own_cluster(cpus: int, store_bytes: int) -> Iterator[Path]:
    """A cluster on this machine; all that is left of it in the end is killed and removed."""
    global _own_cluster_before
    if "ray" in sys.modules and not _own_cluster_before:
        raise AsflError(
            "Ray was imported before asfl could start a cluster that no other user reaches; "
            "call ray.init() first, or give the address of a cluster"
        )
    _own_cluster_before = True
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= _LONGEST_FOLDER else "/tmp"
    before = {name: os.environ.get(name) for name in _OF_OUR_OWN}
    with tempfile.TemporaryDirectory(prefix="asfl-ray-", dir=parent, ignore_cleanup_errors=True) as folder:
        os.environ.update(_OF_OUR_OWN)
        import psutil
        import ray

        try:
            free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
            memory = min(store_bytes, max(free // 2, OBJECT_STORE_BYTES))
            # "local": never one that happens to run here
            _init("local", num_cpus=cpus, include_dashboard=False, object_store_memory=memory, _temp_dir=folder)
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            if host != "127.0.0.1":
                raise AsflError(f"this version of Ray ({ray.__version__}) would listen at {host}, not only here")
            yield Path(folder)
        finally:
            processes: list[psutil.Process] = []
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    if any(folder in word for word in child.cmdline()):
                        processes += [child, *child.children(recursive=True)]
            ray.shutdown()
            for process in psutil.wait_procs(processes, timeout=LEAVE_WITHIN_S)[1]:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, timeout=LEAVE_WITHIN_S)
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _init(address: str, **options: Any) -> None:
    """`ray.init` without a word, and without its handler of SIGTERM, which prints a stack trace."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


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
    """Trains the runs it is given, one after the other, each in a folder of its own. The driver asks for news."""

    def __init__(self, driver_folder: str, scratch: str | None) -> None:
        """`scratch`: where to work, if not where temporary files go."""
        super().__init__(driver_folder)
        self._parent = scratch

    def begin(self, job: Job, train: Train, *luggage: Parcel) -> None:
        """Begin a run, or go on with one whose folder is in the luggage."""
        self._open = ExitStack()
        scratch = tempfile.TemporaryDirectory(prefix="asfl-run-", dir=self._parent, ignore_cleanup_errors=True)
        # By the last two parts of its folder's name trackers name a run.
        self._folder = Path(self._open.enter_context(scratch)).joinpath(*job.folder.absolute().parts[-2:])
        there = Destination(self._folder)
        for parcel in luggage:
            there.take(parcel)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._home, self._source = job.folder, Source(self._folder)
        self._rounds: queue.SimpleQueue[RoundRecord | None] = queue.SimpleQueue()
        self._stop, self._ended = threading.Event(), Ended(False)
        self._thread = threading.Thread(target=self._work, args=(replace(job, folder=self._folder), train), daemon=True)
        self._thread.start()

    def _work(self, job: Job, train: Train) -> None:
        self._ended = attempt(train, job, self._rounds.put, self._stop.is_set)
        self._rounds.put(None)  # so that `report` doesn't wait for another one

    def report(self, stop: bool) -> list[News]:
        """What happened since the last time, to be taken in this order."""
        if stop:
            self._stop.set()
        rounds = self._new_rounds(PATIENCE_S)
        # First the thread, then the files, then the rounds: so no checkpoint comes before its rounds, and once the
        # thread was over, nothing new can appear behind our back.
        over = not self._thread.is_alive()
        files = self._source.changes(everything=over)
        rounds += self._new_rounds(0.0)
        news: list[News] = [*self._source.manifest(), *rounds, *files]
        if not over:
            return news
        self._open.close()
        # What is told at home, where this folder is unknown.
        here, home, end = str(self._folder), str(self._home), self._ended
        return [*news, replace(end, reason=end.reason.replace(here, home), traceback=end.traceback.replace(here, home))]

    def _new_rounds(self, wait_s: float) -> list[RoundRecord]:
        """Those that were played; if there are none, wait for one."""
        found = []
        with suppress(queue.Empty):
            found.append(self._rounds.get(timeout=wait_s))
            while True:
                found.append(self._rounds.get_nowait())
        return [record for record in found if record is not None]


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
    with ray_cluster(address, cpus=(workers or 0) * threads) as scratch:
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        if cpus < threads:
            raise AsflError(f"the Ray cluster has {cpus} CPUs, and a run needs {threads}; add a node to it")
        crew = [_Worker(scratch, threads, train) for _ in range(min(workers or cpus // threads, len(jobs)))]
        return train_side_by_side(jobs, crew, on_event, should_stop, MOST_DEATHS)


class _Worker:
    """A `Trainer` somewhere in the cluster, seen from the driver; a new one after a failure, which may have left it
    in the middle of a run.
    """

    def __init__(self, scratch: Path | None, threads: int, train: Train) -> None:
        self._scratch, self._threads, self._train = scratch and str(scratch), threads, train
        self._actor: Any = None
        self._held = ExitStack()
        """The lock of the run folder at home."""

    def begin(self, job: Job) -> None:
        import ray

        self._job, self._home, self._stopping, self._answer = job, Destination(job.folder), False, None
        self._silent_until, self._refused = time.monotonic() + SILENCE_S, ""
        try:
            self._held.enter_context(writing(job.folder))
            luggage = [ray.put(parcel) for parcel in send(job.folder)]
        except AsflError as error:
            self._refused = str(error)
            return
        if self._actor is None:
            self._actor = start_actor(Trainer, self._scratch, cpus=self._threads, threads=self._threads)
            self._hello = self._actor.hello.remote()
        self._answer = self._actor.begin.remote(job, self._train, *luggage)

    def events(self) -> list[Event]:
        """Bring home what is heard of the run."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ask()
        except RayTaskError as error:
            failure = Ended(False, cause_of_failure(error), str(error))
        except RayError as error:
            self.end()
            raise WorkerDiedError(cause_of_death(error)) from None
        except AsflError as error:  # such as a full disk at home
            failure = Ended(False, str(error))
        self.end()
        return [failure]

    def _ask(self) -> list[Event]:
        import ray

        if self._answer is None:
            raise AsflError(self._refused)
        if not ray.wait([self._answer], timeout=0)[0]:
            if time.monotonic() > self._silent_until:
                _log.warning("%s waits for a worker: the Ray cluster may be busy with other things", self._job.name)
                self._silent_until = math.inf
            return []
        self._silent_until = math.inf
        if mismatch := check_version(ray.get(self._hello)):
            raise AsflError(f"a node of the Ray cluster {mismatch}")
        found: list[Event] = []
        for news in ray.get(self._answer) or ():
            if isinstance(news, Ended):
                self._held.close()
                return [*found, news]
            self._home.take(news)
            if isinstance(news, RoundRecord):
                found.append(news)
        self._answer = self._actor.report.remote(self._stopping)
        return found

    def stop(self) -> None:
        self._stopping = True

    def end(self) -> None:
        end_actor(self._actor)
        self._actor = None
        self._held.close()
