"""The numbers of a run and of a comparison: the accuracy, what it took to get there, and what the rounds were like."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean, median, median_low, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config
from asfl.optimize.problem import budget_scale, queue_weights
from asfl.results.curves import Curve, Reach, Resource, Run, reach
from asfl.runs.records import RoundRecord
from asfl.schemes import CEILING, OURS

Floats = NDArray[np.float64]


_NAMES = {"vgg19": "VGG-19", "resnet18": "ResNet-18", "resnet50": "ResNet-50", "cnn": "the small CNN"}
_WIDTHS = {0.5: "half", 0.25: "quarter"}


def trained_and_charged(config: Config | None) -> str:
    """Such as "VGG-19 at quarter width trained, charged as vgg19-cifar10"; empty if what is trained is charged."""
    if config is None or not config.model.charged_as or config.model.charged_as == config.model_spec.name:
        return ""
    model = config.model
    width = "" if model.width == 1 else f" at {_WIDTHS.get(model.width, f'{model.width:g} times its')} width"
    return f"{_NAMES.get(model.architecture, model.architecture)}{width} trained, charged as {model.charged_as}"


def said_once(texts: Iterable[str]) -> str:
    """What several runs have to say, each text once."""
    return "; ".join(dict.fromkeys(text for text in texts if text))


def with_note(title: str, note: str) -> str:
    """A title, and in brackets what must be said with it, if anything."""
    return f"{title} ({note})" if note else title


@dataclass(frozen=True)
class RunSummary:
    """One run in numbers. Means are over rounds; what doesn't exist is NaN, such as all costs of the ceiling."""

    scheme: str
    seed: int
    model: str
    """What is trained and what is charged, if these differ; else empty."""
    rounds: int
    final_accuracy: float
    """The last evaluation of the average model."""
    best_accuracy: float
    """The best of all evaluations: what early stopping with the test set at hand would claim."""
    uncalibrated_accuracy: float
    """The last evaluation with averaged running statistics of the norms, instead of ones measured anew."""
    client_accuracy: float
    """The last evaluation of the clients' own models, mean over clients."""
    total_delay_s: float
    total_energy_j: float
    """Of all clients."""
    delay_s: float
    """Mean over rounds."""
    median_delay_s: float
    energy_j: float
    """Mean over rounds, of all clients together."""
    median_energy_j: float
    packet_error_rate: float
    """Expected, over the clients that took part."""
    updates_per_round: float
    """Packets that arrived."""
    discrepancy: float
    spread: float
    cut: float
    """NaN for FedAvg."""
    cut_moves: float
    """Share of rounds that begin with another cut than the round before; with a cut per client: for any
    client that takes part in both."""
    resplit_share: float
    """Σ re-split delay / Σ delay."""
    delay_over: float
    """How far the mean delay is over its budget, as a share of it; 0 within it."""
    delay_owed: float
    """Q/R: the violation still owed, as a share of the budget (`still_owed`); NaN where it means nothing."""
    energy_over: float
    """The same as `delay_over`, for the client that is over by most."""
    energy_owed: float
    """For the client that owes most."""
    accuracy_in_our_time: float
    """The last evaluation by the time that ASFL's run with the same seed ends; NaN without such a run."""
    accuracy_on_our_energy: float
    """The same for the energy that ASFL's run takes."""
    time_left_s: float
    """Of the total budget; NaN without one."""
    battery_left_j: float
    """Of all clients' batteries together; NaN without any."""
    reached: tuple[Reach | None, ...]
    """One per target."""

    def to_json(self) -> dict[str, Any]:
        """For programs; NaN and ∞ become null."""
        plain: dict[str, Any] = _plain(self)
        return plain


