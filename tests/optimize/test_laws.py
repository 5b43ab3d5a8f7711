"""The laws of the system, end to end: whatever the world and the scheme, every round obeys them.

Laws of one part are tested with it: split = unsplit at every cut (models/test_cut.py); error rate falls with
power and rises with blocks, rate rises with both, closed form = Monte Carlo (test_link.py); costs = plain
oracle (test_costs.py); blocks = brute force, BCD never rises (optimize/); queue ≤ Lemma 4 (test_theory.py).
"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from asfl.config import load_config
from asfl.costs.modelled import round_cost
from asfl.costs.round import check_decision
from asfl.costs.world import World, draw_arrivals, resolve_budgets
from asfl.optimize import Problem, Queues
from asfl.runs.state import SyntheticLearning
from asfl.schemes import SCHEMES
from asfl.schemes.base import asfl_decision, decided_by, rules_of


@pytest.mark.parametrize("name", SCHEMES)
@given(
    clients=st.integers(1, 12),
    num_rbs=st.integers(1, 10),
    seed=st.integers(0, 10**6),
    round_index=st.integers(0, 500),
    previous_cut=st.none() | st.integers(1, 6),
    reading=st.sampled_from(["corrected", "printed"]),
    budgets=st.tuples(st.sampled_from([0.1, 1.0, 10.0]), st.sampled_from([0.01, 0.1, 1.0])),
)
@settings(max_examples=8)
def test_every_decision_is_valid_and_costs_something(
    name: str,
    clients: int,
    num_rbs: int,
    seed: int,
    round_index: int,
    previous_cut: int | None,
    reading: str,
    budgets: tuple[float, float],
) -> None:
    """Σ rb_count ≤ K, 0 ≤ p ≤ P^max, 1 ≤ cut ≤ M−1; energy ≥ 0; whoever has no block neither arrives nor pays."""
    options: dict[str, float] = {"scenario.clients": clients, "radio.num_rbs": num_rbs, "scenario.seed": seed}
    options |= zip(("decision.delay_budget_s", "decision.energy_budget_j"), budgets, strict=True)
    overrides = [f"{key}={value}" for key, value in options.items()] + [f"decision.equations={reading}"]
    world = World.of(load_config("small-cifar10", overrides).config)
    round_ = world.begin_round(round_index, previous_cut)
    learning = SyntheticLearning.fresh(world.profile, clients).learning()
    problem = Problem(round_, learning, Queues.empty(clients), rules_of(world.config, resolve_budgets(world)))
    decided = decided_by(SCHEMES[name], problem, seed)
    for decision, in_sequence in (
        (decided.decision, SCHEMES[name].exchange.in_sequence),
        (decided.reference or asfl_decision(problem), False),
    ):
        check_decision(
            decision, world.profile.num_layers, num_rbs, world.config.radio.max_tx_power_w, in_sequence=in_sequence
        )
        if name != "central":
            assert problem.min_participants <= decision.scheduled.sum() <= min(clients, num_rbs)
    arrived = draw_arrivals(round_, decided.decision, seed)
    cost = round_cost(round_, decided.decision, arrived, SCHEMES[name].exchange)
    idle = ~decided.decision.scheduled
    assert not arrived[idle].any()
    assert (cost.energy_j >= 0).all()
    assert (cost.energy_j[idle] == 0).all()
    assert cost.delay_s < np.inf
    assert cost.delay_s > 0 or name == "central" or (name == "ampere" and not arrived.any())  # the server alone, idle
    again = decided_by(SCHEMES[name], problem, seed)
    assert (again.decision.tx_power_w == decided.decision.tx_power_w).all()
    assert np.all(again.decision.cut == decided.decision.cut)
