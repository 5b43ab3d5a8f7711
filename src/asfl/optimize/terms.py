"""The costs of a round taken apart by what a decision changes, so that solvers evaluate thousands of candidates at once.

`asfl.costs` is the plain version and the oracle: `test_optimize` checks that both give the same numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asfl.costs import times
from asfl.optimize.problem import Problem
from asfl.round import Round

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CutTerms:
    """What depends on the cut only; [C] or [C, N] for C cuts."""

    cuts: NDArray[np.int64]
    resplit_down_s: Floats
    """[C, N] new layers to the clients when the cut grows."""
    resplit_up_bits: Floats
    """[C] old layers to the server when it shrinks."""
    upload_bits: Floats
    """[C] activations of all charged samples."""
    forward_s: Floats
    """[C, N]"""
    after_server_s: Floats
    """[C, N] gradients down and client backward, for a client that arrived."""
    server_s: Floats
    """[C] server forward and backward for one client."""
    forward_j: Floats
    """[C, N]"""
    backward_j: Floats
    """[C, N]"""

    @classmethod
    def of(cls, round_: Round, cuts: NDArray[np.int64]) -> "CutTerms":
        profile, compute, samples = round_.profile, round_.compute, round_.charged_samples
        model_bits = profile.client_param_bits
        before = 0.0 if round_.previous_cut is None else model_bits[round_.previous_cut]
        moved = np.zeros(len(cuts)) if round_.previous_cut is None else model_bits[cuts] - before
        with np.errstate(divide="ignore"):
            down_s_per_bit = 1.0 / round_.downlink_rate_bps()
        upload = samples * profile.activation_bits[cuts - 1]
        by_activations = round_.equations.gradient_bits == "activations"
        returned = upload if by_activations else samples * profile.param_bits[cuts]
        forward_flops = samples * profile.client_forward_flops[cuts]
        backward_flops = samples * profile.client_backward_flops[cuts]
        all_flops = samples * (profile.client_forward_flops[-1] + profile.client_backward_flops[-1])
        s_per_flop = compute.client_cycles_per_flop / round_.cpu_hz
        j_per_flop = compute.client_cycles_per_flop * compute.energy_coefficient * round_.cpu_hz**2
        grown = np.maximum(moved, 0.0)
        return cls(
            cuts=cuts,
            resplit_down_s=_outer(grown, down_s_per_bit),
            resplit_up_bits=np.maximum(-moved, 0.0),
            upload_bits=upload,
            forward_s=forward_flops[:, None] * s_per_flop,
            after_server_s=_outer(returned, down_s_per_bit) + backward_flops[:, None] * s_per_flop,
            server_s=(all_flops - forward_flops - backward_flops) * compute.server_cycles_per_flop / compute.server_hz,
            forward_j=forward_flops[:, None] * j_per_flop,
            backward_j=backward_flops[:, None] * j_per_flop,
        )

    def index(self, cut: int) -> int:
        return int(np.searchsorted(self.cuts, cut))


@dataclass(frozen=True, eq=False)
class Links:
    """The links of candidate (RBs, power) pairs; the last axis is the client, the others are candidates."""

    tx_power_w: Floats
    packet_error_rate: Floats
    uplink_s_per_bit: Floats

    @classmethod
    def of(cls, round_: Round, rb_count: Floats, tx_power_w: Floats) -> "Links":
        """`rb_count` and `tx_power_w` broadcast to [..., N]; counts must be above 0."""
        error_rate = round_.packet_error_rate(rb_count, tx_power_w)
        with np.errstate(divide="ignore"):
            s_per_bit = 1.0 / round_.uplink_rate_bps(rb_count, tx_power_w)
        return cls(np.broadcast_to(tx_power_w, error_rate.shape), error_rate, s_per_bit)


@dataclass(frozen=True, eq=False)
class Candidates:
    """What each candidate would add to the round at one cut; arrays have the shape of the links, client last."""

    stage_s: Floats
    """[3, ..., N] the client's time in the three stages; the round waits for the largest in each."""
    arrival: Floats
    """1 − packet error rate: its share of the server's work."""
    cost: Floats
    """Energy penalty + V · error cost + participation."""

    @classmethod
    def of(cls, problem: Problem, terms: CutTerms, index: int, links: Links) -> "Candidates":
        """Candidates at cut number `index` of the terms."""
        error_rate, s_per_bit = links.packet_error_rate, links.uplink_s_per_bit
        arrival = 1.0 - error_rate
        resplit_up_bits, upload_bits = terms.resplit_up_bits[index], terms.upload_bits[index]
        stage_s = np.empty((3, *error_rate.shape))
        stage_s[0] = terms.resplit_down_s[index]
        stage_s[1] = terms.forward_s[index]
        stage_s[2] = times(arrival, terms.after_server_s[index])
        energy = terms.forward_j[index] + terms.backward_j[index] * arrival
        if resplit_up_bits > 0:
            stage_s[0] += resplit_up_bits * s_per_bit
        if upload_bits > 0:
            stage_s[1] += upload_bits * s_per_bit
        if resplit_up_bits + upload_bits > 0:
            energy = energy + (resplit_up_bits + upload_bits) * times(links.tx_power_w, s_per_bit)
        cost = problem.energy_penalty.value(energy) + problem.error_cost(int(terms.cuts[index]), error_rate)
        return cls(stage_s, arrival, cost + problem.serving_cost)


def one_if_idle(rb_count: Floats) -> Floats:
    """Counts for arithmetic over all clients: idle ones stand in with one block and are left out afterwards."""
    return np.where(rb_count > 0, rb_count, 1.0)


def sitting_out_cost(problem: Problem, cut: int) -> Floats:
    """[N] what a client adds that gets no resource block: no energy, error rate 1."""
    nothing = np.zeros(problem.round.num_clients)
    lost = problem.error_cost(cut, np.ones(problem.round.num_clients))
    return np.asarray(problem.energy_penalty.value(nothing) + lost + problem.sitting_out_cost)


def _outer(bits: Floats, s_per_bit: Floats) -> Floats:
    """[C, N] seconds for bits[c] at each client's price; no bits take no time even on a dead link."""
    return times(bits[:, None], s_per_bit)
