"""Standard output belongs to the command; what trackers' packages have to say to people isn't for it."""

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """No prints, warnings or log lines from what is called inside, and no questions: what goes wrong is raised."""
    log_level, stdin = logging.root.manager.disable, sys.stdin
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(max(log_level, logging.ERROR))
        sys.stdin = io.StringIO()  # nobody is at this terminal
        try:
            yield
        finally:
            sys.stdin = stdin
            logging.disable(log_level)
