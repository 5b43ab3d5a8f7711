"""Charts of several schemes: accuracy against what it cost, the way to a target, cuts and queues, and the recipes'."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import numpy as np

from asfl.config.units import number, percent
from asfl.results.charts.chart import (
    BUDGET,
    FAINT,
    MEDIAN,
    OTHER,
    SECOND,
    Axis,
    Bars,
    Chart,
    Heat,
    Level,
    Line,
    Look,
    Note,
    Panel,
    Points,
    Series,
    binned,
    is_ours,
    look_of,
    over_rounds,
    scaled,
    spans_magnitudes,
)
from asfl.results.charts.files import save_figure
from asfl.results.charts.one_run import blocks, is_measured, links
from asfl.results.curves import Curve, Resource, Run, finished_runs, together
from asfl.results.quantities import CURVE_AXES, QUANTITIES, amount, partly, share
from asfl.results.summary import Outcome, Statistic, Summary, moves, paired
from asfl.runs.comparison import Comparison, read_front
from asfl.runs.records import RoundRecord
from asfl.schemes import CEILING, OURS, PLUS

CROWDED = 6
"""With more schemes than this, only the bands of our own are more than a hint."""
WINDOW = 10
"""Rounds that a queue is averaged over, or that moves of the cut are counted in, to show where they tend."""


# ---------------------------------------------------------------------- accuracy
@dataclass(frozen=True)
class Learnt:
    """The curves of a scheme, a seed each, and how they are shown."""

    scheme: str
    name: str
    curves: Sequence[Curve]
    look: Look
    said: str = ""
    """More about them, for who points at them."""
    ends: bool = True
    """Whether the last point is marked: the run is finished."""


def learnt(runs: Sequence[Run]) -> list[Learnt]:
    """By scheme, as far as there were evaluations."""
    curves: dict[str, list[Curve]] = {}
    for run in runs:
        curve = Curve.of(run.records)
        if curve.accuracy:
            curves.setdefault(run.scheme, []).append(curve)
    return [Learnt(name, name, of_scheme, look_of(name)) for name, of_scheme in curves.items()]


def accuracy_panel(
    every: Sequence[Learnt], axis: str, targets: Sequence[float], title: str = "", unit: str = ""
) -> Panel:
    """Accuracy against "delay", "energy" or "rounds": medians over seeds, in a band from the lowest to the highest."""
    words, of_axis = CURVE_AXES[axis]
    lines: list[Series] = []
    reach: list[float] = []
    for one in sorted((one for one in every if one.scheme != CEILING), key=lambda one: one.look.width):
        x, accuracy = together(one.curves, axis)
        if not x.size:
            continue
        middle, reach = 100 * np.median(accuracy, axis=0), [*reach, float(x[0]), float(x[-1])]
        several = len(one.curves) > 1
        spread = " (%{customdata[0]:.1f} – %{customdata[1]:.1f})" if several else ""
        line = Line(
            x=x, y=middle, look=one.look, name=_named(one), group=one.name,
            low=100 * accuracy.min(axis=0) if several else None, high=100 * accuracy.max(axis=0) if several else None,
            band=0.06 if len(every) > CROWDED and not is_ours(one.scheme) else 0.15,
            hover=f"%{{y:.1f}} %{spread} after %{{x:,.4~g}} {of_axis or 'rounds'}",
        )  # fmt: skip
        lines.append(line)
        if one.ends:
            lines.append(Points(x=x[-1:], y=middle[-1:], look=one.look, group=one.name, size=4))
    from_to = [min((value for value in reach if value > 0), default=1.0), max(reach, default=2.0)]
    ceilings = [_ceiling(one, from_to) for one in every if one.scheme == CEILING]
    levels = [Level(100 * target, look=Look(BUDGET, (1, 2), 0.9)) for target in targets]
    label = (f"{words}, {of_axis}" if of_axis else words) + (f" ({unit})" if unit else "")
    bottom = Axis("accuracy, %", low=0)
    return Panel(title, [*levels, *lines, *ceilings], scaled(label, reach[1::2]), bottom, choice="x")


def _ceiling(one: Learnt, from_to: Sequence[float]) -> Line:
    """It has no delay and no energy: a horizontal line at its best accuracy."""
    best = [100 * max(curve.smoothed) for curve in one.curves]
    several = len(best) > 1
    return Line(
        x=from_to, y=[float(np.median(best))] * 2, look=one.look, name=f"{_named(one)} (ceiling)", group=one.name,
        low=[min(best)] * 2 if several else None, high=[max(best)] * 2 if several else None, band=0.08,
        hover="at best %{y:.1f} %, with all data in one place",
    )  # fmt: skip


def _named(one: Learnt) -> str:
    return f"{one.name}\n{one.said}" if one.said else one.name


def accuracy(runs: Sequence[Run], axis: str, targets: Sequence[float] = ()) -> Chart:
    title = f"Accuracy against {axis} (mean of 3 evaluations{_band(runs)})"
    return Chart([[accuracy_panel(learnt(runs), axis, targets, title)]], legend="right")


def headline(runs: Sequence[Run], targets: Sequence[float] = (), recorded: Sequence[Run] = ()) -> Chart:
    """Accuracy against seconds, and against joules; thin and faint: ours as `recorded`, where runs are recharged."""
    faint = [
        replace(one, name=f"{one.name}, as recorded", look=Look(one.look.color, (), 1.0, 0.5), ends=False)
        for one in learnt([run for run in recorded if is_ours(run.scheme)])
    ]
    titles = {"delay": "Accuracy against delay", "energy": "… and against the energy of all clients"}
    panels = [accuracy_panel([*learnt(runs), *faint], axis, targets, title) for axis, title in titles.items()]
    said = f"mean of 3 evaluations{_band(runs)}"
    return Chart([panels], 11.5, 5, legend="bottom", legend_title=said)


def _band(runs: Sequence[Run]) -> str:
    seeds = len({run.seed for run in runs})
    return f"; median and range of {seeds} seeds" if seeds > 1 else "; one seed"


# ---------------------------------------------------------------------- the way to a target
def way_panel(
    summary: Summary, target: float, resource: Resource, look: Callable[[str], Look] = look_of, title: str = ""
) -> Panel:
    """Delay or energy to a target by scheme, the fastest on top; schemes that didn't reach it are named, too."""
    order = summary.fastest_first(target)
    stats = [summary.to_reach(name, target, resource) for name in order]
    values = [list(summary.reached(name, target, resource).values()) for name in order]
    every = [value for of_one in values for value in of_one if value > 0]
    logarithmic, unit = spans_magnitudes(every), "s" if resource == "delay_s" else "J"
    floor, top = (min(every) / 2 if logarithmic else 0.0), max(every, default=1.0)
    rows = [row for row, stat in enumerate(stats) if stat.seeds]
    medians, looks = [stats[row].median for row in rows], [look(order[row]) for row in rows]
    texts = {row: amount(stats[row]) + partly(stats[row], len(summary.runs[order[row]])) for row in rows}
    saved = {row: _saves(summary, order[row], target, resource) for row in rows}
    hover = [f"{order[row]}: {texts[row]} {unit}" + (f"\n{saved[row]}" if saved[row] else "") for row in rows]
    series: list[Series] = []
    if logarithmic:  # where a bar would begin is arbitrary there
        series.append(Points(x=medians, y=rows, look=looks, size=9, hover=hover))
    else:
        series.append(Bars(places=rows, lengths=medians, look=looks, width=0.66, horizontal=True, hover=hover))
    spread = [row for row in rows if stats[row].seeds > 1]
    if spread:
        ends = [stats[row].low for row in spread], [stats[row].high for row in spread]
        series.append(Points(x=[stats[row].median for row in spread], y=spread, x_ends=ends, look=Look(BUDGET), size=1))
        dots = [(value, row) for row in spread for value in values[row]]
        series.append(Points(x=[x for x, _ in dots], y=[y for _, y in dots], look=Look(BUDGET), size=2.5))
    for row, stat in enumerate(stats):
        if stat.seeds:
            text = number(stat.median) + partly(stat, len(summary.runs[order[row]]))
            series.append(Note(text, max(values[row]), row))
        else:
            series.append(Note("not reached", None, row, FAINT, italic=True))
    most = floor * (top / floor) ** 1.35 if logarithmic else 1.35 * top
    x = Axis(unit, "log" if logarithmic else "linear", floor, most)
    y = Axis(low=-0.6, high=len(order) - 0.4, ticks=dict(enumerate(order)), reversed=True, grid=False)
    return Panel(title or f"{'Delay' if unit == 's' else 'Energy'} to {percent(target)}", series, x, y)


