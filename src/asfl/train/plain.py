"""The training round, plain: reads like §II of the paper, copies whole models, trusts `torch.optim`.

This is what `asfl.train.fast` is checked against. Every client and the server have a whole network, of which only the
layers on their side of the cut mean something, and one optimiser per layer, which stays where it is when the layer
moves. Every average is by sample counts, also where mini-batches differ in size.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from asfl.config.randomness import random_stream
from asfl.costs.modelled import Procedure
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.batches import Batches
from asfl.train.layout import Layout
from asfl.train.optimizers import Name
from asfl.train.quantise import (
    EVERYBODY,
    layers_received,
    layers_to_send,
    quantise_carry,
    quantise_side,
    relative_error,
    restore_carry,
    rounding,
)
from asfl.train.trainer import Floats, RoundPlan, Trained


@dataclass
class Holder:
    """A client or the server: a network, and one optimiser per unit that has parameters."""

    model: CuttableModel
    optimizers: list[Optimizer | None]

    @classmethod
    def of(cls, model: CuttableModel, name: Name, learning_rate: float) -> "Holder":
        model = deepcopy(model)
        make: dict[Name, Callable[[list[nn.Parameter]], Optimizer]] = {
            "sgd": lambda parameters: SGD(parameters, learning_rate),
            "momentum": lambda parameters: SGD(parameters, learning_rate, momentum=0.9),
            "adam": lambda parameters: Adam(parameters, learning_rate),
        }
        of_units = [list(unit.parameters()) for unit in model.units]
        return cls(model, [make[name](parameters) if parameters else None for parameters in of_units])

    def forward(self, carry: Carry, units: range) -> Carry:
        return self.model.run(carry, units.start, units.stop)

    def step(self, units: range) -> None:
        for unit in units:
            optimizer = self.optimizers[unit]
            if optimizer is not None:
                optimizer.step()
        self.model.zero_grad()

    def values(self, units: Iterable[int]) -> Tensor:
        of_units = [p.detach().flatten() for unit in units for p in self.model.units[unit].parameters()]
        return torch.cat([torch.zeros(0), *of_units])


class PlainTrainer:
    """Trains one scheme's rounds, one client after the other."""

    def __init__(
        self, model: CuttableModel, batches: Batches, procedure: Procedure, optimizer: Name, learning_rate: float, *,
        num_clients: int, seed: int,
    ) -> None:  # fmt: skip
        self.server = Holder.of(model, optimizer, learning_rate)
        self.clients = [Holder.of(model, optimizer, learning_rate) for _ in range(num_clients)]
        self.cut = 0
        self._units = len(model.units)
        self._given: dict[int, Tensor] = {}  # client models that came down with few bits in this round
        self._batches, self._procedure, self._optimizer, self._seed = batches, procedure, optimizer, seed
        self._samples = torch.from_numpy(batches.samples)

    def round(self, plan: RoundPlan) -> Trained:
        arrived = np.flatnonzero(plan.arrived).tolist()
        keeps = self._procedure.keeps_client_sides
        if self._procedure.in_sequence:
            return self._hand_on(plan, arrived)

        # Stage 1: layers move; or, in schemes that exchange it, the client model comes down.
        if keeps:
            if plan.scheduled.any():
                self.resplit(int(plan.cut[plan.scheduled].max()), np.flatnonzero(plan.scheduled).tolist())
        else:
            for client in arrived:
                self._load(plan, client, EVERYBODY)
        if not arrived:
            return Trained.nothing(len(self.clients))

        # Stages 2 and 3: every client that arrives, with a server-side model of its own.
        before = {client: self._whole(client, int(plan.cut[client])) for client in arrived}
        shared = deepcopy(self.server.model)
        trained, steps = Trained.nothing(len(self.clients)), range(self._batches.local_steps)
        if self._procedure.aggregated_share > 0:
            of_steps = [self._aggregated_step(plan, arrived, step) for step in steps]
            trained.loss[:], trained.quantisation_error[:] = np.mean(of_steps, axis=0)
        else:
            copies = {client: deepcopy(self.server) for client in arrived}
            for client in arrived:
                of_client = [self._step(plan, client, copies[client], step) for step in steps]
                trained.loss[client], trained.quantisation_error[client] = np.mean(of_client, axis=0)
            self._average(plan, arrived, copies, keeps)

        for client in arrived:
            moved = self._whole(client, int(plan.cut[client])) - before[client]
            trained.update_norm2[client] = float(moved.square().sum())
        if plan.synced:
            self._average_sides(plan, arrived, shared)
        return trained

    def _average_sides(self, plan: RoundPlan, arrived: Sequence[int], before: CuttableModel) -> None:
        """The first layers of all clients become their average; with few bits, differences to those `before` cross.

        Behind its own cut, a client counts with the layers that the server trained for it.
        """
        model, bits, units = self.server.model, max(self._bits(plan, n) for n in arrived), range(plan.synced)
        layout, here = Layout(model), torch.device("cpu")
        holders = {client: deepcopy(model) for client in arrived}
        for client, holder in holders.items():
            for unit in range(min(plan.cut[client], plan.synced)):
                copy_unit(self.clients[client].model.units[unit], holder.units[unit])
        for unit in units:
            self._average_units(model.units[unit], [holder.units[unit] for holder in holders.values()], arrived)
        if any(self._bits(plan, client) < 32 for client in arrived):
            shared = layout.flatten(before, here, torch.float64)

            def crossed(values: Tensor, depth: int, own_bits: int, client: int) -> Tensor:
                known = layout.front(shared, depth).parameters
                coins = rounding(self._batches.seed, "layers", plan.index, client)
                own = layers_to_send(layout, values[: len(known)], known, depth, own_bits, coins)
                return torch.cat([layers_received(own, known), values[len(known) :]])

            received = []
            for client, holder in holders.items():
                side = layout.front(layout.flatten(holder, here, torch.float64), plan.synced).parameters
                depth = min(int(plan.cut[client]), plan.synced)
                received.append(crossed(side, depth, self._bits(plan, client), client))
            new = crossed(weighted(received, self._samples[arrived]), plan.synced, bits, -1)
            _put(model, layout, new, plan.synced)
        for unit in units:
            for everybody in self.clients:
                copy_unit(model.units[unit], everybody.model.units[unit])

    def _load(self, plan: RoundPlan, client: int, coins_of: int) -> None:
        """The client model comes down, where it is exchanged every round; with few bits, as codes of itself."""
        cut, model = int(plan.cut[client]), self.clients[client].model
        for unit in range(cut):
            copy_unit(self.server.model.units[unit], model.units[unit])
        if plan.bits_of(client) < 32:
            layout, coins = Layout(model), rounding(self._batches.seed, "model", plan.index, coins_of)
            sent = quantise_side(layout, _front(layout, model, cut), cut, plan.bits_of(client), coins)
            _put(model, layout, layers_received(sent, torch.zeros((), dtype=torch.float64)), cut)
            self._given[client] = _front(layout, model, cut)

    def _sent_back(self, plan: RoundPlan, client: int) -> CuttableModel:
        """The client model as the server receives it: with few bits, its own plus how far the client has moved."""
        cut, own, bits = int(plan.cut[client]), self.clients[client].model, plan.bits_of(client)
        if self._procedure.keeps_client_sides or bits == 32:
            return own
        layout, received = Layout(own), deepcopy(own)
        coins = rounding(self._batches.seed, "layers", plan.index, client)
        moved = layers_to_send(layout, _front(layout, own, cut), self._given[client], cut, bits, coins)
        _put(received, layout, layers_received(moved, _front(layout, self.server.model, cut)), cut)
        return received

    def resplit(self, cut: int, senders: Sequence[int]) -> None:
        """The cut grows: everybody gets the server's layers. It shrinks: the server averages what is sent up."""
        for unit in range(self.cut, cut):
            for client in self.clients:
                copy_unit(self.server.model.units[unit], client.model.units[unit])
        for unit in range(cut, self.cut):
            self._average_units(
                self.server.model.units[unit], [self.clients[sender].model.units[unit] for sender in senders], senders
            )
        self.cut = cut

    def _step(self, plan: RoundPlan, client: int, server: Holder, step: int) -> tuple[float, float]:
        """One mini-batch across the cut: its loss, and the relative error of what was sent up."""
        cut, own = int(plan.cut[client]), self.clients[client]
        images, labels = self._batches.batch(plan.index, client, step, plan.batch_of(client))
        # Stage 2: the client goes forward and sends activations and labels.
        activations = own.forward((images,), range(cut))
        received, error = self._send_up(plan, client, step, activations)
        # Stage 3: the server goes forward and backward and returns the gradient of the activations.
        (logits,) = server.forward(received, range(cut, self._units))
        loss = F.cross_entropy(logits, labels)
        torch.autograd.backward(loss)
        gradients = tuple(tensor.grad for tensor in received if tensor.grad is not None)
        torch.autograd.backward(activations, self._send_down(plan, client, step, gradients))
        own.step(range(cut))
        if not self._one_server_step:
            server.step(range(cut, self._units))
        return loss.item(), error

    def _send_up(self, plan: RoundPlan, client: int, step: int, activations: Carry) -> tuple[Carry, float]:
        """What the server receives, and its relative error."""
        bits, coins = self._bits(plan, client), rounding(self._batches.seed, "up", plan.index, client, step)
        sent = quantise_carry(tuple(tensor.detach() for tensor in activations), bits, coins)
        error = float(relative_error(activations, sent)) if bits < 32 else np.nan
        return tuple(tensor.requires_grad_() for tensor in restore_carry(sent, activations[0].dtype)), error

    def _send_down(self, plan: RoundPlan, client: int, step: int, gradients: Carry) -> Carry:
        bits, coins = self._bits(plan, client), rounding(self._batches.seed, "down", plan.index, client, step)
        return restore_carry(quantise_carry(gradients, bits, coins), gradients[0].dtype)

    def _bits(self, plan: RoundPlan, client: int) -> int:
        return plan.bits_of(client) if plan.cut[client] < self._units else 32  # without a cut nothing crosses one

    @property
    def _one_server_step(self) -> bool:
        """Adam isn't linear, so here it matters: with one local step it steps once, with the mean gradient."""
        return self._optimizer == "adam" and self._batches.local_steps == 1 and not self._procedure.in_sequence

    def _average(self, plan: RoundPlan, arrived: Sequence[int], copies: dict[int, Holder], keeps: bool) -> None:
        """The server-side models become one again; in schemes that say so, the client sides do too."""
        sides = {client: self._sent_back(plan, client) for client in arrived}
        for unit in range(self._units):
            held = [client for client in arrived if unit >= plan.cut[client]]
            if held and self._one_server_step:
                _step_with_mean_gradient(self.server, [copies[client] for client in held], unit, self._samples[held])
                for copy in copies.values():
                    _copy_parameters(self.server.model.units[unit], copy.model.units[unit])
            elif held:
                _average_states(self.server, [copies[client] for client in held], unit, self._samples[held])
            holders = [client for client in arrived if client in held or not keeps]
            updated = [(copies[c].model if c in held else sides[c]).units[unit] for c in holders]
            if updated:
                self._average_units(self.server.model.units[unit], updated, holders)

    def _aggregated_step(self, plan: RoundPlan, arrived: Sequence[int], step: int) -> Floats:
        """EPSL: one server model; a share φ of the sample positions goes backward once for all clients.

        [2, N] losses, and relative errors of what was sent up.
        """
        cut, batch = int(plan.cut[arrived[0]]), self._batches.batch_size
        shared, behind = round(self._procedure.aggregated_share * batch), range(cut, self._units)
        losses, errors = np.full((2, len(self.clients)), np.nan)
        samples = self._samples[arrived]
        copies = [deepcopy(self.server) for _ in arrived]
        activations, received, all_logits, last_gradients = [], [], [], []
        for client, copy in zip(arrived, copies, strict=True):
            images, labels = self._batches.batch(plan.index, client, step, plan.batch_of(client))
            activations.append(self.clients[client].forward((images,), range(cut)))
            restored, errors[client] = self._send_up(plan, client, step, activations[-1])
            received.append(restored)
            (logits,) = copy.forward(received[-1], behind)
            all_logits.append(logits)
            loss = F.cross_entropy(logits, labels)
            losses[client] = loss.item()
            last_gradients.append(torch.autograd.grad(loss, logits, retain_graph=True)[0])

        # Positions of their own go backward client by client.
        for logits, gradient in zip(all_logits, last_gradients, strict=True):
            own = torch.cat([torch.zeros_like(gradient[:shared]), gradient[shared:]])
            torch.autograd.backward(logits, own)
        # The shared ones once, with averaged gradients through averaged activations.
        mixed_server = deepcopy(self.server)
        if shared:
            mixed = tuple(
                weighted([tensor[:shared].detach() for tensor in of_clients], samples).requires_grad_()
                for of_clients in zip(*received, strict=True)
            )
            (mixed_logits,) = mixed_server.forward(mixed, behind)
            averaged = weighted([gradient[:shared] for gradient in last_gradients], samples)
            torch.autograd.backward(mixed_logits, averaged)

        for index, client in enumerate(arrived):
            returned = [tensor.grad.clone() for tensor in received[index] if tensor.grad is not None]
            for gradient, mix in zip(returned, mixed if shared else (), strict=bool(shared)):
                assert mix.grad is not None
                gradient[:shared] += mix.grad
            torch.autograd.backward(activations[index], self._send_down(plan, client, step, tuple(returned)))
            self.clients[client].step(range(cut))
        for unit in behind:
            if shared:  # as if each client had gone backward through the mix
                for copy in copies:
                    _add_gradients(mixed_server.model.units[unit], copy.model.units[unit])
            self._average_units(self.server.model.units[unit], [copy.model.units[unit] for copy in copies], arrived)
            _step_with_mean_gradient(self.server, copies, unit, samples)
        return np.stack([losses, errors])

    def _hand_on(self, plan: RoundPlan, arrived: Sequence[int]) -> Trained:
        """SL: one model; each client takes the client side from the one before, trains, and hands it on."""
        trained = Trained.nothing(len(self.clients))
        for client in random_stream(self._seed, "scheme: order", plan.index).permutation(arrived).tolist():
            cut = int(plan.cut[client])
            self._load(plan, client, client)
            before = self._whole(client, cut)
            steps = range(self._batches.local_steps)
            of_client = [self._step(plan, client, self.server, step) for step in steps]
            trained.loss[client], trained.quantisation_error[client] = np.mean(of_client, axis=0)
            trained.update_norm2[client] = float((self._whole(client, cut) - before).square().sum())
            received = self._sent_back(plan, client)
            for unit in range(cut):
                copy_unit(received.units[unit], self.server.model.units[unit])
        return trained

    # ------------------------------------------------------------------ looking at the result
    def average_model(self, cut: int) -> CuttableModel:
        """Mean of the client sides up to this cut, the server's layers behind it."""
        model = deepcopy(self.server.model)
        for unit in range(cut):
            everybody = [client.model.units[unit] for client in self.clients]
            self._average_units(model.units[unit], everybody, range(len(everybody)))
        return model

    def _average_units(self, target: nn.Module, sources: Sequence[nn.Module], clients: Sequence[int]) -> None:
        """Mean of parameters and running statistics, by these clients' samples."""
        states = [source.state_dict() for source in sources]
        mean = {
            key: weighted([state[key] for state in states], self._samples[list(clients)])
            if tensor.is_floating_point()
            else tensor
            for key, tensor in states[0].items()
        }
        target.load_state_dict(mean)

    def _whole(self, client: int, cut: int) -> Tensor:
        own = self.clients[client].values(range(cut))
        return torch.cat([own, self.server.values(range(cut, self._units))])


