"""The picture of a world: who is where, and what each cut would cost a good, a median and a bad client."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asfl.config.units import format_si
from asfl.costs.budgets import Budgets
from asfl.costs.modelled import RoundCost, cost_of_all_cuts
from asfl.costs.world import World
from asfl.results.charged import trained_and_charged
from asfl.results.figures.city import SNR_LABEL, draw_ways
from asfl.results.figures.figure import BAD, BUDGET, CUT_LABEL, FAINT, GOOD, MEDIAN, drawing, headline, whole_numbers
from asfl.results.figures.gains import draw_gains
from asfl.results.heard import full_power_snr_db

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_SNR_LABEL = "mean SNR of one resource block at full power (dB)"


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
    """[M−1, N], the client's own way through a round: compute, uplink, its share of the server, downlink."""

    @classmethod
    def of(cls, world: World, budgets: Budgets) -> "WorldView":
        radio, num_clients = world.config.radio, world.config.scenario.clients
        first = world.begin_round(0)
        at_mean_gain = replace(first, channel_gain=first.path_gain)
        fair_share = np.full(num_clients, radio.num_rbs / num_clients)
        full_power = np.full(num_clients, radio.max_tx_power_w)
        cost = cost_of_all_cuts(at_mean_gain, fair_share, full_power, arrived=np.ones(num_clients))
        own_delay = (
            cost.client_forward_delay_s
            + cost.uplink_delay_s
            + cost.server_delay_s
            + cost.downlink_delay_s
            + cost.client_backward_delay_s
        )
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


def draw_world(view: WorldView) -> "Figure":
    changes = view.world.has_clock or view.world.begin_round(0).block_gain is not None
    with drawing(11.5, 12.2 if changes else 8.2) as figure:
        panels = figure.subplots(3 if changes else 2, 2)
        (disc, parts), (delay, energy) = panels[:2]
        _draw_disc(disc, view)
        if changes:
            draw_gains(panels[2, 0], panels[2, 1], view.world)
        _draw_parts(parts, view)
        _draw_per_cut(delay, view, view.delay_s, view.budgets.delay_s, "s", "delay")
        _draw_per_cut(energy, view, view.cost.energy_j, view.budgets.energy_j, "J", "energy")
        config = view.world.config
        size = f"{config.scenario.clients} clients, {config.radio.num_rbs} resource blocks"
        model = trained_and_charged(config) or view.world.profile.name
        headline(figure, f"{model}: {size}, {config.charged_samples} samples a round")
    return figure


def _draw_disc(axes: "Axes", view: WorldView) -> None:
    scenario, clients = view.world.config.scenario, view.world.clients
    is_trace = scenario.channel.kind == "trace"
    axes.set_title("Who is where" if not is_trace else "Who hears how well (measured; positions unknown)")
    around = getattr(view.world.channel, "surroundings", None)
    if around is not None:
        axes.set_title("Who walks where (triangle: server)")
        snr_db = full_power_snr_db(np.array(view.world.channel.gains), view.world.config.radio)  # type: ignore[attr-defined]
        axes.figure.colorbar(draw_ways(axes, around, snr_db), ax=axes, shrink=0.85).set_label(SNR_LABEL)
        return
    if is_trace:
        order = np.argsort(view.mean_snr_db)
        axes.barh(np.arange(len(order)), view.mean_snr_db[order], color=MEDIAN, height=0.8)
        axes.set(xlabel=_SNR_LABEL, ylabel="client, by SNR", yticks=[])
        return
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), scenario.radius_m, fill=False, color=FAINT, linewidth=1))
    looks: Any = {"c": view.mean_snr_db, "cmap": "viridis", "s": 70, "edgecolors": "white", "zorder": 3}
    points = axes.scatter(*clients.position_m.T, **looks)
    for way in _ways(view.world):
        axes.plot(*way.T, color=FAINT, linewidth=1.2, zorder=2)
    axes.scatter([0], [0], marker="^", s=110, color="black", zorder=3)
    axes.annotate("server", (0, 0), xytext=(0, -16), textcoords="offset points", ha="center")
    for (label, client), colour in zip(view.examples().items(), (GOOD, MEDIAN, BAD), strict=True):
        x, y = clients.position_m[client]
        axes.scatter(x, y, s=190, facecolors="none", edgecolors=colour, linewidths=1.8, zorder=4)
        axes.annotate(label, (x, y), xytext=(9, 7), textcoords="offset points", color=colour, weight="bold")
    limit = scenario.radius_m * 1.08
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xlabel="m", ylabel="m")
    axes.figure.colorbar(points, ax=axes, shrink=0.85).set_label(_SNR_LABEL)


def _ways(world: World) -> list[Floats]:
    """[2, 2] from where to where each client walks, if it does."""
    walks = getattr(world.channel, "walks", None)
    if walks is None or walks.speed_mps == 0:
        return []
    return list(np.stack([walks.start_m, walks.start_m + walks.length_m[:, None] * walks.heading], axis=1))


def _draw_parts(axes: "Axes", view: WorldView) -> None:
    client, cost, cuts = view.examples()["median"], view.cost, view.world.profile.cuts
    compute = (cost.client_forward_delay_s + cost.client_backward_delay_s)[:, client]
    layers = {
        "send activations": (cost.uplink_delay_s[:, client], "#e0a33e"),
        "return gradients": (cost.downlink_delay_s[:, client], "#f1d397"),
        "server computes": (cost.server_delay_s[:, client], "#9fb6d9"),
        "client computes": (compute, "#5b7fb8"),
    }
    bottom = np.zeros(len(cuts))
    for label, (height, colour) in layers.items():
        axes.bar(cuts, height, 0.82, bottom=bottom, color=colour, label=label)
        bottom = bottom + height
    axes.set_title("Where the median client's time goes")
    axes.set(xlabel=CUT_LABEL, ylabel="seconds in a round", xlim=(0.4, cuts[-1] + 0.6), ylim=(0, 1.4 * bottom.max()))
    whole_numbers(axes)
    axes.legend(loc="upper right", title="cut early: much to send\ncut late: much to compute on the device")


def _draw_per_cut(axes: "Axes", view: WorldView, values: Floats, budget: float, unit: str, what: str) -> None:
    cuts = view.world.profile.cuts
    for (label, client), colour in zip(view.examples().items(), (GOOD, MEDIAN, BAD), strict=True):
        curve = values[:, client]
        best = int(np.argmin(curve))
        axes.plot(cuts, curve, color=colour, linewidth=1.8, marker="o", markersize=3, label=f"{label} client")
        axes.scatter(cuts[best], curve[best], s=90, facecolors="none", edgecolors=colour, linewidths=1.8, zorder=4)
    axes.axhline(budget, color=BUDGET, linestyle="--", linewidth=1.2, label=f"budget {format_si(budget, unit)}")
    axes.set_yscale("log")
    _plain_numbers(axes)
    axes.set_title(f"What a cut costs: {what} per round (circle: cheapest cut)")
    axes.set(xlabel=CUT_LABEL, ylabel=f"{what} ({unit})", xlim=(0.4, cuts[-1] + 0.6))
    whole_numbers(axes)
    axes.legend(loc="best")


def _plain_numbers(axes: "Axes") -> None:
    """Label a logarithmic axis with 0.5, 5, 50 rather than powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter("")
