"""A scheme: proportionally fair resource blocks, full power, and the cut that costs least in this round.

asfl --plugin examples/my_scheme.py compare demo --schemes asfl,sfl,prop-fair
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import asfl
from asfl.costs.modelled import ASFL
from asfl.optimize import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ProportionalFair:
    """Looks at this round only: no queues, nothing remembered, nothing random."""

    name: str = "prop-fair"
    exchange: asfl.ExchangeRules = ASFL  # how its rounds train and are charged: client sides stay on the clients

    def decide(self, problem: Problem, seed: int) -> asfl.Decision:
        round_, rules = problem.round, problem.rules
        power = np.full(round_.num_clients, round_.radio.max_tx_power_w)
        blocks = fair_blocks(round_, power, problem.reachable)
        cost = asfl.cost_of_all_cuts(round_, blocks, power)  # delay [cuts], energy [cuts, clients]
        # Seconds and joules become one price by what each may cost on average.
        price = cost.delay_s / rules.delay_budget_s + cost.energy_j.mean(axis=1) / rules.energy_budget_j
        cut = int(round_.profile.cuts[price.argmin()])
        return asfl.Decision(cut, blocks, power)


def fair_blocks(round_: asfl.Round, power: Floats, reachable: NDArray[np.bool_]) -> Floats:
    """[N] whole blocks with the largest Σ log(rate); with fewer blocks than clients, to whose link is at its best."""
    blocks = np.zeros(round_.num_clients)
    relative_gain = np.divide(round_.channel_gain, round_.path_gain, out=np.zeros_like(blocks), where=reachable)
    best_first = np.argsort(-relative_gain, kind="stable")
    served = best_first[: min(round_.radio.num_rbs, int(reachable.sum()))]
    blocks[served] = 1
    # log(rate) is concave in the blocks, so giving each block where it helps most is exact.
    for _ in range(round_.radio.num_rbs - len(served) if len(served) else 0):
        rate, rate_with_one_more = (round_.uplink_rate_bps(count, power)[served] for count in (blocks, blocks + 1))
        blocks[served[np.argmax(rate_with_one_more / rate)]] += 1
    return blocks


asfl.register_scheme(ProportionalFair())
