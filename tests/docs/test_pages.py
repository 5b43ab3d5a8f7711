"""What pages show is true: Python is run, commands and options exist, fields and modules have these names."""

import ast
import contextlib
import dataclasses
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from own_things import forgotten_afterwards
from pydantic import BaseModel
from test_docs import DOCS, PAGES, ROOT, exists_in_python, sections
from typer.testing import CliRunner

from asfl import load_config
from asfl.cli import app
from asfl.config import Config, plugins
from asfl.config.errors import AsflError
from asfl.field import messages
from asfl.runs.records import RoundRecord
from asfl.runs.run import run

OWN_PROCESSES = ("# server.py", "# client.py")
FRAGMENTS = ("restarted = ",)
"""How blocks begin that run in processes of their own, or that need what only such a process has."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of every block of code, in order."""
    return re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---------------------------------------------------------------------- Python
WITH_PYTHON = [page for page in PAGES if any(language == "python" for language, _ in blocks(page))]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that looks like the clone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    shutil.copytree(DOCS / "examples", "docs/examples")  # a copy, since examples write pictures below docs
    shutil.copytree(ROOT / "examples", "examples")
    Path("docs/images").mkdir()
    with forgotten_afterwards():
        yield tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_id)
def test_python_runs_and_prints_what_the_page_says(page: Path, workplace: Path) -> None:
    found = blocks(page)
    if any("runs/compare-demo" in content for language, content in found if language == "python"):
        run(load_config("demo", ["training.rounds=1", "output.track=none"]).config, "asfl", Path("runs/compare-demo"))
    names: dict[str, Any] = {"__name__": "page"}
    for index, (language, content) in enumerate(found):
        if language != "python":
            continue
        if content.startswith((*OWN_PROCESSES, *FRAGMENTS)):
            ast.parse(content)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(content, f"{page.name}, block {index}", "exec"), names)
        following = found[index + 1 : index + 2]
        if following and following[0][0] == "text" and "print(" in content:
            assert_alike(printed.getvalue(), following[0][1])


def assert_alike(printed: str, shown: str) -> None:
    """The same words, and numbers that differ by rounding at most."""
    number = r"-?\d+(?:\.\d*)?"
    assert re.split(number, printed.strip()) == re.split(number, shown.strip())
    values = [[float(value) for value in re.findall(number, text)] for text in (printed, shown)]
    assert values[0] == pytest.approx(values[1], rel=0.01)


