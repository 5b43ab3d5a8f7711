"""How many threads this process should use, and what Ctrl-C does to it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def usual_threads() -> int:
    """As many as there are cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """A process started now, by this thread, doesn't notice Ctrl-C from its first moment on."""
    if sys.platform == "win32":  # has no such masks
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stopping_on_ctrl_c(*also: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C, or a signal of `also`, into a request to stop after the round: the function says so.

    The second is an ordinary KeyboardInterrupt.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("stopping after this round (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, *also)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
