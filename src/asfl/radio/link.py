"""Who is where; and one client's link: rates and packet error rates (paper §II-A and §II-B: c^UP, c^DN and s).

With `radio.link = "nr"` both come from tables of 5G NR (`asfl.radio.nr`); the SNRs stay the same. Arrays broadcast
against each other; the last axis is the client. A client without a resource block has rate 0 and packet error rate 1.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asfl.config.randomness import random_stream
from asfl.config.units import from_db
from asfl.radio.nr import Direction, curve_of

if TYPE_CHECKING:
    from asfl import config
    from asfl.config import Radio

Floats = NDArray[np.float64]
UplinkPower = Literal["shared", "each_rb"]

# ---------------------------------------------------------------------- clients and their gains
MIN_DISTANCE_M = 1.0
"""No client is nearer to the server."""
PATH_GAIN_AT_1M_DB = -30.0


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of a scenario; arrays have shape [N] unless stated."""

    position_m: NDArray[np.float64]
    """[N, 2], the server is at the origin."""
    distance_m: NDArray[np.float64]
    path_gain: NDArray[np.float64]
    cpu_hz: NDArray[np.float64]


def place_clients(scenario: "config.Scenario") -> Clients:
    """Draw positions (uniform in the disc, §V-A) and processor speeds (uniform).

    A larger `clients` keeps the first ones where they are.
    """
    uniform = random_stream(scenario.seed, "positions").random((scenario.clients, 2))
    inner, outer = MIN_DISTANCE_M**2, scenario.radius_m**2
    distance = np.sqrt(inner + (outer - inner) * uniform[:, 0])
    angle = 2 * np.pi * uniform[:, 1]
    speed = random_stream(scenario.seed, "cpu").random(scenario.clients)
    return Clients(
        position_m=distance[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]),
        distance_m=distance,
        path_gain=path_gain(distance, scenario.channel),
        cpu_hz=scenario.min_cpu_hz + (scenario.max_cpu_hz - scenario.min_cpu_hz) * speed,
    )


def path_gain(distance_m: NDArray[np.float64], channel: "config.ChannelSettings") -> NDArray[np.float64]:
    """θ of §V-A as a linear gain: 10^((−30 − 40 log₁₀ d)/10) with the default exponent."""
    return from_db(PATH_GAIN_AT_1M_DB) * distance_m**-channel.path_loss_exponent


@dataclass(frozen=True, eq=False)
class ChannelState:
    """The links of one round; arrays have shape [N]."""

    path_gain: Floats
    """θ: the mean gain; for a trace, its mean over time."""
    channel_gain: Floats
    """|h|²: the gain in this round."""
    gain_is_known: bool
    """Whether packets meet exactly this gain (trace) or fade around the mean (Rayleigh)."""
    block_gain: Floats | None = None
    """[N, K] the gain of each resource block in this round, whose mean is `channel_gain`; None: all have the same."""


def block_centres_hz(radio: "Radio") -> Floats:
    """[K] of the resource blocks, relative to the carrier."""
    return (np.arange(radio.num_rbs, dtype=np.float64) - (radio.num_rbs - 1) / 2) * radio.rb_bandwidth_hz


# ---------------------------------------------------------------------- rates
class SmoothRate(NamedTuple):
    """bit/s and Hz as min(scale · log₂(1 + SNR / gap), most): exact for the waterfall link, a fit of 5G NR."""

    scale: float
    gap: float
    most: float

    @classmethod
    def of(cls, radio: "Radio") -> "SmoothRate":
        if radio.link == "waterfall":
            return cls(1.0, 1.0, np.inf)
        curve = curve_of("uplink", radio.rb_bandwidth_hz)
        return cls(curve.fit_scale, curve.fit_gap, curve.most)


