"""The fleet of clients that are elsewhere: all are asked at once, and none is waited for longer than agreed.

A client that dies, hangs, refuses or sends nonsense is lost for the round: its answers are None, a `Fault` says why,
and the round goes on without it. It is out of sync then. As soon as it can be reached when a round begins, it gets a
whole client side (`Sync`): its own, if the server has it from the end of the round before the loss, else the mean of
the others'. What its optimiser remembered is lost unless the server has that too. What one answer weighs is bounded by
what the others of the round are like, and one far beyond them is nonsense too (`asfl.field.usual`); a client that sends
it again and again loses its place. If most answers of a round are wrong, the average before is: it is undone.

The server's `TrainingState` has a row for each client, as in a single process (`asfl.field.copies`). Layers that the
server receives in a re-split go there first, so that they are averaged by the same code, to the same bits.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.errors import AsflError
from asfl.field.averaging import Averaging
from asfl.field.copies import Copies, Reports
from asfl.field.held_out import Samples, read_score, read_statistics, samples_of, together
from asfl.field.links import Link, OpenRequest
from asfl.field.measure.clocks import Clocks
from asfl.field.patience import Patience
from asfl.field.protocol import messages as msg
from asfl.field.protocol.messages import A, Answer, Request
from asfl.field.protocol.shapes import Shapes
from asfl.field.protocol.wire import WireError
from asfl.field.roster import Roster
from asfl.field.usual import Kind, Place, Usual, bounded
from asfl.models.cuttable import CuttableModel
from asfl.train.batches import Batches
from asfl.train.evaluate import Score
from asfl.train.fleet import Bools, Fault, FirstLayers, FleetMaker, Knowledge, Norms, Packet
from asfl.train.layout import ModelVectors
from asfl.train.optimizers import OptimizerState, Rule
from asfl.train.quantise import UNQUANTISED, Crossing
from asfl.train.reports import Projections
from asfl.train.state import TrainingState
from asfl.train.trainer import Task

Value = TypeVar("Value")


def remote_fleet(links: Sequence[Link], patience: Patience | None = None, clocks: Clocks | None = None) -> FleetMaker:
    """What a `Simulation` makes its fleet with, so that its clients are behind these links.

    `clocks` is told how long everything takes.
    """
    return partial(RemoteFleet, links, patience or Patience(), clocks)


class RemoteFleet:
    """Implements `asfl.train.fleet.Fleet` over one link per client."""

    def __init__(
        self,
        links: Sequence[Link],
        patience: Patience,
        clocks: Clocks | None,
        model: CuttableModel,
        state: TrainingState,
        batches: Batches,
        rule: Rule,
        *,
        keeps_sides: bool,
    ) -> None:
        if len(links) != state.num_clients:
            raise AsflError(f"{len(links)} links, but scenario.clients = {state.num_clients}")
        self.state, self._keeps_sides = state, keeps_sides
        device = state.server.parameters.device
        self._shapes = Shapes.of(model, batches.image_shape, batches.batch_size, rule.num_moments, device)
        self._clocks, self._roster, self._usual = clocks, Roster(links, patience, clocks), Usual()
        self._samples = Samples(links)
        self._copies, self._averaging = Copies(len(links)), Averaging(self._shapes, len(links))
        self._good: Kept | None = None
        """The server's model at the start of the latest round in which most answers were right."""
        self._now: Kept | None = None
        """The same, of the present round."""
        self._reports, self._seed = Reports(len(links), self._shapes.layout.num_units), batches.seed
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._given: dict[int, tuple[FirstLayers, Tensor]] = {}
        """Client models that went down, and copies of their parameters: the server may step its own."""
        self._started: dict[int, OpenRequest[Any] | None] = {}
        """Forward passes, or whole steps, under way."""
        self._place: dict[int, tuple[int, int]] = {}
        """Step and cut of each client's latest forward pass."""
        self._returning: dict[int, OpenRequest[msg.Update] | None] = {}
        """Backward passes under way."""
        self._norms: dict[int, Tensor | None] = {}
        self._pass_began = time.monotonic()
        """Since when the server is busy with what the latest `forward` gave."""

    # ------------------------------------------------------------------ asking
    def _ask(self, client: int, request: Request[A]) -> OpenRequest[A] | None:
        """One request at a time: a backward pass that is still under way is waited for."""
        self._end_backward(client)
        return self._roster.ask(client, request)

    def _ask_all(
        self, clients: Sequence[int], request: Callable[[int], Request[A]], read: Callable[[A], Value]
    ) -> dict[int, Value]:
        """Everybody at once: what `read` makes of the answers of those who weren't lost."""
        asked = {client: self._ask(client, request(client)) for client in clients}
        read_all = {client: self._answer(one, read, asked.values()) for client, one in asked.items()}
        return {client: value for client, value in read_all.items() if value is not None}

    def _answer(
        self, one: OpenRequest[A] | None, read: Callable[[A], Value], under_way: Iterable[OpenRequest[Any] | None]
    ) -> Value | None:
        """What `read` makes of an answer, made smaller if it is far larger than those of others that are `under_way`,
        which are waited for; None if the client is lost.
        """
        if one is None:
            return None
        for noted in [one, *under_way]:
            if noted is not None and not noted.noted and (answer := noted.answer_if_any()) is not None:
                noted.noted, bits = True, getattr(noted.request, "bits", UNQUANTISED)
                self._usual.note(*self._kind_and_place(noted), answer, bits, self._base_of(noted))

        def read_bounded(answer: A) -> Value:
            value = read(answer)
            factors = self._usual.check(*self._kind_and_place(one))
            if not factors:
                return value
            self._roster.bounded(one.client, factors)
            return read(cast(A, bounded(answer, factors, self._base_of(one))))

        return self._roster.answer(one, read_bounded)

    def _base_of(self, one: OpenRequest[Any]) -> Tensor | None:
        """What layers in the answer are compared with: what all last shared of them, or what the client was given."""
        server, cut = self.state.server, self.state.cut
        match one.request:
            case msg.Give():
                return self._given[one.client][1] if one.client in self._given else None
            case msg.Upload(depth=depth):
                return self._shapes.layers(server, 0, depth).parameters
            case msg.Gather():
                return self._shapes.layers(server, 0, cut).parameters
            case msg.Shrink(cut=lower):
                return self._shapes.layers(server, lower, cut).parameters
            case msg.Sample(gaps=gaps):
                return server.parameters[gaps.long().cumsum(0).to(server.parameters.device)]
        return None

    def _kind_and_place(self, one: OpenRequest[Any]) -> tuple[Kind, Place]:
        request, (step, cut) = one.request, self._place.get(one.client, (0, 0))
        if isinstance(request, msg.Upload):  # deeper layers may have drifted for much longer
            cut = request.depth
        elif request.stage not in ("give", "learn"):
            cut = getattr(request, "cut", self.state.cut)
        return Kind(request.name, cut), Place(self._roster.index, one.client, getattr(request, "step", step))

    # ------------------------------------------------------------------ who is there
    def begin(self, index: int) -> Bools:
        self._forget_steps()
        self._usual.begin(index)
        if self._roster.most_were_wrong():
            self._undo()
        else:
            self._good, self._now = self._now, Kept(self.state.server.clone(), self.state.cut)
        out_of_sync = self._roster.begin(index)
        self._copies.side &= ~self._roster.quarantined  # whatever it is, it has no part in any mean
        self._bring_up_to_date(out_of_sync)
        if self._clocks is not None:
            self._clocks.begin(self._roster.present)
        return self._roster.present.copy()

    def _undo(self) -> None:
        """Back to the latest model that most clients had sensible answers to; what clients hold now stays theirs."""
        good, state = self._good, self.state
        if good is None:
            return
        first, shared = max(good.cut, state.cut), self._now.shared if self._now is not None else 0
        self.state.layout.behind(state.server, first).copy_(self.state.layout.behind(good.server, first))
        state.server_optimizer.moments[:, state.layout.parameter_edges[first] :] = 0
        state.server_optimizer.steps[first:] = 0
        if shared:
            state.share(min(shared, state.cut), state.layout.front(good.server, min(shared, state.cut)))
            self._roster.in_sync[:] = False
        self._now = Kept(state.server.clone(), state.cut)

    def take_faults(self) -> list[Fault]:
        return self._roster.take_faults()

    def refuse(self, client: int, reason: str) -> bool:
        """Its activations came, but the server's pass made no finite loss of them."""
        self._roster.lose(client, "forward", reason, lied=True)
        return True

    def knowledge(self) -> Knowledge:
        return self._copies.knowledge(self._roster)

    def scatter(self, knowledge: Knowledge) -> None:
        """Everybody is brought up to date when the next round begins, or shows that it is."""
        self._copies.restore(knowledge, self._roster)
        self._good = self._now = None
        self._averaging.has_shared[:] = False
        self._reports.changed[:] = True

    def _bring_up_to_date(self, clients: Sequence[int]) -> None:
        state, roster, copies = self.state, self._roster, self._copies
        done = self._let_keep([client for client in clients if copies.may_keep[client]])
        clients = [client for client in clients if client not in done]
        if state.cut and not copies.side[clients].all():
            self.gather()  # which also fills the rows of those whose side nobody knows
        roster.present[clients] = True
        synced = self._samples.heard(self._ask_all(clients, partial(copies.sync_of, state), samples_of), state)
        copies.given(synced)
        self._reports.changed[synced] = True
        roster.in_sync[synced] = True
        self._averaging.has_shared[synced] = state.cut == 0

    def _let_keep(self, clients: Sequence[int]) -> list[int]:
        """A client that has the very state the server left it with goes on with it, though the server has no copy.

        Returns those who do, and those who were lost when they were asked.
        """
        roster = self._roster
        roster.present[clients] = True
        answers = self._ask_all(clients, lambda _: msg.Ping(), lambda answer: answer)
        self._samples.heard({client: samples_of(answer) for client, answer in answers.items()}, self.state)
        where = {client: (answer.round, answer.cut) for client, answer in answers.items()}
        for client in where:
            roster.in_sync[client] = where[client] == (int(roster.round_of[client]), self.state.cut)
        roster.present[clients] = roster.in_sync[clients]
        self._copies.may_keep[clients] = False
        return [client for client in clients if client not in where or roster.in_sync[client]]

    # ------------------------------------------------------------------ stage 1
    def resplit(self, cut: int, scheduled: Bools) -> float:
        """Always 0: how far the mean moves depends on layers of clients without a block, and nobody sends those.

        If none of those who should send layers does, the cut stays: they are all lost, so nobody trains in this round.
        """
        before, state, roster = self.state.cut, self.state, self._roster
        if cut == before:
            return 0.0
        present = np.flatnonzero(roster.present).tolist()
        if cut > before:
            grow = msg.Grow(cut, self._shapes.layers(state.server, before, cut))
            self._ask_all(present, lambda _: grow, _done)
            moving = scheduled
        else:
            moving = self._take_layers([client for client in present if scheduled[client]], cut)
            if not moving.any():
                return 0.0
            quiet = [client for client in present if not scheduled[client]]
            self._ask_all(quiet, lambda _: msg.Shrink(cut, send=False), _done)
        state.resplit(cut, moving)
        self._reports.equal(slice(min(before, cut), None))
        self._have_changed_layers()
        return 0.0

    def _have_changed_layers(self) -> None:
        """Whoever wasn't there holds the wrong ones."""
        self._roster.in_sync &= self._roster.present
        self._copies.may_keep[:] = False

    def _take_layers(self, senders: Sequence[int], cut: int) -> Bools:
        """Put the layers above `cut` of these clients into their rows; [N] whose layers came."""
        came, before, rows = np.zeros(self.state.num_clients, dtype=np.bool_), self.state.cut, self.state.clients
        sent = self._ask_all(
            senders,
            lambda _: msg.Shrink(cut, send=True),
            lambda answer: self._shapes.check_layers(answer.layers, cut, before),
        )
        for client, layers in sent.items():
            self._shapes.layers(rows.row(client), cut, before).copy_(layers)
            came[client] = True
        return came

    # ------------------------------------------------------------------ stages 2 and 3
    def announce(self, tasks: Sequence[Task], sides: Sequence[FirstLayers] | None = None) -> None:
        loads = {} if sides is None else {task.client: side for task, side in zip(tasks, sides, strict=True)}
        for task in tasks:
            self._start(task, loads.get(task.client))

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        started = [self._started.pop(task.client) for task in tasks]
        others = [*started, *self._started.values()]
        reads = [partial(self._shapes.check_activations, cut=t.cut, bits=t.bits, batch=t.batch) for t in tasks]
        packets = [self._answer(one, read, others) for one, read in zip(started, reads, strict=True)]
        self._pass_began = time.monotonic()
        return packets

    def learn(self, tasks: Sequence[Task]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        started = [self._started.pop(task.client) for task in tasks]
        learnt = [self._answer(one, self._loss_and_norm, [*started, *self._started.values()]) for one in started]
        for task, found in zip(tasks, learnt, strict=True):
            if found is not None:
                self._has_learnt(task.client)
        return [found and found[0] for found in learnt], [found and found[1] for found in learnt]

    def _start(self, task: Task, model: FirstLayers | None) -> None:
        client, (side, codes) = task.client, (None, None) if model is None else msg.side_of(model)
        self._place[client] = task.step, task.cut
        if model is not None:
            same = [kept for sent, kept in self._given.values() if sent is model]
            own = model.received(self.state.server.parameters.new_zeros(()))
            self._given[client] = model, same[0] if same else own.parameters.clone()
        whole, parts = task.cut == self._shapes.layout.num_units, (side, task.bits, codes, task.batch)
        request = msg.Learn(task.step, *parts) if whole else msg.Forward(task.step, task.cut, *parts)
        self._started[client] = self._ask(client, request)

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        if self._clocks is not None:
            cuts = [task.cut for task in tasks]
            self._clocks.server_pass(cuts, time.monotonic() - self._pass_began, tasks[0].batch)
        for task, crossing in zip(tasks, gradients, strict=True):
            parts = msg.tensors_of(crossing), msg.codes_of(crossing)
            request = msg.Backward(task.step, task.cut, *parts, task.batch)
            self._returning[task.client] = self._ask(task.client, request)
        return lambda: [self._norm_of(task.client) for task in tasks]

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        asked = [self._ask(task.client, msg.Give(task.bits)) for task in tasks]

        def read(task: Task, answer: msg.Side) -> FirstLayers:
            return self._shapes.check_side(answer.layers, answer.codes, task.cut, task.bits)

        return [self._answer(one, partial(read, task), asked) for task, one in zip(tasks, asked, strict=True)]

    def upload(self, tasks: Sequence[Task]) -> dict[int, FirstLayers]:
        averaging, server = self._averaging, self.state.server
        asked = {t.client: self._ask(t.client, averaging.upload(server, t.cut, t.bits, t.client)) for t in tasks}
        reads = {t.client: averaging.reads(t.cut, t.bits) for t in tasks}
        found = {n: self._answer(one, reads[n], asked.values()) for n, one in asked.items()}
        return {n: layers for n, layers in found.items() if layers is not None}

    def share(self, depth: int, average: FirstLayers) -> None:
        present = np.flatnonzero(self._roster.present).tolist()
        self._ask_all(present, self._averaging.share(self.state.server, depth, average), _done)
        self._have_changed_layers()
        if self._now is not None:
            self._now = replace(self._now, shared=depth)
        self._reports.equal(slice(0, depth))
        if depth == self.state.cut:
            self._copies.side[:] = self._averaging.has_shared[:] = True

    def moved(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        norms = self._ask_all([task.client for task in tasks], lambda _: msg.Moved(), self._norm)
        return [norms.get(task.client) for task in tasks]

    def _end_backward(self, client: int) -> None:
        if client in self._returning:
            under_way = list(self._returning.values())
            norm = self._norms[client] = self._answer(self._returning.pop(client), self._norm, under_way)
            if norm is not None:
                self._has_learnt(client)

    def _norm_of(self, client: int) -> Tensor | None:
        self._end_backward(client)
        return self._norms.pop(client, None)

    def _norm(self, answer: msg.Update) -> Tensor:
        return answer.norm2.to(self._shapes.device)

    def _loss_and_norm(self, answer: msg.Update) -> tuple[Tensor, Tensor]:
        if answer.loss is None:
            raise WireError("loss is missing")
        return answer.loss.to(self._shapes.device), self._norm(answer)

    def _has_learnt(self, client: int) -> None:
        self._copies.outdated(client, side=self._keeps_sides)
        self._reports.changed[client, : self.state.cut] = True

    # ------------------------------------------------------------------ what the server wants to know
    def report(self, columns: NDArray[np.int64]) -> tuple[Tensor, Sequence[int]]:
        # Differences are small: a byte each, and much less to send than the values that come back.
        gaps = torch.from_numpy(np.diff(columns, prepend=0))
        if not len(gaps) or gaps.max() < 256:
            gaps = gaps.to(torch.uint8)
        present = np.flatnonzero(self._roster.present).tolist() if len(gaps) else []
        size = (len(columns),)
        rows = self._ask_all(
            present, lambda _: msg.Sample(gaps), lambda answer: self._shapes.check("values", answer.values, size)
        )
        if not rows:
            return self.state.server.parameters.new_zeros(1, len(columns)), [0]
        return torch.stack(list(rows.values())), list(rows)

    def projections(self) -> tuple[Tensor, Sequence[int]]:
        """Whoever has learnt since it last reported is asked; of the others is known what they have."""
        cut, layout, changed = self.state.cut, self._shapes.layout, self._reports.changed[:, : self.state.cut]
        present = self._roster.present.copy()
        above = {int(client): int(changed[client].argmax()) for client in np.flatnonzero(present & changed.any(axis=1))}

        def reader(client: int) -> Callable[[msg.Projected], Tensor]:
            return lambda answer: self._shapes.check_projections(answer, cut - above[client]).numbers

        asked = {client: self._ask(client, msg.Project(own)) for client, own in above.items()}
        for client, one in asked.items():
            numbers = self._answer(one, reader(client), asked.values())
            present[client] = numbers is not None
            if numbers is not None:
                self._reports.heard(client, above[client], numbers)
        whose = np.flatnonzero(present).tolist()
        shared = Projections.of(layout, self.state.server.parameters, self._seed, 0, cut).numbers
        return self._reports.of(whose or [0], shared), whose or [0]

    def gather(self, *, optimizers: bool = False) -> None:
        """Ask those clients of which the server doesn't know everything.

        A client that can't be asked and whose side isn't known counts like the mean of those whose side is.
        """
        state, shapes = self.state, self._shapes

        def read(answer: msg.ClientState) -> tuple[ModelVectors, OptimizerState | None]:
            side = shapes.check_layers(answer.side, 0, state.cut)
            return side, shapes.check_memory(answer.memory) if optimizers else None

        asked = np.flatnonzero(self._roster.present & self._copies.missing(optimizers=optimizers)).tolist()
        for client, (side, memory) in self._ask_all(asked, lambda _: msg.Gather(optimizers), read).items():
            self._copies.put(state, client, side, memory)
        self._copies.guess_sides(state)

    # ------------------------------------------------------------------ what only clients have images for
    def calibrated(self, model: ModelVectors) -> ModelVectors:
        present = np.flatnonzero(self._roster.present).tolist() if len(model.statistics) else []
        found = self._ask_all(present, lambda _: msg.Calibrate(model), partial(read_statistics, self._shapes, model))
        if not found:
            return model
        measured = self.state.average(torch.stack(list(found.values())), model.statistics, list(found))
        return ModelVectors(model.parameters, measured)

    def score(self, model_of: Callable[[int], ModelVectors]) -> Score | None:
        asked = np.flatnonzero(self._roster.present).tolist()
        answers = self._ask_all(asked, lambda client: msg.Score(model_of(client)), read_score)
        return together(answers, self.state.num_clients, self._samples.of)


@dataclass(frozen=True, eq=False)
class Kept:
    """The server's model when a round began."""

    server: ModelVectors
    cut: int
    shared: int = 0
    """How many layers of client sides were averaged in that round."""


def _done(answer: Answer) -> bool:
    """Of an answer that only says yes."""
    return True
