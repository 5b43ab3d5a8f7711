"""The costs of a round taken apart by what a decision changes, so that solvers see thousands of candidates at once.

What crosses and what is computed comes from `asfl.costs` (`Workload`); tests check that times and energies do as well.

A *plan* is the same for all clients: a cut; beyond the paper, how deep client sides are averaged, and how many bits
cross. From there each client may choose bits of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from asfl.config.shapes import Float, Floats, Int, Ints
from asfl.config.units import BITS_PER_VALUE
from asfl.costs.decision import ALLOWED_BITS, Decision
from asfl.costs.modelled import ExchangeRules, Plan, Workload, times
from asfl.costs.round import Round
from asfl.optimize.problem import Problem
from asfl.optimize.rules import Penalty


@dataclass(frozen=True, eq=False)
class CutTerms:
    """What depends only on the cut; beyond the paper, on averaging and bits too. One row for each such plan.

    Rows are the same for all clients ([C, 1]), or for each client ([C, N]).
    """

    cuts: Int[Ints, "cuts"]
    synced: Int[Ints, "cuts"]
    """How many client-side layers are averaged at the end of the round."""
    bits: Int[Ints, "cuts"]
    """Of every value that crosses the link."""
    resplit_down_s: Float[Floats, "cuts clients"]
    """New layers to the clients when the cut grows."""
    resplit_wait_s: Float[Floats, "cuts"]
    """The round waits until all clients that can be reached have them, with a resource block or without."""
    resplit_up_bits: Float[Floats, "cuts #clients"]
    """Old layers to the server when it shrinks."""
    resplit_paid_bits: Float[Floats, "cuts #clients"]
    """New layers to the clients, where (17) as printed pays for them as if they were sent; else 0."""
    upload_bits: Float[Floats, "cuts #clients"]
    """Activations and labels of all charged samples."""
    model_up_bits: Float[Floats, "cuts #clients"]
    """Layers that are averaged, and the report of a client that has learnt."""
    lost_precision: Float[Floats, "cuts #clients"]
    """Share of an update that its bits cost: 0 at 32."""
    forward_s: Float[Floats, "cuts clients"]
    """Layers the client lacks, where it is brought up to date on demand, and its forward pass."""
    after_server_s: Float[Floats, "cuts clients"]
    """Gradients down and client backward, for a client that arrived."""
    server_s: Float[Floats, "cuts"]
    """Server forward and backward for one client."""
    forward_j: Float[Floats, "cuts clients"]
    backward_j: Float[Floats, "cuts clients"]

    @classmethod
    def of(cls, round_: Round, cuts: Ints) -> "CutTerms":
        """Of cuts alone, as in the paper: nothing is averaged, and everything crosses at 32 bits."""
        return cls.of_plans(round_, cuts, np.zeros_like(cuts), np.full_like(cuts, BITS_PER_VALUE), np.zeros(len(cuts)))

    @classmethod
    def of_plans(cls, round_: Round, cuts: Ints, synced: Ints, bits: Ints, lost_precision: Floats) -> "CutTerms":
        """Of plans: cut, depth of the average, bits and what these bits cost, [C] each."""
        plans = Plan(cuts[:, None], synced[:, None], bits[:, None], np.asarray(round_.charged_samples))
        work = Workload.of(round_, ExchangeRules(reports=round_.reports), plans)
        rate = round_.downlink_rate_bps()
        with np.errstate(divide="ignore"):
            s_per_bit = 1.0 / rate
        s_per_flop, j_per_flop = round_.client_s_per_flop, round_.client_j_per_flop
        down_s = times(work.grown_bits, s_per_bit)
        server_flops = work.server_forward_flops + work.server_backward_flops
        signed = round_.equations.resplit_energy == "signed"
        return cls(
            cuts=cuts,
            synced=synced,
            bits=bits,
            resplit_down_s=down_s,
            resplit_wait_s=np.minimum(np.where(rate > 0, down_s, 0.0).max(axis=1), round_.outage_s),
            resplit_up_bits=work.shrunk_bits,
            resplit_paid_bits=work.grown_bits if signed else np.zeros((len(cuts), 1)),
            upload_bits=work.packet_bits,
            model_up_bits=work.model_up_bits,
            lost_precision=lost_precision[:, None],
            forward_s=times(work.model_down_bits, s_per_bit) + work.forward_flops * s_per_flop,
            after_server_s=times(work.gradient_bits, s_per_bit) + work.backward_flops * s_per_flop,
            server_s=server_flops[:, 0] * round_.server_s_per_flop,
            forward_j=work.forward_flops * j_per_flop,
            backward_j=work.backward_flops * j_per_flop,
        )

    @cached_property
    def ends_with_upload(self) -> bool:
        """Whether any plan averages layers or ends with reports."""
        return bool(self.model_up_bits.any())

    @cached_property
    def pays_for_layers(self) -> bool:
        return bool(self.resplit_paid_bits.any())

    @cached_property
    def loses_precision(self) -> bool:
        return bool(self.lost_precision.any())

    def only(self, *index: int) -> "CutTerms":
        """The terms of some of the plans."""
        return CutTerms(*(getattr(self, field.name)[list(index)] for field in fields(self)))

    def by_client(self, rows: Ints) -> "CutTerms":
        """One row in which client n has the bits of row rows[n]; all rows have the same cut and average."""
        clients, chosen = np.arange(len(rows)), {}
        for field in fields(self):
            values = getattr(self, field.name)
            if values.ndim > 1:
                chosen[field.name] = np.broadcast_to(values, (len(values), len(rows)))[rows, clients][None]
            else:
                chosen[field.name] = values[[rows.max()]]
        return CutTerms(**chosen)


@dataclass(frozen=True, eq=False)
class Links:
    """The links of candidate (RBs, power) pairs; the last axis is the client, the others are candidates."""

    packet_error_rate: Float[Floats, "*candidates clients"]
    arrival: Float[Floats, "*candidates clients"]
    """1 − packet error rate."""
    uplink_s_per_bit: Float[Floats, "*candidates clients"]
    uplink_j_per_bit: Float[Floats, "*candidates clients"]

    @classmethod
    def of(cls, round_: Round, rb_count: Floats, tx_power_w: Floats) -> "Links":
        """`rb_count` and `tx_power_w` broadcast to [..., N]; counts must be above 0."""
        error_rate = round_.packet_error_rate(rb_count, tx_power_w)
        rate = round_.uplink_rate_bps(rb_count, tx_power_w)
        s_per_bit = (
            1.0 / rate if rate.min() > 0 else np.divide(1.0, rate, out=np.full_like(rate, np.inf), where=rate > 0)
        )
        return cls(error_rate, 1.0 - error_rate, s_per_bit, times(tx_power_w, s_per_bit))

    @classmethod
    def at(cls, round_: Round, rb_count: Floats, tx_power_w: Floats) -> "Links":
        """Of one allocation, [N]; idle clients stand in with one block."""
        return cls.of(round_, one_if_idle(rb_count), tx_power_w)

    @cached_property
    def all_alive(self) -> bool:
        return bool(np.isfinite(self.uplink_s_per_bit).all())

    def best_of(self, first: Ints, *, errors_pay: bool) -> "Links":
        """[B, N] from links [O, N]: every quantity at its best among the links first[b] … first[b + 1] − 1."""
        rate, *others = (getattr(self, field.name) for field in fields(self))
        best_rate = (np.maximum if errors_pay else np.minimum).reduceat(rate, first, axis=0)
        return Links(best_rate, *(np.minimum.reduceat(other, first, axis=0) for other in others))


@dataclass(frozen=True, eq=False)
class Candidates:
    """What each candidate would add to the round at each cut."""

    stage_s: Float[Floats, "3 cuts *candidates clients"]
    """The client's time in the three stages; the round waits for the largest in each."""
    load: Float[Floats, "*candidates clients"]
    """1 − packet error rate: how likely the server works for it."""
    cost: Float[Floats, "cuts *candidates clients"]
    """Energy penalty + V · error cost + participation; infinite: not possible."""

    @classmethod
    def of(
        cls, problem: Problem, terms: CutTerms, links: Links, energy_penalty: Penalty, *, sitting_out: bool = False
    ) -> "Candidates":
        """One candidate per link; with `sitting_out`, candidate 0 of links [O, N] is to have no resource block."""
        arrived, s_per_bit = links.arrival, links.uplink_s_per_bit
        first = int(sitting_out)
        shape = arrived.shape if not sitting_out else (1 + len(arrived), arrived.shape[1])
        stage_s, cost = np.zeros((3, len(terms.cuts), *shape)), np.empty((len(terms.cuts), *shape))
        stage_s[0] = terms.resplit_wait_s[(slice(None), *(None,) * len(shape))]
        load = np.zeros(shape)
        load[first:] = arrived
        by_client = (slice(None), *(None,) * (arrived.ndim - 1))  # [C, N] -> [C, 1, …, N]
        resplit_up_bits, upload_bits = terms.resplit_up_bits[by_client], terms.upload_bits[by_client]
        alive = links.all_alive and problem.all_reachable
        multiply = np.multiply if alive else times
        served_s = stage_s[:, :, first:]
        served_s[0] += multiply(resplit_up_bits, s_per_bit)
        np.add(terms.forward_s[by_client], multiply(upload_bits, s_per_bit), out=served_s[1])
        served_s[2] = multiply(arrived, terms.after_server_s[by_client])
        sent_bits = resplit_up_bits + upload_bits
        if terms.pays_for_layers:
            sent_bits = sent_bits - terms.resplit_paid_bits[by_client]
        energy = multiply(sent_bits, links.uplink_j_per_bit)
        energy += terms.forward_j[by_client]
        energy += terms.backward_j[by_client] * arrived
        served = problem.error_cost(terms.cuts, links.packet_error_rate)
        if terms.ends_with_upload:
            model_up_bits = terms.model_up_bits[by_client]
            served_s[2] += multiply(arrived, multiply(model_up_bits, s_per_bit))
            energy += multiply(arrived, multiply(model_up_bits, links.uplink_j_per_bit))
        if terms.loses_precision:
            served = served + problem.precision_cost(terms.lost_precision[by_client] * arrived)
        served = energy_penalty.value(energy) + served
        served += problem.serving_cost
        outage_s = problem.round.outage_s
        if not alive or np.isfinite(
            outage_s
        ):  # no round waits for ever, and no client is scheduled that can't be done in time
            in_time = (terms.resplit_down_s <= outage_s) & (terms.after_server_s <= outage_s)
            possible = (np.isfinite(served_s) & (served_s <= outage_s)).all(axis=0) & in_time[by_client]
            if terms.ends_with_upload:
                possible &= terms.after_server_s[by_client] + multiply(model_up_bits, s_per_bit) <= outage_s
            served = np.where(possible & problem.reachable if sitting_out else possible, served, np.inf)
        cost[:, first:] = served
        if sitting_out:
            cost[:, 0] = sitting_out_cost(problem, terms.cuts, energy_penalty)
        return cls(stage_s, load, cost)

    def among(self, clients: NDArray[np.int64]) -> "Candidates":
        """The candidates of these clients."""
        return Candidates(*(np.ascontiguousarray(getattr(self, field.name)[..., clients]) for field in fields(self)))


