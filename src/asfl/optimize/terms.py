"""The costs of a round taken apart by what a decision changes, so that solvers see thousands of candidates at once.

`asfl.costs` is the plain version and the oracle: the tests check that both give the same numbers.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from asfl.costs import times
from asfl.optimize.penalties import Penalty
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
        profile, samples = round_.profile, round_.charged_samples
        moved = np.zeros(len(cuts))
        if round_.previous_cut is not None:
            moved = profile.client_param_bits[cuts] - profile.client_param_bits[round_.previous_cut]
        with np.errstate(divide="ignore"):
            down_s_per_bit = 1.0 / round_.downlink_rate_bps()
        upload = samples * profile.activation_bits[cuts - 1]
        by_activations = round_.equations.gradient_bits == "activations"
        returned = upload if by_activations else samples * profile.param_bits[cuts]
        forward_flops = samples * profile.client_forward_flops[cuts]
        backward_flops = samples * profile.client_backward_flops[cuts]
        all_flops = samples * (profile.client_forward_flops[-1] + profile.client_backward_flops[-1])
        s_per_flop, j_per_flop = round_.client_s_per_flop, round_.client_j_per_flop
        grown = np.maximum(moved, 0.0)
        return cls(
            cuts=cuts,
            resplit_down_s=_outer(grown, down_s_per_bit),
            resplit_up_bits=np.maximum(-moved, 0.0),
            upload_bits=upload,
            forward_s=forward_flops[:, None] * s_per_flop,
            after_server_s=_outer(returned, down_s_per_bit) + backward_flops[:, None] * s_per_flop,
            server_s=(all_flops - forward_flops - backward_flops) * round_.server_s_per_flop,
            forward_j=forward_flops[:, None] * j_per_flop,
            backward_j=backward_flops[:, None] * j_per_flop,
        )

    def only(self, index: int) -> "CutTerms":
        """The terms of one of the cuts."""
        return CutTerms(*(getattr(self, field.name)[index : index + 1] for field in fields(self)))


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
        rate = round_.uplink_rate_bps(rb_count, tx_power_w)
        s_per_bit = (
            1.0 / rate if rate.min() > 0 else np.divide(1.0, rate, out=np.full_like(rate, np.inf), where=rate > 0)
        )
        return cls(np.broadcast_to(tx_power_w, error_rate.shape), error_rate, s_per_bit)


@dataclass(frozen=True, eq=False)
class Candidates:
    """What each candidate would add to the round at each cut; the last axis is the client."""

    stage_s: Floats
    """[3, C, ..., N] the client's time in the three stages; the round waits for the largest in each."""
    arrival: Floats
    """[..., N] 1 − packet error rate: its share of the server's work."""
    cost: Floats
    """[C, ..., N] energy penalty + V · error cost + participation."""

    @classmethod
    def of(cls, problem: Problem, terms: CutTerms, links: Links, energy_penalty: Penalty) -> "Candidates":
        error_rate, s_per_bit = links.packet_error_rate, links.uplink_s_per_bit
        arrival = 1.0 - error_rate
        by_cut = (slice(None), *(None,) * arrival.ndim)  # [C] -> [C, 1, …]
        by_client = (slice(None), *(None,) * (arrival.ndim - 1))  # [C, N] -> [C, 1, …, N]
        resplit_up_bits, upload_bits = terms.resplit_up_bits[by_cut], terms.upload_bits[by_cut]
        stage_s = np.empty((3, len(terms.cuts), *arrival.shape))
        alive = bool(np.isfinite(s_per_bit).all() and problem.reachable.all())
        multiply = np.multiply if alive else times
        stage_s[0] = terms.resplit_down_s[by_client] + multiply(resplit_up_bits, s_per_bit)
        stage_s[1] = terms.forward_s[by_client] + multiply(upload_bits, s_per_bit)
        stage_s[2] = multiply(arrival, terms.after_server_s[by_client])
        energy = multiply(resplit_up_bits + upload_bits, multiply(links.tx_power_w, s_per_bit))
        energy = energy + terms.forward_j[by_client] + terms.backward_j[by_client] * arrival
        cost = energy_penalty.value(energy) + problem.error_cost(terms.cuts, error_rate) + problem.serving_cost
        if not alive:
            cost = np.where(np.isfinite(stage_s).all(axis=0), cost, np.inf)  # nobody waits for ever
        return cls(stage_s, arrival, cost)


def one_if_idle(rb_count: Floats) -> Floats:
    """Counts for arithmetic over all clients: idle ones stand in with one block and are left out afterwards."""
    return np.where(rb_count > 0, rb_count, 1.0)


def sitting_out_cost(problem: Problem, cuts: NDArray[np.int64], energy_penalty: Penalty) -> Floats:
    """[C, N] what a client adds that gets no resource block: no energy, error rate 1."""
    lost = problem.error_cost(cuts, np.ones(problem.round.num_clients))
    return energy_penalty.value(np.zeros(problem.round.num_clients)) + lost + problem.sitting_out_cost


def _outer(bits: Floats, s_per_bit: Floats) -> Floats:
    """[C, N] seconds for bits[c] at each client's price; no bits take no time even on a dead link."""
    return times(bits[:, None], s_per_bit)
