"""What documents show is run again: commands and Python with their output, pictures, and the notebook.

    python tools/printed.py [PAGE …]            writes what differs into README.md and docs, or these pages
    python tools/printed.py --check [PAGE …]    changes nothing, and fails with a diff of every block that differs

In a block of commands the lines below `$ asfl …` are what it prints; "…" stands for lines that are left out. A block
of text behind a block of Python is what that prints. A command with `--plot NAME` draws docs/images/NAME. Words must be
the same and numbers alike: training on another machine may round differently. How long something took is never shown.
"""

import difflib
import io
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = Path("docs/images")
NOTEBOOK = Path("docs/notebook.ipynb")

NOT_RUN = {
    "asfl serve": "waits for devices",
    "asfl join": "needs a server",
    "asfl report runs/compare-demo --watch": "runs until Ctrl-C",
    "asfl reproduce": "takes minutes",
    "make devices": "takes minutes, and its times are the clock's",
}
"""Commands whose output is shown, but not compared, by how they begin; and why."""

NOT_DRAWN = {
    "bcd-gap.svg": "make study",
    "inversion.svg": "make study",
    "degrading.png": "make degrading, by the clock",
    "munich.png": "needs Sionna RT",
    "uma-world.png": "needs Sionna",
    "ucc5g-world.png": "needs traces that aren't ours",
}
"""Pictures that no command here draws; and why."""


def _own_configuration(place: Path, page: str) -> None:
    (place / "mine.toml").write_text(re.findall(r"^```toml\n(base = .*?)^```", page, re.MULTILINE | re.DOTALL)[0])


def _damage(place: Path, page: str) -> None:
    file = place / "runs/demo-asfl-seed1/rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"round":7', '"round":8').replace('"round": 7', '"round": 8')
    file.write_text("".join(lines))


BEFORE: dict[tuple[str, str], str | Callable[[Path, str], None]] = {
    ("docs/configuration.md", "asfl check"): _own_configuration,
    ("docs/runs.md", "asfl run demo --rounds 10 --set"): "asfl run demo --rounds 10",
    ("docs/runs.md", "asfl check"): _damage,
    ("docs/runs.md", "asfl report"): "asfl compare demo --schemes asfl,sfl --rounds 2",
}
"""What a page takes for granted before a command that begins like this: a command, or what is done in the folder."""

