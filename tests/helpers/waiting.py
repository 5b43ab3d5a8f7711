"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable

LONG_S = 1200.0
"""Far longer than anything takes on the busiest machine."""


def wait_until(condition: Callable[[], object], what: str = "it happens", timeout_s: float = LONG_S) -> None:
    due = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < due, f"waited too long: {what}"
        time.sleep(0.02)
