"""One round's decision problem: everything the solvers need, and the objective they minimise."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asfl.optimize.penalties import DelayPenalty, HardBudget, Penalty, QueueDrift, budget_scale
from asfl.optimize.queues import QueueRule, Queues, queue_weights
from asfl.round import Reading, Round

Floats = NDArray[np.float64]
Form = Literal["drift", "per_round_budgets"]
ErrorWeight = Literal["(1-s)^2", "s^2", "s"]

VIOLATION_FIRST = 1e6
"""How much more a violation weighs than anything the objective could gain by it."""


@dataclass(frozen=True, eq=False)
class Learning:
    """What the server knows of the models when it decides (§IV)."""

    layer_spread: Floats
    """[M] (1/N) Σ_n ‖w̄_m − w_{n,m}‖², how far the clients' copies of each layer have drifted apart."""
    layer_norm2: Floats
    """[M] ‖w̄_m‖², used by the printed objective only."""
    update_norm2: Floats
    """[N] ‖Δ_n‖², squared norm of each client's latest full update."""
    update_scale: float
    """U, a running mean of ‖Δ‖²."""


@dataclass(frozen=True)
class Rules:
    """How a round is decided; "auto" values are already numbers here."""

    delay_budget_s: float
    energy_budget_j: float
    min_participants: int
    participation_floor: float = 0.0
    reading: Reading = "corrected"
    error_weight: ErrorWeight = "(1-s)^2"
    form: Form = "drift"
    queue_rule: QueueRule = "printed"
    queue_memory: float = 0.5
    penalty_weight: float = 10.0
    rb_sharing: Literal["whole", "time"] = "whole"
    solver: Literal["bcd", "joint"] = "bcd"
    tolerance: float = 0.01
    max_iterations: int = 20


def default_participation(num_clients: int, num_rbs: int, rb_sharing: str) -> tuple[int, float]:
    """`min_participants` and `participation_floor` where none is set: all who can be served, half of a fair share.

    With whole blocks and N > K somebody sits out, and scheduling nobody would be the cheapest round of all; the paper
    has neither number and needs both.
    """
    can_be_served = num_clients if rb_sharing == "time" else min(num_clients, num_rbs)
    return can_be_served, 0.5 * min(1.0, num_rbs / num_clients)


@dataclass(frozen=True, eq=False)
class Problem:
    """min over (cut, RBs, power) of drift + V · objective, or of the objective within this round's budgets."""

    round: Round
    learning: Learning
    queues: Queues
    rules: Rules

    # ------------------------------------------------------------------ objective
    @cached_property
    def spread_of_cut(self) -> Floats:
        """[M+1] discrepancy of the client side by cut: spreads of layers ≤ min(cut, previous cut).

        Layers above the previous cut come from the server, so every client gets the same values.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.learning.layer_spread)])
        if self.round.previous_cut is not None:
            sums = sums[np.minimum(np.arange(len(sums)), self.round.previous_cut)]
        return sums if self.rules.reading == "printed" else sums / self.learning.update_scale

    @cached_property
    def server_norm2_of_cut(self) -> Floats:
        """[M+1] Σ over layers > cut of ‖w̄_m‖²."""
        total = self.learning.layer_norm2.sum()
        return np.asarray(total - np.concatenate([[0.0], np.cumsum(self.learning.layer_norm2)]))

    def error_cost(self, cuts: NDArray[np.int64], packet_error_rate: Floats) -> Floats:
        """V times what each client's packet errors add to the objective: [C, ..., N] for cuts [C] and rates [..., N].

        corrected: s_n ‖Δ_n‖² / (N U), the share of updates that is lost. printed: e(s_n) ‖w̄^s‖² / N with e(s) = (1−s)²
        as in (30a), which *rewards* errors; the proof's own term has the mean s.
        """
        rate = packet_error_rate
        if self.rules.reading == "corrected":
            return np.asarray(np.broadcast_to(self._loss_weight * rate, (len(cuts), *rate.shape)))
        weighted = {"(1-s)^2": (1 - rate) * (1 - rate), "s^2": rate * rate, "s": rate}[self.rules.error_weight]
        weight = self.rules.penalty_weight / self.round.num_clients * self.server_norm2_of_cut[cuts]
        return np.asarray(np.multiply.outer(weight, weighted))

    @cached_property
    def _loss_weight(self) -> Floats:
        share = self.learning.update_norm2 / (self.round.num_clients * self.learning.update_scale)
        return np.asarray(self.rules.penalty_weight * share)

    # ------------------------------------------------------------------ budgets
    @property
    def normalised(self) -> bool:
        """Whether excess is divided by its budget (corrected) or left in seconds and joules (printed)."""
        return self.rules.reading == "corrected"

    def excess(self, delay_s: float, energy_j: Floats) -> tuple[float, Floats]:
        """g_0 and g_n: how far a round is over budget."""
        rules = self.rules
        delay_scale = budget_scale(rules.delay_budget_s, normalised=self.normalised)
        energy_scale = budget_scale(rules.energy_budget_j, normalised=self.normalised)
        return (delay_s - rules.delay_budget_s) / delay_scale, (energy_j - rules.energy_budget_j) / energy_scale

    @cached_property
    def delay_drift(self) -> DelayPenalty:
        return self._drift(self.queues.delay, self.rules.delay_budget_s)

    @cached_property
    def energy_drift(self) -> Penalty:
        return self._drift(self.queues.energy, self.rules.energy_budget_j)

    @cached_property
    def delay_penalty(self) -> DelayPenalty:
        """What the RB and power blocks pay for delay, by form."""
        return self.delay_drift if self.rules.form == "drift" else self._hard(self.rules.delay_budget_s)

    @cached_property
    def energy_penalty(self) -> Penalty:
        return self.energy_drift if self.rules.form == "drift" else self._hard(self.rules.energy_budget_j)

    def _drift(self, backlog: float | Floats, budget: float) -> QueueDrift:
        keep, add = queue_weights(self.rules.queue_rule, self.rules.queue_memory)
        return QueueDrift(backlog, keep, add, budget, budget_scale(budget, normalised=self.normalised))

    def _hard(self, budget: float) -> HardBudget:
        worst_error = np.ones(self.round.num_clients)
        if self.rules.reading == "printed" and self.rules.error_weight == "(1-s)^2":
            worst_error = np.zeros(self.round.num_clients)
        most = self.error_cost(np.array([1]), worst_error).sum() + self.queues.participation.sum()
        return HardBudget(VIOLATION_FIRST * (1 + float(most)), budget, budget_scale(budget, normalised=True))

    # ------------------------------------------------------------------ participation
    @cached_property
    def sitting_out_cost(self) -> Floats:
        """[N] linear drift of the participation queue if the client sits out: Z_n · floor (and Z_n less if served)."""
        return self.queues.participation * self.rules.participation_floor

    @cached_property
    def serving_cost(self) -> Floats:
        return np.asarray(self.queues.participation * (self.rules.participation_floor - 1.0))

    @cached_property
    def reachable(self) -> NDArray[np.bool_]:
        """[N] clients with any gain at all; nobody else can be made to take part."""
        return self.round.channel_gain > 0

    @cached_property
    def min_participants(self) -> int:
        """How many clients must be scheduled, as far as they can be reached and blocks suffice."""
        limit = int(self.reachable.sum())
        if self.rules.rb_sharing == "whole":
            limit = min(limit, self.round.radio.num_rbs)
        return min(self.rules.min_participants, limit)
