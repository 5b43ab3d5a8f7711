"""What a recipe found, as a page in Markdown: claims, pictures, one table. All else is in results.json."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from asfl.config.units import number, percent
from asfl.results.charged import said_once, with_note
from asfl.results.quantities import partly
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.outcome import Found, Outcome
from asfl.results.reproduce.recipes import recipe_named
from asfl.results.summary import Summary
from asfl.results.tables import NOT_REACHED, markdown_table

Outcomes = Mapping[str, Sequence[Outcome]]
"""By preset."""


def recipe_page(
    found: Found,
    outcomes: Outcomes,
    findings: Sequence[Finding],
    pictures: Iterable[str],
    otherwise: Mapping[str, Outcomes],
) -> str:
    """`pictures`: file names beside the page; `otherwise`: outcomes under other charges, by what these are called."""
    recipe = recipe_named(found.recipe)
    intro = f"{recipe.source[0].upper()}{recipe.source[1:]}: {recipe.shows}."
    lines = [f"# {recipe.name}", "", intro, "", "```console", f"$ {found.command}", "```", ""]
    every = [outcome for of_preset in outcomes.values() for outcome in of_preset]
    moving = any(one.config and one.config.scenario.channel.kind != "rayleigh" for o in every for one in o.runs)
    timed = " Recharged rounds keep the links that they had when they were trained." if otherwise and moving else ""
    lines += [origin(every) + timed, ""]
    for preset in outcomes:
        lines += _claims([one for one in findings if one.preset == preset], preset if len(outcomes) > 1 else "")
    for name in pictures:
        lines += [f"![{name.rpartition('.')[0]}]({name})", ""]
    for preset, of_preset in outcomes.items():
        model = said_once(outcome.summary.model for outcome in of_preset)
        seeds = max(len(outcome.summary.seeds) for outcome in of_preset)
        medians = f"Medians of {seeds} seeds." if seeds > 1 else "One seed."
        lines += [f"## {with_note(preset, model)}", "", f"{medians} {_trained(of_preset)}", ""]
        others = {name: other[preset] for name, other in otherwise.items()}
        lines += [*_numbers(recipe.varied, of_preset, others), ""]
    return "\n".join(lines)


def _claims(findings: Sequence[Finding], world: str) -> Iterator[str]:
    """A table of what is found; where something is varied, one of the verdicts at each point."""
    title = with_note("claim", world)
    told = [[one.claim, one.here, one.in_words] for one in findings if not one.label]
    if told:
        yield from (*markdown_table([title, "here", "verdict"], told, words=None), "")
    labels = list(dict.fromkeys(one.label for one in findings if one.label))
    verdicts: dict[str, dict[str, str]] = {}
    for one in findings:
        if one.label:
            verdicts.setdefault(one.claim, {})[one.label] = one.in_words
    if labels:
        rows = ([claim, *(of_claim.get(label, "–") for label in labels)] for claim, of_claim in verdicts.items())
        yield from (*markdown_table([title, *labels], rows, words=None), "")


def origin(outcomes: Iterable[Outcome]) -> str:
    """Which seeds and commits the runs are of, and what training them took."""
    runs = {(o.world, run.scheme, run.seed): run for o in outcomes for run in o.runs}.values()
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    commits = ", ".join(sorted({run.commit[:12] for run in runs if run.commit})) or "not recorded"
    counted = [run.cpu_s for run in runs if run.cpu_s > 0]
    hours = f"{number(sum(counted) / 3600, 2)} CPU hours" if counted else "CPU time not recorded"
    partly = f" ({len(counted)} of {len(runs)} runs counted)" if 0 < len(counted) < len(runs) else ""
    return f"Seeds {seeds}; commit {commits}; {hours}{partly}."


def _trained(outcomes: Iterable[Outcome]) -> str:
    """For how many rounds, with which learning rates, and local steps where these differ."""
    rounds: dict[float, dict[str, None]] = {}
    rates: dict[float, dict[str, None]] = {}
    steps: dict[float, dict[str, None]] = {}
    for run in (run for outcome in outcomes for run in outcome.runs):
        rounds.setdefault(len(run.records), {})[run.scheme] = None
        if run.config is not None:
            rates.setdefault(run.config.training.learning_rate, {})[run.scheme] = None
            steps.setdefault(run.config.training.local_steps, {})[run.scheme] = None
    told = [_by_value("Rounds", rounds), _by_value("Learning rates", rates)]
    if len(steps) > 1:
        told.append(_by_value("Local steps", steps))
    return " ".join(filter(None, told))


def _by_value(what: str, schemes: Mapping[float, Iterable[str]]) -> str:
    """The value of most schemes, and which have others."""
    usual = max(schemes, key=lambda value: len(list(schemes[value])), default=None)
    others = "; ".join(f"{value:g} ({', '.join(of)})" for value, of in sorted(schemes.items()) if value != usual)
    return "" if usual is None else f"{what}: {usual:g}{f'; {others}' if others else ''}."


def _numbers(varied: str, outcomes: Sequence[Outcome], otherwise: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Accuracy, the way to two accuracies, and what a round takes: as charged here, and otherwise."""
    first, named = outcomes[0].summary, [varied] if any(outcome.label for outcome in outcomes) else []
    reached = [t for t in first.targets if any(name for name in first.ranked if first.reached(name, t, "delay_s"))]
    targets = sorted({one for one in (first.main_target(), *reached[-1:]) if one is not None})
    header = [*named, "scheme", "accuracy, %", *(f"to {percent(target)}: s / J" for target in targets)]
    header += ["a round: s / J", *(f"{name}: s / J" for name in otherwise)]
    rows = []
    for place, outcome in enumerate(outcomes):
        summary = outcome.summary
        for scheme in summary.runs:
            accuracy = 100 * summary.over_seeds(scheme, "final_accuracy").median
            row = [*([outcome.label] if named else []), scheme, f"{accuracy:.1f}"]
            row += [_way(summary, scheme, target) for target in targets]
            rounds = [_round(one, scheme) for one in (summary, *(other[place].summary for other in otherwise.values()))]
            rows.append([*row, rounds[0], *("=" if one == rounds[0] else one for one in rounds[1:])])
    yield from markdown_table(header, rows, words=len(named) + 1)


def _round(summary: Summary, scheme: str) -> str:
    if scheme not in summary.ranked:
        return "–"
    return " / ".join(number(summary.over_seeds(scheme, name).median) for name in ("delay_s", "energy_j"))


def _way(summary: Summary, scheme: str, target: float) -> str:
    delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
    if not delay.seeds:
        return NOT_REACHED if scheme in summary.ranked else "–"
    return f"{number(delay.median)} / {number(energy.median)}{partly(delay, len(summary.runs[scheme]))}"
