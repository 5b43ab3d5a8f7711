"""The solvers on a 5G NR link: the same objective, the same laws, by the smooth fit of the link."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from problems import plain_objective, random_problem

from asfl.costs.modelled import round_cost
from asfl.optimize import Problem, ooe_bcd
from asfl.optimize.plans import plan_terms
from asfl.optimize.power import power_for_energy


def nr_problem(seed: int, **rules: Any) -> Problem:
    problem = random_problem(seed, clients=4, num_rbs=5, **rules)
    radio = problem.round.radio.model_copy(update={"link": "nr"})
    return replace(problem, round=replace(problem.round, radio=radio, fitted_link=True))


@pytest.mark.parametrize("seed", range(8))
def test_descent_never_rises_and_means_what_it_says(seed: int) -> None:
    problem = nr_problem(seed)
    solution = ooe_bcd(problem)
    values = [value for _, value in solution.trace]
    assert all(after <= before + 1e-9 * max(1, abs(before)) for before, after in pairwise(values))
    assert solution.objective == pytest.approx(plain_objective(problem, solution.decision), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_affordable_power_spends_the_budget(seed: int) -> None:
    problem = nr_problem(seed, form="per_round_budgets")
    terms, count = plan_terms(problem), np.ones(4)
    power = power_for_energy(problem, terms.only(0), count, np.asarray(problem.rules.energy_budget_j))
    decision = ooe_bcd(problem, rb_count=count, tx_power_w=power).decision
    spent = round_cost(problem.round, replace(decision, cut=int(terms.cuts[0]), tx_power_w=power)).energy_j
    top = problem.round.radio.max_tx_power_w
    inside = (power > 0) & (power < top)
    assert (spent[power > 0] <= problem.rules.energy_budget_j * (1 + 1e-6)).all()
    assert spent[inside] == pytest.approx(problem.rules.energy_budget_j, rel=1e-3)
