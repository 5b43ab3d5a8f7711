"""The server's side of the sessions: every client gets one, and another one if it lost it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from flwr.app import Message
from flwr.serverapp import Grid

from asfl.errors import AsflError
from asfl.field.flower.seats import deal
from asfl.field.flower.session import MESSAGE, Farewell, Session
from asfl.field.stream_server import StreamServer

_log = logging.getLogger(__name__)
_LIFETIME_S = 30 * 24 * 3600.0
"""Flower forgets messages that are older, and a session lasts as long as the run."""
_POLL_S = 0.1
_LOOK_EVERY_S = 1.0
_FAREWELL_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_GRACE_S = 30.0


def wait_for_nodes(grid: Grid, clients: int, wait_s: float, should_stop: Callable[[], bool]) -> list[int]:
    """The nodes that are connected, once there are enough for all clients."""
    due, before = time.monotonic() + wait_s, -1
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if len(nodes) != before:
            before = len(nodes)
            _log.info("%d of %d nodes are here (%s); waiting for the others", len(nodes), clients, _listed(nodes))
        _unless_stopped(should_stop)
        if time.monotonic() > due:
            raise AsflError(
                f"scenario.clients = {clients} needs as many nodes, but within {wait_s:g} s (wait-s) only {len(nodes)} "
                f"came: {_listed(nodes)}. Start more SuperNodes (in Flower's simulation: num-supernodes), or order "
                "fewer clients"
            )
        time.sleep(_LOOK_EVERY_S)
    return nodes


class Sessions:
    """The clients of a run and their nodes. While it is open, a thread of its own looks after them."""

    def __init__(
        self, grid: Grid, server: StreamServer, nodes: Sequence[int], authority: str, patience_s: float
    ) -> None:
        self._grid, self._server, self._nodes = grid, server, nodes
        self._authority, self._patience_s = authority, patience_s
        self._wishes: dict[int, int] = {}
        self.seats = deal(len(server.links), nodes, self._wishes)
        """{client: node}."""
        self._open: dict[str, int] = {}
        """{message: client} of sessions that haven't ended."""
        self._failed: dict[int, str] = {}
        self._pause_s = dict.fromkeys(self.seats, _FIRST_PAUSE_S)
        self._due: dict[int, float] = {}
        """When a client that isn't connected gets another session."""
        self._no_more, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="asfl-sessions", daemon=True)

    def invite(self, clients: Iterable[int]) -> None:
        """Send sessions; whatever these clients had before opens nothing any more."""
        for client in clients:
            token = self._server.access.renew(client)
            session = Session(self._server.address, token, self._authority, client, self._patience_s)
            message = Message(session.content(), self.seats[client], MESSAGE, ttl=_LIFETIME_S)
            self._open = {number: other for number, other in self._open.items() if other != client}
            for number in self._grid.push_messages([message]):
                self._open[number] = client
            self._due.pop(client, None)

    def wait_for_clients(self, wait_s: float, should_stop: Callable[[], bool]) -> None:
        """Until all are connected to the stream; who can't take part ends the run before it begins."""
        due, look_at = time.monotonic() + wait_s, 0.0
        while missing := [client for client, link in enumerate(self._server.links) if not link.connected]:
            now = time.monotonic()
            if now > look_at:
                self.look()
                look_at = now + _LOOK_EVERY_S
            if self._failed:
                client, reason = next(iter(self._failed.items()))
                raise AsflError(f"client {client} (node {self.seats[client]}) can't take part: {reason}")
            _unless_stopped(should_stop)
            if now > due:
                names = ", ".join(f"{client} (node {self.seats[client]})" for client in missing)
                raise AsflError(
                    f"{len(missing)} of {len(self.seats)} clients didn't come within {wait_s:g} s (wait-s): {names}. "
                    f"Do they reach {self._server.address}? In Flower's simulation, all need a CPU at once "
                    "(client-resources-num-cpus)"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Wait for the farewells of those who are still there: then their nodes are free for another run."""
        self.invite_nobody_else()
        due = time.monotonic() + _FAREWELL_S
        while self._open and time.monotonic() < due:
            time.sleep(_POLL_S)
        self._over.set()  # the thread itself may be waiting for a SuperLink that is gone

    def invite_nobody_else(self) -> None:
        """The run is about to end."""
        self._no_more.set()

    def look(self) -> None:
        """See who has left, and let them come again."""
        for client, farewell in self._farewells():
            if farewell.outcome == "declined":
                self._deal_again(client, farewell.wants)
            elif farewell.outcome == "failed":
                self._failed[client] = farewell.reason
                self._due[client] = time.monotonic() + self._longer(client)

    def _keep(self) -> None:
        while not self._over.wait(_POLL_S if self._no_more.is_set() else _LOOK_EVERY_S):
            try:
                self.look()
                if not self._no_more.is_set():
                    self._invite_lost()
            except AsflError as error:
                _log.warning("%s", error)
            except Exception as error:  # the SuperLink can't be reached for a while, and training doesn't need it
                _log.warning("Flower's SuperLink doesn't answer: %s", error)

    def _invite_lost(self) -> None:
        """A client that ended its session, or has been away for longer than it keeps trying, gets a new one."""
        now, lost = time.monotonic(), []
        for client, link in enumerate(self._server.links):
            if link.connected:
                self._due.pop(client, None)
                self._pause_s[client] = _FIRST_PAUSE_S
            elif client not in self._due:
                self._due[client] = now + self._patience_s + _GRACE_S + self._longer(client)
            elif now > self._due[client]:
                lost.append(client)
        here = set(self._grid.get_node_ids()) if lost else set()
        for client in lost:
            if self.seats[client] in here:
                reason = self._failed.pop(client, "not connected")
                _log.info("client %d (node %d) gets a new session: %s", client, self.seats[client], reason)
                self.invite([client])
            else:
                self._due[client] = now + _FIRST_PAUSE_S

    def _longer(self, client: int) -> float:
        """How long to wait this time; twice as long the next time."""
        pause_s = self._pause_s[client]
        self._pause_s[client] = min(2 * pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def _deal_again(self, client: int, wish: int) -> None:
        """A node says it is another client: it changes places, and whoever sat there gets another session too."""
        self._wishes[self.seats[client]] = wish
        before, self.seats = self.seats, deal(len(self.seats), self._nodes, self._wishes)
        moved = [number for number, node in self.seats.items() if before[number] != node]
        for number in moved:
            self._server.links[number].close()
        self.invite(moved)

    def _farewells(self) -> list[tuple[int, Farewell]]:
        ended = []
        for reply in self._grid.pull_messages(list(self._open)) if self._open else []:
            client = self._open.pop(reply.metadata.reply_to_message_id, None)
            if client is not None:
                ended.append((client, _farewell(reply)))
        return ended


def _farewell(reply: Message) -> Farewell:
    return Farewell("failed", reply.error.reason or "lost") if reply.has_error() else Farewell.of(reply.content)


def _unless_stopped(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise AsflError("stopped before the first round")


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
