"""Costs by the clock instead of by a model: how long stages of a round took, what that says of each client, and a world
that deals out and charges rounds by it.

Only durations are used, never two machines' clocks together: the server times a request and its answer, the client says
how long it was busy in between, and the rest was the network's. How much of that was up and how much down follows from
what the messages carried. The first estimates are measured before the first round (`probe`).

What is known of links and processors are running estimates. Times per bit and per FLOP differ by factors from client to
client and from minute to minute, so they are averaged as logarithms. Evidence fades: with every round all of it counts
less. So an estimate follows a link that changes, and it becomes uncertain for a client that hasn't been heard for a
while.

On a real network there are no resource blocks and no powers to choose: every client that is there takes part, over the
link it has. All that is left to decide is the cut, and the optimiser tries each. The cost equations are the same
(`asfl.costs`), with estimates for rates, speeds and losses. A client pays its power while it computes or sends.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from asfl.config import Config, Network
from asfl.config.errors import AsflError
from asfl.costs.modelled import ExchangeRules, cost_of_all_cuts
from asfl.costs.round import Decision, Round
from asfl.costs.world import Budgets, Facts, World, fairest_cut
from asfl.field.messages import (
    A,
    Answer,
    AnyRequest,
    Backward,
    Forward,
    Learn,
    Link,
    OpenRequest,
    Ping,
    Probe,
    Request,
)
from asfl.field.wire import WireError
from asfl.models.profile import ModelProfile
from asfl.train.signals import Task

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MEMORY = 0.6
"""How much of what was measured before counts after another round; smaller follows changes faster."""
SMALL_BYTES = 4096
"""Messages that carry less, request and answer together, show the latency."""
_MOST_AT_ONCE_J = 1e4
"""A meter may be coarse, or may have missed a moment."""
_LEAST_SHARE = 0.1
"""At least this share of the time on the network is put down to what was carried."""

PRIOR_LOG_VARIANCE = 0.25
"""Before there are several measurements, one is believed to within a factor of e^±0.5."""
SLOWEST_S_PER_BIT, FASTEST_S_PER_BIT = 1.0, 1e-13
"""No link is slower than a bit a second, or faster than 10 Tbit/s, whatever a client says of its busy time."""
SLOWEST_S_PER_FLOP, FASTEST_S_PER_FLOP = 1e-3, 1e-17
LEAST_LATENCY_S, MOST_LATENCY_S = 1e-7, 1e4
LEAST_CLIENT_W, MOST_CLIENT_W = 1e-6, 1e4
"""What a device draws."""
PRIOR_LOSS = 0.02
"""Share of rounds that an unknown client is expected to miss; counts like one round."""


class LogEstimate:
    """A positive quantity of each of N clients, from noisy measurements; fading weights, in logarithms."""

    def __init__(self, first_guess: float | Floats, size: int, least: float = 1e-300, most: float = 1e300) -> None:
        """The guess counts until the first measurement; a measurement beyond `least` or `most` counts as that."""
        self._range = least, most
        self._mean = np.broadcast_to(np.log(first_guess), size).astype(float)
        self._weight = np.zeros(size)
        self._squares = np.zeros(size)
        """Weighted sum of squared deviations from the mean."""

    def add(self, which: int, measured: float) -> None:
        """Take one measurement into account, with weight 1."""
        value = np.log(np.clip(measured, *self._range))
        self._weight[which] += 1.0
        before = value - self._mean[which]
        self._mean[which] += before / self._weight[which]
        self._squares[which] += before * (value - self._mean[which])

    def fade(self, memory: float) -> None:
        self._weight *= memory
        self._squares *= memory

    @property
    def value(self) -> Floats:
        """[N] the (geometric) mean."""
        return np.asarray(np.exp(self._mean))

    @property
    def relative_error(self) -> Floats:
        """[N] standard error of the logarithm: 0.1 is about 10 %. Infinite without a measurement."""
        variance = (self._squares + PRIOR_LOG_VARIANCE) / (self._weight + 1.0)
        with np.errstate(divide="ignore"):
            return np.sqrt(variance / self._weight)


class LossEstimate:
    """The share of rounds each client misses: a Beta distribution whose evidence fades."""

    def __init__(self, size: int) -> None:
        self._missed, self._rounds = np.zeros(size), np.zeros(size)

    def add(self, which: int, *, missed: bool) -> None:
        self._missed[which] += missed
        self._rounds[which] += 1.0

    def fade(self, memory: float) -> None:
        self._missed *= memory
        self._rounds *= memory

    @property
    def value(self) -> Floats:
        return np.asarray((self._missed + PRIOR_LOSS) / (self._rounds + 1.0))


@dataclass(frozen=True, eq=False)
class LinkState:
    """Links and processors as a decision takes them; arrays have shape [N]."""

    uplink_bps: Floats
    downlink_bps: Floats
    loss: Floats
    client_s_per_flop: Floats
    client_power_w: Floats
    """While computing or sending."""
    server_s_per_flop: float


class FleetEstimates:
    """All there is to know of the clients of a run, and of the server."""

    def __init__(self, clients: int, client_power_w: float) -> None:
        rates, speeds = (FASTEST_S_PER_BIT, SLOWEST_S_PER_BIT), (FASTEST_S_PER_FLOP, SLOWEST_S_PER_FLOP)
        self.latency_s = LogEstimate(1e-3, clients, LEAST_LATENCY_S, MOST_LATENCY_S)
        """Of a request and its answer, without what they carry."""
        self.uplink_s_per_bit = LogEstimate(1e-7, clients, *rates)
        self.downlink_s_per_bit = LogEstimate(1e-7, clients, *rates)
        self.client_s_per_flop = LogEstimate(1e-9, clients, *speeds)
        self.client_power_w = LogEstimate(client_power_w, clients, LEAST_CLIENT_W, MOST_CLIENT_W)
        self.server_s_per_flop = LogEstimate(1e-10, 1)
        self.loss = LossEstimate(clients)

    def fade(self, memory: float) -> None:
        """A round has passed."""
        estimates: dict[str, LogEstimate | LossEstimate] = vars(self)
        for estimate in estimates.values():
            estimate.fade(memory)

    def links(self) -> LinkState:
        """What to decide with."""
        return LinkState(
            uplink_bps=1.0 / self.uplink_s_per_bit.value,
            downlink_bps=1.0 / self.downlink_s_per_bit.value,
            loss=np.minimum(self.loss.value, 1.0),
            client_s_per_flop=self.client_s_per_flop.value,
            client_power_w=self.client_power_w.value,
            server_s_per_flop=float(self.server_s_per_flop.value[0]),
        )

    def to_json(self) -> dict[str, list[float | None]]:
        """For the record of a round."""
        links = self.links()
        return {
            "uplink_bps": plain(links.uplink_bps),
            "uplink_bps_error": plain(self.uplink_s_per_bit.relative_error),
            "downlink_bps": plain(links.downlink_bps),
            "client_flops": plain(1.0 / links.client_s_per_flop),
            "latency_s": plain(self.latency_s.value),
            "loss": plain(links.loss),
            "client_power_w": plain(links.client_power_w),
        }


def plain(values: Floats) -> list[float | None]:
    """Four digits are more than is known; None where there is nothing."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


