"""Workers end with their parent, and save what they have."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from little_runs import little_comparison
from made_up import pretend
from waiting import LONG_S, wait_until

from asfl.runs.engines.processes import TOLD_TO_END, train_all
from asfl.runs.jobs import Event, Job, attempt
from asfl.runs.records import RoundRecord, read_records
from asfl.runs.run import OnRound, ShouldStop


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


def test_a_job_can_end_in_any_way(tmp_path: Path) -> None:
    def leave(job: Job, on_round: OnRound, should_stop: ShouldStop) -> bool:
        raise SystemExit(3)

    (job,) = little_comparison(tmp_path / "out", "acc-sfl").jobs()
    assert attempt(leave, job, print, bool).reason == "SystemExit: 3"
    broken = attempt(pretend, job, lambda record: None, bool)
    assert broken.reason == "ZeroDivisionError: division by zero"
    assert "in pretend" in broken.traceback
