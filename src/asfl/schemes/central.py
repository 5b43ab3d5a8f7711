"""All data in one place: the ceiling that every figure shows. No radio, no cost, nothing lost."""

from dataclasses import dataclass

import numpy as np

from asfl.costs.decision import Decision
from asfl.costs.modelled import CENTRAL, Procedure
from asfl.optimize import Problem


@dataclass(frozen=True)
class CentralScheme:
    """One model sees as many samples a round as all clients that could be served, in mini-batches of the same size."""

    name: str = "central"
    procedure: Procedure = CENTRAL

    def decide(self, problem: Problem, seed: int) -> Decision:
        nothing = np.zeros(problem.round.num_clients)
        return Decision(1, nothing, nothing)
