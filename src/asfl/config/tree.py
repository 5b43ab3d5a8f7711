"""The whole experiment as one frozen, validated tree; defaults are Table II of the paper unless a field says so."""

import math
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from asfl.config.errors import nearest, short
from asfl.config.fields import (
    FILE_NAME,
    AutoIndex,
    AutoJoule,
    AutoPositive,
    AutoSecond,
    AutoShare,
    Blocks,
    Clients,
    ClockCount,
    Count,
    CyclesPerFlop,
    Exponent,
    FileName,
    Hertz,
    Index,
    JoulePerCycleHertz2,
    Meter,
    MeterPerSecond,
    NonNegative,
    OffJoules,
    OffSecond,
    OutageSecond,
    OwnSettings,
    Positive,
    PositiveShare,
    Section,
    Share,
    ShareBelowOne,
    Watt,
    WattPerHertz,
    Width,
    known_name,
    known_settings,
)
from asfl.config.names import (
    CHANNELS,
    MODELS,
    NAME_PATTERN,
    Architecture,
    Dataset,
    ModelSpec,
    Norm,
    Precision,
    is_known,
    private_shape,
    unknown_data_set,
)
from asfl.config.units import dbm_to_w

ChannelKind = Annotated[Literal["rayleigh", "trace", "3gpp"] | str, known_name(CHANNELS.__contains__, CHANNELS.unknown)]


class Cell(Section):
    """A cell as 3GPP TR 38.901 has it, for kind "3gpp" (extra asfl[channels]); clients walk while the clock runs."""

    model: Literal["umi", "uma", "rma"] = "umi"
    """Urban micro (server at 10 m), urban macro (25 m) or rural macro (35 m); clients are at 1.5 m."""
    carrier_hz: Hertz = 3.5e9
    """Carrier frequency; the models hold from 0.5 to 100 GHz, RMa up to 30 GHz."""
    shadowing: bool = True
    """Whether obstacles raise and lower the path gain by several dB, correlated along a way."""
    speed_mps: MeterPerSecond = 3 / 3.6
    """How fast clients walk, 100 m there and back; 3 km/h is the standard's. 0: they stand still."""

    @model_validator(mode="after")
    def _in_the_models_range(self) -> Self:
        most = 30e9 if self.model == "rma" else 100e9
        if not 0.5e9 <= self.carrier_hz <= most:
            raise ValueError(
                f"carrier_hz = {self.carrier_hz:g} must be 5e8 … {most:g}, where the {self.model} model holds"
            )
        return self


class ChannelSettings(Section):
    """How strong each client's link is, round by round."""

    kind: ChannelKind = "rayleigh"
    """Rayleigh fading over path loss, a measured trace, or a cell of 3GPP TR 38.901; or your own: a name given to
    asfl.register_channel."""
    blocks: Literal["flat", "selective"] = "flat"
    """Whether all resource blocks of a client have the same gain, as in the paper, or each its own."""
    path_loss_exponent: Exponent = 4.0
    """How fast the path gain falls with distance: 10 dB per decade and unit of exponent."""
    trace_file: FileName = ""
    """CSV or NPZ file with the measurements; needed if kind is "trace"."""
    trace_quantity: Literal["auto", "gain_db", "snr_db", "rsrp_dbm"] = "auto"
    """Which measurement of a CSV or NPZ file to use; "auto" takes gains (`asfl data trace`) or SNR if there are any."""
    trace_samples_per_round: ClockCount = 1
    """How many samples of the trace pass from one round to the next; "clock": as many as the rounds take time."""
    cell: Cell = Cell()
    own: OwnSettings = Field(default_factory=OwnSettings)
    """Settings of a channel of your own: what its factory takes besides (scenario, radio)."""

    @model_validator(mode="after")
    def _declared(self, info: ValidationInfo) -> Self:
        known_settings(CHANNELS, self.kind, self.own, info)
        return self


