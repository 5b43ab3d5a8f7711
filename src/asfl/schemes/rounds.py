"""The two halves of a round that need no training: deciding it, and accounting for it afterwards.

Rounds that train and rounds that only play the radio share them.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.account import Accountant, Charge, ModelledAccountant, draw_arrivals
from asfl.costs.budgets import Budgets, resolve_budgets
from asfl.costs.decision import Decision, check_decision
from asfl.costs.modelled import ASFL, in_time
from asfl.costs.round import Round
from asfl.costs.world import World
from asfl.optimize import Learning, Problem, Queues, Rules, next_queues
from asfl.schemes.base import Scheme, decided_by

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RadioState:
    """What the radio side remembers between two rounds."""

    queues: Queues
    previous_cut: int | None = None
    """Of the decision that answers for the budgets; None before the first round, and with one cut per client."""

    @classmethod
    def fresh(cls, num_clients: int) -> "RadioState":
        return cls(Queues.empty(num_clients))


@dataclass(frozen=True, eq=False)
class DecidedRound:
    """A round that is about to be trained."""

    problem: Problem
    scheme: Scheme
    round: Round
    """As the scheme meets it: its stages may take longer than ASFL's before an outage ends them."""
    decision: Decision
    reference: Decision | None
    """ASFL's decision, in schemes that borrow its blocks and powers; it then answers for the budgets."""
    received: Bools
    """[N] whose packet survives the channel; what the round is charged."""
    arrived: Bools
    """[N] who also finishes before its stage ends by an outage, and so is learnt from."""


@dataclass(frozen=True, eq=False)
class AccountedRound:
    """A round that is over."""

    charge: Charge
    answering: Decision
    """The decision that answers for the budgets."""
    answering_arrived: Bools
    state: RadioState
    """After the round."""


def decide_round(
    round_: Round,
    scheme: Scheme,
    rules: Rules,
    learning: Learning,
    queues: Queues,
    seed: int,
    budgets: Budgets | None = None,
    recorded: Decision | None = None,
) -> DecidedRound:
    """Step 2 of the round: what the scheme decides, checked, and whose packet will arrive.

    `budgets` say when stages end by an outage, None: never. `recorded` is what ASFL decided in this round of this
    world, for schemes that borrow from it.
    """
    outage_s, own_outage_s = (np.inf, np.inf) if budgets is None else (budgets.outage_s, budgets.own_outage_s)
    problem = Problem(replace(round_, outage_s=outage_s), learning, queues, rules, recorded)
    decided = decided_by(scheme, problem, seed)
    decision = _as_allocated(decided.decision, round_)
    reference = None if decided.reference is None else _as_allocated(decided.reference, round_)
    _check(decision, problem, scheme)
    if not decision.scheduled.any() and round_.previous_cut is not None and np.ndim(decision.cut) == 0:
        decision = replace(decision, cut=round_.previous_cut)  # without anybody, layers stay where they are
    round_ = replace(round_, outage_s=own_outage_s)
    received = draw_arrivals(round_, decision, seed)
    arrived = received & in_time(round_, decision, scheme.procedure)
    return DecidedRound(problem, scheme, round_, decision, reference, received, arrived)


def account_round(
    decided: DecidedRound, accountant: Accountant, modelled: ModelledAccountant, seed: int
) -> AccountedRound:
    """Step 6 of the round: what it is charged, and the queues after it.

    Queues follow the decision that answers for the budgets. A borrowed one was never carried out, so it is charged by
    the equations.
    """
    round_, decision, arrived = decided.round, decided.decision, decided.arrived
    charge = own = accountant.charge(round_, decision, decided.scheme.procedure, decided.received)
    if decided.reference is not None:
        round_, decision = decided.problem.round, decided.reference
        received = draw_arrivals(round_, decision, seed)
        arrived = received & in_time(round_, decision, ASFL)
        charge = modelled.charge(round_, decision, ASFL, received)
    rules = decided.problem.rules
    delay_excess, energy_excess = decided.problem.excess(float(charge.delay_s), charge.energy_j)
    queues = next_queues(
        decided.problem.queues,
        delay_excess,
        energy_excess,
        decision.scheduled,
        rule=rules.queue_rule,
        memory=rules.queue_memory,
        participation_floor=rules.participation_floor,
    )
    moved = np.ndim(decision.cut) == 0 and decision.scheduled.any()
    state = RadioState(queues, int(decision.cut) if moved else round_.previous_cut)
    return AccountedRound(own, decision, arrived, state)


def budgets_of(world: World, scheme: Scheme) -> Budgets:
    """The budgets of a scheme in a world; one that can't move its cut has those of its own cut."""
    return resolve_budgets(world, scheme.procedure, getattr(scheme, "cuts", None))


def rules_of(config: Config, budgets: Budgets) -> Rules:
    """The decision rules of a configuration, with every "auto" turned into a number."""
    rules = config.decision
    return Rules.of(
        rules,
        config.scenario.clients,
        config.radio.num_rbs,
        delay_budget_s=budgets.delay_s,
        energy_budget_j=budgets.energy_j,
        min_participants=None if rules.min_participants == "auto" else rules.min_participants,
        participation_floor=None if rules.participation_floor == "auto" else rules.participation_floor,
    )


def _as_allocated(decision: Decision, round_: Round) -> Decision:
    """With the blocks and powers that the round gives, if it gives them: of the decision the cut is left."""
    if round_.allocation is None:
        return decision
    count, power = round_.allocation
    return replace(decision, rb_count=count, tx_power_w=power)


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
