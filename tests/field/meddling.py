"""A link with somebody in between: watches requests, does something when one is made, bends answers."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from asfl.field.links import Link, failed
from asfl.field.wire import Message

Bend = Callable[[Message], Message]


class MeddledLink:
    """`before[op, round]` is called when that request is made; `bends[op, round]` changes its answer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.before: dict[tuple[str, int], Callable[[], object]] = {}
        self.bends: dict[tuple[str, int], Bend] = {}
        self.asked: list[Message] = []

    @property
    def trouble(self) -> str | None:
        return self._link.trouble

    @property
    def generation(self) -> int:
        return self._link.generation

    def ask(self, message: Message, deadline_s: float) -> "Future[Message]":
        self.asked.append(replace(message, tensors={name: t.clone() for name, t in message.tensors.items()}))
        which = message.op, message.whole("round")
        self.before.pop(which, lambda: None)()
        answered = self._link.ask(message, deadline_s)
        bend = self.bends.pop(which, None)
        if bend is None:
            return answered
        bent: Future[Message] = Future()

        def done(future: "Future[Message]") -> None:
            try:
                bent.set_result(bend(future.result()))
            except Exception as error:
                bent.set_exception(error)

        answered.add_done_callback(done)
        return bent

    def requests(self, op: str, round_index: int | None = None) -> list[Message]:
        return [m for m in self.asked if m.op == op and round_index in (None, m.whole("round"))]


class Absent:
    """Nobody is there."""

    trouble, generation = "not connected", 0

    def ask(self, message: Message, deadline_s: float) -> "Future[Message]":
        return failed(AssertionError("asked though it said it can't be"))
