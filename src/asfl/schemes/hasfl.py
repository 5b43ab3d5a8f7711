"""HASFL: a cut and a mini-batch of its own size for every client.

Lin et al., "HASFL: Heterogeneity-aware Split Federated Learning over Edge Computing Systems" (arXiv:2506.08426) give
slow clients smaller mini-batches and shallower cuts. To bring the mean squared gradient down to ε takes, by their
bound,

    R  ∝  1 / (ε − βγ/A² · Σ_n σ²/b_n)

rounds of A clients where client sides are averaged every round. Batches b_n and cuts make R · T least, T being the
round of ACC-SFL (`asfl.schemes.acc_sfl`) with b_n samples of each client.

What differs from its paper, or is open there, and was chosen:

- Its constants are estimated while training. Here ε is such that mini-batches of the configured size b leave
  A / (A + B) of the progress, with the noise scale B measured every round: R ∝ 1 / (1 − B / (A + B) · mean_n b / b_n).
- Client sides are averaged every round, as in SFL; in its paper every I rounds, I being given. Every client counts
  alike in averages, whatever its batch, as in its bound.
- Sizes are a quarter to four times b, in steps of √2; its only limit is memory, which isn't modelled here.
- It descends over batches and cuts in turn. Here both are found together, for given blocks exactly: a ratio is least
  where T − λ · progress is, λ being the ratio itself (Dinkelbach), and that is a choice for two maxima and a sum.
- Its radio is given. Here all have P^max and the blocks that make the round shortest; the clients that ASFL serves
  take part.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import ACC_SFL, ExchangeRules, cost_of_all_cuts, round_cost
from asfl.costs.round import MOST_BATCHES, Decision, Round
from asfl.optimize import Problem
from asfl.optimize.bcd import Tried, least_ratio
from asfl.schemes.acc_sfl import best_counts, choices_for_two_maxima
from asfl.schemes.base import LEAST_GAIN, MAX_PASSES, Decided, decided_for_served, descend, even_counts, noise_scale

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HasflScheme:
    """Clients that sit out report cut 1 and the configured mini-batch, which isn't used, and have no power."""

    borrows: ClassVar[bool] = True
    watches_noise: ClassVar[bool] = True
    name: str = "hasfl"
    exchange: ExchangeRules = ACC_SFL

    def decide(self, problem: Problem, seed: int) -> Decided:
        nothing, batch = np.zeros(problem.round.num_clients), max(round(problem.round.batch_size), 1)
        idle = Decision(np.ones_like(nothing, np.int64), nothing, nothing, batch=np.full(len(nothing), batch))

        def decide(round_: Round, _: Ints) -> Decision:
            return shortest_training(replace(round_, outage_s=np.inf), noise_scale(problem))

        return decided_for_served(problem, idle, decide)


def shortest_training(round_: Round, noise_scale: float) -> Decision:
    """Blocks, then cuts and batches, in turn until training gets no shorter; every client takes part."""
    power_w = np.full(round_.num_clients, round_.radio.max_tx_power_w)

    def improved(now: Decision) -> Decision:
        count = best_counts(round_, np.asarray(now.cut), power_w, batch=now.batch)
        return cuts_and_batches(round_, count, noise_scale)

    start = cuts_and_batches(round_, even_counts(round_), noise_scale)
    return descend(start, improved, lambda now: training_time(round_, now, noise_scale))


def training_time(round_: Round, decision: Decision, noise_scale: float) -> float:
    """T / progress, in an unknown unit; infinite where the bound can't be reached."""
    assert decision.batch is not None
    cost = round_cost(round_, decision, np.ones(round_.num_clients), ACC_SFL)
    progress = 1 - float(noise_share(round_, noise_scale) * (round_.batch_size / decision.batch).mean())
    return float(cost.delay_s) / progress if progress > 0 else np.inf


def noise_share(round_: Round, noise_scale: float) -> float:
    """What noise costs of the progress with mini-batches of the configured size: B / (A + B)."""
    return noise_scale / (round_.num_clients + noise_scale)


def allowed_batches(round_: Round) -> Ints:
    """Sizes of a mini-batch, among them the configured one."""
    factors = MOST_BATCHES ** np.arange(-1, 1.125, 0.25)
    sizes = np.unique(np.maximum(np.rint(round_.batch_size * factors), 1)).astype(np.int64)
    return np.asarray(sizes[sizes <= max(MOST_BATCHES * round_.batch_size, 1)])


def cuts_and_batches(round_: Round, rb_count: Floats, noise_scale: float) -> Decision:
    """The cuts [N] and batches [N] with which training is shortest, with these blocks: exact among allowed sizes."""
    sizes, cuts, all_arrive = allowed_batches(round_), round_.profile.cuts, np.ones(round_.num_clients)
    power_w = round_.radio.max_tx_power_w * all_arrive
    rounds = [replace(round_, charged_samples=float(size * round_.local_steps)) for size in sizes]
    costs = [cost_of_all_cuts(each, rb_count, power_w, all_arrive, ACC_SFL) for each in rounds]
    before = np.concatenate([c.model_down_delay_s + c.client_forward_delay_s + c.uplink_delay_s for c in costs])
    behind = np.concatenate([c.downlink_delay_s + c.client_backward_delay_s + c.model_up_delay_s for c in costs])
    server = np.concatenate([c.server_delay_s for c in costs])
    lost = noise_share(round_, noise_scale) / round_.num_clients * (round_.batch_size / sizes).repeat(len(cuts))

    def chosen(price_s: float) -> Decision:
        size, cut = np.divmod(choices_for_two_maxima(before, behind, server + price_s * lost[:, None]), len(cuts))
        return Decision(cuts[cut], rb_count, power_w, batch=sizes[size])

    def ratio_s(now: Decision) -> float:
        return training_time(round_, now, noise_scale)

    def search(price_s: float) -> Tried[Decision]:
        found = chosen(price_s)
        return Tried(found, ratio_s(found), ratio_s(found))

    configured = np.full(round_.num_clients, sizes[np.argmin(np.abs(sizes - round_.batch_size))])
    start = Decision(np.ones(round_.num_clients, dtype=np.int64), rb_count, power_w, batch=configured)
    return min(start, least_ratio(ratio_s(start), search, MAX_PASSES, LEAST_GAIN), key=ratio_s)
