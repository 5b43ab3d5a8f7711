"""One round's decision problem: everything the solvers need, and the objective they minimise.

How JSON has a problem is said beside each field: bounds, and what may be left out (`asfl.optimize.roundfile`).

Progress per cost: what a round is worth when seconds and joules have a price, instead of budgets for each round.

    max  Σ_r progress_r / Σ_r cost_r,     cost = w_T T + Σ_n w_E,n E_n,     progress = p(A) − drift

A ratio of sums is maximised by making, in every round, cost − θ · progress as small as possible, with θ the ratio of
the sums so far (Dinkelbach; in Neely's terms, the renewal form of drift plus penalty). Progress p(A) (`Progress`) is
concave in A, the mini-batches that arrive, and the solvers want costs by client: so it is priced at its slope, and the
slope follows the solution until it stays.

**Total budgets.** Prices then make a total time and batteries last exactly as long as the training does:

    max  Σ_r progress_r     such that     Σ_r T_r ≤ T_total,     Σ_r E_n,r ≤ B_n,     rounds ≤ R

With a multiplier for each constraint, the Lagrangian falls apart into rounds:

    Σ_r [progress_r − λ T_r − Σ_n μ_n E_n,r − ν]  +  λ T_total + Σ_n μ_n B_n + ν R.

So a round minimises λ T + Σ_n μ_n E_n − progress: what is solved here, with λ and μ instead of fixed
prices. Only their ratios to θ, the price of progress, count; so what is left to find are two things.

**How scarce each of the N + 2 resources is.** At the optimum a resource that isn't used up has the price 0, and all the
others end together. With f_k, the share of resource k that is left,

    price_k ∝ weight_k · exp(−GRIP · f_k) / total_k,     weight: 1 for time and rounds, 1/N for each battery,

does both: one that is behind the others by a share of 1/GRIP has become e times as dear, one that is ahead by a few of
these is free. This is the multiplicative-weights rule for packing (Plotkin, Shmoys and Tardos; Badanidiyuru, Kleinberg
and Slivkins, "Bandits with Knapsacks"). Nothing has to be remembered: prices follow from what is left. A round that
takes its share of everything costs as much for its delay as for all its energies, as with fixed prices.

**What progress is worth.** Where the number of rounds is free, the last round bought is worth its price, so that

    θ = (λ T̄ + Σ_n μ_n Ē_n + ν) / (mean progress),

means being over recent rounds. Rounds are a resource like the others, each takes one of R: where time and batteries are
plenty, ν alone is left, and rounds make all the progress they can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field, GetPydanticSchema, PlainSerializer, ValidationError
from pydantic_core import PydanticUseDefault, core_schema

from asfl.config.errors import AsflError
from asfl.config.fields import Amount, Index, NonNegative, Positive, Share, WrittenAs, explain
from asfl.config.shapes import Each, Float, Floats
from asfl.config.tree import DecisionRules
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ASFL, ExchangeRules, RoundCost, round_cost, timeline_of
from asfl.costs.round import ALLOWED_BITS, Decision, Round, prefix_sums
from asfl.costs.timeline import Timeline
from asfl.costs.world import Budgets, RemainingBudget

USUAL_ERROR = 0.05
"""‖Q(x) − x‖² / ‖x‖² at 4 bits where it isn't measured: a channel whose range is eight standard deviations."""
STANDSTILL = 0.01
"""ε_o: a descent ends when the objective moves less than this."""
TURN_PRICE = 0.25
"""A client four rounds behind its share of the rounds counts twice, where progress per cost decides."""
VIOLATION_FIRST = 1e6
"""How much more a violation weighs than anything the objective could gain by it."""
FAIR_SHARE = 0.8
"""Of the average client's rounds, where it is decided how many take part: with less, the nearest clients' data rule."""
MEMORY = 0.95
"""How much the rounds before count after another one: what progress costs changes with the noise."""
FIRST_ARRIVAL = 0.8
"""How likely each client is taken to arrive when the search for slopes begins. A few mini-batches alone are worth
nothing at a step size meant for many: from there the search would stay with no client."""
GRIP = 16.0
"""Stronger, and clients are avoided only because they have just taken part; weaker, and more is left at the end. Chosen
by the progress in the demo's world with three kinds of batteries, 60 to 170 rounds."""
FREE = 1e-6
"""What a resource costs at least, in the same unit: of two rounds that are equal otherwise, the thriftier is better."""
TYPICAL_COST = 2.0
"""Of a round, in the unit of prices: as without total budgets, 1 for its delay and 1 for its energy."""


