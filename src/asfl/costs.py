"""Delay and energy of a round: §II-B of the paper, (6)–(21), and what each baseline pays besides.

One function serves a single cut, all cuts at once and one cut per client, because the cut only selects entries of
the profile's prefix sums: a `cut` of shape [C, 1] gives costs of shape [C, N]. *Expected* costs replace "arrived" by
1 − packet_error_rate, which is what an optimiser sees; *realised* costs take what happened.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.decision import Decision
from asfl.round import Round

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Procedure:
    """How a scheme's round differs from ASFL's: in what is exchanged, so in what it costs and in how it trains."""

    exchanges_client_model: bool = False
    """The client model comes down before and goes up after every round (SFL, ACC-SFL, SL) instead of moving only the
    layers between two cuts. A client starts as soon as it has its model, and sends it up when its backward pass is
    done; whoever lost its packet has nothing new to send up."""
    in_sequence: bool = False
    """Clients take turns, so their delays add up (SL)."""
    full_local_model: bool = False
    """No cut: the whole model is trained on the client and goes down and up as one packet (FedAvg)."""
    aggregated_share: float = 0.0
    """EPSL's φ: this share of the sample positions is averaged over clients before the server's backward pass, and
    its activation gradient is broadcast."""

    @property
    def keeps_client_sides(self) -> bool:
        """Whether each client keeps its own side, which moves only when the cut does."""
        return not (self.exchanges_client_model or self.full_local_model)


ASFL = Procedure()
FEDAVG = Procedure(full_local_model=True)
SL = Procedure(exchanges_client_model=True, in_sequence=True)
SFL = Procedure(exchanges_client_model=True)
ACC_SFL = SFL


def epsl(aggregated_share: float) -> Procedure:
    return Procedure(aggregated_share=aggregated_share)


@dataclass(frozen=True, eq=False)
class RoundCost:
    """What a round costs. Parts have shape [..., N], totals [...]; energies are joules, delays seconds.

    A client without a resource block has 0 everywhere and is left out of every maximum.
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
    """Client model to the server, for schemes that exchange it every round."""

    # Parts of the energy, per client.
    resplit_energy_j: Floats
    """Layers sent up when the cut shrinks; (17) without its sign error, so never negative."""
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

    packet_error_rate: Floats
    """[N]"""
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

    def at(self, index: int) -> "RoundCost":
        """One entry along the leading axis, for example one of all cuts."""
        per_round = {"packet_error_rate", "uplink_rate_bps", "downlink_rate_bps"}
        chosen = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.init and f.name not in per_round}
        return replace(self, **chosen)


def round_cost(
    round_: Round, decision: Decision, arrived: ArrayLike | None = None, procedure: Procedure = ASFL
) -> RoundCost:
    """Cost of one decision: expected if `arrived` is None, else realised with these arrivals [N]."""
    return _cost(round_, np.asarray(decision.cut), decision.rb_count, decision.tx_power_w, arrived, procedure)


def cost_of_all_cuts(
    round_: Round,
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    arrived: ArrayLike | None = None,
    procedure: Procedure = ASFL,
) -> RoundCost:
    """Costs of every cut 1 … M−1 in one call, along the leading axis: entry i is cut i + 1."""
    return _cost(round_, round_.profile.cuts[:, None], rb_count, tx_power_w, arrived, procedure)


def _cost(
    round_: Round,
    cut: NDArray[np.int64],
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    arrived: ArrayLike | None,
    procedure: Procedure,
) -> RoundCost:
    count, power = np.asarray(rb_count, float), np.asarray(tx_power_w, float)
    prices = _Prices.of(round_, count, power, arrived)
    if procedure.full_local_model:
        return _local_training_cost(round_, prices)
    return _split_cost(round_, cut, prices, procedure)


