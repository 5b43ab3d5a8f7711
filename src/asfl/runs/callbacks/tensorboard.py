"""Rounds as TensorBoard scalars, in `tensorboard/` below the run folder; settings on its HParams page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asfl.runs.callbacks.base import Settings
from asfl.runs.callbacks.scalars import scalars
from asfl.runs.records import RoundRecord

FOLDER = "tensorboard"
_EVENT_FILES = "events.out.tfevents.*"


class TensorBoard:
    """One event file for each time a run is started or goes on; a later one says from which round on it counts."""

    _writer: Any = None

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        home = folder / FOLDER
        first = _first_unknown(home, before)
        _wait_for_a_later_name(home)
        # TensorBoard forgets what earlier files say of round `first` and later ones.
        self._writer = SummaryWriter(home, purge_step=first)
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
        _, start, self._success = hparams(words, {})  # type: ignore[no-untyped-call]
        self._writer.file_writer.add_summary(start)
        for record in before[first - 1 :]:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        now = time.time()
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round, now)
        self._writer.flush()

    def end(self, finished: bool) -> None:
        if self._writer is not None:
            if finished:
                self._writer.file_writer.add_summary(self._success)
            self._writer.close()
            self._writer = None


def _first_unknown(home: Path, before: Sequence[RoundRecord]) -> int:
    """The first round of which TensorBoard lacks a number."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown: dict[str, set[int]] = {}
    if any(home.glob(_EVENT_FILES)):
        reader = EventAccumulator(str(home), size_guidance={"scalars": 0}).Reload()
        shown = {name: {event.step for event in reader.Scalars(name)} for name in reader.Tags()["scalars"]}
    unknown = (
        record.round for record in before if any(record.round not in shown.get(name, ()) for name in scalars(record))
    )
    return next(unknown, len(before) + 1)


def _wait_for_a_later_name(home: Path) -> None:
    """TensorBoard reads files in the order of their names, which begin with the second they were opened in."""
    seconds = [int(file.name.split(".")[3]) for file in home.glob(_EVENT_FILES)]
    while seconds and int(time.time()) <= max(seconds) <= time.time() + 1:
        time.sleep(0.05)
