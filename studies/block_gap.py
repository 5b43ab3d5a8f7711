"""How far assignments of blocks that differ are from the best: random rounds of growing size, every block fading alone.

The yardstick is the same round with blocks that can be given twice, every client its best ones: nothing that can be
done is better, so the true gap is smaller.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from asfl.costs.round import Decision
from asfl.optimize import Problem, ooe_bcd
from asfl.optimize.assign import best_blocks, valued
from asfl.optimize.blocks import best_rb_counts, objective_of_cuts
from asfl.optimize.terms import terms_of
from benchmarks.problems import random_round

SIZES = ((5, 6), (10, 8), (20, 20), (50, 50))
ROUNDS = 12


def selective(seed: int, clients: int, num_rbs: int) -> Problem:
    rng = np.random.default_rng(seed)
    problem = random_round(rng, clients, num_rbs, "vgg19-cifar100")
    gains = problem.round.path_gain[:, None] * rng.exponential(size=(clients, num_rbs))
    return replace(problem, round=replace(problem.round, block_gain=gains, channel_gain=gains.mean(axis=1)))


def main(folder: Path) -> None:
    for clients, num_rbs in SIZES:
        gaps, times = [], []
        for seed in range(ROUNDS):
            problem = selective(seed, clients, num_rbs)
            flat = replace(problem, round=replace(problem.round, block_gain=None))
            seconds = []
            for case in (flat, problem):
                started = time.process_time()
                decision = ooe_bcd(case).decision
                seconds.append(time.process_time() - started)
            times.append(seconds[1] / seconds[0])
            gaps.append(_gap(problem, replace(decision, tx_power_w=np.full(clients, 0.75), blocks=None)))
        print(
            f"{clients} clients, {num_rbs} blocks: {100 * np.mean(gaps):.2f} % above the relaxed round in the mean, "
            f"{100 * np.max(gaps):.2f} % at worst; a decision takes {np.median(times):.1f} times that of the flat one"
        )


def _gap(problem: Problem, decision: Decision) -> float:
    """Of the RB block alone, at given powers and plan; relative to the relaxed value, or to 1 if that is smaller."""
    here, power = terms_of(problem, decision), decision.tx_power_w
    counts = best_rb_counts(problem, here, power, decision.rb_count)
    found = best_blocks(problem, here, replace(decision, rb_count=counts))
    owners = np.where(found.any(axis=0), found.argmax(axis=0), len(power))
    plan = float(problem.objective.plan_cost(here.cuts, here.synced)[0])
    relaxed = float(objective_of_cuts(problem, here, counts, power)[0]) - plan
    return (float(valued(problem, here, power, owners[None])[0][0]) - relaxed) / max(1.0, abs(relaxed))


if __name__ == "__main__":
    main(Path("out"))
