"""Verdicts on claims, from runs whose numbers are known."""

from random import Random
from statistics import median

import pytest
from hypothesis import given, strategies as st
from made_up import made_up_round, made_up_run

from asfl.config import load_config
from asfl.results.curves import Run
from asfl.results.reproduce.claims import (
    BEST,
    EQUAL,
    Axis,
    Claim,
    Finding,
    Lower,
    MoreAccurate,
    MostAccurate,
    MovesLessLater,
    NeverBehind,
    Rises,
    Saves,
    ShareOfDelay,
    Verdict,
    agreement,
    judge,
)
from asfl.results.summary import Outcome, Statistic, Summary

VERDICTS: list[Verdict] = ["holds", "holds weaker", "mixed", "not clear", "doesn't hold", "not shown"]


def outcome(runs: list[Run], targets: tuple[float, ...] = (0.5,), label: str = "") -> Outcome:
    return Outcome("demo", label, runs, Summary.of(runs, targets))


def only(claim: Claim, *outcomes: Outcome) -> Finding:
    (finding,) = claim.check(outcomes)
    return finding


def learning(scheme: str, seed: int = 1, *, delay_s: float = 1.0, energy_j: float = 1.0, top: float = 0.6) -> Run:
    return made_up_run(scheme, [top, top, top], seed=seed, delay_s=delay_s, energy_j=energy_j)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=5), st.floats(0, 10))
def test_a_verdict_follows_sign_clarity_and_size(values: list[float], claimed: float) -> None:
    """With so few seeds the interval is their range, so clear is what all of them say."""
    verdict, low, high = judge(Statistic.of(values), claimed), min(values), max(values)
    assert (verdict == "not clear") == (low <= 0 <= high)
    assert (verdict == "doesn't hold") == (high < 0)
    assert (verdict == "holds") == (low > 0 and median(values) >= claimed)
    assert (verdict == "holds weaker") == (low > 0 and median(values) < claimed)


def test_without_values_or_spread() -> None:
    assert judge(Statistic.of([])) == "not shown"
    assert judge(Statistic.of([0.1])) == "holds"
    assert judge(Statistic.of([0.0])) == "not clear"


@given(st.lists(st.sampled_from(VERDICTS)), st.randoms())
def test_agreement_is_of_all_in_any_order(verdicts: list[Verdict], random: Random) -> None:
    once = agreement(verdicts)
    shuffled = list(verdicts)
    random.shuffle(shuffled)
    assert agreement(shuffled) == once
    assert agreement([*verdicts, "not shown"]) == once
    if once == "holds":
        assert set(verdicts) <= {"holds", "not shown"}


def test_savings_are_ratios_at_equal_accuracy() -> None:
    runs = [learning("asfl", seed, delay_s=1.0, energy_j=2.0) for seed in (1, 2, 3)]
    runs += [learning("sfl", seed, delay_s=4.0 + seed / 10, energy_j=1.0) for seed in (1, 2, 3)]
    faster = only(Saves("delay_s", "sfl", 0.69), outcome(runs))
    ratios = [1 - 1 / (4 + seed / 10) for seed in (1, 2, 3)]
    low, middle, high = (f"{100 * ratio:.0f}" for ratio in sorted(ratios))
    assert faster.here == f"to 50 % {middle} ({low}…{high}) %, 3 of 3 seeds"
    assert faster.conclusion == "holds"
    assert only(Saves("delay_s", "sfl", 0.9), outcome(runs)).verdict == "holds weaker"
    assert only(Saves("energy_j", "sfl", 0.56), outcome(runs)).verdict == "doesn't hold"