class Radio(Section):
    """The link between clients and server."""

    link: Literal["waterfall", "nr"] = "waterfall"
    """What a link carries at its SNR: Shannon's rate, with packets lost by a waterfall threshold, as in the paper; or
    5G NR, with coding schemes, block error rates and HARQ (docs/channels.md)."""
    num_rbs: Blocks = 8
    """Number of uplink resource blocks, K."""
    rb_bandwidth_hz: Hertz = 1.0e6
    """Bandwidth of one resource block, B."""
    downlink_bandwidth_hz: Hertz = 8.0e6
    """Bandwidth of the downlink, B^DN."""
    noise_psd_w_per_hz: WattPerHertz = dbm_to_w(-173.0)
    """Noise power spectral density, N₀ (−173 dBm/Hz)."""
    waterfall_threshold: Positive = 1.0
    """α in the packet error rate of the waterfall link."""
    max_tx_power_w: Watt = 1.5
    """The most a client may transmit with, P^max."""
    server_tx_power_w: Watt = 5.0
    """Transmit power of the server, p^s."""
    slices: Count = 1
    """In how many packets a mini-batch crosses, S, and its gradients; with `timing = "overlap"`."""


class Scenario(Section):
    """Who is where, with what processor."""

    clients: Clients = 10
    """Number of clients, N."""
    seed: Index = 1
    """Every random stream is keyed by this seed, its purpose and the round."""
    radius_m: Meter = 500.0
    """Radius of the disc in which the clients are placed uniformly; the server is at its centre."""
    min_cpu_hz: Hertz = 1.0e9
    """Slowest client processor; speeds are uniform between the slowest and the fastest."""
    max_cpu_hz: Hertz = 1.6e9
    """Fastest client processor."""
    channel: ChannelSettings = ChannelSettings()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.radius_m <= 1.0:
            raise ValueError(f"radius_m = {self.radius_m:g} must be above 1, the least distance")
        if self.min_cpu_hz > self.max_cpu_hz:
            raise ValueError(f"min_cpu_hz = {self.min_cpu_hz:g} must not be above max_cpu_hz = {self.max_cpu_hz:g}")
        if self.channel.kind == "trace" and not self.channel.trace_file:
            raise ValueError('channel.kind = "trace" needs channel.trace_file, the path of a measured trace')
        return self


class Compute(Section):
    """Processors and what they consume."""

    server_hz: Hertz = 1.0e10
    """Processor speed of the server, f^s."""
    server_cycles_per_flop: CyclesPerFlop = 1 / 32
    """Server cycles for one FLOP, κ^s."""
    server_processors: Count = 1
    """How many packets the server works on at once, each at `server_hz`; with `timing = "overlap"`."""
    client_cycles_per_flop: CyclesPerFlop = 1 / 16
    """Client cycles for one FLOP, κ^c."""
    energy_coefficient: JoulePerCycleHertz2 = 1.0e-28
    """φ: one client cycle at f Hz consumes φ f² joule."""


class Model(Section):
    """The network that is trained."""

    architecture: Annotated[Architecture | str, known_name(MODELS.__contains__, MODELS.unknown)] = "vgg19"
    """Which network; or your own: a name given to asfl.register_model."""
    width: Width = 1.0
    """Multiplies the number of channels of every layer."""
    norm: Norm = "batch"
    """Normalisation behind each convolution."""
    charged_as: FileName = ""
    """Profile that delays and energies are computed from, such as "vgg19-cifar10", if not the trained network's own. It
    must have the same units: a narrow network is trained, and its wide sister charged."""
    own: OwnSettings = Field(default_factory=OwnSettings)
    """Settings of a network of your own: what its builder takes besides the spec."""

    @model_validator(mode="after")
    def _declared(self, info: ValidationInfo) -> Self:
        known_settings(MODELS, self.architecture, self.own, info)
        return self


class Data(Section):
    """What is learnt, and how it is spread over the clients."""

    name: Annotated[Dataset | str, FILE_NAME, known_name(is_known, unknown_data_set)] = "cifar100"
    """Data set; or your own: the path of an .npz file, or a name given to asfl.data.register_arrays. Images that stay
    on the devices that have them: what they look like, "private_3x32x32_10" (channels, height, width, classes)."""
    partition: Literal["dirichlet", "shards", "groups", "quantity"] = "dirichlet"
    """Who gets which samples. As many each: by label mixes ~ Dir(ρ); a few shards of samples sorted by label; or by the
    groups of your own data (`train_groups`), each of which stays with one client. Or more and fewer, labels by chance:
    by sizes, what each has beyond one mini-batch ~ Dir(1)."""
    dirichlet_alpha: Positive = 10.0
    """ρ: label mix of each client ~ Dir(ρ); smaller is more heterogeneous."""
    augment: bool = True
    """Random crops and flips of the training images (never of digits)."""
    validation: ShareBelowOne = 0.0
    """Share of the training images with which accuracy is measured instead of training; the test images are then left
    alone. Where images are private, each device holds out this share of its own; with 0, a tenth."""

    @property
    def private(self) -> bool:
        """Whether images stay on the devices that have them."""
        return private_shape(self.name) is not None

    @property
    def held_out(self) -> float:
        """Share of its private images with which a device measures accuracy."""
        return self.validation or 0.1

    @property
    def uneven(self) -> bool:
        """Whether some clients may have more samples than others."""
        return self.private or self.partition == "quantity"


