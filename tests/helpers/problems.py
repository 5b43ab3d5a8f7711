"""Random decision problems, and the plain objective they are judged by."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config import Compute, DecisionRules, Radio
from asfl.costs.modelled import round_cost
from asfl.costs.round import CostEquations, Decision, Round
from asfl.models.profile import ModelProfile
from asfl.optimize import Learning, Problem, Queues, Rules

Floats = NDArray[np.float64]


def random_problem(seed: int, clients: int = 3, num_rbs: int = 4, layers: int = 4, **rules: Any) -> Problem:
    """A round with everything at a scale where it matters: budgets between a third and three times a fair round."""
    rng = np.random.default_rng(seed)
    reading = rules.get("equations", "corrected")
    profile = ModelProfile(*(rng.uniform(0.1, 1, layers) * scale for scale in (2e7, 5e5, 1e8, 2e8)))  # type: ignore[arg-type]
    path_gain = 1e-3 * rng.uniform(100, 500, clients) ** -4.0
    round_ = Round(
        profile=profile,
        radio=Radio(num_rbs=num_rbs),
        compute=Compute(),
        charged_samples=32,
        path_gain=path_gain,
        channel_gain=path_gain * rng.exponential(size=clients),
        cpu_hz=rng.uniform(0.3e9, 1.6e9, clients),
        gain_is_known=bool(rng.integers(2)),
        previous_cut=int(rng.integers(0, layers)) or None,
        equations=CostEquations.of(
            DecisionRules(equations=reading, resplit_energy=rules.get("resplit_energy", "sent"), overheads="free")
        ),
    )
    fair = Decision(1, np.full(clients, num_rbs / clients), np.full(clients, 0.5))
    cost = round_cost(round_, fair)
    learning = Learning(
        layer_spread=rng.exponential(0.2, layers),
        layer_norm2=rng.exponential(1.0, layers),
        update_norm2=rng.exponential(1.0, clients),
        update_scale=float(rng.uniform(0.5, 2)),
    )
    queues = Queues(float(rng.exponential(0.7)), rng.exponential(0.7, clients), rng.exponential(0.3, clients))
    defaults: dict[str, Any] = {
        "delay_budget_s": float(cost.delay_s) * rng.uniform(0.3, 3),
        "energy_budget_j": float(np.median(cost.energy_j)) * rng.uniform(0.3, 3),
        "min_participants": int(rng.integers(0, min(clients, num_rbs) + 1)),
        "participation_floor": float(rng.uniform(0, 0.5)),
        "penalty_weight": float(10 ** rng.uniform(-1, 1.5)),
        "queue_rule": ["printed", "standard"][int(rng.integers(2))],
        "queue_memory": float(rng.uniform(0, 1)),
    }
    return Problem(round_, learning, queues, Rules(**(defaults | rules)))


def overlapping(problem: Problem, slices: int) -> Problem:
    """The same without barriers, in so many slices; no slices: as it is. Every other unit has batch norm."""
    if not slices:
        return problem
    round_ = problem.round
    statistics = np.where(np.arange(round_.profile.num_layers) % 2 == slices % 2, 64.0, 0.0)
    return replace(
        problem,
        round=replace(
            round_,
            profile=replace(round_.profile, statistic_bits=statistics),
            radio=round_.radio.model_copy(update={"slices": slices}),
            equations=replace(round_.equations, timing="overlap"),
        ),
    )


def plain_objective(problem: Problem, decision: Decision) -> float:
    """Drift + V · objective + participation, straight from the definitions and `asfl.costs`."""
    rules, learning, queues, round_ = problem.rules, problem.learning, problem.queues, problem.round
    cost = round_cost(round_, decision, exchange=problem.exchange)
    corrected = rules.equations == "corrected"
    delay_scale = rules.delay_budget_s if corrected and rules.delay_budget_s > 0 else 1.0
    energy_scale = rules.energy_budget_j if corrected and rules.energy_budget_j > 0 else 1.0
    excess = [(float(cost.delay_s) - rules.delay_budget_s) / delay_scale]
    excess += ((cost.energy_j - rules.energy_budget_j) / energy_scale).tolist()
    drift = 0.0
    for backlog, over in zip([queues.delay, *queues.energy.tolist()], excess, strict=True):
        if rules.queue_rule == "printed":
            following = max(rules.queue_memory * backlog + (1 - rules.queue_memory) * over, 0.0)
        else:
            following = max(backlog + over, 0.0)
        drift += 0.5 * (following**2 - backlog**2)
    cut = int(np.max(decision.cut))
    shared = cut if round_.previous_cut is None else min(cut, round_.previous_cut)
    spread = learning.layer_spread[:shared].sum()
    rate = cost.packet_error_rate
    if corrected:
        objective = (rules.drift_weight * spread + (rate * learning.update_norm2).mean()) / learning.update_scale
    else:
        weight = {"(1-s)^2": (1 - rate) ** 2, "s^2": rate**2, "s": rate}[rules.error_weight]
        objective = spread + weight.mean() * learning.layer_norm2[cut:].sum()
    owed = (queues.participation * (rules.participation_floor - decision.scheduled)).sum()
    return float(drift + rules.penalty_weight * objective + owed)


def plain_violation(problem: Problem, decision: Decision) -> float:
    """Sum of normalised excesses over this round's budgets."""
    cost, rules = round_cost(problem.round, decision), problem.rules
    delay_scale, energy_scale = (
        budget if budget > 0 else 1.0 for budget in (rules.delay_budget_s, rules.energy_budget_j)
    )
    over = max(float(cost.delay_s) - rules.delay_budget_s, 0.0) / delay_scale
    return over + float(np.maximum(cost.energy_j - rules.energy_budget_j, 0.0).sum()) / energy_scale


def plain_block_value(problem: Problem, decision: Decision) -> tuple[float, float]:
    """What the RB and power blocks minimise, as (violation, rest): drift form has no violation of its own."""
    if problem.rules.form == "drift":
        return 0.0, plain_objective(problem, decision)
    # V · objective + participation is what is left of the objective when no queue moves.
    still = problem.rules.model_copy(update={"queue_rule": "printed", "queue_memory": 1.0})
    return plain_violation(problem, decision), plain_objective(replace(problem, rules=still), decision)


def every_count(problem: Problem) -> Iterator[Floats]:
    """All allocations that the rules allow."""
    round_ = problem.round
    options = [range(round_.radio.num_rbs + 1 if alive else 1) for alive in problem.reachable]
    for counts in product(*options):
        if sum(counts) <= round_.radio.num_rbs and sum(k > 0 for k in counts) >= problem.min_participants:
            yield np.array(counts, float)
