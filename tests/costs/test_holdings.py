"""What averages, bits and clients that are brought up to date on demand cost: loops over clients and layers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from worlds import rounds_with_decisions

from asfl.costs.modelled import ASFL, FEDAVG, ON_DEMAND, SFL, ExchangeRules, epsl, round_cost
from asfl.costs.round import Decision, Holdings, Overheads, Round

BITS = (32, 16, 8, 4)


@st.composite
def on_demand(draw: st.DrawFn) -> tuple[Round, Decision]:
    """A round in the middle of a run, and a decision with bits and an average."""
    round_, decision = draw(rounds_with_decisions())
    clients, layers = round_.num_clients, round_.profile.num_layers
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    owed = rng.choice([0.0, 4.0, 20.0, 32.0], (clients, layers))
    holdings = Holdings(owed, rng.random(layers) < 0.5)
    synced = draw(st.integers(0, int(decision.cut)))
    bits = rng.choice(BITS, clients)
    of_layers, of_batches, of_samples = rng.integers(0, 99, (3, layers)).astype(float)
    profile = replace(round_.profile, param_groups=of_layers, groups_per_batch=of_batches, groups_per_sample=of_samples)
    round_ = replace(round_, holdings=holdings, profile=profile)
    return round_, replace(decision, synced=synced, bits=bits)


@given(on_demand(), st.booleans())
def test_every_bit_that_crosses_is_charged(case: tuple[Round, Decision], realised: bool) -> None:
    round_, decision = case
    profile, holdings, cut = round_.profile, round_.holdings, int(decision.cut)
    assert holdings is not None
    arrived = np.arange(round_.num_clients) % 2 if realised else None
    cost = round_cost(round_, decision, arrived, ON_DEMAND)
    arrival = (1 - cost.packet_error_rate) if arrived is None else arrived
    bits = np.broadcast_to(decision.bits, round_.num_clients)
    stage = np.zeros((3, round_.num_clients))
    for n in np.flatnonzero(decision.scheduled):
        up, down, precision = cost.uplink_rate_bps[n], cost.downlink_rate_bps[n], bits[n] / 32
        beside = 64 if bits[n] < 32 else 0  # a low and a step for each group
        fetched = 0.0
        for m in range(cut):
            owed = holdings.stale_bits[n, m]
            fetched += owed / 32 * profile.param_bits[m] + (64 * profile.param_groups[m] if 0 < owed < 32 else 0)
        sent = 0.0
        if round_.previous_cut is not None:
            for m in range(cut, round_.previous_cut):
                if holdings.diverged[m] and holdings.stale_bits[n, m] == 0:
                    sent += profile.param_bits[m]
        averaged = profile.param_bits[: decision.synced].sum() * precision
        averaged += beside * profile.param_groups[: decision.synced].sum()
        activations = round_.charged_samples * profile.activation_bits[cut - 1] * precision
        activations += beside * profile.groups_per_batch[cut - 1] * round_.local_steps
        activations += beside * profile.groups_per_sample[cut - 1] * round_.charged_samples
        gradients = activations
        if round_.equations.gradient_bits == "next_layer":
            gradients = round_.charged_samples * profile.param_bits[cut] * precision
        samples = round_.charged_samples
        forward = samples * profile.forward_flops[:cut].sum() * round_.client_s_per_flop[n]
        backward = samples * profile.backward_flops[:cut].sum() * round_.client_s_per_flop[n]
        stage[0, n] = sent / up
        stage[1, n] = fetched / down + forward + activations / up
        stage[2, n] = arrival[n] * (gradients / down + backward + averaged / up)
        watts = round_.client_compute_w[n]
        energy = decision.tx_power_w[n] * (sent + activations + arrival[n] * averaged) / up
        energy += watts * (forward + arrival[n] * backward)
        np.testing.assert_allclose(cost.energy_j[n], energy, rtol=1e-7)
    server = cost.server_delay_s.sum()
    np.testing.assert_allclose(cost.delay_s, stage.max(axis=1).sum() + server, rtol=1e-7)


@given(on_demand(), st.sampled_from([None, 0.05]), st.sampled_from([2, 10, 257]), st.integers(0, 10**6))
def test_what_overheads_add(case: tuple[Round, Decision], share: float | None, classes: int, seed: int) -> None:
    """Client by client and layer by layer: the bits with overheads are those without, and the lines of the table."""
    round_, decision = case
    rng, layers, before = np.random.default_rng(seed), round_.profile.num_layers, round_.previous_cut
    statistics, outputs = rng.integers(0, 9999, layers).astype(float), round_.profile.activation_bits.copy()
    outputs[-1] = 32 * classes
    profile = replace(round_.profile, statistic_bits=statistics, activation_bits=outputs)
    owed = rng.choice([0.0, 4.0, 20.0, 32.0], (round_.num_clients, layers))
    missed = np.where((owed > 0) & (owed < 32), rng.integers(1, 5, owed.shape), 0.0)
    holdings = Holdings(owed, rng.random(layers) < 0.5, missed)
    free = replace(round_, profile=profile, holdings=holdings)
    charged = replace(free, equations=replace(free.equations, overheads=Overheads(True, share)))
    cut, synced, served = int(decision.cut), int(decision.synced), np.flatnonzero(decision.scheduled)
    bits, everybody = np.broadcast_to(decision.bits, round_.num_clients), np.ones(round_.num_clients)

    def added(part: str, exchange: ExchangeRules, n: int, *, down: bool = False, on_demand: bool = True) -> float:
        rounds = (charged, free) if on_demand else (replace(charged, holdings=None), replace(free, holdings=None))
        with_, without = (round_cost(one, decision, everybody, exchange) for one in rounds)
        rate = with_.downlink_rate_bps[n] if down else with_.uplink_rate_bps[n]
        return float((getattr(with_, part)[n] - getattr(without, part)[n]) * rate)

    for n in served.tolist():
        few = bits[n] < 32
        labels = round_.charged_samples * (16 if classes > 256 else 8) + 32 * few * round_.local_steps
        apart = sum(profile.param_bits[m] for m in range(synced, cut))
        report = 32 + ((cut - synced) * (64 * 16 + 32) if share is None else share * apart)
        fetched = 0.0
        for m in range(cut):
            if owed[n, m] > 0:
                once, scales = owed[n, m] / 32 * profile.param_bits[m], 64 * profile.param_groups[m]
                instead = once if owed[n, m] == 32 else min(once + missed[n, m] * scales, profile.param_bits[m])
                fetched += statistics[m] + instead - once - (scales if owed[n, m] < 32 else 0)
        rates = round_cost(free, decision, everybody, ASFL)
        biggest = 1e-6 * (profile.param_bits.sum() + round_.charged_samples * profile.activation_bits.max() + 1)
        close = {"rel": 1e-6, "abs": biggest}
        assert np.isfinite(rates.uplink_rate_bps[n])
        reporting = replace(ON_DEMAND, reports=True)
        assert added("uplink_delay_s", ON_DEMAND, n) == pytest.approx(labels, **close)
        assert added("downlink_delay_s", ON_DEMAND, n, down=True) == pytest.approx(0, **close)
        assert added("model_up_delay_s", ON_DEMAND, n) == pytest.approx(statistics[:synced].sum(), **close)
        assert added("model_up_delay_s", reporting, n) == pytest.approx(statistics[:synced].sum() + report, **close)
        assert added("model_down_delay_s", ON_DEMAND, n, down=True) == pytest.approx(fetched, **close)
        for way, down in (("model_up_delay_s", False), ("model_down_delay_s", True)):
            assert added(way, SFL, n, down=down) == pytest.approx(statistics[:cut].sum(), **close)
        assert added("uplink_delay_s", FEDAVG, n) == pytest.approx(statistics.sum(), **close)  # labels stay
        assert added("model_up_delay_s", epsl(0.5), n, on_demand=False) == pytest.approx(
            statistics[:synced].sum(), **close
        )
        if before is not None:
            first, last = sorted((before, cut))
            part, down = "resplit_delay_by_client_s", cut > before
            found = added(part, ASFL, n, down=down, on_demand=False)
            assert found == pytest.approx(statistics[first:last].sum(), **close)


def test_scales_of_every_missed_average_are_counted() -> None:
    everybody, here = np.ones(3), np.array([True, True, False])
    state, decision = Holdings.fresh(3, 4), Decision(2, everybody, everybody, bits=4, synced=2)
    for times in (1, 2, 3):
        state = state.after(decision, here, trained=True)
        assert state.missed.tolist() == [[1, 1, 0, 0]] * 2 + [[times, times, 0, 0]]
    state = state.after(replace(decision, bits=32), here, trained=True)
    assert state.missed[2].tolist() == [3, 3, 0, 0]
    assert state.stale_bits[2].tolist() == [32, 32, 32, 32]
    assert state.after(replace(decision, synced=0), everybody > 0, trained=True).missed.tolist() == [[0] * 4] * 3


@given(rounds_with_decisions(), st.sampled_from(BITS))
@settings(max_examples=30)
def test_all_averaged_every_round_is_split_fed(case: tuple[Round, Decision], bits: int) -> None:
    """Whoever took part in the last round, averaged whole, owes itself that average: SplitFed's model down and up."""
    round_, decision = case
    cut, clients, layers = int(decision.cut), round_.num_clients, round_.profile.num_layers
    decision = replace(decision, synced=cut, bits=bits)
    before = Holdings.fresh(clients, layers).after(
        replace(decision, rb_count=np.ones(clients)), np.ones(clients, dtype=bool), trained=True
    )
    here = replace(round_, holdings=before, previous_cut=cut)
    ours, theirs = round_cost(here, decision, None, ON_DEMAND), round_cost(round_, decision, None, SFL)
    np.testing.assert_allclose(ours.delay_s, theirs.delay_s, rtol=1e-9)
    np.testing.assert_allclose(ours.energy_j, theirs.energy_j, rtol=1e-9)