@dataclass(frozen=True, eq=False)
class _Prices:
    """What one bit and one FLOP cost each client [N], and how much each counts as arrived. Sitting out is free."""

    arrival: Floats
    """1 − packet error rate (expected) or arrived (realised); 0 for clients that sit out."""
    packet_error_rate: Floats
    uplink_rate_bps: Floats
    downlink_rate_bps: Floats
    uplink_s_per_bit: Floats
    uplink_j_per_bit: Floats
    downlink_s_per_bit: Floats
    compute_s_per_flop: Floats
    compute_j_per_flop: Floats

    @classmethod
    def of(cls, round_: Round, count: Floats, power: Floats, arrived: ArrayLike | None) -> "_Prices":
        scheduled = count > 0
        error_rate = round_.packet_error_rate(count, power)
        up, down = round_.uplink_rate_bps(count, power), round_.downlink_rate_bps()
        up_s_per_bit = _inverse_where(scheduled, up)
        return cls(
            arrival=scheduled * (1.0 - error_rate if arrived is None else np.asarray(arrived, float)),
            packet_error_rate=error_rate,
            uplink_rate_bps=up,
            downlink_rate_bps=down,
            uplink_s_per_bit=up_s_per_bit,
            uplink_j_per_bit=times(power, up_s_per_bit),
            downlink_s_per_bit=_inverse_where(scheduled, down),
            compute_s_per_flop=scheduled * round_.client_s_per_flop,
            compute_j_per_flop=scheduled * round_.client_j_per_flop,
        )


def _split_cost(round_: Round, cut: NDArray[np.int64], prices: _Prices, procedure: Procedure) -> RoundCost:
    profile, samples = round_.profile, round_.charged_samples
    arrival = prices.arrival
    reduce: Callable[..., Floats] = np.sum if procedure.in_sequence else np.max

    # Stage 1: layers between the cuts move. Schemes that exchange the client model have no such stage.
    model_bits = profile.client_param_bits[cut]
    grown_bits = shrunk_bits = exchanged_bits = np.zeros_like(model_bits)
    if procedure.exchanges_client_model:
        exchanged_bits = model_bits
    elif round_.previous_cut is not None:
        moved_bits = model_bits - profile.client_param_bits[round_.previous_cut]
        grown_bits, shrunk_bits = np.maximum(moved_bits, 0), np.maximum(-moved_bits, 0)
    resplit = times(grown_bits, prices.downlink_s_per_bit) + times(shrunk_bits, prices.uplink_s_per_bit)

    # Stage 2: perhaps the client model down, client forward, activations up.
    model_down = times(exchanged_bits, prices.downlink_s_per_bit)
    forward_flops = samples * profile.client_forward_flops[cut]
    activation_bits = samples * profile.activation_bits[cut - 1]
    client_forward = forward_flops * prices.compute_s_per_flop
    uplink = times(activation_bits, prices.uplink_s_per_bit)

    # Stage 3: server forward and backward, gradients down, client backward, perhaps the client model up.
    down_s_if_arrived = times(arrival, prices.downlink_s_per_bit)
    up_s_if_arrived = times(arrival, prices.uplink_s_per_bit)
    share = procedure.aggregated_share
    server_forward_flops = samples * (profile.client_forward_flops[-1] - profile.client_forward_flops[cut])
    server_backward_flops = samples * (profile.client_backward_flops[-1] - profile.client_backward_flops[cut])
    # EPSL: the aggregated sample positions go backward once for all clients, the others once per client.
    backward_weight = arrival * (1 - share) + share * _share_of_one_pass(arrival)
    server = (server_forward_flops * arrival + server_backward_flops * backward_weight) * round_.server_s_per_flop

    by_activations = round_.equations.gradient_bits == "activations"
    gradient_bits = activation_bits if by_activations else samples * profile.param_bits[cut]
    downlink = times((1 - share) * gradient_bits, down_s_if_arrived)
    if share > 0:  # the broadcast must reach the weakest receiver, and everybody waits for it
        slowest = np.max(times(share * gradient_bits, down_s_if_arrived), axis=-1, keepdims=True)
        downlink = downlink + np.where(arrival > 0, slowest, 0.0)
    backward_flops = samples * profile.client_backward_flops[cut]
    client_backward = backward_flops * prices.compute_s_per_flop * arrival
    model_up = times(exchanged_bits, up_s_if_arrived)

    return RoundCost(
        resplit_delay_by_client_s=resplit,
        model_down_delay_s=model_down,
        client_forward_delay_s=client_forward,
        uplink_delay_s=uplink,
        server_delay_s=server,
        downlink_delay_s=downlink,
        client_backward_delay_s=client_backward,
        model_up_delay_s=model_up,
        resplit_energy_j=times(shrunk_bits, prices.uplink_j_per_bit),
        client_forward_energy_j=forward_flops * prices.compute_j_per_flop,
        uplink_energy_j=times(activation_bits, prices.uplink_j_per_bit),
        client_backward_energy_j=backward_flops * prices.compute_j_per_flop * arrival,
        model_up_energy_j=times(exchanged_bits, times(arrival, prices.uplink_j_per_bit)),
        resplit_delay_s=reduce(resplit, axis=-1),
        uplink_stage_delay_s=reduce(model_down + client_forward + uplink, axis=-1),
        server_stage_delay_s=np.sum(server, axis=-1) + reduce(downlink + client_backward + model_up, axis=-1),
        packet_error_rate=prices.packet_error_rate,
        uplink_rate_bps=prices.uplink_rate_bps,
        downlink_rate_bps=prices.downlink_rate_bps,
    )


