"""What the server's clocks say: exchanges on links that are known exactly."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asfl.config import Network
from asfl.field.watch import Exchange, Watch, _covered
from asfl.profile import ModelProfile

PROFILE = ModelProfile(
    param_bits=np.array([1e4, 2e4, 3e4]),
    activation_bits=np.array([3e4, 2e4, 1e4]),
    forward_flops=np.array([1e6, 2e6, 3e6]),
    backward_flops=np.array([2e6, 4e6, 6e6]),
)
BATCH = 8
LATENCY_S, UP_BPS, DOWN_BPS, FLOPS_PER_S = 0.01, 2e6, 8e6, 5e8


def watch_over(clients: int = 2, **rules: float) -> Watch:
    return Watch(PROFILE, BATCH, clients, Network(**rules))


def exchange(op: str, up: int, down: int, *, cut: int | None = None, flops: float = 0.0, client: int = 0) -> Exchange:
    """As it takes on a link and a processor that are always the same."""
    busy_s = flops / FLOPS_PER_S
    took_s = LATENCY_S + 8 * up / UP_BPS + 8 * down / DOWN_BPS + busy_s
    sent_at = time.monotonic()
    return Exchange(client, op, cut, down, up, sent_at, sent_at + took_s, busy_s)


def test_rates_and_speed_are_found() -> None:
    watch = watch_over()
    forward, backward = 8 * PROFILE.client_forward_flops[2], 8 * PROFILE.client_backward_flops[2]
    for _ in range(8):
        watch.exchanged(exchange("ping", 0, 0))
        watch.exchanged(exchange("forward", 300_000, 0, cut=2, flops=forward))
        watch.exchanged(exchange("backward", 4, 300_000, cut=2, flops=backward))
    found = watch.estimates
    assert found.latency_s.value[0] == pytest.approx(LATENCY_S)
    assert 1 / found.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS, rel=0.01)
    assert 1 / found.downlink_s_per_bit.value[0] == pytest.approx(DOWN_BPS, rel=0.01)
    assert 1 / found.client_s_per_flop.value[0] == pytest.approx(FLOPS_PER_S, rel=1e-6)
    assert not found.uplink_s_per_bit.known[1]


def test_a_link_that_changes_is_followed() -> None:
    watch = watch_over(memory=0.5)
    for _ in range(5):
        watch.begin(np.ones(2, dtype=np.bool_))
        watch.exchanged(exchange("forward", 300_000, 0, cut=1))
    uncertain = watch.estimates.uplink_s_per_bit.relative_error[0]
    slow = Exchange(0, "forward", 1, 0, 300_000, 0.0, 8 * 300_000 / (UP_BPS / 20), 0.0)
    watch.begin(np.ones(2, dtype=np.bool_))
    watch.exchanged(slow)
    assert watch.estimates.uplink_s_per_bit.relative_error[0] > 2 * uncertain  # something has happened
    for _ in range(6):
        watch.begin(np.ones(2, dtype=np.bool_))
        watch.exchanged(slow)
    assert 1 / watch.estimates.uplink_s_per_bit.value[0] == pytest.approx(UP_BPS / 20, rel=0.15)


def test_layers_count_by_the_time_they_take() -> None:
    watch = watch_over()
    seconds = np.array([[1.0, 0.5, 0.5], [2.0, 3.0, 1.0]])
    watch.layers_take({0: seconds, 1: 10 * seconds})
    whole = PROFILE.forward_flops.sum() + PROFILE.backward_flops.sum()
    assert watch.profile.forward_flops.sum() + watch.profile.backward_flops.sum() == pytest.approx(whole)
    np.testing.assert_allclose(watch.profile.forward_flops, whole * seconds[0] / seconds.sum())
    np.testing.assert_allclose(watch.estimates.client_s_per_flop.value * whole * BATCH, [8.0, 80.0])
    watch.layers_take({0: np.zeros((2, 3)), 1: -seconds})  # a clock that doesn't run
    np.testing.assert_allclose(watch.profile.forward_flops, whole * seconds[0] / seconds.sum())


def test_the_server_is_timed_too() -> None:
    watch = watch_over()
    flops = 3 * BATCH * (PROFILE.forward_flops[1:].sum() + PROFILE.backward_flops[1:].sum())
    watch.server_pass(1, 3, flops / 1e9)
    assert watch.estimates.links(0.0).server_s_per_flop == pytest.approx(1e-9)


def test_stages_add_up_to_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("asfl.field.watch.time.monotonic", lambda: now[0])
    watch = watch_over(3)
    watch.begin(np.array([True, True, False]))
    watch.start()
    for client, end in ((0, 101.0), (1, 102.0)):
        watch.exchanged(Exchange(client, "grow", 2, 50_000, 0, 100.0, end, 0.0))
        watch.exchanged(Exchange(client, "forward", 2, 0, 50_000, 102.0, end + 3.0, 1.0))
    now[0] = 106.0
    watch.lost(1, "backward", 105.0)
    now[0] = 109.0
    cost = watch.stop(np.full(3, 0.25))
    assert (cost.resplit_delay_s, cost.uplink_stage_delay_s, cost.server_stage_delay_s) == (2.0, 3.0, 4.0)
    assert cost.delay_s == 9.0
    loss = watch.estimates.loss.value
    assert loss[1] > watch.estimates.loss.value[0]
    assert loss[2] == watch_over(3).estimates.loss.value[2]  # it wasn't asked


def test_energy_by_the_clock_or_by_a_meter() -> None:
    watch = watch_over(2, client_power_w=4.0)
    watch.exchanged(Exchange(1, "ping", None, 0, 0, 0.0, 0.1, 0.0, energy_j=100.0))
    watch.begin(np.ones(2, dtype=np.bool_))
    watch.start()
    watch.exchanged(Exchange(0, "learn", None, 0, 0, 0.0, 3.0, 2.5))
    watch.exchanged(Exchange(1, "learn", None, 0, 0, 0.0, 3.0, 2.5, energy_j=107.5, battery=0.4))
    cost = watch.stop(np.zeros(2))
    assert cost.energy_j.tolist() == [4.0 * 2.5, 7.5]
    assert watch.estimates.client_power_w.value[1] == pytest.approx(7.5 / 2.5)  # what it draws is learnt
    facts = watch.to_json()
    assert facts["energy_reported"] == [0.0, 1.0]
    assert facts["battery"] == [None, 0.4]
    watch.start()
    watch.exchanged(Exchange(1, "learn", None, 0, 0, 0.0, 3.0, 2.5, energy_j=2.0))  # its process is a new one
    assert watch.stop(np.zeros(2)).energy_j[1] == 2.0


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda p: (float(p[0]), float(p[0] + p[1]))))


@given(spans)
def test_time_is_counted_once(found: list[tuple[float, float]]) -> None:
    seconds = np.arange(80)
    covered = np.zeros(80, dtype=np.bool_)
    for begin, end in found:
        covered |= (seconds >= begin) & (seconds < end)
    assert _covered(found) == covered.sum()


def test_what_was_learnt_survives() -> None:
    before, again = watch_over(), watch_over()
    before.layers_take({0: np.array([[1.0, 0.5, 0.5], [2.0, 3.0, 1.0]])})
    before.exchanged(exchange("forward", 300_000, 0, cut=1))
    again.restore(before.arrays())
    np.testing.assert_array_equal(again.profile.forward_flops, before.profile.forward_flops)
    assert again.estimates.to_json() == before.estimates.to_json()
