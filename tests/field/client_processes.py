"""Clients in processes of their own."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from fork_server import CONTEXT
from misbehaving import Misbehaving
from waiting import LONG_S

from asfl.config.errors import AsflError
from asfl.field.client import ClientNode
from asfl.field.protocol.messages import Agreement, Welcome
from asfl.field.stream.certificates import Certificates
from asfl.field.stream.client import serve
from asfl.field.stream.server import StreamServer


def be_client(address: str, token: str, authority: Path | None, orders: Connection | None = None) -> None:
    """With `orders`, misbehave as told."""
    logging.disable()

    def make_node(welcome: Welcome, data_dir: Path | None) -> ClientNode:
        return ClientNode(welcome, data_dir) if orders is None else Misbehaving(welcome, data_dir, orders)

    try:
        serve(address, token, authority=authority, patience_s=LONG_S, make_node=make_node)
    except AsflError:
        os._exit(2)


class ClientProcesses:
    """One process per client of a server; each can be killed, stopped, continued and started again."""

    def __init__(self, server: StreamServer, authority: Path | None) -> None:
        self._server, self._authority = server, authority
        self._processes: dict[int, ForkServerProcess] = {}
        self.orders: dict[int, Connection] = {}
        """To each process: what to do wrong (`misbehaving.Order`)."""
        for client, token in enumerate(server.access.tokens):
            self._start(client, token)

    def _start(self, client: int, token: str) -> None:
        self.orders[client], theirs = CONTEXT.Pipe()
        arguments = self._server.address, token, self._authority, theirs
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
        """With a new token: what the dead process had is gone."""
        self._processes[client].close()
        self.orders[client].close()
        self._start(client, self._server.access.renew(client))

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
def client_processes(
    agreement: Agreement, certificates: Certificates | None = None
) -> Iterator[tuple[StreamServer, ClientProcesses]]:
    """A server on this machine with all its clients connected."""
    with StreamServer("127.0.0.1:0", agreement, certificates) as server:
        clients = ClientProcesses(server, certificates.authority if certificates else None)
        try:
            server.wait_for_clients(LONG_S)
            yield server, clients
        finally:
            clients.end()
