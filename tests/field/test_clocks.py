"""What the server's clocks say: exchanges on links that are known exactly."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from asfl.config import Network
from asfl.costs.modelled import ExchangeRules
from asfl.field.measured import (
    PRIOR_LOG_VARIANCE,
    PRIOR_LOSS,
    Clocks,
    LogEstimate,
    LossEstimate,
    MeasuredCost,
    _covered,
    probe,
)
from asfl.field.messages import Answer, AnyRequest, Backward, Forward, Grow, Learn, Ping, Probe, Probed, Where
from asfl.field.wire import WireError
from asfl.models.profile import ModelProfile
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

PROFILE = ModelProfile(
    param_bits=np.array([1e4, 2e4, 3e4]),
    activation_bits=np.array([3e4, 2e4, 1e4]),
    forward_flops=np.array([1e6, 2e6, 3e6]),
    backward_flops=np.array([2e6, 4e6, 6e6]),
)
BATCH = 8
LATENCY_S, UP_BPS, DOWN_BPS, FLOPS_PER_S = 0.01, 2e6, 8e6, 5e8


def at(cut: int) -> Task:
    return Task(0, 0, cut)


def clocks_of(clients: int = 2, **rules: float) -> Clocks:
    return Clocks(PROFILE, BATCH, clients, Network(**rules))


Seen = tuple[Any, Answer]


def seen(client: int, request: AnyRequest, answer: Answer, sent_at: float, answered_at: float) -> Seen:
    """A request and its answer."""
    asked = SimpleNamespace(client=client, request=request, sent_at=sent_at, answered_at=answered_at)
    return asked, answer


def exchange(request: AnyRequest, up: int, sent_at: float, answered_at: float, client: int = 0, **costs: float) -> Seen:
    """With so many bytes in the answer."""
    answer = Probed(torch.zeros(up, dtype=torch.uint8), **costs)  # type: ignore[arg-type]
    return seen(client, request, answer, sent_at, answered_at)


def usual(request: AnyRequest, up: int, *, flops: float = 0.0) -> Seen:
    """As it takes on a link and a processor that are always the same."""
    busy_s = flops / FLOPS_PER_S
    took_s = LATENCY_S + 8 * up / UP_BPS + 8 * request.payload_bytes / DOWN_BPS + busy_s
    sent_at = time.monotonic()
    return exchange(request, up, sent_at, sent_at + took_s, busy_s=busy_s)


def charge(clocks: Clocks) -> MeasuredCost:
    """The round and its decision only say how many packets were expected to be lost."""
    clients = len(clocks.present)
    expected = SimpleNamespace(packet_error_rate=lambda *_: np.full(clients, 0.25), rb_count=None, tx_power_w=None)
    return clocks.charge(expected, expected, ExchangeRules(), clocks.present)  # type: ignore[arg-type]


def gradients(num_bytes: int) -> tuple[torch.Tensor]:
    return (torch.zeros(num_bytes // 4),)


def test_rates_and_speed_are_found() -> None:
    clocks = clocks_of()
    forward, backward = 8 * PROFILE.client_forward_flops[2], 8 * PROFILE.client_backward_flops[2]
    for _ in range(8):
        clocks.exchanged(*usual(Ping(), 0))
        clocks.exchanged(*usual(Forward(at(2)), 300_000, flops=forward))
        clocks.exchanged(*usual(Backward(at(2), gradients(300_000)), 4, flops=backward))
    found = clocks.estimates
    assert found.latency_s.value[0] == pytest.approx(LATENCY_S)
    assert 1 / found.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS, rel=0.01)
    assert 1 / found.downlink_s_per_bit.value[0] == pytest.approx(DOWN_BPS, rel=0.01)
    assert 1 / found.client_s_per_flop.value[0] == pytest.approx(FLOPS_PER_S, rel=1e-6)
    assert np.isinf(found.uplink_s_per_bit.relative_error[1])


def test_a_link_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.field.measured.MEMORY", 0.5)
    clocks = clocks_of()
    for _ in range(5):
        clocks.begin(np.ones(2, dtype=np.bool_))
        clocks.exchanged(*usual(Forward(at(1)), 300_000))
    uncertain = clocks.estimates.uplink_s_per_bit.relative_error[0]
    slow = exchange(Forward(at(1)), 300_000, 0.0, 8 * 300_000 / (UP_BPS / 20))
    clocks.begin(np.ones(2, dtype=np.bool_))
    clocks.exchanged(*slow)
    assert clocks.estimates.uplink_s_per_bit.relative_error[0] > 2 * uncertain  # something has happened
    for _ in range(6):
        clocks.begin(np.ones(2, dtype=np.bool_))
        clocks.exchanged(*slow)
    assert 1 / clocks.estimates.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS / 20, rel=0.15)


def test_layers_count_by_the_time_they_take() -> None:
    clocks = clocks_of()
    seconds = np.array([[1.0, 0.5, 0.5], [2.0, 3.0, 1.0]])
    clocks.layers_take({0: seconds, 1: 10 * seconds})
    whole = PROFILE.forward_flops.sum() + PROFILE.backward_flops.sum()
    assert clocks.profile.forward_flops.sum() + clocks.profile.backward_flops.sum() == pytest.approx(whole)
    np.testing.assert_allclose(clocks.profile.forward_flops, whole * seconds[0] / seconds.sum())
    np.testing.assert_allclose(clocks.estimates.client_s_per_flop.value * whole * BATCH, [8.0, 80.0])
    clocks.layers_take({0: np.zeros((2, 3)), 1: -seconds})  # a clock that doesn't run
    np.testing.assert_allclose(clocks.profile.forward_flops, whole * seconds[0] / seconds.sum())


def test_the_server_is_timed_too() -> None:
    clocks = clocks_of()
    flops = 3 * BATCH * (PROFILE.forward_flops[1:].sum() + PROFILE.backward_flops[1:].sum())
    clocks.server_pass([1, 1, 1], flops / 1e9)
    assert clocks.estimates.links().server_s_per_flop == pytest.approx(1e-9)


def test_stages_add_up_to_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("asfl.field.measured.time.monotonic", lambda: now[0])
    clocks = clocks_of(3)
    clocks.begin(np.array([True, True, False]))
    clocks.training_begins()
    grow = Grow(2, ModelVectors(*gradients(50_000), torch.zeros(0)))
    for client, end in ((0, 101.0), (1, 102.0)):
        clocks.exchanged(*exchange(grow, 0, 100.0, end, client))
        clocks.exchanged(*exchange(Forward(at(2)), 50_000, 102.0, end + 3.0, client, busy_s=1.0))
    now[0] = 106.0
    clocks.lost(1, Backward(at(2), ()), 105.0)
    now[0] = 109.0
    cost = charge(clocks)
    assert (cost.resplit_delay_s, cost.uplink_stage_delay_s, cost.server_stage_delay_s) == (2.0, 3.0, 4.0)
    assert cost.delay_s == 9.0
    loss = clocks.estimates.loss.value
    assert loss[1] > clocks.estimates.loss.value[0]
    assert loss[2] == clocks_of(3).estimates.loss.value[2]  # it wasn't asked


def test_energy_by_the_clock_or_by_a_meter() -> None:
    clocks = clocks_of(2, client_power_w=4.0)
    clocks.exchanged(*exchange(Ping(), 0, 0.0, 0.1, 1, energy_j=100.0))
    clocks.begin(np.ones(2, dtype=np.bool_))
    clocks.training_begins()
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, busy_s=2.5))
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, 1, busy_s=2.5, energy_j=107.5))
    cost = charge(clocks)
    assert cost.energy_j.tolist() == [4.0 * 2.5, 7.5]
    assert clocks.estimates.client_power_w.value[1] == pytest.approx(7.5 / 2.5)  # what it draws is learnt
    assert clocks.facts()["energy_reported"] == [0.0, 1.0]
    clocks.training_begins()
    clocks.exchanged(*exchange(Learn(at(3)), 0, 0.0, 3.0, 1, busy_s=2.5, energy_j=2.0))  # its process is a new one
    assert charge(clocks).energy_j[1] == 2.0


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda p: (float(p[0]), float(p[0] + p[1]))))


@given(spans)
def test_time_is_counted_once(found: list[tuple[float, float]]) -> None:
    seconds = np.arange(80)
    covered = np.zeros(80, dtype=np.bool_)
    for begin, end in found:
        covered |= (seconds >= begin) & (seconds < end)
    assert _covered(found) == covered.sum()


# ---------------------------------------------------------------------- estimates, against plain weighted means
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


@given(st.lists(st.booleans(), max_size=20), memories)
def test_losses(missed: list[bool], memory: float) -> None:
    estimate = LossEstimate(1)
    for one in missed:
        estimate.fade(memory)
        estimate.add(0, missed=one)
    weights = memory ** np.arange(len(missed))[::-1]
    expected = (weights[np.array(missed, bool)].sum() + PRIOR_LOSS) / (weights.sum() + 1)
    assert estimate.value[0] == pytest.approx(expected)


# ---------------------------------------------------------------------- what a client says of itself
def test_a_meter_that_leaps_costs_the_round_and_the_next_reading_is_a_beginning() -> None:
    clocks = clocks_of(4)

    def says(energy_j: float, at: float) -> None:
        clocks.exchanged(*exchange(Ping(), 0, at, at + 0.1, energy_j=energy_j))

    says(1e12, 0.0)  # since any fixed moment
    says(1e12 + 50.0, 1.0)
    with pytest.raises(WireError, match=r"energy_j: 4\.9e\+13 J more"):
        says(5e13, 2.0)
    says(5e13 + 10.0, 3.0)
    clocks.training_begins()
    assert clocks._energy_of_round()[0] == 0.0


def test_layers_that_took_longer_than_the_server_waited_are_not_believed() -> None:
    clocks = clocks_of(4)
    before, shape = clocks.profile.forward_flops, (2, clocks.profile.num_layers)

    def says(seconds: float) -> Any:
        answered: Future[Answer] = Future()
        answered.set_result(Probed(torch.zeros(0, dtype=torch.uint8), torch.full(shape, seconds, dtype=torch.float64)))
        return SimpleNamespace(trouble=None, generation=0, ask=lambda *_: answered)

    probe([says(1e5)], clocks, 1.0)
    assert clocks.profile.forward_flops is before
    probe([says(0.0), says(1e-12)], clocks, 1.0)
    assert clocks.profile.forward_flops is not before


def test_no_busy_time_makes_a_link_or_a_processor_impossible() -> None:
    clocks, octets = clocks_of(4), torch.zeros(1 << 20, dtype=torch.uint8)
    for busy_s in (0.0, 1e-300, 1.0, 1e6):
        clocks.exchanged(*seen(0, Probe(1 << 20), Probed(octets, busy_s=busy_s), 0.0, 1.0))
        clocks.exchanged(*seen(0, Forward(at(2)), Where(1, busy_s=busy_s), 0.0, 1.0))
    links = clocks.estimates.links()
    for found, most in ((links.uplink_bps, 1e14), (links.downlink_bps, 1e14), (1 / links.client_s_per_flop, 1e18)):
        assert np.isfinite(found).all()
        assert (found < most).all()
