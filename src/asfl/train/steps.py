"""The training round: how activations and gradients cross the cut, and how models step and become one again.

Equal to the plain trainer in `tests/oracles`, which reads like the paper. What makes it fast, all of it the same maths:

- Averaging server-side models that started equal and took one SGD step each is one step with the mean gradient. So
  there is one server model, into which the gradients of all arrived clients are added, by their samples. (Where means
  are robust, each client's gradient is kept, and combined with the others' in the end.)
- The server takes the activations of up to `merge` clients in one batch; batch norm still treats them one by one.
- Client sides are rows of one buffer, gradients too; the network's code is bound to them, not copied (`LocalFleet`).
- Clients whose packet is lost train nothing, so they aren't asked to.

A round is `split_steps`, `server_copies`, `in_sequence` or `local_losses`. The clients are a `Fleet`, in this process
or on other machines. Those can be lost on the way. Lost before its activations are here: a client counts as not
arrived. Lost behind the server's pass: what the server learnt from it stays, and the means of client models are over
the clients that gave theirs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, product
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asfl.config import Config
from asfl.config.randomness import random_stream
from asfl.costs.modelled import FITS, ExchangeRules
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.batches import Batches
from asfl.train.fleet import FirstLayers, Fleet, FleetMaker, LocalFleet, Packet
from asfl.train.optimizers import OptimizerState, Rule, step_units
from asfl.train.quantise import (
    ALL_CLIENTS,
    UNQUANTISED,
    Crossing,
    layers_to_send,
    quantise_carry,
    quantise_side,
    relative_error,
    restore_carry,
    rounding,
)
from asfl.train.signals import GradientNorms, RoundPlan, Task, Trained
from asfl.train.state import (
    Auxiliary,
    Combining,
    Floats,
    Layout,
    ModelVectors,
    Replica,
    TrainingState,
    layer_spreads,
    runs,
)

Learnt = dict[int, tuple[Tensor, Tensor]]
"""Loss and ‖update‖² of each client whose activations went through the server."""


def client_learning_rate(config: Config, exchange: ExchangeRules) -> float:
    """η of client sides. Where the server mixes, √A₀ times as long as its own, with A₀ clients that can be served.

    That is the square-root rule for Adam with as many times the samples (Malladi et al., "On the SDEs and Scaling Rules
    for Adaptive Gradient Algorithms").
    """
    rate = config.training.learning_rate
    return rate * math.sqrt(min(config.scenario.clients, config.radio.num_rbs)) if exchange.mixes else rate


class Trainer:
    """Trains one scheme's rounds; `state` is all it remembers."""

    def __init__(
        self, model: CuttableModel, batches: Batches, exchange: ExchangeRules, rule: Rule, *, num_clients: int,
        seed: int, device: torch.device, dtype: torch.dtype = torch.float32, merge: int = 1,
        fleet: FleetMaker = LocalFleet, watch_noise: bool = False, client_rule: Rule | None = None,
        combining: Combining = Combining(),  # noqa: B008 (frozen)
        sliced: bool = False,
    ) -> None:  # fmt: skip
        """`model` gives the initial weights; `merge`: at most so many clients share a server pass. `sliced`:
        mini-batches come in slices, so a server that mixes them takes what came first.

        `watch_noise`: measure how noisy the server's gradient is, for which it is computed in two parts at least.
        `fleet` makes the clients. `combining`: what averages are. `client_rule`: how client sides step, if not as the
        server does.
        """
        self.layout = Layout(model)
        self.exchange, self.rule = exchange, rule
        self.batches, self.seed, self.dtype, self._merge = batches, seed, dtype, merge
        initial = self.layout.flatten(model, device, dtype)
        self.state = TrainingState.fresh(self.layout, initial, num_clients, rule.num_moments)
        self.state.combining, self.state.samples = combining, batches.samples
        self.server = Replica(model, self.layout, device, dtype, server=True)
        """Bound to what the server trains, and to its gradient."""
        self.gradient = initial.parameters.new_zeros(self.layout.num_parameters)
        self.watch_noise, self.sliced = watch_noise, sliced
        self.gradient_norms: GradientNorms | None = None
        self.errors: dict[int, list[Tensor]] = {}
        """Of what clients sent in this round, step by step."""
        keeps = exchange.keeps_client_sides
        self.fleet: Fleet = fleet(model, self.state, batches, client_rule or rule, keeps_sides=keeps)
        self._steps = split_steps
        if exchange.local_loss:
            self._steps, shape, moments = local_losses, batches.image_shape, rule.num_moments
            self.state.auxiliary = Auxiliary.fresh(model, shape, initial.parameters, num_clients, moments, seed)
        elif exchange.in_sequence:
            self._steps = in_sequence
        elif batches.local_steps > 1 and not (exchange.aggregated_share > 0 or exchange.mixes):
            self._steps = server_copies

    def restore(self, state: TrainingState) -> None:
        self.state = self.fleet.state = state

    def round(self, plan: RoundPlan) -> Trained:
        """Stages 1 to 3."""
        self.resplit(plan)
        return self.train(plan)

    def resplit(self, plan: RoundPlan) -> float:
        """Stage 1: layers move to where the cut is now. Returns ‖·‖² of what that does to the average model."""
        if not (self.exchange.keeps_client_sides and plan.scheduled.any()):
            return 0.0
        return self.fleet.resplit(int(plan.cut[plan.scheduled].max()), plan.scheduled)

    def train(self, plan: RoundPlan) -> Trained:
        """Stages 2 and 3."""
        tasks = [plan.task(client) for client in np.flatnonzero(plan.arrived).tolist()]
        trained, self.gradient_norms = Trained.nothing(self.state.num_clients), None
        self.errors.clear()
        learnt = self._steps(self, tasks) if tasks else {}
        if not learnt:
            return trained
        losses, norms = zip(*learnt.values(), strict=True)
        trained.loss[list(learnt)] = torch.stack(losses).double().cpu().numpy()
        trained.update_norm2[list(learnt)] = torch.stack(norms).double().cpu().numpy()
        for client in self.errors.keys() & learnt.keys():
            trained.quantisation_error[client] = torch.stack(self.errors[client]).double().mean().item()
        spread = average_sides(self, [plan.task(client) for client in learnt], plan.synced) if plan.synced else None
        return replace(trained, averaged_spread=spread, gradient_norms=self.gradient_norms)

    # ------------------------------------------------------------------ through the cut
    def cross(
        self, tasks: Sequence[Task], statistics: Sequence[Tensor], weights: Floats, mixed: "MixedSteps | None" = None
    ) -> tuple[dict[int, Tensor], Callable[[], dict[int, Tensor | None]]]:
        """Forward on the clients, server pass, backward and a step on the clients. Cuts must not fall; mini-batches
        must be of the same size.

        Returns the losses of the clients that weren't lost, by their place among the tasks, and the ‖update‖² of their
        sides; the server's gradient is left in its buffer, the sum over clients by these weights [A]. A client's own
        gradient is that of its own loss. `mixed`: the server steps with mixed mini-batches instead.
        """
        if tasks[0].cut == self.layout.num_units:  # FedAvg: the client has the loss itself
            own_losses, own_norms = self.fleet.learn(tasks)
            known = {place: loss for place, loss in enumerate(own_losses) if loss is not None}
            return known, lambda: dict(enumerate(own_norms))
        sent = self.fleet.forward(tasks)
        before = [each.clone() for each in statistics]
        while True:
            there = [place for place, packet in enumerate(sent) if packet is not None]
            if not there:
                return {}, dict
            packets = [packet for packet in sent if packet is not None]
            labels, cuts = [packet.labels for packet in packets], [tasks[place].cut for place in there]
            carries = [restore_carry(packet.carry, self.dtype) for packet in packets]
            if mixed is None:
                joining = _joined(carries, cuts)
                logits, losses = self._server_pass(joining, labels, [statistics[place] for place in there])
            else:
                losses, gradients = self._mixed_passes(carries, labels, cuts, there, mixed)
            if bool(torch.isfinite(losses).all()):
                break
            alone = losses
            if mixed is not None:
                mixed.take_back()
                with torch.no_grad():
                    _, alone = self._server_pass(_joined(carries, cuts), labels, [None] * len(there))
            if not self._refused(alone, there, tasks, sent):
                break
            for now, earlier in zip(statistics, before, strict=True):  # again, without the clients that were refused
                now.copy_(earlier)
        if mixed is None:
            gradients = self._backward(losses, logits, joining, torch.from_numpy(weights[there]).to(losses))
        for place, packet in zip(there, packets, strict=True):
            if packet.error is not None:
                self.errors.setdefault(tasks[place].client, []).append(packet.error)
        asked = [tasks[place] for place in there]
        crossing: list[Crossing] = [
            own
            if task.bits == UNQUANTISED
            else quantise_carry(own, task.bits, rounding(self.batches.seed, "down", task.round, task.client, task.step))
            for task, own in zip(asked, gradients, strict=True)
        ]
        norms = self.fleet.backward(asked, crossing)
        return dict(zip(there, losses.detach(), strict=True)), lambda: dict(zip(there, norms(), strict=True))

    def _server_pass(
        self,
        joining: "Sequence[_Joining]",
        labels: Sequence[Tensor],
        statistics: Sequence[Tensor | None],
        *,
        together: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Forward: clients with a deeper cut join on the way. Logits of all, in their order, and [A] each one's loss.

        `together`: batch norm takes all of them as one, with the only statistics given.
        """
        carry, cut, present = joining[0].received, joining[0].cut, 0
        for group in joining:
            if present:
                carry = self.server.model.run(carry, cut, group.cut)
                carry = tuple(torch.cat(both) for both in zip(carry, group.received, strict=True))
            cut, present = group.cut, present + group.clients
            self.server.bind_statistics(statistics if together else statistics[:present])
        (logits,) = self.server.model.run(carry, cut, self.layout.num_units)
        losses = F.cross_entropy(logits, torch.cat(list(labels)), reduction="none")
        return logits, losses.view(len(labels), -1).mean(1)

    def _backward(self, losses: Tensor, logits: Tensor, joining: "Sequence[_Joining]", weights: Tensor) -> list[Carry]:
        """The gradients of what each client sent; with EPSL, a share of them is made once for all clients."""
        shared = round(self.exchange.aggregated_share * self.batches.batch_size)
        if shared:
            (group,) = joining
            units = range(group.cut, self.layout.num_units)
            backward_aggregated(self.server, losses, logits, group.received, units, shared, weights)
        else:
            torch.autograd.backward(losses, weights)
        gradients = _gradients(joining)
        for own, weight in zip(gradients, weights.tolist(), strict=True):
            if weight != 1:
                for gradient in own:
                    gradient.div_(weight)
        return gradients

    def _mixed_passes(
        self,
        carries: Sequence[Carry],
        labels: Sequence[Tensor],
        cuts: Sequence[int],
        there: list[int],
        mixed: "MixedSteps",
    ) -> tuple[Tensor, list[Carry]]:
        """Losses [A], and the gradients of what each client sent."""
        gradients = [tuple(torch.empty_like(tensor) for tensor in carry) for carry in carries]
        losses = torch.zeros(len(carries), dtype=self.dtype, device=labels[0].device)
        weights, samples = torch.from_numpy(mixed.weights[there]).to(losses), len(labels[0])
        parts = max(1, min(len(carries), samples // 2))  # batch norm needs two samples
        for part in range(parts):
            # Slices come one after the other; else any order will do.
            consecutive = slice(part * samples // parts, (part + 1) * samples // parts)
            dealt = consecutive if self.sliced else slice(part, None, parts)
            joining = _joined([tuple(tensor[dealt] for tensor in carry) for carry in carries], cuts)
            dealt_labels = [truth[dealt] for truth in labels]
            _, own = self._server_pass(joining, dealt_labels, [mixed.server.statistics], together=True)
            torch.autograd.backward(own, weights)
            share = len(range(samples)[dealt]) / samples  # of the client's samples
            losses += own.detach() * share
            for own_gradients, weight, new in zip(gradients, weights.tolist(), _gradients(joining), strict=True):
                for gradient, tensor in zip(own_gradients, new, strict=True):
                    gradient[dealt] = tensor * (share / weight)
            mixed.step(there)
        return losses, gradients

    def _refused(self, losses: Tensor, there: Sequence[int], tasks: Sequence[Task], sent: list[Packet | None]) -> bool:
        """Whether the fleet does without the clients whose loss isn't finite; they are taken out of what was sent."""
        refused = False
        for place, loss in zip(there, losses.tolist(), strict=True):
            reason = f"the server's pass gives a loss of {loss:g}"
            if not math.isfinite(loss) and self.fleet.refuse(tasks[place].client, reason):
                sent[place], refused = None, True
        return refused

    # ------------------------------------------------------------------ what steps share
    def step_server(self, server: ModelVectors, optimizer: OptimizerState, cut: int) -> Tensor:
        """One step of the layers behind the cut, with the gradient in the buffer; ‖update‖²."""
        units, edges = range(cut, self.layout.num_units), self.layout.parameter_edges
        return step_units(self.rule, edges, server.parameters, self.gradient, optimizer, units)

    def models_to_send(self, tasks: Sequence[Task], client: int = ALL_CLIENTS) -> list[FirstLayers] | None:
        """The first layers of the server's model for each cut and number of bits; None where clients keep their sides.

        With few bits the server sends the model itself, since a client that sat out has nothing to take a difference
        to. What comes back is how far the client moved from what it was given. The server adds that to the model as it
        has it, so what rounding did to the way down is not in the average. The rng is that of a client.
        """
        if self.exchange.keeps_client_sides:
            return None
        made: dict[tuple[int, int], FirstLayers] = {}
        for task in tasks:
            if (task.cut, task.bits) not in made:
                front = self.layout.front(self.state.server, task.cut)
                rng = rounding(self.batches.seed, "model", task.round, client)
                codes = quantise_side(self.layout, front.parameters, task.cut, task.bits, rng)
                made[task.cut, task.bits] = FirstLayers(codes, front.statistics)
        return [made[task.cut, task.bits] for task in tasks]

    def groups(self, tasks: Sequence[Task]) -> Iterator[list[int]]:
        """Places of tasks that share a server pass, in the order of their cuts; mini-batches are of the same size."""
        together = self._merge
        if self.exchange.aggregated_share > 0 or self.exchange.mixes:
            together = len(tasks)
        elif not self.state.combining.plain:
            together = 1
        elif self.watch_noise:
            together = min(together, max(1, len(tasks) // 2))
        if self.fleet.overlaps and not (
            self.exchange.aggregated_share or self.exchange.mixes
        ):  # first come, first served
            waiting = list(range(len(tasks)))
            while waiting:
                yield [waiting.pop(self.fleet.first([tasks[place] for place in waiting]))]
            return
        sizes, cuts = np.array([task.batch or 0 for task in tasks]), np.array([task.cut for task in tasks])
        for size in np.unique(sizes):
            alike = np.flatnonzero(sizes == size)
            order = alike[np.argsort(cuts[alike], kind="stable")].tolist()
            for start in range(0, len(order), together):
                yield order[start : start + together]


# ---------------------------------------------------------------------- one server model, one step after the other
def split_steps(trainer: Trainer, tasks: list[Task]) -> Learnt:
    """As many steps as configured, each of all clients together; a client that is lost is left out of the rest."""
    given, steps = trainer.state.server.parameters, list[Learnt]()
    if trainer.exchange.mixes and not trainer.exchange.keeps_client_sides:  # it steps before client models come back
        given = given.clone()
    for step in range(trainer.batches.local_steps):
        steps.append(_split_step(trainer, [replace(task, step=step) for task in tasks], given))
        tasks = [task for task in tasks if task.client in steps[-1]]
        if not tasks:
            break
    learnt: Learnt = {}
    for client in steps[0]:
        losses, norms = zip(*(step[client] for step in steps if client in step), strict=True)
        learnt[client] = torch.stack(losses).mean(), torch.stack(norms).sum()
    return learnt


def _split_step(trainer: Trainer, tasks: Sequence[Task], given: Tensor) -> Learnt:
    """`given` are the server's parameters when the round began, which client models come down from."""
    state, layout, exchange, fleet = trainer.state, trainer.layout, trainer.exchange, trainer.fleet
    server, edges, units, gradient = state.server, layout.parameter_edges, layout.num_units, trainer.gradient
    clients, cuts = [task.client for task in tasks], np.array([task.cut for task in tasks])
    statistics, weights, lowest = server.statistics.repeat(len(tasks), 1), state.weights[clients], int(cuts.min())
    begins, ends = tasks[0].step == 0, tasks[0].step == trainer.batches.local_steps - 1
    # Client models that are exchanged stay with the clients between the first step of a round and its last.
    collects, plain = ends and not exchange.keeps_client_sides, state.combining.plain
    sides = LayerMean(state.combining, edges) if collects else None
    rows = None if plain else LayerMean(state.combining, edges)
    gradient[edges[lowest] :].zero_()
    trainer.server.bind(server, gradient, lowest, units)
    mixed: MixedSteps | None = None
    noise = (
        GradientParts(gradient[edges[int(cuts.max())] :])
        if trainer.watch_noise and plain and not exchange.mixes
        else None
    )
    losses: dict[int, Tensor] = {}
    waiting: list[tuple[list[int], Callable[[], dict[int, Tensor | None]]]] = []
    gave: list[int] = []

    def collect(members: Sequence[int]) -> None:
        assert sides is not None
        for member, side in zip(members, fleet.give([tasks[member] for member in members]), strict=True):
            if side is not None:
                gave.append(member)
                cut = tasks[member].cut
                sides.add(side.received(given[: edges[cut]]).parameters, 0, cut, weights[[member]])
                statistics[member, : layout.statistic_edges[cut]] = side.statistics

    # Group by group across the cut, and client models back; where rounds overlap, when all are served.
    fleet.announce(tasks, trainer.models_to_send(tasks) if begins else None)
    for members in trainer.groups(tasks):
        group = [tasks[member] for member in members]
        own_weights = weights[members] if plain else np.ones(len(members))
        if exchange.mixes:  # there is one group
            mixed = MixedSteps(trainer, server, cuts[members], own_weights)
        of_group, norms = trainer.cross(group, [statistics[member] for member in members], own_weights, mixed)
        if mixed is not None:
            statistics.copy_(server.statistics)
        losses |= {members[place]: loss for place, loss in of_group.items()}
        waiting.append((members, norms))
        if noise is not None:
            noise.add(len(of_group), trainer.batches.batch_size / (group[0].batch or trainer.batches.batch_size))
        if rows is not None and of_group:
            cut = group[0].cut
            rows.add(gradient[edges[cut] :], cut, units, weights[members])
            gradient.zero_()
        if sides is not None and not fleet.overlaps:
            collect(members)
    if sides is not None and fleet.overlaps:
        collect([member for members, _ in waiting for member in members])
    client_norms = {members[place]: norm for members, norms in waiting for place, norm in norms().items()}
    passed = sorted(losses)
    if not passed:
        return {}

    # The server steps with the mean gradient of the clients whose layer it holds, unless it has made its steps.
    lowest, deepest = int(cuts[passed].min()), int(cuts[passed].max())
    on_server = layout.on_server(cuts[passed], weights[passed])
    between = slice(int(edges[lowest]), int(edges[deepest]))
    if mixed is not None:
        before = mixed.before.parameters
        server_norm = (server.parameters - before)[edges[lowest] :].square().sum()
        trainer.gradient_norms = mixed.noise.norms() if trainer.watch_noise else None
    else:
        trainer.gradient_norms = None if noise is None else noise.norms()
        if rows is None:
            layout.divide_(gradient, on_server, lowest)
        else:
            rows.into(gradient, torch.zeros_like(gradient))  # of updates, so they are compared with nothing
        before = server.parameters
        if deepest > lowest or not plain:  # else nothing below looks at it
            before = before.clone()
        server_norm = trainer.step_server(server, state.server_optimizer, lowest)
    moved = (server.parameters[between] - before[between]).square()

    # Average: the server's step already is one; client sides only where the scheme says so.
    known = passed if sides is None else sorted(gave)
    own = slice(int(layout.statistic_edges[cuts[0]]) if exchange.keeps_client_sides else 0, None)
    if known:
        had = server.statistics[own]
        had.copy_(state.average(statistics[known][:, own], had, [clients[member] for member in known]))
    if sides is not None:
        for first, last in runs(on_server, lowest, units):
            holders = [member for member in passed if cuts[member] <= first]
            sides.add(server.parameters[edges[first] : edges[last]], first, last, weights[holders])
        sides.into(server.parameters, before)
    learnt: Learnt = {}
    for member in passed:
        of_server = server_norm - moved[: edges[cuts[member]] - edges[lowest]].sum()
        learnt[clients[member]] = losses[member], _plus(client_norms[member], of_server)
    return learnt


# ---------------------------------------------------------------------- several local steps: a server copy each
def server_copies(trainer: Trainer, tasks: list[Task]) -> Learnt:
    """With several local steps the server-side models drift apart within the round.

    So one client after the other trains a scratch copy, and the copies are averaged as they come; the copy of a client
    that is lost is thrown away.
    """
    state, layout, exchange = trainer.state, trainer.layout, trainer.exchange
    server, edges, units, steps = state.server, layout.parameter_edges, layout.num_units, trainer.batches.local_steps
    parameters, statistics = (LayerMean(state.combining, edge) for edge in layout.edges)
    moments, learnt, cuts = LayerMean(Combining(), edges), dict[int, tuple[Tensor, Tensor | None]](), dict[int, int]()
    for task in tasks:
        copy, optimizer, cut = server.clone(), state.server_optimizer.clone(), task.cut
        alone = _local_steps(trainer, task, copy, optimizer, trainer.models_to_send([task]))
        if alone.steps < steps or (alone.side is None and not exchange.keeps_client_sides):
            continue
        first, weight = cut, state.weights[[task.client]]
        if alone.side is not None:
            layout.front(copy, cut).copy_(alone.side.received(layout.front(server, cut).parameters))
            first = 0
        trained = layout.behind(copy, first)
        parameters.add(trained.parameters, first, units, weight)
        statistics.add(trained.statistics, first, units, weight)
        moments.add(optimizer.moments[:, edges[cut] :], cut, units, weight)
        learnt[task.client], cuts[task.client] = (alone.loss, alone.norm), cut
    if not learnt:
        return {}
    before = server.parameters.clone()
    parameters.into(server.parameters)
    statistics.into(server.statistics)
    moments.into(state.server_optimizer.moments)
    state.server_optimizer.steps[min(cuts.values()) :] += steps
    moved = (server.parameters - before).square()
    return {n: (loss, _plus(norm, moved[edges[cuts[n]] :].sum())) for n, (loss, norm) in learnt.items()}


class _Alone(NamedTuple):
    """What one client and a server of its own did."""

    steps: int
    loss: Tensor
    """Mean over steps."""
    norm: Tensor | None
    """‖update‖² of the client side."""
    on_server: Tensor
    """‖update‖² of the server in the last step."""
    side: FirstLayers | None


def _local_steps(
    trainer: Trainer, task: Task, server: ModelVectors, optimizer: OptimizerState, sides: list[FirstLayers] | None
) -> _Alone:
    """All local steps of a client, with this server."""
    layout, fleet, several = trainer.layout, trainer.fleet, trainer.batches.local_steps > 1
    trainer.server.bind(server, trainer.gradient, task.cut, layout.num_units)
    losses, nothing = list[Tensor](), trainer.gradient.new_zeros(())
    norm, on_server, side = None, nothing, None
    for step in range(trainer.batches.local_steps):
        trainer.gradient[layout.parameter_edges[task.cut] :].zero_()
        now = replace(task, step=step)
        fleet.announce([now], sides if step == 0 else None)
        own_losses, norms = trainer.cross([now], [server.statistics], np.ones(1))
        if not own_losses:
            break
        losses.append(own_losses[0])
        on_server = trainer.step_server(server, optimizer, task.cut)
    if losses:
        (norm,) = fleet.moved([task]) if several else norms().values()
        (side,) = [None] if sides is None else fleet.give([task])
    return _Alone(len(losses), torch.stack(losses).mean() if losses else nothing, norm, on_server, side)


# ---------------------------------------------------------------------- one after the other: one model for all
def in_sequence(trainer: Trainer, tasks: list[Task]) -> Learnt:
    """Split learning: the client model is handed from client to client."""
    state, learnt, cut = trainer.state, Learnt(), tasks[0].cut
    clients, by_client = [task.client for task in tasks], {task.client: task for task in tasks}
    front, behind = trainer.layout.front(state.server, cut), trainer.layout.behind(state.server, cut).parameters
    for client in random_stream(trainer.seed, "scheme: order", tasks[0].round).permutation(clients).tolist():
        task, several = by_client[client], trainer.batches.local_steps > 1
        before = behind.clone() if several else behind
        sides = trainer.models_to_send([task], client)
        alone = _local_steps(trainer, task, state.server, state.server_optimizer, sides)
        if alone.steps:
            on_server = (behind - before).square().sum() if several else alone.on_server
            learnt[client] = alone.loss, _plus(alone.norm, on_server)
        if alone.side is not None:  # else the next client gets what this one got
            front.copy_(alone.side.received(front.parameters))
    return learnt


# ---------------------------------------------------------------------- clients with a loss of their own
def local_losses(trainer: Trainer, tasks: list[Task]) -> Learnt:
    """No client waits for a gradient: an auxiliary head behind its cut gives it a loss. All have the same cut."""
    phase = trainer.exchange.phase(tasks[0].round)
    if phase in ("sending", "server"):
        return _server_alone(trainer, tasks, sending=phase == "sending")
    state, cut, seed = trainer.state, tasks[0].cut, trainer.seed
    front, behind = trainer.layout.front(state.server, cut), trainer.layout.behind(state.server, cut).parameters
    assert state.auxiliary is not None
    alone = {task.client: _own_steps(trainer, task, state.auxiliary) for task in tasks}
    clients, before = list(alone), behind.clone()

    # The server steps with each mini-batch that is sent, one after the other.
    losses: dict[int, list[Tensor]] = {client: [] for client in clients}
    gradients: dict[int, list[Carry]] = {client: [] for client in clients}
    if phase == "both":
        order = random_stream(seed, "scheme: order", tasks[0].round).permutation(clients).tolist()
        trainer.server.bind(state.server, trainer.gradient, cut, trainer.layout.num_units)
        for place, client in product(range(len(alone[order[0]].sent)), order):
            loss, gradient = _server_step(trainer, alone[client].sent[place], cut)
            losses[client].append(loss)
            gradients[client].append(gradient)
        if trainer.exchange.aligns(tasks[0].round):
            for task in tasks:
                _fit(trainer, task, state.auxiliary, alone[task.client], gradients[task.client])

    # Client models and heads become their averages.
    sides = [one.side.received(front.parameters) for one in alone.values()]
    for had, own in zip(front.both, zip(*(side.both for side in sides), strict=True), strict=True):
        had.copy_(state.average(torch.stack(own), had, clients))
    heads = torch.stack([one.head for one in alone.values()])
    state.auxiliary.heads.copy_(state.average(heads, state.auxiliary.heads, clients))
    on_server = (behind - before).square().sum()
    return {n: (torch.stack(losses[n] or one.losses).mean(), one.norm + on_server) for n, one in alone.items()}


class _Sent(NamedTuple):
    """A mini-batch whose activations went up."""

    carry: Carry
    """As the client has them."""
    crossing: Crossing
    labels: Tensor


class _OwnSteps(NamedTuple):
    """What a client did by itself."""

    losses: list[Tensor]
    norm: Tensor
    """‖update‖² of the client side."""
    side: FirstLayers
    head: Tensor
    """[Q] with the one at the cut trained."""
    sent: list[_Sent]


def _own_steps(trainer: Trainer, task: Task, auxiliary: Auxiliary) -> _OwnSteps:
    """All mini-batches of a client; it sends the first of every h. Heads that are aligned learn in no other way."""
    fleet, head, here = trainer.fleet, auxiliary.heads.clone(), auxiliary.at(task.cut)
    losses, sent, norms = list[Tensor](), list[_Sent](), list[Tensor | None]()
    for step in range(trainer.batches.local_steps):
        now = replace(task, step=step, bits=UNQUANTISED)
        fleet.announce([now], trainer.models_to_send([task]) if step == 0 else None)
        (packet,) = fleet.forward([now])
        assert packet is not None
        carry = restore_carry(packet.carry, trainer.dtype)
        if step % trainer.exchange.local_loss == 0:
            rng = rounding(trainer.batches.seed, "up", task.round, task.client, step)
            crossing = quantise_carry(carry, task.bits, rng)
            sent.append(_Sent(carry, crossing, packet.labels))
            if task.bits < UNQUANTISED and trainer.exchange.phase(task.round) == "both":
                trainer.errors.setdefault(task.client, []).append(relative_error(carry, crossing))
        own, received = head[here].requires_grad_(), tuple(tensor.detach().requires_grad_() for tensor in carry)
        loss = auxiliary.loss(own, received, packet.labels)
        gradient, *back = torch.autograd.grad(loss, (own, *received))
        norms = fleet.backward([now], [tuple(back)])()
        if not trainer.exchange.aligned:
            _step_head(trainer, task, auxiliary, head, gradient)
        losses.append(loss.detach())
    (norm,) = norms if trainer.batches.local_steps == 1 else fleet.moved([task])
    (side,) = fleet.give([task])
    assert norm is not None
    assert side is not None
    return _OwnSteps(losses, norm, side, head, sent)


def _step_head(trainer: Trainer, task: Task, auxiliary: Auxiliary, head: Tensor, gradient: Tensor) -> None:
    of_all, optimizer = torch.zeros_like(head), auxiliary.client_optimizer(task.client)
    of_all[auxiliary.at(task.cut)] = gradient
    step_units(trainer.rule, auxiliary.edges, head, of_all, optimizer, range(task.cut - 1, task.cut))


def _server_step(trainer: Trainer, sent: _Sent, cut: int) -> tuple[Tensor, Carry]:
    """Its loss, and the gradient of the activations."""
    server = trainer.state.server
    trainer.gradient[trainer.layout.parameter_edges[cut] :].zero_()
    carry = tuple(tensor.detach() for tensor in restore_carry(sent.crossing, trainer.dtype))
    joining = _joined([carry], [cut])
    _, losses = trainer._server_pass(joining, [sent.labels], [server.statistics])
    torch.autograd.backward(losses, torch.ones_like(losses))
    trainer.step_server(server, trainer.state.server_optimizer, cut)
    (gradient,) = _gradients(joining)
    return losses.detach()[0], gradient


def _fit(trainer: Trainer, task: Task, auxiliary: Auxiliary, alone: _OwnSteps, gradients: list[Carry]) -> None:
    """The head steps towards the server's gradients g of the activations, from its own ∇: ‖∇ − g‖² / (‖∇‖² + ‖g‖²),

    whose denominator counts as a constant. So steps don't depend on how large gradients are.
    """
    for _, (place, sent) in product(range(FITS), enumerate(alone.sent)):
        rng = rounding(trainer.batches.seed, "down", task.round, task.client, place)
        wanted = restore_carry(quantise_carry(gradients[place], task.bits, rng), trainer.dtype)
        received = tuple(tensor.detach().requires_grad_() for tensor in sent.carry)
        own = alone.head[auxiliary.at(task.cut)].requires_grad_()
        loss = auxiliary.loss(own, received, sent.labels)
        found = torch.autograd.grad(loss, received, create_graph=True)
        apart = torch.stack([(a - b).square().sum() for a, b in zip(found, wanted, strict=True)]).sum()
        size = torch.stack([tensor.detach().square().sum() for tensor in (*found, *wanted)]).sum()
        (gradient,) = torch.autograd.grad(apart / size, own)
        _step_head(trainer, task, auxiliary, alone.head, gradient)


def _server_alone(trainer: Trainer, tasks: list[Task], *, sending: bool) -> Learnt:
    """The server trains on activations that it has of all clients, mixed (`MixedSteps`), of trained client sides.

    Those don't change any more, so what was sent is computed again here instead of being kept: the same bits.
    """
    state, layout, fleet, batches = trainer.state, trainer.layout, trainer.fleet, trainer.batches
    cut, auxiliary, places = tasks[0].cut, state.auxiliary, list(range(len(tasks)))
    assert auxiliary is not None
    if sending:
        for task in tasks:
            more = auxiliary.sent[task.client] + batches.local_steps // trainer.exchange.local_loss
            auxiliary.sent[task.client] = min(more, batches.in_epoch(task.client))
    there = [(client, place) for client, sent in enumerate(auxiliary.sent.tolist()) for place in range(sent)]
    losses, behind = list[Tensor](), layout.behind(state.server, cut).parameters
    before = behind.clone()
    trainer.server.bind(state.server, trainer.gradient, cut, layout.num_units)
    trainer.gradient.zero_()
    for step in range(batches.local_steps if there else 0):
        index = tasks[0].round * batches.local_steps + step
        random = random_stream(trainer.seed, "scheme: consolidated", index)
        packets = list[Packet]()
        for number in random.choice(len(there), len(tasks), replace=len(tasks) > len(there)).tolist():
            client, place = there[number]
            task = Task(0, client, cut, place, tasks[0].bits)
            fleet.announce([task], trainer.models_to_send([task]))
            packets += [packet for packet in fleet.forward([task]) if packet is not None]
        carries = [restore_carry(packet.carry, trainer.dtype) for packet in packets]
        mixed = MixedSteps(trainer, state.server, np.full(len(tasks), cut), np.ones(len(tasks)))
        labels = [packet.labels for packet in packets]
        losses.append(trainer._mixed_passes(carries, labels, [cut] * len(tasks), places, mixed)[0])
    of_each = torch.stack(losses).mean(0) if losses else before.new_zeros(len(tasks))
    on_server = (behind - before).square().sum()
    return {task.client: (loss, on_server) for task, loss in zip(tasks, of_each, strict=True)}


# ---------------------------------------------------------------------- averages
def average_sides(trainer: Trainer, tasks: Sequence[Task], depth: int) -> Floats | None:
    """The first layers of all client sides become their mean over these clients; [M] how far they were apart.

    What comes down is one difference for all, with as many bits as the most precise of those that went up. A client
    that is elsewhere gets it now or when it takes part again; that is a matter of costs. None, and nothing changes, if
    no layers came.
    """
    state, layout, fleet = trainer.state, trainer.layout, trainer.fleet
    sent = fleet.upload([replace(task, cut=depth) for task in tasks])
    if not sent:
        return None
    senders, shared = [task.client for task in tasks if task.client in sent], layout.front(state.server, depth)
    bits = max(task.bits for task in tasks if task.client in sent)
    sides = [sent[client].received(shared.parameters) for client in senders]
    parameters = torch.stack([side.parameters for side in sides])
    statistics = torch.stack([side.statistics for side in sides])
    rng = rounding(trainer.batches.seed, "layers", tasks[0].round, ALL_CLIENTS)
    mean = state.average(parameters, shared.parameters, senders)
    crossing = layers_to_send(layout, mean, shared.parameters, depth, bits, rng)
    average = FirstLayers(crossing, state.average(statistics, shared.statistics, senders))
    spread = layer_spreads(layout, parameters, weights=state.weights[senders])
    fleet.share(depth, average)
    state.share(depth, average.received(shared.parameters))
    return spread


class LayerMean:
    """A mean of vectors that come one by one, each of some consecutive layers, and of one client or several alike."""

    def __init__(self, combining: Combining, edges: NDArray[np.int64]) -> None:
        """`edges` [M+1]: where layers begin in a vector."""
        self._combining, self._edges, self._by_layer = combining, edges, np.zeros(len(edges) - 1)
        self._total: Tensor | None = None
        self._rows: list[tuple[Tensor, int, int, Floats]] = []

    def add(self, values: Tensor, first: int, last: int, weights: Floats) -> None:
        """Layers first … last−1 of clients with these weights."""
        self._by_layer[first:last] += weights.sum()
        if not self._combining.plain:
            self._rows.append((values.clone(), first, last, weights))
            return
        if self._total is None:
            self._total = values.new_zeros(*values.shape[:-1], int(self._edges[-1]))
        self._total[..., self._slice(first, last)].add_(values, alpha=float(weights.sum()))

    def into(self, target: Tensor, reference: Tensor | None = None) -> None:
        """Put the mean in its place, of layers that came at all; `reference`: what all had before, if not `target`."""
        if self._total is not None:
            for first, last in runs(self._by_layer, 0, len(self._by_layer)):
                here = self._slice(first, last)
                if self._by_layer[first]:
                    torch.div(self._total[..., here], float(self._by_layer[first]), out=target[..., here])
            return
        known = target if reference is None else reference
        for first, last in pairwise(sorted({end for _, *ends, _ in self._rows for end in ends})):
            here, rows, weights = self._slice(first, last), list[Tensor](), list[Floats]()
            for values, start, stop, of_each in self._rows:
                if start <= first < stop:
                    begin = int(self._edges[start])
                    rows += [values[here.start - begin : here.stop - begin]] * len(of_each)
                    weights.append(of_each)
            if rows:
                target[here] = self._combining.mean(torch.stack(rows), np.concatenate(weights), known[here])

    def _slice(self, first: int, last: int) -> slice:
        return slice(int(self._edges[first]), int(self._edges[last]))


class GradientParts:
    """Watches a sum of gradients grow, part by part."""

    def __init__(self, total: Tensor) -> None:
        """`total` is added to by somebody else, and starts from 0."""
        self._total, self._before = total, total.new_zeros(total.shape)
        self._norms: list[tuple[Tensor, int, float]] = []

    def add(self, clients: int, noise: float = 1.0) -> None:
        """So many clients' gradients were added since the last call, each so many times as noisy as a mini-batch's."""
        if clients:
            part = (self._total - self._before).div_(clients)
            self._norms.append((part.square().sum(), clients, noise))
            self._before.copy_(self._total)

    def norms(self) -> GradientNorms | None:
        """None if there weren't two parts. Parts count by their size, so it is their mean size that matters.

        A mean over a clients with mini-batches of their own sizes is as noisy as one over a² / Σ (their noise).
        """
        clients = sum(size for _, size, _ in self._norms)
        if len(self._norms) < 2:
            return None
        of_parts = sum(float(norm) * size for norm, size, _ in self._norms) / clients
        of_all = float((self._total / clients).square().sum())
        part = clients / sum(noise for _, _, noise in self._norms)
        return GradientNorms(of_parts, part, of_all, clients * clients / sum(n * noise for _, n, noise in self._norms))


class MixedSteps:
    """A step of the server with every mini-batch that arrives, each mixed from those of all clients.

    When A mini-batches of b samples have arrived, the server has A · b activations and their labels. One step with
    their mean gradient is one step with a very large batch. Instead it deals them out again: mini-batch j has the
    samples j, j + A, j + 2A … of every client, so it is about as large as one client's and has the labels of all; the
    server makes a step with each. (Where that would leave a mini-batch with one sample of a client, there are fewer.)
    It computes as much as before, nothing more crosses, and every client still gets the gradient of each of its
    samples: with the server as it was when the sample's turn came.

    So the server learns as if all data were in one place, but for the layers before the cut, which make one step a
    round. (Servers that train on the activations of all clients: Huang et al., "When MiniBatch SGD Meets SplitFed
    Learning", arXiv:2308.11953; Wang et al., "CycleSL", arXiv:2511.18611.)

    Batch norm sees a mixed mini-batch as one, so its statistics are those of all clients. Steps can be taken back.
    """

    def __init__(self, trainer: Trainer, server: ModelVectors, cuts: NDArray[np.int64], weights: Floats) -> None:
        """`cuts` and `weights` [A] are of the clients that are asked."""
        self.server, self.weights, self.before = server, weights, server.clone()
        self._trainer, self._cuts, self._optimizer = trainer, cuts, trainer.state.server_optimizer
        self._optimizer_before, self._gradient = self._optimizer.clone(), trainer.gradient
        watched = slice(int(trainer.layout.parameter_edges[int(cuts.max())]), None)
        self._watched, self._sum = self._gradient[watched], self._gradient[watched].clone().zero_()
        self.noise = GradientParts(self._sum)

    def step(self, passed: list[int]) -> None:
        """With the gradient's mean over these clients, layer by layer over those whose layer the server holds."""
        layout, cuts = self._trainer.layout, self._cuts[passed]
        lowest = int(cuts.min())
        layout.divide_(self._gradient, layout.on_server(cuts, self.weights[passed]), lowest)
        self._sum.add_(self._watched)
        self.noise.add(1)
        self._trainer.step_server(self.server, self._optimizer, lowest)
        self._gradient[layout.parameter_edges[lowest] :].zero_()

    def take_back(self) -> None:
        """Everything is as it was before the first step."""
        self.server.copy_(self.before)
        self._optimizer.moments.copy_(self._optimizer_before.moments)
        self._optimizer.steps[:] = self._optimizer_before.steps
        self._gradient.zero_()
        self.noise = GradientParts(self._sum.zero_())


# ---------------------------------------------------------------------- the server's pass
def backward_aggregated(
    server: Replica, losses: Tensor, logits: Tensor, received: Carry, units: range, shared: int, weights: Tensor
) -> None:
    """The first `shared` sample positions, a share φ, go backward once for all clients.

    Their last-layer gradients are averaged over the clients, by `weights` [A]; each client's gradients come back
    multiplied by its own. The pass they go back through is that of the averaged
    activations of these positions, a choice (its paper leaves it open): one forward pass more, which no statistics
    remember. What comes out is broadcast: each client gets it as the gradient of its own activations there. `units` are
    the server's.
    """
    clients, whole = len(losses), float(weights.sum())
    (last,) = torch.autograd.grad(losses, logits, weights, retain_graph=True)
    by_position = _per_client(last, clients)
    averaged = by_position[:, :shared].sum(0) / whole
    own = by_position.clone()
    own[:, :shared] = 0
    with torch.no_grad():
        weighted = (_per_client(t, clients)[:, :shared] * _along(weights, t) for t in received)
        mixed = tuple(tensor.sum(0) / whole for tensor in weighted)
    mixed = tuple(tensor.contiguous(memory_format=_format_of(tensor)).requires_grad_() for tensor in mixed)
    server.bind_statistics([None])
    (mixed_logits,) = server.model.run(mixed, units.start, units.stop)
    # Once for all clients, so it weighs as much as all of them in the server's sum.
    torch.autograd.backward([logits, mixed_logits], [own.view_as(logits), averaged * whole])
    for tensor, mix in zip(received, mixed, strict=True):
        assert tensor.grad is not None
        assert mix.grad is not None
        _per_client(tensor.grad, clients)[:, :shared] += _along(weights, tensor) * (mix.grad / whole)


def _per_client(tensor: Tensor, clients: int) -> Tensor:
    """[clients · b, ...] -> [clients, b, ...], as a view."""
    return tensor.view(clients, -1, *tensor.shape[1:])


def _along(weights: Tensor, tensor: Tensor) -> Tensor:
    """[clients, 1, 1, …], to multiply what `_per_client` gives of such a tensor."""
    return weights.view(-1, *[1] * tensor.dim())


def _format_of(tensor: Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.contiguous_format


class _Joining(NamedTuple):
    """Clients with the same cut, who join the server's pass there."""

    cut: int
    clients: int
    received: Carry
    """What they sent, as one batch."""


def _joined(carries: Sequence[Carry], cuts: Sequence[int]) -> list[_Joining]:
    joining = []
    for cut, members in groupby(range(len(carries)), cuts.__getitem__):
        own = [carries[member] for member in members]
        together = tuple(parts[0] if len(own) == 1 else torch.cat(parts) for parts in zip(*own, strict=True))
        joining.append(_Joining(cut, len(own), tuple(tensor.requires_grad_() for tensor in together)))
    return joining


def _gradients(joining: Sequence[_Joining]) -> list[Carry]:
    """Of what each client sent, client by client."""
    by_client: list[Carry] = []
    for group in joining:
        chunks = [tensor.grad.chunk(group.clients) for tensor in group.received if tensor.grad is not None]
        by_client += zip(*chunks, strict=True)
    return by_client


def _plus(of_client: Tensor | None, of_server: Tensor) -> Tensor:
    """‖Δ_n‖²; of a client that was lost behind the server's pass only the server's part is known."""
    return of_server if of_client is None else of_client + of_server
