"""A request that is under way, and its times."""

import time
from concurrent.futures import Future
from dataclasses import dataclass

from asfl.field.links import Link
from asfl.field.watch import Exchange
from asfl.field.wire import Message


@dataclass(frozen=True, eq=False)
class Asked:
    """Made by `ask`."""

    client: int
    stage: str
    request: Message
    future: "Future[Message]"
    deadline_s: float
    sent_at: float
    answered_at: list[float]
    """When the answer came, once it has."""

    @property
    def op(self) -> str:
        return self.request.op

    @property
    def due(self) -> float:
        return self.sent_at + self.deadline_s

    def result(self) -> Message:
        """The answer; waits for it, but no longer than agreed."""
        return self.future.result(max(self.due - time.monotonic(), 0.0))

    def exchange(self, answer: Message) -> Exchange:
        """What the clocks say of it, once it was answered."""
        cut = self.request.fields.get("cut")
        return Exchange(
            client=self.client,
            op=self.op,
            cut=cut if isinstance(cut, int) else None,
            request_bytes=self.request.payload_bytes,
            answer_bytes=answer.payload_bytes,
            sent_at=self.sent_at,
            answered_at=self.answered_at[0] if self.answered_at else time.monotonic(),
            busy_s=answer.amount("busy_s") or 0.0,
            energy_j=answer.amount("energy_j"),
            battery=answer.amount("battery"),
        )


def ask(link: Link, client: int, stage: str, request: Message, deadline_s: float) -> Asked:
    """Send a request to a client."""
    sent_at, answered_at = time.monotonic(), list[float]()
    future = link.ask(request, deadline_s)
    future.add_done_callback(lambda _: answered_at.append(time.monotonic()))
    return Asked(client, stage, request, future, deadline_s, sent_at, answered_at)
