"""What a recipe found, as a page in Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from asfl.config.units import percent
from asfl.results.charged import said_once, with_note
from asfl.results.quantities import COSTS, OF_ROUNDS, QUANTITIES, amount, partly
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.outcome import Outcome
from asfl.results.reproduce.plan import Plan
from asfl.results.summary import Summary
from asfl.results.tables import NOT_REACHED, markdown_table

_SHOWN = [
    *(one for one in COSTS if not one.name.endswith(("_over", "_owed"))),
    *OF_ROUNDS,
    *(QUANTITIES[name] for name in ("client_accuracy", "uncalibrated_accuracy")),
]

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
        model = said_once(outcome.summary.model for outcome in of_preset)
        lines += [f"## {with_note(preset, model)}", "", _what(of_preset), "", *_numbers(plan, of_preset), ""]
    return "\n".join(lines)


def command(plan: Plan) -> str:
    traces = "" if plan.recipe.name != "measured-channel" else " --trace FILE" * len(plan.recipe.points(plan.scale))
    settings = "".join(f" --set {one}" for one in plan.overrides)
    return f"asfl reproduce {plan.recipe.name} --scale {plan.scale}{traces} --seeds {plan.seeds}{settings}"


def _what(outcomes: Sequence[Outcome]) -> str:
    seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
    spread = "mean ± standard deviation over" if seeds > 1 else "of"
    return (
        f"Accuracy after the last round, delay and energy until an accuracy is reached, and means (and medians) "
        f"over rounds; {spread} {seeds} seed{'s' if seeds > 1 else ''}."
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
    rounds = ([*named(o, s), *(one.format(o.summary.over_seeds(s, one.name)) for one in _SHOWN)] for o, s in cases)
    yield from markdown_table([*varied, "scheme", *(one.heading for one in _SHOWN)], rounds)


def _ways(summary: Summary, scheme: str) -> Iterator[str]:
    for target in summary.targets:
        delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
        runs = len(summary.runs[scheme])
        missing = NOT_REACHED if scheme in summary.ranked else "–"
        yield f"{amount(delay)} / {amount(energy)}{partly(delay, runs)}" if delay.seeds else missing
