"""The documentation: no dead link, every command and option, every equation's function."""

import re
import runpy
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from mkdocs.exceptions import PluginError
from typer.testing import CliRunner

from asfl.cli import app
from asfl.config import preset_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])


@cache
def hook() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "docs_hook.py"))


@cache
def made_pages() -> dict[Path, str]:
    """Pages that exist only in the site."""
    notebook, _ = hook()["notebook_page"](DOCS / "notebook.ipynb")
    return {DOCS / "cli.md": hook()["command_line_page"](), DOCS / "notebook.md": notebook}


@cache
def text_of(page: Path) -> str:
    """A page with what it includes, without blocks of code."""
    text = made_pages().get(page) or page.read_text("utf-8")
    text = re.sub(r'^--8<-- "(.+)"$', lambda match: (ROOT / match[1]).read_text("utf-8"), text, flags=re.MULTILINE)
    return re.sub(r"^( *)(`{3,}).*?^\1\2", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors_of(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+?) *$", text_of(page), re.MULTILINE):
        given = re.search(r"\{ *#([^ }]+).*\}$", heading)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(given[1] if given else _anchor(plain, found))
    return found


def _anchor(heading: str, taken: set[str]) -> str:
    """As the site makes it: plain letters, words joined by "-", the second of the same name with "_1"."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
    number = next(number for number in range(100) if (f"{anchor}_{number}" if number else anchor) not in taken)
    return f"{anchor}_{number}" if number else anchor


def links_of(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", text_of(page))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def exists_in_python(name: str) -> bool:
    """Whether a dotted name can be reached: a module, then attributes or annotated fields."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(thing, part) and not (isinstance(thing, type) and part in get_type_hints(thing)):
                return False
            thing = getattr(thing, part, None)
        return True
    return False


# ---------------------------------------------------------------------- links
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        is_there = file.exists() or file in made_pages()
        assert is_there, link
        if anchor and file.suffix == ".md":
            in_reference = anchor.startswith("asfl.") and file.parent.name == "api"
            is_there = exists_in_python(anchor) if in_reference else anchor in anchors_of(file)
            assert is_there, link


def test_the_reference_names_what_exists() -> None:
    pages = "\n".join(text_of(page) for page in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(set(names)) == len(names)
    assert names
    for name in names:
        assert exists_in_python(name), name


# ---------------------------------------------------------------------- what pages include
def test_every_example_is_shown_in_the_tutorial() -> None:
    shown = set(hook()["INCLUDE"].findall((DOCS / "tutorial.md").read_text("utf-8")))
    assert shown == {str(file.relative_to(ROOT)) for file in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_include_includes_something(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not hook()["broken_includes"](text)
    for name in hook()["INCLUDE"].findall(text):
        assert (ROOT / name).is_file(), name


def test_a_broken_include_stops_the_build() -> None:
    class Page:
        class file:  # noqa: N801
            src_uri = "page.md"

    good = 'Text.\n\n``` {.python}\n--8<-- "examples/my_scheme.py"\n```\n'
    hook()["on_page_markdown"](good, Page)
    with pytest.raises(PluginError, match=r"page\.md.*includes nothing"):  # as `ruff format` would have it
        hook()["on_page_markdown"](good.replace("--8<-- ", "--8 < --"), Page)


def test_no_picture_lies_unused() -> None:
    shown = {Path(link).name for page in PAGES for link in links_of(page)}
    unused = {file.name for file in (DOCS / "images").iterdir()} - shown
    assert not unused


# ---------------------------------------------------------------------- the command line
def sections() -> dict[str, str]:
    parts = re.split(r"^## (asfl.*)$", made_pages()[DOCS / "cli.md"], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_command_line_page_has_every_command_and_option() -> None:
    """Compared with what `--help` prints, command by command."""
    seen = {}

    def ask(*words: str) -> None:
        shown = CliRunner().invoke(app, [*words, "--help"]).output
        seen[" ".join(["asfl", *words])] = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
        listed = shown.partition("Commands:\n")[2]
        for name in re.findall(r"^  (\w+)", listed, re.MULTILINE):
            ask(*words, name)

    ask()
    page = sections()
    assert page.keys() == seen.keys()
    for command, options in seen.items():
        missing = {option for option in options if option not in page[command]}
        assert not missing, command
    assert "[default: demo]" in page["asfl run"]


# ---------------------------------------------------------------------- equations
HOMES = {
    "Round": "costs.round",
    "RoundCost": "costs.modelled",
    "RoundPlan": "train.trainer",
    "RoundRecord": "runs.records",
}
"""Classes that the page names without their module."""


def code_column() -> Iterator[tuple[str, str]]:
    """(paper, code) of every row of the first two tables."""
    for line in text_of(DOCS / "equations.md").partition("## Names")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and "---" not in line and cells[-1] != "code":
            yield cells[0], cells[-1]


def test_every_function_of_the_equations_exists() -> None:
    named = 0
    for _, code in code_column():
        owner = ""
        for name in re.findall(r"`([^`]+)`", code):
            first = name.partition(".")[0]
            home = f"{HOMES[first]}." if first in HOMES else f"{owner}." if name.startswith("_") else ""
            assert name in preset_names() or exists_in_python(f"asfl.{home}{name}"), name
            if re.search(r"\.[A-Z]\w+$", name):
                owner = name
            elif not name.startswith("_"):
                owner = re.sub(r"\.[a-z_]\w*$", "", name)
            named += 1
    assert named > 50


def test_every_equation_has_a_row() -> None:
    """The paper numbers 59."""
    found: set[int] = set()
    for paper, _ in code_column():
        numbers = [int(number) for number in re.findall(r"\((\d+)[a-z]?\)", paper)]
        found |= set(range(numbers[0], numbers[-1] + 1)) if "–" in paper else set(numbers)
    assert found == set(range(1, 60))
