"""Delay and energy of a round: §II-B of the paper, (6)–(21), and what each baseline pays besides.

One function serves a single cut, all cuts at once and one cut per client, because the cut only selects entries of
the profile's prefix sums: a `cut` of shape [C, 1] gives costs of shape [C, N]. *Expected* costs replace "arrived" by
1 − packet_error_rate, which is what an optimiser sees; *realised* costs take what happened.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.crossing import activation_bits, label_bits, layer_bits, moving_bits, prefix_sums, report_bits
from asfl.costs.decision import Decision
from asfl.costs.round import Round

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ExchangeRules:
    """How a scheme's round differs from ASFL's: in what is exchanged, so in what it costs and in how it trains."""

    exchanges_client_model: bool = False
    """The client model comes down before and goes up after every round (SFL, ACC-SFL, SL) instead of moving only the
    layers between two cuts. A client starts as soon as it has its model, and sends it up when its backward pass is
    done; a client that lost its packet has nothing new to send up."""
    in_sequence: bool = False
    """Clients take turns, so their delays add up (SL)."""
    full_local_model: bool = False
    """No cut: the whole model is trained on the client and goes down and up as one packet (FedAvg)."""
    central: bool = False
    """No clients at all: one model trained where all the data is, which costs nothing here."""
    aggregated_share: float = 0.0
    """EPSL's φ: this share of the sample positions is averaged over clients before the server's backward pass, and
    its activation gradient is broadcast."""

    mixes: bool = False
    """The server steps with every mini-batch, mixed from all clients' (`asfl.train.steps`): this costs nothing more."""
    on_demand: bool = False
    """A client receives what changed when it takes part, instead of all clients at once (`asfl.costs.crossing`)."""
    reports: bool = False
    """Decisions need to know how far client sides have drifted apart, so clients that have learnt report it."""

    @property
    def keeps_client_sides(self) -> bool:
        """Whether each client keeps its own side, which moves only when the cut does."""
        return not (self.exchanges_client_model or self.full_local_model)


ASFL = ExchangeRules(reports=True)
ON_DEMAND = ExchangeRules(on_demand=True)
CENTRAL = ExchangeRules(full_local_model=True, central=True)
FEDAVG = ExchangeRules(full_local_model=True)
SL = ExchangeRules(exchanges_client_model=True, in_sequence=True)
SFL = ExchangeRules(exchanges_client_model=True)
ACC_SFL = SFL


def epsl(aggregated_share: float) -> ExchangeRules:
    return ExchangeRules(aggregated_share=aggregated_share)


@dataclass(frozen=True, eq=False)
class RoundCost:
    """What a round costs. Parts have shape [..., N], totals [...]; energies are joules, delays seconds.

    A client without a resource block has 0 everywhere and is left out of every maximum but one: layers that come down
    when the cut grows go to all clients that can be reached, (7). Where a stage would take a client longer than
    `Round.outage_s`, it ends for that client then: times and energies are those until then, and its packet is lost.
    """

    # Parts of the delay, per client.
    resplit_delay_by_client_s: Floats
    """Layers between the two cuts, down when the cut grows, up when it shrinks: (6)."""
    model_down_delay_s: Floats
    """Client model to the client, for schemes that exchange it every round."""
    client_forward_delay_s: Floats
    """(8)."""
    uplink_delay_s: Floats
    """Activations, or FedAvg's model: (9)."""
    server_delay_s: Floats
    """The server's forward and backward pass for this client: a client's share of (11) + (12)."""
    downlink_delay_s: Floats
    """Gradient of the activations: (13)."""
    client_backward_delay_s: Floats
    """(14)."""
    model_up_delay_s: Floats
    """Client model to the server, for schemes that exchange it every round; layers that are averaged; a report."""

    # Parts of the energy, per client.
    resplit_energy_j: Floats
    """Layers sent up when the cut shrinks; (17) without its sign error, so never negative (unless `signed`)."""
    client_forward_energy_j: Floats
    """(18)."""
    uplink_energy_j: Floats
    """(19)."""
    client_backward_energy_j: Floats
    """(20)."""
    model_up_energy_j: Floats

    # Stages and totals.
    resplit_delay_s: Floats
    """T^S1: (7)."""
    uplink_stage_delay_s: Floats
    """T^S2: (10), after the client model came down in schemes that exchange it."""
    server_stage_delay_s: Floats
    """T^S3: (15)."""

    in_time: NDArray[np.bool_]
    """Who finishes every stage before an outage ends it, if its packet arrives."""
    packet_error_rate: Floats
    """[N], or [..., N] if rounds can end by an outage: 1 for a client that isn't done in time."""
    uplink_rate_bps: Floats
    """[N]"""
    downlink_rate_bps: Floats
    """[N]"""

    delay_s: Floats = field(init=False)
    """(16), [...]."""
    energy_j: Floats = field(init=False)
    """(21), [..., N]."""

    def __post_init__(self) -> None:
        delay = self.resplit_delay_s + self.uplink_stage_delay_s + self.server_stage_delay_s
        energy = (
            self.resplit_energy_j
            + self.client_forward_energy_j
            + self.uplink_energy_j
            + self.client_backward_energy_j
            + self.model_up_energy_j
        )
        object.__setattr__(self, "delay_s", delay)
        object.__setattr__(self, "energy_j", energy)


