"""`asfl tune`: a grid for each scheme on seeds of its own, and a configuration that comes out of it."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import typer
from made_up import leave_run, made_up_round, pretend, train_here

from asfl.cli.tune import tune
from asfl.config import load_config
from asfl.config.errors import AsflError
from asfl.field.engine import agreement_for
from asfl.results.summary import Statistic
from asfl.results.tune import FIRST_SEED, TUNED_FILE, VALIDATION, Tuned
from asfl.runs.jobs import Job
from asfl.runs.manifest import read_manifest
from asfl.runs.play import play_all
from asfl.runs.records import DIVERGED
from asfl.runs.run import OnRound, ShouldStop, run
from conftest import Asfl


def _stat(mean: float, sd: float = 0.01) -> Statistic:
    return Statistic(mean, mean - sd, mean + sd, mean, sd, 2)


def test_the_best_mean_and_of_equals_the_smaller_step() -> None:
    tried = {(1e-3, 1): _stat(0.5), (3e-3, 1): _stat(0.9), (1e-2, 1): _stat(0.9), (1e-1, 1): Statistic.of([])}
    one = Tuned("asfl", tried, (1e-3, 1))
    assert one.best == (3e-3, 1)
    assert one.remarks((3e-3, 1)) == ["chosen"]
    assert one.remarks((1e-3, 1)) == ["the configuration's"]
    assert one.remarks((1e-2, 1)) == []
    assert Tuned("asfl", {(1e-1, 1): Statistic.of([])}, (1e-3, 1)).best is None
    both = Tuned("asfl", {(1e-3, 5): _stat(0.9), (1e-3, 1): _stat(0.9)}, (1e-3, 1))
    assert both.best == (1e-3, 1)


@pytest.mark.parametrize(
    ("settings", "best", "at_edge"),
    [
        ([(1e-3, 1), (3e-3, 1), (1e-2, 1)], (1e-3, 1), True),
        ([(1e-3, 1), (3e-3, 1), (1e-2, 1)], (3e-3, 1), False),
        ([(1e-3, 1), (3e-3, 1), (1e-2, 1)], (1e-2, 1), True),
        ([(1e-3, 1)], (1e-3, 1), False),  # no grid, no edge
        ([(1e-3, 1), (1e-3, 5)], (1e-3, 1), False),  # fewer don't exist
        ([(1e-3, 2), (1e-3, 5)], (1e-3, 2), True),
        ([(1e-3, 1), (1e-3, 5)], (1e-3, 5), True),
    ],
)
def test_the_edge_of_the_grid_is_told(
    settings: Sequence[tuple[float, int]], best: tuple[float, int], at_edge: bool
) -> None:
    one = Tuned("asfl", {setting: _stat(0.9 if setting == best else 0.5) for setting in settings}, (7.0, 1))
    assert one.best == best
    assert ("at the edge of the grid: try further" in one.remarks(best)) == at_edge


@pytest.mark.parametrize(("gain", "told"), [(0.005, True), (0.02, False)])
def test_a_gain_within_the_spread_is_told(gain: float, told: bool) -> None:
    tried = {(1e-3, 1): _stat(0.5), (3e-3, 1): _stat(0.5 + gain), (1e-2, 1): _stat(0.1)}
    remarks = Tuned("asfl", tried, (1e-3, 1)).remarks((3e-3, 1))
    assert ("no further from the configuration's than the seeds are from each other" in remarks) == told


def _by_rate(job: Job, on_round: OnRound, should_stop: ShouldStop) -> bool:
    """Real folders with accuracies that depend on learning rate and seed; too high a rate diverges."""
    config = job.config.for_scheme(job.scheme)
    rate = config.training.learning_rate
    if rate > 1:
        raise AsflError(f"round 2: {DIVERGED}, client 1 has a loss of inf")
    finished = pretend(job, on_round, should_stop)
    accuracy = 0.9 - abs(rate - 0.01) * 10 - 0.002 * (job.seed % 2)
    records = [made_up_round(number, accuracy) for number in range(1, config.training.rounds + 1)]
    manifest = read_manifest(job.folder)
    shutil.rmtree(job.folder)
    leave_run(job.folder, manifest, records, finished=finished)
    return finished


def test_the_command_chooses_and_writes_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", partial(train_here, train=_by_rate))
    out = tmp_path / "out"
    file = tmp_path / "mine.toml"
    file.write_text('base = "demo"\n[scenario]\nclients = 3\n[schemes.epsl2]\nlocal_steps = 4\n')
    with pytest.raises(AsflError, match="did you mean 'epsl'"):
        tune(str(file), out=out)
    file.write_text('base = "demo"\n[scenario]\nclients = 3\n[schemes.sl]\nlocal_steps = 4\n')
    call = partial(
        tune, str(file), schemes=["asfl,fedavg"], learning_rates=["1e-3,0.01", "3e-2", "10"], rounds=2, out=out
    )
    call(overrides=["radio.num_rbs=5"])
    shown = capsys.readouterr()
    (chosen,) = (line for line in shown.out.splitlines() if "asfl" in line and "chosen" in line)
    assert "0.01" in chosen
    assert "89.9 [" in chosen
    assert "edge" not in chosen
    assert "error: schemes.asfl.learning_rate=10 asfl seed 1001 failed: round 2: training has diverged" in shown.err
    assert f"the seeds {FIRST_SEED} to {FIRST_SEED + 1}" in shown.out
    tuned = load_config(out / TUNED_FILE).config
    assert (
        tuned
        == load_config(
            file, ["radio.num_rbs=5", "schemes.asfl.learning_rate=0.01", "schemes.fedavg.learning_rate=0.01"]
        ).config
    )
    assert f"on {100 * VALIDATION:g} % of the training images" in shown.out
    folder = out / "fedavg" / "schemes.fedavg.learning_rate=0.01" / f"fedavg-seed{FIRST_SEED}"
    assert read_manifest(folder).recorded == ()  # alone, by its stand-in
    assert read_manifest(folder).config.data.validation == VALIDATION  # nothing is chosen on test images
    assert not (out / "asfl" / "schemes.asfl.learning_rate=0.01" / "asfl-seed1").exists()

    call(overrides=["radio.num_rbs=5"], schemes=["asfl"], learning_rates=["3e-3,1e-2"])  # goes on in the same folder
    shown = capsys.readouterr()
    assert "schemes.asfl.learning_rate=0.003 asfl seed 1001" in shown.err
    assert "learning_rate=0.01 asfl" not in shown.err  # was finished
    assert "chosen, at the edge of the grid: try further" in shown.out
    with pytest.raises(AsflError, match=r"another world \(output.evaluate_every = 2 there, 3 here\)"):
        call(overrides=["radio.num_rbs=5"], rounds=3)
    with pytest.raises(typer.Exit) as left:
        call(overrides=["radio.num_rbs=5"], learning_rates=["10"])
    assert left.value.exit_code == 2
    assert "no choice for asfl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"learning_rates": ["1e-3,x"]}, "--learning-rates 1e-3,x: give numbers above 0"),
        ({"learning_rates": ["-1"]}, "--learning-rates -1: give numbers above 0"),
        ({"local_steps": ["1.5"]}, "--local-steps 1.5: give whole numbers"),
        ({"overrides": ["scenario.seed=3"]}, "tuning has seeds of its own, from 1001 on"),
        ({"overrides": ["data.name=private_1x8x8_10"]}, "devices keep these images"),
        ({"schemes": ["asf"]}, "unknown scheme 'asf': did you mean 'asfl'?"),
        ({"out": Path("file")}, "file is a file; give --out the name of a folder"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, list[str]], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AsflError) as caught:
        tune(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_tuned_scheme_is_trained_and_charged_with_its_own(tmp_path: Path) -> None:
    """Manifest, losses and costs follow; resuming compares what was effective."""
    little = ["scenario.clients=3", "model.width=0.1", "training.batch_size=8", "training.rounds=2"]
    own = load_config("demo", [*little, "schemes.sfl.learning_rate=0.03", "schemes.sfl.local_steps=2"]).config
    same = load_config("demo", [*little, "training.learning_rate=0.03", "training.local_steps=2"]).config
    for name, config in (("own", own), ("same", same)):
        assert run(config, "sfl", tmp_path / name, threads=1)
    assert (tmp_path / "own" / "rounds.jsonl").read_bytes() == (tmp_path / "same" / "rounds.jsonl").read_bytes()
    kept = read_manifest(tmp_path / "own").config
    assert (kept.training.learning_rate, kept.training.local_steps, kept.schemes) == (0.03, 2, {})
    assert run(same, "sfl", tmp_path / "own")  # the same run, however it was written
    assert agreement_for(own, "sfl", tmp_path / "new", 1).config == kept  # what clients elsewhere are told
    played = [play_all(config, ["sfl"], [1], 2)[0].summary() for config in (own, same)]
    assert played[0] == played[1]
    other = load_config("demo", [*little, "schemes.sfl.learning_rate=0.01", "schemes.sfl.local_steps=2"]).config
    with pytest.raises(AsflError, match=r"training.learning_rate = 0.03 there, 0.01 here"):
        run(other, "sfl", tmp_path / "own")


def test_the_real_command(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    sets = ["scenario.clients=3", "model.width=0.1", "training.batch_size=8"]
    words = [word for one in sets for word in ("--set", one)]
    call = ["tune", "demo", "--schemes", "asfl", "--learning-rates", "1e-3,1e-2", "--seeds", 1, "--rounds", 1, *words]
    result = asfl(*call, "--out", "out")
    assert result.returncode == 0, result.stderr
    assert "[2 of 2 finished]" in result.stderr
    assert "chosen" in result.stdout
    assert "choice: out/tuned.toml; use it: asfl compare out/tuned.toml" in result.stdout
    tuned = load_config(tmp_path / "out" / TUNED_FILE).config
    assert tuned.schemes["asfl"].learning_rate in (1e-3, 1e-2)
    assert (tuned.scenario.clients, tuned.training.rounds) == (3, load_config("demo").config.training.rounds)
