"""The one message a node gets, and its answer when everything is over."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from flwr.app import ConfigRecord, RecordDict

from asfl.config.errors import AsflError
from asfl.field.protocol.wire import words_of

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
        return RecordDict({_RECORD: ConfigRecord(asdict(self))})

    @classmethod
    def of(cls, content: RecordDict) -> "Session":
        values = _values(content)
        for field in fields(cls):
            if type(values.get(field.name)) is not field.type:
                raise AsflError(f"the session has no {field.name}; does the server run the same asfl?")
        return cls(**{field.name: values[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Farewell:
    """How a session ended."""

    outcome: Outcome
    reason: str = ""
    claim: int = -1
    """The client a node is, if it was taken for another one ("declined")."""

    def content(self) -> RecordDict:
        return RecordDict({_RECORD: ConfigRecord(asdict(self))})

    @classmethod
    def of(cls, content: RecordDict) -> "Farewell":
        """What a node said; whatever can't be understood is a failure."""
        values = _values(content)
        outcome, reason, claim = values.get("outcome"), values.get("reason"), values.get("claim")
        if outcome == "done":
            return cls("done")
        if outcome == "declined" and isinstance(claim, int) and claim >= 0:
            return cls("declined", claim=claim)
        return cls("failed", words_of(reason) if isinstance(reason, str) and reason else "no reason was given")


def _values(content: RecordDict) -> dict[str, Any]:
    record = content.get(_RECORD)
    return dict(record) if isinstance(record, ConfigRecord) else {}
