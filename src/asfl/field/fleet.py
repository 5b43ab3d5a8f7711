"""The fleet of clients that are elsewhere: all are asked at once, and none is waited for longer than agreed.

A client that dies, hangs, refuses or sends nonsense is lost for the round: its answers are None, a `Fault` says why,
and the round goes on without it. It is out of sync then. As soon as it can be reached when a round begins, it gets a
whole client side (`Sync`): its own, if the server has it from the end of the round before the loss, else the mean of
the others'. What its optimiser remembered is lost unless the server has that too. What one answer weighs is bounded by
what the others of the round are like, and one far beyond them is nonsense too (`asfl.field.outliers`); a client that
sends it again and again loses its place. If most answers of a round are wrong, the average before is: it is undone.

The server's `TrainingState` has a row for each client, as in a single process. A row equals what the client has if it
was gathered, or given to the client, and nothing was learnt since (`Copies`). Through re-splits and averages the rows
move as the client sides do, by the same code, to the same bits.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from asfl.config import Config
from asfl.config.errors import AsflError
from asfl.config.fields import Section, explain
from asfl.config.files import parse_toml, read_text
from asfl.config.names import is_own_file
from asfl.costs.modelled import REPORTED_NUMBERS
from asfl.costs.world import Budgets
from asfl.field import messages as msg
from asfl.field.measured import Clocks, MeasuredWorld, probe
from asfl.field.messages import A, Agreement, Answer, Link, OpenRequest, Request, ShapedLink, Shapes
from asfl.field.outliers import Kind, OutlierFilter, Place, bounded
from asfl.field.roster import Patience, Roster
from asfl.field.wire import MOST_WEIGHT, WireError
from asfl.models.cuttable import CuttableModel
from asfl.runs.folder import is_finished
from asfl.runs.manifest import MANIFEST_FILE, read_manifest
from asfl.runs.run import RunOptions, run
from asfl.runs.this_process import usual_threads
from asfl.train.batches import Batches
from asfl.train.evaluate import Score
from asfl.train.fleet import Bools, Fault, FirstLayers, FleetMaker, Knowledge, Norms, Packet, Projections
from asfl.train.optimizers import OptimizerState, Rule
from asfl.train.quantise import UNQUANTISED, Crossing
from asfl.train.signals import Task
from asfl.train.state import ModelVectors, TrainingState


class Reports:
    """What clients have last reported of their sides; layers that aren't their own are as the server shared them."""

    def __init__(self, num_clients: int, num_layers: int) -> None:
        self.numbers = torch.zeros(num_clients, num_layers, REPORTED_NUMBERS)
        self.own: Bools = np.zeros((num_clients, num_layers), dtype=np.bool_)
        """[N, M] layers that differ from what the server shared, as `numbers` say."""
        self.changed: Bools = np.ones((num_clients, num_layers), dtype=np.bool_)
        """[N, M] layers that have changed since."""

    def equal(self, layers: slice) -> None:
        """All clients have the server's values of these layers, or none."""
        self.own[:, layers] = self.changed[:, layers] = False

    def heard(self, client: int, above: int, numbers: Tensor) -> None:
        layers = slice(above, above + len(numbers))
        self.numbers[client, layers] = numbers.cpu()
        self.own[client, layers], self.changed[client] = True, False

    def of(self, clients: Sequence[int], shared: Tensor) -> Tensor:
        """[A, layers, R] of these clients; `shared` [layers, R] is the server's."""
        own = torch.from_numpy(self.own[clients, : len(shared)]).unsqueeze(2)
        return torch.where(own, self.numbers[clients, : len(shared)], shared.cpu())


