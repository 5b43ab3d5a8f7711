"""AdaptSFL: one cut, and how many rounds lie between two averages of the client sides.

Lin et al., "AdaptSFL: Adaptive Split Federated Learning in Resource-constrained Edge Networks" (arXiv:2403.13101)
average the server-side models every round and the client sides every I rounds. To bring the mean squared gradient down
to ε takes, by their bound,

    R  ∝  1 / (ε − βγ σ²/N − 1{I > 1} · 4 β²γ² I² Σ_{j ≤ cut} G_j²)

rounds, and one takes T_split + T_average / I on average; cut and I make the product least.

What differs from its paper, or is open there, and was chosen:

- Its constants are estimated while training. Here noise is a share B / (A + B) of ε, with the noise scale B measured
  every round and A clients, and drift a share `decision.drift_weight` · I² · (the parameters up to the cut, of all):
  what ASFL's own objective takes for I updates in the same direction.
- Its cuts may differ between clients, and layers that only some hold are averaged every I rounds, too. Here all have
  the same cut.
- It descends over cut and I in turn; here both are tried together. I is a power of two, so that averages stay on a grid
  of rounds when I changes. The cut moves only when client sides are equal, as there, so no layers go up for it.
- Its radio is given. Here all have P^max and the blocks that make the round shortest; the clients that ASFL serves
  take part; and a client that sat out receives the average, and pays for it, when it takes part again.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import ON_DEMAND, SFL, ExchangeRules, cost_of_all_cuts
from asfl.costs.round import Decision, Round
from asfl.optimize import Problem
from asfl.schemes.acc_sfl import best_counts
from asfl.schemes.base import Decided, decided_for_served, descend, even_counts, noise_scale

Floats = NDArray[np.float64]

INTERVALS = 2 ** np.arange(7)


@dataclass(frozen=True)
class AdaptSflScheme:
    """Clients that sit out have no power."""

    borrows: ClassVar[bool] = True
    watches_noise: ClassVar[bool] = True
    name: str = "adaptsfl"
    exchange: ExchangeRules = ON_DEMAND

    def decide(self, problem: Problem, seed: int) -> Decided:
        nothing, weight = np.zeros(problem.round.num_clients), problem.rules.drift_weight

        def decide(round_: Round, clients: NDArray[np.int64]) -> Decision:
            round_ = replace(round_, previous_cut=None, holdings=None)
            best = shortest_training(round_, noise_scale(problem), weight, cut=_cut_that_stays(problem))
            synced = best.cut if (round_.index + 1) % best.interval == 0 else 0
            full_power_w = np.full(len(clients), round_.radio.max_tx_power_w)
            return Decision(
                best.cut, _counts(round_, best.cut, SFL if synced else ON_DEMAND), full_power_w, synced=synced
            )

        return decided_for_served(problem, Decision(problem.round.previous_cut or 1, nothing, nothing), decide)


def _cut_that_stays(problem: Problem) -> int | None:
    """The cut while client sides differ; None: it may move."""
    cut, holdings = problem.round.previous_cut, problem.round.holdings
    return cut if cut is not None and holdings is not None and holdings.diverged[:cut].any() else None


@dataclass(frozen=True)
class Plan:
    """A cut and an interval, and how long training takes with them, in an unknown unit."""

    cut: int
    interval: int
    training_s: float


def shortest_training(round_: Round, noise_scale: float, drift_weight: float, cut: int | None = None) -> Plan:
    """Cut and interval in turn with the blocks, until training gets no shorter; with a `cut` only the interval."""

    def best(rb_count: Floats) -> Plan:
        training_s = training_times(round_, rb_count, noise_scale, drift_weight)
        if cut is not None:
            training_s[np.arange(len(training_s)) != cut - 1] = np.inf
        row, column = np.unravel_index(int(np.argmin(training_s)), training_s.shape)
        return Plan(int(round_.profile.cuts[row]), int(INTERVALS[column]), float(training_s[row, column]))

    start = best(even_counts(round_))
    return descend(start, lambda now: best(_counts(round_, now.cut, ON_DEMAND)), lambda now: now.training_s)


def training_times(round_: Round, rb_count: Floats, noise_scale: float, drift_weight: float) -> Floats:
    """[cuts, intervals] (T_split + T_average / I) / (1 − noise − drift); infinite where the bound can't be reached."""
    all_arrive = np.ones(round_.num_clients)
    power_w, patient = round_.radio.max_tx_power_w * all_arrive, replace(round_, outage_s=np.inf)
    split_s = cost_of_all_cuts(patient, rb_count, power_w, all_arrive, ON_DEMAND).delay_s[:, None]
    averaged_s = cost_of_all_cuts(patient, rb_count, power_w, all_arrive, SFL).delay_s[:, None]
    round_s = split_s + (averaged_s - split_s) / INTERVALS
    share = round_.profile.client_param_bits[round_.profile.cuts] / round_.profile.client_param_bits[-1]
    drift = drift_weight * np.where(INTERVALS > 1, INTERVALS**2, 0) * share[:, None]
    progress = 1 / (1 + noise_scale / round_.num_clients) - drift
    late = np.asarray(~cost_of_all_cuts(round_, rb_count, power_w, all_arrive, SFL).in_time.all(axis=1))
    times = np.where(progress > 0, round_s / np.where(progress > 0, progress, 1.0), np.inf)
    return times if late.all() else np.where(late[:, None], np.inf, times)  # else no client would finish an average


def _counts(round_: Round, cut: int, exchange: ExchangeRules) -> Floats:
    power_w = np.full(round_.num_clients, round_.radio.max_tx_power_w)
    patient = replace(round_, outage_s=np.inf)
    return best_counts(patient, np.full(round_.num_clients, cut), power_w, exchange)
