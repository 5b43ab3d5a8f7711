"""Kills at any moment of `run`, `compare` and `sweep`: the same command again ends with the same bits.

A command is started and killed (SIGKILL, or SIGTERM which saves first), again and again with growing patience, until it
gets to its end. Its orphaned workers, if there are any, may still be writing when the next one starts.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from asfl.runs.manifest import MODEL_FILE
from asfl.runs.records import RECORDS_FILE
from studies.torture.counts import Counts

FULL = 100
LONG_S = 600.0
SETTINGS = (
    "scenario.clients=2", "radio.num_rbs=2", "model.width=1", "training.batch_size=4", "output.test_samples=20",
    "output.checkpoint_every=2", "output.track=none",
)  # fmt: skip
COMMANDS = {
    "run": ["run", "demo", "--set", "training.rounds=16"],
    "compare": ["compare", "demo", "--schemes", "asfl,fedavg", "--set", "training.rounds=8", "--workers", "2"],
    "sweep": [
        "sweep", "demo", "--schemes", "asfl", "--over", "data.dirichlet_alpha=1,10", "--set", "training.rounds=8",
        "--workers", "2",
    ],
}  # fmt: skip
KINDS = ("run", "run", "run", "compare", "sweep")
"""In turn: a kill of a single run takes a second, one of the others ten."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["asfl.cli.run", "asfl.runs.run", "asfl.runs.simulation"])


def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, kills = Counts(), max(1, round(share * FULL))
    expected: dict[str, dict[str, bytes]] = {}
    for kind in (KINDS * kills)[:kills] if kills < len(KINDS) else KINDS * (kills // len(KINDS)):
        if kind not in expected:
            expected[kind] = _undisturbed(kind, folder, counts)
        place = folder / f"{kind}-killed"
        if _kill_once(kind, place, random, counts):
            _compare(kind, place, expected[kind], counts)
    for kind in expected:  # what was killed last, and is still unfinished
        place = folder / f"{kind}-killed"
        if place.exists():
            _to_the_end(kind, place, counts)
            _compare(kind, place, expected[kind], counts)
    return counts


def _undisturbed(kind: str, folder: Path, counts: Counts) -> dict[str, bytes]:
    place = folder / f"{kind}-undisturbed"
    _to_the_end(kind, place, counts)
    return _bits(place)


def _kill_once(kind: str, place: Path, random: np.random.Generator, counts: Counts) -> bool:
    """Start a command and kill it; whether it got to its end before."""
    counts.tried += 1
    process, rounds = _start(kind, place), _rounds(place)
    # Half of the kills come early, while files are opened and first written; the others after a few rounds.
    wait_for = rounds + (0 if random.random() < 0.3 else int(random.integers(1, 6)))
    _wait(lambda: _rounds(place) >= wait_for or not process.is_alive())
    time.sleep(random.random() * (1.0 if wait_for == rounds else 0.05))
    ended = not process.is_alive()
    assert process.pid is not None
    children, gently = list[psutil.Process](), random.random() < 0.25
    with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended by itself
        children = psutil.Process(process.pid).children(recursive=True)
        if gently:
            os.kill(process.pid, signal.SIGTERM)
            process.join(LONG_S)
    process.kill()
    process.join()
    if random.random() < 0.5:  # else the next command meets them
        psutil.wait_procs(children, timeout=LONG_S)
    ended = ended or process.exitcode == 0
    _look_for_tracebacks(kind, place, counts)
    return ended


def _to_the_end(kind: str, place: Path, counts: Counts) -> None:
    process = _start(kind, place)
    process.join(LONG_S)
    if process.exitcode != 0:
        counts.defect("lost", f"{kind} doesn't go on (exit code {process.exitcode}): {_said(place)[-200:]}")
    _look_for_tracebacks(kind, place, counts)


def _compare(kind: str, place: Path, expected: dict[str, bytes], counts: Counts) -> None:
    """Held against the undisturbed command, and removed: the next one begins anew."""
    found = _bits(place)
    if found != expected:
        other = sorted(name for name in expected if found.get(name) != expected[name])
        counts.defect("lost", f"{kind}, killed and repeated, has other bits in {', '.join(other)}")
    left = [path.name for path in place.rglob(".*")]
    if left:
        counts.defect("silent", f"{kind} left behind {', '.join(left)}")
    shutil.rmtree(place)


def _look_for_tracebacks(kind: str, place: Path, counts: Counts) -> None:
    text = _said(place)
    if "Traceback" in text:
        counts.defect("tracebacks", f"{kind}: {text[-300:]}")
    _log_of(place).unlink(missing_ok=True)


# ---------------------------------------------------------------------- commands
def _start(kind: str, place: Path) -> "multiprocessing.context.ForkServerProcess":
    settings = [word for one in SETTINGS for word in ("--set", one)]
    arguments = ["asfl", *COMMANDS[kind], *settings, "--out", str(place)]
    process = CONTEXT.Process(target=_command, args=(arguments, _log_of(place)))
    process.start()
    return process


def _command(arguments: list[str], log: Path) -> None:
    """In the new process: the real command."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = arguments
    if hasattr(os, "sched_setaffinity"):  # one core, so one thread: several wait for each other on a busy machine
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    multiprocessing.current_process().__dict__["_config"]["daemon"] = False
    from asfl.cli import main

    main()


def _log_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.log")


def _said(place: Path) -> str:
    file = _log_of(place)
    return file.read_text(errors="replace") if file.exists() else ""


def _rounds(place: Path) -> int:
    total = 0
    for file in place.rglob(RECORDS_FILE):
        try:
            total += file.read_bytes().count(b"\n")
        except OSError:
            continue
    return total


def _bits(place: Path) -> dict[str, bytes]:
    """Everything that must be the same: rounds and models of all runs."""
    files = [file for name in (RECORDS_FILE, MODEL_FILE) for file in place.rglob(name)]
    return {file.relative_to(place).as_posix(): file.read_bytes() for file in files}


def _wait(condition: Callable[[], bool]) -> None:
    due = time.monotonic() + LONG_S
    while not condition() and time.monotonic() < due:
        time.sleep(0.005)
