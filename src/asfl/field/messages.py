"""Everything that server and clients say to each other, and how one client is asked, whatever lies in between.

What messages carry are the types of `asfl.train`.

The server asks, a client answers: `Request[A]` is answered by an `A`, or by a `Refusal`. Before that they greet each
other: the server says `Welcome`, the client says `Ready`.

What a client says is a claim. Every number has a range in which it can be true of some network that still learns
(`asfl.field.wire.RANGES`); what is beyond it is refused when it arrives. What is possible but unlike the other clients'
answers is for `asfl.field.outliers`.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.fields import BitPerSecond, Count, Index, NonNegativeSecond, Section
from asfl.costs.modelled import REPORTED_NUMBERS
from asfl.costs.round import MOST_BATCHES
from asfl.data.arrays import INPUT_SHAPE
from asfl.field.wire import DTYPE_NAMES, HEADER_LIMIT, MOST_WEIGHT, Message, WireError, most, numbers
from asfl.models.build import build_model
from asfl.models.cuttable import Carry, CuttableModel
from asfl.schemes import scheme_named
from asfl.train.fleet import FirstLayers, Packet, Projections
from asfl.train.optimizers import OptimizerState, rule_named
from asfl.train.quantise import (
    UNQUANTISED,
    Crossing,
    Quantised,
    QuantisedLayers,
    group_sizes,
    num_code_bytes,
    num_groups,
)
from asfl.train.signals import Task
from asfl.train.state import Layout, ModelVectors

MOST_SAMPLES = 10**9
"""Of one client."""
MOST_PROBED = 1 << 20
"""Bytes that a client sends back when it is probed, at most."""
NODE_NAME = 32
"""Letters in the name of a node, at most."""


def _check_scheme(name: str, scheme: str) -> None:
    try:
        scheme_named(scheme)
    except AsflError as error:
        raise ValueError(str(error)) from None


Scalar = Annotated[Tensor, numbers(torch.float32, axes=0)]
Vector = Annotated[Tensor, numbers(torch.float32, axes=1)]
Octets = Annotated[Tensor, numbers(torch.uint8, axes=1)]
Samples = Annotated[int, most(MOST_SAMPLES)]


# ---------------------------------------------------------------------- greetings
class ShapedLink(Section):
    """How a link is from a round on: made slow on purpose, so that one machine can show what a bad network does."""

    client: Index | None = None
    """Of which client; None: of all."""
    from_round: Count = 1
    """Counted from 1."""
    uplink_bps: BitPerSecond | None = None
    """None: as fast as it is."""
    downlink_bps: BitPerSecond | None = None
    latency_s: NonNegativeSecond = 0.0
    """Of a request and its answer."""

    def seconds(self, num_bytes: int, rate_bps: float | None) -> float:
        """How long a request, or an answer, takes on a link of this rate."""
        return self.latency_s / 2 + (8 * num_bytes / rate_bps if rate_bps else 0.0)


@dataclass(frozen=True)
class Agreement:
    """Which run this is."""

    config: Config
    scheme: Annotated[str, _check_scheme]
    threads: Annotated[int, most(4096)]
    """PyTorch's, on the server; another number on a client may round differently."""
    shaping: tuple[ShapedLink, ...] = ()
    """In the order of the profile: a later one replaces an earlier one. A client is told its own."""

    def welcome(self, client: int) -> "Welcome":
        """For this client."""
        own = tuple(link for link in self.shaping if link.client in (None, client))
        return Welcome(replace(self, shaping=own), client)


class Welcome(Message):
    """The server's first word: which run this is, and which of its clients you are."""

    agreement: Agreement
    client: int


class Ready(Message):
    """The client's first word."""

    node: Annotated[str, most(NODE_NAME)]
    """Names what holds the client's state: the same name, the same state."""


# ---------------------------------------------------------------------- answers
class Answer(Message, kw_only=True):
    """Every answer may say what it cost."""

    busy_s: float | None = None
    """How long the client took to find it, by its own clock."""
    energy_j: float | None = None
    """What the client has consumed since it began."""


class Refusal(Answer):
    """The client hasn't done what it was asked to."""

    reason: str