def summarize_run(run: Run, targets: Sequence[float], ours: Run | None = None) -> RunSummary:
    """`ours`: ASFL's run in the same world, with the same seed."""
    records, curve, budgets = run.records, Curve.of(run.records), run.budgets
    end = ours.records[-1] if ours is not None and ours.records and not run.is_ceiling else None
    client = [record.client_accuracy for record in records if record.client_accuracy is not None]
    uncalibrated = [record.uncalibrated_accuracy for record in records if record.uncalibrated_accuracy is not None]
    costs = [] if run.is_ceiling else records
    delay, resplit = sum(r.delay_s for r in costs), sum(r.resplit_delay_s for r in costs)
    energies = [_mean(column) for column in zip(*(record.energy_j for record in costs), strict=True)]
    delays, of_all = [r.delay_s for r in costs], [sum(r.energy_j) for r in costs]
    delay_owed, energy_owed = (math.nan, math.nan) if run.is_ceiling else still_owed(run)
    mean_delay, bounded = _mean(delays), budgets is not None and bool(costs)
    return RunSummary(
        scheme=run.scheme,
        seed=run.seed,
        model=trained_and_charged(run.config),
        rounds=len(records),
        final_accuracy=curve.accuracy[-1] if curve.accuracy else math.nan,
        best_accuracy=max(curve.accuracy, default=math.nan),
        uncalibrated_accuracy=uncalibrated[-1] if uncalibrated else math.nan,
        client_accuracy=client[-1] if client else math.nan,
        total_delay_s=math.nan if run.is_ceiling else records[-1].total_delay_s if records else 0.0,
        total_energy_j=math.nan if run.is_ceiling else records[-1].total_energy_j if records else 0.0,
        delay_s=mean_delay,
        median_delay_s=median(delays) if delays else math.nan,
        energy_j=_mean(of_all),
        median_energy_j=median(of_all) if of_all else math.nan,
        packet_error_rate=_mean(r.mean_packet_error_rate for r in costs),
        updates_per_round=_mean(r.arrived_count for r in costs),
        discrepancy=_mean(r.discrepancy for r in costs),
        spread=_mean(r.spread for r in costs),
        cut=_mean(r.mean_cut for r in costs),
        cut_moves=math.nan if run.is_ceiling else _share_of_moves(records),
        resplit_share=math.nan if run.is_ceiling else resplit / delay if delay else 0.0,
        delay_over=max(mean_delay / budgets.delay_s - 1, 0.0) if budgets and bounded else math.nan,
        delay_owed=delay_owed,
        energy_over=max(max(energies) / budgets.energy_j - 1, 0.0) if budgets and bounded else math.nan,
        energy_owed=energy_owed,
        accuracy_in_our_time=curve.accuracy_at("delay", end.total_delay_s) if end else math.nan,
        accuracy_on_our_energy=curve.accuracy_at("energy", end.total_energy_j) if end else math.nan,
        time_left_s=_or_nan(records[-1].time_left_s if records else None),
        battery_left_j=_or_nan(sum(records[-1].battery_left_j) if records and records[-1].battery_left_j else None),
        reached=tuple(None if run.is_ceiling else reach(curve, target) for target in targets),
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float:
    """Over what isn't NaN; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def moves(records: Sequence[RoundRecord]) -> list[bool]:
    """For every round but the first, whether it begins with another cut than the round before."""
    return [_moved(before, after) for before, after in pairwise(records)]


def _share_of_moves(records: Sequence[RoundRecord]) -> float:
    if any(record.cut is None for record in records):
        return math.nan
    moved = moves(records)
    return fmean(moved) if moved else 0.0


def _moved(before: RoundRecord, after: RoundRecord) -> bool:
    """Whether the cut differs; with a cut per client: for any client that takes part in both rounds."""
    if not (isinstance(before.cut, list) and isinstance(after.cut, list)):
        return before.cut != after.cut
    both = zip(before.cut, after.cut, before.rb_count, after.rb_count, strict=True)
    return any(old != new for old, new, had, has in both if had > 0 and has > 0)


@dataclass(frozen=True, eq=False)
class Excess:
    """Delay first, then clients: excess [R, N+1], queues [R+1, N+1]."""

    excess: Floats
    queues: Floats
    keep: float
    add: float
    unit: Floats
    """[N+1] what one of a queue is in budgets."""

    @classmethod
    def of(cls, run: Run) -> "Excess":
        assert run.config is not None
        assert run.budgets is not None
        rules, budgets = run.config.decision, run.budgets
        normalised = rules.equations == "corrected"
        cost = np.array([[record.delay_s, *record.energy_j] for record in run.records], float)
        budget = np.array([budgets.delay_s, *[budgets.energy_j] * (cost.shape[1] - 1)])
        scale = np.array([budget_scale(float(one), normalised=normalised) for one in budget])
        queues = np.array([[record.delay_queue, *record.energy_queue] for record in run.records], float)
        keep, add = queue_weights(rules.queue_rule, rules.queue_memory)
        unit = np.divide(scale, budget, out=np.full_like(scale, np.nan), where=budget > 0)
        return cls((cost - budget) / scale, np.vstack([np.zeros(queues.shape[1]), queues]), keep, add, unit)

    @property
    def feeds_the_queues(self) -> bool:
        """Whether these costs made these queues; schemes that borrow from ASFL keep its queues."""
        expected = np.maximum(self.keep * self.queues[:-1] + self.add * self.excess, 0.0)
        return bool(np.allclose(expected, self.queues[1:], rtol=1e-6, atol=1e-9))


def still_owed(run: Run) -> tuple[float, float]:
    """Q/R after the last round, as a share of the budget: of the delay, and of the client whose energy owes most.

    Under the standard rule a queue is what has been spent beyond the budget and not made good since, so Q/R bounds the
    mean excess and falls to 0 if budgets are kept in the long run. NaN under the printed rule, whose queues forget and
    mean no such thing, and for queues that another scheme's costs made.
    """
    if run.config is None or run.budgets is None or not run.records:
        return math.nan, math.nan
    own = Excess.of(run)
    if own.keep != 1 or own.add != 1 or not np.isfinite(own.excess).all() or not own.feeds_the_queues:
        return math.nan, math.nan
    owed = own.queues[-1] * own.unit / len(run.records)
    return float(owed[0]), float(owed[1:].max())


@dataclass(frozen=True)
class Statistic:
    """A number over seeds: its median and the 95 % bootstrap interval of that, besides mean and standard deviation.

    NaN of nothing; neither interval nor deviation of a single seed. With up to five seeds the interval is the range
    from the lowest to the highest: it holds the true median with 75 % (three seeds) or 94 % (five), not with 95 %.
    """

    median: float
    low: float
    high: float
    mean: float
    sd: float
    seeds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Statistic":
        known = [value for value in values if not math.isnan(value)]
        low = high = sd = math.nan
        if len(known) > 1 and all(map(math.isfinite, known)):
            medians = np.median(np.array(known)[_resamples(len(known))], axis=1)
            low, high = map(float, np.quantile(medians, (0.025, 0.975), method="closest_observation"))
            sd = stdev(known)
        return cls(median(known) if known else math.nan, low, high, _mean(known), sd, len(known))

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside the interval; of a single seed, whether it isn't 0."""
        return self.median != 0 if math.isnan(self.low) else self.low > 0 or self.high < 0


@cache
def _resamples(count: int) -> NDArray[np.int64]:
    """Which seeds are drawn, 4,000 times, the same ones whenever so many are asked about."""
    return np.random.default_rng(count).integers(count, size=(4000, count))


@dataclass(frozen=True)
class Saving:
    """What a scheme saves against another on the way to one target: 1 − ours / theirs, paired by seed."""

    delay: Statistic
    """Over the seeds with which both reached the target; so is the energy."""
    energy: Statistic
    only_ours: int
    """Seeds with which only the first reached it."""
    only_theirs: int


@dataclass(frozen=True)
class Summary:
    """All runs of a comparison in numbers."""

    targets: tuple[float, ...]
    """Ascending."""
    runs: Mapping[str, tuple[RunSummary, ...]]
    """By scheme, in the order they were given; the seeds of each ascending."""

    @classmethod
    def of(cls, runs: Sequence[Run], targets: Sequence[float] | None = None) -> "Summary":
        """Without targets, some are chosen (see `choose_targets`)."""
        chosen = tuple(sorted(set(choose_targets(runs) if targets is None else targets)))
        by_scheme: dict[str, list[RunSummary]] = {}
        ours = {run.seed: run for run in runs if run.scheme == OURS}
        for run in runs:
            by_scheme.setdefault(run.scheme, []).append(summarize_run(run, chosen, ours.get(run.seed)))
        return cls(chosen, {name: tuple(sorted(rows, key=lambda row: row.seed)) for name, rows in by_scheme.items()})

    @property
    def model(self) -> str:
        """What is trained and what is charged, if these differ; else empty."""
        return said_once(run.model for rows in self.runs.values() for run in rows)

    @property
    def ranked(self) -> list[str]:
        """The schemes that have a delay and an energy: all but the ceiling."""
        return [name for name in self.runs if name != CEILING]

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for rows in self.runs.values() for run in rows})

    def by_seed(self, scheme: str, quantity: str) -> dict[int, float]:
        """A number of `RunSummary` for each seed."""
        return {run.seed: getattr(run, quantity) for run in self.runs.get(scheme, ())}

    def over_seeds(self, scheme: str, quantity: str) -> Statistic:
        return Statistic.of(self.by_seed(scheme, quantity).values())

    def reached(self, scheme: str, target: float, resource: Resource) -> dict[int, float]:
        """Delay or energy to the target, for each seed that reached it."""
        index = self.targets.index(target)
        ends = {run.seed: run.reached[index] for run in self.runs.get(scheme, ())}
        return {seed: getattr(end, resource) for seed, end in ends.items() if end is not None}

    def to_reach(self, scheme: str, target: float, resource: Resource) -> Statistic:
        return Statistic.of(self.reached(scheme, target, resource).values())

    def fastest_first(self, target: float) -> list[str]:
        """Schemes by their delay to the target; those that never reach it last."""
        needed = {name: self.to_reach(name, target, "delay_s") for name in self.ranked}
        return sorted(needed, key=lambda name: needed[name].median if needed[name].seeds else math.inf)

    def main_target(self) -> float | None:
        """The highest target that more than half of the schemes reach with every seed, else the lowest."""
        for target in reversed(self.targets):
            everywhere = [len(self.reached(name, target, "delay_s")) == len(self.runs[name]) for name in self.ranked]
            if 2 * sum(everywhere) > len(everywhere):
                return target
        return self.targets[0] if self.targets else None

    def saving(self, scheme: str, target: float) -> Saving | None:
        """What ASFL saves; None against itself or the ceiling, and in a comparison without one of the two."""
        if scheme in (OURS, CEILING) or {OURS, scheme} - self.runs.keys():
            return None
        ours, theirs = (self.reached(name, target, "delay_s").keys() for name in (OURS, scheme))
        shared = {run.seed for run in self.runs[OURS]} & {run.seed for run in self.runs[scheme]}
        return Saving(
            delay=self._saved(scheme, target, "delay_s"),
            energy=self._saved(scheme, target, "energy_j"),
            only_ours=len(shared & (ours - theirs)),
            only_theirs=len(shared & (theirs - ours)),
        )

    def _saved(self, scheme: str, target: float, resource: Resource) -> Statistic:
        pairs = paired(self.reached(OURS, target, resource), self.reached(scheme, target, resource))
        return Statistic.of(1 - ours / theirs for ours, theirs in pairs if theirs > 0)

    def to_json(self) -> dict[str, Any]:
        """For programs; NaN and ∞ become null."""
        return {
            **({"model": self.model} if self.model else {}),
            "targets": list(self.targets),
            "main_target": self.main_target(),
            "seeds": self.seeds,
            "schemes": {name: self._scheme_to_json(name) for name in self.runs},
        }

    def _scheme_to_json(self, scheme: str) -> dict[str, Any]:
        targets = [
            {
                "target": target,
                "seeds_reached": len(self.reached(scheme, target, "delay_s")),
                "delay_s": _plain(self.to_reach(scheme, target, "delay_s")),
                "energy_j": _plain(self.to_reach(scheme, target, "energy_j")),
                "asfl_saves": _plain(self.saving(scheme, target)),
            }
            for target in self.targets
        ]
        means = {name: _plain(self.over_seeds(scheme, name)) for name in _NUMBERS}
        return {**means, "targets": targets, "runs": [run.to_json() for run in self.runs[scheme]]}