def test_the_server_and_clients_of_the_page_train_together(workplace: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for _, content in blocks(DOCS / "field.md"):
        if content.startswith(OWN_PROCESSES):
            name = content.splitlines()[0].removeprefix("# ")
            for shown, small in (("rounds=8", "rounds=1"), ("clients=3", "clients=2"), ("127.0.0.1:7400", address)):
                content = content.replace(shown, small)
            Path(name).write_text(content)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "server.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    clients: list[subprocess.Popen[bytes]] = []
    try:
        while not (Path("tokens").exists() and Path("tokens").read_text().count("\n") == 1):
            assert server.poll() is None, server.communicate()[1]
            time.sleep(0.05)
        clients = [subprocess.Popen([sys.executable, "client.py", str(n)], env=environment) for n in range(2)]
        printed, errors = server.communicate(timeout=1200)
    finally:
        server.kill()
        for client in clients:
            client.kill()
            client.wait()
    assert server.returncode == 0, errors
    assert re.search(r"^round 1: cut \d, \d arrived$", printed, re.MULTILINE)


# ---------------------------------------------------------------------- commands
def calls(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """(words, lines shown below) of every `$ asfl …` in a block."""
    for language, content in blocks(page):
        if language == "console":
            joined = re.sub(r"\\\n *", "", content)
            for call in re.findall(r"^\w*\$ (asfl .*(?:\n(?!\w*\$ ).*)*)", joined, re.MULTILINE):
                line, *shown = call.splitlines()
                yield shlex.split(line, comments=True), shown


def commands(page: Path) -> Iterator[list[str]]:
    """Calls of `asfl` in blocks and in the text; not those that show a mistake."""
    yield from (words for words, shown in calls(page) if not "".join(shown[:1]).startswith("error:"))
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`(asfl [a-z-][^`]*)`", text):
        yield shlex.split(line)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_have_these_options(page: Path) -> None:
    known = {
        command: set(re.findall(r"(?<![\w-])--[a-z-]+", text)) | {"--help"} for command, text in sections().items()
    }
    for words in commands(page):
        options, rest = {word for word in words if word.startswith("--")}, [*words]
        while rest[1:2] == ["--plugin"]:
            del rest[1:3]
            options -= {"--plugin"}
        length = next(length for length in (3, 2, 1) if " ".join(rest[:length]) in known)
        assert length > 1 or len(rest) == 1, words
        assert options <= known[" ".join(rest[:length])], words
        for option, value in pairwise(words):
            if option in ("--set", "--over") and "=" in value and "KEY" not in value:
                assert is_field(value.partition("=")[0]), words


QUICK = ("check", "decide", "data", "explain", "scenario")


def quick_calls(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Those that take a moment and whose files, if any, are in the repository."""
    for words, shown in calls(page):
        files = [word for word in words if re.search(r"\.(json|toml|npz|csv)$", word)]
        if words[1] in QUICK and shown and all((ROOT / file).exists() for file in files):
            yield words[1:], shown


@pytest.mark.parametrize("page", [page for page in PAGES if any(quick_calls(page))], ids=page_id)
def test_quick_commands_print_what_the_page_shows(page: Path, workplace: Path) -> None:
    for words, shown in quick_calls(page):
        result = CliRunner().invoke(app, words, terminal_width=200)
        printed = f"error: {result.exception}" if isinstance(result.exception, AsflError) else result.output
        for line in shown:
            start = line.partition(", decided in ")[0]  # how long it took is another matter
            assert line == "…" or start in printed, (words, printed)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_knows_these_targets(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:\$ |`)make (\w+)", page.read_text("utf-8"))) <= targets


# ---------------------------------------------------------------------- names
def is_field(name: str) -> bool:
    """Whether the configuration has it."""
    owner: Any = Config
    for part in name.split("."):
        models = [kind for kind in (owner, *get_args(owner)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if not fields:
            return False
        owner = fields[0].annotation
    return True


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_fields_and_modules_have_these_names(page: Path) -> None:
    for name in re.findall(r"`([\w.]+)(?: = [^`]*)?`", page.read_text("utf-8")):
        section = name.partition(".")[0]
        if name.startswith("asfl."):
            assert exists_in_python(name), name
        elif "." in name and section in Config.model_fields and page.name not in ("equations.md", "round-file.md"):
            assert is_field(name) or name.endswith((".py", ".md", ".toml")), name


def test_the_table_of_a_record_has_every_field() -> None:
    table = (DOCS / "runs.md").read_text("utf-8").partition("### rounds.jsonl")[2].partition("\n###")[0]
    first_and_second = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[2:]
    shown = {name for row in first_and_second for name in re.findall(r"`(\w+)`", row)} - {"null"}
    assert shown == {field.name for field in dataclasses.fields(RoundRecord)} | {"checksum"}


def test_the_table_of_messages_has_every_request() -> None:
    table = (DOCS / "field.md").read_text("utf-8").partition("| request |")[2].partition("\n\n")[0]
    shown = {name for row in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert shown == {request.__name__.lower() for request in messages.Request.__subclasses__()}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_of_the_repository_are_where_pages_say(page: Path) -> None:
    for name in re.findall(r"(?<![\w/.~-])(?:[\w-]+/)+[\w-]+\.py\b", page.read_text("utf-8")):
        assert (ROOT / name).exists() or (ROOT / "src/asfl" / name).exists() or "yours" in name, name
