"""What a run tells those who watch it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from asfl.runs.records import RoundRecord

Settings = Mapping[str, str | int | float | bool]
"""`scheme`, `seed`, and every field of the configuration under its own name, such as `training.rounds`."""


class Tracker(Protocol):
    """Shows a run somewhere else, round by round. The truth is rounds.jsonl; a tracker is a view of it."""

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        """A run begins, or goes on after the rounds `before`.

        Not all of those need have been seen: a tracker may be chosen late, or have failed. Later ones may have been
        seen: rounds after the last checkpoint are played again, to the same numbers.
        """

    def round(self, record: RoundRecord) -> None:
        """A round is over and its record is on the disk."""

    def end(self, finished: bool) -> None:
        """No more rounds: all are done, or the run was stopped or failed and may go on one day."""
