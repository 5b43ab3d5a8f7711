"""The commands as a person runs them: profile, scenario, version, help; and what they draw."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import asfl.cli
from asfl.config import load_config
from asfl.costs.modelled import FEDAVG
from asfl.costs.world import World, fair_policy, resolve_budgets
from asfl.models.load import load_profile, shipped_profiles
from asfl.results.charts.world import WorldView, world_chart
from conftest import Asfl, assert_refused

PNG = b"\x89PNG\r\n\x1a\n"


LIGHT = """
import sys, asfl
slow = {"numpy", "pydantic", "scipy", "matplotlib", "torch", "pandas", "plotly", "rich.table"}
print(slow & sys.modules.keys(), file=sys.stderr)
import asfl.cli
for option in ("--version", "--help"):
    sys.argv = ["asfl", option]
    try:
        asfl.cli.main()
    except SystemExit:
        print(slow & sys.modules.keys(), file=sys.stderr)
"""


def test_import_version_and_help_load_nothing_that_is_slow() -> None:
    shown = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert shown.stderr.split() == ["set()"] * 3


def test_no_module_needs_unix_to_be_imported() -> None:
    unix = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty"}
    for file in Path(asfl.cli.__file__).parents[1].rglob("*.py"):
        for statement in ast.parse(file.read_text("utf-8")).body:
            names = {alias.name for alias in statement.names} if isinstance(statement, ast.Import) else set()
            assert not unix & names, file


def test_profile_as_table_json_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    table = asfl("explain", "vgg19-cifar100")
    assert table.returncode == 0, table.stderr
    assert "conv16" in table.stdout
    result = asfl("explain", "resnet50-cifar100", "--json", "--plot", "deep/profile.png")
    data = json.loads(result.stdout)
    profile = load_profile("resnet50-cifar100")
    assert data["param_bits"] == profile.param_bits.tolist()
    assert [row["cut"] for row in data["cuts"]] == list(range(1, 50))
    for row in data["cuts"]:
        assert row["client_forward_flops"] == sum(data["forward_flops"][: row["cut"]])
        assert row["server_backward_flops"] == sum(data["backward_flops"][row["cut"] :])
    assert (tmp_path / "deep" / "profile.png").read_bytes().startswith(PNG)
    assert list(json.loads(asfl("list", "profiles", "--json").stdout)) == list(shipped_profiles())


def test_scenario_as_table_json_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("scenario", "paper-cifar100", "--plot", "world.svg")
    assert result.returncode == 0, result.stderr
    assert "budgets per round: 20.0 s for the round, 500 mJ for each client" in result.stdout
    assert b"<svg" in (tmp_path / "world.svg").read_bytes()
    data = json.loads(asfl("scenario", "demo", "--json", "--set", "scenario.clients=3").stdout)
    assert np.shape(data["delay_s"]) == (3, 6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scenario", "--plot", "/proc/no/world.png"), "can't write /proc/no/world.png"),
        (("comparr",), "unknown command 'comparr': did you mean 'compare'?"),
        (("scenario", "--plot", "world.jpeg"), "must end in .png, .svg, .pdf"),
        (("scenario", "--set", "radio.num_rb=2"), "did you mean 'num_rbs'?"),
        (("explain", "vgg19-cifar11"), "did you mean 'cifar10'?"),
        (("scenario", "--set", "scenario.channel.kind=trace", "--set", "scenario.channel.trace_file=no.csv"), "no.csv"),
    ],
)
def test_mistakes_end_with_one_message(asfl: Asfl, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    assert_refused(asfl(*arguments), words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("decide", "--rounds", "2", "--solver", "joint"), "--solver"),
        (("decide", "round.json", "--set", "radio.num_rbs=3"), "--set"),
        (("decide", "round.json", "--schema"), "'round.json'"),
        (("decide", "round.json", "--cost", "--rounds", "2"), "--rounds"),
        (("explain", "vgg19", "--docs"), "--docs"),
        (("advise", "--time", "1h", "--page", "x.md"), "--page"),
        (("reproduce", "--from", "records.xz", "--scale", "evidence"), "--scale"),
        (("reproduce", "table3", "--trace", "x.csv"), "--trace"),
        (("report", "runs", "--no-figures", "--port", "1"), "--port"),
        (("fleet", "--set", "scenario.clients=3"), "--set scenario.clients=3"),
        (("sweep", "--over", "radio.num_rbs=3,4", "--set", "radio.num_rbs=5"), "--set radio.num_rbs=5"),
    ],
)
def test_an_option_that_cant_count_is_refused(asfl: Asfl, arguments: tuple[str, ...], option: str) -> None:
    assert_refused(asfl(*arguments), f"error: {option} doesn't count here: ")


@pytest.mark.parametrize(
    "words",
    [("--version",), ("scenario", "demo", "--json"), ("decide", "--rounds", 1, "--schemes", "asfl"), ("decide",)],
)
def test_in_a_process_of_its_own_it_is_the_same(asfl: Asfl, asfl_process: Asfl, words: tuple[object, ...]) -> None:
    """Most tests run the commands in their own process; those that train have such a test beside them."""
    here, there = asfl(*words), asfl_process(*words)
    assert there.returncode == here.returncode
    assert (there.stdout, there.stderr) == (here.stdout, here.stderr)


def test_auto_budgets_are_what_the_fair_policy_achieves() -> None:
    """On average, and no stage longer than an outage; a budget that is given stays as it is."""
    world = World.of(load_config("demo").config)
    auto, fair = resolve_budgets(world), fair_policy(world)
    assert (auto.delay_s, auto.energy_j) == (fair.delay_s, fair.energy_j)
    assert auto.outage_s == auto.own_outage_s == 3 * auto.delay_s
    loose = resolve_budgets(World.of(load_config("demo", ["decision.auto_budget_scale=2"]).config))
    assert (loose.delay_s, loose.energy_j) == (2 * auto.delay_s, 2 * auto.energy_j)
    own_cut = resolve_budgets(world, cuts=(2,))
    assert own_cut.delay_s != auto.delay_s
    whole_model = resolve_budgets(world, FEDAVG)
    assert (whole_model.delay_s, whole_model.outage_s) == (auto.delay_s, auto.outage_s)
    assert whole_model.own_outage_s > auto.outage_s  # its rounds take longer
    assert resolve_budgets(World.of(load_config("demo", ["decision.outage_s=off"]).config)).outage_s == np.inf
    fixed = resolve_budgets(World.of(load_config("demo", ["decision.delay_budget_s=3"]).config))
    assert fixed.delay_s == 3
    assert fixed.energy_j == auto.energy_j


def test_the_picture_shows_each_client_by_itself() -> None:
    """The delay drawn for a client is what a round with it alone, at the same share and mean gain, takes."""
    from dataclasses import replace

    from asfl.costs.modelled import round_cost
    from asfl.costs.round import Decision

    world = World.of(load_config("demo").config)
    view = WorldView.of(world, resolve_budgets(world))
    first = world.begin_round(0)
    client, cut = view.examples()["bad"], 3
    alone = replace(
        first,
        path_gain=first.path_gain[[client]],
        channel_gain=first.path_gain[[client]],
        cpu_hz=first.cpu_hz[[client]],
    )
    share = world.config.radio.num_rbs / world.config.scenario.clients
    cost = round_cost(alone, Decision(cut, np.array([share]), np.array([1.5])), arrived=[1])
    assert view.delay_s[cut - 1, client] == pytest.approx(float(cost.delay_s))
    assert view.cost.energy_j[cut - 1, client] == pytest.approx(cost.energy_j[0])
    assert view.mean_snr_db[client] == min(view.mean_snr_db)
    assert len(world_chart(view).panels) == 4
