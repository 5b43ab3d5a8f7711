"""Put what `asfl reproduce` found into the documentation: its pages, their pictures in few colours, and an index.

python tools/publish_results.py out/figures docs/results README.md

The index and the sentence in the README (between the two comments that name this file) are made of the same numbers.
"""

import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from asfl.config.units import number, percent
from asfl.results.reproduce.page import ALIKE
from asfl.results.reproduce.recharge import RECORDED
from asfl.results.reproduce.recipes import RECIPES
from asfl.results.summary import with_note
from asfl.results.tables import Table
from asfl.schemes import CEILING, OURS, PLUS

COLOURS = 96
WIDTH = 128
HEADLINE, LONGER = "accuracy-delay-energy", "more-rounds"
PICTURE = f"{HEADLINE}-{HEADLINE}.png"
MARKED = re.compile(r"(<!-- tools/publish_results.py: begin -->\n).*?(<!-- end -->)", re.DOTALL)


def publish(found: Path, docs: Path, readme: Path) -> None:
    docs.mkdir(parents=True, exist_ok=True)
    for name in _finished(found):
        page = found / name / "results.md"
        text = page.read_text("utf-8")
        for before in docs.glob(f"{name}-*.png"):
            before.unlink()
        for picture in sorted(page.parent.glob("*.png")):
            if f"({picture.name})" not in text:  # of an earlier call
                continue
            text = text.replace(f"({picture.name})", f"({name}-{picture.name})")
            with Image.open(picture) as image:
                image.convert("RGB").quantize(COLOURS).save(docs / f"{name}-{picture.name}", optimize=True)
        (docs / f"{name}.md").write_text(text, "utf-8")
        print(f"{docs / name}.md")
    every = {name: json.loads((found / name / "results.json").read_text("utf-8")) for name in _finished(found)}
    said = sentence(every[HEADLINE], every.get(LONGER)) if HEADLINE in every else ""
    (docs / "index.md").write_text("\n".join(_index(every, said, docs)) + "\n", "utf-8")
    if said:
        shown = f"![Accuracy against delay and energy]({docs / PICTURE})\n\n{said}\n"
        readme.write_text(MARKED.sub(lambda match: match[1] + shown + match[2], readme.read_text("utf-8")), "utf-8")


def _finished(found: Path) -> list[str]:
    return [name for name in RECIPES if (found / name / "results.md").exists()]


def _index(every: dict[str, dict[str, Any]], said: str, docs: Path) -> Iterator[str]:
    yield from ("# Results", "")
    yield from (
        "Each page has claims, verdicts, a picture and a table. `make figures` draws them from [the records of all "
        "runs](records.jsonl.xz), with more pictures and, in `results.json`, all numbers, commits and learning rates. "
        "Every scheme has the learning rate that [suits it](../reproduce.md#at-its-best), found on other seeds.",
        "",
    )
    if said:
        yield from (f"![Accuracy against delay and energy]({PICTURE})", "", said, "")
    fresh = _each_once(every)
    rows = [
        [f"[{name}]({name}.md)", RECIPES[name].paper, RECIPES[name].shows, _verdicts(fresh[name])] for name in every
    ]
    header = ["page", "in the paper", "what it shows", "claims"]
    yield Table(header=header, rows=rows, words=4).markdown()
    claims = [finding for findings in fresh.values() for finding in findings]
    yield from ("", f"In all: {_verdicts(claims)}; a claim that several pages test on the same runs counts once.")
    changed = [one for one in claims if one["otherwise"].get(RECORDED, one["conclusion"]) != one["conclusion"]]
    if any(one["otherwise"] for one in claims):
        yield from (
            "",
            f"Recharging changes {len(changed)} of {len(claims)} verdicts; recorded costs that a page doesn't show are "
            f"the same within {100 * ALIKE:g} %.",
        )
    others = {"which-scheme": "Which scheme should I use?", "radio": "Other radio worlds", "hardware": "Other hardware"}
    there = [f"[{title}]({name}.md)" for name, title in others.items() if (docs / f"{name}.md").exists()]
    if there:
        yield from ("", f"Beside them: {', '.join(there)}.")
    lost: dict[str, dict[str, list[str]]] = {}
    for name, findings in fresh.items():
        for finding in findings:
            if finding["verdict"] == "doesn't hold":
                claims_of = lost.setdefault(name, {})
                claims_of.setdefault(finding["claim"], []).append(finding["label"])
    if lost:
        yield from ("", "## What doesn't hold", "")
        for name, claims_lost in lost.items():
            told = [with_note(claim, ", ".join(filter(None, labels))) for claim, labels in claims_lost.items()]
            yield f"- [{name}]({name}.md): {'; '.join(told)}"


