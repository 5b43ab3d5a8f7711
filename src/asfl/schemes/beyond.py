"""ASFL with decisions beyond the paper, each by itself and all together (docs/beyond.md).

`asfl-sync` decides whether client sides are averaged and how deep, `asfl-quant` how many bits cross, `asfl-rate` how
many take part, by progress per second and joule; in `asfl-mix` the server steps with every mini-batch, mixed from all
clients'; `asfl-plus` is all of it.
"""

from dataclasses import dataclass, replace

from asfl.costs.decision import Decision
from asfl.costs.modelled import ON_DEMAND, Procedure
from asfl.optimize import Problem
from asfl.optimize.problem import Switches
from asfl.schemes.base import asfl_decision


@dataclass(frozen=True)
class BeyondScheme:
    """OOE-BCD with a block for each decision that is switched on."""

    name: str
    switches: Switches

    @property
    def procedure(self) -> Procedure:
        return replace(ON_DEMAND, mixes=self.switches.mix, reports=True)

    def decide(self, problem: Problem, seed: int) -> Decision:
        return asfl_decision(problem)
