"""A run that is to be trained, wherever: what engines are given, and what they tell about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asfl.budgets import Budgets
from asfl.config import Config
from asfl.records import RoundRecord
from asfl.run import run


@dataclass(frozen=True)
class Job:
    """One run to be trained."""

    scheme: str
    seed: int
    config: Config
    budgets: Budgets
    folder: Path
    data_dir: Path | None = None
    threads: int = 1
    point: str = ""
    """Which point of a sweep it belongs to, if any."""

    @property
    def name(self) -> str:
        return f"{self.point} {self.scheme} seed {self.seed}".lstrip()


@dataclass(frozen=True)
class Ended:
    """How a job ended: finished, stopped on demand (neither finished nor a reason), or failed for a reason."""

    finished: bool
    reason: str = ""
    traceback: str = ""
    """Empty for mistakes the user can mend."""


Event = RoundRecord | Ended
Train = Callable[[Job, Callable[[RoundRecord], None], Callable[[], bool]], bool]
"""Trains a job: told whom to report rounds to and whom to ask whether to stop; whether all rounds are done."""


def error_report(run_folder: Path) -> Path:
    """Where the traceback of a failed run is written: beside its folder, which may not exist."""
    return run_folder.with_name(f"{run_folder.name}.error.txt")


def train(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
    return run(
        job.config,
        job.scheme,
        job.folder,
        data_dir=job.data_dir,
        budgets=job.budgets,
        on_round=on_round,
        should_stop=should_stop,
        threads=job.threads,
    )