def _each_once(every: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By page: its findings, but for those that a page before it has."""
    seen: set[str] = set()
    fresh: dict[str, list[dict[str, Any]]] = {}
    for name, data in every.items():
        fresh[name] = [one for one in data["findings"] if one["about"] not in seen]
        seen |= {one["about"] for one in data["findings"]}
    return fresh


def _verdicts(findings: list[dict[str, Any]]) -> str:
    counted = Counter(finding["verdict"] for finding in findings)
    return ", ".join(f"{verdict} {count}" for verdict, count in counted.most_common()) or "–"


def sentence(data: dict[str, Any], longer: dict[str, Any] | None = None) -> str:
    """What the headline says, in words: to the highest accuracy that ASFL, or else any scheme, reaches with every seed.

    Where all schemes end is said of `longer`, if there is such a comparison.
    """
    preset, summary = _only_world(data)
    needed: dict[float, dict[str, tuple[float, float]]] = {}
    for scheme, of_scheme in summary["schemes"].items():
        for one in of_scheme["targets"]:
            if scheme != CEILING and one["seeds_reached"] == len(summary["seeds"]):
                there = needed.setdefault(one["target"], {})
                there[scheme] = one["delay_s"]["median"], one["energy_j"]["median"]
    common = [target for target, schemes in needed.items() if PLUS in schemes and len(schemes) > 1]
    if not common:
        return ""
    target = max(common, key=lambda target: (OURS in needed[target], target))
    schemes = needed[target]
    ours = schemes.pop(PLUS)
    fastest, thriftiest = (min(schemes, key=lambda name: schemes[name][which]) for which in (0, 1))
    model = f" ({summary['model']})" if summary.get("model") else ""
    asfl = f"`{OURS}` needs {_cost(*schemes[OURS])}" if OURS in schemes else f"`{OURS}` doesn't with every seed"
    beyond = f"In `{LONGER}` all train equally long. " if longer else ""
    said = (
        f"*`{preset}`{model}, medians of {len(summary['seeds'])} seeds.* To {percent(target)}, `{PLUS}` needs "
        f"{_cost(*ours)}; {asfl}; the fastest other scheme, `{fastest}`, {number(schemes[fastest][0])} s; the "
        f"thriftiest, `{thriftiest}`, {number(schemes[thriftiest][1])} J. {beyond}"
        f"{_in_the_end(_only_world(longer or data)[1])}"
    )
    return textwrap.fill(said, WIDTH, break_long_words=False, break_on_hyphens=False)


def _only_world(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    ((preset, worlds),) = data["summaries"].items()
    summary, *_ = worlds.values()  # as it is; then with other prices of energy
    return preset, summary


def _in_the_end(summary: dict[str, Any]) -> str:
    """The accuracy of all schemes, and how long it took: rounds of one are shorter than those of another."""
    schemes = {PLUS: summary["schemes"][PLUS], **summary["schemes"]}
    rounds = {name: max(run["rounds"] for run in of["runs"]) for name, of in schemes.items()}
    equal = len(set(rounds.values())) == 1
    ends = []
    for name, of in schemes.items():
        took = [] if equal else [f"{number(rounds[name])} rounds"]
        took += [] if name == CEILING else [f"{number(of['total_delay_s']['median'])} s"]
        how_long = f" ({', '.join(took)})" if took else ""
        ends.append(f"`{name}` {percent(of['final_accuracy']['median'], 1)}{how_long}")
    when = f"After {number(rounds[PLUS])} rounds" if equal else "In the end"
    return f"{when}: {', '.join(ends)}."


def _cost(delay_s: float, energy_j: float) -> str:
    return f"{number(delay_s)} s and {number(energy_j)} J"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    publish(*map(Path, sys.argv[1:]))