def _saves(summary: Summary, scheme: str, target: float, resource: Resource) -> str:
    saving = summary.saving(scheme, target)
    if saving is None or not saving.delay.seeds:
        return ""
    text = share(saving.delay if resource == "delay_s" else saving.energy, 0)
    return f"ASFL needs {text[1:]} % more" if text.startswith("-") else f"ASFL saves {text} %"


def way(summary: Summary, target: float) -> Chart:
    """Delay and energy side by side."""
    delay = way_panel(summary, target, "delay_s", title=f"Delay to {percent(target)} accuracy")
    energy = way_panel(summary, target, "energy_j", title=f"Energy to {percent(target)} accuracy, all clients")
    unnamed = replace(energy, y=replace(energy.y, ticks=dict.fromkeys(energy.y.ticks or {}, "")))
    several = len(summary.seeds) > 1
    note = (
        f"median and its interval over the seeds that reached it, of {len(summary.seeds)}; dots: seeds"
        if several
        else ""
    )
    return Chart([[delay, unnamed]], 10.5, 1.5 + 0.36 * len(summary.ranked), note=note)


# ---------------------------------------------------------------------- cuts, queues, discrepancy, packet errors
def cuts_panel(runs: Mapping[str, Run]) -> Panel:
    """A strip per scheme: the darker, the more layers are on the client; blank without a cut."""
    shown = {name: binned([record.mean_cut for record in run.records]) for name, run in runs.items()}
    rounds = max(len(run.records) for run in runs.values())
    length = max(map(len, shown.values()))
    table = np.full((len(shown), length), np.nan)
    for row, cuts in enumerate(shown.values()):
        table[row, : len(cuts)] = cuts
    none = [row for row in range(len(shown)) if np.isnan(table[row]).all()]
    notes = [Note("no cut: the whole model is on the client", rounds / 2, row, FAINT, "center") for row in none]
    most = max(2.0, float(np.nanmax(table))) if len(none) < len(shown) else 2.0
    extent = (0.5, rounds + 0.5, -0.5, len(shown) - 0.5)
    hover = "round %{x:.0f}: %{z:.3~g} layers<extra></extra>"
    heat = Heat(values=table, label="layers", low=1, high=most, extent=extent, hover=hover)
    y = Axis(ticks=dict(enumerate(shown)), reversed=True, low=-0.5, high=len(shown) - 0.5)
    title = f"Cut: layers on the client (seed {next(iter(runs.values())).seed})"
    return Panel(title, [heat, *notes], Axis("round", whole=True), y)