# ---------------------------------------------------------------------- what is known
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


# ---------------------------------------------------------------------- rules and queues
@dataclass(frozen=True)
class Switches:
    """Which decisions beyond the paper are made; all off is ASFL as published."""

    sync: bool = False
    """Whether, and how deep, client sides are averaged at the end of a round."""
    quant: bool = False
    """How many bits activations, gradients and layers cross with."""
    rate: bool = False
    """How many take part, by progress per second and joule instead of budgets per round."""
    mix: bool = False
    """The server makes a step with every mini-batch that arrives, each mixed from those of all clients; so a layer that
    lies with the server learns more in a round than one that lies with clients, and the cut is decided by that too."""

    @property
    def any(self) -> bool:
        return self.sync or self.quant or self.rate or self.mix


PUBLISHED = Switches()


class Rules(DecisionRules):
    """How a round is decided: the configuration's rules, with a number for every "auto" that a decision reads."""

    delay_budget_s: NonNegative
    energy_budget_j: NonNegative
    min_participants: Index
    participation_floor: Share
    relative_floor: bool = False
    """Whether the floor is a share of what the average client gets, instead of all rounds."""

    @classmethod
    def of(
        cls,
        rules: DecisionRules,
        num_clients: int,
        num_rbs: int,
        budgets: Budgets,
        switches: Switches = PUBLISHED,
        *,
        batteries: bool = False,
    ) -> "Rules":
        """Where "auto" is configured: half of the clients that can be served, and half of a fair share of the rounds
        for each.

        With whole blocks and N > K some clients sit out, and scheduling no client would be the cheapest round of all;
        the paper has neither number and needs both. If all who can be served had to be, N ≥ K would leave every client
        exactly one block, and nothing to allocate. Where it is decided how many take part, at least two do: from one
        alone the noise of gradients can't be measured. (A mix of two isn't one yet: there, as usual, half of those who
        can be served.) And each client gets `FAIR_SHARE` of what the average client does; but where batteries have a
        price, that says how often each client takes part.
        """
        most, floor = min(num_clients, num_rbs), rules.participation_floor
        usual = min(2, most) if switches.rate and not switches.mix else (most + 1) // 2
        least = usual if rules.min_participants == "auto" else rules.min_participants
        if least > most:
            raise AsflError(
                f"rules.min_participants = {least} is more than can be served: {num_clients} clients, {num_rbs} "
                "resource blocks"
            )
        relative = floor == "auto" and switches.rate
        if floor == "auto":
            floor = (0.0 if batteries else FAIR_SHARE) if relative else 0.5 * min(1.0, num_rbs / num_clients)
        found = {
            "delay_budget_s": budgets.delay_s,
            "energy_budget_j": budgets.energy_j,
            "outage_s": budgets.outage_s if np.isfinite(budgets.outage_s) else "off",
            "min_participants": least,
            "participation_floor": floor,
            "relative_floor": relative,
        }
        try:
            return cls(**rules.model_dump() | found)
        except ValidationError as error:  # budgets that are found may be numbers that no configuration could have
            raise AsflError(explain(error, cls)) from None


QueueRule = Literal["printed", "standard"]


@dataclass(frozen=True, eq=False)
class Queues:
    """Backlogs at the start of a round, all ≥ 0: how far rounds have been over budget so far."""

    delay: NonNegative
    """Q_0."""
    energy: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    """Q_n."""
    participation: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    """Not in the paper: rounds each client has been owed."""

    @classmethod
    def empty(cls, num_clients: int) -> "Queues":
        return cls(0.0, np.zeros(num_clients), np.zeros(num_clients))


def queue_weights(rule: QueueRule, memory: float) -> tuple[float, float]:
    """How much of the old backlog stays and how much of the new excess is added."""
    return (memory, 1.0 - memory) if rule == "printed" else (1.0, 1.0)


def budget_scale(budget: float, *, normalised: bool) -> float:
    """What an excess is divided by: the budget, so that weights mean the same for every model; 1 for a budget of 0."""
    return budget if normalised and budget > 0 else 1.0


