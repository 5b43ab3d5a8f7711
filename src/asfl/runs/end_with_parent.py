"""Processes that end with their parent. As a script, standard library only: `end_with_parent.py PARENT COMMAND…`."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """From now on this process is killed when its parent ends; if that has happened already, it leaves at once.

    Whoever can't be killed so (this is a thing of Linux) has to look after its parent itself. On Linux "the parent" is
    the thread that started us.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(0)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    end_with_parent(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
