"""The clients of a training run, seen from the server: what it may ask them for, and nothing else.

The server's maths (`asfl.train.steps`) knows clients only through `Fleet`. `LocalFleet` holds any number of clients in
this process as rows of one buffer. A client in another process is a `LocalFleet` of one (`asfl.field.client`), so its
maths is the same code; a fleet of such clients is in `asfl.field.fleet`. Those can be lost: then the answer is None.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.config.randomness import random_stream
from asfl.costs.modelled import BITS_OF_REPORTED, REPORTED_NUMBERS
from asfl.models.cuttable import Carry, CuttableModel, go_backward
from asfl.train.batches import Batches
from asfl.train.optimizers import Rule, step_units
from asfl.train.privacy import GaussianMechanism
from asfl.train.quantise import (
    UNQUANTISED,
    Crossing,
    QuantisedLayers,
    layers_received,
    layers_to_send,
    quantise_carry,
    relative_error,
    restore_carry,
    rounding,
)
from asfl.train.signals import Task
from asfl.train.state import Layout, ModelVectors, Replica, TrainingState

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Knowledge = dict[str, NDArray[Any]]
Norms = Callable[[], list[Tensor | None]]
"""‖update‖² of client sides, waited for when called."""


@dataclass(frozen=True, eq=False)
class Packet:
    """What a client sends up."""

    carry: Crossing
    """Activations at the cut."""
    labels: Tensor
    error: Tensor | None = None
    """‖x̂ − x‖² / ‖x‖² of the activations, if they are quantised: only the client knows x."""


@dataclass(frozen=True, eq=False)
class FirstLayers:
    """The first layers of a client side, as they cross."""

    parameters: Tensor | QuantisedLayers
    """As they are; or with few bits: then it is their difference to what both sides have already, if they have."""
    statistics: Tensor

    def received(self, shared: Tensor) -> ModelVectors:
        """What the other side has of them then."""
        return ModelVectors(layers_received(self.parameters, shared), self.statistics)


@dataclass(frozen=True)
class Fault:
    """A client that was lost for a round."""

    client: int
    round: int
    """Counted from 0."""
    stage: str
    reason: str


class Fleet(Protocol):
    """Clients are named by their numbers, 0 … N−1; lists come back in the order asked for, None for a lost client."""

    state: TrainingState
    """The server's. Client sides are in it only for a `LocalFleet`, or after `gather`."""
    overlaps: bool
    """Clients are served in the order in which they answer, each at once, instead of together in a fixed order."""

    def begin(self, index: int) -> Bools:
        """A round begins: lost clients that are back get the current layers. [N] which clients can take part."""

    def resplit(self, cut: int, scheduled: Bools) -> float:
        """Stage 1: move layers between the server and all clients (`TrainingState.resplit`)."""

    def announce(self, tasks: Sequence[Task], sides: Sequence[FirstLayers] | None = None) -> None:
        """What `forward` or `learn` will ask for in this step, group by group: clients elsewhere begin at once.

        `sides`: each client takes a copy of its client side for the round, in schemes that exchange client models.
        """

    def first(self, tasks: Sequence[Task]) -> int:
        """The place of a task whose `forward` would wait least."""

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        """Stage 2: the activations at each client's cut, with its bits, and the labels of a mini-batch.

        Mini-batches of tasks that are given together are of the same size.
        """

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        """Stage 3: back from the gradients of what `forward` gave, and a step, (3); ‖update‖² of the client side."""

    def learn(self, tasks: Sequence[Task]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Without a cut: a whole step on the clients; losses and ‖update‖²."""

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        """The client sides that came with `announce`, trained; with few bits, how far each is from what it was."""

    def upload(self, tasks: Sequence[Task]) -> dict[int, FirstLayers]:
        """The layers of these clients' sides up to the task's cut, for an average; of clients that weren't lost.

        With few bits they cross as differences to what all last shared, which `state.server` still has.
        """

    def share(self, depth: int, average: FirstLayers) -> None:
        """All clients take the average of their first layers; with few bits, its difference to what all last shared."""

    def moved(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        """‖client side − client side at the start of the round‖²; the start is the first `forward`."""

    def report(self, columns: NDArray[np.int64]) -> tuple[Tensor, Sequence[int]]:
        """[clients, columns] these parameters of the client sides, for the discrepancy; and whose they are."""

    def projections(self) -> tuple[Tensor, Sequence[int]]:
        """[clients, layers up to the cut, R] projections of the client sides (`asfl.train.fleet`), and whose."""

    def gather(self, *, optimizers: bool = False) -> None:
        """Have all client sides in the server's `TrainingState`; with what their optimisers remember too."""

    def knowledge(self) -> Knowledge:
        """What goes with a checkpoint besides the server's `TrainingState`."""

    def scatter(self, knowledge: Knowledge) -> None:
        """The server's `TrainingState` was restored: give clients what it says."""

    def take_faults(self) -> list[Fault]:
        """Clients lost since this was last asked."""

    def refuse(self, client: int, reason: str) -> bool:
        """What `forward` gave is of no use. True: the client is lost for the round; False: there is no going on."""


class FleetMaker(Protocol):
    """What a trainer makes its fleet with."""

    def __call__(
        self, model: CuttableModel, state: TrainingState, batches: Batches, rule: Rule, *, keeps_sides: bool
    ) -> Fleet: ...


class LocalFleet:
    """Clients in this process; their sides and optimisers are in a `TrainingState`."""

    def __init__(
        self,
        model: CuttableModel,
        state: TrainingState,
        batches: Batches,
        rule: Rule,
        *,
        keeps_sides: bool,
        first_client: int = 0,
        blur: GaussianMechanism | None = None,
    ) -> None:
        """`keeps_sides`: clients keep their own sides between rounds, else they `load` one.

        `first_client`: the number of row 0, whose mini-batches it takes. Clients that compute at the same time each
        have a network and a gradient buffer; both are made when needed and used again. `blur` hides what leaves them.
        """
        self.state, self.overlaps = state, False
        self._model, self._layout, self._batches, self._rule = model, state.layout, batches, rule
        self._keeps_sides, self._first, self._blur = keeps_sides, first_client, blur
        self._replicas: list[Replica] = []
        self._gradients = state.server.parameters.new_zeros(0, 0)
        self._carries: list[Carry] = []
        self._given: dict[int, FirstLayers] = {}
        self._loaded: dict[int, ModelVectors] = {}
        self._began_with: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def begin(self, index: int) -> Bools:
        return np.ones(self.state.num_clients, dtype=np.bool_)

    def resplit(self, cut: int, scheduled: Bools) -> float:
        return self.state.resplit(cut, scheduled)

    def announce(self, tasks: Sequence[Task], sides: Sequence[FirstLayers] | None = None) -> None:
        """Passes are made one after the other: that saves memory. Client sides are copied when their turn comes."""
        if sides is not None:
            self._given = {task.client: side for task, side in zip(tasks, sides, strict=True)}

    def _load(self, clients: Sequence[int]) -> None:
        nothing = self.state.server.parameters.new_zeros(())  # a whole model is the difference to that
        given = {client: self._given.pop(client) for client in clients}
        self._loaded = {client: side.received(nothing).clone() for client, side in given.items()}
        few = [client for client, side in given.items() if isinstance(side.parameters, QuantisedLayers)]
        self._began_with = {client: self._loaded[client].parameters.clone() for client in few}

    def first(self, tasks: Sequence[Task]) -> int:
        return 0

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        labels = self._forward(tasks)
        sent: list[Packet | None] = []
        for task, carry, truth in zip(tasks, self._carries, labels, strict=True):
            carry = tuple(tensor.detach() for tensor in carry)
            if task.bits == UNQUANTISED:
                sent.append(Packet(carry, truth))
                continue
            rng = rounding(self._batches.seed, "up", task.round, self._first + task.client, task.step)
            crossing = quantise_carry(carry, task.bits, rng)
            sent.append(Packet(crossing, truth, relative_error(carry, crossing)))
        return sent

    def _forward(self, tasks: Sequence[Task]) -> list[Tensor]:
        """Leaves the activations in `_carries`, with history; the labels."""
        if tasks[0].client in self._given:
            self._load([task.client for task in tasks])
        cut, parameters = max(task.cut for task in tasks), self.state.server.parameters
        while len(self._replicas) < len(tasks):
            self._replicas.append(Replica(self._model, self._layout, parameters.device, parameters.dtype))
        size = max(int(self._layout.parameter_edges[cut]), self._gradients.shape[1])
        if self._gradients.shape != (len(self._replicas), size):
            self._gradients = parameters.new_zeros(len(self._replicas), size)
        self.state.make_room(cut)
        self._carries = []
        all_labels: list[Tensor] = []
        for replica, gradient, task in zip(self._replicas, self._gradients, tasks, strict=False):
            side, cut, client = self._side(task.client), task.cut, self._first + task.client
            if task.step == 0 and self._batches.local_steps > 1:
                self._before[task.client] = side.parameters.clone()
            gradient[: self._layout.parameter_edges[cut]].zero_()
            replica.bind(side, gradient, 0, cut)
            images, labels = self._batches.batch(task.round, client, task.step, task.batch)
            carry = replica.model.run((images,), 0, cut)
            if self._blur is not None and cut < self._layout.num_units:
                carry = self._blur.activations(carry, task.round, client, task.step)
            self._carries.append(carry)
            all_labels.append(labels)
        return all_labels

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        for carry, returned in zip(self._carries, gradients, strict=True):
            go_backward(carry, restore_carry(returned, carry[0].dtype))
        self._carries = []
        norms = self._step(tasks)
        return lambda: norms

    def learn(self, tasks: Sequence[Task]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        labels = self._forward(tasks)
        losses = [F.cross_entropy(carry[0], truth) for carry, truth in zip(self._carries, labels, strict=True)]
        torch.autograd.backward(losses)
        self._carries = []
        return [loss.detach() for loss in losses], self._step(tasks)

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        return [
            self._sent(task, side, self._began_with.get(task.client, side.parameters))
            for task in tasks
            for side in [self._loaded[task.client]]
        ]

    def upload(self, tasks: Sequence[Task]) -> dict[int, FirstLayers]:
        layout, state = self._layout, self.state
        return {
            task.client: self._sent(
                task,
                layout.front(state.clients.row(task.client), task.cut),
                layout.front(state.server, task.cut).parameters,
            )
            for task in tasks
        }

    def _sent(self, task: Task, side: ModelVectors, shared: Tensor) -> FirstLayers:
        """A client's layers up to its cut; with few bits, as the difference to what both sides have of them."""
        rng = rounding(self._batches.seed, "layers", task.round, self._first + task.client)
        crossing = layers_to_send(self._layout, side.parameters, shared, task.cut, task.bits, rng)
        return FirstLayers(crossing, side.statistics)

    def share(self, depth: int, average: FirstLayers) -> None:
        pass  # their sides are rows of the state

    def moved(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        clients = [task.client for task in tasks]
        return [(self._side(client).parameters - self._before.pop(client)).square().sum() for client in clients]

    def report(self, columns: NDArray[np.int64]) -> tuple[Tensor, Sequence[int]]:
        sides = self.state.clients.parameters
        return sides[:, torch.from_numpy(columns).to(sides.device)], range(len(sides))

    def projections(self) -> tuple[Tensor, Sequence[int]]:
        sides = self.state.clients.parameters
        return Projections.of(self._layout, sides, self._batches.seed, 0, self.state.cut).numbers, range(len(sides))

    def gather(self, *, optimizers: bool = False) -> None:
        pass  # they are there

    def knowledge(self) -> Knowledge:
        return {}

    def scatter(self, knowledge: Knowledge) -> None:
        pass  # it is theirs

    def take_faults(self) -> list[Fault]:
        return []

    def refuse(self, client: int, reason: str) -> bool:
        return False  # no client lies here: training has diverged

    def _side(self, client: int) -> ModelVectors:
        return self.state.clients.row(client) if self._keeps_sides else self._loaded[client]

    def _step(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        norms: list[Tensor | None] = []
        for task, gradient in zip(tasks, self._gradients, strict=False):
            optimizer, weights = self.state.client_optimizer(task.client), self._side(task.client).parameters
            if self._blur is not None:
                own = gradient[: self._layout.parameter_edges[task.cut]]
                self._blur.gradient_(own, task.round, self._first + task.client, task.step)
            edges = self._layout.parameter_edges
            norms.append(step_units(self._rule, edges, weights, gradient, optimizer, range(task.cut)))
        return norms


# ---------------------------------------------------------------------- reports
# What clients report of their sides for the decision (§IV of the paper), and the spreads by layer that follow from it.
#
# Clients report a random projection of each layer of their side, S w: coordinates get random signs, the same for all,
# and are dealt out in turn to R sums. E ‖S x‖² = ‖x‖², so spreads of projections are those of the layers but for an
# error of about √(2 / (R · clients)). A client's projection changes only when it learns, so only then is it sent, with
# 16 bits a number. Or, with a ratio ι, clients report every 1/ι-th parameter as it is, and the server scales by 1/ι.
_MOST_CODE = 2 ** (BITS_OF_REPORTED - 1) - 1


def sample_coordinates(size: int, ratio: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Every 1/ι-th of `size` coordinates from a random start on: each is taken with probability ι."""
    if ratio >= 1:
        return np.arange(size)
    positions = np.floor((np.arange(int(np.ceil(size * ratio)) + 1) + random.random()) / ratio).astype(np.int64)
    return np.asarray(positions[positions < size])


@dataclass(frozen=True, eq=False)
class Projections:
    """Of consecutive layers of client sides, as they cross."""

    codes: Tensor
    """[..., layers, R] int16"""
    step: Tensor
    """[..., layers] float32"""

    @classmethod
    def of(
        cls, layout: Layout, sides: Tensor, seed: int, above: int, depth: int, count: int = REPORTED_NUMBERS
    ) -> "Projections":
        """Of layers above + 1 … depth of sides [..., P]; `count` is R. Each side's are what they are for it alone."""
        leading = sides.shape[:-1]
        sums = sides.new_zeros(*leading, depth - above, count)
        for row, unit in enumerate(range(above, depth)):
            layer = sides[..., layout.parameter_edges[unit] : layout.parameter_edges[unit + 1]]
            size = layer.shape[-1]
            signed = layer.new_zeros(*leading, -(-size // count) * count)
            torch.mul(layer, _signs(seed, unit, size).to(layer.device), out=signed[..., :size])
            sums[..., row, :] = signed.view(*leading, -1, count).sum(-2)
        step = sums.abs().amax(-1).float() / _MOST_CODE
        codes = (sums / torch.where(step > 0, step, 1).unsqueeze(-1)).round()
        return cls(codes.nan_to_num(0).to(torch.int16), step)

    @property
    def numbers(self) -> Tensor:
        """[..., layers, R] float32"""
        return self.codes * self.step.unsqueeze(-1)


@lru_cache(maxsize=256)
def _signs(seed: int, unit: int, size: int) -> Tensor:
    """[size] ±1, the same in every round."""
    drawn = random_stream(seed, "signs of reports", unit).integers(0, 2, size, dtype=np.int8)
    return torch.from_numpy(2 * drawn - 1)


def projected_spreads(numbers: Tensor, clients: Sequence[int], weights: Floats, num_layers: int) -> Floats:
    """[M] (1/N) Σ_n ‖w̄_m − w_{n,m}‖² from projections [A, layers, R] of these clients, by their weights [N]."""
    values, own = numbers.double().cpu().numpy(), weights[list(clients)] / weights[list(clients)].sum()
    apart2 = np.square(values - np.einsum("a,alr->lr", own, values)).sum(axis=2)
    return np.concatenate([own @ apart2, np.zeros(num_layers - values.shape[1])])


def layer_norms(state: TrainingState) -> Floats:
    """[M] ‖w̄_m‖² of the average model."""
    squares = state.average_model().parameters.double().square().cpu().numpy()
    return np.asarray(np.diff(np.concatenate([[0.0], np.cumsum(squares)])[state.layout.parameter_edges]))


# ---------------------------------------------------------------------- where clients compute
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEEP_BELOW = 1 << 30


def device_named(name: str) -> torch.device:
    """Where to compute; "auto" is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise AsflError('training.device = "cuda", but PyTorch sees no GPU here; "auto" or "cpu" would work')
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def keep_freed_memory() -> bool:
    """So that activations needn't be mapped and cleared anew every round; False where the C library can't."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BELOW))
