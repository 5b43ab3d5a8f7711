"""How far OOE-BCD is from the joint optimum: 1,000 random rounds each in two sizes."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from asfl.optimize import ooe_bcd, solve_jointly
from asfl.results.charts.chart import GOOD, MEDIAN
from asfl.results.charts.files import drawing, save_figure
from benchmarks.problems import random_round

ROUNDS = 1000
SIZES = ((10, 8, "vgg19-cifar100"), (50, 8, "resnet50-cifar100"))


def _gap(seed: int, clients: int, num_rbs: int, model: str) -> tuple[float, float]:
    """Gap relative to the objective (absolute below 1), and the joint objective."""
    problem = random_round(np.random.default_rng(seed), clients, num_rbs, model)
    best = solve_jointly(problem).objective
    return (ooe_bcd(problem).objective - best) / max(1.0, abs(best)), best


def main(folder: Path) -> None:
    with drawing(7.5, 4) as figure:
        axes = figure.subplots()
        for (clients, num_rbs, model), colour in zip(SIZES, (MEDIAN, GOOD), strict=True):
            with ProcessPoolExecutor() as pool:
                columns = [range(ROUNDS), *([value] * ROUNDS for value in (clients, num_rbs, model))]
                gaps = np.array([gap for gap, _ in pool.map(_gap, *columns, chunksize=20)])
            median, high, worst = np.median(gaps), np.quantile(gaps, 0.95), gaps.max()
            print(
                f"{model}, {clients} clients, {num_rbs} RBs, {ROUNDS} rounds: gap median {100 * median:.4f} %, "
                f"95th percentile {100 * high:.2f} %, worst {100 * worst:.1f} %, "
                f"below 1 % in {100 * np.mean(gaps < 0.01):.1f} % of rounds"
            )
            axes.plot(
                100 * np.sort(np.maximum(gaps, 1e-8)),
                100 * np.arange(1, ROUNDS + 1) / ROUNDS,
                color=colour,
                label=f"{clients} clients, {num_rbs} RBs, {model}",
            )
        axes.set(
            xscale="log", xlabel="gap to the joint solver (% of the objective)", ylabel="% of rounds", xlim=(1e-5, None)
        )
        axes.set_title("How far OOE-BCD is from the joint optimum")
        axes.legend(loc="lower right")
        save_figure(figure, folder / "bcd-gap.svg")