def downlink_rate_bps(channel_gain: ArrayLike, radio: "Radio", *, fitted: bool = False) -> Floats:
    """c^DN = B^DN · log₂(1 + p^s g / (B^DN N₀)), (4)."""
    bandwidth = radio.downlink_bandwidth_hz
    snr = radio.server_tx_power_w * np.asarray(channel_gain, float) / (bandwidth * radio.noise_psd_w_per_hz)
    return _carried_bps("downlink", bandwidth, snr, radio, fitted=fitted)


def uplink_rate_bps(
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    channel_gain: ArrayLike,
    radio: "Radio",
    uplink_power: UplinkPower = "shared",
    *,
    fitted: bool = False,
) -> Floats:
    """c^UP = k · B · log₂(1 + SNR), (5); of 5G NR what arrives, or (`fitted`) the smooth fit of it.

    `shared`: SNR = p g / (k B N₀), the client's one power is spread over its k blocks, as the packet error rate and
    the energy already assume. `each_rb`: SNR = p g / (B N₀), as printed, which spends p on every block and pays once.
    """
    count = np.asarray(rb_count, float)
    received_w = np.asarray(tx_power_w, float) * np.asarray(channel_gain, float)
    snr = received_w / uplink_noise_w(np.where(count > 0, count, 1.0), radio, uplink_power)
    return _carried_bps("uplink", count * radio.rb_bandwidth_hz, snr, radio, fitted=fitted)


def _carried_bps(way: Direction, bandwidth_hz: Floats | float, snr: Floats, radio: "Radio", *, fitted: bool) -> Floats:
    if radio.link == "nr":
        curve = curve_of(way, radio.rb_bandwidth_hz)
        return np.asarray(bandwidth_hz * (curve.fitted(snr) if fitted else curve.carried(snr)))
    return np.asarray(bandwidth_hz * np.log1p(snr) / np.log(2))


def uplink_rate_of_blocks_bps(
    rb_count: ArrayLike,
    tx_power_w: ArrayLike,
    ranked_gain: Floats,
    radio: "Radio",
    uplink_power: UplinkPower = "shared",
    *,
    fitted: bool = False,
) -> Floats:
    """B Σ_j log₂(1 + p g_j / (k B N₀)) over the first k of a client's blocks, whose gains [N, K] differ.

    A share of a block, where they are shared in time, is taken of all blocks alike.
    """
    clients = ranked_gain.shape[0]
    shape = np.broadcast_shapes(np.shape(rb_count), np.shape(tx_power_w), (clients,))
    count, power = (np.broadcast_to(np.asarray(each, float), shape) for each in (rb_count, tx_power_w))
    total, noise_w = np.zeros(shape), float(uplink_noise_w(np.ones(1), radio, "each_rb")[0])
    sent_w = (power / uplink_noise_w(np.where(count > 0, count, 1.0), radio, uplink_power) * noise_w).ravel()
    # Block after block, of those who have as many: most candidates have few. `having` are places in the flat arrays.
    flat, counts, having = total.ravel(), count.ravel(), np.arange(total.size)
    for place in range(int(min(counts.max(initial=0), ranked_gain.shape[1]))):
        having = having[counts[having] > place]
        received_w = sent_w[having] * ranked_gain[having % clients, place]
        flat[having] += _carried_bps("uplink", radio.rb_bandwidth_hz, received_w / noise_w, radio, fitted=fitted)
    shared = count != np.round(count)
    if shared.any():
        mean = uplink_rate_bps(count, power, ranked_gain.mean(axis=1), radio, uplink_power, fitted=fitted)
        total = np.where(shared, mean, total)
    return total


def uplink_noise_w(rb_count: Floats, radio: "Radio", uplink_power: UplinkPower) -> Floats:
    """The noise that a client's power has to beat: of all its blocks (`shared`), or of one (`each_rb`); counts > 0."""
    sharing_rbs = rb_count if uplink_power == "shared" else np.ones_like(rb_count)
    return np.asarray(sharing_rbs * (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz))


