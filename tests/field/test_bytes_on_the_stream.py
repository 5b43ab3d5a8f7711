"""What crosses, byte by byte, against the table of docs/costs.md: what is charged, and what isn't and why."""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from meddling import MeddledLink
from small_runs import EVERYBODY_ARRIVES, Planned, agreement_of, local_links, over, planned_simulation, tiny

from asfl.costs.modelled import ExchangeRules, RoundCost
from asfl.costs.round import Decision, Round
from asfl.costs.world import ModelledAccountant
from asfl.field.messages import Answer, AnyRequest
from asfl.field.wire import encode
from asfl.runs.simulation import Simulation
from asfl.schemes import scheme_named

ROUNDS = 4
FRAME_BYTES = 1000
"""A message takes at most so much beside its numbers: a header, and gaps to multiples of 64 bytes."""


class Bills(ModelledAccountant):
    """Keeps the bits that rounds are charged for, [up, down] of client 0."""

    def charge(self, round_: Round, decision: Decision, exchange: ExchangeRules, arrived: np.ndarray) -> RoundCost:
        cost = super().charge(round_, decision, exchange, arrived)
        down_s = cost.model_down_delay_s + cost.downlink_delay_s
        up_s = cost.uplink_delay_s + cost.model_up_delay_s
        if (cost.resplit_energy_j > 0).any():
            up_s = up_s + cost.resplit_delay_by_client_s
        else:
            down_s = down_s + cost.resplit_delay_by_client_s
        billed.append((float(up_s[0] * cost.uplink_rate_bps[0]), float(down_s[0] * cost.downlink_rate_bps[0])))
        return cost


billed: list[tuple[float, float]] = []


class Counted(MeddledLink):
    """Counts messages, the bytes of their numbers and all their bytes, by direction and kind."""

    def __init__(self, link: object) -> None:
        super().__init__(link)  # type: ignore[arg-type]
        self.sent: list[tuple[str, str, int, int]] = []

    def ask(self, request: AnyRequest, deadline_s: float) -> "Future[Answer]":
        self.sent.append(("down", request.name, request.payload_bytes, len(encode(request))))
        return super().ask(request, deadline_s)

    def hears(self, request: AnyRequest, answer: Answer) -> None:
        self.sent.append(("up", answer.name, answer.payload_bytes, len(encode(answer))))

    def payload(self) -> dict[str, dict[str, int]]:
        """Bytes of the numbers by direction and kind of message."""
        found: dict[str, dict[str, int]] = {"up": defaultdict(int), "down": defaultdict(int)}
        for way, name, payload, whole in self.sent:
            assert 0 <= whole - payload <= FRAME_BYTES, (way, name)
            found[way][name] += payload
        return found


def simulation_of(scheme: str, planned: Planned, links: Sequence[Counted]) -> Simulation:
    config = tiny(*EVERYBODY_ARRIVES, "output.evaluate_every=4", rounds=ROUNDS)
    simulation = planned_simulation(agreement_of(config, scheme), planned.cuts, over(links))
    simulation.run = replace(simulation.run, scheme=planned, accountant=Bills())
    return simulation


CASES = {
    "asfl": ([2, 4, 4, 3], 32, [False] * 4),
    "asfl:sync=on": ([3, 3, 3, 3], 8, [False, True, True, False]),
    "sfl-best:bits=8": ([3, 3, 2, 3], 8, [False] * 4),
    "sfl": ([3, 3, 2, 3], 32, [False] * 4),
    "fedavg": ([1, 1, 1, 1], 32, [False] * 4),
    "epsl:share=0": ([3, 3, 3, 3], 32, [False] * 4),
}


@pytest.mark.parametrize("scheme", CASES)
def test_every_byte_is_charged_or_in_the_list_of_what_is_not(scheme: str) -> None:
    cuts, bits, syncs = CASES[scheme]
    billed.clear()
    agreement = agreement_of(tiny(*EVERYBODY_ARRIVES, rounds=ROUNDS), scheme)
    planned = Planned(scheme_named(scheme).exchange, cuts, bits, syncs)
    with local_links(agreement) as local:
        links = [Counted(link) for link in local]
        simulation = simulation_of(scheme, planned, links)
        for _ in range(ROUNDS):
            simulation.play_round()
        simulation.run.learner.learning(
            simulation.state
        )  # what the next round asks for is reported by those who learnt in this
        simulation.trainer.fleet.gather()
        payload = links[0].payload()
    up_bits, down_bits = (sum(way) for way in zip(*billed, strict=True))
    up, down = payload["up"], payload["down"]
    learnt = up.pop("update", 0)
    assert learnt == 4 * ROUNDS * (2 if scheme == "fedavg" else 1)  # norms of updates; FedAvg's losses
    reported = up.pop("projected", 0)
    if not planned.exchange.reports:
        reported = learnt = 0  # other schemes' norms, and reports of EPSL, are for the record
    up.pop("clientstate", 0)  # for evaluations
    down.pop("sync", 0)
    if cuts[0] and scheme in ("asfl", "asfl:sync=on", "epsl:share=0"):  # the first model isn't charged: all can draw it
        down["grow"] -= first_layers_bytes(simulation, cuts[0])
    assert 8 * (sum(up.values()) + learnt + reported) == pytest.approx(up_bits, rel=1e-9)
    assert 8 * sum(down.values()) == pytest.approx(down_bits, rel=1e-9)


def first_layers_bytes(simulation: Simulation, cut: int) -> int:
    layout = simulation.trainer.layout
    return 4 * int(layout.parameter_edges[cut] + layout.statistic_edges[cut])
