"""Charts of runs: the inside of one, and several side by side: accuracy, the way to a target, cuts, the recipes'."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from asfl.config.units import number, percent
from asfl.results.charts.chart import (
    BAD,
    BUDGET,
    FAINT,
    MOST_POINTS,
    OTHER,
    ROUND,
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
    lines_panel,
    look_of,
    no_cut,
    over_rounds,
    scaled,
    spans_magnitudes,
    stacked,
    trailing_mean,
)
from asfl.results.charts.files import save_figure
from asfl.results.curves import Curve, Resource, Run, together
from asfl.results.summary import Outcome, Statistic, Summary, moves, paired, summarize_run
from asfl.results.tables import CURVE_AXES, QUANTITIES, partly
from asfl.runs.records import RoundRecord
from asfl.schemes import CEILING, OURS, PLUS

MOST_CELLS = 800_000
"""Of the maps of all runs together: about 4 MB in the page."""
MOST_MAPPED_CLIENTS = 200
_THIN = Look(SECOND, (), 1.3)
_CLIENT_COLOURS = ("#3565a8", "#c2452d", "#1b7f5c", "#e0952b", "#8a4fa3", "#2aa3b8", "#6b6b6b", "#a0522d")


# ---------------------------------------------------------------------- clients × rounds
MAPS: Mapping[str, tuple[str, str, str, Callable[[RoundRecord], Sequence[float]]]] = {
    "rbs": ("Blocks", "Resource blocks of every client", "blocks", lambda record: record.rb_count),
    "power": ("Power", "Transmit power", "W", lambda record: record.tx_power_w),
    "errors": ("Packet errors", "Expected packet error rate", "rate", lambda record: record.packet_error_rate),
    "energy": ("Energy", "Energy of every client", "J", lambda record: record.energy_j),
    "queue": ("Energy queues", "Energy queue of every client", "backlog", lambda record: record.energy_queue),
    "uplink": ("Uplink", "Uplink of every client, as measured", "Mbit/s", lambda record: _uplink_mbps(record)),
}
"""Button, title, unit, and the numbers of a round."""


def _uplink_mbps(record: RoundRecord) -> Sequence[float]:
    rates = record.measured["uplink_bps"] if record.measured else [None] * len(record.arrived)
    return [math.nan if rate is None else rate / 1e6 for rate in rates]


def maps_of(run: Run) -> list[str]:
    return [name for name in MAPS if name != "uplink" or is_measured(run)]


def map_columns(runs: Sequence[Run]) -> int:
    """How many columns a map may have, so that all of them fit into the page."""
    clients = sum(min(len(run.records[0].rb_count), MOST_MAPPED_CLIENTS) for run in runs if run.records)
    return int(np.clip(MOST_CELLS // max(1, clients * len(MAPS)), 20, MOST_POINTS))


def client_map(run: Run, name: str, columns: int) -> Panel:
    _, title, unit, of_round = MAPS[name]
    table = np.array([of_round(record) for record in run.records], float)
    values, rounds = binned(table[:, :MOST_MAPPED_CLIENTS], columns).T, len(run.records)
    most = float(values[np.isfinite(values)].max(initial=0.0)) or 1.0
    heat = Heat(
        values=values, label=unit, low=0, high=most, extent=(0.5, rounds + 0.5, -0.5, len(values) - 0.5),
        hover="round %{x:.0f}, client %{y}: %{z:.3~g}<extra></extra>",
    )  # fmt: skip
    more = f" (means of {math.ceil(rounds / columns)} rounds)" if rounds > columns else ""
    y = Axis("client", low=-0.5, high=len(values) - 0.5, whole=True, reversed=True)
    return Panel(title + more, [heat], ROUND, y)


# ---------------------------------------------------------------------- round after round
def panels(run: Run, color: str, bounds: tuple[float, float]) -> dict[str, Panel]:
    """All its charts over rounds, by name; `bounds`: Lemma 4's, of the delay queue and of energy queues."""
    records, budgets, own = run.records, run.budgets, Look(color, (), 1.8)
    if not records or budgets is None:
        return {}

    def of(name: str, value: Callable[[RoundRecord], float], look: Look = own) -> Line:
        return over_rounds([value(record) for record in records], look, name)

    def panel(title: str, unit: str, *series: Series) -> Panel:
        return Panel(title, series, ROUND, Axis(unit, low=0), legend=True)

    def level(name: str, value: float) -> list[Level]:
        return [Level(value, name)] if math.isfinite(value) else []

    revealed = [math.nan if record.epsilon is None else record.epsilon for record in records]
    made = {
        "cut": _cut(records, own),
        "round-delay": panel(
            "Delay of a round", "s", of("delay", lambda r: r.delay_s),
            of("of it re-split", lambda r: r.resplit_delay_s, _THIN), *level("budget", budgets.delay_s),
        ),
        "delay-queue": panel(
            "Delay queue", "backlog", of("queue", lambda r: r.delay_queue), *level("Lemma 4", bounds[0])
        ),
        "energy-queue": panel(
            "Energy queues", "backlog", of("largest", lambda r: max(r.energy_queue), _THIN),
            of("mean", lambda r: float(np.mean(r.energy_queue))), *level("Lemma 4", bounds[1]),
        ),
        "round-energy": panel(
            "Energy of a client in a round", "J", of("largest", lambda r: max(r.energy_j), _THIN),
            of("mean", lambda r: float(np.mean(r.energy_j))), *level("budget", budgets.energy_j),
        ),
        "lost": panel(
            "Packets lost", "%", of("realised", _share_lost, replace(_THIN, width=1)),
            of("expected", lambda r: 100 * r.mean_packet_error_rate),
        ),
    }  # fmt: skip
    if not np.isnan(revealed).all():
        made["epsilon"] = panel("What one image of a client has revealed", "ε", over_rounds(revealed, own, "ε"))
    return made


