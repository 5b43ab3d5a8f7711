"""A server and three devices on this machine, each with images of its own: train, lose one of them, take it back.

    python tools/three_devices.py FOLDER

Every one is a process of its own, and where Linux allows it the devices are in network namespaces. What happens is what
`docker compose up` does with compose.yaml, without Docker.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from asfl.config import load_config
from asfl.data import load_data
from asfl.data.private import deal_out
from asfl.runs.records import read_records

SIZES = (200, 700, 400)
"""Digits that each device has."""
ROUNDS, KILL_AFTER = 150, 8
PORT = 7430
_PATIENCE_S = 600.0


def main(folder: Path, rounds: int = ROUNDS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_data(load_config("demo", []).config)
    images = deal_out(digits, SIZES, folder / "images", np.random.default_rng(1))
    with ExitStack() as cleanup:
        host, inside = _namespaces(cleanup, len(SIZES)) or ("127.0.0.1", [[] for _ in SIZES])
        print(
            f"devices are in {'network namespaces' if inside[0] else 'one network: namespaces need root'}", flush=True
        )
        run, codes = folder / "run", folder / "codes"
        server = _start(
            cleanup, folder / "server.log", "serve", "demo", "--devices", str(len(SIZES)), "--out", str(run),
            "--home", str(folder / "server"), "--codes", str(codes), "--address", f"{host}:{PORT}",
            "--set", "data.name=private_1x8x8_10", "--set", "field.costs=measured",
            "--set", f"training.rounds={rounds}", "--set", "output.evaluate_every=10",
        )  # fmt: skip
        _wait(lambda: codes.exists(), server, "codes")
        lines = codes.read_text().split()
        devices = [
            _start(
                cleanup, folder / f"device-{n}.log", "join", f"{host}:{PORT + 1}", "--name", f"device-{n}",
                "--home", str(folder / f"device-{n}"), "--data", str(images[n]), "--once", before=inside[n],
                said=lines[n],
            )
            for n in range(len(SIZES))
        ]  # fmt: skip
        _wait(lambda: _rounds(run) >= KILL_AFTER, server, f"round {KILL_AFTER}")
        print(f"round {_rounds(run)}: device-1 loses its power", flush=True)
        devices[1].kill()
        devices[1].wait()
        lost = _rounds(run)
        _wait(lambda: _rounds(run) >= lost + 3 or server.poll() is not None, server, "rounds without it")
        print(f"round {_rounds(run)}: device-1 boots again: asfl join --home …", flush=True)
        home = str(folder / "device-1")
        _start(cleanup, folder / "device-1b.log", "join", "--home", home, "--once", before=inside[1])
        if server.wait(_PATIENCE_S):
            raise SystemExit(f"the server failed; see {folder / 'server.log'}")
    _report(folder, run)


def _namespaces(cleanup: ExitStack, count: int) -> tuple[str, list[list[str]]] | None:
    """A bridge, and a namespace behind it for each device: the server's address, and what to put before commands there.

    None: it needs Linux, root, and `ip`.
    """
    tag, names = f"asfl{os.getpid() % 10_000}", [f"asfl-{os.getpid()}-{n}" for n in range(count)]
    subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 256}"
    commands = [f"link add {tag} type bridge", f"address add {subnet}.1/24 dev {tag}", f"link set {tag} up"]
    cleanup.callback(_ip, f"link delete {tag}")
    for n, name in enumerate(names):
        commands += [
            f"netns add {name}", f"link add {tag}.{n} type veth peer name eth0 netns {name}",
            f"link set {tag}.{n} master {tag}", f"link set {tag}.{n} up",
            f"-n {name} address add {subnet}.{n + 2}/24 dev eth0", f"-n {name} link set lo up",
            f"-n {name} link set eth0 up",
        ]  # fmt: skip
        cleanup.callback(_ip, f"netns delete {name}")
    made = shutil.which("ip") is not None and os.geteuid() == 0 and all(_ip(command) for command in commands)
    return (f"{subnet}.1", [["ip", "netns", "exec", name] for name in names]) if made else None


def _ip(command: str) -> bool:
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *command.split()], capture_output=True, check=False).returncode == 0


def _report(folder: Path, run: Path) -> None:
    records, book = read_records(run), json.loads((folder / "server" / "devices.json").read_text())
    client = next(one["number"] for one in book["devices"] if one["name"] == "device-1")
    faults = [fault for record in records for fault in record.faults or () if fault["client"] == client]
    back = [record.round for record in records if record.arrived[client] and record.round > int(faults[-1]["round"])]
    accuracy = [record.accuracy for record in records if record.accuracy is not None]
    print(
        f"device-1 was lost in rounds {faults[0]['round']} … {faults[-1]['round']}, and took part in {len(back)} after"
    )
    print(f"accuracy on what devices hold out: {accuracy[0]:.3f} … {accuracy[-1]:.3f}")
    if not faults or not back:
        raise SystemExit("the device wasn't lost, or didn't come back")


def _start(
    cleanup: ExitStack, log: Path, *command: str, before: Sequence[str] = (), said: str = ""
) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "asfl", *command], stdin=subprocess.PIPE, stdout=out,
            stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(said.encode())
    process.stdin.close()
    cleanup.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _rounds(run: Path) -> int:
    file = run / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _wait(done: Callable[[], bool], server: "subprocess.Popen[bytes]", what: str) -> None:
    due = time.monotonic() + _PATIENCE_S
    while not done():
        if server.poll() not in (None, 0) or time.monotonic() > due:
            raise SystemExit(f"no {what}: see the logs")
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/devices"))
