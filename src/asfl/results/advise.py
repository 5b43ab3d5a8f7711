"""Which scheme suits a world: what rounds cost is played, what training needs is measured.

Delay and energy of a training are those of an update that arrives (played in this world) times the number of updates
that reach an accuracy. How many that are, only training can tell: it is that of runs on the same data with the same
network, in the world with the nearest label mix. Without such runs there are costs by update, and no best scheme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from asfl.config import Config
from asfl.costs.world import World, resolve_budgets
from asfl.results.curves import Curve, Run, reach
from asfl.results.reproduce.archive import Found
from asfl.results.summary import choose_targets, said_once, trained_and_charged
from asfl.runs.play import Playthrough, play_all
from asfl.schemes import SAME_TOOLS

ADVISED = ("asfl-plus", "asfl", "fedavg", "sl-best", "sfl-best", "sfl-best:mix=on", "acc-sfl", "epsl", *SAME_TOOLS)


@dataclass(frozen=True)
class Learnt:
    """How many updates reach an accuracy, as measured."""

    where: str
    target: float
    updates: dict[str, float]
    """By scheme: median over seeds; schemes that don't get there with every seed are left out."""
    never: tuple[str, ...]
    """Schemes that were trained and didn't get there."""


@dataclass(frozen=True)
class Candidate:
    """One scheme in the world that was asked about; means over played rounds and seeds."""

    scheme: str
    round_delay_s: float
    round_energy_j: float
    """Of all clients."""
    updates: float
    """That arrive in a round."""
    cut: float
    bits: float
    averages: float
    """Share of rounds that average client sides in part; of schemes that decide it."""
    needed: float | None
    """Updates to the accuracy; None where no run tells."""
    weight: float
    """What a joule weighs against a second."""

    @property
    def delay_s(self) -> float:
        """Of the whole training, or else of an update that arrives; so is the energy."""
        return self.round_delay_s * (self.needed or 1.0) / self.updates if self.updates else math.inf

    @property
    def energy_j(self) -> float:
        return self.round_energy_j * (self.needed or 1.0) / self.updates if self.updates else math.inf

    @property
    def price(self) -> float:
        """Seconds, and joules as seconds."""
        return self.delay_s + self.weight * self.energy_j


@dataclass(frozen=True)
class Advice:
    """All schemes, the cheapest first."""

    config: Config
    candidates: tuple[Candidate, ...]
    learnt: Learnt | None
    rounds: int
    seeds: int

    @property
    def best(self) -> Candidate | None:
        """None without trained runs."""
        return self.candidates[0] if self.learnt else None


def advise(
    config: Config,
    rounds: int,
    seeds: int,
    learnt: Learnt | None = None,
    *,
    schemes: Sequence[str] = ADVISED,
) -> Advice:
    """Play every scheme in this world."""
    played_with = range(config.scenario.seed, config.scenario.seed + seeds)
    known = [name for name in schemes if learnt is None or name in learnt.updates]
    played = play_all(config, known, played_with, rounds)
    weight = joule_in_seconds(config)
    found = [
        _candidate(name, [one for one in played if one.scheme == name], learnt, weight) for name in dict.fromkeys(known)
    ]
    return Advice(config, tuple(ranked(found)), learnt, rounds, seeds)


def ranked(found: Iterable[Candidate]) -> list[Candidate]:
    """The cheapest first."""
    return sorted(found, key=lambda one: one.price)


def joule_in_seconds(config: Config) -> float:
    """T / γ + energy_price · Σ E / (N δ), in seconds: what `asfl-plus` weighs a round by (docs/schemes.md)."""
    budgets = resolve_budgets(World.of(config))
    return config.decision.energy_price * budgets.delay_s / (config.scenario.clients * budgets.energy_j)


def _candidate(scheme: str, played: Sequence[Playthrough], learnt: Learnt | None, weight: float) -> Candidate:
    rounds = [one for of_seed in played for one in of_seed.rounds]
    return Candidate(
        scheme,
        float(np.mean([one.delay_s for one in rounds])),
        float(np.mean([sum(one.energy_j) for one in rounds])),
        float(np.mean([one.arrived_count for one in rounds])),
        float(np.mean([one.mean_cut for one in rounds])),
        float(np.nanmean([one.mean_bits for one in rounds])),
        float(np.mean([bool(one.synced) for one in rounds])),
        None if learnt is None else learnt.updates[scheme],
        weight,
    )


def learnt_like(config: Config, found: Sequence[Found]) -> Learnt | None:
    """What runs in a similar world needed to get to the accuracy that most schemes reach; None if there are none."""
    worlds: dict[str, list[Run]] = {}
    for point in (point for one in found for point in one.points):
        runs = worlds.setdefault(point.world, [])
        runs += [run for run in point.runs if _is_similar(run, config) and not any(run is other for other in runs)]
    similar = {world: runs for world, runs in worlds.items() if runs}
    if not similar:
        return None
    wanted = math.log(config.data.dirichlet_alpha)
    nearest = min(similar, key=lambda world: (abs(wanted - _log_mix(similar[world][0])), -len(similar[world])))
    runs = [run for run in similar[nearest] if not run.is_ceiling]
    for target in reversed(choose_targets(runs)):
        updates = {scheme: updates_to(runs, scheme, target) for scheme in dict.fromkeys(run.scheme for run in runs)}
        reached = {scheme: count for scheme, count in updates.items() if count is not None}
        if 2 * len(reached) > len(updates):
            model = said_once(trained_and_charged(run.config) for run in runs)
            where = f"{nearest}, {model}" if model else nearest
            return Learnt(where, target, reached, tuple(name for name in updates if name not in reached))
    return None


def updates_to(runs: Sequence[Run], scheme: str, target: float) -> float | None:
    """Median over seeds of the updates that arrived until a target was reached; None unless every seed got there."""
    counts = []
    for run in (run for run in runs if run.scheme == scheme):
        end = reach(Curve.of(run.records), target)
        if end is None:
            return None
        counts.append(sum(record.arrived_count for record in run.records if record.round <= end.round))
    return float(median(counts)) if counts else None


def _is_similar(run: Run, config: Config) -> bool:
    theirs, ours = run.config, config.for_scheme(run.scheme)
    return theirs is not None and (
        (theirs.data.name, theirs.model.architecture) == (ours.data.name, ours.model.architecture)
        and theirs.training.local_steps == ours.training.local_steps
    )


def _log_mix(run: Run) -> float:
    assert run.config is not None
    return math.log(run.config.data.dirichlet_alpha)
