"""What one client's answer may weigh, by what the others' of the same round are like.

The size of an answer is the root of the mean square of its numbers, or the norm of an update; the size of layers is how
far they are from what all last shared, or from what the client was given. Sizes are compared with those of the other
clients' answers to the same request at the same cut (layers: at any), of this round. Where fewer than two others have
answered in it, the ten rounds before count too, the client's own answers among them; m is then never below the one of
this round, and 30 stands for 6 if there is none. With m the median and MAD the median absolute deviation of the
logarithms of those sizes, an answer is

    made smaller, to the limit, if log size > m + max(log 6, 5 · 1.4826 · MAD),
    refused                     if log size > m + max(log 30, 5 · 1.4826 · MAD), and two or more were compared.

As long as fewer than half of the others lie, the limits are honest ones. Rounds before have no part in them: a client
that can move an average can't make the answers of all others look wrong. Small answers do no harm and are never
outliers: a client whose images are all of one class soon has updates of next to nothing.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, linalg

from asfl.field import messages as msg
from asfl.field.wire import WireError
from asfl.train.fleet import FirstLayers
from asfl.train.quantise import Quantised, QuantisedLayers

Sent = Tensor | Quantised | QuantisedLayers

MEMORY_ROUNDS = 10
BOUND, FACTOR = 6.0, 30.0
"""Honest sizes in docs/security.md."""
_DEVIATIONS = 5 * 1.4826
_FEWEST_OTHERS = 2
_BOUNDED = ("carry", "codes", "parameters", "values", "norm2")
"""What is made smaller; a loss and statistics are refused, or stay as they are."""


class OutlierError(WireError):
    """A size that no other client comes near to."""


@dataclass(frozen=True)
class Kind:
    """What can be compared: answers to the same request at the same cut."""

    request: str
    cut: int

    @property
    def at_any_cut(self) -> "Kind":
        """How far each number of some layers has moved is much the same in all layers."""
        return Kind(self.request, 0)


@dataclass(frozen=True)
class Place:
    """Which client gave an answer, and when."""

    round: int
    client: int
    step: int


def sizes_of(answer: msg.Answer, base: Tensor | None = None) -> dict[str, float]:
    """Of everything in an answer that others are averaged with; with few bits, of the largest numbers there may be.

    `base`: what layers are compared with.
    """
    match answer:
        case msg.Activations(packet=packet):
            sizes = {_name(sent, "carry", f".{place}"): _size_of(sent) for place, sent in enumerate(packet.carry)}
            return sizes if packet.error is None else {**sizes, "error": 1.0 + float(packet.error)}  # as with a loss
        case msg.Side(layers=FirstLayers() as layers) | msg.ClientState(side=layers):
            size = _size_of(layers.parameters, base)
            return {_name(layers.parameters, "parameters"): size, "statistics": _size_of(layers.statistics)}
        case msg.Update(norm2=norm2, loss=loss):  # a loss of next to nothing is no measure for others
            return {"norm2": math.sqrt(max(float(norm2), 0.0)), "loss": 1.0 + (0.0 if loss is None else float(loss))}
        case msg.Values(values=values):
            return {"values": _size_of(values, base)}
        case msg.Projected(projections=projections):
            return {"step": _size_of(projections.step)}
    return {}


def bounded(answer: msg.Answer, factors: Mapping[str, float], base: Tensor | None) -> msg.Answer:
    """The answer with sizes multiplied by factors; as it is where there is none."""

    def nearer(sent: Sent, name: str, place: str = "", base: Tensor | None = base) -> Any:
        factor = factors.get(_name(sent, name, place))
        if factor is None:
            return sent
        if not isinstance(sent, Tensor):
            return replace(sent, low=sent.low * factor, step=sent.step * factor)
        return sent * factor if base is None else base.to(sent) + _from(base, sent) * factor

    match answer:
        case msg.Activations(packet=packet):
            parts = (nearer(sent, "carry", f".{place}", None) for place, sent in enumerate(packet.carry))
            return replace(answer, packet=replace(packet, carry=tuple(parts)))
        case msg.Side(layers=FirstLayers() as layers):
            return replace(answer, layers=replace(layers, parameters=nearer(layers.parameters, "parameters")))
        case msg.ClientState(side=side):
            return replace(answer, side=replace(side, parameters=nearer(side.parameters, "parameters")))
        case msg.Update(norm2=norm2) if "norm2" in factors:
            return replace(answer, norm2=norm2 * factors["norm2"] * factors["norm2"])
        case msg.Values(values=values):
            return replace(answer, values=nearer(values, "values"))
    return answer


def _name(sent: Sent, name: str, place: str = "") -> str:
    return f"{name if isinstance(sent, Tensor) else 'codes'}{place}"


def _from(base: Tensor | None, tensor: Tensor) -> Tensor:
    """How far from the base; of another shape, which is refused for that, as it is."""
    return tensor if base is None or base.shape != tensor.shape else tensor - base.to(tensor)


def _size_of(sent: Sent, base: Tensor | None = None) -> float:
    if isinstance(sent, Tensor):
        return _size(_from(base, sent))
    high = sent.low + sent.step * (2**sent.bits - 1) if len(sent.low) == len(sent.step) else sent.step
    return max(_size(sent.low), _size(high))


def _size(numbers: Tensor) -> float:
    return float(linalg.vector_norm(numbers)) / math.sqrt(max(numbers.numel(), 1))


class OutlierFilter:
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

    def note(self, kind: Kind, place: Place, answer: msg.Answer, base: Tensor | None = None) -> None:
        """A client has answered."""
        for what, size in sizes_of(answer, base).items():
            if size > 0:
                of_kind = kind.at_any_cut if what == "parameters" else kind
                self._sizes.setdefault(of_kind, defaultdict(dict))[what][place] = float(np.log(size))

    def check(self, kind: Kind, place: Place) -> dict[str, float]:
        """What to multiply sizes of an answer with that was noted; a refused one is compared with no more."""
        factors = {}
        for of_kind in {kind, kind.at_any_cut}:
            for what, sizes in self._sizes.get(of_kind, {}).items():
                if place in sizes and (factor := self._factor(what, sizes, place)) < 1:
                    factors[what] = factor
        return factors

    def _factor(self, what: str, sizes: dict[Place, float], place: Place) -> float:
        now = [size for at, size in sizes.items() if at.round == place.round and at.client != place.client]
        logs, bound = now, BOUND if now else FACTOR
        if len(now) < _FEWEST_OTHERS:
            logs = [size for at, size in sizes.items() if at.client != place.client or at.round < place.round]
        if not logs:
            return 1.0
        logs = sorted(logs)
        median = logs[len(logs) // 2]  # of an even number the larger one: two clients can't accuse each other
        if len(now) == 1:
            median = max(median, *now)
        apart = _DEVIATIONS * float(np.median(np.abs(np.array(logs) - median)))
        limit, most = (median + max(math.log(times), apart) for times in (bound, FACTOR))
        if len(logs) >= _FEWEST_OTHERS and sizes[place] > most:
            times, allowed = (math.exp(min(value - median, 700.0)) for value in (sizes.pop(place), most))
            raise OutlierError(f"{what} is {times:.3g} times as large as usual; {allowed:.3g} times would pass")
        if sizes[place] <= limit or what.partition(".")[0] not in _BOUNDED:
            return 1.0
        factor = math.exp(limit - sizes[place])
        sizes[place] = limit
        return factor
