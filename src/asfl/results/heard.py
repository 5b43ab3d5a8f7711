"""What the server hears of its clients at any time, and where they are: behind pictures of worlds and of runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config import Radio
from asfl.config.errors import AsflError
from asfl.config.units import to_db
from asfl.radio.channel import Channel, ClockedChannel, make_channel
from asfl.radio.traces import Surroundings
from asfl.results.curves import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Heard:
    """T moments of a world."""

    snr_db: Floats
    """[T, N] of one resource block at full power."""
    position_m: Floats | None
    """[T, N, 2]"""
    surroundings: Surroundings | None

    @classmethod
    def at(cls, channel: ClockedChannel, radio: Radio, times_s: Floats) -> "Heard":
        where: Any = getattr(channel, "position_at", lambda _: None)
        positions = [where(time_s) for time_s in times_s.tolist()]
        gains = np.array([channel.at_time(time_s).channel_gain for time_s in times_s.tolist()])
        known = bool(positions) and all(position is not None for position in positions)
        return cls(
            snr_db=full_power_snr_db(gains, radio),
            position_m=np.array(positions) if known else None,
            surroundings=getattr(channel, "surroundings", None),
        )


def full_power_snr_db(gain: Floats, radio: Radio) -> Floats:
    """SNR of one resource block if a client sends with all its power."""
    return to_db(radio.max_tx_power_w * gain / (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz))


def heard_in(run: Run) -> Heard | None:
    """At the beginning of every round of a run; None where no clock moves the links, or the trace is gone."""
    config = run.config
    if config is None or config.scenario.channel.kind == "rayleigh" or config.field.costs == "measured":
        return None
    try:
        channel: Channel = make_channel(config.scenario, config.radio)
    except AsflError:
        return None
    if not isinstance(channel, ClockedChannel) or not run.records:
        return None
    return Heard.at(channel, config.radio, np.array([r.total_delay_s - r.delay_s for r in run.records]))
