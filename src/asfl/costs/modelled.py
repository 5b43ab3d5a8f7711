"""Delay and energy of a round: §II-B of the paper, (6)–(21), and what each baseline pays besides.

What crosses and what is computed (`workload`) becomes seconds and joules of each client's steps; only then is said how
steps make up a round's delay: three stages, each as long as its slowest client. The same functions charge a round
(`round_cost`) and fill the tables of the solvers (`asfl.optimize.terms`), because the cut only selects entries of the
profile's prefix sums, and all arrays broadcast: clients come last, candidates of cuts and links before them. *Expected*
costs replace "arrived" by 1 − packet_error_rate, which is what an optimiser sees; *realised* costs take what happened.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.units import BITS_PER_VALUE
from asfl.costs.round import BITS_PER_GROUP, Decision, Overheads, Round, moving_bits, prefix_sums
from asfl.costs.timeline import PARTS, Shape, Timeline, milestones_s
from asfl.models.profile import ModelProfile

Bools = NDArray[np.bool_]
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
    """A client receives what changed when it takes part, instead of all clients at once (`Holdings`)."""
    reports: bool = False
    """Decisions need to know how far client sides have drifted apart, so clients that have learnt report it."""

    local_loss: int = 0
    """h: clients don't wait for gradients. Each trains on a loss of its own, that of a small auxiliary head behind the
    cut (`asfl.train.state.Auxiliary`), which is exchanged with the client model. It takes h mini-batches for each one
    whose activations it sends. 0: gradients come down."""
    aligned: int = 0
    """k: in every k-th round the gradients come down after all, and heads are fitted to them (FSL-SAGE). 0: never."""
    phases: tuple[int, int] = (0, 0)
    """(a, b): clients train alone for a rounds and send activations in the next b, when the server begins; then it
    trains alone (Ampere). (0, 0): both sides train in every round."""

    def phase(self, index: int) -> Literal["both", "clients", "sending", "server"]:
        """What a round is for."""
        alone, sending = self.phases
        if not alone:
            return "both"
        return "clients" if index < alone else "sending" if index < alone + sending else "server"

    def aligns(self, index: int) -> bool:
        return self.aligned > 0 and index % self.aligned == 0

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


def local_loss(each: int, aligned: int = 0, phases: tuple[int, int] = (0, 0)) -> ExchangeRules:
    return ExchangeRules(exchanges_client_model=True, local_loss=each, aligned=aligned, phases=phases)


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

    in_time: Bools
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


# ---------------------------------------------------------------------- what crosses and what is computed
REPORTED_NUMBERS, BITS_OF_REPORTED = 64, 16
"""A client's report has so many numbers of so many bits for each layer, and a scale of 32 (`asfl.train.fleet`)."""


def activation_bits(profile: ModelProfile, cut: Ints, bits: ArrayLike, samples: ArrayLike, batches: int) -> Floats:
    """Activations at a cut, or their gradients, of so many samples in so many mini-batches."""
    samples, bits = np.asarray(samples), np.asarray(bits)
    values = samples * profile.activation_bits[cut - 1] * (bits / BITS_PER_VALUE)
    groups = batches * profile.groups_per_batch[cut - 1] + samples * profile.groups_per_sample[cut - 1]
    return np.asarray(values + BITS_PER_GROUP * (bits < BITS_PER_VALUE) * groups)


def layer_bits(profile: ModelProfile, depth: int | Ints, bits: ArrayLike, *, statistics: bool = False) -> Floats:
    """Layers 1 … depth: their parameters with so many bits; running statistics, if they are charged, cross whole."""
    bits = np.asarray(bits)
    found = np.asarray(profile.client_param_bits[depth]) * (bits / BITS_PER_VALUE)
    found = found + BITS_PER_GROUP * (bits < BITS_PER_VALUE) * np.asarray(profile.client_param_groups[depth])
    return np.asarray(found + profile.client_statistic_bits[depth] if statistics else found)


