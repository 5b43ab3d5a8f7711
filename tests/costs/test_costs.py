"""Costs against a plain-Python oracle written from the definitions, one client at a time."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from worlds import rounds, rounds_with_decisions, with_previous_cut

from asfl.config import Radio
from asfl.costs import modelled as costs
from asfl.costs.modelled import cost_of_all_cuts, epsl, local_loss, round_cost
from asfl.costs.round import CORRECTED, PRINTED, Decision, Round
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile


@dataclass
class Oracle:
    """The cost model in loops. `arrival[n]` is arrived (realised) or 1 − error rate (expected)."""

    round_: Round
    cuts: list[int]
    rb_count: list[float]
    power: list[float]
    arrival: list[float]

    def __post_init__(self) -> None:
        profile = self.round_.profile
        self.param_bits: list[float] = profile.param_bits.tolist()
        self.sizes: list[float] = profile.activation_bits.tolist()
        self.flops: dict[str, list[float]] = {
            "forward": profile.forward_flops.tolist(),
            "backward": profile.backward_flops.tolist(),
        }
        self.cpu_hz: list[float] = self.round_.cpu_hz.tolist()
        self.scheduled = [n for n in range(self.round_.num_clients) if self.rb_count[n] > 0]

    def up(self, n: int) -> float:
        radio, k = self.round_.radio, self.rb_count[n]
        noise = radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz
        if self.round_.equations.uplink_power == "shared":
            noise *= k
        snr = self.power[n] * self.round_.channel_gain[n] / noise
        return k * radio.rb_bandwidth_hz * math.log1p(snr) / math.log(2)

    def down(self, n: int) -> float:
        radio = self.round_.radio
        noise = radio.downlink_bandwidth_hz * radio.noise_psd_w_per_hz
        snr = radio.server_tx_power_w * self.round_.channel_gain[n] / noise
        return radio.downlink_bandwidth_hz * math.log1p(snr) / math.log(2)

    def client_bits(self, n: int) -> float:
        return sum(self.param_bits[: self.cuts[n]])

    def forward_s(self, n: int) -> float:
        work = sum(self.flops["forward"][: self.cuts[n]]) * self.round_.charged_samples
        return self.round_.compute.client_cycles_per_flop * work / self.cpu_hz[n]

    def backward_s(self, n: int) -> float:
        work = sum(self.flops["backward"][: self.cuts[n]]) * self.round_.charged_samples
        return self.round_.compute.client_cycles_per_flop * work / self.cpu_hz[n]

    def compute_j(self, seconds: float, n: int) -> float:
        return seconds * self.round_.compute.energy_coefficient * self.cpu_hz[n] ** 3

    def activation_bits(self, n: int) -> float:
        return self.round_.charged_samples * self.sizes[self.cuts[n] - 1]

    def gradient_bits(self, n: int) -> float:
        if self.round_.equations.gradient_bits == "activations":
            return self.activation_bits(n)
        return self.round_.charged_samples * self.param_bits[self.cuts[n]]

    def server_pass_s(self, n: int, which: str) -> float:
        flops = sum(self.flops[which][self.cuts[n] :]) * self.round_.charged_samples
        return self.round_.compute.server_cycles_per_flop * flops / self.round_.compute.server_hz

    def server_s(self) -> float:
        return sum(
            self.arrival[n] * (self.server_pass_s(n, "forward") + self.server_pass_s(n, "backward"))
            for n in self.scheduled
        )

    def moved_bits(self, n: int) -> float:
        before = self.round_.previous_cut
        return 0.0 if before is None else self.client_bits(n) - sum(self.param_bits[:before])

    def resplit_s(self, n: int) -> float:
        bits = self.moved_bits(n)
        return bits / self.down(n) if bits > 0 else -bits / self.up(n)

    def after_server_s(self, n: int) -> float:
        return self.arrival[n] * (self.gradient_bits(n) / self.down(n) + self.backward_s(n))

    def energy_j(self, n: int) -> float:
        if n not in self.scheduled:
            return 0.0
        signed = self.round_.equations.resplit_energy == "signed"
        moved = -self.moved_bits(n) if signed else max(-self.moved_bits(n), 0)
        sent_bits = moved + self.activation_bits(n)
        compute = self.compute_j(self.forward_s(n), n) + self.arrival[n] * self.compute_j(self.backward_s(n), n)
        return self.power[n] * sent_bits / self.up(n) + compute


def _oracle(round_: Round, decision: Decision, arrival: np.ndarray) -> Oracle:
    cuts = np.broadcast_to(decision.cut, round_.num_clients).tolist()
    return Oracle(round_, cuts, decision.rb_count.tolist(), decision.tx_power_w.tolist(), arrival.tolist())


def _close(value: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(value, float), np.asarray(expected, float), rtol=1e-7, atol=1e-300)


@given(rounds_with_decisions(), st.data())
def test_asfl_costs_are_the_oracle(case: tuple[Round, Decision], data: st.DataObject) -> None:
    round_, decision = case
    if data.draw(st.booleans()):
        round_ = replace(round_, equations=replace(round_.equations, resplit_energy="signed"))
    arrived = data.draw(st.none() | st.lists(st.booleans(), min_size=round_.num_clients, max_size=round_.num_clients))
    cost = round_cost(round_, decision, arrived)
    arrival = (1 - cost.packet_error_rate) if arrived is None else np.array(arrived, float)
    oracle = _oracle(round_, decision, arrival)
    active = oracle.scheduled
    concerned = range(round_.num_clients) if oracle.moved_bits(0) > 0 else active
    _close(cost.resplit_delay_s, max((oracle.resplit_s(n) for n in concerned), default=0))
    _close(
        cost.uplink_stage_delay_s,
        max((oracle.forward_s(n) + oracle.activation_bits(n) / oracle.up(n) for n in active), default=0),
    )
    _close(
        cost.server_stage_delay_s,
        oracle.server_s() + max((oracle.after_server_s(n) for n in active), default=0),
    )
    rounding_j = 1e-9 * float(np.abs(cost.resplit_energy_j).max())  # what is paid and what is spent may cancel
    expected_j = [oracle.energy_j(n) for n in range(round_.num_clients)]
    np.testing.assert_allclose(cost.energy_j, expected_j, rtol=1e-7, atol=rounding_j + 1e-300)
    _close(cost.delay_s, cost.resplit_delay_s + cost.uplink_stage_delay_s + cost.server_stage_delay_s)


@given(rounds_with_decisions())
def test_sfl_and_acc_sfl_exchange_the_client_model(case: tuple[Round, Decision]) -> None:
    """Model down before, up after the backward pass; with one cut per client this is ACC-SFL."""
    round_, decision = case
    last_cut = round_.profile.num_layers - 1
    cuts = np.array([1 + n % last_cut for n in range(round_.num_clients)])
    per_client = replace(decision, cut=cuts)
    cost = round_cost(round_, per_client, exchange=costs.ACC_SFL)
    oracle = _oracle(with_previous_cut(round_, None), per_client, 1 - cost.packet_error_rate)
    active = oracle.scheduled

    def model_down_s(n: int) -> float:
        return oracle.client_bits(n) / oracle.down(n)

    def model_up_s(n: int) -> float:
        return oracle.arrival[n] * oracle.client_bits(n) / oracle.up(n)

    _close(cost.resplit_delay_s, 0)
    _close(
        cost.delay_s,
        max(
            (model_down_s(n) + oracle.forward_s(n) + oracle.activation_bits(n) / oracle.up(n) for n in active),
            default=0,
        )
        + oracle.server_s()
        + max((oracle.after_server_s(n) + model_up_s(n) for n in active), default=0),
    )
    _close(
        cost.energy_j,
        [
            oracle.energy_j(n) + (oracle.power[n] * model_up_s(n) if n in active else 0)
            for n in range(round_.num_clients)
        ],
    )


@given(rounds_with_decisions(), st.integers(1, 4), st.booleans())
def test_clients_with_a_loss_of_their_own_wait_for_nothing(
    case: tuple[Round, Decision], each: int, aligned: bool
) -> None:
    """They go backward before they send, `each` times as often, through a head as well; models down and up."""
    round_, decision = case
    round_ = with_previous_cut(round_, None)
    cost = round_cost(round_, decision, exchange=local_loss(each, aligned=1 if aligned else 0))
    oracle, profile, samples = (
        _oracle(round_, decision, 1 - cost.packet_error_rate),
        round_.profile,
        round_.charged_samples,
    )
    of_cut, outputs = int(decision.cut) - 1, oracle.sizes[-1] / 32
    features = float(profile.groups_per_batch[of_cut]) or oracle.sizes[of_cut] / 32
    model_bits = oracle.client_bits(0) + 32 * outputs * (features + 1)
    head_flops = samples * (oracle.sizes[of_cut] / 32 + 2 * features * outputs)
    passes = each * 3 + (6 * costs.FITS if aligned else 0)  # a backward pass takes twice the forward

    def compute_s(n: int) -> float:
        of_head = round_.compute.client_cycles_per_flop * head_flops * passes / oracle.cpu_hz[n]
        return each * (oracle.forward_s(n) + oracle.backward_s(n)) + of_head

    def sent_s(n: int) -> float:
        return oracle.activation_bits(n) / oracle.up(n)

    def back_s(n: int) -> float:
        gradients_s = oracle.gradient_bits(n) / oracle.down(n) if aligned else 0.0
        return oracle.arrival[n] * (gradients_s + model_bits / oracle.up(n))

    active = oracle.scheduled
    before_s = [model_bits / oracle.down(n) + compute_s(n) + sent_s(n) for n in active]
    _close(cost.delay_s, max(before_s, default=0) + oracle.server_s() + max(map(back_s, active), default=0))
    for n in active:
        radio_s = sent_s(n) + oracle.arrival[n] * model_bits / oracle.up(n)
        _close(cost.energy_j[n], oracle.compute_j(compute_s(n), n) + oracle.power[n] * radio_s)


@given(rounds_with_decisions(), st.integers(0, 5))
def test_ampere_s_phases(case: tuple[Round, Decision], index: int) -> None:
    """Two rounds of FedAvg with the client model, two that only send, then the server alone."""
    round_, decision = case
    phases, apart = local_loss(3, phases=(2, 2)), replace(round_, previous_cut=None, index=index)
    arrived = decision.scheduled.astype(float)
    cost = round_cost(apart, decision, arrived, phases)
    one = round_cost(apart, decision, arrived, local_loss(1))
    server_s = 0.0 if index < 2 else 3 * one.server_delay_s
    _close(cost.server_delay_s, np.broadcast_to(server_s, len(arrived)))
    _close(cost.downlink_delay_s, 0 * arrived)
    if index < 2:
        _close(cost.client_forward_energy_j, one.client_forward_energy_j)
        _close(cost.uplink_delay_s, one.model_up_delay_s)
    elif index < 4:
        _close(cost.uplink_delay_s, one.uplink_delay_s)
        _close(cost.energy_j, one.client_forward_energy_j + one.uplink_energy_j)
    else:
        _close(cost.energy_j, 0 * arrived)
        _close(cost.delay_s, np.sum(cost.server_delay_s))


@given(rounds_with_decisions(), st.integers(1, 3))
def test_every_client_pays_for_its_own_mini_batch(case: tuple[Round, Decision], local_steps: int) -> None:
    """What it takes is what it would take if everybody had its number of samples."""
    round_, decision = replace(case[0], local_steps=local_steps), case[1]
    batch, arrived = 1 + np.arange(round_.num_clients), np.ones(round_.num_clients)
    for exchange in (costs.ASFL, costs.SFL, costs.FEDAVG):
        found = round_cost(round_, replace(decision, batch=batch), arrived, exchange)
        for n in range(round_.num_clients):
            alike = replace(round_, charged_samples=float(batch[n] * local_steps))
            cost = round_cost(alike, decision, arrived, exchange)
            _close(found.energy_j[n], cost.energy_j[n])
            for part in ("client_forward", "uplink", "server", "downlink", "client_backward"):
                _close(getattr(found, f"{part}_delay_s")[n], getattr(cost, f"{part}_delay_s")[n])
    same = np.full(round_.num_clients, 7)
    usual = round_cost(replace(round_, charged_samples=7.0 * local_steps), decision, exchange=costs.SFL)
    _close(round_cost(round_, replace(decision, batch=same), exchange=costs.SFL).delay_s, usual.delay_s)


@given(rounds_with_decisions())
def test_split_learning_takes_turns(case: tuple[Round, Decision]) -> None:
    """The delay of SL is the sum of rounds in which only one client takes part."""
    round_, decision = case
    together = round_cost(round_, decision, exchange=costs.SL)
    alone = []
    for client in range(round_.num_clients):
        only = np.where(np.arange(round_.num_clients) == client, decision.rb_count, 0.0)
        alone.append(round_cost(round_, replace(decision, rb_count=only), exchange=costs.SL))
    _close(together.delay_s, sum(cost.delay_s for cost in alone))
    _close(together.energy_j, sum(cost.energy_j for cost in alone))


@given(rounds_with_decisions(), st.booleans())
def test_fedavg_trains_the_whole_model_on_the_client(case: tuple[Round, Decision], lost: bool) -> None:
    round_, decision = case
    arrived = np.zeros(round_.num_clients) if lost else np.ones(round_.num_clients)
    cost = round_cost(round_, decision, arrived, exchange=costs.FEDAVG)
    whole = replace(decision, cut=round_.profile.num_layers)
    oracle = _oracle(round_, whole, arrived)
    bits = round_.profile.param_bits.sum()
    active = oracle.scheduled
    _close(
        cost.delay_s,
        max(
            (bits / oracle.down(n) + oracle.forward_s(n) + oracle.backward_s(n) + bits / oracle.up(n) for n in active),
            default=0,
        ),
    )
    for n in active:
        compute = oracle.compute_j(oracle.forward_s(n) + oracle.backward_s(n), n)
        _close(cost.energy_j[n], compute + decision.tx_power_w[n] * bits / oracle.up(n))


@given(rounds_with_decisions(), st.floats(0, 1), st.data())
def test_epsl_aggregates_a_share_of_the_positions(
    case: tuple[Round, Decision], share: float, data: st.DataObject
) -> None:
    round_, decision = case
    flags = st.lists(st.booleans(), min_size=round_.num_clients, max_size=round_.num_clients)
    arrived = np.array(data.draw(flags), float)
    cost = round_cost(round_, decision, arrived, exchange=epsl(share))
    oracle = _oracle(round_, decision, arrived * decision.scheduled)
    there = [n for n in oracle.scheduled if arrived[n]]
    expected = 0.0
    if there:
        one = there[0]
        passes = share + (1 - share) * len(there)
        server = len(there) * oracle.server_pass_s(one, "forward") + passes * oracle.server_pass_s(one, "backward")
        broadcast = max(share * oracle.gradient_bits(n) / oracle.down(n) for n in there)
        own = max((1 - share) * oracle.gradient_bits(n) / oracle.down(n) + oracle.backward_s(n) for n in there)
        expected = server + broadcast + own
    _close(cost.server_stage_delay_s, expected)
    plain = round_cost(round_, decision, arrived)
    _close(cost.energy_j, plain.energy_j)
    _close(round_cost(round_, decision, arrived, exchange=epsl(0)).delay_s, plain.delay_s)


@given(rounds_with_decisions())
def test_all_cuts_at_once_are_the_single_cuts(case: tuple[Round, Decision]) -> None:
    round_, decision = case
    for exchange in (costs.ASFL, costs.SFL, costs.SL, epsl(0.4)):
        every = cost_of_all_cuts(round_, decision.rb_count, decision.tx_power_w, exchange=exchange)
        assert every.delay_s.shape == (round_.profile.num_layers - 1,)
        assert every.energy_j.shape == (round_.profile.num_layers - 1, round_.num_clients)
        for index, cut in enumerate(round_.profile.cuts.tolist()):
            single = round_cost(round_, replace(decision, cut=cut), exchange=exchange)
            _close(every.delay_s[index], single.delay_s)
            _close(every.energy_j[index], single.energy_j)


@given(rounds_with_decisions())
def test_laws_of_costs(case: tuple[Round, Decision]) -> None:
    """Energy ≥ 0 in every reading; staying put moves nothing; whoever sits out costs nothing, and delays nobody but by
    receiving layers when the cut grows.
    """
    round_, decision = case
    cost = round_cost(round_, decision)
    assert (cost.energy_j >= 0).all()
    out = ~decision.scheduled
    assert (cost.energy_j[out] == 0).all()
    assert (cost.packet_error_rate[out] == 1).all()
    only = np.flatnonzero(decision.scheduled)
    if only.size:
        smaller = replace(
            round_,
            path_gain=round_.path_gain[only],
            channel_gain=round_.channel_gain[only],
            cpu_hz=round_.cpu_hz[only],
        )
        without = Decision(decision.cut, decision.rb_count[only], decision.tx_power_w[only])
        among_them = round_cost(smaller, without)
        _close(among_them.uplink_stage_delay_s, cost.uplink_stage_delay_s)
        _close(among_them.server_stage_delay_s, cost.server_stage_delay_s)
        if round_.previous_cut is not None and decision.cut > round_.previous_cut:
            assert among_them.resplit_delay_s <= cost.resplit_delay_s
        else:
            _close(among_them.resplit_delay_s, cost.resplit_delay_s)
    stay = round_cost(with_previous_cut(round_, int(decision.cut)), decision)
    assert stay.resplit_delay_s == 0
    _close(stay.delay_s, round_cost(with_previous_cut(round_, None), decision).delay_s)


@given(rounds(), st.integers(2, 5))
def test_local_steps_multiply_all_but_the_resplit(round_: Round, steps: int) -> None:
    count, power = np.ones(round_.num_clients), np.full(round_.num_clients, round_.radio.max_tx_power_w)
    decision = Decision(1, count, power)
    one = round_cost(round_, decision)
    many = round_cost(replace(round_, charged_samples=steps * round_.charged_samples), decision)
    _close(many.resplit_delay_s, one.resplit_delay_s)
    _close(many.uplink_stage_delay_s, steps * one.uplink_stage_delay_s)
    _close(many.server_stage_delay_s, steps * one.server_stage_delay_s)
    _close(many.energy_j - many.resplit_energy_j, steps * (one.energy_j - one.resplit_energy_j))


def test_expected_arrivals_are_the_mean_of_realised_ones() -> None:
    """Server time and energy are linear in arrivals, so their mean over drawn arrivals is the expectation."""
    round_ = _paper_round(previous_cut=6)
    decision = Decision(4, np.array([2.0, 3.0, 3.0]), np.array([0.5, 1.0, 1.5]))
    expected = round_cost(round_, decision)
    assert 0.01 < expected.packet_error_rate.max() < 0.99
    rng = np.random.default_rng(3)
    draws = [round_cost(round_, decision, rng.random(3) >= expected.packet_error_rate).energy_j for _ in range(4000)]
    spread = np.std(draws, axis=0) / math.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - expected.energy_j) <= 5 * spread + 1e-12).all()


def test_the_two_readings_differ_in_their_two_switches() -> None:
    decision = Decision(4, np.array([2.0, 3.0, 3.0]), np.array([0.5, 1.0, 1.5]))
    corrected = round_cost(_paper_round(), decision)
    printed = round_cost(replace(_paper_round(), equations=PRINTED), decision)
    only_power = round_cost(replace(_paper_round(), equations=replace(CORRECTED, uplink_power="each_rb")), decision)
    only_bits = round_cost(replace(_paper_round(), equations=replace(CORRECTED, gradient_bits="next_layer")), decision)
    assert (printed.uplink_rate_bps > corrected.uplink_rate_bps).all()
    _close(only_power.uplink_rate_bps, printed.uplink_rate_bps)
    _close(only_power.downlink_delay_s, corrected.downlink_delay_s)
    _close(only_bits.uplink_rate_bps, corrected.uplink_rate_bps)
    _close(only_bits.downlink_delay_s, printed.downlink_delay_s)


def test_growing_costs_the_downlink_and_shrinking_the_uplink() -> None:
    round_ = _paper_round(previous_cut=6)
    count, power = np.array([2.0, 3.0, 3.0]), np.array([0.5, 1.0, 1.5])
    grow, shrink = (round_cost(round_, Decision(cut, count, power)) for cut in (8, 4))
    assert (grow.resplit_energy_j == 0).all()
    assert (shrink.resplit_energy_j > 0).all()
    bits = round_.profile.param_bits
    _close(grow.resplit_delay_s, max(bits[6:8].sum() / grow.downlink_rate_bps))
    _close(shrink.resplit_delay_s, max(bits[4:6].sum() / shrink.uplink_rate_bps))


def test_layers_that_come_down_are_charged_to_whoever_receives_them() -> None:
    """(7) is a maximum over all clients: a growing cut reaches those without a resource block, too."""
    round_ = _paper_round(previous_cut=6)
    decision = Decision(8, np.array([4.0, 4.0, 0.0]), np.array([1.0, 1.0, 0.0]))
    cost, moved = round_cost(round_, decision), round_.profile.param_bits[6:8].sum()
    assert cost.downlink_rate_bps.argmin() == 2
    _close(cost.resplit_delay_s, moved / cost.downlink_rate_bps[2])
    _close(cost.resplit_delay_by_client_s, moved / cost.downlink_rate_bps)
    assert cost.energy_j[2] == 0
    unreachable = replace(round_, channel_gain=round_.channel_gain * [1, 1, 0])
    _close(round_cost(unreachable, decision).resplit_delay_s, moved / cost.downlink_rate_bps[1])


@given(rounds_with_decisions(), st.sampled_from([costs.ASFL, costs.SFL, costs.SL, costs.FEDAVG]), st.data())
def test_an_outage_ends_a_stage_as_a_stopwatch_would(
    case: tuple[Round, Decision], exchange: costs.ExchangeRules, data: st.DataObject
) -> None:
    """Client by client and second by second: what is done when the stage ends, at which power; who is lost."""
    round_, decision = case
    clients = round_.num_clients
    arrived = data.draw(st.lists(st.booleans(), min_size=clients, max_size=clients))
    plain = round_cost(round_, decision, arrived, exchange)
    longest = float(np.max(plain.uplink_stage_delay_s))
    end = data.draw(st.floats(0.05, 1.5)) * max(longest, 1e-6)
    cost = round_cost(replace(round_, outage_s=end), decision, arrived, exchange)
    everybody = round_cost(round_, decision, [True] * clients, exchange)  # what stage 3 takes if all arrive
    add = sum if exchange.in_sequence else max
    resplits, stage2, stage3, lost = [], [], [], []
    for n in range(clients):
        compute_w = round_.client_compute_w[n]
        resplit = float(plain.resplit_delay_by_client_s[n])
        sending = resplit > 0 and plain.resplit_energy_j[n] > 0
        order = ["model_down", "client_forward", "uplink"]
        if exchange.full_local_model:
            order = ["model_down", "client_forward", "client_backward", "uplink"]
        times = {part: float(getattr(plain, f"{part}_delay_s")[n]) for part in order}
        clock, spent = 0.0, decision.tx_power_w[n] * min(resplit, end) if sending else 0.0
        for part, seconds in times.items() if resplit <= end else ():
            taken = min(seconds, end - clock)
            clock += taken
            spent += taken * {"model_down": 0.0, "uplink": decision.tx_power_w[n]}.get(part, compute_w)
        late = resplit > end or sum(times.values()) > end
        tail = {
            part: float(getattr(everybody, f"{part}_delay_s")[n])
            for part in ("downlink", "client_backward", "model_up")
        }
        tail_clock = 0.0
        if arrived[n] and not late and not exchange.full_local_model:
            for part, seconds in tail.items():
                taken = min(seconds, end - tail_clock)
                tail_clock += taken
                spent += taken * {"downlink": 0.0, "model_up": decision.tx_power_w[n]}.get(part, compute_w)
        late = late or (not exchange.full_local_model and sum(tail.values()) > end)
        resplits.append(min(resplit, end))
        stage2.append(clock)
        stage3.append(tail_clock)
        lost.append(late)
        np.testing.assert_allclose(cost.energy_j[n], spent if decision.scheduled[n] else 0.0, rtol=1e-6, atol=1e-12)
    _close(cost.resplit_delay_s, max(resplits, default=0.0))
    np.testing.assert_allclose(cost.uplink_stage_delay_s, add(stage2), rtol=1e-6)
    tails = cost.server_stage_delay_s - cost.server_delay_s.sum()
    np.testing.assert_allclose(tails, add(stage3), rtol=1e-6, atol=1e-9 * float(cost.delay_s) + 1e-12)
    expected = np.where(lost, 1.0, plain.packet_error_rate)
    served = decision.scheduled
    np.testing.assert_array_equal(cost.packet_error_rate[served], expected[served])


@pytest.mark.parametrize(("gain", "power"), [(0.0, 1.0), (1e-12, 0.0)])
@pytest.mark.parametrize("exchange", [costs.ASFL, costs.SFL, costs.SL, costs.FEDAVG, epsl(0.5)])
def test_a_dead_link_takes_forever_but_is_never_nan(gain: float, power: float, exchange: costs.ExchangeRules) -> None:
    column = np.array([1.0, 2.0, 3.0])
    profile = ModelProfile(column, column, column, column)
    for known in (True, False):
        round_ = Round(
            profile,
            radio=Radio(),
            charged_samples=8,
            path_gain=np.array([1e-12, 1e-12]),
            channel_gain=np.array([1e-12, gain]),
            cpu_hz=np.array([1e9, 1e9]),
            gain_is_known=known,
            previous_cut=2,
        )
        cost = round_cost(round_, Decision(1, np.array([4.0, 4.0]), np.array([1.0, power])), exchange=exchange)
        assert cost.delay_s == math.inf
        assert not np.isnan(cost.energy_j).any()
        assert cost.energy_j[1] == math.inf if power else cost.energy_j[1] < 1


def _paper_round(previous_cut: int | None = None) -> Round:
    path_gain = 1e-3 * np.array([200.0, 350.0, 480.0]) ** -4
    return Round(
        load_profile("vgg19-cifar100"),
        path_gain=path_gain,
        channel_gain=path_gain,
        cpu_hz=np.array([1.0e9, 1.3e9, 1.6e9]),
        previous_cut=previous_cut,
    )
