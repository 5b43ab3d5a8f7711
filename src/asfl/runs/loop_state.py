"""What the loop remembers between two rounds, besides the weights; to and from the tensors of a checkpoint."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.optimize import Queues
from asfl.runs.synthetic_learning import SyntheticLearning
from asfl.schemes.rounds import RadioState
from asfl.train.beyond import DriftAndNoiseSignals
from asfl.train.signals import Signals


@dataclass(frozen=True, eq=False)
class LoopState:
    """One goes into a round, the next comes out."""

    round_index: int
    """Of the next round, counted from 0."""
    radio: RadioState
    signals: Signals
    assumed_drift: SyntheticLearning
    """How far client sides would have drifted apart under ASFL, for schemes that borrow from it."""
    beyond: DriftAndNoiseSignals | None = None
    """In schemes that decide more than the paper's."""
    took_part: NDArray[np.int64] | None = None
    """[N] in how many rounds, where privacy is accounted for."""
    total_delay_s: float = 0.0
    total_energy_j: float = 0.0

    def tensors(self) -> dict[str, Tensor]:
        queues, cut = self.radio.queues, self.radio.previous_cut
        return {
            "round_index": torch.tensor(self.round_index),
            "previous_cut": torch.tensor(-1 if cut is None else cut),
            "queues.delay": torch.tensor(queues.delay, dtype=torch.float64),
            "queues.energy": torch.from_numpy(queues.energy),
            "queues.participation": torch.from_numpy(queues.participation),
            "assumed_drift.layer_spread": torch.from_numpy(self.assumed_drift.layer_spread),
            "signals.update_norm2": torch.from_numpy(self.signals.update_norm2),
            "signals.update_scale": torch.tensor(self.signals.update_scale, dtype=torch.float64),
            "signals.rounds": torch.tensor(self.signals.rounds),
            **named("beyond.", tensors_of({} if self.beyond is None else self.beyond.arrays())),
            **named("radio.", tensors_of(self.radio.arrays())),
            **({} if self.took_part is None else {"took_part": torch.from_numpy(self.took_part)}),
            "total_delay_s": torch.tensor(self.total_delay_s, dtype=torch.float64),
            "total_energy_j": torch.tensor(self.total_energy_j, dtype=torch.float64),
        }

    def restored(self, tensors: dict[str, Tensor]) -> "LoopState":
        """The state that gave these tensors; this one is of the same run, at any round."""
        queues = Queues(
            tensors["queues.delay"].item(), tensors["queues.energy"].numpy(), tensors["queues.participation"].numpy()
        )
        cut = int(tensors["previous_cut"])
        return LoopState(
            round_index=int(tensors["round_index"]),
            radio=self.radio.restored(queues, None if cut < 0 else cut, arrays_of(below("radio.", tensors))),
            signals=Signals(
                tensors["signals.update_norm2"].numpy(),
                tensors["signals.update_scale"].item(),
                int(tensors["signals.rounds"]),
            ),
            assumed_drift=replace(self.assumed_drift, layer_spread=tensors["assumed_drift.layer_spread"].numpy()),
            beyond=None if self.beyond is None else DriftAndNoiseSignals.of(arrays_of(below("beyond.", tensors))),
            took_part=tensors["took_part"].numpy() if "took_part" in tensors else None,
            total_delay_s=tensors["total_delay_s"].item(),
            total_energy_j=tensors["total_energy_j"].item(),
        )


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The other way round, of those that have the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def tensors_of(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def arrays_of(tensors: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
