"""What a recipe found, as a page in Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from asfl.reproduce.claims import Finding
from asfl.reproduce.outcome import Outcome
from asfl.reproduce.plan import Plan
from asfl.summary import Summary, amount, percent

_ROUNDS: dict[str, tuple[str, float]] = {
    "delay_s": ("delay, s", 1),
    "energy_j": ("energy, J", 1),
    "packet_error_rate": ("errors, %", 100),
    "updates_per_round": ("arrived", 1),
    "discrepancy": ("discrepancy", 1),
    "cut": ("cut", 1),
    "cut_moves": ("moves, %", 100),
    "resplit_share": ("re-split, %", 100),
    "client_accuracy": ("own, %", 100),
}
"""Means over rounds: header and scale."""


_HOW = (
    "A difference is clear if its mean over seeds exceeds its standard deviation over seeds. *holds*: clear, and the "
    "paper's figure is within one standard deviation or exceeded; *holds weaker*: clear, but smaller; *mixed*: "
    "different at different accuracies; *doesn't hold*: clearly the other way round."
)


def recipe_page(
    plan: Plan, outcomes: Mapping[str, Sequence[Outcome]], findings: Sequence[Finding], pictures: Iterable[str]
) -> str:
    """`pictures`: file names beside the page."""
    recipe = plan.recipe
    intro = f"{recipe.paper} of the paper" if recipe.paper != "–" else "Not in the paper"
    lines = [f"# {recipe.name}", "", f"{intro}: {recipe.shows}.", "", "```console", f"$ {command(plan)}", "```", ""]
    if findings:
        rows = ([f.preset, f.claim, f.here, f.conclusion] for f in findings)
        lines += [*markdown_table(["world", "claim", "here", "verdict"], rows, numbers=False), ""]
        lines += [_HOW, ""]
    for name in pictures:
        lines += [f"![{name.rpartition('.')[0]}]({name})", ""]
    for preset, of_preset in outcomes.items():
        lines += [f"## {preset}", "", _what(of_preset), "", *_numbers(plan, of_preset), ""]
    return "\n".join(lines)


def command(plan: Plan) -> str:
    traces = "" if plan.recipe.name != "measured-channel" else " --trace FILE" * len(plan.recipe.points(plan.scale))
    settings = "".join(f" --set {one}" for one in plan.overrides)
    return f"asfl reproduce {plan.recipe.name} --scale {plan.scale}{traces} --seeds {plan.seeds}{settings}"


def _what(outcomes: Sequence[Outcome]) -> str:
    seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
    spread = "mean ± standard deviation over" if seeds > 1 else "of"
    return (
        f"Accuracy after the last round, delay and energy until an accuracy is reached, and means over rounds; "
        f"{spread} {seeds} seed{'s' if seeds > 1 else ''}."
    )


def _numbers(plan: Plan, outcomes: Sequence[Outcome]) -> Iterator[str]:
    varied = [plan.recipe.varied] if any(outcome.label for outcome in outcomes) else []
    targets = outcomes[0].summary.targets
    header = [*varied, "scheme", "accuracy, %", *(f"to {percent(target)}: s / J" for target in targets)]
    cases = [(outcome, scheme) for outcome in outcomes for scheme in outcome.summary.runs]

    def named(outcome: Outcome, scheme: str) -> list[str]:
        return [*([outcome.label] if varied else []), scheme]

    reached = (
        [*named(o, s), amount(o.summary.over_seeds(s, "final_accuracy"), 100), *_ways(o.summary, s)] for o, s in cases
    )
    yield from markdown_table(header, reached)
    yield ""
    rounds = (
        [*named(o, s), *(amount(o.summary.over_seeds(s, key), scale) for key, (_, scale) in _ROUNDS.items())]
        for o, s in cases
    )
    yield from markdown_table([*varied, "scheme", *(title for title, _ in _ROUNDS.values())], rounds)


def _ways(summary: Summary, scheme: str) -> Iterator[str]:
    for target in summary.targets:
        delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
        runs = len(summary.runs[scheme])
        partly = f" ({delay.seeds} of {runs})" if delay.seeds < runs else ""
        yield f"{amount(delay)} / {amount(energy)}{partly}" if delay.seeds else "not reached"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{(' ---: |' if numbers else ' --- |') * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
