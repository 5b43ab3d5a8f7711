"""Training: a round beside plain centralised training and the SplitFed pattern; how many clients to merge; memory;
spreads and evaluation beside plain code. Random images, as speed doesn't depend on what is in them.

Ratios are taken turn by turn, between candidates that ran right after each other: their median, and in brackets their
quartiles. With one thread, processor time is measured, since other programs disturb it less than the wall clock.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from asfl.costs import ASFL
from asfl.data import ImageData
from asfl.models import CuttableModel, build_model
from asfl.profile import ModelSpec, load_profile
from asfl.simulate import MERGED_ACTIVATIONS
from asfl.train.batches import Batches
from asfl.train.evaluate import Evaluator
from asfl.train.fast import FastTrainer
from asfl.train.layout import Layout
from asfl.train.memory import keep_freed_memory
from asfl.train.optimizers import Adam
from asfl.train.signals import layer_spreads, sample_coordinates
from asfl.train.trainer import RoundPlan
from benchmarks.splitfed_pattern import SplitFedPattern

Floats = NDArray[np.float64]
Play = Callable[[], object]
"""One round, or whatever is timed."""

CPU = torch.device("cpu")
MODELS = ("cnn-w0.5-cifar10", "cnn-cifar10", "vgg19-w0.25-cifar10")
CLIENTS, BATCH, RATE = 10, 64, 1e-3
SAMPLES_OF_CLIENT = 256


# ---------------------------------------------------------------------- how fast a round is
def round_table(threads: int = 1, repeats: int = 5) -> Table:
    """Our round at two cuts, centralised training on as many samples, the SplitFed pattern at the same cuts."""
    table = Table(
        title=f"training, {CLIENTS} clients x {BATCH} samples a round, Adam, batch norm, threads: {threads} "
        "(targets: 0.9 x centralised, 2 x SplitFed pattern)"
    )
    for column in ("model", "cut", "samples/s", "centralised", "SplitFed", "/ centralised", "/ SplitFed"):
        table.add_column(column, justify="right")
    with _training_threads(threads):
        for name in MODELS:
            model, data = _model(name), _random_images(CLIENTS * SAMPLES_OF_CLIENT)
            cuts = (1, len(model.units) // 2)
            candidates = {"centralised": centralised_rounds(model, data)}
            for cut in cuts:
                candidates[f"ours {cut}"] = fast_rounds(model, data, cut, default_merge(name))
                candidates[f"SplitFed {cut}"] = splitfed_rounds(model, data, cut)
            seconds = _interleaved(candidates, repeats, threads)
            for cut in cuts:
                turns = seconds[f"ours {cut}"], seconds["centralised"], seconds[f"SplitFed {cut}"]
                speeds = [f"{CLIENTS * BATCH / np.median(turn):,.0f}" for turn in turns]
                table.add_row(name, str(cut), *speeds, *(_ratio(other, turns[0]) for other in turns[1:]))
    return table


def merge_table(threads: int = 1, repeats: int = 3) -> Table:
    """The same round with 1, 2, 5 or all clients in a server pass."""
    sizes = (1, 2, 5, CLIENTS)
    table = Table(title=f"clients per server pass: speed over one by one, threads: {threads}")
    for column in ("model", "cut", *(str(size) for size in sizes[1:]), "asfl's choice"):
        table.add_column(column, justify="right")
    with _training_threads(threads):
        for name in MODELS:
            model, data = _model(name), _random_images(CLIENTS * SAMPLES_OF_CLIENT)
            for cut in (1, len(model.units) // 2):
                candidates = {str(size): fast_rounds(model, data, cut, size) for size in sizes}
                seconds = _interleaved(candidates, repeats, threads)
                ratios = (_ratio(seconds["1"], seconds[str(size)]) for size in sizes[1:])
                table.add_row(name, str(cut), *ratios, str(default_merge(name)))
    return table


def fast_rounds(model: CuttableModel, data: ImageData, cut: int, merge: int) -> Play:
    """Rounds of ASFL in which everybody arrives, one more with each call."""
    trainer = _trainer(model, _batches(data, CLIENTS), CLIENTS, merge)
    indices = count()
    return lambda: trainer.round(_full_round(next(indices), cut, CLIENTS))


def centralised_rounds(model: CuttableModel, data: ImageData) -> Play:
    """The whole model, channels-last, on the mini-batches of all clients in turn: one fused Adam step for each."""
    whole = deepcopy(model).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(whole.parameters(), lr=RATE, fused=True)
    batches, indices = _batches(data, CLIENTS), count()

    def play() -> Tensor:
        index, losses = next(indices), []
        for client in range(CLIENTS):
            images, labels = batches.batch(index, client)
            optimizer.zero_grad()
            loss = F.cross_entropy(whole(images), labels)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return play


def splitfed_rounds(model: CuttableModel, data: ImageData, cut: int) -> Play:
    pattern = SplitFedPattern(
        model, data, _parts(data, CLIENTS), lambda parameters: torch.optim.Adam(parameters, lr=RATE),
        cut=cut, batch_size=BATCH, augment=True,
    )  # fmt: skip
    return pattern.round


def default_merge(name: str) -> int:
    """How many clients `Simulation` lets share a server pass."""
    values = float(load_profile(name).activation_bits.sum()) / 32 * BATCH
    return int(np.clip(MERGED_ACTIVATIONS // values, 1, CLIENTS))


# ---------------------------------------------------------------------- how much memory it needs
def memory_table(name: str = "vgg19-w0.25-cifar10") -> Table:
    """Weights and optimiser state, and how much a fresh process grows by two rounds with mini-batches of 4."""
    table = Table(title=f"memory of {name} in MB, weights and Adam state")
    columns = "cut", "clients", "held", "held / (one model + client sides)", "growth of the process", "N whole models"
    for column in columns:
        table.add_column(column, justify="right")
    model = _model(name)
    layout = Layout(model)
    numbers = (1 + Adam(RATE).num_moments) * layout.parameter_edges + layout.statistic_edges
    for cut in (1, len(model.units) // 2):
        for clients in (2, 10, 50, 100):
            held, growth = _measured_in_new_process(name, cut, clients)
            expected, whole_models = 4 * (numbers[-1] + clients * numbers[cut]), 4 * clients * numbers[-1]
            megabytes = (f"{value / 1e6:,.1f}" for value in (held, growth, whole_models))
            first, *rest = megabytes
            table.add_row(str(cut), str(clients), first, f"{held / expected:.3f}", *rest)
    return table


def print_memory(name: str, cut: int, clients: int) -> None:
    """Bytes that the training state holds, and bytes by which this process has grown to get there."""
    from resource import RUSAGE_SELF, getrusage  # not on every system

    torch.set_num_threads(1)
    model, samples = _model(name), 4
    data = _random_images(clients * samples)
    batches = _batches(data, clients, samples)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    trainer = _trainer(model, batches, clients, merge=1)
    for index in range(2):
        trainer.round(_full_round(index, cut, clients))
    unit = 1 if sys.platform == "darwin" else 1024
    growth = (getrusage(RUSAGE_SELF).ru_maxrss - before) * unit
    held = sum(tensor.nbytes for tensor in trainer.state.tensors().values())
    print(held, growth)


def _measured_in_new_process(name: str, cut: int, clients: int) -> tuple[int, int]:
    program = f"from benchmarks.training import print_memory; print_memory({name!r}, {cut}, {clients})"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    held, growth = map(int, result.stdout.split())
    return held, growth


# ---------------------------------------------------------------------- what is computed between rounds
def spread_table(threads: int = 1, repeats: int = 11) -> Table:
    """Spread by layer of N client sides cut in the middle: one buffer, a sampled share of it, tensor by tensor."""
    table = Table(title=f"spread by layer of client sides (cut in the middle), threads: {threads}")
    for column in ("model", "clients", "parameters", "one buffer", "tensor by tensor", "ratio", "ratio for 5 %"):
        table.add_column(column, justify="right")
    random = np.random.default_rng(1)
    with _training_threads(threads):
        for name in MODELS:
            for clients in (10, 50):
                layout = Layout(_model(name))
                size = int(layout.parameter_edges[layout.num_units // 2])
                sides = torch.randn(clients, size)
                slots = [slot for slot in layout.parameters if slot.stop <= size]
                by_client = [{slot.key: slot.view(side).contiguous() for slot in slots} for side in sides]
                columns = sample_coordinates(size, 0.05, random)
                seconds = _interleaved(
                    {
                        "buffer": lambda la=layout, s=sides: layer_spreads(la, s),  # type: ignore[misc]
                        "sampled": lambda la=layout, s=sides, c=columns: layer_spreads(la, s, c),  # type: ignore[misc]
                        "tensors": lambda b=by_client: spreads_tensor_by_tensor(b),  # type: ignore[misc]
                    },
                    repeats,
                    threads,
                    calls=10,
                )
                medians = [f"{1e3 * np.median(seconds[key]):.2f} ms" for key in ("buffer", "tensors")]
                ratios = [_ratio(seconds["tensors"], seconds[key]) for key in ("buffer", "sampled")]
                table.add_row(name, str(clients), f"{size:,}", *medians, *ratios)
    return table


def spreads_tensor_by_tensor(states: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """(1/N) Σ_n ‖w̄ − w_n‖² of each tensor."""
    spreads = {}
    for name in states[0]:
        mean = torch.stack([state[name] for state in states]).mean(0)
        spreads[name] = sum(((state[name] - mean) ** 2).sum().item() for state in states) / len(states)
    return spreads


def evaluation_table(threads: int = 1, repeats: int = 3, samples: int = 1000) -> Table:
    """Ours beside the usual loop: contiguous, no gradients, a loader over images normalised beforehand."""
    table = Table(title=f"evaluation on {samples:,} images, threads: {threads}")
    for column in ("model", "ours", "plain loop", "ratio"):
        table.add_column(column, justify="right")
    with _training_threads(threads):
        for name in MODELS:
            model, data = _model(name), _random_images(samples)
            layout = Layout(model)
            vectors = layout.flatten(model, CPU, torch.float32)
            evaluator = Evaluator(model, layout, data, CPU, torch.float32)
            candidates: dict[str, Play] = {
                "ours": lambda e=evaluator, v=vectors: e.score(v),  # type: ignore[misc]
                "plain": plain_evaluation(model, data),
            }
            seconds = _interleaved(candidates, repeats, threads)
            speeds = [f"{samples / np.median(seconds[key]):,.0f} samples/s" for key in candidates]
            table.add_row(name, *speeds, _ratio(seconds["plain"], seconds["ours"]))
    return table


def plain_evaluation(model: CuttableModel, data: ImageData) -> Callable[[], float]:
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.mean, data.std))
    images = (torch.from_numpy(data.test_images).float() / data.scale - mean) / std
    loader = DataLoader(TensorDataset(images, torch.from_numpy(data.test_labels)), batch_size=BATCH)

    def play() -> float:
        model.eval()
        right = 0
        with torch.no_grad():
            for batch, labels in loader:
                logits = model(batch)
                F.cross_entropy(logits, labels).item()
                right += int((logits.argmax(1) == labels).sum().item())
        return right / len(images)

    return play


# ---------------------------------------------------------------------- pieces
def _interleaved(candidates: Mapping[str, Play], repeats: int, threads: int, calls: int = 1) -> dict[str, Floats]:
    """Seconds of each candidate [repeats], taking turns; the first turn is a warm-up and not counted."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats + 1):
        for name, play in candidates.items():
            start = clock()
            for _ in range(calls):
                play()
            seconds[name].append((clock() - start) / calls)
    return {name: np.array(values[1:]) for name, values in seconds.items()}


