"""What is given when a round begins (model, radio, processors, channel, the cut before, who holds which layers), and
what is decided: where to cut, who gets how many resource blocks, at what power; and, beyond the paper, whether client
sides are averaged and how many bits cross the link.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from asfl.config.errors import AsflError
from asfl.config.fields import Amount, Count, Hertz, Index, Positive
from asfl.config.shapes import Each
from asfl.config.tree import Compute, DecisionRules, Radio, Training
from asfl.config.units import BITS_PER_VALUE
from asfl.models.load import load_profile
from asfl.models.profile import ModelProfile
from asfl.radio import link

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cut = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True, ge=1, le=10**6)]
ALLOWED_BITS = (32, 16, 8, 4)
MOST_BATCHES = 4
"""A client's mini-batch has at most so many times the configured number of samples."""
BITS_PER_GROUP = 2 * BITS_PER_VALUE
"""A group of numbers that are quantised together (a channel, or a sample where there is one position only) comes with a
`low` and a `step` of 32 bits each (`asfl.train.quantise`)."""


# ---------------------------------------------------------------------- what is decided
@dataclass(frozen=True, eq=False)
class Decision:
    """One round's decision. Only how many blocks a client gets matters, unless the channel differs over blocks."""

    cut: Annotated[int | Ints, Each(Whole, or_one=True)]
    """How many layers the client holds, 1 … M−1; one number, or one per client [N] (ACC-SFL)."""
    rb_count: Annotated[Floats, Each(Amount)]
    """[N] resource blocks per client; 0 means the client sits out."""
    tx_power_w: Annotated[Floats, Each(Amount)]
    """[N] transmit power in W, 0 … P^max."""
    bits: Annotated[int | Ints, Each(Whole, or_one=True)] = BITS_PER_VALUE
    """Of every value that crosses: activations, gradients, layers that are averaged; one number, or one per client [N].
    Layers that move because the cut does cross whole."""
    synced: Index = 0
    """Client-side layers 1 … `synced` are averaged at the end of the round; 0: each client keeps its own."""
    blocks: Annotated[Bools, Each(bool, "clients blocks")] | None = None
    """[N, K] whose each resource block is, where blocks differ; as many in a row as `rb_count` says."""
    batch: Annotated[Ints, Each(Whole)] | None = None
    """[N] samples in each client's mini-batch (HASFL); None: as many as are configured."""

    @property
    def scheduled(self) -> Bools:
        """[N] who takes part in the round."""
        return self.rb_count > 0

    @property
    def rb_owner(self) -> list[int | None] | None:
        """[K] whose each block is, None: no client's, or of one that sits out; None where blocks don't differ."""
        if self.blocks is None:
            return None
        return [int(column.argmax()) if column.any() else None for column in (self.blocks & self.scheduled[:, None]).T]

    @property
    def rb_mask(self) -> Bools:
        """[N, K'] whose each block is; where that doesn't matter, client after client takes the next (K' in all)."""
        if self.blocks is not None:
            return self.blocks
        owner = np.repeat(np.arange(len(self.rb_count)), self.rb_count.astype(int))
        return np.equal(np.arange(len(self.rb_count))[:, None], owner)


def check_decision(
    decision: Decision,
    num_layers: int,
    num_rbs: int,
    max_tx_power_w: float,
    *,
    in_sequence: bool = False,
) -> None:
    """Raise an AsflError naming the field if the decision breaks a constraint (30d)–(30i) of the paper.

    `in_sequence`: clients take turns, so each may use all the blocks (split learning).
    """
    cut = np.atleast_1d(decision.cut)
    wrong = cut[(cut < 1) | (cut > num_layers - 1)]
    if wrong.size:
        raise AsflError(f"decision.cut = {wrong[0]} must be 1 … {num_layers - 1} for a model of {num_layers} layers")
    count, power = decision.rb_count, decision.tx_power_w
    _check_each("decision.rb_count", count, np.isfinite(count) & (count >= 0), "a number ≥ 0")
    _check_each("decision.rb_count", count, count == np.round(count), "a whole number")
    used = count.max(initial=0) if in_sequence else count.sum()
    if used > num_rbs * (1 + 1e-9):
        raise AsflError(f"decision.rb_count gives out {used:g} resource blocks, but radio.num_rbs = {num_rbs}")
    if mistake := wrong_bits(decision.bits):
        raise AsflError(f"decision.bits {mistake}")
    if not 0 <= decision.synced <= cut.max():
        raise AsflError(f"decision.synced = {decision.synced} must be 0 … {cut.max()}, the layers that clients hold")
    if cut.min() < cut.max() and decision.synced not in (0, cut.max()):
        raise AsflError(
            f"decision.synced = {decision.synced} must be {cut.max()} where cuts differ: layers that some clients hold "
            "and the server trains for others are averaged, and so is everything below them"
        )
    if decision.batch is not None:
        _check_each("decision.batch", decision.batch, decision.batch >= 1, "a number of samples ≥ 1")
    fits = np.isfinite(power) & (power >= 0) & (power <= max_tx_power_w * (1 + 1e-12))
    _check_each("decision.tx_power_w", power, fits, f"0 … {max_tx_power_w:g} W (radio.max_tx_power_w)")


