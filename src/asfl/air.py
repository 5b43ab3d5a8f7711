"""One round on the air: channel, decision, who arrives, what it costs, and the queues after it.

This is everything of a round but the learning, so rounds that train and rounds that only play the radio share it.
"""

from dataclasses import dataclass

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
from asfl.schemes import Scheme
from asfl.world import World

Bools = NDArray[np.bool_]


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
    cost: RoundCost
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
    decided = scheme.decide(problem, seed)
    _check(decided.decision, problem, scheme)
    # 3. Who arrives, and what it costs.
    decision, reference = decided.decision, decided.reference
    arrived, cost = _account(config, round_, decision, scheme.procedure)
    # 4. Queues follow the decision that answers for the budgets.
    reference_arrived, reference_cost = arrived, cost
    if reference is not decision or scheme.procedure.full_local_model:
        reference_arrived, reference_cost = _account(config, round_, reference, ASFL)
    delay_excess, energy_excess = problem.excess(float(reference_cost.delay_s), reference_cost.energy_j)
    queues = next_queues(
        state.queues,
        delay_excess,
        energy_excess,
        reference.scheduled,
        rule=rules.queue_rule,
        memory=rules.queue_memory,
        participation_floor=rules.participation_floor,
    )
    moved = np.ndim(reference.cut) == 0 and reference.scheduled.any()  # without anybody, layers stay where they are
    after = AirState(queues, int(reference.cut) if moved else state.previous_cut)
    return AiredRound(round_, problem, decision, reference, arrived, reference_arrived, cost, after)


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
    """[N] whose packet arrives. One uniform number per client and round, the same for every scheme."""
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
