"""How runs are watched: bars on a terminal, plain lines elsewhere; on standard error."""

import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from asfl.config.units import format_si, percent
from asfl.runs.jobs import Ended, Event, Job
from asfl.runs.records import RoundRecord

LINE_EVERY_S = 10.0


class RunsProgress:
    """A bar for each run and one for all; a line for each run that ends, and for rounds of a run that is alone."""

    def __init__(self, rounds: Mapping[str, int], every: int, *, shown: bool = True) -> None:
        """`rounds`: left of each unfinished run; `every`: how many runs there are, with those that were done before."""
        console = Console(stderr=True, highlight=False, quiet=not shown)
        self._on_terminal = console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24 if console.width >= 90 else 8),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._on_terminal,
        )
        self._every, self._finished, self._failed = every, every - len(rounds), 0
        self._left, self._rounds = dict(rounds), sum(rounds.values())
        self._played, self._began, self._last_line = 0, 0.0, time.monotonic()
        self._last: dict[str, RoundRecord] = {}
        self._accuracy: dict[str, float] = {}
        self._all = self._bars.add_task("all rounds", total=self._rounds)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord):
            self._advance(job, event)
        else:
            self._end(job, event)
        self._bars.update(self._all, completed=max(self._rounds - sum(self._left.values()), 0))

    def _advance(self, job: Job, record: RoundRecord) -> None:
        if not self._played:  # how long the first one took isn't known
            self._began = time.monotonic()
        self._played += 1
        self._left[job.name] = job.rounds - record.round
        self._last[job.name] = record
        if record.accuracy is not None:
            self._accuracy[job.name] = record.accuracy
        if job.name not in self._tasks:
            self._tasks[job.name] = self._bars.add_task("", total=job.rounds)
        so_far = self._so_far(job.name)
        self._bars.update(self._tasks[job.name], completed=record.round, description=f"  {job.name}: {so_far}")
        due = record.accuracy is not None or time.monotonic() - self._last_line > LINE_EVERY_S
        if self._every == 1 and due and not self._on_terminal:
            cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
            arrived = f"{record.arrived_count} of {record.scheduled_count} arrived"
            self._print(f"round {record.round} of {job.rounds}: {so_far}, {cut}, {arrived}{self._time_left()}")

    def _end(self, job: Job, end: Ended) -> None:
        if job.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(job.name))
        self._finished += end.finished
        self._failed += bool(end.reason)
        if end.finished or end.reason:
            self._left[job.name] = 0
        failed = f", {self._failed} failed" if self._failed else ""
        count = f"{self._finished} of {self._every} finished{failed}"
        self._print(f"{job.name}: {self._outcome(job.name, end)} [{count}{self._time_left()}]")

    def _outcome(self, name: str, end: Ended) -> str:
        record = self._last.get(name)
        if end.reason:
            return f"failed: {end.reason}"
        if record is None:
            return "was finished" if end.finished else "stopped before its first round"
        rounds = f"{record.round} round{'' if record.round == 1 else 's'}"
        return f"{'' if end.finished else 'stopped, '}{self._so_far(name)} after {rounds}"

    def _so_far(self, name: str) -> str:
        record, accuracy = self._last[name], self._accuracy.get(name)
        known = "" if accuracy is None else f"{percent(accuracy, 1)}, "
        return f"{known}{format_si(record.total_delay_s, 's')}, {format_si(record.total_energy_j, 'J')}"

    def _time_left(self) -> str:
        left = sum(self._left.values())
        if not left or self._played < 2:
            return ""
        seconds = (time.monotonic() - self._began) / (self._played - 1) * left
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"

    def _print(self, line: str) -> None:
        self._last_line = time.monotonic()
        self._bars.console.print(line, markup=False, soft_wrap=not self._on_terminal)
