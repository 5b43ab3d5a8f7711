"""Who may come in: a token per client that works once, then a secret that changes with every connection.

A credential is "client.secret". The first one is the token, handed out by whoever starts the clients. With the welcome
a client gets the secret for its next connection. The old one stays valid until the client has shown that it has the
new one: a connection that breaks in between locks nobody out. After that it opens nothing any more, so what was
overheard can't be played back. Only digests are kept.
"""

import hashlib
import hmac
import re
import secrets
import threading

from asfl.errors import AsflError

_BYTES = 32
_CREDENTIAL = re.compile(r"(0|[1-9][0-9]{0,6})\.([0-9a-f]{64})")


class AccessError(AsflError):
    """Not admitted."""


class Access:
    """The clients of one run; safe to use from several threads."""

    def __init__(self, num_clients: int) -> None:
        self.tokens = [_new_credential(client) for client in range(num_clients)]
        """The first credential of each client, for that client only."""
        self._valid = [{_digest(token)} for token in self.tokens]
        self._offered: list[bytes | None] = [None] * num_clients
        self._lock = threading.Lock()

    def renew(self, client: int) -> str:
        """A new token for a client that has lost what it had; everything else of its is void."""
        with self._lock:
            token = self.tokens[client] = _new_credential(client)
            self._valid[client], self._offered[client] = {_digest(token)}, None
        return token

    def admit(self, credential: str) -> tuple[int, str]:
        """Who this is, and the credential for its next connection; `AccessError` for anybody else."""
        client, shown = client_of(credential), _digest(credential)
        with self._lock:
            if client >= len(self._valid):
                raise AccessError(f"there is no client {client}")
            if not any(hmac.compare_digest(shown, valid) for valid in self._valid[client]):
                raise AccessError(f"not a valid credential of client {client}, or one that was used before")
            offered = _new_credential(client)
            self._offered[client] = _digest(offered)
            self._valid[client] = {shown, _digest(offered)}
        return client, offered

    def confirm(self, client: int, credential: str) -> None:
        """The client has its next credential: from now on nothing else is valid."""
        with self._lock:
            digest = _digest(credential)
            if self._offered[client] == digest:
                self._valid[client] = {digest}


def client_of(credential: str) -> int:
    """The client a credential is for."""
    match = _CREDENTIAL.fullmatch(credential)
    if match is None:
        raise AccessError("not a credential: it looks like 3.0f…, a client and 64 digits 0–9, a–f")
    return int(match[1])


def _new_credential(client: int) -> str:
    return f"{client}.{secrets.token_hex(_BYTES)}"


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()
