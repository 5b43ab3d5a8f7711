"""Strangers at the door of a run: 2,000 connections without a key, while its clients train.

They come from another process, to the port of the streams: some say nothing, some send garbage, some begin a call and
stop in the middle, some show credentials that don't exist; one has a key that is valid and never says that it is ready.
The run must end with every bit as if nobody had been there, and clients must still be let in afterwards.
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
from pathlib import Path

import grpc
import numpy as np
import torch

from asfl._version import __version__
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.field.engine import train
from asfl.field.protocol.messages import Agreement
from asfl.field.stream.client import serve
from asfl.field.stream.common import CREDENTIAL_KEY, METHOD, SERVICE, VERSION_KEY
from asfl.field.stream.server import StreamServer
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
    with few_files(), StreamServer("127.0.0.1:0", agreement) as server:
        callers = [threading.Thread(target=_be_client, args=(server.address, t)) for t in server.access.tokens]
        for caller in callers:
            caller.start()
        server.wait_for_clients(_LONGEST_S)
        counts.tried = max(20, round(share * STRANGERS))
        spare = server.access.renew(0, void=False)  # somebody who may come in, and never says that it is ready
        strangers = _start_strangers(server.address, counts.tried, spare, int(random.integers(1 << 30)))
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
    return read_records(folder), model.read_bytes() if model.exists() else b""


def _be_client(address: str, token: str) -> None:
    with suppress(AsflError):  # whatever happened to it is in the records
        serve(address, token, patience_s=_LONGEST_S)


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
def _start_strangers(address: str, count: int, credential: str, seed: int) -> "subprocess.Popen[bytes]":
    arguments = [address, str(count), credential, str(seed)]
    return subprocess.Popen([sys.executable, "-m", "studies.torture.strangers", *arguments])


def be_strangers(address: str, count: int, credential: str, seed: int) -> None:
    """Open so many connections, some hundreds at a time, in whatever way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _AT_ONCE + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    host, _, port = address.rpartition(":")
    random, open_ones = np.random.default_rng(seed), []
    silent = [_call(address, credential) for _ in range(20)]  # a key that is valid, and never a word
    for number in range(count):
        if number % 20 == 19:
            call, channel = _call(address, f"{random.integers(5)}.{'ab' * 32}")
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
    for _, channel in silent:
        channel.close()
    os._exit(0)  # gRPC's threads still wait for words that nobody says


def _call(address: str, credential: str) -> tuple[Iterator[bytes], grpc.Channel]:
    channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
    work: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
    metadata = ((CREDENTIAL_KEY, credential), (VERSION_KEY, __version__))
    nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    return iter(work(iter(nothing.get, None), metadata=metadata, timeout=30)), channel


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("address", str), ("count", int), ("credential", str), ("seed", int)):
        parser.add_argument(name, type=kind)
    be_strangers(**vars(parser.parse_args()))
