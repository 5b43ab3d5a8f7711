"""Charts of one run: every decision, the queues, what each client spent, measured links, and where the clients were."""

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
    scaled,
    shade,
    stacked,
)
from asfl.results.charts.world import LOWEST_DB, city, snr_history
from asfl.results.curves import Run
from asfl.runs.records import RoundRecord

MOST_CELLS = 800_000
"""Of the maps of all runs together: about 4 MB in the page."""
MOST_MAPPED_CLIENTS = 200
_THIN = Look(SECOND, (), 1.3)
_CLIENT_COLOURS = ("#3565a8", "#c2452d", "#1b7f5c", "#e0952b", "#8a4fa3", "#2aa3b8", "#6b6b6b", "#a0522d")


# ---------------------------------------------------------------------- clients × rounds
Values = Callable[[RoundRecord], Sequence[float]]
MAPS: Mapping[str, tuple[str, str, str, Values]] = {
    "rbs": ("Blocks", "Resource blocks of every client", "blocks", lambda record: record.rb_count),
    "power": ("Power", "Transmit power", "W", lambda record: record.tx_power_w),
    "errors": ("Packet errors", "Expected packet error rate", "rate", lambda record: record.packet_error_rate),
    "energy": ("Energy", "Energy of every client", "J", lambda record: record.energy_j),
    "queue": ("Energy queues", "Energy queue of every client", "backlog", lambda record: record.energy_queue),
    "snr": ("SNR", "SNR of one resource block at full power, when the round begins", "dB", lambda record: ()),
    "uplink": ("Uplink", "Uplink of every client, as measured", "Mbit/s", lambda record: _uplink_mbps(record)),
}
"""Button, title, unit, and the numbers of a round."""


def _uplink_mbps(record: RoundRecord) -> Sequence[float]:
    rates = record.measured["uplink_bps"] if record.measured else [None] * len(record.arrived)
    return [math.nan if rate is None else rate / 1e6 for rate in rates]


def maps_of(run: Run) -> list[str]:
    absent = set() if is_measured(run) else {"uplink"}
    absent |= set() if snr_history(run) is not None else {"snr"}
    return [name for name in MAPS if name not in absent]