def wrong_bits(bits: int | Ints) -> str:
    """Behind the name of numbers of bits: which of them is not allowed; empty if all are."""
    unknown = np.setdiff1d(bits, ALLOWED_BITS)
    return f"= {unknown[0]} must be one of {', '.join(map(str, ALLOWED_BITS))}" if unknown.size else ""


def _check_each(name: str, values: Floats | Ints, valid: Bools, wanted: str) -> None:
    if not valid.all():
        client = int(np.flatnonzero(~valid)[0])
        raise AsflError(f"{name}[{client}] = {values[client]:g} must be {wanted}")


# ---------------------------------------------------------------------- who holds what
@dataclass(frozen=True)
class Overheads:
    """Whether what the paper leaves out is charged: labels, running statistics, reports, scales of missed averages."""

    charged: bool = False
    reported_share: float | None = None
    """ι, where parameters themselves are reported, in 32 bits; None: `modelled.REPORTED_NUMBERS` for each layer."""


def moving_bits(profile: ModelProfile, overheads: Overheads) -> Floats:
    """[M] each layer when the cut moves, whole."""
    return profile.param_bits + profile.statistic_bits if overheads.charged else profile.param_bits


def prefix_sums(values: Floats) -> Floats:
    """[..., M] -> [..., M+1], 0 first."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


@dataclass(frozen=True, eq=False)
class Holdings:
    """What would have to cross the link before each client can train each layer. N clients, M layers.

    ASFL as published gives new layers to all clients at once. Schemes that average client sides can't: clients that sit
    out would receive every average. Here clients fetch missed updates when they return, and are charged then.
    """

    stale_bits: Annotated[Floats, Each(Amount, "clients layers")]
    """[N, M] bits per parameter that a client must receive: 0 if it is up to date, 32 for the whole layer; less if only
    averages at fewer bits were missed, which come as differences."""
    diverged: Annotated[Bools, Each(bool, "layers")]
    """[M] whether clients' copies of a layer differ. A layer that all share needn't be sent up when it moves."""
    missed: Annotated[Floats, Each(Amount, "clients layers")] = field(default_factory=lambda: np.zeros((1, 1)))
    """[N, M] how many averages with few bits a client has missed: each comes with scales of its own."""

    @classmethod
    def fresh(cls, num_clients: int, num_layers: int) -> "Holdings":
        """All clients have the initial model."""
        nothing = np.zeros((num_clients, num_layers))
        return cls(nothing, np.zeros(num_layers, dtype=np.bool_), nothing)

    def download_bits(self, profile: ModelProfile, cut: Ints, overheads: Overheads) -> Floats:
        """[..., N] what each client must receive to hold its layers up to a cut [..., 1] or [N].

        With overheads: differences with the scales of each, or the whole layer if that is less; statistics as they are.
        """
        differences = (self.stale_bits > 0) & (self.stale_bits < BITS_PER_VALUE)
        missed = np.where(differences, self.missed if overheads.charged else 1.0, 0.0)
        stale = self.stale_bits / BITS_PER_VALUE * profile.param_bits + missed * BITS_PER_GROUP * profile.param_groups
        if overheads.charged:
            stale = np.minimum(stale, profile.param_bits) + np.where(self.stale_bits > 0, profile.statistic_bits, 0.0)
        return np.asarray(prefix_sums(stale)[np.arange(len(self.stale_bits)), cut])

    def upload_bits(self, profile: ModelProfile, cut: Ints, previous_cut: int | None, overheads: Overheads) -> Floats:
        """[..., N] at full precision: layers above the cut that go to the server, as far as it doesn't know them."""
        if previous_cut is None:
            return np.zeros(np.broadcast_shapes(np.shape(cut), (len(self.stale_bits),)))
        known = (self.stale_bits > 0) | ~self.diverged
        unknown = prefix_sums(np.where(known, 0.0, moving_bits(profile, overheads)))
        return np.asarray(
            unknown[:, previous_cut] - unknown[np.arange(len(self.stale_bits)), np.minimum(cut, previous_cut)]
        )

    def after(self, decision: Decision, updated: Bools, *, trained: bool) -> "Holdings":
        """After a round: `updated` [N] have received what they needed; `trained`: some packet arrived."""
        layers = np.arange(1, self.stale_bits.shape[1] + 1)
        cut = np.broadcast_to(decision.cut, len(self.stale_bits))
        held = layers <= cut[:, None]
        stale, missed = (np.where(updated[:, None] & held, 0.0, before) for before in (self.stale_bits, self.missed))
        stale = np.where(layers > cut.max(), BITS_PER_VALUE, stale) if trained else stale
        diverged = self.diverged & (layers <= cut.max())
        if trained:
            averaged = layers <= decision.synced
            bits = float(np.max(np.broadcast_to(decision.bits, len(cut))[decision.scheduled], initial=0))
            stale = np.where(averaged, np.minimum(stale + bits, BITS_PER_VALUE), stale)
            missed = missed + (averaged & (bits < BITS_PER_VALUE))
            diverged = (diverged | (layers <= cut.max())) & ~averaged
        return Holdings(stale, diverged, missed)