class Copies:
    """Of which clients the state, which is given each time, has what."""

    def __init__(self, num_clients: int) -> None:
        self.side: Bools = np.ones(num_clients, dtype=np.bool_)
        """[N] whose client side is in its row."""
        self._optimizer: Bools = np.ones(num_clients, dtype=np.bool_)
        """[N] whose optimiser is."""
        self.has_shared: Bools = np.zeros(num_clients, dtype=np.bool_)
        """[N] who surely has what all last shared of the layers it holds: with few bits, layers cross as differences to
        it."""

    def missing(self, *, optimizers: bool) -> Bools:
        """[N] clients of which something isn't known."""
        return ~self.side | (~self._optimizer & optimizers)

    def outdated(self, client: int, *, side: bool) -> None:
        """It has learnt: what its optimiser remembers has changed, and its `side` too if it keeps one."""
        self.side[client] = not side
        self._optimizer[client] = False

    def given(self, clients: Sequence[int], *, shared: bool) -> None:
        """These have what their rows say; `shared`: and with it what all last shared."""
        self.side[clients] = self._optimizer[clients] = True
        self.has_shared[clients] = shared

    # ------------------------------------------------------------------ rows
    def put(self, state: TrainingState, client: int, side: ModelVectors, memory: OptimizerState | None) -> None:
        """What a client says it has."""
        state.clients.row(client).copy_(side)
        self.side[client] = True
        if memory is not None:
            state.put_client_optimizer(client, memory)
            self._optimizer[client] = True

    def guess_sides(self, state: TrainingState) -> None:
        """A side that isn't known counts like the mean of those that are."""
        strangers, known = np.flatnonzero(~self.side), np.flatnonzero(self.side)
        if strangers.size and known.size:
            for rows in (state.clients.parameters, state.clients.statistics):
                rows[strangers] = rows[known].mean(0)

    def forget_memories(self, state: TrainingState, clients: Sequence[int]) -> None:
        """What their optimisers remembered is lost, where it isn't known."""
        lost = [client for client in clients if not self._optimizer[client]]
        state.client_moments[lost] = 0
        state.client_steps[lost] = 0

    def sync_of(self, state: TrainingState, client: int) -> msg.Sync:
        """All that a client needs to have what its row says."""
        self.forget_memories(state, [client])
        memory = None
        if state.client_steps[client].any():  # else it remembers nothing
            memory = OptimizerState(state.client_moments[client], state.client_steps[client])
        return msg.Sync(state.cut, state.clients.row(client), memory)


MOST_TIMES = 3.0
"""Of the others' median: a device that says it has more images counts for no more. So of N devices, the others alike,
none has a larger share of a mean than 3 / (N + 2)."""


def believed_sizes(said: Mapping[int, int], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N]; those who haven't said anything yet count as `before`, or if none had, like the median one."""
    claims = np.array(list(said.values()), float)
    if (before == 1).all():
        believed = capped(claims)
        sizes = np.full(len(before), np.median(believed))
        sizes[list(said)] = believed
        return sizes
    sizes = before.copy()
    sizes[list(said)] = claims
    return capped(sizes)


