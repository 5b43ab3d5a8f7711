"""Everything that is given when a round begins: model, radio, processors, channel, the cut before."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from asfl.config.errors import AsflError
from asfl.config.fields import Amount, Count, Hertz, Index, Positive
from asfl.config.shapes import Each
from asfl.config.tree import Compute, DecisionRules, Radio, Training
from asfl.costs.crossing import FREE, Holdings, Overheads
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.radio import link

Floats = NDArray[np.float64]
USUAL_SAMPLES = Training().batch_size
Cut = Annotated[int, Field(strict=True, ge=1)]


def _name_or_columns(source: Any, handler: Any) -> Any:
    """In JSON a profile is the name of a model, or its columns."""
    named = core_schema.no_info_after_validator_function(load_profile, core_schema.str_schema())
    return core_schema.tagged_union_schema(
        {"name": named, "columns": handler(source)},
        discriminator=lambda given: "name" if isinstance(given, str) else "columns",
    )


@dataclass(frozen=True)
class CostEquations:
    """Where the costs as printed and as corrected differ: one switch per difference (docs/paper.md)."""

    uplink_power: link.UplinkPower = "shared"
    """`shared`: a client's power is spread over its blocks; `each_rb`: (5) as printed, spent on every block."""
    gradient_bits: Literal["activations", "next_layer"] = "activations"
    """What stage 3 returns per sample: q_c bits (`activations`), or ψ_{c+1} as printed in (13) (`next_layer`)."""
    resplit_energy: Literal["sent", "signed"] = "sent"
    """(17) for layers that go up (`sent`), or as printed (`signed`): layers that come down then pay the client back."""
    overheads: Overheads = FREE

    @classmethod
    def of(cls, rules: DecisionRules) -> "CostEquations":
        """The switches of a reading, each of which may be set by itself; "auto" follows the reading."""
        base = CORRECTED if rules.equations == "corrected" else PRINTED
        share = None if rules.discrepancy_sample_ratio == "auto" else rules.discrepancy_sample_ratio
        return cls(
            uplink_power=base.uplink_power if rules.uplink_power == "auto" else rules.uplink_power,
            gradient_bits=base.gradient_bits if rules.gradient_bits == "auto" else rules.gradient_bits,
            resplit_energy=rules.resplit_energy,
            overheads=Overheads(rules.overheads == "charged", share),
        )


def _refused(given: Any) -> Any:
    raise PydanticCustomError("name", "it follows from the rules; leave it out")


FROM_RULES = GetPydanticSchema(
    lambda *_: core_schema.no_info_plain_validator_function(_refused), lambda *_: {"not": {}}
)
"""In JSON such a field is left out."""
CORRECTED = CostEquations()
PRINTED = CostEquations(uplink_power="each_rb", gradient_bits="next_layer")


