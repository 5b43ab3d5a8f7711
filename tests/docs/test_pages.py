"""What pages show is true: Python is run, commands and options exist, fields and modules have these names.

`make docs` also runs every command whose output is shown (tools/printed.py).
"""

import contextlib
import io
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from own_things import forgotten_afterwards
from pydantic import BaseModel
from test_docs import DOCS, PAGES, ROOT, exists_in_python, sections

from asfl.config import Config
from asfl.config.devices import SETTINGS
from asfl.config.names import PLUGINS_VARIABLE

printed_tool = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "printed.py")))


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of every block of code, in order."""
    return [(language, "\n".join(lines)) for _, language, lines in printed_tool.blocks(page.read_text("utf-8"))]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that looks like the clone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    shutil.copytree(DOCS / "examples", "docs/examples")  # a copy, since examples write pictures below docs
    shutil.copytree(ROOT / "examples", "examples")
    Path("docs/images").mkdir()
    with forgotten_afterwards():
        yield tmp_path


# ---------------------------------------------------------------------- Python
WITH_PYTHON = [page for page in PAGES if any(language == "python" for language, _ in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_id)
def test_python_runs_and_prints_what_the_page_says(page: Path, workplace: Path) -> None:
    found = blocks(page)
    names: dict[str, Any] = {"__name__": "page"}
    for index, (language, content) in enumerate(found):
        if language != "python":
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(content.replace("rounds=20", "rounds=1"), f"{page.name}, block {index}", "exec"), names)
        following = found[index + 1 : index + 2]
        if following and following[0][0] == "text" and "print(" in content:
            assert printed_tool.alike(printed.getvalue().strip().split("\n"), following[0][1].split("\n"))


# ---------------------------------------------------------------------- commands
def commands(page: Path) -> Iterator[list[str]]:
    """Calls of `asfl` in blocks and in the text; not those that show a mistake."""
    text = page.read_text("utf-8")
    shown = printed_tool.commands(page_id(page), text)
    blocks = [one.source for one in shown if not "".join(one.lines[:1]).startswith("error:")]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in [*blocks, *re.findall(r"`(asfl [a-z-][^`]*)`", outside)]:
        if line.startswith("asfl "):
            yield shlex.split(line, comments=True)


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


# ---------------------------------------------------------------------- names
def is_field(name: str) -> bool:
    """Whether the configuration has it."""
    if name in SETTINGS:
        return True
    owner: Any = Config
    for part in name.partition(".own.")[0].split("."):
        models = [kind for kind in (owner, *get_args(owner)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if not fields:
            return False
        owner = fields[0].annotation
    return True


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_fields_modules_and_files_have_these_names(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in re.findall(r"`([\w.]+)(?: = [^`]*)?`", text):
        if name.startswith("asfl."):
            assert exists_in_python(name), name
        elif "." in name and name.partition(".")[0] in Config.model_fields:
            assert is_field(name) or name.endswith((".py", ".md", ".toml")), name
    for name in re.findall(r"(?<![\w/.~-])(?:[\w-]+/)+[\w-]+\.py\b", text):
        assert (ROOT / name).exists() or (ROOT / "src/asfl" / name).exists() or "yours" in name, name