class Penalty(NamedTuple):
    """What an amount over budget costs, a delay or each client's energy: convex and nondecreasing.

    The two forms of the problem differ only here. `drift`: half the growth of a squared queue, (33), ½(Q⁺² − Q²) with
    Q⁺ = max(keep · Q + add · (x − budget)/scale, 0) = max(b + a x, 0). `per_round_budgets`: a · max(x − b, 0), with a
    weight so large on the normalised excess that violation comes before everything else, which makes an infeasible
    round end in its least violation instead of an error; with a budget of 0 it is a price per second or joule.
    """

    is_drift: bool
    a: float | Floats
    b: float | Floats
    c: float | Floats
    """½Q² in a drift, else 1. One number each, or one per client."""

    def value(self, amount: ArrayLike) -> Floats:
        if not self.is_drift:
            return np.asarray(np.maximum(np.asarray(amount) - self.b, 0.0) * self.a)
        following = np.asarray(self.a * np.asarray(amount) + self.b)
        np.maximum(following, 0.0, out=following)
        with np.errstate(over="ignore"):  # on a link that is nearly dead: infinitely bad
            following *= following
        following *= 0.5
        following -= self.c
        return following


# ---------------------------------------------------------------------- progress per cost
@dataclass(frozen=True)
class Progress:
    """What a step is worth that is made with the mean gradient of A mini-batches, at a step size that stays.

        p(A) = 2 x − x² (1 + B / A),      x = A₀ / (A₀ + B)

    as a share of what the exact gradient at its own best step would bring: a quadratic model of the loss (McCandlish et
    al., "An Empirical Model of Large-Batch Training", (2.5)), with the step size x that is best for A₀ mini-batches, as
    a learning rate is that was tuned with all clients taking part. Few mini-batches at that step size are worth less
    than their number says, since noise takes back what the signal brings.

    Where the server makes a step with every mini-batch, mixed from all that arrived (`mixed`), steps of the same size
    add up: p(A) = A / A₀.
    """

    usual: float
    """A₀."""
    noise_scale: float
    """B."""
    mixed: bool = False

    @property
    def step(self) -> float:
        """x."""
        return self.usual / (self.usual + self.noise_scale)

    def of(self, arrivals: ArrayLike) -> Floats:
        """p(A); nothing at all happens without arrivals."""
        number = np.asarray(arrivals, float)
        if self.mixed:
            return np.asarray(number / self.usual)
        parts = np.where(number > 0, self.noise_scale / np.where(number > 0, number, 1.0), 0.0)
        return np.asarray(np.where(number > 0, self.step * (2.0 - self.step * (1.0 + parts)), 0.0))

    def expected(self, arrival: Floats) -> float:
        """E p(A), where mini-batches arrive with these probabilities [N], independently."""
        if self.mixed or len(arrival) > FEW:
            return float(self.of(arrival.sum()))
        return float(self.of(np.arange(len(arrival) + 1)) @ _distribution(arrival))

    def slopes(self, arrival: Floats) -> Floats:
        """[N] what it is worth that a client arrives for sure instead of not at all: E p(A' + 1) − E p(A').

        A' are the others. E p(A) is linear in each of these probabilities, so for one client alone this is exact.
        """
        if self.mixed:
            return np.full(len(arrival), 1.0 / self.usual)
        if len(arrival) > FEW:
            total = max(float(arrival.sum()), 0.5)
            return np.full(len(arrival), self.step**2 * self.noise_scale / total**2)
        gained = np.diff(self.of(np.arange(len(arrival) + 1)))
        others = np.where(np.eye(len(arrival), dtype=np.bool_), 0.0, arrival)  # row n: without client n
        return np.array([gained @ chances[:-1] for chances in _distribution(others)])


FEW = 64
"""Up to so many clients, the number that arrives is taken as the random variable that it is; beyond, as its mean."""


def _distribution(arrival: Floats) -> Floats:
    """[..., N+1] of how many arrive, of [..., N]: Poisson binomial."""
    chances = np.zeros((*arrival.shape[:-1], arrival.shape[-1] + 1))
    chances[..., 0] = 1.0
    for one in np.moveaxis(arrival, -1, 0)[..., None]:
        chances[..., 1:] += one * (chances[..., :-1] - chances[..., 1:])
        chances[..., :1] *= 1.0 - one
    return chances


