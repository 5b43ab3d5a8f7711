"""Trackers watch a run: told in order, never able to hurt it, and known to nobody who doesn't ask for them."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import made_up_round
from tracked_runs import ROUNDS, TINY, lose_newest_checkpoint, tiny

from asfl.config import load_config
from asfl.config.errors import AsflError, MissingExtraError
from asfl.results.frames import load_runs
from asfl.runs.callbacks import Settings, check_trackers, scalars, tracker_names
from asfl.runs.folder import MODEL_SEAL, is_finished
from asfl.runs.manifest import CHECKPOINTS, MODEL_FILE, Manifest, read_manifest
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import resume, run
from conftest import Asfl, assert_refused


class Diary:
    """Writes down what it is told; fails where it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.settings: Settings = {}
        self.fails_at = fails_at

    def begin(self, folder: Path, settings: Settings, before: Sequence[RoundRecord]) -> None:
        self.settings = settings
        self._note("begin" + "".join(f" {record.round}" for record in before))

    def round(self, record: RoundRecord) -> None:
        self._note(f"round {record.round}")

    def end(self, finished: bool) -> None:
        self._note("finished" if finished else "stopped")

    def _note(self, what: str) -> None:
        self.told.append(what)
        if self.fails_at and what.startswith(self.fails_at):
            raise OSError("No space left on device\nand more")


