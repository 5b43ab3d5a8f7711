"""A training round beside plain centralised training and the SplitFed pattern; how many clients to merge.

Random images: speed doesn't depend on what is in them. The comparisons are as good as they come: centralised training
is channels-last, with fused Adam, the mini-batches and the memory setting of our rounds. The SplitFed pattern runs as
such programs do, without any of these.
"""

from collections.abc import Sequence
from itertools import count

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from asfl.config.names import ModelSpec
from asfl.costs.modelled import ASFL
from asfl.data import ImageData
from asfl.models.build import build_model
from asfl.models.cuttable import CuttableModel
from asfl.models.load import load_profile
from asfl.runs.simulation import clients_a_pass
from asfl.train.batches import Batches
from asfl.train.optimizers import Adam
from asfl.train.signals import RoundPlan
from asfl.train.steps import Trainer
from benchmarks.splitfed_pattern import SplitFedPattern
from benchmarks.turns import OwnProcess, Play, ratio, take_turns, timed, training_threads

CPU = torch.device("cpu")
CLIENTS, BATCH, RATE = 10, 64, 1e-3
SAMPLES_OF_CLIENT = 256


def round_table(models: Sequence[str], threads: int, repeats: int) -> Table:
    """Our round at two cuts, centralised training on as many samples, the SplitFed pattern at the same cuts."""
    table = Table(
        title=f"training, {CLIENTS} clients x {BATCH} samples, Adam, batch norm, threads: {threads} "
        "(targets: 0.9 x centralised, 2 x SplitFed pattern)"
    )
    columns = "model", "cut", "ours (samples/s)", "centralised", "SplitFed", "ours / centralised", "ours / SplitFed"
    for column in columns:
        table.add_column(column, justify="right")
    for name in models:
        cuts = _cuts(name)
        candidates = {"centralised": OwnProcess(threads, True, centralised_rounds, name)}
        for cut in cuts:
            candidates[f"ours {cut}"] = OwnProcess(threads, True, fast_rounds, name, cut, default_merge(name))
            candidates[f"SplitFed {cut}"] = OwnProcess(threads, False, splitfed_rounds, name, cut)
        seconds = take_turns(candidates, repeats)
        for candidate in candidates.values():
            candidate.close()
        for cut in cuts:
            ours, others = seconds[f"ours {cut}"], (seconds["centralised"], seconds[f"SplitFed {cut}"])
            speeds = [f"{CLIENTS * BATCH / np.median(turns):,.0f}" for turns in (ours, *others)]
            table.add_row(name, str(cut), *speeds, *(ratio(other, ours) for other in others))
    return table


def merge_table(models: Sequence[str], threads: int, repeats: int) -> Table:
    """The same round with 1, 2, 5 or all clients in a server pass."""
    sizes = (1, 2, 5, CLIENTS)
    table = Table(title=f"clients per server pass: speed over one by one, threads: {threads}")
    for column in ("model", "cut", *(str(size) for size in sizes[1:]), "asfl's choice"):
        table.add_column(column, justify="right")
    with training_threads(threads):
        for name in models:
            for cut in _cuts(name):
                seconds = take_turns({str(size): timed(fast_rounds(name, cut, size)) for size in sizes}, repeats)
                ratios = (ratio(seconds["1"], seconds[str(size)]) for size in sizes[1:])
                table.add_row(name, str(cut), *ratios, str(default_merge(name)))
    return table


def fast_rounds(name: str, cut: int, merge: int) -> Play:
    """Rounds of ASFL in which everybody arrives, one more with each call."""
    trainer = new_trainer(new_model(name), new_batches(_images(), CLIENTS), CLIENTS, merge)
    indices = count()
    return lambda: trainer.round(full_round(next(indices), cut, CLIENTS))


def centralised_rounds(name: str) -> Play:
    """The whole model on the mini-batches of all clients in turn, one step for each."""
    model = new_model(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    batches, indices = new_batches(_images(), CLIENTS), count()

    def play() -> Tensor:
        index, losses = next(indices), []
        for client in range(CLIENTS):
            images, labels = batches.batch(index, client)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return play


def splitfed_rounds(name: str, cut: int) -> Play:
    data = _images()
    pattern = SplitFedPattern(
        new_model(name), data, _parts(data, CLIENTS), lambda parameters: torch.optim.Adam(parameters, lr=RATE),
        cut=cut, batch_size=BATCH, augment=True,
    )  # fmt: skip
    return pattern.round


def default_merge(name: str) -> int:
    """How many clients `Simulation` lets share a server pass."""
    return clients_a_pass(load_profile(name), BATCH, CLIENTS)


def new_model(name: str) -> CuttableModel:
    torch.manual_seed(0)
    return build_model(ModelSpec.parse(name))


def random_images(samples: int) -> ImageData:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, samples)
    return ImageData("random", images, labels, images, labels, 10, mean=(0.5,) * 3, std=(0.25,) * 3)


def new_batches(data: ImageData, clients: int, batch_size: int = BATCH) -> Batches:
    return Batches(data, _parts(data, clients), batch_size=batch_size, seed=0, augment=True, device=CPU)


def new_trainer(model: CuttableModel, batches: Batches, clients: int, merge: int) -> Trainer:
    return Trainer(model, batches, ASFL, Adam(RATE), num_clients=clients, seed=0, device=CPU, merge=merge)


def full_round(index: int, cut: int, clients: int) -> RoundPlan:
    everybody = np.ones(clients, dtype=bool)
    return RoundPlan(index, np.full(clients, cut), everybody, everybody)


def _cuts(name: str) -> tuple[int, int]:
    """The first, and one in the middle."""
    return 1, load_profile(name).num_layers // 2


def _images() -> ImageData:
    return random_images(CLIENTS * SAMPLES_OF_CLIENT)


def _parts(data: ImageData, clients: int) -> NDArray[np.int64]:
    return np.arange(len(data.train_labels)).reshape(clients, -1)
