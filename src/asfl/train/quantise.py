"""Numbers that cross with few bits: affine quantisation of each channel, with stochastic rounding.

    z = (x − low) / step                                  with a channel's own low and step
    q = ⌊z⌋ + 1 with probability z − ⌊z⌋, else ⌊z⌋;       0 ≤ q ≤ 2^bits − 1
    x̂ = low + q · step;                                   E[x̂] = x, |x̂ − x| ≤ step

A channel with numbers on both sides of zero has zero on its grid, at the price of at most one step of the range: so
zeros stay zeros, and what lies close to zero, as most of a gradient does, gets a small error instead of half a step.

The coin has 16 random bits. So E[x̂] is off by up to 2⁻¹⁷ of a step, which is about what float32 resolves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.round import wrong_bits
from asfl.models.cuttable import Carry
from asfl.train.state import Layout, Slot

UNQUANTISED = BITS_PER_VALUE
"""Bits of a number that crosses as it is."""


@dataclass(frozen=True, eq=False)
class _Coded:
    codes: Tensor
    """Bytes: two a code, one, or two codes a byte."""
    low: Tensor
    """[groups] float32"""
    step: Tensor
    """[groups] float32; 0 where all numbers of a group are the same."""
    bits: int

    @property
    def num_bits(self) -> int:
        """All that cross: codes, lows and steps."""
        return 8 * (self.codes.nbytes + self.low.nbytes + self.step.nbytes)


@dataclass(frozen=True, eq=False)
class Quantised(_Coded):
    """A tensor [batch, C, …] as codes, in the order of samples, positions, channels: what crosses instead of it."""

    shape: tuple[int, ...]

    def restored(self) -> Tensor:
        """float32, channels-last in memory."""
        batch, channels, *positions = self.shape
        rows = _unpack(self.codes, self.bits, math.prod(self.shape)).view(batch, -1)
        rows.mul_(_over_rows(self.step, self.shape)).add_(_over_rows(self.low, self.shape))
        return rows.view(batch, *positions, channels).movedim(-1, 1)


@dataclass(frozen=True, eq=False)
class QuantisedLayers(_Coded):
    """Parameters of layers, or differences of them, as codes in the order of the layout."""

    sizes: Tensor
    """[groups] how many numbers each has. Both sides know the network, so this doesn't cross."""

    def restored(self) -> Tensor:
        """[P] float32"""
        step, low = self.step.repeat_interleave(self.sizes), self.low.repeat_interleave(self.sizes)
        return _unpack(self.codes, self.bits, len(low)).mul_(step).add_(low)


Crossing = tuple[Tensor | Quantised, ...]
"""What crosses a cut."""


def quantise(values: Tensor, bits: int, random: np.random.Generator) -> Tensor | Quantised:
    """[batch, C, …] with so many bits; 32: the very same tensor.

    A group, which has a low and a step, is a channel: all its samples and positions. A channel with a single position
    is a feature, and a pair for each would be 64 bits beside `batch` codes. There a group is a sample instead, as
    gradients differ in size from sample to sample.

    A group with a number that isn't finite comes back without any finite number.
    """
    if check_bits(bits) == UNQUANTISED:
        return values
    shape = tuple(values.shape)
    rows = values.detach().movedim(1, -1).reshape(shape[0], -1)  # no copy of what is channels-last
    if _by_channel(shape):  # over samples first: neighbours in memory stay neighbours
        low, high = rows.amin(0).view(-1, shape[1]).amin(0), rows.amax(0).view(-1, shape[1]).amax(0)
    else:
        low, high = rows.amin(1), rows.amax(1)
    codes, low, step = _round(rows, low, high, bits, random, lambda of_group: _over_rows(of_group, shape))
    return Quantised(codes, low, step, bits, shape)


def quantise_side(
    layout: Layout, difference: Tensor, depth: int, bits: int, random: np.random.Generator
) -> Tensor | QuantisedLayers:
    """Parameters [P] of the first `depth` layers with so many bits; 32: the very same tensor.

    Meant for the difference to what both sides have already: it is small, and so are its steps. A group is an output
    channel of a tensor; a tensor with one axis, such as a bias, is a single one. Running statistics are no parameters
    and cross as they are: they are few, and a variance that is off by a step could become negative.
    """
    if check_bits(bits) == UNQUANTISED or not len(difference):
        return difference
    # The first axis comes first in memory, whatever the order of the others.
    tensors = [difference[slot.start : slot.stop].view(groups, -1) for slot, groups in _slots_and_groups(layout, depth)]
    low, high = torch.cat([tensor.amin(1) for tensor in tensors]), torch.cat([tensor.amax(1) for tensor in tensors])
    sizes = group_sizes(layout, depth).to(difference.device)
    codes, low, step = _round(difference, low, high, bits, random, lambda of_group: of_group.repeat_interleave(sizes))
    return QuantisedLayers(codes, low, step, bits, sizes)


def layers_to_send(
    layout: Layout, values: Tensor, shared: Tensor, depth: int, bits: int, random: np.random.Generator
) -> Tensor | QuantisedLayers:
    """The first layers [P], whole; or with few bits, as the difference to what both sides have of them already."""
    return values if check_bits(bits) == UNQUANTISED else quantise_side(layout, values - shared, depth, bits, random)


def layers_received(crossing: Tensor | QuantisedLayers, shared: Tensor) -> Tensor:
    """What the other side has of them then."""
    return crossing if isinstance(crossing, Tensor) else shared + crossing.restored().to(shared.dtype)