def test_what_a_client_owes_itself() -> None:
    everybody, cut = np.ones(3), 2
    decision = Decision(cut, everybody, everybody, bits=8, synced=0)
    here = np.array([True, True, False])
    one = Holdings.fresh(3, 4).after(decision, here, trained=True)
    assert one.stale_bits.tolist() == [[0, 0, 32, 32]] * 3  # the server trained what is behind the cut
    assert one.diverged.tolist() == [True, True, False, False]
    two = one.after(replace(decision, synced=1), here, trained=True)
    assert two.stale_bits.tolist() == [[8, 0, 32, 32]] * 3  # an average at 8 bits, to be received
    assert two.diverged.tolist() == [False, True, False, False]
    three = two.after(replace(decision, synced=1), here, trained=True)
    assert three.stale_bits[:, 0].tolist() == [8, 8, 16]  # the last one has missed two
    assert three.after(decision, here, trained=False).stale_bits.tolist() == [
        [0, 0, 32, 32],
        [0, 0, 32, 32],
        [16, 0, 32, 32],
    ]
    deeper = three.after(replace(decision, cut=3), np.ones(3, dtype=bool), trained=True)
    assert deeper.stale_bits.tolist() == [[0, 0, 0, 32]] * 3
    assert deeper.after(replace(decision, cut=1), here, trained=True).diverged.tolist() == [True, False, False, False]
