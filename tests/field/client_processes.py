"""Clients in processes of their own, which do something else at one request if they are told to over a pipe."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from fork_server import CONTEXT
from small_runs import enrolled
from waiting import LONG_S

from asfl.config.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.messages import Agreement, Answer, AnyRequest, Welcome
from asfl.field.stream import Identity, StreamServer, take_part
from asfl.field.wire import Data


@dataclass(frozen=True)
class Order:
    """What to do when this request comes."""

    op: str
    round: int
    deed: str
    """wait: say "here" and answer when told to; late: answer so many seconds later; garbage: as it says."""
    seconds: float = 0.0


class Misbehaving(ClientNode):
    def __init__(self, welcome: Welcome, data_dir: Path | None, orders: Connection) -> None:
        super().__init__(welcome, data_dir)
        self._orders, self._order, self._garbage = orders, Order("", 0, ""), False

    def answer(self, data: Data) -> bytes:
        answer = super().answer(data)
        if self._garbage:
            answer, self._garbage = b"?" * 1000, False
        return answer

    def handle(self, request: AnyRequest) -> Answer:
        while self._orders.poll():
            self._order = self._orders.recv()
        order = self._order
        if (order.op, order.round) != (request.name, request.round):
            return super().handle(request)
        self._order = Order("", 0, "")
        if order.deed == "wait":
            self._orders.send("here")
            self._orders.recv()
        if order.deed == "late":
            time.sleep(order.seconds)
        self._garbage = order.deed == "garbage"
        return super().handle(request)


def be_client(address: str, identity: Identity, orders: Connection | None = None) -> None:
    """With `orders`, misbehave as told."""
    logging.disable()

    def make_node(welcome: Welcome, data_dir: Path | None) -> ClientNode:
        return ClientNode(welcome, data_dir) if orders is None else Misbehaving(welcome, data_dir, orders)

    try:
        take_part(address, identity, patience_s=LONG_S, make_node=make_node)
    except AsflError:
        os._exit(2)


class ClientProcesses:
    """One process per client of a server; each can be killed, stopped, continued and started again."""

    def __init__(self, server: StreamServer, identities: Sequence[Identity]) -> None:
        self._server, self._identities = server, identities
        self._processes: dict[int, ForkServerProcess] = {}
        self.orders: dict[int, Connection] = {}
        """To each process: what to do wrong (`Order`)."""
        for client in range(len(identities)):
            self._start(client)

    def _start(self, client: int) -> None:
        self.orders[client], theirs = CONTEXT.Pipe()
        arguments = self._server.address, self._identities[client], theirs
        process = CONTEXT.Process(target=be_client, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._processes[client] = process

    def signal(self, client: int, number: signal.Signals) -> None:
        pid = self._processes[client].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self, client: int) -> None:
        self.signal(client, signal.SIGKILL)
        self._processes[client].join()

    def restart(self, client: int) -> None:
        """As the same device: what the dead process had learnt is gone."""
        self._processes[client].close()
        self.orders[client].close()
        self._start(client)

    def exit_code(self, client: int) -> int | None:
        self._processes[client].join(LONG_S)
        return self._processes[client].exitcode

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()
            process.close()
        for orders in self.orders.values():
            orders.close()


@contextmanager
def client_processes(agreement: Agreement) -> Iterator[tuple[StreamServer, ClientProcesses]]:
    """A server on this machine with all its clients connected."""
    with TemporaryDirectory() as folder:
        authority, identities = enrolled(Path(folder), agreement.config.scenario.clients)
        with StreamServer("127.0.0.1:0", agreement, authority) as server:
            clients = ClientProcesses(server, identities)
            try:
                server.wait_for_clients(LONG_S)
                yield server, clients
            finally:
                clients.end()
