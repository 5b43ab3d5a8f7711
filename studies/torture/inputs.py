"""Absurd inputs through the command line's own `main`: each ends well or with one clear error, soon and in bounds.

An import takes longer than most inputs. So calls are made one after the other in a few child processes with a limit on
their memory; one that dies or hangs is a defect of the input it was at, and another goes on behind it. A sample is
tried again in a new interpreter each, as a person would call it: what only the first call of a process does shows then.
"""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from studies.torture.counts import Counts
from studies.torture.made_up import MAKERS, Case

FULL, FRESH = 20_000, 40
"""How many in the full campaign, and how many of them again in a new interpreter."""
MEMORY_BYTES = 8 << 30
"""Address space of a child; PyTorch takes half of it by being there."""
ONE_INPUT_S = 60
Defect = tuple[str, str]
"""Its kind, and what it was."""
OUT_OF_MEMORY = "out of memory"
"""What `asfl` says when it was surprised. It should have known before."""


def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, seed, total = Counts(), int(random.integers(1 << 30)), max(int(FULL * share), 1)
    workers = min(os.cpu_count() or 1, total)
    ranges = [range(total * worker // workers, total * (worker + 1) // workers) for worker in range(workers)]
    again = random.permutation(total)[: max(round(FRESH * share), 1)].tolist()
    with ThreadPoolExecutor(workers) as pool:
        found = [*pool.map(lambda part: _in_children(seed, part, folder), ranges)]
        found += pool.map(lambda index: _in_new_interpreter(case_at(seed, index, folder), folder), again)
    for kind, what in [defect for part in found for defect in part]:
        counts.defect(kind, what)
    counts.tried = total
    return counts


def _in_children(seed: int, part: range, folder: Path) -> list[Defect]:
    found, at = list[Defect](), part.start
    while at < part.stop:
        command = [sys.executable, "-m", "studies.torture.inputs", *map(str, (seed, at, part.stop, folder))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                at += 1
                found += [(kind, what) for kind, what in json.loads(line)]
        if process.returncode != 0:
            shown = " ".join(case_at(seed, at, folder).arguments)
            found.append(("tracebacks", f"the process died ({process.returncode}): asfl {shown[:300]}"))
            at += 1
    return found


def _in_new_interpreter(case: Case, folder: Path) -> list[Defect]:
    if any("\0" in word for word in case.arguments):  # no command can be called so
        return []
    command = [sys.executable, "-c", "from asfl.cli import main; main()", *case.arguments]
    shown = " ".join(case.arguments)[:300]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=3 * ONE_INPUT_S, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        return [("tracebacks", f"a new process took longer than {3 * ONE_INPUT_S} s: asfl {shown}")]
    out, err = ended.stdout.decode("utf-8", "replace"), ended.stderr.decode("utf-8", "replace")
    escaped = err if "Traceback" in err else ""
    found = judged(case, ended.returncode, out, err, escaped)
    return [(kind, f"in a new process: {what}: asfl {shown}") for kind, what in found]


def case_at(seed: int, index: int, folder: Path) -> Case:
    """The input of this number, its files in a folder of its own; the same each time."""
    random = np.random.default_rng([seed, index])
    own = folder / str(index)
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    names, shares = list(MAKERS), np.array([share for _, share in MAKERS.values()])
    make, _ = MAKERS[names[int(random.choice(len(names), p=shares / shares.sum()))]]
    return make(own, random)


def tried(case: Case, encoding: str) -> list[Defect]:
    """Call `asfl` and judge how it ended: (kind of defect, what)."""
    from asfl.cli import main

    written = io.BytesIO(), io.BytesIO()
    out, err = map(io.TextIOWrapper, written, (encoding,) * 2, ("strict", "backslashreplace"))
    code, escaped = 0, ""
    sys.argv = ["asfl", *case.arguments]
    os.environ["ASFL_PLUGINS"] = ""
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numbers that overflow are no numbers
        try:
            main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            escaped = traceback.format_exc()
        out.flush()
        err.flush()
    shown_out, shown_err = (raw.getvalue().decode("utf-8", "replace") for raw in written)
    found = judged(case, code, shown_out, shown_err, escaped)
    return [(kind, f"{what}: asfl {' '.join(case.arguments)[:300]}") for kind, what in found]


def judged(case: Case, code: int, out: str, err: str, escaped: str) -> list[Defect]:
    if escaped:
        return [("tracebacks", f"{escaped.strip().splitlines()[-1][:200]} [{_where(escaped)}]")]
    if OUT_OF_MEMORY in err:
        return [("silent", err.strip()[-200:])]
    if code not in (0, 2):
        return [("tracebacks", f"exit code {code}: {err[-200:]}")]
    if code == 2:
        if out:
            return [("silent", f"refused, but printed {out[:100]!r}")]
        return [] if "rror" in err else [("silent", "refused without a word")]
    if case.must_refuse:
        return [("silent", "went through")]
    if "--json" in case.arguments:
        try:
            json.loads(out, parse_constant=_no_json)
        except ValueError as error:
            return [("silent", f"not JSON: {error}")]
    return []


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _where(escaped: str) -> str:
    ours = [line.strip() for line in escaped.splitlines() if "/asfl/" in line and "File" in line]
    return ours[-1].rpartition("/asfl/")[2] if ours else "?"


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"took longer than {ONE_INPUT_S} s")


def child(seed: int, first: int, total: int, folder: Path) -> None:
    """Try the inputs `first` … `total` − 1 and print one line of JSON for each: its defects."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _too_slow)
    answers = sys.stdout
    os.chdir(folder)
    for index in range(first, total):
        case = case_at(seed, index, folder)
        encoding = "ascii" if index % 4 == 0 else "utf-8"
        signal.alarm(ONE_INPUT_S)
        defects = tried(case, encoding)
        signal.alarm(0)
        print(json.dumps(defects), file=answers, flush=True)
        shutil.rmtree(folder / str(index), ignore_errors=True)


if __name__ == "__main__":
    child(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
