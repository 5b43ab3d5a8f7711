"""`asfl decide` as a radio engineer uses it: a round file in, a decision out; and many rounds in a row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import plain_objective

from asfl.config import Config, DecisionRules, load_config
from asfl.config.errors import AsflError
from asfl.costs.modelled import round_cost
from asfl.costs.round import CostEquations, Decision, check_decision
from asfl.costs.world import World, budgets_of_round, resolve_budgets
from asfl.optimize import Rules
from asfl.optimize.problem import queue_weights
from asfl.optimize.roundfile import parse_round
from asfl.results import theory
from asfl.runs.play import Playthrough, play, play_all
from asfl.schemes import ON_REQUEST, SCHEMES, scheme_named, split_names, usual_schemes
from asfl.schemes.base import rules_of, switches_of
from conftest import Asfl, assert_refused

SHIPPED = [
    "asfl",
    "asfl-joint",
    "asfl-plus",
    "fedavg",
    "sl",
    "sl-best",
    "sfl",
    "sfl-best",
    "acc-sfl",
    "epsl",
    "sfl-cut2",
    "sfl-cut3",
    "asfl-pmax",
    "asfl-prand",
    "asfl-rbrand",
    "central",
    "best-gains",
    "equal-error",
    "adaptsfl",
    "hasfl",
    "cse-fsl",
    "fsl-sage",
    "ampere",
]
VARIANTS = [
    "asfl:sync=on",
    "asfl:quant=on",
    "asfl:rate=on",
    "asfl:mix=on",
    "epsl:share=0",
    "epsl:share=1",
    "fedavg:bits=8",
    "sfl-best:bits=8",
    "sfl-best:mix=on",
    "sfl-best:bits=8,mix=on",
    "sfl-best:bits=4,mix=on",
    "best-gains:clients=0.75",
    "asfl-plus:sync=off",
    "asfl-plus:quant=off",
    "asfl-plus:rate=off",
    "asfl-plus:mix=off",
]
ALL_SCHEMES = [*SHIPPED, *VARIANTS]


def _round(**rules: Any) -> dict[str, Any]:
    return {
        "round": {
            "profile": "vgg19-cifar100",
            "radio": {"num_rbs": 4},
            "path_gain": [6e-13, 7e-14, 2e-14],
            "channel_gain": [8e-13, 5e-14, 2e-14],
            "cpu_hz": [1.1e9, 1.4e9, 1.6e9],
            "previous_cut": 8,
        },
        "queues": {"delay": 0.3, "energy": [0.1, 0.2, 0.3]},
        "learning": {"layer_spread": [0.01] * 19, "layer_norm2": [1.0] * 19, "update_norm2": [1.0, 0.5, 2.0]},
        "rules": {
            "delay_budget_s": 20,
            "energy_budget_j": 2,
            "outage_s": "off",
            "overheads": "free",
            "queue_rule": "printed",
            "participation_floor": 0,
            **rules,
        },
    }


def _write(folder: Path, data: Any) -> Path:
    (folder / "round.json").write_text(json.dumps(data))
    return folder / "round.json"


@pytest.mark.parametrize("solver", ["bcd", "joint"])
@pytest.mark.parametrize("form", ["drift", "per_round_budgets"])
def test_a_round_file_is_decided(asfl: Asfl, tmp_path: Path, solver: str, form: str) -> None:
    data = _round(form=form)
    result = asfl("decide", _write(tmp_path, data), "--solver", solver, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    decision = Decision(answer["cut"], np.array(answer["rb_count"], float), np.array(answer["tx_power_w"]))
    check_decision(decision, 19, 4, 1.5)
    problem = parse_round(data)
    assert answer["objective"] == pytest.approx(plain_objective(problem, decision))
    assert answer["expected"]["delay_s"] == pytest.approx(float(round_cost(problem.round, decision).delay_s))
    assert answer["seconds"] > 0
    assert answer["iterations"] >= 1
    if form == "drift":
        values = [step["objective"] for step in answer["trace"]]
        assert values == sorted(values, reverse=True) or solver == "joint"
    over = [energy > 2 for energy in answer["expected"]["energy_j"]]
    assert answer["feasible"] == (answer["expected"]["delay_s"] <= 20 and not any(over))
    assert answer["feasible"] == (answer["missed_budgets"] == {})


def test_a_decided_round_can_be_costed(asfl: Asfl, tmp_path: Path) -> None:
    """The answer of `decide` is the decision of `cost`."""
    answer = json.loads(asfl("decide", _write(tmp_path, _round()), "--json").stdout)
    decided = {**_round(), "decision": {key: answer[key] for key in ("cut", "rb_count", "tx_power_w")}}
    cost = json.loads(asfl("decide", _write(tmp_path, decided), "--cost", "--json").stdout)
    assert cost == answer["expected"]


def test_table_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("decide", _write(tmp_path, _round()), "--plot", "decision.png")
    assert result.returncode == 0, result.stderr
    assert "cut" in result.stdout
    assert "picture: decision.png" in result.stdout
    assert (tmp_path / "decision.png").read_bytes().startswith(b"\x89PNG")


def test_a_round_is_a_trace_too(asfl: Asfl, tmp_path: Path) -> None:
    """As long as is expected, or as was charged in all rounds: a process for each scheme."""
    result = asfl("decide", _write(tmp_path, _round()), "--plot", "round.json", "--json")
    assert _ends_s(tmp_path / "round.json") == {0: pytest.approx(json.loads(result.stdout)["expected"]["delay_s"])}
    words = ("--rounds", 3, "--schemes", "asfl,acc-sfl", "--set", "decision.timing=overlap")
    result = asfl("decide", *words, "--plot", "rounds.json", "--json")
    charged = [3 * runs[0]["delay_s"] for runs in json.loads(result.stdout)["schemes"].values()]
    assert _ends_s(tmp_path / "rounds.json") == {0: pytest.approx(charged[0]), 1: pytest.approx(charged[1])}
    result = asfl("decide", "--rounds", 1, *words[2:3], "asfl", *words[4:], "--plot", "round.svg")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "round.svg").exists()
    assert_refused(asfl("decide", "--rounds", 1, "--plot", "x.txt"), "or in .json for a trace")


def _ends_s(file: Path) -> dict[int, float]:
    """By process."""
    shown = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    ends: dict[int, float] = {}
    for event in shown:
        ends[event["pid"]] = max(ends.get(event["pid"], 0.0), (event["ts"] + event["dur"]) / 1e6)
    return ends


def test_what_is_left_out_is_as_in_a_run() -> None:
    """Rules are the configuration's; "auto" budgets are what the fair policy takes in the round that is known."""
    clients = {"path_gain": [1e-12] * 10, "channel_gain": [1e-12] * 10, "cpu_hz": [1e9] * 10}
    problem = parse_round({"round": {"profile": "vgg19-cifar100", **clients}})
    assert problem.round.charged_samples == Config().charged_samples
    assert problem.round.equations == CostEquations.of(DecisionRules())
    assert problem.rules == Rules.of(DecisionRules(), 10, 8, budgets_of_round(problem.round, DecisionRules()))
    assert problem.rules.min_participants == 4
    assert problem.rules.participation_floor == pytest.approx(0.4)
    assert (problem.queues.energy == 0).all()
    assert (problem.learning.update_norm2 == 1).all()
    assert problem.round.outage_s == 3 * problem.rules.delay_budget_s


