"""How a call shows its progress: a bar in a notebook or on a terminal, and a line for each run that ends elsewhere."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asfl.config.units import percent
from asfl.runs.jobs import Ended, Event, Job, OnEvent
from asfl.runs.this_process import stopping_on_ctrl_c


def stopping() -> AbstractContextManager[Callable[[], bool]]:
    """Ctrl-C ends training after the round; only the main thread receives it."""
    if threading.current_thread() is threading.main_thread():
        return stopping_on_ctrl_c()
    return nullcontext(lambda: False)


@contextmanager
def progress_of(rounds: Mapping[str, int], *, shown: bool) -> Iterator[OnEvent]:
    """What to call with each event of the runs that aren't finished; `rounds`: how many each has left."""
    total, ended, done = sum(rounds.values()), 0, 0

    def described(job: Job, event: Event) -> str:
        nonlocal ended, done
        if isinstance(event, Ended):
            ended += 1
            text = f"{job.name}: {event.reason or ('finished' if event.finished else 'stopped')}"
        else:
            done += 1
            accuracy = "" if event.accuracy is None else f", {percent(event.accuracy, 1)}"
            text = f"{job.name}: round {event.round} of {job.rounds}{accuracy}"
        return text + (f" ({ended} of {len(rounds)} runs finished)" if len(rounds) > 1 else "")

    if not shown or not rounds:
        yield lambda job, event: None
    elif _in_notebook():
        show = _notebook_bar(total)
        yield lambda job, event: show(described(job, event), done)
    else:
        console = Console(stderr=True, highlight=False)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task("", total=total)

            def update(job: Job, event: Event) -> None:
                text = described(job, event)
                bars.update(task, description=text, completed=done)
                if isinstance(event, Ended):
                    console.print(text, markup=False, soft_wrap=not console.is_terminal)

            yield update


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _notebook_bar(total: int) -> Callable[[str, int], None]:
    """HTML that all front ends can show, so that no widgets have to be installed."""
    from IPython.display import HTML, display

    def bar(text: str, done: int) -> Any:
        return HTML(f'<progress value="{done}" max="{total}"></progress> {escape(text)}')

    handle: Any = display(bar("begins", 0), display_id=True)
    return lambda text, done: handle.update(bar(text, done))
