"""Strangers at the HTTP ports: one address drips on enrolment, metrics and the report, while honest calls come.

Each of 60 strangers a port says a byte now and then, and calls again when it is closed; the process has few files open.
No honest call from the same address may fail, records can be written all the time, and nothing is left open afterwards.
"""

import random as chance
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from asfl.config.errors import AsflError
from asfl.field.certificates import Authority
from asfl.field.membership import EnrolmentServer, Registry, enrol, pasted_code
from asfl.field.serve import Dashboard, MetricsPage
from asfl.field.stream import StreamLink
from asfl.results.page.serve import LivePage, open_server
from asfl.runs.files import append_line
from studies.torture.counts import Counts, only_errors
from studies.torture.strangers import few_files

FULL, STRANGERS = 300, 60
_BEGINNINGS = [
    b"",
    b"GET / HT",
    b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc",
    b"POST /enrol HTTP/1.0\r\nContent-Length: 9000\r\n\r\n",
]


@only_errors()
def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, home, before = Counts(), folder / "home", psutil.Process().num_fds()
    registry = Registry(home)
    with few_files(), ExitStack() as open_:
        enrolment = open_.enter_context(EnrolmentServer("127.0.0.1", 0, Authority.of(home), "7400"))
        page = open_.enter_context(MetricsPage("127.0.0.1", 0, Dashboard(home, registry, [StreamLink()], "run", 10)))
        watch = open_.enter_context(open_server(LivePage(lambda: "", lambda version: "page", "library"), 0))
        for server in (enrolment, page, watch):
            open_.enter_context(_strangers(server.server_port))

        def enrolled(number: int) -> None:
            pasted = pasted_code(enrolment.fingerprint, registry.invite(1, 1)[0])
            enrol(folder / f"device{number}", f"127.0.0.1:{enrolment.server_port}", pasted, f"device-{number}", "")

        calls: list[Callable[[int], object]] = [
            enrolled,
            lambda number: _get(page.server_port, "/metrics"),
            lambda number: _get(watch.server_port, "/version"),
        ]
        for number in range(max(3, round(share * FULL))):
            counts.tried += 1
            try:
                calls[number % len(calls)](number)
                append_line(folder / "records", "a round\n")
            except (AsflError, OSError) as error:
                counts.defect("lost", f"honest call {number}: {error}")
            except Exception as error:
                counts.defect("tracebacks", repr(error))
    due = time.monotonic() + 60
    while (left := psutil.Process().num_fds() - before) > 0 and time.monotonic() < due:
        time.sleep(0.1)
    if left > 0:
        counts.defect("silent", f"{left} files are left open")
    return counts


def _get(port: int, path: str) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        answer.read()


@contextmanager
def _strangers(port: int) -> Iterator[None]:
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 30) as connection:
                connection.send(chance.choice(_BEGINNINGS))
                while not over.wait(0.5):
                    connection.send(b"x")

    threads = [threading.Thread(target=drip) for _ in range(STRANGERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
