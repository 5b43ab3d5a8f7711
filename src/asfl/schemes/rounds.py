"""The two halves of a round that need no training: deciding it, and accounting for it afterwards.

Rounds that train and rounds that only play the radio share them.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.account import Accountant, Charge, ModelledAccountant, draw_arrivals
from asfl.costs.budgets import Budgets, resolve_budgets
from asfl.costs.decision import MOST_BATCHES, Decision, check_decision
from asfl.costs.holdings import Holdings
from asfl.costs.modelled import ASFL, RoundCost, in_time
from asfl.costs.reserves import Reserves
from asfl.costs.round import Round
from asfl.costs.world import World
from asfl.optimize import Learning, Problem, Queues, Rules, next_queues
from asfl.optimize.assign import assigned
from asfl.optimize.prices import Pace, Prices, Rate, lasting_prices
from asfl.optimize.rules import PUBLISHED, Switches
from asfl.schemes.base import Scheme, asfl_decision, borrows, decided_by, switches_of

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RadioState:
    """What the radio side remembers between two rounds."""

    queues: Queues
    previous_cut: int | None = None
    """None before the first round, and with one cut per client."""
    reference_cut: int | None = None
    """The same of ASFL, in schemes that borrow from it."""
    holdings: Holdings | None = None
    """In schemes that bring clients up to date when they take part."""
    rate: Rate = field(default_factory=Rate)
    """What progress has cost so far, in schemes that decide by it."""
    reserves: Reserves | None = None
    """What is left of total budgets; None: there are none."""
    pace: Pace | None = None
    """How fast they are used, where there are any."""

    @classmethod
    def fresh(cls, num_clients: int, reserves: Reserves | None = None) -> "RadioState":
        pace = None if reserves is None else Pace.fresh(num_clients)
        return cls(Queues.empty(num_clients), reserves=reserves, pace=pace)

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """What has to survive besides queues and cut; `restored` takes it back."""
        arrays = {"rate": np.array([self.rate.cost, self.rate.progress])}
        if self.holdings is not None:
            of = self.holdings
            arrays |= {"stale_bits": of.stale_bits, "apart": of.diverged.astype(float), "missed": of.missed}
        if self.reserves is not None and self.pace is not None:
            arrays |= {**self.reserves.arrays(), "pace": self.pace.used}
        if self.reference_cut is not None:
            arrays["reference_cut"] = np.array(float(self.reference_cut))
        return arrays

    def restored(
        self, queues: Queues, previous_cut: int | None, arrays: dict[str, NDArray[np.float64]]
    ) -> "RadioState":
        """The state that gave these arrays; this one is of the same run, at any round."""
        holdings = None
        if "apart" in arrays:  # earlier checkpoints don't count averages that were missed
            missed = arrays.get("missed", np.zeros((1, 1)))
            holdings = Holdings(arrays["stale_bits"], arrays["apart"] > 0, missed)
        reserves = None if self.reserves is None else self.reserves.restored(arrays)
        pace = None if reserves is None else Pace(arrays["pace"])
        reference_cut = int(arrays["reference_cut"]) if "reference_cut" in arrays else None
        return RadioState(queues, previous_cut, reference_cut, holdings, Rate(*arrays["rate"].tolist()), reserves, pace)


@dataclass(frozen=True, eq=False)
class DecidedRound:
    """A round that is about to be trained."""

    problem: Problem
    scheme: Scheme
    round: Round
    """As the scheme meets it: its stages may take longer than ASFL's before an outage ends them."""
    decision: Decision
    reference: Decision | None
    """ASFL's decision, in schemes that borrow from it; it then answers for the budgets."""
    reference_round: Round
    """As ASFL would meet it."""
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
    radio: RadioState,
    seed: int,
    budgets: Budgets | None = None,
    recorded: Decision | None = None,
    reference_learning: Learning | None = None,
) -> DecidedRound:
    """Step 2 of the round: what the scheme decides, checked, and whose packet will arrive.

    `budgets` say when stages end by an outage, None: never. For schemes that borrow from ASFL, `recorded` is what it
    decided in this round of this world; without that it decides here, with queues and a previous cut of its own, by
    `reference_learning` (None: by `learning`).
    """
    outage_s, own_outage_s = (np.inf, np.inf) if budgets is None else (budgets.outage_s, budgets.own_outage_s)
    switches = switches_of(scheme)
    if scheme.exchange.on_demand:
        fresh = Holdings.fresh(round_.num_clients, round_.profile.num_layers)
        round_ = replace(round_, holdings=radio.holdings or fresh)
    if radio.reserves is not None:
        round_ = radio.reserves.reachable(round_)
        recorded = None if recorded is None else radio.reserves.without_empty(recorded)
    problem = Problem(
        replace(round_, outage_s=outage_s, fitted_link=True, reports=scheme.exchange.reports),
        learning,
        radio.queues,
        rules,
        switches=switches,
        prices=_prices(radio, rules, round_) if switches.rate else None,
        seed=seed,
    )
    reference_round = problem.round
    if borrows(scheme):
        reference_round = replace(problem.round, previous_cut=radio.reference_cut, holdings=None, reports=True)
        asfl = replace(problem, round=reference_round, learning=reference_learning or learning)
        problem = replace(problem, reference=recorded or asfl_decision(asfl))
    decided = decided_by(scheme, problem, seed)
    decision = _as_allocated(decided.decision, round_)
    if radio.reserves is not None:
        decision = radio.reserves.without_empty(decision)
    reference = None if decided.reference is None else _as_allocated(decided.reference, round_)
    _check(decision, problem, scheme)
    if not decision.scheduled.any() and round_.previous_cut is not None and np.ndim(decision.cut) == 0:
        decision = replace(decision, cut=round_.previous_cut)  # without anybody, layers stay where they are
    if _assigns(problem, scheme):
        decision = assigned(problem.round, decision)
        reference = None if reference is None else assigned(problem.round, reference)
    round_ = replace(round_, outage_s=own_outage_s, blocks=decision.blocks)
    received = draw_arrivals(round_, decision, seed)
    arrived = received & in_time(round_, decision, scheme.exchange)
    if radio.reserves is not None and round_.allocation is None:  # what is measured is known only afterwards
        cost = ModelledAccountant(rules.charge).charge(round_, decision, scheme.exchange, received)
        arrived &= radio.reserves.outlast(cost)
    return DecidedRound(problem, scheme, round_, decision, reference, reference_round, received, arrived)