TIMES = (
    (re.compile(r"decided in [\d.,]+ \w+"), "decided in …"),
    (re.compile(r", about [\d.,]+ \w+ left$", re.MULTILINE), ""),
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
CLOSE = 0.01
"""How much numbers of one machine may differ from another's."""
SKIPPED = "…"


class NotShownError(Exception):
    """A document shows what can't be run, or what isn't printed any more."""


@dataclass(frozen=True)
class Shown:
    """A command or a piece of Python on a page, and the lines below it."""

    page: str
    line: int
    """Of the first line that is shown, from 0."""
    source: str
    lines: tuple[str, ...]


# ---------------------------------------------------------------------- reading pages
def blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """(number of the first line inside, language, lines) of every block of code; no language: it has a title."""
    lines, opened = text.split("\n"), None
    for number, line in enumerate(lines):
        fence = re.match(r"(`{3,})(\w*)", line)
        if fence and opened is None:
            opened = fence[1], number + 1, fence[2]
        elif opened is not None and line.strip() == opened[0]:
            yield opened[1], opened[2], lines[opened[1] : number]
            opened = None


def commands(page: str, text: str) -> Iterator[Shown]:
    """Every command of the blocks of a page, with what is shown of its output."""
    for start, language, lines in blocks(text):
        if language != "console":
            continue
        place = 0
        while place < len(lines):
            begun = re.match(r"\w*\$ (.*)", lines[place])
            place += 1
            if begun is None:
                continue
            words = begun[1]
            while (words.endswith("\\") or words.count('"') % 2) and place < len(lines):
                words = words.removesuffix("\\") + ("\n" if words.count('"') % 2 else "") + lines[place].strip()
                place += 1
            end = next((n for n in range(place, len(lines)) if re.match(r"\w*\$ ", lines[n])), len(lines))
            yield Shown(page, start + place, words, tuple(lines[place:end]))
            place = end


def python(page: str, text: str) -> list[Shown]:
    """The blocks of Python of a page as far as the last one whose output is shown."""
    found: list[Shown] = []
    last, every = 0, list(blocks(text))
    for (_, language, lines), after in zip(every, [*every[1:], (0, "", [])], strict=False):
        if language != "python":
            continue
        printing = after[1] == "text" and any("print(" in line for line in lines)
        found.append(Shown(page, after[0], "\n".join(lines), tuple(after[2]) if printing else ()))
        last = len(found) if printing else last
    return found[:last]


def drawing(text: str) -> Iterator[tuple[str, str]]:
    """(name of the picture, command) of every command on a page that draws something."""
    for command in [*(one.source for one in commands("", text)), *re.findall(r"`(asfl [^`]+)`", text)]:
        words = shlex.split(command, comments=True)
        if words[0] == "asfl" and "--plot" in words[:-1]:
            yield Path(words[words.index("--plot") + 1]).name, command


# ---------------------------------------------------------------------- comparing
def clean(printed: str) -> list[str]:
    """Lines without how long it took, and without blanks at their ends."""
    for pattern, instead in TIMES:
        printed = pattern.sub(instead, printed)
    return [line.rstrip() for line in printed.rstrip().split("\n")] if printed.strip() else []


def told_again(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """What is printed now, as far as it was shown: from the start, from where lines look alike, or up to the end."""
    parts: list[list[str]] = [[]]
    for line in shown:
        parts.append([]) if line.strip() == SKIPPED else parts[-1].append(line)
    if len(parts) == 1:
        return list(printed)
    if len(parts[0]) + len(parts[-1]) > len(printed):
        raise NotShownError(f"prints {len(printed)} lines only")
    end = len(printed) - len(parts[-1])
    told, place = list(printed[: len(parts[0])]), len(parts[0])
    for part in parts[1:-1]:
        found = next((n for n in range(place, end) if _shape(printed[n]) == _shape(part[0])), None)
        if found is None or found + len(part) > end:
            raise NotShownError(f"doesn't print a line like {part[0]!r}")
        told += [SKIPPED, *printed[found : found + len(part)]]
        place = found + len(part)
    return [*told, SKIPPED, *printed[end:]]


def _shape(line: str) -> str:
    return NUMBER.sub("#", line).strip()


def alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """The same words, and numbers that differ by rounding at most."""
    texts = ["\n".join(lines) for lines in (one, other)]
    words, values = zip(*((NUMBER.split(text), list(map(float, NUMBER.findall(text)))) for text in texts), strict=True)
    return words[0] == words[1] and all(
        math.isclose(*pair, rel_tol=CLOSE) for pair in zip(values[0], values[1], strict=True)
    )


def look_alike(one: Path | io.BytesIO, other: Path | io.BytesIO) -> bool:
    """Whether two pictures are the same but for colours that were reduced and edges that were drawn elsewhere."""
    pictures = []
    for file in (one, other):
        with Image.open(file) as picture:
            opaque = Image.new("RGBA", picture.size, "white")
            opaque.alpha_composite(picture.convert("RGBA"))
            pictures.append(opaque.convert("RGB").reduce(4))
    if pictures[0].size != pictures[1].size:
        return False
    first, second = (np.asarray(picture, dtype=float) for picture in pictures)
    return bool(np.mean(np.abs(first - second).max(axis=2) > 40) < 5e-4)


# ---------------------------------------------------------------------- running
def workplace(folder: Path) -> Path:
    """A folder with what pages name."""
    shutil.copytree(ROOT / "docs/examples", folder / "docs/examples")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / IMAGES).mkdir()
    return folder


def environment() -> dict[str, str]:
    """For every command: this source, one thread, wide lines, no plugins."""
    given = {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return os.environ | given | {"NO_COLOR": "1", "ASFL_PLUGINS": ""}


def side_by_side() -> ThreadPoolExecutor:
    """As many commands at once as there are cores, each on one: with more threads training rounds differently."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    free = iter(cores)

    def take_one() -> None:
        if cores:
            os.sched_setaffinity(0, {next(free)})  # of this thread, and of what it starts

    return ThreadPoolExecutor(len(cores) or 1, initializer=take_one)


def run(words: Sequence[str], place: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=place, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.stdout


def call(command: str, place: Path) -> str:
    words = shlex.split(command, comments=True)
    if words[0] != "asfl":
        raise NotShownError("isn't a call of asfl; tools/printed.py must say why it isn't run (NOT_RUN)")
    return run(["-m", *words], place)


def run_python(pieces: Sequence[Shown], place: Path) -> list[str]:
    """What each piece prints, one after the other in one process."""
    mark = "\0"
    code = f"\nprint({mark!r}, end='')\n".join(piece.source for piece in pieces)
    (place / "page.py").write_text(code, "utf-8")
    return run(["page.py"], place).split(mark)


def folders(command: str) -> set[str]:
    return set(re.findall(r"runs/[\w-]+", command))


def run_page(page: str, text: str, place: Path) -> Iterator[tuple[Shown, list[str]]]:
    """Everything the page shows, with what is printed now."""
    every = list(commands(page, text))
    for number, shown in enumerate(every):
        if not shown.lines or any(shown.source.startswith(words) for words in NOT_RUN):
            continue
        for (where, words), needed in BEFORE.items():
            if where == page and shown.source.startswith(words):
                call(needed, place) if isinstance(needed, str) else needed(place, text)
        for before in every[:number]:
            made = before.source.partition("--out ")[2].split()[:1]
            if not before.lines and folders(shown.source).intersection(made) and not (place / made[0]).exists():
                call(before.source, place)
        try:
            yield shown, told_again(shown.lines, clean(call(shown.source, place)))
        except NotShownError as error:
            raise NotShownError(f"{page}:{shown.line}: `{shown.source}` {error}") from None
    pieces = python(page, text)
    told = run_python(pieces, place) if pieces else []
    if len(told) != len(pieces):
        raise NotShownError(f"{page}: its Python stops with {told[-1].strip()}")
    for shown, printed in zip(pieces, told, strict=True):
        if shown.lines:
            yield shown, clean(printed)


def differences(page: str, text: str, place: Path) -> list[tuple[Shown, list[str]]]:
    """Blocks that show something else than what is printed now, and that."""
    return [(shown, now) for shown, now in run_page(page, text, place) if not alike(shown.lines, now)]


def rewritten(text: str, differing: Sequence[tuple[Shown, list[str]]]) -> str:
    lines = text.split("\n")
    for shown, now in sorted(differing, key=lambda one: -one[0].line):
        lines[shown.line : shown.line + len(shown.lines)] = now
    return "\n".join(lines)


# ---------------------------------------------------------------------- pictures and the notebook
def draw(texts: dict[str, str], place: Path) -> dict[str, Path]:
    """By name: every picture of the documents that a command draws, drawn anew."""
    commands_by_name = {name: command for text in texts.values() for name, command in drawing(text)}
    wanted = {file.name for file in (ROOT / IMAGES).iterdir()} - NOT_DRAWN.keys()
    if missing := wanted - commands_by_name.keys():
        raise NotShownError(f"no command draws {missing}; give one, or say why not in tools/printed.py")
    jobs = {name: re.sub(r"--plot \S+", f"--plot {name}", commands_by_name[name]) for name in sorted(wanted)}
    with side_by_side() as pool:
        said = list(pool.map(lambda command: call(command, place), jobs.values()))
    for (name, command), words in zip(jobs.items(), said, strict=True):
        if not (place / name).is_file():
            raise NotShownError(f"`{command}` doesn't draw {name}: {words}")
    return {name: place / name for name in jobs}


def put(picture: Path, where: Path) -> None:
    """In few colours: half the bytes, and it looks the same."""
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128).save(where, optimize=True)


def words_of(book: Any) -> list[str]:
    """What a notebook prints; of pictures only that they are there."""
    found: list[str] = []
    for output in (output for cell in book["cells"] for output in cell.get("outputs", ())):
        data = output.get("data", {})
        text = "a picture" if "image/png" in data else "".join(output.get("text", data.get("text/plain", "")))
        found += clean(text)
    return found


def run_notebook(place: Path) -> tuple[Any, Any]:
    """The notebook as it is saved, and as it is now."""
    import nbformat
    from nbclient import NotebookClient

    saved, fresh = (nbformat.read(ROOT / NOTEBOOK, as_version=4) for _ in range(2))  # type: ignore[no-untyped-call]
    os.environ.update(environment())
    NotebookClient(fresh, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    for cell in fresh["cells"]:
        cell["metadata"].pop("execution", None)  # when it was
    return saved, fresh


# ---------------------------------------------------------------------- everything
def main(check: bool, only: Sequence[str]) -> int:
    """How many things differ; of these pages, or of all, their pictures and the notebook."""
    import nbformat

    pages = only or ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
    texts = {page: (ROOT / page).read_text("utf-8") for page in pages}
    with tempfile.TemporaryDirectory() as scratch, side_by_side() as pool:
        places = {name: workplace(Path(scratch) / str(number)) for number, name in enumerate([*texts, "", NOTEBOOK])}
        found = list(pool.map(lambda name: differences(name, texts[name], places[name]), texts))
        differing = 0
        for (name, text), of_page in zip(texts.items(), found, strict=True):
            for shown, now in of_page:
                title = f"{name}:{shown.line}: {shown.source.splitlines()[0]}"
                print(
                    "\n".join([title, *list(difflib.unified_diff(shown.lines, now, lineterm="", n=0))[2:]]), flush=True
                )
            if of_page and not check:
                (ROOT / name).write_text(rewritten(text, of_page), "utf-8")
            differing += len(of_page)
        if only:
            return differing
        for name, file in draw(texts, places[""]).items():
            if not look_alike(file, ROOT / IMAGES / name):
                print(f"{IMAGES / name} looks different")
                differing += 1
                if not check:
                    put(file, ROOT / IMAGES / name)
        saved, fresh = run_notebook(places[NOTEBOOK])
        if not alike(words_of(saved), words_of(fresh)):
            print(f"{NOTEBOOK} shows something else")
            differing += 1
            if not check:
                nbformat.write(fresh, ROOT / NOTEBOOK)  # type: ignore[no-untyped-call]
    return differing


if __name__ == "__main__":
    try:
        number = main("--check" in sys.argv[1:], [word for word in sys.argv[1:] if word != "--check"])
    except NotShownError as error:
        sys.exit(f"error: {error}")
    if number and "--check" in sys.argv[1:]:
        sys.exit(f"{number} times documents show what isn't so any more; `make printed` writes it anew")
