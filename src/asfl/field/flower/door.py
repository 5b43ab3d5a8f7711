"""How strangers are kept from filling a gate: so many connections of one address, and a request has to come in time."""

import asyncio
import socket
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PER_ADDRESS, IN_ALL = 64, 512
"""Connections at the same time; devices behind one router have one address."""
HEADER_WITHIN_S = 20.0


class Door(socket.socket):
    """A listening socket that closes what is too much at once; the loop must be asyncio's own."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._inside: Counter[str] = Counter()

    @classmethod
    def at(cls, host: str, port: int) -> "Door":
        """Listening there; port 0 is any that is free."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        door = cls(family)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
        except OSError:
            door.close()
            raise
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        host = str(address[0])
        if self._inside[host] >= PER_ADDRESS or self._inside.total() >= IN_ALL:
            connection.close()
            raise ConnectionAbortedError
        return _Visitor(connection, self._inside, host), address


class _Visitor(socket.socket):
    """An accepted connection that is counted until it is closed."""

    def __init__(self, accepted: socket.socket, inside: "Counter[str]", host: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._inside, self._host, self._counted = inside, host, True
        inside[host] += 1

    def close(self) -> None:
        if self._counted:
            self._counted = False
            self._inside[self._host] -= 1
            if not self._inside[self._host]:
                del self._inside[self._host]
        super().close()


class PunctualProtocol(H11Protocol):
    """HTTP, for those whose requests come at once: between two of them there are some seconds at most."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        self._check = self.loop.call_later(HEADER_WITHIN_S, self._close_if_quiet)

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def _close_if_quiet(self) -> None:
        asked = self.cycle is not None and not self.cycle.response_complete
        left_s = HEADER_WITHIN_S if asked else self._quiet_since + HEADER_WITHIN_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._check = self.loop.call_later(left_s, self._close_if_quiet)