class Where(Answer):
    """Done; this is where the client stands now."""

    cut: int
    round: int | None = None
    """In which its state last changed; None if it has no state."""
    samples: Samples | None = None
    """How many images it trains with, if they are its own."""


class Side(Answer):
    """Layers of the client; none if it wasn't asked to send them."""

    layers: FirstLayers | None = None


class ClientState(Answer):
    side: ModelVectors
    memory: OptimizerState | None = None


class Activations(Answer):
    """What crosses the cut, for one mini-batch; labels are a byte each, or eight with more than 256 classes."""

    packet: Packet


class Update(Answer):
    norm2: Scalar
    """‖update‖² of the client side."""
    loss: Scalar | None = None
    """If the client has computed it."""


class Values(Answer):
    values: Vector


class Projected(Answer):
    """Projections of layers (`asfl.train.fleet`)."""

    projections: Projections


class Calibrated(Answer):
    """Running statistics, measured on some of the client's own images."""

    statistics: Vector


class Scored(Answer):
    """On the images that the client holds out; of them, only how many there are is known."""

    samples: Samples
    right: Samples = 0
    loss: float = 0.0
    """Mean."""


class Probed(Answer):
    data: Octets
    seconds: Annotated[Tensor, numbers(torch.float64, axes=2)] | None = None
    """[2, layers] of a mini-batch: forward, backward."""


# ---------------------------------------------------------------------- requests
A = TypeVar("A", bound=Answer)
Stage = Literal["sync", "resplit", "forward", "backward", "learn", "give", "report", "gather"]
"""Of a round; each has a deadline (`field.deadline_s`)."""


class Request(Message, Generic[A], kw_only=True):
    round: int | None = None
    """Counted from 0. The server sets it, and `after`, when it sends the request."""
    after: int | None = None
    """The round in which, as far as the server knows, the client's state last changed. If it didn't, it refuses."""

    stage: ClassVar[Stage] = "sync"
    changes: ClassVar[bool] = False
    """Whether the client's state is one of this round afterwards."""
    teaches: ClassVar[bool] = False
    """Whether the answer teaches the server: the uplink stage of a round waits for it."""

    @classmethod
    def answer_type(cls) -> type[A]:
        found: type[A] = get_args(vars(cls)["__orig_bases__"][0])[0]
        return found


AnyRequest = Request[Any]


class Sync(Request[Where]):
    """Start over with this client side, of so many layers. Without memory, the optimiser remembers nothing."""

    changes = True
    cut: int
    side: ModelVectors
    memory: OptimizerState | None = None


class Grow(Request[Where]):
    """Stage 1: take the layers from the present cut to this one."""

    stage, changes = "resplit", True
    cut: int
    layers: ModelVectors


class Shrink(Request[Side]):
    """Stage 1: drop the layers above this cut, and send them if asked to."""

    stage, changes = "resplit", True
    cut: int
    send: bool


class Forward(Request[Activations]):
    """Stage 2. The client side comes along in schemes that exchange models, with the first step of a round."""

    stage, changes, teaches = "forward", True, True
    task: Task
    side: FirstLayers | None = None


class Backward(Request[Update]):
    """Stage 3: gradients of what `Forward` gave."""

    stage = "backward"
    task: Task
    gradients: Crossing


class Learn(Request[Update]):
    """A whole step without a cut; the model comes along with the first step of a round."""

    stage, changes, teaches = "learn", True, True
    task: Task
    side: FirstLayers | None = None


class Give(Request[Side]):
    """The trained client side, in schemes that exchange models; with few bits, how far it is from what it was."""

    stage = "give"
    task: Task


class Moved(Request[Update]):
    """‖update‖² over all local steps of the round."""

    stage = "give"
    task: Task


class Upload(Request[Side]):
    """The first layers of the client side, up to the task's cut, for an average."""

    stage = "give"
    task: Task
    shared: Vector | None = None
    """What all last shared of them, if the client may not have it."""


class Share(Request[Where]):
    """The average of the first layers, which all clients take: whole, or as the difference to what all last shared."""

    stage, changes = "resplit", True
    depth: int
    average: FirstLayers