class Training(Section):
    """How the model is trained."""

    rounds: Count = 200
    """Number of rounds, R."""
    batch_size: Count = 64
    """Samples of one mini-batch."""
    local_steps: Count = 1
    """Mini-batches each client exchanges in one round."""
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    """Optimiser of client and server side; the paper doesn't name one."""
    learning_rate: Positive = 1.0e-4
    """η."""
    initial: Count | FileName = ""
    """What training starts from. Empty: random weights. A file: the weights in it, such as `model.safetensors` of a run
    of this network. A number: so many rounds of `central` before round 1, for which nobody is charged."""
    initial_rate: AutoPositive = "auto"
    """η of those central rounds; "auto" is `learning_rate`, whatever single schemes have of their own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where PyTorch computes; "auto" takes a GPU if there is one."""
    precision: Precision = "float32"
    """What layers multiply in; weights, gradients, optimisers and what crosses are float32 either way. bfloat16 takes
    about half the time on processors that have it, and much longer on others."""

    @property
    def central_rounds(self) -> int:
        """How many there are before round 1."""
        return self.initial if isinstance(self.initial, int) else 0


class DecisionRules(Section):
    """How cut, resource blocks and power are chosen, and what a round is charged."""

    equations: Literal["corrected", "printed"] = "corrected"
    """Which reading of the paper's equations: with our corrections, or as printed (docs/paper.md)."""
    uplink_power: Literal["auto", "shared", "each_rb"] = "auto"
    """Whether the power is shared by a client's resource blocks or spent on each; "auto" follows `equations`."""
    gradient_bits: Literal["auto", "activations", "next_layer"] = "auto"
    """What returns on the downlink: the gradient of the activations, or as many bits as the next layer has
    parameters, per sample; "auto" follows `equations`."""
    resplit_energy: Literal["sent", "signed"] = "sent"
    """What a moved cut takes of clients' energy: what they send, or (17) as printed: a cut that grows pays."""
    overheads: Literal["charged", "free"] = "charged"
    """Whether labels, running statistics, the reports a decision needs, and scales of missed averages cross for what
    they take, or for free (docs/costs.md)."""
    error_weight: Literal["(1-s)^2", "s^2", "s"] = "(1-s)^2"
    """What multiplies the server-side norm in the printed objective; unused in the corrected one."""
    form: Literal["drift", "per_round_budgets"] = "drift"
    """Whether all blocks minimise drift plus penalty, or RBs and power obey this round's budgets (the paper)."""
    power_rule: Literal["exact", "printed"] = "exact"
    """Powers that are best for the problem, or those of Algorithm 1 and Theorem 4 as printed (docs/paper.md)."""
    queue_rule: Literal["printed", "standard"] = "standard"
    """Q ← max(Q + g, 0), which keeps the budgets in the long run; or Q ← max(μQ + (1−μ)g, 0) as printed, which
    forgets."""
    queue_memory: Share = 0.5
    """μ of the printed queue rule."""
    penalty_weight: NonNegative = 10.0
    """V: how much discrepancy weighs against the queues."""
    drift_weight: NonNegative = 0.02
    """How much an update's worth of drift between client sides weighs against a lost update, in the corrected
    objective; chosen by measurement (docs/decision.md)."""
    timing: Literal["stages", "overlap"] = "stages"
    """Whether all wait for all between the paper's three stages, or each step begins when what it needs is there."""
    charge: Literal["realised", "expected"] = "realised"
    """Whether clock and batteries are charged what happened or, as in the paper, its expectation."""
    solver: Literal["bcd", "joint", "printed"] = "bcd"
    """Block coordinate descent (Algorithm 2) from a good start, the joint solver, or Algorithm 2 as printed: from a
    random start, cut, blocks and powers in turn."""
    delay_budget_s: AutoSecond = "auto"
    """γ, per round; "auto": what a plain fair policy achieves (docs/configuration.md)."""
    energy_budget_j: AutoJoule = "auto"
    """δ, per round and client; "auto" as above."""
    auto_budget_scale: Positive = 1.0
    """An "auto" budget is this many times what the fair policy takes on average; smaller is tighter."""
    outage_s: OutageSecond = "auto"
    """A stage ends after this time for whoever isn't done: its packet is lost, its energy until then is charged. "auto"
    is three times the delay budget; for a scheme whose rounds take longer, three times what those take."""
    energy_price: NonNegative = 1.0
    """What energy weighs against delay where progress per cost counts (`asfl:rate=on`, `asfl-plus`), both in units of
    their budgets; 0: energy is free."""
    discrepancy_sample_ratio: PositiveShare | Literal["auto"] = "auto"
    """ι: share of its parameters each client reports for the discrepancy; "auto": a random projection of each layer
    instead (docs/training.md)."""
    min_participants: AutoIndex = "auto"
    """At least this many clients get a resource block each round; "auto" is half of min(N, K)."""
    participation_floor: AutoShare = "auto"
    """Long-run share of rounds each client must get; 0 is off, "auto" is half of min(1, K/N)."""