def capped(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each at most so many times the median of the others."""
    if len(counts) < 2:
        return counts
    others = [np.median(np.delete(counts, place)) for place in range(len(counts))]
    return np.minimum(counts, MOST_TIMES * np.array(others))


class Samples:
    """How many images each client says it trains with."""

    def __init__(self, links: Sequence[object] = ()) -> None:
        self._agreed = [getattr(link, "agreed", int) for link in links]
        """What a device says is at most what it said first (`Members.agreed`)."""
        self._said: dict[int, int] = {}

    def of(self, client: int, most: int) -> int:
        """No more than it says it trains with."""
        return min(most, self._said.get(client, most))

    def heard(self, said: Mapping[int, int], state: TrainingState) -> None:
        """Count clients by that from now on; 0: it doesn't say."""
        new = {client: samples for client, samples in said.items() if samples}
        known = {**self._said, **{client: self._agreed[client](samples) for client, samples in new.items()}}
        if known != self._said:
            self._said = known
            state.samples = believed_sizes(known, state.samples)


def read_score(client: int, answer: msg.Scored) -> msg.Scored:
    if answer.right > answer.samples or answer.loss > MOST_WEIGHT:
        raise WireError(f"{answer.right} right of {answer.samples}, loss {answer.loss:g}")
    return answer


def together(answers: Mapping[int, msg.Scored], clients: int, held: Callable[[int, int], int]) -> Score | None:
    """By what each holds out, which is at most `held(client, what it says)`; and each one's own."""
    scored = {client: answer for client, answer in answers.items() if answer.samples}
    if not scored:
        return None
    weights = capped(np.array([held(client, answer.samples) for client, answer in scored.items()], dtype=float))
    weights /= weights.sum()
    right = {client: answer.right / answer.samples for client, answer in scored.items()}
    loss = np.array([answer.loss for answer in scored.values()])
    by_client = tuple(right.get(client) for client in range(clients))
    return Score(float(np.array(list(right.values())) @ weights), float(loss @ weights), by_client)


Value = TypeVar("Value")


def remote_fleet(
    links: Sequence[Link], patience: Patience | None = None, clocks: Clocks | None = None, *, overlaps: bool = False
) -> FleetMaker:
    """What a `Simulation` makes its fleet with, so that its clients are behind these links.

    `clocks` is told how long everything takes.
    """
    return partial(RemoteFleet, links, patience or Patience(), clocks, overlaps=overlaps)


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
        overlaps: bool = False,
    ) -> None:
        if len(links) != state.num_clients:
            raise AsflError(f"{len(links)} links, but scenario.clients = {state.num_clients}")
        self.state, self._keeps_sides, self.overlaps = state, keeps_sides, overlaps
        device = state.server.parameters.device
        self._shapes = Shapes.of(model, batches.image_shape, batches.batch_size, rule.num_moments, device)
        self._clocks, self._roster, self._outliers = clocks, Roster(links, patience, clocks), OutlierFilter()
        self._samples, self._copies = Samples(links), Copies(len(links))
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
        self._returning: dict[int, OpenRequest[msg.Update] | None] = {}
        """Backward passes under way."""
        self._norms: dict[int, Tensor | None] = {}
        self._pass_began = time.monotonic()
        """Since when the server is busy with what the latest `forward` gave."""

    # ------------------------------------------------------------------ asking
    def _ask(self, client: int, request: Request[A], base: Tensor | None = None) -> OpenRequest[A] | None:
        """One request at a time: a backward pass that is still under way is waited for.

        `base`: what layers in the answer are compared with.
        """
        self._end_backward(client)
        return self._roster.ask(client, request, base)

    def _ask_all(
        self,
        clients: Iterable[int],
        request: Callable[[int], Request[A]],
        read: Callable[[int, A], Value],
        base: Callable[[int], Tensor | None] = lambda client: None,
    ) -> dict[int, Value]:
        """All at once: what `read` makes of the answers of those who weren't lost."""
        asked = {client: self._ask(client, request(client), base(client)) for client in clients}
        found = {n: self._answer(one, partial(read, n), asked.values()) for n, one in asked.items()}
        return {client: value for client, value in found.items() if value is not None}

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
                noted.noted = True
                self._outliers.note(*self._kind_and_place(noted), answer, noted.base)

        def read_bounded(answer: A) -> Value:
            value = read(answer)
            factors = self._outliers.check(*self._kind_and_place(one))
            if not factors:
                return value
            self._roster.bounded(one.client, factors)
            return read(cast(A, bounded(answer, factors, one.base)))

        return self._roster.answer(one, read_bounded)

    def _kind_and_place(self, one: OpenRequest[Any]) -> tuple[Kind, Place]:
        task: Task | None = getattr(one.request, "task", None)
        cut, step = (getattr(one.request, "cut", self.state.cut), 0) if task is None else (task.cut, task.step)
        return Kind(one.request.name, cut), Place(self._roster.index, one.client, step)

    def _present(self) -> list[int]:
        return [int(client) for client in np.flatnonzero(self._roster.present)]

    # ------------------------------------------------------------------ who is there
    def begin(self, index: int) -> Bools:
        self._forget_steps()
        self._outliers.begin(index)
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
        """Who is out; all that clients have is in the state when it is saved (`gather`)."""
        return self._roster.knowledge()

    def scatter(self, knowledge: Knowledge) -> None:
        """Each client is brought up to date when the next round begins."""
        self._roster.restore(knowledge)
        self._copies = Copies(self.state.num_clients)
        self._good = self._now = None
        self._reports.changed[:] = True

    def _bring_up_to_date(self, clients: Sequence[int]) -> None:
        state, roster, copies = self.state, self._roster, self._copies
        if state.cut and not copies.side[clients].all():
            self.gather()  # which also fills the rows of those whose side isn't known
        roster.present[clients] = True
        synced = self._ask_all(clients, partial(copies.sync_of, state), lambda _, answer: answer.samples or 0)
        self._samples.heard(synced, state)
        copies.given(list(synced), shared=state.cut == 0)
        self._reports.changed[list(synced)] = True
        roster.in_sync[list(synced)] = True

    # ------------------------------------------------------------------ stage 1
    def resplit(self, cut: int, scheduled: Bools) -> float:
        """Always 0: how far the mean moves depends on layers of clients without a block, and those aren't sent.

        If none of those who should send layers does, the cut stays: they are all lost, so no client trains in this
        round.
        """
        before, state = self.state.cut, self.state
        if cut == before:
            return 0.0
        if cut > before:
            grow = msg.Grow(cut, self._shapes.layers(state.server, before, cut))
            self._ask_all(self._present(), lambda _: grow, _done)
            moving = scheduled
        else:
            moving = self._take_layers([client for client in self._present() if scheduled[client]], cut)
            if not moving.any():
                return 0.0
            quiet = [client for client in self._present() if not scheduled[client]]
            self._ask_all(quiet, lambda _: msg.Shrink(cut, send=False), _done)
        state.resplit(cut, moving)
        self._reports.equal(slice(min(before, cut), None))
        self._have_changed_layers()
        return 0.0

    def _have_changed_layers(self) -> None:
        """A client that wasn't there holds the wrong ones."""
        self._roster.in_sync &= self._roster.present

    def _take_layers(self, senders: Sequence[int], cut: int) -> Bools:
        """Put the layers above `cut` of these clients into their rows; [N] whose layers came."""
        shapes, before, state = self._shapes, self.state.cut, self.state
        sent = self._ask_all(
            senders,
            lambda _: msg.Shrink(cut, send=True),
            lambda _, answer: shapes.check_layers(answer.layers, before, UNQUANTISED, first=cut),
            lambda _: shapes.layers(state.server, cut, before).parameters,
        )
        for client, layers in sent.items():
            shapes.layers(state.clients.row(client), cut, before).copy_(layers.received(state.server.parameters))
        return np.isin(np.arange(state.num_clients), list(sent))

    # ------------------------------------------------------------------ stages 2 and 3
    def announce(self, tasks: Sequence[Task], sides: Sequence[FirstLayers] | None = None) -> None:
        loads = {} if sides is None else {task.client: side for task, side in zip(tasks, sides, strict=True)}
        for task in tasks:
            if (side := loads.get(task.client)) is not None:
                same = [kept for sent, kept in self._given.values() if sent is side]
                own = side.received(self.state.server.parameters.new_zeros(()))
                self._given[task.client] = side, same[0] if same else own.parameters.clone()
            request = (msg.Learn if task.cut == self._shapes.layout.num_units else msg.Forward)(task, side)
            self._started[task.client] = self._ask(task.client, request)

    def first(self, tasks: Sequence[Task]) -> int:
        """A client that is lost, or the first that answers; one after the other if none does in time."""
        under_way = [self._started[task.client] for task in tasks]
        waiting = [one.done for one in under_way if one is not None]
        if len(waiting) == len(under_way):
            wait(
                waiting,
                timeout=max(one.deadline_s for one in under_way if one is not None),
                return_when=FIRST_COMPLETED,
            )
        return next((place for place, one in enumerate(under_way) if one is None or one.done.done()), 0)

    def forward(self, tasks: Sequence[Task]) -> list[Packet | None]:
        started = [self._started.pop(task.client) for task in tasks]
        others = [*started, *self._started.values()]
        if self.overlaps:  # a client is compared with those that have answered
            others = [one for one in others if one is None or one.done.done()]

        def read(task: Task, answer: msg.Activations) -> Packet:
            return self._shapes.check_packet(answer.packet, task)

        packets = [self._answer(one, partial(read, t), others) for one, t in zip(started, tasks, strict=True)]
        self._pass_began = time.monotonic()
        return packets

    def learn(self, tasks: Sequence[Task]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        started = [self._started.pop(task.client) for task in tasks]
        learnt = [self._answer(one, self._loss_and_norm, [*started, *self._started.values()]) for one in started]
        for task, found in zip(tasks, learnt, strict=True):
            if found is not None:
                self._has_learnt(task.client)
        return [found and found[0] for found in learnt], [found and found[1] for found in learnt]

    def backward(self, tasks: Sequence[Task], gradients: Sequence[Crossing]) -> Norms:
        if self._clocks is not None:
            cuts = [task.cut for task in tasks]
            self._clocks.server_pass(cuts, time.monotonic() - self._pass_began, tasks[0].batch)
        for task, crossing in zip(tasks, gradients, strict=True):
            self._returning[task.client] = self._ask(task.client, msg.Backward(task, crossing))
        return lambda: [self._norm_of(task.client) for task in tasks]

    def give(self, tasks: Sequence[Task]) -> list[FirstLayers | None]:
        base = {client: kept for client, (_, kept) in self._given.items()}
        given = self._collect(tasks, lambda task: msg.Give(task), base.get)
        return [given.get(task.client) for task in tasks]

    def upload(self, tasks: Sequence[Task]) -> dict[int, FirstLayers]:
        depth = {task.client: task.cut for task in tasks}

        def shared(client: int) -> Tensor:
            return self._shapes.layers(self.state.server, 0, depth[client]).parameters

        def request(task: Task) -> msg.Upload:
            """With what was shared last if it is needed and may not be there."""
            lacks = task.bits != UNQUANTISED and not self._copies.has_shared[task.client]
            return msg.Upload(task, shared(task.client) if lacks else None)

        return self._collect(tasks, request, shared)

    def _collect(
        self,
        tasks: Sequence[Task],
        request: Callable[[Task], Request[msg.Side]],
        base: Callable[[int], Tensor | None],
    ) -> dict[int, FirstLayers]:
        """The first layers of these clients, up to their tasks' cuts."""
        of = {task.client: task for task in tasks}

        def read(client: int, answer: msg.Side) -> FirstLayers:
            return self._shapes.check_layers(answer.layers, of[client].cut, of[client].bits)

        return self._ask_all(of, lambda client: request(of[client]), read, base)

    def share(self, depth: int, average: FirstLayers) -> None:
        """A client that may lack what a difference is to gets the whole."""
        received = average.received(self._shapes.layers(self.state.server, 0, depth).parameters)
        whole, has_shared = FirstLayers(received.parameters, received.statistics), self._copies.has_shared
        self._ask_all(self._present(), lambda n: msg.Share(depth, average if has_shared[n] else whole), _done)
        self._have_changed_layers()
        if self._now is not None:
            self._now = replace(self._now, shared=depth)
        self._reports.equal(slice(0, depth))
        if depth == self.state.cut:
            self._copies.side[:] = has_shared[:] = True

    def moved(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        of = {task.client: task for task in tasks}
        norms = self._ask_all(of, lambda client: msg.Moved(of[client]), lambda _, answer: self._norm(answer))
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
        server, shapes = self.state.server.parameters, self._shapes
        base = server[torch.from_numpy(columns).to(server.device)]
        rows = self._ask_all(
            self._present() if len(gaps) else [],
            lambda _: msg.Sample(gaps),
            lambda _, answer: shapes.check("values", answer.values, (len(columns),)),
            lambda _: base,
        )
        if not rows:
            return server.new_zeros(1, len(columns)), [0]
        return torch.stack(list(rows.values())), list(rows)

    def projections(self) -> tuple[Tensor, Sequence[int]]:
        """Clients that have learnt since they last reported are asked; of the others it is known what they have."""
        cut, layout, changed = self.state.cut, self._shapes.layout, self._reports.changed[:, : self.state.cut]
        above = {client: int(changed[client].argmax()) for client in self._present() if changed[client].any()}

        def read(client: int, answer: msg.Projected) -> Tensor:
            return self._shapes.check_projections(answer.projections, cut - above[client]).numbers

        for client, numbers in self._ask_all(above, lambda client: msg.Project(above[client]), read).items():
            self._reports.heard(client, above[client], numbers)
        whose = self._present() or [0]
        shared = Projections.of(layout, self.state.server.parameters, self._seed, 0, cut).numbers
        return self._reports.of(whose, shared), whose

    def gather(self, *, optimizers: bool = False) -> None:
        """Ask those clients of which the server doesn't know everything.

        A client that can't be asked and whose side isn't known counts like the mean of those whose side is.
        """
        state, shapes = self.state, self._shapes

        def read(_: int, answer: msg.ClientState) -> tuple[ModelVectors, OptimizerState | None]:
            side = shapes.check_vectors(answer.side, 0, state.cut)
            return side, shapes.check_memory(answer.memory) if optimizers else None

        missing = self._copies.missing(optimizers=optimizers)
        base = shapes.layers(state.server, 0, state.cut).parameters
        asked = [client for client in self._present() if missing[client]]
        for client, found in self._ask_all(asked, lambda _: msg.Gather(optimizers), read, lambda _: base).items():
            self._copies.put(state, client, *found)
        self._copies.guess_sides(state)
        if optimizers:
            self._copies.forget_memories(state, range(state.num_clients))

    # ------------------------------------------------------------------ what only clients have images for
    def calibrated(self, model: ModelVectors) -> ModelVectors:
        layers = self._shapes.layout.num_units

        def read(_: int, answer: msg.Calibrated) -> Tensor:
            found = ModelVectors(model.parameters, answer.statistics)
            return self._shapes.check_vectors(found, 0, layers).statistics

        asked = self._present() if len(model.statistics) else []
        found = self._ask_all(asked, lambda _: msg.Calibrate(model), read)
        if not found:
            return model
        measured = self.state.average(torch.stack(list(found.values())), model.statistics, list(found))
        return ModelVectors(model.parameters, measured)

    def score(self, model_of: Callable[[int], ModelVectors]) -> Score | None:
        answers = self._ask_all(self._present(), lambda client: msg.Score(model_of(client)), read_score)
        return together(answers, self.state.num_clients, self._samples.of)


@dataclass(frozen=True, eq=False)
class Kept:
    """The server's model when a round began."""

    server: ModelVectors
    cut: int
    shared: int = 0
    """How many layers of client sides were averaged in that round."""


def _done(client: int, answer: Answer) -> bool:
    """Of an answer that only says yes."""
    return True


# ---------------------------------------------------------------------- a whole run
class _Profile(Section):
    link: tuple[ShapedLink, ...] = ()


def read_profile(file: str | Path, clients: int) -> tuple[ShapedLink, ...]:
    """The links of a profile, a TOML file with a table [[link]] per change (`field.shaping`)."""
    try:
        profile = _Profile.model_validate(parse_toml(read_text(Path(file)), str(file)))
    except AsflError as error:
        raise AsflError(f"field.shaping: {error}") from None
    except ValidationError as error:
        raise AsflError(f"field.shaping: {file}: {explain(error, _Profile)}") from None
    for link in profile.link:
        if link.client is not None and link.client >= clients:
            raise AsflError(
                f"field.shaping: {file}: client = {link.client}, but there are {clients}: 0 … {clients - 1}"
            )
    return profile.link


def agreement_for(config: Config, scheme: str, folder: Path, threads: int | None = None) -> Agreement:
    """For a run in this folder; one that was begun before goes on with as many threads as it began with."""
    if (folder / MANIFEST_FILE).exists():
        threads = read_manifest(folder).threads
    config, file = config.for_scheme(scheme), config.field.shaping
    shaping = read_profile(file, config.scenario.clients) if file else ()
    return Agreement(config, scheme, threads or usual_threads(), shaping)


def train(
    agreement: Agreement,
    folder: Path,
    links: Sequence[Link],
    *,
    patience: Patience | None = None,
    budgets: Budgets | None = None,
    **watching: Unpack[RunOptions],
) -> bool:
    """Train in a folder over one link per client: a new run, or the rest of the one that is there.

    Everything is as in `asfl.runs.run.run`, which does the same with clients in this process; either can go on where
    the other stopped. The server needs the data set too, for its test images. With `field.costs = "measured"` the
    clients should be there when this is called: their links are measured first.
    """
    config = agreement.config
    patience, world, clocks = patience or Patience(config.field.deadline_s), None, None
    if config.field.costs == "measured" and not is_finished(folder, config.training.rounds):
        world = MeasuredWorld.unknown(config)
        clocks = world.clocks
        probe(links, clocks, patience.most_s("sync"))
        budgets = budgets or world.budgets()
    watching["threads"] = agreement.threads
    fleet = remote_fleet(links, patience, clocks, overlaps=config.decision.timing == "overlap")
    return run(config, agreement.scheme, folder, budgets=budgets, fleet=fleet, world=world, **watching)


def data_folder(config: Config, data_dir: Path | None) -> str | None:
    """Where clients with the same files look for their data: under the same path as here."""
    if is_own_file(config.data.name):
        return str(Path(config.data.name).absolute().parent)
    return str(data_dir.absolute()) if data_dir else None
