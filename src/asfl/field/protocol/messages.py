"""Everything that server and clients say to each other; each message is declared once, as a dataclass.

The server asks, a client answers: `Request[A]` is answered by an `A`, or by a `Refusal`. Before that they greet each
other: the server says `Welcome`, the client says `Ready`.

What a client says is a claim. Every number has a range in which it can be true of some network that still learns; what
is beyond it is refused when it arrives. What is possible but unlike everybody else is for `asfl.field.usual`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

import torch
from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationError
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.explain import explain
from asfl.field.emulate.shaping import ShapedLink, links_of
from asfl.field.protocol.codec import Message, numbers
from asfl.field.protocol.kinds import (
    MOST_SAMPLES,
    MOST_SECONDS,
    MOST_WEIGHT,
    SQUARES,
    Amount,
    Bits,
    Flag,
    Labels,
    Layers,
    Loss,
    Natural,
    Octets,
    Seconds,
    Size,
    Square,
    Statistics,
    Steps,
    Tensors,
    Text,
    Vector,
)
from asfl.schemes import scheme_named
from asfl.train.fleet import FirstLayers
from asfl.train.layout import ModelVectors
from asfl.train.quantise import UNQUANTISED, Crossing, Quantised, QuantisedLayers

MOST_PROBED = 1 << 20
"""Bytes that a client sends back when it is probed, at most."""
NODE_NAME = 32
"""Letters in the name of a node, at most."""


def _read_config(value: object) -> Config:
    try:
        return Config.model_validate(value)
    except ValidationError as error:
        raise AsflError(f"the server's configuration: {explain(error, Config)}") from None


@dataclass(frozen=True, eq=False)
class Memory:
    """What the optimiser of a client remembers."""

    moments: Annotated[Tensor, numbers(torch.float32, axes=2, within=SQUARES)]
    """[moments of the rule, parameters of all layers it has stepped so far]"""
    steps: Steps
    """[layers of the network] how often it has stepped each."""


@dataclass(frozen=True, eq=False)
class Codes:
    """A tensor with few bits (`asfl.train.quantise`). Its shape and how many bits are known to whoever receives it."""

    codes: Octets
    low: Vector
    step: Vector


def tensors_of(crossing: Crossing) -> Tensors:
    """Those that cross as they are."""
    return tuple(sent for sent in crossing if isinstance(sent, Tensor))


def codes_of(crossing: Crossing) -> tuple[Codes, ...]:
    """Those that cross with few bits."""
    return tuple(_codes(sent) for sent in crossing if isinstance(sent, Quantised))


def parts_of(layers: FirstLayers) -> tuple[Tensor, Tensor | None, Codes | None]:
    """Statistics; parameters, or their codes."""
    sent = layers.parameters
    return layers.statistics, *((sent, None) if isinstance(sent, Tensor) else (None, _codes(sent)))


def side_of(layers: FirstLayers) -> tuple[ModelVectors, Codes | None]:
    """A client side; with few bits its parameters are codes, and it has none but its statistics."""
    sent = layers.parameters
    if isinstance(sent, Tensor):
        return ModelVectors(sent, layers.statistics), None
    return ModelVectors(layers.statistics.new_zeros(0), layers.statistics), _codes(sent)


def _codes(sent: Quantised | QuantisedLayers) -> Codes:
    return Codes(sent.codes, sent.low, sent.step)


# ---------------------------------------------------------------------- greetings
@dataclass(frozen=True)
class Agreement:
    """Which run this is."""

    config: Annotated[Config, BeforeValidator(_read_config)]
    scheme: Annotated[Text, AfterValidator(lambda name: scheme_named(name).name)]
    threads: Annotated[int, Strict(), Field(ge=1, le=4096)]
    """PyTorch's, on the server; another number on a client may round differently."""
    shaping: tuple[ShapedLink, ...] = ()
    """Links made slow on purpose; a client is told its own."""

    def welcome(self, client: int) -> "Welcome":
        """For this client."""
        return Welcome(replace(self, shaping=links_of(client, self.shaping)), client)


class Welcome(Message):
    """The server's first word: which run this is, and which of its clients you are."""

    agreement: Agreement
    client: Natural


class Ready(Message):
    """The client's first word."""

    node: Annotated[Text, Field(max_length=NODE_NAME)]
    """Names what holds the client's state: the same name, the same state."""


# ---------------------------------------------------------------------- answers
class Answer(Message, kw_only=True):
    """Every answer may say what it cost."""

    busy_s: Seconds | None = None
    """How long the client took to find it, by its own clock."""
    energy_j: Amount | None = None
    """What the client has consumed since it began."""
    battery: Annotated[Amount, Field(le=1)] | None = None
    """How full its battery is, 0 … 1."""


class Refusal(Answer):
    """The client hasn't done what it was asked to."""

    reason: Text


class Where(Answer):
    """Done; this is where the client stands now."""

    cut: Natural
    round: Natural | None = None
    """In which its state last changed; None if it has no state."""
    samples: Annotated[Natural, Field(ge=1, le=MOST_SAMPLES)] | None = None
    """How many images it trains with, if they are its own."""


class Side(Answer):
    """Layers of the client; none if it wasn't asked to send them."""

    layers: Layers | None = None
    codes: Codes | None = None
    """With few bits, instead of the parameters."""


class ClientState(Answer):
    side: Layers
    memory: Memory | None = None


