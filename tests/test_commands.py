"""The commands as a person runs them: profile, scenario, version, help; and what they draw."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asfl.budgets import achievable_budgets, resolve_budgets
from asfl.config import load_config
from asfl.profile import load_profile, shipped_profiles
from asfl.report.world import WorldView, draw_world
from asfl.world import World
from conftest import Asfl, assert_refused

PNG = b"\x89PNG\r\n\x1a\n"


def test_import_is_light() -> None:
    """`import asfl` loads neither PyTorch nor anything else that is slow."""
    code = "import sys, asfl; print({'torch', 'scipy', 'matplotlib', 'pydantic', 'numpy'} & sys.modules.keys())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_every_public_name_exists() -> None:
    import asfl

    for name in asfl.__all__:
        assert getattr(asfl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = asfl.nothing


def test_profile_as_table_json_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    table = asfl("profile", "vgg19-cifar100")
    assert table.returncode == 0, table.stderr
    assert "conv16" in table.stdout
    result = asfl("profile", "resnet50-cifar100", "--json", "--plot", "deep/profile.png")
    data = json.loads(result.stdout)
    profile = load_profile("resnet50-cifar100")
    assert data["param_bits"] == profile.param_bits.tolist()
    assert [row["cut"] for row in data["cuts"]] == list(range(1, 50))
    for row in data["cuts"]:
        assert row["client_forward_flops"] == sum(data["forward_flops"][: row["cut"]])
        assert row["server_backward_flops"] == sum(data["backward_flops"][row["cut"] :])
    assert (tmp_path / "deep" / "profile.png").read_bytes().startswith(PNG)
    assert asfl("profile", "--list").stdout.split() == list(shipped_profiles())


def test_scenario_as_table_json_and_picture(asfl: Asfl, tmp_path: Path) -> None:
    result = asfl("scenario", "paper-cifar100", "--plot", "world.svg")
    assert result.returncode == 0, result.stderr
    assert "budgets per round: 20.0 s for the round, 500 mJ for each client" in result.stdout
    assert b"<svg" in (tmp_path / "world.svg").read_bytes()
    data = json.loads(asfl("scenario", "demo", "--json", "--set", "scenario.clients=3").stdout)
    assert np.shape(data["delay_s"]) == (3, 6)


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_world_gives_the_same_picture(asfl: Asfl, tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        asfl("scenario", "demo", "--plot", f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_measured_trace_from_file_to_picture(asfl: Asfl, tmp_path: Path) -> None:
    snr = 10 + 5 * np.random.default_rng(1).standard_normal((8, 50))
    np.savez(tmp_path / "trace.npz", snr_db=snr, dt_s=1.0)
    options = ("--set", "scenario.channel.kind=trace", "--set", "scenario.channel.trace_file=trace.npz")
    result = asfl("scenario", "demo", *options, "--plot", "world.png")
    assert result.returncode == 0, result.stderr
    assert "measured" in result.stdout
    assert (tmp_path / "world.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scenario", "dmo"), "did you mean 'demo'?"),
        (("scenario", "--plot", "world.jpeg"), "must end in .png, .svg, .pdf"),
        (("scenario", "--set", "radio.num_rb=2"), "did you mean 'num_rbs'?"),
        (("profile", "vgg91"), "did you mean 'vgg19'?"),
        (("profile", "vgg19-cifar11"), "did you mean 'cifar10'?"),
        (("profile",), "which model?"),
        (("scenario", "--set", "scenario.channel.kind=trace", "--set", "scenario.channel.trace_file=no.csv"), "no.csv"),
    ],
)
def test_mistakes_end_with_one_message(asfl: Asfl, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    assert_refused(asfl(*arguments), words)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_picture_is_named(asfl: Asfl, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(asfl("scenario", "--plot", "file/world.png"), "can't write file/world.png")


def test_unknown_options_exit_with_two(asfl: Asfl) -> None:
    for arguments in (("scenario", "--plott", "x.png"), ("cots",)):
        result = asfl(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_version_and_help(asfl: Asfl) -> None:
    import asfl as package

    assert asfl("--version").stdout.strip() == f"asfl {package.__version__}"
    assert "scenario" in asfl("--help").stdout


def test_auto_budgets_are_what_the_fair_policy_achieves() -> None:
    """A larger quantile is looser; a budget that is given stays as it is."""
    world = World.of(load_config("demo").config)
    auto = resolve_budgets(world)
    loose = achievable_budgets(World.of(load_config("demo", ["decision.auto_budget_quantile=0.95"]).config))
    assert 0 < auto.delay_s < loose.delay_s
    assert 0 < auto.energy_j < loose.energy_j
    fixed = resolve_budgets(World.of(load_config("demo", ["decision.delay_budget_s=3"]).config))
    assert fixed.delay_s == 3
    assert fixed.energy_j == auto.energy_j


def test_the_picture_shows_each_client_by_itself() -> None:
    """The delay drawn for a client is what a round with it alone, at the same share and mean gain, takes."""
    from dataclasses import replace

    from asfl.costs import round_cost
    from asfl.decision import Decision

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
    assert len(draw_world(view).axes) == 5
