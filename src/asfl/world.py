"""The world a configuration describes: model profile, clients, channel. It deals out rounds."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asfl.channel import Channel, make_channel
from asfl.config import Config
from asfl.profile import ModelProfile, load_profile
from asfl.round import CostEquations, Round
from asfl.scenario import Clients, place_clients

if TYPE_CHECKING:
    from asfl.air import AiredRound
    from asfl.schemes import Scheme

Floats = NDArray[np.float64]
Facts = dict[str, list[float | None]]


@dataclass(frozen=True, eq=False)
class World:
    """What all schemes of one comparison share; no scheme can change it."""

    config: Config
    profile: ModelProfile
    channel: Channel

    @classmethod
    def of(cls, config: Config) -> "World":
        return cls(config, load_profile(config.model_spec), make_channel(config.scenario, config.radio))

    @cached_property
    def clients(self) -> Clients:
        return place_clients(self.config.scenario)

    @cached_property
    def equations(self) -> CostEquations:
        rules = self.config.decision
        return CostEquations.of(rules.equations, rules.uplink_power, rules.gradient_bits)

    # What a world that is measured (`asfl.field.measured`) does more.
    def training_begins(self) -> None:
        """The round has been decided; what follows takes the time that is charged."""

    def settle(self, aired: "AiredRound", scheme: "Scheme") -> "AiredRound":
        """The round was trained: what it is charged in the end. Here, what the equations say."""
        return aired

    def facts(self) -> Facts | None:
        """What was learnt of the clients so far, for the record of a round."""
        return None

    def arrays(self) -> dict[str, Floats]:
        """What has to survive between two rounds; `restore` takes it back."""
        return {}

    def restore(self, arrays: dict[str, Floats]) -> None:
        pass

    def begin_round(self, round_index: int, previous_cut: int | None = None) -> Round:
        """What is given when this round begins; the same index always gives the same round."""
        state = self.channel.at(round_index)
        return Round(
            profile=self.profile,
            radio=self.config.radio,
            compute=self.config.compute,
            charged_samples=self.config.charged_samples,
            path_gain=state.path_gain,
            channel_gain=state.channel_gain,
            cpu_hz=self.clients.cpu_hz,
            gain_is_known=state.gain_is_known,
            previous_cut=previous_cut,
            equations=self.equations,
            index=round_index,
        )
