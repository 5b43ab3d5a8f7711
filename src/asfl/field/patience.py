"""How long the server waits for clients: as configured, or else by what the same stage took so far."""

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from asfl.config import Deadlines, Network
from asfl.field.protocol.messages import Stage

MOST_S = 120.0
LEARN_MOST_S = 600.0
"""Of a whole step without a cut."""
LEAST_S = 15.0
"""A machine may be busy with something else for a while."""
_FACTOR, _QUANTILE, _OWN_FACTOR = 20.0, 0.95, 3.0
_LEAST_ANSWERS, _REMEMBERED = 20, 1000


@dataclass(frozen=True)
class Patience:
    """How long the server waits."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    nobody_s: float = 300.0
    """For somebody to be reached at all when a round begins; then the run stops."""
    barren_rounds: int = 3
    """The run stops after so many rounds in a row in which everybody who was asked was lost: training has diverged, or
    the deadlines are too short."""
    bad_answers: int = 3
    """A client loses its place after so many rounds in a row in which its answers of the same stage were wrong."""

    @classmethod
    def of(cls, network: Network) -> "Patience":
        """As configured."""
        return cls(network.deadlines, nobody_s=network.nobody_s)

    def most_s(self, stage: Stage) -> float:
        """The deadline of a stage as long as nothing is known of it."""
        configured: float | str = getattr(self.deadlines, f"{stage}_s")
        if isinstance(configured, str):  # "auto"
            return LEARN_MOST_S if stage == "learn" else MOST_S
        return configured

    def is_measured(self, stage: Stage) -> bool:
        return bool(getattr(self.deadlines, f"{stage}_s") == "auto")


class MeasuredDeadlines:
    """The deadlines of stages that are configured as "auto".

    After 20 answers it is 20 times what 95 % of the latest ones took, but at least 15 s, at least 3 times what this
    client took the last time, and never more than 120 s (600 s for a whole step). A client that was too late has twice
    as long the next time: if the world has become slower, everybody is back after a few rounds.
    """

    def __init__(self) -> None:
        self._took_s: dict[Stage, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._usual_s: dict[Stage, float] = {}
        self._own_s: dict[tuple[Stage, int], float] = {}
        self._late: dict[tuple[Stage, int], int] = {}

    def begin(self) -> None:
        """A round begins."""
        self._usual_s = {
            stage: _FACTOR * float(np.quantile(took_s, _QUANTILE))
            for stage, took_s in self._took_s.items()
            if len(took_s) >= _LEAST_ANSWERS
        }

    def deadline_s(self, stage: Stage, client: int, most_s: float) -> float:
        if stage not in self._usual_s:
            return most_s
        own_s = _OWN_FACTOR * self._own_s.get((stage, client), 0.0)
        wait_s = max(LEAST_S, self._usual_s[stage], own_s)
        return float(min(wait_s * 2.0 ** self._late.get((stage, client), 0), most_s))

    def answered(self, stage: Stage, client: int, seconds: float) -> None:
        self._took_s[stage].append(seconds)
        self._own_s[stage, client] = seconds
        self._late.pop((stage, client), None)

    def too_late(self, stage: Stage, client: int) -> None:
        self._late[stage, client] = min(self._late.get((stage, client), 0) + 1, 16)
