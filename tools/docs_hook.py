"""Pages that are made from the code when the site is built, and a check of what pages include.

MkDocs calls `on_files` and `on_page_markdown` (mkdocs.yml, `hooks`).
"""

import ast
import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

import asfl
from asfl.cli import app
from asfl.config import Config
from asfl.optimize.roundfile import json_schema

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
INCLUDE = re.compile(r'--8<-- "([^"]+)"')
"""How a page includes a file of the repository."""
ROUND_FILE = "<!-- docs_hook: fields of the round file -->"
CITED = re.compile(r"(?<![\w^)\]])\((\d\d?)[a-z]?\)(?: ?(?:–|to) ?\((\d\d?)[a-z]?\))?(?![\w(])")
"""Numbers of equations in a docstring, such as (7), (30d) or (51) to (57)."""


@cache
def pages() -> dict[str, str | bytes]:
    """Files that exist only in the site, by name."""
    notebook, pictures = notebook_page()
    made = {"cli.md": command_line_page(), "settings.md": settings_page(), "equations.md": equations_page()}
    return made | {"notebook.md": notebook} | pictures | {f"api/{name}.md": page for name, page in reference_pages()}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Stop the build if a page means to include a file but wouldn't (a missing file stops it by itself)."""
    from mkdocs.exceptions import PluginError

    if broken := broken_includes(markdown):
        raise PluginError(f'{page.file.src_uri}: {broken[0]!r} includes nothing; write: --8<-- "FILE"')
    return markdown.replace(ROUND_FILE, round_file_fields()) if ROUND_FILE in markdown else markdown


def broken_includes(markdown: str) -> list[str]:
    """Lines that look like an include without being one, such as those that a code formatter has spaced out."""
    lines = re.findall(r"^.*-\s*-\s*8\s*<.*$", markdown, re.MULTILINE)
    return [line for line in lines if not INCLUDE.fullmatch(line)]


# ---------------------------------------------------------------------- the command line
def command_line_page() -> str:
    """Every command with all its arguments and options, in the words of `--help`."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="asfl")
    parts = [
        "# Command line\n\nThis page is made from the code; `asfl COMMAND --help` says the same.\n",
        "Exit codes: 0, all went well; 2, a mistake you can fix, explained in one message; 130, stopped with Ctrl-C.\n",
        *_command(root, context),
    ]
    return "\n".join(parts)


def _command(command: Any, context: Any) -> Iterator[str]:
    yield f"## {context.command_path}\n"
    yield f"{command.help or ''}\n"
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"```text\n{' '.join(usage.split())}\n```\n"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            yield _defined(*record)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from _command(inner, inner.context_class(inner, info_name=name, parent=context))


def _defined(name: str, meaning: str) -> str:
    linked = re.sub(r"\(docs/([\w-]+\.md)\)", r"([more](\1))", " ".join((meaning or "–").split()))
    return f"`{name}`\n:   {linked}\n"


def _default(value: Any) -> str:
    return f" = {value:g}" if isinstance(value, float) else f" = {json.dumps(value, ensure_ascii=False, default=str)}"


# ---------------------------------------------------------------------- settings and the round file
def settings_page() -> str:
    """Every field of the configuration with its default."""
    return "\n".join(["# Settings\n\nEvery field of the [configuration](configuration.md).\n", *_fields(Config, "")])


def _fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    sections = []
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            sections.append((f"{prefix}{name}", inner[0]))
        else:
            default = "" if field.is_required() else _default(field.get_default(call_default_factory=True))
            yield _defined(f"{prefix}{name}{default}", field.description or "")
    for name, kind in sections:
        yield f"## {name}\n\n{' '.join((kind.__doc__ or '').split())}\n"
        yield from _fields(kind, f"{name}.")


def round_file_fields() -> str:
    schema = json_schema()

    def properties(of: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, field in of.items():
            kinds = [kind["$ref"] for kind in [field, *field.get("anyOf", field.get("oneOf", []))] if "$ref" in kind]
            if "description" in field:
                default = "" if field.get("default") is None else _default(field["default"])
                yield _defined(f"{prefix}{name}{default}", field["description"])
            for kind in kinds:
                yield from properties(schema["$defs"][kind.rpartition("/")[2]]["properties"], f"{prefix}{name}.")

    return "\n".join(properties(schema["properties"], ""))


# ---------------------------------------------------------------------- Python
def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of everything below `asfl` that isn't private."""
    for file in sorted((ROOT / "src/asfl").rglob("*.py")):
        parts = file.relative_to(ROOT / "src").with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if not any(part.startswith("_") for part in name.split(".")):
            yield name, file


def reference_pages() -> Iterator[tuple[str, str]]:
    """(room, page) of every room, and an index."""
    rooms: dict[str, list[str]] = {}
    for name, file in modules():
        options = ""
        if file.name == "__init__.py":  # what is defined here, not what is only passed on
            own = [
                node
                for node in ast.parse(file.read_text("utf-8")).body
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
            ]
            names = [node.name for node in own if not node.name.startswith("_")]
            options = f"\n    options:\n      members: {names or 'false'}"
        rooms.setdefault(name.split(".")[1] if "." in name else "index", []).append(f"::: {name}{options}\n")
    for room, found in rooms.items():
        title = "Python reference" if room == "index" else f"asfl.{room}"
        yield room, "\n".join([f"# {title}\n", *found, *(offered() if room == "index" else ())])


def offered() -> Iterator[str]:
    """What can be imported from `asfl` itself, and where it is explained."""
    yield "From `asfl` itself:\n"
    for name in dir(asfl):
        if (home := getattr(getattr(asfl, name), "__module__", "")).startswith("asfl."):
            yield f"- [`asfl.{name}`][{home}.{name}]"


def equations() -> dict[int, dict[str, str]]:
    """By number: the names whose docstrings cite the equation, each with the first sentence of its docstring."""
    found: dict[int, dict[str, str]] = {}
    for module, file in modules():
        for name, text in _docstrings(ast.parse(file.read_text("utf-8")), module):
            for match in CITED.finditer(text):
                for number in range(int(match[1]), int(match[2] or match[1]) + 1):
                    found.setdefault(number, {})[name] = " ".join(re.split(r"(?<=\.)\s|\n\n", text)[0].split())
    whole = dict(modules())
    return {
        number: {name: text for name, text in one.items() if name not in whole} or one for number, one in found.items()
    }


def _docstrings(node: Any, name: str) -> Iterator[tuple[str, str]]:
    yield name, ast.get_docstring(node) or ""
    for before, inner in zip([None, *node.body], node.body, strict=False):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef) and not inner.name.startswith("_"):
            yield from _docstrings(inner, f"{name}.{inner.name}")
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(inner, ast.Expr):
            yield f"{name}.{before.target.id}", str(getattr(inner.value, "value", ""))


def equations_page() -> str:
    """A row for each equation that the code cites."""
    top = "Where the paper's numbered equations are computed: every function and field whose documentation cites one."
    rows = ["# Equations\n", f"{top} The others are steps of proofs.\n", "| paper | code | |\n| --- | --- | --- |"]
    for number, cited in sorted(equations().items()):
        for name, text in cited.items():
            words = text.replace("|", "\\|")
            rows.append(f"| ({number}) | [`{'.'.join(name.split('.')[-2:])}`][{name}] | {words} |")
    return "\n".join(rows) + "\n"


# ---------------------------------------------------------------------- the notebook
def notebook_page() -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown: text, code, and what it printed and drew when it was saved; pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"notebook-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the code above draws]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