def round_cost(
    round_: Round, decision: Decision, arrived: ArrayLike | None = None, exchange: ExchangeRules = ASFL
) -> RoundCost:
    """Cost of one decision: expected if `arrived` is None, else realised with these arrivals [N]."""
    samples = round_.charged_samples if decision.batch is None else decision.batch * round_.local_steps
    plan = Plan(*map(np.asarray, (decision.cut, decision.synced, decision.bits, samples)))
    return _cost(round_, plan, decision.rb_count, decision.tx_power_w, arrived, exchange)


def in_time(round_: Round, decision: Decision, exchange: ExchangeRules = ASFL) -> NDArray[np.bool_]:
    """[N] who would finish every stage before an outage ends it."""
    if not np.isfinite(round_.outage_s):
        return np.ones(round_.num_clients, dtype=np.bool_)
    return round_cost(round_, decision, np.ones(round_.num_clients), exchange).in_time


def cost_of_all_cuts(
    round_: Round,
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    arrived: ArrayLike | None = None,
    exchange: ExchangeRules = ASFL,
    bits: int = BITS_PER_VALUE,
) -> RoundCost:
    """Costs of every cut 1 … M−1 in one call, along the leading axis: entry i is cut i + 1."""
    plan = Plan(round_.profile.cuts[:, None], *map(np.asarray, (0, bits, round_.charged_samples)))
    return _cost(round_, plan, rb_count, tx_power_w, arrived, exchange)


class Plan(NamedTuple):
    """What crosses: for all clients alike (leading axes are candidates), or for each [N]."""

    cut: Ints
    synced: Ints
    bits: Ints
    """Of a value."""
    samples: Floats
    """Of all mini-batches of the round."""


def _cost(
    round_: Round,
    plan: Plan,
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    arrived: ArrayLike | None,
    exchange: ExchangeRules,
) -> RoundCost:
    count, power = np.asarray(rb_count, float), np.asarray(tx_power_w, float)
    prices = _Prices.of(round_, count, power, arrived)
    if exchange.full_local_model:
        return _local_training_cost(round_, plan, prices)
    return _split_cost(round_, plan, prices, exchange)


