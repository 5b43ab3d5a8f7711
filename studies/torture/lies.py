"""One client lies in every round; its answers are well-formed, and all others are honest.

Each lie must cost the liar its rounds and then its place, with a fault that says why. It must cost the others nothing:
they all arrive in every round, the run ends, its model is finite, and the report can be written.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfl.cli.report import report
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.field import messages as msg
from asfl.field.client import ClientNode
from asfl.field.fleet import train
from asfl.field.messages import Agreement, Answer, AnyRequest, Welcome
from asfl.runs.records import RoundRecord, read_records
from studies.local_links import LocalLink
from studies.torture.counts import Counts, only_errors

CLIENTS, ROUNDS = 4, 6
Lie = Callable[[Answer], Answer]


def _scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor * factor


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


def _activations(change: Callable[[Any], Any]) -> Lie:
    def lie(answer: Answer) -> Answer:
        if isinstance(answer, msg.Activations):
            return replace(answer, packet=replace(answer.packet, carry=tuple(map(change, answer.packet.carry))))
        return answer

    return lie


def _norm(change: Callable[[Tensor], Tensor]) -> Lie:
    return lambda answer: replace(answer, norm2=change(answer.norm2)) if isinstance(answer, msg.Update) else answer


def _loss(change: Callable[[Tensor], Tensor]) -> Lie:
    def lie(answer: Answer) -> Answer:
        if isinstance(answer, msg.Update) and answer.loss is not None:
            return replace(answer, loss=change(answer.loss))
        return answer

    return lie


def _layers(part: str, change: Callable[[Tensor], Tensor]) -> Lie:
    def changed(layers: Any) -> Any:
        return replace(layers, **{part: change(getattr(layers, part))})

    def lie(answer: Answer) -> Answer:
        if isinstance(answer, msg.Side) and answer.layers is not None:
            return replace(answer, layers=changed(answer.layers))
        if isinstance(answer, msg.ClientState):
            return replace(answer, side=changed(answer.side))
        return answer

    return lie


def _projections(change: Callable[[Tensor], Tensor]) -> Lie:
    def lie(answer: Answer) -> Answer:
        if not isinstance(answer, msg.Projected):
            return answer
        return replace(answer, projections=replace(answer.projections, step=change(answer.projections.step)))

    return lie


def _labels(answer: Answer) -> Answer:
    if not isinstance(answer, msg.Activations):
        return answer
    return replace(answer, packet=replace(answer.packet, labels=answer.packet.labels + 100))


@dataclass(frozen=True)
class Case:
    """A lie, and a scheme in which it could do harm."""

    name: str
    scheme: str
    lie: Lie


LIES = [
    Case("‖update‖² = −1e30", "asfl", _norm(_filled(-1e30))),
    Case("‖update‖² = 3e38", "asfl", _norm(_filled(3e38))),
    Case("‖update‖ × 1,000", "asfl", _norm(_scaled(1e6))),
    Case("activations × 1e6", "asfl", _activations(_scaled(1e6))),
    Case("activations × 1,000", "sfl", _activations(_scaled(1e3))),
    Case("activations = 3e38", "asfl", _activations(_filled(3e38))),
    Case("activations = NaN", "sfl", _activations(_filled(float("nan")))),
    Case("labels that don't exist", "asfl", _labels),
    Case("parameters = 3e38", "sfl", _layers("parameters", _filled(3e38))),
    Case("parameters × 10,000", "sfl", _layers("parameters", _scaled(1e4))),
    Case("parameters = NaN, for an evaluation", "asfl", _layers("parameters", _filled(float("nan")))),
    Case("statistics = 3e38", "sfl", _layers("statistics", _filled(3e38))),
    Case("negative variances", "fedavg", _layers("statistics", _scaled(-1.0))),
    Case("projections = 3e38", "asfl", _projections(_filled(3e38))),
    Case("a loss of 3e38", "fedavg", _loss(_filled(3e38))),
    Case("busy for 1e300 s, consumes 1e300 J", "asfl", lambda answer: replace(answer, busy_s=1e300, energy_j=1e300)),
]


class Liar(ClientNode):
    """Does what it should, and says something else."""

    def __init__(self, welcome: Welcome, lie: Lie) -> None:
        super().__init__(welcome)
        self._lie = lie

    def handle(self, request: AnyRequest) -> Answer:
        answer = super().handle(request)
        return answer if isinstance(request, msg.Sync) else self._lie(answer)


@only_errors()
def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    """Each lie once, by a client that is drawn; a share of them, at least two."""
    counts = Counts()
    for place in np.sort(random.permutation(len(LIES))[: max(2, round(share * len(LIES)))]):
        counts.tried += 1
        case, liar = LIES[place], int(random.integers(CLIENTS))
        for kind, what in told(case, liar, folder / f"lie-{place}"):
            counts.defect(kind, f"{case.name} ({case.scheme}): {what}")
    return counts


def told(case: Case, liar: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Play a run with this liar; its defects."""
    config = _config()
    try:
        with _clients(Agreement(config, case.scheme, threads=1), liar, case.lie) as links:
            finished = train(Agreement(config, case.scheme, threads=1), folder, links)
    except AsflError as error:
        yield "lost", str(error)
        return
    except Exception as error:
        yield "tracebacks", repr(error)
        return
    if not finished:
        yield "lost", "the run isn't finished"
    records = read_records(folder)
    yield from _wrong(records, liar)
    try:
        with redirect_stdout(None):
            report([folder], folder / "report.html", no_figures=True)
    except Exception as error:
        yield "tracebacks", f"report: {error!r}"


def _wrong(records: list[RoundRecord], liar: int) -> Iterator[tuple[str, str]]:
    faults = [fault for record in records for fault in record.faults or []]
    if not faults:
        yield "silent", "no fault was recorded"
    elif not any(fault["stage"] == "quarantine" for fault in faults):
        yield "silent", "the liar kept its place"
    if others := {fault["client"] for fault in faults} - {liar}:
        yield "lost", f"clients {sorted(others)} were lost too"
    for record in records:
        there = [arrived for client, arrived in enumerate(record.arrived) if client != liar]
        if not all(there):
            yield "lost", f"round {record.round}: only {sum(there)} others arrived"
        if not np.isfinite([record.test_loss or 0.0, record.train_loss or 0.0, record.update_scale]).all():
            yield "lost", f"round {record.round}: something isn't finite"
        if not 1e-8 < record.update_scale < 1e4:
            yield "silent", f"round {record.round}: the scale of updates is {record.update_scale:g}"


@contextmanager
def _clients(agreement: Agreement, liar: int, lie: Lie) -> Iterator[list[LocalLink]]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        nodes = [
            Liar(agreement.welcome(client), lie) if client == liar else ClientNode(agreement.welcome(client))
            for client in range(CLIENTS)
        ]
        yield [LocalLink(node, pool) for node in nodes]


def _config() -> Config:
    """Every packet arrives: who is lost is lost by a fault."""
    return load_config(
        "demo",
        [
            f"scenario.clients={CLIENTS}", f"radio.num_rbs={CLIENTS}", "radio.waterfall_threshold=1e-9",
            "decision.outage_s=off", "model.width=0.1", "training.batch_size=8", f"training.rounds={ROUNDS}",
            "output.test_samples=50", "output.track=none", "data.dirichlet_alpha=1",
            "decision.delay_budget_s=0.3", "decision.energy_budget_j=0.1",
        ],
    ).config  # fmt: skip
