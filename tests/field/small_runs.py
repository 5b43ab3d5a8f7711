"""Tiny runs of four clients, in one process and over links, and what must be the same in both."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from asfl.checkpoints import load_checkpoint
from asfl.config import Config, Deadlines, load_config
from asfl.costs import Procedure
from asfl.data import load_data
from asfl.decision import Decision
from asfl.field.client import ClientNode
from asfl.field.links import Link, LocalLink
from asfl.field.remote import remote_fleet
from asfl.field.roll import Patience
from asfl.field.terms import Terms
from asfl.optimize import Problem
from asfl.records import RoundRecord, read_records
from asfl.run import CHECKPOINTS, MODEL_FILE, read_manifest
from asfl.schemes import scheme_named
from asfl.schemes.base import Decided, itself
from asfl.simulate import Simulation
from asfl.train.fleet import FleetMaker, LocalFleet

CLIENTS = 4
PATIENT = Patience(Deadlines(**dict.fromkeys(Deadlines.model_fields, 100.0)), nobody_s=100.0)
"""Nobody is lost for being slow."""
_TINY = [
    f"scenario.clients={CLIENTS}", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8",
    "output.test_samples=20", "output.track=none", "decision.delay_budget_s=0.3", "decision.energy_budget_j=0.1",
]  # fmt: skip
EVERYBODY_ARRIVES = ("radio.num_rbs=4", "radio.waterfall_threshold=1e-9")


def tiny(*overrides: str, rounds: int = 10) -> Config:
    return load_config("demo", [*_TINY, f"training.rounds={rounds}", *overrides]).config


def terms_of(config: Config, scheme: str) -> Terms:
    return Terms(config, scheme, threads=1)


@contextmanager
def local_links(terms: Terms, data_dir: Path | None = None) -> Iterator[list[LocalLink]]:
    """All clients in this process."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield [LocalLink(ClientNode(terms.welcome(client), data_dir), pool) for client in range(CLIENTS)]


def assert_same_run(found: Path, expected: Path) -> None:
    """Every bit of the model and of the state, and every record.

    All but `resplit_shift`, for which layers would be needed that nobody sends.
    """
    assert comparable(read_records(found)) == comparable(read_records(expected))
    assert (found / MODEL_FILE).read_bytes() == (expected / MODEL_FILE).read_bytes()
    fingerprint = read_manifest(expected).fingerprint
    states = [load_checkpoint(folder / CHECKPOINTS, fingerprint) for folder in (found, expected)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[1].items():
        assert tensor.shape == states[0][name].shape, name
        assert tensor.numpy().tobytes() == states[0][name].numpy().tobytes(), name


def comparable(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    return [replace(record, resplit_shift=0.0) for record in records]


# ---------------------------------------------------------------------- rounds as a test wishes them
@dataclass(frozen=True)
class Planned:
    """Everybody has a block, and the cut is the one on the list."""

    procedure: Procedure
    cuts: Sequence[int]
    name: str = "planned"

    def decide(self, problem: Problem, seed: int) -> Decided:
        cut = self.cuts[problem.round.index % len(self.cuts)]
        power = np.full(CLIENTS, problem.round.radio.max_tx_power_w)
        return itself(Decision(cut, np.ones(CLIENTS), power))


def planned_simulation(terms: Terms, cuts: Sequence[int], fleet: FleetMaker = LocalFleet) -> Simulation:
    scheme = Planned(scheme_named(terms.scheme).procedure, cuts)
    return Simulation(terms.config, scheme, load_data(terms.config), fleet=fleet)


def over(links: Sequence[Link], patience: Patience = PATIENT) -> FleetMaker:
    return remote_fleet(links, patience)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    due = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < due, f"waited too long: {what}"
        time.sleep(0.02)
