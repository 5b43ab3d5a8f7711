"""`asfl run` and `asfl resume`: whatever interrupts a run, it ends as if nothing had."""

import json
import os
import shutil
from pathlib import Path

import pytest

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.runs.files import append_line
from asfl.runs.folder import is_finished
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import resume, run
from asfl.schemes import SCHEMES
from conftest import Asfl, assert_refused

TINY = [
    "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", "training.rounds=6",
    "output.checkpoint_every=2", "output.test_samples=50",
]  # fmt: skip

BUDGETS = ["decision.delay_budget_s=0.005", "decision.energy_budget_j=0.003", "decision.outage_s=0.015"]
"""About what is found for them, which takes as long as ten rounds."""


def tiny(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides]).config


def contents(folder: Path) -> tuple[str, bytes]:
    return (folder / RECORDS_FILE).read_text(), (folder / MODEL_FILE).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(tiny(), "asfl", folder, threads=1)
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_trains_and_resumes_bit_for_bit(scheme: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    rounds = 5 if scheme == "asfl" else 3
    config = tiny(f"training.rounds={rounds}", *([] if scheme == "asfl" else BUDGETS))
    assert run(config, scheme, whole, threads=1)
    played: list[RoundRecord] = []
    while not run(config, scheme, broken, threads=1, should_stop=lambda: True, on_round=played.append):
        pass
    assert [record.round for record in played] == list(range(1, rounds + 1))
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize("scheme", ["asfl", "acc-sfl", "fedavg", "sl-best"])
def test_where_blocks_differ_a_record_says_whose_they_are(scheme: str, whole: Path, tmp_path: Path) -> None:
    battery = "budget.battery_j=0.15"  # which some use up: they have no block then
    selective = tiny("scenario.channel.blocks=selective", "radio.num_rbs=5", "training.rounds=3", battery)
    assert run(selective, scheme, tmp_path / "run", threads=1)
    for record in read_records(tmp_path / "run"):
        if scheme == "sl-best":  # clients take turns, each with all of them
            assert record.rb_owner is None
            continue
        assert record.rb_owner is not None
        assert [record.rb_owner.count(client) for client in range(3)] == record.rb_count
    assert all("rb_owner" not in line for line in (whole / RECORDS_FILE).read_text().splitlines())


def test_resumes_with_other_training(tmp_path: Path) -> None:
    others = ("training.optimizer=momentum", "training.local_steps=2", "model.norm=group")
    config, broken = tiny(*others), tmp_path / "broken"
    assert run(config, "asfl", tmp_path / "whole", threads=1)
    rounds: list[RoundRecord] = []
    assert not run(config, "asfl", broken, threads=1, on_round=rounds.append, should_stop=lambda: len(rounds) == 3)
    assert resume(broken)
    assert contents(broken) == contents(tmp_path / "whole")


def test_same_seed_same_records_and_other_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tiny(f"scenario.seed={seed}", "training.rounds=3"), "asfl", tmp_path / name, threads=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")[0] != contents(tmp_path / "c")[0]


def test_schemes_share_world_and_mini_batches(tmp_path: Path) -> None:
    """The first round's losses of two schemes that start with the same weights agree client by client."""
    for scheme in ("sfl", "fedavg"):
        run(tiny("training.rounds=1"), scheme, tmp_path / scheme, threads=1)
    sfl, fedavg = (read_records(tmp_path / scheme)[0] for scheme in ("sfl", "fedavg"))
    assert sfl.rb_count == fedavg.rb_count
    assert sfl.arrived == fedavg.arrived
    assert sfl.train_loss == pytest.approx(fedavg.train_loss, rel=1e-5)


def test_manifest_says_what_the_run_is(tmp_path: Path) -> None:
    config = tiny("training.rounds=1", "scenario.seed=7")
    run(config, "asfl-pmax", tmp_path / "run", threads=1)
    data = json.loads((tmp_path / "run" / MANIFEST_FILE).read_text())
    assert (data["scheme"], data["seed"], data["threads"]) == ("asfl-pmax", 7, 1)
    assert {"asfl", "python", "torch", "numpy", "git_commit", "started"} <= data["facts"].keys()
    assert read_manifest(tmp_path / "run").config == config
    assert is_finished(tmp_path / "run")


# ---------------------------------------------------------------------- what goes wrong
def test_diverging_training_is_said_and_keeps_what_was_done(tmp_path: Path) -> None:
    config = tiny("training.optimizer=sgd", "training.learning_rate=1e6", "model.norm=none", "training.rounds=20")
    with pytest.raises(AsflError, match=r"round \d+: training has diverged.*training.learning_rate = 1e\+06"):
        run(config, "asfl", tmp_path / "run", threads=1)
    assert len(read_records(tmp_path / "run")) >= 1


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    for name, rate in (("a", "1e-3"), ("b", "2e-3")):
        run(tiny(f"training.learning_rate={rate}"), "asfl", tmp_path / name, threads=1, should_stop=lambda: True)
    shutil.rmtree(tmp_path / "a" / CHECKPOINTS)
    shutil.copytree(tmp_path / "b" / CHECKPOINTS, tmp_path / "a" / CHECKPOINTS)
    with pytest.raises(AsflError, match="belongs to another configuration"):
        resume(tmp_path / "a")


def test_a_full_disk_loses_no_finished_round(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing fails from the third round on, as on a full disk; later there is room again."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    folder, lines = tmp_path / "full", list[str]()

    def on_a_full_disk(file: Path, line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            patch.setattr("asfl.runs.files.open_ordinary", lambda *_: os.open("/dev/full", os.O_WRONLY))
        append_line(file, line)

    with monkeypatch.context() as patch:
        patch.setattr("asfl.runs.records.append_line", on_a_full_disk)
        with pytest.raises(AsflError, match="No space left on device"):
            run(tiny(), "asfl", folder, threads=1)
    assert len(read_records(folder)) == 2
    assert resume(folder)
    assert contents(folder) == contents(whole)


# ---------------------------------------------------------------------- the command
def test_run_and_resume_as_a_user(asfl: Asfl, tmp_path: Path) -> None:
    sets = [word for override in [*TINY, "training.rounds=4"] for word in ("--set", override)]
    result = asfl("run", *sets, "--scheme", "sfl")
    assert result.returncode == 0, result.stderr
    assert "round 4 of 4" in result.stderr
    assert "sfl, 4 rounds" in result.stdout
    assert is_finished(tmp_path / "runs" / "demo-sfl-seed1")
    assert "sfl, 4 rounds" in asfl("resume", "runs/demo-sfl-seed1").stdout
    as_json = json.loads(asfl("resume", "runs/demo-sfl-seed1", "--json").stdout)
    assert as_json["rounds"] == 4


def test_resume_plays_recorded_rounds_again_in_silence_or_aloud(asfl: Asfl, tmp_path: Path) -> None:
    """The checkpoint is older than the records: some rounds come twice, and the command says so without stumbling."""
    folder = tmp_path / "run"
    rounds: list[RoundRecord] = []
    run(tiny(), "asfl", folder, threads=1, on_round=rounds.append, should_stop=lambda: len(rounds) == 5)
    shutil.rmtree(folder / CHECKPOINTS)
    result = asfl("resume", "run")
    assert result.returncode == 0, result.stderr
    assert "round 1 of 6" in result.stderr
    assert "-" not in result.stderr.split("round 1 of 6")[1].split("\n")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--scheme", "asfll"], ["unknown scheme 'asfll'", "did you mean 'asfl'?"]),
        (["run", "small-cifar10"], ["cifar10", "asfl data fetch cifar10", "ASFL_DATA_DIR"]),
        (["run", "--set", "training.device=cuda"], ["cuda"]),
        (["run", "--set", "training.batch_size=300"], ["training.batch_size = 300", "6 clients only 239"]),
        (["resume", "nowhere"], ["nowhere is not a run folder", "no such folder"]),
        (["resume", "."], ["is not a run folder", "no manifest.json"]),
    ],
)
def test_mistakes(asfl: Asfl, arguments: list[str], words: list[str], tmp_path: Path) -> None:
    import torch

    if "training.device=cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert_refused(asfl(*arguments), *words)
    assert not any(tmp_path.iterdir())


def test_out_must_be_new_or_a_run(asfl: Asfl, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert_refused(asfl("run", "--out", "mine"), "mine exists and is not a run folder")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / MANIFEST_FILE).write_text("{")
    assert_refused(asfl("resume", "broken"), "is not the manifest of a run")