TrackerName = Literal["tensorboard", "wandb", "mlflow"]


def _with_commas(value: object) -> object:
    """A list of names, as TOML has it, is the same as the names with commas between them."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return value
    return ",".join(dict.fromkeys(name.strip() for name in names if name.strip())) or "none"


class Output(Section):
    """What a run leaves behind."""

    evaluate_every: Count = 1
    """Rounds between two evaluations on the test images; the last round is always evaluated, on all of them."""
    test_samples: Index = 0
    """How many test images the evaluations on the way use, the same ones each time; 0 is all."""
    checkpoint_every: Count = 10
    """Rounds between two checkpoints; slow rounds are saved sooner, after a minute at the latest."""
    track: Annotated[Literal["auto", "none", TrackerName] | str, BeforeValidator(_with_commas)] = "auto"
    """Who else is shown the rounds (docs/runs.md): "auto" is TensorBoard if it is installed; several names are
    written with commas, "tensorboard,wandb"."""

    @model_validator(mode="after")
    def _known_trackers(self) -> Self:
        names, alone, known = self.track.split(","), ("auto", "none"), get_args(TrackerName)
        for name in names:
            if name not in (*alone, *known):
                raise ValueError(f"track: unknown tracker {short(name)}: {nearest(name, (*alone, *known))}")
            if name in alone and len(names) > 1:
                raise ValueError(f"track = '{self.track}': '{name}' must stand alone")
        return self


class TotalBudgets(Section):
    """What all rounds together may take; training ends when it is used up (docs/schemes.md)."""

    total_delay_s: OffSecond = "off"
    """How long all rounds together may take. One that isn't over by then doesn't count."""
    battery_j: OffJoules = "off"
    """What each client has for all rounds: one number for all, or a list with one for each. A client whose battery is
    empty takes part no more."""


class Network(Section):
    """Clients in other processes and on other machines (docs/field.md); nothing of it matters to a simulation."""

    costs: Literal["modelled", "measured"] = "modelled"
    """Where delays and energies come from: the simulated radio, as without real clients, or clocks and meters. With
    measured costs nothing is simulated: the cut is decided from what was measured, and only what is lost is lost."""
    client_power_w: Watt = 5.0
    """What a client is taken to draw while it computes or sends, if it doesn't report its energy."""
    deadline_s: AutoSecond = "auto"
    """How long the server waits for what it asked a client for; a later client is lost for the round. "auto": 120 s at
    most (600 s for a whole step), and much less once it is known how long others take (docs/field.md)."""
    shaping: FileName = ""
    """A file that says how slow the stream to each client is made from which round on, for demonstrations on one
    machine; empty: it isn't."""


DELTA = 1e-5
"""δ of the (ε, δ) in the records."""