def account_round(
    decided: DecidedRound, accountant: Accountant, modelled: ModelledAccountant, radio: RadioState, seed: int
) -> AccountedRound:
    """Step 6 of the round: what it is charged, and the queues after it.

    Queues follow the decision that answers for the budgets. A borrowed one was never carried out, so it is charged by
    the equations.
    """
    round_, decision, arrived = decided.round, decided.decision, decided.arrived
    charge = own = accountant.charge(round_, decision, decided.scheme.exchange, decided.received)
    # After a round with cuts of their own, everything that clients hold is averaged: the deepest cut stands for all.
    common = np.ndim(decision.cut) == 0 or decided.scheme.exchange.on_demand
    previous_cut = _cut_after(decision, round_.previous_cut) if common else round_.previous_cut
    reference_cut = None
    reserves, pace = radio.reserves, radio.pace
    if reserves is not None and pace is not None:
        charge = own = reserves.cut_off(own) if isinstance(own, RoundCost) else own
        reserves, pace = reserves.after(own), pace.after(own)
    if decided.reference is not None:
        decision = decided.reference
        reference_cut = _cut_after(decision, radio.reference_cut)
        round_ = replace(decided.reference_round, fitted_link=False, blocks=decision.blocks)
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
        participation_floor=decided.problem.floor_of(decision.scheduled),
    )
    holdings, rate = _holdings_after(decided), _rate_after(decided, radio.rate, own)
    state = RadioState(queues, previous_cut, reference_cut, holdings, rate, reserves, pace)
    return AccountedRound(own, decision, arrived, state)


def _cut_after(decision: Decision, previous_cut: int | None) -> int | None:
    """Where layers lie after a round; without any client they stay where they are."""
    return int(np.max(decision.cut)) if decision.scheduled.any() else previous_cut


def _prices(radio: RadioState, rules: Rules, round_: Round) -> Prices:
    """Fixed ones; where there are total budgets, such that these last."""
    if radio.reserves is None or radio.pace is None:
        return radio.rate.prices(rules, round_.num_clients)
    return lasting_prices(radio.rate, radio.pace, radio.reserves, rules, round_.index)


def _holdings_after(decided: DecidedRound) -> Holdings | None:
    holdings, decision = decided.round.holdings, decided.decision
    if holdings is None:
        return None
    if not decision.scheduled.any():
        return holdings
    updated = decision.scheduled & in_time(decided.round, decision, decided.scheme.exchange)
    return holdings.after(decision, updated, trained=bool(decided.arrived.any()))


def _rate_after(decided: DecidedRound, rate: Rate, charge: Charge) -> Rate:
    problem, beyond = decided.problem, decided.problem.learning.beyond
    if problem.prices is None or beyond is None:
        return rate
    bits = np.broadcast_to(decided.decision.bits, decided.arrived.shape)
    worth = float(beyond.worth(bits[decided.arrived]).sum())
    drift, deepest = 0.0, int(np.max(decided.decision.cut))
    if problem.switches.sync:  # else nothing that is decided here makes it smaller
        held = beyond.layer_drift[:deepest]
        drift = problem.rules.drift_weight * float(held.sum()) / len(beyond.layer_drift)
    progress = max(float(problem.progress_of_cut[deepest] * problem.progress.of(worth)) - drift, 0.0)
    return rate.after(problem.prices.cost(float(charge.delay_s), charge.energy_j), progress)


def budgets_of(world: World, scheme: Scheme) -> Budgets:
    """The budgets of a scheme in a world; one that can't move its cut has those of its own cut."""
    return resolve_budgets(world, scheme.exchange, getattr(scheme, "cuts", None))


def rules_of(config: Config, budgets: Budgets, switches: Switches = PUBLISHED) -> Rules:
    """The decision rules of a configuration, with every "auto" turned into a number."""
    clients, num_rbs, batteries = config.scenario.clients, config.radio.num_rbs, config.budget.battery_j != "off"
    return Rules.of(config.decision, clients, num_rbs, budgets, switches, batteries=batteries)


def _as_allocated(decision: Decision, round_: Round) -> Decision:
    """With the blocks and powers that the round gives, if it gives them: of the decision the cut is left."""
    if round_.allocation is None:
        return decision
    count, power = round_.allocation
    return replace(decision, rb_count=count, tx_power_w=power)


def _assigns(problem: Problem, scheme: Scheme) -> bool:
    """Whether somebody has to say whose each block is; clients in turn have their best ones."""
    return problem.round.block_gain is not None and not scheme.exchange.in_sequence


def _check(decision: Decision, problem: Problem, scheme: Scheme) -> None:
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
        raise AsflError("decision.batch: what is mixed needs as many samples of everybody")
