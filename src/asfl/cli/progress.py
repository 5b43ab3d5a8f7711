"""How runs are watched: bars on a terminal, plain lines elsewhere; both on standard error."""

import time
from collections.abc import Mapping, Sequence
from typing import Self

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

from asfl.config import Config
from asfl.config.units import format_si, number, percent
from asfl.runs.estimate import check_count
from asfl.runs.jobs import Ended, Event, Job
from asfl.runs.play import Playthrough, play_all
from asfl.runs.records import RoundRecord
from asfl.runs.this_process import usual_threads

LINE_EVERY_S = 10.0


def wide() -> bool:
    """Whether the terminal has room for everything."""
    return Console(stderr=True).width >= 90


class _Bars:
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


class RunProgress(_Bars):
    """Shows each round as it is recorded."""

    def __init__(self, rounds: int, done: Sequence[RoundRecord]) -> None:
        """`done`: rounds recorded before; some of them may be played again, from the last checkpoint on."""
        super().__init__(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20 if wide() else 6),
            TextColumn("{task.description}"),
            *([TextColumn("ETA"), TimeRemainingColumn()] if wide() else []),
        )
        self._task = self.bars.add_task("", total=rounds, completed=len(done))
        self._rounds = rounds
        self._accuracy = next((record.accuracy for record in reversed(done) if record.accuracy is not None), None)
        self._first: tuple[int, float] | None = None
        """The first round shown, and when: how long that one took isn't known."""
        self._last_line = time.monotonic()

    def __call__(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            self._accuracy = record.accuracy
        accuracy = "" if self._accuracy is None else f"{percent(self._accuracy, 1)}, "
        cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
        costs = f"{accuracy}{format_si(record.total_delay_s, 's')}, {format_si(record.total_energy_j, 'J')}"
        text = (
            costs
            if self.on_terminal and not wide()
            else (
                f"{accuracy}{format_si(record.total_delay_s, 's')}, {format_si(record.total_energy_j, 'J')}, {cut}, "
                f"{record.arrived_count} of {record.scheduled_count} arrived"
            )
        )
        self.bars.update(self._task, completed=record.round, description=text)
        now = time.monotonic()
        first, began = self._first = self._first or (record.round, now)
        due = record.accuracy is not None or now - self._last_line > LINE_EVERY_S or record.round == self._rounds
        if due and not self.on_terminal:
            self._last_line = now
            left = ""
            if record.round > first:
                left = f", {(now - began) / (record.round - first) * (self._rounds - record.round):.0f} s left"
            self.print_line(f"round {record.round}/{self._rounds}: {text}{left}")


class ManyRunsProgress(_Bars):
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


def played_with_progress(config: Config, schemes: Sequence[str], seeds: int, rounds: int) -> list[Playthrough]:
    """Rounds without training, every scheme with every seed, side by side."""
    first, runs = config.scenario.seed, len(schemes) * seeds
    check_count(runs, rounds, f"{len(schemes)} schemes" + (f" × {seeds:,} seeds" if seeds > 1 else ""))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("playing", total=runs)
        return play_all(
            config,
            schemes,
            range(first, first + seeds),
            rounds,
            workers=min(usual_threads(), runs),
            progress=lambda _: progress.advance(task),
        )
