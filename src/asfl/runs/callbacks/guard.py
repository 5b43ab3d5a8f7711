"""Trackers that can't hurt a run: one that fails is switched off, and the run goes on."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import shorten

from asfl.runs.callbacks.base import Settings, Tracker
from asfl.runs.records import RoundRecord


class Tracking:
    """Tells several trackers about a run; is a tracker itself, and one that never raises."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._on = list(trackers)

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        self._tell(lambda tracker: tracker.begin(folder, settings, before))

    def round(self, record: RoundRecord) -> None:
        self._tell(lambda tracker: tracker.round(record))

    def end(self, finished: bool) -> None:
        self._tell(lambda tracker: tracker.end(finished))
        self._on = []

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._on):
            try:
                call(tracker)
            except Exception as error:
                self._on.remove(tracker)
                self._switch_off(tracker, error)

    def _switch_off(self, tracker: Tracker, error: Exception) -> None:
        reason = shorten(f"{type(error).__name__}: {error}".splitlines()[0], 200, placeholder=" …")
        name = type(tracker).__name__
        print(f"warning: {name} is switched off until the run is resumed ({reason})", file=sys.stderr, flush=True)
        try:
            tracker.end(False)  # it may hold files or processes
        except Exception:
            return  # that it doesn't work was said
