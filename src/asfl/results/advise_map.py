"""Which scheme should I use? The answer by bandwidth, price of energy and spread of processors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from asfl.config import Config
from asfl.results.advise import ADVISED, Learnt, advise, joule_in_seconds, ranked
from asfl.results.charts.chart import Axis, Bars, Chart, Look, Note, Panel, Series, look_of
from asfl.schemes import PLUS

BANDWIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Times that of the world that was asked about."""
PRICES = {"time is all": 0.0, "both count": 1.0, "mostly energy": 10.0}
SPREADS = {"processors alike": 1.0, "processors from 1 to 8": 8.0}
"""The fastest processor as a multiple of the slowest."""


@dataclass(frozen=True)
class Cell:
    """One world of the map, and who is best there."""

    bandwidth: float
    price: str
    spread: str
    best: str
    second: str
    """Empty if there is only one."""
    ahead: float
    """The price of the second as a multiple of the best's."""


DEPENDS_ON_PRICE = PLUS
"""The only one whose decisions do; the others are played once for all prices."""


def which_scheme(
    config: Config, rounds: int, learnt: Learnt, *, progress: Callable[[str], None] = lambda _: None
) -> list[Cell]:
    """The best scheme in worlds around one world; `progress` hears of every world that is done."""
    cells = []
    for spread, factor in SPREADS.items():
        for bandwidth in BANDWIDTHS:
            there = _there(config, bandwidth, factor)
            cells += [
                Cell(bandwidth, price, spread, *of_price) for price, of_price in _best(there, rounds, learnt).items()
            ]
            progress(f"{bandwidth:g} × bandwidth, {spread}")
    return cells


def _best(config: Config, rounds: int, learnt: Learnt) -> dict[str, tuple[str, str, float]]:
    """By price: who is best, who is second, and how far behind."""
    others = advise(config, rounds, 1, learnt, schemes=_all_but(DEPENDS_ON_PRICE)).candidates
    found = {}
    for price, value in PRICES.items():
        priced = config.model_copy(update={"decision": config.decision.model_copy(update={"energy_price": value})})
        ours = advise(priced, rounds, 1, learnt, schemes=(DEPENDS_ON_PRICE,)).candidates
        weight = joule_in_seconds(priced)
        best, *rest = ranked((*ours, *(replace(one, weight=weight) for one in others)))
        found[price] = (best.scheme, *((rest[0].scheme, rest[0].price / best.price) if rest else ("", math.inf)))
    return found


def _all_but(scheme: str) -> Sequence[str]:
    return [name for name in ADVISED if name != scheme]


def _there(config: Config, bandwidth: float, spread: float) -> Config:
    """The same world with other links and other processors."""
    scenario, radio = config.scenario, config.radio
    middle = math.sqrt(scenario.min_cpu_hz * scenario.max_cpu_hz)
    ends = {"min_cpu_hz": middle / math.sqrt(spread), "max_cpu_hz": middle * math.sqrt(spread)}
    wide = {name: bandwidth * getattr(radio, name) for name in ("rb_bandwidth_hz", "downlink_bandwidth_hz")}
    return config.model_copy(
        update={"scenario": scenario.model_copy(update=ends), "radio": radio.model_copy(update=wide)}
    )


def map_chart(cells: Sequence[Cell], said: str) -> Chart:
    """A panel per spread of processors; in each, the best scheme and the second by bandwidth and price of energy."""
    panels = []
    across = Axis(
        "bandwidth", ticks={x: f"× {one:g}" for x, one in enumerate(BANDWIDTHS)}, low=-0.5, high=len(BANDWIDTHS) - 0.5
    )
    for spread in SPREADS:
        series: list[Series] = []
        for cell in (one for one in cells if one.spread == spread):
            x, y, look = BANDWIDTHS.index(cell.bandwidth), list(PRICES).index(cell.price), look_of(cell.best)
            faint = Look(look.color, opacity=0.4)
            series.append(Bars(places=[x], lengths=[0.96], base=[y - 0.48], width=0.96, look=faint, name=cell.best))
            behind = f"\n{cell.second}: {cell.ahead:.{0 if cell.ahead >= 10 else 1}f}×" if cell.second else ""
            series.append(Note(cell.best + behind, x, y, place="center", size=7))
        ticks = {y: name if spread == next(iter(SPREADS)) else "" for y, name in enumerate(PRICES)}
        up = Axis(ticks=ticks, low=-0.5, high=len(PRICES) - 0.5)
        panels.append(Panel(spread, series, across, up))
    return Chart([panels], 4.6 * len(SPREADS), 3.6, subtitle=said, legend="bottom")