@dataclass(frozen=True, eq=False)
class Prices:
    """What a second, a joule and the progress of a round are worth, where progress per cost is what counts."""

    per_s: NonNegative
    per_j: Annotated[Float[Floats, "clients"], Each(NonNegative)]
    per_progress: Annotated[
        float,
        Field(allow_inf_nan=True),
        BeforeValidator(lambda price: np.nan if price is None else price),
        PlainSerializer(lambda price: None if np.isnan(price) else price),
    ]
    """θ: what progress has cost so far, so that a round is worth more or less than that; NaN: nothing is known yet."""
    arrival: Annotated[Float[Floats, "clients"], Each(Share)]
    """How likely mini-batches arrive, about: `Progress.slopes` then say what one more is worth."""

    def cost(self, delay_s: float, energy_j: Floats) -> float:
        """Of a round."""
        return self.per_s * delay_s + float((self.per_j * energy_j).sum())


@dataclass(frozen=True)
class ProgressCost:
    """What progress has cost so far: the ratio that Dinkelbach's method follows."""

    cost: float = 0.0
    progress: float = 0.0

    def prices(self, rules: Rules, num_clients: int) -> Prices:
        """Seconds and joules in units of what the fair policy takes, so that both weigh the same unless told."""
        theta = self.cost / self.progress if self.progress > 0 else np.nan
        per_j = np.full(num_clients, rules.energy_price / (num_clients * rules.energy_budget_j))
        return Prices(1.0 / rules.delay_budget_s, per_j, theta, np.full(num_clients, FIRST_ARRIVAL))

    def after(self, cost: float, progress: float) -> "ProgressCost":
        """After a round."""
        return ProgressCost(MEMORY * self.cost + cost, MEMORY * self.progress + progress)


@dataclass(frozen=True, eq=False)
class RecentUse:
    """What rounds took of each resource, [2 + N]: seconds, rounds, joules; remembered as in `ProgressCost`."""

    used: Floats

    @classmethod
    def fresh(cls, num_clients: int) -> "RecentUse":
        return cls(np.zeros(2 + num_clients))

    def after(self, delay_s: float, energy_j: Floats) -> "RecentUse":
        return RecentUse(MEMORY * self.used + np.concatenate([[delay_s, 1.0], energy_j]))


def lasting_prices(
    rate: ProgressCost, pace: RecentUse, reserves: RemainingBudget, rules: Rules, round_index: int
) -> Prices:
    """Of a second, of each client's joules and of progress, when this round begins."""
    clients = len(reserves.battery_j)
    total = np.concatenate([[reserves.time_s, reserves.rounds], reserves.battery_j])
    left = np.concatenate([[reserves.time_left_s, reserves.rounds - round_index], reserves.battery_left_j])
    scarce = np.isfinite(total) & (left > 0)
    share = np.divide(left, total, out=np.ones_like(total), where=scarce)
    weight = np.concatenate([[1.0, 1.0], np.full(clients, 1 / clients)]) * np.exp(GRIP * (share[scarce].min() - share))
    fair = np.concatenate([[rules.delay_budget_s, 1.0], np.full(clients, rules.energy_budget_j)])
    used = pace.used / pace.used[1] if pace.used[1] > 0 else fair
    price = np.where(scarce, weight / total, 0.0)
    price = price * TYPICAL_COST / float((price * used).sum()) + FREE / fair
    theta = TYPICAL_COST * pace.used[1] / rate.progress if rate.progress > 0 else np.nan
    return replace(rate.prices(rules, clients), per_s=float(price[0]), per_j=price[2:], per_progress=theta)


# ---------------------------------------------------------------------- the problem
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

    @cached_property
    def reachable(self) -> NDArray[np.bool_]:
        """[N] clients with any gain at all; no other client can be made to take part."""
        return self.round.channel_gain > 0

    @cached_property
    def min_participants(self) -> int:
        """How many clients must be scheduled, as far as they can be reached and blocks suffice."""
        return min(self.rules.min_participants, int(self.reachable.sum()), self.round.radio.num_rbs)

    @cached_property
    def objective(self) -> "Objective":
        return Objective.of(self)


