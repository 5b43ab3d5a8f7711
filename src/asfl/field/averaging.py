"""Averages of client sides over links: what is asked and sent, and who has what the differences are to."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from asfl.field.protocol import messages as msg
from asfl.field.protocol.shapes import Shapes
from asfl.train.fleet import Bools, FirstLayers
from asfl.train.layout import ModelVectors
from asfl.train.quantise import UNQUANTISED


class Averaging:
    """With few bits, layers cross as differences to what all last shared, which a client that was lost doesn't have."""

    def __init__(self, shapes: Shapes, num_clients: int) -> None:
        self._shapes = shapes
        self.has_shared: Bools = np.zeros(num_clients, dtype=np.bool_)
        """[N] who surely has what all last shared of the layers it holds."""

    def upload(self, server: ModelVectors, depth: int, bits: int, client: int) -> msg.Upload:
        """The request; with what was shared last if it is needed and may not be there."""
        lacks = bits != UNQUANTISED and not self.has_shared[client]
        return msg.Upload(depth, bits, self._shapes.layers(server, 0, depth).parameters if lacks else None)

    def reads(self, depth: int, bits: int) -> Callable[[msg.Uploaded], FirstLayers]:
        return lambda answer: self._shapes.check_first(answer, depth, bits)

    def share(self, server: ModelVectors, depth: int, average: FirstLayers) -> Callable[[int], msg.Share]:
        """The request to each client; whoever may lack what the difference is to gets the whole."""
        whole = average.received(self._shapes.layers(server, 0, depth).parameters)
        bits = UNQUANTISED if isinstance(average.parameters, Tensor) else average.parameters.bits
        short = msg.Share(depth, bits, *msg.parts_of(average))
        long = msg.Share(depth, UNQUANTISED, whole.statistics, whole.parameters)
        return lambda client: short if self.has_shared[client] else long
