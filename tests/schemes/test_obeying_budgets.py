"""Total budgets bind every scheme alike: empty clients sit out, and it ends when time or batteries do."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from asfl.config import load_config
from asfl.costs.modelled import ASFL, ExchangeRules
from asfl.costs.round import Decision
from asfl.costs.world import RemainingBudget, World
from asfl.optimize import Problem
from asfl.runs.play import play, radio_only
from asfl.runs.records import RoundRecord
from asfl.runs.round import play_round
from asfl.runs.state import State
from asfl.schemes import SCHEMES, Scheme, scheme_named
from asfl.schemes.base import budgets_of

ROUNDS = 4
RADIO = [name for name in SCHEMES if name != "central"]


@dataclass(frozen=True)
class Stubborn:
    """Serves the first clients at full power, whatever their batteries say."""

    name: str = "stubborn"
    exchange: ExchangeRules = ASFL

    def decide(self, problem: Problem, seed: int) -> Decision:
        count = np.where(np.arange(problem.round.num_clients) < problem.round.radio.num_rbs, 1.0, 0.0)
        return Decision(3, count, np.full(len(count), problem.round.radio.max_tx_power_w))


def played(scheme: Scheme, *overrides: str, rounds: int = ROUNDS) -> list[RoundRecord]:
    world = World.of(load_config("demo", [f"training.rounds={rounds}", *overrides]).config)
    return list(play(world, scheme, rounds, budgets_of(world, scheme)))


@pytest.mark.parametrize("name", [*RADIO, "stubborn"])
def test_nobody_is_served_from_an_empty_battery_and_the_time_is_kept(name: str) -> None:
    scheme = Stubborn() if name == "stubborn" else scheme_named(name)
    free = played(scheme)
    energy = np.sum([one.energy_j for one in free], axis=0)
    total_s = 0.7 * sum(one.delay_s for one in free)
    batteries = np.where(np.arange(6) % 2, 0.3 * energy + 1e-6, 1e6)  # every other client has little
    given = ["budget.battery_j=" + str(batteries.tolist()), f"budget.total_delay_s={total_s}"]
    rounds = played(scheme, *given, rounds=3 * ROUNDS)
    used, left = np.zeros(6), batteries
    for one in rounds:
        assert one.battery_left_j is not None
        assert not ((np.array(one.rb_count) > 0) & (left <= 0)).any()
        used, before, left = used + one.energy_j, left, np.array(one.battery_left_j)
        gave_out = (before > 0) & (left == 0)
        assert not (np.array(one.arrived) & gave_out & (one.energy_j < before * (1 - 1e-9))).any()
    assert (used <= batteries * (1 + 1e-9)).all()
    assert sum(one.delay_s for one in rounds) <= total_s * (1 + 1e-9)
    last = rounds[-1]
    assert last.uses_up_the_budget or len(rounds) == 3 * ROUNDS
    if last.time_left_s == 0:  # the round in which the time runs out doesn't count
        assert not any(last.arrived)


def test_it_ends_when_all_batteries_are_empty() -> None:
    rounds = played(Stubborn(), "budget.battery_j=0.5", "scenario.clients=4", "radio.num_rbs=4", rounds=100)
    assert len(rounds) < 100
    assert rounds[-1].battery_left_j == [0.0] * 4
    assert rounds[-1].uses_up_the_budget
    np.testing.assert_allclose(np.sum([one.energy_j for one in rounds], axis=0), 0.5)


@pytest.mark.parametrize("name", ["asfl", "fedavg"])
def test_budgets_that_nobody_reaches_change_nothing_without_rate(name: str) -> None:
    scheme = scheme_named(name)
    rounds = played(scheme, "budget.battery_j=1 kJ", "budget.total_delay_s=1 h")
    for one, other in zip(rounds, played(scheme), strict=True):
        assert one.delay_s == other.delay_s
        np.testing.assert_array_equal(one.energy_j, other.energy_j)


def test_what_asfl_recorded_is_taken_without_empty_clients() -> None:
    """A scheme that borrows from ASFL may have other clients empty than ASFL had."""
    config = load_config("demo", ["budget.battery_j=1"]).config
    world, scheme = World.of(config), scheme_named("fedavg")
    budgets, full = budgets_of(world, scheme), RemainingBudget.of(config)
    assert full is not None
    some_empty = replace(full, battery_left_j=np.array([0.0, 1, 0, 1, 1, 1]))
    recorded = Decision(2, np.ones(6), np.ones(6))
    run = replace(radio_only(world, scheme, budgets), recorded=[recorded])
    state, record = play_round(run, replace(State.fresh(world, scheme), reserves=some_empty))
    assert record.rb_count == [0, 1, 0, 1, 1, 1]
    assert state.queues.participation.argsort(stable=True)[-2:].tolist() == [0, 2]  # ASFL's decision, which answers
