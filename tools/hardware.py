"""Write docs/results/hardware.md: the claims of recorded runs, charged for other servers, clients and timings.

python tools/hardware.py docs/results/records.jsonl.xz docs/results/hardware.md [--recipes NAME,…] [--trace FILE]…

Decisions, links and arrivals are those of the record, and nothing is trained.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from asfl.config import Config, load_config
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

HEADLINE = "accuracy-delay-energy"
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

    findings: Sequence[tuple[str, Finding]]
    """With the recipe of each."""
    headline: Summary | None


def said_by(found: Sequence[Found]) -> Said:
    findings: dict[str, tuple[str, Finding]] = {}
    for one in found:
        for finding in findings_of(one):
            findings.setdefault(finding.about, (one.recipe, finding))
    first = next((one for one in found if one.recipe == HEADLINE), None)
    headline = None if first is None else next(iter(first.outcomes().values()))[0].summary
    return Said(list(findings.values()), headline)


def page(said: Mapping[str, Said], command: str) -> str:
    return "\n\n".join(_parts(said, command)) + "\n"


def _parts(said: Mapping[str, Said], command: str) -> Iterator[str]:
    yield "# Which conclusions depend on the hardware?"
    recipes = dict.fromkeys(recipe for recipe, _ in said[TABLE_II].findings)
    count = len(said[TABLE_II].findings)
    yield (
        f"`{command}` charges recorded rounds as if Table II's server (0.32 TFLOP/s) were faster, as if all clients were "
        "one machine (`asfl list devices` has the sources), or without barriers between stages. Decisions are those made "
        "for Table II's hardware: a scheme that decides would decide otherwise, which is another experiment. "
        f"{count} claims of {', '.join(recipes)}; to flip is to begin or cease to hold, weakly or not."
    )
    yield _table(said).markdown()
    flips = _flips(said)
    if flips:
        yield "## What flips"
        lines = [
            f"- {claim} ({recipe}, {before}): {'; '.join(after)}" for (recipe, claim, before), after in flips.items()
        ]
        yield "\n".join(lines)


def _table(said: Mapping[str, Said]) -> Table:
    target = _target(said[TABLE_II].headline)
    header = ["hardware", "hold", "weaker", "don't", "mixed", "open", "flips"]
    header += [f"{name} to {percent(target)}: s/J" for name in (PLUS, OURS)] if target else []
    header += ["fastest other: s", "thriftiest other: J"] if target else []
    flips = Counter(_flipping(said))
    rows = []
    for name, there in said.items():
        counted = Counter(finding.verdict for _, finding in there.findings)
        row = [name, *(str(counted[one]) for one in (*SAYS_YES, "doesn't hold", "mixed"))]
        row += [str(counted["not clear"] + counted["not shown"]), str(flips[name])]
        rows.append(row + (_headline(there.headline, target) if target and there.headline else []))
    return Table(header=header, rows=rows)


def _target(summary: Summary | None) -> float | None:
    """The highest accuracy that both of ours reach with every seed."""
    if summary is None:
        return None
    return max(
        (
            t
            for t in summary.targets
            if all(len(summary.reached(one, t, "delay_s")) == len(summary.seeds) for one in (OURS, PLUS))
        ),
        default=None,
    )


def _headline(summary: Summary, target: float) -> list[str]:
    ours = ["/".join(number(summary.to_reach(one, target, what).median) for what in RESOURCES) for one in (PLUS, OURS)]
    others = [one for one in summary.ranked if not one.startswith(OURS) and summary.reached(one, target, "delay_s")]
    for what in RESOURCES:
        needed = {one: summary.to_reach(one, target, what).median for one in others}
        best = min(needed, key=lambda one: needed[one])
        ours.append(f"{number(needed[best])} ({best})")
    return ours


def _pairs(said: Mapping[str, Said]) -> Iterator[tuple[str, str, Finding, Finding]]:
    for name, there in said.items():
        for (recipe, before), (_, after) in zip(said[TABLE_II].findings, there.findings, strict=True):
            if (before.verdict in SAYS_YES) != (after.verdict in SAYS_YES):
                yield name, recipe, before, after


def _flipping(said: Mapping[str, Said]) -> list[str]:
    return [name for name, *_ in _pairs(said)]


def _flips(said: Mapping[str, Said]) -> dict[tuple[str, str, str], list[str]]:
    """By recipe, claim and what Table II says to it: what others say, and on which hardware."""
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for name, recipe, before, after in _pairs(said):
        claim = before.claim + (f", {before.label}" if before.label else "")
        found.setdefault((recipe, claim, before.conclusion), {}).setdefault(after.conclusion, []).append(name)
    return {
        key: [f"{verdict} on {', '.join(names)}" for verdict, names in after.items()] for key, after in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--recipes", default="", help="default: all that make claims")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    given = parser.parse_args()
    files = {file.name: file for file in given.trace}
    chosen = given.recipes.split(",") if given.recipes else list(RECIPES)
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