def map_columns(runs: Sequence[Run]) -> int:
    """How many columns a map may have, so that all of them fit into the page."""
    clients = sum(min(len(run.records[0].rb_count), MOST_MAPPED_CLIENTS) for run in runs if run.records)
    return int(np.clip(MOST_CELLS // max(1, clients * len(MAPS)), 20, MOST_POINTS))


def client_map(run: Run, name: str, columns: int) -> Panel:
    _, title, unit, of_round = MAPS[name]
    history = snr_history(run) if name == "snr" else None
    table = np.array([of_round(record) for record in run.records], float) if history is None else history.snr_db
    values, rounds = binned(table[:, :MOST_MAPPED_CLIENTS], columns).T, len(run.records)
    most = float(values[np.isfinite(values)].max(initial=0.0)) or 1.0
    heat = Heat(
        values=values, label=unit, low=LOWEST_DB if history else 0, high=most,
        extent=(0.5, rounds + 0.5, -0.5, len(values) - 0.5),
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
    energy = "Energy of a client in a round"
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
            energy, "J", of("largest", lambda r: max(r.energy_j), _THIN),
            of("mean", lambda r: float(np.mean(r.energy_j))), *level("budget", budgets.energy_j),
        ),
        "lost": panel(
            "Packets lost", "%", of("realised", _share_lost, replace(_THIN, width=1)),
            of("expected", lambda r: 100 * r.mean_packet_error_rate),
        ),
        "client-energy": _energy_by_client(run, own, level("budget", budgets.energy_j)),
        "blocks": blocks(run).panels[0],
        "run-accuracy": _accuracies(records, own),
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


def _accuracies(records: Sequence[RoundRecord], own: Look) -> Panel:
    """Of the average model, with norm statistics measured anew and averaged, and of the clients' own models."""
    lines = []
    for name, field, look in (
        ("calibrated", "accuracy", own),
        ("uncalibrated", "uncalibrated_accuracy", _THIN),
        ("clients' own", "client_accuracy", Look(BUDGET, (1, 2), 1.1)),
    ):
        known = [(record.round, 100 * value) for record in records if (value := getattr(record, field)) is not None]
        if known:
            x, y = zip(*known, strict=True)
            lines.append(Line(x=x, y=y, look=look, name=name, hover="%{x}: %{y:.1f} %"))
    return Panel("Accuracy, each evaluation", lines, ROUND, Axis("%", low=0), legend=True)


def _energy_by_client(run: Run, own: Look, levels: Sequence[Level]) -> Panel:
    energy, resplit = (
        np.array([getattr(record, name) for record in run.records], float).mean(axis=0)
        for name in ("energy_j", "resplit_energy_j")
    )
    parts = {"rounds": (energy - resplit, own), "re-splits": (resplit, _THIN)}
    bars = stacked(range(len(energy)), parts, "client %{x}: %{y:.3~g} J")
    x = Axis("client", whole=True, grid=False)
    return Panel("Mean energy of every client", [*bars, *levels], x, Axis("J a round", low=0), legend=True)


# ---------------------------------------------------------------------- resource blocks
def block_shares(records: Sequence[RoundRecord]) -> dict[str, np.ndarray]:
    """By number of blocks, [N] shares of the rounds in which a client has none, one, two, …"""
    counts = np.ceil(np.array([record.rb_count for record in records], float) - 1e-9).astype(int)  # [R, N]
    return {str(n) if n else "none": (counts == n).mean(axis=0) for n in range(int(counts.max(initial=0)) + 1)}


def blocks(run: Run) -> Chart:
    """A bar per client: in how many of the rounds it had no block, one, two, …"""
    shares = {word: share[:MOST_MAPPED_CLIENTS] for word, share in block_shares(run.records).items()}
    parts = {word: (100 * share, Look(shade(place, len(shares)))) for place, (word, share) in enumerate(shares.items())}
    clients = len(next(iter(shares.values())))
    bars = stacked(range(clients), parts, "client %{x}: in %{y:.1f} % of rounds")
    title = f"Who gets how many blocks: {run.scheme}, seed {run.seed}"
    x, y = Axis("client", whole=True, grid=False), Axis("share of the rounds, %", low=0, high=100)
    return Chart([[Panel(title, bars, x, y, legend=True)]], max(7.0, 3 + 0.24 * clients), 4, legend="right")


# ---------------------------------------------------------------------- a real network, a walk
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
    seconds: list[Series] = [*stacked(rounds, stages, "round %{x}: %{y:.3~g} s", 1.0)]
    if run.budgets is not None:
        seconds.append(Level(run.budgets.delay_s, "budget"))
    delays = Panel("Time of a round, by the clock", seconds, x, Axis("s", low=0), legend=True)
    cuts = Panel("Cut: layers on the client", [cut], x, Axis(low=0))
    return Chart([[rates], [cuts], [delays]], 9.5, 7.2, heights=(3, 1.6, 2))


def _measured(records: Sequence[RoundRecord], name: str) -> np.ndarray:
    """[rounds, clients]; NaN where nothing is known."""
    return np.array([record.measured[name] for record in records if record.measured], dtype=float)


def walk(run: Run) -> Chart | None:
    """Where clients were during a run, at which SNR, and the cut; None where no clock moves them."""
    history = snr_history(run)
    if history is None or history.position_m is None:
        return None
    where = city(history.surroundings, history.position_m.transpose(1, 0, 2), history.snr_db.T)
    cuts = over_rounds([record.mean_cut for record in run.records], Look(BUDGET), step=True)
    right = Panel("Where the model is cut", [cuts], ROUND, scaled("layers on the client", ()))
    return Chart([[where, right]], 11.5, 5.4)
