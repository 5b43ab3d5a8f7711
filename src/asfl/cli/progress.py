"""How a run is watched: a bar on a terminal, plain lines elsewhere."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asfl.records import RoundRecord
from asfl.units import format_si

LINE_EVERY_S = 10.0


class RunProgress:
    """Shows each round as it is recorded."""

    def __init__(self, rounds: int, done: int, accuracy: float | None = None) -> None:
        """`done`: rounds recorded before; some of them may be played again, from the last checkpoint on."""
        self._rounds, self._done, self._accuracy = rounds, done, accuracy
        self._first: int | None = None
        self._console = Console(stderr=True, highlight=False)
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "RunProgress":
        if self._console.is_terminal:
            columns = (
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=self._rounds, completed=self._done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            self._accuracy = record.accuracy
        if self._bar is not None:
            self._bar.update(self._task, completed=record.round, description=self._text(record))
            return
        now = time.monotonic()
        self._first = record.round if self._first is None else self._first
        if record.accuracy is not None or now - self._last_line > LINE_EVERY_S or record.round == self._rounds:
            self._last_line = now
            left = (now - self._started) / (record.round - self._first + 1) * (self._rounds - record.round)
            print(
                f"round {record.round}/{self._rounds}: {self._text(record)}, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def _text(self, record: RoundRecord) -> str:
        accuracy = "" if self._accuracy is None else f"{100 * self._accuracy:.1f} %, "
        cut = "no cut" if record.cut is None else f"cut {record.mean_cut:.3g}"
        return (
            f"{accuracy}{format_si(record.total_delay_s, 's')}, {format_si(record.total_energy_j, 'J')}, {cut}, "
            f"{record.arrived_count} of {record.scheduled_count} arrived"
        )


class StopRequest:
    """True once somebody pressed Ctrl-C; pressed again, it is an ordinary KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def stopping_on_ctrl_c() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C into a request to stop after the round."""
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True
        print("stopping after this round (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)
