"""`asfl cost` on the round file: the documented keys, the documented meaning, and every kind of mistake."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from asfl.config.errors import AsflError
from asfl.config.tree import RoundRules
from asfl.optimize.problem import Rules
from asfl.optimize.roundfile import json_schema, parse_round
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
        "profile": "vgg19-cifar100",
        "radio": {"num_rbs": 8},
        "compute": {"charged_samples": 64},
        "clients": {
            "path_gain": [6e-13, 7e-14, 2e-14],
            "channel_gain": [8e-13, 5e-14, 2e-14],
            "cpu_hz": [1.1e9, 1.4e9, 1.6e9],
        },
        "previous_cut": 4,
        "equations": "corrected",
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


def _check(data: Any) -> None:
    parsed = parse_round(data)
    parsed.to_round()
    parsed.to_decision()


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
    file = _write(tmp_path, _with("decision.tx_power_w", [0.7, 0, 0]))
    assert json.loads(asfl("decide", file, "--cost", "--json").stdout)["delay_s"] is None
    assert "client 1 has resource blocks but no power" in asfl("decide", file, "--cost").stdout


def test_printed_reading_and_its_switches() -> None:
    printed = parse_round(_with("equations", "printed")).to_round().equations
    assert (printed.uplink_power, printed.gradient_bits) == ("each_rb", "next_layer")
    mixed = parse_round({**_with("equations", "printed"), "gradient_bits": "activations"}).to_round().equations
    assert (mixed.uplink_power, mixed.gradient_bits) == ("each_rb", "activations")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("profle", 3, "unknown key 'profle': did you mean 'profile'?"),
        ("decision.cutt", 3, "unknown key 'decision.cutt': did you mean 'cut'?"),
        ("radio.num_rb", 3, "unknown key 'radio.num_rb'"),
        ("decision.cut", 0, "decision.cut = 0"),
        ("decision.cut", 19, "decision.cut = 19 must be 1 … 18"),
        ("decision.cut", 2.5, "decision.cut = 2.5"),
        ("previous_cut", 19, "previous_cut = 19 must be 1 … 18"),
        ("decision.rb_count", [4, 5, 0], "decision.rb_count gives out 9 resource blocks, but radio.num_rbs = 8"),
        ("decision.rb_count", [1.5, 1, 1], "decision.rb_count[0] = 1.5 must be a whole number"),
        ("decision.rb_count", [3, 5], "decision.rb_count has 2 entries, but there are 3 clients"),
        ("decision.rb_count", [-1, 5, 0], "decision.rb_count[0] = -1"),
        ("decision.tx_power_w", [-0.1, 1, 1], "decision.tx_power_w[0] = -0.1"),
        ("decision.tx_power_w", [1.6, 1, 1], "decision.tx_power_w[0] = 1.6 must be 0 … 1.5 W"),
        ("decision.tx_power_w", [float("nan"), 1, 1], "decision.tx_power_w[0] = nan"),
        ("clients.channel_gain", [1e-13, float("inf"), 0], "clients.channel_gain[1] = inf"),
        ("clients.path_gain", [1e-13], "clients.path_gain has 1 entries, but there are 3 clients"),
        ("clients.cpu_hz", [0, 1e9, 1e9], "clients.cpu_hz[0] = 0"),
        ("clients.cpu_hz", [], "clients.cpu_hz = []"),
        ("clients", {}, "clients.path_gain is missing"),
        ("arrived", [1, 0], "arrived has 2 entries"),
        ("arrived", [1, 0, 2], "arrived[2] = 2"),
        ("equations", "fixed", 'must be one of "corrected", "printed"'),
        ("profile", "vgg91-cifar100", "unknown architecture 'vgg91'"),
        ("profile", {"param_bits": [1, 2]}, "profile.activation_bits is missing"),
        ("compute.charged_samples", 0, "compute.charged_samples = 0"),
        ("decision", None, "decision is missing"),
    ],
)
def test_mistakes_name_the_field(path: str, value: Any, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        _check(_with(path, value))
    assert words in str(caught.value)


def test_a_budget_that_no_configuration_could_have_is_named() -> None:
    """A plain policy over a link that is next to nothing takes longer than any number of ours."""
    with pytest.raises(AsflError, match=r"delay_budget_s = 1e\+40 must be a number ≥ 0 and ≤"):
        Rules.of(RoundRules(), 3, 3, delay_budget_s=1e40, energy_budget_j=1.0)


def test_columns_of_different_length_are_named() -> None:
    columns = {"param_bits": [1, 2], "activation_bits": [1, 2, 3], "forward_flops": [1, 2], "backward_flops": [1, 2]}
    with pytest.raises(AsflError, match="param_bits 2, activation_bits 3"):
        parse_round(_with("profile", columns)).to_round()


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
    for wrong in (_with("profle", 3), _with("decision.cut", 0), _with("decision.tx_power_w", [-1])):
        assert not validator.is_valid(wrong)


def test_documented_schema_and_example_are_current() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert json.loads((docs / "round-file.schema.json").read_text("utf-8")) == json_schema()
    _check(json.loads((docs / "examples" / "round.json").read_text("utf-8")))
