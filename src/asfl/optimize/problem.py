"""One round's decision problem: everything the solvers need, and the objective they minimise.

How JSON has a problem is said beside each field: bounds, and what may be left out (`asfl.optimize.roundfile`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import GetPydanticSchema
from pydantic_core import PydanticUseDefault, core_schema

from asfl.config.fields import Amount, Index, NonNegative, Positive, WrittenAs
from asfl.config.shapes import Each, Float, Floats
from asfl.config.tree import DecisionRules
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ASFL, ExchangeRules, RoundCost, round_cost, timeline_of
from asfl.costs.round import ALLOWED_BITS, Decision, Round
from asfl.costs.timeline import Timeline
from asfl.optimize.prices import Prices, Progress
from asfl.optimize.rules import (
    PUBLISHED,
    HardBudget,
    Penalty,
    QueueDrift,
    Queues,
    Rules,
    Switches,
    budget_scale,
    queue_weights,
)

USUAL_ERROR = 0.05
"""‖Q(x) − x‖² / ‖x‖² at 4 bits where it isn't measured: a channel whose range is eight standard deviations."""
STANDSTILL = 0.01
"""ε_o: a descent ends when the objective moves less than this."""
TURN_PRICE = 0.25
"""A client four rounds behind its share of the rounds counts twice, where progress per cost decides."""
VIOLATION_FIRST = 1e6
"""How much more a violation weighs than anything the objective could gain by it."""


@dataclass(frozen=True, eq=False)
class Learning:
    """What the server knows of the models when it decides (§IV)."""

    layer_spread: Annotated[Float[Floats, "layers"], Each(Amount, "layers")]
    """(1/N) Σ_n ‖w̄_m − w_{n,m}‖², how far the clients' copies of each layer have drifted apart."""
    layer_norm2: Annotated[Float[Floats, "layers"], Each(Amount, "layers")]
    """‖w̄_m‖², used by the printed objective only."""
    update_norm2: Annotated[Float[Floats, "clients"], Each(Amount)]
    """‖Δ_n‖², squared norm of each client's latest full update."""
    update_scale: Positive
    """U, a running mean of ‖Δ‖²."""
    beyond: "DriftAndNoise | None" = None
    """What decisions beyond the paper need to know besides."""

    @classmethod
    def none(cls, round_: Round) -> "Learning":
        """No drift, and updates that are all alike."""
        layers = np.zeros(round_.profile.num_layers)
        return cls(layers, layers, np.ones(round_.num_clients), 1.0)


@dataclass(frozen=True, eq=False)
class DriftAndNoise:
    """What the server knows of drift, noise and precision, for averaging, bits and participation."""

    layer_drift: Annotated[Float[Floats, "layers"], Each(Amount, "layers")]
    """How far clients' copies of each layer have diverged, in what one round adds to it."""
    layer_debt: Annotated[Float[Floats, "layers"], Each(Amount, "layers")]
    """The same, summed over the rounds since the layer was last averaged."""
    noise_scale: NonNegative
    """B: the gradient noise scale, the number of mini-batches at which noise and signal are equal (`Progress`)."""
    precision_error: Mapping[int, NonNegative]
    """‖Q(x) − x‖² / ‖x‖² of what crosses, by bits."""

    def worth(self, bits: NDArray[np.int64]) -> Floats:
        """What mini-batches with so many bits each are worth, of 1."""
        different, place = np.unique(bits, return_inverse=True)
        return np.array([1.0 - self.lost_precision(int(each)) for each in different])[place]

    def lost_precision(self, bits: int) -> float:
        """Share of a mini-batch's worth that its bits cost.

        Rounding adds v (1 + B) to a gradient's own noise B, both relative to the squared norm of the exact gradient;
        with the sum it is worth B / (B + v (1 + B)) of what it was.
        """
        noise, added = self.noise_scale, self.precision_error.get(bits, 0.0) * (1.0 + self.noise_scale)
        return added / (noise + added) if added > 0 else 0.0


def precision_errors(at_4_bits: float) -> dict[int, float]:
    """‖Q(x) − x‖² / ‖x‖² by bits, from that at 4 bits: it goes with the square of a step."""
    return {bits: at_4_bits * (15 / (2.0**bits - 1)) ** 2 for bits in ALLOWED_BITS if bits < BITS_PER_VALUE}


