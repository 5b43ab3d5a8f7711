"""The one message a node gets, and its answer when everything is over."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flwr.app import ConfigRecord, RecordDict

from asfl.engines.scratch import Scratch
from asfl.errors import AsflError

MESSAGE = "train.session"
"""Its type: what `ClientApp.train("session")` answers."""
_RECORD = "session"

Outcome = Literal["done", "failed", "declined"]


@dataclass(frozen=True)
class Session:
    """Where the stream is, and what opens it."""

    address: str
    token: str
    authority: str
    """The certificate, in PEM, with which the server's is checked."""
    client: int
    patience_s: float

    def content(self) -> RecordDict:
        fields = ConfigRecord(
            {
                "address": self.address,
                "token": self.token,
                "authority": self.authority,
                "client": self.client,
                "patience-s": self.patience_s,
            }
        )
        return RecordDict({_RECORD: fields})

    @classmethod
    def of(cls, content: RecordDict) -> "Session":
        fields = _fields(content)
        address, token, authority = (fields.get(name) for name in ("address", "token", "authority"))
        client, patience_s = fields.get("client"), fields.get("patience-s")
        if not (isinstance(address, str) and isinstance(token, str) and isinstance(authority, str)):
            raise AsflError("the session has no address, token or authority; does the server run the same asfl?")
        if not isinstance(client, int) or not isinstance(patience_s, float):
            raise AsflError("the session has no client or patience; does the server run the same asfl?")
        return cls(address, token, authority, client, patience_s)

    @contextmanager
    def authority_file(self) -> Iterator[Path]:
        """The certificate as a file in a folder of this user, for as long as it is needed."""
        scratch = Scratch(Path(tempfile.gettempdir()), "asfl-session-")  # Flower may end the process at any time
        try:
            file = scratch.folder / "authority.pem"
            file.write_text(self.authority)
            yield file
        finally:
            scratch.remove()


@dataclass(frozen=True)
class Farewell:
    """How a session ended."""

    outcome: Outcome
    reason: str = ""
    wants: int = -1
    """The client a node is, if it was taken for another one ("declined")."""

    def content(self) -> RecordDict:
        fields = ConfigRecord({"outcome": self.outcome, "reason": self.reason, "wants": self.wants})
        return RecordDict({_RECORD: fields})

    @classmethod
    def of(cls, content: RecordDict) -> "Farewell":
        """What a node said; whatever can't be understood is a failure."""
        fields = _fields(content)
        outcome, reason, wants = fields.get("outcome"), fields.get("reason"), fields.get("wants")
        if outcome == "done":
            return cls("done")
        if outcome == "declined" and isinstance(wants, int) and wants >= 0:
            return cls("declined", wants=wants)
        return cls("failed", reason if isinstance(reason, str) and reason else "no reason was given")


def _fields(content: RecordDict) -> ConfigRecord:
    record = content.get(_RECORD)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()
