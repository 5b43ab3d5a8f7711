"""What the commands that train many runs have in common: an engine, progress, Ctrl-C, failures."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial

import typer

from asfl.cli.options import STOPPED, EngineName
from asfl.cli.progress import ManyRunsProgress, stopping_on_ctrl_c
from asfl.engines import Engine
from asfl.errors import AsflError
from asfl.files import write_whole
from asfl.jobs import Job, error_report


def engine_named(name: EngineName, workers: int | None, address: str | None) -> Engine:
    if name == "ray":
        from asfl.engines.ray import train_on_ray
        from asfl.engines.ray_cluster import check_ray

        check_ray(address)
        return partial(train_on_ray, workers=workers, address=address)
    if address is not None:
        raise AsflError(f"--address {address} is for --engine ray")
    from asfl.engines.processes import train_all

    return partial(train_all, workers=workers)


def train_jobs(jobs: Sequence[Job], every: int, engine: Engine) -> dict[str, str]:
    """Train what is left of `every` runs; why runs failed, by name. Ctrl-C ends the command when all runs are saved."""
    if not jobs:
        return {}
    with stopping_on_ctrl_c() as stop, ManyRunsProgress(jobs, every) as display:
        ended = engine(jobs, on_event=display.show, should_stop=stop)
    for job in jobs:
        report = error_report(job.folder)
        report.unlink(missing_ok=True)
        if job.name in ended and ended[job.name].traceback:
            write_whole(report, ended[job.name].traceback.encode())
    failed = {name: end.reason for name, end in ended.items() if end.reason}
    left = len(jobs) - sum(end.finished for end in ended.values())
    if stop() and left:
        print_failures(failed)
        print(f"stopped with {left} of {every} runs unfinished; the same command goes on where it stopped")
        raise typer.Exit(STOPPED)
    return failed


def print_failures(failed: Mapping[str, str]) -> None:
    for name, reason in failed.items():
        print(f"error: {name} failed: {reason}", file=sys.stderr)
