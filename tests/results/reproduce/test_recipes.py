"""`asfl reproduce`: every recipe from plan to page without training, and the real command, tiny."""

import json
import lzma
import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from made_up import leave_run, made_up_round, train_here

from asfl.cli.reproduce import ALL
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.costs.world import Budgets
from asfl.results.reproduce.archive import joined, read_archive, write_archive
from asfl.results.reproduce.page import show_found
from asfl.results.reproduce.recipes import RECIPES, Plan, Scale, on_traces, plan_recipe, usual_seeds, world_name
from asfl.runs.jobs import Job
from asfl.runs.manifest import Manifest
from asfl.schemes import SCHEMES
from conftest import Asfl, assert_refused

TINY = ("training.rounds=4", "training.batch_size=8", "model.width=0.1")


def pretend_all(plan: Plan) -> None:
    """Leave finished runs behind; the earlier a scheme is in the list, the faster and better it is."""
    plan.remember()
    while jobs := open_jobs(plan):
        for job in jobs:
            _pretend(job)


def open_jobs(plan: Plan) -> list[Job]:
    return list({job.folder: job for point in plan.points for job in point.comparison.jobs()}.values())


def _pretend(job: Job) -> None:
    config = job.config.for_scheme(job.scheme)
    place = list(SCHEMES).index(job.scheme.partition(":")[0]) + 20 * (":" in job.scheme)
    records = [
        made_up_round(
            n, (0.9 - 0.02 * place) * min(n / 4, 1.0), delay_s=1.0 + place, cut=None if job.scheme == "fedavg" else n
        )
        for n in range(1, config.training.rounds + 1)
    ]
    facts = {"git_commit": "abcdef0123456789", "cpu_s": 1800.0}
    manifest = Manifest(config, job.scheme, Budgets(1.6, 1.0), 1, facts, job.recorded)
    leave_run(job.folder, manifest, records, finished=True)