def packet_error_rate_rayleigh(
    rb_count: ArrayLike, tx_power_w: ArrayLike, path_gain: ArrayLike, radio: "Radio"
) -> Floats:
    """s averaged over Rayleigh fading, E[1 − exp(−x/χ)] with χ ~ Exp(1), in closed form: 1 − 2√x K₁(2√x).

    x = α k B N₀ / (p θ) and K₁ is the modified Bessel function of the second kind.
    """
    if radio.link == "nr":
        return _lost_by_nr(rb_count, tx_power_w, path_gain, radio, rayleigh=True)
    return _one_minus_z_k1(2 * np.sqrt(_error_exponent(rb_count, tx_power_w, path_gain, radio)))


def packet_error_rate_known(
    rb_count: ArrayLike, tx_power_w: ArrayLike, channel_gain: ArrayLike, radio: "Radio"
) -> Floats:
    """s for a gain that is known, as in a measured trace: 1 − exp(−α k B N₀ / (p g))."""
    if radio.link == "nr":
        return _lost_by_nr(rb_count, tx_power_w, channel_gain, radio, rayleigh=False)
    return -np.expm1(-_error_exponent(rb_count, tx_power_w, channel_gain, radio))


def _lost_by_nr(
    rb_count: ArrayLike, tx_power_w: ArrayLike, gain: ArrayLike, radio: "Radio", *, rayleigh: bool
) -> Floats:
    count = np.asarray(rb_count, float)
    noise_w = np.where(count > 0, count, 1.0) * (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz)
    snr = np.asarray(tx_power_w, float) * np.asarray(gain, float) / noise_w
    lost = curve_of("uplink", radio.rb_bandwidth_hz).lost(snr, rayleigh=rayleigh)
    return np.where(count > 0, lost, 1.0)


def _error_exponent(rb_count: ArrayLike, tx_power_w: ArrayLike, gain: ArrayLike, radio: "Radio") -> Floats:
    """α k B N₀ / (p g); infinite for a client that has no block, no power or no gain."""
    count = np.asarray(rb_count, float)
    noise = radio.waterfall_threshold * radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz
    received_w = np.asarray(tx_power_w, float) * np.asarray(gain, float)
    heard = (count > 0) & (received_w > 1e-290)  # less is silence, and would overflow
    if heard.all():
        return np.asarray(noise * count / received_w)
    return np.where(heard, noise * count / np.where(heard, received_w, 1.0), np.inf)


# SciPy is imported where it is used: a device imports this module, computes nothing with it, and saves 30 MB.
@cache
def _series() -> list[float]:
    from scipy.special import digamma, gamma

    return [float((digamma(j + 1) + digamma(j + 2)) / (gamma(j + 1) * gamma(j + 2))) for j in range(4)]


def _one_minus_z_k1(z: Floats) -> Floats:
    """1 − z K₁(z) without cancellation at small z, where strong links live.

    From the series of K₁ (Abramowitz & Stegun 9.6.11) with x = z²/4:
    1 − z K₁(z) = −z ln(z/2) I₁(z) + x Σ_j [ψ(j+1) + ψ(j+2)] x^j / (j! (j+1)!).
    """
    is_small = z < 0.02  # above, 1 − z K₁(z) still has 12 good digits
    if is_small.all():
        return _near_zero(z)
    if not is_small.any():
        return _away_from_zero(z)
    result = np.empty_like(z)
    result[is_small], result[~is_small] = _near_zero(z[is_small]), _away_from_zero(z[~is_small])
    return result


def _near_zero(z: Floats) -> Floats:
    from scipy.special import i1, xlogy

    x, (*others, last) = z * z / 4, _series()
    series = np.full_like(x, last)
    for coefficient in reversed(others):
        series = series * x + coefficient
    return np.asarray(x * series - xlogy(z * i1(z), z / 2))


def _away_from_zero(z: Floats) -> Floats:
    from scipy.special import k1

    silent = z > 700.0  # K₁ is 0 there, and ∞ · 0 is no number
    return np.asarray(1.0 - np.where(silent, 0.0, z) * k1(z))
