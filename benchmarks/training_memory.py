"""Memory of training against the number of clients: one model and N client sides, beside N whole models."""

import subprocess
import sys
from pathlib import Path

import torch
from rich.table import Table

from asfl.runs.state import flatten
from asfl.train.optimizers import Adam
from asfl.train.state import Layout
from benchmarks.training import RATE, full_round, new_batches, new_model, new_trainer, random_images

SAMPLES = 4  # per client, so that it is the weights that count
FLOAT_BYTES = 4


def memory_table(name: str) -> Table:
    """What the training state holds, and how much the peak of a fresh process grows by one round.

    The growth has a constant part: activations, and what PyTorch loads and compiles for its first step.
    """
    table = Table(title=f"memory of {name} in MB: weights and Adam state")
    columns = "cut", "clients", "held", "held / (one model + client sides)", "growth of the process", "N whole models"
    for column in columns:
        table.add_column(column, justify="right")
    layout = Layout(new_model(name))
    # Numbers in the first units, by cut: parameters, two moments for each, running statistics.
    numbers = (1 + Adam(RATE).num_moments) * layout.parameter_edges + layout.statistic_edges
    for cut in (1, layout.num_units // 2):
        for clients in (2, 10, 50, 100):
            held, growth = _measured_in_new_process(name, cut, clients)
            expected = FLOAT_BYTES * (numbers[-1] + clients * numbers[cut])
            whole_models = FLOAT_BYTES * clients * numbers[-1]
            table.add_row(
                str(cut),
                str(clients),
                f"{held / 1e6:,.1f}",
                f"{held / expected:.3f}",
                f"{growth / 1e6:,.0f}",
                f"{whole_models / 1e6:,.0f}",
            )
    return table


def print_memory(name: str, cut: int, clients: int) -> None:
    """Bytes that the training state holds, and bytes by which this process has grown to get there."""
    torch.set_num_threads(1)
    model, batches = new_model(name), new_batches(random_images(clients * SAMPLES), clients, SAMPLES)
    before = _peak_bytes()
    trainer = new_trainer(model, batches, clients, merge=1)
    trainer.round(full_round(0, cut, clients))
    held = sum(tensor.nbytes for tensor in flatten(trainer.state).values())
    print(held, _peak_bytes() - before)


def _peak_bytes() -> int:
    """Of this program; 0 where there is no such file. (What `getrusage` says includes the process that started it.)"""
    status = Path("/proc/self/status")
    lines = status.read_text("ascii").splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _measured_in_new_process(name: str, cut: int, clients: int) -> tuple[int, int]:
    program = f"from benchmarks.training_memory import print_memory; print_memory({name!r}, {cut}, {clients})"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    held, growth = map(int, result.stdout.split())
    return held, growth
