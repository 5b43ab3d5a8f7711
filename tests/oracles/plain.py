"""The training round, plain: reads like §II of the paper, copies whole models, trusts `torch.optim`.

This is what `asfl.train.steps` is checked against. Every client and the server have a whole network, with one optimiser
per layer (`holders`). Every average is by sample counts, also where mini-batches differ in size, unless it
is to be a robust one.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from holders import (
    Holder,
    Kind,
    combine_states,
    combined,
    copy_unit,
    gradient_of,
    numbers_of,
    put_gradient,
    put_numbers,
    weighted,
)
from torch import Tensor

from asfl.config.randomness import random_stream
from asfl.costs.modelled import ExchangeRules
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.batches import Batches
from asfl.train.optimizers import Name
from asfl.train.privacy import GaussianMechanism
from asfl.train.quantise import (
    ALL_CLIENTS,
    layers_received,
    layers_to_send,
    quantise_carry,
    quantise_side,
    relative_error,
    restore_carry,
    rounding,
)
from asfl.train.signals import Floats, RoundPlan, Trained
from asfl.train.state import Combining, Layout


class PlainTrainer:
    """Trains one scheme's rounds, one client after the other."""

    def __init__(
        self, model: CuttableModel, batches: Batches, exchange: ExchangeRules, optimizer: Name, learning_rate: float, *,
        num_clients: int, seed: int, combining: Combining = Combining(), blur: GaussianMechanism | None = None,  # noqa: B008 (frozen)
        client_learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        """`client_learning_rate`: of client sides, if it isn't the server's."""
        of_client = learning_rate if client_learning_rate is None else client_learning_rate
        self.server = Holder.of(model, optimizer, learning_rate)
        self.clients = [Holder.of(model, optimizer, of_client) for _ in range(num_clients)]
        self.cut = 0
        self._units = len(model.units)
        self._given: dict[int, Tensor] = {}  # client models that came down with few bits in this round
        self._batches, self._procedure, self._optimizer, self._seed = batches, exchange, optimizer, seed
        self._samples, self._combining, self._blur = torch.from_numpy(batches.samples), combining, blur

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
                self._load(plan, client, ALL_CLIENTS)
        if not arrived:
            return Trained.nothing(len(self.clients))

        # Stages 2 and 3: every client that arrives, with a server-side model of its own, unless mini-batches are mixed.
        before = {client: self._whole(client, int(plan.cut[client])) for client in arrived}
        shared = deepcopy(self.server.model)
        trained, steps = Trained.nothing(len(self.clients)), range(self._batches.local_steps)
        if self._procedure.aggregated_share > 0:
            of_steps = [self._aggregated_step(plan, arrived, step) for step in steps]
            trained.loss[:], trained.quantisation_error[:] = np.mean(of_steps, axis=0)
        elif self._procedure.mixes:
            of_steps = [self._mixed_step(plan, arrived, step) for step in steps]
            trained.loss[:], trained.quantisation_error[:] = np.mean(of_steps, axis=0)
            if not keeps:
                sides = {client: self._sent_back(plan, client, shared) for client in arrived}
                models = [self._behind(sides[client], int(plan.cut[client])) for client in arrived]
                self._combine(self.server.model, range(self._units), models, arrived, shared)
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
        """The first layers of all clients become their average; with few bits, differences to those `before` cross."""
        model, depth, units = self.server.model, plan.synced, range(plan.synced)
        self._combine(model, units, [self.clients[client].model for client in arrived], arrived, before)
        known, every_bits = numbers_of(before, units), {client: self._bits(plan, client) for client in arrived}

        def crossed(values: Tensor, bits: int, client: int) -> Tensor:
            rng = rounding(self._batches.seed, "layers", plan.index, client)
            return layers_received(layers_to_send(Layout(model), values, known, depth, bits, rng), known)

        if min(every_bits.values()) < 32:
            sides = {client: numbers_of(self.clients[client].model, units) for client in arrived}
            received = [crossed(side, every_bits[client], client) for client, side in sides.items()]
            average = combined(received, self._samples[arrived], known, self._combining)
            put_numbers(model, units, crossed(average, max(every_bits.values()), ALL_CLIENTS))
        for unit in units:
            for client in self.clients:
                copy_unit(model.units[unit], client.model.units[unit])

    def _load(self, plan: RoundPlan, client: int, coins_of: int) -> None:
        """The client model comes down, where it is exchanged every round; with few bits, as codes of itself."""
        cut, model = int(plan.cut[client]), self.clients[client].model
        for unit in range(cut):
            copy_unit(self.server.model.units[unit], model.units[unit])
        if plan.task(client).bits < 32:
            rng = rounding(self._batches.seed, "model", plan.index, coins_of)
            sent = quantise_side(Layout(model), numbers_of(model, range(cut)), cut, plan.task(client).bits, rng)
            put_numbers(model, range(cut), layers_received(sent, torch.zeros((), dtype=torch.float64)))
            self._given[client] = numbers_of(model, range(cut))

    def _sent_back(self, plan: RoundPlan, client: int, before: CuttableModel) -> CuttableModel:
        """The client model as the server receives it: with few bits, what it had plus how far the client has moved."""
        cut, own, bits = int(plan.cut[client]), self.clients[client].model, plan.task(client).bits
        if bits == 32:
            return own
        received, units = deepcopy(own), range(cut)
        rng = rounding(self._batches.seed, "layers", plan.index, client)
        moved = layers_to_send(Layout(own), numbers_of(own, units), self._given[client], cut, bits, rng)
        put_numbers(received, units, layers_received(moved, numbers_of(before, units)))
        return received

    def _behind(self, side: CuttableModel, cut: int) -> CuttableModel:
        """A whole model: this client side, and the server's layers behind it."""
        model = deepcopy(self.server.model)
        for unit in range(cut):
            copy_unit(side.units[unit], model.units[unit])
        return model

    def resplit(self, cut: int, senders: Sequence[int]) -> None:
        """The cut grows: all clients get the server's layers. It shrinks: the server averages what is sent up."""
        for unit in range(self.cut, cut):
            for client in self.clients:
                copy_unit(self.server.model.units[unit], client.model.units[unit])
        server, up = self.server.model, range(cut, self.cut)
        if up:
            self._combine(server, up, [self.clients[sender].model for sender in senders], senders, server)
        self.cut = cut

    def _step(self, plan: RoundPlan, client: int, server: Holder, step: int) -> tuple[float, float]:
        """One mini-batch across the cut: its loss, and the relative error of what was sent up."""
        cut = int(plan.cut[client])
        images, labels = self._batches.batch(plan.index, client, step, plan.task(client).batch)
        # Stage 2: the client goes forward and sends activations and labels.
        activations = self._go_forward(plan, client, step, images)
        received, error = self._send_up(plan, client, step, activations)
        # Stage 3: the server goes forward and backward and returns the gradient of the activations.
        (logits,) = server.forward(received, range(cut, self._units))
        loss = F.cross_entropy(logits, labels)
        torch.autograd.backward(loss)
        gradients = tuple(tensor.grad for tensor in received if tensor.grad is not None)
        torch.autograd.backward(activations, self._send_down(plan, client, step, gradients))
        self._step_client(plan, client, step)
        if not self._one_server_step:
            server.step(range(cut, self._units))
        return loss.item(), error

    def _go_forward(self, plan: RoundPlan, client: int, step: int, images: Tensor) -> Carry:
        """Through the client side; what comes out is blurred before it leaves."""
        cut = int(plan.cut[client])
        activations = self.clients[client].forward((images,), range(cut))
        if self._blur is None or cut == self._units:
            return activations
        return self._blur.activations(activations, plan.index, client, step)

    def _step_client(self, plan: RoundPlan, client: int, step: int) -> None:
        """The optimiser sees a gradient that is blurred."""
        own, units = self.clients[client], range(int(plan.cut[client]))
        if self._blur is not None:
            gradient = gradient_of(own.model, units)
            self._blur.gradient_(gradient, plan.index, client, step)
            put_gradient(own.model, units, gradient)
        own.step(units)

    def _send_up(self, plan: RoundPlan, client: int, step: int, activations: Carry) -> tuple[Carry, float]:
        """What the server receives, and its relative error."""
        bits, rng = self._bits(plan, client), rounding(self._batches.seed, "up", plan.index, client, step)
        sent = quantise_carry(tuple(tensor.detach() for tensor in activations), bits, rng)
        error = float(relative_error(activations, sent)) if bits < 32 else np.nan
        return tuple(tensor.requires_grad_() for tensor in restore_carry(sent, activations[0].dtype)), error

    def _send_down(self, plan: RoundPlan, client: int, step: int, gradients: Carry) -> Carry:
        bits, rng = self._bits(plan, client), rounding(self._batches.seed, "down", plan.index, client, step)
        return restore_carry(quantise_carry(gradients, bits, rng), gradients[0].dtype)

    def _bits(self, plan: RoundPlan, client: int) -> int:
        return plan.task(client).bits if plan.cut[client] < self._units else 32  # without a cut nothing crosses one

    @property
    def _one_server_step(self) -> bool:
        """With one local step the server steps once, with all gradients' mean: it matters where one isn't linear."""
        linear = self._optimizer != "adam" and self._combining.plain
        return not linear and self._batches.local_steps == 1 and not self._procedure.in_sequence

    def _average(self, plan: RoundPlan, arrived: Sequence[int], copies: dict[int, Holder], keeps: bool) -> None:
        """The server-side models become one again; in schemes that say so, the client sides do too."""
        before, whole = deepcopy(self.server.model), [range(self._units)]
        sides = {} if keeps else {client: self._sent_back(plan, client, before) for client in arrived}
        edges = sorted({0, *(int(plan.cut[client]) for client in arrived), self._units})
        by_holders = [range(first, last) for first, last in pairwise(edges)]
        for units in by_holders:
            held = [client for client in arrived if plan.cut[client] <= units.start]
            if held and self._one_server_step:
                self._step_together(units, [copies[client] for client in held], held)
                for copy in copies.values():
                    put_numbers(copy.model, units, numbers_of(self.server.model, units))
            elif held:
                for unit in units:
                    combine_states(self.server, [copies[client] for client in held], unit, self._samples[held])
        models = {client: copies[client].model for client in arrived}
        for client, side in sides.items():
            for unit in range(int(plan.cut[client])):
                copy_unit(side.units[unit], models[client].units[unit])
        kinds: dict[Kind, list[range]] = {
            "parameters": by_holders if keeps or self._one_server_step else whole,
            "statistics": by_holders if keeps else whole,
        }
        for kind, pieces in kinds.items():
            for units in pieces:
                holders = [client for client in arrived if plan.cut[client] <= units.start or not keeps]
                if holders:
                    self._combine(self.server.model, units, [models[c] for c in holders], holders, before, (kind,))

    def _step_together(self, units: range, copies: Sequence[Holder], clients: Sequence[int]) -> None:
        """The server steps these layers once, with what the clients' gradients become."""
        rows = [gradient_of(copy.model, units) for copy in copies]
        gradient = combined(rows, self._samples[list(clients)], torch.zeros_like(rows[0]), self._combining)
        put_gradient(self.server.model, units, gradient)
        self.server.step(units)

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
            images, labels = self._batches.batch(plan.index, client, step, plan.task(client).batch)
            activations.append(self._go_forward(plan, client, step, images))
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
            self._step_client(plan, client, step)
        if shared:  # as if each client had gone backward through the mix
            mix = gradient_of(mixed_server.model, behind)
            for copy in copies:
                put_gradient(copy.model, behind, gradient_of(copy.model, behind) + mix)
        self._combine(self.server.model, behind, [copy.model for copy in copies], arrived, self.server.model)
        self._step_together(behind, copies, arrived)
        return np.stack([losses, errors])

    def _mixed_step(self, plan: RoundPlan, arrived: Sequence[int], step: int) -> Floats:
        """The server makes a step with every mini-batch, each mixed from those of all clients (`asfl.train.steps`).

        [2, N] losses, and relative errors of what was sent up.
        """
        losses, errors = np.full((2, len(self.clients)), np.nan)
        activations, received, labels = {}, {}, {}
        for client in arrived:
            images, labels[client] = self._batches.batch(plan.index, client, step, plan.task(client).batch)
            activations[client] = self._go_forward(plan, client, step, images)
            received[client], errors[client] = self._send_up(plan, client, step, activations[client])
        cuts, samples = {client: int(plan.cut[client]) for client in arrived}, len(labels[arrived[0]])
        behind, parts = range(min(cuts.values()), self._units), max(1, min(len(arrived), samples // 2))
        losses[arrived] = 0.0
        for part in range(parts):
            dealt = slice(part, None, parts)
            share = len(range(samples)[dealt]) / samples
            mixed = {client: tuple(tensor[dealt] for tensor in received[client]) for client in arrived}
            logits = self.server.forward_joined(mixed, cuts)
            own = [F.cross_entropy(logits[client], labels[client][dealt]) for client in arrived]
            torch.autograd.backward([weight * loss for weight, loss in zip(self._samples[arrived], own, strict=True)])
            for client, loss in zip(arrived, own, strict=True):
                losses[client] += share * loss.item()
                for tensor in received[client]:  # goes back by the client's own loss, the mean over all its samples
                    assert tensor.grad is not None
                    tensor.grad[dealt] *= share / self._samples[client]
            for unit in behind:
                held, layer = self._samples[[n for n in arrived if cuts[n] <= unit]], range(unit, unit + 1)
                put_gradient(self.server.model, layer, gradient_of(self.server.model, layer) / held.sum())
            self.server.step(behind)
        for client in arrived:
            gradients = tuple(tensor.grad for tensor in received[client] if tensor.grad is not None)
            torch.autograd.backward(activations[client], self._send_down(plan, client, step, gradients))
            self._step_client(plan, client, step)
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
            received = self._sent_back(plan, client, self.server.model)
            for unit in range(cut):
                copy_unit(received.units[unit], self.server.model.units[unit])
        return trained

    # ------------------------------------------------------------------ looking at the result
    def average_model(self, cut: int) -> CuttableModel:
        """Mean of the client sides up to this cut, the server's layers behind it."""
        model = deepcopy(self.server.model)
        if cut:
            models = [client.model for client in self.clients]
            self._combine(model, range(cut), models, range(len(models)), self.server.model)
        return model

    def _combine(
        self, target: CuttableModel, units: range, sources: Sequence[CuttableModel], clients: Sequence[int],
        before: CuttableModel, kinds: Sequence[Kind] = ("parameters", "statistics"),
    ) -> None:  # fmt: skip
        """These layers become one: their mean by these clients' samples, or a robust one of what they were `before`."""
        for kind in kinds:
            rows, known = [numbers_of(source, units, kind) for source in sources], numbers_of(before, units, kind)
            put_numbers(target, units, combined(rows, self._samples[list(clients)], known, self._combining), kind)

    def _whole(self, client: int, cut: int) -> Tensor:
        own = self.clients[client].values(range(cut))
        return torch.cat([own, self.server.values(range(cut, self._units))])
