"""Fixed rules with the tools of `asfl-plus`: few bits, client sides averaged every round, a server that mixes.

Nothing is optimised: cut, bits and how many take part stay as they are. So what the decisions of `asfl-plus` bring is
what it needs less than these (docs/schemes.md), and a rule that is tuned for a world is another setting of the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asfl.costs.modelled import ON_DEMAND, ExchangeRules, round_cost
from asfl.costs.round import Decision, Round
from asfl.optimize import Problem
from asfl.schemes.base import BITS, Values

Floats = NDArray[np.float64]

MIXED = replace(ON_DEMAND, mixes=True)
HALVINGS = 40
"""Of the interval of powers: to a share of 1e-12."""


@dataclass(frozen=True)
class FixedScheme:
    """The clients with the largest gain · exp(rounds owed) have a block each; those left go to the slowest, in turn.

    Rounds owed are `Queues.participation`. This is the exponential rule (Shakkottai and Stolyar, "Scheduling for
    Multiple Flows Sharing a Time-Varying Channel"): gains alone would leave out the farthest clients, and clients that
    are owed a round first, whatever their gain, would be sent through deep fades.
    """

    parameters: ClassVar[Mapping[str, Values]] = {"bits": BITS, "clients": (0.0, 1.0)}
    name: str
    cut: int = 2
    """A network with fewer layers gets its last cut."""
    bits: int = 4
    clients: float = 1.0
    """How many take part, as a share of those who can have a block each."""
    packet_error_rate: float = 0.0
    """The same for every client, by its power; 0: full power, as for a client that can't reach it."""
    exchange: ExchangeRules = MIXED

    def decide(self, problem: Problem, seed: int) -> Decision:
        round_ = problem.round
        served = self._served(problem)
        count = np.zeros(round_.num_clients)
        count[served] = 1.0
        cut = max(min(self.cut, round_.profile.num_layers - 1), round_.profile.min_cut)
        decision = Decision(cut, count, self._power(round_, count), self.bits, synced=cut)
        for _ in range(round_.radio.num_rbs - len(served) if len(served) else 0):
            taken_s = _seconds(round_, decision, self.exchange)
            count = count + (np.arange(len(count)) == served[taken_s[served].argmax()])
            decision = replace(decision, rb_count=count, tx_power_w=self._power(round_, count))
        return decision

    def _served(self, problem: Problem) -> NDArray[np.int64]:
        clients = np.flatnonzero(problem.reachable)
        worth = np.log(problem.round.channel_gain[clients]) + problem.queues.participation[clients]
        most = min(len(clients), problem.round.radio.num_rbs)
        return clients[np.argsort(-worth, kind="stable")][: int(np.ceil(self.clients * most))]

    def _power(self, round_: Round, rb_count: Floats) -> Floats:
        """[N] the least power with which no more packets are lost: errors fall as power rises."""
        low, high = np.zeros(round_.num_clients), np.full(round_.num_clients, round_.radio.max_tx_power_w)
        if self.packet_error_rate > 0:
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                enough = round_.packet_error_rate(rb_count, middle) <= self.packet_error_rate
                low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(rb_count > 0, high, 0.0)


def _seconds(round_: Round, decision: Decision, exchange: ExchangeRules) -> Floats:
    """[N] what each client needs for itself in a round in which its packet arrives."""
    cost = round_cost(round_, decision, np.ones(round_.num_clients), exchange)
    before = cost.model_down_delay_s + cost.client_forward_delay_s + cost.uplink_delay_s
    return np.asarray(before + cost.downlink_delay_s + cost.client_backward_delay_s + cost.model_up_delay_s)