@dataclass(frozen=True, eq=False)
class _Prices:
    """What one bit and one FLOP cost each client [N], and how much each counts as arrived. Sitting out is free."""

    arrival: Floats
    """1 − packet error rate (expected) or arrived (realised); 0 for clients that sit out."""
    packet_error_rate: Floats
    uplink_rate_bps: Floats
    downlink_rate_bps: Floats
    uplink_s_per_bit: Floats
    downlink_s_per_bit: Floats
    receiving_s_per_bit: Floats
    """As the one before, but for all clients that can be reached, with a resource block or without."""
    compute_s_per_flop: Floats
    tx_power_w: Floats
    compute_w: Floats

    @classmethod
    def of(cls, round_: Round, count: Floats, power: Floats, arrived: ArrayLike | None) -> "_Prices":
        scheduled = count > 0
        error_rate = round_.packet_error_rate(count, power)
        up, down = round_.uplink_rate_bps(count, power), round_.downlink_rate_bps()
        return cls(
            arrival=scheduled * (1.0 - error_rate if arrived is None else np.asarray(arrived, float)),
            packet_error_rate=error_rate,
            uplink_rate_bps=up,
            downlink_rate_bps=down,
            uplink_s_per_bit=_inverse_where(scheduled, up),
            downlink_s_per_bit=_inverse_where(scheduled, down),
            receiving_s_per_bit=_inverse_where(down > 0, down),
            compute_s_per_flop=scheduled * round_.client_s_per_flop,
            tx_power_w=power,
            compute_w=round_.client_j_per_flop / round_.client_s_per_flop,
        )


@dataclass(frozen=True, eq=False)
class Workload:
    """What a split round transfers and computes for each client, before any link or processor: [..., N] or [..., 1]."""

    grown_bits: Floats
    """Layers that come down when the cut grows."""
    shrunk_bits: Floats
    """Layers that go up when it shrinks."""
    model_down_bits: Floats
    """The client model, or what a client lacks of it that is brought up to date on demand."""
    packet_bits: Floats
    """Activations and labels."""
    gradient_bits: Floats
    model_up_bits: Floats
    """The client model, or the layers that are averaged; and a report."""
    forward_flops: Floats
    backward_flops: Floats
    server_forward_flops: Floats
    server_backward_flops: Floats

    @classmethod
    def of(cls, round_: Round, exchange: ExchangeRules, plan: Plan) -> "Workload":
        cut, synced, bits, samples = plan
        profile, overheads = round_.profile, round_.equations.overheads
        # Schemes that exchange the client model don't move layers, and where clients are brought up to date when they
        # take part, layers come down in stage 2.
        model_bits = prefix_sums(moving_bits(profile, overheads))
        grown = shrunk = down = np.zeros_like(model_bits[cut])
        if exchange.exchanges_client_model:
            down = up = layer_bits(profile, cut, bits, overheads)
        else:
            up = layer_bits(profile, np.minimum(synced, cut), bits, overheads)
            if round_.holdings is not None:
                shrunk = round_.holdings.upload_bits(profile, cut, round_.previous_cut, overheads)
                down = round_.holdings.download_bits(profile, cut, overheads)
            elif round_.previous_cut is not None:
                moved = model_bits[cut] - model_bits[round_.previous_cut]
                grown, shrunk = np.maximum(moved, 0), np.maximum(-moved, 0)
        if exchange.reports:
            up = up + report_bits(profile, synced, cut, overheads)
        sent = activation_bits(profile, cut, bits, samples, round_.local_steps)
        of_next_layer = samples * profile.param_bits[cut] * bits / BITS_PER_VALUE
        forward, backward = profile.client_forward_flops, profile.client_backward_flops
        return cls(
            grown_bits=grown,
            shrunk_bits=shrunk,
            model_down_bits=down,
            packet_bits=sent + label_bits(profile, bits, samples, round_.local_steps, overheads),
            gradient_bits=sent if round_.equations.gradient_bits == "activations" else of_next_layer,
            model_up_bits=up,
            forward_flops=samples * forward[cut],
            backward_flops=samples * backward[cut],
            server_forward_flops=samples * (forward[-1] - forward[cut]),
            server_backward_flops=samples * (backward[-1] - backward[cut]),
        )