class Activations(Answer):
    """What crosses the cut, for one mini-batch: tensors, or their codes."""

    labels: Labels
    carry: Tensors = ()
    codes: tuple[Codes, ...] = ()
    error: Square | None = None
    """‖x̂ − x‖² / ‖x‖² of what the codes stand for."""


class Update(Answer):
    norm2: Square
    """‖update‖² of the client side."""
    loss: Loss | None = None
    """If the client has computed it."""


class Values(Answer):
    values: Vector


class Projected(Answer):
    """Projections of layers (`asfl.train.reports`)."""

    codes: Octets
    """Two a number."""
    step: Vector
    """[layers]"""


class Uploaded(Answer):
    """The client's first layers, for an average: whole, or as codes of their difference to what all last shared."""

    statistics: Statistics
    parameters: Vector | None = None
    codes: Codes | None = None


class Calibrated(Answer):
    """Running statistics, measured on some of the client's own images."""

    statistics: Statistics


class Scored(Answer):
    """On the images that the client holds out; of them, only how many there are is known."""

    samples: Annotated[Natural, Field(le=MOST_SAMPLES)]
    right: Annotated[Natural, Field(le=MOST_SAMPLES)] = 0
    loss: Annotated[Amount, Field(le=MOST_WEIGHT)] = 0.0
    """Mean."""


class Probed(Answer):
    data: Octets
    seconds: Annotated[Tensor, numbers(torch.float64, axes=2, within=(0.0, MOST_SECONDS))] | None = None
    """[2, layers] of a mini-batch: forward, backward."""


# ---------------------------------------------------------------------- requests
A = TypeVar("A", bound=Answer)
Stage = Literal["sync", "resplit", "forward", "backward", "learn", "give", "report", "gather"]
"""Of a round; each has a deadline (`field.deadlines`)."""


class Request(Message, Generic[A], kw_only=True):
    round: Natural | None = None
    """Counted from 0. The server sets it, and `after`, when it sends the request."""
    after: Natural | None = None
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
    cut: Natural
    side: Layers
    memory: Memory | None = None


class Grow(Request[Where]):
    """Stage 1: take the layers from the present cut to this one."""

    stage, changes = "resplit", True
    cut: Natural
    layers: Layers


class Shrink(Request[Side]):
    """Stage 1: drop the layers above this cut, and send them if asked to."""

    stage, changes = "resplit", True
    cut: Natural
    send: Flag


class Forward(Request[Activations]):
    """Stage 2. The client side comes along in schemes that exchange models, with the first step of a round."""

    stage, changes, teaches = "forward", True, True
    step: Natural
    cut: Natural
    side: Layers | None = None
    bits: Bits = UNQUANTISED
    """Per number that crosses the cut, on the way back too; and per parameter of the side."""
    codes: Codes | None = None
    """With few bits, instead of the parameters of the side."""
    batch: Size | None = None
    """Samples in the mini-batch, if not as many as are configured; so below."""


class Backward(Request[Update]):
    """Stage 3: gradients of what `Forward` gave, as tensors or as codes."""

    stage = "backward"
    step: Natural
    cut: Natural
    gradients: Tensors = ()
    codes: tuple[Codes, ...] = ()
    batch: Size | None = None


class Learn(Request[Update]):
    """A whole step without a cut; the model comes along with the first step of a round."""

    stage, changes, teaches = "learn", True, True
    step: Natural
    side: Layers | None = None
    bits: Bits = UNQUANTISED
    """Per parameter of the model."""
    codes: Codes | None = None
    """With few bits, instead of the parameters."""
    batch: Size | None = None


class Give(Request[Side]):
    """The trained client side, in schemes that exchange models; with few bits, how far it is from what it was."""

    stage = "give"
    bits: Bits = UNQUANTISED


class Moved(Request[Update]):
    """‖update‖² over all local steps of the round."""

    stage = "give"


class Upload(Request[Uploaded]):
    """The first layers of the client side, for an average."""

    stage = "give"
    depth: Natural
    bits: Bits
    shared: Vector | None = None
    """What all last shared of them, if the client may not have it."""


class Share(Request[Where]):
    """The average of the first layers, which everybody takes: whole at 32 bits, else as codes of a difference."""

    stage, changes = "resplit", True
    depth: Natural
    bits: Bits
    statistics: Statistics
    parameters: Vector | None = None
    codes: Codes | None = None


class Sample(Request[Values]):
    """The values of some parameters, for the discrepancy."""

    stage = "report"
    gaps: Annotated[Tensor, numbers(torch.uint8, torch.int64, axes=1)]
    """From each parameter to the next, beginning at 0; mostly a byte each."""


class Project(Request[Projected]):
    """Projections of the client side, for the discrepancy."""

    stage = "report"
    above: Natural
    """Of the layers above this one."""


class Gather(Request[ClientState]):
    stage = "gather"
    memory: Flag
    """Whether what the optimiser remembers is wanted too."""


class Calibrate(Request[Calibrated]):
    """Measure the running statistics of this whole model."""

    stage = "gather"
    model: Layers


class Score(Request[Scored]):
    """How good is this whole model?"""

    stage = "gather"
    model: Layers


class Ping(Request[Where]):
    """Are you there?"""


class Probe(Request[Probed]):
    """For measuring; touches no state."""

    answer_bytes: Annotated[Natural, Field(le=MOST_PROBED)] = 0
    compute: Flag = False
    """Whether to measure how long each layer takes."""
    data: Octets | None = None


class Bye(Request[Where]):
    """The run is over."""
