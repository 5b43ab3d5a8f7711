"""Everything that server and clients say to each other, and how one client is asked, whatever lies in between.

What messages carry are the types of `asfl.train`.

The server asks, a client answers: `Request[A]` is answered by an `A`, or by a `Refusal`. Before that they greet each
other: the server says `Welcome`, the client says `Ready`.

What a client says is a claim. Every number has a range in which it can be true of some network that still learns
(`asfl.field.wire.RANGES`); what is beyond it is refused when it arrives. What is possible but unlike the other clients'
answers is for `asfl.field.outliers`.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.field.shaping import ShapedLink, links_of
from asfl.field.wire import Message, WireError, most, numbers
from asfl.schemes import scheme_named
from asfl.train.fleet import FirstLayers, Packet, Projections
from asfl.train.optimizers import OptimizerState
from asfl.train.quantise import Crossing
from asfl.train.signals import Task
from asfl.train.state import ModelVectors

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
@dataclass(frozen=True)
class Agreement:
    """Which run this is."""

    config: Config
    scheme: Annotated[str, _check_scheme]
    threads: Annotated[int, most(4096)]
    """PyTorch's, on the server; another number on a client may round differently."""
    shaping: tuple[ShapedLink, ...] = ()
    """Links made slow on purpose; a client is told its own."""

    def welcome(self, client: int) -> "Welcome":
        """For this client."""
        return Welcome(replace(self, shaping=links_of(client, self.shaping)), client)


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
