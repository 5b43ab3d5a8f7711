"""Client models that come down before and go up after every round, in schemes that exchange them (FedAvg, SL, SFL).

With few bits the server sends the model itself, since a client that sat out has nothing to take a difference to. What
comes back is how far the client moved from what it was given. The server adds that to the model as it has it, so what
rounding did to the way down is not in the average.
"""

from collections.abc import Sequence

from asfl.train.fleet import FirstLayers
from asfl.train.quantise import EVERYBODY, quantise_side, rounding
from asfl.train.state import TrainingState
from asfl.train.trainer import Task


def models_to_send(
    state: TrainingState, seed: int, tasks: Sequence[Task], client: int = EVERYBODY
) -> list[FirstLayers]:
    """The first layers of the server's model for each cut and number of bits; the rng are those of a client."""

    def model(cut: int, bits: int) -> FirstLayers:
        front, rng = state.layout.front(state.server, cut), rounding(seed, "model", tasks[0].round, client)
        return FirstLayers(quantise_side(state.layout, front.parameters, cut, bits, rng), front.statistics)

    made = {pair: model(*pair) for pair in {(task.cut, task.bits) for task in tasks}}
    return [made[task.cut, task.bits] for task in tasks]
