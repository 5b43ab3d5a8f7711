"""Run folders as they are read for tables, figures and the page: never written to, finished or not."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.results.curves import Run
from asfl.runs.folder import is_finished, model_round, was_finished
from asfl.runs.manifest import MANIFEST_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, read_records

_log = logging.getLogger(__name__)


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
