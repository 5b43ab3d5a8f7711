"""A client that does something else at one request, as it was told over a pipe; at any other it is as it should be."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asfl.field.client import ClientNode
from asfl.field.messages import Answer, AnyRequest, Welcome
from asfl.field.wire import Data


@dataclass(frozen=True)
class Order:
    """What to do when this request comes."""

    op: str
    round: int
    deed: str
    """wait: say "here" and answer when told to; late: answer so many seconds later; garbage, nan, shape: as it says."""
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
        answer = super().handle(request)
        if order.deed == "nan":
            return with_tensors(answer, lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t)
        if order.deed == "shape":
            return with_tensors(answer, lambda t: torch.cat([t.flatten(), t.flatten()[:1]]))
        return answer


def with_tensors(message: Answer, change: Callable[[Tensor], Tensor]) -> Answer:
    """A message with all its tensors changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{part.name: changed(getattr(value, part.name)) for part in fields(value)})
        return value

    return replace(message, **{part.name: changed(getattr(message, part.name)) for part in fields(message)})
