"""EPSL's backward pass: a share of the sample positions goes backward once for all clients."""

import torch
from torch import Tensor

from asfl.models.cuttable import Carry
from asfl.train.replica import Replica


def backward_aggregated(
    server: Replica, losses: Tensor, logits: Tensor, received: Carry, units: range, shared: int, weights: Tensor
) -> Carry:
    """The first `shared` sample positions, a share φ, go backward once for all clients; gradients of what was received.

    Their last-layer gradients are averaged over the clients, by `weights` [A]; each client's gradients come back
    multiplied by its own. The pass they go back through is that of the averaged
    activations of these positions, a choice (its paper leaves it open): one forward pass more, which no statistics
    remember. What comes out is broadcast: each client gets it as the gradient of its own activations there. `units` are
    the server's.
    """
    clients, everybody = len(losses), float(weights.sum())
    (last,) = torch.autograd.grad(losses, logits, weights, retain_graph=True)
    by_position = _by_client(last, clients)
    averaged = by_position[:, :shared].sum(0) / everybody
    own = by_position.clone()
    own[:, :shared] = 0
    with torch.no_grad():
        weighted = (_by_client(t, clients)[:, :shared] * _along(weights, t) for t in received)
        mixed = tuple(tensor.sum(0) / everybody for tensor in weighted)
    mixed = tuple(tensor.contiguous(memory_format=_format_of(tensor)).requires_grad_() for tensor in mixed)
    server.bind_statistics([None])
    (mixed_logits,) = server.run(mixed, units.start, units.stop)
    # Once for all clients, so it weighs as much as all of them in the server's sum.
    torch.autograd.backward([logits, mixed_logits], [own.view_as(logits), averaged * everybody])
    returned = []
    for tensor, mix in zip(received, mixed, strict=True):
        assert tensor.grad is not None
        assert mix.grad is not None
        _by_client(tensor.grad, clients)[:, :shared] += _along(weights, tensor) * (mix.grad / everybody)
        returned.append(tensor.grad)
    return tuple(returned)


def _by_client(tensor: Tensor, clients: int) -> Tensor:
    """[clients · b, ...] -> [clients, b, ...], as a view."""
    return tensor.view(clients, -1, *tensor.shape[1:])


def _along(weights: Tensor, tensor: Tensor) -> Tensor:
    """[clients, 1, 1, …], to multiply what `_by_client` gives of such a tensor."""
    return weights.view(-1, *[1] * tensor.dim())


def _format_of(tensor: Tensor) -> torch.memory_format:
    return torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
