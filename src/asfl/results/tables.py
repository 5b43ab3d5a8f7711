"""Results as tables and in plain words; one type of table, rendered for terminals, pages, papers and Markdown.

Every number that a table or an axis shows is declared here once (`Quantity`): its unit, its words, its digits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape as escape_html
from typing import TYPE_CHECKING

from asfl.config.units import number, percent
from asfl.results.curves import SMOOTHED_OVER, Resource
from asfl.results.summary import Saving, Statistic, Summary, with_note
from asfl.schemes import OURS

if TYPE_CHECKING:
    from rich.table import Table as RichTable
from collections.abc import Iterator
from statistics import fmean

from asfl.results.summary import paired
from asfl.schemes import CEILING

NOT_REACHED = "not reached"
RANGE_UP_TO = 5
"""Seeds up to which the 95 % bootstrap interval of a median is their whole range."""


# ---------------------------------------------------------------------- numbers
@dataclass(frozen=True)
class Quantity:
    """A number of `RunSummary`."""

    name: str
    title: str
    """At the head of a column."""
    unit: str = ""
    words: str = ""
    """Where there is room for more than the title."""
    decimals: int | None = None
    """None: three significant digits."""

    @property
    def scale(self) -> float:
        """From the number to its unit."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def in_words(self) -> str:
        return self.words or self.title

    def format(self, stat: Statistic) -> str:
        """In its unit, without the unit."""
        return amount(stat, self.scale) if self.decimals is None else share(stat, self.decimals)


ACCURACIES = (
    Quantity("final_accuracy", "at the end", "%", "accuracy", decimals=1),
    Quantity("best_accuracy", "best", "%", "best accuracy", decimals=1),
    Quantity("accuracy_in_our_time", "in ASFL's time", "%", "accuracy in the time ASFL takes", decimals=1),
    Quantity("accuracy_on_our_energy", "on ASFL's energy", "%", "accuracy on the energy ASFL takes", decimals=1),
    Quantity("uncalibrated_accuracy", "uncalibrated", "%", "accuracy with averaged norm statistics", decimals=1),
    Quantity("client_accuracy", "clients' own", "%", "accuracy of the clients' own models", decimals=1),
)
TOTALS = (Quantity("total_delay_s", "total delay", "s"), Quantity("total_energy_j", "total energy", "J"))
COSTS = (
    Quantity("delay_s", "delay", "s", "delay of a round"),
    Quantity("median_delay_s", "median", "s", "median delay of a round"),
    Quantity("delay_over", "over", "%", "delay over its budget"),
    Quantity("delay_owed", "owed", "%", "violation of the delay budget still owed"),
    Quantity("energy_j", "energy", "J", "energy of a round"),
    Quantity("median_energy_j", "median", "J", "median energy of a round"),
    Quantity("energy_over", "over", "%", "energy over its budget"),
    Quantity("energy_owed", "owed", "%", "violation of the energy budget still owed"),
)
"""What a round takes: means over rounds, and medians beside them; delay first, then energy."""
ABOUT_COSTS = (
    "Over: how far the mean is beyond the budget; owed: queue after the last round / rounds, which bounds it (standard "
    "queue rule only; printed queues forget); energy: of all clients, over and owed of the worst client."
)
OF_ROUNDS = (
    Quantity("packet_error_rate", "errors", "%", "packet errors"),
    Quantity("updates_per_round", "arrived"),
    Quantity("cut", "cut"),
    Quantity("cut_moves", "moves", "%"),
    Quantity("resplit_share", "re-split", "%", "re-split share"),
    Quantity("discrepancy", "discrepancy"),
)
"""What else a round looks like: means over rounds."""
QUANTITIES = {quantity.name: quantity for quantity in (*ACCURACIES, *TOTALS, *COSTS, *OF_ROUNDS)}
CURVE_AXES = {"delay": ("delay so far", "s"), "energy": ("energy so far, all clients", "J"), "rounds": ("round", "")}
"""What accuracy is drawn against: words and unit."""
ABOUT_ROUNDS = (
    "Errors: expected, of clients that took part; moves: rounds with another cut than the one before; re-split: share "
    "of the delay."
)


