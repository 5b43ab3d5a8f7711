"""A model's layers as numbers: bits and FLOPs of every unit, which is all the radio side knows of a network.

A unit is what lies between two allowed cuts. `cut` is how many units the client holds, 1 … M−1. The profiles of
the named models ship with the package, so nothing here needs PyTorch; `asfl.models.build` made them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.fields import Amount
from asfl.config.shapes import Each

_COLUMNS = ("param_bits", "activation_bits", "forward_flops", "backward_flops")
_BESIDE = ("param_groups", "groups_per_batch", "groups_per_sample", "statistic_bits")
"""Groups of numbers that are quantised together, and running statistics; a profile of one's own may leave them out."""


Column = Annotated[NDArray[np.float64], Each(Amount, "layers")]


def _none() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class ModelProfile:
    """Bits and FLOPs of each unit, for one sample. All arrays have shape [M]; FLOP = 2·MAC.

    `param_bits` is ψ, `activation_bits` is q (what crosses the link if the cut is behind this unit, skip tensors
    included), `forward_flops` and `backward_flops` are v^FP and v^BP. Groups count what is quantised together: output
    channels of the parameters; channels of the activations in a mini-batch, or in each sample where there is only one
    position.
    """

    param_bits: Column
    activation_bits: Column
    forward_flops: Column
    backward_flops: Column
    name: str = "custom"
    unit_names: tuple[str, ...] = ()
    param_groups: Column = field(default_factory=_none)
    groups_per_batch: Column = field(default_factory=_none)
    groups_per_sample: Column = field(default_factory=_none)
    statistic_bits: Column = field(default_factory=_none)
    """Running statistics of norm layers, which are no parameters but move and are averaged with them."""
    min_cut: int = 1
    """No cut is shallower."""

    def __post_init__(self) -> None:
        lengths = set()
        for column in _BESIDE:
            if not len(getattr(self, column)):
                object.__setattr__(self, column, np.zeros(len(self.param_bits)))
        for column in (*_COLUMNS, *_BESIDE):
            values = np.array(getattr(self, column), dtype=float)  # a copy: nobody changes a profile afterwards
            if values.ndim != 1 or len(values) < 2:
                raise AsflError(f"profile.{column} must list at least 2 layers; one layer can't be cut")
            if not np.isfinite(values).all() or (values < 0).any():
                where = int(np.flatnonzero(~(np.isfinite(values) & (values >= 0)))[0])
                raise AsflError(f"profile.{column}[{where}] = {values[where]} must be a finite number ≥ 0")
            values.flags.writeable = False
            object.__setattr__(self, column, values)
            lengths.add(len(values))
        if len(lengths) > 1:
            counts = ", ".join(f"{column} {len(getattr(self, column))}" for column in (*_COLUMNS, *_BESIDE))
            raise AsflError(f"profile: all columns need the same length M, but they have {counts}")
        if not self.unit_names:
            object.__setattr__(self, "unit_names", tuple(f"layer{m}" for m in range(1, self.num_layers + 1)))

    @property
    def num_layers(self) -> int:
        """M."""
        return len(self.param_bits)

    @property
    def cuts(self) -> NDArray[np.int64]:
        """Every allowed cut, `min_cut` … M−1."""
        return np.arange(self.min_cut, self.num_layers)

    def cut_from(self, min_cut: int) -> Self:
        """The same network, never cut shallower than that."""
        if min_cut >= self.num_layers:
            raise AsflError(
                f"privacy.min_cut = {min_cut} must be 1 … {self.num_layers - 1}: {self.name} has {self.num_layers} "
                "layers, and the server holds at least the last one"
            )
        return self if min_cut == self.min_cut else replace(self, min_cut=min_cut)

    # Prefix sums over the client side: index them with a cut c (0 … M) to get the sum over layers ≤ c.
    @cached_property
    def client_param_bits(self) -> NDArray[np.float64]:
        return _prefix_sums(self.param_bits)

    @cached_property
    def client_param_groups(self) -> NDArray[np.float64]:
        return _prefix_sums(self.param_groups)

    @cached_property
    def client_statistic_bits(self) -> NDArray[np.float64]:
        return _prefix_sums(self.statistic_bits)

    @cached_property
    def client_forward_flops(self) -> NDArray[np.float64]:
        """F_c."""
        return _prefix_sums(self.forward_flops)

    @cached_property
    def client_backward_flops(self) -> NDArray[np.float64]:
        """B_c."""
        return _prefix_sums(self.backward_flops)

    def to_json(self) -> dict[str, Any]:
        columns = {column: [int(value) for value in getattr(self, column)] for column in (*_COLUMNS, *_BESIDE)}
        return {"name": self.name, "unit_names": list(self.unit_names), **columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        there = (*_COLUMNS, *(column for column in _BESIDE if data.get(column) is not None))
        columns: dict[str, Any] = {column: np.asarray(data[column], dtype=float) for column in there}
        return cls(**columns, name=data.get("name", "custom"), unit_names=tuple(data.get("unit_names", ())))


def _prefix_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(values)])
