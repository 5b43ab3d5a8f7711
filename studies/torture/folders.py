"""Run folders that something happened to: every damage is refused, repaired with a word, or provably harmless.

Two small runs, one finished and one stopped, are copied again and again, and one or two things are done to a copy.
Then it is read, checked and resumed. It must end as the undamaged run does, bit for bit, or be refused.
"""

import json
import logging
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from asfl.config import Config, load_config
from asfl.config.errors import AsflError
from asfl.results.curves import read_run
from asfl.runs.files import sealed_json
from asfl.runs.folder import check_folder
from asfl.runs.manifest import CHECKPOINTS, MANIFEST_FILE, MODEL_FILE
from asfl.runs.records import RECORDS_FILE, RoundRecord
from asfl.runs.run import resume, run
from studies.torture.counts import Counts

FULL = 1000
ROUNDS = 4
TINY = (
    "scenario.clients=2", "radio.num_rbs=2", "model.width=0.1", "training.batch_size=4", "output.test_samples=20",
    "output.checkpoint_every=1", "output.evaluate_every=4", "output.track=none", f"training.rounds={ROUNDS}",
)  # fmt: skip
Random = np.random.Generator
T = TypeVar("T")


def campaign(share: float, folder: Path, random: Random) -> Counts:
    counts = Counts()
    bases = {name: folder / name for name in ("finished", "stopped", "other")}
    _train(bases["finished"], tiny())
    _train(bases["stopped"], tiny(), stop_after=ROUNDS - 1)
    _train(bases["other"], tiny("scenario.seed=2"))
    reference = contents(bases["finished"])
    for number in range(max(1, round(share * FULL))):
        name = str(random.choice(["finished", "stopped"]))
        place = folder / f"damaged-{number}"
        shutil.copytree(bases[name], place)
        done = [_damage(place, bases["other"], random) for _ in range(1 + (random.random() < 0.25))]
        counts.tried += 1
        _judge(place, read_run(bases[name]).records, reference, f"{name}: {', '.join(done)}", counts)
        shutil.rmtree(place, ignore_errors=True)
    return counts


def tiny(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides]).config


def contents(folder: Path) -> tuple[bytes, ...]:
    return tuple((folder / name).read_bytes() for name in (RECORDS_FILE, MODEL_FILE))


def _train(folder: Path, config: Config, stop_after: int | None = None) -> None:
    played: list[RoundRecord] = []
    run(config, "asfl", folder, threads=1, on_round=played.append, should_stop=lambda: len(played) == stop_after)


# ---------------------------------------------------------------------- what must hold
def _judge(
    folder: Path, before: Sequence[RoundRecord], reference: tuple[bytes, ...], what: str, counts: Counts
) -> None:
    """Count what is wrong with how a damaged folder is taken."""
    with _words() as said:
        found = _attempt(lambda: read_run(folder).records, what, counts)
        if isinstance(found, list) and found != list(before[: len(found)]):
            counts.defect("silent", f"other rounds were read from {what}")
        findings = _attempt(lambda: check_folder(folder), what, counts)
        noticed = not isinstance(findings, list) or not all(finding.intact for finding in findings)
        said.clear()
        ended = _attempt(lambda: resume(folder), what, counts)
    if ended is None:  # refused
        if not noticed:
            counts.defect("silent", f"asfl check finds nothing, but asfl resume refuses {what}")
        if "manifest" not in what and "another run" not in what:
            counts.defect("lost", f"the run doesn't go on after {what}")
    elif contents(folder) != reference:
        counts.defect("lost" if said else "silent", f"other bits after {what}")
    elif noticed and not said and not all(CHECKPOINTS in one for one in what.split(": ", 1)[1].split(", ")):
        counts.defect("silent", f"repaired without a word: {what}")


def _attempt(do: Callable[[], T], what: str, counts: Counts) -> T | None:
    """None: refused as it should be, or counted as a traceback."""
    try:
        return do()
    except AsflError:
        return None
    except Exception:
        counts.defect("tracebacks", f"{what}: {traceback.format_exc().splitlines()[-1]}")
        return None


@contextmanager
def _words() -> Iterator[list[str]]:
    """What is said while this is entered."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, listener = logging.getLogger("asfl"), Listener(logging.WARNING)
    logger.addHandler(listener)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate


# ---------------------------------------------------------------------- what happens to folders
def _damage(folder: Path, other: Path, random: Random) -> str:
    """Do one thing to one file; what was done, in words."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # Half of what happens, happens to the records and the manifest: they are what people and programs touch.
    favourites = [path for path in files if path.name in (RECORDS_FILE, MANIFEST_FILE)]
    pool = favourites if favourites and random.random() < 0.5 else files
    if not pool:
        return "nothing"
    file = pool[random.integers(len(pool))]
    name = file.relative_to(folder).as_posix()
    deeds: list[Callable[[Path, Random], str]] = [_digit, _flip, _cut, _empty, _delete, _append, _garbage]
    if file.name == RECORDS_FILE:
        deeds += [_duplicate, _swap_lines, _drop_line, _change_value, _change_value]
    if file.name == MANIFEST_FILE:
        deeds += [_mutate_manifest] * 4
    twin = other / name
    if random.random() < 0.1 and twin.is_file():
        shutil.copy(twin, file)
        return f"{name} of another run"
    return f"{name} {deeds[random.integers(len(deeds))](file, random)}"


