"""A round with clients in processes of their own beside the same round in one process.

The maths is the same to the last bit, and that is checked. What differs is the way in between, and that client
processes compute side by side. Wall clock, because several processes take part; candidates take turns, so that a noisy
machine is noisy for everybody. Processor time of all processes together says what the way costs whatever runs in
parallel; it has the resolution of the system's clock ticks (10 ms).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from rich.table import Table

from asfl.costs.world import Budgets
from asfl.data import load_data
from asfl.field.messages import Agreement, Blueprint
from asfl.runs.simulation import Simulation
from asfl.runs.state import flatten
from asfl.runs.this_process import usual_threads
from asfl.schemes import scheme_named
from benchmarks.field_clients import BATCH, TRANSPORTS, Clients, images_config
from benchmarks.training import full_round
from benchmarks.turns import ratio, take_turns, training_threads

CLIENTS = 4
TWO_MEGABYTES = {"cnn-w0.5-cifar10": 3, "cnn-cifar10": 2}
"""Networks, and the cut at which a mini-batch of 64 has activations of 2.1 MB: a small and a larger one."""
NUMBERS_OF_CLIENTS = (2, 4, 8, 16, 32)
ROUNDS_A_TURN = 3


class Rounds:
    """Rounds in which everybody arrives, at a fixed cut: neither decision nor evaluation."""

    def __init__(self, agreement: Agreement, cut: int, clients: Clients) -> None:
        data, budgets = load_data(agreement.config), Budgets(1.0, 1.0)
        scheme = scheme_named(agreement.scheme)
        self._trainer = Simulation(agreement.config, scheme, data, budgets, clients.fleet).trainer
        self._cut, self._index, self._clients = cut, 0, agreement.config.scenario.clients
        self._processes = [psutil.Process(), *map(psutil.Process, clients.pids)]
        self.processor_s: list[float] = []
        """Of all processes together, for a round in each turn."""

    def __call__(self) -> float:
        """Seconds of a round, as the mean of a few."""
        busy, start = self._processor_time(), time.perf_counter()
        for _ in range(ROUNDS_A_TURN):
            self._trainer.fleet.begin(self._index)
            self._trainer.round(full_round(self._index, self._cut, self._clients))
            self._index += 1
        seconds = time.perf_counter() - start
        self.processor_s.append((self._processor_time() - busy) / ROUNDS_A_TURN)
        return seconds / ROUNDS_A_TURN

    def _processor_time(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times)

    def has_bits_of(self, other: "Rounds") -> bool:
        """Whether both have got to the same weights and optimiser states."""
        for rounds in (self, other):
            rounds._trainer.fleet.gather(optimizers=True)
        mine, others = flatten(self._trainer.state), flatten(other._trainer.state)
        return all(torch.equal(mine[name], others[name]) for name in others)


def overhead_table(
    threads: Sequence[int],
    repeats: int,
    models: Sequence[str] = tuple(TWO_MEGABYTES),
    ways: Sequence[str] = tuple(TRANSPORTS),
) -> Table:
    """Every way to reach clients beside the first one; all of them with the same number of threads in each process."""
    table = Table(
        title=f"a round with {CLIENTS} clients x {BATCH} samples, over each way against in this process "
        f"(target: at most 1.3 x); {usual_threads()} cores"
    )
    columns = (
        "model",
        "cut",
        "MB an exchange",
        "threads",
        "clients are",
        "round",
        "ratio",
        "processor time",
        "same bits",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "clients are") else "right")
    for model in models:
        for number in threads:
            _add_overhead(table, model, number, repeats, ways)
    return table


def _add_overhead(table: Table, model: str, threads: int, repeats: int, ways: Sequence[str]) -> None:
    cut = TWO_MEGABYTES[model]
    with TemporaryDirectory() as name, ExitStack() as started, training_threads(threads):
        folder = Path(name)
        agreement = Agreement(images_config(model, CLIENTS, folder), "asfl", threads)
        megabytes = _exchange_bytes(agreement, cut) / 1e6
        candidates = {
            way: Rounds(agreement, cut, started.enter_context(TRANSPORTS[way](agreement, folder))) for way in ways
        }
        seconds = take_turns(candidates, repeats)
        first, *_ = ways
        busy = {way: np.array(rounds.processor_s[1:]) for way, rounds in candidates.items()}
        for way, rounds in candidates.items():
            ratios = [] if way == first else [ratio(seconds[way], seconds[first]), ratio(busy[way], busy[first])]
            same = "" if way == first else "yes" if rounds.has_bits_of(candidates[first]) else "NO"
            table.add_row(
                model, str(cut), f"{megabytes:.1f}", str(threads), way, f"{1e3 * np.median(seconds[way]):,.0f} ms",
                *(ratios or ("", "")), same,
            )  # fmt: skip


def _exchange_bytes(agreement: Agreement, cut: int) -> int:
    """Activations of a mini-batch at the cut; the gradients that come back are as large."""
    shapes = Blueprint.of(agreement.config).shapes.carries[cut]
    return sum(torch.Size(shape).numel() for shape in shapes) * torch.float32.itemsize


def processes_table(repeats: int, numbers: Sequence[int] = NUMBERS_OF_CLIENTS) -> Table:
    """Memory of the processes, and time of a round, against how many clients there are (gRPC with TLS, one thread)."""
    model, cut = next(iter(TWO_MEGABYTES.items()))
    table = Table(
        title=f"client processes on this machine: {model}, cut {cut}, {BATCH} samples each, gRPC with TLS, threads: 1; "
        "memory in MB (PSS shares what processes have in common, RSS counts it in each)"
    )
    columns = (
        "clients",
        "server PSS",
        "a client PSS",
        "all PSS",
        "server RSS",
        "a client RSS",
        "round",
        "in one process",
        "ratio",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for clients in numbers:
        found = _in_new_process(model, cut, clients, repeats)
        pss, rss = found["pss"], found["rss"]
        there, here = (np.array(found[name]) for name in ("there", "here"))
        table.add_row(
            str(clients), *(f"{value / 1e6:,.0f}" for value in (pss[0], np.median(pss[1:]), sum(pss), rss[0])),
            f"{np.median(rss[1:]) / 1e6:,.0f}", f"{1e3 * np.median(there):,.0f} ms", f"{1e3 * np.median(here):,.0f} ms",
            ratio(there, here),
        )  # fmt: skip
    return table


def print_measured(model: str, cut: int, clients: int, repeats: int) -> None:
    """One line of JSON: bytes of this process and of every client after some rounds; seconds of rounds, in turns."""
    with TemporaryDirectory() as name, training_threads(1):
        folder = Path(name)
        agreement = Agreement(images_config(model, clients, folder), "asfl", 1)
        with TRANSPORTS["gRPC, TLS"](agreement, folder) as elsewhere:
            there = Rounds(agreement, cut, elsewhere)
            there()
            memory = [psutil.Process(pid).memory_full_info() for pid in (os.getpid(), *elsewhere.pids)]
            with TRANSPORTS["in this process"](agreement, folder) as local:
                seconds = take_turns({"there": there, "here": Rounds(agreement, cut, local)}, repeats)
    found = {"pss": [one.pss for one in memory], "rss": [one.rss for one in memory]}
    print(json.dumps({**found, **{name: turns.tolist() for name, turns in seconds.items()}}))


def _in_new_process(model: str, cut: int, clients: int, repeats: int) -> dict[str, list[float]]:
    """So that the server's memory is that of this run alone."""
    program = f"from benchmarks.field import print_measured; print_measured({model!r}, {cut}, {clients}, {repeats})"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    found: dict[str, list[float]] = json.loads(result.stdout)
    return found
