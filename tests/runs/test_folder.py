"""Run folders under attack: two writers, damaged files, kills at bad moments. Nothing lost, nothing silent."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fork_server import QUICK_TO_START
from made_up import leave_run, made_up_round, train_here
from waiting import LONG_S, wait_until

from asfl.cli.compare import train_runs
from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.costs.world import Budgets
from asfl.runs import files
from asfl.runs.comparison import plan_comparison, read_comparison
from asfl.runs.files import lock_in, seal_of, sealed_json, write_whole, writing
from asfl.runs.folder import MODEL_SEAL, check_folder, checkpoint_files, is_finished, where_to_go_on
from asfl.runs.jobs import Ended
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records, records_so_far
from asfl.runs.run import resume, run
from conftest import Asfl, assert_refused

TINY = [
    "scenario.clients=2", "radio.num_rbs=2", "model.width=0.1", "training.batch_size=4", "training.rounds=4",
    "output.checkpoint_every=1", "output.test_samples=20", "output.evaluate_every=4", "output.track=none",
]  # fmt: skip


def tiny(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides]).config


def contents(folder: Path) -> tuple[bytes, ...]:
    return tuple((folder / name).read_bytes() for name in (RECORDS_FILE, MODEL_FILE, MODEL_SEAL))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(tiny(), "asfl", folder, threads=1)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Of that run: something can happen to it."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """After round 3, with checkpoints of rounds 2 and 3."""
    folder, rounds = tmp_path / "stopped", list[RoundRecord]()
    assert not run(tiny(), "asfl", folder, threads=1, on_round=rounds.append, should_stop=lambda: len(rounds) == 3)
    return folder


def unfinished(folder: Path, costs: str = "modelled", rounds: int = 3) -> Manifest:
    """A folder of made-up rounds without a checkpoint."""
    config = load_config("demo", [f'field.costs="{costs}"']).config
    manifest = Manifest(config, "asfl", Budgets(1, 1), 1, {})
    leave_run(folder, manifest, [made_up_round(number) for number in range(1, rounds + 1)])
    return manifest


# ---------------------------------------------------------------------- one writer
def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/asfl", "compare", "my demo"])
    with writing(tmp_path / "run"):
        words = rf"is in use: process {os.getpid()} on .* \(asfl compare 'my demo'\), since \d{{4}}-.* is writing to it"
        with pytest.raises(AsflError, match=words):
            run(tiny(), "asfl", tmp_path / "run", threads=1)
        assert not (tmp_path / "run" / MANIFEST_FILE).exists()
        assert lock_in(tmp_path / "run")[0]
    assert not lock_in(tmp_path / "run")[0]
    assert list((tmp_path / "run").iterdir()) == []
    with writing(tmp_path / "run"):  # it is free again
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; from pathlib import Path; from asfl.runs.files import writing\n"
        "with writing(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "run" / ".lock").exists()
    assert not lock_in(tmp_path / "run")[0]
    with writing(tmp_path / "run"):
        pass


def test_commands_of_many_runs_lock_their_folder(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    (tmp_path / "out").mkdir()
    for command in (["compare"], ["sweep", "--over", "data.dirichlet_alpha=1,10"]):
        with writing(tmp_path / "out"):
            assert_refused(asfl(*command, "--schemes", "asfl", "--out", "out"), "out is in use: process")
    assert list((tmp_path / "out").iterdir()) == []


# ---------------------------------------------------------------------- seals
def test_a_whole_folder_is_intact(asfl: Asfl, copy: Path) -> None:
    assert is_finished(copy)
    result = asfl("check", copy)
    assert result.returncode == 0, result.stderr
    for name in (MANIFEST_FILE, RECORDS_FILE, MODEL_FILE, "round-000004.safetensors"):
        assert f"{name}: intact" in result.stdout
    assert all(one["intact"] for one in json.loads(asfl("check", copy, "--json").stdout)[str(copy)])
    assert_refused(asfl("check", "nowhere"), "nowhere: there is no such folder")


def _change_digit(file: Path) -> None:
    text = file.read_text()
    place = text.index("delay_s") + 12
    file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


def _rewrite(file: Path, change: Any) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(change(lines)))


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        (RECORDS_FILE, _change_digit, "line 1: its checksum doesn't match"),
        (RECORDS_FILE, lambda file: _rewrite(file, lambda lines: lines[:2]), "2 of 4 rounds intact, but"),
        (RECORDS_FILE, lambda file: _rewrite(file, lambda lines: [*lines[:2], *lines[1:]]), "line 3: round 2 where"),
        (RECORDS_FILE, lambda file: _rewrite(file, lambda lines: [lines[1], lines[0], *lines[2:]]), "line 1: round 2"),
        (RECORDS_FILE, lambda file: file.write_bytes(b"\xff\n"), "line 1: not the record of a round"),
        (RECORDS_FILE, lambda file: file.unlink(), "0 of 4 rounds intact, but"),
        (MODEL_FILE, lambda file: file.write_bytes(b""), "it has 0 bytes instead of"),
        (MODEL_FILE, lambda file: file.unlink(), "it is gone"),
        (MODEL_SEAL, lambda file: file.unlink(), "it has no seal"),
    ],
)  # fmt: skip
def test_damage_is_found_and_repaired_with_a_word(
    name: str, damage: Any, says: str, asfl: Asfl, copy: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(copy / name)
    assert not is_finished(copy)
    checked = asfl("check", copy)
    assert checked.returncode == 2
    assert says in checked.stdout
    with caplog.at_level(logging.WARNING):
        assert resume(copy)
    assert "the run goes on after round" in caplog.text
    assert contents(copy) == contents(whole)
    assert asfl("check", copy).returncode == 0


def test_rounds_of_another_run_are_not_taken_for_ours(copy: Path, tmp_path: Path) -> None:
    run(tiny("scenario.seed=2"), "asfl", tmp_path / "other", threads=1)
    shutil.copy(tmp_path / "other" / RECORDS_FILE, copy / RECORDS_FILE)
    with pytest.raises(AsflError, match=r"line 1: its checksum doesn't match.*asfl check says what is intact"):
        read_records(copy)
    assert not is_finished(copy)


@pytest.mark.parametrize("delay_s", [0.1, -1.0, float("nan"), None])
def test_budgets_belong_to_the_run(delay_s: float | None, stopped: Path) -> None:
    """A changed manifest is refused; with a matching seal, too: it isn't the run that was recorded."""
    file = stopped / MANIFEST_FILE
    data = json.loads(file.read_bytes())
    data["budgets"]["delay_s"] = delay_s
    file.write_text(json.dumps(data))
    with pytest.raises(AsflError, match="was changed or damaged after it was written"):
        resume(stopped)
    del data["seal"]
    file.write_bytes(sealed_json(data))
    with pytest.raises(AsflError, match=r"budgets.delay_s|belongs to another configuration"):
        resume(stopped)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threads": 10**6}, "threads: Input should be less than or equal to 1024"),
        ({"threads": "2"}, "threads: Input should be a valid integer"),
        ({"scheme": 3}, "scheme: "),
        ({"recorded": [{"cut": 1}]}, "recorded.0.rb_count"),
        ({"config": {"scenario": {"clients": -1}}}, "config.scenario.clients"),
        ({"format": "9" * 5000}, "format '999"),
    ],
)
def test_every_value_of_a_manifest_has_a_type_and_a_range(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    data = unfinished(tmp_path / "run").to_json()
    (tmp_path / "run" / MANIFEST_FILE).write_bytes(sealed_json({**data, **change}))
    with pytest.raises(AsflError) as caught:
        read_manifest(tmp_path / "run")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_run_of_an_earlier_format_is_refused_in_one_sentence_and_stays(asfl: Asfl, copy: Path) -> None:
    """Its seals were others; no command takes it for damaged, or writes into it."""
    file = copy / MANIFEST_FILE
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "format": 3, "seal": "0" * 64}))
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    for command in (["resume", copy], ["report", copy, "--out", "page.html"], ["export", copy]):
        assert_refused(asfl(*command), "manifest.json: format 3, but this asfl", "use the version that wrote it")
    assert "format 3, but this asfl" in asfl("check", copy).stdout
    assert {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"null", b"9" * 5000])
