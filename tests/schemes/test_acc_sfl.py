"""ACC-SFL: both blocks against trying everything, the descent against its blocks, and who takes part."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from numpy.typing import NDArray
from worlds import paper_round, problem_of, rounds, served_rounds

from asfl.costs import modelled as costs
from asfl.costs.modelled import round_cost
from asfl.costs.round import Decision, Round
from asfl.schemes.acc_sfl import (
    AccSflScheme,
    best_counts,
    best_cuts,
    choices_for_two_maxima,
    counts_for_two_maxima,
    fastest_round,
)
from asfl.schemes.base import even_counts, random_powers
from asfl.schemes.epsl import straggler_first

Floats = NDArray[np.float64]
SCHEME = AccSflScheme()


def powers(round_: Round, seed: int = 1) -> Floats:
    return random_powers(problem_of(round_), seed)


def allocations(clients: int, num_rbs: int) -> Iterator[Floats]:
    """Every way to hand out at most num_rbs blocks, at least one to each."""
    for used in range(clients, num_rbs + 1):
        for bars in combinations(range(1, used), clients - 1):
            yield np.diff([0, *bars, used]).astype(float)


def latency_s(round_: Round, cut: NDArray[np.int64], rb_count: Floats, tx_power_w: Floats) -> float:
    cost = round_cost(round_, Decision(cut, rb_count, tx_power_w), np.ones(round_.num_clients), costs.ACC_SFL)
    return float(cost.delay_s)


def stage_tables(seed: int, rows: int, clients: int, tables: int, ties: bool) -> list[Floats]:
    random = np.random.default_rng(seed)
    draws = random.integers(0, 6, (tables, rows, clients)) if ties else random.exponential(1, (tables, rows, clients))
    return [table.astype(float) for table in draws]


SEEDS = st.integers(0, 2**32)


# ---------------------------------------------------------------------- the two blocks, on tables
@given(SEEDS, st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_counts_equal_trying_all_allocations(seed: int, clients: int, spare: int, ties: bool) -> None:
    upload, back = (np.sort(t, axis=0)[::-1] for t in stage_tables(seed, spare + 1, clients, 2, ties))

    def total(count: NDArray[np.int64] | Floats) -> float:
        row = count.astype(int) - 1
        return float(upload[row, range(clients)].max() + back[row, range(clients)].max())

    best = min(map(total, allocations(clients, clients + spare)))
    found = counts_for_two_maxima(upload, back, clients + spare)
    assert found.min() >= 1
    assert found.sum() <= clients + spare
    assert total(found) == pytest.approx(best, rel=1e-12)


@given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_choices_equal_trying_all_rows(seed: int, clients: int, rows: int, ties: bool) -> None:
    upload, back, server = stage_tables(seed, rows, clients, 3, ties)

    def total(choice: tuple[int, ...]) -> float:
        at = (np.array(choice), np.arange(clients))
        return float(upload[at].max() + back[at].max() + server[at].sum())

    best = min(map(total, product(range(rows), repeat=clients)))
    assert total(tuple(choices_for_two_maxima(upload, back, server))) == pytest.approx(best, rel=1e-12)


def test_always_to_the_straggler_is_not_enough_with_two_maxima() -> None:
    """Client 0 is the straggler of stage 2 and gains little; client 1 is that of stage 3 and gains a lot."""
    upload = np.array([[10.0, 1.0], [9.0, 1.0]])
    back = np.array([[1.0, 10.0], [1.0, 5.0]])
    assert straggler_first(upload, 3).tolist() == [2, 1]
    assert straggler_first(upload + back, 3).tolist() == [2, 1]
    assert counts_for_two_maxima(upload, back, 3).tolist() == [1, 2]


def test_blocks_nobody_waits_for_stay_free() -> None:
    """Two equal stragglers and one spare block: it would shorten nothing."""
    table = np.array([[4.0, 4.0], [2.0, 2.0]])
    assert counts_for_two_maxima(table, table, 3).tolist() == [1, 1]


# ---------------------------------------------------------------------- the two blocks, on rounds
@given(served_rounds(max_clients=4), st.data())
def test_rb_block_equals_brute_force(round_: Round, data: st.DataObject) -> None:
    cut = np.array([data.draw(st.sampled_from(round_.profile.cuts.tolist())) for _ in range(round_.num_clients)])
    power = powers(round_)
    found = best_counts(round_, cut, power)
    best = min(latency_s(round_, cut, count, power) for count in allocations(round_.num_clients, round_.radio.num_rbs))
    assert found.min() >= 1
    assert found.sum() <= round_.radio.num_rbs
    assert latency_s(round_, cut, found, power) == pytest.approx(best, rel=1e-9)


@given(served_rounds())
def test_cut_block_equals_brute_force(round_: Round) -> None:
    power, count = powers(round_), even_counts(round_)
    found = best_cuts(round_, count, power)
    every = product(round_.profile.cuts.tolist(), repeat=round_.num_clients)
    best = min(latency_s(round_, np.array(cut), count, power) for cut in every)
    assert set(found.tolist()) <= set(round_.profile.cuts.tolist())
    assert latency_s(round_, found, count, power) == pytest.approx(best, rel=1e-9)


# ---------------------------------------------------------------------- the descent
@given(served_rounds(max_clients=5))
def test_neither_block_can_shorten_the_result(round_: Round) -> None:
    power = powers(round_)
    cut, count = fastest_round(round_, power)
    result = latency_s(round_, cut, count, power)
    assert result <= latency_s(round_, best_cuts(round_, count, power), count, power) * (1 + 1e-9)
    assert result <= latency_s(round_, cut, best_counts(round_, cut, power), power) * (1 + 1e-9)
    for common in round_.profile.cuts:  # where it starts, and the first block from there
        start = np.full(round_.num_clients, common)
        assert result <= latency_s(round_, start, even_counts(round_), power) * (1 + 1e-9)


@pytest.mark.parametrize("index", range(4))
def test_descent_finds_the_joint_optimum_for_vgg19(index: int) -> None:
    """All allocations, with the exact cuts for each: what the two blocks could reach together."""
    round_ = paper_round(3, 6, index)
    power = powers(round_)
    joint = min(latency_s(round_, best_cuts(round_, count, power), count, power) for count in allocations(3, 6))
    assert latency_s(round_, *fastest_round(round_, power), power) == pytest.approx(joint, rel=1e-9)


@given(served_rounds(), st.floats(1e-6, 10))
def test_an_outage_of_asfls_rounds_is_none_of_its_own(round_: Round, outage_s: float) -> None:
    reference = Decision(1, np.ones(round_.num_clients), powers(round_))
    one, other = (
        SCHEME.decide(replace(problem_of(replace(round_, outage_s=end_s)), reference=reference), 1).decision
        for end_s in (np.inf, outage_s)
    )
    np.testing.assert_array_equal(one.cut, other.cut)
    np.testing.assert_array_equal(one.rb_count, other.rb_count)


@given(rounds())
def test_the_round_among_some_clients_costs_the_same(round_: Round) -> None:
    """Clients that sit out are free, so the blocks may look at the others only."""
    assume(round_.num_clients > 1)
    some = np.arange(1, round_.num_clients)
    count, power = np.ones(round_.num_clients), powers(round_)
    count[0] = 0
    cut = np.full(round_.num_clients, round_.profile.num_layers - 1)
    whole = latency_s(round_, cut, count, power)
    assert latency_s(round_.among(some), cut[some], count[some], power[some]) == pytest.approx(whole, rel=1e-12)
