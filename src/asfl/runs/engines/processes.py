"""Train many runs side by side in processes of this machine.

Each process trains one run after the other and talks to the parent through a pipe of its own, so that one that is
killed takes nothing down but its run. Whatever arrives in the pipe during a run, the end of the pipe included, means:
finish the round, write a checkpoint, leave. So does SIGTERM. No run outlives its parent: on Linux it is killed with it,
elsewhere it ends after the round.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from asfl.config.errors import AsflError
from asfl.config.machine import is_out_of_memory
from asfl.config.plugins import in_words_of_plugin
from asfl.runs.end_with_parent import end_with_parent
from asfl.runs.engines import OnEvent
from asfl.runs.engines.dispatch import WorkerDiedError, dispatch
from asfl.runs.estimate import check_run
from asfl.runs.jobs import Ended, Event, Job, Train, train
from asfl.runs.this_process import ToldToEnd, deaf_to_signals, leave_ctrl_c_to_the_parent, usual_threads
from asfl.runs.watching import OnRound, ShouldStop

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
    crew = max(1, min(workers or usual_threads(), len(jobs)))
    for config in {job.config.model_spec: job.config for job in jobs}.values():
        check_run(config, crew)
    return dispatch(jobs, lambda: _Process(train), crew, attempts=1, on_event=on_event, should_stop=should_stop)


class _Process:
    """A process that trains jobs, seen from the parent."""

    def __init__(self, train: Train) -> None:
        context = multiprocessing.get_context("spawn")  # PyTorch's threads don't survive a fork
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(self._theirs, train, os.getpid()), daemon=True)

    def start(self) -> None:
        with deaf_to_signals():
            self._process.start()
        self._theirs.close()

    def train(self, job: Job, tell: Callable[[Event], None], should_stop: ShouldStop) -> Ended:
        told_to_stop = False
        try:
            self._pipe.send(job)
            while True:
                if should_stop() and not told_to_stop:
                    told_to_stop = True
                    self._pipe.send(None)
                if self._pipe.poll(0.2):
                    event = self._pipe.recv()
                    if isinstance(event, Ended):  # whoever tells all processes to end tells us, too
                        return Ended(False) if event.reason == TOLD_TO_END and should_stop() else event
                    tell(event)
        except (EOFError, OSError):
            self._process.join(timeout=10)
            raise WorkerDiedError(_cause_of_death(self._process.exitcode)) from None

    def end(self) -> None:
        self._pipe.close()  # by which it knows
        self._process.join(timeout=10)

    def kill(self) -> None:
        self._process.kill()


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended unexpectedly (exit code {exit_code})"
    name = signal.Signals(-exit_code).name
    return f"its process was killed ({name})" + ("; out of memory?" if name == "SIGKILL" else "")


def _work(pipe: Connection, train: Train, parent: int) -> None:
    """Train the jobs that come out of the pipe until None does, or the parent is gone."""
    end_with_parent(parent)
    leave_ctrl_c_to_the_parent()
    told = ToldToEnd()

    def tell(event: Event) -> None:
        with suppress(OSError):  # without a parent, `pipe.poll` says stop
            pipe.send(event)

    with suppress(EOFError, OSError):
        while (job := pipe.recv()) is not None:
            told.asked = False
            ended = attempt(train, job, tell, lambda: told.asked or pipe.poll())
            early = told.asked and not ended.finished and not ended.reason
            tell(Ended(False, TOLD_TO_END) if early else ended)


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