def trace_files(folder: Path) -> tuple[Path, Path]:
    """SNR of ten users as UCC's, and relative gains of six as RENEW's."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    table = folder / "ucc.npz"
    np.savez(table, snr_db=rng.normal(10, 3, (10, 20)), dt_s=1.0)
    pilots = folder / "renew.npz"
    np.savez(pilots, relative_gain=rng.exponential(size=(6, 4)), dt_s=0.1)
    return table, pilots


def shows_something_new(name: str) -> bool:
    """Whether no recipe before it in the list has all its kinds of pictures."""
    before = [recipe for other, recipe in RECIPES.items() if list(RECIPES).index(other) < list(RECIPES).index(name)]
    return not {*RECIPES[name].pictures} <= {picture for recipe in before for picture in recipe.pictures}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_from_plan_to_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RECIPES[name]
    if not shows_something_new(name):
        monkeypatch.setattr("asfl.results.reproduce.page.save_figure", lambda *_: None)
    if name == "measured-channel":
        recipe = on_traces(recipe, trace_files(tmp_path / "traces"))
    plan = plan_recipe(recipe, "demo", tmp_path / "out", overrides=TINY, seeds=2)
    assert not (tmp_path / "out").exists()  # a plan writes nothing
    pretend_all(plan)
    found = plan.found()
    findings, pictures, data = show_found(found, tmp_path / "shown")
    assert pictures
    assert all(finding.here for finding in findings)
    assert len(findings) >= len(recipe.claims)
    page = (tmp_path / "shown" / "results.md").read_text("utf-8")
    runs = {(point.world, run.scheme, run.seed) for point in found.points for run in point.runs}
    assert (data["runs"]["commits"], data["runs"]["cpu_hours"]) == (["abcdef012345"], pytest.approx(0.5 * len(runs)))
    claims = [finding.claim for finding in findings]
    for expected in (f"# {name}", f"`{plan.command()}`", f"({pictures[0]})", *recipe.schemes, *claims):
        assert expected in page
    assert open_jobs(plan) == []  # nothing is trained twice

    assert write_archive(tmp_path / "records.xz", [found]) == len(runs)
    (again,) = read_archive(tmp_path / "records.xz")
    assert show_found(again, tmp_path / "again")[:2] == (findings, pictures)
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (tmp_path / "shown" / file.name).read_bytes()


def test_recipes_share_their_worlds(tmp_path: Path) -> None:
    headline = plan_recipe(RECIPES["accuracy-delay-energy"], "demo", tmp_path / "out", overrides=TINY)
    pretend_all(headline)
    for name in ("errors-discrepancy", "table3", "second-world"):
        assert open_jobs(plan_recipe(RECIPES[name], "demo", tmp_path / "out", overrides=TINY)) == []
    mixes = open_jobs(plan_recipe(RECIPES["heterogeneity"], "demo", tmp_path / "out", overrides=TINY))
    assert {job.config.data.dirichlet_alpha for job in mixes} == {0.1, 10.0, 100.0}  # the preset has 1


def test_a_tuned_file_stands_for_its_preset(tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.toml"
    tuned.write_text('base = "demo"\n[schemes.asfl]\nlearning_rate = 0.005\n')
    plan = plan_recipe(RECIPES["resplit-overhead"], "demo", tmp_path / "out", overrides=TINY, tuned=[tuned])
    job, _ = open_jobs(plan)
    assert job.config.for_scheme("asfl").training.learning_rate == 0.005
    assert (plan.points[0].comparison.folder.name.split(",")[0], plan.points[0].preset) == ("demo", "demo")
    assert "--tuned tuned.toml" in plan.command()
    pretend_all(plan)
    with pytest.raises(AsflError, match=r"another world \(schemes.asfl.learning_rate"):
        plan_recipe(RECIPES["resplit-overhead"], "demo", tmp_path / "out", overrides=TINY)


def test_a_page_says_what_each_scheme_trained_with(tmp_path: Path) -> None:
    own = ["schemes.asfl.learning_rate=0.005", "schemes.sfl-cut2.local_steps=5", "schemes.sfl-cut2.rounds_times=0.5"]
    plan = plan_recipe(RECIPES["fixed-cuts"], "demo", tmp_path / "out", overrides=[*TINY, *own])
    pretend_all(plan)
    show_found(plan.found(), tmp_path / "shown")
    page = (tmp_path / "shown" / "results.md").read_text("utf-8")
    assert "One seed, 4 rounds (2 of sfl-cut2)." in page
    rates = json.loads((tmp_path / "shown" / "results.json").read_text("utf-8"))["runs"]["learning_rates"]
    assert (rates["asfl"], rates["sfl-cut2"]) == (0.005, 0.002)


def test_the_small_network_has_more_seeds(tmp_path: Path) -> None:
    assert usual_seeds("small-cifar10", "evidence") > usual_seeds("vgg19-cifar10", "evidence") >= 3
    plan = plan_recipe(RECIPES["pareto"], "demo", tmp_path / "out", overrides=TINY)
    schemes = {point.variant.label: point.comparison.schemes for point in plan.points}
    assert schemes["energy price 3"] == ("asfl-plus",)
    assert len(schemes[""]) > 1


def test_what_is_no_archive_is_refused(asfl: Asfl, tmp_path: Path) -> None:
    for content in (b"", b"nonsense", lzma.compress(b"[]"), lzma.compress(b'{"format": 9}')):
        (tmp_path / "records.xz").write_bytes(content)
        assert_refused(asfl("reproduce", "--from", "records.xz"), "records.xz is not an archive of runs")
    os.mkfifo(tmp_path / "pipe.xz")
    assert_refused(asfl("reproduce", "--from", "pipe.xz"), "can't read pipe.xz", "a pipe")
    assert not (tmp_path / "runs").exists()


def test_a_world_is_named_by_what_differs() -> None:
    assert world_name("demo", ()) == "demo"
    assert world_name("demo", ("data.dirichlet_alpha=1", "radio.num_rbs=4")) == "demo,num_rbs=4"
    assert world_name("demo", ("scenario.channel.trace_file=/a b/c.npz",)) == "demo,trace_file=c.npz"


def test_every_scale_can_be_planned() -> None:
    planned = {
        (preset, variant.overrides)
        for recipe in RECIPES.values()
        for scale in get_args(Scale)
        for preset in recipe.presets[scale]
        for variant in recipe.points(scale)
    }
    for preset, overrides in planned:
        load_config(preset, list(overrides))
    for recipe in RECIPES.values():
        evidence, paper = (load_config(recipe.presets[scale][0], []).config for scale in ("evidence", "paper"))
        assert evidence.data.name.startswith("cifar")
        assert (paper.model.architecture, paper.training.rounds) == ("vgg19", 200)


def test_the_command_on_measured_channels(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    table, pilots = trace_files(tmp_path / "traces")
    words = ["--trace", str(table), "--trace", str(pilots), "--out", "out"]
    words += [word for one in (*TINY, "scenario.clients=4", "training.rounds=2") for word in ("--set", one)]
    result = asfl("reproduce", "measured-channel", *words)
    assert result.returncode == 0, result.stderr
    assert "total delay below that of sfl-best (renew.npz)" in result.stdout
    shown = tmp_path / "out" / "measured-channel"
    data = json.loads((shown / "results.json").read_text())
    assert list(data["summaries"]["demo"]) == ["ucc.npz", "renew.npz"]
    assert (shown / "totals.png").stat().st_size > 1000
    assert len(list((tmp_path / "out" / "worlds").iterdir())) == 2
    monkeypatch.setattr("asfl.results.reproduce.page.save_figure", lambda *_: None)
    again = asfl("reproduce", "measured-channel", *words, "--json", "--archive", "records.xz")
    assert json.loads(again.stdout)[0] == data
    assert "rounds" not in again.stderr  # nothing was trained
    table.unlink()
    drawn = asfl("reproduce", "--from", "records.xz", "--out", "drawn")  # neither runs nor traces
    assert drawn.returncode == 0, drawn.stderr
    page = Path("measured-channel", "results.md")
    assert (tmp_path / "drawn" / page).read_text() == (tmp_path / "out" / page).read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a recipe"),
        (["fixed-cut"], "did you mean 'fixed-cuts'?"),
        (["measured-channel"], "give --trace FILE"),
        (["measured-channel", "--trace", "gone.npz"], "gone.npz: no such file"),
        (["clients", "--set", "training.batch_size=100"], "training.batch_size = 100"),
        (["clients", "--address", "here:1"], "--engine ray"),
        (["fixed-cuts", "--scale", "evidence", "--data-dir", "nowhere"], "nowhere"),
        (["fixed-cuts", "--tuned", "gone.toml"], "gone.toml"),
        (["--from", "gone.xz"], "can't read gone.xz"),
        (["--from", "gone.xz", "--seeds", "2"], "--seeds doesn't count here"),
    ],
)
def test_mistakes(asfl: Asfl, tmp_path: Path, words: list[str], message: str) -> None:
    assert_refused(asfl("reproduce", *words), message)
    assert not (tmp_path / "runs").exists()


def test_all_leaves_out_what_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    from asfl.cli.reproduce import _chosen

    assert _chosen([ALL], with_traces=True) == list(RECIPES)
    assert "measured-channel" not in _chosen([ALL], with_traces=False)
    assert "--trace" in capsys.readouterr().err
    with pytest.raises(AsflError, match="all is every recipe"):
        _chosen(["table3", ALL], with_traces=False)


def test_what_an_archive_has_is_not_trained_again(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has the archive and none of the folders goes on where another one stopped."""
    monkeypatch.setattr("asfl.results.reproduce.page.save_figure", lambda *_: None)
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    there = plan_recipe(RECIPES["resplit-overhead"], "demo", tmp_path / "there", overrides=TINY)
    pretend_all(there)
    write_archive(tmp_path / "records.xz", [there.found()])
    settings = [word for one in TINY for word in ("--set", one)]

    kept = asfl("reproduce", "resplit-overhead", *settings, "--archive", "records.xz", "--out", "here", "--json")
    assert kept.returncode == 0, kept.stderr
    assert not list((tmp_path / "here").rglob("rounds.jsonl"))  # nothing was trained
    show_found(there.found(), tmp_path / "shown")
    assert json.loads(kept.stdout)[0] == json.loads((tmp_path / "shown" / "results.json").read_text())

    more = asfl("reproduce", "fixed-cuts", *settings, "--archive", "records.xz", "--out", "here")
    assert more.returncode == 0, more.stderr
    trained = {file.parent.name for file in (tmp_path / "here").rglob("rounds.jsonl")}
    assert trained == {"sfl-cut2-seed1", "sfl-cut3-seed1", "central-seed1"}  # ASFL is in the archive
    first, second = read_archive(tmp_path / "records.xz")
    assert (first.recipe, second.recipe) == ("resplit-overhead", "fixed-cuts")
    assert [run.scheme for run in second.points[0].runs] == ["asfl", "sfl-cut2", "sfl-cut3", "central"]

    tuned = tmp_path / "tuned.toml"
    tuned.write_text('base = "demo"\n[schemes.asfl]\nlearning_rate = 0.005\n')
    retuned = ["reproduce", "fixed-cuts", *settings, "--tuned", str(tuned), "--archive", "records.xz", "--out", "anew"]
    assert_refused(asfl(*retuned), "with training.learning_rate = ")
    elsewhere = ["reproduce", "fixed-cuts", *settings, "--set", "training.learning_rate=0.5", "--archive", "records.xz"]
    assert_refused(asfl(*elsewhere), "fixed-cuts in the world demo,")


