"""Write docs/results/hardware.md: the claims of recorded runs, charged for other servers, clients and timings.

python tools/hardware.py docs/results/records.jsonl.xz docs/results/hardware.md [--recipes NAME,…] [--trace FILE]…

Decisions, links and arrivals are those of the record, and nothing is trained.
"""

import argparse
import string
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asfl.config import Compute, Config, Scenario, load_config
from asfl.config.devices import devices
from asfl.config.units import number, percent
from asfl.costs.world import Budgets
from asfl.results.curves import Resource, Run
from asfl.results.reproduce.archive import Found, RunKey, read_archive, runs_of, with_runs
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.page import findings_of
from asfl.results.reproduce.recharge import ALWAYS, Charges, charged_on, is_chargeable, is_there, on_trace
from asfl.results.reproduce.recipes import RECIPES, recipe_named
from asfl.results.summary import Summary
from asfl.results.tables import Table
from asfl.runs.this_process import usual_threads
from asfl.schemes import OURS, PLUS

HEADLINE, ALL = "accuracy-delay-energy", "all"
SAMPLE = (HEADLINE, "second-world", "fixed-cuts", "power-rb", "rivals")
TABLE_II = "Table II"
SERVERS = {f"server × {times}": (f"compute.server_hz={times}e10",) for times in (3, 10, 100)}
CLIENTS = {
    name: (f"compute.client_device={name}",)
    for name in ("arduino-uno-q", "raspberry-pi-4", "raspberry-pi-5", "orange-pi-5", "laptop", "jetson-orin-nano")
}
BOTH = {f"{name}, server × 100": (*CLIENTS[name], *SERVERS["server × 100"]) for name in ("orange-pi-5",)}
MACHINES: dict[str, tuple[str, ...]] = {TABLE_II: (), **SERVERS, **CLIENTS, **BOTH}
OVERLAP = ("decision.timing=overlap",)
TIMINGS = {"overlap": OVERLAP, "overlap, 8 slices": (*OVERLAP, "radio.slices=8")}
HARDWARE = (*MACHINES, *TIMINGS)
CHARGED_AT_ONCE: Sequence[Mapping[str, tuple[str, ...]]] = (MACHINES, *({name: own} for name, own in TIMINGS.items()))
"""What differs in processors alone."""
RESOURCES: Sequence[Resource] = ("delay_s", "energy_j")
SAYS_YES = ("holds", "holds weaker")
LETTERS = string.ascii_letters
CLIENT = Compute()
CLIENT_HZ = (Scenario().min_cpu_hz, Scenario().max_cpu_hz)


# ---------------------------------------------------------------------- charging
def charged(runs: Mapping[RunKey, Run], workers: int) -> dict[RunKey, dict[str, tuple[Charges, int]]]:
    """What each run costs on each hardware, by its place among what is charged at once."""
    groups: dict[tuple[str, int], list[RunKey]] = {}
    for key in runs:
        groups.setdefault((key[0], key[2]), []).append(key)
    found: dict[RunKey, dict[str, tuple[Charges, int]]] = {}
    jobs = [[runs[key] for key in keys] for keys in groups.values()]
    with ProcessPoolExecutor(workers) as pool:
        for keys, several in zip(groups.values(), pool.map(_charged, jobs), strict=True):
            found |= dict(zip(keys, several, strict=True))
            print(f"{len(found)} of {len(runs)} runs", file=sys.stderr)
    return found


def _charged(runs: Sequence[Run]) -> list[dict[str, tuple[Charges, int]]]:
    """Of runs in one world with one seed, which share their budgets."""
    known: dict[tuple[object, ...], Budgets] = {}
    return [
        {
            name: (charges, place)
            for several in CHARGED_AT_ONCE
            for charges in [charged_on(run, [_on(run, own) for own in several.values()], known)]
            for place, name in enumerate(several)
        }
        for run in runs
    ]


def _on(run: Run, settings: Sequence[str]) -> Config:
    assert run.config is not None
    return load_config(run.config, [*ALWAYS, *settings]).config


# ---------------------------------------------------------------------- what it says
@dataclass(frozen=True)
class Said:
    """What one hardware says to all claims, each said once."""

    findings: Mapping[str, tuple[str, Finding]]
    """By what they are about, with the recipe of each."""
    headline: Summary | None


def said_by(found: Sequence[Found]) -> Said:
    findings: dict[str, tuple[str, Finding]] = {}
    for one in found:
        for finding in findings_of(one):
            findings.setdefault(finding.about, (one.recipe, finding))
    first = next((one for one in found if one.recipe == HEADLINE), None)
    headline = None if first is None else next(iter(first.outcomes().values()))[0].summary
    return Said(findings, headline)


def page(said: Mapping[str, Said], command: str) -> str:
    return "\n\n".join(_parts(said, command)) + "\n"


