"""A round's timeline as a picture: what the server and each client do, and which steps its delay consists of."""

import numpy as np

from asfl.config.units import format_si
from asfl.costs.timeline import (
    ALL,
    BACKWARD,
    DOWN,
    FORWARD,
    GRADIENTS,
    MODEL_DOWN,
    MODEL_UP,
    SENT,
    SERVER,
    SERVER_BACKWARD,
    UP,
    Timeline,
)
from asfl.results.charts.chart import FAINT, Axis, Bars, Chart, Line, Look, Note, Panel, Series

WHAT = {
    "server computes": ("#26323f", (SERVER, SERVER_BACKWARD)),
    "client forward": ("#2767b0", (FORWARD,)),
    "activations up": ("#dd7a12", (SENT,)),
    "gradients down": ("#168a66", (GRADIENTS,)),
    "client backward": ("#7d3fa6", (BACKWARD,)),
    "layers, models, reports": ("#94704a", (DOWN, UP, MODEL_DOWN, MODEL_UP)),
}
"""What a colour means, and the parts of a round that have it."""
PALE = 0.62
"""How far the colours of steps that could take longer are on their way to white."""
PATH, STRIPE = Look("#d0021b", (), 1.0), Look("#f5f3ee")
LANES, GAP = 3, 0.8
"""Of a client; between bands, as a share of a lane."""
HAIRLINE = 1 / 900
"""Between steps that follow each other, as a share of the panel's width."""


def timeline_panel(timeline: Timeline, title: str = "", until_s: float | None = None) -> Panel:
    """A band for the server and one for each client that takes part, with a lane for each processor and link.

    Steps of the critical path have strong colours, and a line leads from one to the next.
    """
    until, graph, critical = until_s or timeline.delay_s, timeline.graph, timeline.critical
    clients = list(dict.fromkeys(lane.client for lane in timeline.lanes if lane.client != ALL))
    top = {ALL: 0.0} | {client: timeline.servers + GAP + row * (LANES + GAP) for row, client in enumerate(clients)}
    place = np.zeros(len(graph.part))
    for lane in timeline.lanes:
        place[lane.steps] = top[lane.client] + lane.resource
    high = {client: LANES if client != ALL else timeline.servers for client in top}
    middle = {client: at + (high[client] - 1) / 2 for client, at in top.items()}
    series: list[Series] = [
        Bars(
            places=places,
            lengths=[1.01 * until] * len(places),
            look=STRIPE,
            width=lanes + GAP / 2,
            horizontal=True,
        )
        for places, lanes in (([middle[ALL]], timeline.servers), ([middle[client] for client in clients], LANES))
    ]
    for what, (colour, parts) in WHAT.items():
        name = what
        of_kind = np.isin(graph.part, parts) & timeline.drawn
        for steps, look in ((of_kind & critical, Look(colour)), (of_kind & ~critical, Look(pale(colour)))):
            if steps.any():
                seconds = timeline.seconds[steps]
                bars = Bars(
                    places=place[steps],
                    lengths=seconds - np.minimum(until * HAIRLINE, seconds / 2),
                    base=timeline.begin_s[steps],
                    look=look,
                    name=name,
                    width=0.9,
                    horizontal=True,
                    hover=f"{what}: %{{base:.3~f}} to %{{x:.3~f}} s<extra></extra>",
                )
                series.append(bars)
                name = ""  # once in the legend
    if (sent := _last_of(timeline, SENT)) and (answered := _last_of(timeline, GRADIENTS)):
        for client in sent.keys() - answered.keys():
            series.append(Note("lost", timeline.end_s[sent[client]], place[sent[client]], FAINT))
    path = np.flatnonzero(critical)
    path = path[np.argsort(timeline.begin_s[path])]
    x = np.stack([timeline.begin_s[path], timeline.end_s[path]], axis=1).ravel()
    series.append(Line(x=x, y=np.repeat(place[path], 2), look=PATH, name="critical path", hover=""))
    y = Axis(
        "processor, uplink, downlink",
        ticks={middle[client]: "server" if client == ALL else f"client {client}" for client in top},
        low=-0.5 - GAP / 2,
        high=max(at + high[client] for client, at in top.items()) - 0.5 + GAP / 2,
        reversed=True,
        grid=False,
    )
    return Panel(title, series, Axis("seconds", low=0, high=1.01 * until), y)


def timeline_rows(charged: Timeline, barriers: Timeline | None = None) -> list[Panel]:
    """A round; above it, if it overlaps, the same decision with barriers."""
    if barriers is None:
        return [timeline_panel(charged, f"The round in stages: {_seconds(charged)}")]
    until = max(charged.delay_s, barriers.delay_s)
    first = timeline_panel(barriers, f"In stages: {_seconds(barriers)}", until)
    return [first, timeline_panel(charged, f"With overlap: {_seconds(charged)}", until)]


def timeline_chart(charged: Timeline, barriers: Timeline | None, subtitle: str) -> Chart:
    rows = [[panel] for panel in timeline_rows(charged, barriers)]
    return Chart(rows, 9.5, 0.8 + len(rows) * height_in(charged), subtitle=subtitle, legend="bottom")


def height_in(timeline: Timeline) -> float:
    """Of a panel."""
    clients = len({lane.client for lane in timeline.lanes}) - 1
    return 0.9 + 0.11 * (timeline.servers + clients * (LANES + GAP))


def _seconds(timeline: Timeline) -> str:
    return format_si(timeline.delay_s, "s")


def _last_of(timeline: Timeline, part: int) -> dict[int, int]:
    """By client, of those that have such steps."""
    steps = np.flatnonzero((timeline.graph.part == part) & timeline.drawn)
    return dict(zip(timeline.graph.client[steps].tolist(), steps.tolist(), strict=True))


def pale(colour: str) -> str:
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + PALE * (255 - part)):02x}" for part in parts)
