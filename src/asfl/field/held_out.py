"""What clients say of images that only they have: how many, which statistics, how many they get right; all claims."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from asfl.field.protocol import messages as msg
from asfl.field.protocol.shapes import Shapes
from asfl.field.protocol.wire import WireError
from asfl.train.evaluate import Score
from asfl.train.layout import ModelVectors
from asfl.train.state import TrainingState

MOST_TIMES = 10.0
"""Of the median number of images: whoever says it has more counts for no more."""


def samples_of(answer: msg.Where) -> int:
    """0: it doesn't say."""
    return answer.samples or 0


def believed_sizes(said: Mapping[int, int], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N]; those who haven't said anything yet count as `before`, or if nobody had, like the median one."""
    usual = float(np.median(list(said.values())))
    sizes = np.full(len(before), usual) if (before == 1).all() else before.copy()
    for client, samples in said.items():
        sizes[client] = min(float(samples), MOST_TIMES * usual)
    return sizes


class Samples:
    """How many images each client says it trains with."""

    def __init__(self) -> None:
        self._said: dict[int, int] = {}

    def heard(self, said: Mapping[int, int], state: TrainingState) -> list[int]:
        """Count clients by that from now on; who was heard."""
        known = {**self._said, **{client: samples for client, samples in said.items() if samples}}
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


def together(answers: Iterable[msg.Scored]) -> Score | None:
    """By what each holds out."""
    scored = [answer for answer in answers if answer.samples]
    if not scored:
        return None
    counts = np.array([answer.samples for answer in scored], dtype=float)
    weights = np.minimum(counts, MOST_TIMES * np.median(counts))
    weights /= weights.sum()
    right = np.array([answer.right for answer in scored]) / counts
    loss = np.array([answer.loss for answer in scored])
    return Score(float(right @ weights), float(loss @ weights))