def _split_cost(round_: Round, plan: Plan, prices: _Prices, exchange: ExchangeRules) -> RoundCost:
    work = Workload.of(round_, exchange, plan)
    reduce: Callable[..., Floats] = np.sum if exchange.in_sequence else np.max

    # Stage 1: layers between the cuts move.
    resplit = times(work.grown_bits, prices.receiving_s_per_bit) + times(work.shrunk_bits, prices.uplink_s_per_bit)

    # Stage 2: perhaps the client model down, client forward, activations up.
    model_down = times(work.model_down_bits, prices.downlink_s_per_bit)
    client_forward = work.forward_flops * prices.compute_s_per_flop
    uplink = times(work.packet_bits, prices.uplink_s_per_bit)
    began = resplit <= round_.outage_s
    in_time = began & (model_down + client_forward + uplink <= round_.outage_s)
    arrival = prices.arrival * in_time

    # Stage 3: server forward and backward, gradients down, client backward, perhaps client model and report up.
    share = exchange.aggregated_share
    # EPSL: the aggregated sample positions go backward once for all clients, the others once per client.
    backward_weight = arrival * (1 - share) + share * _share_of_one_pass(arrival)
    server = work.server_forward_flops * arrival + work.server_backward_flops * backward_weight
    server = server * round_.server_s_per_flop
    downlink = times((1 - share) * work.gradient_bits, prices.downlink_s_per_bit)
    if share > 0:  # the broadcast must reach the weakest receiver, and all wait for it
        receiving = times(share * work.gradient_bits, np.where(in_time, prices.downlink_s_per_bit, 0.0))
        broadcast = np.max(times(arrival, receiving), axis=-1, keepdims=True)
        downlink = downlink + np.where(arrival > 0, np.max(receiving, axis=-1, keepdims=True), 0.0)
    client_backward = work.backward_flops * prices.compute_s_per_flop
    model_up = times(work.model_up_bits, prices.uplink_s_per_bit)
    done = in_time & (downlink + client_backward + model_up <= round_.outage_s)

    # What a client does until its stage ends; a stage it doesn't reach costs it nothing.
    (resplit,) = _until(round_.outage_s, resplit)
    resplit_j = np.where(work.shrunk_bits > 0, times(prices.tx_power_w, resplit), 0.0)
    if round_.equations.resplit_energy == "signed":
        alive_s = np.where(np.isfinite(prices.uplink_s_per_bit), prices.uplink_s_per_bit, 0.0)
        resplit_j = resplit_j - work.grown_bits * prices.tx_power_w * alive_s
    model_down, client_forward, uplink = _until(round_.outage_s, model_down, client_forward, uplink, began=began)
    downlink, client_backward, model_up = (
        times(arrival, seconds) for seconds in _until(round_.outage_s, downlink, client_backward, model_up)
    )
    if share > 0:  # expected: the broadcast takes as long as its slowest receiver is expected to
        own = times(arrival, times((1 - share) * work.gradient_bits, prices.downlink_s_per_bit))
        downlink = np.minimum(own + np.where(arrival > 0, broadcast, 0.0), round_.outage_s)
    return RoundCost(
        resplit_delay_by_client_s=resplit,
        model_down_delay_s=model_down,
        client_forward_delay_s=client_forward,
        uplink_delay_s=uplink,
        server_delay_s=server,
        downlink_delay_s=downlink,
        client_backward_delay_s=client_backward,
        model_up_delay_s=model_up,
        resplit_energy_j=resplit_j,
        client_forward_energy_j=client_forward * prices.compute_w,
        uplink_energy_j=times(prices.tx_power_w, uplink),
        client_backward_energy_j=client_backward * prices.compute_w,
        model_up_energy_j=times(prices.tx_power_w, model_up),
        resplit_delay_s=reduce(resplit, axis=-1),
        uplink_stage_delay_s=reduce(model_down + client_forward + uplink, axis=-1),
        server_stage_delay_s=np.sum(server, axis=-1) + reduce(downlink + client_backward + model_up, axis=-1),
        in_time=done,
        packet_error_rate=_lost_if_late(prices.packet_error_rate, done, round_.outage_s),
        uplink_rate_bps=prices.uplink_rate_bps,
        downlink_rate_bps=prices.downlink_rate_bps,
    )