def amount(stat: Statistic, scale: float = 1) -> str:
    """A median in its unit, with its interval if there is one."""
    if not stat.seeds:
        return "–"
    between = f" [{number(scale * stat.low)}, {number(scale * stat.high)}]"
    return number(scale * stat.median) + ("" if math.isnan(stat.low) else between)


def share(stat: Statistic, decimals: int = 1, sign: str = "") -> str:
    """A median of shares in percent and its interval, followed by the sign if one is given."""
    if not stat.seeds:
        return "–"
    ends = (stat.median, stat.low, stat.high)
    middle, low, high = (f"{round(100 * one, decimals) + 0.0:.{decimals}f}" for one in ends)  # never -0
    return middle + sign + ("" if math.isnan(stat.low) else f" [{low}, {high}]")


def partly(stat: Statistic, runs: int) -> str:
    """Said where not every seed counts."""
    return f" ({stat.seeds} of {runs} seeds)" if stat.seeds < runs else ""


# ---------------------------------------------------------------------- one table, four renderers
_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "\n": " ",
}


def escape_latex(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The first `words` columns are words, of which the first names the rows; the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    key: str = ""
    """Short and fit for a label."""
    title: str = ""
    note: str = ""
    words: int = 1

    def markdown(self) -> str:
        columns = len(self.header)
        rule = "|" + " --- |" * self.words + " ---: |" * (columns - self.words)
        lines = [f"| {' | '.join(row)} |" for row in (self.header, *self.rows)]
        return "\n".join([lines[0], rule, *lines[1:]])

    def html(self) -> str:
        head = "".join(f"<th>{escape_html(cell)}</th>" for cell in self.header)
        rows = "".join(f"<tr>{''.join(f'<td>{escape_html(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        note = f"<p>{escape_html(self.note)}</p>" if self.note else ""
        body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<h4>{escape_html(self.title)}</h4>{body}{note}"

    def latex(self) -> str:
        """With booktabs; a table of more than seven columns is shrunk to the width of the page."""
        wide = len(self.header) > 7
        caption = escape_latex(f"{self.title}. {self.note}")
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                f"  \\caption{{{caption}}}",
                f"  \\label{{tab:asfl-{self.key}}}",
                *([r"  \resizebox{\linewidth}{!}{%"] if wide else []),
                f"  \\begin{{tabular}}{{{'l' * self.words}{'r' * (len(self.header) - self.words)}}}",
                r"    \toprule",
                _latex_row(self.header),
                r"    \midrule",
                *map(_latex_row, self.rows),
                r"    \bottomrule",
                r"  \end{tabular}" + ("}" if wide else ""),
                r"\end{table}",
                "",
            ]
        )

    def terminal(self) -> "RichTable":
        """For a console of any width: where columns are narrow, Rich folds intervals below their medians."""
        from rich import box
        from rich.table import Table as RichTable

        made = RichTable(
            title=self.title or None, caption=self.note or None, title_justify="left", caption_justify="left",
            header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        )  # fmt: skip
        for place, name in enumerate(self.header):
            made.add_column(name, justify="left" if place < self.words else "right", overflow="fold")
        for row in self.rows:
            made.add_row(*row)
        return made


def _latex_row(cells: Sequence[str]) -> str:
    told = (rf"\emph{{{cell}}}" if cell == NOT_REACHED else escape_latex(cell) for cell in cells)
    return "    " + " & ".join(told) + r" \\"


def latex_tables(tables: Sequence[Table]) -> str:
    packages = "% Needs \\usepackage{booktabs}; wide tables also \\usepackage{graphicx}.\n"
    return "\n".join([packages, *(table.latex() for table in tables)])