# ---------------------------------------------------------------------- the round
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
    overheads: Overheads = field(default_factory=Overheads)
    timing: Literal["stages", "overlap"] = "stages"
    """Whether there are barriers between stages (`asfl.costs.timeline`)."""

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
            timing=rules.timing,
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
    charged_samples: Positive = Training().batch_size
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
    blocks: Annotated[Bools, Each(bool, "clients blocks")] | None = None
    """[N, K] which blocks are whose, once that is decided; before, k blocks of a client mean its k best."""
    fitted_link: Annotated[bool, FROM_RULES] = False
    """Whether rates are the smooth fit that optimisers use instead of the link's own; they differ for 5G NR only."""
    reports: bool = True
    """Whether optimisers count a report of each client that has learnt; what is charged follows the exchange."""
    local_steps: Count = 1
    """Mini-batches a client takes in the round."""
    index: Index = 0
    """Which round this is; random decisions are drawn from streams keyed by it."""
    num_clients: int = field(init=False)
    client_s_per_flop: Floats = field(init=False)
    client_compute_w: Floats = field(init=False)
    server_s_per_flop: float = field(init=False)
    allocation: ClassVar[tuple[Floats, Floats] | None] = None
    """Resource blocks and powers [N], where they aren't ours to choose (`asfl.field.measured`); None: they are."""

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
        s_per_flop, j_per_cycle = self.compute.client_cycles_per_flop / self.cpu_hz, self.compute.energy_coefficient
        j_per_flop = self.compute.client_cycles_per_flop * j_per_cycle * self.cpu_hz**2
        object.__setattr__(self, "num_clients", len(self.cpu_hz))
        object.__setattr__(self, "client_s_per_flop", s_per_flop)
        object.__setattr__(self, "client_compute_w", j_per_flop / s_per_flop)
        object.__setattr__(self, "server_s_per_flop", self.compute.server_cycles_per_flop / self.compute.server_hz)

    @property
    def batch_size(self) -> float:
        """Samples in a mini-batch, as configured."""
        return self.charged_samples / self.local_steps

    def among(self, clients: Ints, **beside: Any) -> "Round":
        """The round as if there were only these clients."""
        names = ("path_gain", "channel_gain", "cpu_hz", "block_gain", "blocks")
        own = {name: getattr(self, name)[clients] for name in names if getattr(self, name) is not None}
        return replace(self, **own, **beside)

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

    def uplink_rate_bps(self, rb_count: Floats, tx_power_w: Floats) -> Floats:
        sharing = self.equations.uplink_power
        if self.block_gain is not None:
            return link.uplink_rate_of_blocks_bps(
                rb_count, tx_power_w, self._ranked_gain, self.radio, sharing, fitted=self.fitted_link
            )
        return link.uplink_rate_bps(
            rb_count, tx_power_w, self.channel_gain, self.radio, sharing, fitted=self.fitted_link
        )

    @cached_property
    def downlink_rate_bps(self) -> Floats:
        return link.downlink_rate_bps(self.channel_gain, self.radio, fitted=self.fitted_link)

    @cached_property
    def downlink_s_per_bit(self) -> Floats:
        """[N] infinite on a dead link."""
        with np.errstate(divide="ignore"):
            return 1.0 / self.downlink_rate_bps

    @cached_property
    def receiving_s_per_bit(self) -> Floats:
        """[N] the same, but of what goes to all clients: one that can't be reached isn't waited for."""
        return np.where(np.isfinite(self.downlink_s_per_bit), self.downlink_s_per_bit, 0.0)

    def packet_error_rate(self, rb_count: Floats, tx_power_w: Floats) -> Floats:
        """s of (1); 1 for a client without a block."""
        if self.gain_is_known:
            gain = self.channel_gain
            if self.block_gain is not None:
                whole = np.where(np.equal(rb_count, np.round(rb_count)), rb_count, 0.0).astype(int)
                gain = self._gain_for_errors[np.arange(self.num_clients), whole]
            return link.packet_error_rate_known(rb_count, tx_power_w, gain, self.radio)
        return link.packet_error_rate_rayleigh(rb_count, tx_power_w, self.path_gain, self.radio)
