"""A run with devices that have certificates: where they enrol, their streams, the dashboard, the training."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.dashboard import Dashboard, MetricsPage
from asfl.field.devices.authority import Authority
from asfl.field.devices.enrolment import EnrolmentServer, pasted_code
from asfl.field.engine import agreement_for, train
from asfl.field.stream.server import StreamServer
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import RoundRecord
from asfl.runs.run import RunOptions, ShouldStop

_POLL_S = 0.2


@dataclass(frozen=True)
class Listening:
    """Where a server is reached."""

    host: str = "127.0.0.1"
    port: int = 7400
    """Of the streams; devices enrol at the next one."""
    shown_host: str = ""
    """As devices reach it, if that is another name."""
    metrics: tuple[str, int] | None = None


@dataclass(frozen=True)
class Waiting:
    """What a server that waits for its devices tells."""

    authority: Authority
    enrolment: str
    """host:port where new devices enrol."""
    stream: str
    """host:port of the streams."""
    codes: Sequence[str]
    """One for each device that is missing on the list."""


def serve_run(
    config: Config,
    scheme: str,
    folder: Path,
    home: Path,
    listening: Listening,
    *,
    code_hours: float = 24.0,
    wait_s: float = float("inf"),
    on_listening: Callable[[Waiting], None] = lambda waiting: None,
    on_waiting: Callable[[int, int], None] = lambda there, wanted: None,
    **watching: Unpack[RunOptions],
) -> bool:
    """Train with devices. True: all rounds are done; False: it was told to stop, and the same call goes on.

    `on_listening` is called once, before devices are waited for; `on_waiting` gets how many are there.
    """
    run_to_go_on_with(folder, config, scheme)  # refuses another run of that name
    authority, clients = Authority.of(home), config.scenario.clients
    agreement = agreement_for(config, scheme, folder, watching.get("threads"))
    should_stop, on_round = watching.get("should_stop", lambda: False), watching.get("on_round")
    with ExitStack() as open_:
        server = open_.enter_context(StreamServer(f"{listening.host}:{listening.port}", agreement, authority))
        registry, stream_port = server.registry, server.address.rpartition(":")[2]
        port = listening.port + 1 if listening.port else 0
        enrolment = open_.enter_context(
            EnrolmentServer(listening.host.strip("[]"), port, authority, registry, stream_port)
        )
        dashboard = Dashboard(home, registry, server.links, str(folder), config.training.rounds)
        open_.enter_context(dashboard)
        if listening.metrics is not None:
            open_.enter_context(MetricsPage(*listening.metrics, dashboard))
        known = {device.number for device in registry.read().active}
        missing = sum(number not in known for number in range(clients))
        new = registry.invite(missing, code_hours) if missing else []
        codes = [pasted_code(enrolment.fingerprint, code) for code in new]
        host = listening.shown_host or listening.host
        on_listening(Waiting(authority, f"{host}:{enrolment.server_port}", f"{host}:{stream_port}", codes))
        if not _all_are_there(server, wait_s, on_waiting, should_stop):
            return False
        registry.audit("run begins", run=str(folder), scheme=scheme, devices=clients)

        def after_round(record: RoundRecord) -> None:
            dashboard.round(record)
            if on_round is not None:
                on_round(record)

        try:
            watching["on_round"] = after_round
            finished = train(agreement, folder, server.links, **watching)
        except AsflError as error:
            registry.audit("run failed", run=str(folder), reason=str(error))
            raise
        registry.audit("run finished" if finished else "run stopped", run=str(folder))
        if finished:
            server.say_bye()
        return finished


def _all_are_there(
    server: StreamServer, wait_s: float, on_waiting: Callable[[int, int], None], should_stop: ShouldStop
) -> bool:
    """False: told to stop."""
    due, before = time.monotonic() + wait_s, -1
    while (there := sum(link.connected for link in server.links)) < len(server.links):
        if there != before:
            before = there
            on_waiting(there, len(server.links))
        if should_stop():
            return False
        if time.monotonic() > due:
            raise AsflError(f"{there} of {len(server.links)} devices came within {wait_s:g} s (--wait-s)")
        time.sleep(_POLL_S)
    return True
