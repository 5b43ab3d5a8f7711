"""Few bits: unbiased, as close as a step, exact where it can be, and as many bits as are said; plain and fast alike."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from trainers import PROCEDURES, full_round, tiny_batches, tiny_images, tiny_model, trainers

from asfl.config.errors import AsflError
from asfl.config.names import ModelSpec
from asfl.costs.modelled import activation_bits, layer_bits
from asfl.models.build import build_model
from asfl.models.load import load_profile
from asfl.runs.state import flatten
from asfl.train.quantise import (
    Quantised,
    QuantisedLayers,
    num_code_bytes,
    num_groups,
    quantise,
    quantise_carry,
    quantise_side,
    relative_error,
    rounding,
)
from asfl.train.state import Layout

CLIENTS = 5
FEW = [16, 8, 4]
few_bits = st.sampled_from(FEW)
seeds = st.integers(0, 2**32 - 1)
shapes = st.one_of(
    st.tuples(*[st.integers(1, 5)] * 4),
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    st.tuples(*[st.integers(1, 4)] * 3),
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    """Channels of very different sizes; some all above zero, some below, some with zeros, some constant."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * 10.0 ** random.uniform(-4, 4)
    channel = values.swapaxes(0, 1)
    for each in range(shape[1]):
        kind, size = random.integers(6), 10.0 ** random.uniform(-3, 3)
        channel[each] *= size
        if kind == 0:
            channel[each] = np.maximum(channel[each], 0)
        elif kind in (1, 2):
            channel[each] += (3 - 2 * kind) * 4 * np.abs(channel[each]).max()
        elif kind == 3:
            channel[each] = channel[each].flat[0]
        elif kind == 4:
            channel[each] *= random.random(channel[each].shape) < 0.5
    return torch.from_numpy(values.astype(np.float32))


def quantised(values: Tensor, bits: int, random: np.random.Generator) -> Quantised:
    found = quantise(values, bits, random)
    assert isinstance(found, Quantised)
    return found


