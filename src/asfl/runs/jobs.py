"""A run that is to be trained, wherever: what engines are given, and what they tell about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config
from asfl.costs.decision import Decision
from asfl.runs.records import RoundRecord
from asfl.runs.run import run
from asfl.runs.watching import OnRound, ShouldStop


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    scheme: str
    seed: int
    config: Config
    folder: Path
    data_dir: Path | None = None
    recorded: tuple[Decision, ...] = ()
    """What ASFL decided in the same world, for a scheme that borrows from it."""
    threads: int = 1
    point: str = ""
    """Which point of a sweep it belongs to, if any."""
    changed_data: bool = False
    """Whether it may go on with other data than it began with."""

    @property
    def rounds(self) -> int:
        return self.config.for_scheme(self.scheme).training.rounds

    @property
    def name(self) -> str:
        return run_name(self.scheme, self.seed, self.point)


def run_name(scheme: str, seed: int, point: str = "") -> str:
    """What a run is called in messages."""
    return f"{point} {scheme} seed {seed}".lstrip()


@dataclass(frozen=True)
class Ended:
    """How a job ended: finished, stopped on demand (neither finished nor a reason), or failed for a reason."""

    finished: bool
    reason: str = ""
    traceback: str = ""
    """Empty for mistakes the user can mend."""


Event = RoundRecord | Ended
Train = Callable[[Job, OnRound, ShouldStop], bool]
"""Trains a job: told whom to report rounds to and whom to ask whether to stop; whether all rounds are done."""


def error_report(run_folder: Path) -> Path:
    """Where the traceback of a failed run is written: beside its folder, which may not exist."""
    return run_folder.with_name(f"{run_folder.name}.error.txt")


def train(job: Job, on_round: OnRound, should_stop: ShouldStop) -> bool:
    return run(
        job.config,
        job.scheme,
        job.folder,
        data_dir=job.data_dir,
        recorded=job.recorded,
        on_round=on_round,
        should_stop=should_stop,
        threads=job.threads,
        changed_data=job.changed_data,
    )
