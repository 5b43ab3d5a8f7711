"""The server's copies of what clients elsewhere have: rows of its `TrainingState`, and which of them are true.

A row equals what the client has if it was gathered, or given to the client, and nothing was learnt since. Through
re-splits and averages the rows move as the client sides do, by the same code.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asfl.costs.crossing import REPORTED_NUMBERS
from asfl.field import messages as msg
from asfl.field.roster import Roster
from asfl.field.wire import MOST_WEIGHT, WireError
from asfl.train.evaluate import Score
from asfl.train.fleet import Bools, Knowledge
from asfl.train.optimizers import OptimizerState
from asfl.train.state import ModelVectors, TrainingState

_KEY = 64
"""Digits of a device's key."""


class Reports:
    """What clients have last reported of their sides; layers that aren't their own are as the server shared them."""

    def __init__(self, num_clients: int, num_layers: int) -> None:
        self.numbers = torch.zeros(num_clients, num_layers, REPORTED_NUMBERS)
        self.own: Bools = np.zeros((num_clients, num_layers), dtype=np.bool_)
        """[N, M] layers that differ from what the server shared, as `numbers` say."""
        self.changed: Bools = np.ones((num_clients, num_layers), dtype=np.bool_)
        """[N, M] layers that have changed since."""

    def equal(self, layers: slice) -> None:
        """All clients have the server's values of these layers, or none."""
        self.own[:, layers] = self.changed[:, layers] = False

    def heard(self, client: int, above: int, numbers: Tensor) -> None:
        layers = slice(above, above + len(numbers))
        self.numbers[client, layers] = numbers.cpu()
        self.own[client, layers], self.changed[client] = True, False

    def of(self, clients: Sequence[int], shared: Tensor) -> Tensor:
        """[A, layers, R] of these clients; `shared` [layers, R] is the server's."""
        own = torch.from_numpy(self.own[clients, : len(shared)]).unsqueeze(2)
        return torch.where(own, self.numbers[clients, : len(shared)], shared.cpu())


class Copies:
    """Of which clients the state, which is given each time, has what."""

    def __init__(self, num_clients: int) -> None:
        self.side: Bools = np.ones(num_clients, dtype=np.bool_)
        """[N] whose client side is in its row."""
        self._optimizer: Bools = np.ones(num_clients, dtype=np.bool_)
        """[N] whose optimiser is."""
        self.may_keep: Bools = np.zeros(num_clients, dtype=np.bool_)
        """[N] who may still have a state that the server, started anew, has no copy of."""
        self.has_shared: Bools = np.zeros(num_clients, dtype=np.bool_)
        """[N] who surely has what all last shared of the layers it holds: with few bits, layers cross as differences to
        it."""

    def missing(self, *, optimizers: bool) -> Bools:
        """[N] clients of which something isn't known."""
        return ~self.side | (~self._optimizer & optimizers)

    def outdated(self, client: int, *, side: bool) -> None:
        """It has learnt: what its optimiser remembers has changed, and its `side` too if it keeps one."""
        self.side[client] = not side
        self._optimizer[client] = False

    def given(self, clients: Sequence[int], *, shared: bool) -> None:
        """These have what their rows say; `shared`: and with it what all last shared."""
        self.side[clients] = self._optimizer[clients] = True
        self.has_shared[clients] = shared

    # ------------------------------------------------------------------ to and from a checkpoint
    def knowledge(self, roster: Roster) -> Knowledge:
        out: Knowledge = {"quarantined": roster.quarantined.copy()} if roster.quarantined.any() else {}
        if roster.keys_out:
            padded = [roster.keys_out.get(n, "").encode().ljust(_KEY) for n in range(len(self.side))]
            out["keys_out"] = np.array([list(key) for key in padded], dtype=np.uint8)
        if not self.missing(optimizers=True).any():
            return out
        return {
            **out,
            "knows_side": self.side.copy(),
            "knows_optimizer": self._optimizer.copy(),
            "in_sync": roster.in_sync.copy(),
            "round_of": roster.round_of.copy(),
        }

    def restore(self, knowledge: Knowledge, roster: Roster) -> None:
        """No client is in sync then."""
        self.side[:] = knowledge.get("knows_side", True)
        self._optimizer[:] = knowledge.get("knows_optimizer", True)
        roster.round_of[:] = knowledge.get("round_of", 0)
        roster.quarantined[:] = knowledge.get("quarantined", False)
        keys = [bytes(row.tolist()).decode().strip() for row in knowledge.get("keys_out", ())]
        roster.keys_out = {client: key for client, key in enumerate(keys) if key}
        self.may_keep[:] = knowledge.get("in_sync", False)
        self.may_keep &= self.missing(optimizers=True)
        self.has_shared[:] = roster.in_sync[:] = False

    # ------------------------------------------------------------------ rows
    def put(self, state: TrainingState, client: int, side: ModelVectors, memory: OptimizerState | None) -> None:
        """What a client says it has."""
        state.clients.row(client).copy_(side)
        self.side[client] = True
        if memory is not None:
            state.put_client_optimizer(client, memory)
            self._optimizer[client] = True

    def guess_sides(self, state: TrainingState) -> None:
        """A side that isn't known counts like the mean of those that are."""
        strangers, known = np.flatnonzero(~self.side), np.flatnonzero(self.side)
        if strangers.size and known.size:
            for rows in (state.clients.parameters, state.clients.statistics):
                rows[strangers] = rows[known].mean(0)

    def sync_of(self, state: TrainingState, client: int) -> msg.Sync:
        """All that a client needs to have what its row says; what its optimiser remembered may be lost."""
        if not self._optimizer[client]:
            state.client_moments[client] = 0
            state.client_steps[client] = 0
        memory = None
        if state.client_steps[client].any():  # else it remembers nothing
            memory = OptimizerState(state.client_moments[client], state.client_steps[client])
        return msg.Sync(state.cut, state.clients.row(client), memory)