def of_each(of_group: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A group's number at the place of each of its values: by channel, or by sample where channels are features."""
    axis = 1 if prod(shape[2:]) > 1 else 0
    return of_group.view(*(-1 if a == axis else 1 for a in range(len(shape)))).expand(shape)


def resolution(codes: Quantised) -> Tensor:
    """What float32 can't tell apart in each group."""
    return 4 * torch.finfo(torch.float32).eps * torch.maximum(codes.low.abs(), codes.step * 2**codes.bits)


def tolerance(draws: int) -> float:
    """Steps: the mean of draws within a step is farther off than t with probability ≤ 2·exp(−2·draws·t²) = 10⁻¹²."""
    return float(np.sqrt(np.log(2 / 1e-12) / (2 * draws)))


# ---------------------------------------------------------------------- laws of the quantiser
@given(shape=shapes, bits=few_bits, seed=seeds)
def test_every_number_comes_back_within_a_step(shape: tuple[int, ...], bits: int, seed: int) -> None:
    values = drawn(shape, seed)
    codes = quantised(values, bits, rng(seed))
    back = codes.restored()
    assert back.shape == values.shape
    assert back.dtype == torch.float32
    assert ((back - values).abs() <= of_each(codes.step + resolution(codes), shape)).all()
    assert (back[values == 0] == 0).all()


@given(shape=shapes, bits=few_bits, seed=seeds)
def test_the_mean_of_many_draws_is_the_number(shape: tuple[int, ...], bits: int, seed: int) -> None:
    values, draws = drawn(shape, seed), 64
    found = [quantised(values, bits, random) for random in rng(seed).spawn(draws)]
    mean = torch.stack([codes.restored().double() for codes in found]).mean(0)
    bound = tolerance(draws) * found[0].step + resolution(found[0])
    assert ((mean - values).abs() <= of_each(bound, shape)).all()


@given(shape=shapes, bits=few_bits, seed=seeds)
def test_as_the_formula_says(shape: tuple[int, ...], bits: int, seed: int) -> None:
    """Code and value again in plain NumPy: low + q · step, with q one of the two neighbours."""
    values = drawn(shape, seed)
    codes = quantised(values, bits, rng(seed))
    raw = codes.codes.numpy()
    if bits == 16:
        q = raw.view("<u2").astype(np.int64)
    elif bits == 8:
        q = raw.astype(np.int64)
    else:
        q = np.concatenate([raw & 15, raw >> 4])[: values.numel()].astype(np.int64)
    q = np.moveaxis(q.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    low, step = of_each(codes.low, shape).numpy(), of_each(codes.step, shape).numpy()
    expected = q.astype(np.float32) * step + low
    np.testing.assert_array_equal(codes.restored().numpy(), expected)


@given(shape=shapes, bits=few_bits, seed=seeds)
def test_every_bit_is_counted(shape: tuple[int, ...], bits: int, seed: int) -> None:
    codes = quantised(drawn(shape, seed), bits, rng(seed))
    count = prod(shape)
    assert len(codes.low) == len(codes.step) == num_groups(shape)
    assert len(codes.codes) == num_code_bytes(count, bits)
    assert codes.num_bits == 8 * num_code_bytes(count, bits) + 64 * num_groups(shape)
    assert 0 <= codes.num_bits - 64 * num_groups(shape) - bits * count < 8


@given(shape=shapes, seed=seeds)
def test_32_bits_are_the_very_same_tensor(shape: tuple[int, ...], seed: int) -> None:
    values, random = drawn(shape, seed), rng(seed)
    assert quantise(values, 32, random) is values
    assert random.bit_generator.state == rng(seed).bit_generator.state


@given(shape=shapes, bits=few_bits, number=st.floats(-(2.0**100), 2.0**100, width=32))
def test_equal_numbers_come_back_exactly(shape: tuple[int, ...], bits: int, number: float) -> None:
    values = torch.full(shape, number)
    codes = quantised(values, bits, rng())
    assert torch.equal(codes.restored(), values)
    assert relative_error((values,), (codes,)) == 0


@given(shape=shapes, bits=few_bits, seed=seeds, bad=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_stays_so(shape: tuple[int, ...], bits: int, seed: int, bad: float) -> None:
    values = drawn(shape, seed)
    values.view(-1)[seed % values.numel()] = bad
    codes = quantised(values, bits, rng(seed))
    back = codes.restored()
    assert not back[~values.isfinite()].isfinite().any()
    assert not relative_error((values,), (codes,)).isfinite()
    fine = of_each(codes.step, shape).isfinite()
    assert back[fine].isfinite().all()


@given(bits=few_bits, seed=seeds)
def test_the_order_in_memory_does_not_matter(bits: int, seed: int) -> None:
    values = drawn((3, 4, 2, 5), seed)
    as_given, last = (quantised(v, bits, rng(seed)) for v in (values, values.to(memory_format=torch.channels_last)))
    assert torch.equal(as_given.codes, last.codes)
    assert torch.equal(as_given.restored(), last.restored())
    assert last.restored().is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("bits", [0, 1, 12, 33, -8])
def test_other_numbers_of_bits(bits: int) -> None:
    with pytest.raises(AsflError, match=f"bits = {bits} must be one of 32, 16, 8, 4"):
        quantise(torch.zeros(2, 3), bits, rng())


def test_each_client_step_round_and_direction_has_coins_of_its_own() -> None:
    keys = [("up", 0, 0, 0), ("down", 0, 0, 0), ("layers", 0, 0, 0), ("up", 1, 0, 0), ("up", 0, 1, 0), ("up", 0, 0, 1)]
    drawn_first = {int(rounding(1, way, *key).integers(2**62)) for way, *key in keys}  # type: ignore[arg-type]
    assert len(drawn_first) == len(keys)


# ---------------------------------------------------------------------- layers
@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("depth", [1, 3])
def test_layers_by_output_channel(depth: int, bits: int) -> None:
    """Each tensor again by itself, as PyTorch has it: [outputs, …]."""
    model = tiny_model().float()
    layout = Layout(model)
    difference = torch.from_numpy(np.random.default_rng(1).standard_normal(int(layout.parameter_edges[depth]))).float()
    slots = [slot for slot in layout.parameters if slot.unit < depth]
    for place, slot in enumerate(slots):
        difference[slot.start : slot.stop] *= 10.0 ** (place % 5 - 2)
    codes = quantise_side(layout, difference, depth, bits, rng(3))
    assert isinstance(codes, QuantisedLayers)
    back, group = codes.restored(), 0
    for slot in slots:
        before, after = (slot.view(v).flatten(1) if slot.shape[1:] else slot.view(v)[None] for v in (difference, back))
        step = codes.step[group : group + len(before)]
        group += len(before)
        width = before.amax(1) - before.amin(1)
        assert ((after - before).abs() <= step[:, None] * (1 + 1e-5)).all()
        assert (step <= width / (2**bits - 2) * (1 + 1e-5)).all()
    assert group == len(codes.step) == len(codes.low)
    assert codes.num_bits == 8 * num_code_bytes(len(difference), bits) + 64 * group


# ---------------------------------------------------------------------- in training


@pytest.mark.parametrize("exchange", ["asfl", "sl", "fedavg"])
def test_32_bits_are_as_if_nothing_had_been_said(exchange: str) -> None:
    model = tiny_model()
    cut = len(model.units) if exchange == "fedavg" else 2
    _, said = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES[exchange], "adam", CLIENTS)
    _, unsaid = trainers(model, tiny_batches(tiny_images(), CLIENTS), PROCEDURES[exchange], "adam", CLIENTS)
    for index in range(2):
        plan = full_round(index, cut, CLIENTS)
        assert np.isnan(said.round(replace(plan, bits=np.full(CLIENTS, 32))).quantisation_error).all()
        unsaid.round(plan)
    for name, tensor in flatten(unsaid.state).items():
        assert torch.equal(flatten(said.state)[name], tensor), name


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("name", ["cnn-w0.5-cifar10", "resnet18-w0.25-cifar10"])
def test_what_is_charged_is_what_crosses(name: str, bits: int) -> None:
    """Codes, lows and steps of every cut, in activations and in parameters."""
    spec, samples = ModelSpec.parse(name), 5
    model, profile = build_model(spec), load_profile(name)
    layout, rng = Layout(model), np.random.default_rng(1)
    carry: tuple[torch.Tensor, ...] = (torch.randn(samples, 3, 32, 32),)
    for cut in profile.cuts.tolist():
        carry = tuple(tensor.detach() for tensor in model.units[cut - 1](carry))
        sent = sum(one.num_bits for one in quantise_carry(carry, bits, rng) if not isinstance(one, torch.Tensor))
        assert abs(sent - activation_bits(profile, np.array(cut), bits, samples, 1)) < 8 * len(carry)  # whole bytes
        side = torch.randn(int(layout.parameter_edges[cut]))
        layers = quantise_side(layout, side, cut, bits, rng)
        assert not isinstance(layers, torch.Tensor)
        assert abs(layers.num_bits - layer_bits(profile, cut, bits)) < 8
