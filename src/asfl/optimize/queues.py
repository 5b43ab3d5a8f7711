"""Virtual queues: how far delay, energy and participation have been over budget so far (paper §IV-A, (32) and (33))."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Float, Floats

QueueRule = Literal["printed", "standard"]


@dataclass(frozen=True, eq=False)
class Queues:
    """Backlogs at the start of a round, all ≥ 0."""

    delay: float
    """Q_0."""
    energy: Float[Floats, "clients"]
    """Q_n."""
    participation: Float[Floats, "clients"]
    """Not in the paper: rounds each client has been owed."""

    @classmethod
    def empty(cls, num_clients: int) -> "Queues":
        return cls(0.0, np.zeros(num_clients), np.zeros(num_clients))


def next_queues(
    queues: Queues,
    delay_excess: float,
    energy_excess: Floats,
    scheduled: NDArray[np.bool_],
    *,
    rule: QueueRule,
    memory: float,
    participation_floor: float,
) -> Queues:
    """Backlogs after a round.

    `printed` (32): Q ← max(μQ + (1−μ)g, 0), which forgets, so that a bounded queue only bounds the *weighted recent*
    excess. `standard`: Q ← max(Q + g, 0), whose mean rate stability implies the long-run budget. Participation always
    follows the standard rule, as it has to make good for every round a client missed: Z ← max(Z + floor − served, 0).
    """
    keep, add = queue_weights(rule, memory)
    return Queues(
        delay=max(keep * queues.delay + add * delay_excess, 0.0),
        energy=np.maximum(keep * queues.energy + add * energy_excess, 0.0),
        participation=np.maximum(queues.participation + participation_floor - scheduled, 0.0),
    )


def queue_weights(rule: QueueRule, memory: float) -> tuple[float, float]:
    """How much of the old backlog stays and how much of the new excess is added."""
    return (memory, 1.0 - memory) if rule == "printed" else (1.0, 1.0)
