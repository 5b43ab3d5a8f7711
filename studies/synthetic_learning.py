"""How rounds without training are made to resemble trained ones, and how well they do. About 20 minutes.

python -m studies.synthetic_learning out [--rounds 300]

Reads the recorded runs of docs/results. All seeds of a world but the last one are fitted to; the last one's rounds are
played and compared with the trained ones. Writes the constants and the errors into
src/asfl/runs/synthetic_learning.json, which ships, and a table for docs/schemes.md into the folder.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asfl.costs.world import World
from asfl.models.profile import ModelProfile
from asfl.results.curves import Run
from asfl.results.reproduce.archive import RunKey, read_archive, runs_of
from asfl.results.tables import Table
from asfl.runs import state
from asfl.runs.play import HeldOut, play
from asfl.runs.state import FITTED, Drift, SyntheticLearning
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of

RECORDS = Path(__file__).parents[1] / "docs/results/records.jsonl.xz"
TABLE = Path(state.__file__).with_name(FITTED)
DRIFTING = ("asfl", "asfl-pmax", "asfl-prand", "asfl-rbrand", "sfl-cut2", "sfl-cut3")
AVERAGING = ("sfl-best", "sl-best")
COMPARED = ("asfl", "asfl-plus", "sfl-best", "sl-best", "fedavg")
"""Schemes whose recorded rounds were decided as they are today."""
WORLDS = (
    "vgg19-cifar10", "vgg19-cifar10,dirichlet_alpha=0.1", "resnet18-cifar100", "small-cifar10",
    "small-cifar10,clients=50", "small-cifar10,penalty_weight=100", "small-cifar10,queue_rule=printed",
)  # fmt: skip
EXPONENTS = np.arange(1.0, 2.01, 0.05)
ROUNDS = 300


def main(folder: Path, rounds: int = ROUNDS) -> None:
    runs = {
        key: run
        for key, run in runs_of(read_archive(RECORDS)).items()
        if run.config and run.config.decision.equations == "corrected" and not run.config.scenario.channel.trace_file
    }
    last = {world: max(seed for where, _, seed in runs if where == world) for world, _, _ in runs}
    fitted_to = {key: run for key, run in runs.items() if key[2] != last[key[0]]}
    drift = fit(fitted_to)
    asked = [(key, runs[key]) for world in WORLDS for name in COMPARED if (key := (world, name, last[world])) in runs]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(compared, *zip(*[(run, drift, rounds) for _, run in asked], strict=True)))
    errors = {
        name: _mean([pair for (key, _), pair in zip(asked, found, strict=True) if key[1] == name]) for name in COMPARED
    }
    table = {"drift": asdict(drift), "held_out": {name: asdict(error) for name, error in errors.items()}}
    TABLE.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
    text = "\n".join(_page([key for key, _ in asked], found))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stand-in.md").write_text(text, "utf-8")
    print(TABLE.read_text("utf-8"), text)


def fit(runs: dict[RunKey, Run]) -> Drift:
    """The power law that is nearest to recorded spreads in the mean squared logarithm; every network counts alike."""
    of_network: dict[str, list[Run]] = {}
    for (world, scheme, _), run in runs.items():
        if scheme in DRIFTING:
            of_network.setdefault(world.partition("-")[0], []).append(run)
    profiles = {id(run): _profile(run) for of in of_network.values() for run in of}
    best: tuple[float, float, float] | None = None
    for exponent in EXPONENTS:
        law = Drift(1.0, float(exponent))
        logs = [np.concatenate([_residuals(run, profiles[id(run)], law) for run in of]) for of in of_network.values()]
        middle = float(np.mean([one.mean() for one in logs]))
        error = float(np.mean([np.square(one - middle).mean() for one in logs]))
        if best is None or error < best[0]:
            best = error, float(exponent), middle
    assert best is not None
    lost = [_lost_update(run) for (_, scheme, _), run in runs.items() if scheme in AVERAGING]
    print(f"fitted to {len(profiles)} runs: spreads within a factor of {np.exp(best[0] ** 0.5):.2f} (root mean square)")
    return Drift(round(float(np.exp(best[2])), 2), round(best[1], 2), round(float(np.mean(lost)), 2))


def _profile(run: Run) -> ModelProfile:
    assert run.config is not None
    return World.of(run.config).profile


def _residuals(run: Run, profile: ModelProfile, law: Drift) -> NDArray[np.float64]:
    """Logarithms of recorded spreads, in updates, divided by those of a law, where client sides have drifted apart.

    The discrepancy is the spread in updates, plus the share of updates that is expected to be lost.
    """
    state, before, logs = SyntheticLearning.fresh(profile, len(run.records[0].arrived), law), None, []
    for record in run.records:
        assert isinstance(record.cut, int)
        assumed = state.layer_spread[: min(record.cut, before or record.cut)].sum()
        spread = record.discrepancy - float(np.mean(record.packet_error_rate))
        if assumed > 0 and spread > 0.5 * record.discrepancy:
            logs.append(np.log(spread / assumed))
        state = state.after(record.cut, np.array(record.arrived, dtype=bool))
        before = record.cut if record.scheduled_count else before
    return np.array(logs)


def _lost_update(run: Run) -> float:
    """What is lost, in mean updates so far, over the error rate; where client sides are averaged nothing else is."""
    expected = sum(float(np.mean(one.packet_error_rate)) for one in run.records)
    return sum(one.discrepancy for one in run.records) / expected


Means = tuple[float, float, float, float]
"""Delay and energy of a round, cut, in which share of the rounds it moves."""


def compared(run: Run, drift: Drift, rounds: int) -> tuple[Means, Means]:
    """Trained, and played in the same world with the same seed."""
    assert run.config is not None
    world, scheme = World.of(run.config), scheme_named(run.scheme)
    records = run.records[:rounds]
    played = list(play(world, scheme, len(records), budgets_of(world, scheme), drift))
    trained = [(one.delay_s, sum(one.energy_j), one.mean_cut) for one in records]
    return _means(trained), _means((one.delay_s, sum(one.energy_j), one.mean_cut) for one in played)


def _means(rows: Iterable[tuple[float, float, float]]) -> Means:
    rounds = np.array(list(rows))
    delay, energy, cut = rounds.mean(axis=0).tolist()
    return delay, energy, cut, float((np.diff(rounds[:, 2]) != 0).mean())


def _mean(pairs: Sequence[tuple[Means, Means]]) -> HeldOut:
    trained, played = (np.array(side) for side in zip(*pairs, strict=True))
    delay, energy = np.abs(played / trained - 1)[:, :2].mean(axis=0).tolist()
    cut = float(np.abs(played - trained)[:, 2].mean())
    return HeldOut(len(pairs), round(delay, 3), round(energy, 3), None if np.isnan(cut) else round(cut, 2))


def _page(keys: Sequence[RunKey], found: Sequence[tuple[Means, Means]]) -> Iterable[str]:
    rows = []
    for (world, scheme, seed), (trained, played) in zip(keys, found, strict=True):
        known = not np.isnan(trained[2])
        cuts = [f"{one[2]:.1f}, {100 * one[3]:.0f} %" if known else "–" for one in (trained, played)]
        shares = [f"{100 * here / there:.0f} %" for here, there in zip(played[:2], trained[:2], strict=True)]
        rows.append([world, scheme, str(seed), *cuts, *shares])
    header = [
        "world",
        "scheme",
        "seed",
        "cut and its moves, trained",
        "played",
        "delay of the trained",
        "energy of the trained",
    ]
    yield Table(header=header, rows=rows, words=2).markdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    main(given.folder, given.rounds)
