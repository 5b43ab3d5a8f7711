"""What the server knows of the learning, against plain loops."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from trainers import PROCEDURES, full_round, tiny_batches, tiny_images, tiny_model, trainers

from asfl.costs.modelled import report_bits
from asfl.costs.round import Overheads
from asfl.models.profile import ModelProfile
from asfl.train.fleet import Projections, layer_norms, projected_spreads, sample_coordinates
from asfl.train.signals import Signals, Trained
from asfl.train.state import layer_spreads
from asfl.train.steps import Trainer


def trained(clients: int = 4, cut: int = 4) -> Trainer:
    _, fast = trainers(tiny_model(), tiny_batches(tiny_images(), clients), PROCEDURES["asfl"], "adam", clients)
    for index in range(2):
        fast.round(full_round(index, cut, clients))
    return fast


def plain_spreads(fast: Trainer) -> list[float]:
    edges, rows = fast.layout.parameter_edges, fast.state.clients.parameters.numpy()
    spreads = []
    for unit in range(fast.layout.num_units):
        if unit >= fast.state.cut:
            spreads.append(0.0)
            continue
        layer = rows[:, edges[unit] : edges[unit + 1]]
        mean = layer.mean(axis=0)
        spreads.append(float(np.mean([np.sum((mean - own) ** 2) for own in layer])))
    return spreads


def test_spreads_by_layer() -> None:
    fast = trained()
    found = layer_spreads(fast.layout, fast.state.clients.parameters)
    np.testing.assert_allclose(found, plain_spreads(fast), rtol=1e-10)
    everything = np.arange(fast.state.clients.parameters.shape[1])
    np.testing.assert_allclose(layer_spreads(fast.layout, fast.state.clients.parameters, everything), found, rtol=1e-12)


@given(st.integers(0, 2000), st.floats(0.01, 1.0), st.integers(0, 100))
def test_sampled_coordinates_are_valid_and_as_many_as_asked(size: int, ratio: float, seed: int) -> None:
    columns = sample_coordinates(size, ratio, np.random.default_rng(seed))
    assert (np.diff(columns) > 0).all()
    assert len(columns) == 0 or (columns[0] >= 0 and columns[-1] < size)
    assert abs(len(columns) - size * ratio) <= 1


@pytest.mark.parametrize("ratio", [0.05, 0.3])
def test_sampled_spreads_are_unbiased(ratio: float) -> None:
    fast = trained()
    sides = fast.state.clients.parameters
    random = np.random.default_rng(0)
    drawn = [sample_coordinates(sides.shape[1], ratio, random) for _ in range(400)]
    samples = [layer_spreads(fast.layout, fast.fleet.report(columns)[0], columns) / ratio for columns in drawn]
    exact = layer_spreads(fast.layout, sides)
    error = np.std(samples, axis=0) / np.sqrt(len(samples))
    assert (np.abs(np.mean(samples, axis=0) - exact) <= 5 * error + 1e-12).all()


def test_projections_are_unbiased_and_their_error_is_small() -> None:
    """√(2 / (R · (N − 1))) is 10 % here, if all directions of the drift are alike."""
    fast = trained()
    sides, exact, cut = fast.state.clients.parameters, layer_spreads(fast.layout, fast.state.clients.parameters), 4
    found = []
    for seed in range(100):
        numbers = Projections.of(fast.layout, sides, seed, 0, cut).numbers
        found.append(projected_spreads(numbers, range(4), np.ones(4), fast.layout.num_units))
    error = np.std(found, axis=0)
    assert (np.abs(np.mean(found, axis=0) - exact) <= 5 * error / 10 + 1e-3 * exact).all()  # 16 bits
    assert (error[:cut] < 0.2 * exact[:cut]).all()
    assert (np.array(found)[:, cut:] == 0).all()


def test_equal_sides_have_equal_projections_and_codes_take_the_bits_that_are_charged() -> None:
    fast = trained()
    some, cut = fast.state.clients.parameters[0], 4
    whole, last = (Projections.of(fast.layout, some, 7, above, cut) for above in (0, 2))
    assert torch.equal(whole.numbers[2:], last.numbers)
    bits = 8 * (whole.codes.nbytes + whole.step.nbytes)
    assert bits == report_bits(fast_profile(), np.array(0), np.array(cut), Overheads(True)) - 32  # without the norm
    together = Projections.of(fast.layout, fast.state.clients.parameters, 7, 0, cut).numbers
    assert torch.equal(together[0], whole.numbers)  # as clients elsewhere compute it, one by one
    same = torch.stack([whole.numbers] * 3)
    assert not projected_spreads(same, range(3), np.array([1.0, 2, 3]), fast.layout.num_units).any()
    nothing = Projections.of(fast.layout, torch.zeros_like(some), 7, 0, cut)
    assert not nothing.numbers.any()
    assert torch.isnan(Projections.of(fast.layout, some * float("nan"), 7, 0, cut).numbers).all()


def fast_profile() -> ModelProfile:
    column = np.ones(9)
    return ModelProfile(column, column, column, column)


def test_running_mean_and_unknown_updates() -> None:
    reports = np.zeros(7), np.zeros(7), np.ones(3)
    signals = Signals.none_yet(3)
    assert signals.learning(*reports).update_norm2.tolist() == [1, 1, 1]
    signals = signals.after(Trained(np.zeros(3), np.array([4.0, np.nan, 2.0]), np.zeros(3)))
    learning = signals.learning(*reports)
    assert learning.update_scale == 3.0
    assert learning.update_norm2.tolist() == [4.0, 3.0, 2.0]  # client 1 has none yet and counts like the mean
    signals = signals.after(Trained(np.zeros(3), np.array([np.nan, 13.0, np.nan]), np.zeros(3)))
    assert signals.update_scale == pytest.approx((3.0 + 13.0) / 2)  # of all rounds so far, so that it forgets nothing
    assert signals.after(Trained.nothing(3)) is signals


def test_norms_of_the_average_model() -> None:
    fast = trained()
    average, edges = fast.state.average_model().parameters.numpy(), fast.layout.parameter_edges
    expected = [np.sum(average[a:b] ** 2) for a, b in pairwise(edges)]
    np.testing.assert_allclose(layer_norms(fast.state), expected, rtol=1e-10)