# ---------------------------------------------------------------------- the clocks
@dataclass(frozen=True, eq=False)
class MeasuredCost:
    """What a round really took (`asfl.costs.world.Charge`)."""

    resplit_delay_s: float
    uplink_stage_delay_s: float
    server_stage_delay_s: float
    energy_j: Floats
    resplit_energy_j: Floats
    packet_error_rate: Floats
    """Expected when the round began."""

    @property
    def delay_s(self) -> float:
        return self.resplit_delay_s + self.uplink_stage_delay_s + self.server_stage_delay_s


@dataclass(eq=False)
class _Lap:
    """The round that is being timed."""

    started_at: float
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"uplink": [], "resplit": []})
    lost: set[int] = field(default_factory=set)


class Clocks:
    """Time the fleet of one run, and charge its rounds (`asfl.costs.world.Accountant`)."""

    def __init__(self, profile: ModelProfile, batch_size: int, clients: int, rules: Network) -> None:
        self.estimates = FleetEstimates(clients, rules.client_power_w)
        self.present: Bools = np.ones(clients, dtype=np.bool_)
        """[N] who takes part in the round that begins."""
        self.profile = profile
        """What the layers take, in bits and FLOPs (`layers_take`)."""
        self._batch_size = batch_size
        self._lap: _Lap | None = None
        self._busy_s, self._sending_s, self._resplit_s = np.zeros(clients), np.zeros(clients), np.zeros(clients)
        """[N] in this round: computing; sending; part of the latter in stage 1."""
        self._meter_j, self._meter_before_j = np.full(clients, np.nan), np.full(clients, np.nan)
        """[N] the latest readings; those at the end of the round before. NaN: none yet."""
        self._read_at = np.zeros(clients)
        """[N] when a meter was last read, by the server's clock."""

    # ------------------------------------------------------------------ a round
    def begin(self, present: Bools) -> None:
        """A round begins with these clients."""
        self.present = present.copy()
        self.estimates.fade(MEMORY)

    def training_begins(self) -> None:
        self._lap = _Lap(time.monotonic())
        for of_round in (self._busy_s, self._sending_s, self._resplit_s):
            of_round[:] = 0.0

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> MeasuredCost:
        lap, now = self._lap, time.monotonic()
        assert lap is not None
        self._lap = None
        resplit, uplink = (_covered(lap.spans[stage]) for stage in ("resplit", "uplink"))
        for client in np.flatnonzero(self.present).tolist():
            self.estimates.loss.add(client, missed=client in lap.lost)
        energy = self._energy_of_round()
        return MeasuredCost(
            resplit_delay_s=resplit,
            uplink_stage_delay_s=uplink,
            server_stage_delay_s=max(now - lap.started_at - resplit - uplink, 0.0),
            energy_j=energy,
            resplit_energy_j=np.minimum(self._resplit_s * self.estimates.client_power_w.value, energy),
            packet_error_rate=round_.packet_error_rate(decision.rb_count, decision.tx_power_w),
        )

    def _energy_of_round(self) -> Floats:
        """[N] as reported; for a client that doesn't report, its active time × the power it is taken to draw."""
        active_s = self._busy_s + self._sending_s
        grown = self._meter_j - self._meter_before_j
        grown = np.where(grown < 0, self._meter_j, grown)  # the meter began anew, with its process
        reported = np.isfinite(grown)
        for client in np.flatnonzero(reported & (active_s > 0)).tolist():
            if grown[client] > 0:
                self.estimates.client_power_w.add(client, grown[client] / active_s[client])
        self._meter_before_j = self._meter_j.copy()
        return np.where(reported, grown, active_s * self.estimates.client_power_w.value)

    def facts(self) -> Facts:
        return {**self.estimates.to_json(), "energy_reported": plain(np.isfinite(self._meter_j).astype(float))}

    # ------------------------------------------------------------------ what it sees
    def exchanged(self, seen: OpenRequest[A], answer: A) -> None:
        """A client has answered; `WireError` if it can't have consumed what it says."""
        client = seen.client
        self._read_meter(client, answer, seen.answered_at)
        elapsed_s = max(seen.answered_at - seen.sent_at, 1e-9)
        busy_s = min(answer.busy_s or 0.0, elapsed_s)
        sending_s = self._learn_rates(client, seen.request, answer, elapsed_s - busy_s)
        flops = self._flops(seen.request)
        if flops and busy_s > 0:
            self.estimates.client_s_per_flop.add(client, busy_s / flops)
        self._busy_s[client] += busy_s
        self._sending_s[client] += sending_s
        if seen.request.stage == "resplit":
            self._resplit_s[client] += sending_s
        self._note(seen.request, seen.sent_at, seen.answered_at)

    def _read_meter(self, client: int, answer: Answer, now: float) -> None:
        if answer.energy_j is None:
            return
        before, since_s = float(self._meter_j[client]), now - float(self._read_at[client])
        grown = answer.energy_j - before if answer.energy_j >= before else answer.energy_j  # it may have begun anew
        if np.isfinite(before) and grown > _MOST_AT_ONCE_J + MOST_CLIENT_W * since_s:
            self._meter_j[client] = self._meter_before_j[client] = np.nan  # the next one is a beginning
            raise WireError(f"energy_j: {grown:.3g} J more than {since_s:.3g} s ago, above {MOST_CLIENT_W:g} W")
        self._meter_j[client], self._read_at[client] = answer.energy_j, now
        if np.isnan(self._meter_before_j[client]):
            self._meter_before_j[client] = answer.energy_j

    def lost(self, client: int, request: AnyRequest, sent_at: float) -> None:
        """A client was asked and hasn't answered, or not with what was wanted."""
        if self._lap is not None:
            self._lap.lost.add(client)
        self._note(request, sent_at, time.monotonic())

    def layers_take(self, seconds: Mapping[int, Floats]) -> None:
        """Clients have measured how long each layer takes them, [2, M]: forward, backward.

        The cost equations have one share of each layer for all clients, so theirs is the median; how fast a client is,
        is its own. From now on FLOPs are shares of time: a layer has as much of all FLOPs as it takes of all time.
        """
        good = {client: times for client, times in seconds.items() if (times >= 0).all() and times.sum() > 0}
        if not good:
            return
        whole = float(self.profile.forward_flops.sum() + self.profile.backward_flops.sum())
        shares = [times / times.sum() for times in good.values()]
        share = np.median(shares, axis=0)  # one liar doesn't move it
        share = share / share.sum() if share.any() else np.mean(shares, axis=0)
        self.profile = replace(self.profile, forward_flops=whole * share[0], backward_flops=whole * share[1])
        for client, times in good.items():
            self.estimates.client_s_per_flop.add(client, float(times.sum()) / (self._batch_size * whole))

    def server_pass(self, cuts: Sequence[int], seconds: float, batch: int | None = None) -> None:
        """The server went forward and backward for clients with these cuts at once; `batch` if not the configured."""
        of_clients = self.profile.client_forward_flops + self.profile.client_backward_flops
        flops = (batch or self._batch_size) * float(sum(of_clients[-1] - of_clients[cut] for cut in cuts))
        if flops > 0:
            self.estimates.server_s_per_flop.add(0, seconds / flops)

    def _note(self, request: AnyRequest, begin: float, end: float) -> None:
        if self._lap is None or begin < self._lap.started_at:
            return
        if request.teaches:
            self._lap.spans["uplink"].append((begin, end))
        elif request.stage == "resplit":
            self._lap.spans["resplit"].append((begin, end))

    def _learn_rates(self, client: int, request: AnyRequest, answer: Answer, network_s: float) -> float:
        """Seconds the client was sending, in a time on the network of which only the sum is known."""
        estimates = self.estimates
        up_bits, down_bits = 8.0 * answer.payload_bytes, 8.0 * request.payload_bytes
        if up_bits + down_bits < 8 * SMALL_BYTES:
            estimates.latency_s.add(client, network_s)
            return 0.0
        carrying_s = max(network_s - estimates.latency_s.value[client], _LEAST_SHARE * network_s)
        up_s = up_bits * float(estimates.uplink_s_per_bit.value[client])
        down_s = down_bits * float(estimates.downlink_s_per_bit.value[client])
        # The larger part is learnt from; the smaller is as estimated, and little of the whole.
        if up_bits > down_bits:
            up_s = max(carrying_s - down_s, _LEAST_SHARE * carrying_s)
            estimates.uplink_s_per_bit.add(client, up_s / up_bits)
            return float(up_s)
        down_s = max(carrying_s - up_s, _LEAST_SHARE * carrying_s)
        estimates.downlink_s_per_bit.add(client, down_s / down_bits)
        return float(min(up_s, carrying_s))

    def _flops(self, request: AnyRequest) -> float:
        """What the client computed, if it did."""
        forward, backward = self.profile.client_forward_flops, self.profile.client_backward_flops
        match request:
            case Learn(task=Task() as task):
                of_sample = forward[-1] + backward[-1]
            case Forward(task=Task() as task):
                of_sample = forward[task.cut]
            case Backward(task=Task() as task):
                of_sample = backward[task.cut]
            case _:
                return 0.0
        return float((task.batch or self._batch_size) * of_sample)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans was going on."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