def report_bits(profile: ModelProfile, synced: Ints, cut: Ints, overheads: Overheads) -> Floats:
    """What a client reports that has learnt: its update's norm, and of layers synced + 1 … cut, where sides differ."""
    if not overheads.charged:
        return np.zeros(())
    synced = np.minimum(synced, cut)
    if overheads.reported_share is None:
        return np.asarray(BITS_PER_VALUE + (cut - synced) * (REPORTED_NUMBERS * BITS_OF_REPORTED + BITS_PER_VALUE))
    apart = profile.client_param_bits[cut] - profile.client_param_bits[synced]
    return np.asarray(BITS_PER_VALUE + overheads.reported_share * apart)


FITS = 10
"""So often a head steps towards the gradients of each mini-batch that the server sends back."""


def head_of(profile: ModelProfile, cut: Ints) -> tuple[Floats, Floats]:
    """Bits and forward FLOPs for a sample of the auxiliary head at a cut: the mean over positions, a linear layer.

    Its backward pass takes twice as much. A channel with more than one position is one feature.
    """
    values, channels = profile.activation_bits[cut - 1] / BITS_PER_VALUE, profile.groups_per_batch[cut - 1]
    features, classes = np.where(channels > 0, channels, values), profile.activation_bits[-1] / BITS_PER_VALUE
    return np.asarray(BITS_PER_VALUE * classes * (features + 1)), np.asarray(values + 2 * features * classes)


class Plan(NamedTuple):
    """What is decided of a round's work: for all clients alike (leading axes are candidates), or for each [N]."""

    cut: Ints
    synced: Ints
    bits: Ints
    """Of a value."""
    samples: Floats
    """Of all mini-batches of the round."""


class Workload(NamedTuple):
    """What a round transfers and computes for each client, before any link or processor: [..., N] or [..., 1]."""

    grown_bits: Floats
    """Layers that come down when the cut grows."""
    shrunk_bits: Floats
    """Layers that go up when it shrinks."""
    model_down_bits: Floats
    """The client model, or what a client lacks of it that is brought up to date on demand."""
    forward_flops: Floats
    packet_bits: Floats
    """Activations and labels; the whole model, where the client trains it."""
    server_forward_flops: Floats
    server_backward_flops: Floats
    gradient_bits: Floats
    backward_flops: Floats
    model_up_bits: Floats
    """The client model, or the layers that are averaged; and a report."""


def workload(round_: Round, exchange: ExchangeRules, plan: Plan) -> Workload:
    cut, synced, bits, samples = plan
    profile, overheads, batches = round_.profile, round_.equations.overheads, round_.local_steps
    forward, backward = profile.client_forward_flops, profile.client_backward_flops
    if exchange.full_local_model:
        model, nothing = layer_bits(profile, profile.num_layers, bits, statistics=overheads.charged), np.zeros(1)
        no_server = (nothing, nothing, nothing)
        return Workload(
            nothing, nothing, model, samples * forward[-1], model, *no_server, samples * backward[-1], nothing
        )
    # Schemes that exchange the client model don't move layers, and where clients are brought up to date when they
    # take part, layers come down in stage 2.
    model_bits = prefix_sums(moving_bits(profile, overheads))
    grown = shrunk = down = np.zeros_like(model_bits[cut])
    averaged = cut if exchange.exchanges_client_model else np.minimum(synced, cut)
    up = layer_bits(profile, averaged, bits, statistics=overheads.charged)
    if exchange.exchanges_client_model:
        down = up
    elif round_.holdings is not None:
        shrunk = round_.holdings.upload_bits(profile, cut, round_.previous_cut, overheads)
        down = round_.holdings.download_bits(profile, cut, overheads)
    elif round_.previous_cut is not None:
        moved = model_bits[cut] - model_bits[round_.previous_cut]
        grown, shrunk = np.maximum(moved, 0), np.maximum(-moved, 0)
    if exchange.reports:
        up = up + report_bits(profile, synced, cut, overheads)
    sent = packet = activation_bits(profile, cut, bits, samples, batches)
    if overheads.charged:  # labels in whole bytes and, with few bits, one number on their error a batch
        classes = max(profile.activation_bits[-1] / BITS_PER_VALUE, 2.0)  # the last layer's output
        of_label = 8 * np.ceil(np.log2(classes) / 8)
        packet = sent + (samples * of_label + batches * BITS_PER_VALUE * (bits < BITS_PER_VALUE))
    of_next_layer = samples * profile.param_bits[cut] * bits / BITS_PER_VALUE
    work = Workload(
        grown_bits=grown,
        shrunk_bits=shrunk,
        model_down_bits=down,
        forward_flops=samples * forward[cut],
        packet_bits=packet,
        server_forward_flops=samples * (forward[-1] - forward[cut]),
        server_backward_flops=samples * (backward[-1] - backward[cut]),
        gradient_bits=sent if round_.equations.gradient_bits == "activations" else of_next_layer,
        backward_flops=samples * backward[cut],
        model_up_bits=up,
    )
    return _without_waiting(round_, exchange, plan, work) if exchange.local_loss else work


