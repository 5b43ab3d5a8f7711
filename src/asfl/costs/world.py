"""The world a configuration describes: model profile, clients, channel. It deals out rounds."""

from dataclasses import dataclass
from functools import cached_property

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.files import check_memory
from asfl.costs.account import Accountant, ModelledAccountant
from asfl.costs.round import CostEquations, Round
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.radio.channel import Channel, ClockedChannel, make_channel
from asfl.radio.scenario import Clients, place_clients

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

    def accountant(self) -> Accountant:
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
            downlink_gain=state.downlink_gain,
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