def one_if_idle(rb_count: Floats) -> Floats:
    """Counts for arithmetic over all clients: idle ones stand in with one block and are left out afterwards."""
    return np.where(rb_count > 0, rb_count, 1.0)


def sitting_out_cost(problem: Problem, cuts: NDArray[np.int64], energy_penalty: Penalty) -> Floats:
    """[C, N] what a client adds that gets no resource block: no energy, error rate 1."""
    lost = problem.error_cost(cuts, np.ones(problem.round.num_clients))
    return energy_penalty.value(np.zeros(problem.round.num_clients)) + lost + problem.sitting_out_cost


# ---------------------------------------------------------------------- plans
def plan_terms(problem: Problem, cuts: Sequence[int] | None = None) -> CutTerms:
    """The terms of all plans that the problem's switches allow: cut × depth of the average × bits."""
    round_, switches = problem.round, problem.switches
    allowed = round_.profile.cuts if cuts is None else np.asarray(sorted(cuts))
    if not (switches.sync or switches.quant):
        return CutTerms.of(round_, allowed)
    depths, bits = _depths(problem), allowed_bits(problem)
    places = [(cut, depth) for cut in allowed for depth in depths[cut]]
    cut, depth = np.repeat(np.array(places), len(bits), axis=0).T
    return _of_plans(problem, cut, depth, np.tile(bits, len(places)))


