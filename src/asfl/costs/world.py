"""The world a configuration describes (model profile, clients, channel): it deals out rounds. What a round is charged,
by the cost equations or (`asfl.field`) by clocks and meters. Fair budgets, and what is left of total budgets.

The printed budgets (20 s, 0.5 J) fit one model, one batch size and one radio, if any. `"auto"` budgets come from
the scenario itself: every client gets the same share K/N of the resource blocks at full power, and each sampled round
takes the one cut with the smallest sum of delay and mean energy, both relative to their medians over cuts. A budget
bounds a mean, so it is a mean: over rounds of that delay, and over rounds and clients of that energy. Under Rayleigh
fading the mean of 1/rate diverges, so a stage ends after `OUTAGE_FACTOR` median rounds here, too.

Total budgets are the same for every scheme. A client whose battery gives out in a round has lost its packet, is charged
what it had, and takes part no more. The round in which the time runs out ends there: it takes what was left, and no
packet counts. A run is over when its time is, or when every battery is empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.fields import LEAST
from asfl.config.files import check_memory
from asfl.config.randomness import random_stream
from asfl.config.tree import DecisionRules
from asfl.costs.modelled import ASFL, ExchangeRules, RoundCost, cost_of_all_cuts, round_cost
from asfl.costs.round import CostEquations, Decision, Round
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.radio.channel import Channel, ClockedChannel, make_channel
from asfl.radio.link import Clients, place_clients

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Facts = dict[str, list[float | None]]

BYTES_PER_CLIENT, BYTES_PER_CUT = 20_000, 500
"""What a client of a world takes while budgets are found: its links in all sampled rounds, and its costs at every cut.
Measured, with 1,000 to 20,000 clients."""


@dataclass(frozen=True, eq=False)
class World:
    """What all schemes of one comparison share; no scheme can change it."""

    config: Config
    profile: ModelProfile
    channel: Channel

    @classmethod
    def of(cls, config: Config) -> "World":
        profile = charged_profile(config)
        check_memory(
            config.scenario.clients * (BYTES_PER_CLIENT + BYTES_PER_CUT * profile.num_layers),
            f"a world of scenario.clients = {config.scenario.clients:,}",
            "choose fewer clients",
        )
        return cls(config, profile, make_channel(config.scenario, config.radio))

    @cached_property
    def clients(self) -> Clients:
        return place_clients(self.config.scenario)

    @cached_property
    def equations(self) -> CostEquations:
        return CostEquations.of(self.config.decision)

    def accountant(self) -> "Accountant":
        """Who charges the rounds of this world."""
        return ModelledAccountant(self.config.decision.charge)

    @property
    def has_clock(self) -> bool:
        """Whether the links depend on the time that has passed, not on the number of the round."""
        return isinstance(self.channel, ClockedChannel)

    def begin_round(self, round_index: int, previous_cut: int | None = None, time_s: float | None = None) -> Round:
        """What is given when this round begins, `time_s` after the run did.

        The same index always gives the same round; where the links follow the clock, the same time does.
        """
        if time_s is not None and isinstance(self.channel, ClockedChannel):
            state = self.channel.at_time(time_s)
        else:
            state = self.channel.at(round_index)
        return Round(
            profile=self.profile,
            radio=self.config.radio,
            compute=self.config.compute,
            charged_samples=self.config.charged_samples,
            local_steps=self.config.training.local_steps,
            path_gain=state.path_gain,
            channel_gain=state.channel_gain,
            cpu_hz=self.clients.cpu_hz,
            gain_is_known=state.gain_is_known,
            block_gain=state.block_gain,
            previous_cut=previous_cut,
            equations=self.equations,
            index=round_index,
        )


def charged_profile(config: Config) -> ModelProfile:
    """The profile that costs are computed from: the trained network's, or the one `model.charged_as` names."""
    trained, name, min_cut = load_profile(config.model_spec), config.model.charged_as, config.privacy.min_cut
    if not name:
        return trained.cut_from(min_cut)
    charged = load_profile(name)
    if charged.unit_names != trained.unit_names:
        raise AsflError(
            f"model.charged_as = '{name}' has {charged.num_layers} units ({charged.unit_names[0]} … "
            f"{charged.unit_names[-1]}), but the trained {trained.name} has {trained.num_layers} "
            f"({trained.unit_names[0]} … {trained.unit_names[-1]}); both must be the same architecture"
        )
    return charged.cut_from(min_cut)