MOST_TIMES = 3.0
"""Of the others' median: a device that says it has more images counts for no more. So of N devices, the others alike,
none has a larger share of a mean than 3 / (N + 2)."""


def believed_sizes(said: Mapping[int, int], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N]; those who haven't said anything yet count as `before`, or if none had, like the median one."""
    claims = np.array(list(said.values()), float)
    if (before == 1).all():
        believed = capped(claims)
        sizes = np.full(len(before), np.median(believed))
        sizes[list(said)] = believed
        return sizes
    sizes = before.copy()
    sizes[list(said)] = claims
    return capped(sizes)


def capped(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each at most so many times the median of the others."""
    if len(counts) < 2:
        return counts
    others = [np.median(np.delete(counts, place)) for place in range(len(counts))]
    return np.minimum(counts, MOST_TIMES * np.array(others))


class Samples:
    """How many images each client says it trains with."""

    def __init__(self, links: Sequence[object] = ()) -> None:
        self._agreed = [getattr(link, "agreed", int) for link in links]
        """What a device says is at most what it said first (`Members.agreed`)."""
        self._said: dict[int, int] = {}

    def of(self, client: int, most: int) -> int:
        """No more than it says it trains with."""
        return min(most, self._said.get(client, most))

    def heard(self, said: Mapping[int, int], state: TrainingState) -> None:
        """Count clients by that from now on; 0: it doesn't say."""
        new = {client: samples for client, samples in said.items() if samples}
        known = {**self._said, **{client: self._agreed[client](samples) for client, samples in new.items()}}
        if known != self._said:
            self._said = known
            state.samples = believed_sizes(known, state.samples)


def read_score(client: int, answer: msg.Scored) -> msg.Scored:
    if answer.right > answer.samples or answer.loss > MOST_WEIGHT:
        raise WireError(f"{answer.right} right of {answer.samples}, loss {answer.loss:g}")
    return answer


def together(answers: Mapping[int, msg.Scored], clients: int, held: Callable[[int, int], int]) -> Score | None:
    """By what each holds out, which is at most `held(client, what it says)`; and each one's own."""
    scored = {client: answer for client, answer in answers.items() if answer.samples}
    if not scored:
        return None
    weights = capped(np.array([held(client, answer.samples) for client, answer in scored.items()], dtype=float))
    weights /= weights.sum()
    right = {client: answer.right / answer.samples for client, answer in scored.items()}
    loss = np.array([answer.loss for answer in scored.values()])
    by_client = tuple(right.get(client) for client in range(clients))
    return Score(float(np.array(list(right.values())) @ weights), float(loss @ weights), by_client)
