"""Rounds that only play the radio: nothing is trained, and what the server knows of the learning is made up."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.costs.round import Decision
from asfl.costs.world import Budgets, World
from asfl.optimize import Learning
from asfl.runs.records import RoundRecord
from asfl.runs.round import play_round
from asfl.runs.state import Drift, Measured, Run, State, fitted_table
from asfl.runs.this_process import leave_ctrl_c_to_the_parent
from asfl.schemes import Scheme, scheme_named
from asfl.schemes.base import budgets_of, rules_of, switches_of
from asfl.train.signals import RoundPlan, Trained


@dataclass(frozen=True)
class NoTraining:
    """A learner without networks: updates are all alike, client sides drift apart as `SyntheticLearning` says."""

    clients: int
    cut: int = 0

    def begin(self, index: int) -> NDArray[np.bool_]:
        return np.ones(self.clients, dtype=np.bool_)

    def learning(self, state: State) -> Learning:
        return state.synthetic.learning()

    def resplit(self, plan: RoundPlan) -> float:
        return 0.0

    def train(self, plan: RoundPlan) -> Trained:
        return Trained.nothing(self.clients)

    def measure(self, state: State, decision: Decision) -> Measured:
        return Measured()


def radio_only(world: World, scheme: Scheme, budgets: Budgets) -> Run:
    rules = rules_of(world.config, budgets, switches_of(scheme))
    learner = NoTraining(world.config.scenario.clients)
    return Run(world.config, world, scheme, budgets, rules, learner, world.accountant())


def play(
    world: World, scheme: Scheme, rounds: int, budgets: Budgets, drift: Drift | None = None
) -> Iterator[RoundRecord]:
    """Play so many rounds of one scheme in a world, or until a total budget is used up; `drift`: None as fitted."""
    run, state = radio_only(world, scheme, budgets), State.fresh(world, scheme, drift, drift)
    while not state.is_last(rounds):
        state, record = play_round(run, state)
        yield record


@dataclass(frozen=True, eq=False)
class Playthrough:
    """All rounds of one scheme with one seed."""

    scheme: str
    seed: int
    budgets: Budgets
    rounds: tuple[RoundRecord, ...]

    def summary(self) -> dict[str, float]:
        """Means over rounds; violations are how far the averages are over budget, as a share of it."""
        delay = np.array([record.delay_s for record in self.rounds])
        energy = np.array([record.energy_j for record in self.rounds])
        cuts = np.array([record.mean_cut for record in self.rounds])
        served = np.array([record.rb_count for record in self.rounds]) > 0
        resplit = sum(record.resplit_delay_s for record in self.rounds)
        moves = (np.diff(cuts) != 0).mean() if len(cuts) > 1 else 0.0
        return {
            "delay_s": float(delay.mean()),
            "median_delay_s": float(np.median(delay)),
            "energy_j": float(energy.sum(axis=1).mean()),
            "median_energy_j": float(np.median(energy.sum(axis=1))),
            "packet_error_rate": float(np.mean([record.mean_packet_error_rate for record in self.rounds])),
            "updates_per_round": float(np.mean([record.arrived_count for record in self.rounds])),
            "least_served_share": float(served.mean(axis=0).min()),
            "spread": float(np.mean([record.spread for record in self.rounds])),
            "cut": float(cuts.mean()),
            "cut_switches": float(np.nan if np.isnan(cuts).any() else moves),
            "resplit_share": float(resplit / max(delay.sum(), 1e-300)),
            "delay_queue": float(np.mean([record.delay_queue for record in self.rounds])),
            "energy_queue": float(np.mean([record.energy_queue for record in self.rounds])),
            "delay_violation": max(float(delay.mean() / self.budgets.delay_s - 1), 0.0),
            "energy_violation": max(float((energy.mean(axis=0) / self.budgets.energy_j - 1).max()), 0.0),
        }


def play_all(
    config: Config,
    schemes: Sequence[str],
    seeds: Sequence[int],
    rounds: int,
    *,
    workers: int = 1,
    progress: Callable[[Playthrough], None] = lambda _: None,
) -> list[Playthrough]:
    """Every scheme with every seed, in the order asked for; `workers` processes share the jobs."""
    for name in schemes:
        scheme_named(name)
    jobs = [(name, with_seed(config, seed), rounds) for seed in seeds for name in schemes]
    results: list[Playthrough] = []
    if workers == 1:
        for job in jobs:
            results.append(_play_job(*job))
            progress(results[-1])
        return results
    with ProcessPoolExecutor(workers, initializer=leave_ctrl_c_to_the_parent) as pool:
        try:
            for played in pool.map(_play_job, *zip(*jobs, strict=True)):
                results.append(played)
                progress(played)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
    return results


def with_seed(config: Config, seed: int) -> Config:
    return config.model_copy(update={"scenario": config.scenario.model_copy(update={"seed": seed})})


def _play_job(scheme: str, config: Config, rounds: int) -> Playthrough:
    world, player = World.of(config.for_scheme(scheme)), scheme_named(scheme)
    budgets = budgets_of(world, player)
    return Playthrough(scheme, config.scenario.seed, budgets, tuple(play(world, player, rounds, budgets)))


# ---------------------------------------------------------------------- how far that is from training
@dataclass(frozen=True)
class HeldOut:
    """How far played rounds were from trained ones, on seeds that the constants weren't fitted to: means over runs."""

    runs: int
    delay: float
    """|played / trained − 1| of the mean over rounds; so is the energy."""
    energy: float
    cut: float | None
    """|played − trained| of the mean cut; None without one."""


def held_out() -> dict[str, HeldOut]:
    """By scheme; what was never trained has none."""
    return {scheme: HeldOut(**error) for scheme, error in fitted_table()["held_out"].items()}


def held_out_as_json(schemes: Iterable[str]) -> dict[str, dict[str, float | None] | None]:
    known = held_out()
    return {name: asdict(known[name]) if name in known else None for name in schemes}


def held_out_in_words(schemes: Iterable[str]) -> str:
    """What is known of the error of played rounds, and of which schemes nothing is."""
    known, names = held_out(), list(dict.fromkeys(schemes))
    told = [
        f"{name} {100 * known[name].delay:.0f} % of delay, {100 * known[name].energy:.0f} % of energy"
        + ("" if known[name].cut is None else f", mean cut off by {known[name].cut:.1f}")
        for name in names
        if name in known
    ]
    never = ", ".join(name for name in names if name not in known)
    parts = [f"Nothing is trained. Held-out error: {'; '.join(told) or 'unknown'}."]
    return " ".join([*parts, f"Never compared with training: {never}."] if never else parts)
