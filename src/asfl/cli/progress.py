"""How commands show rounds as they are played, and what those that train many runs have in common."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asfl.api.progress import Bars, RunsProgress, wide
from asfl.cli import options
from asfl.config import Config
from asfl.config.units import format_si, percent
from asfl.runs.comparison import Comparison
from asfl.runs.estimate import check_count
from asfl.runs.jobs import Engine
from asfl.runs.play import Playthrough, play_all
from asfl.runs.records import RoundRecord
from asfl.runs.this_process import stopping_on_ctrl_c, usual_threads
from asfl.runs.training import ThreadsARun, rounds_left, train_left

LINE_EVERY_S = 10.0


class RunProgress(Bars):
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


def train_runs(
    comparisons: Sequence[Comparison],
    data_dir: Path | None,
    engine: Engine,
    threads_a_run: ThreadsARun = lambda runs: 1,
) -> dict[str, str]:
    """Train what is left of comparisons; why runs failed, by name. Ctrl-C ends the command when all runs are saved.

    The caller holds the lock of the folder they are in.
    """
    left = rounds_left(comparisons)
    every = sum(one.num_runs for one in comparisons)
    with stopping_on_ctrl_c() as stop, RunsProgress(left, every) as display:
        failed, unfinished = train_left(comparisons, data_dir, engine, threads_a_run, display.show, stop)
    if stop() and unfinished:
        print_failures(failed)
        print(f"stopped with {unfinished} of {every} runs unfinished; the same command goes on where it stopped")
        raise typer.Exit(options.STOPPED)
    return failed


def print_failures(failed: Mapping[str, str]) -> None:
    for name, reason in failed.items():
        print(f"error: {name} failed: {reason}", file=sys.stderr)
