"""What a recipe found, as a page in Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from asfl.config.units import number, percent
from asfl.results.charged import said_once, with_note
from asfl.results.quantities import COSTS, OF_ROUNDS, QUANTITIES, amount, partly
from asfl.results.reproduce.claims import Finding
from asfl.results.reproduce.outcome import Outcome
from asfl.results.reproduce.recipes import Recipe
from asfl.results.summary import Summary
from asfl.results.tables import NOT_REACHED, RANGE_UP_TO, markdown_table, spread_in_words

_SHOWN = [
    *(one for one in COSTS if not one.name.endswith(("_over", "_owed"))),
    *OF_ROUNDS,
    *(QUANTITIES[name] for name in ("client_accuracy", "uncalibrated_accuracy")),
]

_COMPARED = [QUANTITIES[name] for name in ("final_accuracy", "accuracy_in_our_time", "accuracy_on_our_energy")]
_HOW = (
    "A difference is clear if 0 is outside the 95 % bootstrap interval of its median over seeds. *holds*: clear, and "
    "the claimed figure is within the interval or exceeded; *holds weaker*: clear, but smaller; *mixed*: different at "
    "different accuracies; *doesn't hold*: clearly the other way round."
)


def recipe_page(
    recipe: Recipe,
    command: str,
    outcomes: Mapping[str, Sequence[Outcome]],
    findings: Sequence[Finding],
    pictures: Iterable[str],
) -> str:
    """`pictures`: file names beside the page."""
    intro = f"{recipe.source[0].upper()}{recipe.source[1:]}: {recipe.shows}."
    lines = [f"# {recipe.name}", "", intro, "", "```console", f"$ {command}", "```", ""]
    lines += [origin(outcome for of_preset in outcomes.values() for outcome in of_preset), ""]
    if findings:
        rows = ([f.preset, f.claim, f.here, f.conclusion] for f in findings)
        lines += [*markdown_table(["world", "claim", "here", "verdict"], rows, words=None), ""]
        lines += [_HOW, ""]
    for name in pictures:
        lines += [f"![{name.rpartition('.')[0]}]({name})", ""]
    for preset, of_preset in outcomes.items():
        model = said_once(outcome.summary.model for outcome in of_preset)
        lines += [f"## {with_note(preset, model)}", "", f"{_what(of_preset)} {_trained(of_preset)}", ""]
        lines += [*_numbers(recipe, of_preset), ""]
    return "\n".join(lines)


def origin(outcomes: Iterable[Outcome]) -> str:
    """Which seeds and commits the runs are of, and what training them took."""
    runs = {(o.world, run.scheme, run.seed): run for o in outcomes for run in o.runs}.values()
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    commits = ", ".join(sorted({run.commit[:12] for run in runs if run.commit})) or "not recorded"
    counted = [run.cpu_s for run in runs if run.cpu_s > 0]
    hours = f"{number(sum(counted) / 3600, 2)} CPU hours" if counted else "CPU time not recorded"
    partly = f" ({len(counted)} of {len(runs)} runs counted)" if 0 < len(counted) < len(runs) else ""
    return f"Seeds {seeds}; commit {commits}; {hours}{partly}."


def _what(outcomes: Sequence[Outcome]) -> str:
    seeds = max(len(outcome.summary.seeds) for outcome in outcomes)
    few = (
        " With so few seeds this range is their 95 % bootstrap interval; it holds the true median with "
        f"{percent(1 - 0.5 ** (seeds - 1))} probability only."
        if 1 < seeds <= RANGE_UP_TO
        else ""
    )
    return (
        "Accuracy after the last round, in the time and on the energy that ASFL takes for all its rounds; delay and "
        "energy until an accuracy is reached; and means (and medians) over rounds. "
        f"{spread_in_words(seeds).capitalize()}.{few}"
    )


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
    told = "; ".join(f"{value:g} ({', '.join(of_value)})" for value, of_value in sorted(schemes.items()))
    return f"{what}: {told}." if told else ""


def _numbers(recipe: Recipe, outcomes: Sequence[Outcome]) -> Iterator[str]:
    varied = [recipe.varied] if any(outcome.label for outcome in outcomes) else []
    targets = outcomes[0].summary.targets
    header = [
        *varied,
        "scheme",
        *(f"accuracy {one.title}, %" for one in _COMPARED),
        *(f"to {percent(target)}: s / J" for target in targets),
    ]
    cases = [(outcome, scheme) for outcome in outcomes for scheme in outcome.summary.runs]

    def named(outcome: Outcome, scheme: str) -> list[str]:
        return [*([outcome.label] if varied else []), scheme]

    reached = (
        [*named(o, s), *(one.format(o.summary.over_seeds(s, one.name)) for one in _COMPARED), *_ways(o.summary, s)]
        for o, s in cases
    )
    yield from markdown_table(header, reached, words=len(varied) + 1)
    yield ""
    rounds = ([*named(o, s), *(one.format(o.summary.over_seeds(s, one.name)) for one in _SHOWN)] for o, s in cases)
    yield from markdown_table([*varied, "scheme", *(one.heading for one in _SHOWN)], rounds, words=len(varied) + 1)


def _ways(summary: Summary, scheme: str) -> Iterator[str]:
    for target in summary.targets:
        delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
        runs = len(summary.runs[scheme])
        missing = NOT_REACHED if scheme in summary.ranked else "–"
        yield f"{amount(delay)} / {amount(energy)}{partly(delay, runs)}" if delay.seeds else missing
