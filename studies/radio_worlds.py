"""Does a conclusion survive a real channel? Radio only, in the paper's world and in others.

python -m studies.radio_worlds out --trace FILE.npz [--page docs/results/radio.md] [--rounds 100] [--seeds 3]

Worlds: the paper's; urban micro and macro cells of TR 38.901; a walk through ray-traced Munich (examples/munich.npz);
and measured users, if a trace of them is given. Each with the paper's link and with 5G NR. This file writes the page.
What is done stays in the folder, and a second call goes on from there.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from asfl.config import load_config
from asfl.costs.world import World
from asfl.radio.nr import curve_of
from asfl.runs.play import held_out_in_words, play_all

PRESET, ROUNDS, SEEDS = "vgg19-cifar10", 100, 3
MUNICH = Path(__file__).parents[1] / "examples" / "munich.npz"
CELL = ('scenario.channel.kind="3gpp"',)
CLOCK = 'scenario.channel.trace_samples_per_round="clock"'
LINKS = ("waterfall", "nr")
RIVALS = {
    "asfl": ("fedavg", "sfl-best", "acc-sfl", "epsl"),
    "asfl-plus": ("asfl", "sfl-best", "epsl", "best-gains", "equal-error"),
}
"""What is compared."""
SCHEMES = tuple(dict.fromkeys((*RIVALS, *(rival for rivals in RIVALS.values() for rival in rivals))))
Rows = dict[str, dict[str, list[float]]]


def worlds(trace: Path | None) -> dict[str, tuple[str, ...]]:
    """What each world changes of the preset."""
    found: dict[str, tuple[str, ...]] = {
        "paper": (),
        "UMi": (*CELL, "scenario.radius_m=200"),
        "UMa": (*CELL, 'scenario.channel.cell.model="uma"'),
        "UMa, selective": (*CELL, 'scenario.channel.cell.model="uma"', 'scenario.channel.blocks="selective"'),
        "Munich": ("scenario.channel.kind=trace", f"scenario.channel.trace_file={MUNICH}", CLOCK),
    }
    if trace is not None:
        found["measured"] = ("scenario.channel.kind=trace", f"scenario.channel.trace_file={trace}", CLOCK)
    return found


def _play(file: Path, overrides: Sequence[str], scheme: str, rounds: int, seeds: int) -> dict[str, list[float]]:
    """Seconds and joules for each update that arrives, by seed."""
    if file.exists():
        done: dict[str, list[float]] = json.loads(file.read_text("utf-8"))
        return done
    config = load_config(PRESET, list(overrides)).config
    rows = [played.summary() for played in play_all(config, [scheme], range(1, seeds + 1), rounds)]
    arrived = [max(row["updates_per_round"], 1e-9) for row in rows]
    found = {
        "delay_s": [row["delay_s"] / each for row, each in zip(rows, arrived, strict=True)],
        "energy_j": [row["energy_j"] / each for row, each in zip(rows, arrived, strict=True)],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found), "utf-8")
    return found


def study(folder: Path, trace: Path | None, rounds: int, seeds: int) -> dict[str, dict[str, Rows]]:
    """By link, world, scheme."""
    places = worlds(trace)
    for overrides in places.values():  # places of a cell are drawn once, here, and read by all processes
        for seed in range(1, seeds + 1):
            World.of(load_config(PRESET, [*overrides, f"scenario.seed={seed}"]).config)
    cases = [(link, world, scheme) for scheme in SCHEMES for link in LINKS for world in places]
    jobs = [
        (
            folder / f"{rounds}-rounds-{seeds}-seeds" / f"{link}-{world}-{scheme}.json",
            (*places[world], f"radio.link={link}"),
            scheme,
            rounds,
            seeds,
        )
        for link, world, scheme in cases
    ]
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(_play, *zip(*jobs, strict=True)))
    found: dict[str, dict[str, Rows]] = {link: {world: {} for world in places} for link in LINKS}
    for (link, world, scheme), row in zip(cases, results, strict=True):
        found[link][world][scheme] = row
    return found


def page(found: dict[str, dict[str, Rows]], rounds: int, seeds: int) -> str:
    """The results as a page of the documentation."""
    curve = curve_of("uplink", 1e6)
    lines = [
        "# Does the result survive a real channel?",
        "",
        f"Radio only: preset `{PRESET}`, {rounds} rounds, {seeds} seeds; seconds and joules for each update that "
        f"arrives at the server, mean over seeds. {held_out_in_words(SCHEMES)} Errors are those of the paper's link "
        "and positions ([synthetic learning](../schemes.md#synthetic-learning)). Nothing here says what an update is "
        "worth: that is on [another page](measured-channel.md), for Munich and the measured users. "
        "[Channels](../channels.md) describes the worlds; in all but the paper's the clock moves the clients. "
        "Written by `studies/radio_worlds.py`.",
        "",
    ]
    lines += [
        f"5G NR's smooth fit, which solvers use, is off by {100 * curve.fit_error:.0f} % (root mean square, −15 to 25 "
        f"dB), at worst {100 * curve.fit_worst:.0f} %; what is charged is the link itself.",
        "",
    ]
    return "\n".join([*lines, *_verdicts(found), ""])


def _verdicts(found: dict[str, dict[str, Rows]]) -> list[str]:
    """Each comparison of the paper's world, and how it comes out in the other worlds and links."""
    lines = [
        "A scheme is ahead if it is in every seed; else it is open, as few seeds don't tell small differences.",
        "",
        "| in the paper's world, per update | the same elsewhere | open in | the other way round in |",
        "| --- | ---: | --- | --- |",
    ]
    reference = found["waterfall"]["paper"]
    others = {
        f"{world}{', NR' if link == 'nr' else ''}": rows
        for link, places in found.items()
        for world, rows in places.items()
        if (link, world) != ("waterfall", "paper")
    }
    for ours, rival in _pairs():
        for key, words in (("delay_s", ("faster", "slower")), ("energy_j", ("thriftier", "costlier"))):
            here = _ahead(reference, ours, rival, key)
            sides = {name: _ahead(rows, ours, rival, key) for name, rows in others.items()}
            opened = [name for name, side in sides.items() if side == 0 and here != 0]
            turned = [name for name, side in sides.items() if side != here and side != 0]
            claim = f"open between `{ours}` and" if here == 0 else f"`{ours}` is {words[0 if here > 0 else 1]} than"
            same = len(others) - len(opened) - len(turned)
            lines.append(
                f"| {claim} `{rival}`{f' ({words[0]})' if here == 0 else ''} | {same} of {len(others)} "
                f"| {'; '.join(opened)} | {_turned(turned, sides, words)} |"
            )
    return lines


def _turned(names: Sequence[str], sides: dict[str, int], words: tuple[str, str]) -> str:
    return "; ".join(f"{name}: {words[0 if sides[name] > 0 else 1]}" for name in names)


def _pairs() -> list[tuple[str, str]]:
    return [(ours, rival) for ours, rivals in RIVALS.items() for rival in rivals]


def _ahead(rows: Rows, scheme: str, rival: str, key: str) -> int:
    """1 if a scheme takes less than its rival in every seed, −1 if it takes more in every seed, else 0."""
    signs = {int(np.sign(theirs - ours)) for ours, theirs in zip(rows[scheme][key], rows[rival][key], strict=True)}
    return signs.pop() if len(signs) == 1 else 0


def main(
    folder: Path, trace: Path | None = None, where: Path | None = None, rounds: int = ROUNDS, seeds: int = SEEDS
) -> None:
    text = page(study(folder / "radio-worlds", trace, rounds, seeds), rounds, seeds)
    (where or folder / "radio-worlds.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    main(given.folder, given.trace, given.page, given.rounds, given.seeds)
