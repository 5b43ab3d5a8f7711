"""The numbers of runs and comparisons, against plain loops over made-up rounds."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from made_up import made_up_round, made_up_run
from scipy import stats

from asfl.costs.world import Budgets
from asfl.results.charts.chart import Line
from asfl.results.charts.runs import accuracy, write_figures
from asfl.results.curves import Curve, Reach, Run, reach
from asfl.results.summary import Statistic, Summary, choose_targets, summarize_run
from asfl.results.tables import in_words

ACCURACIES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12)


@given(ACCURACIES, st.floats(0.01, 1))
def test_reached_is_the_first_mean_of_three_at_the_target(accuracies: list[float | None], target: float) -> None:
    run = made_up_run("asfl", accuracies)
    expected, seen = None, []
    for number, measured in enumerate(accuracies, start=1):
        if measured is None:
            continue
        seen.append(measured)
        if sum(seen[-3:]) / len(seen[-3:]) >= target:
            expected = Reach(number, 2.0 * number, 3.0 * number)
            break
    found = reach(Curve.of(run.records), target)
    if expected is None or found is None:  # a mean that differs in its last digit from the target
        assert expected is found or any(math.isclose(m, target) for m in Curve.of(run.records).smoothed)
    elif expected.round != found.round:
        assert any(math.isclose(m, target) for m in Curve.of(run.records).smoothed)
    else:
        assert found == expected


def test_a_lucky_evaluation_is_not_enough() -> None:
    curve = Curve.of(made_up_run("asfl", [0.1, 0.1, 0.9, 0.1, 0.5, 0.6, 0.7]).records)
    assert reach(curve, 0.6) == Reach(7, 14.0, 21.0)
    assert reach(curve, 0.61) is None
    # After a dead link nothing is reached.
    records = [made_up_round(1, 0.3, delay_s=math.inf), made_up_round(2, 0.9, delay_s=math.inf)]
    assert reach(Curve.of(records), 0.2) is None
    summary = Summary.of([Run("asfl", 1, records)])
    json.dumps(summary.to_json(), allow_nan=False)
    assert summary.runs["asfl"][0].best_accuracy == 0.9


def test_numbers_of_a_run() -> None:
    cuts: list[int | list[int] | None] = [2, 2, 5, 4]
    records = [
        made_up_round(number, accuracy, cut=cut, resplit_delay_s=resplit, arrived=arrived)
        for number, accuracy, cut, resplit, arrived in zip(
            (1, 2, 3, 4),
            (0.2, None, 0.7, 0.6),
            cuts,
            (0, 0, 1, 0.5),
            ((1, 1, 0), (0, 0, 0), (1, 0, 0), (1, 1, 0)),
            strict=True,
        )
    ]
    one = summarize_run(Run("asfl", 7, records, Budgets(1.6, 1.0)), [0.4, 0.95])
    assert (one.scheme, one.seed, one.rounds) == ("asfl", 7, 4)
    assert (one.final_accuracy, one.best_accuracy, one.client_accuracy) == (0.6, 0.7, 0.3)
    assert (one.total_delay_s, one.total_energy_j) == (8.0, 12.0)
    assert (one.delay_s, one.energy_j) == (2.0, 3.0)
    assert one.packet_error_rate == pytest.approx(0.2)  # the client without a block doesn't count
    assert one.updates_per_round == 5 / 4
    assert one.discrepancy == pytest.approx(0.5 * (1 + 2 + 3 + 4) / 4)
    assert one.spread == pytest.approx(0.4 * (1 + 2 + 3 + 4) / 4)
    assert one.cut == 13 / 4
    assert one.cut_moves == pytest.approx(2 / 3)
    assert one.resplit_share == 1.5 / 8
    assert one.delay_over == pytest.approx(2.0 / 1.6 - 1)
    assert one.energy_over == pytest.approx(1.0)  # the second client spends 2 J of 1 J
    assert one.reached == (Reach(3, 6.0, 9.0), None)


def test_what_does_not_exist_is_nan() -> None:
    fedavg = summarize_run(Run("fedavg", 1, [made_up_round(1, cut=None)]), [0.5])
    for missing in ("final_accuracy", "best_accuracy", "client_accuracy", "cut", "cut_moves", "delay_over"):
        assert math.isnan(getattr(fedavg, missing)), missing
    assert fedavg.reached == (None,)
    per_client = summarize_run(made_up_run("acc-sfl", [0.1, 0.2], cut=[1, 4, 9]), [])
    assert (per_client.cut, per_client.cut_moves) == (2.5, 0.0)
    assert summarize_run(Run("asfl", 1, []), [0.5]).rounds == 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=6))
def test_statistic_is_numpys(values: list[float]) -> None:
    stat = Statistic.of([*values, math.nan])
    assert stat.seeds == len(values)
    if values:
        assert stat.mean == pytest.approx(np.mean(values), abs=1e-6)
    if len(values) > 1:
        assert stat.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        assert min(values) <= stat.low <= stat.median <= stat.high <= max(values)
    else:
        assert math.isnan(stat.sd)
        assert math.isnan(stat.low)


@pytest.mark.parametrize("seeds", [3, 7, 9])
def test_the_interval_is_that_of_all_resamples(seeds: int) -> None:
    """The median of an odd resample is at most the k-th value iff at least half of its draws are: binomial."""
    values = [float(2**number) for number in range(seeds)]
    below = [stats.binom.sf(seeds // 2, seeds, k / seeds) for k in range(1, seeds + 1)]
    low, high = (next(v for v, p in zip(values, below, strict=True) if p >= end) for end in (0.025, 0.975))
    stat = Statistic.of(values)
    assert (stat.low, stat.median, stat.high) == (low, values[seeds // 2], high)
    assert (low, high) == (values[0], values[-1]) or seeds > 5


def test_accuracy_at_equal_time_and_energy() -> None:
    """ASFL ends after 6 s and 9 J; the other has three evaluations by then, and one for this energy."""
    ours = made_up_run("asfl", [0.2, 0.4, 0.5], delay_s=2.0, energy_j=1.0)
    other = made_up_run("sfl", [0.1, 0.3, 0.6, 0.9], delay_s=2.0, energy_j=3.0)
    summary = Summary.of([ours, other, made_up_run("central", [0.9])], [])
    assert summary.by_seed("sfl", "accuracy_in_our_time") == {1: 0.6}
    assert summary.by_seed("sfl", "accuracy_on_our_energy") == {1: 0.1}
    assert summary.by_seed("asfl", "accuracy_in_our_time") == {1: 0.5}
    assert math.isnan(summary.by_seed("central", "accuracy_in_our_time")[1])
    assert math.isnan(Summary.of([other], []).by_seed("sfl", "accuracy_in_our_time")[1])


def test_savings_are_paired_by_seed() -> None:
    """Seed 1: ASFL 2 s, SFL 8 s; seed 2: 4 s and 8 s; seed 3: only SFL gets there; seed 4: SFL never ran."""
    runs = [
        made_up_run("asfl", [0.5], seed=1, delay_s=2, energy_j=1),
        made_up_run("asfl", [0.5], seed=2, delay_s=4, energy_j=3),
        made_up_run("asfl", [0.1], seed=3),
        made_up_run("asfl", [0.5], seed=4),
        *(made_up_run("sfl", [0.5], seed=seed, delay_s=8, energy_j=2) for seed in (1, 2, 3)),
    ]
    summary = Summary.of(runs, [0.5])
    saving = summary.saving("sfl", 0.5)
    assert saving is not None
    assert saving.delay.mean == pytest.approx((0.75 + 0.5) / 2)
    assert saving.delay.sd == pytest.approx(np.std([0.75, 0.5], ddof=1))
    assert saving.energy.mean == pytest.approx((0.5 - 0.5) / 2)
    assert (saving.delay.seeds, saving.only_ours, saving.only_theirs) == (2, 0, 1)
    assert summary.saving("asfl", 0.5) is None
    assert Summary.of(runs[4:], [0.5]).saving("sfl", 0.5) is None
    assert summary.to_reach("asfl", 0.5, "delay_s").seeds == 3


def test_targets_follow_the_best_scheme() -> None:
    good, bad = made_up_run("asfl", [0.2, 0.7, 0.8, 0.86]), made_up_run("epsl", [0.2, 0.5, 0.5, 0.5])
    assert choose_targets([good, bad]) == [0.4, 0.6, 0.75, 0.83]  # 43, 64.5 and 77.4 %, down to whole 5 %; 83.4 %
    assert Summary.of([good, bad]).main_target() == 0.4  # both
    assert choose_targets([made_up_run("asfl", [0.1])]) == [0.05, 0.07, 0.09]  # 9.7 % too; whole 1 % when small
    lone = [good, *(made_up_run(name, [0.1, 0.13, 0.13, 0.13]) for name in ("sl", "sfl"))]
    assert choose_targets(lone) == [0.13, 0.4, 0.6, 0.75, 0.83]  # what most schemes reach comes first
    others = [made_up_run(name, [0.2, 0.7, 0.8, 0.86]) for name in ("sl", "sfl")]
    weak = made_up_run("asfl", [0.1, 0.27, 0.28, 0.29])
    assert choose_targets([*others, weak]) == [0.25, 0.4, 0.6, 0.75, 0.83]  # as does what ASFL reaches
    assert choose_targets([made_up_run("asfl", [None, None])]) == []
    assert choose_targets([made_up_run("asfl", [0.0])]) == []
    # The main target is one that most reach.
    runs = [made_up_run(name, [top]) for name, top in (("asfl", 0.9), ("sfl", 0.6), ("sl", 0.3))]
    assert Summary.of(runs, [0.2, 0.5, 0.8]).main_target() == 0.5
    assert Summary.of(runs, [0.95]).main_target() == 0.95
    assert Summary.of(runs, []).main_target() is None


def test_words_name_who_wins() -> None:
    runs = [
        run
        for seed in (1, 2)
        for run in (
            made_up_run("asfl", [0.4, 0.8], seed=seed, delay_s=2, energy_j=2),
            made_up_run("sfl", [0.4, 0.8], seed=seed, delay_s=6, energy_j=2),
            made_up_run("asfl-pmax", [0.4, 0.9], seed=seed, delay_s=1.8, energy_j=3),
            made_up_run("fedavg", [0.4, 0.8], seed=seed, delay_s=1 if seed == 1 else 4, energy_j=1),
            made_up_run("epsl", [0.1, 0.1], seed=seed),
        )
    ]
    delay, energy, final = in_words(Summary.of(runs, [0.6]))
    assert delay == (
        "To reach 60 % accuracy ASFL needs 4 s (12 J). Slower: sfl (3.0×). Faster: asfl-pmax (0.90×). "
        "Not clearly different: fedavg (1.00×). Never reached it: epsl."
    )
    assert energy.endswith("More: asfl-pmax (1.50×). Less: fedavg (0.50×). Not clearly different: sfl (1.00×).")
    assert final == (
        "After 2 rounds ASFL is at 80.0 %. Higher: asfl-pmax (90.0 %). Lower: epsl (10.0 %). "
        "Not clearly different: fedavg (80.0 %), sfl (80.0 %)."
    )


def test_words_without_asfl_and_with_a_single_seed() -> None:
    sfl, sl = made_up_run("sfl", [0.8], delay_s=6), made_up_run("sl", [0.8], delay_s=3)
    words = " ".join(in_words(Summary.of([sfl, sl, made_up_run("epsl", [0.1])], [0.6])))
    assert "60 % accuracy, fastest first: sl (3 s), sfl (6 s). Never reached it: epsl." in words
    assert "One seed proves little" in words
    loser = " ".join(in_words(Summary.of([made_up_run("asfl", [0.1]), sfl], [0.6])))
    assert "ASFL never reached 60 % accuracy." in loser
    assert "After 1 round ASFL is at 10.0 %. Higher: sfl (80.0 %)" in loser
    partly = [made_up_run("asfl", [0.8], seed=1), made_up_run("asfl", [0.1], seed=2)]
    assert "with 1 of 2 seeds" in in_words(Summary.of([*partly, sfl], [0.6]))[0]
    nothing = in_words(Summary.of([made_up_run("asfl", [None])]))
    assert nothing == ["No run was evaluated, or none learnt anything; so there is no accuracy to compare at."]


def test_json_holds_every_run() -> None:
    runs = [made_up_run(name, [0.4, 0.8], seed=seed) for name in ("asfl", "fedavg") for seed in (2, 1)]
    summary = Summary.of(runs, [0.5, 0.99])
    data = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert data["schemes"]["asfl"]["final_accuracy"] == {
        **dict.fromkeys(("median", "low", "high", "mean"), 0.8),
        "sd": 0.0,
        "seeds": 2,
    }
    assert data["schemes"]["asfl"]["targets"][1]["seeds_reached"] == 0
    assert data["schemes"]["fedavg"]["targets"][0]["asfl_saves"]["delay"]["mean"] == 0
    assert [run["seed"] for run in data["schemes"]["asfl"]["runs"]] == [1, 2]


@pytest.mark.parametrize("accuracies", [[0.1, 0.4, 0.8], [None, None]])
def test_pictures_of_anything(accuracies: list[float | None], tmp_path: Path) -> None:
    """One seed or more, one evaluation or none, delays far apart, FedAvg without a cut, a dead link."""
    runs = [
        *(made_up_run("asfl", accuracies, seed=seed) for seed in (1, 2)),
        made_up_run("sl", accuracies, delay_s=1000),
        made_up_run("fedavg", accuracies[-1:], cut=None),
        made_up_run("epsl", accuracies, delay_s=math.inf),
    ]
    written = write_figures(Summary.of(runs), runs, tmp_path)
    assert "cut-queue.png" in [path.name for path in written]
    assert ("time-to-accuracy.png" in [path.name for path in written]) == (accuracies[0] is not None)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_the_accuracy_picture_shows_the_median_over_seeds() -> None:
    runs = [made_up_run("asfl", [top] * 4, seed=seed) for seed, top in ((1, 0.4), (2, 0.5), (3, 0.9))]
    mean = next(one for one in accuracy(runs, "rounds").panels[0].series if isinstance(one, Line))
    assert np.asarray(mean.y) == pytest.approx(50.0)
    assert mean.low is not None
    assert mean.high is not None
    assert (np.asarray(mean.low)[0], np.asarray(mean.high)[0]) == (pytest.approx(40.0), pytest.approx(90.0))