def _digit(file: Path, random: Random) -> str:
    content = bytearray(file.read_bytes())
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return "as it was"
    place = places[random.integers(len(places))]
    content[place] = 48 + (content[place] - 48 + random.integers(1, 10)) % 10
    file.write_bytes(content)
    return "with another digit"


def _flip(file: Path, random: Random) -> str:
    content = bytearray(file.read_bytes())
    if content:
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))
        file.write_bytes(content)
    return "with a bit flipped"


def _cut(file: Path, random: Random) -> str:
    content = file.read_bytes()
    file.write_bytes(content[: random.integers(len(content) + 1)])
    return "cut short"


def _empty(file: Path, random: Random) -> str:
    file.write_bytes(b"")
    return "emptied"


def _delete(file: Path, random: Random) -> str:
    file.unlink()
    return "deleted"


def _append(file: Path, random: Random) -> str:
    with file.open("ab") as out:
        out.write(random.bytes(int(random.integers(1, 50))))
    return "with something behind it"


def _garbage(file: Path, random: Random) -> str:
    kinds = [
        random.bytes(200),
        b"[" * 100_000,
        b"{" * 50 + b"\n",
        b"null\n",
        b"\xff\xfe\n",
        b'{"format": ' + b"9" * 5000,
    ]
    file.write_bytes(kinds[random.integers(len(kinds))])
    return "with garbage in it"


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def _duplicate(file: Path, random: Random) -> str:
    lines = _lines(file)
    if lines:
        lines.insert(int(random.integers(len(lines) + 1)), lines[random.integers(len(lines))])
    file.write_bytes(b"".join(lines))
    return "with a line twice"


def _swap_lines(file: Path, random: Random) -> str:
    before = _lines(file)
    lines = list(before)
    while lines == before and len(set(lines)) > 1:
        random.shuffle(lines)
    file.write_bytes(b"".join(lines))
    return "in disorder" if lines != before else f"as it was beside {CHECKPOINTS}"


def _drop_line(file: Path, random: Random) -> str:
    lines = _lines(file)
    if lines:
        lines.pop(int(random.integers(len(lines))))
    file.write_bytes(b"".join(lines))
    return "with a line less"


STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 10**6, 10**30, 1e300, -0.5, float("nan"), float("inf"), "", "x" * 1000, "\x00", "../..",
    "\ud800", [], [1], [None], {}, {"a": 1}, [[[]]],
)  # fmt: skip


def _change_value(file: Path, random: Random) -> str:
    """One value of one round becomes something else; the seal stays."""
    lines = _lines(file)
    try:
        place = int(random.integers(len(lines)))
        data = json.loads(lines[place])
        key = str(random.choice(sorted(data)))
        data[key] = STRANGE[random.integers(len(STRANGE))]
        lines[place] = json.dumps(data).encode() + b"\n"
    except (ValueError, TypeError, RecursionError):  # a line that was damaged before
        return "as it was"
    file.write_bytes(b"".join(lines))
    return f"with {key} = {ascii(data[key])[:20]}"


def _mutate_manifest(file: Path, random: Random) -> str:
    """A value somewhere in it becomes something else. Half of the time the seal is made to match."""
    try:
        data = json.loads(file.read_bytes())
        data.pop("seal", None)
        at, key = data, str(random.choice(sorted(data)))
        while isinstance(at[key], dict) and at[key] and random.random() < 0.9:
            at, key = at[key], str(random.choice(sorted(at[key])))
    except (ValueError, TypeError, AttributeError, KeyError):
        return "as it was"
    before, at[key] = at[key], STRANGE[random.integers(len(STRANGE))]
    resealed = random.random() < 0.5 and not _is_harmless(key, before)
    file.write_bytes(sealed_json(data) if resealed else json.dumps({**data, "seal": "0" * 64}).encode())
    return f"with {key} = {ascii(at[key])[:20]}{', sealed' if resealed else ''}"


def _is_harmless(key: str, before: object) -> bool:
    """What may be anything: facts for people, and what doesn't change results. (A seal is no signature.)"""
    return key not in ("threads", "budgets", "delay_s", "energy_j", "scheme", "format", "config", "recorded")
