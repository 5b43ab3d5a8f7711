"""ASFL: cut, resource blocks and power by OOE-BCD (or jointly), and the variants that fix or randomise one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from asfl.costs.decision import Decision
from asfl.costs.modelled import ASFL, Procedure
from asfl.optimize import Problem, ooe_bcd
from asfl.schemes.base import asfl_decision, random_counts, random_powers


@dataclass(frozen=True)
class AsflScheme:
    """ASFL and one replaced part per ablation (paper §V: SFL-λ_m, ASFL-pmax, ASFL-prd, ASFL-RBrd)."""

    name: str = "asfl"
    solver: Literal["bcd", "joint"] | None = None
    """None: the one that is configured."""
    cuts: Sequence[int] | None = None
    """The only cuts allowed; a fixed cut never moves, so it never pays for a re-split."""
    power: Literal["optimised", "max", "random"] = "optimised"
    rbs: Literal["optimised", "random"] = "optimised"
    procedure: Procedure = ASFL

    def decide(self, problem: Problem, seed: int) -> Decision:
        if self.cuts is None and self.power == "optimised" and self.rbs == "optimised":
            return asfl_decision(problem, self.solver)
        power = None
        if self.power == "max":
            power = np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)
        elif self.power == "random":
            power = random_powers(problem, seed)
        counts = random_counts(problem, seed) if self.rbs == "random" else None
        cuts = None if self.cuts is None else [min(cut, problem.round.profile.num_layers - 1) for cut in self.cuts]
        return ooe_bcd(problem, cuts=cuts, rb_count=counts, tx_power_w=power).decision