def quantise_carry(carry: Carry, bits: int, random: np.random.Generator) -> Crossing:
    return tuple(quantise(tensor, bits, random) for tensor in carry)


def restore_carry(crossing: Crossing, dtype: torch.dtype) -> Carry:
    """What the other side computes with."""
    return tuple(sent.restored().to(dtype) if isinstance(sent, Quantised) else sent for sent in crossing)


def relative_error(carry: Carry, crossing: Crossing) -> Tensor:
    """‖x̂ − x‖² / ‖x‖² over all tensors that cross; 0 if they are all zero."""
    pairs = list(zip(carry, restore_carry(crossing, carry[0].dtype), strict=True))
    error2 = torch.stack([torch.dist(back, tensor.detach()).square() for tensor, back in pairs]).sum()
    norm2 = torch.stack([torch.linalg.vector_norm(tensor.detach()).square() for tensor, _ in pairs]).sum()
    return error2 / norm2.clamp_min(torch.finfo(norm2.dtype).tiny)


ALL_CLIENTS = -1
"""In the place of a client, where all get the same."""


def rounding(
    seed: int, way: Literal["up", "down", "layers", "model"], round_index: int, client: int, step: int = 0
) -> np.random.Generator:
    """The rng for what a client sends or gets in a step."""
    return random_stream(seed, f"quantise: {way}, client {client}, step {step}", round_index)


def check_bits(bits: int) -> int:
    if wrong := wrong_bits(bits):
        raise AsflError(f"bits {wrong}")
    return bits


# ---------------------------------------------------------------------- groups
def _slots_and_groups(layout: Layout, depth: int) -> list[tuple[Slot, int]]:
    """The tensors of the first `depth` layers, and how many groups each has."""
    return [(slot, slot.shape[0] if slot.shape[1:] else 1) for slot in layout.parameters if slot.unit < depth]


def group_sizes(layout: Layout, depth: int) -> Tensor:
    """[groups] of the first `depth` layers."""
    tensors = _slots_and_groups(layout, depth)
    return torch.cat([torch.full((groups,), (slot.stop - slot.start) // groups) for slot, groups in tensors])


def _by_channel(shape: tuple[int, ...]) -> bool:
    """Whether a group is a channel; else it is a sample."""
    return math.prod(shape[2:]) > 1


def num_groups(shape: tuple[int, ...]) -> int:
    """Of a tensor [batch, C, …]."""
    return shape[1] if _by_channel(shape) else shape[0]


def _over_rows(of_group: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What each number of a row (a sample: positions, then channels) has to do with, to be broadcast over rows."""
    return of_group.repeat(math.prod(shape[2:])) if _by_channel(shape) else of_group.unsqueeze(1)


# ---------------------------------------------------------------------- rounding
def _round(
    values: Tensor,
    low: Tensor,
    high: Tensor,
    bits: int,
    random: np.random.Generator,
    spread: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes of the values; low and step of each group. `spread` gives every value the number of its group."""
    low, high, levels = low.float(), high.float(), 2**bits - 1
    step = high / levels - low / levels
    # Zero gets a code if it lies between: of so many steps, one less than there are, whole ones fit on either side.
    around_zero = (low < 0) & (high >= 0)
    larger = high / (levels - 1) - low / (levels - 1)
    below = torch.where(around_zero, (-low / larger).ceil().clamp(1, levels - 1), 0)
    step = torch.where(around_zero, torch.maximum(-low / below, high / (levels - below)), step)
    origin = torch.where(around_zero, 0, low)
    low = torch.where(around_zero, -(below * step), low)  # what times the code of zero adds up to exactly zero

    scaled = values - spread(origin)
    scaled /= spread(torch.where(step > 0, step, 1))
    floor = scaled.floor()
    up = scaled.sub_(floor).add_(_uniform(scaled, random)).floor_()  # 0 or 1; faster than to compare
    codes = floor.add_(up).add_(spread(below)).clamp_(0, levels)
    return _pack(codes.view(-1), bits), low, step


def _uniform(like: Tensor, random: np.random.Generator) -> Tensor:
    """Multiples of 2⁻¹⁶ plus 2⁻¹⁷ between 0 and 1, in the order of memory; four of each raw 64-bit number."""
    count = like.numel()
    raw = random.bit_generator.random_raw(-(-count // 4)).view(np.int16)[:count]
    return torch.from_numpy(raw).to(like.device, torch.float32).mul_(2.0**-16).add_(0.5 + 2.0**-17).view(like.shape)


# ---------------------------------------------------------------------- bytes
def num_code_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers [n] below 2^bits, as bytes. At 4 bits the second half lies in the upper halves of the bytes."""
    if bits == 16:
        return codes.to(torch.int32).to(torch.int16).view(torch.uint8)
    octets = codes.to(torch.uint8)
    if bits == 8:
        return octets
    packed = octets[: num_code_bytes(len(octets), bits)].clone()
    packed[: len(octets) // 2] += octets[len(packed) :] << 4
    return packed


def _unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """[n] float32"""
    if bits == 16:
        return packed.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF).float()
    if bits == 8:
        return packed.float()
    codes = torch.empty(count, device=packed.device)
    codes[: len(packed)] = packed & 0xF
    codes[len(packed) :] = packed[: count // 2] >> 4
    return codes
