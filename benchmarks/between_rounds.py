"""What is computed between training rounds, spreads by layer and evaluation, beside the plain code for it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from asfl.data import ImageData
from asfl.models.cuttable import CuttableModel
from asfl.train.evaluate import Evaluator
from asfl.train.fleet import sample_coordinates
from asfl.train.state import Layout, layer_spreads
from benchmarks.training import BATCH, CPU, new_model, random_images
from benchmarks.turns import ratio, take_turns, timed, training_threads


def spread_table(models: Sequence[str], threads: int, repeats: int) -> Table:
    """Client sides cut in the middle: all of them, the 5 % that clients report, and all of them tensor by tensor."""
    table = Table(title=f"spread by layer of client sides (cut in the middle), threads: {threads}")
    for column in ("model", "clients", "parameters", "one buffer", "tensor by tensor", "ratio", "ratio for 5 %"):
        table.add_column(column, justify="right")
    random = np.random.default_rng(1)
    with training_threads(threads):
        for name in models:
            for clients in (10, 50):
                layout = Layout(new_model(name))
                size = int(layout.parameter_edges[layout.num_units // 2])
                sides = torch.randn(clients, size)
                slots = [slot for slot in layout.parameters if slot.stop <= size]
                by_client = [{slot.key: slot.view(side).contiguous() for slot in slots} for side in sides]
                columns = sample_coordinates(size, 0.05, random)
                candidates: dict[str, Callable[[], object]] = {
                    "buffer": lambda la=layout, s=sides: layer_spreads(la, s),  # type: ignore[misc]
                    "sampled": lambda la=layout, s=sides, c=columns: layer_spreads(la, s[:, c], c),  # type: ignore[misc]
                    "tensors": lambda b=by_client: spreads_tensor_by_tensor(b),  # type: ignore[misc]
                }
                seconds = take_turns({key: timed(play, calls=10) for key, play in candidates.items()}, repeats)
                medians = [f"{1e3 * np.median(seconds[key]):.2f} ms" for key in ("buffer", "tensors")]
                ratios = [ratio(seconds["tensors"], seconds[key]) for key in ("buffer", "sampled")]
                table.add_row(name, str(clients), f"{size:,}", *medians, *ratios)
    return table


def evaluation_table(models: Sequence[str], threads: int, repeats: int, samples: int = 1000) -> Table:
    """Ours beside the usual loop: contiguous, no gradients, a loader over images normalised beforehand."""
    table = Table(title=f"evaluation on {samples:,} images, threads: {threads}")
    for column in ("model", "ours (samples/s)", "plain loop", "ratio"):
        table.add_column(column, justify="right")
    with training_threads(threads):
        for name in models:
            model, data = new_model(name), random_images(samples)
            layout = Layout(model)
            vectors = layout.flatten(model, CPU, torch.float32)
            evaluator = Evaluator(model, layout, data, CPU, torch.float32)
            candidates = {
                "ours": timed(lambda e=evaluator, v=vectors: e.score(v)),  # type: ignore[misc]
                "plain": timed(plain_evaluation(model, data)),
            }
            seconds = take_turns(candidates, repeats)
            speeds = [f"{samples / np.median(seconds[key]):,.0f}" for key in candidates]
            table.add_row(name, *speeds, ratio(seconds["plain"], seconds["ours"]))
    return table


def spreads_tensor_by_tensor(states: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """(1/N) Σ_n ‖w̄ − w_n‖² of each tensor."""
    spreads = {}
    for name in states[0]:
        mean = torch.stack([state[name] for state in states]).mean(0)
        spreads[name] = sum(((state[name] - mean) ** 2).sum().item() for state in states) / len(states)
    return spreads


def plain_evaluation(model: CuttableModel, data: ImageData) -> Callable[[], tuple[float, float]]:
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.mean, data.std))
    images = (torch.from_numpy(data.test_images).float() / data.scale - mean) / std
    loader = DataLoader(TensorDataset(images, torch.from_numpy(data.test_labels)), batch_size=BATCH)

    def play() -> tuple[float, float]:
        model.eval()
        right, loss = 0, 0.0
        with torch.no_grad():
            for batch, labels in loader:
                logits = model(batch)
                loss += F.cross_entropy(logits, labels, reduction="sum").item()
                right += int((logits.argmax(1) == labels).sum().item())
        return right / len(images), loss / len(images)

    return play
