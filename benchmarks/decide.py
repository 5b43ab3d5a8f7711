"""Decision time of OOE-BCD, the joint solver and what goes beyond the paper; the RB block beside CVXPY with HiGHS."""

from dataclasses import asdict, dataclass, field, replace
from time import perf_counter

import numpy as np
from rich.table import Table

from asfl.config import load_config
from asfl.costs.round import Decision
from asfl.costs.world import World
from asfl.optimize import Problem, Solution, compile_search, ooe_bcd, solve_jointly
from asfl.optimize.blocks import best_rb_counts
from asfl.optimize.terms import plan_terms
from asfl.runs.play import play
from asfl.schemes import scheme_named
from asfl.schemes.asfl import AsflScheme
from asfl.schemes.base import budgets_of
from benchmarks.problems import random_round
from benchmarks.rbs_by_cvxpy import solve
from benchmarks.timing import interleaved_medians

CALLS = 20  # of the RB block in a turn, as it is much shorter than a turn of the other
SIZES = ((10, 8, "vgg19"), (50, 8, "resnet50"), (50, 64, "resnet50"), (200, 100, "resnet50"), (1000, 273, "resnet50"))


def decision_table() -> Table:
    compile_search()
    table = Table(title="median decision time (targets: 3, 10 and 100 ms at the first, third and last size)")
    for column in ("clients", "RBs", "layers", "OOE-BCD", "joint", "joint / BCD", "BCD per client"):
        table.add_column(column, justify="right")
    for clients, num_rbs, model in SIZES:
        rng = np.random.default_rng(1)
        repeats = 25 if clients <= 50 else 3
        problems = [random_round(rng, clients, num_rbs, f"{model}-cifar100") for _ in range(repeats)]
        bcd_turns, joint_turns = iter(problems + problems[:1]), iter(problems + problems[:1])
        medians = interleaved_medians(
            {"bcd": lambda t=bcd_turns: ooe_bcd(next(t)), "joint": lambda t=joint_turns: solve_jointly(next(t))},  # type: ignore[misc]
            repeats=repeats,
        )
        bcd, joint = medians["bcd"], medians["joint"]
        layers = problems[0].round.profile.num_layers
        table.add_row(
            f"{clients:,}",
            str(num_rbs),
            str(layers),
            f"{1e3 * bcd:.1f} ms",
            f"{1e3 * joint:.1f} ms",
            f"{joint / bcd:.1f} x",
            f"{1e6 * bcd / clients:.0f} µs",
        )
    return table


@dataclass(frozen=True)
class Timed(AsflScheme):
    """A scheme with a watch."""

    seconds: list[float] = field(default_factory=list)

    def decide(self, problem: Problem, seed: int) -> Decision:
        start = perf_counter()
        decision = super().decide(problem, seed)
        self.seconds.append(perf_counter() - start)
        return decision


def beyond_table(rounds: int = 60) -> Table:
    """Played rounds, all schemes in turn; each decides in the state that it brought about."""
    compile_search()
    table = Table(
        title="decisions beyond the paper: milliseconds in a run of VGG-19 (target of asfl-plus: 20 ms at (10, 8))"
    )
    for column in ("clients", "RBs", "scheme", "median", "95 %", "first", "median / asfl"):
        table.add_column(column, justify="right")
    for clients, num_rbs in ((10, 8), (50, 64)):
        world = World.of(load_config("vgg19-cifar10", {"scenario.clients": clients, "radio.num_rbs": num_rbs}).config)
        names = ("asfl", "asfl:sync=on", "asfl:quant=on", "asfl:rate=on", "asfl:mix=on", "asfl-plus")
        timed = [Timed(**asdict(scheme_named(name))) for name in names]  # type: ignore[call-overload]
        for _ in zip(*(play(world, scheme, rounds, budgets_of(world, scheme)) for scheme in timed), strict=True):
            pass
        published = np.median(timed[0].seconds[1:])
        for scheme in timed:
            first, *later = scheme.seconds
            middle, slow = np.quantile(later, (0.5, 0.95))
            milliseconds = (f"{1e3 * value:.1f}" for value in (middle, slow, first))
            table.add_row(str(clients), str(num_rbs), scheme.name, *milliseconds, f"{middle / published:.1f} x")
    return table


def rb_block_table() -> Table:
    table = Table(title="RB block: the same problem (49) by counts and by CVXPY with HiGHS (target: 100 x at (10, 8))")
    for column in ("clients", "RBs", "counts", "CVXPY + HiGHS", "ratio", "largest difference of the optimum"):
        table.add_column(column, justify="right")
    for clients, num_rbs in ((10, 8), (10, 12), (20, 16), (20, 24)):
        rng = np.random.default_rng(2)
        problem = _feasible(random_round(rng, clients, num_rbs, "vgg19-cifar100"))
        terms = plan_terms(problem)
        power = np.full(clients, 1.5)
        index = len(terms.cuts) - 3
        cut = int(terms.cuts[index])
        current = ooe_bcd(problem, tx_power_w=power).decision.rb_count
        medians = interleaved_medians(
            {
                "counts": lambda p=problem, t=terms, i=index, w=power, c=current: [  # type: ignore[misc]
                    best_rb_counts(p, t.only(i), w, c) for _ in range(CALLS)
                ],
                "cvxpy": lambda p=problem, c=cut, w=power: solve(p, c, w),  # type: ignore[misc]
            },
            repeats=9,
        )
        counts_s = medians["counts"] / CALLS
        decision = Decision(cut, best_rb_counts(problem, terms.only(index), power, current), power)
        ours = Solution(problem, decision, 0.0, 0, (), 0.0, power).rank
        theirs = solve(problem, cut, power)
        table.add_row(
            str(clients),
            str(num_rbs),
            f"{1e3 * counts_s:.2f} ms",
            f"{1e3 * medians['cvxpy']:.1f} ms",
            f"{medians['cvxpy'] / counts_s:.0f} x",
            "infeasible" if theirs is None else f"{abs(ours - theirs):.1e}",
        )
    return table


def _feasible(problem: Problem) -> Problem:
    """The paper's form of the problem, with budgets that can be kept."""
    rules = problem.rules.model_copy(
        update={"form": "per_round_budgets", "delay_budget_s": 1e4, "energy_budget_j": 1e4}
    )
    return replace(problem, rules=rules)
