"""How much memory a device takes at its peak, by network, mini-batch and cut: each in a process of its own.

The process imports what `asfl join` does, has 500 images of its own, and answers what a round asks: a client side, two
steps, its state for a checkpoint. Messages are encoded and decoded as on a network, and both ends' copies are in the
process, which is more than a device has; gRPC's own buffers, a few MB, are not.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

CASES = {
    "demo": (3,),
    "small-cifar10": (1, 4),
    "resnet18-cifar100": (1, 9),
    "vgg19-cifar10": (1, 8),
    "paper-cifar10": (1, 4, 8, 0),
}
"""Presets, and cuts; 0: the whole model (FedAvg)."""
BATCHES = (64, 16)


def peak_mb(preset: str, cut: int, batch: int) -> dict[str, float]:
    """Of a new process: {"import torch": MB resident, "peak": …, "own": …}."""
    arguments = [preset, str(cut), str(batch)]
    program = "from studies.device_memory import measure; import sys; measure(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in done.stdout.splitlines())}


def measure(preset: str, cut_text: str, batch_text: str) -> None:
    import torch

    print("import torch", _megabytes("status", "VmRSS"))
    import numpy as np

    import asfl.cli.join
    import asfl.field.stream  # noqa: F401 - what `asfl join` imports
    from asfl.config import load_config
    from asfl.data.arrays import INPUT_SHAPE, NUM_CLASSES
    from asfl.field import messages as msg
    from asfl.field.client import ClientNode
    from asfl.field.wire import decode, encode
    from asfl.train.fleet import FirstLayers, keep_freed_memory
    from asfl.train.signals import Task
    from asfl.train.state import ModelVectors

    torch.set_num_threads(1)
    plain = load_config(preset).config
    shape, classes = INPUT_SHAPE[plain.data.name], NUM_CLASSES[plain.data.name]
    name = f"private_{'x'.join(map(str, shape))}_{classes}"
    config = load_config(preset, [f"data.name={name}", f"training.batch_size={batch_text}", "model.charged_as="]).config
    with tempfile.TemporaryDirectory() as folder:
        file, random = Path(folder) / "images.npz", np.random.default_rng(1)
        np.savez(file, images=random.integers(0, 256, (500, *shape), np.uint8), labels=np.arange(500) % classes)
        cut = int(cut_text)
        node = ClientNode(msg.Agreement(config, "asfl" if cut else "fedavg", 1).welcome(0), file)
    keep_freed_memory()

    def ask(request: msg.AnyRequest) -> msg.Answer:
        answer = decode(node.answer(encode(request)), msg.Answer)
        assert not isinstance(answer, msg.Refusal), answer.reason
        return answer

    def layers(last: int) -> ModelVectors:
        a, b = (int(edge[last]) for edge in node._layout.edges)
        return ModelVectors(torch.full((a,), 0.01), torch.ones(b))

    ask(msg.Sync(cut, layers(cut), round=0))
    for index in range(2):
        after = max(index - 1, 0)
        if not cut:
            whole, model = Task(index, 0, node._layout.num_units), layers(node._layout.num_units)
            ask(msg.Learn(whole, FirstLayers(model.parameters, model.statistics), round=index, after=after))
            ask(msg.Give(whole, round=index, after=index))
        else:
            task = Task(index, 0, cut)
            sent = ask(msg.Forward(task, round=index, after=after))
            assert isinstance(sent, msg.Activations)
            gradients = tuple(torch.full_like(one, 1e-3) for one in sent.packet.carry if isinstance(one, torch.Tensor))
            ask(msg.Backward(task, gradients, round=index, after=index))
    ask(msg.Gather(memory=True, round=1, after=1))
    print("peak", _megabytes("status", "VmHWM"))
    print("own", _megabytes("smaps_rollup", "Anonymous"))


def _megabytes(file: str, name: str) -> float:
    lines = Path(f"/proc/self/{file}").read_text("ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:"))


def main(folder: Path) -> None:
    table = Table(title="memory of a device, MB")
    for column in ("preset", "mini-batch", "cut", "peak", "own after the round", "import torch"):
        table.add_column(column, justify="left" if column == "preset" else "right")
    for preset, cuts in CASES.items():
        for cut in cuts:
            for batch in BATCHES:
                found = peak_mb(preset, cut, batch)
                numbers = (batch, cut, found["peak"], found["own"], found["import torch"])
                table.add_row(preset, *(f"{number:,.0f}" for number in numbers))
    Console().print(table)
