"""A run that is extended is the run that had been longer from the start."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import train_here

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.runs.check import check_folder
from asfl.runs.checkpoints import checkpoint_files
from asfl.runs.extend import extend_to
from asfl.runs.finished import is_finished
from asfl.runs.manifest import CHECKPOINTS, MODEL_FILE, Manifest, read_manifest, write_manifest
from asfl.runs.records import RECORDS_FILE, Journal, RoundRecord, first_seal, read_records
from asfl.runs.run import resume, run
from conftest import Asfl, assert_refused

TINY = [
    "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", "output.checkpoint_every=2",
]  # fmt: skip
SHORT, LONG = 3, 6


def tiny(rounds: int, *overrides: str) -> Config:
    return load_config("demo", [*TINY, f"training.rounds={rounds}", *overrides]).config


def bits(folder: Path) -> tuple[list[RoundRecord], bytes, bytes]:
    """Everything but seals, which are of the run as it began."""
    newest = next(file for _, file in checkpoint_files(folder / CHECKPOINTS))
    assert all(finding.intact for finding in check_folder(folder))
    return read_records(folder), (folder / MODEL_FILE).read_bytes(), newest.read_bytes()


@pytest.mark.parametrize(
    ("scheme", "overrides"),
    [
        ("asfl", []),
        ("asfl", ["output.test_samples=50"]),  # the last round is evaluated on all images, others aren't
        ("asfl", ["output.evaluate_every=2"]),  # the last round is evaluated, though it isn't its turn
        ("asfl", ["output.test_samples=50", "output.checkpoint_every=100"]),  # no checkpoint before the last round
        ("asfl-plus", ["output.evaluate_every=4"]),
        ("sfl", []),
    ],
)
def test_an_extended_run_was_longer_from_the_start(scheme: str, overrides: list[str], tmp_path: Path) -> None:
    longer = tiny(LONG, *overrides)
    run(longer, scheme, tmp_path / "long", threads=1)
    run(tiny(SHORT, *overrides), scheme, tmp_path / "grown", threads=1)
    assert extend_to(tmp_path / "grown", longer, scheme) == SHORT
    assert not is_finished(tmp_path / "grown")
    assert resume(tmp_path / "grown")
    assert bits(tmp_path / "grown") == bits(tmp_path / "long")
    assert extend_to(tmp_path / "grown", longer, scheme) == 0


def test_extended_twice_stopped_between_and_killed_at_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was changed when the process was killed, the folder is a run: the shorter or the longer one."""
    overrides = ["output.test_samples=50"]
    run(tiny(SHORT, *overrides), "asfl", tmp_path / "short", threads=1)
    run(tiny(LONG, *overrides), "asfl", tmp_path / "long", threads=1)
    unlink, changes, allowed = Path.unlink, 0, 0

    def one_more() -> bool:
        nonlocal changes
        changes += 1
        if changes > allowed:
            raise KeyboardInterrupt
        return True

    def killed_unlink(path: Path, missing_ok: bool = False) -> None:
        if not path.name.startswith("."):
            one_more()
        unlink(path, missing_ok)

    def killed_write(folder: Path, manifest: Manifest) -> None:
        one_more()
        write_manifest(folder, manifest)

    after = Journal.after
    monkeypatch.setattr(Path, "unlink", killed_unlink)
    monkeypatch.setattr(Journal, "after", lambda *of: one_more() and after(*of))
    monkeypatch.setattr("asfl.runs.extend.write_manifest", killed_write)
    for allowed in range(20):
        changes, folder = 0, tmp_path / f"killed-{allowed}"
        shutil.copytree(tmp_path / "short", folder)
        try:
            extend_to(folder, tiny(4, *overrides), "asfl")
        except KeyboardInterrupt:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "unlink", unlink)
                patch.setattr(Journal, "after", after)
                assert resume(folder)
                assert bits(folder) == bits(tmp_path / "short")
        else:
            break
    monkeypatch.undo()
    assert allowed == 6  # model and seal, checkpoint and seal, records, manifest
    assert resume(folder)
    extend_to(folder, tiny(LONG, *overrides), "asfl")
    assert not resume(folder, should_stop=lambda: True)
    assert resume(folder)
    assert bits(folder) == bits(tmp_path / "long")
    assert read_manifest(folder).begun_with_rounds == SHORT


