"""The tables of a comparison as plain text, for the page and for LaTeX alike: mean ± standard deviation over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from asfl.summary import OURS, SMOOTHED_OVER, Resource, Saving, Statistic, Summary, amount, percent, share

NOT_REACHED = "not reached"


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
        if OURS in summary.runs and len(summary.runs) > 1:
            tables.append(_saved(summary))
    return [*tables, _rounds(summary)]


def partly(stat: Statistic, runs: int) -> str:
    return f" ({stat.seeds} of {runs} seeds)" if stat.seeds < runs else ""


def _spread(summary: Summary) -> str:
    return "Mean ± standard deviation over seeds" if len(summary.seeds) > 1 else "One seed"


def _accuracy(summary: Summary) -> Table:
    columns = {"at the end": "final_accuracy", "best": "best_accuracy", "clients' own": "client_accuracy"}
    rows = [
        [name, *(share(summary.over_seeds(name, key)) for key in columns.values()), str(len(runs))]
        for name, runs in summary.runs.items()
    ]
    note = f"{_spread(summary)}. Of the average model; clients' own: each client's side with the server's, at the end."
    return Table("accuracy", "Accuracy, %", note, ["scheme", *columns, "seeds"], rows)


def _reached(summary: Summary, resource: Resource) -> Table:
    what, unit = ("Delay", "s") if resource == "delay_s" else ("Energy of all clients", "J")
    rows = []
    for name, runs in summary.runs.items():
        needed = [summary.to_reach(name, target, resource) for target in summary.targets]
        rows.append([name, *(amount(s) + partly(s, len(runs)) if s.seeds else NOT_REACHED for s in needed)])
    note = (
        f"{_spread(summary)}{' that got there' if len(summary.seeds) > 1 else ''}. Reached: when the mean of "
        f"{SMOOTHED_OVER} evaluations is at the target."
    )
    header = ["scheme", *(f"to {percent(target)}" for target in summary.targets)]
    return Table(what.split()[0].lower(), f"{what} to a target accuracy, {unit}", note, header, rows)


def _saved(summary: Summary) -> Table:
    rows = [
        [name, *(_saving(summary.saving(name, target)) for target in summary.targets)]
        for name in summary.runs
        if name != OURS
    ]
    note = f"{_spread(summary)}, paired: share of the other's delay / of its energy. Negative: ASFL needs more."
    header = ["against", *(f"to {percent(target)}" for target in summary.targets)]
    return Table("savings", "What ASFL saves, %", note, header, rows)


def _saving(saving: Saving | None) -> str:
    if saving is None:
        return "–"
    if saving.delay.seeds:
        return f"{share(saving.delay, 0)} / {share(saving.energy, 0)}"
    if saving.only_ours and saving.only_theirs:
        return "never with the same seed"
    return "only ASFL reaches it" if saving.only_ours else "only it reaches it" if saving.only_theirs else "neither"


_ROUNDS: dict[str, tuple[str, float]] = {
    "delay_s": ("delay, s", 1),
    "energy_j": ("energy, J", 1),
    "packet_error_rate": ("errors, %", 100),
    "updates_per_round": ("arrived", 1),
    "cut": ("cut", 1),
    "cut_moves": ("moves, %", 100),
    "resplit_share": ("re-split, %", 100),
    "discrepancy": ("discrepancy", 1),
    "delay_over": ("delay over, %", 100),
    "energy_over": ("energy over, %", 100),
}


def _rounds(summary: Summary) -> Table:
    rows = [[name, *(_scaled(summary, name, key) for key in _ROUNDS)] for name in summary.runs]
    note = (
        f"{_spread(summary)}; means over rounds. Errors: expected, of those who took part; moves: rounds with "
        "another cut than the one before; re-split: share of the delay; over: beyond the budget "
        "(energy: the worst client)."
    )
    header = ["scheme", *(text for text, _ in _ROUNDS.values())]
    return Table("rounds", "What the rounds look like", note, header, rows)


def _scaled(summary: Summary, scheme: str, quantity: str) -> str:
    stat, scale = summary.over_seeds(scheme, quantity), _ROUNDS[quantity][1]
    return amount(stat, scale)
