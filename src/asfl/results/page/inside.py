"""The charts of one run: every decision, the queues, and what each client spent."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asfl.config.units import number
from asfl.results.blocks import block_shares
from asfl.results.figures.data import LabelMix
from asfl.results.folders import FoundRun
from asfl.results.heard import heard_in
from asfl.results.page.bounds import queue_bounds
from asfl.results.page.look import FROM_ZERO, LEVEL, SECOND, Json, binned, chart, compact, plain, rounds_axis, shade
from asfl.runs.records import RoundRecord

MOST_CELLS = 800_000
"""Of the maps of all runs together: about 4 MB in the page."""
MOST_MAPPED_CLIENTS = 200
_FLAT = {"showgrid": False, "zeroline": False}
_CLIENTS = {**_FLAT, "tickformat": "d", "autorange": "reversed"}

MAPS: dict[str, tuple[str, str, str, Callable[[RoundRecord], Sequence[float]]]] = {
    "rbs": ("Blocks", "Resource blocks of every client", "blocks", lambda record: record.rb_count),
    "power": ("Power", "Transmit power", "W", lambda record: record.tx_power_w),
    "errors": ("Packet errors", "Expected packet error rate", "rate", lambda record: record.packet_error_rate),
    "energy": ("Energy", "Energy of every client", "J", lambda record: record.energy_j),
    "queue": ("Energy queues", "Energy queue of every client", "backlog", lambda record: record.energy_queue),
    "snr": ("SNR", "SNR of one resource block at full power, when the round begins", "dB", lambda record: ()),
    "uplink": ("Uplink", "Uplink of every client, as measured", "Mbit/s", lambda record: _uplink_mbps(record)),
}
"""Clients × rounds: button, title, unit, and the numbers of a round."""


def _uplink_mbps(record: RoundRecord) -> Sequence[float]:
    rates = record.measured["uplink_bps"] if record.measured else [None] * len(record.arrived)
    return [math.nan if rate is None else rate / 1e6 for rate in rates]


def maps_of(run: FoundRun) -> list[str]:
    absent = set() if any(record.measured for record in run.records) else {"uplink"}
    absent |= set() if heard_in(run) is not None else {"snr"}
    return [name for name in MAPS if name not in absent]


def map_columns(runs: Sequence[FoundRun]) -> int:
    """How many columns a map may have, so that all of them fit into the page."""
    clients = sum(min(len(run.records[0].rb_count), MOST_MAPPED_CLIENTS) for run in runs if run.records)
    return int(np.clip(MOST_CELLS // max(1, clients * len(MAPS)), 20, 300))


def client_map(run: FoundRun, name: str, columns: int) -> Json:
    from plotly import graph_objects as go

    _, title, unit, of_round = MAPS[name]
    heard = heard_in(run) if name == "snr" else None
    table = np.array([of_round(record) for record in run.records], float) if heard is None else heard.snr_db
    values = binned(table[:, :MOST_MAPPED_CLIENTS], columns)
    axis = rounds_axis(len(run.records), columns)
    most = float(values[np.isfinite(values)].max(initial=0.0))
    bar: Json = {"title": {"text": unit}, **({"dtick": 1} if name == "rbs" and most <= 10 else {})}
    heat = go.Heatmap(
        z=compact(values.T), **axis, zmin=-10.0 if heard else 0, zmax=most or 1.0, colorbar=bar, hoverongaps=False,
        hovertemplate="round %{x:.0f}, client %{y}: %{z:.3~g}<extra></extra>",
    )  # fmt: skip
    more = f" (means of {axis['dx']} rounds)" if axis["dx"] > 1 else ""
    return chart([heat], title + more, "round", "client", xaxis=_FLAT, yaxis=_CLIENTS)


def lines_of(run: FoundRun, colour: str) -> dict[str, Json]:
    """Cut, delay, queues, energy and losses, round by round, by the id of the chart."""
    records, budgets = run.records, run.manifest.budgets
    if not records:
        return {}
    delay_bound, energy_bound = queue_bounds(run)
    own, thin = {"color": colour, "width": 1.8}, {"color": SECOND, "width": 1.3}

    def of(name: str, value: Callable[[RoundRecord], float], look: Json = own) -> Any:
        return _line(name, [value(record) for record in records], look)

    def level(name: str, value: float) -> list[Any]:
        return _level(name, value, [1, len(records)])

    def panel(title: str, unit: str, *traces: Any) -> Json:
        return chart(traces, title, "round", unit, showlegend=True, yaxis=FROM_ZERO)

    revealed = [record.epsilon if record.epsilon is not None else math.nan for record in records]
    privacy = {} if np.isnan(revealed).all() else {
        "chart-epsilon": panel("What one image of a client has revealed", "ε", _line("ε", revealed, own))
    }  # fmt: skip
    return {
        **privacy,
        "chart-cut": _cut_chart(records, own),
        "chart-round-delay": panel(
            "Delay of a round", "s", of("delay", lambda r: r.delay_s),
            of("of it re-split", lambda r: r.resplit_delay_s, thin), *level("budget", budgets.delay_s),
        ),
        "chart-delay-queue": panel(
            "Delay queue", "backlog", of("queue", lambda r: r.delay_queue), *level("Lemma 4", delay_bound)
        ),
        "chart-energy-queue": panel(
            "Energy queues", "backlog", of("largest", lambda r: max(r.energy_queue), thin),
            of("mean", lambda r: float(np.mean(r.energy_queue))), *level("Lemma 4", energy_bound),
        ),
        "chart-round-energy": panel(
            "Energy of a client in a round", "J", of("largest", lambda r: max(r.energy_j), thin),
            of("mean", lambda r: float(np.mean(r.energy_j))), *level("budget", budgets.energy_j),
        ),
        "chart-lost": panel(
            "Packets lost", "%", of("realised", _share_lost, {**thin, "width": 1}),
            of("expected", lambda r: 100 * r.mean_packet_error_rate),
        ),
        "chart-client-energy": _clients_chart(run, colour),
        "chart-blocks": _blocks_chart(run),
        "chart-run-accuracy": _accuracies_chart(records, colour),
    }  # fmt: skip


def _blocks_chart(run: FoundRun) -> Json:
    """In how many of the rounds each client had no block, one, two, …"""
    from plotly import graph_objects as go

    shares = {word: share[:MOST_MAPPED_CLIENTS] for word, share in block_shares(run.records).items()}
    bars = [
        go.Bar(
            name=word, x0=0, y=compact(100 * share), marker={"color": shade(place, len(shares))},
            hovertemplate=f"client %{{x}}: {word} in %{{y:.1f}} % of rounds<extra></extra>",
        )
        for place, (word, share) in enumerate(shares.items())
    ]  # fmt: skip
    return chart(
        bars, "Who gets how many blocks", "client", "share of the rounds, %", barmode="stack", showlegend=True,
        xaxis={"showgrid": False, "tickformat": "d"}, yaxis={"range": [0, 100]},
    )  # fmt: skip


def _accuracies_chart(records: Sequence[RoundRecord], colour: str) -> Json:
    """Of the average model, with norm statistics measured anew and averaged, and of the clients' own models."""
    from plotly import graph_objects as go

    lines = {
        "calibrated": ("accuracy", {"color": colour, "width": 1.8}),
        "uncalibrated": ("uncalibrated_accuracy", {"color": SECOND, "width": 1.3}),
        "clients' own": ("client_accuracy", {"color": LEVEL, "width": 1.1, "dash": "dot"}),
    }
    traces = []
    for name, (field, look) in lines.items():
        known = [(record.round, 100 * value) for record in records if (value := getattr(record, field)) is not None]
        if known:
            x, y = zip(*known, strict=True)
            hover = "%{x}: %{y:.1f} %"
            traces.append(
                go.Scatter(x=compact(x), y=compact(y), mode="lines", name=name, line=look, hovertemplate=hover)
            )
    return chart(traces, "Accuracy, each evaluation", "round", "%", showlegend=True, yaxis=FROM_ZERO)