@dataclass(frozen=True, eq=False, kw_only=True)
class MeasuredRound(Round):
    """A round over links that were measured; `channel_gain` only says who is there."""

    links: LinkState

    allocation: tuple[Floats, Floats] = field(init=False)  # type: ignore[misc]
    """One "block" for each client that is there: its own link; its power is what the device draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        there = self.channel_gain > 0
        power_w = self.links.client_power_w
        object.__setattr__(self, "allocation", (there.astype(float), np.where(there, power_w, 0.0)))
        object.__setattr__(self, "client_compute_w", power_w * self.client_s_per_flop / self.client_s_per_flop)
        object.__setattr__(self, "server_s_per_flop", self.links.server_s_per_flop)

    def uplink_rate_bps(self, rb_count: ArrayLike, tx_power_w: ArrayLike) -> Floats:
        count, _ = np.broadcast_arrays(rb_count, tx_power_w)
        return np.where(count > 0, self.links.uplink_bps, 0.0)

    @cached_property
    def downlink_rate_bps(self) -> Floats:
        return self.links.downlink_bps

    def packet_error_rate(self, rb_count: ArrayLike, tx_power_w: ArrayLike) -> Floats:
        count, _ = np.broadcast_arrays(rb_count, tx_power_w)
        return np.where(count > 0, self.links.loss, 1.0)

    def among(self, clients: NDArray[np.int64], **_: Any) -> Round:
        arrays = ("uplink_bps", "downlink_bps", "loss", "client_s_per_flop", "client_power_w")
        links = replace(self.links, **{name: getattr(self.links, name)[clients] for name in arrays})
        return super().among(clients, links=links)


@dataclass(frozen=True, eq=False)
class MeasuredWorld(World):
    """Deals out rounds as the clocks see them, which also charge them."""

    clocks: Clocks

    @classmethod
    def unknown(cls, config: Config) -> "MeasuredWorld":
        """Of which nothing is known yet."""
        modelled = World.of(config)
        clocks = Clocks(modelled.profile, config.training.batch_size, config.scenario.clients, config.field)
        return cls(config, modelled.profile, modelled.channel, clocks)

    def begin_round(
        self, round_index: int, previous_cut: int | None = None, time_s: float | None = None
    ) -> MeasuredRound:
        return self._round(self.clocks.present, round_index, previous_cut)

    def _round(self, present: NDArray[np.bool_], round_index: int, previous_cut: int | None) -> MeasuredRound:
        links = self.clocks.estimates.links()
        powers, clients, compute = links.client_power_w, len(links.loss), self.config.compute
        return MeasuredRound(
            profile=self.clocks.profile,
            radio=self.config.radio.model_copy(
                update={"num_rbs": max(clients, 1), "max_tx_power_w": float(powers.max())}
            ),
            compute=compute,
            charged_samples=self.config.charged_samples,
            local_steps=self.config.training.local_steps,
            path_gain=present.astype(float),
            channel_gain=present.astype(float),
            cpu_hz=compute.client_cycles_per_flop / links.client_s_per_flop,
            gain_is_known=True,
            previous_cut=previous_cut,
            equations=self.equations,
            index=round_index,
            links=links,
        )

    def accountant(self) -> Clocks:
        return self.clocks

    def budgets(self) -> Budgets:
        """What is configured; "auto" is what the best cut takes by first measurements, with all clients.

        The best cut is that of `asfl.costs.world`. A request and its answer take time besides what they carry: two
        of them belong to a round.
        """
        rules, all_clients = self.config.decision, np.ones(self.config.scenario.clients, dtype=np.bool_)
        round_ = self._round(all_clients, 0, None)
        cost = cost_of_all_cuts(round_, *round_.allocation, all_clients)
        delay, energy = cost.delay_s + 2 * self.clocks.estimates.latency_s.value.max(), cost.energy_j
        best = int(fairest_cut(delay, energy))
        return Budgets(
            delay_s=float(delay[best]) if rules.delay_budget_s == "auto" else rules.delay_budget_s,
            energy_j=float(np.median(energy[best])) if rules.energy_budget_j == "auto" else rules.energy_budget_j,
        )


# ---------------------------------------------------------------------- first measurements
PROBE_BYTES = 1 << 17
"""Up and down: a second at 1 Mbit/s, and more than buffers on the way can hide."""


def probe(links: Sequence[Link], clocks: Clocks, deadline_s: float) -> None:
    """Ask all that are there. A client that doesn't answer stays unknown until its first round."""
    _ask_all(links, Ping(), clocks, deadline_s)
    _ask_all(links, Probe(data=torch.zeros(PROBE_BYTES, dtype=torch.uint8)), clocks, deadline_s)
    _ask_all(links, Probe(answer_bytes=PROBE_BYTES), clocks, deadline_s)
    timed = _ask_all(links, Probe(compute=True), clocks, deadline_s)
    found = {}
    for one, answer in timed:
        seconds, waited_s = answer.seconds, one.answered_at - one.sent_at
        if seconds is not None and seconds.shape == (2, clocks.profile.num_layers) and seconds.sum() <= waited_s:
            found[one.client] = seconds.numpy()
    clocks.layers_take(found)


def _ask_all(
    links: Sequence[Link], request: Request[A], clocks: Clocks, deadline_s: float
) -> list[tuple[OpenRequest[A], A]]:
    """All at once; what they answered."""
    there = [(client, link) for client, link in enumerate(links) if link.trouble is None]
    found: list[tuple[OpenRequest[A], A]] = []
    for asked in [OpenRequest(link, client, request, deadline_s) for client, link in there]:
        with suppress(TimeoutError, AsflError):
            found.append((asked, asked.answer()))
            clocks.exchanged(*found[-1])
    return found