class Sample(Request[Values]):
    """The values of some parameters, for the discrepancy."""

    stage = "report"
    gaps: Annotated[Tensor, numbers(torch.uint8, torch.int64, axes=1)]
    """From each parameter to the next, beginning at 0; mostly a byte each."""


class Project(Request[Projected]):
    """Projections of the client side, for the discrepancy."""

    stage = "report"
    above: int
    """Of the layers above this one."""


class Gather(Request[ClientState]):
    stage = "gather"
    memory: bool
    """Whether what the optimiser remembers is wanted too."""


class Calibrate(Request[Calibrated]):
    """Measure the running statistics of this whole model."""

    stage = "gather"
    model: ModelVectors


class Score(Request[Scored]):
    """How good is this whole model?"""

    stage = "gather"
    model: ModelVectors


class Ping(Request[Where]):
    """Are you there?"""


class Probe(Request[Probed]):
    """For measuring; touches no state."""

    answer_bytes: Annotated[int, most(MOST_PROBED)] = 0
    compute: bool = False
    """Whether to measure how long each layer takes."""
    data: Octets | None = None


class Bye(Request[Where]):
    """The run is over."""


# ---------------------------------------------------------------------- what fits the network
Shape = tuple[int, ...]
_MARGIN = 1 << 16
"""Bytes for what lies between tensors, step counts and single numbers."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """Of one network. What is checked comes back on the wished device; what doesn't fit is a `WireError`."""

    layout: Layout
    carries: list[tuple[Shape, ...]]
    """Of a mini-batch at every cut 0 … M."""
    num_moments: int
    """Of the optimiser."""
    device: torch.device

    @classmethod
    def of(
        cls, model: CuttableModel, image: Sequence[int], batch_size: int, num_moments: int, device: torch.device
    ) -> "Shapes":
        """From a single sample sent through the model, which is as before then."""
        trains = model.training
        with torch.no_grad():
            carry: Carry = (torch.zeros(1, *image, dtype=next(model.parameters()).dtype),)
            carries = [carry] + [carry := unit(carry) for unit in model.eval().units]
        model.train(trains)
        shapes = [tuple((batch_size, *tensor.shape[1:]) for tensor in carry) for carry in carries]
        return cls(Layout(model), shapes, num_moments, device)

    def layers(self, vectors: ModelVectors, first: int, last: int) -> ModelVectors:
        """Layers first … last−1 of a whole model, as views."""
        a, b = self.layout.parameter_edges, self.layout.statistic_edges
        return ModelVectors(vectors.parameters[a[first] : a[last]], vectors.statistics[b[first] : b[last]])

    # ------------------------------------------------------------------ layers
    def check_vectors(self, layers: ModelVectors, first: int, last: int) -> ModelVectors:
        """Layers first … last−1, as they came."""
        a, b = self.layout.parameter_edges, self.layout.statistic_edges
        parameters = self.check("parameters", layers.parameters, (int(a[last] - a[first]),))
        statistics = self.check("statistics", layers.statistics, (int(b[last] - b[first]),))
        if (statistics.cpu()[self._never_negative[b[first] : b[last]]] < 0).any():
            raise WireError("statistics has a negative variance or weight")
        return ModelVectors(parameters, statistics)

    @cached_property
    def _never_negative(self) -> Tensor:
        """[B] which running statistics of batch norms are variances or weights."""
        squares = torch.zeros(self.layout.num_statistics, dtype=torch.bool)
        for slot in self.layout.statistics:
            squares[slot.start : slot.stop] = slot.name in ("running_var", "running_weight")
        return squares

    def check_layers(self, layers: FirstLayers | None, cut: int, bits: int, first: int = 0) -> FirstLayers:
        """Layers first … cut−1 with so many bits a parameter."""
        if layers is None:
            raise WireError("layers are missing")
        count = int(self.layout.parameter_edges[cut] - self.layout.parameter_edges[first])
        sent = layers.parameters
        if isinstance(sent, Tensor) != (bits == UNQUANTISED or count == 0):
            raise WireError(f"parameters must come with {bits} bits")
        if isinstance(sent, Tensor):
            found = self.check_vectors(ModelVectors(sent, layers.statistics), first, cut)
            return FirstLayers(found.parameters, found.statistics)
        sizes = group_sizes(self.layout, cut)
        self._check_codes("parameters", sent, count, len(sizes), bits)
        codes, low, step = (tensor.to(self.device) for tensor in (sent.codes, sent.low, sent.step))
        unsent = ModelVectors(layers.statistics.new_zeros(count), layers.statistics)
        statistics = self.check_vectors(unsent, first, cut).statistics
        return FirstLayers(QuantisedLayers(codes, low, step, bits, sizes.to(self.device)), statistics)

    def check_memory(self, memory: OptimizerState | None) -> OptimizerState:
        if memory is None:
            raise WireError("what the optimiser remembers is missing")
        width = memory.moments.shape[-1]
        if memory.moments.dim() != 2 or width not in self.layout.parameter_edges:
            raise WireError(f"moments of {width} parameters, which is no whole number of layers")
        self.check("steps", torch.from_numpy(memory.steps), (self.layout.num_units,), torch.int64)
        return OptimizerState(self.check("moments", memory.moments, (self.num_moments, width)), memory.steps)

    # ------------------------------------------------------------------ what crosses a cut
    def check_crossing(self, name: str, crossing: Crossing, task: Task) -> Crossing:
        """Activations, or their gradients, with the bits and the mini-batch of the task."""
        shapes = [(task.batch or shape[0], *shape[1:]) for shape in self.carries[task.cut]]
        if len(crossing) != len(shapes):
            raise WireError(f"{name} has {len(crossing)} tensors, not {len(shapes)}")
        places = enumerate(zip(crossing, shapes, strict=True))
        return tuple(self._check_crossed(f"{name}.{i}", sent, shape, task.bits) for i, (sent, shape) in places)

    def _check_crossed(self, name: str, sent: Tensor | Quantised, shape: Shape, bits: int) -> Tensor | Quantised:
        if isinstance(sent, Tensor) != (bits == UNQUANTISED):
            raise WireError(f"{name} must come with {bits} bits")
        if isinstance(sent, Tensor):
            return self.check(name, sent, shape)
        if sent.shape != shape:
            raise WireError(f"{name} has shape {list(sent.shape)}, not {list(shape)}")
        self._check_codes(name, sent, torch.Size(shape).numel(), num_groups(shape), bits)
        codes, low, step = (tensor.to(self.device) for tensor in (sent.codes, sent.low, sent.step))
        return replace(sent, codes=codes, low=low, step=step)

    def _check_codes(self, name: str, sent: Quantised | QuantisedLayers, count: int, groups: int, bits: int) -> None:
        if sent.bits != bits:
            raise WireError(f"{name} must come with {bits} bits")
        self.check(f"{name}.codes", sent.codes, (num_code_bytes(count, bits),), torch.uint8)
        self.check(f"{name}.low", sent.low, (groups,))
        self.check(f"{name}.step", sent.step, (groups,))
        if (sent.low + sent.step * (2**bits - 1) > MOST_WEIGHT).any():
            raise WireError(f"{name}.step must not be so large that a number is above {MOST_WEIGHT:g}")

    @property
    def num_classes(self) -> int:
        return self.carries[-1][0][-1]

    def check_packet(self, packet: Packet, task: Task) -> Packet:
        carry = self.check_crossing("carry", packet.carry, task)
        if (packet.error is None) != (task.bits == UNQUANTISED):
            raise WireError("error must come with codes, and only with them")
        if packet.error is not None:
            self.check("error", packet.error, ())
        dtype = torch.uint8 if self.num_classes <= 256 else torch.int64
        labels = self.check("labels", packet.labels, (task.batch or self.carries[0][0][0],), dtype)
        if labels.max() >= self.num_classes:
            raise WireError(f"labels must be 0 … {self.num_classes - 1}")
        return Packet(carry, labels.long(), packet.error)

    def check_projections(self, sent: Projections, layers: int) -> Projections:
        codes = self.check("codes", sent.codes, (layers, REPORTED_NUMBERS), torch.int16)
        return Projections(codes, self.check("step", sent.step, (layers,)))

    def check(self, name: str, tensor: Tensor, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            found = f"{DTYPE_NAMES[tensor.dtype]} {list(tensor.shape)}"
            raise WireError(f"{name} is {found}, not {DTYPE_NAMES[dtype]} {list(shape)}")
        return tensor.to(self.device)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The network of a configuration without its numbers."""

    model: CuttableModel
    """Takes no memory."""
    shapes: Shapes
    largest_message: int
    """Bytes: activations and labels of a mini-batch, or a whole client with its optimiser. More is refused."""

    @classmethod
    def of(cls, config: Config, device: torch.device = torch.device("cpu")) -> "Blueprint":  # noqa: B008
        training, batches = config.training, MOST_BATCHES
        # Built with numbers and emptied then: drawing them on the device "meta" would import PyTorch's compiler.
        with torch.random.fork_rng(devices=[]):
            model = build_model(config.model_spec, config.training.precision)
        moments = rule_named(training.optimizer, training.learning_rate).num_moments
        shapes = Shapes.of(model, INPUT_SHAPE[config.data.name], training.batch_size, moments, device)
        activations = max(sum(torch.Size(shape).numel() for shape in carry) for carry in shapes.carries) * batches
        layout = shapes.layout
        client = layout.num_parameters * (1 + moments) + layout.num_statistics
        labels_and_steps = (training.batch_size * batches + layout.num_units) * torch.int64.itemsize
        largest = max(activations, client) * torch.float32.itemsize + labels_and_steps + HEADER_LIMIT + _MARGIN
        return cls(model.to("meta"), shapes, largest)


# ---------------------------------------------------------------------- how a client is asked
class RefusedError(WireError):
    """The client hasn't done what it was asked to, and says so: no lie."""


class LinkError(AsflError):
    """The client can't be asked, or its answer can't come any more."""


class Link(Protocol):
    """One client, one request at a time."""

    @property
    def trouble(self) -> str | None:
        """Why the client can't be asked now; None if it can."""
        ...

    @property
    def generation(self) -> int:
        """Another number: behind the link is another node now, and whatever the one before had learnt is gone."""
        ...

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        """Send a request that is of use only for so many seconds; never raises, the future does.

        An answer that comes later still ends the request: only then can the client be asked again.
        """
        ...


def failed(error: Exception) -> "Future[Answer]":
    """A future that has nothing but this error."""
    future: Future[Answer] = Future()
    future.set_exception(error)
    return future


@dataclass(eq=False)
class OpenRequest(Generic[A]):
    """A request that is under way. Making one sends it."""

    link: Link
    client: int
    request: Request[A]
    deadline_s: float
    base: Tensor | None = None
    """What layers in the answer are compared with (`asfl.field.outliers`)."""
    sent_at: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.noted = False
        """Whether others are compared with its answer."""
        self.answered_at = 0.0
        """By the server's monotonic clock, as `sent_at`."""
        self._future = self.link.ask(self.request, self.deadline_s)
        self._future.add_done_callback(self._note_time)

    def _note_time(self, _: "Future[Answer]") -> None:
        self.answered_at = monotonic()

    @property
    def done(self) -> "Future[Answer]":
        """Over when there is an answer, or a reason why there is none."""
        return self._future

    def answer_if_any(self) -> Answer | None:
        """Waits for the answer; None if it is none, for whatever reason."""
        try:
            return self.answer()
        except Exception:  # `answer` says the reason again
            return None

    def answer(self) -> A:
        """Waits for the answer, but no longer than agreed (TimeoutError). A refusal is a `WireError`."""
        answer = self._future.result(max(self.sent_at + self.deadline_s - monotonic(), 0.0))
        self.answered_at = self.answered_at or monotonic()
        if isinstance(answer, Refusal):
            raise RefusedError(f"the client refused: {answer.reason}")
        if not isinstance(answer, self.request.answer_type()):
            raise WireError(f"{answer.name} is no answer to {self.request.name}")
        return answer
