"""Tiny runs of four clients, in one process and over links, and what must be the same in both."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from waiting import LONG_S

from asfl.config import Config, load_config
from asfl.costs.modelled import ExchangeRules
from asfl.costs.round import Decision
from asfl.data import load_data
from asfl.field.certificates import Authority
from asfl.field.client import ClientNode
from asfl.field.fleet import remote_fleet
from asfl.field.membership import enrol_here
from asfl.field.messages import Agreement, Link
from asfl.field.roster import Patience
from asfl.field.stream import Identity
from asfl.optimize import Problem
from asfl.runs.folder import checkpoint_files, read_checkpoint
from asfl.runs.manifest import MODEL_FILE, read_manifest
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named
from asfl.train.fleet import FleetMaker, LocalFleet
from asfl.train.quantise import UNQUANTISED
from studies.local_links import LocalLink

CLIENTS = 4
PATIENT = Patience(LONG_S, nobody_s=LONG_S)
"""No client is lost for being slow."""
_TINY = [
    "decision.outage_s=off",  # who is lost here is lost by a fault
    f"scenario.clients={CLIENTS}", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8",
    "output.test_samples=20", "output.track=none", "decision.delay_budget_s=0.3", "decision.energy_budget_j=0.1",
]  # fmt: skip
EVERYBODY_ARRIVES = ("radio.num_rbs=4", "radio.waterfall_threshold=1e-9")


def tiny(*overrides: str, rounds: int = 10) -> Config:
    return load_config("demo", [*_TINY, f"training.rounds={rounds}", *overrides]).config


def agreement_of(config: Config, scheme: str) -> Agreement:
    return Agreement(config, scheme, threads=1)


def enrolled(folder: Path, clients: int = CLIENTS) -> tuple[Authority, list[Identity]]:
    """An authority, and devices that it knows: number n is client n."""
    authority, homes = Authority.of(folder / "server"), [folder / f"device-{n}" for n in range(clients)]
    return authority, [enrol_here(home, authority, home.name, "", "").files(home) for home in homes]


@contextmanager
def local_links(agreement: Agreement, data_dir: Path | None = None) -> Iterator[list[LocalLink]]:
    """All clients in this process."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield [LocalLink(ClientNode(agreement.welcome(client), data_dir), pool) for client in range(CLIENTS)]


def assert_same_run(found: Path, expected: Path) -> None:
    """Every bit of the model and of the state, and every record.

    All but `resplit_shift`, for which layers would be needed that no client sends.
    """
    assert comparable(read_records(found)) == comparable(read_records(expected))
    assert (found / MODEL_FILE).read_bytes() == (expected / MODEL_FILE).read_bytes()
    fingerprint = read_manifest(expected).fingerprint
    newest = [next(checkpoint_files(folder))[1] for folder in (found, expected)]
    states = [read_checkpoint(file, fingerprint).tensors for file in newest]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[1].items():
        assert tensor.shape == states[0][name].shape, name
        assert tensor.numpy().tobytes() == states[0][name].numpy().tobytes(), name


def comparable(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    return [replace(record, resplit_shift=0.0) for record in records]


# ---------------------------------------------------------------------- rounds as a test wishes them
@dataclass(frozen=True)
class Planned:
    """All clients have a block; cuts are as listed, and all client sides are averaged where `syncs` says so."""

    exchange: ExchangeRules
    cuts: Sequence[int]
    bits: int = UNQUANTISED
    syncs: Sequence[bool] = (False,)
    name: str = "planned"

    def decide(self, problem: Problem, seed: int) -> Decision:
        index, power = problem.round.index, np.full(CLIENTS, problem.round.radio.max_tx_power_w)
        cut, sync = self.cuts[index % len(self.cuts)], self.syncs[index % len(self.syncs)]
        return Decision(cut, np.ones(CLIENTS), power, bits=self.bits, synced=cut * sync)


def planned_simulation(agreement: Agreement, cuts: Sequence[int], fleet: FleetMaker = LocalFleet) -> Simulation:
    scheme = Planned(scheme_named(agreement.scheme).exchange, cuts)
    return Simulation(agreement.config, scheme, load_data(agreement.config), fleet=fleet)


def over(links: Sequence[Link], patience: Patience = PATIENT) -> FleetMaker:
    return remote_fleet(links, patience)