def _cut(records: Sequence[RoundRecord], look: Look) -> Panel:
    cuts = [record.mean_cut for record in records]
    none = all(map(math.isnan, cuts))
    series: list[Series] = [no_cut(len(cuts), 0.5) if none else over_rounds(cuts, look, "cut", step=True)]
    return Panel("Cut: layers on the client", series, ROUND, Axis(low=0, high=1 if none else None))


def _share_lost(record: RoundRecord) -> float:
    """Per cent of the packets of the round; NaN if none was sent."""
    return 100 * (1 - record.arrived_count / record.scheduled_count) if record.scheduled_count else math.nan


# ---------------------------------------------------------------------- a real network
def is_measured(run: Run) -> bool:
    return any(record.measured for record in run.records)


def links(run: Run) -> Chart:
    """Uplink rates as the server estimated them, the cut, and the time of a round against its budget."""
    records = [record for record in run.records if record.measured]
    rounds = [record.round for record in records]
    x = Axis("round", low=rounds[0] - 0.5, high=rounds[-1] + 0.5, whole=True)
    rate, error = (_measured(records, name) for name in ("uplink_bps", "uplink_bps_error"))
    spread = np.exp(np.where(np.isfinite(error), error, 0.0))
    lines: list[Series] = []
    for client in range(rate.shape[1]):
        look, mbps = Look(_CLIENT_COLOURS[client % len(_CLIENT_COLOURS)]), rate[:, client] / 1e6
        name = f"client {client}" if client < len(_CLIENT_COLOURS) else ""
        low, high = mbps / spread[:, client], mbps * spread[:, client]
        lines.append(Line(x=rounds, y=mbps, look=look, name=name, low=low, high=high))
    lost = [place for place, record in enumerate(records) if record.faults]
    if lost:
        y = np.nanmin(rate, axis=1)[lost] / 1e6
        lines.append(
            Points(x=[rounds[place] for place in lost], y=y, look=Look(BAD), marker="x", name="a client was lost")
        )
    rates = Panel("Uplink as estimated, ± one standard error", lines, x, Axis("Mbit/s", "log"), legend=True)
    cut = Line(x=rounds, y=[record.mean_cut for record in records], look=Look(BUDGET, (), 2), step=True)
    stages = {
        "re-split": ([record.resplit_delay_s for record in records], Look(BAD)),
        "activations up": ([record.uplink_stage_delay_s for record in records], Look("#9db7d9")),
        "server, gradients down": ([record.server_stage_delay_s for record in records], Look(OTHER)),
    }
    seconds: list[Series] = [*stacked(rounds, stages, 1.0)]
    if run.budgets is not None:
        seconds.append(Level(run.budgets.delay_s, "budget"))
    delays = Panel("Time of a round, by the clock", seconds, x, Axis("s", low=0), legend=True)
    cuts = Panel("Cut: layers on the client", [cut], x, Axis(low=0))
    return Chart([[rates], [cuts], [delays]], 9.5, 7.2, heights=(3, 1.6, 2))


