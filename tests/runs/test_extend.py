"""A run that is extended is the run that had been longer from the start."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import train_here
from own_things import forgotten_afterwards

import asfl as package
from asfl.config import Config, by_name, load_config
from asfl.config.errors import AsflError
from asfl.models.build import build_mlp
from asfl.radio.channel import RayleighChannel
from asfl.results.curves import read_run
from asfl.runs.files import DamagedError, append_line, read_sealed, write_sealed
from asfl.runs.folder import check_folder, checkpoint_files, is_finished, save_checkpoint
from asfl.runs.manifest import CHECKPOINTS, MODEL_FILE, comparable, read_manifest, write_manifest
from asfl.runs.records import RECORDS_FILE, Journal, RoundRecord, Rounds, read_records
from asfl.runs.run import resume, run
from asfl.schemes.asfl import AsflScheme
from conftest import Asfl, assert_refused

TINY = [
    "scenario.clients=3", "radio.num_rbs=3", "model.width=0.1", "training.batch_size=8", "output.checkpoint_every=2",
]  # fmt: skip
SHORT, LONG = 3, 6


def tiny(rounds: int, *overrides: str) -> Config:
    return load_config("demo", [*TINY, f"training.rounds={rounds}", *overrides]).config


def bits(folder: Path, ended: Sequence[int] = ()) -> tuple[list[RoundRecord], bytes, bytes]:
    """Everything but seals, which are of the run as it began, and evaluations of rounds with which it once ended."""
    newest = next(file for _, file in checkpoint_files(folder))
    assert all(finding.intact for finding in check_folder(folder))
    nothing: dict[str, Any] = dict.fromkeys(("accuracy", "test_loss", "client_accuracy", "uncalibrated_accuracy"))
    records = [replace(one, **nothing) if one.round in ended else one for one in read_records(folder)]
    return records, (folder / MODEL_FILE).read_bytes(), newest.read_bytes()


@pytest.mark.parametrize(
    ("scheme", "overrides"),
    [
        ("asfl", ["output.test_samples=50"]),  # the last round is evaluated on all images, others aren't
        ("asfl-plus", ["output.evaluate_every=4"]),  # the last round is evaluated, though it isn't its turn
        ("sfl", []),
    ],
)
def test_an_extended_run_was_longer_from_the_start(scheme: str, overrides: list[str], tmp_path: Path) -> None:
    longer = tiny(LONG, *overrides)
    run(longer, scheme, tmp_path / "long", threads=1)
    run(tiny(SHORT, *overrides), scheme, tmp_path / "grown", threads=1)
    assert is_finished(tmp_path / "grown", SHORT)
    assert not is_finished(tmp_path / "grown", LONG)
    assert run(longer, scheme, tmp_path / "grown")
    assert is_finished(tmp_path / "grown", LONG)
    assert read_records(tmp_path / "grown")[SHORT - 1].accuracy is not None
    assert bits(tmp_path / "grown", [SHORT]) == bits(tmp_path / "long", [SHORT])


def test_killed_at_any_write_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the process was killed, the folder is a run with a model, and ends as if it had always been longer."""
    overrides = ["output.test_samples=50"]
    for rounds, name in ((3, "short"), (4, "long")):
        run(tiny(rounds, *overrides), "asfl", tmp_path / name, threads=1)
    models = {(tmp_path / name / MODEL_FILE).read_bytes(): rounds for name, rounds in (("short", 3), ("long", 4))}
    writes, allowed, seen = 0, 0, set()

    def one_more() -> None:
        nonlocal writes
        writes += 1
        if writes > allowed:
            raise KeyboardInterrupt

    def replace_(path: Path, target: Path) -> Path:
        one_more()
        return replaced(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if not path.name.startswith("."):
            one_more()
        unlinked(path, missing_ok)

    def append(path: Path, line: str) -> None:
        try:
            one_more()
        except KeyboardInterrupt:
            appended(path, line[: len(line) // 2])
            raise
        appended(path, line)

    replaced, unlinked, appended = Path.replace, Path.unlink, append_line
    for allowed in range(100):
        writes, folder = 0, tmp_path / f"killed-{allowed}"
        shutil.copytree(tmp_path / "short", folder)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "replace", replace_)
            patch.setattr(Path, "unlink", unlink)
            patch.setattr("asfl.runs.records.append_line", append)
            assert run(tiny(4, *overrides), "asfl", folder)
            break
        seen.add(in_between(folder, models))
        assert resume(folder) if allowed % 2 else run(tiny(4, *overrides), "asfl", folder)
        assert bits(folder, [3]) == bits(tmp_path / "long", [3])
    # Manifest, 1 round, checkpoint of round 4, its seal, an old seal and its checkpoint, manifest, the model, its seal.
    assert allowed == 9
    assert seen == {(3, 3, 3), (3, 4, 3), (4, 4, 3), (4, 4, 0)}


def in_between(folder: Path, models: dict[bytes, int]) -> tuple[int, int, int]:
    """Rounds played, rounds there are to be, round of the model; what is said of the folder must be true."""
    manifest, found = read_manifest(folder), read_run(folder)
    played = len(found.records)
    try:
        seal, model = read_sealed(folder / MODEL_FILE)
    except DamagedError:  # between the model and its seal
        assert not found.finished
        return played, manifest.rounds, 0
    findings = {finding.file: finding for finding in check_folder(folder) if CHECKPOINTS not in finding.file}
    assert models[model] == seal.round
    assert all(finding.intact for finding in findings.values())
    assert f"{played} of {manifest.rounds} rounds" in findings[RECORDS_FILE].words
    extended = (seal.round, manifest.rounds) == (3, 4)
    assert ("of round 3, kept until the run has all 4" in findings[MODEL_FILE].words) == extended
    assert found.progress.endswith(", model of round 3") == extended
    assert found.finished == is_finished(folder) == (played == manifest.rounds == seal.round)
    return played, manifest.rounds, seal.round


def test_extended_twice_and_stopped_between(tmp_path: Path) -> None:
    overrides = ["output.test_samples=50"]
    for rounds, name in ((SHORT, "grown"), (LONG, "long")):
        run(tiny(rounds, *overrides), "asfl", tmp_path / name, threads=1)
    assert not run(tiny(SHORT + 2, *overrides), "asfl", tmp_path / "grown", should_stop=lambda: True)
    assert not run(tiny(LONG, *overrides), "asfl", tmp_path / "grown", should_stop=lambda: True)
    assert resume(tmp_path / "grown")
    assert bits(tmp_path / "grown", [SHORT]) == bits(tmp_path / "long", [SHORT])
    assert read_manifest(tmp_path / "grown").begun_with_rounds == SHORT


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    yield
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_only_rounds_may_differ_and_only_grow(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tiny(2), "asfl", folder, threads=1)
    with untouched(folder):
        for config, scheme, words in (
            (tiny(1), "asfl", "training.rounds = 2 there, 1 here"),
            (tiny(4, "training.learning_rate=0.5"), "asfl", "learning_rate"),
            (tiny(4), "sfl", "scheme asfl, not sfl"),
        ):
            with pytest.raises(AsflError, match=words):
                run(config, scheme, folder)


def relabelled(folder: Path, config: Config) -> None:
    """Make it the run of another configuration: some need clients elsewhere."""
    records = read_records(folder)
    manifest = replace(read_manifest(folder), config=config)
    write_manifest(folder, manifest)
    (folder / RECORDS_FILE).unlink()
    journal = Journal(folder, Rounds(manifest.fingerprint), 0)
    for record in records:
        journal.append(record)
    model = (folder / MODEL_FILE).read_bytes()
    fingerprint, seal = manifest.fingerprint, journal.checksum
    write_sealed(folder / MODEL_FILE, model, round=len(records), fingerprint=fingerprint, records=seal)


def own_things() -> None:
    package.register_scheme(AsflScheme("mine"))
    package.register_channel("fog", lambda scenario, radio: RayleighChannel(scenario))
    package.register_model("deep", build_mlp)
    own_images(0)


def own_images(seed: int) -> None:
    random = np.random.default_rng(seed)
    images, labels = random.integers(256, size=(100, 8, 8), dtype=np.uint8), random.integers(4, size=100)
    package.register_arrays("pictures", images, labels, images[:20], labels[:20])


def test_what_is_refused_changes_nothing(asfl: Asfl, tmp_path: Path) -> None:
    own: dict[str, tuple[str, list[str], str]] = {
        "scheme": ("mine", [], "unknown scheme 'mine'"),
        "channel": ("asfl", ["scenario.channel.kind=fog"], "unknown channel 'fog'"),
        "model": ("asfl", ["model.architecture=deep"], "unknown architecture 'deep'"),
        "data": ("asfl", ["data.name=pictures"], "unknown data set 'pictures'"),
    }
    later = {
        "measured": ("field.costs=measured", "needs clients that are somewhere else"),
        "served": ("data.name=private_1x8x8_10", "images that only devices have"),
        "budget": ("budget.battery_j=1000", "total budgets are spread over 2 rounds"),
    }
    with forgotten_afterwards():
        own_things()
        for name, (scheme, overrides, _) in own.items():
            run(tiny(2, *overrides), scheme, tmp_path / name, threads=1)
        own_images(1)
        with untouched(tmp_path / "data"), pytest.raises(AsflError, match=r"data\.name isn't what it was when the run"):
            run(tiny(4, "data.name=pictures"), "asfl", tmp_path / "data")
    run(tiny(2), "asfl", tmp_path / "old", threads=1)
    for name, (override, _) in later.items():
        relabelled(shutil.copytree(tmp_path / "old", tmp_path / name), tiny(2, override))
    manifest = read_manifest(tmp_path / "old")
    for number, file in checkpoint_files(tmp_path / "old"):
        seal, _ = read_sealed(file)
        save_checkpoint(tmp_path / "old", number, {}, manifest.fingerprint, seal.records)
    refused = {name: words for name, (*_, words) in (own | later).items()} | {"old": "doesn't fit this run: no "}
    for name, words in refused.items():
        with untouched(tmp_path / name):
            assert_refused(asfl("resume", name, "--rounds", 4), words)


def test_as_a_user(asfl: Asfl, tmp_path: Path) -> None:
    tiny_ = [word for text in TINY for word in ("--set", text)]
    assert asfl("run", "demo", *tiny_, "--rounds", 2, "--out", "r").returncode == 0
    again = asfl("resume", "r")
    assert again.returncode == 0
    assert "r was finished; more rounds: asfl resume r --rounds N" in again.stderr
    assert "2 rounds became 4" in asfl("resume", "r", "--rounds", 4).stderr
    assert "4 rounds became 5" in asfl("run", "demo", *tiny_, "--rounds", 5, "--out", "r").stderr
    assert len(read_records(tmp_path / "r")) == 5
    assert_refused(asfl("resume", "r", "--rounds", 3), "--rounds 3", "5 rounds", "more")
    assert_refused(asfl("run", "demo", *tiny_, "--rounds", 3, "--out", "r"), "training.rounds = 5 there, 3 here")


def test_a_comparison_is_extended_with_what_it_borrows(
    asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    monkeypatch.setattr("asfl.cli.compare.write_figures", lambda *_: [])
    tiny_ = [
        word for text in [*TINY, "schemes.asfl.rounds_times=1.5", "output.test_samples=50"] for word in ("--set", text)
    ]
    arguments = ["compare", "demo", *tiny_, "--schemes", "asfl,sfl"]
    assert asfl(*arguments, "--rounds", LONG, "--out", "long").returncode == 0
    assert asfl(*arguments, "--rounds", SHORT, "--out", "grown").returncode == 0
    borrower = tmp_path / "grown" / "sfl-seed1"
    assert_refused(asfl("resume", borrower, "--rounds", LONG), "asfl compare with more rounds")
    assert asfl(*arguments, "--rounds", LONG, "--out", "grown").returncode == 0
    assert len(read_records(tmp_path / "grown" / "asfl-seed1")) == 1.5 * LONG
    for name in ("asfl-seed1", "sfl-seed1"):
        assert bits(tmp_path / "grown" / name, [3, 5]) == bits(tmp_path / "long" / name, [3, 5])
    assert_refused(asfl(*arguments, "--rounds", SHORT, "--out", "grown"), "training.rounds = 6 there, 3 here")


def test_settings_with_their_defaults_do_not_make_it_another_run() -> None:
    """A later version may add one."""
    used = by_name(
        comparable(tiny(2, "training.learning_rate=0.5", "budget.battery_j=[1, 2, 3]"), exclude_defaults=True)
    )
    assert {"training.learning_rate", "budget.battery_j"} <= used.keys()
    assert not {"training.initial", "budget.total_delay_s", "data.augment"} & used.keys()
