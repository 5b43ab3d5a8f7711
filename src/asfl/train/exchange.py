"""Forward and backward through the cut: clients, the server's pass, and back. Here the server's gradient comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asfl.models.cuttable import Carry
from asfl.train.aggregated import backward_aggregated
from asfl.train.batches import Batches
from asfl.train.combine import Floats
from asfl.train.fleet import Fleet, Norms, Packet
from asfl.train.mixed import ServerSteps
from asfl.train.quantise import quantise_carry, restore_carry, rounding
from asfl.train.replica import Replica
from asfl.train.trainer import Task


@dataclass(frozen=True, eq=False)
class Exchange:
    """Takes mini-batches of some clients through the network."""

    fleet: Fleet
    server: Replica
    """Bound to what the server trains, and to its gradient."""
    batches: Batches
    units: int
    aggregated_share: float
    """EPSL's φ."""
    dtype: torch.dtype
    errors: dict[int, list[Tensor]] = field(default_factory=dict)
    """Of what clients sent in this round, step by step."""

    def run(
        self, tasks: Sequence[Task], statistics: Sequence[Tensor], weights: Floats | None = None
    ) -> tuple[list[Tensor | None], Norms]:
        """Forward on the clients, server pass, backward and a step on the clients. Cuts must not fall;
        mini-batches must be of the same size.

        Returns each client's loss and the ‖update‖² of its side; the server's gradient is left in its buffer. The sum
        of the losses goes backward, so each client gets the gradient of its own mean loss, and the server the sum over
        clients, by these weights (None: each counts once).
        """
        if tasks[0].cut == self.units:  # FedAvg: the client has the loss itself
            learnt, learnt_norms = self.fleet.learn(tasks)
            return learnt, lambda: learnt_norms
        sent = self.fleet.forward(tasks)
        before = [each.clone() for each in statistics]
        while True:
            there, packets = _who_sent(sent)
            if not packets:
                return [None] * len(sent), lambda: [None] * len(sent)
            joining = _by_cut(packets, [tasks[place].cut for place in there], self.dtype)
            logits = self._growing_pass(joining, [statistics[place] for place in there])
            losses = _own_losses(logits, [packet.labels for packet in packets])
            if not self._refused(losses, there, tasks, sent):
                break
            for now, earlier in zip(statistics, before, strict=True):  # again, without those who were refused
                now.copy_(earlier)
        for place, packet in zip(there, packets, strict=True):
            self._note_error(tasks[place].client, packet)
        shared = round(self.aggregated_share * self.batches.batch_size)
        weigh = losses.new_ones(len(packets)) if weights is None else torch.from_numpy(weights[there]).to(losses)
        if shared:
            units = range(joining[0].cut, self.units)
            returned = [backward_aggregated(self.server, losses, logits, joining[0].received, units, shared, weigh)]
        else:
            torch.autograd.backward(losses, weigh)
            returned = [group.gradients for group in joining]
        by_client = _by_client(joining, returned)
        for own, weight in zip(by_client, weigh.tolist(), strict=True):
            if weight != 1:  # a client's own gradient is that of its own loss
                for gradient in own:
                    gradient.div_(weight)
        norms = self._send_back(tasks, there, by_client)
        return _in_place(list(losses.detach()), there, len(sent)), norms

    def run_mixed(self, tasks: Sequence[Task], server: ServerSteps) -> tuple[list[Tensor | None], Norms]:
        """The same where the server makes a step with every mini-batch, mixed from all clients' (`asfl.train.mixed`).

        If a loss isn't finite, all steps are taken back, and made again without those whose own loss isn't.
        """
        sent = self.fleet.forward(tasks)
        while True:
            there, packets = _who_sent(sent)
            if not packets:
                return [None] * len(sent), lambda: [None] * len(sent)
            own_cuts = [tasks[place].cut for place in there]
            losses, by_client = self._mixed_passes(packets, own_cuts, there, server)
            if bool(torch.isfinite(losses).all()):
                break
            server.take_back()
            with torch.no_grad():
                logits = self._growing_pass(_by_cut(packets, own_cuts, self.dtype), [None] * len(packets))
                alone = _own_losses(logits, [packet.labels for packet in packets])
            if not self._refused(alone, there, tasks, sent):
                break
        for place, packet in zip(there, packets, strict=True):
            self._note_error(tasks[place].client, packet)
        return _in_place(list(losses), there, len(sent)), self._send_back(tasks, there, by_client)

    def _mixed_passes(
        self, packets: Sequence[Packet], cuts: Sequence[int], there: list[int], server: ServerSteps
    ) -> tuple[Tensor, list[Carry]]:
        """Losses [A], and the gradients of what each client sent."""
        carries = [restore_carry(packet.carry, self.dtype) for packet in packets]
        gradients = [tuple(torch.empty_like(tensor) for tensor in carry) for carry in carries]
        losses = torch.zeros(len(packets), dtype=self.dtype, device=packets[0].labels.device)
        weigh, samples = torch.from_numpy(server.weights[there]).to(losses), len(packets[0].labels)
        parts = max(1, min(len(packets), samples // 2))  # batch norm needs two samples
        for part in range(parts):
            dealt = slice(part, None, parts)
            joining = _joined([tuple(tensor[dealt] for tensor in carry) for carry in carries], cuts)
            logits = self._growing_pass(joining, [server.server.statistics], together=True)
            own = _own_losses(logits, [packet.labels[dealt] for packet in packets])
            torch.autograd.backward(own, weigh)
            share = len(range(samples)[dealt]) / samples  # of the client's samples
            losses += own.detach() * share
            returned = _by_client(joining, [group.gradients for group in joining])
            for own_gradients, weight, new in zip(gradients, weigh.tolist(), returned, strict=True):
                for gradient, tensor in zip(own_gradients, new, strict=True):
                    gradient[dealt] = tensor * (share / weight)
            server.step(there)
        return losses, gradients

    def _note_error(self, client: int, packet: Packet) -> None:
        if packet.error is not None:
            self.errors.setdefault(client, []).append(packet.error)

    def _send_back(self, tasks: Sequence[Task], there: Sequence[int], gradients: Sequence[Carry]) -> Norms:
        """Gradients to those who are `there` among the clients, who go backward and step; ‖update‖² of all."""
        asked, seed = [tasks[place] for place in there], self.batches.seed
        crossing = [
            quantise_carry(own, task.bits, rounding(seed, "down", task.round, task.client, task.step))
            for own, task in zip(gradients, asked, strict=True)
        ]
        norms = self.fleet.backward(asked, crossing)
        return lambda: _in_place(norms(), there, len(tasks))

    def _growing_pass(
        self, joining: "Sequence[_Joining]", statistics: Sequence[Tensor | None], *, together: bool = False
    ) -> Tensor:
        """The server's forward pass: clients with a deeper cut join on the way. Logits of all, in their order.

        `together`: batch norm takes all of them as one, with the only statistics given.
        """
        carry: Carry | None = None
        cut, present = 0, 0
        for group in joining:
            if carry is None:
                carry = group.received
            else:
                carry = self.server.run(carry, cut, group.cut)
                carry = tuple(torch.cat(both) for both in zip(carry, group.received, strict=True))
            cut, present = group.cut, present + group.clients
            self.server.bind_statistics(statistics if together else statistics[:present])
        assert carry is not None
        (logits,) = self.server.run(carry, cut, self.units)
        return logits

    def _refused(self, losses: Tensor, there: Sequence[int], tasks: Sequence[Task], sent: list[Packet | None]) -> bool:
        """Whether the fleet does without those whose loss isn't finite; they are taken out of what was sent."""
        finite, refused = torch.isfinite(losses), False
        if bool(finite.all()):
            return False
        for place, loss, good in zip(there, losses.tolist(), finite.tolist(), strict=True):
            if not good and self.fleet.refuse(tasks[place].client, f"the server's pass gives a loss of {loss:g}"):
                sent[place], refused = None, True
        return refused


def _who_sent(sent: Sequence[Packet | None]) -> tuple[list[int], list[Packet]]:
    """The places of those whose packet is there, and the packets."""
    there = [(place, packet) for place, packet in enumerate(sent) if packet is not None]
    return [place for place, _ in there], [packet for _, packet in there]


def _own_losses(logits: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """[A] each client's mean loss, of as many samples each."""
    return F.cross_entropy(logits, torch.cat(list(labels)), reduction="none").view(len(labels), -1).mean(1)


class _Joining(NamedTuple):
    """Clients with the same cut, who join the server's pass there."""

    cut: int
    clients: int
    received: Carry
    """What they sent, as one batch."""

    @property
    def gradients(self) -> Carry:
        return tuple(tensor.grad for tensor in self.received if tensor.grad is not None)


def _by_cut(packets: Sequence[Packet], cuts: Sequence[int], dtype: torch.dtype) -> list[_Joining]:
    return _joined([restore_carry(packet.carry, dtype) for packet in packets], cuts)


def _joined(carries: Sequence[Carry], cuts: Sequence[int]) -> list[_Joining]:
    joining = []
    for cut, members in groupby(range(len(carries)), cuts.__getitem__):
        own = [carries[member] for member in members]
        together = tuple(_as_one(parts).requires_grad_() for parts in zip(*own, strict=True))
        joining.append(_Joining(cut, len(own), together))
    return joining


def _by_client(joining: Sequence[_Joining], gradients: Sequence[Carry]) -> list[Carry]:
    """The gradients of what each group sent, client by client."""
    return [
        own
        for group, of_group in zip(joining, gradients, strict=True)
        for own in zip(*(tensor.chunk(group.clients) for tensor in of_group), strict=True)
    ]


def _as_one(parts: Sequence[Tensor]) -> Tensor:
    """What several clients sent, as one batch."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _in_place(values: Sequence[Tensor | None], places: Sequence[int], count: int) -> list[Tensor | None]:
    """The values in their places among `count`, None elsewhere."""
    filled: list[Tensor | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return filled