def first_of_each(runs: Sequence[Run]) -> dict[str, Run]:
    """Of each scheme the first seed."""
    first = {run.scheme: run for run in reversed(runs) if run.records}
    return {run.scheme: first[run.scheme] for run in runs if run.scheme in first}  # in the order of the schemes


def rounds_panel(
    runs: Mapping[str, Sequence[Run]],
    value: Callable[[RoundRecord], float],
    title: str,
    label: str,
    look: Callable[[str], Look] = look_of,
    *,
    window: int = 1,
) -> Panel:
    """A number round after round: the mean of each scheme's seeds, and of so many rounds up to each."""
    lines, tops = [], []
    for name, of_scheme in runs.items():
        shortest = min((len(run.records) for run in of_scheme), default=0)
        if shortest:
            mean = np.mean([[value(record) for record in run.records[:shortest]] for run in of_scheme], axis=0)
            smooth = [float(np.mean(mean[max(0, end - window) : end])) for end in range(1, shortest + 1)]
            lines.append(over_rounds(smooth, look(name), name, group=name))
            tops.append(max(smooth))
    return Panel(title, lines, Axis("round"), scaled(label, tops), choice="y")


def cuts_and_queues(runs: Sequence[Run]) -> Chart:
    first = first_of_each(runs)
    alone = {name: [run] for name, run in first.items()}
    queues = [
        rounds_panel(alone, value, title, "backlog", window=WINDOW)
        for title, value in (
            (f"Delay queue (mean of {WINDOW} rounds)", lambda record: record.delay_queue),
            ("Energy queue, mean over clients", lambda record: fmean(record.energy_queue)),
        )
    ]
    heights = (0.9 + 0.24 * len(first), 3.2)
    return Chart([[cuts_panel(first)], queues], 11, 5.2 + 0.24 * len(first), legend="bottom", heights=heights)