def _parts(said: Mapping[str, Said], command: str) -> Iterator[str]:
    yield "# Which conclusions depend on the hardware?"
    base, flips = said[TABLE_II].findings, _flips(said)
    slow, fast = (1e9 * CLIENT.energy_coefficient * CLIENT.client_cycles_per_flop * hz**2 for hz in CLIENT_HZ)
    measured = [1e9 * (devices()[name].j_per_flop or 0.0) for name in CLIENTS]
    yield (
        f"`{command}` charges recorded rounds as if Table II's server (0.32 TFLOP/s) were faster, as if all clients "
        "were one machine (`asfl list devices` has the sources), or without barriers between stages. Decisions are "
        "those made for Table II's hardware: a scheme that decides would decide otherwise, which is another "
        f"experiment. Table II's clients take {slow:.2g} to {fast:.2g} nJ/FLOP, measured ones {min(measured):.2g} to "
        f"{max(measured):.2g}."
    )
    yield _table(said, flips).markdown()
    pages = ", ".join(f"[{name}]({name}.md)" for name in dict.fromkeys(recipe for recipe, _ in base.values()))
    yield f"{len(base)} claims of {pages}, each once. Letters are claims that begin or cease to hold, weakly or not:"
    lines = []
    for letter, about in zip(LETTERS, flips, strict=False):
        recipe, before = base[about]
        label = f", {before.label}" if before.label else ""
        after = ", ".join(dict.fromkeys(flips[about].values()))
        lines.append(f"- {letter}: {before.claim} ({recipe}{label}): {before.conclusion} → {after}")
    yield "\n".join(lines)


def _flips(said: Mapping[str, Said]) -> dict[str, dict[str, str]]:
    """By what claims that flip are about: what is concluded, by hardware. What can't be compared says nothing."""
    found: dict[str, dict[str, str]] = {}
    for about, (_, before) in said[TABLE_II].findings.items():
        for name, there in said.items():
            _, after = there.findings.get(about, ("", before))
            if (before.verdict in SAYS_YES) != (after.verdict in SAYS_YES):
                found.setdefault(about, {})[name] = after.conclusion
    return found


def _table(said: Mapping[str, Said], flips: Mapping[str, Mapping[str, str]]) -> Table:
    target = _target(said[TABLE_II].headline)
    header = ["hardware", "hold", "weaker", "mixed", "don't", "open", "flips"]
    header += [f"{name} to {percent(target)}: s/J" for name in (PLUS, OURS)] if target else []
    header += ["best others: s/J"] if target else []
    rows = []
    for name, there in said.items():
        counted = Counter[str](finding.verdict for _, finding in there.findings.values())
        row = [name, *(str(counted[one]) for one in (*SAYS_YES, "mixed", "doesn't hold"))]
        row.append(str(counted["not clear"] + counted["not shown"]))
        row.append("".join(letter for letter, of in zip(LETTERS, flips.values(), strict=False) if name in of) or "–")
        rows.append(row + (_headline(there.headline, target) if target and there.headline else []))
    return Table(header=header, rows=rows)


def _target(summary: Summary | None) -> float | None:
    """The highest accuracy that both of ours reach with every seed."""
    if summary is None:
        return None
    reached = [{*summary.reached(name, target, "delay_s")} for target in summary.targets for name in (OURS, PLUS)]
    both = zip(summary.targets, reached[::2], reached[1::2], strict=True)
    return max((target for target, *seeds in both if all(one == {*summary.seeds} for one in seeds)), default=None)


def _headline(summary: Summary, target: float) -> list[str]:
    """What ours need to the target; the least time and the least energy of any other scheme."""
    needed = {one: [summary.to_reach(one, target, what).median for what in RESOURCES] for one in summary.ranked}
    others = [of for one, of in needed.items() if not one.startswith(OURS)]
    return ["/".join(map(number, of)) for of in (needed[PLUS], needed[OURS], np.nanmin(others, axis=0))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--recipes", default=",".join(SAMPLE), help=f"default: %(default)s; {ALL}: half an hour")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    given = parser.parse_args()
    files = {file.name: file for file in given.trace}
    chosen = list(RECIPES) if given.recipes == ALL else given.recipes.split(",")
    found = [one for one in read_archive(given.archive) if one.recipe in chosen and recipe_named(one.recipe).claims]
    here = {key: on_trace(run, files) for key, run in runs_of(found).items()}
    lost = {key for key, run in here.items() if not is_there(run)}
    found = [one for one in found if not lost & runs_of([one]).keys()]
    runs = {key: here[key] for key in runs_of(found) if is_chargeable(here[key])}
    said, each = {}, charged(runs, usual_threads())
    for name in HARDWARE:
        there = {key: charges.of(runs[key], place) for key, of in each.items() for charges, place in [of[name]]}
        said[name] = said_by([with_runs(one, there, {}) for one in found])
    given.page.write_text(page(said, "make hardware"), "utf-8")


if __name__ == "__main__":
    main()
