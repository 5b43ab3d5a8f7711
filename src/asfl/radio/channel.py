"""How strong each client's link is: Rayleigh fading over path loss, a measured trace, or a cell of 3GPP TR 38.901.

A channel is anything with `at(round_index) -> ChannelState`; the simulation asks for nothing else. One that also has
`at_time(time_s)` follows the clock: it is asked for the time that passed since the run began, which every scheme's
rounds fill differently. Your own becomes a value of `scenario.channel.kind` by `register_channel`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from asfl.config.errors import AsflError
from asfl.config.names import CHANNELS
from asfl.config.randomness import random_stream
from asfl.config.units import dbm_to_w, from_db
from asfl.radio.cell import CellChannel
from asfl.radio.link import MIN_DISTANCE_M, ChannelState, block_centres_hz, path_gain, place_clients
from asfl.radio.traces import Surroundings, Trace, read_trace

if TYPE_CHECKING:
    from asfl import config

Floats = NDArray[np.float64]


class Channel(Protocol):
    def at(self, round_index: int) -> ChannelState:
        """The links in this round; the same round always gives the same links."""
        ...


@runtime_checkable
class ClockedChannel(Channel, Protocol):
    """A channel that changes with time instead of rounds; `at` says what is typical, where there is no clock."""

    def at_time(self, time_s: float) -> ChannelState:
        """The links this long after the run began; the same time always gives the same links."""
        ...


@dataclass(frozen=True)
class RayleighChannel:
    """§V-A: gain = path gain · Exp(1), drawn anew each round. Clients stay, or are placed anew each round."""

    scenario: "config.Scenario"

    def at(self, round_index: int) -> ChannelState:
        mean_gain = place_clients(self.scenario).path_gain
        fading = random_stream(self.scenario.seed, "fading", round_index).exponential(size=self.scenario.clients)
        return ChannelState(mean_gain, mean_gain * fading, gain_is_known=False)


TAPS = 24
TAPS_PER_SPREAD = 4
DELAY_SPREAD_S = 3.0e-7
RSRP_TX_POWER_W = dbm_to_w(15.0)
"""Echoes of selective Rayleigh fading: this many in one delay spread, and none after six of them."""


@dataclass(frozen=True)
class TappedRayleighChannel:
    """Rayleigh fading that differs from block to block: echoes whose power falls exponentially with their delay.

    h(f) = Σ_l √P_l c_l e^(−j2πfτ_l) with c_l ~ CN(0, 1), drawn anew each round. Each block's |h|² is Exp(1), as in the
    flat channel; blocks further apart than about 1/(5 · delay spread) are nearly independent.
    """

    scenario: "config.Scenario"
    radio: "config.Radio"

    def at(self, round_index: int) -> ChannelState:
        scenario = self.scenario
        mean_gain = place_clients(scenario).path_gain
        steps = np.arange(TAPS) / TAPS_PER_SPREAD
        power = np.exp(-steps)
        turning = np.exp(-2j * np.pi * np.outer(steps * DELAY_SPREAD_S, block_centres_hz(self.radio)))
        real, imaginary = random_stream(scenario.seed, "echoes", round_index).normal(size=(2, scenario.clients, TAPS))
        echoes = (real + 1j * imaginary) * np.sqrt(power / power.sum() / 2)
        by_block = mean_gain[:, None] * np.abs(echoes @ turning) ** 2
        return ChannelState(mean_gain, by_block.mean(axis=1), gain_is_known=False, block_gain=by_block)


@dataclass(frozen=True, eq=False)
class TraceChannel:
    """Measured gains, one array per client; a client whose trace ends starts over."""

    gains: tuple[Floats, ...]
    samples_per_round: int = 1
    by_block: tuple[Floats, ...] | None = None
    """[time, K] for each client, if blocks differ."""
    surroundings: Surroundings | None = None
    """Where these clients walk, if the trace says so."""

    def at(self, round_index: int) -> ChannelState:
        sample = round_index * self.samples_per_round
        return ChannelState(
            path_gain=np.array([gain.mean() for gain in self.gains]),
            channel_gain=np.array([gain[sample % len(gain)] for gain in self.gains]),
            gain_is_known=True,
            block_gain=None
            if self.by_block is None
            else np.array([gain[sample % len(gain)] for gain in self.by_block]),
        )


@dataclass(frozen=True, eq=False)
class ClockedTrace(TraceChannel):
    """A trace that the clock runs through."""

    sample_period_s: float = 1.0

    def at_time(self, time_s: float) -> ChannelState:
        return self.at(int(time_s / self.sample_period_s))

    def position_at(self, time_s: float) -> Floats | None:
        """[N, 2] in metres; None if the trace doesn't say."""
        if self.surroundings is None:
            return None
        ways = self.surroundings.position_m
        return np.asarray(ways[:, int(time_s / self.sample_period_s) % ways.shape[1]])


def _rayleigh(scenario: "config.Scenario", radio: "config.Radio") -> Channel:
    return (
        TappedRayleighChannel(scenario, radio) if scenario.channel.blocks == "selective" else RayleighChannel(scenario)
    )


