"""The training round, fast: no copies of models, one server pass for many clients, vectors instead of tensors.

Equal to `asfl.train.plain`, which reads like the paper. What makes it fast, all of it the same maths:

- Averaging server-side models that started equal and took one SGD step each is one step with the mean gradient. So
  there is one server model, into which the gradients of all arrived clients are added, by their samples. (Where means
  are robust, each client's gradient is kept, and combined with the others' in the end.)
- The server takes the activations of up to `merge` clients in one batch; batch norm still treats them one by one.
- Client sides are rows of one buffer, gradients too; the network's code is bound to them, not copied (`LocalFleet`).
- Clients whose packet is lost train nothing, so they aren't asked to.

The clients are a `Fleet`: what is below runs the same whether they are in this process or on other machines. Those
can be lost on the way. Lost before its activations are here: it counts as not arrived. Lost behind the server's pass:
what the server learnt from it stays, and the means of client models are over those who gave theirs.

With several local steps the server-side models drift apart within the round: then one client after the other trains
a scratch copy, and the copies are averaged as they come; the copy of a client that is lost is thrown away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.randomness import random_stream
from asfl.costs.modelled import Procedure
from asfl.models.cuttable import CuttableModel
from asfl.train.aggregated import along, backward_aggregated, by_client
from asfl.train.averages import average_sides
from asfl.train.batches import Batches
from asfl.train.combine import Combining, Floats
from asfl.train.fleet import Fleet, FleetMaker, LocalFleet, Norms, Packet
from asfl.train.layout import Layout, ModelVectors
from asfl.train.noise import GradientNorms, GradientParts
from asfl.train.optimizers import OptimizerState, Rule, step_units
from asfl.train.quantise import quantise_carry, restore_carry, rounding
from asfl.train.replica import Replica
from asfl.train.robust import RobustStep
from asfl.train.state import TrainingState
from asfl.train.trainer import RoundPlan, Trained

Ints = NDArray[np.int64]
Outcome = dict[int, tuple[Tensor, Tensor]]
"""Loss and ‖update‖² of each client whose activations went through the server."""


class FastTrainer:
    """Trains one scheme's rounds; `state` is all it remembers."""

    def __init__(
        self, model: CuttableModel, batches: Batches, procedure: Procedure, rule: Rule, *, num_clients: int, seed: int,
        device: torch.device, dtype: torch.dtype = torch.float32, merge: int = 1, fleet: FleetMaker = LocalFleet,
        watch_noise: bool = False, combining: Combining = Combining(),  # noqa: B008 (frozen)
    ) -> None:  # fmt: skip
        """`model` gives the initial weights; `merge`: at most so many clients share a server pass.

        `watch_noise`: measure how noisy the server's gradient is, for which it is computed in two parts at least.
        `fleet` makes the clients, which are in this process unless somebody says otherwise. `combining`: what averages
        are.
        """
        self.layout = Layout(model)
        self.procedure, self.rule = procedure, rule
        self._batches, self._seed, self._merge = batches, seed, merge
        initial = self.layout.flatten(model, device, dtype)
        self._state = TrainingState.fresh(self.layout, initial, num_clients, rule.num_moments)
        self._state.combining, self._state.samples = combining, batches.samples
        self._server = Replica(model, self.layout, device, dtype, server=True)
        self._server_gradient = initial.parameters.new_zeros(self.layout.num_parameters)
        self._watch_noise = watch_noise
        self._gradient_norms: GradientNorms | None = None
        keeps = procedure.keeps_client_sides
        self._errors: dict[int, list[Tensor]] = {}  # of what clients sent in this round, step by step
        self.fleet: Fleet = fleet(model, self._state, batches, rule, keeps_sides=keeps)

    @property
    def state(self) -> TrainingState:
        return self._state

    @state.setter
    def state(self, state: TrainingState) -> None:
        self._state = self.fleet.state = state

    def round(self, plan: RoundPlan) -> Trained:
        """Stages 1 to 3."""
        arrived, shift = np.flatnonzero(plan.arrived), 0.0
        self._gradient_norms, self._errors = None, {}
        if self.procedure.keeps_client_sides and plan.scheduled.any():
            shift = self.fleet.resplit(int(plan.cut[np.argmax(plan.scheduled)]), plan.scheduled)
        if not arrived.size:
            return Trained.nothing(self.state.num_clients, shift)
        cuts = plan.cut[arrived]
        if self.procedure.in_sequence:
            order = random_stream(self._seed, "scheme: order", plan.index).permutation(arrived)
            outcome = self._hand_on(plan, order.tolist(), int(cuts[0]))
        elif self._batches.local_steps == 1 or self.procedure.aggregated_share > 0:
            outcome = self._together(plan, arrived, cuts)
        else:
            outcome = self._several_steps(plan, arrived, cuts)
        trained = Trained.nothing(self.state.num_clients, shift)
        if outcome:
            losses, norms = zip(*outcome.values(), strict=True)
            trained.loss[list(outcome)] = torch.stack(losses).double().cpu().numpy()
            trained.update_norm2[list(outcome)] = torch.stack(norms).double().cpu().numpy()
        for client in self._errors.keys() & outcome.keys():
            trained.quantisation_error[client] = torch.stack(self._errors[client]).double().mean().item()
        spread = average_sides(plan, list(outcome), self.state, self.fleet, self._batches.seed) if plan.synced else None
        return replace(trained, averaged_spread=spread, gradient_norms=self._gradient_norms)

    # ------------------------------------------------------------------ one server model, one step after the other
    def _together(self, plan: RoundPlan, arrived: Ints, cuts: Ints) -> Outcome:
        steps: list[Outcome] = []
        for step in range(self._batches.local_steps):
            steps.append(self._one_step(plan, step, arrived, cuts))
            still = np.isin(arrived, list(steps[-1]))
            if not still.any():
                break
            arrived, cuts = arrived[still], cuts[still]
        outcome: Outcome = {}
        for client in steps[0]:
            losses, norms = zip(*(step[client] for step in steps if client in step), strict=True)
            outcome[client] = torch.stack(losses).mean(), torch.stack(norms).sum()
        return outcome

    def _one_step(self, plan: RoundPlan, step: int, arrived: Ints, cuts: Ints) -> Outcome:
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        lowest = int(cuts.min())
        self._server_gradient[edges[lowest] :].zero_()
        self._server.bind(state.server, self._server_gradient, lowest, units)
        statistics, weights = state.server.statistics.repeat(len(arrived), 1), state.weights[arrived]
        robust = None if state.combining.plain else RobustStep(state, cuts)
        losses: dict[int, Tensor] = {}
        waiting: list[tuple[list[int], Norms]] = []
        gave = np.zeros(len(arrived), dtype=np.bool_)
        total = None if self.procedure.keeps_client_sides else torch.zeros_like(state.server.parameters)
        whole = None if total is None else state.server
        watch = self._watch_noise and robust is None
        noise = GradientParts(self._server_gradient[edges[int(cuts.max())] :]) if watch else None
        self.fleet.announce(plan.index, step, arrived.tolist(), cuts.tolist(), list(map(plan.bits_of, arrived)), whole)
        for members, cut in self._groups(cuts):
            clients = arrived[members].tolist()
            if total is not None:
                self.fleet.load(clients, self.layout.front(state.server, cut))
            own = [statistics[member] for member in members]
            of_group, norms = self._exchange(plan, step, clients, cut, own, None if robust else weights[members])
            losses.update((m, loss) for m, loss in zip(members, of_group, strict=True) if loss is not None)
            if noise is not None:
                noise.add(sum(loss is not None for loss in of_group))
            if robust is not None:
                robust.take_gradient(members[0], self._server_gradient)
            waiting.append((members, norms))
            if total is not None:
                for member, side in zip(members, self.fleet.give(clients), strict=True):
                    if side is not None:
                        gave[member] = True
                        total[: edges[cut]].add_(side.parameters, alpha=float(weights[member]))
                        if robust is not None:
                            robust.sides[member] = side.parameters.clone()
                        statistics[member, : self.layout.statistic_edges[cut]] = side.statistics
        client_norms = {m: norm for members, norms in waiting for m, norm in zip(members, norms(), strict=True)}
        passed = sorted(losses)
        if not passed:
            return {}
        if noise is not None:
            self._gradient_norms = noise.norms()

        # The server steps with the mean gradient of the clients whose layer it holds.
        lowest = int(cuts[passed].min())
        on_server = (weights[passed, None] * (cuts[passed, None] <= np.arange(units))).sum(axis=0)
        if robust is not None:
            robust.combine_gradients(passed, weights, self._server_gradient)
        else:
            for first, last in _runs(on_server, lowest, units):
                self._server_gradient[edges[first] : edges[last]].div_(float(on_server[first]))
        server_norm = self._step_server(state.server, self._server_gradient, state.server_optimizer, lowest)

        # Average: the server's step already is one; client sides only where the scheme says so.
        averaged_from = 0 if total is not None else lowest
        edge = self.layout.statistic_edges[averaged_from]
        known = passed if total is None else np.flatnonzero(gave).tolist()
        if known:
            rows = statistics if len(known) == len(arrived) else statistics[known]
            had = state.server.statistics[edge:]
            had.copy_(state.average(rows[:, edge:], had, arrived[known].tolist()))
        if total is not None and robust is not None:
            robust.combine_models(passed, weights)
        elif total is not None:
            for first, last in _runs(on_server, 0, units):
                here = slice(int(edges[first]), int(edges[last]))
                total[here].add_(state.server.parameters[here], alpha=float(on_server[first]))
            summed = on_server + (weights[gave, None] * (cuts[gave, None] > np.arange(units))).sum(axis=0)
            for first, last in _runs(summed, 0, units):
                here = slice(int(edges[first]), int(edges[last]))
                if summed[first]:  # else everybody who held these layers was lost, and the server keeps what it had
                    torch.div(total[here], float(summed[first]), out=state.server.parameters[here])
        return {int(arrived[m]): (losses[m], _plus(client_norms[m], server_norm)) for m in passed}

    def _groups(self, cuts: Ints) -> Iterator[tuple[list[int], int]]:
        """Positions among the arrived clients that share a server pass, and their cut."""
        together = len(cuts) if self.procedure.aggregated_share > 0 else self._merge
        if not self.state.combining.plain:
            together = 1
        elif self._watch_noise:
            together = min(together, max(1, len(cuts) // 2))
        for cut in np.unique(cuts).tolist():
            members = np.flatnonzero(cuts == cut).tolist()
            for start in range(0, len(members), together):
                yield members[start : start + together], cut

    # ------------------------------------------------------------------ several local steps: a server copy each
    def _several_steps(self, plan: RoundPlan, arrived: Ints, cuts: Ints) -> Outcome:
        state, layout, units = self.state, self.layout, self.layout.num_units
        edges, local_steps = layout.parameter_edges, self._batches.local_steps
        sums = ModelVectors(torch.zeros_like(state.server.parameters), torch.zeros_like(state.server.statistics))
        kept: list[ModelVectors] = []  # where a mean won't do
        moments = torch.zeros_like(state.server_optimizer.moments)
        losses: dict[int, Tensor] = {}
        norms: dict[int, Tensor | None] = {}
        averages_sides = not self.procedure.keeps_client_sides
        for client, cut in zip(arrived.tolist(), cuts.tolist(), strict=True):
            copy, optimizer = state.server.clone(), state.server_optimizer.clone()
            if averages_sides:
                self.fleet.load([client], self.layout.front(state.server, cut))
            self._server.bind(copy, self._server_gradient, cut, units)
            of_client: list[Tensor] = []
            for step in range(local_steps):
                self._server_gradient[edges[cut] :].zero_()
                (loss,), _ = self._exchange(plan, step, [client], cut, [copy.statistics], None)
                if loss is None:
                    break
                of_client.append(loss)
                self._step_server(copy, self._server_gradient, optimizer, cut)
            (norm,) = self.fleet.moved([client])
            side = self.fleet.give([client])[0] if averages_sides else None
            if len(of_client) < local_steps or (averages_sides and side is None):
                continue
            losses[client], norms[client] = torch.stack(of_client).mean(), norm
            if side is not None:
                copy.parameters[: edges[cut]] = side.parameters
                copy.statistics[: layout.statistic_edges[cut]] = side.statistics
            weight = float(state.weights[client])
            sums.parameters.add_(copy.parameters, alpha=weight)
            sums.statistics.add_(copy.statistics, alpha=weight)
            if not state.combining.plain:
                kept.append(copy)
            moments[:, edges[cut] :].add_(optimizer.moments[:, edges[cut] :], alpha=weight)
        if not losses:
            return {}

        there = list(losses)
        cuts, weights = cuts[np.isin(arrived, there)], state.weights[there]
        on_server = (weights[:, None] * (cuts[:, None] <= np.arange(units))).sum(axis=0)
        lowest = int(cuts.min())
        averaged_from = lowest if self.procedure.keeps_client_sides else 0
        server_before = state.server.parameters[edges[lowest] :].clone()
        a, b = int(edges[averaged_from]), int(layout.statistic_edges[averaged_from])
        if kept:
            for name, edge in (("parameters", a), ("statistics", b)):
                before = getattr(state.server, name)[edge:]
                before.copy_(state.average(torch.stack([getattr(copy, name)[edge:] for copy in kept]), before, there))
        else:
            torch.div(sums.parameters[a:], float(weights.sum()), out=state.server.parameters[a:])
            torch.div(sums.statistics[b:], float(weights.sum()), out=state.server.statistics[b:])
        for first, last in _runs(on_server, lowest, units):
            here = slice(int(edges[first]), int(edges[last]))
            torch.div(moments[:, here], float(on_server[first]), out=state.server_optimizer.moments[:, here])
        state.server_optimizer.steps[lowest:] += local_steps
        server_norm = (state.server.parameters[edges[lowest] :] - server_before).square().sum()
        return {client: (loss, _plus(norms[client], server_norm)) for client, loss in losses.items()}

    # ------------------------------------------------------------------ one after the other: one model for all
    def _hand_on(self, plan: RoundPlan, order: Sequence[int], cut: int) -> Outcome:
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        self._server.bind(state.server, self._server_gradient, cut, units)
        front, several = self.layout.front(state.server, cut), self._batches.local_steps > 1
        outcome: Outcome = {}
        for client in order:
            before = state.server.parameters[edges[cut] :].clone() if several else None
            self.fleet.load([client], front)
            of_client: list[Tensor] = []
            for step in range(self._batches.local_steps):
                self._server_gradient[edges[cut] :].zero_()
                (loss,), norms = self._exchange(plan, step, [client], cut, [state.server.statistics], None)
                if loss is None:
                    break
                of_client.append(loss)
                on_server = self._step_server(state.server, self._server_gradient, state.server_optimizer, cut)
            if not of_client:
                continue
            (norm,) = norms() if before is None else self.fleet.moved([client])
            if before is not None:
                on_server = (state.server.parameters[edges[cut] :] - before).square().sum()
            outcome[client] = torch.stack(of_client).mean(), _plus(norm, on_server)
            (side,) = self.fleet.give([client])
            if side is not None:  # else the next client gets what this one got
                front.copy_(side)
        return outcome

    # ------------------------------------------------------------------ forward and backward through the cut
    def _exchange(
        self, plan: RoundPlan, step: int, clients: Sequence[int], cut: int, statistics: Sequence[Tensor],
        weights: Floats | None,
    ) -> tuple[list[Tensor | None], Norms]:  # fmt: skip
        """Forward on the clients, server pass, backward and a step on the clients.

        Returns each client's loss and the ‖update‖² of its side; the server's gradient is left in its buffer. The sum
        of the losses goes backward, so each client gets the gradient of its own mean loss, and the server the sum over
        clients, by these weights (None: each counts once).
        """
        units = self.layout.num_units
        if cut == units:  # FedAvg: the client has the loss itself
            learnt, norms = self.fleet.learn(plan.index, step, clients)
            return learnt, lambda: norms
        bits = [plan.bits_of(client) for client in clients]
        sent = self.fleet.forward(plan.index, step, clients, cut, bits)
        before = [each.clone() for each in statistics]
        while True:
            there = [place for place, packet in enumerate(sent) if packet is not None]
            packets = [packet for packet in sent if packet is not None]
            if not packets:
                return [None] * len(sent), lambda: [None] * len(sent)
            carries = [restore_carry(packet.carry, self._server_gradient.dtype) for packet in packets]
            received = tuple(_as_one(parts).requires_grad_() for parts in zip(*carries, strict=True))
            self._server.bind_statistics([statistics[place] for place in there])
            (logits,) = self._server.run(received, cut, units)
            labels = torch.cat([packet.labels for packet in packets])
            losses = F.cross_entropy(logits, labels, reduction="none").view(len(packets), -1).mean(1)
            if not self._refused(losses, there, clients, sent):
                break
            for now, earlier in zip(statistics, before, strict=True):  # again, without those who were refused
                now.copy_(earlier)
        for place, packet in zip(there, packets, strict=True):
            if packet.error is not None:
                self._errors.setdefault(clients[place], []).append(packet.error)
        shared = round(self.procedure.aggregated_share * self._batches.batch_size)
        weigh = losses.new_ones(len(packets)) if weights is None else torch.from_numpy(weights[there]).to(losses)
        if shared:
            returned = backward_aggregated(self._server, losses, logits, received, (cut, units), shared, weigh)
        else:
            torch.autograd.backward(losses, weigh)
            returned = tuple(tensor.grad for tensor in received if tensor.grad is not None)
            if bool((weigh != 1).any()):  # a client's own gradient is that of its own loss
                for gradient in returned:
                    by_client(gradient, len(packets)).div_(along(weigh, gradient))
        asked = [clients[place] for place in there]
        each = zip(*(tensor.chunk(len(packets)) for tensor in returned), strict=True)
        coins = (rounding(self._batches.seed, "down", plan.index, client, step) for client in asked)
        crossing = list(map(quantise_carry, each, [bits[place] for place in there], coins))
        norms_there = self.fleet.backward(asked, crossing)
        return (
            _in_place(list(losses.detach()), there, len(sent)),
            lambda: _in_place(norms_there(), there, len(sent)),
        )

    def _refused(self, losses: Tensor, there: Sequence[int], clients: Sequence[int], sent: list[Packet | None]) -> bool:
        """Whether the fleet does without those whose loss isn't finite; they are taken out of what was sent."""
        finite, refused = torch.isfinite(losses), False
        if bool(finite.all()):
            return False
        for place, loss, good in zip(there, losses.tolist(), finite.tolist(), strict=True):
            if not good and self.fleet.refuse(clients[place], f"the server's pass gives a loss of {loss:g}"):
                sent[place], refused = None, True
        return refused

    # ------------------------------------------------------------------ pieces
    def _step_server(self, server: ModelVectors, gradient: Tensor, optimizer: OptimizerState, cut: int) -> Tensor:
        with torch.no_grad():
            units = self.layout.num_units
            return step_units(self.rule, self.layout, server.parameters, gradient, optimizer, cut, units)


def _as_one(parts: Sequence[Tensor]) -> Tensor:
    """What several clients sent, as one batch."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _in_place(values: Sequence[Tensor | None], places: Sequence[int], count: int) -> list[Tensor | None]:
    """The values in their places among `count`, None elsewhere."""
    filled: list[Tensor | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return filled


def _plus(of_client: Tensor | None, of_server: Tensor) -> Tensor:
    """‖Δ_n‖²; of a client that was lost behind the server's pass only the server's part is known."""
    return of_server if of_client is None else of_client + of_server


def _runs(values: Ints, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """[first, last) of neighbours with the same value."""
    first = start
    for last in range(start + 1, stop + 1):
        if last == stop or values[last] != values[first]:
            yield first, last
            first = last