# ---------------------------------------------------------------------- what trackers are told
def test_own_trackers_hear_of_everything_in_order(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    folder = tmp_path / "run"
    played: list[RoundRecord] = []
    assert not run(
        tiny("none"), "asfl", folder, threads=1,
        on_round=played.append, should_stop=lambda: len(played) == 3, trackers=[first],
    )  # fmt: skip
    assert first.told == ["begin", "round 1", "round 2", "round 3", "stopped"]
    lose_newest_checkpoint(folder)
    assert resume(folder, trackers=[second])
    assert second.told == ["begin 1 2", "round 3", "round 4", "finished"]
    assert second.settings["scheme"] == "asfl"
    assert second.settings["seed"] == 1
    assert second.settings["training.rounds"] == ROUNDS


def test_a_round_is_on_the_disk_before_anybody_hears_of_it(tmp_path: Path) -> None:
    class Reader(Diary):
        def round(self, record: RoundRecord) -> None:
            assert read_records(tmp_path / "run")[-1] == record
            super().round(record)

    reader = Reader()
    run(tiny("none"), "asfl", tmp_path / "run", threads=1, trackers=[reader])
    assert f"round {ROUNDS}" in reader.told


def test_a_run_that_fails_ends_its_trackers(tmp_path: Path) -> None:
    diary = Diary()

    def fail(record: RoundRecord) -> None:
        raise RuntimeError("not the tracker's fault")

    with pytest.raises(RuntimeError, match="not the tracker's fault"):
        run(tiny("none"), "asfl", tmp_path / "run", threads=1, on_round=fail, trackers=[diary])
    assert diary.told == ["begin", "stopped"]


@pytest.mark.parametrize("fails_at", ["begin", "round 2", "finished"])
def test_a_tracker_that_fails_costs_nothing(fails_at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing, healthy = Diary(fails_at), Diary()
    assert run(tiny("none"), "asfl", tmp_path / "tracked", threads=1, trackers=[failing, healthy])
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "Diary is switched off until the run is resumed (OSError: No space left on device)" in warnings[0]
    assert [note for note in failing.told if note == fails_at] == [fails_at]
    assert failing.told[-1] == "stopped"  # it may have something to close
    assert healthy.told == ["begin", *(f"round {k}" for k in range(1, ROUNDS + 1)), "finished"]
    assert run(tiny("none"), "asfl", tmp_path / "alone", threads=1)
    for name in (RECORDS_FILE, MODEL_FILE):
        assert (tmp_path / "tracked" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


# ---------------------------------------------------------------------- a round as numbers
def test_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    """Behind the slash stands a column of `load_runs`, with the same value."""
    run(tiny("none"), "acc-sfl", tmp_path / "run", threads=1)
    table = load_runs(tmp_path / "run")
    for record, (_, row) in zip(read_records(tmp_path / "run"), table.iterrows(), strict=True):
        named = {name.rpartition("/")[2]: value for name, value in scalars(record).items()}
        assert len(named) == len(scalars(record))
        queue = named.pop("participation_queue")
        assert queue == pytest.approx(sum(record.participation_queue) / 3)
        assert named == {name: pytest.approx(row[name]) for name in named}
        assert {"accuracy", "test_loss"} <= named.keys() or record.accuracy is None
        assert {"delay_s", "total_energy_j", "cut", "discrepancy", "arrived", "delay_queue"} <= named.keys()


def test_what_is_no_number_is_left_out() -> None:
    record = made_up_round(1, None, cut=None)
    dead = replace(record, delay_s=math.inf, total_delay_s=math.inf, energy_j=[math.inf] * len(record.energy_j))
    missing = scalars(record).keys() - scalars(dead).keys()
    assert missing == {"cost/delay_s", "cost/total_delay_s", "cost/energy_j"}
    assert not {"learning/accuracy", "decision/cut"} & scalars(record).keys()
    assert all(map(math.isfinite, scalars(dead).values()))


# ---------------------------------------------------------------------- choosing
@pytest.mark.parametrize(
    ("written", "track", "names"),
    [
        ("tensorboard,wandb", "tensorboard,wandb", ["tensorboard", "wandb"]),
        ('["wandb", "mlflow"]', "wandb,mlflow", ["wandb", "mlflow"]),
        (" mlflow , wandb,mlflow", "mlflow,wandb", ["mlflow", "wandb"]),
        ("none", "none", []),
        ("[]", "none", []),
        ("auto", "auto", ["tensorboard"]),
    ],
)
def test_trackers_are_named_in_the_configuration(written: str, track: str, names: list[str]) -> None:
    assert load_config("demo", [f"output.track={written}"]).config.output.track == track
    assert tracker_names(track) == names


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("tensorbord", "output.track: unknown tracker 'tensorbord': did you mean 'tensorboard'?"),
        ("wandb,x", "unknown tracker 'x': valid: auto, mlflow, none, tensorboard, wandb"),
        ("auto,wandb", "'auto' must stand alone"),
        ("3", 'output.track = 3 must be one of "auto", "none", "tensorboard"'),
    ],
)
def test_mistakes_are_named(written: str, words: str) -> None:
    with pytest.raises(AsflError) as caught:
        load_config("demo", [f"output.track={written}"])
    assert words in str(caught.value)


def test_who_watches_is_not_what_the_run_is(tmp_path: Path) -> None:
    watched, alone = tiny("tensorboard"), tiny("none")
    assert not run(alone, "asfl", tmp_path / "run", threads=1, should_stop=lambda: True)
    manifest = read_manifest(tmp_path / "run")
    assert manifest.fingerprint == Manifest(watched, "asfl", manifest.budgets, 1, {}).fingerprint
    assert run(watched, "asfl", tmp_path / "run")  # the same run, and the tracker that is wished now
    assert any((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "alembic")]
)
def test_a_named_tracker_must_be_installed(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it weren't there
    with pytest.raises(MissingExtraError, match=rf"output\.track = \"{name}\" needs .*'asfl\[trackers\]'"):
        run(tiny(name), "asfl", tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_auto_never_complains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert run(tiny("auto"), "asfl", tmp_path / "run", threads=1)
    assert is_finished(tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves ./wandb behind, which Python takes for a package if the real one isn't installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb").mkdir()
    with pytest.raises(MissingExtraError):
        check_trackers("wandb")


def test_nothing_is_imported_that_nobody_asked_for() -> None:
    code = (
        "import sys, asfl.runs.run, asfl.runs.callbacks, asfl.cli.run, asfl.cli.compare\n"
        "asfl.runs.callbacks.trackers_for('tensorboard,wandb,mlflow')\n"
        "print([name for name in ('tensorboard', 'wandb', 'mlflow', 'torch', 'google') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_as_a_user(asfl: Asfl, tmp_path: Path) -> None:
    sets = [word for override in [*TINY, "training.rounds=1"] for word in ("--set", override)]
    assert_refused(asfl("run", *sets, "--set", "output.track=tensorbord"), "did you mean 'tensorboard'?")
    result = asfl("run", *sets, "--json", "--out", "run")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("{")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "manifest.json", RECORDS_FILE, CHECKPOINTS, MODEL_FILE, MODEL_SEAL, "tensorboard",
    }  # fmt: skip