def _from_trace(scenario: "config.Scenario", radio: "config.Radio") -> Channel:
    options = scenario.channel
    trace = read_trace(Path(options.trace_file), options.trace_quantity)
    gains = trace_gains(trace, scenario, radio)
    if len(gains) < scenario.clients:
        raise AsflError(
            f"{trace.source} has {len(gains)} users with enough values, but scenario.clients = {scenario.clients}"
        )
    # Which users play is part of the world, so it is drawn from the seed; all of them keep the order of the file.
    users = random_stream(scenario.seed, "trace users").permutation(len(gains))[: scenario.clients]
    playing, by_block = tuple(gains[user] for user in np.sort(users)), None
    around = trace.surroundings and replace(
        trace.surroundings, position_m=trace.surroundings.position_m[np.sort(users)]
    )
    if options.blocks == "selective":
        every = _block_gains(trace, gains, radio)
        by_block = tuple(every[user] for user in np.sort(users))
    if options.trace_samples_per_round == "clock":
        return ClockedTrace(playing, 1, by_block, around, trace.sample_period_s)
    return TraceChannel(playing, options.trace_samples_per_round, by_block, around)


def _block_gains(trace: Trace, gains: list[Floats], radio: "config.Radio") -> list[Floats]:
    """[time, K] of each user; their means are the gains of the user."""
    if trace.by_block is None or trace.block_hz is None:
        raise AsflError(f'scenario.channel.blocks = "selective", but {trace.source} has one gain for all blocks')
    if trace.block_hz.shape != (radio.num_rbs,) or not np.allclose(trace.block_hz, block_centres_hz(radio)):
        spacing = float(np.diff(trace.block_hz).mean()) if len(trace.block_hz) > 1 else radio.rb_bandwidth_hz
        raise AsflError(
            f"{trace.source} has the gains of {len(trace.block_hz)} blocks of {spacing:g} Hz, but radio.num_rbs = "
            f"{radio.num_rbs} and radio.rb_bandwidth_hz = {radio.rb_bandwidth_hz:g}"
        )
    shapes = [from_db(values) for values in trace.by_block]
    return [shape * (gain / shape.mean(axis=1))[:, None] for shape, gain in zip(shapes, gains, strict=True)]


ChannelFactory = Callable[..., Channel]
"""Of a scenario and a radio; and of settings, if it is one of your own."""
_SHIPPED: dict[str, ChannelFactory] = {"rayleigh": _rayleigh, "trace": _from_trace, "3gpp": CellChannel.of}


def register_channel(name: str, factory: ChannelFactory) -> None:
    """Make `scenario.channel.kind = name` mean the channel that `factory(scenario, radio)` returns.

    What else the factory takes are settings: `[scenario.channel.own]` may have them, and nothing else.
    """
    if not callable(factory):
        raise AsflError(f"register_channel('{name}'): {factory!r} is no function of (scenario, radio)")
    CHANNELS.register(name, factory)


def make_channel(scenario: "config.Scenario", radio: "config.Radio") -> Channel:
    """The channel a configuration asks for."""
    factory: ChannelFactory = CHANNELS.named(scenario.channel.kind) or _SHIPPED[scenario.channel.kind]
    kind, own = scenario.channel.kind, scenario.channel.own
    channel = factory(scenario, radio, **CHANNELS.settings(kind, dict(own.items())))
    if not callable(getattr(channel, "at", None)):
        raise AsflError(
            f"channel '{scenario.channel.kind}': its factory gave {channel!r}, not an object with at(round_index)"
        )
    return channel


def trace_gains(trace: Trace, scenario: "config.Scenario", radio: "config.Radio") -> list[Floats]:
    """Linear channel gains behind measured quantities, one array per user.

    SNR is read as that of one resource block at full client power: g = SNR · B N₀ / P^max. RSRP is a received power:
    g = RSRP / power per resource element. A relative gain, such as the power of pilots, has no absolute scale and
    is shifted to the path gain at the disc's median distance.
    """
    options = scenario.channel
    if trace.quantity == "gain_db":
        gains = [from_db(values) for values in trace.values]
    elif trace.quantity == "snr_db":
        reference = radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz / radio.max_tx_power_w
        gains = [from_db(values) * reference for values in trace.values]
    elif trace.quantity == "rsrp_dbm":
        gains = [from_db(values) * 1e-3 / RSRP_TX_POWER_W for values in trace.values]
    else:
        gains = list(trace.values)

    if trace.quantity != "relative_gain":
        return gains
    median_distance = np.sqrt((MIN_DISTANCE_M**2 + scenario.radius_m**2) / 2)
    target = float(path_gain(np.array(median_distance), options))
    median = float(np.median(np.concatenate(gains)))
    if not median > 0:
        raise AsflError(f"{trace.source}: the median gain is {median:g}, so it can't be scaled to {target:g}")
    return [gain * (target / median) for gain in gains]
