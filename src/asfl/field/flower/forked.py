"""Stands for a process of Flower's that is forked in the nursery: `python forked.py SOCKET COMMAND …`.

It asks for the process (`asfl.field.flower.nursery`), lends it its standard streams, passes signals on to it, and ends
as it ends; if it is killed, so is the process. Standard library only: it starts in no time.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> None:
    where, *words = sys.argv[1:]
    order = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as nursery:
        try:
            nursery.connect(where)
            socket.send_fds(nursery, [b"\n"], [0, 1, 2])
            nursery.sendall(json.dumps(order).encode() + b"\n")
            answers = nursery.makefile("r")
            process = int(answers.readline() or 0)
        except OSError as error:
            sys.exit(f"can't start {words[0]}: {error.strerror}")

        def pass_on(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

        if process:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, pass_on)
        code = int(answers.readline() or 1)
    os._exit(code if code >= 0 else 128 - code)  # of a process that was killed, as shells say it


if __name__ == "__main__":
    main()
