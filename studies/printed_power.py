"""Algorithm 1 beside the exact power block: random rounds of VGG-19, a block for each of the 8 best of 10 clients."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from asfl.costs.modelled import round_cost
from asfl.costs.round import PRINTED, Decision
from asfl.optimize.blocks import best_powers
from asfl.optimize.printed_power import powers_as_printed
from asfl.optimize.terms import terms_of
from benchmarks.problems import random_round

ROUNDS = 1000
RULES = {"equations": "printed", "error_weight": "s", "form": "per_round_budgets"}


def _round(seed: int) -> list[list[float]]:
    """Of both blocks: error rate, delay, median SNR in dB, whether delay and energies keep their budgets."""
    problem = random_round(np.random.default_rng(seed), 10, 8, "vgg19-cifar100")
    round_ = replace(problem.round, equations=PRINTED, previous_cut=None)
    problem = replace(problem, round=round_, rules=problem.rules.model_copy(update=RULES))
    count = np.zeros(10)
    count[np.argsort(-round_.channel_gain)[:8]] = 1.0
    decision = Decision(16, count, 0.75 * count)
    here = terms_of(problem, decision)
    exact = best_powers(problem, here, count, decision.tx_power_w)
    printed = powers_as_printed(problem, here, count, decision.tx_power_w, np.random.default_rng(seed))
    rows, served = [], count > 0
    for power in (exact, printed):
        cost = round_cost(round_, replace(decision, tx_power_w=power))
        snr = power * round_.channel_gain / (round_.radio.rb_bandwidth_hz * round_.radio.noise_psd_w_per_hz)
        kept = cost.delay_s <= 20 * (1 + 1e-6), (cost.energy_j <= 5 * (1 + 1e-6)).all()
        lost = float(cost.packet_error_rate[served].mean())
        rows.append([lost, float(cost.delay_s), 10 * float(np.log10(np.median(snr[served]))), *map(float, kept)])
    return rows


def main(folder: Path) -> None:
    exact, printed = np.moveaxis(np.array([_round(seed) for seed in range(ROUNDS)]), 1, 0)
    can = exact[:, 3:].all(axis=1)
    for name, of in (("exact", exact), ("printed", printed)):
        print(
            f"{name}: {100 * of[:, 0].mean():.0f} % of the packets lost, delay {np.median(of[:, 1]):.1f} s (median), "
            f"SNR {np.median(of[:, 2]):.1f} dB; keeps the delay in {100 * of[:, 3].mean():.0f} %, the energies in "
            f"{100 * of[:, 4].mean():.0f} %, both in {100 * of[can, 3:].all(axis=1).mean():.0f} % of the rounds in "
            f"which the exact block does"
        )


if __name__ == "__main__":
    main(Path("out"))
