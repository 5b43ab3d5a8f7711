"""A round (§II of the paper): state in, state and record out.

Rounds that train and rounds that only play the radio are this function. They differ in their learner: networks that a
trainer changes in place (`asfl.runs.simulation`), or nothing but numbers that are made up (`asfl.runs.play`).
"""

from dataclasses import replace

import numpy as np

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ASFL, RoundCost, in_time
from asfl.costs.round import Decision, Round
from asfl.costs.world import ModelledAccountant, draw_arrivals
from asfl.optimize import Learning, Problem
from asfl.optimize.problem import lasting_prices
from asfl.runs.records import RoundRecord
from asfl.runs.state import Measured, Outcome, Run, State
from asfl.schemes.base import asfl_decision, borrows, decide, switches_of
from asfl.train.signals import RoundPlan, Trained


def play_round(run: Run, state: State) -> tuple[State, RoundRecord]:
    """The whole algorithm. Networks are changed in place; everything else that a round leaves behind is returned."""
    config, exchange, learner = run.config, run.scheme.exchange, run.learner
    index, seed = state.round_index, config.scenario.seed

    # 1. Channel: which clients can take part, and over which links.
    ready = learner.begin(index)
    links = run.world.begin_round(index, state.previous_cut, state.total_delay_s)
    if state.reserves is not None:
        links = state.reserves.reachable(links)

    # 2. Decide: cut, blocks, powers; then luck decides which packets arrive, and an outage which are late.
    problem = problem_of(run, state, links, learner.learning(state))
    decided = decide(run.scheme, problem, state.reserves)
    decision = decided.decision
    links = replace(links, holdings=state.holdings, outage_s=run.budgets.own_outage_s, blocks=decision.blocks)
    received = draw_arrivals(links, decision, seed)
    on_time = in_time(links, decision, exchange)
    arrived = received & on_time
    if state.reserves is not None and links.allocation is None:  # what is measured is known only afterwards
        arrived &= state.reserves.outlast(
            ModelledAccountant(run.rules.charge).charge(links, decision, exchange, received)
        )

    # 3. Re-split (stage 1): layers between the old and the new cut move.
    run.accountant.training_begins()
    cuts = np.broadcast_to(links.profile.num_layers if exchange.full_local_model else decision.cut, arrived.shape)
    bits = np.broadcast_to(decision.bits, arrived.shape)
    scheduled = decision.scheduled & ready
    plan = RoundPlan(index, cuts, scheduled, arrived & ready, decision.synced, bits, decision.batch)
    shift = learner.resplit(plan)

    # 4. Train (stages 2 and 3): activations and gradients cross the cut; models step and are averaged.
    trained = learner.train(plan)

    # 5. Account: delay and energy, and what the round leaves: queues, cut, holdings, prices, what was learnt.
    charge = run.accountant.charge(links, decision, exchange, received)
    if state.reserves is not None and isinstance(charge, RoundCost):
        charge = state.reserves.cut_off(charge)
    own = Outcome(decision, arrived, charge)
    answering = own if decided.reference is None else _of_reference(run, state, problem, decided.reference)
    after = state.learnt(problem, own, answering, trained, plan)
    after = after.charged(problem, own, answering, in_sync=decision.scheduled & on_time)
    if trained.lost is not None and trained.lost.any() and exchange.keeps_client_sides and after.previous_cut:
        # The next round re-splits from the cut that is; without the lost clients it may not have moved.
        after = replace(after, previous_cut=learner.cut or None)

    # 6. Record: what was decided, what it took, and what is measured of the networks now.
    own = own if trained.lost is None else replace(own, arrived=arrived & ~trained.lost)
    measured = learner.measure(after, decision)
    return after, record_of(run, after, problem, own, trained, shift, measured)


