"""Shared by all tests: small random worlds as hypothesis strategies, and a way to run the real command."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from waiting import LONG_S

# In tests, the shapes of the decision's arrays are checked; before anything of asfl is imported.
jaxtyping.install_import_hook(
    [f"asfl.optimize.{name}" for name in ("problem", "queues", "search", "terms")], "shape_checks.checked"
)

if TYPE_CHECKING:
    from ray_nodes import TwoNodes
    from shared_work import FileByFile
    from xdist.remote import Producer

    from asfl.costs.world import World

# No test cuts the power, and waiting for the disk takes longer than everything else; a process that is killed
# loses nothing without it.
os.fsync = lambda fd: None

# Several test processes share the cores; PyTorch would start a thread per core in each of them, and have them spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile(
    "asfl", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("asfl")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "FileByFile":
    from shared_work import FileByFile

    return FileByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.has_plugin("xdist"):
        from shared_work import longest_first

        items.sort(key=longest_first)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Shapes are checked where decisions are the subject: a checked decision takes five times as long.

    Sums are rounded by how many threads share them. A run leaves its number of threads to the process, in all threads
    but those that have one of their own: without this, the bits of a test would depend on the tests before it.
    """
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    checked = folder in {"optimize", "schemes"} and item.path.name != "test_decide.py"  # which plays whole runs
    jaxtyping.config.update("jaxtyping_disable", not checked)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_each_run() -> Iterator[None]:
    """Unless a test says how many: on two cores that all tests share, a second one is for waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asfl.runs.run.usual_threads", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _trackers_have_names() -> Iterator[None]:
    """TensorBoard takes seconds to import; so "auto" finds it only where it is the subject."""
    from asfl.runs.callbacks import Tracker, trackers_for

    def named(track: str) -> list[Tracker]:
        is_subject = "test_callbacks" in os.environ.get("PYTEST_CURRENT_TEST", "")
        return trackers_for(track) if track != "auto" or is_subject else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asfl.runs.run.trackers_for", named)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_same_budgets_are_found_once() -> Iterator[None]:
    """Of worlds that are in the configuration as a whole: finding them takes longer than the rounds of most tests."""
    from asfl.costs import world as worlds
    from asfl.radio.channel import RayleighChannel

    find, found = worlds.fair_policy, dict[object, worlds.Budgets]()

    def fair_policy(world: "World", *policy: Any) -> worlds.Budgets:
        if not isinstance(world.channel, RayleighChannel):
            return find(world, *policy)
        config = world.config.model_dump_json(exclude={"output": True, "budget": True, "training": {"rounds"}})
        key = config, str(world.channel), str(world.profile), str(policy)
        return found[key] if key in found else found.setdefault(key, find(world, *policy))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "fair_policy", fair_policy)
        yield


Asfl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def asfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asfl:
    """Run `asfl` as a user would, in an empty folder, but in this process: a new one imports for seconds."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        from own_things import forgotten_afterwards

        from asfl.cli import main

        command, code = ["asfl", *map(str, arguments)], 0
        out, err = StringIO(), StringIO()
        with monkeypatch.context() as patch, forgotten_afterwards(), redirect_stdout(out), redirect_stderr(err):
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", command)
            patch.setenv("ASFL_PLUGINS", os.environ.get("ASFL_PLUGINS", ""))  # --plugin adds to it
            try:
                main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def asfl_process(tmp_path: Path) -> Asfl:
    """The same in a process of its own."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from asfl.cli import main; main()", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, cwd=tmp_path, check=False)

    return run


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator["TwoNodes"]:
    """One Ray cluster for all tests that need one (they are in one process: `shared_work`)."""
    from ray_nodes import SWITCHES, TwoNodes

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SWITCHES.items():  # a node that joins needs them too
            patch.setenv(name, value)
        nodes = TwoNodes()
        yield nodes
        nodes.shut_down()


def assert_refused(result: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """Exit code 2, one clear message with these words, no traceback, nothing on standard output."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr, result.stderr
