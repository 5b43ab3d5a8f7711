"""Advice: costs are those of played rounds, what training needs is that of runs; without runs nothing is best."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_up import made_up_run

from asfl.config import load_config
from asfl.results.advise import (
    Learnt,
    advise,
    learnt_like,
    updates_to,
)
from asfl.results.charts.runs import Place, front_of
from asfl.results.curves import Run
from asfl.results.reproduce.archive import Found, Point, write_archive
from asfl.results.summary import Statistic
from asfl.runs.play import play_all
from conftest import Asfl, assert_refused

DEMO = load_config("demo").config


def trained(scheme: str, accuracies: list[float | None], seed: int = 1, *settings: str) -> Run:
    run = made_up_run(scheme, accuracies, seed=seed)
    return Run(scheme, seed, run.records, run.budgets, load_config("demo", settings).config)


def archive_of(*runs: Run, world: str = "demo") -> list[Found]:
    return [Found("fixed-cuts", "asfl …", [Point("demo", "", world, runs)])]


def test_costs_are_those_of_played_rounds() -> None:
    advice = advise(DEMO, 3, 1, schemes=("sfl-best", "fedavg"))
    for one in advice.candidates:
        played = play_all(DEMO, [one.scheme], [DEMO.scenario.seed], 3)[0].summary()
        assert one.round_delay_s == pytest.approx(played["delay_s"])
        assert one.round_energy_j == pytest.approx(played["energy_j"])
        assert one.delay_s == pytest.approx(played["delay_s"] / played["updates_per_round"])
    assert [one.scheme for one in advice.candidates] == ["sfl-best", "fedavg"]  # FedAvg sends the whole model
    assert advice.best is None  # what an update teaches isn't measured


def test_the_best_is_the_cheapest_to_an_accuracy() -> None:
    learnt = Learnt("demo", 0.5, {"sfl-best": 1e6, "fedavg": 1.0}, ())
    best = advise(DEMO, 3, 1, learnt, schemes=("sfl-best", "fedavg")).best
    assert best is not None
    assert best.scheme == "fedavg"


def test_updates_until_a_target_are_counted_by_round() -> None:
    """Two updates arrive in every made-up round; evaluations in rounds 2 and 4."""
    runs = [trained("asfl", [None, 0.2, None, 0.9], seed) for seed in (1, 2)]
    assert updates_to(runs, "asfl", 0.5) == 8
    assert updates_to(runs, "asfl", 0.1) == 4
    assert updates_to([*runs, trained("asfl", [0.1], 3)], "asfl", 0.5) is None
    assert updates_to(runs, "sfl", 0.5) is None


def test_what_is_learnt_is_that_of_the_nearest_similar_world() -> None:
    far = Point("demo", "", "far", [trained("asfl", [0.5], 1, "data.dirichlet_alpha=100")])
    near = Point("demo", "", "near", [trained("asfl", [0.3, 0.3, 0.3], 1, "data.dirichlet_alpha=0.5")])
    found = [Found("heterogeneity", "", [far, near])]
    learnt = learnt_like(DEMO, found)
    assert learnt is not None
    assert learnt.where == "near"
    assert learnt_like(load_config("small-cifar10").config, found) is None  # other data
    assert learnt_like(load_config("demo", ["training.local_steps=5"]).config, found) is None
    # A scheme with local steps of its own hides no other.
    every = [trained("asfl", [0.3], 1), trained("fedavg", [0.3], 1, "training.local_steps=5")]
    found = [Found("heterogeneity", "", [Point("demo", "", "near", every)])]
    learnt = learnt_like(DEMO, found)
    assert learnt is not None
    assert [*learnt.updates] == ["asfl"]
    same = learnt_like(load_config("demo", ["schemes.fedavg.local_steps=5"]).config, found)
    assert same is not None
    assert [*same.updates] == ["asfl", "fedavg"]


def test_the_command_says_what_is_measured_and_what_is_assumed(asfl: Asfl, tmp_path: Path) -> None:
    words = ["advise", "demo", "--rounds", "2"]
    assumed = asfl(*words)
    assert assumed.returncode == 0, assumed.stderr
    assert "Only training tells" in " ".join(assumed.stdout.split())
    assert "Use " not in assumed.stdout
    runs = [trained(name, [0.4, 0.8, 0.8, 0.8]) for name in ("asfl", "sfl-best")]
    write_archive(tmp_path / "records.xz", archive_of(*runs, trained("epsl", [0.1])))
    measured = asfl(*words, "--from", "records.xz", "--page", "which.md")
    assert measured.returncode == 0, measured.stderr
    assert "Measured: updates to" in measured.stdout
    assert "not there with every seed: epsl" in measured.stdout
    assert "fedavg" not in measured.stdout  # it wasn't trained
    assert (tmp_path / "which.md").read_text("utf-8").startswith("# Which scheme should I use?")
    data = json.loads(asfl(*words, "--from", "records.xz", "--json").stdout)
    assert data["best"] in data["measured"]["updates"]
    assert_refused(asfl("advise", "dmo"), "did you mean 'demo'?")
    assert_refused(asfl("advise", "--from", "gone.xz"), "can't read gone.xz")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_front_is_what_no_other_beats_in_both(costs: list[tuple[int, int]]) -> None:
    places = [Place(str(i), "", Statistic.of([d]), Statistic.of([e])) for i, (d, e) in enumerate(costs)]
    front = {(one.delay_s.median, one.energy_j.median) for one in front_of(places)}
    unbeaten = {
        one for one in costs if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in costs)
    }  # fmt: skip
    assert front == unbeaten
    assert not any(math.isnan(delay) for delay, _ in front)
