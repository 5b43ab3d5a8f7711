"""Fixed rules: valid, repeatable, and the clients, blocks and powers that they claim, against trying everything."""

from dataclasses import replace
from itertools import permutations

import numpy as np
from hypothesis import given, settings, strategies as st
from problems import random_problem

from asfl.costs.modelled import ON_DEMAND, round_cost
from asfl.costs.round import check_decision
from asfl.optimize import Problem
from asfl.schemes import SAME_TOOLS, scheme_named
from asfl.schemes.base import check, decided_by
from asfl.schemes.fixed import FixedScheme

SEEDS = st.integers(0, 2**20)
SCHEMES = st.builds(
    FixedScheme,
    st.just("rule"),
    cut=st.integers(1, 9),
    bits=st.sampled_from([4, 8, 32]),
    clients=st.floats(0.1, 1),
    packet_error_rate=st.sampled_from([0.0, 0.01, 0.1, 0.4]),
)


def problem_for(seed: int, clients: int = 4, num_rbs: int = 5) -> Problem:
    return random_problem(seed, clients=clients, num_rbs=num_rbs, layers=5)


@given(SEEDS, SCHEMES, st.integers(1, 7), st.integers(1, 6))
@settings(max_examples=60)
def test_decisions_are_valid_and_repeatable(seed: int, scheme: FixedScheme, clients: int, num_rbs: int) -> None:
    problem = problem_for(seed, clients, num_rbs)
    decision, again = scheme.decide(problem, 1), scheme.decide(problem, 2)
    check_decision(decision, 5, num_rbs, problem.round.radio.max_tx_power_w)
    check(decision, problem, scheme)
    assert (decision.cut, decision.bits, decision.synced) == (min(scheme.cut, 4), scheme.bits, min(scheme.cut, 4))
    assert decision.rb_count.sum() == num_rbs
    for field in ("rb_count", "tx_power_w"):
        np.testing.assert_array_equal(getattr(decision, field), getattr(again, field))


@given(SEEDS, SCHEMES)
@settings(max_examples=60)
def test_the_clients_are_those_of_the_largest_gain_times_the_exponential_of_what_they_are_owed(
    seed: int, scheme: FixedScheme
) -> None:
    problem = problem_for(seed)
    decision, gain = scheme.decide(problem, 1), problem.round.channel_gain
    most = int(np.ceil(scheme.clients * 4))
    best = max(
        permutations(range(4), most),
        key=lambda some: np.prod([gain[n] * np.exp(problem.queues.participation[n]) for n in some]),
    )
    assert set(np.flatnonzero(decision.scheduled)) == set(best)


@given(SEEDS, SCHEMES)
@settings(max_examples=40)
def test_the_power_is_the_least_that_reaches_the_error_rate(seed: int, scheme: FixedScheme) -> None:
    problem = problem_for(seed)
    decision, round_ = scheme.decide(problem, 1), problem.round
    top = round_.radio.max_tx_power_w
    tried = np.array([0.0, *np.geomspace(1e-7, 1, 100) * top])
    for client, power_w in enumerate(decision.tx_power_w):
        rates = [round_.packet_error_rate(decision.rb_count, np.full(4, one))[client] for one in tried]
        enough = [rate <= scheme.packet_error_rate for rate in rates]
        if not decision.scheduled[client]:
            assert power_w == 0
        elif not any(enough):
            assert power_w == top
        else:
            first = enough.index(True)
            assert tried[first - 1] <= power_w <= tried[first]


@given(SEEDS, SCHEMES)
@settings(max_examples=30)
def test_no_block_that_is_left_would_help_another_client_more(seed: int, scheme: FixedScheme) -> None:
    """Taken from the slowest again, it is the slowest again: so the last block went to whom everybody waits for."""
    problem = problem_for(seed, clients=3, num_rbs=6)
    decision, round_ = scheme.decide(problem, 1), problem.round
    served = np.flatnonzero(decision.scheduled)
    given_last = []
    for client in served[decision.rb_count[served] > 1]:
        count = decision.rb_count - (np.arange(3) == client)
        before = replace(decision, rb_count=count, tx_power_w=scheme._power(round_, count))
        cost = round_cost(round_, before, np.ones(3), ON_DEMAND)
        alone_s = cost.client_forward_delay_s + cost.uplink_delay_s + cost.downlink_delay_s
        alone_s = alone_s + cost.client_backward_delay_s + cost.model_up_delay_s
        given_last.append(alone_s[client] >= alone_s[served].max() * (1 - 1e-12))
    assert any(given_last)


def test_without_any_client_nothing_is_decided() -> None:
    problem = problem_for(1)
    nobody = replace(problem, round=replace(problem.round, channel_gain=np.zeros(4)))
    decision = decided_by(scheme_named("best-gains"), nobody, 1).decision
    assert not decision.scheduled.any()


def test_what_ships_has_the_tools_of_asfl_plus() -> None:
    problem = problem_for(2, clients=8, num_rbs=8)
    for name in SAME_TOOLS:
        scheme = scheme_named(name)
        assert scheme.exchange.mixes
        decision = decided_by(scheme, problem, 1).decision
        assert decision.bits == 4
        assert scheme.exchange.exchanges_client_model or decision.synced == decision.cut
    best, equal = (decided_by(scheme_named(name), problem, 1).decision for name in ("best-gains", "equal-error"))
    assert (best.rb_count == 1).all()
    assert (best.tx_power_w == problem.round.radio.max_tx_power_w).all()
    assert (equal.scheduled.sum(), equal.rb_count.sum()) == (6, 8)
    rate = problem.round.packet_error_rate(equal.rb_count, equal.tx_power_w)[equal.scheduled]
    assert ((rate <= 0.1 * (1 + 1e-9)) | (equal.tx_power_w[equal.scheduled] == best.tx_power_w[0])).all()