def _without_waiting(round_: Round, exchange: ExchangeRules, plan: Plan, work: Workload) -> Workload:
    """Where clients train on a loss of their own: `forward_flops` are those before activations can be sent."""
    each, phase, nothing = exchange.local_loss, exchange.phase(round_.index), np.zeros_like(work.forward_flops)
    head_bits, head_flops = head_of(round_.profile, plan.cut)
    down, up = work.model_down_bits + head_bits, work.model_up_bits + head_bits
    local_flops = (each - 1) * work.forward_flops + each * (work.backward_flops + 3 * plan.samples * head_flops)
    if phase == "both":
        aligns = exchange.aligns(round_.index)
        fit_flops = FITS * 6 * plan.samples * head_flops  # a gradient of a gradient takes as much again
        return work._replace(
            model_down_bits=down,
            gradient_bits=work.gradient_bits if aligns else nothing,
            backward_flops=local_flops + fit_flops * aligns,
            model_up_bits=up,
        )
    idle = Workload(*[nothing] * len(work))
    if phase == "clients":  # as in FedAvg, the model is the packet that may be lost
        return idle._replace(
            model_down_bits=down, forward_flops=work.forward_flops, backward_flops=local_flops, packet_bits=up
        )
    trains = idle._replace(
        server_forward_flops=each * work.server_forward_flops, server_backward_flops=each * work.server_backward_flops
    )
    if phase == "server":
        return trains
    down = work.model_down_bits  # for clients that missed the last average
    return trains._replace(model_down_bits=down, forward_flops=work.forward_flops, packet_bits=work.packet_bits)


# ---------------------------------------------------------------------- seconds and joules of each step
@dataclass(frozen=True, eq=False)
class Links:
    """The uplinks of so many blocks at such powers, [..., N], and what else a client needs to get anything done.

    Sitting out takes no time: a client without a block needs 0 s for everything but the layers that all receive.
    """

    packet_error_rate: Floats
    uplink_rate_bps: Floats
    arrival: Floats
    """1 − packet error rate; 0 for clients that sit out."""
    tx_power_w: Floats
    uplink_s_per_bit: Floats
    downlink_s_per_bit: Floats
    """[N]"""
    receiving_s_per_bit: Floats
    """[N] as the one before, but for all clients that can be reached, with a resource block or without."""
    compute_s_per_flop: Floats
    """[N]"""
    alive: bool
    """Whether nothing takes for ever."""

    @classmethod
    def of(cls, round_: Round, rb_count: Floats, tx_power_w: Floats) -> "Links":
        error_rate, rate = round_.packet_error_rate(rb_count, tx_power_w), round_.uplink_rate_bps(rb_count, tx_power_w)
        down_s, s_per_flop, arrival = round_.downlink_s_per_bit, round_.client_s_per_flop, 1.0 - error_rate
        with np.errstate(divide="ignore"):
            up_s = 1.0 / rate
        scheduled = rb_count > 0
        if not scheduled.all():
            arrival, up_s = arrival * scheduled, np.where(scheduled, up_s, 0.0)
            down_s, s_per_flop = np.where(scheduled, down_s, 0.0), scheduled * s_per_flop
        alive = bool(up_s.max(initial=0.0) < np.inf and down_s.max(initial=0.0) < np.inf)
        receiving_s = round_.receiving_s_per_bit
        return cls(error_rate, rate, arrival, tx_power_w, up_s, down_s, receiving_s, s_per_flop, alive)


