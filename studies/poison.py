"""One poisoned client of ten: what three attacks do to the model, by what averages are.

Clients are in this process, so nobody is refused for what is unusual (`asfl.field.outliers`): it is averages alone that
stand against the poison. Digits, the demo's network; the score is that of the average model.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from asfl.config import load_config
from asfl.data import deal, load_data
from asfl.models.build import build_model
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from asfl.train.evaluate import Calibrator, Evaluator
from asfl.train.fleet import FirstLayers, LocalFleet, Norms, Packet
from asfl.train.optimizers import rule_named
from asfl.train.quantise import Crossing
from asfl.train.signals import RoundPlan, Task
from asfl.train.state import Combining
from asfl.train.steps import Trainer

SEEDS, ROUNDS, CLIENTS, CLASSES = (1, 2, 3), 24, 10, 10
SCHEMES = ("asfl", "sfl", "fedavg")
MOVING_CUTS = (2, 4, 3, 1)
ATTACKS = ("none", "sign flip", "×1,000", "label flip")
RULES = {
    "mean": (),
    "clip 3": ("robust.clip=3",),
    "median": ("robust.average=median",),
}
CPU = torch.device("cpu")
Job = tuple[str, str, str, int]


class PoisonedFleet(LocalFleet):
    """Client 0 attacks with everything it sends: activations, labels, layers."""

    def __init__(self, attack: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attack = attack

    @property
    def _factor(self) -> float:
        return {"sign flip": -1.0, "×1,000": 1000.0}.get(self._attack, 1.0)

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        sent = super().forward(tasks)
        for place, task in enumerate(tasks):
            packet = sent[place]
            if task.client == 0 and packet is not None:
                carry = tuple(tensor * self._factor for tensor in packet.carry if isinstance(tensor, Tensor))
                labels = CLASSES - 1 - packet.labels if self._attack == "label flip" else packet.labels
                sent[place] = replace(packet, carry=carry, labels=labels)
        return sent

    def _forward(self, tasks: Sequence[Task]) -> list[Tensor]:
        labels = super()._forward(tasks)
        for place, task in enumerate(tasks):
            if self._attack == "label flip" and task.client == 0 and task.cut == self._layout.num_units:
                labels[place] = CLASSES - 1 - labels[place]
        return labels

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        back = list(gradients)
        for place, task in enumerate(tasks):
            if task.client == 0 and self._attack == "sign flip":  # its own side climbs
                back[place] = tuple(-tensor for tensor in back[place] if isinstance(tensor, Tensor))
        return super().backward(tasks, back)

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        given = super().give(tasks)
        for place, task in enumerate(tasks):
            if task.client != 0 or self._factor == 1:
                continue
            side, server = given[place], self.state.server.parameters
            assert side is not None
            assert isinstance(side.parameters, Tensor)
            before = server[: len(side.parameters)]
            given[place] = FirstLayers(before + self._factor * (side.parameters - before), side.statistics)
        return given


def accuracy(job: Job) -> float:
    """Of the average model, after rounds in which everybody arrives and the cut moves; without any radio."""
    scheme, attack, rule, seed = job
    torch.set_num_threads(1)
    overrides = [f"scenario.seed={seed}", f"scenario.clients={CLIENTS}", "training.local_steps=1", *RULES[rule]]
    config, exchange = load_config("demo", overrides).config, scheme_named(scheme).exchange
    data, training, robust = load_data(config), config.training, config.robust
    batches = Batches.of(data, deal(data, config), config, CPU)
    torch.manual_seed(seed)
    model = build_model(config.model_spec)
    trainer = Trainer(
        model, batches, exchange, rule_named(training.optimizer, training.learning_rate), num_clients=CLIENTS,
        seed=seed, device=CPU, merge=CLIENTS, fleet=partial(PoisonedFleet, attack),
        combining=Combining(robust.average, clip=robust.clip),
    )  # fmt: skip
    everybody = np.ones(CLIENTS, dtype=bool)
    for index in range(ROUNDS):
        cut = len(model.units) if exchange.full_local_model else MOVING_CUTS[index // 4 % len(MOVING_CUTS)]
        trainer.round(RoundPlan(index, np.full(CLIENTS, cut), everybody, everybody))
    layout = trainer.layout
    calibrated = Calibrator(model, layout, batches, CPU, torch.float32).calibrated(trainer.state.average_model())
    return Evaluator(model, layout, data, CPU, torch.float32).score(calibrated).accuracy


def main(folder: Path, schemes: Sequence[str] = SCHEMES, seeds: Sequence[int] = SEEDS) -> None:
    jobs = list(product(schemes, ATTACKS, RULES, seeds))
    with ProcessPoolExecutor() as pool:
        scores = dict(zip(jobs, pool.map(accuracy, jobs), strict=True))
    table = Table(title=f"Accuracy (%) with 1 of {CLIENTS} clients poisoned, {ROUNDS} rounds, {len(seeds)} seeds")
    for name in ("scheme", "attack", *RULES):
        table.add_column(name)
    for scheme, attack in product(schemes, ATTACKS):
        cells = [[100 * scores[scheme, attack, rule, seed] for seed in seeds] for rule in RULES]
        table.add_row(scheme, attack, *(f"{np.mean(cell):.1f} ± {np.std(cell):.1f}" for cell in cells))
    Console(width=100).print(table)
