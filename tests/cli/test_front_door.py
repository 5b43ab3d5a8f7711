"""What a newcomer types first: help, list, explain, new, doctor, completion; and what plugins do wrong."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
from made_up import train_here
from waiting import LONG_S

from asfl.cli import _COMMANDS
from asfl.cli.check import _EXTRAS
from asfl.cli.listing import _SCHEMES, Kind
from asfl.config.errors import AsflError
from asfl.config.show import field_names
from asfl.schemes import SCHEMES
from conftest import Asfl, assert_refused

ROOT = Path(__file__).parents[2]
TINY = ["--set", "scenario.clients=2", "--set", "training.batch_size=4", "--set", "model.width=0.1", "--rounds", "1"]


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_is_clean(asfl: Asfl, command: str) -> None:
    result = asfl(command, "-h")
    assert result.returncode == 0
    assert "\\" not in result.stdout
    assert len(re.findall("arguments:", result.stdout, re.IGNORECASE)) <= 1
    if command == "run":
        assert "A preset's name or a TOML file.  [default: demo]" in result.stdout


@pytest.mark.parametrize("kind", get_args(Kind))
def test_everything_is_listed_with_a_line(asfl: Asfl, kind: Kind) -> None:
    listed = json.loads(asfl("list", kind, "--json").stdout)
    assert all(about and about != "your own" for about in listed.values())
    lines = asfl("list", kind).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(listed)
    if kind == "schemes":
        assert list(listed) == list(SCHEMES)
        assert set(listed) == set(_SCHEMES)


def test_a_field_is_explained(asfl: Asfl) -> None:
    assert asfl("explain", "batch_size").stdout.splitlines()[:2] == [
        "field    training.batch_size",
        "meaning  Samples of one mini-batch.",
    ]
    assert "valid    a number > 0 and ≤ 1e15, in Hz" in asfl("explain", "radio.rb_bandwidth_hz").stdout
    section = asfl("explain", "radio").stdout.splitlines()
    assert [line.split()[0] for line in section] == [name for name in field_names() if name.startswith("radio.")]
    assert "schemes.NAME.local_steps" in asfl("explain", "schemes").stdout
    assert_refused(asfl("explain", "batch"), "no field 'batch': did you mean training.batch_size?")
    for name in field_names():
        assert asfl("explain", name).returncode == 0, name
    for line in asfl("explain", "demo").stdout.splitlines():
        assert not line or line.startswith("[") or re.search(r"# \S.* · .* · ", line), line  # meaning, range, source


@pytest.mark.parametrize("kind", ["scheme", "channel", "model", "data"])
def test_a_new_file_works_as_it_is(asfl: Asfl, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very command that it is announced with."""
    monkeypatch.setattr("asfl.runs.engines.processes.train_all", train_here)
    said = asfl("new", kind, "mine").stdout
    _, *words = said.splitlines()[1].split()
    rest = [] if words[2] == "scenario" else TINY
    if "--rounds" in words:
        words = words[: words.index("--rounds")]
    result = asfl(*words, *rest)
    assert result.returncode == 0, result.stderr
    assert_refused(asfl("new", kind, "mine"), "mine.py exists")
    assert_refused(asfl("new", kind, "No good"), "must be small letters")
    assert list(tmp_path.glob("No*")) == []
    assert_refused(asfl("new", "scheme", "asfl"), "ships with asfl")
    assert_refused(asfl("new", "model", "a-b"), "has no -")