@dataclass(frozen=True)
class Outcome:
    """All schemes in one world."""

    preset: str
    label: str
    """What is varied, at this point: "0.1". Empty if nothing is."""
    runs: Sequence[Run]
    summary: Summary
    world: str = ""
    """Points that differ in nothing share one."""


_NUMBERS = [field.name for field in fields(RunSummary) if field.name not in ("scheme", "seed", "model", "reached")]


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """Values of the same seed, that is of the same world."""
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def _plain(value: Any) -> Any:
    """As JSON knows it."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def choose_targets(runs: Sequence[Run]) -> list[float]:
    """Accuracies worth asking for: 50, 75, 90 and 97 % of the best scheme's final accuracy, rounded down.

    To whole 5 %, below 20 % and near the best to whole 1 %. Before the lowest of them come, if lower, what ASFL reaches
    with every seed, and what at least half of the schemes do (rounded down). The ceiling has no say.
    """
    finals: dict[str, list[float]] = {}
    tops: dict[str, list[float]] = {}
    for run in runs:
        curve = Curve.of(run.records)
        if curve.accuracy and not run.is_ceiling:
            finals.setdefault(run.scheme, []).append(curve.accuracy[-1])
            tops.setdefault(run.scheme, []).append(max(curve.smoothed))
    if not finals:
        return []
    best = max(map(fmean, finals.values()))
    targets = [*(_rounded_down(share * best) for share in (0.5, 0.75, 0.9)), math.floor(97 * best + 1e-9) / 100]
    reached = {scheme: min(values) for scheme, values in tops.items()}
    lower = {_rounded_down(median_low(reached.values())), _rounded_down(reached.get(OURS, best))}
    targets = sorted({*targets, *(target for target in lower if target < targets[0])})
    return [target for target in targets if target > 0]


def _rounded_down(accuracy: float) -> float:
    percent = math.floor(100 * accuracy + 1e-9)
    return (percent if percent < 20 else percent - percent % 5) / 100
