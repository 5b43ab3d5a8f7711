"""What is learnt on real CIFAR: all schemes on two data sets, and ASFL with other rules. Hours on two cores.

    python -m studies.learning OUT [DATA]     trains what is missing, then prints the tables of docs/results.md

Every experiment is one `asfl compare`; the command that gives the same runs is printed with its table.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asfl.compare import Comparison, plan_comparison, read_comparison
from asfl.config import load_config
from asfl.engines.processes import train_all
from asfl.schemes import SCHEMES
from asfl.summary import Summary, amount, percent
from asfl.words import in_words

SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Experiment:
    """One comparison, and the accuracies at which its schemes are compared."""

    name: str
    preset: str
    targets: tuple[float, ...]
    overrides: tuple[str, ...] = ()
    schemes: tuple[str, ...] = tuple(SCHEMES)

    @property
    def command(self) -> str:
        chosen = "" if self.schemes == tuple(SCHEMES) else f" --schemes {','.join(self.schemes)}"
        options = "".join(f" --set {override}" for override in self.overrides)
        return f"asfl compare {self.preset}{chosen} --seeds {len(SEEDS)}{options} --out {self.name}"


_CIFAR10, _CIFAR100 = (0.25, 0.3, 0.35), (0.04, 0.06, 0.08)
_CHARGED_AS_CORRECTED = ("decision.uplink_power=shared", "decision.gradient_bits=activations")
EXPERIMENTS = (
    Experiment("small-cifar10", "small-cifar10", _CIFAR10),
    Experiment("small-cifar100", "small-cifar100", _CIFAR100),
    Experiment(
        "v-printed", "small-cifar10", _CIFAR10, ("decision.equations=printed", *_CHARGED_AS_CORRECTED), ("asfl",)
    ),
    Experiment("v-perround", "small-cifar10", _CIFAR10, ("decision.form=per_round_budgets",), ("asfl",)),
    Experiment("v-standard", "small-cifar10", _CIFAR10, ("decision.queue_rule=standard",), ("asfl",)),
    Experiment("v-long", "small-cifar10", (*_CIFAR10, 0.4), ("training.rounds=450",), ("asfl",)),
)


def main(folder: Path, data_dir: Path | None) -> None:
    for experiment in EXPERIMENTS:
        there = folder / experiment.name
        if data_dir is not None:
            config = load_config(experiment.preset, experiment.overrides).config
            comparison = plan_comparison(config, experiment.schemes, SEEDS, there, data_dir)
            comparison.remember()
            train_all(comparison.jobs(data_dir))
        if (there / "compare.json").exists():
            print("\n".join(tables(experiment, read_comparison(there))))


def tables(experiment: Experiment, comparison: Comparison) -> Iterator[str]:
    """Markdown."""
    summary = Summary.of(comparison.finished_runs(), experiment.targets)
    runs = sum(map(len, summary.runs.values()))
    yield f"\n### {experiment.name} ({runs} runs)\n\n    {experiment.command}\n"
    yield from _markdown(
        ["scheme", "accuracy (%)", *(f"to {percent(target)}: s / J" for target in summary.targets)],
        ([name, _mean(summary, name, "final_accuracy", 100), *_ways(summary, name)] for name in summary.runs),
    )
    columns = {
        "delay_s": ("delay (s)", 1), "energy_j": ("energy (J)", 1), "packet_error_rate": ("errors (%)", 100),
        "updates_per_round": ("arrived", 1), "discrepancy": ("discrepancy", 1), "cut": ("cut", 1),
        "cut_moves": ("moves (%)", 100), "resplit_share": ("re-split (%)", 100), "client_accuracy": ("own (%)", 100),
    }  # fmt: skip
    yield ""
    yield from _markdown(
        ["scheme", *(title for title, _ in columns.values())],
        ([name, *(_mean(summary, name, key, scale) for key, (_, scale) in columns.items())] for name in summary.runs),
    )
    if len(summary.runs) > 1:
        yield ""
        yield from _markdown(
            ["ASFL saves against", *(f"delay / energy to {percent(target)} (%)" for target in summary.targets)],
            ([name, *(_saving(summary, name, target) for target in summary.targets)] for name in summary.runs),
        )
        yield from ("", *in_words(summary))


def _ways(summary: Summary, scheme: str) -> Iterator[str]:
    for target in summary.targets:
        delay, energy = (summary.to_reach(scheme, target, resource) for resource in ("delay_s", "energy_j"))
        runs = len(summary.runs[scheme])
        partly = f" ({delay.seeds} of {runs})" if delay.seeds < runs else ""
        yield f"{amount(delay)} / {amount(energy)}{partly}" if delay.seeds else "not reached"


def _saving(summary: Summary, scheme: str, target: float) -> str:
    saving = summary.saving(scheme, target)
    if saving is None:
        return ""
    if not saving.delay.seeds:
        return "only ASFL" if saving.only_ours else "only it" if saving.only_theirs else "neither"
    return f"{amount(saving.delay, 100)} / {amount(saving.energy, 100)}"


def _mean(summary: Summary, scheme: str, quantity: str, scale: float) -> str:
    return amount(summary.over_seeds(scheme, quantity), scale)


def _markdown(header: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{' ---: |' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
