"""Workers end with their parent and save what they have; a run folder that travels can be resumed at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest
from little_runs import ROUNDS, little_comparison, outcome, train_here
from made_up import pretend
from waiting import LONG_S, wait_until

from asfl.config.errors import AsflError
from asfl.runs.engines import ray
from asfl.runs.engines.processes import TOLD_TO_END, train_all
from asfl.runs.engines.ray import News, Parcel, Trainer, list_files, pack, unpack
from asfl.runs.files import read_sealed
from asfl.runs.folder import MODEL_SEAL, is_finished
from asfl.runs.jobs import Ended, Event, Job, Train, train
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE, read_manifest, with_rounds
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records, read_rounds, records_so_far
from asfl.runs.run import OnRound, ShouldStop, resume


# ---------------------------------------------------------------------- processes
def long_round(job: Job, on_round: OnRound, should_stop: ShouldStop) -> bool:
    """A round that takes far longer than the test waits."""
    job.folder.mkdir(parents=True)
    time.sleep(10 * LONG_S)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends after its round")
def test_a_worker_dies_with_its_parent_in_the_middle_of_a_round(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from test_engines import little_comparison, long_round, train_all\n"
        "train_all(little_comparison(Path(sys.argv[1])).jobs(), train=long_round)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code, tmp_path / "out"], env=environment)
    wait_until(lambda: (tmp_path / "out" / "asfl-seed1").exists() or parent.poll() is not None)
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert workers
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(workers, timeout=LONG_S)[1] == []


def test_a_worker_that_is_told_to_end_ends_after_the_round(tmp_path: Path) -> None:
    comparison, told = little_comparison(tmp_path / "out", "sl", rounds=4000), list[int]()

    def tell(job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord) and not told:
            for worker in psutil.Process().children(recursive=True):
                if "spawn_main" in " ".join(worker.cmdline()):
                    told.append(worker.pid)
                    worker.send_signal(signal.SIGTERM)

    ended = train_all(comparison.jobs(), on_event=tell, train=pretend)
    assert ended["sl seed 1"].reason == TOLD_TO_END
    assert 0 < len(read_records(comparison.run_folder("sl", 1))) < 4000


# ---------------------------------------------------------------------- run folders that travel
@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "PATIENCE_S", 0.01)


def _job(folder: Path, scheme: str = "asfl") -> Job:
    return little_comparison(folder, scheme).jobs()[0]


def _news(job: Job, scratch: Path, train: Train = train, stop: Callable[[], int] = lambda: 0) -> Iterator[News]:
    """Everything a worker has to say about a job, as the driver hears it."""
    worker = Trainer(str(Path.cwd()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        worker.begin(job, train, pack(job.folder, {})[0])
    while True:
        for one in worker.report(bool(stop())):
            yield one
            if isinstance(one, Ended):
                return


def _train_elsewhere(job: Job, scratch: Path, train: Train = train) -> Ended:
    for one in _news(job, scratch, train):
        _take(one, job)
    assert isinstance(one, Ended)
    return one


def _take(one: News, job: Job) -> None:
    if isinstance(one, Parcel):
        unpack(one, job.folder)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """What the run comes to if nothing ever happens to it."""
    job = _job(tmp_path_factory.mktemp("alone"))
    assert train_here(job)
    return outcome(job.folder)


def test_home_is_a_run_folder_at_every_moment(tmp_path: Path, expected: tuple[bytes, bytes]) -> None:
    job = _job(tmp_path / "home")
    moments, heard = tmp_path / "moments", list[News]()
    for number, one in enumerate(_news(job, tmp_path)):
        heard.append(one)
        files = one.files if isinstance(one, Parcel) else {}
        for count in range(1, len(files) + 1):  # the driver may be killed between any two files
            unpack(Parcel(dict(islice(files.items(), count)), None, ()), job.folder)
            sealed = [json.loads(file.read_text())["round"] for file in job.folder.glob(f"{CHECKPOINTS}/*.json")]
            assert max(sealed, default=0) <= len(records_so_far(job.folder))
        _take(one, job)
        if files:
            shutil.copytree(job.folder, moments / str(number))
    assert heard[-1] == Ended(True)
    assert any(isinstance(one, Parcel) and one.gone for one in heard)  # old checkpoints
    assert outcome(job.folder) == expected
    assert len(list(job.folder.glob(f"{CHECKPOINTS}/*.safetensors"))) == 2
    assert len(list(moments.iterdir())) >= 2
    for moment in moments.iterdir():
        assert resume(moment)
        assert outcome(moment) == expected
    assert not list(tmp_path.glob("asfl-run-*"))  # the worker cleared up


def test_begun_here_and_there(tmp_path: Path, expected: tuple[bytes, bytes]) -> None:
    job = _job(tmp_path / "home")
    assert not train_here(job, rounds=3)
    heard: list[RoundRecord] = []
    for one in _news(job, tmp_path, stop=heard.__len__):
        _take(one, job)
        if isinstance(one, RoundRecord):
            heard.append(one)
    assert one == Ended(False)
    assert heard[0].round == 4
    played = len(read_records(job.folder))
    assert 4 <= played < ROUNDS
    assert _train_elsewhere(job, tmp_path) == Ended(True)
    assert outcome(job.folder) == expected
    before = list_files(job.folder)
    assert _train_elsewhere(job, tmp_path) == Ended(True)  # finished: nothing to do, nothing to send
    assert list_files(job.folder) == before


def test_extended_elsewhere_home_always_has_a_model(tmp_path: Path, expected: tuple[bytes, bytes]) -> None:
    job, models = _job(tmp_path / "home"), []
    assert train_here(replace(job, config=with_rounds(job.config, 3)))
    for one in _news(job, tmp_path):
        _take(one, job)
        models.append(read_sealed(job.folder / MODEL_FILE)[0].round)
        assert not read_rounds(job.folder, read_manifest(job.folder).fingerprint).problem
    assert models == sorted(models)
    assert set(models) == {3, ROUNDS}
    assert is_finished(job.folder, ROUNDS)
    assert (job.folder / MODEL_FILE).read_bytes() == expected[1]


def test_rounds_after_the_last_checkpoint_are_recorded_once(tmp_path: Path, expected: tuple[bytes, bytes]) -> None:
    """A worker that dies leaves rounds at home that are played again."""
    job = _job(tmp_path / "home")
    assert not train_here(job, rounds=4)
    fifth = expected[0].splitlines(keepends=True)[4]
    with (job.folder / RECORDS_FILE).open("ab") as file:
        file.write(fifth + fifth[:20])  # the checkpoint is of round 4, and a worker died in the middle of a line
    heard: list[int] = []
    for one in _news(job, tmp_path):
        _take(one, job)
        heard += [one.round] if isinstance(one, RoundRecord) else []
    assert heard == [5, 6, 7, 8]
    assert outcome(job.folder) == expected


def test_failures_speak_of_the_folder_at_home(tmp_path: Path) -> None:
    def fail(job: Job, on_round: object, should_stop: object) -> bool:
        raise AsflError(f"{job.folder} is full")

    def leave(job: Job, on_round: object, should_stop: object) -> bool:
        raise SystemExit(3)

    job = _job(tmp_path / "home")
    assert _train_elsewhere(job, tmp_path, fail) == Ended(False, f"{job.folder} is full")
    assert _train_elsewhere(job, tmp_path, leave).reason == "SystemExit: 3"
    broken = _train_elsewhere(_job(tmp_path / "home2", "acc-sfl"), tmp_path, pretend)
    assert broken.reason == "ZeroDivisionError: division by zero"
    assert "in pretend" in broken.traceback


def test_what_isnt_a_run_folder_stays_as_it_is(tmp_path: Path) -> None:
    job = _job(tmp_path / "home")
    job.folder.mkdir(parents=True)
    (job.folder / "thesis.txt").write_text("precious")
    assert "exists and is not a run folder" in _train_elsewhere(job, tmp_path).reason
    assert [path.name for path in job.folder.iterdir()] == ["thesis.txt"]


def test_other_files_travel_too_and_trackers_see_the_name_a_run_has_at_home(tmp_path: Path) -> None:
    def track(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
        done = pretend(job, on_round, should_stop)
        (job.folder / "events" / "more").mkdir(parents=True)
        (job.folder / "events" / "more" / "log").write_text("/".join(job.folder.parts[-2:]))
        (job.folder / ".hidden").touch()
        (job.folder / "link").symlink_to("/etc/hostname")
        return done

    job = _job(tmp_path / "home")
    assert _train_elsewhere(job, tmp_path, track) == Ended(True)
    assert (job.folder / "events" / "more" / "log").read_text() == "home/asfl-seed1"
    assert {path.name for path in job.folder.iterdir()} == {
        MANIFEST_FILE, "rounds.jsonl", MODEL_FILE, MODEL_SEAL, "events",
    }  # fmt: skip


def test_a_disk_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(AsflError, match="can't write"):
        unpack(Parcel({"events/log": b"1"}, None, ()), tmp_path / "home")
