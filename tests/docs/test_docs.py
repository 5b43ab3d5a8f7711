"""The documentation: no dead link, every command and option, every equation."""

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

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])


@cache
def hook() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "docs_hook.py"))


@cache
def made_pages() -> dict[Path, str]:
    """Pages that exist only in the site."""
    return {DOCS / name: text for name, text in hook()["pages"]().items() if name.endswith(".md")}


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
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        assert anchor not in found, f"{page}: two sections {anchor}"
        found.add(anchor)
    return found


def links_of(page: Path) -> Iterator[str]:
    yield from re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text_of(page)))


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists() or file in made_pages(), link
        if anchor and file.suffix == ".md":
            in_reference = anchor.startswith("asfl.") and file.parent.name == "api"
            assert exists_in_python(anchor) if in_reference else anchor in anchors_of(file), link


# ---------------------------------------------------------------------- what pages include
def test_every_example_is_shown_in_the_tutorial() -> None:
    shown = set(hook()["INCLUDE"].findall((DOCS / "tutorial.md").read_text("utf-8")))
    assert shown == {str(file.relative_to(ROOT)) for file in (ROOT / "examples").glob("*.py")}


def test_a_broken_include_stops_the_build() -> None:
    class Page:
        class file:  # noqa: N801
            src_uri = "page.md"

    good = 'Text.\n\n``` {.python}\n--8<-- "examples/my_scheme.py"\n```\n'
    assert hook()["on_page_markdown"](good, Page) == good
    with pytest.raises(PluginError, match=r"page\.md.*includes nothing"):  # as `ruff format` would have it
        hook()["on_page_markdown"](good.replace("--8<-- ", "--8 < --"), Page)


# ---------------------------------------------------------------------- pages that are made
def sections() -> dict[str, str]:
    """What the page of the command line says of every command."""
    parts = re.split(r"^## (asfl.*)$", made_pages()[DOCS / "cli.md"], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_command_line_page_has_every_command_and_option() -> None:
    """Compared with what `--help` prints, command by command."""
    seen = {}

    def ask(*words: str) -> None:
        shown = CliRunner().invoke(app, [*words, "--help"]).output
        seen[" ".join(["asfl", *words])] = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
        for name in re.findall(r"^  (\w+)", shown.partition("Commands:\n")[2], re.MULTILINE):
            ask(*words, name)

    ask()
    page = sections()
    assert page.keys() == seen.keys()
    for command, options in seen.items():
        assert [option for option in options if option not in page[command]] == [], command


def test_the_code_cites_every_equation_that_can_be_computed() -> None:
    """The paper numbers 59; the others are steps of proofs."""
    steps_of_proofs = {*range(24, 30), 31, 39, 43, 45, 47, 48}
    cited = hook()["equations"]()
    assert {*cited} - steps_of_proofs == {*range(1, 60)} - steps_of_proofs
    assert all(exists_in_python(name) for names in cited.values() for name in names)


def test_settings_and_the_round_file_are_explained_field_by_field() -> None:
    page, round_file = made_pages()[DOCS / "settings.md"], hook()["round_file_fields"]()
    assert "`decision.delay_budget_s = " in page
    assert "`round.radio.rb_bandwidth_hz = 1e+06`\n:   Bandwidth of one resource block, B." in round_file
    assert hook()["ROUND_FILE"] in (DOCS / "decision.md").read_text("utf-8")
    assert re.findall(r"^`(.+)`\n:   –", page + round_file, re.MULTILINE) == []
