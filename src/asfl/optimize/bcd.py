"""OOE-BCD (paper's Algorithm 2): cut, resource blocks and power in turn until the objective stands still; beyond the
paper, what is averaged and how many bits cross go with the cut, and each client may then choose its own bits.

Every block keeps where it is as one of its candidates, so in the drift form, where all three minimise the same
objective, the objective never rises. The paper starts from random blocks and powers and lands in whatever local optimum
is near; here the descent starts from the best decision on a very coarse grid of powers, always the same for the same
round, and begins with the power block. `decision.solver = "printed"` is the paper's way.

`solve_jointly` is the yardstick, and a scheme of its own: a client's candidates are all pairs of a count and a power
from a grid, over all cuts together, and the search is optimal on that grid up to `JOINT_TOLERANCE`. The powers are then
refined off the grid, and OOE-BCD's own answer is taken if it should be better.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from asfl.config.randomness import random_stream
from asfl.costs.modelled import Links
from asfl.costs.round import Decision
from asfl.optimize.assign import with_blocks
from asfl.optimize.blocks import (
    LOWEST_SHARE,
    best_bits,
    best_on_grid,
    best_powers,
    best_rb_counts,
    objective_of_cuts,
    refine_powers,
)
from asfl.optimize.printed_power import powers_as_printed
from asfl.optimize.problem import STANDSTILL, Problem, Solution
from asfl.optimize.terms import CutTerms, plan_at, plan_terms, terms_of

Floats = NDArray[np.float64]
T = TypeVar("T")

MOST_PASSES = 20
"""The descent ends after so many at the latest."""
SEARCH_SHARE = 0.1
"""The power block is solved to this share of `STANDSTILL`."""
FINAL_ZOOMS = 2
"""Refinements of the power grid once the descent has settled."""
START_POWERS = (1.0, 0.45, 0.2, 0.09, 0.04, 0.01, 0.002)
"""Shares of P^max tried in the start. The smallest matter where energy is short: without them the descent can start at
powers from which no single block leads down."""
START_COARSENESS = 8
"""Of the counts of blocks in the start (`Grid.of`)."""
START_TOLERANCE = 0.02
JOINT_TOLERANCE = 2e-3
"""Tolerance of the search on the grid, relative to the objective, or to `LEAST_SCALE` where that is nearly 0."""
LEAST_SCALE = 0.05
POWER_SHARES = np.concatenate([np.geomspace(1.0, 0.1, 22), np.geomspace(0.085, LOWEST_SHARE, 12)])
"""Powers tried, as shares of P^max: 12 % apart where most decisions lie, coarser below a tenth."""
JOINT_ZOOMS = 4
FIRST_PRICE = 4.0
"""Where the search for θ begins: a round of the fair policy costs 1 for its delay and 1 for its energy, and half of
what arrives is noise."""
FIRST_PASSES, PASSES = 8, 3
CLOSE = 0.05
"""Slopes and prices this near to where they were are good enough."""


def ooe_bcd(
    problem: Problem,
    *,
    cuts: Sequence[int] | None = None,
    rb_count: Floats | None = None,
    tx_power_w: Floats | None = None,
    start: Solution | None = None,
    counting: bool = False,
) -> Solution:
    """Decide a round. `cuts` restricts the cuts; a given `rb_count` or `tx_power_w` is kept as it is (baselines).

    So is what the round itself gives (`Round.allocation`); then only the cut is left, and all are tried. `start`: where
    the descent begins, instead of the best decision on the coarse grid. `counting`: blocks that differ are counted, as
    if every client could have its best, and not assigned.
    """
    started = time.perf_counter()
    assigns = problem.round.block_gain is not None and problem.round.blocks is None and rb_count is None
    if assigns and not counting:
        relaxed = ooe_bcd(problem, cuts=cuts, tx_power_w=tx_power_w, counting=True)
        solve = partial(ooe_bcd, cuts=cuts, tx_power_w=tx_power_w)
        return replace(with_blocks(problem, relaxed, solve), seconds=time.perf_counter() - started)
    if problem.round.allocation is not None:
        rb_count, tx_power_w = problem.round.allocation
    terms = plan_terms(problem, cuts)
    descent = _Descent(problem, terms, rb_count, tx_power_w, start)
    rules = problem.rules
    iterations = 0
    while rules.solver == "printed" and iterations < MOST_PASSES:
        iterations += 1
        discrepancy = descent.discrepancy
        descent.update_cut()
        descent.update_rbs()
        descent.update_power()
        if abs(descent.discrepancy - discrepancy) <= STANDSTILL:
            break
    while rules.solver != "printed" and iterations < MOST_PASSES:
        iterations += 1
        before = descent.objective
        descent.update_power()
        moved_cut = descent.update_cut()
        moved_bits = descent.update_bits()
        moved_rbs = descent.update_rbs()
        standing_still = before - descent.objective <= STANDSTILL * max(1.0, abs(descent.objective))
        if standing_still or not (moved_cut or moved_bits or moved_rbs):
            break
    descent.refine_power()
    if not np.isfinite(descent.objective) and np.isfinite(problem.round.outage_s):
        # Clients that have to be served can't be done in time at any cut: decide as if there were no outage.
        patient = replace(problem, round=replace(problem.round, outage_s=np.inf))
        found = ooe_bcd(patient, cuts=cuts, rb_count=rb_count, tx_power_w=tx_power_w, counting=counting)
        return replace(found, problem=problem)
    return Solution(
        problem=problem,
        decision=_silent_if_idle(descent.decision),
        objective=descent.objective,
        iterations=iterations,
        trace=tuple(descent.trace),
        seconds=time.perf_counter() - started,
        considered_power_w=descent.decision.tx_power_w,
    )


def solve_jointly(problem: Problem, *, start: Solution | None = None) -> Solution:
    """Decide a round as well as a grid of powers and a refinement allow; `start` as in `ooe_bcd`.

    Where blocks differ, or counts are given, the answer is OOE-BCD's.
    """
    started = time.perf_counter()
    best = ooe_bcd(problem, start=start)
    round_ = problem.round
    if round_.allocation is not None or round_.block_gain is not None:
        return best
    trace, lower_bound = list(best.trace), -np.inf
    terms = plan_terms(problem)
    top = np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)
    found = best_on_grid(problem, terms, np.multiply.outer(POWER_SHARES, top), JOINT_TOLERANCE, LEAST_SCALE)
    if found is not None:
        index, count, power, lower_bound = found
        power = refine_powers(problem, terms.only(index), count, power, zooms=JOINT_ZOOMS)
        objective = float(objective_of_cuts(problem, terms, count, power)[index])
        refined = Solution(problem, plan_at(terms, index, count, power), objective, 1, (), 0.0, power)
        trace.append(("joint", objective))
        if problem.switches.any:  # from the best plan, each client may go its own way
            refined = ooe_bcd(problem, start=refined)
            trace.extend(refined.trace)
        best = min(best, refined, key=lambda solution: solution.rank)
    return replace(
        best,
        decision=_silent_if_idle(best.decision),
        trace=tuple(trace),
        seconds=time.perf_counter() - started,
        lower_bound=lower_bound,
    )


class _Descent:
    """Where the descent stands, and its steps."""

    def __init__(
        self,
        problem: Problem,
        terms: CutTerms,
        rb_count: Floats | None,
        tx_power_w: Floats | None,
        start: Solution | None,
    ) -> None:
        self.problem, self.terms = problem, terms
        self.fixed_rbs, self.fixed_power = rb_count is not None, tx_power_w is not None
        if start is not None:
            self.decision = replace(start.decision, tx_power_w=start.considered_power_w)
            self.here = terms_of(problem, self.decision)
        else:
            index, counts, power = self._first(rb_count, tx_power_w)
            self.here, self.decision = terms.only(index), plan_at(terms, index, counts, power)
        self.links = _links(problem, self.decision)
        self.trace: list[tuple[str, float]] = []
        self.objective = np.inf
        self._note("start")

    def _first(self, rb_count: Floats | None, tx_power_w: Floats | None) -> tuple[int, Floats, Floats]:
        problem = self.problem
        full_power = np.full(problem.round.num_clients, problem.round.radio.max_tx_power_w)
        power = full_power if tx_power_w is None else np.asarray(tx_power_w, float)
        # Where nothing better is found: the same for all clients that can be reached.
        each = np.floor(problem.round.radio.num_rbs / max(int(problem.reachable.sum()), 1))
        counts = np.where(problem.reachable, each, 0.0) if rb_count is None else np.asarray(rb_count, float)
        if problem.rules.solver == "printed":
            drawn_counts, drawn_power = self._drawn()
            return 0, counts if self.fixed_rbs else drawn_counts, power if self.fixed_power else drawn_power
        if not self.fixed_rbs:
            powers = power[None] if self.fixed_power else np.multiply.outer(START_POWERS, full_power)
            synced = self.terms.synced  # plans that average client sides as a whole, or not at all
            rows = np.flatnonzero((synced == 0) | (synced == self.terms.cuts))
            some = self.terms.only(*rows.tolist())
            found = best_on_grid(problem, some, powers, START_TOLERANCE, coarseness=START_COARSENESS)
            if found is not None:
                return int(rows[found[0]]), found[1], found[2]
        return 0, counts, power

    @cached_property
    def random(self) -> np.random.Generator:
        """For what the paper draws at random."""
        return random_stream(self.problem.seed, "algorithms as printed", self.problem.round.index)

    def _drawn(self) -> tuple[Floats, Floats]:
        """Each block for any client that can be reached, and powers from (0, P^max], uniform both.

        Where clients must take part, so many have a block each first.
        """
        problem, radio = self.problem, self.problem.round.radio
        power = radio.max_tx_power_w * (1.0 - self.random.random(problem.round.num_clients))
        reachable = self.random.permutation(np.flatnonzero(problem.reachable))
        first = reachable[: min(problem.min_participants, radio.num_rbs)]
        others = self.random.choice(reachable, radio.num_rbs - len(first)) if reachable.size else first
        return np.bincount([*first, *others], minlength=len(power)).astype(float), power

    @property
    def discrepancy(self) -> float:
        """g_obj."""
        problem, here, decision = self.problem, self.here, self.decision
        lost = problem.objective.error_cost(
            here.cuts, problem.round.packet_error_rate(decision.rb_count, decision.tx_power_w)
        )
        spread = float(problem.objective.plan_cost(here.cuts, here.synced)[0])
        return (spread + float(lost.sum())) / (problem.rules.penalty_weight or 1.0)

    def update_cut(self) -> bool:
        """Best plan; whether it moved."""
        decision, terms = self.decision, self.terms
        of_plans = objective_of_cuts(self.problem, terms, decision.rb_count, decision.tx_power_w, self.links)
        best = int(np.argmin(of_plans))
        plan = terms.cuts[best], terms.synced[best], terms.bits[best]
        own_bits = np.ndim(decision.bits) > 0  # of which the plans don't know
        here = not own_bits and plan == (decision.cut, decision.synced, decision.bits)
        moved = not here and not (own_bits and of_plans[best] >= self.objective)
        if moved:
            self.here = terms.only(best)
            self.decision = plan_at(terms, best, decision.rb_count, decision.tx_power_w)
        self._note("cut", float(of_plans[best]) if moved or here else self.objective)
        return moved

    def update_bits(self) -> bool:
        """Best bits for each client; whether they moved."""
        found = best_bits(self.problem, self.links, self.decision)
        if found is None:
            return False
        here = terms_of(self.problem, found)
        objective = self._objective(here)
        if objective >= self.objective:
            return False
        self.decision, self.here = found, here
        self._note("bits", objective)
        return True

    def update_rbs(self) -> bool:
        """Best counts; whether they moved."""
        if self.fixed_rbs:
            return False
        decision = self.decision
        counts = best_rb_counts(self.problem, self.here, decision.tx_power_w, decision.rb_count)
        moved = bool((counts != decision.rb_count).any())
        if moved:
            self._allocate(replace(decision, rb_count=counts))
        self._note("rbs", None if moved else self.objective)
        return moved

    def update_power(self) -> None:
        self._set_power(best_powers, zooms=0)

    def refine_power(self) -> None:
        if self.problem.rules.power_rule == "exact":
            self._set_power(refine_powers, zooms=FINAL_ZOOMS)

    def _set_power(self, improve: Callable[..., Floats], zooms: int) -> None:
        if self.fixed_power:
            return
        where = (self.problem, self.here, self.decision.rb_count, self.decision.tx_power_w)
        if self.problem.rules.power_rule == "printed":
            power = powers_as_printed(*where, self.random)
        else:
            power = improve(*where, zooms=zooms, tolerance=SEARCH_SHARE * STANDSTILL)
        self._allocate(replace(self.decision, tx_power_w=power))
        self._note("power")

    def _allocate(self, decision: Decision) -> None:
        self.decision = decision
        self.links = _links(self.problem, decision)

    def _objective(self, terms: CutTerms) -> float:
        decision = self.decision
        return float(objective_of_cuts(self.problem, terms, decision.rb_count, decision.tx_power_w, self.links)[0])

    def _note(self, block: str, objective: float | None = None) -> None:
        self.objective = self._objective(self.here) if objective is None else objective
        self.trace.append((block, self.objective))


def _links(problem: Problem, decision: Decision) -> Links:
    """[1, N]"""
    return Links.of(problem.round, decision.rb_count[None], decision.tx_power_w[None])


def _silent_if_idle(decision: Decision) -> Decision:
    """Clients that sit out send nothing."""
    return replace(decision, tx_power_w=np.where(decision.scheduled, decision.tx_power_w, 0.0))


# ---------------------------------------------------------------------- progress per cost
def worth_arriving(solution: Solution) -> Floats:
    """[N] how likely each client's mini-batch arrives, less what its bits cost."""
    beyond, decision = solution.problem.learning.beyond, solution.decision
    worth = 1.0 if beyond is None else beyond.worth(np.broadcast_to(decision.bits, decision.rb_count.shape))
    return np.asarray(decision.scheduled * (1 - solution.expected.packet_error_rate) * worth)


