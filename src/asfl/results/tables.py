"""The tables of a comparison as plain text, for the page, LaTeX and Markdown: medians over seeds, intervals."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from asfl.config.units import percent
from asfl.results.curves import SMOOTHED_OVER, Resource
from asfl.results.quantities import (
    ABOUT_COSTS,
    ABOUT_ROUNDS,
    ACCURACIES,
    COSTS,
    OF_ROUNDS,
    Quantity,
    amount,
    partly,
    share,
)
from asfl.results.summary import Saving, Summary, with_note
from asfl.schemes import OURS

NOT_REACHED = "not reached"
RANGE_UP_TO = 5
"""Seeds up to which the 95 % bootstrap interval of a median is their whole range."""


@dataclass(frozen=True)
class Table:
    """The first column names the rows."""

    key: str
    """Short and fit for a label."""
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(summary: Summary) -> list[Table]:
    """What `asfl compare` prints; tables without anything in them are left out."""
    tables = [_accuracy(summary)]
    if summary.targets:
        tables += [_reached(summary, "delay_s"), _reached(summary, "energy_j")]
        if OURS in summary.runs and len(summary.ranked) > 1:
            tables.append(_saved(summary))
    tables.append(_rounds(summary, "costs", "What a round takes", COSTS, ABOUT_COSTS))
    tables.append(_rounds(summary, "rounds", "What the rounds look like", OF_ROUNDS, ABOUT_ROUNDS))
    return [replace(table, title=with_note(table.title, summary.model)) for table in tables]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int | None = 1) -> Iterator[str]:
    """The first `words` columns hold words, the others numbers; None: there are no numbers."""
    yield f"| {' | '.join(header)} |"
    named = len(header) if words is None else words
    yield f"|{' --- |' * named}{' ---: |' * (len(header) - named)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def spread_in_words(seeds: int) -> str:
    """What the figures of a table are, in so many words."""
    if seeds == 1:
        return "one seed"
    between = "from the lowest to the highest" if seeds <= RANGE_UP_TO else "95 % bootstrap interval"
    return f"median [{between}] of {seeds} seeds"


def _spread(summary: Summary) -> str:
    return spread_in_words(len(summary.seeds)).capitalize()


def _accuracy(summary: Summary) -> Table:
    rows = [
        [name, *(one.format(summary.over_seeds(name, one.name)) for one in ACCURACIES), str(len(runs))]
        for name, runs in summary.runs.items()
    ]
    note = (
        f"{_spread(summary)}. Of the average model, with norm statistics measured anew; uncalibrated: with "
        "averaged ones, at the end; clients' own: each client's side with the server's, at the end."
    )
    return Table("accuracy", "Accuracy, %", note, ["scheme", *(one.title for one in ACCURACIES), "seeds"], rows)


def _reached(summary: Summary, resource: Resource) -> Table:
    what, unit = ("Delay", "s") if resource == "delay_s" else ("Energy of all clients", "J")
    rows = []
    for name, runs in summary.runs.items():
        if name not in summary.ranked:
            rows.append([name, *("–" for _ in summary.targets)])
            continue
        needed = [summary.to_reach(name, target, resource) for target in summary.targets]
        rows.append([name, *(amount(s) + partly(s, len(runs)) if s.seeds else NOT_REACHED for s in needed)])
    note = (
        f"{_spread(summary)}{' that got there' if len(summary.seeds) > 1 else ''}. Reached: when the mean of "
        f"{SMOOTHED_OVER} evaluations is at the target."
    )
    title = f"{what} to a target accuracy, {unit}"
    return Table(what.split()[0].lower(), title, note, ["scheme", *_targets(summary)], rows)


def _saved(summary: Summary) -> Table:
    rows = [
        [name, *(_saving(summary.saving(name, target)) for target in summary.targets)]
        for name in summary.ranked
        if name != OURS
    ]
    note = f"{_spread(summary)}, paired: share of the other's delay / of its energy. Negative: ASFL needs more."
    return Table("savings", "What ASFL saves, %", note, ["against", *_targets(summary)], rows)


def _targets(summary: Summary) -> list[str]:
    return [f"to {percent(target)}" for target in summary.targets]


def _saving(saving: Saving | None) -> str:
    if saving is None:
        return "–"
    if saving.delay.seeds:
        return f"{share(saving.delay, 0)} / {share(saving.energy, 0)}"
    if saving.only_ours and saving.only_theirs:
        return "never with the same seed"
    return "only ASFL reaches it" if saving.only_ours else "only it reaches it" if saving.only_theirs else "neither"


def _rounds(summary: Summary, key: str, title: str, columns: Sequence[Quantity], about: str) -> Table:
    rows = [[name, *(one.format(summary.over_seeds(name, one.name)) for one in columns)] for name in summary.runs]
    note = f"{_spread(summary)}; means over rounds. {about[0].upper()}{about[1:]}."
    return Table(key, title, note, ["scheme", *(one.heading for one in columns)], rows)