def _measured(records: Sequence[RoundRecord], name: str) -> np.ndarray:
    """[rounds, clients]; NaN where nothing is known."""
    return np.array([record.measured[name] for record in records if record.measured], dtype=float)


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
            x=x, y=middle, look=one.look, name=one.name, group=one.name,
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
    return Panel(title, [*levels, *lines, *ceilings], scaled(label, reach[1::2]), bottom)


def _ceiling(one: Learnt, from_to: Sequence[float]) -> Line:
    """It has no delay and no energy: a horizontal line at its best accuracy."""
    best = [100 * max(curve.smoothed) for curve in one.curves]
    several = len(best) > 1
    return Line(
        x=from_to, y=[float(np.median(best))] * 2, look=one.look, name=f"{one.name} (ceiling)", group=one.name,
        low=[min(best)] * 2 if several else None, high=[max(best)] * 2 if several else None, band=0.08,
        hover="at best %{y:.1f} %, with all data in one place",
    )  # fmt: skip


def accuracy(runs: Sequence[Run], axis: str, targets: Sequence[float] = ()) -> Chart:
    title = f"Accuracy against {axis} (mean of 3 evaluations{_band(runs)})"
    return Chart([[accuracy_panel(learnt(runs), axis, targets, title)]], legend="right")


def headline(runs: Sequence[Run], targets: Sequence[float] = ()) -> Chart:
    """Accuracy against seconds, and against joules."""
    titles = {"delay": "Accuracy against delay", "energy": "… and against the energy of all clients"}
    panels = [accuracy_panel(learnt(runs), axis, targets, title) for axis, title in titles.items()]
    said = f"mean of 3 evaluations{_band(runs)}"
    return Chart([panels], 11.5, 5, legend="bottom", legend_title=said)


def _band(runs: Sequence[Run]) -> str:
    seeds = len({run.seed for run in runs})
    return f"; median and range of {seeds} seeds" if seeds > 1 else "; one seed"


# ---------------------------------------------------------------------- the way to a target
def bars_panel(
    title: str,
    label: str,
    rows: Mapping[str, Sequence[float]],
    look: Callable[[str], Look] = look_of,
    *,
    texts: Mapping[str, str] | None = None,
    levels: Sequence[Level] = (),
) -> Panel:
    """A row for each name, the first on top: the median over seeds, its interval, a dot per seed, and a text behind.

    Medians are points where values differ by orders of magnitude, as bars would begin anywhere on a logarithmic scale.
    """
    names, texts = list(rows), texts or {}
    known = [place for place, name in enumerate(names) if rows[name]]
    stats = [Statistic.of(rows[names[place]]) for place in known]
    medians, looks = [stat.median for stat in stats], [look(names[place]) for place in known]
    every = [value for values in rows.values() for value in values if value > 0]
    logarithmic = spans_magnitudes(every)
    series: list[Series] = [
        Points(x=medians, y=known, look=looks, size=9)
        if logarithmic
        else Bars(places=known, lengths=medians, look=looks, width=0.66, horizontal=True)
    ]
    several = [(place, stat) for place, stat in zip(known, stats, strict=True) if stat.seeds > 1]
    if several:
        places, ends = [place for place, _ in several], ([s.low for _, s in several], [s.high for _, s in several])
        middle = [stat.median for _, stat in several]
        series.append(Points(x=middle, y=places, x_ends=ends, look=Look(BUDGET), size=1))
        dots = [(value, place) for place in places for value in rows[names[place]]]
        series.append(Points(x=[x for x, _ in dots], y=[y for _, y in dots], look=Look(BUDGET), size=2.5))
    for place, name in enumerate(names):
        if not rows[name]:
            series.append(Note("not reached", None, place, FAINT))
        elif name in texts:
            series.append(Note(texts[name], max(rows[name]), place))
    floor, top = (min(every) / 2 if logarithmic else 0.0), max(every, default=1.0)
    most = (floor * (top / floor) ** 1.35 if logarithmic else 1.35 * top) if texts else None
    x = Axis(label, "log" if logarithmic else "linear", floor, most)
    y = Axis(low=-0.6, high=len(names) - 0.4, ticks=dict(enumerate(names)), reversed=True, grid=False)
    return Panel(title, [*series, *levels], x, y)