class Steps(NamedTuple):
    """How long each step of a round takes each client, or what it costs it: [..., N]; steps without work may be [1].

    First as if every packet arrived in time (`seconds`), then as it is expected or happened (`arrived_only`).
    """

    resplit_down: Floats
    resplit_up: Floats
    model_down: Floats
    forward: Floats
    uplink: Floats
    downlink: Floats
    backward: Floats
    model_up: Floats


STEP_ROWS = (0, 1, 2, 3, 4, 7, 8, 9)
"""Which of a timeline's parts each step is; the server's are between them."""


def seconds(work: Workload, links: Links) -> Steps:
    """Of each step, if it is reached."""
    takes = np.multiply if links.alive else times
    return Steps(
        resplit_down=work.grown_bits * links.receiving_s_per_bit,
        resplit_up=takes(work.shrunk_bits, links.uplink_s_per_bit),
        model_down=takes(work.model_down_bits, links.downlink_s_per_bit),
        forward=work.forward_flops * links.compute_s_per_flop,
        uplink=takes(work.packet_bits, links.uplink_s_per_bit),
        downlink=takes(work.gradient_bits, links.downlink_s_per_bit),
        backward=work.backward_flops * links.compute_s_per_flop,
        model_up=takes(work.model_up_bits, links.uplink_s_per_bit),
    )


def server_seconds(
    round_: Round, work: Workload, forward: Floats | float = 1.0, backward: Floats | float = 1.0
) -> Floats:
    """The server's passes for each client, weighted: a client's share of (11) + (12)."""
    flops = work.server_forward_flops * forward + work.server_backward_flops * backward
    return np.asarray(flops * round_.server_s_per_flop)


def stages(steps: Steps, *, local_loss: bool = False) -> tuple[Floats, Floats, Floats]:
    """What each client needs in the three stages: re-split (6); until its packet is there; after the server.

    With a loss of its own it goes backward before it sends.
    """
    resplit, before = steps.resplit_down + steps.resplit_up, steps.model_down + steps.forward
    if local_loss:
        return resplit, before + steps.backward + steps.uplink, steps.downlink + steps.model_up
    return resplit, before + steps.uplink, steps.downlink + steps.backward + steps.model_up


def before_outage(of_stages: tuple[Floats, Floats, Floats], outage_s: float) -> tuple[Bools, Bools, Bools]:
    """Who finishes the first stage, the first two, and all three before an outage ends them."""
    resplit, sent, done = (np.asarray(of_stage <= outage_s) for of_stage in of_stages)
    return resplit, resplit & sent, resplit & sent & done


def joules(round_: Round, work: Workload, links: Links, steps: Steps) -> Steps:
    """What the steps cost each client: (17) without its sign error (unless `signed`), (18), (19), (20)."""
    send = np.multiply if links.alive else times
    watts, compute_w, nothing = links.tx_power_w, round_.client_compute_w, np.zeros(1)
    resplit = send(watts, steps.resplit_up)
    if round_.equations.resplit_energy == "signed":
        alive_s = np.where(np.isfinite(links.uplink_s_per_bit), links.uplink_s_per_bit, 0.0)
        resplit = resplit - work.grown_bits * watts * alive_s
    return Steps(
        resplit_down=nothing,
        resplit_up=resplit,
        model_down=nothing,
        forward=steps.forward * compute_w,
        uplink=send(watts, steps.uplink),
        downlink=nothing,
        backward=steps.backward * compute_w,
        model_up=send(watts, steps.model_up),
    )


