"""One job after the other for each of several workers, wherever these are: each has a thread that looks after it."""

import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from asfl.runs.engines import OnEvent
from asfl.runs.jobs import Ended, Event, Job
from asfl.runs.watching import ShouldStop

_LEAVE_WITHIN_S = 10.0
_log = logging.getLogger(__name__)


class WorkerDiedError(Exception):
    """A worker is gone. The message says why."""


class Worker(Protocol):
    def start(self) -> None: ...  # returns when it is ready, which may take long
    def train(self, job: Job, tell: Callable[[Event], None], should_stop: ShouldStop) -> Ended: ...
    def end(self) -> None: ...  # it has nothing to do any more, or is dead
    def kill(self) -> None: ...  # whatever it does; called by another thread


def dispatch(
    jobs: Sequence[Job],
    make_worker: Callable[[], Worker],
    workers: int,
    *,
    attempts: int,
    on_event: OnEvent,
    should_stop: ShouldStop,
) -> dict[str, Ended]:
    """Train the jobs as an `Engine` does. A job whose worker dies goes to another one; it has so many `attempts`."""
    crew = _Crew(jobs, make_worker, attempts)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    unfinished, ended = {job.name for job in jobs}, dict[str, Ended]()
    try:
        while unfinished:
            if should_stop():
                unfinished -= crew.stop()
            with suppress(queue.Empty):
                heard = crew.heard.get(timeout=0.2)
                if isinstance(heard, BaseException):
                    raise heard
                job, event = heard
                if isinstance(event, Ended):
                    ended[job.name] = event
                    unfinished.remove(job.name)
                on_event(job, event)
    finally:
        crew.dismiss()
        for thread in threads:
            thread.join(_LEAVE_WITHIN_S)
    return ended


class _Crew:
    """The workers, and the jobs that wait for them."""

    def __init__(self, jobs: Sequence[Job], make_worker: Callable[[], Worker], attempts: int) -> None:
        self.heard: queue.SimpleQueue[tuple[Job, Event] | BaseException] = queue.SimpleQueue()
        self._waiting, self._make_worker, self._attempts = deque(jobs), make_worker, attempts
        self._workers: list[Worker] = []
        self._deaths: Counter[str] = Counter()
        self._stopping, self._over = threading.Event(), threading.Event()

    def work(self) -> None:
        """A thread: as long as there are jobs, have workers train them, one after the other."""
        try:
            while self._waiting and not self._over.is_set():
                worker = self._make_worker()
                self._workers.append(worker)
                try:
                    worker.start()
                    self._hand_over_jobs(worker)
                finally:
                    self._workers.remove(worker)
                    worker.end()
        except BaseException as error:
            self.heard.put(error)

    def stop(self) -> set[str]:
        """Start nothing new and stop what runs; the names of jobs that were never begun."""
        self._stopping.set()
        never_begun = set()
        while job := self._next_job():
            if self._deaths[job.name]:
                self._tell(job, Ended(False))
            else:
                never_begun.add(job.name)
        return never_begun

    def dismiss(self) -> None:
        """Whoever still works, or is only being started, ends."""
        self._over.set()
        for worker in list(self._workers):
            worker.kill()

    def _hand_over_jobs(self, worker: Worker) -> None:
        while job := self._next_job():
            try:
                self._tell(job, worker.train(job, partial(self._tell, job), self._stopping.is_set))
            except WorkerDiedError as death:
                self._after_death(job, str(death))
                return

    def _next_job(self) -> Job | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _tell(self, job: Job, event: Event) -> None:
        self.heard.put((job, event))

    def _after_death(self, job: Job, cause: str) -> None:
        self._deaths[job.name] += 1
        if self._attempts == 1:
            self._tell(job, Ended(False, cause))
        elif self._stopping.is_set():
            self._tell(job, Ended(False))
        elif self._deaths[job.name] == self._attempts:
            self._tell(job, Ended(False, f"its worker died {self._attempts} times (the last time: {cause})"))
        else:
            _log.warning("%s: its worker died (%s); it goes on from its last checkpoint", job.name, cause)
            self._waiting.appendleft(job)