@dataclass(frozen=True, eq=False)
class Objective:
    """What a decision costs but for delay and energy, by cut and by client; and what these cost."""

    rules: Rules
    spread_of_cut: Floats
    """[M+1] discrepancy of the client side by cut: spreads of layers ≤ min(cut, previous cut).

    Layers above the previous cut come from the server, so every client gets the same values.
    """
    drift_cost_of_cut: Floats
    """[M+1] what the drift of the client sides costs: V times what it adds to the objective."""
    standing_debt: Floats | None
    """[M+1] what drift has cost since layers ≤ m were averaged, this round included, in rounds' worth of drift; None:
    averaging isn't decided."""
    present_drift: Floats
    """[M+1] in one round's."""
    progress: Progress
    """What arrivals are worth; B is 1 before anything is known."""
    progress_weight: float
    """What losing all of a round's progress costs: V, or its price."""
    progress_of_cut: Floats
    """[M+1] what a round brings with each cut, of what it would if the server had every layer.

    All layers count the same, as they do for drift. One that lies with clients makes a step a round, not A; with its
    longer steps (`asfl.train.steps`) it gets 1/√A₀ as far.
    """
    idle_cost_of_cut: Floats
    """[M+1] what it costs that layers on clients learn less in a round than those on the server."""
    server_weight_of_cut: Floats
    """[M+1] V/N Σ over layers > cut of ‖w̄_m‖², as printed."""
    loss_weight: Floats
    """[N] what it costs that a client's update is lost: V ‖Δ_n‖² / (N U); or the price of a mini-batch's arrival."""
    errors_pay: bool
    """Whether more packet errors make the objective smaller, as printed."""
    serving_cost: Floats
    """[N] drift of the participation queue, less that of sitting out, if the client is served."""
    sitting_out_cost: Floats
    """[N] linear drift of the participation queue if the client sits out: Z_n · floor (and Z_n less if served).

    Where the floor is relative, each client that is served raises it for all, by floor/N: the drift is then that of
    serving alone.
    """
    delay_drift: Penalty
    energy_drift: Penalty
    delay_penalty: Penalty
    """What the RB and power blocks pay for delay, by form."""
    energy_penalty: Penalty

    @classmethod
    def of(cls, problem: Problem) -> "Objective":
        round_, learning, rules, queues = problem.round, problem.learning, problem.rules, problem.queues
        prices, switches, beyond, owed = problem.prices, problem.switches, learning.beyond, queues.participation
        clients, layers, corrected = round_.num_clients, round_.profile.num_layers, rules.equations == "corrected"
        spread, present, debt = prefix_sums(learning.layer_spread), np.zeros(layers + 1), None
        if round_.previous_cut is not None:
            spread = spread[np.minimum(np.arange(layers + 1), round_.previous_cut)]
        if corrected:
            spread = spread / learning.update_scale
        if switches.sync and beyond is not None:
            present, debt = (prefix_sums(d) for d in (beyond.layer_drift, beyond.layer_debt + beyond.layer_drift + 1.0))
        progress = Progress(
            float(min(clients, round_.radio.num_rbs)), 1.0 if beyond is None else beyond.noise_scale, switches.mix
        )
        behind = 1.0 - progress.usual**-0.5 if switches.mix else 0.0
        of_cut = np.asarray(1.0 - behind * np.arange(layers + 1) / layers)
        floor = rules.participation_floor
        if prices is None:
            weight, whole, turn = rules.penalty_weight, 1.0, 1.0
            loss_weight = rules.penalty_weight * (learning.update_norm2 / (clients * learning.update_scale))
            delay = _queue_drift(queues.delay, rules.delay_budget_s, rules)
            energy = _queue_drift(queues.energy, rules.energy_budget_j, rules)
        else:
            weight, whole = prices.per_progress, progress.expected(prices.arrival)
            loss_weight = prices.per_progress * progress.slopes(prices.arrival)
            # What a round that a client is owed weighs: 1 beside V; by prices, `TURN_PRICE` of an arrival's worth.
            turn = TURN_PRICE * float(loss_weight.mean())
            delay, energy = Penalty(False, prices.per_s, 0.0, 1.0), Penalty(False, prices.per_j, 0.0, 1.0)
        norm2 = learning.layer_norm2
        found = cls(
            rules=rules,
            spread_of_cut=spread,
            drift_cost_of_cut=np.asarray(weight * (rules.drift_weight if corrected else 1.0) * spread),
            standing_debt=debt,
            present_drift=present,
            progress=progress,
            progress_weight=weight,
            progress_of_cut=of_cut,
            idle_cost_of_cut=np.asarray(weight * whole * (1.0 - of_cut)),
            server_weight_of_cut=rules.penalty_weight / clients * (norm2.sum() - prefix_sums(norm2)),
            loss_weight=loss_weight,
            errors_pay=not corrected and rules.error_weight == "(1-s)^2",
            serving_cost=turn * (floor * owed.mean() - owed if rules.relative_floor else owed * (floor - 1.0)),
            sitting_out_cost=np.zeros(clients) if rules.relative_floor else turn * owed * floor,
            delay_drift=delay,
            energy_drift=energy,
            delay_penalty=delay,
            energy_penalty=energy,
        )
        if rules.form == "drift":
            return found
        worst = found.error_cost(np.array([1]), np.full(clients, 0.0 if found.errors_pay else 1.0)).sum() + owed.sum()
        hard = VIOLATION_FIRST * (1 + float(worst))
        budgets = (rules.delay_budget_s, rules.energy_budget_j)
        delay, energy = (Penalty(False, hard / budget_scale(each, normalised=True), each, 1.0) for each in budgets)
        return replace(found, delay_penalty=delay, energy_penalty=energy)

    def plan_cost(self, cuts: NDArray[np.int64], synced: NDArray[np.int64]) -> Floats:
        """[C] what the drift of client sides costs under each plan: as published, V times the spread.

        Where averaging is decided, an average has to pay for itself. What drift has cost since a layer was last
        averaged, this round included, stands against it until it is: the debt of layers that stay apart. A layer costs
        `drift_weight` / M for each round's worth of drift in each round, as a share of a lost round.
        """
        idle, debt = self.idle_cost_of_cut[cuts], self.standing_debt
        if debt is None:
            return self.drift_cost_of_cut[cuts] + idle
        per_round = self.progress_weight * self.rules.drift_weight / (len(debt) - 1)
        return np.asarray(per_round * (self.present_drift[cuts] + debt[cuts] - debt[np.minimum(synced, cuts)]) + idle)

    def error_cost(self, cuts: NDArray[np.int64], packet_error_rate: Floats) -> Floats:
        """V times what each client's packet errors add to the objective, for cuts [C] and rates [..., N].

        [C, ..., N], or [1, ..., N] where the cut doesn't matter.

        corrected: s_n ‖Δ_n‖² / (N U), the share of updates that is lost. printed: e(s_n) ‖w̄^s‖² / N with e(s) = (1−s)²
        as in (30a), which *rewards* errors; the proof's own term has the mean s.
        """
        rate = packet_error_rate
        if self.rules.equations == "corrected":
            return np.asarray((self.loss_weight * rate)[None])
        weighted = {"(1-s)^2": (1 - rate) * (1 - rate), "s^2": rate * rate, "s": rate}[self.rules.error_weight]
        return np.asarray(np.multiply.outer(self.server_weight_of_cut[cuts], weighted))


