"""The training round, fast: no copies of models, one server pass for many clients, vectors instead of tensors.

Equal to `asfl.train.plain`, which reads like the paper. What makes it fast, all of it the same maths:

- Averaging server-side models that started equal and took one SGD step each is one step with the mean gradient. So
  there is one server model, into which the gradients of all arrived clients are added, by their samples. (Where means
  are robust, each client's gradient is kept, and combined with the others' in the end.)
- The server takes the activations of up to `merge` clients in one batch; batch norm still treats them one by one.
- Client sides are rows of one buffer, gradients too; the network's code is bound to them, not copied (`LocalFleet`).
- Clients whose packet is lost train nothing, so they aren't asked to.

Where a scheme mixes, the server steps with every mini-batch instead (`asfl.train.mixed`), so there is one pass for all.

The clients are a `Fleet`: what is below runs the same whether they are in this process or on other machines. Those
can be lost on the way. Lost before its activations are here: it counts as not arrived. Lost behind the server's pass:
what the server learnt from it stays, and the means of client models are over those who gave theirs.

With several local steps the server-side models drift apart within the round: then one client after the other trains
a scratch copy, and the copies are averaged as they come; the copy of a client that is lost is thrown away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.config.randomness import random_stream
from asfl.costs.modelled import ExchangeRules
from asfl.models.cuttable import CuttableModel
from asfl.train.averages import average_sides
from asfl.train.batches import Batches
from asfl.train.client_models import models_to_send
from asfl.train.combine import Combining
from asfl.train.exchange import Exchange
from asfl.train.fleet import Fleet, FleetMaker, LocalFleet, Norms
from asfl.train.layout import Layout, ModelVectors, runs
from asfl.train.mixed import ServerSteps
from asfl.train.noise import GradientNorms, GradientParts
from asfl.train.optimizers import OptimizerState, Rule, step_units
from asfl.train.replica import Replica
from asfl.train.robust import RobustStep
from asfl.train.state import TrainingState
from asfl.train.trainer import RoundPlan, Task, Trained

Ints = NDArray[np.int64]
Outcome = dict[int, tuple[Tensor, Tensor]]
"""Loss and ‖update‖² of each client whose activations went through the server."""


class FastTrainer:
    """Trains one scheme's rounds; `state` is all it remembers."""

    def __init__(
        self, model: CuttableModel, batches: Batches, exchange: ExchangeRules, rule: Rule, *, num_clients: int,
        seed: int, device: torch.device, dtype: torch.dtype = torch.float32, merge: int = 1,
        fleet: FleetMaker = LocalFleet, watch_noise: bool = False, client_rule: Rule | None = None,
        combining: Combining = Combining(),  # noqa: B008 (frozen)
    ) -> None:  # fmt: skip
        """`model` gives the initial weights; `merge`: at most so many clients share a server pass.

        `watch_noise`: measure how noisy the server's gradient is, for which it is computed in two parts at least.
        `fleet` makes the clients, which are in this process unless somebody says otherwise. `combining`: what averages
        are. `client_rule`: how client sides step, if not as the server does.
        """
        self.layout = Layout(model)
        self.exchange, self.rule = exchange, rule
        self._batches, self._seed, self._merge = batches, seed, merge
        initial = self.layout.flatten(model, device, dtype)
        self._state = TrainingState.fresh(self.layout, initial, num_clients, rule.num_moments)
        self._state.combining, self._state.samples = combining, batches.samples
        self._server = Replica(model, self.layout, device, dtype, server=True)
        self._server_gradient = initial.parameters.new_zeros(self.layout.num_parameters)
        self._watch_noise = watch_noise
        self._gradient_norms: GradientNorms | None = None
        keeps = exchange.keeps_client_sides
        self._trained_server = self._state.server
        self.fleet: Fleet = fleet(model, self._state, batches, client_rule or rule, keeps_sides=keeps)
        units, share = self.layout.num_units, exchange.aggregated_share
        self._exchange = Exchange(self.fleet, self._server, batches, units, share, dtype)

    @property
    def state(self) -> TrainingState:
        return self._state

    @state.setter
    def state(self, state: TrainingState) -> None:
        self._state = self.fleet.state = state

    def round(self, plan: RoundPlan) -> Trained:
        """Stages 1 to 3."""
        arrived, shift = np.flatnonzero(plan.arrived), 0.0
        self._gradient_norms = None
        self._exchange.errors.clear()
        if self.exchange.keeps_client_sides and plan.scheduled.any():
            shift = self.fleet.resplit(int(plan.cut[plan.scheduled].max()), plan.scheduled)
        if not arrived.size:
            return Trained.nothing(self.state.num_clients, shift)
        cuts = plan.cut[arrived]
        if self.exchange.in_sequence:
            order = random_stream(self._seed, "scheme: order", plan.index).permutation(arrived)
            outcome = self._hand_on(plan, order.tolist(), int(cuts[0]))
        elif self._batches.local_steps == 1 or self.exchange.aggregated_share > 0 or self.exchange.mixes:
            outcome = self._together(plan, arrived, cuts)
        else:
            outcome = self._several_steps(plan, arrived, cuts)
        trained = Trained.nothing(self.state.num_clients, shift)
        if outcome:
            losses, norms = zip(*outcome.values(), strict=True)
            trained.loss[list(outcome)] = torch.stack(losses).double().cpu().numpy()
            trained.update_norm2[list(outcome)] = torch.stack(norms).double().cpu().numpy()
        for client in self._exchange.errors.keys() & outcome.keys():
            trained.quantisation_error[client] = torch.stack(self._exchange.errors[client]).double().mean().item()
        spread = None
        if plan.synced:
            spread = average_sides(
                plan, list(outcome), self.state, self._trained_server, self.fleet, self._batches.seed
            )
        return replace(trained, averaged_spread=spread, gradient_norms=self._gradient_norms)

    # ------------------------------------------------------------------ one server model, one step after the other
    def _together(self, plan: RoundPlan, arrived: Ints, cuts: Ints) -> Outcome:
        steps: list[Outcome] = []
        server = self._server_to_train(cuts)
        given = server.parameters
        if self.exchange.mixes and not self.exchange.keeps_client_sides:  # it steps before client models come back
            given = given.clone()
        for step in range(self._batches.local_steps):
            steps.append(self._one_step(plan, step, server, given, arrived, cuts))
            still = np.isin(arrived, list(steps[-1]))
            if not still.any():
                break
            arrived, cuts = arrived[still], cuts[still]
        outcome: Outcome = {}
        for client in steps[0]:
            losses, norms = zip(*(step[client] for step in steps if client in step), strict=True)
            outcome[client] = torch.stack(losses).mean(), torch.stack(norms).sum()
        return outcome

    def _one_step(
        self, plan: RoundPlan, step: int, server: ModelVectors, given: Tensor, arrived: Ints, cuts: Ints
    ) -> Outcome:
        """`given` are the server's parameters when the round began, which client models come down from."""
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        lowest = int(cuts.min())
        self._server_gradient[edges[lowest] :].zero_()
        self._server.bind(server, self._server_gradient, lowest, units)
        statistics, weights = server.statistics.repeat(len(arrived), 1), state.weights[arrived]
        robust = None if state.combining.plain else RobustStep(state, server, cuts)
        losses: dict[int, Tensor] = {}
        waiting: list[tuple[list[int], Norms]] = []
        steps: ServerSteps | None = None
        gave = np.zeros(len(arrived), dtype=np.bool_)
        exchanges = not self.exchange.keeps_client_sides
        begins, ends = step == 0, step == self._batches.local_steps - 1  # between them, client models stay there
        total = torch.zeros_like(server.parameters) if exchanges and ends else None
        tasks = [plan.task(client, step) for client in arrived.tolist()]
        sides = models_to_send(state, self._batches.seed, tasks) if exchanges and begins else None
        watch = self._watch_noise and robust is None and not self.exchange.mixes
        noise = GradientParts(self._server_gradient[edges[int(cuts.max())] :]) if watch else None
        self.fleet.announce(tasks, sides)
        for members in self._groups(tasks):
            group = [tasks[member] for member in members]
            own_statistics, own_weights = [statistics[m] for m in members], None if robust else weights[members]
            if self.exchange.mixes:  # there is one group
                about = state.server_optimizer, self._server_gradient, cuts[members], weights[members]
                steps = ServerSteps(self.layout, self.rule, server, *about)
                of_group, norms = self._exchange.run_mixed(group, steps)
                statistics.copy_(server.statistics)
            else:
                of_group, norms = self._exchange.run(group, own_statistics, own_weights)
            losses.update((m, loss) for m, loss in zip(members, of_group, strict=True) if loss is not None)
            if noise is not None:
                samples = group[0].batch or self._batches.batch_size
                noise.add(sum(loss is not None for loss in of_group), self._batches.batch_size / samples)
            if robust is not None:
                robust.take_gradient(members[0], self._server_gradient)
            waiting.append((members, norms))
            if total is not None:
                for member, task, side in zip(members, group, self.fleet.give(group), strict=True):
                    if side is not None:
                        gave[member], cut = True, task.cut
                        received = side.received(given[: edges[cut]]).parameters
                        total[: edges[cut]].add_(received, alpha=float(weights[member]))
                        if robust is not None:
                            robust.sides[member] = received.clone()
                        statistics[member, : self.layout.statistic_edges[cut]] = side.statistics
        client_norms = {m: norm for members, norms in waiting for m, norm in zip(members, norms(), strict=True)}
        passed = sorted(losses)
        if not passed:
            return {}
        watched = noise if steps is None else steps
        if watched is not None and self._watch_noise:
            self._gradient_norms = watched.norms()

        # The server steps with the mean gradient of the clients whose layer it holds, unless it has made its steps.
        lowest, deepest = int(cuts[passed].min()), int(cuts[passed].max())
        on_server = self.layout.on_server(cuts[passed], weights[passed])
        between = slice(int(edges[lowest]), int(edges[deepest]))
        if steps is not None:
            before = steps.parameters_before[between]
            server_norm = (server.parameters - steps.parameters_before)[edges[lowest] :].square().sum()
        else:
            if robust is not None:
                robust.combine_gradients(passed, weights, self._server_gradient)
            else:
                self.layout.divide_(self._server_gradient, on_server, lowest)
            before = server.parameters[between].clone()
            server_norm = self._step_server(server, self._server_gradient, state.server_optimizer, lowest)
        moved = (server.parameters[between] - before).square()

        # Average: the server's step already is one; client sides only where the scheme says so.
        known = passed if total is None else np.flatnonzero(gave).tolist()
        self._average_statistics(server, statistics, known, cuts, arrived)
        if total is not None and robust is not None:
            robust.combine_models(passed, weights)
        elif total is not None:
            for first, last in runs(on_server, 0, units):
                here = slice(int(edges[first]), int(edges[last]))
                total[here].add_(server.parameters[here], alpha=float(on_server[first]))
            summed = on_server + (weights[gave, None] * (cuts[gave, None] > np.arange(units))).sum(axis=0)
            for first, last in runs(summed, 0, units):
                here = slice(int(edges[first]), int(edges[last]))
                if summed[first]:  # else everybody who held these layers was lost, and the server keeps what it had
                    torch.div(total[here], float(summed[first]), out=server.parameters[here])
        self._keep_what_is_shared(server)
        own = {m: server_norm - moved[: edges[cuts[m]] - edges[lowest]].sum() for m in passed}
        return {int(arrived[m]): (losses[m], _plus(client_norms[m], own[m])) for m in passed}

    def _server_to_train(self, cuts: Ints) -> ModelVectors:
        """The server's model; where clients that keep their sides have cuts of their own, a copy of it.

        Then some layers lie with the server and with clients, and what all shared of them is needed once more: an
        average crosses as the difference to it. Everybody has the layers up to the deepest cut, whoever arrives.
        """
        apart = self.exchange.keeps_client_sides and cuts.min() < self.state.cut
        self._trained_server = self.state.server.clone() if apart else self.state.server
        return self._trained_server

    def _keep_what_is_shared(self, server: ModelVectors) -> None:
        """Layers that only the server has are as it trained them; `average_sides` sees to the others."""
        if server is not self.state.server:
            cut = self.state.cut
            self.layout.behind(self.state.server, cut).copy_(self.layout.behind(server, cut))

    def _average_statistics(
        self, server: ModelVectors, rows: Tensor, known: list[int], cuts: Ints, arrived: Ints
    ) -> None:
        """Running statistics [A, B] become one; those of a layer over the clients that the server passed it for.

        Schemes that exchange client models have those of the client sides in these rows, too.
        """
        edges, keeps = self.layout.statistic_edges, self.exchange.keeps_client_sides
        levels = [*(np.unique(cuts[known]).tolist() if keeps else [0]), self.layout.num_units]
        for first, last in pairwise(levels):
            passed = [member for member in known if not keeps or cuts[member] <= first]
            of_clients = rows if len(passed) == len(rows) else rows[passed]
            here = slice(int(edges[first]), int(edges[last]))
            if passed:
                had = server.statistics[here]
                had.copy_(self.state.average(of_clients[:, here], had, arrived[passed].tolist()))

    def _groups(self, tasks: Sequence[Task]) -> Iterator[list[int]]:
        """Positions among the arrived clients that share a server pass, in the order of their cuts.

        Their mini-batches are of the same size.
        """
        everybody = self.exchange.aggregated_share > 0 or self.exchange.mixes
        together = len(tasks) if everybody else self._merge
        if not self.state.combining.plain:
            together = 1
        elif self._watch_noise and not everybody:
            together = min(together, max(1, len(tasks) // 2))
        sizes, cuts = np.array([task.batch or 0 for task in tasks]), np.array([task.cut for task in tasks])
        for size in np.unique(sizes):
            alike = np.flatnonzero(sizes == size)
            order = alike[np.argsort(cuts[alike], kind="stable")].tolist()
            for start in range(0, len(order), together):
                yield order[start : start + together]

    # ------------------------------------------------------------------ several local steps: a server copy each
    def _several_steps(self, plan: RoundPlan, arrived: Ints, cuts: Ints) -> Outcome:
        state, layout, units = self.state, self.layout, self.layout.num_units
        edges, local_steps, server = layout.parameter_edges, self._batches.local_steps, self._server_to_train(cuts)
        sums = ModelVectors(torch.zeros_like(state.server.parameters), torch.zeros_like(state.server.statistics))
        kept: list[ModelVectors] = []  # where a mean won't do
        moments = torch.zeros_like(state.server_optimizer.moments)
        losses: dict[int, Tensor] = {}
        norms: dict[int, Tensor | None] = {}
        averages_sides = not self.exchange.keeps_client_sides
        for client, cut in zip(arrived.tolist(), cuts.tolist(), strict=True):
            copy, optimizer = server.clone(), state.server_optimizer.clone()
            task = plan.task(client)
            sides = models_to_send(state, self._batches.seed, [task]) if averages_sides else None
            self._server.bind(copy, self._server_gradient, cut, units)
            of_client: list[Tensor] = []
            for step in range(local_steps):
                self._server_gradient[edges[cut] :].zero_()
                now = replace(task, step=step)
                self.fleet.announce([now], sides if step == 0 else None)
                (loss,), _ = self._exchange.run([now], [copy.statistics])
                if loss is None:
                    break
                of_client.append(loss)
                self._step_server(copy, self._server_gradient, optimizer, cut)
            (norm,) = self.fleet.moved([task])
            side = self.fleet.give([task])[0] if averages_sides else None
            if len(of_client) < local_steps or (averages_sides and side is None):
                continue
            losses[client], norms[client] = torch.stack(of_client).mean(), norm
            if side is not None:
                layout.front(copy, cut).copy_(side.received(layout.front(server, cut).parameters))
            trained, total = (layout.behind(one, 0 if averages_sides else cut) for one in (copy, sums))
            weight = float(state.weights[client])
            total.parameters.add_(trained.parameters, alpha=weight)
            total.statistics.add_(trained.statistics, alpha=weight)
            if not state.combining.plain:
                kept.append(copy)
            moments[:, edges[cut] :].add_(optimizer.moments[:, edges[cut] :], alpha=weight)
        if not losses:
            return {}

        there = np.array(list(losses))
        cuts, weights = cuts[np.isin(arrived, there)], state.weights[there]
        on_server = layout.on_server(cuts, weights)
        lowest = int(cuts.min())
        before = server.parameters.clone()
        summed = on_server if self.exchange.keeps_client_sides else np.full(units, weights.sum())
        for first, last in runs(summed, 0, units):
            if summed[first]:
                holders = np.flatnonzero((cuts <= first) | averages_sides).tolist()
                for part, (edge, mean, added) in enumerate(zip(layout.edges, server.both, sums.both, strict=True)):
                    here = slice(int(edge[first]), int(edge[last]))
                    if kept:
                        rows = torch.stack([kept[place].both[part][here] for place in holders])
                        mean[here] = state.average(rows, mean[here], there[holders].tolist())
                    else:
                        torch.div(added[here], float(summed[first]), out=mean[here])
        for first, last in runs(on_server, lowest, units):
            here = slice(int(edges[first]), int(edges[last]))
            torch.div(moments[:, here], float(on_server[first]), out=state.server_optimizer.moments[:, here])
        state.server_optimizer.steps[lowest:] += local_steps
        self._keep_what_is_shared(server)
        moved = (server.parameters - before).square()
        own = [moved[edges[cut] :].sum() for cut in cuts]
        return {
            client: (loss, _plus(norms[client], norm)) for (client, loss), norm in zip(losses.items(), own, strict=True)
        }

    # ------------------------------------------------------------------ one after the other: one model for all
    def _hand_on(self, plan: RoundPlan, order: Sequence[int], cut: int) -> Outcome:
        state, edges, units = self.state, self.layout.parameter_edges, self.layout.num_units
        self._server.bind(state.server, self._server_gradient, cut, units)
        front, several = self.layout.front(state.server, cut), self._batches.local_steps > 1
        outcome: Outcome = {}
        for client in order:
            before = state.server.parameters[edges[cut] :].clone() if several else None
            task = plan.task(client)
            sides = models_to_send(state, self._batches.seed, [task], client)
            of_client: list[Tensor] = []
            for step in range(self._batches.local_steps):
                self._server_gradient[edges[cut] :].zero_()
                now = replace(task, step=step)
                self.fleet.announce([now], sides if step == 0 else None)
                (loss,), norms = self._exchange.run([now], [state.server.statistics])
                if loss is None:
                    break
                of_client.append(loss)
                on_server = self._step_server(state.server, self._server_gradient, state.server_optimizer, cut)
            if not of_client:
                continue
            (norm,) = norms() if before is None else self.fleet.moved([task])
            if before is not None:
                on_server = (state.server.parameters[edges[cut] :] - before).square().sum()
            outcome[client] = torch.stack(of_client).mean(), _plus(norm, on_server)
            (side,) = self.fleet.give([task])
            if side is not None:  # else the next client gets what this one got
                front.copy_(side.received(front.parameters))
        return outcome

    # ------------------------------------------------------------------ pieces
    def _step_server(self, server: ModelVectors, gradient: Tensor, optimizer: OptimizerState, cut: int) -> Tensor:
        with torch.no_grad():
            units = self.layout.num_units
            return step_units(self.rule, self.layout, server.parameters, gradient, optimizer, cut, units)


def _plus(of_client: Tensor | None, of_server: Tensor) -> Tensor:
    """‖Δ_n‖²; of a client that was lost behind the server's pass only the server's part is known."""
    return of_server if of_client is None else of_client + of_server
