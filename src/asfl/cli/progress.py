"""How a run is watched: a bar on a terminal, plain lines elsewhere."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from asfl.jobs import Ended, Event, Job
from asfl.records import RoundRecord
from asfl.summary import number, percent
from asfl.units import format_si

LINE_EVERY_S = 10.0


class RunProgress:
    """Shows each round as it is recorded."""

    def __init__(self, rounds: int, done: Sequence[RoundRecord]) -> None:
        """`done`: rounds recorded before; some of them may be played again, from the last checkpoint on."""
        self._rounds, self._done = rounds, len(done)
        evaluated = (record.accuracy for record in reversed(done) if record.accuracy is not None)
        self._accuracy: float | None = next(evaluated, None)
        self._first: int | None = None
        self._console = Console(stderr=True, highlight=False)
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "RunProgress":
        if self._console.is_terminal:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=self._rounds, completed=self._done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            self._accuracy = record.accuracy
        if self._bar is not None:
            self._bar.update(self._task, completed=record.round, description=self._text(record))
            return
        now = time.monotonic()
        self._first = record.round if self._first is None else self._first
        if record.accuracy is not None or now - self._last_line > LINE_EVERY_S or record.round == self._rounds:
            self._last_line = now
            left = (now - self._started) / (record.round - self._first + 1) * (self._rounds - record.round)
            print(
                f"round {record.round}/{self._rounds}: {self._text(record)}, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _text(self, record: RoundRecord) -> str:
        accuracy = "" if self._accuracy is None else f"{100 * self._accuracy:.1f} %, "
        cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
        return (
            f"{accuracy}{format_si(record.total_delay_s, 's')}, {format_si(record.total_energy_j, 'J')}, {cut}, "
            f"{record.arrived_count} of {record.scheduled_count} arrived"
        )


class ManyRunsProgress:
    """Progress on standard error: bars on a terminal, else a line for each run that ends."""

    def __init__(self, jobs: Sequence[Job], every: int) -> None:
        """`jobs`: what is left to do; `every`: how many runs there are, with those that were done before."""
        self.every, self.over = every, every - len(jobs)
        self.left = {job.name: job.config.training.rounds for job in jobs}
        self.rounds = sum(self.left.values())
        self.played, self.began = 0, time.monotonic()
        self.last: dict[str, RoundRecord] = {}
        self.accuracy: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.all = self.progress.add_task("all rounds", total=self.rounds)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "ManyRunsProgress":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord):
            self._advance(job, event)
        else:
            self._end(job, event)
        self.progress.update(self.all, completed=self.rounds - sum(self.left.values()))

    def _advance(self, job: Job, record: RoundRecord) -> None:
        self.played += 1
        self.left[job.name] = job.config.training.rounds - record.round
        self.last[job.name] = record
        if record.accuracy is not None:
            self.accuracy[job.name] = record.accuracy
        if job.name not in self.tasks:
            self.tasks[job.name] = self.progress.add_task(job.name, total=job.config.training.rounds)
        accuracy = f" {percent(self.accuracy[job.name], 1)}" if job.name in self.accuracy else ""
        self.progress.update(self.tasks[job.name], completed=record.round, description=f"  {job.name}{accuracy}")

    def _end(self, job: Job, end: Ended) -> None:
        if job.name in self.tasks:
            self.progress.remove_task(self.tasks.pop(job.name))
        self.left[job.name] = 0 if end.finished or end.reason else self.left[job.name]
        if end.finished or end.reason:
            self.over += 1
        line = f"{job.name}: {self._outcome(job.name, end)} [{self.over}/{self.every}{self._time_left()}]"
        self.progress.console.print(line, markup=False, soft_wrap=True)

    def _outcome(self, name: str, end: Ended) -> str:
        record = self.last.get(name)
        if end.reason:
            return f"failed: {end.reason}"
        if record is None:
            return "was finished" if end.finished else "stopped before its first round"
        accuracy = f"{percent(self.accuracy[name], 1)} " if name in self.accuracy else ""
        cost = f"{number(record.total_delay_s)} s, {format_si(record.total_energy_j, 'J')}"
        return f"{'' if end.finished else 'stopped, '}{accuracy}after {record.round} rounds, {cost}"

    def _time_left(self) -> str:
        left = sum(self.left.values())
        if not left or not self.played:
            return ""
        seconds = (time.monotonic() - self.began) / self.played * left
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


class StopRequest:
    """True once somebody pressed Ctrl-C; pressed again, it is an ordinary KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stopping_on_ctrl_c() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C into a request to stop after the round."""
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True
        print("stopping after this round (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)