def _beside(usual: Any) -> GetPydanticSchema:
    """In JSON this part of a problem, or a field of it, may be left out, and is then as `usual(round)` has it."""

    def fill(given: Any, info: Any) -> Any:
        if "round" not in info.data:
            raise PydanticUseDefault  # its own mistakes are enough
        return {**vars(usual(info.data["round"])), **given} if isinstance(given, dict) else given

    def schema(source: Any, handler: Any) -> Any:
        return core_schema.with_default_schema(
            core_schema.with_info_before_validator_function(fill, handler(source)),
            default_factory=lambda data: usual(data["round"]) if "round" in data else None,
            default_factory_takes_data=True,
        )

    def json_schema(schema: Any, handler: Any) -> Any:
        found = handler(schema)
        handler.resolve_ref_schema(found).pop("required")
        return found

    return GetPydanticSchema(schema, json_schema)


@dataclass(frozen=True, eq=False)
class Problem:
    """min over (cut, RBs, power) of drift + V · objective, or of the objective within this round's budgets."""

    round: Round
    learning: Annotated[Learning, _beside(Learning.none)]
    queues: Annotated[Queues, _beside(lambda round_: Queues.empty(round_.num_clients))]
    rules: Annotated[Rules, WrittenAs(DecisionRules)]
    reference: Decision | None = None
    """What ASFL decided in this round of this world, if its run was recorded; for schemes that borrow from it."""
    switches: Switches = PUBLISHED
    prices: Prices | None = None
    """None: queues and budgets decide, as in the paper."""
    seed: Index = 0
    """With the round's index, the key of what algorithms as printed draw at random."""

    @property
    def exchange(self) -> ExchangeRules:
        """What is charged: whether the server mixes changes how far a round can overlap."""
        return replace(ASFL, mixes=self.switches.mix)

    # ------------------------------------------------------------------ objective
    @cached_property
    def spread_of_cut(self) -> Floats:
        """[M+1] discrepancy of the client side by cut: spreads of layers ≤ min(cut, previous cut).

        Layers above the previous cut come from the server, so every client gets the same values.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.learning.layer_spread)])
        if self.round.previous_cut is not None:
            sums = sums[np.minimum(np.arange(len(sums)), self.round.previous_cut)]
        return sums if self.rules.equations == "printed" else sums / self.learning.update_scale

    @cached_property
    def drift_cost_of_cut(self) -> Floats:
        """[M+1] what the drift of the client sides costs: V times what it adds to the objective."""
        weight = self.rules.drift_weight if self.rules.equations == "corrected" else 1.0
        return np.asarray(self.progress_weight * weight * self.spread_of_cut)

    def plan_cost(self, cuts: NDArray[np.int64], synced: NDArray[np.int64]) -> Floats:
        """[C] what the drift of client sides costs under each plan: as published, V times the spread.

        Where averaging is decided, an average has to pay for itself. What drift has cost since a layer was last
        averaged, this round included, stands against it until it is: the debt of layers that stay apart. A layer costs
        `drift_weight` / M for each round's worth of drift in each round, as a share of a lost round.
        """
        beyond, idle = self.learning.beyond, self.idle_cost_of_cut[cuts]
        if not self.switches.sync or beyond is None:
            return self.drift_cost_of_cut[cuts] + idle
        per_round = self.progress_weight * self.rules.drift_weight / len(beyond.layer_drift)
        present = np.concatenate([[0.0], np.cumsum(beyond.layer_drift)])
        standing = self.standing_debt
        return np.asarray(per_round * (present[cuts] + standing[cuts] - standing[np.minimum(synced, cuts)]) + idle)

    @cached_property
    def progress_of_cut(self) -> Floats:
        """[M+1] what a round brings with each cut, of what it would if the server had every layer.

        All layers count the same, as they do for drift. One that lies with clients makes a step a round, not A; with
        its longer steps (`asfl.train.steps`) it gets 1/√A₀ as far.
        """
        layers = self.round.profile.num_layers
        behind = 1.0 - self.progress.usual**-0.5 if self.switches.mix else 0.0
        return np.asarray(1.0 - behind * np.arange(layers + 1) / layers)

    @cached_property
    def idle_cost_of_cut(self) -> Floats:
        """[M+1] what it costs that layers on clients learn less in a round than those on the server."""
        whole = 1.0 if self.prices is None else self.progress.expected(self.prices.arrival)
        return np.asarray(self.progress_weight * whole * (1.0 - self.progress_of_cut))

    @cached_property
    def standing_debt(self) -> Floats:
        """[M+1] what drift has cost since layers ≤ m were averaged, this round included, in rounds' worth of drift."""
        beyond = self.learning.beyond
        if beyond is None:
            return np.zeros(self.round.profile.num_layers + 1)
        return np.concatenate([[0.0], np.cumsum(beyond.layer_debt + beyond.layer_drift + 1.0)])

    @property
    def progress_weight(self) -> float:
        """What losing all of a round's progress costs: V, or its price."""
        return self.rules.penalty_weight if self.prices is None else self.prices.per_progress

    def precision_cost(self, lost: Floats) -> Floats:
        """[..., N] what it costs that a share [..., N] of each client's update is lost to few bits."""
        return self._loss_weight * lost

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
        if self.rules.equations == "corrected":
            return np.asarray(np.broadcast_to(self._loss_weight * rate, (len(cuts), *rate.shape)))
        weighted = {"(1-s)^2": (1 - rate) * (1 - rate), "s^2": rate * rate, "s": rate}[self.rules.error_weight]
        weight = self.rules.penalty_weight / self.round.num_clients * self.server_norm2_of_cut[cuts]
        return np.asarray(np.multiply.outer(weight, weighted))

    @property
    def errors_pay(self) -> bool:
        """Whether more packet errors make the objective smaller, as printed."""
        return self.rules.equations == "printed" and self.rules.error_weight == "(1-s)^2"

    @cached_property
    def _loss_weight(self) -> Floats:
        if self.prices is not None:
            return self.price_of_arrival
        share = self.learning.update_norm2 / (self.round.num_clients * self.learning.update_scale)
        return np.asarray(self.rules.penalty_weight * share)

    # ------------------------------------------------------------------ budgets
    @property
    def normalised(self) -> bool:
        """Whether excess is divided by its budget (corrected) or left in seconds and joules (printed)."""
        return self.rules.equations == "corrected"

    def excess(self, delay_s: float, energy_j: Floats) -> tuple[float, Floats]:
        """g_0 and g_n: how far a round is over budget."""
        rules = self.rules
        delay_scale = budget_scale(rules.delay_budget_s, normalised=self.normalised)
        energy_scale = budget_scale(rules.energy_budget_j, normalised=self.normalised)
        return (delay_s - rules.delay_budget_s) / delay_scale, (energy_j - rules.energy_budget_j) / energy_scale

    @cached_property
    def progress(self) -> Progress:
        """What arrivals are worth; B is 1 before anything is known."""
        beyond, round_ = self.learning.beyond, self.round
        served = min(round_.num_clients, round_.radio.num_rbs)
        return Progress(float(served), 1.0 if beyond is None else beyond.noise_scale, self.switches.mix)

    @cached_property
    def price_of_arrival(self) -> Floats:
        """[N] what a client's mini-batch is worth, where prices decide."""
        assert self.prices is not None
        return self.prices.per_progress * self.progress.slopes(self.prices.arrival)

    @cached_property
    def delay_drift(self) -> Penalty:
        if self.prices is not None:
            return HardBudget(self.prices.per_s, 0.0, 1.0)
        return self._drift(self.queues.delay, self.rules.delay_budget_s)

    @cached_property
    def energy_drift(self) -> Penalty:
        if self.prices is not None:
            return HardBudget(self.prices.per_j, 0.0, 1.0)
        return self._drift(self.queues.energy, self.rules.energy_budget_j)

    @cached_property
    def delay_penalty(self) -> Penalty:
        """What the RB and power blocks pay for delay, by form."""
        return self.delay_drift if self.rules.form == "drift" else self._hard(self.rules.delay_budget_s)

    @cached_property
    def energy_penalty(self) -> Penalty:
        return self.energy_drift if self.rules.form == "drift" else self._hard(self.rules.energy_budget_j)

    def _drift(self, backlog: float | Floats, budget: float) -> QueueDrift:
        keep, add = queue_weights(self.rules.queue_rule, self.rules.queue_memory)
        return QueueDrift(backlog, keep, add, budget, budget_scale(budget, normalised=self.normalised))

    def _hard(self, budget: float) -> HardBudget:
        worst_error = np.full(self.round.num_clients, 0.0 if self.errors_pay else 1.0)
        most = self.error_cost(np.array([1]), worst_error).sum() + self.queues.participation.sum()
        return HardBudget(VIOLATION_FIRST * (1 + float(most)), budget, budget_scale(budget, normalised=True))

    # ------------------------------------------------------------------ participation
    @cached_property
    def sitting_out_cost(self) -> Floats:
        """[N] linear drift of the participation queue if the client sits out: Z_n · floor (and Z_n less if served).

        Where the floor is relative, each client that is served raises it for all, by floor/N: the drift is then that of
        serving alone.
        """
        if self.rules.relative_floor:
            return np.zeros(self.round.num_clients)
        return self.price_of_turn * self.queues.participation * self.rules.participation_floor

    @cached_property
    def serving_cost(self) -> Floats:
        owed, floor = self.queues.participation, self.rules.participation_floor
        if self.rules.relative_floor:
            return np.asarray(self.price_of_turn * (floor * owed.mean() - owed))
        return np.asarray(self.price_of_turn * owed * (floor - 1.0))

    @property
    def price_of_turn(self) -> float:
        """What a round that a client is owed weighs: 1 beside V; by prices, `TURN_PRICE` of an arrival's worth."""
        return 1.0 if self.prices is None else TURN_PRICE * float(self.price_of_arrival.mean())

    def floor_of(self, scheduled: NDArray[np.bool_]) -> float:
        """The share of this round that every client is owed."""
        floor = self.rules.participation_floor
        return floor * float(scheduled.mean()) if self.rules.relative_floor else floor

    @cached_property
    def reachable(self) -> NDArray[np.bool_]:
        """[N] clients with any gain at all; no other client can be made to take part."""
        return self.round.channel_gain > 0

    @cached_property
    def all_reachable(self) -> bool:
        return bool(self.reachable.all())

    @cached_property
    def min_participants(self) -> int:
        """How many clients must be scheduled, as far as they can be reached and blocks suffice."""
        return min(self.rules.min_participants, int(self.reachable.sum()), self.round.radio.num_rbs)


