"""The training round, fast: no copies of models, one server pass for many clients, vectors instead of tensors.

Equal to `asfl.train.plain`, which reads like the paper. What makes it fast, all of it the same maths:

- Averaging server-side models that started equal and took one SGD step each is one step with the mean gradient. So
  there is one server model, into which the gradients of all arrived clients are added.
- The server takes the activations of up to `merge` clients in one batch; batch norm still treats them one by one.
- Client sides are rows of one buffer, gradients too; the network's code is bound to them, not copied (`LocalFleet`).
- Clients whose packet is lost train nothing, so they aren't asked to.

The clients are a `Fleet`: what is below runs the same whether they are in this process or on other machines.

With several local steps the server-side models drift apart within the round: then one client after the other trains
a scratch copy, and the copies are averaged as they come.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.costs import Procedure
from asfl.models import Carry, CuttableModel
from asfl.scenario import random_stream
from asfl.train.batches import Batches
from asfl.train.fleet import Fleet, LocalFleet
from asfl.train.layout import Layout, ModelVectors
from asfl.train.optimizers import OptimizerState, Rule, step_units
from asfl.train.replica import Replica
from asfl.train.state import TrainingState
from asfl.train.trainer import RoundPlan, Trained

Ints = NDArray[np.int64]


class FastTrainer:
    """Trains one scheme's rounds; `state` is all it remembers."""

    def __init__(
        self, model: CuttableModel, batches: Batches, procedure: Procedure, rule: Rule, *, num_clients: int, seed: int,
        device: torch.device, dtype: torch.dtype = torch.float32, merge: int = 1,
    ) -> None:  # fmt: skip
        """`model` gives the initial weights; `merge`: at most so many clients share a server pass."""
        self.layout = Layout(model)
        self.procedure, self.rule = procedure, rule
        self._batches, self._seed, self._merge = batches, seed, merge
        initial = self.layout.flatten(model, device, dtype)
        self._state = TrainingState.fresh(self.layout, initial, num_clients, rule.num_moments)
        self._server = Replica(model, self.layout, device, dtype, server=True)
        self._server_gradient = initial.parameters.new_zeros(self.layout.num_parameters)
        keeps = procedure.keeps_client_sides
        self.fleet: Fleet = LocalFleet(model, self._state, batches, rule, keeps_sides=keeps)

    @property
    def state(self) -> TrainingState:
        return self._state

    @state.setter
    def state(self, state: TrainingState) -> None:
        self._state = self.fleet.state = state

    def round(self, plan: RoundPlan) -> Trained:
        """Stages 1 to 3."""
        arrived, shift = np.flatnonzero(plan.arrived), 0.0
        if self.procedure.keeps_client_sides and plan.scheduled.any():
            shift = self.fleet.resplit(int(plan.cut[np.argmax(plan.scheduled)]), plan.scheduled)
        if not arrived.size:
            return Trained.nothing(self.state.num_clients, shift)
        cuts = plan.cut[arrived]
        if self.procedure.in_sequence:
            order = random_stream(self._seed, "scheme: order", plan.index).permutation(arrived)
            losses, norms = self._hand_on(plan.index, order.tolist(), int(cuts[0]))
            arrived = order
        elif self._batches.local_steps == 1 or self.procedure.aggregated_share > 0:
            steps = [self._one_step(plan.index, step, arrived, cuts) for step in range(self._batches.local_steps)]
            losses = [torch.stack(of_client).mean() for of_client in zip(*(losses for losses, _ in steps), strict=True)]
            norms = [torch.stack(of_client).sum() for of_client in zip(*(norms for _, norms in steps), strict=True)]
        else:
            losses, norms = self._several_steps(plan.index, arrived, cuts)
        trained = Trained.nothing(self.state.num_clients, shift)
        trained.loss[arrived] = torch.stack(losses).double().cpu().numpy()
        trained.update_norm2[arrived] = torch.stack(norms).double().cpu().numpy()
        return trained

    # ------------------------------------------------------------------ one local step: one server model
    def _one_step(self, index: int, step: int, arrived: Ints, cuts: Ints) -> tuple[list[Tensor], list[Tensor]]:
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        lowest = int(cuts.min())
        self._server_gradient[edges[lowest] :].zero_()
        self._server.bind(state.server, self._server_gradient, lowest, units)
        statistics = state.server.statistics.repeat(len(arrived), 1)
        losses: dict[int, Tensor] = {}
        norms: dict[int, Tensor] = {}
        total = None if self.procedure.keeps_client_sides else torch.zeros_like(state.server.parameters)
        for members, cut in self._groups(cuts):
            clients = arrived[members].tolist()
            if total is not None:
                self.fleet.load(clients, self._front(state.server, cut))
            of_group = self._exchange(index, step, clients, cut, [statistics[member] for member in members])
            losses.update(zip(members, of_group[0], strict=True))
            norms.update(zip(members, of_group[1], strict=True))
            if total is not None:
                for member, side in zip(members, self.fleet.give(clients), strict=True):
                    total[: edges[cut]] += side.parameters
                    statistics[member, : self.layout.statistic_edges[cut]] = side.statistics

        # The server steps with the mean gradient of the clients whose layer it holds.
        on_server = (cuts[:, None] <= np.arange(units)).sum(axis=0)
        for first, last in _runs(on_server, lowest, units):
            self._server_gradient[edges[first] : edges[last]].div_(int(on_server[first]))
        server_norm = self._step_server(state.server, self._server_gradient, state.server_optimizer, lowest)

        # Average: the server's step already is one; client sides only where the scheme says so.
        averaged_from = 0 if total is not None else lowest
        edge = self.layout.statistic_edges[averaged_from]
        state.server.statistics[edge:] = statistics[:, edge:].mean(0)
        if total is not None:
            for first, last in _runs(on_server, 0, units):
                here = slice(int(edges[first]), int(edges[last]))
                total[here].add_(state.server.parameters[here], alpha=int(on_server[first]))
            torch.div(total, len(arrived), out=state.server.parameters)
        members_in_order = range(len(arrived))
        return [losses[m] for m in members_in_order], [norms[m] + server_norm for m in members_in_order]

    def _groups(self, cuts: Ints) -> Iterator[tuple[list[int], int]]:
        """Positions among the arrived clients that share a server pass, and their cut."""
        together = len(cuts) if self.procedure.aggregated_share > 0 else self._merge
        for cut in np.unique(cuts).tolist():
            members = np.flatnonzero(cuts == cut).tolist()
            for start in range(0, len(members), together):
                yield members[start : start + together], cut

    # ------------------------------------------------------------------ several local steps: a server copy each
    def _several_steps(self, index: int, arrived: Ints, cuts: Ints) -> tuple[list[Tensor], list[Tensor]]:
        state, layout, units = self.state, self.layout, self.layout.num_units
        edges = layout.parameter_edges
        sums = ModelVectors(torch.zeros_like(state.server.parameters), torch.zeros_like(state.server.statistics))
        moments = torch.zeros_like(state.server_optimizer.moments)
        losses, norms, averages_sides = [], [], not self.procedure.keeps_client_sides
        for client, cut in zip(arrived.tolist(), cuts.tolist(), strict=True):
            copy, optimizer = state.server.clone(), state.server_optimizer.clone()
            if averages_sides:
                self.fleet.load([client], self._front(state.server, cut))
            self._server.bind(copy, self._server_gradient, cut, units)
            of_client = []
            for step in range(self._batches.local_steps):
                self._server_gradient[edges[cut] :].zero_()
                of_client += self._exchange(index, step, [client], cut, [copy.statistics])[0]
                self._step_server(copy, self._server_gradient, optimizer, cut)
            losses.append(torch.stack(of_client).mean())
            norms += self.fleet.moved([client])
            if averages_sides:
                (side,) = self.fleet.give([client])
                copy.parameters[: edges[cut]] = side.parameters
                copy.statistics[: layout.statistic_edges[cut]] = side.statistics
            sums.parameters += copy.parameters
            sums.statistics += copy.statistics
            moments[:, edges[cut] :] += optimizer.moments[:, edges[cut] :]

        on_server = (cuts[:, None] <= np.arange(units)).sum(axis=0)
        lowest = int(cuts.min())
        averaged_from = lowest if self.procedure.keeps_client_sides else 0
        server_before = state.server.parameters[edges[lowest] :].clone()
        a, b = int(edges[averaged_from]), int(layout.statistic_edges[averaged_from])
        torch.div(sums.parameters[a:], len(arrived), out=state.server.parameters[a:])
        torch.div(sums.statistics[b:], len(arrived), out=state.server.statistics[b:])
        for first, last in _runs(on_server, lowest, units):
            here = slice(int(edges[first]), int(edges[last]))
            torch.div(moments[:, here], int(on_server[first]), out=state.server_optimizer.moments[:, here])
        state.server_optimizer.steps[lowest:] += self._batches.local_steps
        server_norm = (state.server.parameters[edges[lowest] :] - server_before).square().sum()
        return losses, [norm + server_norm for norm in norms]

    # ------------------------------------------------------------------ one after the other: one model for all
    def _hand_on(self, index: int, order: Sequence[int], cut: int) -> tuple[list[Tensor], list[Tensor]]:
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        self._server.bind(state.server, self._server_gradient, cut, units)
        front, several = self._front(state.server, cut), self._batches.local_steps > 1
        losses, norms = [], []
        for client in order:
            before = state.server.parameters[edges[cut] :].clone() if several else None
            self.fleet.load([client], front)
            of_client = []
            for step in range(self._batches.local_steps):
                self._server_gradient[edges[cut] :].zero_()
                of_step, (norm,) = self._exchange(index, step, [client], cut, [state.server.statistics])
                of_client += of_step
                on_server = self._step_server(state.server, self._server_gradient, state.server_optimizer, cut)
            if before is not None:
                (norm,) = self.fleet.moved([client])
                on_server = (state.server.parameters[edges[cut] :] - before).square().sum()
            losses.append(torch.stack(of_client).mean())
            norms.append(norm + on_server)
            front.copy_(self.fleet.give([client])[0])
        return losses, norms

    # ------------------------------------------------------------------ forward and backward through the cut
    def _exchange(
        self, index: int, step: int, clients: Sequence[int], cut: int, statistics: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Forward on the clients, server pass, backward and a step on the clients.

        Returns each client's loss and the ‖update‖² of its side; the server's gradient is left in its buffer. The sum
        of the losses goes backward, so each client gets the gradient of its own mean loss, and the server the sum over
        clients.
        """
        units = self.layout.num_units
        if cut == units:  # FedAvg: the client has the loss itself
            return self.fleet.learn(index, step, clients)
        sent = self.fleet.forward(index, step, clients, cut)
        received = tuple(_together(parts).requires_grad_() for parts in zip(*(carry for carry, _ in sent), strict=True))
        self._server.bind_statistics(statistics)
        (logits,) = self._server.run(received, cut, units)
        labels = torch.cat([truth for _, truth in sent])
        losses = F.cross_entropy(logits, labels, reduction="none").view(len(clients), -1).mean(1)
        shared = round(self.procedure.aggregated_share * self._batches.batch_size)
        if shared:
            returned = self._backward_aggregated(losses, logits, received, cut, shared)
        else:
            torch.autograd.backward(losses.sum())
            returned = tuple(tensor.grad for tensor in received if tensor.grad is not None)
        by_client = zip(*(tensor.chunk(len(clients)) for tensor in returned), strict=True)
        return list(losses.detach()), self.fleet.backward(clients, list(by_client))

    def _backward_aggregated(self, losses: Tensor, logits: Tensor, received: Carry, cut: int, shared: int) -> Carry:
        """EPSL: the first `shared` sample positions, a share φ, go backward once for all clients.

        Their last-layer gradients are averaged over the clients. The pass they go back through is that of the averaged
        activations of these positions, a choice (its paper leaves it open): one forward pass more, which no statistics
        remember. What comes out is broadcast: each client gets it as the gradient of its own activations there.
        """
        clients, batch = len(losses), self._batches.batch_size
        (last,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
        by_position = last.view(clients, batch, -1)
        averaged = by_position[:, :shared].mean(0)
        own = by_position.clone()
        own[:, :shared] = 0
        with torch.no_grad():
            mixed = tuple(_by_client(t, clients)[:, :shared].mean(0) for t in received)
        mixed = tuple(tensor.contiguous(memory_format=_format_of(tensor)).requires_grad_() for tensor in mixed)
        self._server.bind_statistics([None])
        (mixed_logits,) = self._server.run(mixed, cut, self.layout.num_units)
        # Once for all clients, so it weighs as much as all of them in the server's sum.
        torch.autograd.backward([logits, mixed_logits], [own.view_as(logits), averaged * clients])
        returned = []
        for tensor, mix in zip(received, mixed, strict=True):
            assert tensor.grad is not None
            assert mix.grad is not None
            _by_client(tensor.grad, clients)[:, :shared] += mix.grad / clients
            returned.append(tensor.grad)
        return tuple(returned)

    # ------------------------------------------------------------------ pieces
    def _front(self, vectors: ModelVectors, cut: int) -> ModelVectors:
        """The first `cut` units, as a view."""
        parameters, statistics = self.layout.parameter_edges[cut], self.layout.statistic_edges[cut]
        return ModelVectors(vectors.parameters[:parameters], vectors.statistics[:statistics])

    def _step_server(self, server: ModelVectors, gradient: Tensor, optimizer: OptimizerState, cut: int) -> Tensor:
        with torch.no_grad():
            units = self.layout.num_units
            return step_units(self.rule, self.layout, server.parameters, gradient, optimizer, cut, units)


def _together(parts: Sequence[Tensor]) -> Tensor:
    """What several clients sent, as one batch."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _by_client(tensor: Tensor, clients: int) -> Tensor:
    """[clients · b, ...] -> [clients, b, ...], as a view."""
    return tensor.view(clients, -1, *tensor.shape[1:])


def _format_of(tensor: Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.contiguous_format


def _runs(values: Ints, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """[first, last) of neighbours with the same value."""
    first = start
    for last in range(start + 1, stop + 1):
        if last == stop or values[last] != values[first]:
            yield first, last
            first = last
