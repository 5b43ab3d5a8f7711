"""A client that does something else at one request, as it was told over a pipe; at any other it is as it should be."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from asfl.field import stream_client
from asfl.field.client import ClientNode
from asfl.field.wire import Message


@dataclass(frozen=True)
class Order:
    """What to do when this request comes."""

    op: str
    round: int
    deed: str
    """wait: say "here" and answer when told to; late: answer so many seconds later; garbage, nan, shape: as it says."""
    seconds: float = 0.0


class Misbehaving(ClientNode):
    def __init__(self, welcome: Message, data_dir: Path | None, orders: Connection) -> None:
        super().__init__(welcome, data_dir)
        self._orders, self._order = orders, Order("", 0, "")

    def handle(self, request: Message) -> Message:
        while self._orders.poll():
            self._order = self._orders.recv()
        order = self._order
        if (order.op, order.round) != (request.op, request.fields.get("round")):
            return super().handle(request)
        self._order = Order("", 0, "")
        if order.deed == "wait":
            self._orders.send("here")
            self._orders.recv()
        if order.deed == "late":
            time.sleep(order.seconds)
        if order.deed == "garbage":
            _send_garbage_next()
        answer = super().handle(request)
        if order.deed == "nan":
            return _with_tensors(answer, lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t)
        if order.deed == "shape":
            return _with_tensors(answer, lambda t: torch.cat([t.flatten(), t.flatten()[:1]]))
        return answer


def _with_tensors(answer: Message, change: Callable[[Tensor], Tensor]) -> Message:
    return replace(answer, tensors={name: change(tensor) for name, tensor in answer.tensors.items()})


def _send_garbage_next() -> None:
    """Bytes that are no message, which no `Message` can be made to give."""
    encode = vars(stream_client)["encode"]

    def garbage(message: Message) -> bytes:
        vars(stream_client)["encode"] = encode
        return b"?" * 1000

    vars(stream_client)["encode"] = garbage