@dataclass(frozen=True, eq=False)
class Round:
    """The state a decision is made in and charged against. Client arrays have shape [N]."""

    profile: Annotated[ModelProfile, GetPydanticSchema(_name_or_columns)]
    """The model's layers: a name such as "vgg19-cifar100" (`asfl list profiles`), or columns."""
    path_gain: Annotated[Floats, Each(Amount)]
    """θ, the mean gain of each client."""
    channel_gain: Annotated[Floats, Each(Amount)]
    """|h|², the gain in this round."""
    cpu_hz: Annotated[Floats, Each(Hertz)]
    """Each client's processor."""
    radio: Radio = field(default_factory=Radio)
    compute: Compute = field(default_factory=Compute)
    charged_samples: Positive = USUAL_SAMPLES
    """D_n in the costs: batch_size × local_steps."""
    gain_is_known: bool = False
    """True: the packet error rate uses this round's gain (traces); False: it averages over Rayleigh fading."""
    previous_cut: Cut | None = None
    """The cut of the round before; None in the first round, when nothing has to move."""
    holdings: Holdings | None = None
    """Who has which layers, where clients are brought up to date when they take part; None: all clients always are."""
    equations: Annotated[CostEquations, FROM_RULES] = field(default_factory=CostEquations)
    outage_s: Annotated[float, FROM_RULES] = np.inf
    """A stage ends after this time for clients that aren't done; their packets are lost."""
    block_gain: Annotated[Floats, Each(Amount, "clients blocks")] | None = None
    """[N, K] the gain of each resource block, where they differ; `channel_gain` is then their mean."""
    downlink_gain: Annotated[Floats, Each(Amount)] | None = None
    """The gain on the way down; None: `channel_gain`."""
    blocks: Annotated[NDArray[np.bool_], Each(bool, "clients blocks")] | None = None
    """[N, K] which blocks are whose, once that is decided; before, k blocks of a client mean its k best."""
    fitted_link: Annotated[bool, FROM_RULES] = False
    """Whether rates are the smooth fit that optimisers use instead of the link's own; they differ for 5G NR only."""
    reports: bool = True
    """Whether optimisers count a report of each client that has learnt; what is charged follows the exchange."""
    local_steps: Count = 1
    """Mini-batches a client takes in the round."""
    index: Index = 0
    """Which round this is; random decisions are drawn from streams keyed by it."""

    def __post_init__(self) -> None:
        for name, low in (("path_gain", "≥ 0"), ("channel_gain", "≥ 0"), ("cpu_hz", "> 0")):
            values = np.asarray(getattr(self, name), dtype=float)
            if values.ndim != 1 or values.shape != np.shape(self.cpu_hz):
                lengths = ", ".join(f"{n} {np.size(getattr(self, n))}" for n in ("path_gain", "channel_gain", "cpu_hz"))
                raise AsflError(f"round: all lists need one entry per client, but they have {lengths}")
            valid = np.isfinite(values) & (values >= 0 if low == "≥ 0" else values > 0)
            if not valid.all():
                client = int(np.flatnonzero(~valid)[0])
                raise AsflError(f"round.{name}[{client}] = {values[client]:g} must be a finite number {low}")
            object.__setattr__(self, name, values)
        last = self.profile.num_layers - 1
        if self.previous_cut is not None and not 1 <= self.previous_cut <= last:
            raise AsflError(
                f"round.previous_cut = {self.previous_cut} must be 1 … {last} for a model of {last + 1} layers"
            )

    @property
    def batch_size(self) -> float:
        """Samples in a mini-batch, as configured."""
        return self.charged_samples / self.local_steps

    @property
    def num_clients(self) -> int:
        return len(self.cpu_hz)

    def among(self, clients: NDArray[np.int64]) -> "Round":
        """The round as if there were only these clients."""
        names = ("path_gain", "channel_gain", "cpu_hz", "block_gain", "blocks", "downlink_gain")
        own = {name: getattr(self, name)[clients] for name in names if getattr(self, name) is not None}
        return replace(self, **own)

    @cached_property
    def _ranked_gain(self) -> Floats:
        """[N, K] the gains of the blocks in the order in which clients take them: their own first, good ones first."""
        assert self.block_gain is not None
        mine = np.zeros(self.block_gain.shape, dtype=bool) if self.blocks is None else self.blocks
        order = np.lexsort((-self.block_gain, ~mine), axis=1)
        return np.take_along_axis(self.block_gain, order, axis=1)

    @cached_property
    def _gain_for_errors(self) -> Floats:
        """[N, K + 1] by how many blocks a client has: the harmonic mean, as errors add up block by block."""
        with np.errstate(divide="ignore"):
            mean_inverse = np.cumsum(1.0 / self._ranked_gain, axis=1) / np.arange(1, self._ranked_gain.shape[1] + 1)
        return np.column_stack([self.channel_gain, 1.0 / mean_inverse])

    @property
    def allocation(self) -> tuple[Floats, Floats] | None:
        """Resource blocks and powers [N], where they aren't ours to choose (`asfl.field.measured`); None: they are."""
        return None

    @cached_property
    def client_s_per_flop(self) -> Floats:
        return np.asarray(self.compute.client_cycles_per_flop / self.cpu_hz)

    @cached_property
    def client_j_per_flop(self) -> Floats:
        return np.asarray(self.compute.client_cycles_per_flop * self.compute.energy_coefficient * self.cpu_hz**2)

    @cached_property
    def server_s_per_flop(self) -> float:
        return self.compute.server_cycles_per_flop / self.compute.server_hz

    def uplink_rate_bps(self, rb_count: Floats, tx_power_w: Floats) -> Floats:
        sharing = self.equations.uplink_power
        if self.block_gain is not None:
            return link.uplink_rate_of_blocks_bps(
                rb_count, tx_power_w, self._ranked_gain, self.radio, sharing, fitted=self.fitted_link
            )
        return link.uplink_rate_bps(
            rb_count, tx_power_w, self.channel_gain, self.radio, sharing, fitted=self.fitted_link
        )

    def downlink_rate_bps(self) -> Floats:
        gain = self.channel_gain
        if self.downlink_gain is not None:  # a client without uplink gain has no downlink either
            gain = np.where(gain > 0, self.downlink_gain, 0.0)
        return link.downlink_rate_bps(gain, self.radio, fitted=self.fitted_link)

    def packet_error_rate(self, rb_count: Floats, tx_power_w: Floats) -> Floats:
        """s of (1); 1 for a client without a block."""
        if self.gain_is_known:
            gain = self.channel_gain
            if self.block_gain is not None:
                whole = np.where(np.equal(rb_count, np.round(rb_count)), rb_count, 0.0).astype(int)
                gain = self._gain_for_errors[np.arange(self.num_clients), whole]
            return link.packet_error_rate_known(rb_count, tx_power_w, gain, self.radio)
        return link.packet_error_rate_rayleigh(rb_count, tx_power_w, self.path_gain, self.radio)