def test_what_is_no_manifest_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    write_whole(tmp_path / "run" / MANIFEST_FILE, content)
    with pytest.raises(AsflError, match="is not the manifest of a run"):
        resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", 1.5), ("round", True), ("cut", "3"), ("cut", -1), ("rb_count", [1.0]), ("delay_s", -1.0),
        ("packet_error_rate", [0.1, 0.3, 1.1]), ("arrived", [1, 1, 2]), ("accuracy", 1.5), ("train_loss", "low"),
        ("rb_owner", [0, 0, 1]), ("rb_owner", [0, 1, 3]), ("rb_owner", ["0", 1, 1]),
        ("update_norm2", {}), ("faults", 3), ("measured", {"a": 1}), ("energy_j", None),
    ],
)  # fmt: skip
def test_every_value_of_a_record_has_a_type_and_a_range(name: str, value: object) -> None:
    plain = json.loads(made_up_round(1, 0.5).to_line())
    assert RoundRecord.from_line(json.dumps(plain)) == made_up_round(1, 0.5)
    owners = {**plain, "rb_owner": [1, None, 0, 1]}
    assert RoundRecord.from_line(json.dumps(owners)).rb_owner == [1, None, 0, 1]
    with pytest.raises(ValueError, match=name if name != "rb_count" else "different lengths"):
        RoundRecord.from_line(json.dumps({**plain, name: value}))


