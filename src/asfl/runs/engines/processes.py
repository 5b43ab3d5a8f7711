"""Train many runs side by side in processes of this machine.

A process is given jobs through a pipe, and answers with rounds and how a job ended. Whatever arrives in the pipe
during a run, the end of the pipe included, means: finish the round, write a checkpoint, leave. So does SIGTERM. No run
outlives its parent: on Linux it is killed with it, elsewhere it ends after the round.
"""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from asfl.runs.estimate import check_run
from asfl.runs.jobs import Ended, Event, Job, OnEvent, Train, WorkerDiedError, attempt, train, train_side_by_side
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
        self._process: SpawnProcess | None = None
        self._busy = False

    def begin(self, job: Job) -> None:
        if self._process is not None and not self._process.is_alive():
            self.end()
        if self._process is None:
            context = multiprocessing.get_context("spawn")  # PyTorch's threads don't survive a fork
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs, os.getpid(), self._train))
            with deaf_to_signals():
                self._process.start()
            theirs.close()
        self._busy = True
        with suppress(OSError):  # it is dead already, as `events` will tell
            self._pipe.send(job)

    def events(self) -> list[Event]:
        found = list[Event]()
        try:
            while self._pipe.poll():
                event: Event = self._pipe.recv()
                if isinstance(event, Ended):
                    self._busy = False
                    # SIGTERM may have been sent to all processes, and then to us, too.
                    event = Ended(False) if event.reason == TOLD_TO_END and self._should_stop() else event
                found.append(event)
        except (EOFError, OSError):
            if found:
                return found  # and the next call says the rest
            assert self._process is not None
            self._process.join(10)
            exit_code = self._process.exitcode
            self.end()
            raise WorkerDiedError(_cause_of_death(exit_code)) from None
        return found

    def stop(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)

    def end(self) -> None:
        if self._process is not None:
            if self._busy:
                self._process.kill()
            self._pipe.close()
            self._process.join()
            self._process, self._busy = None, False


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended unexpectedly (exit code {exit_code})"
    name = signal.Signals(-exit_code).name
    return f"its process was killed ({name})" + ("; out of memory?" if name == "SIGKILL" else "")


def _work(pipe: Connection, parent: int, train: Train) -> None:
    """What a process does from its first moment on."""
    end_with_parent(parent)
    leave_ctrl_c_to_the_parent()
    told = ToldToEnd()

    def tell(record: RoundRecord) -> None:
        with suppress(OSError):  # without a parent, `pipe.poll` says stop
            pipe.send(record)

    with suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while (job := pipe.recv()) is not None:
            told.asked = False
            ended = attempt(train, job, tell, lambda: told.asked or pipe.poll())
            unsaid = told.asked and not ended.finished and not ended.reason
            pipe.send(Ended(False, TOLD_TO_END) if unsaid else ended)
