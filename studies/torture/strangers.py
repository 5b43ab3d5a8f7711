"""Strangers at the port of a run: 2,000 connections without a key, while its clients train.

They come from another process, to the port of the streams: some say nothing, some send garbage, some begin a call and
stop in the middle, some show the certificate of another authority; one has a key that is valid and never says that it
is ready. The run must end with every bit as if it had been alone, and clients must still be let in afterwards.
"""

import argparse
import os
import queue
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import torch

from asfl._version import __version__
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.field.certificates import SERVER_NAME, Authority
from asfl.field.fleet import train
from asfl.field.membership import enrol_here
from asfl.field.messages import Agreement
from asfl.field.stream import METHOD, SERVICE, VERSION_KEY, Identity, StreamServer, take_part
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import run
from studies.torture.counts import Counts, only_errors

STRANGERS, CLIENTS = 2000, 3
_AT_ONCE = 500
_LONGEST_S = 600.0
_FILES = 700
"""How many the server's process may have open: few, so that they run out if anything is wrong."""
_GREETINGS = [b"", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(100)]


@only_errors()
def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, config = Counts(), _config()
    alone, crowded = folder / "alone", folder / "crowded"
    torch.set_num_threads(1)
    run(config, "asfl", alone, threads=1)
    agreement = Agreement(config, "asfl", threads=1)
    authority, homes = Authority.of(folder / "server"), [folder / f"device-{n}" for n in range(CLIENTS)]
    devices = [enrol_here(home, authority, home.name, "", "").files(home) for home in homes]
    other, elsewhere = Authority.of(folder / "other"), folder / "stranger"
    enrol_here(elsewhere, other, "device-0", "", "")
    (elsewhere / "authority.pem").write_text(authority.pem)  # so that it calls at all
    with few_files(), StreamServer("127.0.0.1:0", agreement, authority) as server:
        callers = [threading.Thread(target=_be_client, args=(server.address, one)) for one in devices]
        for caller in callers:
            caller.start()
        server.wait_for_clients(_LONGEST_S)
        counts.tried = max(20, round(share * STRANGERS))
        seed = int(random.integers(1 << 30))
        strangers = _start_strangers(server.address, counts.tried, homes[0], elsewhere, seed)
        try:
            train(agreement, crowded, server.links)
            if strangers.wait(_LONGEST_S):
                counts.defect("lost", "the strangers gave up")
        except AsflError as error:
            counts.defect("lost", str(error))
        except Exception as error:
            counts.defect("tracebacks", repr(error))
        finally:
            strangers.kill()
            strangers.wait()
            server.say_bye()
        for caller in callers:
            caller.join(_LONGEST_S)
    if crowded.exists() and _facts(crowded) != _facts(alone):
        counts.defect("lost", "the run has other bits than without strangers")
    return counts


def _facts(folder: Path) -> tuple[list[RoundRecord], bytes]:
    model = folder / "model.safetensors"
    # Its shift needs layers that no client sends.
    records = [replace(record, resplit_shift=0.0) for record in read_records(folder)]
    return records, model.read_bytes() if model.exists() else b""


def _be_client(address: str, identity: Identity) -> None:
    with suppress(AsflError):  # whatever happened to it is in the records
        take_part(address, identity, patience_s=_LONGEST_S)


@contextmanager
def few_files() -> Iterator[None]:
    """As on a machine where a process may have few files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _config() -> Config:
    return load_config(
        "demo",
        [f"scenario.clients={CLIENTS}", "model.width=0.1", "training.batch_size=8", "training.rounds=30",
         "output.test_samples=20", "output.track=none", "output.checkpoint_every=5"],
    ).config  # fmt: skip


# ---------------------------------------------------------------------- their process
def _start_strangers(address: str, count: int, silent: Path, stranger: Path, seed: int) -> "subprocess.Popen[bytes]":
    """`silent`, `stranger`: folders of a device, and of one of another authority."""
    arguments = [address, str(count), str(silent), str(stranger), str(seed)]
    return subprocess.Popen([sys.executable, "-m", "studies.torture.strangers", *arguments])


def be_strangers(address: str, count: int, silent: Path, stranger: Path, seed: int) -> None:
    """Open so many connections, some hundreds at a time, in whatever way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _AT_ONCE + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    host, _, port = address.rpartition(":")
    random, open_ones = np.random.default_rng(seed), []
    wordless = [_call(address, silent) for _ in range(20)]  # a key that is valid, and never a word
    for number in range(count):
        if number % 20 == 19:
            call, channel = _call(address, stranger)
            with suppress(grpc.RpcError):
                next(call)
            channel.close()
            continue
        caller = socket.socket()
        caller.settimeout(5.0)
        with suppress(OSError):
            caller.connect((host, int(port)))
            caller.sendall(_GREETINGS[random.integers(len(_GREETINGS))])
        open_ones.append(caller)
        if len(open_ones) >= _AT_ONCE:
            time.sleep(0.2)
            for caller in open_ones[: _AT_ONCE // 2]:
                caller.close()
            open_ones = open_ones[_AT_ONCE // 2 :]
    for _, channel in wordless:
        channel.close()
    os._exit(0)  # gRPC's threads still wait for words that never come


def _call(address: str, home: Path) -> tuple[Iterator[bytes], grpc.Channel]:
    key, certificate, authority = ((home / name).read_bytes() for name in ("device.key", "device.pem", "authority.pem"))
    shown = grpc.ssl_channel_credentials(authority, key, certificate)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", SERVER_NAME)]
    channel = grpc.secure_channel(address, shown, options)
    work: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
    nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    return iter(work(iter(nothing.get, None), metadata=((VERSION_KEY, __version__),), timeout=30)), channel


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("address", str), ("count", int), ("silent", Path), ("stranger", Path), ("seed", int)):
        parser.add_argument(name, type=kind)
    be_strangers(**vars(parser.parse_args()))
