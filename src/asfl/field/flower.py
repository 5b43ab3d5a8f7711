"""A Flower app for a SuperLink of your own: Flower knows the nodes and starts the run; all else is `asfl serve`.

The ServerApp does what `asfl serve` does, and sends each node one message: where to enrol, and a code that works once.
The ClientApp does what `asfl join` does with it, and answers when the run is over. Tensors go over our stream.
"""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from asfl.config import load_config
from asfl.config.errors import AsflError, MissingExtraError, nearest, words_of
from asfl.config.load import DEFAULT_PRESET
from asfl.field.membership import Membership, Registry, enrol
from asfl.field.serve import Listening, Waiting, serve_run
from asfl.runs.records import RoundRecord
from asfl.runs.this_process import stopping_on_ctrl_c

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError as error:
    raise MissingExtraError("the Flower app", "flower") from error

_log = logging.getLogger("asfl")
_LIFETIME_S = 30 * 24 * 3600.0
"""Flower forgets messages that are older, and one is answered when the run is over."""
_LOOK_EVERY_S, _AGAIN_EVERY_S = 1.0, 30.0

DEFAULTS: dict[str, str | float] = {
    "base": DEFAULT_PRESET, "set": "", "scheme": "asfl", "out": "", "data-dir": "", "host": "127.0.0.1", "port": 0,
    "wait-s": 300.0,
}  # fmt: skip
"""What `flwr run --run-config` can set; pyproject.toml says what it means."""

server_app, client_app = ServerApp(), ClientApp()


# ---------------------------------------------------------------------- the server
@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train what the run configuration asks for, in a run folder beside which the devices' list is kept."""
    _show_log()
    wished = {**DEFAULTS, **context.run_config}
    for name in wished:
        if name not in DEFAULTS:
            raise AsflError(f"unknown key '{name}': {nearest(name, DEFAULTS)} (set in --run-config)")
    base, scheme = str(wished["base"]), str(wished["scheme"])
    config = load_config(base, [change for change in str(wished["set"]).split(";") if change.strip()]).config
    folder = Path(str(wished["out"]) or f"runs/{Path(base).stem}-{scheme}-seed{config.scenario.seed}")
    invitations = Invitations(grid, _wait_for_nodes(grid, config.scenario.clients, float(wished["wait-s"])))
    # `flwr stop` sends a signal; in Flower's simulation the ServerApp isn't in the main thread, which gets it.
    main_thread = threading.current_thread() is threading.main_thread()
    with stopping_on_ctrl_c() if main_thread else nullcontext(lambda: False) as stop:

        def should_stop() -> bool:
            invitations.repeat()
            return stop()

        finished = serve_run(
            config,
            scheme,
            folder,
            folder.with_name(f"{folder.name}-server"),
            Listening(str(wished["host"]), int(wished["port"])),
            wait_s=float(wished["wait-s"]),
            on_listening=invitations.send,
            on_round=_tell,
            should_stop=should_stop,
            data_dir=Path(str(wished["data-dir"])) if wished["data-dir"] else None,
        )
    _log.info("finished: %s" if finished else "stopped; the same flwr run goes on: %s", folder.absolute())


def _wait_for_nodes(grid: Grid, clients: int, wait_s: float) -> list[int]:
    due = time.monotonic() + wait_s
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if time.monotonic() > due:
            raise AsflError(
                f"scenario.clients = {clients} needs as many nodes, but {len(nodes)} came within {wait_s:g} s: start "
                "more SuperNodes, have wait-s longer, or order fewer clients"
            )
        time.sleep(_LOOK_EVERY_S)
    return nodes[:clients]


class Invitations:
    """One message for each node. A node whose ClientApp ended before the run did gets it again, for the same device."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes
        self._content: dict[int, dict[str, str]] = {}
        self._open: dict[str, int] = {}
        """{number of a message: its node}"""
        self._looked_at = 0.0

    def send(self, server: Waiting) -> None:
        codes = iter(server.codes)
        # A device that enrolled before has its key, and needs no code; without that key it has to be revoked first.
        known = {device.name for device in Registry(server.authority.folder).read().active}
        for node in self._nodes:
            name = f"node-{node}"
            code = "" if name in known else next(codes, "")
            self._content[node] = {"name": name, "enrolment": server.enrolment, "stream": server.stream, "code": code}
            self._push(node)

    def _push(self, node: int) -> None:
        content = RecordDict({"asfl": ConfigRecord(dict(self._content[node]))})
        for number in self._grid.push_messages([Message(content, node, "train", ttl=_LIFETIME_S)]):
            self._open[number] = node

    def repeat(self) -> None:
        """To nodes whose ClientApp has ended; called between rounds."""
        if time.monotonic() - self._looked_at < _AGAIN_EVERY_S:
            return
        self._looked_at = time.monotonic()
        try:
            for reply in self._grid.pull_messages(list(self._open)) if self._open else []:
                node = self._open.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and (reason := _reason(reply)):
                    _log.warning("node %d left: %s", node, words_of(reason))
                    self._push(node)
        except Exception as error:  # the SuperLink can't be reached for a while, and training doesn't need it
            _log.warning("Flower's SuperLink doesn't answer: %s", error)


def _reason(reply: Message) -> str:
    if reply.has_error():
        return reply.error.reason or "lost"
    record = reply.content.get("asfl")
    return str(record.get("reason", "")) if isinstance(record, ConfigRecord) else "no reason was given"


def _tell(record: RoundRecord) -> None:
    accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.3f}"
    _log.info("round %d: %d of %d arrived%s", record.round, record.arrived_count, record.scheduled_count, accuracy)


# ---------------------------------------------------------------------- a node
@client_app.train()
def take_part(message: Message, context: Context) -> Message:
    """Be a device of the run until it is over; --node-config: home (its key), data-dir, meter."""
    _show_log()
    reason = ""
    try:
        _join(message.content, context.node_config)
    except AsflError as error:
        reason = str(error)
        _log.error("error: %s", error)
    return Message(RecordDict({"asfl": ConfigRecord({"reason": reason})}), reply_to=message)


def _join(content: RecordDict, node_config: Mapping[str, Any]) -> None:
    from asfl.field.stream import work  # with PyTorch, which takes its time

    said = content.get("asfl")
    told = {name: str(value) for name, value in said.items()} if isinstance(said, ConfigRecord) else {}
    if told.keys() != {"name", "enrolment", "stream", "code"}:
        raise AsflError("the message isn't understood; does the server run the same asfl?")
    given, data = str(node_config.get("home", "")), str(node_config.get("data-dir", ""))
    home = Path(given) if given else Path.home() / ".asfl" / told["name"]
    member = Membership.read(home)
    if told["code"]:
        member = enrol(home, told["enrolment"], told["code"], told["name"], data)
    if member is None:
        raise AsflError(
            f"the server's list has no place for {told['name']}, or {home} has lost its key; asfl devices revoke makes "
            "one free"
        )
    member = replace(member, enrolment=told["enrolment"], stream=told["stream"], data=data)
    work(home, member, meter=str(node_config.get("meter", "none")), once=True)


def _show_log() -> None:
    """On standard output, which Flower sends to those who call `flwr log`."""
    if not _log.handlers:
        _log.addHandler(logging.StreamHandler(sys.stdout))
        _log.setLevel(logging.INFO)