def losses_panel(runs: Mapping[str, Sequence[Run]]) -> Panel | None:
    """Packets expected to be lost, of those sent, and packets that were."""
    found = {}
    for name, of_scheme in runs.items():
        pairs = [pair for run in of_scheme if (pair := _lost(run.records)) is not None]
        if pairs:
            found[name] = np.mean(pairs, axis=0)
    if not found:
        return None
    shares, places = np.array(list(found.values())), np.arange(len(found))
    bars = [
        Bars(
            places=places + off, lengths=shares[:, which], look=Look(color), name=name, width=0.38, hover="%{y:.4~g} %"
        )
        for which, (name, off, color) in enumerate((("expected", -0.2, OTHER), ("realised", 0.2, SECOND)))
    ]
    names = Axis(ticks=dict(enumerate(found)), grid=False)
    return Panel("", bars, names, Axis("packets lost, %", low=0), legend=True)


def _lost(records: Sequence[RoundRecord]) -> tuple[float, float] | None:
    """Per cent of the packets that were sent; None if none was."""
    rate, sent, arrived = (
        np.array([getattr(record, name) for record in records], float)
        for name in ("packet_error_rate", "rb_count", "arrived")
    )
    served = sent > 0
    return (float(100 * rate[served].mean()), float(100 * (1 - arrived[served].mean()))) if served.any() else None


def charts_of(summary: Summary, runs: Sequence[Run]) -> Iterator[tuple[str, Chart]]:
    """All charts of a comparison that have something to show, by name."""
    if learnt(runs):
        for axis in CURVE_AXES:
            yield f"accuracy-{axis}", accuracy(runs, axis, summary.targets)
    target = summary.main_target()
    if target is not None:
        yield "time-to-accuracy", way(summary, target)
    played = [run for run in runs if run.records and not run.is_ceiling]
    if played:
        yield "cut-queue", cuts_and_queues(played)
        yield "blocks", blocks(next((run for run in played if run.scheme == OURS), played[0]))
    measured = [run for run in runs if is_measured(run)]
    for run in measured:
        yield "links" if len(measured) == 1 else f"links-{run.scheme}-seed{run.seed}", links(run)


