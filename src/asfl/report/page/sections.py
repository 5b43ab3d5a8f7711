"""The words and tables of the page as HTML. Whatever comes from a folder or a configuration is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from asfl.config import by_name
from asfl.report.page.bounds import Check, check_gap, check_queues, why_not
from asfl.report.page.collect import Collected, FoundRun, World
from asfl.report.page.origins import compare_command, run_command
from asfl.report.page.tables import Table, tables_of
from asfl.summary import Summary, number
from asfl.units import format_si
from asfl.words import in_words

_FACTS = ("asfl", "python", "torch", "numpy", "platform", "git_commit", "started")
"""Shown; where the data lay on somebody's disk is nobody's business."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, a caption in plain words, and what it shows (HTML)."""

    key: str
    title: str
    caption: str
    body: str

    def html(self) -> str:
        return (
            f'<section id="{self.key}" aria-labelledby="{self.key}-title"><h2 id="{self.key}-title">'
            f'{escape(self.title)}</h2><p class="caption">{escape(self.caption)}</p>{self.body}</section>'
        )


def chart(key: str, description: str, size: str = "") -> str:
    """A place for the script to draw into; `description` is for those who can't see it."""
    return f'<div class="chart {size}" id="{key}" role="img" aria-label="{escape(description)}"></div>'


def choice(key: str, label: str, options: Mapping[str, str]) -> str:
    """Buttons of which one is pressed; the script knows which."""
    buttons = "".join(
        f'<button type="button" data-value="{escape(value)}" aria-pressed="false">{escape(text)}</button>'
        for value, text in options.items()
    )
    return f'<div class="choice" role="group" aria-label="{escape(label)}" data-choice="{key}">{buttons}</div>'


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", title: str = "") -> str:
    """All cells are text; the first of each row is its header."""
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr{" class=ours" if row and row[0] == "asfl" else ""}><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{' class=muted' if cell == 'not reached' else ''}>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    words = f"<figcaption><b>{escape(title)}</b> {escape(caption)}</figcaption>" if title or caption else ""
    label = escape(title or "table")
    return (
        f'<figure>{words}<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></figure>'
    )


# ---------------------------------------------------------------------- headline
def headline(collected: Collected, summaries: Sequence[Summary]) -> str:
    parts = []
    for world, summary in zip(collected.worlds, summaries, strict=True):
        title = f"<h2>{escape(world.title)}</h2>" if world.title else ""
        sentences = "".join(f"<li>{escape(text)}</li>" for text in _sentences(world, summary))
        parts.append(f'<div class="world">{title}{_figures(world)}<ul class="words">{sentences}</ul></div>')
    return "".join(parts) + _unfinished(collected)


def _sentences(world: World, summary: Summary) -> list[str]:
    if not world.counted:
        return ["No round has been played yet."]
    so_far = [] if world.finished else ["No run is finished: what follows is only what has been played so far."]
    return [*so_far, *in_words(summary)]


def _figures(world: World) -> str:
    config, seeds = world.config, sorted({run.seed for run in world.runs})
    budgets = [run.manifest.budgets for run in world.runs]
    shown = {
        "runs finished": f"{len(world.finished)} of {len(world.runs)}",
        "schemes": str(len(world.schemes)),
        "seeds" if len(seeds) > 1 else "seed": _range(seeds),
        "rounds": str(config.training.rounds),
        "model": config.model_spec.name,
        "clients, blocks": f"{config.scenario.clients}, {config.radio.num_rbs}",
        "delay budget a round": _span([one.delay_s for one in budgets], "s"),
        "energy budget a client": _span([one.energy_j for one in budgets], "J"),
    }
    if world.title:  # one of several, whose title says what sets it apart
        shown = {name: text for name, text in shown.items() if name.startswith(("runs", "seed", "delay", "energy"))}
    cards = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown.items())
    return f'<dl class="figures">{cards}</dl>'


def _range(seeds: Sequence[int]) -> str:
    consecutive = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{seeds[0]} – {seeds[-1]}" if consecutive else ", ".join(map(str, seeds))


def _span(values: Sequence[float], unit: str) -> str:
    low, high = format_si(min(values), unit), format_si(max(values), unit)
    return low if low == high else f"{low} – {high}"


def _unfinished(collected: Collected) -> str:
    rows = [
        f"<li><span>{escape(world.series(run.scheme))} seed {run.seed}</span>"
        f'<progress max="{run.rounds}" value="{len(run.records)}" aria-label="{escape(run.name)}"></progress>'
        f"<span>{len(run.records)} of {run.rounds} rounds</span></li>"
        for world in collected.worlds
        for run in world.runs
        if not run.finished
    ]
    counted = " Tables and sentences leave them out." if any(world.finished for world in collected.worlds) else ""
    heading = f'<h3>Not finished</h3><p class="caption">Curves show them as far as they are.{counted}</p>'
    return f'<div class="open">{heading}<ul>{"".join(rows)}</ul></div>' if rows else ""


