"""Runs as they are read for tables and pictures, from folders too: records, evaluations, when an accuracy was reached.

A target accuracy counts as reached at the first evaluation at which the mean of the last three evaluations (of all so
far, while there are fewer) is at least the target, after finite delay and energy. Accuracy curves are noisy; a single
lucky evaluation shouldn't count. The delay and the energy are the totals up to that evaluation.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.world import Budgets
from asfl.runs.comparison import Comparison
from asfl.runs.folder import is_finished, model_round, was_finished
from asfl.runs.manifest import MANIFEST_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.schemes import CEILING

SMOOTHED_OVER = 3
"""Evaluations."""
_log = logging.getLogger(__name__)
Resource = Literal["delay_s", "energy_j"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One scheme with one seed."""

    scheme: str
    seed: int
    records: Sequence[RoundRecord]
    budgets: Budgets | None = None
    config: Config | None = None
    """None: not known; then nothing is said about its model or its queues."""
    commit: str = ""
    """Of the source tree that trained it, if it is known."""
    cpu_s: float = 0.0
    """What training took; 0 if not recorded."""

    @property
    def is_ceiling(self) -> bool:
        return self.scheme == CEILING


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run."""

    round: list[int]
    delay_s: list[float]
    """Total until then; so is the energy."""
    energy_j: list[float]
    accuracy: list[float]

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> "Curve":
        evaluated = [(record, record.accuracy) for record in records if record.accuracy is not None]
        return cls(
            round=[record.round for record, _ in evaluated],
            delay_s=[record.total_delay_s for record, _ in evaluated],
            energy_j=[record.total_energy_j for record, _ in evaluated],
            accuracy=[accuracy for _, accuracy in evaluated],
        )

    def along(self, axis: str) -> Sequence[float]:
        """Where the evaluations stand against "delay", "energy" or "rounds"."""
        return self.delay_s if axis == "delay" else self.energy_j if axis == "energy" else self.round

    def accuracy_at(self, axis: str, limit: float) -> float:
        """The last one after at most so much; NaN if there was none by then."""
        known = [one for one, at in zip(self.accuracy, self.along(axis), strict=True) if at <= limit]
        return known[-1] if known else math.nan

    @property
    def smoothed(self) -> list[float]:
        """Mean of each evaluation and the two before it; of fewer at the start."""
        last = range(1, len(self.accuracy) + 1)
        return [fmean(self.accuracy[max(0, end - SMOOTHED_OVER) : end]) for end in last]


@dataclass(frozen=True)
class Reach:
    """When a target accuracy was reached."""

    round: int
    delay_s: float
    energy_j: float


def together(curves: Sequence[Curve], axis: str, most_points: int = 300) -> tuple[Floats, Floats]:
    """Points [P] from where all curves have begun, and their smoothed accuracies there [curves, P].

    Seeds end at different delays; one that has ended counts on with the accuracy it ended with.
    """
    known = []
    for curve in curves:
        x, y = np.asarray(curve.along(axis), float), np.asarray(curve.smoothed)
        known.append((x[np.isfinite(x)], y[np.isfinite(x)]))
    if not known or any(not x.size for x, _ in known):
        return np.empty(0), np.empty((0, 0))
    start = max(x[0] for x, _ in known)
    points = np.unique(np.concatenate([x[x >= start] for x, _ in known]))
    if len(points) > most_points:
        points = points[np.unique(np.linspace(0, len(points) - 1, most_points).round().astype(int))]
    return points, np.array([np.interp(points, x, y) for x, y in known])


def reach(curve: Curve, target: float) -> Reach | None:
    """When the target was reached, in the sense above; None if never."""
    for index, accuracy in enumerate(curve.smoothed):
        one = Reach(curve.round[index], curve.delay_s[index], curve.energy_j[index])
        if accuracy >= target and math.isfinite(one.delay_s) and math.isfinite(one.energy_j):
            return one
    return None


# ---------------------------------------------------------------------- folders
@dataclass(frozen=True, kw_only=True)
class RunFolder(Run):
    """One run folder, as far as it has come."""

    folder: Path
    manifest: Manifest
    finished: bool

    @property
    def name(self) -> str:
        return f"{self.scheme} seed {self.seed}"

    @property
    def rounds(self) -> int:
        """Of the whole run, played or not."""
        return self.manifest.rounds

    @property
    def progress(self) -> str:
        """How far it has come, and of which round its model is, if it was extended."""
        extended = self.manifest.begun_with_rounds is not None and not self.finished
        model = model_round(self.folder, self.manifest) if extended else None
        return f"{len(self.records)} of {self.rounds} rounds" + (f", model of round {model}" if model else "")


def read_run(folder: Path) -> RunFolder:
    manifest, finished = read_manifest(folder), is_finished(folder)
    if was_finished(folder, manifest) and not finished:
        _log.warning("%s was finished, but isn't intact; asfl check says what is, asfl resume repairs it", folder)
    return RunFolder(
        manifest.scheme,
        manifest.config.scenario.seed,
        read_records(folder) if (folder / RECORDS_FILE).is_file() else [],
        manifest.budgets,
        manifest.config,
        str(manifest.facts.get("git_commit") or ""),
        manifest.cpu_s,
        folder=folder,
        manifest=manifest,
        finished=finished,
    )


def run_folders(folders: Sequence[str | Path]) -> list[Path]:
    """Every run folder in or below these folders, each once, in order of their names."""
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        below = sorted(file.parent for file in folder.rglob(MANIFEST_FILE)) if folder.is_dir() else []
        if not below:
            raise AsflError(f"{folder}: no run in or below this folder (a run has a {MANIFEST_FILE})")
        found |= dict.fromkeys(below)
    return list(found)


def finished_runs(comparison: Comparison) -> list[RunFolder]:
    """In the order of schemes, then seeds."""
    return [read_run(folder) for folder in comparison.finished()]
