"""Recorded rounds again, as their scheme met them: links, decision and arrivals as they were; and their timelines.

A round keeps the links that it had: where these follow the clock, those of the recorded time. Stages end by an outage
when they do in the world with these charges.
"""

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.modelled import ExchangeRules, in_time, timeline_of
from asfl.costs.round import Decision, Holdings, Round
from asfl.costs.timeline import Timeline
from asfl.costs.world import Budgets, World, draw_arrivals
from asfl.results.curves import Run
from asfl.runs.records import RoundRecord
from asfl.schemes import Scheme, scheme_named
from asfl.schemes.base import budgets_of


class Met(NamedTuple):
    """A recorded round as the scheme met it, what it decided, and what is charged for."""

    record: RoundRecord
    round: Round
    decision: Decision
    arrived: NDArray[np.bool_] | None
    """None: expected costs are charged."""
    exchange: ExchangeRules

    def timeline(self, *, barriers: bool = False) -> Timeline:
        return timeline_of(self.round, self.decision, self.arrived, self.exchange, barriers=barriers)


def rounds_met(run: Run, config: Config, budgets: Budgets | None = None) -> Iterator[Met]:
    """The rounds of a run in the world of this configuration, with its budgets unless they are given."""
    world, scheme = World.of(config), scheme_named(run.scheme)
    budgets, expected = budgets or budgets_of(world, scheme), config.decision.charge == "expected"
    previous_cut, holdings, time_s = None, None, 0.0
    for record in run.records:
        round_ = world.begin_round(record.round - 1, previous_cut, time_s)
        round_, decision = _met(round_, record, scheme, budgets, holdings)
        finishes = in_time(round_, decision, scheme.exchange)
        arrived = np.array(record.arrived, dtype=np.bool_)
        # A late client lost its packet either way; whether the channel lost it, too, says who is served in stage 3.
        received = np.where(finishes, arrived, arrived | draw_arrivals(round_, decision, config.scenario.seed))
        yield Met(record, round_, decision, None if expected else received, scheme.exchange)
        time_s = record.total_delay_s
        if decision.scheduled.any():
            if round_.holdings is not None:
                updated = decision.scheduled & finishes
                holdings = round_.holdings.after(decision, updated, trained=bool(arrived.any()))
            if np.ndim(decision.cut) == 0 or scheme.exchange.on_demand:
                previous_cut = int(np.max(decision.cut))


def timelines(run: Run, rounds: Container[int] | None = None) -> Iterator[tuple[Met, Timeline]]:
    """Of a run's recorded rounds, or some: of those that take as long by the equations as is recorded."""
    if run.config is None or run.is_ceiling or run.config.field.costs == "measured":
        return
    if any(len(record.rb_count) != run.config.scenario.clients for record in run.records):
        return
    for met in rounds_met(run, run.config, run.budgets):
        if rounds is None or met.record.round in rounds:
            timeline = met.timeline()
            if np.isclose(timeline.delay_s, met.record.delay_s) and 0 < timeline.delay_s < np.inf:
                yield met, timeline


def _met(
    round_: Round, record: RoundRecord, scheme: Scheme, budgets: Budgets, holdings: Holdings | None
) -> tuple[Round, Decision]:
    """The round as the scheme met it, and what it decided."""
    owner, clients = record.rb_owner, np.arange(round_.num_clients)
    decision = Decision(
        cut=1 if record.cut is None else np.array(record.cut) if isinstance(record.cut, list) else record.cut,
        rb_count=np.array(record.rb_count),
        tx_power_w=np.array(record.tx_power_w),
        bits=BITS_PER_VALUE if record.bits is None else np.array(record.bits),
        synced=record.synced or 0,
        blocks=None if owner is None else clients[:, None] == np.array([-1 if one is None else one for one in owner]),
        batch=None if record.batch is None else np.array(record.batch),
    )
    if scheme.exchange.on_demand:
        holdings = holdings or Holdings.fresh(round_.num_clients, round_.profile.num_layers)
    return replace(round_, outage_s=budgets.own_outage_s, holdings=holdings, blocks=decision.blocks), decision
