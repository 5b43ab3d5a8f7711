"""Charts of one run: every decision, the queues, what each client spent, and measured links."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from asfl.results.charts.chart import (
    BAD,
    BUDGET,
    MOST_POINTS,
    OTHER,
    ROUND,
    SECOND,
    Axis,
    Chart,
    Heat,
    Level,
    Line,
    Look,
    Panel,
    Points,
    Series,
    binned,
    no_cut,
    over_rounds,
    stacked,
)
from asfl.results.curves import Run
from asfl.runs.records import RoundRecord

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
