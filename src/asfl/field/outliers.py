"""What one client's answer may weigh, by what the others' of the same round are like.

The size of an answer is the root of the mean square of its numbers, or the norm of an update; the size of layers is how
far they are from what all last shared, or from what the client was given. Sizes are compared with those of the other
clients' answers to the same request at the same cut (layers: at any), of this round. Where fewer than two others have
answered in it, the ten rounds before count too, the client's own answers among them; m is then never below the one of
this round, and 30 stands for 6 if there is none. With m the median and MAD the median absolute deviation of the
logarithms of those sizes, an answer is

    made smaller, to the limit, if log size > m + max(log 6, 5 · 1.4826 · MAD),
    refused                     if log size > m + max(log 30, 5 · 1.4826 · MAD), and two or more were compared.

As long as fewer than half of the others lie, the limits are honest ones. Rounds before have no part in them: whoever
can move an average can't make the answers of all others look wrong. Small answers harm nobody and are never unusual: a
client whose images are all of one class soon has updates of next to nothing.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, linalg

from asfl.field.protocol import messages as msg
from asfl.field.protocol.wire import WireError
from asfl.train.layout import ModelVectors
from asfl.train.quantise import UNQUANTISED

MEMORY_ROUNDS = 10
BOUND, FACTOR = 6.0, 30.0
"""Honest sizes in docs/security.md."""
_DEVIATIONS = 5 * 1.4826
_FEWEST_OTHERS = 2
_BOUNDED = ("carry", "codes", "parameters", "values", "norm2")
"""What is made smaller; a loss and statistics are refused, or stay as they are."""


class OutlierError(WireError):
    """A size that nobody else comes near to."""


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
    """Whose answer it is, and when it was given."""

    round: int
    client: int
    step: int


def sizes_of(answer: msg.Answer, bits: int = UNQUANTISED, base: Tensor | None = None) -> dict[str, float]:
    """Of everything in an answer that others are averaged with; with few bits, of the largest numbers there may be.

    `base`: what layers are compared with.
    """
    match answer:
        case msg.Activations(codes=(), carry=carry):
            return {f"carry.{place}": _size(tensor) for place, tensor in enumerate(carry)}
        case msg.Activations(codes=codes, error=error):
            sizes = {f"codes.{place}": _largest(of_tensor, bits) for place, of_tensor in enumerate(codes)}
            return {**sizes, "error": 1.0 + (0.0 if error is None else float(error))}  # as with a loss
        case msg.Uploaded(statistics=statistics, parameters=Tensor() as parameters):
            return {"parameters": _size(_from(base, parameters)), "statistics": _size(statistics)}
        case msg.Uploaded(statistics=statistics, codes=msg.Codes() as of_layers):
            return {"codes": _largest(of_layers, bits), "statistics": _size(statistics)}
        case msg.Side(layers=ModelVectors() as layers, codes=msg.Codes() as of_layers):
            return {"codes": _largest(of_layers, bits), "statistics": _size(layers.statistics)}
        case msg.Side(layers=ModelVectors() as layers) | msg.ClientState(side=layers):
            return {"parameters": _size(_from(base, layers.parameters)), "statistics": _size(layers.statistics)}
        case msg.Update(norm2=norm2, loss=loss):  # a loss of next to nothing is no measure for others
            return {"norm2": math.sqrt(max(float(norm2), 0.0)), "loss": 1.0 + (0.0 if loss is None else float(loss))}
        case msg.Values(values=values):
            return {"values": _size(_from(base, values))}
        case msg.Projected(step=step):
            return {"step": _size(step)}
    return {}


def bounded(answer: msg.Answer, factors: Mapping[str, float], base: Tensor | None) -> msg.Answer:
    """The answer with sizes multiplied by factors; as it is where there is none."""

    def less(what: str, tensor: Tensor) -> Tensor:
        return tensor if what not in factors else tensor * factors[what]

    def nearer(what: str, tensor: Tensor) -> Tensor:
        if what not in factors:
            return tensor
        return tensor * factors[what] if base is None else base.to(tensor) + _from(base, tensor) * factors[what]

    def fewer(what: str, codes: msg.Codes) -> msg.Codes:
        return replace(codes, low=less(what, codes.low), step=less(what, codes.step))

    match answer:
        case msg.Activations(carry=carry, codes=codes):
            parts = tuple(less(f"carry.{place}", tensor) for place, tensor in enumerate(carry))
            few = tuple(fewer(f"codes.{place}", of_tensor) for place, of_tensor in enumerate(codes))
            return replace(answer, carry=parts, codes=few)
        case msg.Uploaded(codes=msg.Codes() as of_layers) | msg.Side(codes=msg.Codes() as of_layers):
            return replace(answer, codes=fewer("codes", of_layers))
        case msg.Uploaded(parameters=Tensor() as parameters):
            return replace(answer, parameters=nearer("parameters", parameters))
        case msg.Side(layers=ModelVectors() as layers):
            return replace(answer, layers=replace(layers, parameters=nearer("parameters", layers.parameters)))
        case msg.ClientState(side=layers):
            return replace(answer, side=replace(layers, parameters=nearer("parameters", layers.parameters)))
        case msg.Update(norm2=norm2):
            return replace(answer, norm2=less("norm2", less("norm2", norm2)))
        case msg.Values(values=values):
            return replace(answer, values=nearer("values", values))
    return answer


def _from(base: Tensor | None, tensor: Tensor) -> Tensor:
    """How far from the base; of another shape, which is refused for that, as it is."""
    return tensor if base is None or base.shape != tensor.shape else tensor - base.to(tensor)


def _largest(codes: msg.Codes, bits: int) -> float:
    high = codes.low + codes.step * (2**bits - 1) if len(codes.low) == len(codes.step) else codes.step
    return max(_size(codes.low), _size(high))


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

    def note(
        self, kind: Kind, place: Place, answer: msg.Answer, bits: int = UNQUANTISED, base: Tensor | None = None
    ) -> None:
        """Somebody has answered, with so many bits a number."""
        for what, size in sizes_of(answer, bits, base).items():
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
