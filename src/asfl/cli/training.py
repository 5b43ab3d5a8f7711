"""What the commands that train many runs have in common: progress, Ctrl-C, failures."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from asfl.cli import options
from asfl.cli.progress import ManyRunsProgress
from asfl.runs.comparison import Comparison
from asfl.runs.jobs import Engine
from asfl.runs.this_process import stopping_on_ctrl_c
from asfl.runs.training import ThreadsARun, rounds_left, train_left


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
    with stopping_on_ctrl_c() as stop, ManyRunsProgress(left, every) as display:
        failed, unfinished = train_left(comparisons, data_dir, engine, threads_a_run, display.show, stop)
    if stop() and unfinished:
        print_failures(failed)
        print(f"stopped with {unfinished} of {every} runs unfinished; the same command goes on where it stopped")
        raise typer.Exit(options.STOPPED)
    return failed


def print_failures(failed: Mapping[str, str]) -> None:
    for name, reason in failed.items():
        print(f"error: {name} failed: {reason}", file=sys.stderr)