def test_mistakes_on_the_command_line(asfl: Asfl) -> None:
    assert_refused(asfl("decide"), "give either a round file, or --rounds")
    assert_refused(asfl("decide", "--rounds", 2, "--schemes", "asf"), "unknown scheme 'asf'")
    assert_refused(asfl("decide", "--rounds", 2, "--preset", "dmo"), "did you mean 'demo'?")
    assert_refused(asfl("decide", "--rounds", 2, "--plot", "x.gif"), "must end in")


def test_the_schemes_are_those_of_the_comparison() -> None:
    assert list(SCHEMES) == SHIPPED


def test_many_rounds_of_all_schemes(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("decide", "--rounds", 2, "--preset", "demo", "--seeds", 2, "--plot", "play.png")
    assert result.returncode == 0, result.stderr
    for name in usual_schemes():
        assert (name[:8] in result.stdout) == (name != "central")  # which has no radio
    assert not [name for name in ON_REQUEST if name in result.stdout]
    assert (tmp_path / "play.png").exists()
    data = json.loads(asfl("decide", "--rounds", 2, "--schemes", "asfl,fedavg", "--json").stdout)
    assert list(data["schemes"]) == ["asfl", "fedavg"]
    assert data["schemes"]["fedavg"][0]["cut"] is None  # it has none


@pytest.fixture(scope="module")
def played() -> dict[str, Playthrough]:
    config = load_config("small-cifar10", ["scenario.clients=10"]).config
    return {result.scheme: result for result in play_all(config, ALL_SCHEMES, [3], 15)}


@pytest.mark.parametrize("name", ALL_SCHEMES)
def test_every_scheme_plays_valid_rounds(played: dict[str, Playthrough], name: str) -> None:
    rounds = played[name].rounds
    assert len(rounds) == 15
    for one in rounds:
        # 10 clients, 8 blocks: at least half of those, or two where it is decided how many take part
        least = 2 if switches_of(SCHEMES[name]).rate else 4
        assert least <= one.scheduled_count <= 8 or name == "central"
        for arrived, energy_j, count in zip(one.arrived, one.energy_j, one.rb_count, strict=True):
            assert count > 0 or (arrived == 0 and energy_j == 0)
        assert np.isfinite(one.delay_s)


def test_borrowed_schemes_have_the_resources_of_asfl(played: dict[str, Playthrough]) -> None:
    """The paper: FedAvg, SL and SFL use ASFL's blocks and powers, so they have its error rate and its arrivals."""
    for name in ("fedavg", "sl", "sl-best", "sfl", "sfl-best", "fedavg:bits=8", "sfl-best:bits=8"):
        for borrowed, own in zip(played[name].rounds, played["asfl"].rounds, strict=True):
            assert np.array_equal(np.sign(borrowed.rb_count), np.sign(own.rb_count))
            assert borrowed.delay_queue == own.delay_queue
    for name in ("fedavg", "sfl-best"):  # nobody is cut off by an outage here
        for borrowed, own in zip(played[name].rounds, played["asfl"].rounds, strict=True):
            assert borrowed.arrived == own.arrived


def test_the_best_versions_of_baselines_are_faster(played: dict[str, Playthrough]) -> None:
    """The cut with the shortest round instead of a random one; all blocks for the client whose turn it is."""
    for name in ("sl", "sfl"):
        for best, random in zip(played[f"{name}-best"].rounds, played[name].rounds, strict=True):
            assert best.delay_s <= random.delay_s * (1 + 1e-9)


def test_the_ceiling_costs_nothing(played: dict[str, Playthrough]) -> None:
    assert all(one.delay_s == 0 and not any(one.energy_j) for one in played["central"].rounds)


def test_fixed_cuts_stay_and_ablations_differ(played: dict[str, Playthrough]) -> None:
    assert {one.cut for one in played["sfl-cut2"].rounds} == {2}
    assert {one.cut for one in played["sfl-cut3"].rounds} == {3}
    assert all(one.resplit_delay_s == 0 for one in played["sfl-cut2"].rounds)
    assert len({played[name].summary()["energy_j"] for name in ("asfl", "asfl-pmax", "asfl-prand", "asfl-rbrand")}) == 4


def test_same_seed_same_rounds() -> None:
    config = load_config("demo").config
    for name in ("asfl", "acc-sfl", "asfl-rbrand", "adaptsfl", "hasfl"):
        first, second = (play_all(config, [name], [5], 6)[0] for _ in range(2))
        assert [one.delay_s for one in first.rounds] == [one.delay_s for one in second.rounds]
        other = play_all(config, [name], [6], 6)[0]
        assert [one.delay_s for one in first.rounds] != [one.delay_s for one in other.rounds]


@pytest.mark.parametrize("rule", ["printed", "standard"])
@pytest.mark.parametrize("scheme", ["asfl", "asfl-pmax", "sfl-cut3"])
def test_the_bounds_hold_along_a_run(scheme: str, rule: str) -> None:
    """Lemma 4, Theorem 2 and its a-posteriori form are never below what was measured."""
    config = load_config("small-cifar10", [f"decision.queue_rule={rule}", "decision.queue_memory=0.6"]).config
    world = World.of(config)
    budgets = resolve_budgets(world)
    rules = rules_of(config, budgets)
    rounds = list(play(world, SCHEMES[scheme], 40, budgets))
    excess = (
        np.array([[one.delay_s / budgets.delay_s, *np.divide(one.energy_j, budgets.energy_j)] for one in rounds]) - 1
    )
    queues = np.array([[0.0] * 11, *([one.delay_queue, *one.energy_queue] for one in rounds)])
    keep, add = queue_weights(rules.queue_rule, rules.queue_memory)
    most = max(one.delay_s for one in rounds) / budgets.delay_s, max(map(max, (r.energy_j for r in rounds)))
    limit = np.array([max(1.0, most[0] - 1), *[max(1.0, most[1] / budgets.energy_j - 1)] * 10])  # Lemma 3, normalised
    measured = excess.mean(axis=0)
    assert (measured <= theory.average_excess_bound(queues, keep=keep, add=add) + 1e-9).all()
    if rule == "printed":
        assert (queues <= limit + 1e-9).all()
        assert all(
            value <= theory.printed_violation_bound(bound, 40, 0.6) + 1e-9
            for value, bound in zip(measured.tolist(), limit.tolist(), strict=True)
        )


def test_a_budget_that_no_configuration_could_have_is_refused() -> None:
    config = load_config("demo", ["training.local_steps=1000000000"]).config
    with pytest.raises(AsflError, match=r"outage_s = .* must be a number > 0 and ≤ 1e9"):
        rules_of(config, resolve_budgets(World.of(config)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sfl-best:bits=7", "sfl-best:'bits=7' must be one of 4, 8, 16, 32"),
        ("sfl-best:bit=8", "'bit=8' is no parameter of scheme sfl-best: did you mean 'bits'?"),
        ("epsl:share=1.1", "epsl:'share=1.1' must be a number from 0 to 1"),
        ("sl:bits=8", "'bits=8' is no parameter of scheme sl: it has none"),
    ],
)
def test_parameters_that_a_scheme_does_not_have_are_refused(name: str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        scheme_named(name)
    assert words in str(caught.value)


def test_a_scheme_with_parameters_has_one_name() -> None:
    for name in ("sfl-best:mix=on,bits=4", "sfl-best:bits=4,mix=on"):
        assert scheme_named(name).name == "sfl-best:bits=4,mix=on"
    assert scheme_named("sfl-best:bits=32,mix=off") == scheme_named("sfl-best")
    assert split_names(["asfl,sfl-best:bits=4,mix=on", "sl , asfl"]) == ["asfl", "sfl-best:bits=4,mix=on", "sl"]
    own = load_config(
        "demo", ["schemes.epsl:share=0.3.learning_rate=0.5", "schemes.fedavg:bits=8.local_steps=2"]
    ).config
    assert own.for_scheme("epsl:share=0.3").training.learning_rate == 0.5
    assert own.for_scheme("fedavg:bits=8").training.local_steps == 2
