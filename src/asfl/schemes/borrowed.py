"""FedAvg, SL and SFL: resource blocks and power are ASFL's of the same round (paper §V-A), the cut is not."""

from dataclasses import dataclass, replace

import numpy as np

from asfl.costs import FEDAVG, SFL, SL, Procedure
from asfl.optimize import Problem
from asfl.schemes.base import Decided, asfl_decision, random_cut


@dataclass(frozen=True)
class FedAvgScheme:
    """Every client trains the whole model and sends it as one packet. The cut it reports is ASFL's and unused."""

    name: str = "fedavg"
    procedure: Procedure = FEDAVG

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = asfl_decision(problem)
        return Decided(reference, reference)


@dataclass(frozen=True)
class SplitFedScheme:
    """SplitFed v1: a random cut each round, client sides averaged every round."""

    name: str = "sfl"
    procedure: Procedure = SFL

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = asfl_decision(problem)
        return Decided(replace(reference, cut=random_cut(problem, seed)), reference)


@dataclass(frozen=True)
class SplitLearningScheme:
    """Split learning: a random cut, one model handed from client to client.

    The paper gives SL the blocks and powers of ASFL. As only one client is active at a time, it could use all of them:
    `all_rbs` lets it, which is its best shot (the error rate grows with the blocks, the rate too).
    """

    name: str = "sl"
    all_rbs: bool = False
    procedure: Procedure = SL

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = asfl_decision(problem)
        decision = replace(reference, cut=random_cut(problem, seed))
        if self.all_rbs:
            everything = float(problem.round.radio.num_rbs)
            decision = replace(decision, rb_count=np.where(reference.scheduled, everything, 0.0))
        return Decided(decision, reference)