def solve(problem: Problem, solver: str | None = None) -> Solution:
    """Decide a round by the solver given or configured, and by progress per cost where that has prices."""
    decide: Callable[..., Solution] = solve_jointly if (solver or problem.rules.solver) == "joint" else ooe_bcd
    if solver is not None:
        problem = replace(problem, rules=problem.rules.model_copy(update={"solver": solver}))
    return decide(problem) if problem.prices is None else solve_by_rate(problem, decide)


class Tried(NamedTuple, Generic[T]):
    """What a search found at a price of progress."""

    found: T
    value: float
    """The least is the best."""
    price: float
    """What progress cost in it, or the price that stays."""
    settled: bool = True
    """Whether nothing but the price could still change."""


def least_ratio(price: float, search: Callable[[float], Tried[T]], passes: int, close: float) -> T:
    """The least cost / progress: Dinkelbach's method. `search` makes cost − θ · progress least at a price θ; what
    progress cost in what it found is the next θ, until that stays.
    """
    best: Tried[T] | None = None
    for _ in range(passes):
        tried, before = search(price), price
        if best is None or tried.value < best.value:
            best = tried
        price = tried.price
        if tried.settled and abs(price - before) <= close * before < np.inf:
            break
    assert best is not None
    return best.found


def solve_by_rate(problem: Problem, solve: Callable[..., Solution]) -> Solution:
    """Decide by progress per cost. `solve` decides for given slopes, and begins where another solution is.

    Rounds before say what progress costs; in the first round, it is what it costs there.
    """
    prices = problem.prices
    assert prices is not None
    first = np.isnan(prices.per_progress)
    arrival, start = prices.arrival, None

    def search(theta: float) -> Tried[Solution]:
        nonlocal arrival, start
        solution = solve(replace(problem, prices=replace(prices, per_progress=theta, arrival=arrival)), start=start)
        reached = worth_arriving(solution)
        cost = prices.cost(float(solution.expected.delay_s), solution.expected.energy_j)
        progress = expected_progress(solution, reached)
        price = cost / max(progress, 1e-9) if first else theta
        settled = bool(np.abs(reached - arrival).max() <= CLOSE)
        # Where few clients arrive another one is worth nothing, and the search would stay there: half the way from
        # there, then, and from the coarse grid again.
        arrival, start = (reached, solution) if progress > 0 else (0.5 * (reached + arrival), None)
        return Tried(solution, price if first else net_cost(solution, reached), price, settled)

    if first:
        return least_ratio(FIRST_PRICE, search, FIRST_PASSES, CLOSE)
    return least_ratio(prices.per_progress, search, PASSES, CLOSE)


def expected_progress(solution: Solution, arrival: Floats) -> float:
    """Of a decision; less what layers on clients don't learn."""
    problem, deepest = solution.problem, int(np.max(solution.decision.cut))
    return float(problem.objective.progress_of_cut[deepest]) * problem.objective.progress.expected(arrival)


def net_cost(solution: Solution, arrival: Floats) -> float:
    """The objective with progress itself instead of its slopes."""
    problem = solution.problem
    assert problem.prices is not None
    lost = float((problem.objective.loss_weight * (1.0 - arrival)).sum())
    lost += float(problem.objective.idle_cost_of_cut[int(np.max(solution.decision.cut))])
    return solution.objective - lost - problem.prices.per_progress * expected_progress(solution, arrival)
