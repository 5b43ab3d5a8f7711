"""`asfl serve` killed in the middle of a run and started again: where the time goes until there is another round.

    python -m benchmarks.restart [TIMES]

Two devices on this machine, with measured costs; the server is dead for up to 20 s each time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from asfl.config import load_config
from asfl.data import load_data
from asfl.data.private import deal_out
from asfl.field.membership import enrol

_SIZES, _PORT, _DEAD_S, _PATIENCE_S = (200, 400), 20_000 + os.getpid() % 10_000, (20.0, 5.0, 0.0), 300.0
_STEPS = ("until it listens", "until all devices are back", "until a round is recorded", "together")


def restart_table(times: int = 3) -> Table:
    with tempfile.TemporaryDirectory(prefix="asfl-restart-") as folder, ExitStack() as cleanup:
        took = np.array(list(_restarts(Path(folder), times, cleanup)))
    table = Table("", "median (s)", "longest (s)", title="a server killed and started again")
    for name, seconds in zip(_STEPS, took.T, strict=True):
        table.add_row(name, f"{np.median(seconds):.1f}", f"{seconds.max():.1f}")
    return table


def _restarts(folder: Path, times: int, cleanup: ExitStack) -> Iterator[tuple[float, ...]]:
    random, log, run, codes = np.random.default_rng(1), folder / "server.log", folder / "run", folder / "codes"
    images = deal_out(load_data(load_config("demo", []).config), _SIZES, folder / "images", random)
    command = [
        "serve", "demo", "--devices", str(len(_SIZES)), "--out", str(run), "--home", str(folder / "home"), "--codes",
        str(codes), "--address", f"127.0.0.1:{_PORT}", "--set", "data.name=private_1x8x8_10", "--set",
        "field.costs=measured", "--set", "training.rounds=100000", "--set", "output.evaluate_every=1000",
    ]  # fmt: skip
    server = cleanup.enter_context(_process(log, *command))
    _wait(codes.exists)
    for number, code in enumerate(codes.read_text().split()):
        home = folder / f"device-{number}"
        enrol(home, f"127.0.0.1:{_PORT + 1}", code, f"device-{number}", str(images[number]))
        cleanup.enter_context(_process(folder / f"device-{number}.log", "join", "--home", str(home)))
    for turn in range(times):
        before = _rounds(run)
        _wait(lambda before=before: _rounds(run) > before + 3)  # type: ignore[misc]
        time.sleep(random.random())
        server.kill()
        server.wait()
        time.sleep(_DEAD_S[turn % len(_DEAD_S)] * random.random())
        log.write_bytes(b"")
        rounds, began = _rounds(run), time.monotonic()
        server = cleanup.enter_context(_process(log, *command))
        listens = _wait(lambda: b"devices are here" in log.read_bytes())
        back = _wait(lambda: log.read_bytes().count(b") is here") >= len(_SIZES))
        played = _wait(lambda rounds=rounds: _rounds(run) > rounds)  # type: ignore[misc]
        yield listens - began, back - listens, played - back, played - began


@contextmanager
def _process(log: Path, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "asfl", *command], stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _rounds(run: Path) -> int:
    file = run / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _wait(done: Callable[[], bool]) -> float:
    """The moment it is."""
    due = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > due:
            raise SystemExit("waited too long")
        time.sleep(0.02)
    return time.monotonic()


if __name__ == "__main__":
    Console().print(restart_table(*map(int, sys.argv[1:])))