def _ratio(slower: Floats, faster: Floats) -> str:
    low, middle, high = np.quantile(slower / faster, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


@contextmanager
def _training_threads(threads: int) -> Iterator[None]:
    """As a run sets the process up; the memory setting stays."""
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def all_cores() -> int:
    return os.cpu_count() or 1


def _model(name: str) -> CuttableModel:
    torch.manual_seed(0)
    return build_model(ModelSpec.parse(name))


def _random_images(samples: int) -> ImageData:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, samples)
    return ImageData("random", images, labels, images, labels, 10, mean=(0.5,) * 3, std=(0.25,) * 3)


def _parts(data: ImageData, clients: int) -> NDArray[np.int64]:
    return np.arange(len(data.train_labels)).reshape(clients, -1)


def _batches(data: ImageData, clients: int, batch_size: int = BATCH) -> Batches:
    return Batches(data, _parts(data, clients), batch_size=batch_size, seed=0, augment=True, device=CPU)


def _trainer(model: CuttableModel, batches: Batches, clients: int, merge: int) -> FastTrainer:
    return FastTrainer(model, batches, ASFL, Adam(RATE), num_clients=clients, seed=0, device=CPU, merge=merge)


def _full_round(index: int, cut: int, clients: int) -> RoundPlan:
    everybody = np.ones(clients, dtype=bool)
    return RoundPlan(index, np.full(clients, cut), everybody, everybody)
