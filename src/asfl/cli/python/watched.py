"""How a call is watched: a bar in a notebook, the command line's on a terminal; and what Ctrl-C does to it."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import Any

from asfl.cli.progress import ManyRunsProgress
from asfl.config.units import percent
from asfl.runs.jobs import Ended, Event, Job, OnEvent
from asfl.runs.this_process import stopping_on_ctrl_c


def stopping() -> AbstractContextManager[Callable[[], bool]]:
    """Ctrl-C ends training after the round; only the main thread hears it."""
    if threading.current_thread() is threading.main_thread():
        return stopping_on_ctrl_c()
    return nullcontext(lambda: False)


@contextmanager
def watching(rounds: Mapping[str, int], every: int, *, progress: bool) -> Iterator[OnEvent]:
    """Whom to tell about the rounds of so many runs, of which those in `rounds` are left."""
    if not progress or not rounds:
        yield lambda job, event: None
    elif _in_notebook():
        yield _NotebookBar(sum(rounds.values()), len(rounds)).show
    else:
        with ManyRunsProgress(rounds, every) as display:
            yield display.show


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


class _NotebookBar:
    """One bar for all rounds; HTML that every front end knows, so no widgets have to be installed."""

    def __init__(self, rounds: int, runs: int) -> None:
        from IPython.display import display

        self._rounds, self._runs, self._over, self._done = rounds, runs, 0, dict[str, int]()
        self._handle: Any = display(self._bar("begins"), display_id=True)

    def show(self, job: Job, event: Event) -> None:
        if isinstance(event, Ended):
            self._over += 1
            text = f"{job.name}: {event.reason or ('finished' if event.finished else 'stopped')}"
        else:
            self._done[job.name] = event.round
            accuracy = "" if event.accuracy is None else f", {percent(event.accuracy, 1)}"
            text = f"{job.name}: round {event.round} of {job.rounds}{accuracy}"
        self._handle.update(self._bar(text))

    def _bar(self, text: str) -> Any:
        from IPython.display import HTML

        done = sum(self._done.values())
        runs = f" ({self._over} of {self._runs} runs finished)" if self._runs > 1 else ""
        return HTML(f'<progress value="{done}" max="{self._rounds}"></progress> {escape(text)}{runs}')
