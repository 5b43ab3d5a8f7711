"""Radio only: channel -> decide -> account, round after round, with a stand-in for the learning state."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.costs.account import ModelledAccountant
from asfl.costs.budgets import Budgets
from asfl.costs.reserves import Reserves
from asfl.costs.world import World
from asfl.optimize import Queues
from asfl.runs.synthetic_learning import Drift, SyntheticLearning
from asfl.runs.this_process import leave_ctrl_c_to_the_parent
from asfl.schemes import Scheme, scheme_named
from asfl.schemes.base import switches_of
from asfl.schemes.rounds import RadioState, account_round, budgets_of, decide_round, rules_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """What one round left behind."""

    cut: float
    """Mean over the clients that took part, for schemes with one cut per client; NaN for FedAvg, which has none."""
    delay_s: float
    resplit_delay_s: float
    energy_j: Floats
    """[N]"""
    scheduled: NDArray[np.bool_]
    arrived: NDArray[np.bool_]
    packet_error_rate: float
    """Expected, mean over the clients that took part; 1 if nobody did."""
    spread: float
    """How many updates the client sides have drifted apart at the start of stage 2; 0 for schemes that average them
    every round."""
    queues: Queues
    """After the round."""
    bits: float
    """Mean over the clients that took part."""
    synced: int
    """How many client-side layers were averaged."""
    reserves: Reserves | None
    """What is left of total budgets after the round; None without any."""


def play(
    world: World, scheme: Scheme, rounds: int, budgets: Budgets, drift: Drift | None = None
) -> Iterator[PlayedRound]:
    """Play so many rounds of one scheme in a world, or until a total budget is used up; `drift`: None as fitted."""
    rules, clients, seed = (
        rules_of(world.config, budgets, switches_of(scheme)),
        world.config.scenario.clients,
        world.config.scenario.seed,
    )
    state = RadioState.fresh(clients, Reserves.of(world.config))
    learning = of_reference = SyntheticLearning.fresh(world.profile, clients, drift)
    accountant = ModelledAccountant(world.config.decision.charge)
    time_s = 0.0
    for index in range(rounds):
        round_ = world.begin_round(index, state.previous_cut, time_s)
        decided = decide_round(
            round_, scheme, rules, learning.learning(), state, seed, budgets, None, of_reference.learning()
        )
        accounted = account_round(decided, accountant, accountant, state, seed)
        state, decision, charge = accounted.state, decided.decision, accounted.charge
        time_s += float(charge.delay_s)
        spread = (
            float(learning.layer_spread[: int(np.min(decision.cut))].sum())
            if scheme.exchange.keeps_client_sides
            else 0.0
        )
        if np.ndim(decision.cut) == 0 or scheme.exchange.on_demand:
            learning = learning.after(int(np.max(decision.cut)), decided.arrived, decision.synced)
        of_reference = of_reference.after(int(np.max(accounted.answering.cut)), accounted.answering_arrived)
        scheduled = decision.scheduled
        cuts = np.broadcast_to(decision.cut, scheduled.shape)
        cut = float(cuts[scheduled].mean()) if scheduled.any() else float(cuts.mean())
        yield PlayedRound(
            cut=np.nan if scheme.exchange.full_local_model else cut,
            delay_s=float(charge.delay_s),
            resplit_delay_s=float(charge.resplit_delay_s),
            energy_j=charge.energy_j,
            scheduled=scheduled,
            arrived=decided.arrived,
            packet_error_rate=float(charge.packet_error_rate[scheduled].mean()) if scheduled.any() else 1.0,
            spread=spread,
            queues=state.queues,
            bits=float(np.broadcast_to(decision.bits, scheduled.shape)[scheduled].mean())
            if scheduled.any()
            else np.nan,
            synced=decision.synced,
            reserves=state.reserves,
        )
        if state.reserves is not None and state.reserves.used_up:
            return


@dataclass(frozen=True, eq=False)
class Playthrough:
    """All rounds of one scheme with one seed."""

    scheme: str
    seed: int
    budgets: Budgets
    rounds: tuple[PlayedRound, ...]

    def summary(self) -> dict[str, float]:
        """Means over rounds; violations are how far the averages are over budget, as a share of it."""
        delay = np.array([played.delay_s for played in self.rounds])
        energy = np.array([played.energy_j for played in self.rounds])
        cuts = np.array([played.cut for played in self.rounds])
        served = np.array([played.scheduled for played in self.rounds])
        arrived = np.array([played.arrived for played in self.rounds])
        resplit = sum(played.resplit_delay_s for played in self.rounds)
        energy_over = energy.mean(axis=0) / self.budgets.energy_j - 1
        return {
            "delay_s": float(delay.mean()),
            "median_delay_s": float(np.median(delay)),
            "energy_j": float(energy.sum(axis=1).mean()),
            "median_energy_j": float(np.median(energy.sum(axis=1))),
            "packet_error_rate": float(np.mean([played.packet_error_rate for played in self.rounds])),
            "updates_per_round": float(arrived.sum(axis=1).mean()),
            "least_served_share": float(served.mean(axis=0).min()),
            "spread": float(np.mean([played.spread for played in self.rounds])),
            "cut": float(cuts.mean()),
            "cut_switches": _share_of_moves(cuts),
            "resplit_share": float(resplit / max(delay.sum(), 1e-300)),
            "delay_queue": float(np.mean([played.queues.delay for played in self.rounds])),
            "energy_queue": float(np.mean([played.queues.energy.mean() for played in self.rounds])),
            "delay_violation": max(float(delay.mean() / self.budgets.delay_s - 1), 0.0),
            "energy_violation": max(float(energy_over.max()), 0.0),
        }


def _share_of_moves(cuts: Floats) -> float:
    """How often the cut differs from the round before; NaN without a cut."""
    if np.isnan(cuts).any():
        return np.nan
    return float((np.diff(cuts) != 0).mean()) if len(cuts) > 1 else 0.0


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