def energy(of_steps: Steps) -> Floats:
    """(21)."""
    total = of_steps.resplit_up + of_steps.forward + of_steps.uplink
    total += of_steps.backward
    total += of_steps.model_up
    return total


def arrived_only(steps: Steps, links: Links, arrival: Floats) -> Steps:
    """Stage 3 is for clients whose packets arrived."""
    takes = np.multiply if links.alive else times
    return Steps(*steps[:5], *(takes(arrival, step) for step in steps[5:]))


# ---------------------------------------------------------------------- the round


def round_cost(
    round_: Round, decision: Decision, arrived: ArrayLike | None = None, exchange: ExchangeRules = ASFL
) -> RoundCost:
    """Cost of one decision: expected if `arrived` is None, else realised with these arrivals [N]."""
    samples = round_.charged_samples if decision.batch is None else decision.batch * round_.local_steps
    plan = Plan(*map(np.asarray, (decision.cut, decision.synced, decision.bits, samples)))
    return _cost(round_, plan, decision.rb_count, decision.tx_power_w, arrived, exchange)


def in_time(round_: Round, decision: Decision, exchange: ExchangeRules = ASFL) -> Bools:
    """[N] who would finish every stage before an outage ends it."""
    if not np.isfinite(round_.outage_s).any():
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


def timeline_of(
    round_: Round,
    decision: Decision,
    arrived: ArrayLike | None = None,
    exchange: ExchangeRules = ASFL,
    *,
    barriers: bool = False,
) -> Timeline:
    """When what happens in the round that `round_cost` charges, or would with the paper's barriers."""
    if barriers:
        round_ = replace(round_, equations=replace(round_.equations, timing="stages"))
    samples = round_.charged_samples if decision.batch is None else decision.batch * round_.local_steps
    plan = Plan(*map(np.asarray, (decision.cut, decision.synced, decision.bits, samples)))
    found = list[Timeline]()
    _cost(round_, plan, decision.rb_count, decision.tx_power_w, arrived, exchange, found)
    return found[0]


def shapes_of(round_: Round, exchange: ExchangeRules, cuts: Ints, arrived: Floats) -> list[Shape]:
    """Which steps each of some rounds has: with cut or cuts [C, #N], when so many packets arrive [C].

    A server that mixes makes as many steps as mini-batches arrive. Batch norm has statistics, so it tells itself.
    """
    statistics, overlap = round_.profile.client_statistic_bits, round_.equations.timing == "overlap"
    shape = Shape(
        clients=round_.num_clients,
        slices=round_.radio.slices if overlap else 1,
        local=_all_local(round_, exchange),
        own_loss=exchange.local_loss > 0,
        aligned=exchange.aligns(round_.index),
        in_sequence=exchange.in_sequence,
        joint_backward=exchange.aggregated_share > 0,
        stages=not overlap,
    )
    turns = np.maximum(np.round(arrived), 1).astype(int) if exchange.mixes else np.zeros(len(cuts), int)
    on_clients = (statistics[cuts.max(axis=1)] > 0).tolist()
    on_server = (statistics[-1] > statistics[cuts.min(axis=1)]).tolist()
    return [
        shape._replace(turns=turn, whole_client=client, whole_server=server)
        for turn, client, server in zip(turns.tolist(), on_clients, on_server, strict=True)
    ]


def _all_local(round_: Round, exchange: ExchangeRules) -> bool:
    """Whether clients need no server but for an average."""
    return exchange.full_local_model or exchange.phase(round_.index) == "clients"