# ---------------------------------------------------------------------- the tables of a comparison
def tables_of(summary: Summary) -> list[Table]:
    """Those that have something to say."""
    seeds = len(summary.seeds)
    spread = "from the lowest to the highest" if seeds <= RANGE_UP_TO else "95 % bootstrap interval"
    stated = f"Median [{spread}] of {seeds} seeds" if seeds > 1 else "One seed"
    there = f"{stated}{' that got there' if seeds > 1 else ''}. Reached: when the mean of {SMOOTHED_OVER} evaluations "
    there += "is at the target."
    tables = [
        _of_quantities(
            summary, "accuracy", "Accuracy, %", ACCURACIES,
            f"{stated}. Of the average model, with norm statistics measured anew; uncalibrated: with averaged ones, at "
            "the end; clients' own: each client's side with the server's, at the end.",
        )
    ]  # fmt: skip
    if summary.targets:
        tables.append(_to_targets(summary, "delay", "Delay to a target accuracy, s", "delay_s", there))
        tables.append(
            _to_targets(summary, "energy", "Energy of all clients to a target accuracy, J", "energy_j", there)
        )
        if OURS in summary.runs and len(summary.ranked) > 1:
            rows = [
                [name, *(_saving(summary.saving(name, target)) for target in summary.targets)]
                for name in summary.ranked
                if name != OURS
            ]
            note = f"{stated}, paired: share of the other's delay / of its energy. Negative: ASFL needs more."
            header = ["against", *_targets(summary)]
            tables.append(Table(key="savings", title="What ASFL saves, %", note=note, header=header, rows=rows))
    means = f"{stated}; means over rounds. "
    tables.append(_of_quantities(summary, "costs", "What a round takes", COSTS, means + ABOUT_COSTS))
    tables.append(_of_quantities(summary, "rounds", "What the rounds look like", OF_ROUNDS, means + ABOUT_ROUNDS))
    return [replace(table, title=with_note(table.title, summary.model)) for table in tables]


def _of_quantities(summary: Summary, key: str, title: str, columns: Sequence[Quantity], note: str) -> Table:
    """A title that ends in a unit stands for the units of all columns; such a table counts the seeds."""
    counts = title.endswith(", %")
    rows = [
        [name, *(one.format(summary.over_seeds(name, one.name)) for one in columns), *([str(len(runs))] * counts)]
        for name, runs in summary.runs.items()
    ]
    header = ["scheme", *(one.title if counts else one.heading for one in columns), *(["seeds"] * counts)]
    return Table(key=key, title=title, note=note, header=header, rows=rows)


def _to_targets(summary: Summary, key: str, title: str, resource: Resource, note: str) -> Table:
    rows = [
        [name, *(to_target(summary, name, target, resource) for target in summary.targets)] for name in summary.runs
    ]
    return Table(key=key, title=title, note=note, header=["scheme", *_targets(summary)], rows=rows)


def to_target(summary: Summary, scheme: str, target: float, resource: Resource) -> str:
    """What a scheme needs to a target, with its interval, and how many seeds got there."""
    if scheme not in summary.ranked:
        return "–"
    stat = summary.to_reach(scheme, target, resource)
    return amount(stat) + partly(stat, len(summary.runs[scheme])) if stat.seeds else NOT_REACHED


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


NO_CLIENT = (
    "no client got a resource block in any round: nothing was learnt (decision.min_participants would change it)"
)


def in_words(summary: Summary) -> list[str]:
    """What the numbers say, in a few sentences: what ASFL needs, who needs more, and who beats it."""
    return list(_sentences(summary))


def _sentences(summary: Summary) -> Iterator[str]:
    target = summary.main_target()
    if target is None:
        yield "No run was evaluated, or none learnt anything; so there is no accuracy to compare at."
        return
    if OURS not in summary.runs:
        yield _ranking(summary, target)
    elif summary.reached(OURS, target, "delay_s"):
        yield from _on_the_way(summary, target)
    else:
        yield f"ASFL never reached {percent(target)} accuracy. {_ranking(summary, target)}"
    if OURS in summary.runs:
        yield from _at_the_end(summary)
    if CEILING in summary.runs:
        ceiling = summary.over_seeds(CEILING, "best_accuracy").median
        yield f"With all data in one place, at no cost, {percent(ceiling, 1)} would be the best: the ceiling."
    if len(summary.seeds) == 1:
        yield "One seed proves little: differences this size may be luck (--seeds 3 or more tells)."


