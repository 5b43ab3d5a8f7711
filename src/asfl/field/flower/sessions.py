"""The server's side of the sessions: every client gets one, and another one if it lost it."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from flwr.app import Message
from flwr.serverapp import Grid

from asfl.config.errors import AsflError
from asfl.field.flower.session import MESSAGE, Farewell, Session
from asfl.field.protocol.wire import words_of
from asfl.field.stream.server import StreamServer
from asfl.runs.watching import ShouldStop

_log = logging.getLogger(__name__)
_LIFETIME_S = 30 * 24 * 3600.0
"""Flower forgets messages that are older, and a session lasts as long as the run."""
_POLL_S = 0.1
_LOOK_EVERY_S = 1.0
_FAREWELL_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_CALLS_AGAIN_S = 10.0
"""A client that lives and has a network calls again within this time."""


def wait_for_nodes(grid: Grid, clients: int, next_within_s: float, should_stop: ShouldStop) -> list[int]:
    """The nodes that are connected, once there are enough for all clients; gives up if no other comes in time."""
    due, before = 0.0, -1
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if len(nodes) != before:
            due, before = time.monotonic() + next_within_s, len(nodes)
            _log.info("%d of %d nodes are here (%s); waiting for the others", len(nodes), clients, _listed(nodes))
        _unless_stopped(should_stop)
        if time.monotonic() > due:
            raise AsflError(
                f"scenario.clients = {clients} needs as many nodes, but there are {len(nodes)} ({_listed(nodes)}), and "
                f"no other came within {next_within_s:g} s. Start more SuperNodes first (or have nodes-s longer; in "
                f"Flower's simulation: --federation-config num-supernodes={clients}), or order fewer clients"
            )
        time.sleep(_LOOK_EVERY_S)
    return nodes


def assign_nodes(clients: int, nodes: Sequence[int], claims: Mapping[int, int]) -> dict[int, int]:
    """The node of each client: {client: node}.

    A node that knows which client it is (`claims`: {node: client}) becomes that one. The others get the numbers that
    are left, in the order of their ids. Nodes for which no number is left, or whose client isn't in this run, get none.
    """
    assigned: dict[int, int] = {}
    for node in sorted(nodes):
        claim = claims.get(node, clients)
        if claim in assigned:
            raise AsflError(f"nodes {assigned[claim]} and {node} both say they are client {claim} (--node-config)")
        if claim < clients:
            assigned[claim] = node
    free = [client for client in range(clients) if client not in assigned]
    others = [node for node in sorted(nodes) if node not in claims]
    if len(others) < len(free):
        missing = ", ".join(map(str, free[len(others) :]))
        raise AsflError(f"no node is left for client {missing}: the others say they are other clients (--node-config)")
    return dict(sorted([*assigned.items(), *zip(free, others, strict=False)]))


class Sessions:
    """The clients of a run and their nodes. While it is open, a thread of its own looks after them."""

    def __init__(
        self, grid: Grid, server: StreamServer, nodes: Sequence[int], authority: str, patience_s: float
    ) -> None:
        self._grid, self._server, self._nodes = grid, server, nodes
        self._authority, self._patience_s = authority, patience_s
        self._claims: dict[int, int] = {}
        """{node: client} of nodes that know which client they are."""
        self.node_of = assign_nodes(len(server.links), nodes, self._claims)
        self._open: dict[str, int] = {}
        """{message: client} of sessions that haven't ended."""
        self._failed: dict[int, str] = {}
        self._pause_s = dict.fromkeys(self.node_of, _FIRST_PAUSE_S)
        self._due: dict[int, float] = {}
        """When a client that isn't connected gets another session."""
        self._no_more, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="asfl-sessions", daemon=True)

    def invite(self, clients: Iterable[int], *, void: bool = True) -> None:
        """Send sessions; whatever these clients had before opens nothing any more, unless they may yet use it."""
        for client in clients:
            token = self._server.access.renew(client, void=void)
            session = Session(self._server.address, token, self._authority, client, self._patience_s)
            message = Message(session.content(), self.node_of[client], MESSAGE, ttl=_LIFETIME_S)
            self._open = {number: other for number, other in self._open.items() if other != client}
            for number in self._grid.push_messages([message]):
                self._open[number] = client
            self._due.pop(client, None)

    def wait_for_clients(self, wait_s: float, should_stop: ShouldStop) -> None:
        """Wait until all are connected to the stream. A client that can't take part ends the run before it begins."""
        due, look_at = time.monotonic() + wait_s, 0.0
        while missing := [client for client, link in enumerate(self._server.links) if not link.connected]:
            now = time.monotonic()
            if now > look_at:
                self.look()
                look_at = now + _LOOK_EVERY_S
            if self._failed:
                client, reason = next(iter(self._failed.items()))
                raise AsflError(f"client {client} (node {self.node_of[client]}) can't take part: {reason}")
            _unless_stopped(should_stop)
            if now > due:
                names = ", ".join(f"{client} (node {self.node_of[client]})" for client in missing)
                raise AsflError(
                    f"{len(missing)} of {len(self.node_of)} clients didn't come within {wait_s:g} s (wait-s): {names}. "
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
                self._assign_again(client, farewell.claim)
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
        """A client that ended its session, or hasn't called again for a while, gets a new one.

        Flower itself takes a minute to notice a ClientApp that died. If this one lives on a device without a network,
        it goes on with what it has as soon as it gets through, and the new session ends as it begins.
        """
        now, lost = time.monotonic(), []
        for client, link in enumerate(self._server.links):
            if link.connected:
                self._due.pop(client, None)
                self._pause_s[client] = _FIRST_PAUSE_S
            elif client not in self._due:
                self._due[client] = now + _CALLS_AGAIN_S
            elif now > self._due[client]:
                lost.append(client)
        here = set(self._grid.get_node_ids()) if lost else set()
        for client in lost:
            if self.node_of[client] in here:
                reason = self._failed.pop(client, "not connected")
                _log.info("client %d (node %d) gets a new session: %s", client, self.node_of[client], reason)
                self.invite([client], void=False)
                self._due[client] = now + self._patience_s + self._longer(client)
            else:
                self._due[client] = now + _FIRST_PAUSE_S

    def _longer(self, client: int) -> float:
        """How long to wait this time; twice as long the next time."""
        pause_s = self._pause_s[client]
        self._pause_s[client] = min(2 * pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def _assign_again(self, client: int, claim: int) -> None:
        """A node says it is another client: it becomes that one, and every client that moves gets another session."""
        self._claims[self.node_of[client]] = claim
        before, self.node_of = self.node_of, assign_nodes(len(self.node_of), self._nodes, self._claims)
        moved = [number for number, node in self.node_of.items() if before[number] != node]
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
    if reply.has_error():
        return Farewell("failed", words_of(reply.error.reason or "lost"))
    return Farewell.of(reply.content)


def _unless_stopped(should_stop: ShouldStop) -> None:
    if should_stop():
        raise AsflError("stopped before the first round")


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
