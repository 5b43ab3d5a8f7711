"""The fleet of clients that are elsewhere: everybody is asked at once, and nobody is waited for longer than agreed.

A client that dies, hangs, refuses or sends nonsense is lost for the round: its answers are None, a `Fault` says why,
and the round goes on without it. From then on it is out of sync. When a round begins and it can be reached again, it
gets a whole client side (`sync`): its own, if the server has it as of the end of the round before the client was lost,
else the mean of the others'. What its optimiser remembered is gone unless the server has that too.

The server's `TrainingState` has a row for each client, as in a single process. A row equals what the client has if it
was gathered and nothing was learnt since (`_knows_side`). Through re-splits the rows move as the client sides do, by
the same code, so that the layers the server receives are averaged to the same bits.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.errors import AsflError
from asfl.field.asked import Asked
from asfl.field.links import Link
from asfl.field.roll import Patience, Roll
from asfl.field.shapes import carry_shapes
from asfl.field.watch import Watch
from asfl.field.wire import Message, WireError
from asfl.models import Carry, CuttableModel
from asfl.train.batches import Batches
from asfl.train.fleet import Bools, Fault, FleetMaker, Knowledge, Norms, Packet
from asfl.train.layout import ModelVectors
from asfl.train.optimizers import OptimizerState, Rule
from asfl.train.state import TrainingState


def remote_fleet(links: Sequence[Link], patience: Patience | None = None, watch: Watch | None = None) -> FleetMaker:
    """What a `Simulation` makes its fleet with, so that its clients are behind these links.

    `watch` is told how long everything takes.
    """

    def make(
        model: CuttableModel, state: TrainingState, batches: Batches, rule: Rule, *, keeps_sides: bool
    ) -> RemoteFleet:
        given = links, patience or Patience(), model, state, batches, rule
        return RemoteFleet(*given, keeps_sides=keeps_sides, watch=watch)

    return make


class RemoteFleet:
    """Implements `asfl.train.fleet.Fleet` over one link per client."""

    def __init__(
        self,
        links: Sequence[Link],
        patience: Patience,
        model: CuttableModel,
        state: TrainingState,
        batches: Batches,
        rule: Rule,
        *,
        keeps_sides: bool,
        watch: Watch | None = None,
    ) -> None:
        if len(links) != state.num_clients:
            raise AsflError(f"{len(links)} links, but scenario.clients = {state.num_clients}")
        self.state = state
        self._layout, self._num_moments, self._keeps_sides = state.layout, rule.num_moments, keeps_sides
        self._device, self._dtype = state.server.parameters.device, state.server.parameters.dtype
        images, _ = batches.batch(0, 0)
        self._shapes = carry_shapes(model, images.shape[1:], batches.batch_size)
        self._watch, self._roll = watch, Roll(links, patience, watch)
        self._knows_side: Bools = np.ones(len(links), dtype=np.bool_)
        """[N] whose client side is in its row of the state."""
        self._knows_optimizer: Bools = np.ones(len(links), dtype=np.bool_)
        self._may_keep: Bools = np.zeros(len(links), dtype=np.bool_)
        """[N] who may still have a state of which the server, started anew, has no copy."""
        self._loads: dict[int, ModelVectors] = {}
        self._started: dict[int, Asked] = {}
        """Forward passes, or whole steps, under way."""
        self._place: dict[int, tuple[int, int]] = {}
        """Step and cut of each client's latest forward pass."""
        self._returning: dict[int, Asked] = {}
        """Backward passes under way."""
        self._norms: dict[int, Tensor | None] = {}
        self._passing = time.monotonic(), 0
        """Since when the server is busy with what the latest `forward` gave, and its cut."""

    # ------------------------------------------------------------------ who is there
    def begin(self, index: int) -> Bools:
        self._loads, self._started, self._place, self._returning, self._norms = {}, {}, {}, {}, {}
        self._bring_up_to_date(self._roll.begin(index))
        if self._watch is not None:
            self._watch.begin(self._roll.present)
        return self._roll.present.copy()

    def take_faults(self) -> list[Fault]:
        return self._roll.take_faults()

    def knowledge(self) -> Knowledge:
        if (self._knows_side & self._knows_optimizer).all():
            return {}
        return {
            "knows_side": self._knows_side.copy(),
            "knows_optimizer": self._knows_optimizer.copy(),
            "in_sync": self._roll.in_sync.copy(),
            "round_of": self._roll.round_of.copy(),
        }

    def scatter(self, knowledge: Knowledge) -> None:
        """Everybody is brought up to date when the next round begins, or shows that it is."""
        self._knows_side[:] = knowledge.get("knows_side", True)
        self._knows_optimizer[:] = knowledge.get("knows_optimizer", True)
        self._roll.round_of[:] = knowledge.get("round_of", 0)
        self._may_keep[:] = knowledge.get("in_sync", False)
        self._may_keep &= ~(self._knows_side & self._knows_optimizer)
        self._roll.in_sync[:] = False

    def _bring_up_to_date(self, clients: Sequence[int]) -> None:
        state, roll = self.state, self._roll
        done = self._let_keep([client for client in clients if self._may_keep[client]])
        clients = [client for client in clients if client not in done]
        if self.state.cut and not self._knows_side[clients].all():
            self.gather()  # which also fills the rows of those whose side nobody knows
        for client in clients:
            if not self._knows_optimizer[client]:
                state.client_moments[client] = 0
                state.client_steps[client] = 0
        roll.present[clients] = True
        for asked in [roll.ask(c, "sync", Message("sync", {"cut": state.cut}, self._state_of(c))) for c in clients]:
            if asked is not None and roll.answer(asked, _nothing):
                roll.in_sync[asked.client] = True
                self._knows_side[asked.client] = self._knows_optimizer[asked.client] = True

    def _let_keep(self, clients: Sequence[int]) -> list[int]:
        """Who has the very state that the server left it with, and knows no copy of, goes on with it.

        Those who do, and those who are lost when they are asked.
        """
        roll, done = self._roll, []
        roll.present[clients] = True
        for asked in [roll.ask(client, "sync", Message("ping")) for client in clients]:
            where = roll.answer(asked, lambda answer: (answer.fields.get("round"), answer.fields.get("cut")))
            if asked is None:
                continue
            roll.in_sync[asked.client] = where == (int(roll.round_of[asked.client]), self.state.cut)
            if where is None or roll.in_sync[asked.client]:
                done.append(asked.client)
        roll.present[clients] = roll.in_sync[clients]
        self._may_keep[clients] = False
        return done

    def _state_of(self, client: int) -> dict[str, Tensor]:
        side = self.state.clients.row(client)
        tensors = {"parameters": side.parameters, "statistics": side.statistics}
        if self.state.client_steps[client].any():  # else its optimiser remembers nothing
            tensors["moments"] = self.state.client_moments[client]
            tensors["steps"] = torch.from_numpy(self.state.client_steps[client])
        return tensors

    # ------------------------------------------------------------------ stage 1
    def resplit(self, cut: int, scheduled: Bools) -> float:
        """Always 0: how far the mean moves depends on layers of clients without a block, and nobody sends those.

        If none of those who should send layers does, the cut stays: they are all lost, so nobody trains in this round.
        """
        before, state, roll = self.state.cut, self.state, self._roll
        if cut == before:
            return 0.0
        present = np.flatnonzero(roll.present).tolist()
        if cut > before:
            self._tell(present, Message("grow", {"cut": cut}, self._layers(state.server, before, cut)))
            moving = scheduled
        else:
            moving = self._take_layers([client for client in present if scheduled[client]], cut)
            if not moving.any():
                return 0.0
            self._tell([c for c in present if not scheduled[c]], Message("shrink", {"cut": cut, "send": 0}))
        state.resplit(cut, moving)
        roll.in_sync &= roll.present  # who wasn't there holds the wrong layers
        self._may_keep[:] = False
        return 0.0

    def _tell(self, clients: Sequence[int], message: Message) -> None:
        for asked in [self._roll.ask(client, "resplit", message) for client in clients]:
            self._roll.answer(asked, _nothing)

    def _take_layers(self, senders: Sequence[int], cut: int) -> Bools:
        """Put the layers above `cut` of these clients into their rows; [N] whose came."""
        came, rows = np.zeros(self.state.num_clients, dtype=np.bool_), self.state.clients
        message = Message("shrink", {"cut": cut, "send": 1})
        for asked in [self._roll.ask(client, "resplit", message) for client in senders]:
            layers = self._roll.answer(asked, lambda answer: self._side(answer, cut, self.state.cut))
            if asked is not None and layers is not None:
                rows.parameters[asked.client, self._layout.parameter_edges[cut] :] = layers.parameters
                rows.statistics[asked.client, self._layout.statistic_edges[cut] :] = layers.statistics
                came[asked.client] = True
        return came

    # ------------------------------------------------------------------ stages 2 and 3
    def announce(
        self, index: int, step: int, clients: Sequence[int], cuts: Sequence[int], whole: ModelVectors | None
    ) -> None:
        for client, cut in zip(clients, cuts, strict=True):
            self._start(client, step, cut, {} if whole is None else self._layers(whole, 0, cut))

    def load(self, clients: Sequence[int], side: ModelVectors) -> None:
        """Goes along with the next `forward` or `learn`; if that was announced, it is on its way."""
        self._loads = {client: side for client in clients if client not in self._started}

    def forward(self, index: int, step: int, clients: Sequence[int], cut: int) -> list[Packet | None]:
        started = self._all_started(clients, step, cut)
        packets = [self._roll.answer(asked, lambda answer: self._packet(answer, cut)) for asked in started]
        self._passing = time.monotonic(), cut
        return packets

    def learn(self, index: int, step: int, clients: Sequence[int]) -> tuple[list[Tensor | None], list[Tensor | None]]:
        losses: list[Tensor | None] = []
        norms: list[Tensor | None] = []
        for client, asked in zip(clients, self._all_started(clients, step, self._layout.num_units), strict=True):
            learnt = self._roll.answer(
                asked, lambda answer: (self._number(answer, "loss"), self._number(answer, "norm"))
            )
            loss, norm = learnt or (None, None)
            losses.append(loss)
            norms.append(norm)
            if learnt:
                self._has_learnt(client)
        return losses, norms

    def _all_started(self, clients: Sequence[int], step: int, cut: int) -> list[Asked | None]:
        for client in clients:
            if client not in self._started:
                side = self._loads.pop(client, None)
                self._start(client, step, cut, {} if side is None else self._layers(side, 0, cut))
        return [self._started.pop(client, None) for client in clients]

    def _start(self, client: int, step: int, cut: int, side: dict[str, Tensor]) -> None:
        op = "learn" if cut == self._layout.num_units else "forward"
        asked = self._ask(client, op, Message(op, {"step": step, "cut": cut}, side))
        if asked is not None:
            self._started[client] = asked
            self._place[client] = step, cut

    def backward(self, clients: Sequence[int], gradients: Sequence[Carry]) -> Norms:
        began, cut = self._passing
        if self._watch is not None:
            self._watch.server_pass(cut, len(clients), time.monotonic() - began)
        for client, carry in zip(clients, gradients, strict=True):
            tensors = {f"gradient.{i}": tensor for i, tensor in enumerate(carry)}
            asked = self._ask(
                client, "backward", Message("backward", {"step": self._place[client][0], "cut": cut}, tensors)
            )
            if asked is not None:
                self._returning[client] = asked
        return lambda: [self._norm_of(client) for client in clients]

    def give(self, clients: Sequence[int]) -> list[ModelVectors | None]:
        asked = [self._ask(client, "give", Message("give")) for client in clients]
        return [self._roll.answer(one, self._reads_side(client)) for client, one in zip(clients, asked, strict=True)]

    def moved(self, clients: Sequence[int]) -> list[Tensor | None]:
        asked = [self._ask(client, "give", Message("moved")) for client in clients]
        return [self._roll.answer(one, lambda answer: self._number(answer, "norm")) for one in asked]

    def _ask(self, client: int, stage: str, message: Message) -> Asked | None:
        """One request at a time: what is still under way is waited for."""
        self._settle(client)
        return self._roll.ask(client, stage, message)

    def _settle(self, client: int) -> None:
        asked = self._returning.pop(client, None)
        if asked is not None:
            norm = self._norms[client] = self._roll.answer(asked, lambda answer: self._number(answer, "norm"))
            if norm is not None:
                self._has_learnt(client)

    def _norm_of(self, client: int) -> Tensor | None:
        self._settle(client)
        return self._norms.pop(client, None)

    def _has_learnt(self, client: int) -> None:
        self._knows_side[client] = not self._keeps_sides
        self._knows_optimizer[client] = False

    # ------------------------------------------------------------------ what the server wants to know
    def report(self, columns: NDArray[np.int64]) -> Tensor:
        # Differences are small: a byte each, and much less to send than the values that come back.
        gaps = torch.from_numpy(np.diff(columns, prepend=0))
        if not len(gaps) or gaps.max() < 256:
            gaps = gaps.to(torch.uint8)
        message, present = Message("report", {}, {"gaps": gaps}), np.flatnonzero(self._roll.present).tolist()
        asked = [self._ask(client, "report", message) for client in present] if len(gaps) else []
        rows = [self._roll.answer(one, lambda answer: self._vector(answer, "values", len(columns))) for one in asked]
        known = [row for row in rows if row is not None]
        return torch.stack(known) if known else torch.zeros(1, len(columns), device=self._device, dtype=self._dtype)

    def gather(self, *, optimizers: bool = False) -> None:
        """Only those are asked of whom something isn't known.

        A client that can't be asked and whose side isn't known counts like the mean of those whose side is.
        """
        state, roll = self.state, self._roll
        missing = ~self._knows_side | (~self._knows_optimizer & optimizers)
        message = Message("state", {"optimizers": int(optimizers)})
        for asked in [
            self._ask(client, "gather", message) for client in np.flatnonzero(roll.present & missing).tolist()
        ]:
            if asked is None:
                continue
            whole = roll.answer(asked, lambda answer: self._whole(answer, optimizers=optimizers))
            if whole is not None:
                self._put_down(asked.client, *whole)
        strangers, known = np.flatnonzero(~self._knows_side), np.flatnonzero(self._knows_side)
        if strangers.size and known.size:
            for rows in (state.clients.parameters, state.clients.statistics):
                rows[strangers] = rows[known].mean(0)

    def _put_down(self, client: int, side: ModelVectors, optimizer: OptimizerState | None) -> None:
        state = self.state
        state.clients.row(client).copy_(side)
        self._knows_side[client] = True
        if optimizer is not None:
            width = optimizer.moments.shape[1]
            state.make_room(int(np.searchsorted(self._layout.parameter_edges, width)))
            state.client_moments[client, :, :width] = optimizer.moments
            state.client_moments[client, :, width:] = 0
            state.client_steps[client] = optimizer.steps
            self._knows_optimizer[client] = True

    # ------------------------------------------------------------------ pieces of messages
    def _whole(self, answer: Message, *, optimizers: bool) -> tuple[ModelVectors, OptimizerState | None]:
        """A client's side and, if asked for, what its optimiser remembers."""
        side = self._side(answer, 0, self.state.cut)
        if not optimizers:
            return side, None
        width = answer.tensors["moments"].shape[-1] if "moments" in answer.tensors else 0
        moments = answer.tensor("moments", (self._num_moments, width), self._dtype)
        steps = answer.tensor("steps", (self._layout.num_units,), torch.int64)
        if width not in self._layout.parameter_edges or (steps < 0).any():
            raise WireError(f"moments of {width} parameters, or steps, that can't be")
        return side, OptimizerState(moments.to(self._device), steps.numpy())

    def _layers(self, vectors: ModelVectors, first: int, last: int) -> dict[str, Tensor]:
        a, b = self._layout.parameter_edges, self._layout.statistic_edges
        return {
            "parameters": vectors.parameters[a[first] : a[last]],
            "statistics": vectors.statistics[b[first] : b[last]],
        }

    def _side(self, answer: Message, first: int, last: int) -> ModelVectors:
        a, b = self._layout.parameter_edges, self._layout.statistic_edges
        return ModelVectors(
            self._vector(answer, "parameters", int(a[last] - a[first])),
            self._vector(answer, "statistics", int(b[last] - b[first])),
        )

    def _reads_side(self, client: int) -> Callable[[Message], ModelVectors]:
        return lambda answer: self._side(answer, 0, self._place[client][1])

    def _packet(self, answer: Message, cut: int) -> Packet:
        shapes, classes = self._shapes[cut], self._shapes[-1][0][-1]
        carry = tuple(answer.tensor(f"carry.{i}", shape, self._dtype) for i, shape in enumerate(shapes))
        labels = answer.tensor("labels", (shapes[0][0],), torch.int64)
        if labels.min() < 0 or labels.max() >= classes:
            raise WireError(f"labels must be 0 … {classes - 1}")
        return tuple(tensor.to(self._device) for tensor in carry), labels.to(self._device)

    def _vector(self, answer: Message, name: str, size: int) -> Tensor:
        return answer.tensor(name, (size,), self._dtype).to(self._device)

    def _number(self, answer: Message, name: str) -> Tensor:
        return answer.tensor(name, (), self._dtype).to(self._device)


def _nothing(answer: Message) -> bool:
    """Of an answer that only says yes."""
    return True