def problem_of(run: Run, state: State, links: Round, learning: Learning) -> Problem:
    """What a scheme decides by. For one that borrows from ASFL, with ASFL's decision of this round.

    That is the recorded one, unless the clock moves the links: its round was at another time. Else ASFL decides here,
    with a cut of its own, and with the drift that its client sides would have.
    """
    exchange, switches = run.scheme.exchange, switches_of(run.scheme)
    assumed = replace(learning, layer_spread=state.reference_drift.layer_spread * learning.update_scale)
    prices = None
    if switches.rate:
        prices = state.rate.prices(run.rules, links.num_clients)
        if state.reserves is not None and state.pace is not None:
            prices = lasting_prices(state.rate, state.pace, state.reserves, run.rules, links.index)
    round_ = replace(
        links, holdings=state.holdings, outage_s=run.budgets.outage_s, fitted_link=True, reports=exchange.reports
    )
    seed = run.config.scenario.seed
    known = learning if exchange.keeps_client_sides else assumed
    problem = Problem(round_, known, state.queues, run.rules, switches=switches, prices=prices, seed=seed)
    if not borrows(run.scheme):
        return problem
    if links.index < len(run.recorded) and not run.world.has_clock:
        recorded = run.recorded[links.index]
        return replace(problem, reference=state.reserves.without_empty(recorded) if state.reserves else recorded)
    return replace(
        problem, reference=asfl_decision(replace(problem, round=_as_asfl_meets(state, problem), learning=assumed))
    )


def _as_asfl_meets(state: State, problem: Problem) -> Round:
    """The round before ASFL has decided it."""
    return replace(problem.round, previous_cut=state.reference_cut, holdings=None, reports=True)


def _of_reference(run: Run, state: State, problem: Problem, reference: Decision) -> Outcome:
    """ASFL's decision was only borrowed and never carried out, so it is charged by the equations."""
    links = replace(_as_asfl_meets(state, problem), fitted_link=False, blocks=reference.blocks)
    received = draw_arrivals(links, reference, problem.seed)
    charge = ModelledAccountant(run.rules.charge).charge(links, reference, ASFL, received)
    return Outcome(reference, received & in_time(links, reference, ASFL), charge)


def record_of(
    run: Run, after: State, problem: Problem, outcome: Outcome, trained: Trained, shift: float, measured: Measured
) -> RoundRecord:
    """What the round leaves on the disk; `after` is the state it leaves."""
    decision, charge, learning = outcome.decision, outcome.charge, problem.learning
    exchange, beyond, clients = run.scheme.exchange, learning.beyond, len(outcome.arrived)
    spread = float(problem.objective.spread_of_cut[int(np.min(decision.cut))]) if exchange.keeps_client_sides else 0.0
    if problem.rules.equations == "corrected":  # there it is in updates already
        spread *= learning.update_scale
    lost = float((charge.packet_error_rate * learning.update_norm2).mean())
    losses = trained.loss[np.isfinite(trained.loss)] if exchange.central else trained.loss[outcome.arrived]
    bits = np.broadcast_to(decision.bits, clients)
    return RoundRecord(
        round=after.round_index,
        cut=None if exchange.full_local_model else np.asarray(decision.cut).tolist(),
        rb_count=decision.rb_count.tolist(),
        tx_power_w=decision.tx_power_w.tolist(),
        packet_error_rate=charge.packet_error_rate.tolist(),
        arrived=outcome.arrived.astype(int).tolist(),
        delay_s=float(charge.delay_s),
        resplit_delay_s=float(charge.resplit_delay_s),
        uplink_stage_delay_s=float(charge.uplink_stage_delay_s),
        server_stage_delay_s=float(charge.server_stage_delay_s),
        energy_j=charge.energy_j.tolist(),
        resplit_energy_j=charge.resplit_energy_j.tolist(),
        total_delay_s=after.total_delay_s,
        total_energy_j=after.total_energy_j,
        delay_queue=float(after.queues.delay),
        energy_queue=after.queues.energy.tolist(),
        participation_queue=after.queues.participation.tolist(),
        train_loss=float(losses.mean()) if losses.size and np.isfinite(losses).all() else None,
        update_norm2=[None if np.isnan(norm) else norm for norm in trained.update_norm2.tolist()],
        update_scale=after.signals.update_scale,
        spread=spread,
        discrepancy=(spread + lost) / learning.update_scale,
        resplit_shift=shift,
        rb_owner=None if exchange.in_sequence else decision.rb_owner,
        bits=bits.tolist() if problem.switches.any or bits.min() < BITS_PER_VALUE else None,
        noise_scale=None if beyond is None else beyond.noise_scale,
        synced=decision.synced if beyond is not None and exchange.keeps_client_sides else None,
        batch=None if decision.batch is None else decision.batch.tolist(),
        measured=run.accountant.facts(),
        **({} if after.reserves is None else after.reserves.record()),
        **vars(measured),
    )
