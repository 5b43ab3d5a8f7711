"""A link with a test in between: watches requests, does something when one is made, bends answers."""

from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from small_runs import PATIENT
from torch import Tensor

from asfl.field.messages import A, Answer, AnyRequest, Link, LinkError, OpenRequest, Request, failed
from asfl.field.roster import Roster
from asfl.field.wire import decode, encode
from asfl.runs.simulation import Simulation

Bend = Callable[[Any], Answer]
R = TypeVar("R", bound=AnyRequest)


class MeddledLink:
    """`before[name, round]` is called when that request is made; `bends[name, round]` changes its answer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.before: dict[tuple[str, int], Callable[[], object]] = {}
        self.bends: dict[tuple[str, int], Bend] = {}
        self.asked: list[AnyRequest] = []

    @property
    def trouble(self) -> str | None:
        return self._link.trouble

    @property
    def generation(self) -> int:
        return self._link.generation

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        self.asked.append(deepcopy(request))
        assert request.round is not None
        which = request.name, request.round
        self.before.pop(which, lambda: None)()
        answered = self._link.ask(request, deadline_s)
        bend = self.bends.pop(which, None)
        bent: Future[Answer] = Future()

        def done(future: "Future[Answer]") -> None:
            try:
                answer = future.result() if bend is None else bend(future.result())
                self.hears(request, answer)
                bent.set_result(answer)
            except Exception as error:
                bent.set_exception(error)

        answered.add_done_callback(done)
        return bent

    def hears(self, request: AnyRequest, answer: Answer) -> None:
        """Before the server does."""

    def requests(self, kind: type[R], round_index: int | None = None) -> list[R]:
        return [m for m in self.asked if isinstance(m, kind) and round_index in (None, m.round)]


def give_up_soon(simulation: Simulation, client: int, stage: str, deadline_s: float) -> None:
    """From now on this client has a deadline in this stage that it won't keep; the others have all the time."""
    roster: Roster = simulation.trainer.fleet._roster  # type: ignore[attr-defined]
    ask = roster.ask
    soon = replace(PATIENT, deadline_s=deadline_s)

    def ask_each(asked: int, request: Request[A], base: Any = None) -> OpenRequest[A] | None:
        roster._patience = soon if (asked, request.stage) == (client, stage) else PATIENT
        return ask(asked, request, base)

    roster.ask = ask_each  # type: ignore[assignment, method-assign]


def give_all_the_time(simulation: Simulation) -> None:
    roster: Roster = simulation.trainer.fleet._roster  # type: ignore[attr-defined]
    roster.__dict__.pop("ask", None)
    roster._patience = PATIENT


def breaks(answer: Answer) -> Answer:
    raise LinkError("the connection broke")


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A message with all its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(with_tensors(one, change) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: with_tensors(getattr(value, part.name), change) for part in fields(value)})
    return value


def sends_nan(answer: Answer) -> Answer:
    spoilt = with_tensors(answer, lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t)
    return decode(encode(spoilt), Answer)


def sends_the_wrong_shape(answer: Answer) -> Answer:
    return decode(encode(with_tensors(answer, lambda t: torch.cat([t.flatten(), t.flatten()[:1]]))), Answer)


class Absent:
    """No client is there."""

    trouble, generation = "not connected", 0

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        return failed(AssertionError("asked though it said it can't be"))