def _front(layout: Layout, model: CuttableModel, depth: int) -> Tensor:
    """Parameters [P] of the first layers."""
    return layout.front(layout.flatten(model, torch.device("cpu"), torch.float64), depth).parameters


def _put(model: CuttableModel, layout: Layout, values: Tensor, depth: int) -> None:
    """The other way round."""
    with torch.no_grad():
        for slot in layout.parameters:
            if slot.unit < depth:
                model.get_parameter(slot.key).copy_(slot.view(values))


def copy_unit(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def weighted(tensors: Sequence[Tensor], samples: Tensor) -> Tensor:
    """Σ D_n x_n / Σ D_n."""
    return sum((x * (d / samples.sum()).to(x) for x, d in zip(tensors, samples, strict=True)), torch.zeros(()))


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for mine, yours in zip(target.parameters(), source.parameters(), strict=True):
            mine.copy_(yours)


def _add_gradients(source: nn.Module, target: nn.Module) -> None:
    for mine, more in zip(target.parameters(), source.parameters(), strict=True):
        if more.grad is not None:
            mine.grad = more.grad.clone() if mine.grad is None else mine.grad + more.grad


def _step_with_mean_gradient(server: Holder, copies: Sequence[Holder], unit: int, samples: Tensor) -> None:
    by_copy = [list(copy.model.units[unit].parameters()) for copy in copies]
    for position, parameter in enumerate(server.model.units[unit].parameters()):
        gradients = [parameters[position].grad for parameters in by_copy]
        parameter.grad = weighted([gradient for gradient in gradients if gradient is not None], samples)
    server.step(range(unit, unit + 1))


def _average_states(server: Holder, copies: Sequence[Holder], unit: int, samples: Tensor) -> None:
    """Mean of the optimiser states of one unit."""
    optimizer = server.optimizers[unit]
    if optimizer is None:
        return
    states = []
    for copy in copies:
        other = copy.optimizers[unit]
        assert other is not None
        states.append(other.state_dict())
    mean = deepcopy(states[0])
    for parameter, state in mean["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = weighted([one["state"][parameter][key] for one in states], samples)
    optimizer.load_state_dict(mean)