def plan_at(terms: CutTerms, index: int, rb_count: Floats, tx_power_w: Floats) -> Decision:
    """The decision for the plan of a row."""
    return Decision(int(terms.cuts[index]), rb_count, tx_power_w, int(terms.bits[index]), int(terms.synced[index]))


def terms_of(problem: Problem, decision: Decision) -> CutTerms:
    """One row: the terms of what is decided for each client."""
    terms, rows = terms_by_bits(problem, decision)
    return terms.by_client(rows)


def terms_by_bits(problem: Problem, decision: Decision) -> tuple[CutTerms, Ints]:
    """A row for each number of bits at the decision's cut and average, and the row [N] of each client."""
    here = np.broadcast_to(decision.bits, decision.rb_count.shape)
    bits = np.union1d(allowed_bits(problem), here)[::-1]
    cut, synced = np.full_like(bits, decision.cut), np.full_like(bits, decision.synced)
    return _of_plans(problem, cut, synced, bits), (bits[:, None] == here).argmax(axis=0)


def _of_plans(problem: Problem, cut: Ints, depth: Ints, bits: Ints) -> CutTerms:
    beyond = problem.learning.beyond
    lost = np.zeros(len(bits)) if beyond is None else 1.0 - beyond.worth(bits)
    return CutTerms.of_plans(problem.round, cut, depth, bits, lost)


