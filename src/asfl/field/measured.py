"""A world that is measured instead of modelled: rounds are decided from estimates and charged what they took.

On a real network there are no resource blocks and no powers to choose: every client that is there takes part, over the
link it has. All that is left to decide is the cut, and the optimiser tries each. The cost equations are the same
(`asfl.costs`), with estimates for rates, speeds and losses. A client pays its power while it computes or sends. The
first estimates are measured before the first round (`probe`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.costs.modelled import cost_of_all_cuts
from asfl.costs.round import Round
from asfl.costs.world import Budgets, World, fairest_cut
from asfl.field.clocks import Clocks, LinkState
from asfl.field.links import Exchange, Link, OpenRequest
from asfl.field.messages import A, Ping, Probe, Request

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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

    def among(self, clients: NDArray[np.int64]) -> Round:
        arrays = ("uplink_bps", "downlink_bps", "loss", "client_s_per_flop", "client_power_w")
        links = replace(self.links, **{name: getattr(self.links, name)[clients] for name in arrays})
        return super(MeasuredRound, replace(self, links=links)).among(clients)


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
    for one in timed:
        seconds, waited_s = one.answer.seconds, one.answered_at - one.sent_at
        if seconds is not None and seconds.shape == (2, clocks.profile.num_layers) and seconds.sum() <= waited_s:
            found[one.client] = seconds.numpy()
    clocks.layers_take(found)


def _ask_all(links: Sequence[Link], request: Request[A], clocks: Clocks, deadline_s: float) -> list[Exchange[A]]:
    """All at once; what they answered."""
    there = [(client, link) for client, link in enumerate(links) if link.trouble is None]
    found: list[Exchange[A]] = []
    for asked in [OpenRequest(link, client, request, deadline_s) for client, link in there]:
        with suppress(TimeoutError, AsflError):
            found.append(asked.exchange())
            clocks.exchanged(found[-1])
    return found
