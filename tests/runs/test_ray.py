"""Runs on a real Ray cluster: a head without CPUs and two nodes, on the loopback address."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import made_up
import psutil
import pytest
from little_runs import LITTLE, ROUNDS, little_comparison, outcome, train_here
from ray_nodes import RAY_LEAVES_THINGS_OPEN, TwoNodes, ray_command
from waiting import LONG_S, wait_until

import asfl.runs.jobs
from asfl._version import __version__
from asfl.config.errors import AsflError, MissingExtraError
from asfl.results.curves import finished_runs
from asfl.runs.engines.ray import check_ray, train_on_ray
from asfl.runs.files import write_whole
from asfl.runs.jobs import Ended, Event, Job, Train
from asfl.runs.manifest import CHECKPOINTS
from asfl.runs.records import RECORDS_FILE, RoundRecord, read_records
from asfl.runs.run import resume

pytestmark = RAY_LEAVES_THINGS_OPEN
WAITS_AFTER = 5


@pytest.fixture(scope="module")
def cluster(ray_nodes: TwoNodes) -> TwoNodes:
    import ray

    # Nodes can't import the modules of tests.
    ray.cloudpickle.register_pickle_by_value(made_up)  # type: ignore[no-untyped-call]
    return ray_nodes


# Ways to train, as functions inside functions: those of this module no node could import.


def _waiting_at(gate: Path) -> Train:
    """Real training; the runs of seed 2 don't get further than some round before there is a file."""

    def train_to_gate(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
        def wait(record: RoundRecord) -> None:
            on_round(record)
            while job.seed == 2 and record.round == WAITS_AFTER and not gate.exists():
                time.sleep(0.05)

        return asfl.runs.jobs.train(job, wait, should_stop)

    return train_to_gate


def _for_ever(pid_file: Path) -> Train:
    def train_for_ever(job: Job, on_round: Callable[[RoundRecord], None], should_stop: Callable[[], bool]) -> bool:
        write_whole(pid_file, str(os.getpid()).encode())
        while True:
            time.sleep(0.1)

    return train_for_ever


def test_failures_leave_the_other_runs_alone(cluster: TwoNodes, tmp_path: Path) -> None:
    import ray

    comparison = little_comparison(tmp_path / "out", "asfl,epsl,sfl,acc-sfl,fedavg", rounds=3)
    events: list[tuple[str, Event]] = []
    ended: dict[str, Ended] = {}
    ray.init(cluster.address, log_to_driver=False)  # a program that is in a cluster already stays in it
    try:
        for _ in range(2):  # what borrows from ASFL comes second
            jobs = [job for job in comparison.jobs() if job.name not in ended]
            ended |= train_on_ray(
                jobs,
                workers=2,
                on_event=lambda job, event: events.append((job.name, event)),
                train=made_up.pretend,
            )
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    killed = ended.pop("epsl seed 1")
    assert killed.reason == "its worker died 3 times (the last time: its process was killed or crashed; out of memory?)"
    broken = ended.pop("acc-sfl seed 1")
    assert broken.reason == "ZeroDivisionError: division by zero"
    assert "in pretend" in broken.traceback
    assert ended == {
        "asfl seed 1": Ended(True),
        "sfl seed 1": Ended(False, "the loss is not a number"),
        "fedavg seed 1": Ended(True),
    }
    assert [event.round for name, event in events if name == "asfl seed 1" and isinstance(event, RoundRecord)] == [
        1,
        2,
        3,
    ]
    assert [(run.scheme, len(run.records)) for run in finished_runs(comparison)] == [("asfl", 3), ("fedavg", 3)]
    assert {job.scheme for job in comparison.jobs()} == {"epsl", "sfl", "acc-sfl"}


def test_nodes_that_cant_do_it(cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OfAnotherVersion:
        def __init__(self, *arguments: object) -> None:
            pass

        def hello(self) -> str:
            return "9.9.9"

        def begin(self, *arguments: object) -> None:
            pass

    class WithoutAsfl(OfAnotherVersion):
        def hello(self) -> str:
            raise ModuleNotFoundError("No module named 'asfl'")

    jobs = little_comparison(tmp_path / "out").jobs()
    for trainer, words in {
        OfAnotherVersion: f"a node of the Ray cluster has asfl 9.9.9, and here it is {__version__}; all nodes need",
        WithoutAsfl: "ModuleNotFoundError: No module named 'asfl'",
    }.items():
        monkeypatch.setattr("asfl.runs.engines.ray.Trainer", trainer)
        (ended,) = train_on_ray(jobs, address=cluster.address).values()
        assert words in ended.reason


def test_no_run_outlives_the_driver(cluster: TwoNodes, tmp_path: Path) -> None:
    """Killed without a chance to say so, the driver leaves no worker behind that trains on."""
    file = tmp_path / "pid"
    code = (
        "import sys; from pathlib import Path; import test_ray as here\n"
        "from little_runs import little_comparison\n"
        "jobs = little_comparison(Path('out')).jobs()\n"
        "here.train_on_ray(jobs, address=sys.argv[1], train=here._for_ever(Path(sys.argv[2])))"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, cluster.address, file],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        wait_until(file.exists)
        worker = psutil.Process(int(file.read_text()))
        assert worker.is_running()
    finally:
        driver.kill()
        driver.wait()
    assert psutil.wait_procs([worker], timeout=LONG_S)[1] == []


def test_a_node_is_killed_in_the_middle(cluster: TwoNodes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = little_comparison(tmp_path / "alone", "asfl,asfl-pmax", seeds=2)
    assert all(train_here(job) for job in alone.jobs())
    comparison = little_comparison(tmp_path / "out", "asfl,asfl-pmax", seeds=2)
    comparison.remember()
    gate = tmp_path / "gate"
    waiting = [comparison.run_folder(scheme, 2) for scheme in ("asfl", "asfl-pmax")]
    rounds: dict[str, list[int]] = {job.name: [] for job in comparison.jobs()}
    finished: dict[Path, int] = {}

    def note(job: Job, event: Event) -> None:
        if isinstance(event, RoundRecord):
            rounds[job.name].append(event.round)

    def watch() -> bool:
        """Asked all the time: when two runs are finished and two are waiting, a node dies."""
        recorded = all(played[-1:] >= [WAITS_AFTER] for played in rounds.values())
        saved = all((one / CHECKPOINTS / "round-000004.json").exists() for one in waiting)
        if recorded and saved and not gate.exists():
            finished.update(_when_written(tmp_path / "out", "*-seed1"))
            cluster.kill_a_node()
            gate.touch()
        return False

    ended = train_on_ray(
        comparison.jobs(), workers=2, address=cluster.address, on_event=note, should_stop=watch, train=_waiting_at(gate)
    )
    cluster.replace_killed_node()
    assert ended == dict.fromkeys(rounds, Ended(True))
    assert comparison.jobs() == []
    death = [record.getMessage() for record in caplog.records]
    assert len(death) == 1
    unlucky = death[0].partition(": its worker died (")[0]
    all_rounds = list(range(1, ROUNDS + 1))
    assert {name: played for name, played in rounds.items() if played != all_rounds} == {
        unlucky: [1, 2, 3, 4, 5, 5, 6, 7, 8]  # the checkpoint was of round 4
    }
    for one in (f"{scheme}-seed{seed}" for scheme in ("asfl", "asfl-pmax") for seed in (1, 2)):
        assert outcome(comparison.folder / one) == outcome(alone.folder / one)

    assert len(finished) > 4
    assert _when_written(tmp_path / "out", "*-seed1") == finished  # finished runs were let alone


def _when_written(folder: Path, runs: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for run in folder.glob(runs) for path in run.rglob("*") if path.is_file()}


def test_ctrl_c(cluster: TwoNodes, tmp_path: Path) -> None:
    """As a terminal does it: the signal goes to all processes of the command at once."""
    words = ["sweep", "demo", "--over", "data.dirichlet_alpha=0.1,10", "--schemes", "asfl", "--out", "out"]
    words += [word for setting in (*LITTLE, "training.rounds=4000") for word in ("--set", setting)]
    process = ray_command([*words, "--workers", "1"], tmp_path, cluster.address)
    name = "data.dirichlet_alpha=0.1"
    folder = tmp_path / "out" / name / "asfl-seed1"
    try:
        wait_until(lambda: (folder / RECORDS_FILE).exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == "stopped with 2 of 2 runs unfinished; the same command goes on where it stopped\n"
    first, second = err.splitlines()
    assert first == "stopping after this round (Ctrl-C again: at once)"
    assert second.startswith(f"{name} asfl seed 1: stopped, ")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}  # nothing in the home folder either
    played = len(read_records(folder))
    assert not resume(folder, should_stop=lambda: True)
    assert len(read_records(folder)) == played + 1


@pytest.mark.parametrize("address", ["here", "127.0.0.1", ":6379", "http://127.0.0.1:1", "127.0.0.1:x", "1.2/3:4"])
def test_what_isnt_an_address(address: str) -> None:
    with pytest.raises(AsflError, match="give HOST:PORT of a Ray cluster"):
        check_ray(address)


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def init(*arguments: object, **options: object) -> None:  # Ray itself would find the cluster of these tests
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr("ray.init", init)
    jobs = little_comparison(tmp_path / "out").jobs()
    with pytest.raises(AsflError, match=r"no Ray cluster runs on this machine: start one \(ray start --head\)"):
        train_on_ray(jobs)
    with pytest.raises(AsflError, match="no Ray cluster answers there"):
        train_on_ray(jobs, address="127.0.0.1:1")


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfl.runs.engines.ray.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"training on Ray needs an optional dependency: .*asfl\[ray\]"):
        train_on_ray([])
