"""What a campaign counts: everything it tried, and every way in which it must never end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Counts:
    """One campaign's tally. Anything but zeros behind `tried` is a defect."""

    tried: int = 0
    lost: int = 0
    """Finished rounds that are gone, runs that can't go on, or that go on with other bits."""
    silent: int = 0
    """Damage or a lie that wasn't mentioned."""
    tracebacks: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few defects, in words."""

    EXAMPLES = 10

    @property
    def defects(self) -> int:
        return self.lost + self.silent + self.tracebacks

    def defect(self, kind: str, what: str) -> None:
        """Count a defect of a kind ("lost", "silent" or "tracebacks")."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < self.EXAMPLES:
            self.examples.append(f"{kind}: {what}")


@contextmanager
def only_errors() -> Iterator[None]:
    """Warnings of asfl aren't shown: there are thousands, and they are in records or counted."""
    logger = logging.getLogger("asfl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
