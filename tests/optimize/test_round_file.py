"""`asfl decide --cost` on the round file: the documented keys, the documented meaning, and every kind of mistake."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.costs.round import PRINTED
from asfl.costs.world import World
from asfl.optimize import Problem, Solution, solve
from asfl.optimize.roundfile import as_json, json_schema, parse_round, read_round_file
from asfl.runs.play import play
from asfl.schemes import scheme_named
from asfl.schemes.base import budgets_of
from conftest import Asfl, assert_refused

OUTPUT_KEYS = {
    "delay_s",
    "resplit_delay_s",
    "uplink_stage_delay_s",
    "server_stage_delay_s",
    "energy_j",
    "packet_error_rate",
    "uplink_rate_bps",
    "downlink_rate_bps",
}


def _round() -> dict[str, Any]:
    return {
        "round": {
            "profile": "vgg19-cifar100",
            "path_gain": [6e-13, 7e-14, 2e-14],
            "channel_gain": [8e-13, 5e-14, 2e-14],
            "cpu_hz": [1.1e9, 1.4e9, 1.6e9],
            "radio": {"num_rbs": 8},
            "previous_cut": 4,
        },
        "rules": {"overheads": "free"},
        "decision": {"cut": 3, "rb_count": [3, 5, 0], "tx_power_w": [0.7, 1.5, 0]},
    }


def _with(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(_round())
    *parents, key = path.split(".")
    target = data
    for parent in parents:
        target = target.setdefault(parent, {})
    target[key] = value
    return data


def _write(folder: Path, data: Any) -> Path:
    file = folder / "round.json"
    file.write_text(json.dumps(data))
    return file


def test_cost_of_a_round_file(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("decide", _write(tmp_path, _round()), "--cost", "--json")
    assert result.returncode == 0, result.stderr
    cost = json.loads(result.stdout)
    assert cost.keys() >= OUTPUT_KEYS
    assert cost["kind"] == "expected"
    assert cost["delay_s"] == pytest.approx(
        cost["resplit_delay_s"] + cost["uplink_stage_delay_s"] + cost["server_stage_delay_s"]
    )
    assert cost["energy_j"][2] == 0
    assert cost["packet_error_rate"][2] == 1
    # The cut shrinks from 4 to 3: layer 4 (128·128·9 weights, 2·128 of its norm) goes up from whoever has blocks.
    layer_bits = 32 * (128 * 128 * 9 + 2 * 128)
    assert cost["resplit_delay_s"] == pytest.approx(max(layer_bits / np.array(cost["uplink_rate_bps"][:2])))


def test_arrivals_make_it_realised(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("decide", _write(tmp_path, {**_round(), "arrived": [1, 0, 0]}), "--cost", "--json")
    cost = json.loads(result.stdout)
    assert cost["kind"] == "realised"
    assert cost["parts"]["client_backward_delay_s"][1] == 0
    assert cost["parts"]["server_delay_s"][1] == 0
    assert cost["parts"]["client_forward_delay_s"][1] > 0


def test_the_table_is_for_people(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("decide", _write(tmp_path, _round()), "--cost")
    assert result.returncode == 0
    assert "expected delay" in result.stdout
    assert "cut 3 (before: 4)" in result.stdout


def test_a_dead_link_is_null_in_json_and_said_in_words(asfl: Asfl, tmp_path: Path) -> None:
    never = _with("decision.tx_power_w", [0.7, 0, 0])
    file = _write(tmp_path, {**never, "rules": {"outage_s": "off"}})
    assert json.loads(asfl("decide", file, "--cost", "--json").stdout)["delay_s"] is None
    assert "client 1 has resource blocks but no power" in asfl("decide", file, "--cost").stdout


def test_printed_reading_and_its_switches() -> None:
    printed = parse_round(_with("rules.equations", "printed"))
    assert printed.round.equations == PRINTED
    mixed = parse_round({**_round(), "rules": {"equations": "printed", "gradient_bits": "activations"}}).round
    assert (mixed.equations.uplink_power, mixed.equations.gradient_bits) == ("each_rb", "activations")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rund", 3, "unknown key 'rund': did you mean 'round'?"),
        ("profile", "vgg19", "unknown key 'profile': did you mean 'round.profile'?"),
        ("rules.qeue_rule", "printed", "did you mean 'queue_rule'?"),
        ("rules.delay_budget_s", -1, 'rules.delay_budget_s = -1 must be a number > 0 and ≤ 1e9 or "auto", in s'),
        ("rules.min_participants", 4, "rules.min_participants = 4 is more than can be served: 3 clients"),
        ("queues.energy", [1, 2], "queues.energy has 2 entries, but there are 3 clients"),
        ("learning.layer_spread", [1, 2], "learning.layer_spread has 2 entries, but there are 19 layers"),
        ("round.outage_s", 3, "round.outage_s: it follows from the rules"),
        ("learning.update_scale", 0, "learning.update_scale = 0"),
        ("rules.delay_budget", 1, "did you mean 'delay_budget_s'?"),
        ("rules.queue_memory", 2, "rules.queue_memory = 2"),
        ("rules.form", "drif", "rules.form = 'drif' must be one of"),
        ("rules.penalty_weight", float("nan"), "rules.penalty_weight = nan"),
        ("round", None, "round = None must be a section"),
        ("decision.cutt", 3, "unknown key 'decision.cutt': did you mean 'cut'?"),
        ("round.radio.num_rb", 3, "unknown key 'round.radio.num_rb'"),
        ("decision.cut", 0, "decision.cut = 0"),
        ("decision.cut", 19, "decision.cut = 19 must be 1 … 18"),
        ("decision.cut", 2.5, "decision.cut = 2.5"),
        ("round.previous_cut", 19, "round.previous_cut = 19 must be 1 … 18"),
        ("decision.rb_count", [4, 5, 0], "decision.rb_count gives out 9 resource blocks, but radio.num_rbs = 8"),
        ("decision.rb_count", [1.5, 1, 1], "decision.rb_count[0] = 1.5 must be a whole number"),
        ("decision.rb_count", [3, 5], "decision.rb_count has 2 entries, but there are 3 clients"),
        ("decision.rb_count", [-1, 5, 0], "decision.rb_count[0] = -1"),
        ("decision.tx_power_w", [-0.1, 1, 1], "decision.tx_power_w[0] = -0.1"),
        ("decision.tx_power_w", [1.6, 1, 1], "decision.tx_power_w[0] = 1.6 must be 0 … 1.5 W"),
        ("decision.tx_power_w", [float("nan"), 1, 1], "decision.tx_power_w[0] = nan"),
        ("round.channel_gain", [1e-13, float("inf"), 0], "round.channel_gain[1] = inf"),
        ("round.path_gain", [1e-13], "need one entry per client, but they have path_gain 1"),
        ("round.cpu_hz", [0, 1e9, 1e9], "round.cpu_hz[0] = 0"),
        ("round.cpu_hz", [], "path_gain 3, channel_gain 3, cpu_hz 0"),
        ("round", {"profile": "vgg19"}, "round.path_gain is missing"),
        ("arrived", [1, 0], "arrived has 2 entries"),
        ("arrived", [1, 0, 2], "arrived[2] = 2"),
        ("rules.equations", "fixed", 'must be one of "corrected", "printed"'),
        ("round.profile", "vgg91-cifar100", "unknown architecture 'vgg91'"),
        ("round.profile", {"param_bits": [1, 2]}, "round.profile.activation_bits is missing"),
        ("round.charged_samples", 0, "round.charged_samples = 0"),
        ("decision", None, "decision is missing"),
    ],
)
def test_mistakes_name_the_field(path: str, value: Any, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        parse_round(_with(path, value)).cost()
    assert words in str(caught.value)


def test_columns_of_different_length_are_named() -> None:
    columns = {"param_bits": [1, 2], "activation_bits": [1, 2, 3], "forward_flops": [1, 2], "backward_flops": [1, 2]}
    with pytest.raises(AsflError, match="param_bits 2, activation_bits 3"):
        parse_round(_with("round.profile", columns))


def test_mistakes_on_the_command_line(asfl: Asfl, tmp_path: Path) -> None:
    assert_refused(asfl("decide", _write(tmp_path, _with("decision.cut", 0)), "--cost", "--json"), "decision.cut = 0")
    (tmp_path / "round.json").write_text("{")
    assert_refused(asfl("decide", "round.json", "--cost"), "round.json is not valid JSON")
    assert_refused(asfl("decide", "missing.json", "--cost"), "missing.json: no such file")
    assert_refused(asfl("decide", "--cost"), "which round?")
    (tmp_path / "round.json").write_text("[]")
    assert_refused(asfl("decide", "round.json", "--cost"), "a round file is a JSON object")


def test_the_schema_accepts_what_we_accept_and_refuses_typos() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(_round())
    for path, wrong in {"rund": 3, "round.outage_s": 3, "decision.cut": 0, "decision.tx_power_w": [-1]}.items():
        assert not validator.is_valid(_with(path, wrong))


def test_documented_schema_and_example_are_current() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert json.loads((docs / "round-file.schema.json").read_text("utf-8")) == json_schema()
    read_round_file(docs / "examples" / "round.json").cost()


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("asfl", []),
        ("asfl", ["decision.equations=printed", "decision.queue_rule=printed", "decision.outage_s=off"]),
        ("asfl-plus", ["decision.solver=printed"]),
        ("asfl-plus", ["scenario.channel.blocks=selective"]),
        ("asfl:rate=on", ["radio.link=nr", "decision.delay_budget_s=1"]),
    ],
)
def test_a_round_of_a_run_and_the_same_round_in_a_file_are_decided_alike(scheme: str, settings: list[str]) -> None:
    """Bit for bit, through text; with queues, drift, noise, prices and what clients hold as they were in the run."""
    world, player = World.of(load_config("demo", settings).config), scheme_named(scheme)
    problems: list[Problem] = []

    def noted(problem: Problem, solver: str | None) -> Solution:
        problems.append(problem)
        return solve(problem, solver)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asfl.schemes.base.solve", noted)
        list(play(world, player, 4, budgets_of(world, player)))
    for problem in problems:
        file = parse_round(json.loads(json.dumps(as_json(problem), allow_nan=False)))
        assert file.rules == problem.rules
        ran, read = solve(problem), solve(file)
        assert read.objective == ran.objective
        assert read.trace == ran.trace
        assert as_json(replace(file, reference=read.decision)) == as_json(replace(problem, reference=ran.decision))