# ---------------------------------------------------------------------- going back
def _newest(folder: Path) -> Path:
    return next(file for _, file in checkpoint_files(folder))


def _flip_a_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _write_behind(file: Path) -> None:
    with file.open("ab") as end:
        end.write(file.read_bytes()[:100])


def _empty_both(folder: Path) -> None:
    for _, file in checkpoint_files(folder):
        file.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "says", "again"),
    [
        (lambda folder: _halve(_newest(folder)), "bytes instead of", 3),
        (lambda folder: _flip_a_bit(_newest(folder)), "its content was changed", 3),
        (lambda folder: seal_of(_newest(folder)).unlink(), "it has no seal", 3),
        (lambda folder: _halve(seal_of(_newest(folder))), "its seal, round-000003.json, was changed", 3),
        (
            lambda folder: _write_behind(folder / RECORDS_FILE),
            "has something behind its last round, which is removed",
            4,
        ),
        (lambda folder: shutil.rmtree(folder / CHECKPOINTS), "there is no checkpoint yet", 1),
        (_empty_both, "goes on after round 0, rounds 1 to 3 are played again", 1),
    ],
)
def test_a_damaged_run_goes_on_from_the_newest_whole_checkpoint(
    damage: Any, says: str, again: int, stopped: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(stopped)
    played: list[int] = []
    with caplog.at_level(logging.WARNING):
        assert resume(stopped, on_round=lambda record: played.append(record.round))
    assert says in caplog.text
    assert played == list(range(again, 5))
    assert contents(stopped) == contents(whole)


def test_measured_rounds_are_never_given_up(tmp_path: Path) -> None:
    manifest = unfinished(tmp_path / "run", "measured")
    with pytest.raises(AsflError, match=r"3 rounds behind it were measured and can't be played again"):
        where_to_go_on(tmp_path / "run", manifest)
    assert len(read_records(tmp_path / "run")) == 3
    # The round between whose record and whose checkpoint a process was killed may be lost.
    manifest = unfinished(tmp_path / "killed", "measured", rounds=1)
    assert where_to_go_on(tmp_path / "killed", manifest).round == 0


# ---------------------------------------------------------------------- plans
def test_threads_are_planned_and_written_down(tmp_path: Path) -> None:
    """A comparison that was stopped goes on with the same threads, however few runs are left."""
    config, asked = tiny(), list[int]()

    def planned(runs: int) -> int:
        asked.append(runs)
        return 7 if runs == 2 else 3

    def train(schemes: str, keep: int) -> dict[str, int]:
        comparison = plan_comparison(config, schemes.split(","), [1], tmp_path / "out")
        threads = {}

        def engine(jobs: Any, **_: Any) -> Any:
            threads.update({job.scheme: job.threads for job in jobs})
            return train_here(jobs[:keep], train=_leave) | {job.name: _FAILED for job in jobs[keep:]}

        train_runs([comparison], None, engine, planned)
        return threads

    assert train("asfl,asfl-joint", keep=1) == {"asfl": 7, "asfl-joint": 7}
    assert list(train("asfl,asfl-joint", keep=1).values()) == [7]  # one is left, and two were planned
    assert asked == [2, 2]
    assert train("asfl,asfl-joint,asfl-pmax", keep=1) == {"asfl-pmax": 3}
    assert read_comparison(tmp_path / "out").threads == {"asfl-seed1": 7, "asfl-joint-seed1": 7, "asfl-pmax-seed1": 3}


_FAILED = Ended(False, "not today")


def _leave(job: Any, on_round: Any, should_stop: Any) -> bool:
    manifest = Manifest(job.config.for_scheme(job.scheme), job.scheme, Budgets(1, 1), job.threads, {})
    rounds = [made_up_round(number) for number in range(1, job.config.training.rounds + 1)]
    leave_run(job.folder, manifest, rounds, finished=True)
    return True


# ---------------------------------------------------------------------- writing
def test_killed_before_the_manifest_was_there(copy: Path, whole: Path, tmp_path: Path) -> None:
    for name in ("run", "comparison"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".manifest.json.0123abcd.tmp").write_text("{")
        (tmp_path / name / ".lock").touch()
    assert run(tiny(), "asfl", tmp_path / "run", threads=1)
    assert contents(tmp_path / "run") == contents(whole)
    assert not list((tmp_path / "run").glob(".*"))
    plan_comparison(tiny(), ["asfl"], [1], tmp_path / "comparison")
    (tmp_path / "run" / CHECKPOINTS / ".round-000001.json.0123abcd.tmp").touch()
    (tmp_path / "run" / MODEL_FILE).unlink()
    assert resume(tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.skipif(sys.platform == "win32", reason="no umask")
def test_the_umask_is_respected(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "mine", b"")
        os.umask(0o002)
        write_whole(tmp_path / "ours", b"")
        write_whole(tmp_path / "key", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"mine": 0o600, "ours": 0o664, "key": 0o600}


@pytest.mark.parametrize(("command", "number"), [("run", signal.SIGINT), ("compare", signal.SIGTERM)])
def test_a_signal_saves_and_stops(command: str, number: signal.Signals, tmp_path: Path) -> None:
    """As a terminal and a batch system do it: to all processes at once."""
    changes = [*TINY, "training.rounds=4000", "output.checkpoint_every=4000", *QUICK_TO_START]
    sets = [word for one in changes for word in ("--set", one)]
    more = ["--schemes", "asfl"] if command == "compare" else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from asfl.cli import main; main()", command, *more, *sets, "--out", "out"],
        cwd=tmp_path, env=environment, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    folder = tmp_path / "out" if command == "run" else tmp_path / "out" / "asfl-seed1"
    try:
        wait_until(lambda: (folder / RECORDS_FILE).exists() or process.poll() is not None)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    newest, _ = next(checkpoint_files(folder))
    assert newest == len(records_so_far(folder)) > 0
    words = f"stopped after round {newest}; go on with: asfl resume out" if command == "run" else "stopped with 1 of 1"
    assert words in out
    assert command == "run" or "asfl seed 1: stopped, " in err
    assert all(one.intact for one in check_folder(folder))


# ---------------------------------------------------------------------- in bulk
@pytest.mark.parametrize(("campaign", "share"), [("folders", 0.01), ("kills", 0.02)])
def test_a_slice_of_the_torture(campaign: str, share: float, tmp_path: Path) -> None:
    from studies.torture.__main__ import run as torture

    counts = torture(campaign, share, tmp_path, seed=7)
    assert counts.tried > 0
    assert counts.defects == 0, counts.examples
