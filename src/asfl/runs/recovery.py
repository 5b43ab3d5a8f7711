"""Where a run goes on: after the newest checkpoint that is whole and of whose rounds every record is intact."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from asfl.config.errors import AsflError
from asfl.runs.checkpoints import Checkpoint, checkpoint_files, read_checkpoint, remove_checkpoint
from asfl.runs.finished import has_model
from asfl.runs.manifest import CHECKPOINTS, MODEL_FILE, Manifest
from asfl.runs.records import RECORDS_FILE, Journal, Rounds, read_rounds
from asfl.runs.seals import DamagedError, read_sealed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """A state to go on from."""

    folder: Path
    checkpoint: Checkpoint | None
    """None: the first round is the next."""
    rounds: Rounds

    @property
    def round(self) -> int:
        """How many rounds are kept."""
        return 0 if self.checkpoint is None else self.checkpoint.seal.round

    def clear(self) -> Journal:
        """Remove what comes after: records and checkpoints that are played again, or were damaged."""
        for number, file in checkpoint_files(self.folder / CHECKPOINTS):
            if number > self.round:
                remove_checkpoint(file)
        return Journal.after(self.folder, self.rounds, self.round)


def where_to_go_on(folder: Path, manifest: Manifest, *, lose_rounds: bool = False) -> Start:
    """Change nothing yet, and say what is damaged.

    Measured rounds can't be played again: they are given up only if `lose_rounds` says so.
    """
    rounds = read_rounds(folder, manifest.fingerprint)
    found, problems = _newest_usable(folder, manifest, rounds)
    if rounds.problem:
        problems.insert(0, f"{RECORDS_FILE}, {rounds.problem}")
    if rounds.torn:
        problems.append(f"{RECORDS_FILE} has something behind its last round, which is removed")
    if has_model(folder):
        try:
            read_sealed(folder / MODEL_FILE)
        except DamagedError as damage:
            problems.append(f"{MODEL_FILE}: {damage}; it is written again")
    start = Start(folder, found, rounds)
    newest = max((number for number, _ in checkpoint_files(folder / CHECKPOINTS)), default=0)
    again = max(rounds.written, newest) - start.round
    if manifest.config.field.costs == "measured" and again > 1 and not lose_rounds:
        # One round may be lost: that between whose record and whose checkpoint the process was killed.
        raise AsflError(
            f"{folder}: {'; '.join(problems) or 'there is no checkpoint'}. So the run could only go on after round "
            f"{start.round}, and {again} rounds behind it were measured and can't be played again; bring back the "
            "files as they were, or give the rounds up with --lose-rounds"
        )
    if again and not newest and not problems:
        problems.append("there is no checkpoint yet")
    if problems:
        last = start.round + again
        what = "no round is lost" if not again else f"rounds {start.round + 1} to {last} are played again"
        _log.warning("%s: %s; the run goes on after round %d, %s", folder, "; ".join(problems), start.round, what)
    return start


def _newest_usable(folder: Path, manifest: Manifest, rounds: Rounds) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, and why newer ones can't be; none from a round on that is to be played again."""
    problems = []
    replayed = rounds.seals.index(manifest.replayed) if manifest.replayed in rounds.seals else sys.maxsize
    for number, file in checkpoint_files(folder / CHECKPOINTS):
        if number >= replayed:
            continue
        name = f"{CHECKPOINTS}/{file.name}"
        try:
            found = read_checkpoint(file, manifest.fingerprint)
        except DamagedError as damage:
            problems.append(f"{name}: {damage}")
            continue
        if number > len(rounds.lines):
            problems.append(f"{RECORDS_FILE} has {len(rounds.lines)} intact rounds, but {name} knows {number}")
        elif found.seal.records != rounds.seals[number]:
            problems.append(f"{name} knows other rounds than {RECORDS_FILE}")
        else:
            return found, problems
    return None, problems
