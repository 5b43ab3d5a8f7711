"""A run that is to be trained, wherever: what engines are given, and what they tell about it."""

import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.files import is_out_of_memory
from asfl.config.names import in_words_of_plugin
from asfl.costs.round import Decision
from asfl.runs.records import RoundRecord
from asfl.runs.run import OnRound, ShouldStop, run

_LOOK_EVERY_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    scheme: str
    seed: int
    config: Config
    folder: Path
    data_dir: Path | None = None
    recorded: tuple[Decision, ...] = ()
    """What ASFL decided in the same world, for a scheme that borrows from it."""
    threads: int = 1
    point: str = ""
    """Which point of a sweep it belongs to, if any."""

    @property
    def rounds(self) -> int:
        return self.config.for_scheme(self.scheme).training.rounds

    @property
    def name(self) -> str:
        return run_name(self.scheme, self.seed, self.point)


def run_name(scheme: str, seed: int, point: str = "") -> str:
    """What a run is called in messages."""
    return f"{point} {scheme} seed {seed}".lstrip()


def error_report(run_folder: Path) -> Path:
    """Where the traceback of a failed run is written: beside its folder, which may not exist."""
    return run_folder.with_name(f"{run_folder.name}.error.txt")


@dataclass(frozen=True)
class Ended:
    """How a job ended: finished, stopped on demand (neither finished nor a reason), or failed for a reason."""

    finished: bool
    reason: str = ""
    traceback: str = ""
    """Empty for mistakes the user can mend."""


Event = RoundRecord | Ended
OnEvent = Callable[[Job, Event], None]
Train = Callable[[Job, OnRound, ShouldStop], bool]
"""Trains a job, reports its rounds and asks whether to stop; the result says whether all rounds are done."""


class Engine(Protocol):
    """Where many runs are trained: processes of this machine, or a Ray cluster. Same jobs, same events."""

    def __call__(
        self, jobs: Sequence[Job], *, on_event: OnEvent = ..., should_stop: ShouldStop = ...
    ) -> dict[str, Ended]:
        """Train every job; say, by name, how each job ended that was started.

        `should_stop` is asked a few times a second; once it says so, nothing new is started and what runs is stopped.
        """
        ...


def train(job: Job, on_round: OnRound, should_stop: ShouldStop) -> bool:
    return run(
        job.config,
        job.scheme,
        job.folder,
        data_dir=job.data_dir,
        recorded=job.recorded,
        on_round=on_round,
        should_stop=should_stop,
        threads=job.threads,
    )


def attempt(train: Train, job: Job, on_round: OnRound, should_stop: ShouldStop) -> Ended:
    """Train a job; an exception, `SystemExit` too, is one way in which it can end."""
    try:
        return Ended(train(job, on_round, should_stop))
    except AsflError as error:
        return Ended(False, str(error))
    except BaseException as error:
        if is_out_of_memory(error):
            return Ended(False, "out of memory: train fewer runs side by side (--workers), or a smaller network")
        reason = in_words_of_plugin(error) or f"{type(error).__name__}: {error}"
        return Ended(False, reason, traceback.format_exc())


# ---------------------------------------------------------------------- any workers
class WorkerDiedError(Exception):
    """A worker is gone. The message says why."""


class Worker(Protocol):
    """Trains one job after the other."""

    def begin(self, job: Job) -> None: ...
    def events(self) -> Sequence[Event]: ...  # since the last time; the last one of a job is an `Ended`
    def stop(self) -> None: ...  # after the round
    def end(self) -> None: ...  # whatever it does


def train_side_by_side(
    jobs: Sequence[Job], workers: Sequence[Worker], on_event: OnEvent, should_stop: ShouldStop, attempts: int = 1
) -> dict[str, Ended]:
    """Train the jobs as an `Engine` does. A job whose worker dies is begun again; it has so many `attempts`."""
    waiting, idle, busy = deque(jobs), list(workers), dict[str, tuple[Job, Worker]]()
    deaths, ended, stopping = Counter[str](), dict[str, Ended](), False
    try:
        while busy or (waiting and not stopping):
            if not stopping and should_stop():
                stopping = True
                for _, worker in busy.values():
                    worker.stop()
            while waiting and idle and not stopping:
                job, worker = waiting.popleft(), idle.pop()
                worker.begin(job)
                busy[job.name] = job, worker
            time.sleep(_LOOK_EVERY_S)
            for job, worker in list(busy.values()):
                try:
                    events = worker.events()
                except WorkerDiedError as death:
                    deaths[job.name] += 1
                    if deaths[job.name] < attempts and not stopping:
                        _log.warning("%s: its worker died (%s); it goes on from its last checkpoint", job.name, death)
                        waiting.appendleft(job)
                        idle.append(busy.pop(job.name)[1])
                        continue
                    times = f"its worker died {attempts} times (the last time: {death})"
                    reason = str(death) if attempts == 1 else "" if stopping else times
                    events = [Ended(False, reason)]
                for event in events:
                    if isinstance(event, Ended):
                        ended[job.name] = event
                        idle.append(busy.pop(job.name)[1])
                    on_event(job, event)
    finally:
        for worker in workers:
            worker.end()
    return ended | {job.name: Ended(False) for job in waiting if deaths[job.name]}