def test_only_rounds_may_differ_and_only_grow(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tiny(2), "asfl", folder, threads=1)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert extend_to(folder, tiny(1), "asfl") == 0
    assert extend_to(tmp_path / "nothing", tiny(1), "asfl") == 0
    with pytest.raises(AsflError, match="learning_rate"):
        extend_to(folder, tiny(4, "training.learning_rate=0.5"), "asfl")
    with pytest.raises(AsflError, match="scheme asfl, not sfl"):
        extend_to(folder, tiny(4), "sfl")
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_total_budgets_are_spread_over_the_rounds_there_are(tmp_path: Path) -> None:
    run(tiny(2, "budget.battery_j=1000"), "asfl", tmp_path / "run", threads=1)
    before = read_manifest(tmp_path / "run")
    with pytest.raises(AsflError, match="total budgets are spread over 2 rounds"):
        extend_to(tmp_path / "run", tiny(4, "budget.battery_j=1000"), "asfl")
    assert read_manifest(tmp_path / "run") == before


def test_as_a_user(asfl: Asfl, tmp_path: Path) -> None:
    tiny_ = [word for text in TINY for word in ("--set", text)]
    assert asfl("run", "demo", *tiny_, "--rounds", 2, "--out", "r").returncode == 0
    again = asfl("resume", "r")
    assert again.returncode == 0
    assert "r was finished; more rounds: asfl resume r --rounds N" in again.stderr
    assert "2 rounds become 4" in asfl("resume", "r", "--rounds", 4).stderr
    assert "4 rounds become 5" in asfl("run", "demo", *tiny_, "--rounds", 5, "--out", "r").stderr
    assert len(read_records(tmp_path / "r")) == 5
    assert_refused(asfl("resume", "r", "--rounds", 3), "--rounds 3", "5 rounds", "more")
    assert_refused(asfl("run", "demo", *tiny_, "--rounds", 3, "--out", "r"), "training.rounds = 5 there, 3 here")


@pytest.mark.parametrize("own", [[], ["schemes.asfl.rounds_times=1.5"]])
def test_a_comparison_is_extended_with_what_it_borrows(
    own: list[str], asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    monkeypatch.setattr("asfl.cli.compare.write_figures", lambda *_: [])
    tiny_ = [word for text in [*TINY, *own, "output.test_samples=50"] for word in ("--set", text)]
    arguments = ["compare", "demo", *tiny_, "--schemes", "asfl,sfl"]
    assert asfl(*arguments, "--rounds", LONG, "--out", "long").returncode == 0
    assert asfl(*arguments, "--rounds", SHORT, "--out", "grown").returncode == 0
    borrower = tmp_path / "grown" / "sfl-seed1"
    assert_refused(asfl("resume", borrower, "--rounds", LONG), "asfl compare with more rounds")
    assert asfl(*arguments, "--rounds", LONG, "--out", "grown").returncode == 0
    assert len(read_records(tmp_path / "grown" / "asfl-seed1")) == (1.5 if own else 1) * LONG
    for name in ("asfl-seed1", "sfl-seed1"):
        assert bits(tmp_path / "grown" / name) == bits(tmp_path / "long" / name)
    long, grown = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("long", "grown"))
    assert long == grown
    assert_refused(asfl(*arguments, "--rounds", SHORT, "--out", "grown"), "training.rounds = 6 there, 3 here")


def test_measured_rounds_are_not_played_again(tmp_path: Path) -> None:
    """Such a run needs clients elsewhere; so its folder is made of another one's."""
    folder = tmp_path / "run"
    run(tiny(2, "output.test_samples=50"), "asfl", folder, threads=1)
    records = read_records(folder)
    config = tiny(2, "output.test_samples=50", "field.costs=measured")
    manifest = replace(read_manifest(folder), config=config)
    write_manifest(folder, manifest)
    (folder / RECORDS_FILE).unlink()
    journal = Journal(folder, first_seal(manifest.fingerprint))
    for record in records:
        journal.append(record)
    with pytest.raises(AsflError, match="measured, which can't be repeated"):
        extend_to(folder, tiny(4, "output.test_samples=50", "field.costs=measured"), "asfl")
    assert read_manifest(folder) == manifest


def test_fields_that_came_later_do_not_make_it_another_run(tmp_path: Path) -> None:
    """A manifest of an earlier version lacks them; its run goes on, and keeps lacking them."""
    folder = tmp_path / "run"
    run(tiny(2), "asfl", folder, threads=1)
    manifest = replace(read_manifest(folder), unknown_then=frozenset({"data.augment", "compute.server_hz"}))
    records = read_records(folder)
    write_manifest(folder, manifest)
    assert "augment" not in json.loads((folder / "manifest.json").read_text())["config"]["data"]
    assert read_manifest(folder) == manifest
    (folder / RECORDS_FILE).unlink()
    journal = Journal(folder, first_seal(manifest.fingerprint))
    for record in records:
        journal.append(record)
    assert read_records(folder) == records
    assert manifest.fingerprint != replace(manifest, unknown_then=frozenset()).fingerprint
