"""Processes that are forked: they are what was asked for, and live and die with who stands for them."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from waiting import LONG_S, wait_until

from asfl.field.flower import forked, nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do this")
COMMANDS = """
import os, sys, time, signal
from asfl.field.flower import nursery, quick

def flower_supernode():
    print(sys.argv, os.getcwd(), os.environ["MARK"], flush=True)
    if "wait" in sys.argv:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
        print(os.getpid(), flush=True)
        time.sleep(10_000)
    return 3

nursery.COMMANDS, nursery._APPS = (), ()
quick.loaded = lambda name: flower_supernode
sys.argv = ["nursery", sys.argv[1]]
nursery.main()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    with a_nursery() as ask:
        yield ask


@contextmanager
def a_nursery() -> Iterator[Start]:
    with (
        tempfile.TemporaryDirectory(prefix="asfl-", dir="/tmp") as folder,
        subprocess.Popen([sys.executable, "-c", COMMANDS, f"{folder}/nursery"]) as server,
    ):
        where = nursery.socket_in(Path(folder))
        assert where is not None
        wait_until(where.exists, "it listens", LONG_S)

        def ask(*words: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-I", "-S", str(forked.__file__), str(where), "flower-supernode", *words]
            environment, pipe = {**os.environ, "MARK": "mine"}, subprocess.PIPE
            return subprocess.Popen(command, env=environment, stdout=pipe, text=True, cwd=folder)

        yield ask
        server.kill()


def test_a_fork_has_the_words_the_folder_and_the_variables_and_its_code_is_passed_on(start: Start) -> None:
    one = start("a", "b c")
    out, _ = one.communicate(timeout=LONG_S)
    assert re.fullmatch(r"\['flower-supernode', 'a', 'b c'\] /tmp/asfl-\w+ mine\n", out)
    assert one.returncode == 3


def waiting(asked: "subprocess.Popen[str]") -> psutil.Process:
    assert asked.stdout is not None
    asked.stdout.readline()
    return psutil.Process(int(asked.stdout.readline()))


def test_signals_are_passed_on(start: Start) -> None:
    asked = start("wait")
    waiting(asked)
    asked.send_signal(signal.SIGTERM)
    asked.communicate(timeout=LONG_S)
    assert asked.returncode == 7


def test_who_is_killed_takes_the_other_along(start: Start) -> None:
    first, second = start("wait"), start("wait")
    process, other = waiting(first), waiting(second)
    first.kill()
    first.communicate(timeout=LONG_S)
    wait_until(lambda: not process.is_running(), "its process has ended", LONG_S)
    assert other.is_running()
    other.kill()
    second.communicate(timeout=LONG_S)
    assert second.returncode == 128 + signal.SIGKILL


def test_forks_end_with_the_nursery() -> None:
    with a_nursery() as start:
        asked = start("wait")
        process = waiting(asked)
    asked.communicate(timeout=LONG_S)
    assert asked.returncode == 1
    wait_until(lambda: not process.is_running(), "it has ended", LONG_S)


def test_without_a_nursery_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(forked.__file__), str(tmp_path / "none"), "flwr-clientapp"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "can't start flwr-clientapp: No such file or directory\n"