# ---------------------------------------------------------------------- who charges
class Charge(Protocol):
    """The bill of a round: a `RoundCost`, or what was measured."""

    @property
    def delay_s(self) -> Floats | float: ...
    @property
    def resplit_delay_s(self) -> Floats | float: ...
    @property
    def uplink_stage_delay_s(self) -> Floats | float: ...
    @property
    def server_stage_delay_s(self) -> Floats | float: ...
    @property
    def energy_j(self) -> Floats: ...
    @property
    def resplit_energy_j(self) -> Floats: ...
    @property
    def packet_error_rate(self) -> Floats: ...


class Accountant(Protocol):
    """Charges rounds. One that measures starts its clock when training begins."""

    def training_begins(self) -> None:
        """What follows takes the time that is charged."""

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> Charge:
        """The bill of the round that was just trained."""

    def facts(self) -> Facts | None:
        """What was learnt of the clients so far, for the record of a round."""


@dataclass(frozen=True)
class ModelledAccountant:
    """Charges what the equations say: for what happened or, as in the paper, its expectation."""

    basis: Literal["realised", "expected"] = "realised"

    def training_begins(self) -> None:
        pass

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: Bools) -> RoundCost:
        return round_cost(round_, decision, None if self.basis == "expected" else arrived, exchange)

    def facts(self) -> Facts | None:
        return None


def draw_arrivals(round_: Round, decision: Decision, seed: int) -> Bools:
    """[N] whose packet survives the channel. One uniform number per client and round, the same for every scheme.

    On a real network nothing is drawn: all are expected, and the server sees which clients don't answer.
    """
    if round_.allocation is not None:
        return decision.scheduled
    luck = random_stream(seed, "arrivals", round_.index).random(round_.num_clients)
    lost = round_.packet_error_rate(decision.rb_count, decision.tx_power_w)
    return np.asarray(decision.scheduled & (luck >= lost))


# ---------------------------------------------------------------------- budgets of rounds
SAMPLED_ROUNDS = 200
OUTAGE_FACTOR = 3.0
"""A stage that takes longer than this many average rounds ends; a client that isn't done has lost its packet."""
MOST_COST = 1e12
"""Seconds or joules that a budget may be."""


@dataclass(frozen=True)
class Budgets:
    """What a round may cost on average: γ for the round, δ for each client; and when a stage ends."""

    delay_s: float
    energy_j: float
    outage_s: float = np.inf
    """Of a round of ASFL."""
    own_outage_s: float = np.inf
    """Of a round of the scheme, whose stages may take longer."""


def resolve_budgets(world: World, exchange: ExchangeRules = ASFL, cuts: Sequence[int] | None = None) -> Budgets:
    """The configured budgets, with "auto" replaced by what the fair policy takes.

    A scheme that can't move its cut gets the budgets of its own `cuts`. A scheme with exchange rules other than ASFL's
    answers for ASFL's budgets (it borrows ASFL's decisions, or is compared with them), but its stages may take longer:
    `own_outage_s` follows what its own rounds take.
    """
    return _resolved(world.config.decision, exchange, lambda policy: fair_policy(world, policy, cuts))


def budgets_of_round(round_: Round, rules: DecisionRules) -> Budgets:
    """Where only one round is known, "auto" is what the fair policy takes in it."""
    return _resolved(rules, ASFL, lambda policy: _fair([round_], policy, None))


