"""Processes that end with their parent. As a script: `python end_with_parent.py PARENT NETWORK COMMAND…`.

NETWORK is a process in whose private network the command is to run (`asfl.field.flower.private_network`), or 0.
Standard library only: Flower's processes start with it.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


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
    parent, network, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if network:
        _join(network)
    end_with_parent(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't start {command[0]}: {error.strerror}")


def _join(process: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET)):
        there, here = Path(f"/proc/{process}/ns/{name}"), Path(f"/proc/self/ns/{name}")
        if there.readlink() == here.readlink():
            continue
        with there.open("rb") as namespace:
            if libc.setns(namespace.fileno(), kind):
                sys.exit(f"can't join the private network: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
