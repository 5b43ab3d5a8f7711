"""A channel: Rayleigh fading behind obstacles that come and go slowly (log-normal shadowing, correlated over rounds).

asfl --plugin examples/my_channel.py scenario demo --set scenario.channel.kind=shadowing
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import asfl
from asfl.config import Radio, Scenario
from asfl.config.randomness import random_stream
from asfl.config.units import from_db
from asfl.radio.link import place_clients


@dataclass(frozen=True)
class ShadowedChannel:
    """gain = path gain · shadow · Exp(1), the shadow in dB being X_r = ρ X_{r−1} + √(1−ρ²) σ ε_r with X_0 = σ ε_0."""

    scenario: Scenario
    radio: Radio
    deviation_db: float = 6.0  # how much obstacles weigh
    memory: float = 0.9  # how much of a round's shadow is still there in the next; 0: none
    shadow_db: list[NDArray[np.float64]] = field(default_factory=list, init=False)  # by round, as far as asked for

    def at(self, round_index: int) -> asfl.ChannelState:
        """The same round always gives the same links: every draw is keyed by seed, purpose and round."""
        seed, clients, memory = self.scenario.seed, self.scenario.clients, self.memory
        for index in range(len(self.shadow_db), round_index + 1):
            draw = self.deviation_db * random_stream(seed, "shadowing", index).standard_normal(clients)
            self.shadow_db.append(memory * self.shadow_db[-1] + np.sqrt(1 - memory**2) * draw if index else draw)
        mean_gain = place_clients(self.scenario).path_gain * from_db(self.shadow_db[round_index])
        fading = random_stream(seed, "fading", round_index).exponential(size=clients)
        # Shadows change so slowly that the server knows them; what is left to chance is the fading.
        return asfl.ChannelState(path_gain=mean_gain, channel_gain=mean_gain * fading, gain_is_known=False)


asfl.register_channel("shadowing", ShadowedChannel)