def write_figures(summary: Summary, runs: Sequence[Run], folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw and save all of them, in each format."""
    written = []
    for name, chart in charts_of(summary, runs):
        for kind in formats:
            written.append(folder / f"{name}.{kind}")
            save_figure(replace(chart, subtitle=summary.model), written[-1])
    return written


# ---------------------------------------------------------------------- several comparisons
@dataclass(frozen=True)
class Place:
    """What one scheme, with one setting, needs to reach an accuracy."""

    scheme: str
    setting: str
    """Empty: as it is."""
    delay_s: Statistic
    energy_j: Statistic


def front_of(places: Sequence[Place]) -> list[Place]:
    """Those that no other beats in both, by their delay."""
    best: list[Place] = []
    for place in sorted(places, key=lambda one: (one.delay_s.median, one.energy_j.median)):
        if not best or place.energy_j.median < best[-1].energy_j.median:
            best.append(place)
    return best


def places_at(outcomes: Sequence[Outcome], target: float) -> list[Place]:
    """Of every scheme that reaches the target with every seed."""
    found = []
    for outcome in outcomes:
        for scheme in outcome.summary.ranked:
            delay, energy = (outcome.summary.to_reach(scheme, target, of) for of in ("delay_s", "energy_j"))
            if delay.seeds == len(outcome.summary.runs[scheme]):
                found.append(Place(scheme, outcome.label, delay, energy))
    return found


def along_front(comparison: Comparison, summary: Summary, runs: Sequence[Run]) -> list[Outcome]:
    """A comparison as it is, and at the other prices of energy that were asked for."""
    front = {label: finished_runs(priced) for label, priced in read_front(comparison).items()}
    every = {"": runs, **{label: some for label, some in front.items() if some}}
    return [Outcome("", label, some, Summary.of(some, summary.targets)) for label, some in every.items()]


def fronts(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Chart]]:
    """Delay against energy, for the accuracy that most schemes reach and the highest that any reaches."""
    main = outcomes[0].summary.main_target()
    highest = [target for target in outcomes[0].summary.targets if places_at(outcomes, target)][-1:]
    for target in dict.fromkeys([*([] if main is None else [main]), *highest]):
        if places := places_at(outcomes, target):
            never = [name for name in outcomes[0].summary.ranked if name not in {place.scheme for place in places}]
            note = f"not there with every seed: {', '.join(never)}" if never else ""
            yield f"pareto-{100 * target:.0f}", Chart([[_front_panel(places, target)]], 8.2, 5.4, note=note)


def _front_panel(places: Sequence[Place], target: float) -> Panel:
    best, series = front_of(places), list[Series]()
    if len(best) > 1:  # one that is unbeaten by all is no line
        x, y = ([getattr(one, of).median for one in best] for of in ("delay_s", "energy_j"))
        series.append(Line(x=x, y=y, look=Look(FAINT, (), 5, 0.4), name="front: unbeaten in both", hover=""))
    for place in places:
        look, delay, energy = look_of(place.scheme), place.delay_s, place.energy_j
        several, middle = delay.seeds > 1, {"x": [delay.median], "y": [energy.median]}
        ends = {"x_ends": ([delay.low], [delay.high]), "y_ends": ([energy.low], [energy.high])} if several else {}
        point = Points(**middle, **ends, look=look, hollow=bool(place.setting))  # type: ignore[arg-type]
        size = 7.5 if place.setting else 9
        series += [point, Note(place.setting or place.scheme, delay.median, energy.median, look.color, "above", size)]
    across, up = (_roomy(label, [getattr(one, of).median for one in places]) for label, of in _FRONT_AXES)
    return Panel(f"What {percent(target)} accuracy takes", series, across, up, legend=True)


_FRONT_AXES = (("delay, s", "delay_s"), ("energy of all clients, J", "energy_j"))


def _roomy(label: str, values: Sequence[float]) -> Axis:
    """From a little below the lowest to well above the highest: words stand right of the points."""
    low, high = min(values), max(values)
    if spans_magnitudes(values):
        return Axis(label, "log", low / (high / low) ** 0.1, high * (high / low) ** 0.25)
    room = (high - low) or high
    return Axis(label, low=low - 0.15 * room, high=high + 0.3 * room)


def ablation(summary: Summary, target: float) -> Chart:
    """Delay and energy to a target as multiples of the whole scheme's, paired by seed; and the final accuracy."""
    schemes = [PLUS, *(name for name in summary.ranked if name != PLUS)]
    panels = []
    for what, resource in (("Delay", "delay_s"), ("Energy", "energy_j")):
        whole = summary.reached(PLUS, target, resource)  # type: ignore[arg-type]
        rows = [
            [their / our for our, their in paired(whole, summary.reached(name, target, resource)) if our > 0]  # type: ignore[arg-type]
            for name in schemes
        ]
        panels.append(
            _bars_panel(f"{what} to {percent(target)}", f"times that of {PLUS}", schemes, rows, Level(1, upright=True))
        )
    ends = [[100 * one for one in summary.by_seed(name, "final_accuracy").values()] for name in schemes]
    levels, label = list[Level](), "%"
    if CEILING in summary.runs:
        levels.append(
            Level(100 * summary.over_seeds(CEILING, "final_accuracy").median, "", look_of(CEILING), upright=True)
        )
        label = "%; dashed: the ceiling, central"
    panels.append(_bars_panel("Accuracy at the end", label, schemes, ends, *levels))
    for place in (1, 2):
        axis = panels[place].y
        panels[place] = replace(panels[place], y=replace(axis, ticks=dict.fromkeys(axis.ticks or {}, "")))
    return Chart([panels], 11.5, 1.4 + 0.42 * len(schemes))


def _bars_panel(title: str, label: str, names: Sequence[str], rows: Sequence[Sequence[float]], *levels: Level) -> Panel:
    """Medians as bars, and a dot per seed."""
    known = [row for row, values in enumerate(rows) if values]
    medians, looks = [float(np.median(rows[row])) for row in known], [look_of(names[row]) for row in known]
    bars = Bars(places=known, lengths=medians, look=looks, width=0.66, horizontal=True)
    dots = [(value, row) for row in known for value in rows[row]]
    seeds = Points(x=[x for x, _ in dots], y=[y for _, y in dots], look=Look(BUDGET), size=2)
    missing = [Note("not reached", None, row, FAINT, italic=True) for row, values in enumerate(rows) if not values]
    y = Axis(low=-0.5, high=len(names) - 0.5, ticks=dict(enumerate(names)), reversed=True, grid=False)
    return Panel(title, [bars, seeds, *levels, *missing], Axis(label, low=0), y)


def quantities(summary: Summary, names: Sequence[str]) -> Chart:
    """A bar per scheme, a dot per seed; points on a logarithmic scale if schemes differ by orders of magnitude."""
    schemes, panels = list(summary.runs), []
    places = list(range(len(schemes)))
    looks = [look_of(scheme) for scheme in schemes]
    for name in names:
        shown = QUANTITIES[name]
        medians = [shown.scale * summary.over_seeds(scheme, name).median for scheme in schemes]
        if spans_magnitudes(medians):  # where a bar would begin is arbitrary there
            series: list[Series] = [Points(x=places, y=medians, look=looks, size=9)]
        else:
            series = [Bars(places=places, lengths=medians, look=looks, width=0.66)]
        seeds = [(place, shown.scale * v) for place in places for v in summary.by_seed(schemes[place], name).values()]
        series.append(Points(x=[x for x, _ in seeds], y=[y for _, y in seeds], look=Look(BUDGET), size=2))
        x = Axis(ticks=dict(enumerate(schemes)), grid=False)
        panels.append(Panel(shown.in_words.capitalize(), series, x, scaled(shown.unit, medians)))
    return Chart([panels], 4.75 * len(panels), 3.6)


def resplits(runs: Sequence[Run]) -> Chart:
    """How delay and the delay of re-splits add up, and how often the cut moves; a faint line per seed."""
    totals, parts, shares = [], [], []
    for run in runs:
        totals.append(list(accumulate(record.delay_s for record in run.records)))
        parts.append(list(accumulate(record.resplit_delay_s for record in run.records)))
        moved = moves(run.records)
        shares.append([100 * fmean(moved[max(0, end - WINDOW) : end]) for end in range(1, len(moved) + 1)])
    part = np.mean([part[-1] / whole[-1] for part, whole in zip(parts, totals, strict=True) if whole[-1]])
    delays = [*_mean_line(totals, MEDIAN, "all of it"), *_mean_line(parts, look_of(OURS).color, "re-splits")]
    title = f"Delay so far; re-splits take {percent(float(part), 1)}"
    left = Panel(title, delays, Axis("round"), Axis("s", low=0), legend=True)
    moving = _mean_line(shares, look_of(OURS).color, "")
    right = Panel(
        f"Rounds where the cut moves, of the last {WINDOW}", moving, Axis("round"), Axis("%", low=0, high=100)
    )
    return Chart([[left, right]], 9.5, 3.8)


def _mean_line(lines: Sequence[Sequence[float]], colour: str, label: str) -> list[Line]:
    shortest = min(map(len, lines))
    mean = np.mean([line[:shortest] for line in lines], axis=0)
    return [
        *(over_rounds(line, Look(colour, (), 0.8, 0.35)) for line in lines),
        over_rounds(mean, Look(colour, (), 2.2), label),
    ]


def sweep_chart(
    varied: str, labels: Sequence[str], summaries: Sequence[Summary], names: Sequence[str], target: float | None = None
) -> Chart:
    """Numbers against what is varied, a line per scheme with the interval over seeds; also of the way to a target."""
    panels = []
    for name in names:
        shown = QUANTITIES[name]
        title = shown.in_words.capitalize() + (" after the last round" if name == "final_accuracy" else "")
        stats = _by_scheme(summaries, lambda one, scheme, name=name: one.over_seeds(scheme, name))  # type: ignore[misc]
        panels.append(_sweep_panel(title, shown.unit, varied, labels, stats, shown.scale))
    ways: tuple[tuple[str, str, Resource], ...] = (("Delay", "s", "delay_s"), ("Energy", "J", "energy_j"))
    for what, unit, resource in ways if target is not None else ():
        stats = _by_scheme(summaries, lambda one, scheme, of=resource: one.to_reach(scheme, target, of))  # type: ignore[misc]
        panels.append(_sweep_panel(f"{what} to {percent(target or 0)}", unit, varied, labels, stats))
    return Chart([panels], 3.4 * len(panels) + 1.6, 4.2, legend="right")


def _by_scheme(summaries: Sequence[Summary], value: Callable[[Summary, str], Statistic]) -> dict[str, list[Statistic]]:
    schemes = dict.fromkeys(scheme for summary in summaries for scheme in summary.runs)
    return {scheme: [value(summary, scheme) for summary in summaries] for scheme in schemes}


def _sweep_panel(
    title: str,
    unit: str,
    varied: str,
    labels: Sequence[str],
    stats: Mapping[str, Sequence[Statistic]],
    scale: float = 1,
) -> Panel:
    series, shown, places = list[Series](), list[float](), np.arange(len(labels))
    for scheme, of_scheme in stats.items():
        medians, low, high = (
            scale * np.array([getattr(one, of) for one in of_scheme]) for of in ("median", "low", "high")
        )
        look = look_of(scheme)
        series.append(Line(x=places, y=medians, look=look, name=scheme, group=scheme))
        series.append(Points(x=places, y=medians, look=look, group=scheme, size=4, y_ends=(low, high)))
        shown += [float(median) for median in medians if not math.isnan(median)]
    x = Axis(varied, low=-0.4, high=len(labels) - 0.6, ticks=dict(enumerate(labels)))
    return Panel(title, series, x, scaled(unit, shown))