def _queue_drift(backlog: float | Floats, budget: float, rules: Rules) -> Penalty:
    keep, add = queue_weights(rules.queue_rule, rules.queue_memory)
    gain = add / budget_scale(budget, normalised=rules.equations == "corrected")
    return Penalty(True, gain, keep * backlog - gain * budget, 0.5 * backlog * backlog)


def next_queues(problem: Problem, delay_s: float, energy_j: Floats, scheduled: NDArray[np.bool_]) -> Queues:
    """Backlogs after a round that took this; g_0 and g_n say how far it was over budget.

    `printed` (32): Q ← max(μQ + (1−μ)g, 0), which forgets, so that a bounded queue only bounds the *weighted recent*
    excess. `standard`: Q ← max(Q + g, 0), whose mean rate stability implies the long-run budget. Participation always
    follows the standard rule, since every missed round counts: Z ← max(Z + floor − served, 0).
    """
    queues, rules, normalised = problem.queues, problem.rules, problem.rules.equations == "corrected"
    keep, add = queue_weights(rules.queue_rule, rules.queue_memory)
    delay_excess = (delay_s - rules.delay_budget_s) / budget_scale(rules.delay_budget_s, normalised=normalised)
    energy_excess = (energy_j - rules.energy_budget_j) / budget_scale(rules.energy_budget_j, normalised=normalised)
    floor = rules.participation_floor * (float(scheduled.mean()) if rules.relative_floor else 1.0)
    return Queues(
        delay=max(keep * queues.delay + add * delay_excess, 0.0),
        energy=np.maximum(keep * queues.energy + add * energy_excess, 0.0),
        participation=np.maximum(queues.participation + floor - scheduled, 0.0),
    )


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
        costs = problem.objective
        over = float(costs.delay_penalty.value(cost.delay_s)) + costs.energy_penalty.value(cost.energy_j).sum()
        errors = costs.error_cost(cut, cost.packet_error_rate).sum()
        owed = np.where(self.decision.scheduled, costs.serving_cost, costs.sitting_out_cost).sum()
        return float(over + float(costs.drift_cost_of_cut[cut[0]]) + errors + owed)

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
