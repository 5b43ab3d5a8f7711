"""Rounds in which clients train on a loss of their own, plain: whole models, `nn.Linear` heads, `torch.optim`.

What `asfl.train.steps.local_losses` is checked against. One client after the other; reads like CSE-FSL, FSL-SAGE and
Ampere.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from holders import Holder, copy_unit, numbers_of, put_numbers, weighted
from torch import Tensor, nn

from asfl.config.randomness import random_stream
from asfl.costs.modelled import FITS, ExchangeRules
from asfl.models.cuttable import Carry, CuttableModel
from asfl.train.batches import Batches
from asfl.train.optimizers import Name
from asfl.train.quantise import (
    ALL_CLIENTS,
    layers_received,
    layers_to_send,
    quantise_carry,
    quantise_side,
    restore_carry,
    rounding,
)  # fmt: skip
from asfl.train.signals import RoundPlan
from asfl.train.state import Auxiliary, Layout


@dataclass
class Client:
    own: Holder
    heads: dict[int, nn.Linear]
    """By cut."""
    optimizers: dict[int, torch.optim.Optimizer]


class PlainLocalLosses:
    def __init__(
        self, model: CuttableModel, batches: Batches, rules: ExchangeRules, optimizer: Name, learning_rate: float,
        first: Auxiliary, num_clients: int, seed: int,
    ) -> None:  # fmt: skip
        """`first` gives the heads before the first round."""
        self.server, self.batches, self.rules, self.seed = (
            Holder.of(model, optimizer, learning_rate),
            batches,
            rules,
            seed,
        )
        self.units = len(model.units)
        self.heads = {cut: _linear(first.heads[first.at(cut)], first.classes) for cut in range(1, self.units)}
        self.clients = [
            Client(
                Holder.of(model, optimizer, learning_rate),
                heads := deepcopy(self.heads),
                {cut: _optimizer(head, optimizer, learning_rate) for cut, head in heads.items()},
            )
            for _ in range(num_clients)
        ]
        self.sent = [0] * num_clients

    def round(self, plan: RoundPlan) -> None:
        arrived, phase = np.flatnonzero(plan.arrived).tolist(), self.rules.phase(plan.index)
        if not arrived:
            return
        cut, behind = int(plan.cut[0]), range(int(plan.cut[0]), self.units)
        front = range(cut)
        if phase in ("sending", "server"):
            self._server_alone(plan, arrived, cut, sending=phase == "sending")
            return

        # Every client by itself: it sends the first of every h mini-batches.
        sent: dict[int, list[tuple[Carry, Tensor]]] = {client: [] for client in arrived}
        given = {client: self._load(self.clients[client], plan, client, cut) for client in arrived}
        for client in arrived:
            for step in range(self.batches.local_steps):
                images, labels = self.batches.batch(plan.index, client, step)
                activations = self.clients[client].own.forward((images,), front)
                if step % self.rules.local_loss == 0:
                    sent[client].append((tuple(tensor.detach() for tensor in activations), labels))
                torch.autograd.backward(self._loss(client, cut, activations, labels))
                self.clients[client].own.step(front)
                if not self.rules.aligned:
                    self.clients[client].optimizers[cut].step()
                self.clients[client].optimizers[cut].zero_grad()

        # The server steps with what arrives, one after the other.
        gradients: dict[int, list[Carry]] = {client: [] for client in arrived}
        order = random_stream(self.seed, "scheme: order", plan.index).permutation(arrived).tolist()
        for place in range(self.batches.local_steps // self.rules.local_loss if phase == "both" else 0):
            for client in order:
                activations, labels = sent[client][place]
                step = place * self.rules.local_loss
                received = self._crossed(activations, plan.task(client, step).bits, plan.index, "up", client, step)
                (logits,) = self.server.forward(received, behind)
                torch.autograd.backward(F.cross_entropy(logits, labels))
                self.server.step(behind)
                gradients[client].append(tuple(t.grad.clone() for t in received if t.grad is not None))

        # Now and then heads are fitted to its gradients.
        if phase == "both" and self.rules.aligns(plan.index):
            for client in arrived:
                bits = plan.task(client).bits
                wanted = [
                    self._crossed(gradient, bits, plan.index, "down", client, place)
                    for place, gradient in enumerate(gradients[client])
                ]
                for _ in range(FITS):
                    for (activations, labels), target in zip(sent[client], wanted, strict=True):
                        self._fit(client, cut, activations, labels, target)

        # Averages.
        shared, samples = deepcopy(self.server.model), torch.from_numpy(self.batches.samples)[arrived]
        sides = [self._sent_back(plan, client, given[client], shared) for client in arrived]
        put_numbers(self.server.model, front, weighted(sides, samples))
        statistics = [numbers_of(self.clients[client].own.model, front, "statistics") for client in arrived]
        put_numbers(self.server.model, front, weighted(statistics, samples), "statistics")
        with torch.no_grad():
            for name, mean in self.heads[cut].named_parameters():
                mean.copy_(weighted([self.clients[n].heads[cut].get_parameter(name) for n in arrived], samples))

    def _load(self, client: Client, plan: RoundPlan, number: int, cut: int) -> Tensor:
        """The client model and the head come down; the model's numbers as they came."""
        for unit in range(cut):
            copy_unit(self.server.model.units[unit], client.own.model.units[unit])
        for head, shared in zip(client.heads.values(), self.heads.values(), strict=True):
            head.load_state_dict(shared.state_dict())
        model, bits = client.own.model, plan.task(number).bits
        if bits < 32:
            rng = rounding(self.batches.seed, "model", plan.index, ALL_CLIENTS)
            sent = quantise_side(Layout(model), numbers_of(model, range(cut)), cut, bits, rng)
            put_numbers(model, range(cut), layers_received(sent, torch.zeros((), dtype=torch.float64)))
        return numbers_of(model, range(cut))

    def _sent_back(self, plan: RoundPlan, client: int, given: Tensor, shared: CuttableModel) -> Tensor:
        cut, model, bits = int(plan.cut[client]), self.clients[client].own.model, plan.task(client).bits
        now = numbers_of(model, range(cut))
        if bits == 32:
            return now
        rng = rounding(self.batches.seed, "layers", plan.index, client)
        moved = layers_to_send(Layout(model), now, given, cut, bits, rng)
        return layers_received(moved, numbers_of(shared, range(cut)))

    def _loss(self, client: int, cut: int, activations: Carry, labels: Tensor) -> Tensor:
        pooled = torch.cat([t.mean(dim=(2, 3)) if t.dim() == 4 else t for t in activations], dim=1)
        return F.cross_entropy(self.clients[client].heads[cut](pooled), labels)

    def _fit(self, client: int, cut: int, activations: Carry, labels: Tensor, wanted: Carry) -> None:
        watched = tuple(tensor.clone().requires_grad_() for tensor in activations)
        found = torch.autograd.grad(self._loss(client, cut, watched, labels), watched, create_graph=True)
        apart, size = torch.zeros(()), torch.zeros(())
        for own, other in zip(found, wanted, strict=True):
            apart = apart + ((own - other.detach()) ** 2).sum()
            size = size + (own.detach() ** 2).sum() + (other.detach() ** 2).sum()
        optimizer = self.clients[client].optimizers[cut]
        optimizer.zero_grad()
        torch.autograd.backward(apart / size)
        optimizer.step()
        optimizer.zero_grad()

    def _crossed(
        self, values: Carry, bits: int, index: int, way: Literal["up", "down"], client: int, step: int
    ) -> Carry:
        sent = quantise_carry(values, bits, rounding(self.batches.seed, way, index, client, step))
        return tuple(tensor.detach().clone().requires_grad_() for tensor in restore_carry(sent, values[0].dtype))

    def _server_alone(self, plan: RoundPlan, arrived: list[int], cut: int, *, sending: bool) -> None:
        """Steps with mini-batches that are dealt out from those of all clients, of the frozen client side."""
        several, behind = self.batches.local_steps, range(cut, self.units)
        for client in arrived if sending else []:
            more = self.sent[client] + several // self.rules.local_loss
            self.sent[client] = min(more, self.batches.in_epoch(client))
        there = [(client, place) for client, sent in enumerate(self.sent) for place in range(sent)]
        first, bits = replace(plan, index=0), plan.task(arrived[0]).bits
        for step in range(several):
            random = random_stream(self.seed, "scheme: consolidated", plan.index * several + step)
            chosen = random.choice(len(there), len(arrived), replace=len(arrived) > len(there))
            received, labels = [], []
            for client, place in (there[number] for number in chosen.tolist()):
                self._load(self.clients[client], first, client, cut)
                images, truth = self.batches.batch(0, client, place)
                activations = self.clients[client].own.forward((images,), range(cut))
                received.append(self._crossed(tuple(t.detach() for t in activations), bits, 0, "up", client, place))
                labels.append(truth)
            parts = max(1, min(len(arrived), len(labels[0]) // 2))
            for part in range(parts):
                dealt = [tuple(tensor.detach()[part::parts] for tensor in carry) for carry in received]
                (logits,) = self.server.forward(tuple(map(torch.cat, zip(*dealt, strict=True))), behind)
                torch.autograd.backward(F.cross_entropy(logits, torch.cat([truth[part::parts] for truth in labels])))
                self.server.step(behind)


def _linear(head: Tensor, classes: int) -> nn.Linear:
    made = nn.Linear(len(head) // classes - 1, classes, dtype=head.dtype)
    with torch.no_grad():
        made.weight.copy_(head[:-classes].view(classes, -1))
        made.bias.copy_(head[-classes:])
    return made


def _optimizer(head: nn.Linear, name: Name, rate: float) -> torch.optim.Optimizer:
    momentum = 0.9 if name == "momentum" else 0.0
    return torch.optim.Adam(head.parameters(), rate) if name == "adam" else torch.optim.SGD(
        head.parameters(), rate, momentum=momentum
    )  # fmt: skip