def _line(name: str, values: ArrayLike, look: Mapping[str, Any]) -> Any:
    from plotly import graph_objects as go

    y, axis = compact(binned(values)), rounds_axis(len(np.asarray(values)))
    return go.Scatter(**axis, y=y, mode="lines", name=name, line=dict(look), hovertemplate="%{x}: %{y:.4~g}")


def _level(name: str, value: float, ends: Sequence[float]) -> list[Any]:
    """A dashed line at a budget or bound; nothing where there is none."""
    from plotly import graph_objects as go

    if not math.isfinite(value):
        return []
    look = {"color": LEVEL, "dash": "dash", "width": 1.3}
    return [go.Scatter(x=ends, y=[value] * 2, mode="lines", name=f"{name} {number(value)}", line=look)]


def _cut_chart(records: Sequence[RoundRecord], look: Json) -> Json:
    cuts = [record.mean_cut for record in records]
    none = all(map(math.isnan, cuts))
    words = {"text": "no cut: the whole model is on the client", "showarrow": False, "xref": "paper", "yref": "paper"}
    return chart(
        [] if none else [_line("cut", cuts, {**look, "shape": "hvh"})], "Cut: layers on the client", "round",
        yaxis={**FROM_ZERO, "tickformat": "~r"}, annotations=[{**words, "x": 0.5, "y": 0.5}] if none else [],
    )  # fmt: skip


def _share_lost(record: RoundRecord) -> float:
    """Per cent of the packets of the round; NaN if none was sent."""
    return 100 * (1 - record.arrived_count / record.scheduled_count) if record.scheduled_count else math.nan


def _clients_chart(run: FoundRun, colour: str) -> Json:
    from plotly import graph_objects as go

    energy, resplit = (
        np.array([getattr(record, name) for record in run.records], float).mean(axis=0)
        for name in ("energy_j", "resplit_energy_j")
    )
    bars = [
        go.Bar(name=name, x0=0, y=compact(y), marker={"color": look}, hovertemplate="client %{x}: %{y:.3~g} J")
        for name, y, look in (("rounds", energy - resplit, colour), ("re-splits", resplit, SECOND))
    ]
    level = _level("budget", run.manifest.budgets.energy_j, [-0.5, len(energy) - 0.5])
    return chart(
        [*bars, *level], "Mean energy of every client", "client", "J a round", barmode="stack", showlegend=True,
        xaxis={"showgrid": False, "tickformat": "d"}, yaxis=FROM_ZERO,
    )  # fmt: skip


def label_chart(mix: LabelMix, name: str) -> Json:
    """Which labels each client holds."""
    from plotly import graph_objects as go

    shares = 100 * mix.counts / np.maximum(mix.counts.sum(axis=1, keepdims=True), 1)
    heat = go.Heatmap(
        z=compact(shares), zmin=0, zmax=float(shares.max()), colorbar={"title": {"text": "%"}},
        hovertemplate="client %{y}, label %{x}: %{z:.1f} %<extra></extra>",
    )  # fmt: skip
    xaxis = {**_FLAT, "tickformat": "d"}
    return chart([heat], "Label mix of every client", f"label ({plain(name)})", "client", xaxis=xaxis, yaxis=_CLIENTS)