def by_shape(shapes: Sequence[Shape], parts: Floats, servers: int) -> Floats:
    """[C, 3] milestones of parts [10, C, N], each of its own shape."""
    found = np.zeros((len(shapes), 3))
    for shape in set(shapes):
        rows = [row for row, own in enumerate(shapes) if own == shape]
        found[rows] = milestones_s(shape, parts[:, rows], servers)
    return found


def _cost(
    round_: Round,
    plan: Plan,
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    arrived: ArrayLike | None,
    exchange: ExchangeRules,
    timelines: list[Timeline] | None = None,
) -> RoundCost:
    count, outage_s = np.asarray(rb_count, float), round_.outage_s
    links, work = Links.of(round_, count, np.asarray(tx_power_w, float)), workload(round_, exchange, plan)
    steps, arrival = seconds(work, links), links.arrival
    if arrived is not None:
        arrival = (count > 0) * np.asarray(arrived, float)
    if _all_local(round_, exchange):
        # FedAvg: model down, forward and backward on the client, model up as one packet that may be lost. The backward
        # pass comes before the upload, so it is paid whether or not the packet arrives; the server only adds.
        alone = (steps.model_down, steps.forward, steps.backward, steps.uplink)
        down, forward, backward, up = alone
        done = down + forward + backward + up <= outage_s
        down, forward, backward, up = _until(outage_s, alone)
        steps = steps._replace(model_down=down, forward=forward, backward=backward, uplink=up)
        server = np.zeros(round_.num_clients)
        of_stages = (server, down + forward + backward + up, server)
    else:
        own_loss = exchange.local_loss > 0
        began, sent, done = before_outage(stages(steps, local_loss=own_loss), outage_s)
        arrival, share = arrival * sent, exchange.aggregated_share
        # EPSL: the aggregated sample positions go backward once for all clients, the others once per client. Their
        # gradient is broadcast; it must reach the weakest receiver, and all wait for it.
        once = share * _share_of_one_pass(arrival) if share > 0 else 0.0
        server = server_seconds(round_, work, arrival, arrival * (1 - share) + once)
        if share > 0:
            own = times((1 - share) * work.gradient_bits, links.downlink_s_per_bit)
            shared = times(share * work.gradient_bits, np.where(sent, links.downlink_s_per_bit, 0.0))
            slowest = np.where(arrival > 0, np.max(shared, axis=-1, keepdims=True), 0.0)
            steps = steps._replace(downlink=own + slowest)
            _, _, done = before_outage(stages(steps), outage_s)
        # What a client does until its stage ends; a stage it doesn't reach costs it nothing.
        if own_loss:  # clients go backward before they know whether their packets arrive
            before_packet = (steps.model_down, steps.forward, steps.backward, steps.uplink)
            down, forward, backward, up = _until(outage_s, before_packet, began)
            downlink, model_up = _until(outage_s, (steps.downlink, steps.model_up))
            moves = _until(outage_s, steps[:2])
            steps = Steps(moves[0], moves[1], down, forward, up, downlink, backward, model_up)
            steps = arrived_only(steps, links, arrival)._replace(backward=backward)
        else:
            until_packet = (*_until(outage_s, steps[:2]), *_until(outage_s, steps[2:5], began))
            steps = arrived_only(Steps(*until_packet, *_until(outage_s, steps[5:])), links, arrival)
        if share > 0:  # expected: the broadcast takes as long as its slowest receiver is expected to
            slowest = np.where(arrival > 0, np.max(times(arrival, shared), axis=-1, keepdims=True), 0.0)
            steps = steps._replace(downlink=np.minimum(times(arrival, own) + slowest, outage_s))
        of_stages = stages(steps, local_loss=own_loss)
    spent = joules(round_, work, links, steps)
    reduce: Callable[..., Floats] = np.sum if exchange.in_sequence else np.max
    wait_s = [reduce(of_stage, axis=-1) for of_stage in of_stages]
    wait_s[2] = np.sum(server, axis=-1) + wait_s[2]
    shape = np.broadcast_shapes(done.shape, links.arrival.shape)

    def each(part: Floats) -> Floats:
        return np.broadcast_to(part, shape)

    if round_.equations.timing == "overlap" or timelines is not None:
        forward_s = server_seconds(round_, work, arrival, 0.0)
        passes = np.stack([each(forward_s), each(server) - each(forward_s)])
        rows = (-1, round_.num_clients)
        cuts = np.broadcast_to(0 if exchange.full_local_model else plan.cut, shape).reshape(rows)
        shapes = shapes_of(round_, exchange, cuts, each(arrival).reshape(rows).sum(axis=1))
        if not shapes[0].joint_backward or shapes[0].turns:
            passes = np.stack([each(server), np.zeros(shape)])
        parts = np.zeros((len(PARTS), *shape))
        for row, part in zip(STEP_ROWS, steps, strict=True):
            parts[row] = part
        parts[5:7] = passes
        parts = parts.reshape(len(PARTS), *rows)
        if timelines is not None:
            servers = round_.compute.server_processors if round_.equations.timing == "overlap" else 1
            of_steps = np.zeros((len(PARTS), round_.num_clients))
            of_steps[list(STEP_ROWS)] = [np.broadcast_to(own, round_.num_clients) for own in spent]
            timelines.append(Timeline.of(shapes[0], parts[:, 0], servers, of_steps))
        if round_.equations.timing == "overlap":
            waits = by_shape(shapes, parts, round_.compute.server_processors).reshape((*shape[:-1], 3))
            wait_s = list(np.moveaxis(waits, -1, 0))
    return RoundCost(
        resplit_delay_by_client_s=each(of_stages[0]),
        model_down_delay_s=each(steps.model_down),
        client_forward_delay_s=each(steps.forward),
        uplink_delay_s=each(steps.uplink),
        server_delay_s=each(server),
        downlink_delay_s=each(steps.downlink),
        client_backward_delay_s=each(steps.backward),
        model_up_delay_s=each(steps.model_up),
        resplit_energy_j=each(spent.resplit_up),
        client_forward_energy_j=each(spent.forward),
        uplink_energy_j=each(spent.uplink),
        client_backward_energy_j=each(spent.backward),
        model_up_energy_j=each(spent.model_up),
        resplit_delay_s=wait_s[0],
        uplink_stage_delay_s=wait_s[1],
        server_stage_delay_s=wait_s[2],
        in_time=done,
        # A client that isn't done in time has lost its packet.
        packet_error_rate=np.where(done, links.packet_error_rate, 1.0)
        if np.isfinite(outage_s).any()
        else links.packet_error_rate,
        uplink_rate_bps=links.uplink_rate_bps,
        downlink_rate_bps=round_.downlink_rate_bps,
    )


def _until(end_s: float, parts: Sequence[Floats], began: Bools | None = None) -> Sequence[Floats]:
    """How long each part of a stage really takes, one after the other, if the stage ends at `end_s`."""
    if not np.isfinite(end_s).any():
        return parts
    left: Floats | float = end_s if began is None else np.where(began, end_s, 0.0)
    taken = []
    for part in parts:
        taken.append(np.minimum(part, left))
        left = left - taken[-1]
    return taken


def _share_of_one_pass(arrival: Floats) -> Floats:
    """Split one server pass, made if any packet arrives, over the clients: sums to P(any arrives), [N]."""
    any_arrives = 1.0 - np.prod(1.0 - arrival, axis=-1, keepdims=True)
    total = arrival.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(arrival * any_arrives, total, out=np.zeros_like(arrival), where=total > 0))


def times(bits: Floats, per_bit: Floats) -> Floats:
    """bits · per_bit, where no bits cost nothing even on a dead link."""
    if np.isfinite(per_bit).all():
        return bits * per_bit
    with np.errstate(invalid="ignore"):
        return np.where(bits != 0, bits * per_bit, 0.0)
