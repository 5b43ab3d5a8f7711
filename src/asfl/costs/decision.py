"""What is decided each round: where to cut, who gets how many resource blocks, at what power; and, beyond the paper,
whether client sides are averaged and how many bits cross the link.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from asfl.config.errors import AsflError
from asfl.config.fields import Amount, Index
from asfl.config.shapes import Each
from asfl.config.units import BITS_PER_VALUE

Whole = Annotated[int, Field(strict=True, ge=1, le=10**6)]
ALLOWED_BITS = (32, 16, 8, 4)
MOST_BATCHES = 4
"""A client's mini-batch has at most so many times the configured number of samples."""


@dataclass(frozen=True, eq=False)
class Decision:
    """One round's decision. Only how many blocks a client gets matters, unless the channel differs over blocks."""

    cut: Annotated[int | NDArray[np.int64], Each(Whole, or_one=True)]
    """How many layers the client holds, 1 … M−1; one number, or one per client [N] (ACC-SFL)."""
    rb_count: Annotated[NDArray[np.float64], Each(Amount)]
    """[N] resource blocks per client; 0 means the client sits out."""
    tx_power_w: Annotated[NDArray[np.float64], Each(Amount)]
    """[N] transmit power in W, 0 … P^max."""
    bits: Annotated[int | NDArray[np.int64], Each(Whole, or_one=True)] = BITS_PER_VALUE
    """Of every value that crosses: activations, gradients, layers that are averaged; one number, or one per client [N].
    Layers that move because the cut does cross whole."""
    synced: Index = 0
    """Client-side layers 1 … `synced` are averaged at the end of the round; 0: each client keeps its own."""
    blocks: Annotated[NDArray[np.bool_], Each(bool, "clients blocks")] | None = None
    """[N, K] whose each resource block is, where blocks differ; as many in a row as `rb_count` says."""
    batch: Annotated[NDArray[np.int64], Each(Whole)] | None = None
    """[N] samples in each client's mini-batch (HASFL); None: as many as are configured."""

    @property
    def scheduled(self) -> NDArray[np.bool_]:
        """[N] who takes part in the round."""
        return self.rb_count > 0

    @property
    def rb_owner(self) -> list[int | None] | None:
        """[K] whose each block is, None: no client's, or of one that sits out; None where blocks don't differ."""
        if self.blocks is None:
            return None
        return [int(column.argmax()) if column.any() else None for column in (self.blocks & self.scheduled[:, None]).T]

    @property
    def rb_mask(self) -> NDArray[np.bool_]:
        """[N, K'] whose each block is; where that doesn't matter, client after client takes the next (K' in all)."""
        if self.blocks is not None:
            return self.blocks
        owner = np.repeat(np.arange(len(self.rb_count)), self.rb_count.astype(int))
        return np.equal(np.arange(len(self.rb_count))[:, None], owner)


def check_decision(
    decision: Decision,
    num_layers: int,
    num_rbs: int,
    max_tx_power_w: float,
    *,
    in_sequence: bool = False,
) -> None:
    """Raise an AsflError naming the field if the decision breaks a constraint (30d)–(30i) of the paper.

    `in_sequence`: clients take turns, so each may use all the blocks (split learning).
    """
    cut = np.atleast_1d(decision.cut)
    wrong = cut[(cut < 1) | (cut > num_layers - 1)]
    if wrong.size:
        raise AsflError(f"decision.cut = {wrong[0]} must be 1 … {num_layers - 1} for a model of {num_layers} layers")
    count, power = decision.rb_count, decision.tx_power_w
    _check_each("decision.rb_count", count, np.isfinite(count) & (count >= 0), "a number ≥ 0")
    _check_each("decision.rb_count", count, count == np.round(count), "a whole number")
    used = count.max(initial=0) if in_sequence else count.sum()
    if used > num_rbs * (1 + 1e-9):
        raise AsflError(f"decision.rb_count gives out {used:g} resource blocks, but radio.num_rbs = {num_rbs}")
    if mistake := wrong_bits(decision.bits):
        raise AsflError(f"decision.bits {mistake}")
    if not 0 <= decision.synced <= cut.max():
        raise AsflError(f"decision.synced = {decision.synced} must be 0 … {cut.max()}, the layers that clients hold")
    if cut.min() < cut.max() and decision.synced not in (0, cut.max()):
        raise AsflError(
            f"decision.synced = {decision.synced} must be {cut.max()} where cuts differ: layers that some clients hold "
            "and the server trains for others are averaged, and so is everything below them"
        )
    if decision.batch is not None:
        _check_each("decision.batch", decision.batch, decision.batch >= 1, "a number of samples ≥ 1")
    fits = np.isfinite(power) & (power >= 0) & (power <= max_tx_power_w * (1 + 1e-12))
    _check_each("decision.tx_power_w", power, fits, f"0 … {max_tx_power_w:g} W (radio.max_tx_power_w)")


def wrong_bits(bits: int | NDArray[np.int64]) -> str:
    """Behind the name of numbers of bits: which of them is not allowed; empty if all are."""
    unknown = np.setdiff1d(bits, ALLOWED_BITS)
    return f"= {unknown[0]} must be one of {', '.join(map(str, ALLOWED_BITS))}" if unknown.size else ""


def _check_each(
    name: str, values: NDArray[np.float64] | NDArray[np.int64], valid: NDArray[np.bool_], wanted: str
) -> None:
    if not valid.all():
        client = int(np.flatnonzero(~valid)[0])
        raise AsflError(f"{name}[{client}] = {values[client]:g} must be {wanted}")
