"""`asfl advise` with total budgets: what they buy, as table and JSON; mistakes are named."""

import json

import pytest

from conftest import Asfl, assert_refused

SMALL = ("advise", "demo", "--set", "scenario.clients=3", "--set", "radio.num_rbs=3", "--set", "training.batch_size=8")


def test_as_table(asfl: Asfl) -> None:
    shown = asfl(*SMALL, "--time", "1s", "--battery", "0.1,0.2,5")
    assert shown.returncode == 0, shown.stderr
    for words in ("what 1.00 s and 100 mJ to 5.00 J for each client can buy", "asfl-plus", "Held-out", "client 2"):
        assert words in shown.stdout


def test_as_json_it_says_what_is_used_and_what_is_left(asfl: Asfl) -> None:
    shown = asfl(*SMALL, "--schemes", "asfl,fedavg", "--battery", "200 mJ", "--rounds", "5", "--json")
    data = json.loads(shown.stdout)
    for of in data["schemes"].values():
        assert of["time_left_s"] is None
        assert [used + left for used, left in zip(of["energy_j"], of["battery_left_j"], strict=True)] == pytest.approx(
            [0.2] * 3
        )
        assert of["samples"] == pytest.approx(of["updates_per_round"] * of["rounds"] * 8)
        assert (of["first_empty"] is None) == (0 not in of["battery_left_j"])
        assert of["ended_by"] in ("batteries", "rounds")
    assert data["schemes"]["fedavg"]["cut"] is None
    assert data["schemes"]["asfl"]["cut"]["min"] >= 1
    data = json.loads(asfl(*SMALL, "--schemes", "asfl", "--time", "30m", "--rounds", "2", "--json").stdout)
    of = data["schemes"]["asfl"]
    assert of["ended_by"] == "rounds"
    assert of["delay_s"] + of["time_left_s"] == pytest.approx(1800)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--time", "30 volts"), "'30 volts' has the unit 'volts'"),
        (("--battery", "1,2"), "budget.battery_j has 2 numbers for 6 clients"),
        (("--time", "1h", "--schemes", "asfl-pluss"), "did you mean 'asfl-plus'?"),
        (("--time", "1h", "--schemes", "central"), "it has no radio"),
        (("--time", "1h", "--seeds", "2"), "--seeds doesn't count here"),
    ],
)
def test_mistakes_end_with_one_message(asfl: Asfl, arguments: tuple[str, ...], words: str) -> None:
    assert_refused(asfl("advise", "demo", *arguments), words)
