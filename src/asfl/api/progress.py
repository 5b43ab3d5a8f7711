"""How runs are watched: bars on a terminal or in a notebook, plain lines elsewhere; on standard error."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from asfl.config.units import format_si, number, percent
from asfl.runs.jobs import Ended, Event, Job, OnEvent
from asfl.runs.records import RoundRecord


def wide() -> bool:
    """Whether the terminal has room for everything."""
    return Console(stderr=True).width >= 90


class Bars:
    """Bars that are there while this is entered, if anybody can see them."""

    def __init__(self, *columns: ProgressColumn) -> None:
        console = Console(stderr=True, highlight=False)
        self.on_terminal = console.is_terminal
        self.bars = Progress(*columns, console=console, transient=True, disable=not self.on_terminal)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def print_line(self, line: str) -> None:
        self.bars.console.print(line, markup=False, soft_wrap=not self.on_terminal)


class RunsProgress(Bars):
    """A bar for each run and one for all; a line for each run that ends."""

    def __init__(self, rounds: Mapping[str, int], every: int) -> None:
        """`rounds`: left of each unfinished run; `every`: how many runs there are, with those that were done before."""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24 if wide() else 8),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.every, self.finished, self.failed = every, every - len(rounds), 0
        self.left = dict(rounds)
        self.rounds = sum(self.left.values())
        self.played, self.began = 0, time.monotonic()
        self.last: dict[str, RoundRecord] = {}
        self.accuracy: dict[str, float] = {}
        self.all = self.bars.add_task("all rounds", total=self.rounds)
        self.tasks: dict[str, TaskID] = {}

    def show(self, job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord):
            self._advance(job, event)
        else:
            self._end(job, event)
        self.bars.update(self.all, completed=max(self.rounds - sum(self.left.values()), 0))

    def _advance(self, job: Job, record: RoundRecord) -> None:
        self.played += 1
        self.left[job.name] = job.rounds - record.round
        self.last[job.name] = record
        if record.accuracy is not None:
            self.accuracy[job.name] = record.accuracy
        if job.name not in self.tasks:
            self.tasks[job.name] = self.bars.add_task(job.name, total=job.rounds)
        accuracy = f" {percent(self.accuracy[job.name], 1)}" if job.name in self.accuracy else ""
        self.bars.update(self.tasks[job.name], completed=record.round, description=f"  {job.name}{accuracy}")

    def _end(self, job: Job, end: Ended) -> None:
        if job.name in self.tasks:
            self.bars.remove_task(self.tasks.pop(job.name))
        self.finished += end.finished
        self.failed += bool(end.reason)
        if end.finished or end.reason:
            self.left[job.name] = 0
        failed = f", {self.failed} failed" if self.failed else ""
        count = f"{self.finished} of {self.every} finished{failed}"
        self.print_line(f"{job.name}: {self._outcome(job.name, end)} [{count}{self._time_left()}]")

    def _outcome(self, name: str, end: Ended) -> str:
        record = self.last.get(name)
        if end.reason:
            return f"failed: {end.reason}"
        if record is None:
            return "was finished" if end.finished else "stopped before its first round"
        accuracy = f"{percent(self.accuracy[name], 1)} " if name in self.accuracy else ""
        cost = f"{number(record.total_delay_s)} s, {format_si(record.total_energy_j, 'J')}"
        rounds = f"{record.round} round{'' if record.round == 1 else 's'}"
        return f"{'' if end.finished else 'stopped, '}{accuracy}after {rounds}, {cost}"

    def _time_left(self) -> str:
        left = sum(self.left.values())
        if not left or not self.played:
            return ""
        seconds = (time.monotonic() - self.began) / self.played * left
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


@contextmanager
def progress_of(rounds: Mapping[str, int], *, shown: bool) -> Iterator[OnEvent]:
    """What to call with each event of the runs that aren't finished; `rounds`: how many each has left."""
    if not shown or not rounds:
        yield lambda job, event: None
    elif _in_notebook():
        yield _notebook_bar(rounds)
    else:
        with RunsProgress(rounds, len(rounds)) as display:
            yield display.show


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _notebook_bar(rounds: Mapping[str, int]) -> OnEvent:
    """HTML that all front ends can show, so that no widgets have to be installed."""
    from IPython.display import HTML, display

    total, ended, done = sum(rounds.values()), 0, 0

    def bar(text: str) -> Any:
        return HTML(f'<progress value="{done}" max="{total}"></progress> {escape(text)}')

    handle: Any = display(bar("begins"), display_id=True)

    def show(job: Job, event: Event) -> None:
        nonlocal ended, done
        if isinstance(event, Ended):
            ended += 1
            text = f"{job.name}: {event.reason or ('finished' if event.finished else 'stopped')}"
        else:
            done += 1
            accuracy = "" if event.accuracy is None else f", {percent(event.accuracy, 1)}"
            text = f"{job.name}: round {event.round} of {job.rounds}{accuracy}"
        handle.update(bar(text + (f" ({ended} of {len(rounds)} runs finished)" if len(rounds) > 1 else "")))

    return show
