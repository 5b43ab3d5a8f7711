"""EPSL: each block against trying everything, the descent against its blocks, and φ."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from worlds import paper_round, served_rounds

from asfl.costs import modelled as costs
from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision, Round
from asfl.schemes.base import even_counts
from asfl.schemes.epsl import EpslScheme, best_cut, fastest_round, greedy_counts

Floats = NDArray[np.float64]
SHARES = st.sampled_from([0.0, 0.3, 0.5, 1.0])


def latency_s(round_: Round, decision: Decision, share: float) -> float:
    return float(round_cost(round_, decision, np.ones(round_.num_clients), costs.epsl(share)).delay_s)


# ---------------------------------------------------------------------- the blocks
@given(served_rounds(4), SHARES)
def test_cut_block_equals_brute_force(round_: Round, share: float) -> None:
    count, power = even_counts(round_), np.full(round_.num_clients, round_.radio.max_tx_power_w)
    found = best_cut(round_, count, power, costs.epsl(share))
    best = min(latency_s(round_, Decision(cut, count, power), share) for cut in round_.profile.cuts.tolist())
    assert latency_s(round_, Decision(found, count, power), share) == best


@given(served_rounds(4), SHARES, st.data())
def test_greedy_blocks_equal_brute_force_unless_the_cut_shrinks(
    round_: Round, share: float, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(round_.previous_cut or 1, round_.profile.num_layers - 1))
    power = round_.radio.max_tx_power_w * np.linspace(0.2, 1, round_.num_clients)
    found = greedy_counts(round_, cut, power, costs.epsl(share))
    clients, num_rbs = round_.num_clients, round_.radio.num_rbs
    every = [np.diff([0, *bars, num_rbs]).astype(float) for bars in combinations(range(1, num_rbs), clients - 1)]
    best = min(latency_s(round_, Decision(cut, count, power), share) for count in every)
    assert found.min() >= 1
    assert found.sum() == num_rbs
    assert latency_s(round_, Decision(cut, found, power), share) == pytest.approx(best, rel=1e-9)


# ---------------------------------------------------------------------- the descent
@given(served_rounds(4), SHARES)
def test_no_block_can_shorten_the_result(round_: Round, share: float) -> None:
    exchange = costs.epsl(share)
    decision = fastest_round(round_, exchange)
    cut, count, power = int(decision.cut), decision.rb_count, decision.tx_power_w
    result = latency_s(round_, decision, share) * (1 - 1e-9)
    others = [
        replace(decision, cut=best_cut(round_, count, power, exchange)),
        replace(decision, rb_count=greedy_counts(round_, cut, power, exchange)),
        Decision(best_cut(round_, even_counts(round_), power, exchange), even_counts(round_), power),
    ]
    assert all(result <= latency_s(round_, other, share) for other in others)


def test_the_resplit_counts() -> None:
    """Moving VGG-19's layers takes far longer than it saves, so the cut stays where it was, unless it never was."""
    free = fastest_round(paper_round(3, 6, 0), costs.epsl(0.5))
    moved = paper_round(3, 6, 0, previous_cut=15)
    held = fastest_round(moved, costs.epsl(0.5))
    assert held.cut == 15
    assert free.cut != 15
    assert latency_s(moved, held, 0.5) < latency_s(moved, free, 0.5)


def test_without_aggregation_it_is_parallel_split_learning() -> None:
    """φ = 0 is charged as ASFL is, but for reports; with φ = 1 the server goes backward once, whoever takes part."""
    round_ = paper_round(4, 8, 0)
    assert EpslScheme(share=0.0).exchange == replace(costs.ASFL, reports=False)
    decision = fastest_round(round_, costs.epsl(1.0))
    cost = round_cost(round_, decision, np.ones(4), costs.epsl(1.0))
    profile, cut = round_.profile, int(decision.cut)
    flops = 4 * profile.forward_flops[cut:].sum() + profile.backward_flops[cut:].sum()
    cycles = round_.charged_samples * flops * round_.compute.server_cycles_per_flop
    assert cost.server_delay_s.sum() == pytest.approx(cycles / round_.compute.server_hz)