def _resolved(rules: DecisionRules, exchange: ExchangeRules, fair_with: Callable[[ExchangeRules], Budgets]) -> Budgets:
    delay, energy, outage = rules.delay_budget_s, rules.energy_budget_j, rules.outage_s
    if delay == "auto" or energy == "auto":
        fair = fair_with(ASFL)
        delay = fair.delay_s * rules.auto_budget_scale if delay == "auto" else delay
        energy = fair.energy_j * rules.auto_budget_scale if energy == "auto" else energy
        if not all(LEAST <= cost <= MOST_COST for cost in (delay, energy)):
            raise AsflError(
                f'delay_budget_s and energy_budget_j can\'t be "auto" here: a round of the fair policy takes '
                f"{fair.delay_s:.3g} s and {fair.energy_j:.3g} J, which no machine can mean; look at scenario, radio "
                "and compute, or give both budgets"
            )
    if outage == "off":
        return Budgets(delay, energy)
    if outage != "auto":
        return Budgets(delay, energy, outage, outage)
    every_round = replace(exchange, phases=(0, 0))  # no phase takes a client longer
    own_delay = delay if exchange.keeps_client_sides else fair_with(every_round).delay_s
    return Budgets(delay, energy, OUTAGE_FACTOR * delay, OUTAGE_FACTOR * max(own_delay, delay))


def fairest_cut(delay_s: Floats, energy_j: Floats) -> NDArray[np.intp]:
    """[...] the place of the cut with the smallest sum of delay [..., cuts] and mean energy [..., cuts, clients].

    Both are relative to their medians over cuts.
    """
    mean_energy = energy_j.mean(axis=-1)
    relative_delay = delay_s / np.median(delay_s, axis=-1, keepdims=True)
    relative_energy = mean_energy / np.median(mean_energy, axis=-1, keepdims=True)
    return np.asarray(np.argmin(relative_delay + relative_energy, axis=-1))


def fair_policy(world: World, exchange: ExchangeRules = ASFL, cuts: Sequence[int] | None = None) -> Budgets:
    """Mean delay of a round and mean energy of a client under the fair policy, at the best of `cuts` (or of all)."""
    return _fair([world.begin_round(index) for index in range(SAMPLED_ROUNDS)], exchange, cuts)


def _fair(rounds: Sequence[Round], exchange: ExchangeRules, cuts: Sequence[int] | None) -> Budgets:
    delay, _ = _fair_costs(rounds, exchange, cuts)
    outage_s = OUTAGE_FACTOR * float(np.median(delay))
    delay, energy = _fair_costs([replace(one, outage_s=outage_s) for one in rounds], exchange, cuts)
    return Budgets(delay_s=float(delay.mean()), energy_j=float(energy.mean()))


def _fair_costs(rounds: Sequence[Round], exchange: ExchangeRules, cuts: Sequence[int] | None) -> tuple[Floats, Floats]:
    """Delays [rounds] and energies [rounds, clients] under the fair policy."""
    num_clients, radio, profile = rounds[0].num_clients, rounds[0].radio, rounds[0].profile
    # One client after the other: each with all the blocks.
    share = float(radio.num_rbs) if exchange.in_sequence else radio.num_rbs / num_clients
    share_of_each, full_power = np.full(num_clients, share), np.full(num_clients, radio.max_tx_power_w)
    allowed = np.clip(profile.cuts if cuts is None else cuts, profile.min_cut, profile.num_layers - 1) - profile.min_cut
    delays, energies = [], []
    for round_ in rounds:  # one after the other: the costs of all cuts and clients in all rounds would take gigabytes
        cost = cost_of_all_cuts(round_, share_of_each, full_power, exchange=exchange)
        delay, energy = cost.delay_s, cost.energy_j
        if not exchange.full_local_model:
            best = fairest_cut(delay[allowed], energy[allowed])
            delay, energy = delay[allowed][best], energy[allowed][best]
        delays.append(delay)
        energies.append(energy)
    return np.array(delays), np.array(energies)


