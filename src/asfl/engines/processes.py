"""Train many runs side by side in processes of this machine.

Each process trains one run after the other and talks to the parent through a pipe of its own, so that one that is
killed takes nothing down but its run. Whatever arrives in the pipe during a run, the end of the pipe included, means:
finish the round, write a checkpoint, leave. So no run outlives its parent by more than a round.
"""

import multiprocessing
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

from asfl.errors import AsflError
from asfl.jobs import Ended, Event, Job, Train, train
from asfl.play import leave_ctrl_c_to_the_parent
from asfl.records import RoundRecord
from asfl.run import usual_threads


def train_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    on_event: Callable[[Job, Event], None] = lambda job, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    train: Train = train,
) -> dict[str, Ended]:
    """Train every job in one of `workers` processes (default: as many as cores), which share the cores.

    `should_stop` is asked a few times a second; once it says so, nothing new is started and what runs is stopped.
    The result says, by name, how each job ended that was started.
    """
    cores = usual_threads()
    workers = max(1, min(workers or cores, len(jobs)))
    waiting = deque(replace(job, threads=max(1, cores // workers)) for job in jobs)
    busy: dict[Connection, _Worker] = {}
    ended: dict[str, Ended] = {}
    stopping = False
    try:
        while waiting or busy:
            if not stopping and should_stop():
                stopping = True
                waiting.clear()
                for worker in busy.values():
                    worker.stop()
            while waiting and len(busy) < workers:
                worker = _Worker(train)
                worker.begin(waiting.popleft())
                busy[worker.pipe] = worker
            for pipe in wait(list(busy), timeout=0.2):
                worker = busy[pipe]  # type: ignore[index]
                event, job = worker.hear(), worker.job
                on_event(job, event)
                if isinstance(event, RoundRecord):
                    continue
                ended[job.name] = event
                if waiting and worker.alive:
                    worker.begin(waiting.popleft())
                else:
                    worker.leave()
                    del busy[worker.pipe]
    finally:
        for worker in busy.values():  # only after an exception, such as a second Ctrl-C
            worker.process.terminate()
    return ended


class _Worker:
    """A process that trains jobs, seen from the parent."""

    job: Job

    def __init__(self, train: Train) -> None:
        context = multiprocessing.get_context("spawn")  # PyTorch's threads don't survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, train), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.alive = True

    def begin(self, job: Job) -> None:
        self.job = job
        self._tell(job)

    def stop(self) -> None:
        self._tell(None)

    def leave(self) -> None:
        self._tell(None)
        self.process.join(timeout=10)
        self.pipe.close()

    def hear(self) -> Event:
        """What the worker has to say; of one that died, that its job failed."""
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join(timeout=10)
            return Ended(False, _cause_of_death(self.process.exitcode))
        return event

    def _tell(self, message: Job | None) -> None:
        with suppress(OSError):  # that it has died is noticed when we listen
            self.pipe.send(message)


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its process ended unexpectedly (exit code {exit_code})"
    name = signal.Signals(-exit_code).name
    return f"its process was killed ({name})" + ("; out of memory?" if name == "SIGKILL" else "")


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started now ignores Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _work(pipe: Connection, train: Train) -> None:
    """Train the jobs that come out of the pipe until None does, or the parent is gone."""
    leave_ctrl_c_to_the_parent()

    def tell(event: Event) -> None:
        with suppress(OSError):  # without a parent, `pipe.poll` says stop
            pipe.send(event)

    with suppress(EOFError, OSError):
        while (job := pipe.recv()) is not None:
            tell(attempt(train, job, tell, pipe.poll))


def attempt(train: Train, job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> Ended:
    """Train a job; an exception is one way in which it can end."""
    try:
        return Ended(train(job, on_round, should_stop))
    except AsflError as error:
        return Ended(False, str(error))
    except Exception as error:
        return Ended(False, f"{type(error).__name__}: {error}", traceback.format_exc())