def _ranking(summary: Summary, target: float) -> str:
    """Who reached it, the fastest first."""
    needed = {name: summary.to_reach(name, target, "delay_s") for name in summary.ranked if name != OURS}
    reached = sorted((stat.median, name) for name, stat in needed.items() if stat.seeds)
    never = [name for name, stat in needed.items() if not stat.seeds]
    shown = ", ".join(f"{name} ({number(delay)} s)" for delay, name in reached)
    return f"{percent(target)} accuracy, fastest first: {shown or 'no scheme'}." + _listed("Never reached it", never)


def _on_the_way(summary: Summary, target: float) -> Iterator[str]:
    """Delay and energy to the target, and who needs more or less of each."""
    others = [name for name in summary.ranked if name != OURS]
    delay, energy = (summary.to_reach(OURS, target, resource) for resource in ("delay_s", "energy_j"))
    runs = len(summary.runs[OURS])
    partly = f", with {delay.seeds} of {runs} seeds" if delay.seeds < runs else ""
    never = [name for name in others if not summary.reached(name, target, "delay_s")]
    yield (
        f"To reach {percent(target)} accuracy ASFL needs {number(delay.median)} s ({number(energy.median)} J){partly}."
        + _verdicts(summary, target, "delay_s", ("Slower", "Faster"))
        + _listed("Never reached it", never)
    )
    energies = _verdicts(summary, target, "energy_j", ("More", "Less"))
    if energies:
        yield f"Energy on the way there, compared with ASFL's {number(energy.median)} J.{energies}"


def _verdicts(summary: Summary, target: float, resource: Resource, words: tuple[str, str]) -> str:
    """Who needs more or less than ASFL, as multiples of what it needs: geometric means of theirs / ours over seeds."""
    ours, found = summary.reached(OURS, target, resource), _Found(*words)
    for name in (name for name in summary.ranked if name != OURS):
        theirs = summary.reached(name, target, resource)
        ratios = [math.log(their / our) for our, their in paired(ours, theirs) if our > 0 and their > 0]
        if ratios:
            reached, runs = len(theirs), len(summary.runs[name])
            partly = f", {reached} of {runs} seeds" if reached < runs else ""
            found.add(ratios, 0.01, fmean(ratios), f"{name} ({_times(math.exp(fmean(ratios)))}{partly})")
        elif theirs:
            found.lists["Reached it with other seeds only"].append((0, name))
    return str(found)


def _at_the_end(summary: Summary) -> Iterator[str]:
    """Final accuracy, and who is above or below."""
    ours, found = summary.by_seed(OURS, "final_accuracy"), _Found("Higher", "Lower")
    final = summary.over_seeds(OURS, "final_accuracy").median
    for name in (name for name in summary.ranked if name != OURS):
        pairs = paired(ours, summary.by_seed(name, "final_accuracy"))
        theirs = summary.over_seeds(name, "final_accuracy").median
        if pairs and not math.isnan(theirs):
            found.add([their - our for our, their in pairs], 0.005, -theirs, f"{name} ({percent(theirs, 1)})")
    rounds = max(run.rounds for run in summary.runs[OURS])
    yield f"After {rounds} round{'s' * (rounds != 1)} ASFL is at {percent(final, 1)}.{found}"


class _Found:
    """Names sorted into who is above ASFL, who is below, and who isn't clearly either."""

    def __init__(self, above: str, below: str) -> None:
        self.above, self.below, self.neither = above, below, "Not clearly different"
        names = (above, below, self.neither, "Reached it with other seeds only")
        self.lists: dict[str, list[tuple[float, str]]] = {name: [] for name in names}

    def add(self, differences: Sequence[float], least: float, place: float, text: str) -> None:
        """Clearly different: 0 is outside the interval of the median; with one seed, further away than `least`."""
        stat = Statistic.of(differences)
        clear = stat.is_clear if stat.seeds > 1 else abs(stat.median) > least
        self.lists[self.neither if not clear else self.above if stat.median > 0 else self.below].append((place, text))

    def __str__(self) -> str:
        return "".join(_listed(word, [text for _, text in sorted(entries)]) for word, entries in self.lists.items())


def _listed(word: str, names: Sequence[str]) -> str:
    return f" {word}: {', '.join(names)}." if names else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio < 2 else f"{ratio:.1f}×" if ratio < 10 else f"{ratio:,.0f}×"