def test_an_archive_loses_no_point(tmp_path: Path) -> None:
    table, pilots = trace_files(tmp_path / "traces")
    first, second = (
        plan_recipe(on_traces(RECIPES["measured-channel"], [file]), "demo", tmp_path / "out", overrides=TINY)
        for file in (table, pilots)
    )
    for plan in (first, second):
        pretend_all(plan)
    (found,) = joined([first.found()], [second.found()])
    assert [point.label for point in found.points] == ["renew.npz", "ucc.npz"]
    assert found.command == f"{second.command()}\n$ {first.command()}"  # as a page shows two commands
    (again,) = joined([found], [second.found()])
    assert (again.command, len(again.points)) == (found.command, 2)


def test_what_moving_the_cut_costs_is_shown_for_both_weights(tmp_path: Path) -> None:
    """Claims are checked for each, and runs that an archive has under another name are shown once."""
    plan = plan_recipe(RECIPES["resplit-overhead"], "demo", tmp_path / "out", overrides=TINY, seeds=2)
    pretend_all(plan)
    found = plan.found()
    assert [point.label for point in found.points] == ["0.02", "1"]
    findings, _, _ = show_found(found, tmp_path / "page")
    assert {one.label for one in findings} == {"0.02", "1"}
    before = replace(found, points=[replace(found.points[0], label="")])
    (now,) = joined([before], [found])
    assert [point.label for point in now.points] == ["0.02", "1"]
    assert not list(plan.moved([before]))


def test_who_borrows_needs_asfl_here(tmp_path: Path) -> None:
    """An archive doesn't have the powers that FedAvg and others take over."""
    (point,) = plan_recipe(RECIPES["errors-discrepancy"], "demo", tmp_path / "out", overrides=TINY, seeds=2).points
    everything = {(scheme, seed) for scheme in point.comparison.schemes for seed in (1, 2)}
    assert not point.comparison.kept(everything).left()
    left = point.comparison.kept(everything - {("fedavg", 2)}).left()
    assert set(left.values()) == {("fedavg", 2), ("asfl", 2)}
