"""The charts of all runs together, and of the model behind them."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from asfl.config.units import percent
from asfl.models.profile import ModelProfile
from asfl.results.curves import OURS, Curve, Resource, together
from asfl.results.figures.figure import spans_magnitudes
from asfl.results.figures.training import CROWDED
from asfl.results.folders import FoundRun
from asfl.results.page.collect import Collected, RunGroup
from asfl.results.page.look import (
    BAR,
    FROM_ZERO,
    INK,
    LEVEL,
    LOG,
    MOST_POINTS,
    SECOND,
    SOFT,
    Floats,
    Json,
    binned,
    chart,
    compact,
    plain,
    rounds_axis,
)  # fmt: skip
from asfl.results.quantities import CURVE_AXES, amount, partly, share
from asfl.results.summary import Statistic, Summary
from asfl.runs.records import RoundRecord

Styles = dict[str, Json]


# ---------------------------------------------------------------------- accuracy
def accuracy(collected: Collected, looks: Styles, targets: Sequence[float]) -> dict[str, Json]:
    """Accuracy against delay, energy and rounds: finished seeds as median and range, unfinished runs one by one."""
    curves = [one for group in collected.groups for one in _curves(group)]
    ceilings = [one for one in curves if looks[one[0]]["ceiling"]]
    curves = [one for one in curves if not looks[one[0]]["ceiling"]]
    found = {}
    for axis, (words, unit) in CURVE_AXES.items():
        title = f"{words}, {unit}" + (f" ({collected.costs})" if axis == "delay" else "") if unit else words
        if curves or ceilings:
            found[axis] = _accuracy_chart(axis, title, unit or "rounds", curves, looks, targets, ceilings)
    return found


def _curves(group: RunGroup) -> Iterator[tuple[str, str, bool, list[Curve]]]:
    """Series, what else to say of it, whether it is finished, and the curves behind it."""
    for scheme in group.schemes:
        known = [(run, curve) for run in group.runs if run.scheme == scheme and (curve := _finite(run)).accuracy]
        done = [curve for run, curve in known if run.finished]
        if done:
            yield group.series(scheme), f"median of {len(done)} seeds" if len(done) > 1 else "", True, done
        for run, curve in known:
            if not run.finished:
                said = f"seed {run.seed}, {len(run.records)} of {run.rounds} rounds"
                yield group.series(scheme), said, False, [curve]


def _finite(run: FoundRun) -> Curve:
    """Its evaluations up to a dead link."""
    return Curve.of(r for r in run.records if math.isfinite(r.total_delay_s) and math.isfinite(r.total_energy_j))


def _accuracy_chart(
    axis: str,
    title: str,
    unit: str,
    curves: Sequence[tuple[str, str, bool, list[Curve]]],
    looks: Styles,
    targets: Sequence[float],
    ceilings: Sequence[tuple[str, str, bool, list[Curve]]],
) -> Json:
    from plotly import graph_objects as go

    bands, lines, ends, most = [], [], [], []
    for series, said, finished, group in curves:
        look = looks[series]
        x, y = together(group, axis, MOST_POINTS)
        middle, low, high = 100 * np.median(y, axis=0), 100 * y.min(axis=0), 100 * y.max(axis=0)
        most.append(float(x[-1]))
        name = "<br>".join(filter(None, (plain(series), said)))
        line = {"color": look["color"], "dash": look["dash"], "width": look["width"] if finished else 1}
        spread = " (%{customdata[0]:.1f} – %{customdata[1]:.1f})" if len(group) > 1 else ""
        lines.append(
            go.Scatter(
                x=compact(x), y=compact(middle), mode="lines" if len(x) > 1 else "markers", name=name, meta=series,
                line=line, marker={"color": look["color"]}, opacity=1 if finished else 0.75,
                customdata=compact(np.stack([low, high], axis=1)) if len(group) > 1 else None,
                hovertemplate=f"%{{y:.1f}} %{spread} after %{{x:,.4~g}} {unit}",
            )
        )  # fmt: skip
        if finished:
            dot = {"color": look["color"], "size": 7}
            end = {"x": compact(x[-1:]), "y": compact(middle[-1:]), "marker": dot}
            ends.append(go.Scatter(mode="markers", meta=series, hoverinfo="skip", **end))
        if len(group) > 1:
            around = {"x": compact([*x, *x[::-1]]), "y": compact([*high, *low[::-1]]), "fillcolor": look["color"]}
            faint = 0.07 if len(looks) > CROWDED and not look["ours"] else 0.17
            fill = {"fill": "toself", "opacity": faint, "line": {"width": 0}, "hoverinfo": "skip"}
            bands.append(go.Scatter(mode="lines", meta=series, **around, **fill))
    lines.sort(key=lambda line: line.line.width)
    starts = [float(line.x[0]) for line in lines if line.x is not None and float(line.x[0]) > 0]
    reach = [min(starts, default=1.0), max(most, default=2.0)]
    for series, said, _, group in ceilings:
        lines += _ceiling(series, said, [100 * max(curve.smoothed) for curve in group], reach, looks[series])
    dotted = {"dash": "dot", "width": 1, "color": SOFT}
    levels = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100 * target, "y1": 100 * target, "line": dotted}
        for target in targets
    ]
    return chart(
        [*bands, *lines, *ends], "", title, "accuracy, %", shapes=levels, yaxis=FROM_ZERO,
        scale="log" if spans_magnitudes(value for value in most if value) else "linear",
        when={
            "log": {"xaxis": {**LOG, "dtick": "D2"}},
            "linear": {"xaxis": FROM_ZERO},
            "log narrow": {"xaxis": {"dtick": 1}},
        },
    )  # fmt: skip


def _ceiling(series: str, said: str, best: Sequence[float], reach: Sequence[float], look: Json) -> list[Any]:
    """A horizontal line at the median of the best accuracies, in a band from the lowest to the highest seed."""
    from plotly import graph_objects as go

    line = {"color": look["color"], "dash": "dash", "width": look["width"]}
    name = "<br>".join(filter(None, (f"{plain(series)}: the ceiling", said)))
    middle = go.Scatter(
        x=reach, y=[float(np.median(best))] * 2, mode="lines", name=name, meta=series, line=line,
        hovertemplate="at best %{y:.1f} %, with all data in one place",
    )  # fmt: skip
    if len(best) < 2:
        return [middle]
    around = {"x": [*reach, *reach[::-1]], "y": [max(best)] * 2 + [min(best)] * 2, "fillcolor": look["color"]}
    fill = {"fill": "toself", "opacity": 0.1, "line": {"width": 0}, "hoverinfo": "skip"}
    return [go.Scatter(mode="lines", meta=series, **around, **fill), middle]


# ---------------------------------------------------------------------- way to a target
def way_to(group: RunGroup, summary: Summary, target: float, resource: Resource, looks: Styles) -> Json:
    """Delay or energy to a target by scheme, and what ASFL saves; the fastest scheme on top."""
    from plotly import graph_objects as go

    what, unit = ("Delay", "s") if resource == "delay_s" else ("Energy", "J")
    order = summary.fastest_first(target)[::-1]
    stats = [summary.to_reach(name, target, resource) for name in order]
    known = [stat.median for stat in stats if stat.seeds and stat.median > 0]
    log = spans_magnitudes(known)
    floor = min(known) / 2 if log else 0.0
    above, below = ([0 if math.isnan(end) else abs(end - middle) for end, middle in ends]
                    for ends in ([(s.high, s.median) for s in stats], [(s.low, s.median) for s in stats]))  # fmt: skip
    ends = [stat.median + more if stat.seeds else floor for stat, more in zip(stats, above, strict=True)]
    most = max(*ends, 2 * floor, 1e-12)
    texts = [amount(stat) + partly(stat, len(summary.runs[name])) for name, stat in zip(order, stats, strict=True)]
    saves = [_saves(summary, name, target, resource) for name in order]
    places = list(range(len(order)))
    colours = [looks[group.series(name)]["color"] for name in order]
    shape = (  # where a bar would begin on a logarithmic scale is arbitrary
        partial(go.Scatter, mode="markers", marker={"color": colours, "size": 11})
        if log
        else partial(go.Bar, orientation="h", marker={"color": colours})
    )
    bars = shape(
        y=places, x=[stat.median if stat.seeds else None for stat in stats],
        hoverinfo="text",
        hovertext=[
            "<br>".join(filter(None, (f"{plain(name)}: {text} {unit}", said))) if stat.seeds else ""
            for name, text, said, stat in zip(order, texts, saves, stats, strict=True)
        ],
    )  # fmt: skip
    whiskers = go.Scatter(
        mode="markers", marker={"size": 1, "color": LEVEL}, hoverinfo="skip", y=places,
        x=[stat.median if stat.seeds > 1 else None for stat in stats],
        error_x={"array": above, "arrayminus": below, "color": LEVEL, "thickness": 1.2, "width": 3},
    )  # fmt: skip

    def notes(saved: bool) -> list[Json]:
        ways = zip(places, stats, ends, texts, saves, strict=True)
        return [_note(place, stat, math.log10(end) if log else end, text, said if saved else "")
                for place, stat, end, text, said in ways]  # fmt: skip

    bottom = math.log10(floor) if log else 0.0
    width = 1.9 * (math.log10(most) - bottom if log else most)  # room for the texts
    names = ["<b>asfl</b>" if name == OURS else plain(name, 18) for name in order]
    return chart(
        [bars, whiskers], f"{what} to {percent(target)}", unit, bargap=0.3, annotations=notes(saved=True),
        xaxis={**(LOG if log else {}), "range": [bottom, bottom + width]},
        yaxis={
            "tickvals": places, "ticktext": names, "showgrid": False, "zeroline": False, "fixedrange": True,
            "ticklabelstandoff": 4,
            "range": [-0.6, len(order) - 0.4],
        },
        when={"narrow": {"annotations": notes(saved=False)}},
    )  # fmt: skip


def _note(place: int, stat: Statistic, end: float, text: str, said: str) -> Json:
    """Behind a bar: its number, or that there is none."""
    looks: Json = {"y": place, "showarrow": False, "xanchor": "left", "xshift": 5}
    if not stat.seeds:
        return {**looks, "x": 0, "xref": "paper", "text": "<i>not reached</i>", "font": {"size": 11, "color": SOFT}}
    return {**looks, "x": end, "text": text + (f"  <i>{said}</i>" if said else ""), "font": {"size": 11, "color": INK}}


def _saves(summary: Summary, scheme: str, target: float, resource: Resource) -> str:
    saving = summary.saving(scheme, target)
    if saving is None or not saving.delay.seeds:
        return ""
    text = share(saving.delay if resource == "delay_s" else saving.energy, 0)
    return f"ASFL needs {text[1:]} % more" if text.startswith("-") else f"ASFL saves {text} %"


# ---------------------------------------------------------------------- discrepancy, packet errors
def discrepancies(collected: Collected, looks: Styles) -> dict[str, Json]:
    """Discrepancy and spread by series: means over the counted seeds, as long as all of them run."""
    titles = {"discrepancy": "discrepancy, updates", "spread": "spread, squared weights"}
    return {name: found for name, title in titles.items() if (found := _drift(collected, looks, name, title))}


def _drift(collected: Collected, looks: Styles, name: str, title: str) -> Json | None:
    from plotly import graph_objects as go

    lines, tops = [], []
    for series, runs in _counted(collected):
        played = [run.records for run in runs if run.records and not run.is_ceiling]
        if played:
            rounds = min(map(len, played))
            values = np.mean([[getattr(record, name) for record in records[:rounds]] for records in played], axis=0)
            line = {key: looks[series][key] for key in ("color", "dash", "width")}
            axis = rounds_axis(rounds)
            lines.append(go.Scatter(**axis, y=compact(binned(values)), meta=series, **_named(series), line=line))
            tops.append(float(values.max()))
    log = max(tops, default=0) > 30 * min((top for top in tops if top > 0), default=math.inf)
    when: dict[str, Json] = {"log": {"yaxis": LOG}, "linear": {"yaxis": FROM_ZERO}}
    return chart(lines, "", "round", title, when=when, scale="log" if log else "linear") if lines else None


def _counted(collected: Collected) -> Iterator[tuple[str, list[FoundRun]]]:
    for group in collected.groups:
        for scheme in group.schemes:
            yield group.series(scheme), [run for run in group.counted if run.scheme == scheme]


def _named(name: str) -> Json:
    return {"mode": "lines", "name": plain(name), "hovertemplate": "%{x}: %{y:.4~g}"}


def losses(collected: Collected) -> Json | None:
    """Packets expected to be lost, of those sent, and packets that were."""
    found = {}
    for series, runs in _counted(collected):
        pairs = [pair for run in runs if (pair := _lost(run.records)) is not None]
        if pairs:
            found[plain(series, 24)] = np.mean(pairs, axis=0)
    if not found:
        return None
    expected, realised = zip(*found.values(), strict=True)
    traces = _bars(list(found), {"expected": expected, "realised": realised})
    return chart(traces, "", "", "packets lost, %", showlegend=True, xaxis={"showgrid": False}, yaxis=FROM_ZERO)


def _lost(records: Sequence[RoundRecord]) -> tuple[float, float] | None:
    """Per cent of the packets that were sent; None if none was."""
    rate, sent, arrived = (
        np.array([getattr(record, name) for record in records], float)
        for name in ("packet_error_rate", "rb_count", "arrived")
    )
    served = sent > 0
    if not served.any():
        return None
    return float(100 * rate[served].mean()), float(100 * (1 - arrived[served].mean()))


def _bars(names: Sequence[str], columns: dict[str, Any], *, as_points: bool = False) -> list[Any]:
    """Two bars side by side for each name; or points, where the scale is logarithmic."""
    from plotly import graph_objects as go

    looks = {"hovertemplate": "%{x}: %{y:.4~g}"}
    shape = partial(go.Scatter, mode="markers") if as_points else go.Bar
    return [
        shape(name=title, x=names, y=compact(values), marker={"color": colour}, **looks)
        for (title, values), colour in zip(columns.items(), (BAR, SECOND), strict=True)
    ]


# ---------------------------------------------------------------------- layers
def layers(profile: ModelProfile) -> tuple[Json, Json]:
    """Bits and work of every layer."""
    units = _units(profile)
    bits = {"parameters": profile.param_bits / 1e6, "activations of a sample": profile.activation_bits / 1e6}
    flops = {"forward": profile.forward_flops / 1e6, "backward": profile.backward_flops / 1e6}
    looks: Json = {"showlegend": True, "xaxis": {"showgrid": False}, "when": _UPRIGHT}
    size = chart(_bars(units, bits, as_points=True), "Size", "", "Mbit", yaxis=LOG, **looks)
    return size, chart(_bars(units, flops), "Work", "", "MFLOP a sample", **looks)


_UPRIGHT = {"narrow": {"xaxis": {"tickangle": -90}}}


def _units(profile: ModelProfile) -> list[str]:
    return [f"{place} {plain(name)}" for place, name in enumerate(profile.unit_names, start=1)]


def cuts(group: RunGroup, profile: ModelProfile) -> Json | None:
    """How often each scheme cut behind each layer."""
    from plotly import graph_objects as go

    shares = {scheme: _cut_shares(group, scheme, profile.num_layers) for scheme in group.schemes}
    known = {plain(group.series(scheme), 24): row for scheme, row in shares.items() if row is not None}
    if not known:
        return None
    heat = go.Heatmap(
        z=compact(list(known.values())), x=_units(profile)[:-1], y=list(known), zmin=0, zmax=100, xgap=1, ygap=2,
        colorbar={"title": {"text": "%"}},
        hovertemplate="%{y} cut behind %{x} in %{z:.1f} % of rounds<extra></extra>",
    )  # fmt: skip
    flat = {"showgrid": False, "zeroline": False}
    yaxis = {**flat, "autorange": "reversed"}
    return chart([heat], "Where the cut was", "cut behind", xaxis=flat, yaxis=yaxis, when=_UPRIGHT)


def _cut_shares(group: RunGroup, scheme: str, num_layers: int) -> Floats | None:
    """[M−1] per cent of rounds (with a cut per client: of rounds and clients that took part); None without a cut."""
    counts = np.zeros(num_layers + 1)
    for record in (record for run in group.runs if run.scheme == scheme for record in run.records):
        if isinstance(record.cut, int):
            chosen = [record.cut]
        else:
            each = zip(record.cut or [], record.rb_count, strict=False)
            chosen = [cut for cut, blocks in each if blocks > 0]
        np.add.at(counts, np.clip(chosen, 0, num_layers).astype(int), 1)
    counts = counts[1:num_layers]
    return 100 * counts / counts.sum() if counts.sum() else None
