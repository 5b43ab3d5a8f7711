"""What our side of a Flower app has to say, in the log that Flower shows."""

import logging
import sys

_LOGGER = logging.getLogger("asfl")


def show_log() -> None:
    """Let messages of asfl reach this process's standard output, which Flower sends to whoever calls `flwr log`."""
    if not any(isinstance(handler, _ToStdout) for handler in _LOGGER.handlers):
        handler = _ToStdout()
        handler.setFormatter(logging.Formatter("asfl: %(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)


class _ToStdout(logging.Handler):
    """Looks standard output up each time: Flower puts another one in its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stdout, flush=True)