def notes_html(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes" aria-label="notes">{items}</ul>' if notes else ""


# ---------------------------------------------------------------------- tables
def tables(collected: Collected, summaries: Sequence[Summary]) -> str:
    parts = []
    for world, summary in zip(collected.worlds, summaries, strict=True):
        if summary.runs:
            title = f"<h3>{escape(world.title)}</h3>" if world.title else ""
            parts.append(title + "".join(_one_table(table) for table in tables_of(summary)))
    return "".join(parts)


def _one_table(table: Table) -> str:
    return table_html(table.header, table.rows, table.note, table.title)


# ---------------------------------------------------------------------- theory
def theory(world: World, run: FoundRun) -> str:
    """The bounds of one run."""
    reason = why_not(run)
    if reason:
        return f"<p>{escape(reason)}</p>"
    others = [other for other in world.runs if other.seed == run.seed and other is not run]
    checks = [*check_queues(run), *check_gap(run, others)]
    unit = "Queues and excess are in units of the budget." if _normalised(run) else "In seconds and joules."
    return table_html(
        ["what", "measured", "bound", "from", "verdict"],
        [[one.what, _signed(one.measured), _signed(one.bound), one.source, one.verdict] for one in checks],
        f"{unit} {_plainly(checks)}",
        "Bounds and what was measured.",
    )


def _normalised(run: FoundRun) -> bool:
    return run.manifest.config.decision.equations == "corrected"


def _signed(value: float) -> str:
    return "∞" if value == float("inf") else number(value).replace("-", "−")


def _plainly(checks: Sequence[Check]) -> str:
    empty = sum("says nothing" in one.verdict for one in checks)
    return (
        "T_max and E_max are the dearest round of this run. "
        + (f"{empty} of {len(checks)} bounds hold but say nothing. " if empty else "")
        + "Theorem 1 needs smoothness and gradient noise, which records don't hold."
    )


# ---------------------------------------------------------------------- where it comes from
def configuration(collected: Collected) -> str:
    """Every field; those in which runs differ come first and say who has what."""
    trees = [(run, by_name(run.manifest.config.model_dump(mode="json"))) for run in collected.runs]
    names = list(dict.fromkeys(name for _, tree in trees for name in tree))
    different = [name for name in names if len({repr(tree.get(name)) for _, tree in trees}) > 1]
    rows = "".join(
        f'<tr class="different"><th scope="row">{escape(name)}</th><td>{_who(name, trees)}</td></tr>'
        for name in different
    ) + "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_value(trees[0][1].get(name)))}</td></tr>'
        for name in names
        if name not in different
    )
    body = (
        '<div class="scroll" tabindex="0" role="region" aria-label="configuration"><table class="left"><thead><tr>'
        f'<th scope="col">field</th><th scope="col">value</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    marked = f"; those in which runs differ ({len(different)}) are marked" if different else ""
    return f"<details><summary>All {len(names)} fields of the configuration{marked}</summary>{body}</details>"


def _who(name: str, trees: Sequence[tuple[FoundRun, Mapping[str, Any]]]) -> str:
    holders: dict[str, list[str]] = {}
    for run, tree in trees:
        holders.setdefault(_value(tree.get(name)), []).append(run.folder.name)
    return "<br>".join(
        f"<b>{escape(value)}</b>: {escape(', '.join(who) if len(who) <= 3 else f'{len(who)} runs')}"
        for value, who in holders.items()
    )


def _value(value: Any) -> str:
    return "–" if value is None or value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def versions(collected: Collected) -> str:
    """What the runs were made with; where they differ, all values."""
    rows = []
    for fact in _FACTS:
        seen = list(dict.fromkeys(_value(run.manifest.facts.get(fact)) for run in collected.runs))
        if fact == "started" and len(seen) > 1:
            seen = [f"{min(seen)} to {max(seen)}"]
        if seen != ["–"]:
            rows.append(["asfl version" if fact == "asfl" else fact.replace("_", " "), ", ".join(seen)])
    threads = sorted({run.manifest.threads for run in collected.runs})
    rows.append(["threads", ", ".join(map(str, threads))])
    return table_html(["", "made with"], rows, title="Versions.").replace("<table ", '<table class="left" ', 1)


def commands(collected: Collected) -> str:
    parts = []
    for world in collected.worlds:
        title = f"<h3>{escape(world.title)}</h3>" if world.title else ""
        whole = compare_command(world)
        each = "\n".join(run_command(run) for run in world.runs)
        if whole:
            single = f"<details><summary>One by one</summary>{_code(each)}</details>"
            parts.append(f"{title}{_code(whole)}{single}")
        else:
            parts.append(title + _code(each))
    return "".join(parts)


def _code(text: str) -> str:
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