@dataclass(frozen=True, eq=False)
class Solution:
    """A solver's answer to one problem."""

    problem: Problem
    decision: Decision
    objective: float
    """Drift + V · objective (+ the participation queue's share)."""
    iterations: int
    trace: tuple[tuple[str, float], ...]
    """(block, objective after it), in order."""
    seconds: float
    considered_power_w: Floats
    """[N] powers, also of those who sit out: with which it was found that they had better."""
    lower_bound: float = -np.inf
    """No decision on the solver's grid is better than this (joint solver only)."""

    @cached_property
    def expected(self) -> RoundCost:
        return round_cost(self.problem.round, self.decision, exchange=self.problem.exchange)

    def timeline(self, *, barriers: bool = False) -> Timeline:
        """The round as it is expected."""
        return timeline_of(self.problem.round, self.decision, exchange=self.problem.exchange, barriers=barriers)

    @cached_property
    def rank(self) -> float:
        """What the solver's form minimises: the objective, or within hard budgets the violation first."""
        problem = self.problem
        if problem.rules.form == "drift":
            return self.objective
        cost, cut = self.expected, np.array([self.decision.cut])
        over = float(problem.delay_penalty.value(cost.delay_s)) + problem.energy_penalty.value(cost.energy_j).sum()
        errors = problem.error_cost(cut, cost.packet_error_rate).sum()
        owed = np.where(self.decision.scheduled, problem.serving_cost, problem.sitting_out_cost).sum()
        return float(over + float(problem.drift_cost_of_cut[cut[0]]) + errors + owed)

    @property
    def delay_excess_s(self) -> float:
        """How far the expected delay misses this round's budget; 0 if it is kept."""
        return max(float(self.expected.delay_s) - self.problem.rules.delay_budget_s, 0.0)

    @property
    def energy_excess_j(self) -> Floats:
        """[N] the same for each client's energy."""
        return np.maximum(self.expected.energy_j - self.problem.rules.energy_budget_j, 0.0)

    @property
    def feasible(self) -> bool:
        """Whether this round, in expectation, keeps all budgets."""
        rules = self.problem.rules
        slack = 1e-9
        return bool(
            self.delay_excess_s <= slack * rules.delay_budget_s
            and (self.energy_excess_j <= slack * rules.energy_budget_j).all()
        )

    def missed_budgets(self) -> dict[str, Any]:
        """Which budgets are missed by how much."""
        missed: dict[str, Any] = {}
        if self.delay_excess_s > 1e-9 * self.problem.rules.delay_budget_s:
            missed["delay_s"] = self.delay_excess_s
        over = self.energy_excess_j > 1e-9 * self.problem.rules.energy_budget_j
        if over.any():
            missed["energy_j"] = {int(n): float(self.energy_excess_j[n]) for n in np.flatnonzero(over)}
        return missed