def side_by_side(panels: Sequence[Panel], width_in: float, note: str = "") -> Chart:
    """Panels with the same rows, which only the first one names."""
    first, *others = panels
    unnamed = [replace(one, y=replace(one.y, ticks=dict.fromkeys(one.y.ticks or {}, ""))) for one in others]
    return Chart([[first, *unnamed]], width_in, 1.5 + 0.38 * len(first.y.ticks or {}), note=note)


def way_panel(
    summary: Summary, target: float, resource: Resource, look: Callable[[str], Look] = look_of, title: str = ""
) -> Panel:
    """Delay or energy to a target by scheme, the fastest on top; schemes that didn't reach it are named, too."""
    unit, rows, texts = "s" if resource == "delay_s" else "J", {}, {}
    for name in summary.fastest_first(target):
        rows[name] = list(summary.reached(name, target, resource).values())
        stat = Statistic.of(rows[name])
        texts[name] = number(stat.median) + partly(stat, len(summary.runs[name]))
    title = title or f"{'Delay' if unit == 's' else 'Energy'} to {percent(target)}"
    return bars_panel(title, unit, rows, look, texts=texts)


def way(summary: Summary, target: float) -> Chart:
    """Delay and energy side by side."""
    delay = way_panel(summary, target, "delay_s", title=f"Delay to {percent(target)} accuracy")
    energy = way_panel(summary, target, "energy_j", title=f"Energy to {percent(target)} accuracy, all clients")
    note = f"median and its interval over the seeds that reached it, of {len(summary.seeds)}; dots: seeds"
    return side_by_side([delay, energy], 10.5, note if len(summary.seeds) > 1 else "")


# ---------------------------------------------------------------------- cuts, queues, discrepancy
def cuts_panel(runs: Mapping[str, Run]) -> Panel:
    """A strip per scheme: the darker, the more layers are on the client; blank without a cut."""
    shown = {name: binned([record.mean_cut for record in run.records]) for name, run in runs.items()}
    rounds = max(len(run.records) for run in runs.values())
    length = max(map(len, shown.values()))
    table = np.full((len(shown), length), np.nan)
    for row, cuts in enumerate(shown.values()):
        table[row, : len(cuts)] = cuts
    none = [row for row in range(len(shown)) if np.isnan(table[row]).all()]
    notes = [no_cut(rounds, row) for row in none]
    most = max(2.0, float(np.nanmax(table))) if len(none) < len(shown) else 2.0
    extent = (0.5, rounds + 0.5, -0.5, len(shown) - 0.5)
    hover = "round %{x:.0f}: %{z:.3~g} layers<extra></extra>"
    heat = Heat(values=table, label="layers", low=1, high=most, extent=extent, hover=hover)
    y = Axis(ticks=dict(enumerate(shown)), reversed=True, low=-0.5, high=len(shown) - 0.5)
    title = f"Cut: layers on the client (seed {next(iter(runs.values())).seed})"
    return Panel(title, [heat, *notes], ROUND, y)


def first_of_each(runs: Sequence[Run]) -> dict[str, Run]:
    """Of each scheme the first seed."""
    first = {run.scheme: run for run in reversed(runs) if run.records}
    return {run.scheme: first[run.scheme] for run in runs if run.scheme in first}  # in the order of the schemes


def means_over_runs(
    runs: Mapping[str, Sequence[Run]], value: Callable[[RoundRecord], float], window: int = 1
) -> dict[str, list[float]]:
    """A number round after round: the mean of each scheme's seeds, and of so many rounds up to each."""
    found = {}
    for name, of_scheme in runs.items():
        shortest = min((len(run.records) for run in of_scheme), default=0)
        if shortest:
            every = [[value(record) for record in run.records[:shortest]] for run in of_scheme]
            found[name] = trailing_mean(np.mean(every, axis=0).tolist(), window)
    return found


