"""What is known of links and processors, against plain weighted means."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asfl.field.clocks import PRIOR_LOG_VARIANCE, PRIOR_LOSS, FleetEstimates, LogEstimate, LossEstimate

amounts = st.floats(1e-9, 1e9)
rounds = st.lists(st.lists(amounts, max_size=3), min_size=1, max_size=8)
"""Measurements of one client, round by round."""
memories = st.floats(0.05, 0.99)


def after(measured: list[list[float]], memory: float) -> LogEstimate:
    estimate = LogEstimate(1.0, 1)
    for of_round in measured:
        estimate.fade(memory)
        for amount in of_round:
            estimate.add(0, amount)
    return estimate


@given(rounds, memories)
def test_a_weighted_mean_of_logarithms(measured: list[list[float]], memory: float) -> None:
    logs = np.log([amount for of_round in measured for amount in of_round])
    ages = [age for age, of_round in enumerate(reversed(measured)) for _ in of_round][::-1]
    estimate = after(measured, memory)
    if not len(logs):
        assert not estimate.known[0]
        assert estimate.value[0] == 1.0  # the guess
        assert np.isinf(estimate.relative_error[0])
        return
    weights = memory ** np.array(ages, float)
    mean = np.average(logs, weights=weights)
    squares = (weights * (logs - mean) ** 2).sum()
    error = np.sqrt((squares + PRIOR_LOG_VARIANCE) / (weights.sum() + 1) / weights.sum())
    assert estimate.value[0] == pytest.approx(np.exp(mean), rel=1e-6)
    assert estimate.relative_error[0] == pytest.approx(error, rel=1e-5, abs=1e-7)


@given(rounds.filter(lambda measured: any(measured)), memories, st.floats(1e-3, 1e3))
def test_units_do_not_matter(measured: list[list[float]], memory: float, factor: float) -> None:
    here, there = after(measured, memory), after([[factor * a for a in one] for one in measured], memory)
    np.testing.assert_allclose(there.value, factor * here.value, rtol=1e-9)
    np.testing.assert_allclose(there.relative_error, here.relative_error, rtol=1e-5, atol=1e-7)


@given(rounds.filter(lambda measured: any(measured)), memories)
def test_of_a_silent_client_less_is_known(measured: list[list[float]], memory: float) -> None:
    estimate = after(measured, memory)
    value, error = estimate.value[0], estimate.relative_error[0]
    estimate.fade(memory)
    assert estimate.value[0] == value
    assert estimate.relative_error[0] > error
    assert estimate.above(2.0)[0] > estimate.above(0.0)[0] == value


@given(st.lists(st.booleans(), max_size=20), memories)
def test_losses(missed: list[bool], memory: float) -> None:
    estimate = LossEstimate(1)
    for one in missed:
        estimate.fade(memory)
        estimate.add(0, missed=one)
    weights = memory ** np.arange(len(missed))[::-1]
    expected = (weights[np.array(missed, bool)].sum() + PRIOR_LOSS) / (weights.sum() + 1)
    assert estimate.value[0] == pytest.approx(expected)
    assert 0 < estimate.error[0] < 0.5


def test_estimates_survive() -> None:
    before, again = FleetEstimates(3, 5.0), FleetEstimates(3, 5.0)
    before.uplink_s_per_bit.add(1, 3e-7)
    before.server_s_per_flop.add(0, 2e-11)
    before.loss.add(2, missed=True)
    before.fade(0.5)
    again.restore(before.arrays())
    assert again.to_json() == before.to_json()
    assert again.links(1.0).uplink_bps.tolist() == before.links(1.0).uplink_bps.tolist()
    again.fade(0.5)  # and are its own
    assert again.uplink_s_per_bit.relative_error[1] > before.uplink_s_per_bit.relative_error[1]


def test_with_caution_everything_is_worse() -> None:
    estimates = FleetEstimates(2, 5.0)
    for client in (0, 1):
        estimates.uplink_s_per_bit.add(client, 1e-7)
        estimates.client_s_per_flop.add(client, 1e-9)
    plain, careful = estimates.links(0.0), estimates.links(1.0)
    assert (careful.uplink_bps < plain.uplink_bps).all()
    assert (careful.client_s_per_flop > plain.client_s_per_flop).all()
    assert (careful.loss > plain.loss).all()