def test_goals_are_measured_against_the_best_other_scheme_at_each_accuracy() -> None:
    runs = [
        run
        for seed in (1, 2)
        for run in (
            learning("asfl-plus", seed, delay_s=1.0),
            learning("asfl-plus:sync=off", seed, delay_s=0.1),  # a variant of it is no other scheme
            learning("asfl", seed, delay_s=5.0),
            learning("epsl", seed, delay_s=2.0, top=0.4),  # the fastest, as far as it gets
            learning("central", seed, delay_s=0.0, top=0.62),
        )
    ]
    at = outcome(runs, (0.3, 0.5))
    finding = only(Saves("delay_s", BEST, 0.5, "asfl-plus"), at)
    assert finding.here == "weakest to 30 % 50 (50…50) % (epsl), 2 of 2 seeds"
    assert finding.claim.startswith("asfl-plus: delay to an accuracy 50 % below the best other")
    assert finding.verdict == "holds"
    assert only(MoreAccurate("central", -0.03, "asfl-plus"), at).verdict == "holds"
    assert only(MoreAccurate("central", -0.01, "asfl-plus"), at).verdict == "doesn't hold"
    assert only(Saves("delay_s", BEST, 0.5, "asfl-plus"), outcome([learning("asfl-plus")])).verdict == "not shown"


def test_never_behind_looks_at_every_evaluation() -> None:
    ours = [made_up_run("asfl-plus", [0.3, 0.4, 0.5], seed=seed, delay_s=1.0, energy_j=3.0) for seed in (1, 2)]
    theirs = [made_up_run("sl", [0.4, 0.5, 0.6], seed=seed, delay_s=2.0, energy_j=1.0) for seed in (1, 2)]
    at = outcome([*ours, *theirs, learning("central", top=0.9)])
    # By time they are at 0.40 when we are at 0.35, and at 0.425 when we are at 0.40 (means of all evaluations so far).
    finding = only(NeverBehind("delay_s", 0.02, "asfl-plus"), at)
    assert (finding.verdict, "-5.0" in finding.here.replace("−", "-"), "(sl)" in finding.here) == (
        "doesn't hold",
        True,
        True,
    )
    assert only(NeverBehind("delay_s", 0.06, "asfl-plus"), at).verdict == "holds"
    assert only(NeverBehind("energy_j", 0.06, "asfl-plus"), at).verdict == "doesn't hold"
    assert not list(NeverBehind("delay_s", 0.02, "asfl-plus").check([outcome(theirs)]))  # it wasn't trained


def test_who_gets_there_alone_proves_nothing() -> None:
    good, bad = learning("asfl"), learning("sfl", top=0.3)
    for claimed in (0.0, 0.5):
        finding = only(Saves("delay_s", "sfl", claimed), outcome([good, bad]))
        assert (finding.here, finding.conclusion) == ("to 50 % only asfl", "not shown")
    finding = only(Saves("delay_s", "sfl", 0.5), outcome([learning("asfl", top=0.3), learning("sfl")]))
    assert (finding.here, finding.verdict) == ("to 50 % only sfl", "not shown")
    finding = only(Saves("delay_s", "sfl", 0.5), outcome([good, bad], ()))
    assert (finding.here, finding.conclusion) == ("no accuracy that either reached", "not shown")
    lower = outcome([learning("asfl", delay_s=4.0), learning("sfl", top=0.4)], (0.3, 0.5))
    finding = only(Saves("delay_s", "sfl", 0.5), lower)
    assert (finding.here, finding.verdict) == ("to 30 % -300 %, one seed", "doesn't hold")


def test_one_lucky_seed_of_several_decides_nothing() -> None:
    runs = [learning("asfl", 1), learning("asfl", 2), learning("sfl", 1, delay_s=9.0), learning("sfl", 2, top=0.3)]
    finding = only(Saves("delay_s", "sfl", 0.5), outcome(runs))
    assert (finding.here, finding.verdict) == ("to 50 % 89 %, 1 of 2 seeds", "not shown")


