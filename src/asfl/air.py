"""One round on the air: channel, decision, who arrives, what it costs, and the queues after it.

This is everything of a round but the learning, so rounds that train and rounds that only play the radio share it.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asfl.budgets import Budgets
from asfl.config import Config
from asfl.costs import ASFL, Procedure, RoundCost, round_cost
from asfl.decision import Decision, check_decision
from asfl.errors import AsflError
from asfl.optimize import Learning, Problem, Queues, Rules, default_participation, next_queues
from asfl.round import Round
from asfl.scenario import random_stream
from asfl.schemes import Decided, Scheme
from asfl.world import World

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Charge(Protocol):
    """What a round is charged: a `RoundCost`, or what was measured (`asfl.field.measured`)."""

    @property
    def delay_s(self) -> Floats | float: ...
    @property
    def resplit_delay_s(self) -> Floats | float: ...
    @property
    def uplink_stage_delay_s(self) -> Floats | float: ...
    @property
    def server_stage_delay_s(self) -> Floats | float: ...
    @property
    def energy_j(self) -> Floats: ...
    @property
    def resplit_energy_j(self) -> Floats: ...
    @property
    def packet_error_rate(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class AirState:
    """What the radio side remembers between two rounds."""

    queues: Queues
    previous_cut: int | None = None
    """Of the decision that answers for the budgets; None before the first round, and with one cut per client."""

    @classmethod
    def fresh(cls, num_clients: int) -> "AirState":
        return cls(Queues.empty(num_clients))


@dataclass(frozen=True, eq=False)
class AiredRound:
    """What happened."""

    round: Round
    problem: Problem
    decision: Decision
    reference: Decision
    """The decision that answers for the budgets: ASFL's, in schemes that borrow its blocks and powers."""
    arrived: Bools
    reference_arrived: Bools
    cost: Charge
    state: AirState
    """After the round."""


def air_round(
    world: World, scheme: Scheme, rules: Rules, learning: Learning, state: AirState, round_index: int
) -> AiredRound:
    """Steps 1, 2 and 6 of the round (SYSTEM: channel, decide, account)."""
    config, seed = world.config, world.config.scenario.seed
    # 1. Channel.
    round_ = world.begin_round(round_index, state.previous_cut)
    # 2. Decide.
    problem = Problem(round_, learning, state.queues, rules)
    decided = _as_allocated(scheme.decide(problem, seed), round_)
    _check(decided.decision, problem, scheme)
    # 3. Who arrives, and what it costs.
    decision, reference = decided.decision, decided.reference
    arrived, cost = _account(config, round_, decision, scheme.procedure)
    # 4. Queues follow the decision that answers for the budgets.
    reference_arrived, reference_cost = arrived, cost
    if _is_borrowed(decided, scheme):
        reference_arrived, reference_cost = _account(config, round_, reference, ASFL)
    queues = _queues_after(problem, reference, reference_cost)
    moved = np.ndim(reference.cut) == 0 and reference.scheduled.any()  # without anybody, layers stay where they are
    after = AirState(queues, int(reference.cut) if moved else state.previous_cut)
    return AiredRound(round_, problem, decision, reference, arrived, reference_arrived, cost, after)


def charged(aired: AiredRound, cost: Charge, scheme: Scheme) -> AiredRound:
    """The same round, charged what it really took. Where the queues follow another decision, they stay as they are."""
    if _is_borrowed(Decided(aired.decision, aired.reference), scheme):
        return replace(aired, cost=cost)
    queues = _queues_after(aired.problem, aired.reference, cost)
    return replace(aired, cost=cost, state=replace(aired.state, queues=queues))


def _is_borrowed(decided: Decided, scheme: Scheme) -> bool:
    """Whether the budgets are ASFL's to keep, and the scheme has only taken from its decision."""
    return decided.reference is not decided.decision or scheme.procedure.full_local_model


def _as_allocated(decided: Decided, round_: Round) -> Decided:
    """With the blocks and powers that the round gives, if it gives them: of the decision the cut is left."""
    if round_.allocation is None:
        return decided
    count, power = round_.allocation
    decision = replace(decided.decision, rb_count=count, tx_power_w=power)
    if decided.reference is decided.decision:
        return Decided(decision, decision)
    return Decided(decision, replace(decided.reference, rb_count=count, tx_power_w=power))


def _queues_after(problem: Problem, decision: Decision, cost: Charge) -> Queues:
    delay_excess, energy_excess = problem.excess(float(cost.delay_s), cost.energy_j)
    return next_queues(
        problem.queues,
        delay_excess,
        energy_excess,
        decision.scheduled,
        rule=problem.rules.queue_rule,
        memory=problem.rules.queue_memory,
        participation_floor=problem.rules.participation_floor,
    )


def rules_of(config: Config, budgets: Budgets) -> Rules:
    """The decision rules of a configuration, with every "auto" turned into a number."""
    rules = config.decision
    most, floor = default_participation(config.scenario.clients, config.radio.num_rbs, rules.rb_sharing)
    return Rules(
        delay_budget_s=budgets.delay_s,
        energy_budget_j=budgets.energy_j,
        min_participants=most if rules.min_participants == "auto" else rules.min_participants,
        participation_floor=floor if rules.participation_floor == "auto" else rules.participation_floor,
        reading=rules.equations,
        error_weight=rules.error_weight,
        form=rules.form,
        queue_rule=rules.queue_rule,
        queue_memory=rules.queue_memory,
        penalty_weight=rules.penalty_weight,
        rb_sharing=rules.rb_sharing,
        solver=rules.solver,
        tolerance=rules.tolerance,
        max_iterations=rules.max_iterations,
    )


def draw_arrivals(round_: Round, decision: Decision, seed: int) -> Bools:
    """[N] whose packet arrives. One uniform number per client and round, the same for every scheme.

    On a real network nothing is drawn: everybody is expected, and who doesn't arrive will be seen.
    """
    if round_.allocation is not None:
        return decision.scheduled
    luck = random_stream(seed, "arrivals", round_.index).random(round_.num_clients)
    lost = round_.packet_error_rate(decision.rb_count, decision.tx_power_w)
    return np.asarray(decision.scheduled & (luck >= lost))


def _check(decision: Decision, problem: Problem, scheme: Scheme) -> None:
    """Refuse a decision that can't be carried out; schemes may come from anywhere."""
    round_ = problem.round
    try:
        for name in ("rb_count", "tx_power_w"):
            shape = np.shape(getattr(decision, name))
            if shape != (round_.num_clients,):
                raise AsflError(f"decision.{name} has shape {shape}, but there are {round_.num_clients} clients")
        check_decision(
            decision,
            round_.profile.num_layers,
            round_.radio.num_rbs,
            round_.radio.max_tx_power_w,
            rb_sharing=problem.rules.rb_sharing,
            in_sequence=scheme.procedure.in_sequence,
        )
    except AsflError as error:
        raise AsflError(f"scheme {scheme.name}, round {round_.index + 1}: {error}") from None


def _account(config: Config, round_: Round, decision: Decision, procedure: Procedure) -> tuple[Bools, RoundCost]:
    """Whose packet arrives, and what the round is charged: what happened or, if so configured, its expectation."""
    arrived = draw_arrivals(round_, decision, config.scenario.seed)
    return arrived, round_cost(round_, decision, None if config.decision.charge == "expected" else arrived, procedure)
