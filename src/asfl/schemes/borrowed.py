"""FedAvg, SL and SFL: resource blocks and power are ASFL's of the same round (paper §V-A), the cut is not. And central.

`bits` is how many everything crosses with: activations and gradients, and models, down and up. The paper knows only 32.

ASFL's decision is the one its own run recorded in the same world, where a comparison has such a run. Alone, ASFL
decides the round here, with made-up learning for the drift of its client sides (`asfl.runs.synthetic`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import CENTRAL, FEDAVG, SFL, SL, ExchangeRules, cost_of_all_cuts
from asfl.costs.round import Decision
from asfl.optimize import Problem
from asfl.schemes.base import BITS, ON_OFF, Decided, Values, borrowed_decision, random_cut

CutRule = Literal["random", "fastest"]


def cut_by(rule: CutRule, problem: Problem, decision: Decision, exchange: ExchangeRules, seed: int) -> int:
    """A random cut, as in the paper; or the one with the shortest expected round for these blocks and powers."""
    if rule == "random":
        return random_cut(problem, seed)
    patient = replace(problem.round, outage_s=np.inf)
    bits = int(np.max(decision.bits))
    cost = cost_of_all_cuts(patient, decision.rb_count, decision.tx_power_w, exchange=exchange, bits=bits)
    return int(problem.round.profile.cuts[np.argmin(cost.delay_s)])


def borrowed_with_cut(problem: Problem, cut: int, bits: int) -> Decided:
    """Blocks and powers of ASFL with a given cut; a network with fewer layers gets its last cut."""
    reference, profile = borrowed_decision(problem), problem.round.profile
    cut = max(min(cut, profile.num_layers - 1), profile.min_cut)
    return Decided(replace(reference, cut=cut, bits=bits), reference)


@dataclass(frozen=True)
class FedAvgScheme:
    """Every client trains the whole model and sends it as one packet. The cut it reports is ASFL's and unused."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {"bits": BITS}
    name: str = "fedavg"
    bits: int = BITS_PER_VALUE
    exchange: ExchangeRules = FEDAVG

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = borrowed_decision(problem)
        return Decided(replace(reference, bits=self.bits), reference)


@dataclass(frozen=True)
class SplitFedScheme:
    """SplitFed v1: a cut for all, client sides averaged every round; with `mix`, the server mixes mini-batches."""

    borrows: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, Values]] = {"bits": BITS, "mix": ON_OFF}
    name: str = "sfl"
    cut_rule: CutRule = "random"
    bits: int = BITS_PER_VALUE
    mix: bool = False

    @property
    def exchange(self) -> ExchangeRules:
        return replace(SFL, mixes=self.mix)

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = borrowed_decision(problem)
        decision = replace(reference, bits=self.bits)
        return Decided(replace(decision, cut=cut_by(self.cut_rule, problem, decision, self.exchange, seed)), reference)


@dataclass(frozen=True)
class SplitLearningScheme:
    """Split learning: one model handed from client to client.

    The paper gives SL the blocks and powers of ASFL. As only one client is active at a time, it could use all of them:
    `all_rbs` lets it, which is its best shot (the error rate grows with the blocks, the rate too).
    """

    borrows: ClassVar[bool] = True
    name: str = "sl"
    cut_rule: CutRule = "random"
    all_rbs: bool = False
    exchange: ExchangeRules = SL

    def decide(self, problem: Problem, seed: int) -> Decided:
        reference = borrowed_decision(problem)
        decision = reference
        if self.all_rbs:
            everything = float(problem.round.radio.num_rbs)
            decision = replace(decision, rb_count=np.where(reference.scheduled, everything, 0.0))
        return Decided(replace(decision, cut=cut_by(self.cut_rule, problem, decision, self.exchange, seed)), reference)


@dataclass(frozen=True)
class CentralScheme:
    """All data in one place, the ceiling of every figure: no radio, no cost, nothing lost.

    One model sees as many samples a round as all clients that could be served, in mini-batches of the same size.
    """

    name: str = "central"
    exchange: ExchangeRules = CENTRAL

    def decide(self, problem: Problem, seed: int) -> Decision:
        nothing = np.zeros(problem.round.num_clients)
        return Decision(1, nothing, nothing)