def test_accuracy_at_equal_rounds_time_or_energy() -> None:
    """As much as both have: neither is credited with what it learnt after the other had ended."""
    ours = made_up_run("asfl", [0.2, 0.4, 0.5], delay_s=1.0)
    slow = made_up_run("sl", [0.3, 0.5, 0.9], delay_s=2.5)
    at = outcome([ours, slow], label="ρ")
    rounds, time = only(MostAccurate("rounds"), at), only(MostAccurate("delay"), at)
    assert (rounds.here, rounds.verdict) == ("ρ: 50.0 % against 90.0 % (sl), one seed", "doesn't hold")
    assert (time.here, time.verdict) == ("ρ: 50.0 % against 30.0 % (sl), one seed", "holds")
    slower = outcome([ours, made_up_run("sl", [0.9], delay_s=5.0)])
    assert only(MostAccurate("delay"), slower).here == "no other scheme was evaluated by then"
    assert only(MostAccurate("delay"), slower, at).verdict == "holds"  # the one case that can be told
    assert only(MostAccurate("rounds"), at, at, outcome([ours, learning("sl", top=0.1)])).verdict == "doesn't hold"
    longer = outcome([made_up_run("asfl", [0.2, 0.3, 0.4, 0.9]), made_up_run("sl", [0.3, 0.5], energy_j=0.5)])
    ends: dict[Axis, str] = {"rounds": "-20.0", "delay": "-20.0", "energy": "-30.0"}
    for axis, points in ends.items():
        finding = only(MoreAccurate("sl", 0.1, at=axis), longer)
        assert (finding.here, finding.verdict) == (f"{points} points, one seed", "doesn't hold")
        assert finding.claim == f"10 points more accurate than sl at {EQUAL[axis]}"
    steps = Run(
        "sl", 1, made_up_run("sl", [0.6]).records, config=load_config("demo", ["training.local_steps=4"]).config
    )
    finding = only(MoreAccurate("sl", 0.1), outcome([*longer.runs[:1], steps]))  # a round of four mini-batches
    assert finding.here == "30.0 points, one seed"


def test_lower_and_more_accurate() -> None:
    at = outcome([learning("asfl", delay_s=1.0), learning("sfl", delay_s=2.0, top=0.55)])
    assert only(Lower("total_delay_s", "sfl"), at).verdict == "holds"
    assert only(Lower("packet_error_rate", "sfl"), at).verdict == "not clear"
    assert only(MoreAccurate("sfl", 0.04), at).verdict == "holds"
    assert only(MoreAccurate("sfl", 0.076), at).verdict == "holds weaker"
    for claim in (Lower("discrepancy", "missing"), MoreAccurate("missing", 0.1), Saves("delay_s", "missing", 0.1)):
        assert not list(claim.check([at]))


@pytest.mark.parametrize(("resplit_s", "verdict"), [(0.2, "holds"), (0.5, "doesn't hold")])
def test_share_of_the_delay(resplit_s: float, verdict: str) -> None:
    records = [made_up_round(number, 0.5, delay_s=1.0, resplit_delay_s=resplit_s) for number in (1, 2)]
    finding = only(ShareOfDelay(0.3), outcome([Run("asfl", 1, records)]))
    assert (finding.here, finding.verdict) == (f"{100 * resplit_s:.1f} %, one seed", verdict)


def test_moves_early_and_late() -> None:
    cuts = [1, 2, 1, 2, 1, 2, 2, 2, 2]  # moves: five, then none in three; the last quarter is two of eight
    records = [made_up_round(number, 0.5, cut=cut) for number, cut in enumerate(cuts, start=1)]
    finding = only(MovesLessLater(), outcome([Run("asfl", 1, records)]))
    assert finding.here == "in 83 % of the rounds, then in 0 %"
    assert finding.verdict == "holds"


def test_rises_from_the_first_to_the_last() -> None:
    low, high = (outcome([learning("asfl", top=top)], label=str(top)) for top in (0.3, 0.6))
    assert only(Rises("final_accuracy"), low, high).verdict == "holds"
    assert only(Rises("final_accuracy"), high, low).verdict == "doesn't hold"
    assert only(Rises("total_delay_s"), low, high).verdict == "not clear"
    assert only(Rises("final_accuracy"), low).verdict == "not shown"
