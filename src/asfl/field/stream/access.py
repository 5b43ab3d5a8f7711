"""Who may come in: a token per client that works once, then a secret that changes with every connection.

A credential is "client.secret". The first one is the token, handed out by whoever starts the clients. With the welcome
a client is offered the credential for its next connection (`admit`). The one it showed stays valid until the client has
said on that connection that it has the offer (`confirm`): a connection that breaks in between locks nobody out. From
then on only that offer is valid, so what was overheard can't be played back. Only digests are kept.

**A server may die at any moment** and go on with what its `KeyFile` says. Each change is on the disk before anybody can
know of it: an offer before the welcome leaves, a confirmation before the connection is used. With that,

- *nobody is locked out*. A client holds c, what it showed last, or o, what it was offered then. From `admit(c)` to
  `confirm(o)` the disk has both. Before, the client can't know o. After, the client itself has said that it holds o,
  and it never goes back to c. If the server dies before the first write, c is valid and nobody has o. If it dies
  between the writes, both are. If it dies after the second, o is, and the client has it.
- *nothing that was confirmed away opens again*. After the write of `confirm`, c is neither in memory nor on the disk,
  and whatever is valid later was made later. If the server dies before that write, c was never confirmed away: it works
  until the client shows o, as if its connection had broken. Showing o drops c at once.

Calls of one client may overtake each other: one that it has given up shows c after the one that got through has. So
`admit(c)` adds an offer to the ones before instead of replacing them, and the first that is confirmed voids the others.
A connection whose offer is void is not used. So a token that two have lets one of them in, and the other is told.
"""

import hashlib
import hmac
import re
import secrets
import threading

from asfl.config.errors import AsflError
from asfl.field.stream.keys import KeyFile

_BYTES = 32
_MOST_OFFERS = 16
"""Of one credential; of more, the oldest are void. Calls that overtake each other are few."""
_CREDENTIAL = re.compile(r"(0|[1-9][0-9]{0,6})\.([0-9a-f]{64})")


class AccessError(AsflError):
    """Not admitted."""


class Access:
    """The clients of one run; safe to use from several threads."""

    def __init__(self, num_clients: int, file: KeyFile | None = None, *, restarted: bool = False) -> None:
        """With a file that is there, its credentials go on; else there are new tokens, and the file is made.

        If nobody was told those tokens before the server died, remove the file: it has digests only.

        `restarted`: the file must be there. New tokens would be of no use to clients that an earlier server had let in.
        """
        self._file, self._lock = file, threading.Lock()
        self.tokens: list[str] = []
        """The first credential of each client, for that client only; none if the credentials of a file go on."""
        self._valid: list[list[bytes]]
        """Of each client: what was shown last, or confirmed; then what was offered for it, oldest first."""
        if file is None and restarted:
            raise AsflError("a restarted server needs the keys of the earlier one: give the file")
        if file is not None and (restarted or file.exists()):
            self._valid = file.read(num_clients)
            return
        self.tokens = [_new_credential(client) for client in range(num_clients)]
        self._valid = [[_digest(token)] for token in self.tokens]
        if file is not None:
            file.write(self._valid)

    def renew(self, client: int, *, void: bool = True) -> str:
        """A new token for a client that has lost what it had; everything else of its is void.

        Not `void`: it may still have what it had, and the first of the two that is confirmed voids the other.
        """
        token = _new_credential(client)
        with self._lock:
            shown, *offered = self._valid[client]
            earlier = [] if void else [shown, *offered[1 - _MOST_OFFERS :]]
            self._change(client, [*earlier, _digest(token)])
            if self.tokens:
                self.tokens[client] = token
        return token

    def identify(self, credential: str) -> int:
        """Who this is, without any change; `AccessError` for anybody else."""
        client, valid = client_of(credential), self._valid
        if client >= len(valid):
            raise AccessError(f"there is no client {client}")
        if not _is_among(_digest(credential), valid[client]):
            raise AccessError(f"not a valid credential of client {client}, or one that was used before")
        return client

    def admit(self, credential: str) -> tuple[int, str]:
        """Who this is, and the credential for its next connection; `AccessError` for anybody else."""
        with self._lock:
            client, shown = self.identify(credential), _digest(credential)
            valid, offered = self._valid[client], _new_credential(client)
            earlier = valid[1:][1 - _MOST_OFFERS :] if shown == valid[0] else []
            self._change(client, [shown, *earlier, _digest(offered)])
        return client, offered

    def confirm(self, client: int, offered: str) -> bool:
        """The client has what it was offered: from now on nothing else is valid. False if that is void by now."""
        digest = _digest(offered)
        with self._lock:
            if not _is_among(digest, self._valid[client][1:]):
                return False
            self._change(client, [digest])
        return True

    def _change(self, client: int, valid: list[bytes]) -> None:
        """On the disk first: if that fails, nothing has changed."""
        everybodys = [*self._valid[:client], valid, *self._valid[client + 1 :]]
        if self._file is not None:
            self._file.write(everybodys)
        self._valid = everybodys


def client_of(credential: str) -> int:
    """The client a credential is for."""
    match = _CREDENTIAL.fullmatch(credential)
    if match is None:
        raise AccessError("not a credential: it looks like 3.0f…, a client and 64 digits 0–9, a–f")
    return int(match[1])


def _is_among(digest: bytes, valid: list[bytes]) -> bool:
    return any(hmac.compare_digest(digest, one) for one in valid)


def _new_credential(client: int) -> str:
    return f"{client}.{secrets.token_hex(_BYTES)}"


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()