class Privacy(Section):
    """What the server can learn of the images."""

    min_cut: Count = 1
    """Clients hold at least so many layers in every round: the shallower the cut, the better images can be rebuilt from
    activations."""
    activation_clip: Positive = 1.0
    """C: the activations of one sample are shortened to this norm before noise is added; without noise they aren't."""
    activation_noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise on activations, in C; 0: none."""
    update_clip: Positive = 1.0
    """C of the gradient of the client side, over a whole mini-batch."""
    update_noise: NonNegative = 0.0
    """Standard deviation of the Gaussian noise on that gradient, in its C; 0: none."""

    @property
    def noisy(self) -> bool:
        return self.activation_noise > 0 or self.update_noise > 0


class Robustness(Section):
    """What one bad client can do to the model."""

    average: Literal["mean", "median"] = "mean"
    """What gradients on the server, layers that are exchanged and statistics become: their mean by samples, or the
    median of each number."""
    clip: NonNegative = 0.0
    """Updates longer than this many times the median one are shortened to that; 0: they are not."""


SchemeName = Annotated[str, Field(pattern=NAME_PATTERN[:-1] + r"(:[a-z_]+=[a-z0-9.]+(,[a-z_]+=[a-z0-9.]+)*)?$")]
"""Which schemes there are isn't known here: `asfl.schemes.check_scheme_settings`."""


class SchemeTraining(Section):
    """What one scheme trains with instead of what `training` says; left out: the same."""

    learning_rate: Positive | None = None
    """η of this scheme."""
    local_steps: Count | None = None
    """Mini-batches each client exchanges in one round of this scheme."""
    rounds_times: Positive | None = None
    """So many times the rounds: where a scheme's rounds are short and serve few, more of them see as many samples."""


class Config(Section):
    """One experiment."""

    scenario: Scenario = Field(default_factory=Scenario)
    radio: Radio = Field(default_factory=Radio)
    compute: Compute = Field(default_factory=Compute)
    model: Model = Field(default_factory=Model)
    data: Data = Field(default_factory=Data)
    training: Training = Field(default_factory=Training)
    decision: DecisionRules = Field(default_factory=DecisionRules)
    budget: TotalBudgets = Field(default_factory=TotalBudgets)
    output: Output = Field(default_factory=Output)
    field: Network = Field(default_factory=Network)
    privacy: Privacy = Field(default_factory=Privacy)
    robust: Robustness = Field(default_factory=Robustness)
    schemes: dict[SchemeName, SchemeTraining] = Field(default_factory=dict)
    """Settings of single schemes, by their names, as in docs/results/tuned."""

    def for_scheme(self, name: str) -> Self:
        """The same experiment with what this scheme has of its own."""
        if not self.schemes:
            return self
        own = self.schemes.get(name, SchemeTraining()).model_dump(exclude_none=True)
        own["rounds"] = math.ceil(self.training.rounds * own.pop("rounds_times", 1))
        if self.training.central_rounds and self.training.initial_rate == "auto" and "learning_rate" in own:
            own["initial_rate"] = self.training.learning_rate  # all schemes start from the same weights
        return self.model_copy(update={"training": self.training.model_copy(update=own), "schemes": {}})

    def __hash__(self) -> int:
        """As of any frozen section, but a dictionary has none."""
        return hash((self.scenario, self.model, self.training, self.decision, tuple(self.schemes)))

    @property
    def charged_samples(self) -> int:
        """D_n in the costs: the samples a client exchanges in one round."""
        return self.training.batch_size * self.training.local_steps

    @property
    def model_spec(self) -> ModelSpec:
        model = self.model
        return ModelSpec(model.architecture, self.data.name, model.width, model.norm, model.own.items())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.decision.min_participants, int):
            limit = min(self.scenario.clients, self.radio.num_rbs)
            if self.decision.min_participants > limit:
                raise ValueError(
                    f"decision.min_participants = {self.decision.min_participants} is more than can be served: "
                    f"{self.scenario.clients} clients, {self.radio.num_rbs} resource blocks"
                )
        if self.decision.power_rule == "printed" and self.decision.solver == "joint":
            raise ValueError(
                'decision.power_rule = "printed" has no place in decision.solver = "joint"; take "printed"'
            )
        if self.privacy.noisy and self.model.norm == "batch":
            raise ValueError(
                'privacy: noise needs model.norm = "group" or "none"; batch norm mixes the samples of a mini-batch, '
                "and its statistics leave a client as they are"
            )
        if self.training.central_rounds and (self.data.private or self.privacy.noisy):
            why = "only devices have the images" if self.data.private else "they would see every image without noise"
            raise ValueError(
                f"training.initial = {self.training.initial}: no central rounds, {why}; give a file of weights"
            )
        batteries = self.budget.battery_j
        if isinstance(batteries, list) and len(batteries) != self.scenario.clients:
            raise ValueError(f"budget.battery_j has {len(batteries)} numbers for {self.scenario.clients} clients")
        return self
