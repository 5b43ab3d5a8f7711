"""A client on its own: its samples, its side of the network, its optimiser, and answers to what the server asks.

Its maths is a `LocalFleet` of one, the code that also runs in a single process. It does only what fits its state: every
request says in which round that state last changed, as far as the server knows (`after`), and a request that is out of
order is refused with a reason. Then the server brings the client up to date with `Sync`, which is also how it begins.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from asfl.config import Config
from asfl.config.errors import MOST_LETTERS, AsflError
from asfl.config.names import DATASETS
from asfl.config.randomness import random_stream
from asfl.costs.round import MOST_BATCHES, wrong_bits
from asfl.data import ImageData, deal, load_data
from asfl.data.private import of_device
from asfl.field import messages as msg
from asfl.field.messages import Answer, AnyRequest, Blueprint, Refusal, Request, ShapedLink, Welcome, Where
from asfl.field.meters import CarefulMeter, Meter, layer_seconds
from asfl.field.wire import MOST_WEIGHT, Data, WireError, decode, encode
from asfl.models.build import build_model
from asfl.schemes import scheme_named
from asfl.train.batches import Batches
from asfl.train.evaluate import Calibrator, Evaluator
from asfl.train.fleet import FirstLayers, LocalFleet, Projections, device_named
from asfl.train.optimizers import OptimizerState, rule_named
from asfl.train.privacy import GaussianMechanism, nobody_knows
from asfl.train.quantise import UNQUANTISED
from asfl.train.signals import Task
from asfl.train.state import ModelVectors, TrainingState
from asfl.train.steps import client_learning_rate

_log = logging.getLogger(__name__)


class ClientNode:
    """One client of one run; `answer` is all it does."""

    def __init__(self, welcome: Welcome, data_dir: Path | None = None) -> None:
        """`welcome` says which run this is and which of its clients.

        The data are looked for in `data_dir`; where images are private, that says which (`asfl.data.private`).
        """
        agreement, self.client = welcome.agreement, welcome.client
        config = _with_own_files(agreement.config, data_dir)
        if self.client >= config.scenario.clients:
            raise AsflError(f"client = {self.client}, but there are {config.scenario.clients}")
        self._agreement, self.threads = agreement, agreement.threads
        exchange = scheme_named(agreement.scheme).exchange
        self._keeps_sides = exchange.keeps_client_sides
        self._device = device_named(config.training.device)
        blueprint = Blueprint.of(config, self._device)  # numbers come from the server
        self._model, self._shapes, self._layout = blueprint.model, blueprint.shapes, blueprint.shapes.layout
        self.largest_message = blueprint.largest_message
        self._private = config.data.private
        self._data, self._batches = _own_data(config, self.client, data_dir, self._device)
        self._rule = rule_named(config.training.optimizer, client_learning_rate(config, exchange))
        privacy = config.privacy
        self._blur = GaussianMechanism(privacy, nobody_knows) if privacy.noisy else None
        self._pace, self._meter = Pace(agreement.shaping), CarefulMeter(None)
        self.said_bye = False
        self.round_index: int | None = None
        """The round in which its state last changed; None: it has no state that could be used."""
        self._take_state(0, None)

    def fits(self, welcome: Welcome) -> bool:
        """Whether this welcome is to the same run, as the same client."""
        return (welcome.agreement, welcome.client) == (self._agreement, self.client)

    def read_meter(self, meter: Meter | None) -> None:
        """Say from now on, with every answer, what this client has consumed."""
        self._meter = CarefulMeter(meter)

    def answer(self, data: Data) -> bytes:
        """The answer to a request, both as bytes."""
        try:
            return encode(self.handle(decode(data, Request, self.largest_message)))
        except WireError as error:  # no request, or an answer that can't be sent
            return encode(Refusal(str(error)[:MOST_LETTERS]))

    def handle(self, request: AnyRequest) -> Answer:
        """The answer, or a refusal with the reason; and how long it took."""
        self._pace.down(request.payload_bytes, None if request.round is None else request.round + 1)
        began = time.perf_counter()
        try:
            answer = self._do(request)
        except AsflError as error:  # refused before anything was changed
            answer = Refusal(f"{request.name}: {error}"[:MOST_LETTERS])
        except Exception as error:  # whatever a library raises: the stream lives on, the state isn't trusted any more
            _log.exception("client %d: %s failed", self.client, request.name)
            self.round_index = None
            answer = Refusal(f"{request.name}: {type(error).__name__}: {error}"[:MOST_LETTERS])
        answer = replace(answer, busy_s=time.perf_counter() - began, energy_j=self._meter.read())
        self._pace.up(answer.payload_bytes)
        return answer

    @singledispatchmethod
    def _do(self, request: AnyRequest) -> Answer:
        raise WireError("nothing a client does")

    # ------------------------------------------------------------------ which state it is in
    def _take_state(self, cut: int, side: ModelVectors | None) -> None:
        """Start over with this client side; optimiser state from nothing."""
        nothing = ModelVectors.empty((), 0, 0, self._device, torch.float32)
        self._state = TrainingState.fresh(self._layout, nothing, 1, self._rule.num_moments)
        self._state.cut = cut
        if side is not None:
            self._state.clients, self._state.server = _rows(side), side.clone()
        self._state.make_room(cut)
        parts = self._model, self._state, self._batches, self._rule
        self._fleet = LocalFleet(*parts, keeps_sides=self._keeps_sides, first_client=self.client, blur=self._blur)
        self._open: Task | None = None
        """A forward pass whose backward pass is to come."""
        self._done: Task | None = None
        """The latest whole step."""

    def _check_turn(self, request: AnyRequest) -> int:
        """The round of a request that fits the state."""
        if request.round is None or request.after is None:
            raise WireError("it must say its round, and after which one")
        if self.round_index is None:
            raise WireError("there is no state here yet; sync comes first")
        if request.after != self.round_index:
            raise WireError(f"meant for a state of round {request.after}, but here it is of round {self.round_index}")
        if request.round < request.after:
            raise WireError(f"round {request.round} is over; the state here is of round {request.after}")
        return request.round

    def _where(self) -> Where:
        samples = len(self._data.train_labels) if self._private else None
        return Where(self._state.cut, self.round_index, samples)

    # ------------------------------------------------------------------ state from and to the server
    @_do.register
    def _sync(self, request: msg.Sync) -> Where:
        if request.round is None or request.cut > self._layout.num_units:
            raise WireError(f"round {request.round}, cut = {request.cut}: must be 0 … {self._layout.num_units}")
        if request.cut and not self._keeps_sides:
            raise WireError(f"cut = {request.cut}, but client sides aren't kept in this scheme")
        side = self._shapes.check_vectors(request.side, 0, request.cut)
        memory = None if request.memory is None else self._shapes.check_memory(request.memory)
        self._take_state(request.cut, side)
        if memory is not None:
            self._state.client_moments = memory.moments.clone().unsqueeze(0)
            self._state.client_steps = memory.steps.copy()[None]
            self._state.make_room(request.cut)
        self.round_index = request.round
        return self._where()

    @_do.register
    def _grow(self, request: msg.Grow) -> Where:
        index, before, cut = self._check_turn(request), self._state.cut, request.cut
        if not before < cut <= self._layout.num_units:
            raise WireError(f"cut = {cut} must be {before + 1} … {self._layout.num_units}")
        layers = self._shapes.check_vectors(request.layers, before, cut)
        self._move_cut(index, cut, _joined(self._state.clients.row(0), layers), _joined(self._state.server, layers))
        return self._where()

    @_do.register
    def _shrink(self, request: msg.Shrink) -> msg.Side:
        index, before, cut = self._check_turn(request), self._state.cut, request.cut
        if not 1 <= cut < before:
            raise WireError(f"cut = {cut} must be 1 … {before - 1}")
        own = self._state.clients.row(0)
        shared = self._shapes.layers(self._state.server, 0, cut)
        self._move_cut(index, cut, self._shapes.layers(own, 0, cut), shared)
        gone = self._shapes.layers(own, cut, before)
        return msg.Side(FirstLayers(gone.parameters, gone.statistics) if request.send else None)

    def _move_cut(self, index: int, cut: int, side: ModelVectors, shared: ModelVectors) -> None:
        """`shared`: what all last had in common of these layers."""
        self._state.clients, self._state.server, self._state.cut = _rows(side), shared.clone(), cut
        self._state.make_room(cut)
        self._open = self._done = None
        self.round_index = index

    @_do.register
    def _gather(self, request: msg.Gather) -> msg.ClientState:
        self._check_turn(request)
        state = self._state
        memory = OptimizerState(state.client_moments[0], state.client_steps[0]) if request.memory else None
        return msg.ClientState(state.clients.row(0), memory)

    # ------------------------------------------------------------------ a step
    @_do.register
    def _forward(self, request: msg.Forward) -> msg.Activations:
        cut, shallowest = request.task.cut, self._agreement.config.privacy.min_cut
        if cut >= self._layout.num_units:
            raise WireError(f"cut = {cut} must be 1 … {self._layout.num_units - 1}")
        if cut < shallowest:
            raise WireError(f"cut = {cut}, but privacy.min_cut = {shallowest}")
        task = self._begin_step(request)
        (packet,) = self._fleet.forward([task])
        assert packet is not None
        self._open, self._done, self.round_index = task, None, task.round
        few_classes = self._shapes.num_classes <= 256
        return msg.Activations(replace(packet, labels=packet.labels.to(torch.uint8)) if few_classes else packet)

    @_do.register
    def _backward(self, request: msg.Backward) -> msg.Update:
        asked = self._check_turn(request), request.task.step
        if self._open is None or (self._open.round, self._open.step) != asked:
            raise WireError(f"no forward pass of round {asked[0]}, step {asked[1]} is waiting for it")
        task = self._open
        gradients = self._shapes.check_crossing("gradients", request.gradients, task)
        self._done, self._open = task, None
        (norm2,) = self._fleet.backward([task], [gradients])()
        assert norm2 is not None
        return msg.Update(norm2)

    @_do.register
    def _learn(self, request: msg.Learn) -> msg.Update:
        if self._blur is not None:
            raise WireError("privacy: a loss leaves as it is; without a cut nothing is hidden")
        if request.task.cut != self._layout.num_units:
            raise WireError(f"cut = {request.task.cut} must be {self._layout.num_units}")
        task = self._begin_step(request)
        (loss,), (norm2,) = self._fleet.learn([task])
        assert norm2 is not None
        self._open, self._done, self.round_index = None, task, task.round
        return msg.Update(norm2, loss)

    def _begin_step(self, request: msg.Forward | msg.Learn) -> Task:
        """What is asked, which must follow what was done before."""
        task = replace(self._checked_bits(request.task), round=self._check_turn(request), client=0)
        most = MOST_BATCHES * self._agreement.config.training.batch_size
        steps, done = self._batches.local_steps, self._done
        if task.step >= steps or task.cut < 1:
            raise WireError(f"step = {task.step}, cut = {task.cut}: must be below {steps}, and from 1 on")
        if task.step and (done is None or (done.round, done.step, done.cut) != (task.round, task.step - 1, task.cut)):
            raise WireError(f"step {task.step} of round {task.round} doesn't follow what was done before")
        if self._keeps_sides and task.cut > self._state.cut:
            raise WireError(f"cut = {task.cut}, but this client holds {self._state.cut} layers")
        if task.batch is not None and not 1 <= task.batch <= most:
            raise WireError(f"batch = {task.batch} must be 1 … {most}")
        if not self._keeps_sides and task.step == 0:
            self._fleet.announce([task], [self._shapes.check_layers(request.side, task.cut, task.bits)])
        return task

    def _checked_bits(self, task: Task) -> Task:
        if wrong := wrong_bits(task.bits):
            raise WireError(f"bits {wrong}")
        return task

    @_do.register
    def _give(self, request: msg.Give) -> msg.Side:
        done = self._check_done(request)
        if self._keeps_sides:
            raise WireError("client sides are kept in this scheme; gather asks for them")
        (side,) = self._fleet.give([replace(done, bits=self._checked_bits(request.task).bits)])
        return msg.Side(side)

    @_do.register
    def _moved(self, request: msg.Moved) -> msg.Update:
        done = self._check_done(request)
        if self._batches.local_steps == 1:
            raise WireError("with one local step, backward and learn give the norm")
        (norm2,) = self._fleet.moved([done])
        assert norm2 is not None
        return msg.Update(norm2)

    @_do.register
    def _upload(self, request: msg.Upload) -> msg.Side:
        done, depth, bits = self._check_done(request), request.task.cut, self._checked_bits(request.task).bits
        self._check_depth(depth)
        if request.shared is not None:
            known = self._layout.front(self._state.server, depth).parameters
            known.copy_(self._shapes.check("shared", request.shared, tuple(known.shape)))
        return msg.Side(self._fleet.upload([replace(done, cut=depth, bits=bits)])[0])

    @_do.register
    def _share(self, request: msg.Share) -> Where:
        index, average = self._check_turn(request), request.average
        self._check_depth(request.depth)
        bits = getattr(average.parameters, "bits", UNQUANTISED)
        layers = self._shapes.check_layers(average, request.depth, bits)
        shared = self._layout.front(self._state.server, request.depth).parameters
        self._state.share(request.depth, layers.received(shared))
        self.round_index = index
        return self._where()

    def _check_depth(self, depth: int) -> None:
        if not (self._keeps_sides and 1 <= depth <= self._state.cut):
            raise WireError(f"depth = {depth} must be 1 … {self._state.cut}, in a scheme that keeps client sides")

    def _check_done(self, request: AnyRequest) -> Task:
        """The latest step of a round that is done."""
        index = self._check_turn(request)
        if self._done is None or (self._done.round, self._done.step) != (index, self._batches.local_steps - 1):
            raise WireError(f"round {index} isn't done here")
        return self._done

    # ------------------------------------------------------------------ small things
    @_do.register
    def _sample(self, request: msg.Sample) -> msg.Values:
        self._check_turn(request)
        gaps, size = request.gaps.long().numpy(), self._state.clients.parameters.shape[1]
        columns = np.cumsum(gaps)
        if gaps.size and (gaps.max() >= size or columns[-1] >= size or columns.min() < 0):
            raise WireError(f"a column that isn't among the {size} here")
        return msg.Values(self._fleet.report(columns)[0][0])

    @_do.register
    def _project(self, request: msg.Project) -> msg.Projected:
        self._check_turn(request)
        cut, seed = self._state.cut, self._agreement.config.scenario.seed
        if request.above >= cut:
            raise WireError(f"above = {request.above} must be 0 … {cut - 1}")
        return msg.Projected(Projections.of(self._layout, self._state.clients.parameters[0], seed, request.above, cut))

    @_do.register
    def _calibrate(self, request: msg.Calibrate) -> msg.Calibrated:
        model = self._whole(request.model)
        calibrator = Calibrator(self._model, self._layout, self._batches, self._device, torch.float32)
        return msg.Calibrated(calibrator.calibrated(model).statistics)

    @_do.register
    def _score(self, request: msg.Score) -> msg.Scored:
        model, held_out = self._whole(request.model), len(self._data.test_labels)
        if not held_out:
            return msg.Scored(0)
        evaluator = Evaluator(self._model, self._layout, self._data, self._device, torch.float32)
        score = evaluator.score(model)
        return msg.Scored(held_out, round(score.accuracy * held_out), min(score.loss, MOST_WEIGHT))

    def _whole(self, model: ModelVectors) -> ModelVectors:
        """A model to look at; nothing here changes by that."""
        if not self._private:
            raise WireError("the images are not private here: the server has its own")
        return self._shapes.check_vectors(model, 0, self._layout.num_units)

    @_do.register
    def _ping(self, request: msg.Ping) -> Where:
        return self._where()

    @_do.register
    def _bye(self, request: msg.Bye) -> Where:
        self.said_bye = True
        return self._where()

    @_do.register
    def _probe(self, request: msg.Probe) -> msg.Probed:
        data, seconds = torch.zeros(request.answer_bytes, dtype=torch.uint8), None
        if request.compute:
            config = self._agreement.config
            with torch.random.fork_rng(devices=[]):
                model = build_model(config.model_spec, config.training.precision).to(self._device)
            images, _ = self._batches.batch(0, self.client, 0)
            seconds = torch.from_numpy(layer_seconds(model, images))
        return msg.Probed(data, seconds)


class Pace:
    """Keeps a client to its links: a message waits as long as a link of that rate would have taken.

    So every transport can be shaped, and the server only sees that it takes longer.
    """

    def __init__(self, links: Sequence[ShapedLink]) -> None:
        self._links, self._round = links, 1

    def _link(self) -> ShapedLink:
        """The one that holds in this round."""
        return next((link for link in reversed(self._links) if link.from_round <= self._round), ShapedLink())

    def down(self, num_bytes: int, round_number: int | None) -> None:
        """A request of a round has come, or of the same round as the one before."""
        self._round = self._round if round_number is None else round_number
        _wait(self._link().seconds(num_bytes, self._link().downlink_bps))

    def up(self, num_bytes: int) -> None:
        """Its answer goes."""
        _wait(self._link().seconds(num_bytes, self._link().uplink_bps))


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def _rows(side: ModelVectors) -> ModelVectors:
    """[1, …], copies."""
    return ModelVectors(side.parameters.clone().unsqueeze(0), side.statistics.clone().unsqueeze(0))


def _joined(first: ModelVectors, then: ModelVectors) -> ModelVectors:
    return ModelVectors(torch.cat([first.parameters, then.parameters]), torch.cat([first.statistics, then.statistics]))


def _own_data(config: Config, client: int, data_dir: Path | None, device: torch.device) -> tuple[ImageData, Batches]:
    """The client's own samples and no others: what it brings, or what the seed deals it, as on the server."""
    clients, seed, needed = config.scenario.clients, config.scenario.seed, config.training.batch_size
    if config.data.private:
        if data_dir is None:
            raise AsflError("this run learns from images of the device's own: say which (--data)")
        mine = random_stream(seed, f"held out by client {client}")
        data = of_device(config.data.name, str(data_dir), config.data.held_out, mine)
    else:
        data = load_data(config, data_dir)
        own = deal(data, config)[client]
        data = replace(data, train_images=data.train_images[own], train_labels=data.train_labels[own])
    count = len(data.train_labels)
    if count < needed:
        raise AsflError(f"training.batch_size = {needed}, but this client has only {count} images")
    # Where all have as many, orders are drawn for all clients at once, whatever they hold.
    nothing: NDArray[np.int64] = np.zeros(0, np.int64)
    parts = [np.arange(count) if n == client or not config.data.uneven else nothing for n in range(clients)]
    return data, Batches.of(data, parts, config, device)


def _with_own_files(config: Config, data_dir: Path | None) -> Config:
    """Which files are read here is never the server's choice: they are looked for in this client's own folder."""
    name = config.data.name
    if name not in DATASETS and not config.data.private:  # the path of a file or a folder
        inner = PurePosixPath(name.replace("\\", "/")).name
        name = str((data_dir or Path.cwd()) / ("" if inner == ".." else inner))
    return config.model_copy(update={"data": config.data.model_copy(update={"name": name})})