def cuts_and_queues(runs: Sequence[Run]) -> Chart:
    first = first_of_each(runs)
    alone = {name: [run] for name, run in first.items()}
    queues = [
        lines_panel(title, "backlog", means_over_runs(alone, value, WINDOW))
        for title, value in (
            (f"Delay queue (mean of {WINDOW} rounds)", lambda record: record.delay_queue),
            ("Energy queue, mean over clients", lambda record: fmean(record.energy_queue)),
        )
    ]
    heights = (0.9 + 0.24 * len(first), 3.2)
    return Chart([[cuts_panel(first)], queues], 11, 5.2 + 0.24 * len(first), legend="bottom", heights=heights)


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
        series.append(Line(x=x, y=y, look=Look(FAINT, (), 5, 0.4), name="front: unbeaten in both"))
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
    resources: tuple[tuple[str, Resource], ...] = (("Delay", "delay_s"), ("Energy", "energy_j"))
    for what, resource in resources:
        whole = summary.reached(PLUS, target, resource)
        pairs = {name: paired(whole, summary.reached(name, target, resource)) for name in schemes}
        ratios = {name: [their / our for our, their in of_one if our > 0] for name, of_one in pairs.items()}
        label, one = f"times that of {PLUS}", [Level(1, upright=True)]
        panels.append(bars_panel(f"{what} to {percent(target)}", label, ratios, levels=one))
    levels, label = list[Level](), "%"
    if CEILING in summary.runs:
        best = 100 * summary.over_seeds(CEILING, "final_accuracy").median
        levels, label = [Level(best, "", look_of(CEILING), upright=True)], "%; dashed: the ceiling, central"
    ends = {name: [100 * one for one in summary.by_seed(name, "final_accuracy").values()] for name in schemes}
    return side_by_side([*panels, bars_panel("Accuracy at the end", label, ends, levels=levels)], 11.5)


def quantities(summary: Summary, names: Sequence[str]) -> Chart:
    """A bar per scheme that has such numbers, a dot per seed."""
    shown = [QUANTITIES[name] for name in names]
    rows = {
        one.name: {
            scheme: [one.scale * value for value in summary.by_seed(scheme, one.name).values() if not math.isnan(value)]
            for scheme in summary.runs
        }
        for one in shown
    }
    known = [scheme for scheme in summary.runs if any(of_one[scheme] for of_one in rows.values())]
    return side_by_side(
        [
            bars_panel(one.in_words.capitalize(), one.unit, {scheme: rows[one.name][scheme] for scheme in known})
            for one in shown
        ],
        4.75 * len(shown),
    )


def resplits(runs: Sequence[Run]) -> Chart:
    """How delay and the delay of re-splits add up, and how often the cut moves; means over seeds."""
    shortest = min(len(run.records) for run in runs)
    parts = {"all of it": "delay_s", "re-splits": "resplit_delay_s"}
    so_far = {
        name: np.mean([np.cumsum([getattr(r, field) for r in run.records[:shortest]]) for run in runs], axis=0)
        for name, field in parts.items()
    }
    shares = [summarize_run(run, []).resplit_share for run in runs]
    title = f"Delay so far; re-splits take {percent(fmean(shares), 1)}"
    delays = replace(lines_panel(title, "s", so_far), y=Axis("s", low=0), legend=True)
    moved = 100 * np.mean([moves(run.records[:shortest]) for run in runs], axis=0)
    moving = lines_panel(
        f"Rounds where the cut moves, of the last {WINDOW}", "%", {OURS: trailing_mean(moved.tolist(), WINDOW)}
    )
    return Chart([[delays, replace(moving, y=Axis("%", low=0, high=100))]], 9.5, 3.8)


def sweep_chart(
    varied: str, labels: Sequence[str], summaries: Sequence[Summary], names: Sequence[str], target: float | None = None
) -> Chart:
    """Numbers against what is varied, a line per scheme with the interval over seeds; also of the way to a target."""
    schemes = list(dict.fromkeys(scheme for summary in summaries for scheme in summary.runs))
    panels = []
    for shown in (QUANTITIES[name] for name in names):
        title = shown.in_words.capitalize() + (" after the last round" if shown.name == "final_accuracy" else "")
        stats = {scheme: [one.over_seeds(scheme, shown.name) for one in summaries] for scheme in schemes}
        panels.append(_sweep_panel(title, shown.unit, varied, labels, stats, shown.scale))
    ways: tuple[tuple[str, str, Resource], ...] = (("Delay", "s", "delay_s"), ("Energy", "J", "energy_j"))
    for what, unit, resource in ways if target is not None else ():
        stats = {scheme: [one.to_reach(scheme, target or 0, resource) for one in summaries] for scheme in schemes}
        panels.append(_sweep_panel(f"{what} to {percent(target or 0)}", unit, varied, labels, stats))
    return Chart([panels], 3.4 * len(panels) + 1.6, 4.2, legend="right")


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
