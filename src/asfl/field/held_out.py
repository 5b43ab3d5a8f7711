"""What clients say of images that only they have: how many, which statistics, how many they get right; all claims."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asfl.field.protocol import messages as msg
from asfl.field.protocol.shapes import Shapes
from asfl.field.protocol.wire import WireError
from asfl.train.evaluate import Score
from asfl.train.layout import ModelVectors
from asfl.train.state import TrainingState

MOST_TIMES = 3.0
"""Of the others' median: a device that says it has more images counts for no more. So of N devices, the others alike,
none has a larger share of a mean than 3 / (N + 2)."""


def samples_of(answer: msg.Where) -> int:
    """0: it doesn't say."""
    return answer.samples or 0


def believed_sizes(said: Mapping[int, int], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N]; those who haven't said anything yet count as `before`, or if nobody had, like the median one."""
    claims = np.array(list(said.values()), float)
    if (before == 1).all():
        believed = capped(claims)
        sizes = np.full(len(before), np.median(believed))
        sizes[list(said)] = believed
        return sizes
    sizes = before.copy()
    sizes[list(said)] = claims
    return capped(sizes)


def capped(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each at most so many times the median of the others."""
    if len(counts) < 2:
        return counts
    others = [np.median(np.delete(counts, place)) for place in range(len(counts))]
    return np.minimum(counts, MOST_TIMES * np.array(others))


class Samples:
    """How many images each client says it trains with."""

    def __init__(self, links: Sequence[object] = ()) -> None:
        self._agreed = [getattr(link, "agreed", int) for link in links]
        """What a device says is at most what it said first (`Members.agreed`)."""
        self._said: dict[int, int] = {}

    def of(self, client: int, most: int) -> int:
        """No more than it says it trains with."""
        return min(most, self._said.get(client, most))

    def heard(self, said: Mapping[int, int], state: TrainingState) -> list[int]:
        """Count clients by that from now on; who was heard."""
        new = {client: samples for client, samples in said.items() if samples}
        known = {**self._said, **{client: self._agreed[client](samples) for client, samples in new.items()}}
        if known != self._said:
            self._said = known
            state.samples = believed_sizes(known, state.samples)
        return list(said)


def read_statistics(shapes: Shapes, model: ModelVectors, answer: msg.Calibrated) -> Tensor:
    found = ModelVectors(model.parameters, answer.statistics)
    return shapes.check_layers(found, 0, shapes.layout.num_units).statistics


def read_score(answer: msg.Scored) -> msg.Scored:
    if answer.right > answer.samples:
        raise WireError(f"{answer.right} right of {answer.samples}")
    return answer


def together(answers: Mapping[int, msg.Scored], clients: int, held: Callable[[int, int], int]) -> Score | None:
    """By what each holds out, which is at most `held(client, what it says)`; and each one's own."""
    scored = {client: answer for client, answer in answers.items() if answer.samples}
    if not scored:
        return None
    weights = capped(np.array([held(client, answer.samples) for client, answer in scored.items()], dtype=float))
    weights /= weights.sum()
    right = {client: answer.right / answer.samples for client, answer in scored.items()}
    loss = np.array([answer.loss for answer in scored.values()])
    by_client = tuple(right.get(client) for client in range(clients))
    return Score(float(np.array(list(right.values())) @ weights), float(loss @ weights), by_client)
