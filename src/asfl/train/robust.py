"""One step in which no client alone decides: everybody's gradient and layers are kept until they can be combined."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.train.combine import Floats
from asfl.train.layout import ModelVectors
from asfl.train.state import TrainingState

Ints = NDArray[np.int64]


class RobustStep:
    """What the clients that arrived, named by their places 0 … A−1, have sent in one step."""

    def __init__(self, state: TrainingState, server: ModelVectors, cuts: Ints) -> None:
        """`server` is what is trained; `cuts` [A]."""
        self._state, self._server, self._cuts = state, server.parameters, cuts
        self._before = server.parameters.clone()
        self._gradients: dict[int, Tensor] = {}
        self.sides: dict[int, Tensor] = {}
        """Parameters of the client sides that were exchanged."""

    def take_gradient(self, place: int, buffer: Tensor) -> None:
        """Of the server side, for one client; the buffer is empty afterwards."""
        self._gradients[place] = buffer.clone()
        buffer.zero_()

    def combine_gradients(self, passed: Sequence[int], weights: Floats, buffer: Tensor) -> None:
        """Each layer's, of those whose layer the server holds."""
        for first, last in self._same_holders(int(self._cuts[list(passed)].min())):
            here, holders = self._slice(first, last), [place for place in passed if self._cuts[place] <= first]
            rows = torch.stack([self._gradients[place][here] for place in holders])
            buffer[here] = self._state.combining.updates(rows, weights[holders])

    def combine_models(self, passed: Sequence[int], weights: Floats) -> None:
        """Each layer of those who gave theirs, and of those for whom the server has stepped it."""
        for first, last in self._same_holders(0):
            here = self._slice(first, last)
            gave = [place for place in self.sides if self._cuts[place] > first]
            stepped = [place for place in passed if self._cuts[place] <= first]
            rows = [self.sides[place][here] for place in gave] + [self._server[here]] * len(stepped)
            if rows:  # else everybody who held these layers was lost, and the server keeps what it had
                combined = self._state.combining.models(torch.stack(rows), weights[gave + stepped], self._before[here])
                self._server[here] = combined

    def _same_holders(self, start: int) -> Iterator[tuple[int, int]]:
        """[first, last) of layers that the same clients hold."""
        edges = sorted({start, *(int(cut) for cut in self._cuts if cut > start), self._state.layout.num_units})
        yield from pairwise(edges)

    def _slice(self, first: int, last: int) -> slice:
        edges = self._state.layout.parameter_edges
        return slice(int(edges[first]), int(edges[last]))
