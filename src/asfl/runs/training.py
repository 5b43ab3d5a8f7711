"""Train what is left of comparisons: for the command line and for Python."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from asfl.config.errors import AsflError
from asfl.runs.comparison import Comparison
from asfl.runs.files import remove_abandoned, write_whole
from asfl.runs.folder import is_finished
from asfl.runs.jobs import Engine, OnEvent, error_report, run_name
from asfl.runs.records import RoundRecord, records_so_far
from asfl.runs.run import ShouldStop
from asfl.schemes import OURS

EngineName = Literal["processes", "ray"]
ThreadsARun = Callable[[int], int]
"""How many threads an engine has for each of so many runs."""


def engine_named(name: EngineName, workers: int | None, address: str | None) -> tuple[Engine, ThreadsARun]:
    if name == "ray":
        from asfl.runs.engines.ray import check_ray, train_on_ray

        check_ray(address)
        return partial(train_on_ray, workers=workers, address=address), lambda runs: 1
    if address is not None:
        raise AsflError(f"--address {address} is for --engine ray")
    from asfl.runs.engines.processes import threads_a_run, train_all

    return partial(train_all, workers=workers), partial(threads_a_run, workers=workers)


def rounds_left(comparisons: Sequence[Comparison]) -> dict[str, int]:
    """Of every run that isn't finished, by its name."""
    return {
        name: one.rounds_of(scheme) - len(_played(one.run_folder(scheme, seed)))
        for one in comparisons
        for name, (scheme, seed) in one.left().items()
    }


def _played(folder: Path) -> list[RoundRecord]:
    try:
        return records_so_far(folder)
    except AsflError:  # a manifest is damaged: training will say so
        return []


def train_left(
    comparisons: Sequence[Comparison],
    data_dir: Path | None,
    engine: Engine,
    threads_a_run: ThreadsARun,
    on_event: OnEvent,
    stop: ShouldStop,
) -> tuple[dict[str, str], int]:
    """Why runs failed, by name, and how many aren't finished.

    The plan is written down first, with the number of threads: so the same command again gives the same bits. Runs that
    borrow what others decide begin in a later pass, when those are finished.
    """
    threads = threads_a_run(sum(one.num_runs for one in comparisons))
    comparisons = [one.with_threads(threads) for one in comparisons]
    for one in comparisons:
        remove_abandoned(one.folder)
        one.remember()
    failed = dict[str, str]()
    while jobs := [job for one in comparisons for job in one.jobs(data_dir) if job.name not in failed]:
        ended = engine(jobs, on_event=on_event, should_stop=stop)
        failed |= {name: end.reason for name, end in ended.items() if end.reason}
        for job in jobs:
            report = error_report(job.folder)
            report.unlink(missing_ok=True)
            if job.name in ended and ended[job.name].traceback:
                write_whole(report, ended[job.name].traceback)
        if stop():
            break
        for job in jobs:  # or they would be tried for ever
            if job.name not in failed and not is_finished(job.folder, job.rounds):
                failed[job.name] = f"it ended, but {job.folder} isn't intact; asfl check says what is"
    left = {name: (seed, one.point) for one in comparisons for name, (_, seed) in one.left().items()}
    if not stop():
        for name, (seed, point) in left.items():
            borrowed = run_name(OURS, seed, point)
            failed.setdefault(name, f"it borrows from {borrowed}, which failed; so it was not started")
    return failed, len(left)