def allowed_bits(problem: Problem) -> Ints:
    """How many bits a value may cross with."""
    known = problem.switches.quant and problem.learning.beyond is not None
    return np.array(ALLOWED_BITS if known else (BITS_PER_VALUE,))


def _depths(problem: Problem) -> list[list[int]]:
    """[M+1] how deep client sides may be averaged, by cut: not at all, as a whole, and in between where it is worth its
    bits.

    What an average is worth, the debt of its layers, against the bits that it takes: only the corners of the concave
    hull can be best at some price of a bit. (With several clients the price rises with the bits, as the slowest sender
    changes, so a depth inside the hull may be better by what the price differs; that gap stays.)
    """
    if not problem.switches.sync:
        return [[0]] * (problem.round.profile.num_layers + 1)
    worth, bits = problem.standing_debt.tolist(), problem.round.profile.client_param_bits.tolist()
    corners = [[0]]
    for depth in range(1, problem.round.profile.num_layers + 1):
        hull = corners[-1].copy()
        while len(hull) > 1 and _slope(worth, bits, *hull[-2:]) <= _slope(worth, bits, hull[-1], depth):
            hull.pop()
        corners.append([*hull, depth])
    return corners


def _slope(worth: list[float], bits: list[float], first: int, second: int) -> float:
    gained, paid = worth[second] - worth[first], bits[second] - bits[first]
    return gained / paid if paid > 0 else np.inf
