"""Pages that are made when the site is built, and a check of what pages include.

The command line is made from its code, the notebook from its cells. MkDocs calls `on_files` and `on_page_markdown`
(mkdocs.yml, `hooks`).
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from asfl.cli import app

NOTEBOOK = "notebook.ipynb"
INCLUDE = re.compile(r'--8<-- "([^"]+)"')
"""How a page includes a file of the repository."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that are files."""
    from mkdocs.structure.files import File

    page, pictures = notebook_page(Path(config.docs_dir) / NOTEBOOK)
    files.append(File.generated(config, "cli.md", content=command_line_page()))
    files.append(File.generated(config, "notebook.md", content=page))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Stop the build if a page means to include a file but wouldn't (a missing file stops it by itself)."""
    from mkdocs.exceptions import PluginError

    broken = broken_includes(markdown)
    if broken:
        raise PluginError(f'{page.file.src_uri}: {broken[0]!r} includes nothing; write: --8<-- "FILE"')


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
    path = context.command_path
    yield f"## {path}\n"
    yield f"{command.help or ''}\n"
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"```text\n{' '.join(usage.split())}\n```\n"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            names, text = record
            yield f"`{names}`\n:   {text or ''}\n"
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        yield from _command(inner, inner.context_class(inner, info_name=name, parent=context))


# ---------------------------------------------------------------------- the notebook
def notebook_page(file: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown: text, code, and what it printed and drew when it was saved; pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(file.read_text("utf-8"))["cells"]:
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
