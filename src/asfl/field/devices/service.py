"""`asfl serve`: a run with devices that were invited, from the codes to the model."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.devices.authority import Authority
from asfl.field.devices.board import Board, MetricsPage
from asfl.field.devices.door import Door
from asfl.field.devices.membership import pasted_code
from asfl.field.devices.registry import Members, Registry
from asfl.field.engine import agreement_for, train
from asfl.field.stream.server import StreamServer
from asfl.runs.manifest import run_to_go_on_with
from asfl.runs.records import RoundRecord
from asfl.runs.watching import OnRound, ShouldStop

_POLL_S = 0.2


@dataclass(frozen=True)
class Listening:
    """Where a server is reached."""

    host: str = "127.0.0.1"
    port: int = 7400
    """Of the streams; the door is behind the next one."""
    shown_host: str = ""
    """As devices reach it, if that is another name."""
    metrics: tuple[str, int] | None = None


def serve_run(
    config: Config,
    scheme: str,
    folder: Path,
    home: Path,
    listening: Listening,
    *,
    code_hours: float = 24.0,
    wait_s: float = float("inf"),
    on_invited: Callable[[str, Sequence[str]], None] = lambda where, codes: None,
    on_waiting: Callable[[int, int], None] = lambda there, wanted: None,
    on_round: OnRound | None = None,
    should_stop: ShouldStop = lambda: False,
) -> bool:
    """Train with devices. True: all rounds are done; False: it was told to stop, and the same call goes on.

    `on_invited` gets where to enrol, and a code for each device that is missing; `on_waiting` how many are there.
    """
    run_to_go_on_with(folder, config, scheme)  # refuses another run of that name
    authority, registry = Authority.of(home), Registry(home)
    agreement, clients = agreement_for(config, scheme, folder), config.scenario.clients
    with ExitStack() as open_:
        address = f"{listening.host}:{listening.port}"
        keeper = Members(registry, clients)
        server = open_.enter_context(StreamServer(address, agreement, authority.server_certificates(), members=keeper))
        stream_port = server.address.rpartition(":")[2]
        door_port = listening.port + 1 if listening.port else 0
        door = open_.enter_context(Door(listening.host.strip("[]"), door_port, authority, registry, stream_port))
        board = Board(home, registry, server.links, str(folder), config.training.rounds)
        open_.enter_context(board)
        if listening.metrics is not None:
            open_.enter_context(MetricsPage(*listening.metrics, board))
        known = {device.number for device in registry.read().active}
        missing = sum(number not in known for number in range(clients))
        if missing:
            codes = registry.invite(missing, code_hours)
            where = f"{listening.shown_host or listening.host}:{door.server_port}"
            on_invited(where, [pasted_code(door.fingerprint, code) for code in codes])
        if not _everybody_is_there(server, wait_s, on_waiting, should_stop):
            return False
        registry.audit("run begins", run=str(folder), scheme=scheme, devices=clients)

        def after_round(record: RoundRecord) -> None:
            board.round(record)
            if on_round is not None:
                on_round(record)

        try:
            finished = train(agreement, folder, server.links, on_round=after_round, should_stop=should_stop)
        except AsflError as error:
            registry.audit("run failed", run=str(folder), reason=str(error))
            raise
        registry.audit("run finished" if finished else "run stopped", run=str(folder))
        if finished:
            server.say_bye()
        return finished


def _everybody_is_there(
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
