"""One client or two of eight lie below every range, in every round: what the model is worth then.

Whatever they say, the run must end with all its rounds, no honest client may lose its place, and one liar must not cost
more than 15 points of the accuracy (`CLOSE`), and two not more than 30: activations of the right size and the wrong
sign are believed, and cost ASFL most. `python -m studies.torture liars` prints
the table of docs/security.md.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.fleet import train
from asfl.field.messages import Agreement, Answer, AnyRequest, Welcome
from asfl.runs.records import RoundRecord, read_records
from asfl.train.fleet import FirstLayers
from studies.local_links import LocalLink
from studies.torture.counts import Counts, only_errors

CLIENTS, ROUNDS = 8, 20
CLOSE = {1: 0.15, 2: 0.3}
SCHEMES = ("asfl", "sfl", "fedavg")
Bend = Callable[[Any, Tensor], Any]
"""What is said, from what is true and from what the server gave before (zeros where it gave nothing)."""


def _noise(true: Tensor, given: Tensor) -> Tensor:
    drawn = torch.Generator().manual_seed(true.numel())
    return 3 * true.std() * torch.randn(true.shape, generator=drawn, dtype=true.dtype)


ATTACKS: dict[str, Bend] = {
    "× −25": lambda true, given: -25 * true,
    "× 10": lambda true, given: 10 * true,
    "sign flip": lambda true, given: 2 * given - true,
    "noise": _noise,
    "constant": lambda true, given: torch.full_like(true, 0.3),
    "small bias": lambda true, given: true + 0.05 * true.std(),
}


class Liar(ClientNode):
    """Bends all that others are averaged with: layers, activations, sampled parameters."""

    def __init__(self, welcome: Welcome, bend: Bend) -> None:
        super().__init__(welcome)
        self._bend, self._given = bend, torch.zeros(0)

    def handle(self, request: AnyRequest) -> Answer:
        shared = self._state.server.parameters.clone()
        answer = super().handle(request)
        if isinstance(request, msg.Learn | msg.Forward) and request.side is not None:
            self._given = request.side.received(torch.zeros(())).parameters.clone()
        elif isinstance(request, msg.Gather):
            self._given = shared
        elif isinstance(request, msg.Shrink):
            self._given = shared[len(self._state.server.parameters) :]
        match answer:
            case msg.Side(layers=FirstLayers() as layers):
                return replace(answer, layers=replace(layers, parameters=self._bent(layers.parameters)))
            case msg.ClientState(side=side):
                return replace(answer, side=replace(side, parameters=self._bent(side.parameters)))
            case msg.Activations(packet=packet):
                carry = tuple(self._bend(part, torch.zeros(())) for part in packet.carry)
                return replace(answer, packet=replace(packet, carry=carry))
            case msg.Values(values=values):
                return replace(answer, values=self._bend(values, torch.zeros_like(values)))
        return answer

    def _bent(self, true: Any) -> Any:
        if not isinstance(true, Tensor) or len(true) <= 1:
            return true
        return self._bend(true, self._given if len(self._given) == len(true) else torch.zeros_like(true))


@dataclass
class Outcome:
    """Of one run."""

    accuracy: float = float("nan")
    rounds: int = 0
    out: set[int] = field(default_factory=set)
    """Who lost its place."""
    error: str = ""


@only_errors()
def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    """Each scheme with each attack, by one liar and by two; a share of them. Prints accuracies (%)."""
    counts = Counts()
    cases = [(scheme, name, liars) for scheme in SCHEMES for name in ATTACKS for liars in (1, 2)]
    cases = [cases[place] for place in np.sort(random.permutation(len(cases))[: max(1, round(share * len(cases)))])]
    honest = {
        scheme: played(scheme, (), None, folder / scheme) for scheme in SCHEMES if any(c[0] == scheme for c in cases)
    }
    for scheme, name, number in cases:
        counts.tried += 1
        liars = tuple(random.permutation(CLIENTS)[:number].tolist())
        found = played(scheme, liars, ATTACKS[name], folder / f"{scheme}-{counts.tried}")
        what = f"{scheme}, {number} × «{name}»"
        print(
            f"  {what}: {100 * found.accuracy:.1f} (honest {100 * honest[scheme].accuracy:.1f}), "
            f"{found.rounds} rounds, liars {liars}, out {sorted(found.out)} {found.error}",
            flush=True,
        )
        if found.rounds < ROUNDS:
            counts.defect("lost", f"{what}: it ended after {found.rounds} rounds: {found.error}")
        elif found.out - {*liars}:
            counts.defect("lost", f"{what}: honest clients {sorted(found.out - {*liars})} lost their places")
        elif not found.accuracy > honest[scheme].accuracy - CLOSE[number]:
            counts.defect("silent", f"{what}: accuracy {found.accuracy:.3f} instead of {honest[scheme].accuracy:.3f}")
    return counts


def played(scheme: str, liars: tuple[int, ...], bend: Bend | None, folder: Path, *settings: str) -> Outcome:
    """A run with these liars, to its end or to where it breaks."""
    agreement, error = Agreement(_config(*settings), scheme, threads=1), ""
    try:
        with _clients(agreement, liars, bend) as links:
            train(agreement, folder, links)
    except AsflError as ended:
        error = str(ended)
    records = read_records(folder)
    return Outcome(_last_accuracy(records), len(records), _out(records), error)


def _last_accuracy(records: list[RoundRecord]) -> float:
    known = [record.accuracy for record in records if record.accuracy is not None]
    return known[-1] if known else float("nan")


def _out(records: list[RoundRecord]) -> set[int]:
    faults = [fault for record in records for fault in record.faults or []]
    return {int(fault["client"]) for fault in faults if fault["stage"] == "quarantine"}


@contextmanager
def _clients(agreement: Agreement, liars: tuple[int, ...], bend: Bend | None) -> Iterator[list[LocalLink]]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        nodes = [
            Liar(agreement.welcome(n), bend) if n in liars and bend else ClientNode(agreement.welcome(n))
            for n in range(CLIENTS)
        ]
        yield [LocalLink(node, pool) for node in nodes]


def _config(*settings: str) -> Config:
    """The demo's, with enough blocks; every fifth round is scored."""
    return load_config(
        "demo",
        [
            f"scenario.clients={CLIENTS}", f"radio.num_rbs={CLIENTS}", "decision.outage_s=off",
            f"training.rounds={ROUNDS}", "output.track=none", "output.evaluate_every=5", *settings,
        ],
    ).config  # fmt: skip
