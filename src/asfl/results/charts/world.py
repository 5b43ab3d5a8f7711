"""Charts of what runs start from (world, city, layers of a model, label mix) and of decisions without training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asfl.config import Config, Data as DataSettings, Radio
from asfl.config.errors import AsflError
from asfl.config.units import format_si, from_db, to_db
from asfl.costs.modelled import RoundCost, cost_of_all_cuts
from asfl.costs.world import Budgets, World
from asfl.data import ImageData, deal, distance_from_global, label_counts
from asfl.data.partition import SHARDS_PER_CLIENT
from asfl.models.profile import ModelProfile
from asfl.optimize import Solution
from asfl.optimize.blocks import objective_of_cuts
from asfl.optimize.problem import PUBLISHED
from asfl.optimize.terms import plan_terms
from asfl.radio.city import ROOF_M
from asfl.radio.traces import Surroundings, Trace
from asfl.results.charts.chart import (
    BAD,
    BUDGET,
    CUT_LABEL,
    FAINT,
    GOOD,
    MEDIAN,
    OTHER,
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
    lines_panel,
    over_rounds,
    scaled,
    stacked,
)
from asfl.results.charts.timeline import height_in, timeline_rows
from asfl.results.summary import trained_and_charged
from asfl.runs.play import Playthrough
from asfl.schemes import OURS

Floats = NDArray[np.float64]
SNR_LABEL = "SNR of one resource block at full power, dB"
LOWEST_DB, HIGHEST_DB = -10.0, 40.0
"""Ends of the scale of colours."""
MOMENTS = 240
_COMPUTE, _SEND, _WORK = Look("#5b7fb8"), Look("#e0a33e"), Look("#38706b")


# ---------------------------------------------------------------------- SNR and positions
def full_power_snr_db(gain: Floats, radio: Radio) -> Floats:
    """SNR of one resource block if a client sends with all its power."""
    return to_db(radio.max_tx_power_w * gain / (radio.rb_bandwidth_hz * radio.noise_psd_w_per_hz))


def city(around: Surroundings | None, position_m: Floats, snr_db: Floats) -> Panel:
    """Buildings from above, the server, and each client's way [N, T, 2] in the colours of its SNR [N, T]."""
    series: list[Series] = []
    server = (0.0, 0.0)
    if around is not None:
        roofs = np.where(around.height_m > ROOF_M, around.height_m, np.nan)
        left, right, bottom, top = map(float, around.extent_m)
        series.append(Heat(values=roofs, low=-20, high=60, extent=(left, right, bottom, top), colours="grey"))
        server = float(around.server_m[0]), float(around.server_m[1])
    all_x, all_y = position_m.reshape(-1, 2).T
    ends = (LOWEST_DB, HIGHEST_DB)
    ways = Points(x=all_x, y=all_y, size=2.5, values=snr_db.ravel(), value_label=SNR_LABEL, value_range=ends)
    starts = enumerate(position_m[:, 0].tolist())
    names = [Note(str(client), x, y, place="above", size=9) for client, (x, y) in starts]
    series += [ways, Points(x=server[:1], y=server[1:], look=Look(BAD), marker="^", size=11), *names]
    return Panel("Who walks where (triangle: server)", series, Axis("m", grid=False), Axis("m", grid=False), equal=True)


def trace_chart(trace: Trace) -> Chart:
    """The map on the left, each client's SNR over time on the right."""
    where = trace.surroundings
    if where is None:
        raise AsflError(f"{trace.source}: says nothing of positions, so there is no map")
    snr_db = full_power_snr_db(from_db(np.array(trace.values)), Radio())
    seconds = (snr_db.shape[1] - 1) * trace.sample_period_s
    time = _snr_map(snr_db, "SNR of every client over time", "s", float(seconds))
    title = f"{trace.source}: {len(snr_db)} clients, {seconds:.0f} s"
    return Chart([[city(where, where.position_m, snr_db), time]], 12.5, 6.2, title)


def _snr_map(snr_db: Floats, title: str, across: str, most: float | None = None) -> Panel:
    """[N, columns]"""
    extent = None if most is None else (0.0, most, -0.5, len(snr_db) - 0.5)
    heat = Heat(values=snr_db, label="dB", low=LOWEST_DB, high=HIGHEST_DB, extent=extent, colours="viridis")
    return Panel(title, [heat], Axis(across), Axis("client", whole=True, reversed=True))