def test_the_doctor_knows_every_extra(asfl: Asfl) -> None:
    result = asfl("doctor", "--json")
    assert result.returncode == 0
    found = {one["name"]: one for one in json.loads(result.stdout)}
    assert {"Python", "cores", "memory", "PyTorch", "LLVM", "digits", "cifar10"} <= found.keys()
    assert found["asfl[train]"]["good"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(_EXTRAS) == extras.keys() - {"dev", "test"}


def test_a_mistake_in_a_plugin_shows_its_line_and_nothing_of_ours(asfl: Asfl, tmp_path: Path) -> None:
    asfl("new", "scheme", "mine")
    file = tmp_path / "mine.py"
    text = file.read_text().replace(
        "        round_ = problem.round\n", "        round_ = problem.round\n        1 / 0\n"
    )
    file.write_text(text)
    line = text.splitlines().index("        1 / 0") + 1
    words = f"plugin {file}, line {line}, in decide: ZeroDivisionError: division by zero\n    1 / 0\n"
    result = asfl("--plugin", "mine.py", "decide", "--rounds", 1, "--schemes", "mine")
    assert (result.returncode, result.stderr.lstrip()) == (2, f"error: {words}")
    trained = asfl("--plugin", "mine.py", "run", "--scheme", "mine", *TINY)
    assert (trained.returncode, trained.stderr) == (2, f"error: {words}")


ONE_AFTER_THE_OTHER = """
import os, sys
from asfl.cli import main
for command in sys.argv[1:]:
    if "_ASFL_COMPLETE" in os.environ:
        os.environ |= {"COMP_WORDS": command, "COMP_CWORD": str(len(command.split()) - 1)}
        command = "asfl"
    sys.argv = command.split()
    try:
        main()
    except SystemExit as left:
        assert not left.code, command
    print("that was all")
"""


def printed_by(commands: Iterable[str], **environment: str) -> list[str]:
    """What each command prints, one after the other in one process."""
    words = [sys.executable, "-c", ONE_AFTER_THE_OTHER, *commands]
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=LONG_S, env=os.environ | environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split("that was all\n")[:-1]


def test_the_shell_completes() -> None:
    expected = {
        "asfl comp": "compare",
        "asfl run paper-cifar1": "paper-cifar10",
        "asfl run --scheme asfl-pl": "asfl-plus",
        "asfl compare --schemes asfl,sfl-cu": "asfl,sfl-cut2",
        "asfl run --set training.batch": "training.batch_size=",
        "asfl explain radio.num": "radio.num_rbs",
    }
    for (typed, offer), offered in zip(
        expected.items(), printed_by(expected, _ASFL_COMPLETE="complete_bash"), strict=True
    ):
        assert offer in offered.split(), typed


def test_a_terminal_without_our_letters_gets_every_word() -> None:
    commands = ["asfl explain demo", "asfl scenario demo", "asfl --help"]
    for command, shown in zip(commands, printed_by(commands, PYTHONIOENCODING="ascii"), strict=True):
        assert shown, command
        assert shown.isascii(), command


# ---------------------------------------------------------------------- ends that are no mistake
_INTERRUPTED_AT = """
import os, signal, sys
module = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from asfl.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["asfl.costs.world"])
def test_ctrl_c_while_it_imports_ends_it_with_a_word(module: str) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_AT, module, "scenario"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "stopped\n")


@pytest.mark.parametrize(("command", "code"), [("scenario", 1), ("--help", 1), ("explain nosuch", 2)])
def test_a_reader_that_is_gone_is_no_mistake(command: str, code: int) -> None:
    """As in `asfl … | head`, which ends it without a word; a mistake still has one."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        words = [sys.executable, "-m", "asfl", *command.split()]
        found = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=LONG_S, check=False)
    finally:
        os.close(theirs)
    assert found.returncode == code
    assert ("nosuch" in found.stderr) == bool(found.stderr) == (code == 2)


# ---------------------------------------------------------------------- secrets
def test_a_code_is_read_from_where_it_stays_secret(asfl: Asfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[str]()

    def enrol(home: Path, server: str, code: str, name: str, data: str) -> None:
        taken.append(code.strip())
        raise AsflError("enough")

    monkeypatch.setattr("asfl.field.membership.enrol", enrol)
    (tmp_path / "code").write_text("from-a-file\n")
    monkeypatch.setattr(sys, "stdin", StringIO("from-standard-input\nmore\n"))
    for options in (["--code", tmp_path / "code"], [], ["--code", "-"]):
        assert asfl("join", "server:7401", *options).returncode == 2
    assert taken == ["from-a-file", "from-standard-input", "more"]
    refused = asfl("join", "server:7401", "y5kcd3da2qibk55")
    assert (refused.returncode, len(taken)) == (2, 3)
    assert "every user of this machine can read a code on the command line" in refused.stderr
    assert "y5kcd3da2qibk55" not in refused.stderr
    assert "can't be read" in asfl("join", "server:7401", "--code", tmp_path / "nothing").stderr