# ---------------------------------------------------------------------- total budgets

NOTHING = 1e-9
"""Less than this share of a budget is rounding, and nothing is left."""


@dataclass(frozen=True, eq=False)
class RemainingBudget:
    """What all rounds together may take, and what is left of it. Infinite: no limit."""

    time_s: float = field(metadata={"fixed": True})
    battery_j: Floats = field(metadata={"fixed": True})
    """[N]"""
    time_left_s: float
    battery_left_j: Floats
    """[N]"""
    rounds: int = field(metadata={"fixed": True})
    """How many there may be at most."""

    @classmethod
    def of(cls, config: Config) -> "RemainingBudget | None":
        """When a run begins; None without a total budget."""
        time_s, battery_j = config.budget.total_delay_s, config.budget.battery_j
        if time_s == "off" and battery_j == "off":
            return None
        time = np.inf if time_s == "off" else time_s
        batteries = np.broadcast_to(np.inf if battery_j == "off" else battery_j, config.scenario.clients).astype(float)
        return cls(time, batteries, time, batteries, config.training.rounds)

    @property
    def empty(self) -> Bools:
        """[N] who can't take part any more."""
        return self.battery_left_j <= 0

    @property
    def used_up(self) -> bool:
        """Whether there can't be another round."""
        return self.time_left_s <= 0 or bool(self.empty.all())

    def reachable(self, round_: Round) -> Round:
        """The round as it is with some batteries empty: nothing is heard of these clients."""
        return replace(round_, channel_gain=np.where(self.empty, 0.0, round_.channel_gain))

    def without_empty(self, decision: Decision) -> Decision:
        """No blocks for empty clients, whatever scheme decided."""
        return replace(decision, rb_count=np.where(self.empty, 0.0, decision.rb_count))

    def outlast(self, cost: RoundCost) -> Bools:
        """[N] who has both battery and time until the end of a round with this cost."""
        return np.asarray((cost.energy_j <= self.battery_left_j) & (cost.delay_s <= self.time_left_s))

    def cut_off(self, cost: RoundCost) -> RoundCost:
        """What a round costs until batteries and time run out, stage by stage."""
        delays = ("resplit_delay_s", "uplink_stage_delay_s", "server_stage_delay_s")
        energies = (
            "resplit_energy_j",
            "client_forward_energy_j",
            "uplink_energy_j",
            "client_backward_energy_j",
            "model_up_energy_j",
        )
        until = _until(cost, delays, np.asarray(self.time_left_s)) | _until(cost, energies, self.battery_left_j)
        return replace(cost, **until)

    def after(self, charge: Charge) -> "RemainingBudget":
        """After a round that was charged this."""
        time_left_s = self.time_left_s - float(charge.delay_s)
        left_j = self.battery_left_j - charge.energy_j
        return replace(
            self,
            time_left_s=time_left_s if time_left_s > NOTHING * self.time_s or self.time_s == np.inf else 0.0,
            battery_left_j=np.where((left_j > NOTHING * self.battery_j) | (self.battery_j == np.inf), left_j, 0.0),
        )

    def record(self) -> dict[str, Any]:
        """For the record of a round: what is left of that which is limited."""
        limited = np.isfinite(self.battery_j).all()
        return {
            "time_left_s": self.time_left_s if np.isfinite(self.time_s) else None,
            "battery_left_j": self.battery_left_j.tolist() if limited else None,
        }


def _until(cost: RoundCost, parts: tuple[str, ...], left: Floats) -> dict[str, Any]:
    """Parts of a cost, one after the other, until nothing is left."""
    taken = {}
    for name in parts:
        taken[name] = np.minimum(getattr(cost, name), left)
        left = np.where(np.isfinite(left), left - taken[name], left)
    return taken
