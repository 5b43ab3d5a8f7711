"""Ending a ServerApp after the round it is in."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AT_THE_LATEST_S = 60.0
"""A round may wait for clients that don't come; what it has done since the last checkpoint is played again."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def in_simulation() -> bool:
    """Whether this is Flower's simulation, in which the ServerApp has a thread of its own."""
    return threading.current_thread() is not threading.main_thread()


@contextmanager
def stopping_after_the_round() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a request; the second, or one minute, does what Flower wants it to do.

    Flower sends the ServerApp SIGINT after `flwr stop`, and when the SuperLink ends. Only the main thread gets signals:
    in Flower's simulation the ServerApp isn't there, and nothing is changed.
    """
    asked = threading.Event()
    if in_simulation():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    insist = threading.Timer(AT_THE_LATEST_S, signal.raise_signal, [signal.SIGTERM])
    insist.daemon = True

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        for each, handler in before.items():
            signal.signal(each, handler)
        insist.start()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        insist.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
