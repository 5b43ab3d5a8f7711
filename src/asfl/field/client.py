"""A client on its own: its samples, its side of the network, its optimiser, and answers to what the server asks.

Its maths is a `LocalFleet` of one, the code that also runs in a single process. It does only what fits the state it is
in: every request says of which round the server believes that state to be (`after`), and one that is out of order is
refused with a reason. Then the server brings the client up to date with `sync`, which is also how it begins.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from asfl.config import Config
from asfl.data import load_data, partition
from asfl.data.arrays import is_own_file
from asfl.errors import AsflError
from asfl.field.layer_times import layer_seconds
from asfl.field.meters import CarefulMeter, Meter
from asfl.field.shapes import Blueprint
from asfl.field.shaping import Pace
from asfl.field.terms import Terms
from asfl.field.wire import Message, WireError
from asfl.models import build_model
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from asfl.train.device import device_named
from asfl.train.fleet import LocalFleet
from asfl.train.layout import ModelVectors
from asfl.train.optimizers import rule_named
from asfl.train.state import TrainingState

_log = logging.getLogger(__name__)
_DTYPE = torch.float32
MOST_PROBED = 1 << 20
"""Bytes that `probe` sends back at most."""


class ClientNode:
    """One client of one run; `handle` is all it does."""

    def __init__(self, welcome: Message, data_dir: Path | None = None) -> None:
        """`welcome` says which run this is and who of its clients; the data are looked for in `data_dir`."""
        terms, self.client = Terms.of(welcome)
        self._terms, self.threads = terms, terms.threads
        config = _with_own_files(terms.config, data_dir)
        self._keeps_sides = scheme_named(terms.scheme).procedure.keeps_client_sides
        self._device = device_named(config.training.device)
        blueprint = Blueprint.of(config)  # numbers come from the server
        self._model, self._layout, self._shapes = blueprint.model, blueprint.layout, blueprint.carries
        self.largest_message = blueprint.largest_message
        self._batches = _own_batches(config, self.client, data_dir, self._device)
        self._rule = rule_named(config.training.optimizer, config.training.learning_rate)
        self._pace, self._meter = Pace(terms.shaping), CarefulMeter(None)
        self.said_bye = False
        self.round_index: int | None = None
        """Of the round in which its state last changed; None: it has none that could be used."""
        self._take_state(0, None)
        self._operations: dict[str, Callable[[Message], Message]] = {
            "sync": self._sync,
            "grow": self._grow,
            "shrink": self._shrink,
            "forward": self._forward,
            "backward": self._backward,
            "learn": self._learn,
            "give": self._give,
            "moved": self._moved,
            "report": self._report,
            "state": self._give_state,
            "ping": self._ping,
            "probe": self._probe,
            "bye": self._bye,
        }

    def fits(self, welcome: Message) -> bool:
        """Whether this welcome is to the same run, as the same client."""
        return Terms.of(welcome) == (self._terms, self.client)

    def read_meter(self, meter: Meter | None) -> None:
        """Say from now on, with every answer, what this client has consumed."""
        self._meter = CarefulMeter(meter)

    def handle(self, request: Message) -> Message:
        """The answer: of the same op, or an "error" with the op and the reason; and how long it took to find."""
        index = request.fields.get("round")
        self._pace.down(request.payload_bytes, index + 1 if isinstance(index, int) else None)
        began = time.perf_counter()
        answer = self._answer(request)
        answer = answer.having(busy_s=time.perf_counter() - began, **self._meter.fields())
        self._pace.up(answer.payload_bytes)
        return answer

    def _answer(self, request: Message) -> Message:
        try:
            operation = self._operations.get(request.op)
            if operation is None:
                raise WireError(f"unknown; known are {', '.join(self._operations)}")
            return operation(request)
        except AsflError as error:  # refused before anything was changed
            return _error(request, str(error))
        except Exception as error:  # whatever a library raises: the stream lives on, the state isn't trusted any more
            _log.exception("client %d: %s failed", self.client, request.op)
            self.round_index = None
            return _error(request, f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------ which state it is in
    def _take_state(self, cut: int, side: ModelVectors | None) -> None:
        """Start over with this client side; optimiser state from nothing."""
        nothing = ModelVectors.empty((), 0, 0, self._device, _DTYPE)
        self._state = TrainingState.fresh(self._layout, nothing, 1, self._rule.num_moments)
        self._state.cut = cut
        if side is not None:
            self._state.clients = self._rows(side)
        self._state.make_room(cut)
        self._fleet = LocalFleet(
            self._model,
            self._state,
            self._batches,
            self._rule,
            keeps_sides=self._keeps_sides,
            first_client=self.client,
        )
        self._open: tuple[int, int, int] | None = None
        """Round, step and cut of a forward pass whose backward pass is to come."""
        self._done: tuple[int, int, int] | None = None
        """Likewise of the latest whole step."""

    def _rows(self, side: ModelVectors) -> ModelVectors:
        """[1, …], copies."""
        return ModelVectors(*(v.to(self._device).clone().unsqueeze(0) for v in (side.parameters, side.statistics)))

    def _check_turn(self, request: Message) -> int:
        """The round of a request that fits the state."""
        after, index = request.whole("after"), request.whole("round")
        if self.round_index is None:
            raise WireError("there is no state here yet; sync comes first")
        if after != self.round_index:
            raise WireError(f"meant for a state of round {after}, but here it is of round {self.round_index}")
        if index < after:
            raise WireError(f"round {index} is over; the state here is of round {after}")
        return index

    # ------------------------------------------------------------------ state from and to the server
    def _sync(self, request: Message) -> Message:
        index, cut = request.whole("round"), request.whole("cut", most=self._layout.num_units)
        if cut and not self._keeps_sides:
            raise WireError(f"cut = {cut}, but client sides aren't kept in this scheme")
        side = self._layers(request, 0, cut)
        moments, steps = None, None
        if "moments" in request.tensors:
            width = request.tensors["moments"].shape[-1]
            if width not in self._layout.parameter_edges:
                raise WireError(f"moments of {width} parameters, which is no whole number of layers")
            moments = request.tensor("moments", (self._rule.num_moments, width), _DTYPE)
            steps = request.tensor("steps", (self._layout.num_units,), torch.int64)
            if (steps < 0).any():
                raise WireError("steps must not be negative")
        self._take_state(cut, side)
        if moments is not None and steps is not None:
            self._state.client_moments = moments.to(self._device).clone().unsqueeze(0)
            self._state.client_steps = steps.numpy().copy()[None]
            self._state.make_room(cut)
        self.round_index = index
        return self._where(request)

    def _grow(self, request: Message) -> Message:
        index, before = self._check_turn(request), self._state.cut
        cut = request.whole("cut", least=before + 1, most=self._layout.num_units)
        layers, own = self._layers(request, before, cut), self._state.clients.row(0)
        self._state.clients = self._rows(
            ModelVectors(torch.cat([own.parameters, layers.parameters]), torch.cat([own.statistics, layers.statistics]))
        )
        return self._now_at(request, index, cut)

    def _shrink(self, request: Message) -> Message:
        index, before = self._check_turn(request), self._state.cut
        cut = request.whole("cut", least=1, most=before - 1)
        sends = request.whole("send", most=1)
        own = self._state.clients.row(0)
        a, b = int(self._layout.parameter_edges[cut]), int(self._layout.statistic_edges[cut])
        upper = {"parameters": own.parameters[a:], "statistics": own.statistics[b:]}
        self._state.clients = self._rows(ModelVectors(own.parameters[:a], own.statistics[:b]))
        answer = self._now_at(request, index, cut)
        return replace(answer, tensors=upper) if sends else answer

    def _now_at(self, request: Message, index: int, cut: int) -> Message:
        self._state.cut = cut
        self._state.make_room(cut)
        self._open = self._done = None
        self.round_index = index
        return self._where(request)

    def _layers(self, request: Message, first: int, last: int) -> ModelVectors:
        """Layers first … last−1, as sent along."""
        sizes = [int(edge[last] - edge[first]) for edge in (self._layout.parameter_edges, self._layout.statistic_edges)]
        parts = (
            request.tensor(n, (size,), _DTYPE) for n, size in zip(("parameters", "statistics"), sizes, strict=True)
        )
        return ModelVectors(*(part.to(self._device) for part in parts))

    def _give_state(self, request: Message) -> Message:
        self._check_turn(request)
        own = self._state.clients.row(0)
        tensors = {"parameters": own.parameters, "statistics": own.statistics}
        if request.whole("optimizers", most=1):
            tensors["moments"] = self._state.client_moments[0]
            tensors["steps"] = torch.from_numpy(self._state.client_steps[0])
        return Message(request.op, {"cut": self._state.cut}, tensors)

    # ------------------------------------------------------------------ a step
    def _forward(self, request: Message) -> Message:
        index, step, cut = self._begin_step(request, most=self._layout.num_units - 1)
        (packet,) = self._fleet.forward(index, step, [0], cut)
        assert packet is not None
        carry, labels = packet
        self._open, self._done = (index, step, cut), None
        self.round_index = index
        return Message(request.op, {}, {**{f"carry.{i}": tensor for i, tensor in enumerate(carry)}, "labels": labels})

    def _backward(self, request: Message) -> Message:
        asked = self._check_turn(request), request.whole("step")
        if self._open is None or self._open[:2] != asked:
            raise WireError(f"no forward pass of round {asked[0]}, step {asked[1]} is waiting for it")
        gradients = tuple(
            request.tensor(f"gradient.{i}", shape, _DTYPE).to(self._device)
            for i, shape in enumerate(self._shapes[self._open[2]])
        )
        self._done, self._open = self._open, None
        (norm,) = self._fleet.backward([0], [gradients])()
        assert norm is not None
        return Message(request.op, {}, {"norm": norm})

    def _learn(self, request: Message) -> Message:
        index, step, cut = self._begin_step(request, least=self._layout.num_units)
        (loss,), (norm,) = self._fleet.learn(index, step, [0])
        assert loss is not None
        assert norm is not None
        self._open, self._done = None, (index, step, cut)
        self.round_index = index
        return Message(request.op, {}, {"loss": loss, "norm": norm})

    def _begin_step(self, request: Message, least: int = 1, most: int | None = None) -> tuple[int, int, int]:
        index = self._check_turn(request)
        step = request.whole("step", most=self._batches.local_steps - 1)
        cut = request.whole("cut", least=least, most=most or self._layout.num_units)
        if step and self._done != (index, step - 1, cut):
            raise WireError(f"step {step} of round {index} doesn't follow what was done before")
        if self._keeps_sides and cut != self._state.cut:
            raise WireError(f"cut = {cut}, but this client holds {self._state.cut} layers")
        if not self._keeps_sides and step == 0:
            self._fleet.load([0], self._layers(request, 0, cut))
        return index, step, cut

    def _give(self, request: Message) -> Message:
        self._check_done(request)
        if self._keeps_sides:
            raise WireError("client sides are kept in this scheme; state gives them")
        (side,) = self._fleet.give([0])
        assert side is not None
        return Message(request.op, {}, {"parameters": side.parameters, "statistics": side.statistics})

    def _moved(self, request: Message) -> Message:
        self._check_done(request)
        if self._batches.local_steps == 1:
            raise WireError("with one local step, backward and learn give the norm")
        (norm,) = self._fleet.moved([0])
        assert norm is not None
        return Message(request.op, {}, {"norm": norm})

    def _check_done(self, request: Message) -> None:
        index = self._check_turn(request)
        if self._done is None or self._done[:2] != (index, self._batches.local_steps - 1):
            raise WireError(f"round {index} isn't done here")

    # ------------------------------------------------------------------ small things
    def _report(self, request: Message) -> Message:
        self._check_turn(request)
        gaps, size = request.tensors.get("gaps"), self._state.clients.parameters.shape[1]
        if gaps is None or gaps.dim() != 1 or gaps.dtype not in (torch.uint8, torch.int64):
            raise WireError("gaps must be a list of whole numbers")
        steps = gaps.long().numpy()
        columns = np.cumsum(steps)
        if steps.size and (steps.min() < 0 or steps.max() >= size or columns[-1] >= size or columns.min() < 0):
            raise WireError(f"a column that isn't among the {size} here")
        return Message(request.op, {}, {"values": self._fleet.report(columns)[0]})

    def _ping(self, request: Message) -> Message:
        return self._where(request)

    def _probe(self, request: Message) -> Message:
        """So many bytes back, and if asked for, how long each layer takes here; no state is touched."""
        tensors = {"data": torch.zeros(request.whole("answer", most=MOST_PROBED), dtype=torch.uint8)}
        if request.whole("compute", most=1):
            with torch.random.fork_rng(devices=[]):
                model = build_model(self._terms.config.model_spec).to(self._device)
            tensors["seconds"] = torch.from_numpy(layer_seconds(model, *self._batches.batch(0, self.client, 0)))
        return Message(request.op, {}, tensors)

    def _bye(self, request: Message) -> Message:
        self.said_bye = True
        return self._where(request)

    def _where(self, request: Message) -> Message:
        return Message(request.op, {"round": self.round_index, "cut": self._state.cut})


def _own_batches(config: Config, client: int, data_dir: Path | None, device: torch.device) -> Batches:
    """The client's own samples and nobody else's; which ones is drawn from the seed, as on the server."""
    data, training = load_data(config, data_dir), config.training
    clients, seed = config.scenario.clients, config.scenario.seed
    parts = partition(data.train_labels, clients, config.data.dirichlet_alpha, seed)
    own = parts[client]
    if len(own) < training.batch_size:
        raise AsflError(f"training.batch_size = {training.batch_size}, but this client has only {len(own)} images")
    data = replace(data, train_images=data.train_images[own], train_labels=data.train_labels[own])
    # Orders are drawn for all clients at once, whatever they hold.
    return Batches.of(data, np.tile(np.arange(len(own)), (clients, 1)), config, device)


def _with_own_files(config: Config, data_dir: Path | None) -> Config:
    """Which files are read here is never the server's choice: they are looked for in this client's own folder."""
    name = config.data.name
    if is_own_file(name):
        name = str((data_dir or Path()) / PurePosixPath(name.replace("\\", "/")).name)
    return config.model_copy(update={"data": config.data.model_copy(update={"name": name, "folder": ""})})


def _error(request: Message, reason: str) -> Message:
    return Message("error", {"request": request.op, "reason": reason[:500]})
