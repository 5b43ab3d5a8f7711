"""What clients report of their sides for the decision (§IV of the paper), and the spreads by layer that follow from it.

Clients report a random projection of each layer of their side, S w: coordinates get random signs, the same for all, and
are dealt out in turn to R sums. E ‖S x‖² = ‖x‖², so spreads of projections are those of the layers but for an error of
about √(2 / (R · clients)). A client's projection changes only when it learns, so only then is it sent, with 16 bits a
number. Or, with a ratio ι, clients report every 1/ι-th parameter as it is, and the server scales by 1/ι.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.randomness import random_stream
from asfl.costs.modelled import BITS_OF_REPORTED, REPORTED_NUMBERS
from asfl.train.layout import Layout
from asfl.train.state import TrainingState

Floats = NDArray[np.float64]
_MOST_CODE = 2 ** (BITS_OF_REPORTED - 1) - 1


def sample_coordinates(size: int, ratio: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Every 1/ι-th of `size` coordinates from a random start on: each is taken with probability ι."""
    if ratio >= 1:
        return np.arange(size)
    positions = np.floor((np.arange(int(np.ceil(size * ratio)) + 1) + random.random()) / ratio).astype(np.int64)
    return np.asarray(positions[positions < size])


@dataclass(frozen=True, eq=False)
class Projections:
    """Of consecutive layers of client sides, as they cross."""

    codes: Tensor
    """[..., layers, R] int16"""
    step: Tensor
    """[..., layers] float32"""

    @classmethod
    def of(
        cls, layout: Layout, sides: Tensor, seed: int, above: int, depth: int, count: int = REPORTED_NUMBERS
    ) -> "Projections":
        """Of layers above + 1 … depth of sides [..., P]; `count` is R. Each side's are what they are for it alone."""
        leading = sides.shape[:-1]
        sums = sides.new_zeros(*leading, depth - above, count)
        for row, unit in enumerate(range(above, depth)):
            layer = sides[..., layout.parameter_edges[unit] : layout.parameter_edges[unit + 1]]
            size = layer.shape[-1]
            signed = layer.new_zeros(*leading, -(-size // count) * count)
            torch.mul(layer, _signs(seed, unit, size).to(layer.device), out=signed[..., :size])
            sums[..., row, :] = signed.view(*leading, -1, count).sum(-2)
        step = sums.abs().amax(-1).float() / _MOST_CODE
        codes = (sums / torch.where(step > 0, step, 1).unsqueeze(-1)).round()
        return cls(codes.nan_to_num(0).to(torch.int16), step)

    @property
    def numbers(self) -> Tensor:
        """[..., layers, R] float32"""
        return self.codes * self.step.unsqueeze(-1)


@lru_cache(maxsize=256)
def _signs(seed: int, unit: int, size: int) -> Tensor:
    """[size] ±1, the same in every round."""
    drawn = random_stream(seed, "signs of reports", unit).integers(0, 2, size, dtype=np.int8)
    return torch.from_numpy(2 * drawn - 1)


def projected_spreads(numbers: Tensor, clients: Sequence[int], weights: Floats, num_layers: int) -> Floats:
    """[M] (1/N) Σ_n ‖w̄_m − w_{n,m}‖² from projections [A, layers, R] of these clients, by their weights [N]."""
    values, own = numbers.double().cpu().numpy(), weights[list(clients)] / weights[list(clients)].sum()
    apart2 = np.square(values - np.einsum("a,alr->lr", own, values)).sum(axis=2)
    return np.concatenate([own @ apart2, np.zeros(num_layers - values.shape[1])])


def layer_norms(state: TrainingState) -> Floats:
    """[M] ‖w̄_m‖² of the average model."""
    squares = state.average_model().parameters.double().square().cpu().numpy()
    return np.asarray(np.diff(np.concatenate([[0.0], np.cumsum(squares)])[state.layout.parameter_edges]))
