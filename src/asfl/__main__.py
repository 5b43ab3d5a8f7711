"""`python -m asfl` is `asfl`. Ctrl-C while it is still importing ends it with a word, too."""

import os
import signal
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, _stop)
    from asfl.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