# ---------------------------------------------------------------------- a world
@dataclass(frozen=True, eq=False)
class WorldView:
    """What each cut costs each client by itself, at mean gain, full power and a fair share of the blocks."""

    world: World
    budgets: Budgets
    mean_snr_db: Floats
    """[N], of one resource block at full power."""
    cost: RoundCost
    """All cuts; parts have shape [M−1, N]."""
    delay_s: Floats
    """[M−1, N], the client's own way through a round: compute, uplink, its share of the server, downlink, report."""

    @classmethod
    def of(cls, world: World, budgets: Budgets) -> "WorldView":
        radio, num_clients = world.config.radio, world.config.scenario.clients
        first = world.begin_round(0)
        at_mean_gain = replace(first, channel_gain=first.path_gain)
        fair_share = np.full(num_clients, radio.num_rbs / num_clients)
        full_power = np.full(num_clients, radio.max_tx_power_w)
        cost = cost_of_all_cuts(at_mean_gain, fair_share, full_power, arrived=np.ones(num_clients))
        compute = cost.client_forward_delay_s + cost.client_backward_delay_s
        sent = cost.uplink_delay_s + cost.model_up_delay_s
        own_delay = compute + sent + cost.server_delay_s + cost.downlink_delay_s
        return cls(world, budgets, full_power_snr_db(first.path_gain, radio), cost, own_delay)

    def examples(self) -> dict[str, int]:
        """The clients with the best, the middle and the worst mean SNR."""
        order = np.argsort(self.mean_snr_db)[::-1]
        return {"good": int(order[0]), "median": int(order[len(order) // 2]), "bad": int(order[-1])}

    def cuts_within_budgets(self, client: int) -> NDArray[np.int64]:
        """The cuts that meet both budgets for this client."""
        meets = (self.delay_s[:, client] <= self.budgets.delay_s) & (
            self.cost.energy_j[:, client] <= self.budgets.energy_j
        )
        return self.world.profile.cuts[meets]


_EXAMPLES = dict(zip(("good", "median", "bad"), (GOOD, MEDIAN, BAD), strict=True))


def world_chart(view: WorldView) -> Chart:
    """Who is where, and what each cut would cost a good, a median and a bad client; gains where they change."""
    world, config = view.world, view.world.config
    rows = [
        [_disc(view), _median_client(view)],
        [
            _per_cut(view, view.delay_s, view.budgets.delay_s, "s", "delay"),
            _per_cut(view, view.cost.energy_j, view.budgets.energy_j, "J", "energy"),
        ],
    ]
    if world.has_clock or world.begin_round(0).block_gain is not None:
        rows.append(gains(world))
    size = f"{config.scenario.clients} clients, {config.radio.num_rbs} resource blocks"
    title = f"{trained_and_charged(config) or world.profile.name}: {size}, {config.charged_samples} samples a round"
    return Chart(rows, 11.5, 4.1 * len(rows), title)


def gains(world: World) -> list[Panel]:
    """SNR of clients × moments, and of clients × resource blocks."""
    radio = world.config.radio
    rounds = [world.begin_round(index, time_s=float(index)) for index in range(MOMENTS)]
    over_time = full_power_snr_db(np.array([one.channel_gain for one in rounds]).T, radio)
    unit, units = ("s", "seconds") if world.has_clock else ("round", "rounds")
    first = rounds[0].block_gain
    of_blocks = np.repeat(rounds[0].channel_gain[:, None], radio.num_rbs, axis=1) if first is None else first
    same = " (all alike)" if first is None else ""
    return [
        _snr_map(over_time, f"SNR of every client over {MOMENTS} {units}", unit),
        _snr_map(full_power_snr_db(of_blocks, radio), f"SNR of every resource block at the beginning{same}", "block"),
    ]


def _disc(view: WorldView) -> Panel:
    scenario, clients, snr_db = view.world.config.scenario, view.world.clients, view.mean_snr_db
    around = getattr(view.world.channel, "surroundings", None)
    if around is not None:
        measured = full_power_snr_db(np.array(view.world.channel.gains), view.world.config.radio)  # type: ignore[attr-defined]
        return city(around, around.position_m, measured)
    if scenario.channel.kind == "trace":
        bars = Bars(places=range(len(snr_db)), lengths=np.sort(snr_db), horizontal=True)
        title = "SNR of every client (measured; positions unknown)"
        return Panel(title, [bars], Axis(f"mean {SNR_LABEL}"), Axis("client, by SNR", ticks={}))
    angle = np.linspace(0, 2 * np.pi, 200)
    rim = Line(x=scenario.radius_m * np.cos(angle), y=scenario.radius_m * np.sin(angle), look=Look(FAINT, (), 1))
    x, y = clients.position_m.T
    points = Points(x=x, y=y, size=8, values=snr_db, value_label=f"mean {SNR_LABEL}")
    series: list[Series] = [
        rim,
        *(Line(x=way[:, 0], y=way[:, 1], look=Look(FAINT)) for way in _ways(view.world)),
    ]
    series += [points, Points(x=[0], y=[0], look=Look(BUDGET), marker="^", size=10)]
    for label, client in view.examples().items():
        look = Look(_EXAMPLES[label])
        series += [
            Points(x=x[[client]], y=y[[client]], look=look, size=13, hollow=True),
            Note(label, x[client], y[client], look.color, "above", 9),
        ]
    limit = scenario.radius_m * 1.08
    return Panel(
        "Who is where", series, Axis("m", low=-limit, high=limit), Axis("m", low=-limit, high=limit), equal=True
    )


def _ways(world: World) -> list[Floats]:
    """[2, 2] from where to where each client walks, if it does."""
    walks = getattr(world.channel, "walks", None)
    if walks is None or walks.speed_mps == 0:
        return []
    return list(np.stack([walks.start_m, walks.start_m + walks.length_m[:, None] * walks.heading], axis=1))


def _median_client(view: WorldView) -> Panel:
    client, cost, cuts = view.examples()["median"], view.cost, view.world.profile.cuts
    compute = (cost.client_forward_delay_s + cost.client_backward_delay_s)[:, client]
    parts = {
        "send activations, report": ((cost.uplink_delay_s + cost.model_up_delay_s)[:, client], _SEND),
        "return gradients": (cost.downlink_delay_s[:, client], Look("#f1d397")),
        "server computes": (cost.server_delay_s[:, client], Look("#9fb6d9")),
        "client computes": (compute, _COMPUTE),
    }
    bars = stacked(cuts, parts)
    total = np.sum([seconds for seconds, _ in parts.values()], axis=0)
    y = Axis("seconds in a round", low=0, high=1.4 * float(total.max()))
    return Panel("Where the median client's time goes", bars, Axis(CUT_LABEL, whole=True), y, legend=True)


def _per_cut(view: WorldView, values: Floats, budget: float, unit: str, what: str) -> Panel:
    cuts, series = view.world.profile.cuts, list[Series]()
    for label, client in view.examples().items():
        look, curve = Look(_EXAMPLES[label], (), 1.8), values[:, client]
        best = int(np.argmin(curve))
        series.append(Line(x=cuts, y=curve, look=look, name=f"{label} client"))
        series.append(Points(x=cuts[[best]], y=curve[[best]], look=look, size=9, hollow=True))
    series.append(Level(budget, f"budget {format_si(budget, unit)}"))
    title = f"What a cut costs: {what} per round (circle: cheapest cut)"
    return Panel(title, series, Axis(CUT_LABEL, whole=True), Axis(f"{what}, {unit}", "log"), legend=True)


# ---------------------------------------------------------------------- a model's layers
def layer_panels(profile: ModelProfile) -> tuple[Panel, Panel]:
    """Bits and work of every unit."""
    units = np.arange(1, profile.num_layers + 1)
    x = Axis(ticks={unit: f"{unit} {name}" for unit, name in enumerate(profile.unit_names, 1)}, grid=False)
    if profile.num_layers > 24:
        x = Axis("unit", whole=True, grid=False)
    points = [
        Points(x=units, y=bits / 1e6, look=look, name=name)
        for name, bits, look in (
            ("parameters (moved when the cut moves)", profile.param_bits, _COMPUTE),
            ("activations of a sample", profile.activation_bits, _SEND),
        )
    ]  # fmt: skip
    bars = [
        Bars(places=units + off, lengths=flops / 1e6, look=look, name=name, width=0.4)
        for name, flops, look, off in (
            ("forward", profile.forward_flops, Look("#7aa6a1"), -0.2),
            ("backward", profile.backward_flops, _WORK, 0.2),
        )
    ]
    size = Panel("Size of every unit", points, x, Axis("Mbit", "log"), legend=True)
    return size, Panel("Work of every unit", bars, x, Axis("MFLOP a sample", low=0), legend=True)


def profile_chart(profile: ModelProfile) -> Chart:
    total = profile.client_forward_flops + profile.client_backward_flops
    behind, percents = range(profile.num_layers + 1), 100 * total / total[-1]
    work = Line(x=behind, y=percents, look=_WORK, step=True)
    title, y = "Work that stays on the client if the model is cut here", Axis("% of all FLOPs", low=0, high=101)
    last = Panel(title, [work], Axis(CUT_LABEL, whole=True), y)
    rows = [[panel] for panel in (*layer_panels(profile), last)]
    return Chart(rows, max(7.5, 0.22 * profile.num_layers + 3), 8.2, profile.name)


# ---------------------------------------------------------------------- data
def rule_of(config: Config) -> str:
    """How samples are dealt out, in words."""
    data = config.data
    if data.partition == "shards":
        return f"{SHARDS_PER_CLIENT} shards of sorted labels each"
    if data.partition == "groups":
        return "whole groups"
    if data.partition == "quantity":
        return f"sizes ~ Dir(1), {config.training.batch_size} at least"
    return f"label mix ~ Dir({data.dirichlet_alpha:g})"


@dataclass(frozen=True, eq=False)
class LabelMix:
    """A data set as it is spread over the clients of a configuration."""

    data: ImageData
    settings: DataSettings
    rule: str
    """How it was dealt out, in words."""
    seed: int
    counts: NDArray[np.int64]
    """[N, num_classes]: samples of each label."""
    distance: NDArray[np.float64]
    """[N]: total variation distance from the mix of the whole training set, 0 … 1."""

    @classmethod
    def of(cls, config: Config, data: ImageData) -> "LabelMix":
        counts = label_counts(data.train_labels, deal(data, config), data.num_classes)
        distance = distance_from_global(counts, data.train_labels)
        return cls(data, config.data, rule_of(config), config.scenario.seed, counts, distance)

    @property
    def samples(self) -> NDArray[np.int64]:
        """[N] of each client."""
        return np.asarray(self.counts.sum(axis=1))

    def commonest(self, client: int) -> list[int]:
        """The four labels this client has most of, the commonest first."""
        order = np.argsort(-self.counts[client], kind="stable")[:4]
        return [int(label) for label in order if self.counts[client, label] > 0]


def label_panel(mix: LabelMix) -> Panel:
    """Which labels each client holds."""
    shares = 100 * mix.counts / np.maximum(mix.counts.sum(axis=1, keepdims=True), 1)
    heat = Heat(values=shares.T, label="%", low=0, high=float(shares.max()))
    return Panel("Label mix of every client", [heat], Axis("client", whole=True), Axis("label", whole=True))


def label_chart(mix: LabelMix) -> Chart:
    clients = len(mix.counts)
    x, places = Axis("client", whole=True, low=-0.6, high=clients - 0.4), np.arange(clients)
    samples = Panel("Images of each client", [Bars(places=places, lengths=mix.samples)], x, Axis(low=0))
    far = "Distance from the mix of the whole set (1: no label in common)"
    distance = Panel(far, [Bars(places=places, lengths=mix.distance)], x, Axis(low=0, high=1))
    below = [[samples]] * (mix.settings.partition == "quantity") + [[distance]]
    images = " … ".join(f"{count:,}" for count in np.unique([mix.samples.min(), mix.samples.max()]))
    title = f"{mix.data.name}: {clients} client{'s' if clients > 1 else ''} with {images} images each, {mix.rule}"
    width, heights = float(np.clip(5 + 0.16 * clients, 7.5, 16)), (3, *(1 for _ in below))
    return Chart([[label_panel(mix)], *below], width, 6, title, heights=heights)


# ---------------------------------------------------------------------- decisions
def decision_chart(solution: Solution) -> Chart:
    """Objective of every cut, who has which resource blocks, and the powers."""
    problem, decision = solution.problem, solution.decision
    terms = plan_terms(replace(problem, switches=PUBLISHED))
    values = objective_of_cuts(problem, terms, decision.rb_count, decision.tx_power_w)
    chosen, num_clients = terms.cuts == decision.cut, problem.round.num_clients
    best = Points(x=terms.cuts[chosen], y=values[chosen], look=Look(GOOD), size=11)
    title = f"Cut {decision.cut} is best for these blocks and powers (drift + V · objective; low is good)"
    y = scaled("objective", values.tolist()) if values.min() > 0 else Axis("objective")
    cuts = Panel(
        title, [Line(x=terms.cuts, y=values, look=Look(OTHER)), best], Axis(CUT_LABEL, whole=True), replace(y, low=None)
    )
    owned = np.zeros((problem.round.radio.num_rbs, num_clients))
    owned[: decision.rb_mask.shape[1]] = decision.rb_mask.T
    client = Axis("client", whole=True)
    rbs = Panel("Resource blocks", [Heat(values=owned, low=0, high=1.3)], client, Axis("block", whole=True))
    top = problem.round.radio.max_tx_power_w
    bars = Bars(places=range(num_clients), lengths=decision.tx_power_w)
    power = Panel(f"Transmit power (at most {top:g} W)", [bars, Level(top)], client, Axis("W", low=0, high=1.15 * top))
    rules, cost = problem.rules, solution.expected
    said = (
        f"{problem.round.profile.name}: expected {float(cost.delay_s):.3g} s (budget {rules.delay_budget_s:.3g} s), "
        f"at most {cost.energy_j.max():.3g} J a client (budget {rules.energy_budget_j:.3g} J): "
        f"{'keeps both budgets' if solution.feasible else 'misses a budget'}"
    )
    charged = solution.timeline()
    barriers = solution.timeline(barriers=True) if problem.round.equations.timing == "overlap" else None
    rounds = timeline_rows(charged, barriers) if np.isfinite(charged.delay_s) else []
    heights = [3.2, 2.8, *(height_in(charged) for _ in rounds)]
    rows = [[cuts], [rbs, power], *([one] for one in rounds)]
    return Chart(rows, 10.5, 0.8 + sum(heights), subtitle=said, heights=heights, legend="bottom")


def _borrows(played: Playthrough, asfl: Playthrough | None) -> bool:
    """Whether a scheme's queues are ASFL's, because it borrows from it."""
    pairs = zip(played.rounds, asfl.rounds, strict=False) if asfl is not None else ()  # one may end sooner
    return asfl is not None and all(one.delay_queue == other.delay_queue for one, other in pairs)


def playthroughs_chart(playthroughs: Sequence[Playthrough]) -> Chart:
    """Cuts, delay queue, energy queue and total delay over rounds; a line per scheme, the first seed of each."""
    first = {played.scheme: played for played in reversed(playthroughs)}
    shown = {name: first[name].rounds for name in dict.fromkeys(played.scheme for played in playthroughs)}
    own = {name: one for name, one in shown.items() if name == OURS or not _borrows(first[name], first.get(OURS))}
    delays = lines_panel(
        "Delay so far", "s", {name: np.cumsum([r.delay_s for r in one]) for name, one in shown.items()}
    )
    allowed = np.arange(1, max(map(len, shown.values())) + 1) * playthroughs[0].budgets.delay_s
    budget = over_rounds(allowed, Look(BUDGET, (4, 2)), "budget")
    top = [
        lines_panel(
            "Cut", "layers on the client", {name: [r.mean_cut for r in one] for name, one in shown.items()}, step=True
        ),
        replace(delays, series=[*delays.series, budget], y=Axis("s", "log")),
    ]
    queues = [
        lines_panel("Delay queue", "backlog", {name: [r.delay_queue for r in one] for name, one in own.items()}),
        lines_panel(
            "Energy queue, mean over clients", "backlog",
            {name: [float(np.mean(r.energy_queue)) for r in one] for name, one in own.items()},
        ),
    ]  # fmt: skip
    return Chart([top, queues], 12, 8, legend="right")
