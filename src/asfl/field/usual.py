"""What answers are usually like, and which one is so far beyond all others that it can't be honest.

The size of an answer is the root of the mean square of its numbers, or the norm of an update. Sizes of the same kind
(same request, same cut) are compared over all clients, of this round and of the ten before. An answer is unusual if

    log size > median + max(log 30, 5 · 1.4826 · MAD),

with the median and the median absolute deviation of the logarithms of those sizes, once there are three. Up to half
of the clients can lie without moving it. Small answers harm nobody and are never unusual: a client whose images are all
of one class soon has updates of next to nothing.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from torch import Tensor, linalg

from asfl.field.protocol import messages as msg
from asfl.field.protocol.wire import WireError
from asfl.train.layout import ModelVectors
from asfl.train.quantise import UNQUANTISED

MEMORY_ROUNDS = 10
FACTOR = 30.0
"""Honest sizes were at most 5.8 times their median: the 6 clients of the demo with images of hardly more than one class
each (ρ = 0.1), all schemes, Adam and SGD, one local step and three (docs/security.md)."""
_DEVIATIONS = 5 * 1.4826
_LEAST_COMPARED = 3


class UnusualError(WireError):
    """A size that nobody else comes near to."""


@dataclass(frozen=True)
class Kind:
    """What can be compared: answers to the same request at the same cut."""

    request: str
    cut: int


@dataclass(frozen=True)
class Place:
    """Whose answer it is, and when it was given."""

    round: int
    client: int
    step: int


def sizes_of(answer: msg.Answer, bits: int = UNQUANTISED) -> dict[str, float]:
    """Of everything in an answer that others are averaged with; with few bits, of the largest numbers there may be."""
    match answer:
        case msg.Activations(codes=(), carry=carry):
            return {f"carry.{place}": _size(tensor) for place, tensor in enumerate(carry)}
        case msg.Activations(codes=codes, error=error):
            sizes = {f"codes.{place}": _largest(of_tensor, bits) for place, of_tensor in enumerate(codes)}
            return {**sizes, "error": 1.0 + (0.0 if error is None else float(error))}  # as with a loss
        case msg.Uploaded(statistics=statistics, parameters=Tensor() as parameters):
            return {"parameters": _size(parameters), "statistics": _size(statistics)}
        case msg.Uploaded(statistics=statistics, codes=msg.Codes() as of_layers):
            return {"codes": _largest(of_layers, bits), "statistics": _size(statistics)}
        case msg.Side(layers=ModelVectors() as layers, codes=msg.Codes() as of_layers):
            return {"codes": _largest(of_layers, bits), "statistics": _size(layers.statistics)}
        case msg.Side(layers=ModelVectors() as layers) | msg.ClientState(side=layers):
            return {"parameters": _size(layers.parameters), "statistics": _size(layers.statistics)}
        case msg.Update(norm2=norm2, loss=loss):  # a loss of next to nothing is no measure for others
            return {"norm2": math.sqrt(max(float(norm2), 0.0)), "loss": 1.0 + (0.0 if loss is None else float(loss))}
        case msg.Values(values=values):
            return {"values": _size(values)}
    return {}


def _largest(codes: msg.Codes, bits: int) -> float:
    high = codes.low + codes.step * (2**bits - 1) if len(codes.low) == len(codes.step) else codes.step
    return max(_size(codes.low), _size(high))


def _size(numbers: Tensor) -> float:
    return float(linalg.vector_norm(numbers)) / math.sqrt(max(numbers.numel(), 1))


class Usual:
    """Sizes by kind of answer, of the latest rounds."""

    def __init__(self) -> None:
        self._sizes: dict[Kind, dict[str, dict[Place, float]]] = {}
        """{kind: {what: {place: log size}}}, without zeros, which have none."""

    def begin(self, index: int) -> None:
        """A round begins: forget what is too old."""
        for parts in self._sizes.values():
            for sizes in parts.values():
                for place in [place for place in sizes if place.round < index - MEMORY_ROUNDS]:
                    del sizes[place]

    def knows(self, kind: Kind) -> bool:
        """Whether there is enough to compare an answer of this kind with."""
        return any(len(sizes) >= _LEAST_COMPARED for sizes in self._sizes.get(kind, {}).values())

    def note(self, kind: Kind, place: Place, answer: msg.Answer, bits: int = UNQUANTISED) -> None:
        """Somebody has answered, with so many bits a number."""
        parts = self._sizes.setdefault(kind, defaultdict(dict))
        for what, size in sizes_of(answer, bits).items():
            if size > 0:
                parts[what][place] = float(np.log(size))

    def check(self, kind: Kind, place: Place) -> None:
        """Refuse an answer that was noted and is unusual; nothing is compared with it any more."""
        for what, sizes in self._sizes.get(kind, {}).items():
            self._check(what, sizes, place)

    def _check(self, what: str, sizes: dict[Place, float], place: Place) -> None:
        if place not in sizes or len(sizes) < _LEAST_COMPARED:
            return
        logs = np.sort(np.fromiter(sizes.values(), float))
        median = logs[len(logs) // 2]  # of an even number the larger one: two clients can't accuse each other
        limit = median + max(np.log(FACTOR), _DEVIATIONS * float(np.median(np.abs(logs - median))))
        if sizes[place] > limit:
            times, allowed = (float(np.exp(value - median)) for value in (sizes.pop(place), limit))
            raise UnusualError(f"{what} is {times:.3g} times as large as usual; {allowed:.3g} times would pass")
