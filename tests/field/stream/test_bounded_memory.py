"""What is longer than was agreed on, or comes too early, takes no memory of the server's."""

import logging
import struct
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import pytest
from fork_server import CONTEXT
from impostor import READY, Impostor, words_of
from small_runs import agreement_of, enrolled, tiny
from torch import Tensor

from asfl.field.links import LinkError
from asfl.field.membership import Member
from asfl.field.messages import Ping
from asfl.field.shapes import Blueprint
from asfl.field.stream import CHUNK, Connection, Joiner, StreamLink, StreamServer
from asfl.field.wire import WireError, new_buffer

AGREEMENT = agreement_of(tiny(), "asfl")
LARGEST = Blueprint.of(AGREEMENT.config).largest_message
MIB = 1 << 20
OFFERED = 128 * MIB
"""By each of those who flood the server."""


def test_a_length_that_was_not_agreed_on_takes_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def watched(size: int) -> Tensor:
        made.append(size)
        return new_buffer(size)

    monkeypatch.setattr("asfl.field.stream.new_buffer", watched)
    joiner = Joiner(limit=1000)
    for size in (1001, 1 << 40, (1 << 64) - 1):
        with pytest.raises(WireError, match="more than the 1,000"):
            joiner.add(struct.pack("<Q", size))
    assert made == []
    joiner.add(struct.pack("<Q", 1000))
    assert made == [1000]


def test_at_most_one_request_waits_for_a_client_that_reads_nothing() -> None:
    member = cast(Member, SimpleNamespace(key="", still_in=True))
    link, connection = StreamLink(), Connection(member, "somewhere", lambda: None)
    link.attach(connection, "one")
    link.ask(Ping(), 100)
    for _ in range(100):
        with pytest.raises(LinkError, match="still busy"):
            link.ask(Ping(), 100).result(0)
    assert connection.outbox.qsize() == 1


def be_flooded(pipe: Pipe) -> None:
    logging.disable()
    with TemporaryDirectory() as folder:
        authority, devices = enrolled(Path(folder))
        with StreamServer("127.0.0.1:0", AGREEMENT, authority) as server:
            pipe.send((server.address, devices))
            while pipe.recv() != "end":
                pipe.send(_most_resident())
                Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten


def _most_resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_flood_is_not_kept() -> None:
    """From devices, before and after their first word, and from others with the same keys; all at once."""
    pipe, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=be_flooded, args=(theirs,), daemon=True)
    process.start()

    def peak() -> int:
        pipe.send("how much?")
        found = pipe.recv()
        assert isinstance(found, int)
        return found

    try:
        address, devices = pipe.recv()
        peak()
        before = peak()
        ready, nothing = words_of(READY), bytes(CHUNK)
        flood: Sequence[bytes] = [struct.pack("<Q", LARGEST) + nothing[8:], *([nothing] * (OFFERED // CHUNK))]
        callers = [Impostor(address, device) for device in [*devices, *devices]]
        for number, caller in enumerate(callers):
            caller.says(*(ready if number % 2 else []), *flood)
        for caller in callers:
            caller.is_refused_with()
        grown = peak() - before
        pipe.send("end")
    finally:
        process.kill()
        process.join()
    # About 25 MiB: what was agreed on, and what gRPC has on its way (more, where processes wait for a CPU). It is the
    # same for an eighth of the flood.
    assert grown < len(callers) * OFFERED / 5
