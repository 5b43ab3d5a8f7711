"""ASFL: cut, resource blocks and power by OOE-BCD; with a part replaced per ablation, or decisions beyond the paper.

Those are in docs/schemes.md: `sync` decides whether client sides are averaged and how deep, `quant` how many bits
cross, `rate` how many take part, by progress per second and joule; with `mix` the server steps with every mini-batch,
mixed from all clients'. `asfl-plus` is all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from asfl.costs.modelled import ASFL, ON_DEMAND, ExchangeRules
from asfl.costs.round import Decision
from asfl.optimize import Problem, ooe_bcd
from asfl.optimize.problem import Switches
from asfl.schemes.base import ON_OFF, Values, asfl_decision, random_counts, random_powers


@dataclass(frozen=True)
class AsflScheme:
    """ASFL (paper §V: SFL-λ_m, ASFL-pmax, ASFL-prd, ASFL-RBrd replace one part each)."""

    parameters: ClassVar[Mapping[str, Values]] = dict.fromkeys(("sync", "quant", "rate", "mix"), ON_OFF)
    name: str = "asfl"
    solver: Literal["bcd", "joint"] | None = None
    """None: the one that is configured."""
    cuts: Sequence[int] | None = None
    """The only cuts allowed; a fixed cut never moves, so it never pays for a re-split."""
    power: Literal["optimised", "max", "random"] = "optimised"
    rbs: Literal["optimised", "random"] = "optimised"
    sync: bool = False
    quant: bool = False
    rate: bool = False
    mix: bool = False

    @cached_property
    def switches(self) -> Switches:
        return Switches(sync=self.sync, quant=self.quant, rate=self.rate, mix=self.mix)

    @cached_property
    def exchange(self) -> ExchangeRules:
        if self.switches.any:
            return replace(ON_DEMAND, mixes=self.mix, reports=True)
        return replace(ASFL, reports=self.cuts is None)  # with a fixed cut, nothing depends on drift

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
