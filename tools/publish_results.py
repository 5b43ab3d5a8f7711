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
from asfl.results.curves import CEILING, OURS, PLUS
from asfl.results.reproduce import RECIPES
from asfl.results.tables import markdown_table

COLOURS = 96
WIDTH = 128
HEADLINE = "accuracy-delay-energy"
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
    (docs / "index.md").write_text("\n".join(_index(found, docs)) + "\n", "utf-8")
    headline = found / HEADLINE / "results.json"
    if headline.exists():
        said = sentence(json.loads(headline.read_text("utf-8")))
        shown = f"![Accuracy against delay and energy]({docs / PICTURE})\n\n{said}\n"
        readme.write_text(MARKED.sub(lambda match: match[1] + shown + match[2], readme.read_text("utf-8")), "utf-8")


def _finished(found: Path) -> list[str]:
    return [name for name in RECIPES if (found / name / "results.md").exists()]


def _index(found: Path, docs: Path) -> Iterator[str]:
    every = {name: json.loads((found / name / "results.json").read_text("utf-8")) for name in _finished(found)}
    yield from ("# Results", "")
    yield from (
        "Every page is made by `make figures` from [the records of all runs](records.jsonl.xz), and nothing by hand; "
        "each names its command, seeds, commit and CPU hours. Every scheme has the learning rate that "
        "[suits it](../reproduce.md#at-its-best), found on other seeds.",
        "",
    )
    if HEADLINE in every:
        yield from (f"![Accuracy against delay and energy]({PICTURE})", "", sentence(every[HEADLINE]), "")
    rows = [
        [f"[{name}]({name}.md)", RECIPES[name].paper, RECIPES[name].shows, _verdicts(data["findings"])]
        for name, data in every.items()
    ]
    yield from markdown_table(["page", "in the paper", "what it shows", "claims"], rows, words=None)
    others = {"which-scheme": "Which scheme should I use?", "radio": "Other radio worlds"}
    there = [f"[{title}]({name}.md)" for name, title in others.items() if (docs / f"{name}.md").exists()]
    if there:
        yield from ("", f"Beside them: {', '.join(there)}.")
    lost = [
        [name, finding["preset"], finding["claim"], finding["here"]]
        for name, data in every.items()
        for finding in data["findings"]
        if finding["verdict"] == "doesn't hold"
    ]
    if lost:
        yield from ("", "## What doesn't hold", "")
        yield from markdown_table(["page", "world", "claim", "here"], lost, words=None)


def _verdicts(findings: list[dict[str, Any]]) -> str:
    counted = Counter(finding["verdict"] for finding in findings)
    return ", ".join(f"{count} × {verdict}" for verdict, count in counted.most_common()) or "–"


def sentence(data: dict[str, Any]) -> str:
    """What the headline says, in words: to the highest accuracy that ASFL, or else anybody, reaches with every seed."""
    ((preset, worlds),) = data["summaries"].items()
    ((_, summary),) = worlds.items()
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
    final = {name: _at_the_end(name, of) for name, of in summary["schemes"].items()}
    rest = "; ".join(f"`{name}` {accuracy}" for name, accuracy in final.items() if name != PLUS)
    model = f" ({summary['model']})" if summary.get("model") else ""
    asfl = f"`{OURS}` needs {_cost(*schemes[OURS])}" if OURS in schemes else f"`{OURS}` doesn't with every seed"
    said = (
        f"*`{preset}`{model}, medians of {len(summary['seeds'])} seeds.* To {percent(target)}, `{PLUS}` needs "
        f"{_cost(*ours)}; {asfl}; the fastest other scheme, `{fastest}`, {number(schemes[fastest][0])} s; the "
        f"thriftiest, `{thriftiest}`, {number(schemes[thriftiest][1])} J. In the end `{PLUS}` has {final[PLUS]}; "
        f"{rest}."
    )
    return textwrap.fill(said, WIDTH, break_long_words=False, break_on_hyphens=False)


def _at_the_end(name: str, scheme: dict[str, Any]) -> str:
    """Its accuracy, and how long it took: rounds of one scheme are shorter than those of another."""
    took = "" if name == CEILING else f", {number(scheme['total_delay_s']['median'])} s"
    rounds = max(run["rounds"] for run in scheme["runs"])
    return f"{percent(scheme['final_accuracy']['median'], 1)} after {number(rounds)} rounds{took}"


def _cost(delay_s: float, energy_j: float) -> str:
    return f"{number(delay_s)} s and {number(energy_j)} J"


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    publish(*map(Path, sys.argv[1:]))
