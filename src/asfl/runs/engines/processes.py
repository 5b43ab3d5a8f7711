"""Train many runs side by side in processes of this machine.

Each process is a pool of its own, so that one that is killed takes nothing down but its run, and talks to the parent
through a pipe. Whatever arrives in the pipe during a run, the end of the pipe included, means: finish the round, write
a checkpoint, leave. So does SIGTERM. No run outlives its parent: on Linux it is killed with it, elsewhere it ends after
the round.
"""

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from asfl.runs.estimate import check_run
from asfl.runs.jobs import Ended, Event, Job, OnEvent, Train, attempt, train
from asfl.runs.records import RoundRecord
from asfl.runs.run import ShouldStop
from asfl.runs.this_process import (
    ToldToEnd,
    deaf_to_signals,
    end_with_parent,
    leave_ctrl_c_to_the_parent,
    usual_threads,
)

TOLD_TO_END = "its process was told to end (SIGTERM), and saved what it had; the same command goes on"
_LOOK_EVERY_S = 0.05
_log = logging.getLogger(__name__)


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


# ---------------------------------------------------------------------- processes
def threads_a_run(runs: int, workers: int | None = None) -> int:
    """How many threads each of so many runs gets, if they share the cores. A plan: how many are left doesn't count."""
    cores = usual_threads()
    return max(1, cores // max(1, min(workers or cores, runs)))


def train_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    on_event: OnEvent = lambda job, event: None,
    should_stop: ShouldStop = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """An `Engine` of `workers` processes (default: as many as cores)."""
    count = max(1, min(workers or usual_threads(), len(jobs)))
    for config in {job.config.model_spec: job.config for job in jobs}.values():
        check_run(config, count)

    return train_side_by_side(jobs, [_Process(train, should_stop) for _ in range(count)], on_event, should_stop)


class _Process:
    """A process that trains jobs, seen from the parent."""

    def __init__(self, train: Train, should_stop: ShouldStop) -> None:
        self._train, self._should_stop = train, should_stop
        self._pool: ProcessPoolExecutor | None = None
        self._process: BaseProcess

    def begin(self, job: Job) -> None:
        if self._pool is not None and self._process.is_alive():
            self._future: Future[Ended] = self._pool.submit(_work, self._train, job)
            return
        self.end()
        context = multiprocessing.get_context("spawn")  # PyTorch's threads don't survive a fork
        self._pipe, theirs = context.Pipe()
        self._pool = ProcessPoolExecutor(1, context, _begin, (theirs, os.getpid()))
        with deaf_to_signals():
            self._future = self._pool.submit(_work, self._train, job)
        (self._process,) = self._pool._processes.values()  # which alone knows why it died
        theirs.close()

    def events(self) -> list[Event]:
        over, found = self._future.done(), list[Event]()
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                found.append(self._pipe.recv())
        if over and not found:
            try:
                ended = self._future.result()
            except BrokenProcessPool:
                self._process.join(10)
                self.end()
                raise WorkerDiedError(_cause_of_death(self._process.exitcode)) from None
            # SIGTERM may have been sent to all processes, and then to us, too.
            found.append(Ended(False) if ended.reason == TOLD_TO_END and self._should_stop() else ended)
        return found

    def stop(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)

    def end(self) -> None:
        if self._pool is not None:
            if not self._future.done():
                self._process.kill()
            self._pool.shutdown()
            self._pipe.close()
            self._pool = None


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended unexpectedly (exit code {exit_code})"
    name = signal.Signals(-exit_code).name
    return f"its process was killed ({name})" + ("; out of memory?" if name == "SIGKILL" else "")


_pipe: Connection
_told: ToldToEnd


def _begin(pipe: Connection, parent: int) -> None:
    """The first thing a process does."""
    global _pipe, _told
    end_with_parent(parent)
    leave_ctrl_c_to_the_parent()
    _pipe, _told = pipe, ToldToEnd()


def _work(train: Train, job: Job) -> Ended:
    def tell(record: RoundRecord) -> None:
        with suppress(OSError):  # without a parent, `_pipe.poll` says stop
            _pipe.send(record)

    _told.asked = False
    ended = attempt(train, job, tell, lambda: _told.asked or _pipe.poll())
    return Ended(False, TOLD_TO_END) if _told.asked and not ended.finished and not ended.reason else ended