def _local_training_cost(round_: Round, prices: _Prices) -> RoundCost:
    """FedAvg: model down, forward and backward on the client, model up as one packet that may be lost.

    The backward pass comes before the upload, so it is paid whether or not the packet arrives; the server only adds.
    """
    profile, samples = round_.profile, round_.charged_samples
    nothing = np.zeros(round_.num_clients)
    model_bits = profile.client_param_bits[-1]
    forward_flops = samples * profile.client_forward_flops[-1]
    backward_flops = samples * profile.client_backward_flops[-1]
    model_down = model_bits * prices.downlink_s_per_bit
    forward, backward = forward_flops * prices.compute_s_per_flop, backward_flops * prices.compute_s_per_flop
    uplink = model_bits * prices.uplink_s_per_bit
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
        client_forward_energy_j=forward_flops * prices.compute_j_per_flop,
        uplink_energy_j=model_bits * prices.uplink_j_per_bit,
        client_backward_energy_j=backward_flops * prices.compute_j_per_flop,
        model_up_energy_j=nothing,
        resplit_delay_s=np.zeros(()),
        uplink_stage_delay_s=np.max(model_down + forward + backward + uplink),
        server_stage_delay_s=np.zeros(()),
        packet_error_rate=prices.packet_error_rate,
        uplink_rate_bps=prices.uplink_rate_bps,
        downlink_rate_bps=prices.downlink_rate_bps,
    )


def _share_of_one_pass(arrival: Floats) -> Floats:
    """Split one server pass, made if anybody arrives, over the clients: sums to P(somebody arrives), [N]."""
    somebody = 1.0 - np.prod(1.0 - arrival)
    total = arrival.sum()
    return arrival * (somebody / total) if total > 0 else np.zeros_like(arrival)


def _inverse_where(scheduled: NDArray[np.bool_], rate: Floats) -> Floats:
    """1/rate for scheduled clients (∞ if the rate is 0), 0 for the others."""
    with np.errstate(divide="ignore"):
        return np.where(scheduled, 1.0 / np.where(scheduled, rate, 1.0), 0.0)


def times(bits: Floats, per_bit: Floats) -> Floats:
    """bits · per_bit, where no bits cost nothing even on a dead link."""
    if np.isfinite(per_bit).all():
        return bits * per_bit
    with np.errstate(invalid="ignore"):
        return np.where(bits > 0, bits * per_bit, 0.0)