def _local_training_cost(round_: Round, plan: Plan, prices: _Prices) -> RoundCost:
    """FedAvg: model down, forward and backward on the client, model up as one packet that may be lost.

    The backward pass comes before the upload, so it is paid whether or not the packet arrives; the server only adds.
    """
    profile, samples = round_.profile, plan.samples
    nothing = np.zeros(round_.num_clients)
    model_bits = layer_bits(profile, profile.num_layers, plan.bits, round_.equations.overheads)
    forward_flops = samples * profile.client_forward_flops[-1]
    backward_flops = samples * profile.client_backward_flops[-1]
    parts = (
        times(model_bits, prices.downlink_s_per_bit),
        forward_flops * prices.compute_s_per_flop,
        backward_flops * prices.compute_s_per_flop,
        times(model_bits, prices.uplink_s_per_bit),
    )
    done = np.sum(parts, axis=0) <= round_.outage_s
    model_down, forward, backward, uplink = _until(round_.outage_s, *parts)
    return RoundCost(
        resplit_delay_by_client_s=nothing,
        model_down_delay_s=model_down,
        client_forward_delay_s=forward,
        uplink_delay_s=uplink,
        server_delay_s=nothing,
        downlink_delay_s=nothing,
        client_backward_delay_s=backward,
        model_up_delay_s=nothing,
        resplit_energy_j=nothing,
        client_forward_energy_j=forward * prices.compute_w,
        uplink_energy_j=times(prices.tx_power_w, uplink),
        client_backward_energy_j=backward * prices.compute_w,
        model_up_energy_j=nothing,
        resplit_delay_s=np.zeros(()),
        uplink_stage_delay_s=np.asarray(np.max(model_down + forward + backward + uplink)),
        server_stage_delay_s=np.zeros(()),
        in_time=done,
        packet_error_rate=_lost_if_late(prices.packet_error_rate, done, round_.outage_s),
        uplink_rate_bps=prices.uplink_rate_bps,
        downlink_rate_bps=prices.downlink_rate_bps,
    )


def _until(end_s: float, *parts: Floats, began: NDArray[np.bool_] | None = None) -> list[Floats]:
    """How long each part of a stage really takes, one after the other, if the stage ends at `end_s`."""
    if not np.isfinite(end_s):
        return list(parts)
    left: Floats | float = end_s if began is None else np.where(began, end_s, 0.0)
    taken = []
    for part in parts:
        taken.append(np.minimum(part, left))
        left = left - taken[-1]
    return taken


def _lost_if_late(packet_error_rate: Floats, done: NDArray[np.bool_], outage_s: float) -> Floats:
    """A client that isn't done in time has lost its packet."""
    return np.where(done, packet_error_rate, 1.0) if np.isfinite(outage_s) else packet_error_rate


def _share_of_one_pass(arrival: Floats) -> Floats:
    """Split one server pass, made if any packet arrives, over the clients: sums to P(any arrives), [N]."""
    any_arrives = 1.0 - np.prod(1.0 - arrival, axis=-1, keepdims=True)
    total = arrival.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(arrival * any_arrives, total, out=np.zeros_like(arrival), where=total > 0))


def _inverse_where(scheduled: NDArray[np.bool_], rate: Floats) -> Floats:
    """1/rate for scheduled clients (∞ if the rate is 0), 0 for the others."""
    with np.errstate(divide="ignore"):
        return np.where(scheduled, 1.0 / np.where(scheduled, rate, 1.0), 0.0)


def times(bits: Floats, per_bit: Floats) -> Floats:
    """bits · per_bit, where no bits cost nothing even on a dead link."""
    if np.isfinite(per_bit).all():
        return bits * per_bit
    with np.errstate(invalid="ignore"):
        return np.where(bits != 0, bits * per_bit, 0.0)
