"""Absurd inputs through the command line's own `main`: each ends well or with one clear error, soon and in bounds.

Calls are made in a child process with a limit on its memory, since an import takes longer than most inputs; a child
that dies or hangs is a defect of the input it was at, and the next one goes on behind it.
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
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from studies.torture.counts import Counts
from studies.torture.made_up import MAKERS, Case

FULL = 20_000
MEMORY_BYTES = 8 << 30
"""Address space of a child; PyTorch takes half of it by being there."""
ONE_INPUT_S = 60
OUT_OF_MEMORY = "out of memory"
"""What `asfl` says when it was surprised. It should have known before."""


def campaign(share: float, folder: Path, random: np.random.Generator) -> Counts:
    counts, seed = Counts(), int(random.integers(1 << 30))
    total, at = max(int(FULL * share), 1), 0
    while at < total:
        command = [sys.executable, "-m", "studies.torture.inputs", str(seed), str(at), str(total), str(folder)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            at += 1
            for kind, what in json.loads(line):
                counts.defect(kind, what)
        if child.wait() != 0:
            shown = " ".join(case_at(seed, at, folder).arguments)
            counts.defect("tracebacks", f"the process died ({child.returncode}): asfl {shown[:300]}")
            at += 1
    counts.tried = total
    return counts


def case_at(seed: int, index: int, folder: Path) -> Case:
    """The input of this number, its files in a folder of its own; the same each time."""
    random = np.random.default_rng([seed, index])
    own = folder / str(index)
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    names, shares = list(MAKERS), np.array([share for _, share in MAKERS.values()])
    make, _ = MAKERS[names[int(random.choice(len(names), p=shares / shares.sum()))]]
    return make(own, random)


def tried(case: Case, encoding: str) -> list[tuple[str, str]]:
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


def judged(case: Case, code: int, out: str, err: str, escaped: str) -> list[tuple[str, str]]:
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
