"""From a configuration to the rules of its decisions; and what a scheme decides by them, checked and complete."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.round import MOST_BATCHES, Decision, Round, check_decision
from asfl.costs.world import Budgets, RemainingBudget, World, resolve_budgets
from asfl.optimize import Problem, Rules
from asfl.optimize.assign import assigned
from asfl.optimize.rules import PUBLISHED, Switches
from asfl.schemes.base import Decided, Scheme, decided_by


def budgets_of(world: World, scheme: Scheme) -> Budgets:
    """The budgets of a scheme in a world; one that can't move its cut has those of its own cut."""
    return resolve_budgets(world, scheme.exchange, getattr(scheme, "cuts", None))


def rules_of(config: Config, budgets: Budgets, switches: Switches = PUBLISHED) -> Rules:
    """The decision rules of a configuration, with every "auto" turned into a number."""
    clients, num_rbs, batteries = config.scenario.clients, config.radio.num_rbs, config.budget.battery_j != "off"
    return Rules.of(config.decision, clients, num_rbs, budgets, switches, batteries=batteries)


def decide(scheme: Scheme, problem: Problem, reserves: RemainingBudget | None = None) -> Decided:
    """What a scheme decides, checked, with the blocks of each client; without clients whose battery is empty."""
    found, round_ = decided_by(scheme, problem, problem.seed), problem.round
    decision, reference = _as_allocated(found.decision, round_), found.reference
    if reserves is not None:
        decision = reserves.without_empty(decision)
    if reference is not None:
        reference = _as_allocated(reference, round_)
    check(decision, problem, scheme)
    if not decision.scheduled.any() and round_.previous_cut is not None and np.ndim(decision.cut) == 0:
        decision = replace(decision, cut=round_.previous_cut)  # without any client, layers stay where they are
    if round_.block_gain is not None and not scheme.exchange.in_sequence:  # clients in turn have their best blocks
        decision = assigned(round_, decision)
        reference = None if reference is None else assigned(round_, reference)
    return Decided(decision, reference)


def _as_allocated(decision: Decision, round_: Round) -> Decision:
    """With the blocks and powers that the round gives, if it gives them: of the decision the cut is left."""
    if round_.allocation is None:
        return decision
    count, power = round_.allocation
    return replace(decision, rb_count=count, tx_power_w=power)


def check(decision: Decision, problem: Problem, scheme: Scheme) -> None:
    """Refuse a decision that can't be carried out; schemes may come from anywhere."""
    round_ = problem.round
    try:
        for name in ("rb_count", "tx_power_w"):
            shape = np.shape(getattr(decision, name))
            if shape != (round_.num_clients,):
                raise AsflError(f"decision.{name} has shape {shape}, but there are {round_.num_clients} clients")
        if decision.batch is not None:
            _check_batch(decision.batch, round_, scheme)
        check_decision(
            decision,
            round_.profile.num_layers,
            round_.radio.num_rbs,
            round_.radio.max_tx_power_w,
            in_sequence=scheme.exchange.in_sequence,
        )
        if np.ndim(decision.cut) and scheme.exchange.keeps_client_sides:
            raise AsflError("decision.cut: a cut for each client needs rounds that average whole client models")
        served = np.broadcast_to(decision.cut, round_.num_clients)[decision.scheduled]
        if (served < round_.profile.min_cut).any() and not scheme.exchange.full_local_model:
            raise AsflError(f"it cuts at {served.min()}, but privacy.min_cut = {round_.profile.min_cut}")
    except AsflError as error:
        raise AsflError(f"scheme {scheme.name}, round {round_.index + 1}: {error}") from None


def _check_batch(batch: NDArray[np.int64], round_: Round, scheme: Scheme) -> None:
    most = int(MOST_BATCHES * round_.batch_size)
    if np.shape(batch) != (round_.num_clients,) or batch.max() > most:
        raise AsflError(f"decision.batch = {batch} must be a number of samples for each client, at most {most}")
    if scheme.exchange.aggregated_share > 0 or scheme.exchange.mixes:
        raise AsflError("decision.batch: what is mixed needs as many samples of every client")
