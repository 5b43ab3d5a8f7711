"""How many threads this process should use, what Ctrl-C and its relatives do to it, and that it ends with its parent.

As a script, standard library only: `this_process.py PARENT COMMAND…` starts a command that ends with its parent.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1


def usual_threads() -> int:
    """As many as there are cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent(parent: int) -> None:
    """From now on this process is killed when its parent ends; if that has happened already, it leaves at once.

    Only Linux can do that; elsewhere a process looks after its parent itself. On Linux "the parent" is the thread that
    started us.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(0)


class ToldToEnd:
    """SIGTERM as a request that is looked at after each round; for a worker whose start was `deaf_to_signals`."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


@contextmanager
def deaf_to_signals() -> Iterator[None]:
    """A process started now, by this thread, doesn't notice Ctrl-C or SIGTERM from its first moment on."""
    if sys.platform == "win32":  # has no such masks
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stopping_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a request to stop after the round: the function says so.

    The second is an ordinary KeyboardInterrupt. A signal that is ignored (`nohup`) stays so. Only the main thread
    receives signals; elsewhere the answer is always no.
    """
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("stopping after this round (Ctrl-C again: at once)", file=sys.stderr, flush=True)

    numbers = [signal.SIGINT, signal.SIGTERM] + ([] if sys.platform == "win32" else [signal.SIGHUP])
    heard = [number for number in numbers if number is signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"can't start {sys.argv[2]}: {error.strerror}")
